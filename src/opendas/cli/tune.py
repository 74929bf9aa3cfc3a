"""``opendas tune``: the least budget that meets accuracy targets, on public stand-in data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import json_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table

if TYPE_CHECKING:
    from opendas.tuning.judge import Step
    from opendas.tuning.tune import Tuning

__all__ = ["command"]

_PATH: click.Path = click.Path(path_type=Path)


class _Teller:
    """Says on stderr what each allocation did, and how long an allocation takes."""

    def __init__(self) -> None:
        self.steps = 0
        self.started = time.monotonic()

    def __call__(self, step: Step) -> None:
        self.steps += 1
        each = (time.monotonic() - self.started) / self.steps
        values = ", ".join("no areas" if value is None else f"{value:.4g}" for value in step.values)
        verdict = "met" if step.passed else "not met"
        message(
            f"{self.steps:4d}  {step.stage}: loss {float(step.candidate.total):.4g}, {verdict} ({values}); "
            f"{each:.1f} s each"
        )


@click.command("tune")
@run_file_argument
@click.option("--targets", type=_PATH, required=True, help="File of accuracy targets (TOML).")
@click.option(
    "--source", required=True, help="Which public data the run file's input is; goes into the plan."
)
@click.option(
    "--method",
    type=click.Choice(["search", "level-by-level"]),
    default="search",
    show_default=True,
    help="Our own search, or that of the 2020 Census with its six strategies.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=4, show_default=True, help="Runs that judge together."
)
@click.option(
    "--confirm",
    type=click.IntRange(min=0),
    default=25,
    show_default=True,
    help="Independent runs at the end.",
)
@click.option(
    "--tolerance", type=float, default=0.1, show_default=True, help="Relative step at which a loss is found."
)
@click.option("--levels-only", is_flag=True, help="Do not try to save on single query groups.")
@click.option(
    "--most-runs", type=click.IntRange(min=1), default=2000, show_default=True, help="Then give up."
)
@click.option("--memory", type=_PATH, default=None, help="File of finished runs: a stopped search goes on.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--to", type=_PATH, default=None, help="Write the plan here, as a run file.")
@json_option
def command(run_file: Path, to: Path | None, as_json: bool, **options: Any) -> None:
    """Find the least privacy loss, and its allocation, that meets accuracy targets.

    The input of the run file must be public stand-in data, for instance those of the last census: a plan
    tuned on confidential data would tell about them.

    Example: opendas tune run.toml --targets targets.toml --source "2010 Census, P.L. 94-171" --to plan.toml
    """
    from opendas.files.atomic import make_folder, write_atomic
    from opendas.runs.run import load
    from opendas.tuning.plan_file import plan_toml
    from opendas.tuning.tune import Settings, tune

    settings = Settings(
        source=options["source"],
        method=options["method"],
        runs=options["runs"],
        confirm=options["confirm"],
        tolerance=options["tolerance"],
        queries=not options["levels_only"],
        most=options["most_runs"],
        memory=options["memory"],
        workers=options["workers"],
        tell=_Teller(),
    )
    if to is not None and to.exists():
        raise click.UsageError(f"{to} exists already; name another file with --to.")
    if to is not None:
        make_folder(to.parent)  # rather now than after hours
    tuning = tune(load(run_file), options["targets"], settings)
    if to is not None:
        write_atomic(to, plan_toml(tuning, to).encode())
        message(f"plan written to {to}")
    if as_json:
        emit_json(tuning.to_dict())
    else:
        _show(tuning)


def _show(tuning: Tuning) -> None:
    name = tuning.run.resolved.mechanism.loss_name
    total = tuning.candidate.total
    click.echo(f"{name} {float(total):.6g}, strategy: {tuning.candidate.strategy.name}")
    rows = [
        {"geolevel": level, name: float(loss), "share": float(loss / total)}
        for level, loss in tuning.candidate.levels.items()
    ]
    click.echo(text_table(rows))
    if tuning.confirmations:
        click.echo()
        click.echo(f"confirmed in {tuning.settings.confirm} independent runs:")
    for found in tuning.confirmations:
        if found.together is None:
            click.echo(f"  {found.target}: no areas")
        else:
            click.echo(
                f"  {found.target}: {found.together:.4g} together, {found.lowest:.4g} to {found.highest:.4g} "
                f"in single runs, met by itself in {found.runs_met} of {found.runs}"
            )
