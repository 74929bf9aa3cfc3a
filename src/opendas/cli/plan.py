"""Commands before a run: ``plan`` and ``spine``. Nothing is drawn or spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, read_records_option, run_file_argument
from opendas.cli.output import (
    duration,
    echo_protection,
    echo_table,
    emit_json,
    message,
    telling_compilation,
    text_table,
)
from opendas.runs.progress.clock import size_text


@click.command("plan")
@run_file_argument
@click.option(
    "--advise", is_flag=True, help="Also look for better shares of the same loss, and say what they cost."
)
@click.option("--full", is_flag=True, help="Also the noise of every query group, and all that is expected.")
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="About how many records there are. Default: 45 a leaf, or 2.3 people a home.",
)
@read_records_option
@json_option
def plan_command(
    run_file: Path, advise: bool, full: bool, records: int | None, read_records: bool, as_json: bool
) -> None:
    """Show the errors to expect of a run, its privacy loss, time and memory, before anything is drawn.

    Errors are those of a trial: the run's own estimator, on synthetic records of the same shape. --full adds
    the noise of every query group, errors by query group and estimator, and what is protected.

    Opens no confidential record; where the frame comes from the records, --read-records opens them.

    Example: opendas plan run.toml
    """
    import opendas

    run = opendas.load(run_file, read_records=read_records)
    with telling_compilation():
        plan = opendas.plan(run, records=records).to_dict()
    if advise:
        plan["advice"] = [advice.to_dict() for advice in opendas.advise(run, records=records)]
    both = [plan["companion"], plan] if "companion" in plan else [plan]
    for warning in dict.fromkeys(warning for each in both for warning in each["warnings"]):
        message(f"warning: {warning}")
    if as_json:
        emit_json(plan)
        return
    if "companion" in plan:
        together = {**plan, **plan["together"]}
        click.echo(f"{' and '.join(each['product'] for each in both)} together: {_headline(together)}")
    for each in both:
        if "companion" in plan:
            click.echo(f"\n{each['product']}")
        if full:
            _show_plan(each)
        else:
            _show_summary(each, assumed=records is None)
        if "advice" in each:
            _show_advice(each)
    if advise:
        given = f" --records {records}" if records else ""
        tune = f"opendas tune {run_file} --same-loss{given} --to plan.toml"
        message(f"A search by runs, which confirms what it finds: {tune}")
    if not full:
        message(f"More: opendas plan {run_file} --full")


_WORTH, _SAME = 0.1, (0.8, 1.25)
"""An estimator is worth its time where it misplaces so many fewer of the records of a geolevel; times that
are about the same."""


def _show_summary(plan: dict[str, Any], *, assumed: bool) -> None:
    """Print the few lines that a decision needs.

    `assumed`: nobody said how many records there are.
    """
    from opendas.report.views import plural

    click.echo(_headline(plan))
    usual = plan["usual"]
    if usual:
        off = ", ".join(f"{row['within']:,} in {row['geolevel']}" for row in reversed(usual))
        click.echo(f"usual error:  9 in 10 totals are off by at most {off}")
        part = dict.fromkeys(plan["misplaced_at_most"], "at most ")
        wrong = ", ".join(
            f"{part.get(row['geolevel'], '')}{100 * row['misplaced']:.2g} % in {row['geolevel']}"
            for row in usual
        )
        other = _other_estimator(plan["other_estimator"]) if plan["other_estimator"] else ""
        other = f"; {plan['other_not_tried']}" if plan["other_not_tried"] else other
        leaf = usual[-1]
        at = f"{leaf['records']:{',.0f' if leaf['records'] >= 10 else '.2g'}} per {leaf['geolevel']}"
        note = " (assumed; --records states their number)" if assumed else ""
        click.echo(f"misplaced:    records in a wrong cell, at {at}{note}: {wrong}{other}")
    forecast = plan["forecast"]
    seconds = forecast["seconds"]
    time = "time not predicted" if seconds is None else f"{duration(seconds, 'about ')} to estimate"
    memory, disk = size_text(forecast["memory_mb"]), size_text(forecast["disk_mb"]["outputs"])
    workers = plural("worker", forecast["workers"])
    click.echo(f"needs:        {time}, {memory} of memory, {disk} of disk; {workers}")
    click.echo(f"measurements: {forecast['measurements']['text']}")
    found = len(plan["warnings"])
    click.echo(f"warnings:     {f'{found}, above' if found else 'none'}")


def _other_estimator(other: Mapping[str, Any]) -> str:
    """Say what another estimator had in the trial, and whether it is worth its time."""
    from opendas.report.views import plural

    gains = sorted(other["change"].items(), key=lambda pair: float(pair[1]))
    said = [
        f"{abs(change) * 100:.0f} % {'fewer' if change < 0 else 'more'} in {level}"
        for level, change in gains
        if round(abs(change), 2)
    ]
    worth = ": worth a try" if any(change <= -_WORTH for _, change in gains) else ""
    times = other["times"]
    longer = f"{times:.2g} times the time" if not _SAME[0] < times < _SAME[1] else "about the same time"
    tried = f"{other['estimator']}, on {plural('leaf', other['leaves'])}"
    return f"; {tried}: {', '.join(said) or 'as many'}, in {longer}{worth}"


_EXPECTED = """\
expected standard error of {}, by least squares on the noise alone
(released counts are never negative, so that small ones usually err less):"""
_TRIED = """\
mean absolute error of released counts, summed over the rows of a query group, as tried on
synthetic counts of a part of the frame (sizes from housing units, if any; few cells have most):"""


def _show_plan(plan: dict[str, Any]) -> None:
    click.echo(_headline(plan))
    if plan["source"]:
        click.echo(f"budget shares: {plan['source']}")
    click.echo()
    loss = ["rho", "sigma2"] if plan["rho"] is not None else ["epsilon", "scale"]
    columns = ["geolevel", "query", "geounits", *loss, "variance", "moe90"]
    click.echo(text_table([_readable(row) for row in plan["rows"]], columns))
    named = ["query"] if any(row["query"] != "total" for row in plan["expected"]) else []
    title = _EXPECTED.format("an answer" if named else "the total")
    echo_table(title, plan["expected"], ["name", *named, "areas", "mean_sd", "max_sd"])
    title = "expected standard error of an answer, by estimator (noise alone, as above):"
    echo_table(title, [_percent(row) for row in plan["gains"]])
    echo_table(_TRIED, plan["tried"])
    click.echo()
    echo_protection(plan["protection"])
    click.echo()
    for line in _forecast(plan["forecast"]):
        click.echo(line)
    click.echo(f"measurements: {plan['forecast']['measurements']['text']}")


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    change = row["change"]
    return {**row, "change": None if change is None else f"{change:+.1%}"}


def _forecast(forecast: dict[str, Any]) -> Iterator[str]:
    disk, seconds = forecast["disk_mb"], forecast["seconds"]
    time = "" if seconds is None else f"to estimate for {duration(seconds, 'about ')}, "
    yield (
        f"opendas run is expected {time}to use "
        f"{size_text(forecast['memory_mb'])} of memory, and to write {size_text(disk['outputs'])} "
        f"(and {size_text(disk['scratch'])} meanwhile):"
    )
    for line in forecast["assumptions"]:
        yield f"  {line}"


_MOST_EFFECTS = 6


def _show_advice(plan: dict[str, Any]) -> None:
    from opendas.runs.config.released import toml_document

    leaves = plan["rows"][-1]["geolevel"]
    if not plan["advice"]:
        click.echo(f"\nbetter shares of the same loss: none found for {leaves}")
    for advice in plan["advice"]:
        change = f"{advice['improved']:+.0%}"
        click.echo(f"\nbetter shares of the same loss, {advice['kind']}: {leaves} {change} by the forecast")
        _show_effects(
            "forecast, by least squares on the cells that synthetic records have", advice["effects"]
        )
        _show_effects("released counts, tried on synthetic records", advice["tried"])
        for price in advice["prices"]:
            click.echo(f"  epsilon of {price['what']}: {price['before']:.4g} to {price['after']:.4g}")
        shares = {name: advice[name] for name in ("geolevels", "queries")}
        click.echo(toml_document({"budget": shares}).rstrip())


def _show_effects(what: str, effects: Sequence[Row]) -> None:
    """Print the errors that fall most, and those that grow most."""
    ordered = sorted(effects, key=lambda effect: float(effect["change"]))
    grown = [effect for effect in ordered[_MOST_EFFECTS:] if effect["change"] > 0][-_MOST_EFFECTS:]
    shown = [*ordered[:_MOST_EFFECTS], *grown]
    click.echo(f"  {what}{'' if len(shown) == len(ordered) else f' ({len(shown)} of {len(ordered)})'}:")
    for effect in shown:
        click.echo(
            f"    {effect['geolevel']}, {effect['query']}: {effect['before']:.4g} to {effect['after']:.4g} "
            f"({effect['change']:+.1%})"
        )


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with exact shares as decimals where they are too long to read; JSON has them exact."""
    return {
        name: f"{float(Fraction(value)):.4g}"
        if name in ("rho", "epsilon") and len(value or "") > 16
        else value
        for name, value in row.items()
    }


