"""The steps of a run: read, measure, estimate, write.

:func:`release` measures lazily: it draws what estimation needs, and the full file only when asked.
:func:`measure` writes the full file; :func:`estimate` then opens neither input nor key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from opendas.engines.backend import Backend, open_backend
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.drive import Estimation, estimate_on
from opendas.engines.local import workers_for
from opendas.engines.measurement_source import FileSource, check_measurement_files
from opendas.engines.outputs import FamilyFile, Leaves, Solved, UsedFile, used_files, write_full
from opendas.engines.protocol import Engine
from opendas.engines.work import KeyedSource, SourceSpec, Worker
from opendas.errors import ConfigError, PrivacyError
from opendas.files.atomic import make_folder, remove_partials, write_atomic
from opendas.files.geography_files import (
    read_constraint_table,
    read_frame,
    read_spine,
    write_constraints,
    write_frame,
    write_spine,
)
from opendas.files.mdf.writing import MdfFiles
from opendas.measurement.noisy import measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism
from opendas.readers.base import InputData
from opendas.report.certificate import load_pages, read_runs
from opendas.report.facts import RunFacts
from opendas.runs.config.released import released_toml
from opendas.runs.plan import describe, describe_estimate, issue_certificate
from opendas.runs.prepare import Options, Prepared, Progress, check_same, find_known, prepare
from opendas.runs.progress.clock import Clock
from opendas.runs.progress.forecast import Forecast
from opendas.runs.progress.log import RunLog, log_path
from opendas.runs.run import Run, make_budget, make_model, make_rules
from opendas.runs.workspace import RunState, Workspace, refuse_foreign, remove_cache
from opendas.schema.histogram import Histogram
from opendas.version import __version__

__all__ = [
    "Options",
    "Progress",
    "Watch",
    "estimate",
    "measure",
    "release",
    "watched",
]

# Watching a run: its log, and the progress it tells; confidential.


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
                peak_rss_mb=round(forecast.peak_rss_mb, 1),
                memory_mb=round(forecast.memory_mb, 1),
                disk_mb=round(forecast.output_mb + forecast.scratch_mb, 1),
            )
            for warning in warnings:
                log.write("note", message=warning)
            if options.expect is not None:
                options.expect(forecast, warnings)

        yield Watch(replace(options, progress=tell, expect=expect), Clock(log.step), log)


def release(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Run from input to finished release.

    Returns
    -------
    dict
        The answer of ``run --json``.
    """
    refuse_foreign(out)
    name = run.product.name
    with (
        Workspace(_seen_by_all(out, options), options.ledger) as space,
        watched(space, name, "run", options) as watch,
    ):
        options, clock = watch.options, watch.clock
        known = find_known(space, run, options)
        at_hand = space.key_at_hand(run.product.name, options.passphrase)
        if known is not None and known.phase == "finished" and not at_hand:
            return _finished_without_key(space, run, known, options)
        with _open_backend(space, run, options) as backend, _input_put_aside(space, known):
            prepared = prepare(space, run, options, known, clock, backend)
            watch.prepared(prepared)
            if prepared.state.phase == "finished":
                _check_wanted(space, prepared.state, run, options)
                return _answer(space, prepared.state)
            return _release(space, run, prepared, options, clock, backend)


def _release(
    space: Workspace, run: Run, prepared: Prepared, options: Options, clock: Clock, backend: Backend
) -> dict[str, Any]:
    """Measure, estimate and write."""
    source = KeyedSource(measured_levels(prepared.plan), prepared.noise_key)
    with _engine(space, run, prepared, source, options, backend) as (engine, files):
        public = partial(_write_public, space, run, prepared, options.measurements)
        estimation, facts = _estimate(run, prepared, engine, files, options, clock, public)
        measured: list[UsedFile] = []
        if options.measurements == "full":
            _write_full(space, run, prepared, options, backend)
            clock.lap("measurement files")
        else:
            measured = used_files(
                space.release / "measurements" / run.product.name, prepared.plan, estimation
            )
        return _finish(space, run, prepared, estimation, facts, measured, engine, options, clock)


