"""Watching a run: its log, and the progress it tells; confidential."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opendas.forecast import Forecast
from opendas.preparation import Options, Prepared
from opendas.run_log import RunLog, log_path
from opendas.timing import Clock, workers_for
from opendas.workspace import Workspace

__all__ = ["Watch", "watched"]


@dataclass(frozen=True, slots=True)
class Watch:
    """What looks on while a run works.

    Parameters
    ----------
    options : Options
        Those of the run; what they tell of progress and forecast is logged too.
    clock : Clock
        Its laps are logged.
    log : RunLog
    """

    options: Options
    clock: Clock
    log: RunLog

    def prepared(self, run: Prepared) -> None:
        """Log that a run has its plan, and perhaps its ledger entry: what it will do."""
        options, spine = self.options, run.spine
        local = options.engine == "local"
        self.log.write(
            "phase",
            phase=run.state.phase,
            run_id=run.state.run_id,
            plan_digest=run.state.plan_digest,
            spine_digest=spine.digest(),
            leaves=len(spine.leaf),
            geounits={name: len(level) for name, level in zip(spine.names, spine.levels, strict=True)},
            workers=workers_for(len(spine.leaf), options.workers) if local else options.workers,
        )


@contextmanager
def watched(space: Workspace, product: str, command: str, options: Options) -> Iterator[Watch]:
    """Keep the log of an attempt; an error that ends it is its last line.

    Parameters
    ----------
    space : Workspace
        Open, so that nobody else writes the log.
    product : str
    command : str
        ``run``, ``measure`` or ``estimate``.
    options : Options
    """
    with RunLog(log_path(space.confidential, product)) as log:
        log.start(
            product=product,
            command=command,
            workers=options.workers,
            engine=options.engine,
            resume=options.resume,
            seeded=options.seed is not None,
        )

        def tell(stage: str, done: int, total: int) -> None:
            log.progress(stage, done, total)
            options.tell(stage, done, total)

        def expect(forecast: Forecast, warnings: tuple[str, ...]) -> None:
            log.write(
                "forecast",
                seconds=round(forecast.seconds, 1),
                steps={name: round(seconds, 2) for name, seconds in forecast.steps.items()},
                levels={name: round(part, 4) for name, part in forecast.levels.items()},
                peak_rss_mb=round(forecast.peak_rss_mb, 1),
                memory_mb=round(forecast.memory_mb, 1),
                disk_mb=round(forecast.output_mb + forecast.scratch_mb, 1),
            )
            for warning in warnings:
                log.write("note", message=warning)
            if options.expect is not None:
                options.expect(forecast, warnings)

        yield Watch(replace(options, progress=tell, expect=expect), Clock(log.step), log)