def _headline(plan: dict[str, Any]) -> str:
    epsilon, relation = plan["epsilon"], f"{plan['neighbours']} neighbours{_whose(plan)}"
    if isinstance(epsilon, dict):
        values = ", ".join(f"{value:.4g} ({name})" for name, value in epsilon.items())
        return f"rho {plan['rho']}: epsilon {values} at delta {plan['delta']:.3g}; {relation}"
    return f"epsilon {epsilon}; {relation}"


def _whose(plan: Mapping[str, Any]) -> str:
    contribution = plan["contribution"]
    if contribution is None:
        return ""
    most, distinct = contribution["at_most"], contribution["distinct"]
    differing = f", distinct in {distinct}" if distinct else ""
    return f" for all records of one {plan['protected_unit']}, of which at most {most} are counted{differing}"


Row = Mapping[str, Any]

_SPINE_LEVELS = "levels of the spine; children of one geounit: fewest, quartiles, most"
_PERCENTILES = 7
"""A distribution is given at 0, 10, 25, 50, 75, 90 and 100 per cent (`opendas.geography.summary`)."""
_DISTANCES = "off-spine distance of areas; before: from the spine of the official levels"


def _level(level: Row) -> dict[str, Any]:
    """Return what a person reads of a level; the JSON has all percentiles."""
    fewest, _, quarter, half, three_quarters, _, most = level["fanouts"] or (None,) * _PERCENTILES
    return {
        "geolevel": level["geolevel"],
        "geounits": level["geounits"],
        "official": "yes" if level["official"] else "no",
        "fewest": fewest,
        "25%": quarter,
        "median": half,
        "75%": three_quarters,
        "most": most,
        "one_child": level["single_child_parents"] if level["fanouts"] else None,
        "bypassed": level["bypassed"],
    }