def _write_full(space: Workspace, run: Run, prepared: Prepared, options: Options, backend: Backend) -> None:
    """Draw and write all noisy answers."""
    if prepared.counts is None:
        raise AssertionError("measuring needs counts")
    name = run.product.name
    source = KeyedSource(measured_levels(prepared.plan), prepared.noise_key)
    draw = backend.draw(source, prepared.counts, space.state / name, prepared.spine)
    write_full(space.release / "measurements" / name, prepared.plan, draw, options.tell)


def measure(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Take all measurements and write them; no estimate."""
    refuse_foreign(out)
    name = run.product.name
    with (
        Workspace(_seen_by_all(out, options), options.ledger) as space,
        watched(space, name, "measure", options) as watch,
    ):
        options, clock = watch.options, watch.clock
        known = find_known(space, run, options)
        if known is not None and known.phase in ("measured", "finished"):
            if known.result is not None and known.result.get("measurements") == "full":
                return _answer(space, known)
            if not space.key_path(run.product.name).exists():
                raise PrivacyError(
                    f"the key of {run.product.name} was destroyed: no further measurements can be drawn. "
                    "A new run in a new folder is charged in full."
                )
        with _open_backend(space, run, options) as backend:
            prepared = prepare(space, run, options, known, clock, backend, estimates=False)
            watch.prepared(prepared)
            facts = _write_public(space, run, prepared, "full")
            _write_full(space, run, prepared, options, backend)
        clock.lap("measurement files")
        phase, more = "measured", {}
        if prepared.state.phase == "finished":
            # The microdata stay; only more of the same measurement is shown beside them.
            estimated = next(r for r in read_runs(space.release) if r.product == facts.product)
            facts = replace(estimated, measurements="full")
            phase, more = "finished", dict(prepared.state.result or {})
        issue_certificate(space.release, facts)
        result = _result(prepared, {**more, "measurements": "full"})
        state = replace(prepared.state, phase=phase, result=result)
        space.save_state(state)
        space.close(state)
        clock.save(space.confidential / "timings" / f"{run.product.name}.json")
        return _answer(space, state)


def estimate(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Estimate from the full measurement files of `out`; opens neither input nor key."""
    refuse_foreign(out)
    name = run.product.name
    with (
        Workspace(_seen_by_all(out, options), options.ledger) as space,
        watched(space, name, "estimate", options) as watch,
    ):
        options, clock = watch.options, watch.clock
        state = space.load_state(name)
        folder = space.release.absolute() / "measurements" / name
        if state is None or not (folder / "spine.parquet").is_file():
            raise ConfigError(f"{out} holds no measurements of {name}; run opendas measure first.")
        if state.phase == "finished" and options.resume:
            return _answer(space, state)
        if state.phase == "finished":
            raise ConfigError(f"{name} is estimated in {out} already; use --resume to get its result.")
        frame = read_frame(space.release / "geography" / f"{name}.parquet")
        spine = read_spine(folder / "spine.parquet", frame)
        plan = MeasurementPlan(run.product, spine, make_budget(run.resolved))
        if plan.digest() != state.plan_digest:
            raise PrivacyError(
                f"the measurements of {name} in {out} were taken with another plan; estimate with the run "
                "file they were measured with (release/run holds it)."
            )
        constraints = read_constraint_table(folder / "constraints.parquet", run.product, spine)
        # Only public fields are used below: there is no input and no key in this phase.
        empty = Histogram.from_entries([], [], [], shape=(0, run.product.schema.size))  # type: ignore[arg-type]
        stamps = tuple(state.result.get("stamps", ())) if state.result else ()
        declared = tuple(state.result.get("declared", ())) if state.result else ()
        data = InputData(frame, empty, stamps, declared)
        model = make_model(run.resolved, plan, constraints)
        prepared = Prepared(data, None, frame, spine, plan, constraints, state, b"", model)
        watch.prepared(prepared)
        source = FileSource(measured_levels(plan), folder)
        check_measurement_files(source.levels, spine, folder)
        clock.lap("read measurements")
        with (
            _open_backend(space, run, options) as backend,
            _engine(space, run, prepared, source, options, backend) as (engine, files),
        ):
            options = replace(options, measurements="full")
            known = partial(_describe, run, prepared, "full")  # what is public stands in `out` already
            estimation, facts = _estimate(run, prepared, engine, files, options, clock, known)
            return _finish(space, run, prepared, estimation, facts, [], engine, options, clock)


@contextmanager
def _input_put_aside(space: Workspace, known: RunState | None) -> Iterator[None]:
    """Let a run put its input aside; one that is finished only sees whether it is the same."""
    try:
        yield
    finally:
        if known is not None and known.phase == "finished":
            remove_cache(space.cache(known.product))


def _check_wanted(space: Workspace, known: RunState, run: Run, options: Options) -> None:
    """Refuse to return a finished run as if it had the measurements or microdata that are asked for."""
    stored = (known.result or {}).get("measurements")
    if options.measurements == "full" and stored != "full":
        raise ConfigError(
            f"{known.product} was finished with the measurements that estimation used; "
            "opendas measure --resume writes all of them, with the same noise and no further charge."
        )
    folder = space.release / "mdf" / run.product.layout
    if options.mdf_format == "pipe" and any(folder.glob("*.parquet")):
        raise ConfigError(
            f"{known.product} was finished with microdata in Parquet; --resume does not change their format."
        )


def _finished_without_key(space: Workspace, run: Run, known: RunState, options: Options) -> dict[str, Any]:
    plan = run.plan
    now = replace(
        known,
        version=__version__,
        plan_digest=plan.digest(),
        estimation_digest=run.estimation_digest(plan),
        seed=options.seed,
    )
    check_same(known, now)
    return _answer(space, known)


def _stamps(prepared: Prepared) -> tuple[str, ...]:
    result: Mapping[str, Any] = prepared.state.result or {}
    return tuple(result.get("stamps", ()))


def _seen_by_all(out: Path, options: Options) -> Path:
    """Return the output folder as executors name it, too."""
    return out if options.engine == "local" else out.resolve()


def _refuse_on_spark(run: Run, options: Options) -> None:
    """Refuse what only the local engine does.

    Raises
    ------
    ConfigError
    """
    if options.engine != "spark":
        return
    if run.resolved.estimator == "block-by-block" or len(run.resolved.levels) < 2:
        raise ConfigError(
            "engine spark deals subtrees out, and there are none with one geolevel or with the estimator "
            "block-by-block; leave out --engine."
        )


def _open_backend(space: Workspace, run: Run, options: Options) -> AbstractContextManager[Backend]:
    """Open the place of a run."""
    folder, cache = space.state / run.product.name, space.cache(run.product.name)
    _refuse_on_spark(run, options)
    return open_backend(options.engine, options.master, options.workers, folder, cache)


@contextmanager
def _engine(
    space: Workspace, run: Run, prepared: Prepared, source: SourceSpec, options: Options, backend: Backend
) -> Iterator[tuple[Engine, Checkpoints]]:
    """Start the workers of a run; they write what they find into files of the run's own."""
    keep_used = options.measurements == "used" and prepared.counts is not None
    binding = prepared.state.run_id + run.estimation_digest(prepared.plan) + str(keep_used)
    name = run.product.name
    seconds = space.cache(name) / "seconds"
    make_folder(seconds)
    files = Checkpoints(space.state / name, binding, backend.write, seconds)
    rules = make_rules(run.resolved, prepared.plan, prepared.constraints)
    worker = Worker(rules, source, run.resolved.failsafe, keep_used, files)
    with backend.engine(worker, space.state / name, prepared.counts, prepared.spine) as engine:
        yield engine, files


def _estimate(
    run: Run,
    prepared: Prepared,
    engine: Engine,
    files: Checkpoints,
    options: Options,
    clock: Clock,
    beside: Callable[[], RunFacts],
) -> tuple[Estimation, RunFacts]:
    """Estimate, and do beside it what needs no estimate: most of the time this process only waits."""
    with ThreadPoolExecutor(1) as thread:
        facts = thread.submit(beside)
        pages = thread.submit(load_pages)
        estimation = estimate_on(
            engine,
            prepared.spine,
            prepared.constraints,
            counts=prepared.counts,
            estimator=run.resolved.estimator,
            model=prepared.model,
            checkpoints=files,
            progress=options.tell,
        )
    clock.lap("estimate")
    pages.result()
    return estimation, facts.result()


def _write_public(space: Workspace, run: Run, prepared: Prepared, measurements: str) -> RunFacts:
    """Write what is public of a run, its resolved plan, frame, spine and constraints; and describe it."""
    name = run.product.name
    folder = space.release / "measurements" / name
    write_frame(space.release / "geography" / f"{name}.parquet", prepared.frame, run.product)
    write_spine(folder / "spine.parquet", prepared.spine)
    write_constraints(folder / "constraints.parquet", run.product, prepared.spine, prepared.constraints)
    text = released_toml(run.resolved, prepared.plan.budget)
    write_atomic(space.release / "run" / f"{name}.toml", text.encode())
    return _describe(run, prepared, measurements)


def _describe(run: Run, prepared: Prepared, measurements: str) -> RunFacts:
    stamps, declared = _stamps(prepared), prepared.data.declared
    return describe(run, prepared.plan, prepared.frame, stamps, declared, measurements)


def _finish(
    space: Workspace,
    run: Run,
    prepared: Prepared,
    estimation: Estimation,
    facts: RunFacts,
    measured: Sequence[UsedFile],
    engine: Engine,
    options: Options,
    clock: Clock,
) -> dict[str, Any]:
    """Write files and certificate, close the ledger entry, and drop the checkpoints."""
    product = run.product
    folder = space.release / "mdf" / product.layout
    leaves = Leaves(estimation, prepared.spine)
    microdata = MdfFiles(folder, product, prepared.frame, leaves, options.mdf_format)
    timed = space.confidential / "timings" / f"{product.name}_families.parquet"
    families = FamilyFile(timed, prepared.spine.names, estimation.finished())
    count = len(measured) + 1 + len(microdata)
    options.tell("writing", 0, count)
    every = engine.apply(methodcaller("write"), itertools.chain(measured, [families], microdata), count)
    solved = None
    for done, (_, answer) in enumerate(every, start=1):
        solved = answer if isinstance(answer, Solved) else solved
        options.tell("writing", done, count)
    if solved is None:
        raise AssertionError("the file of families tells how they were solved")
    remove_partials(space.release)  # of executors that were given up
    records = microdata.records
    clock.lap("write")
    issue_certificate(space.release, describe_estimate(facts, run, solved, records))
    clock.lap("certificate and report")
    result = _result(
        prepared,
        {
            "records": records,
            "families": solved.families,
            "fallbacks": solved.fallbacks,
            "measurements": options.measurements,
        },
    )
    state = replace(prepared.state, phase="finished", result=result)
    clock.save(space.confidential / "timings" / f"{product.name}.json")
    space.save_state(state)
    space.close(state)
    return _answer(space, state)


def _result(prepared: Prepared, more: Mapping[str, Any]) -> dict[str, Any]:
    budget = prepared.plan.budget
    gaussian = budget.mechanism is Mechanism.DISCRETE_GAUSSIAN
    return {
        "product": prepared.state.product,
        "rho": format_fraction(budget.total) if gaussian else None,
        "epsilon": None if gaussian else format_fraction(budget.total),
        "stamps": list(_stamps(prepared)),
        "declared": list(prepared.data.declared),
        **more,
    }


def _answer(space: Workspace, state: RunState) -> dict[str, Any]:
    timing = Clock.read(space.confidential / "timings" / f"{state.product}.json")
    return {"out": str(space.out), **(state.result or {}), **timing}
