"""``opendas plan``: what a run would release, and how precise it would be. Draws nothing, spends nothing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]


@click.command("plan")
@run_file_argument
@json_option
def command(run_file: Path, as_json: bool) -> None:
    """Show the privacy loss and the noise of every query group, before anything is drawn.

    Example: opendas plan run.toml
    """
    import opendas

    plan = opendas.plan(opendas.load(run_file)).to_dict()
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