def _entity(entity: Row) -> dict[str, Any]:
    half = _PERCENTILES // 2
    return {
        "category": entity["category"],
        "count": entity["count"],
        "mean": round(entity["mean_distance"], 2),
        "mean_before": round(entity["standard_mean"], 2),
        "median": entity["distances"][half],
        "median_before": entity["standard"][half],
        "max": entity["max_distance"],
        "max_before": entity["standard_max"],
    }


@click.command("spine")
@run_file_argument
@read_records_option
@json_option
def spine_command(run_file: Path, read_records: bool, as_json: bool) -> None:
    """Show the spine of a run: its levels, and how far entities such as places lie from it.

    The distance of an entity is how many geounits must be added or subtracted to form it; 1 is on the
    spine. Beside it stands the distance from the spine of the official geolevels.

    Example: opendas spine run.toml
    """
    import opendas

    table = opendas.describe_spine(opendas.load(run_file, read_records=read_records))
    for warning in table.warnings:
        message(f"warning: {warning}")
    answer: dict[str, Any] = table.to_dict()
    if as_json:
        emit_json(answer)
        return
    click.echo(_SPINE_LEVELS)
    click.echo(text_table([_level(level) for level in answer["levels"]]))
    echo_table(_DISTANCES, [_entity(entity) for entity in answer["entities"]])
    columns = ["name", "areas", "mean_sd", "max_sd", "standard_mean_sd"]
    echo_table(_EXPECTED.format("the total"), answer["expected"], columns)
