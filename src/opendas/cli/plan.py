"""``opendas plan``: what a run would release, and how precise it would be. Draws nothing, spends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table
from opendas.cli.progress import duration
from opendas.runs.progress.clock import size_text

__all__ = ["command"]


@click.command("plan")
@run_file_argument
@click.option(
    "--advise", is_flag=True, help="Also name budget moves: what they give, what they cost, and their price."
)
@json_option
def command(run_file: Path, advise: bool, as_json: bool) -> None:
    """Show the privacy loss and the noise of every query group, before anything is drawn.

    Example: opendas plan run.toml
    """
    import opendas

    run = opendas.load(run_file)
    plan = opendas.plan(run).to_dict()
    if advise:
        plan["advice"] = [move.to_dict() for move in opendas.advise(run)]
    for warning in plan["warnings"]:
        message(f"warning: {warning}")
    if as_json:
        emit_json(plan)
        return
    click.echo(_headline(plan))
    if plan.get("source"):
        click.echo(f"budget shares: {plan['source']}")
    click.echo()
    loss = ["rho", "sigma2"] if plan.get("rho") is not None else ["epsilon", "scale"]
    columns = ["geolevel", "query", "geounits", *loss, "variance", "moe90"]
    click.echo(text_table([_readable(row) for row in plan["rows"]], columns))
    if plan.get("expected"):
        click.echo()
        click.echo("expected standard error of the total, by least squares on the noise alone")
        click.echo("(released counts are not negative, so that small ones, at blocks, err far less):")
        click.echo(text_table(plan["expected"], ["name", "areas", "mean_sd", "max_sd"]))
    if plan.get("gains"):
        click.echo()
        click.echo("expected standard error of an answer, by estimator (noise alone, as above):")
        click.echo(text_table([_percent(row) for row in plan["gains"]]))
    if plan.get("forecast"):
        click.echo()
        for line in _forecast(plan["forecast"]):
            click.echo(line)
    for move in plan.get("advice", ()):
        click.echo()
        _show_move(move)


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    change = row["change"]
    return {**row, "change": None if change is None else f"{change:+.1%}"}


def _forecast(forecast: dict[str, Any]) -> Iterator[str]:
    disk = forecast["disk_mb"]
    yield (
        f"opendas run is expected to estimate for about {duration(forecast['seconds'])}, with "
        f"{size_text(forecast['memory_mb'])} of memory, and to write {size_text(disk['outputs'])} "
        f"(and {size_text(disk['scratch'])} meanwhile):"
    )
    for line in forecast["assumptions"]:
        yield f"  {line}"


_SHOWN = 6


def _show_move(move: dict[str, Any]) -> None:
    click.echo(move["text"])
    effects = sorted(move["effects"], key=lambda effect: float(effect["change"]))
    costs = [effect for effect in effects[_SHOWN:] if effect["change"] > 0][-_SHOWN:]
    for effect in effects[:_SHOWN] + costs:
        click.echo(
            f"  {effect['geolevel']}, {effect['query']}: {effect['before']:.4g} to {effect['after']:.4g} "
            f"({effect['change']:+.1%})"
        )
    for price in move["prices"]:
        click.echo(f"  epsilon of {price['what']}: {price['before']:.4g} to {price['after']:.4g}")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with exact shares as decimals where they are too long to read; JSON has them exact."""
    return {
        name: f"{float(Fraction(value)):.4g}"
        if name in ("rho", "epsilon") and len(value or "") > 16
        else value
        for name, value in row.items()
    }


def _headline(plan: dict[str, Any]) -> str:
    epsilon = plan.get("epsilon")
    if isinstance(epsilon, dict):
        values = ", ".join(f"{value:.4g} ({name})" for name, value in epsilon.items() if value is not None)
        relation = f"{plan['neighbours']} neighbours"
        return f"rho {plan['rho']}: epsilon {values} at delta {plan['delta']:.3g}; {relation}"
    return f"epsilon {epsilon}; {plan['neighbours']} neighbours"
