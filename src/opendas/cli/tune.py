"""The command ``tune``: less loss for targets, or better shares of the same loss. Nothing is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import PATH, json_option, ledger_option, read_records_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table

if TYPE_CHECKING:
    from opendas.tuning.improve import Improvement
    from opendas.tuning.judge import Step
    from opendas.tuning.same_loss import Judged
    from opendas.tuning.tune import Tuning


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


def _report_plan(plan: Judged) -> None:
    """Say on stderr what a plan of the same loss did."""
    worse = f"; worse: {', '.join(map(str, plan.worse))}" if plan.worse else ""
    message(f"{plan.name}: {plan.aim:+.1%}, worst {plan.worst:+.1%}, epsilon within {plan.within:.3g}{worse}")


@click.command("tune")
@run_file_argument
@click.option("--targets", type=PATH, help="File of accuracy targets (TOML): find the least loss for them.")
@click.option("--same-loss", is_flag=True, help="Instead find a better plan of the run file's own loss.")
@click.option(
    "--source",
    help="Which public data the run file's input is; goes into the plan. With --same-loss, counts are "
    "synthetic without it.",
)
@click.option(
    "--method",
    type=click.Choice(["search", "level-by-level"]),
    help="With --targets: our own search (default), or that of the 2020 Census with its six strategies.",
)
@click.option("--tolerance", type=float, help="With --targets: relative step of a loss. Default: 0.1.")
@click.option(
    "--levels-only", is_flag=True, help="With --targets: do not try to save on single query groups."
)
@click.option(
    "--most-runs",
    "most",
    type=click.IntRange(min=1),
    help="With --targets: give up after so many runs. Default: 2000.",
)
@click.option(
    "--improve",
    metavar="LEVEL[/QUERY]",
    multiple=True,
    help="With --same-loss: errors to lower. Default: those of the lowest geolevel.",
)
@click.option(
    "--may-worsen",
    metavar="LEVEL[/QUERY]",
    multiple=True,
    help="With --same-loss: errors that may grow. Default: none.",
)
@click.option(
    "--area",
    "areas",
    metavar="CATEGORY[:CODE,...]",
    multiple=True,
    help="With --same-loss: areas off the spine whose errors may not grow either.",
)
@click.option(
    "--against", metavar="ESTIMATOR", help="With --same-loss: estimator of the plan that others are held to."
)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="With --same-loss: about how many records there are. Default: 45 a leaf, or 2.3 people a home.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), help="With --same-loss: plans of each kind. Default: 3."
)
@click.option(
    "--steps", type=click.IntRange(min=0), help="With --same-loss: kinds between the two. Default: 2."
)
@click.option(
    "--runs", type=click.IntRange(min=1), help="Runs over which a target or a plan is judged. Default: 4."
)
@click.option(
    "--confirm",
    type=click.IntRange(min=0),
    help="Independent runs at the end. Default: 25, with --same-loss 10.",
)
@click.option("--memory", type=PATH, help="File of finished runs: a stopped search goes on.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--to", type=PATH, help="Write the plan here, as a run file; with --same-loss also a CSV and an SVG file."
)
@ledger_option
@read_records_option
@json_option
def tune_command(
    run_file: Path, same_loss: bool, to: Path | None, read_records: bool, as_json: bool, **options: Any
) -> None:
    """Find the least loss that meets accuracy targets, or a better plan of the same loss.

    With --targets, the input of the run file must be public stand-in data, for instance those of the last
    census: a plan tuned on confidential data would reveal something about them. With --same-loss no record
    is read, unless --source says that the input is public, or --read-records is given.

    Example: opendas tune run.toml --targets targets.toml --source "2010 Census, P.L. 94-171" --to plan.toml;
    opendas tune run.toml --same-loss --improve block --may-worsen state --to plan.toml
    """
    from opendas.custody.folders import make_folder

    given = {
        name: value for name, value in options.items() if value not in (None, (), "") and value is not False
    }
    for wrong in _OF_TARGETS if same_loss else _OF_SAME_LOSS:
        if wrong in given:
            name = {"areas": "area", "most": "most-runs"}.get(wrong, wrong).replace("_", "-")
            raise click.UsageError(f"--{name} goes with {'--targets' if same_loss else '--same-loss'}.")
    if not same_loss and not {"targets", "source"} <= given.keys():
        raise click.UsageError("give --targets and --source, or --same-loss.")
    files = [] if to is None else [to, *([to.with_suffix(s) for s in (".csv", ".svg")] if same_loss else [])]
    for file in files:
        if file.exists():
            raise click.UsageError(f"{file} exists already; name another file with --to.")
    if to is not None:
        make_folder(to.parent)  # rather now than after hours
    if same_loss:
        _improve(run_file, given, files, read_records, as_json)
    else:
        _tune(run_file, given, to, as_json)


_OF_TARGETS = ("targets", "method", "tolerance", "levels_only", "most")
_OF_SAME_LOSS = ("improve", "may_worsen", "areas", "against", "records", "rounds", "steps")


def _tune(run_file: Path, given: dict[str, Any], to: Path | None, as_json: bool) -> None:
    from opendas.custody.folders import write_atomic
    from opendas.runs.context.run import load
    from opendas.tuning.tune import Settings, plan_toml, tune

    targets, queries = given.pop("targets"), not given.pop("levels_only", False)
    settings = Settings(queries=queries, tell=_Teller(), **given)
    tuning = tune(load(run_file, read_records=True), targets, settings)
    if to is not None:
        write_atomic(to, plan_toml(tuning, to).encode())
        message(f"plan written to {to}")
    if as_json:
        emit_json(tuning.to_dict())
    else:
        _show_tuning(tuning)


def _improve(
    run_file: Path, given: dict[str, Any], files: Sequence[Path], read_records: bool, as_json: bool
) -> None:
    from opendas.custody.folders import write_atomic
    from opendas.runs.context.run import load
    from opendas.tuning.improve import improve
    from opendas.tuning.picture import improvement_svg

    run = load(run_file, read_records=read_records or "source" in given)
    found = improve(run, tell=_report_plan, **given)
    if files:
        for file, text in zip(
            files, (found.toml(files[0]), found.csv(), improvement_svg(found)), strict=True
        ):
            write_atomic(file, text.encode())
        message(f"plan written to {files[0]}, with {files[1].name} and {files[2].name}")
    if as_json:
        emit_json(found.to_dict())
    else:
        _show_improvement(found)


def _show_improvement(found: Improvement) -> None:
    from opendas.report.views import plural

    fronts = {"errors": found.error_front, "loss": found.loss_front}
    rows = [
        {
            "plan": plan.name,
            "improved": f"{plan.aim:+.1%}",
            "worst": f"{plan.worst:+.1%}",
            "epsilon_within": f"{plan.within:.3g}",
            "worse": len(plan.worse),
            "front": " ".join(word for word, front in fronts.items() if plan in front),
        }
        for plan in found.found
    ]
    plans, leaves = plural("plan", len(rows)), plural("leaf", found.leaves)
    click.echo(f"{plans} on {leaves}, {plural('run', found.wishes.runs)} each:")
    click.echo(text_table(rows))
    changes = found.confirmed.changes
    click.echo()
    runs = plural("other run", found.wishes.confirm)
    click.echo(f"chosen: {found.chosen.name}; in {runs} {found.confirmed.aim:+.1%}")
    click.echo(
        text_table(
            [
                {
                    "error": str(change.row),
                    "before": f"{change.before:.4g}",
                    "after": f"{change.after:.4g}",
                    "change": f"{change.part:+.1%}",
                    "at most": f"{change.at_most:+.1%}",
                    "verdict": change.verdict,
                }
                for change in changes
            ]
        )
    )
    better, worse = (sum(getattr(change, name) for change in changes) for name in ("better", "worse"))
    click.echo(f"{better} errors better, {worse} worse, {len(changes) - better - worse} within noise.")
    for change in found.trades:
        click.echo(f"traded: {change}")


def _show_tuning(tuning: Tuning) -> None:
    from opendas.report.views import plural

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
        click.echo(f"confirmed in {plural('independent run', tuning.settings.confirm)}:")
    for found in tuning.confirmations:
        if found.together is None:
            click.echo(f"  {found.target}: no areas")
        else:
            click.echo(
                f"  {found.target}: {found.together:.4g} together, {found.lowest:.4g} to {found.highest:.4g} "
                f"in single runs, met by itself in {found.runs_met} of {found.runs}"
            )
