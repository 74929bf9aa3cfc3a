"""``opendas account``: what a rho means as (epsilon, delta)."""

from __future__ import annotations

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json

__all__ = ["command"]


@click.command("account")
@click.option("--rho", required=True, help='Exact number, for instance "293764/114921" or 1.095.')
@click.option("--delta", default="1e-10", show_default=True, help="Exact number.")
@json_option
def command(rho: str, delta: str, as_json: bool) -> None:
    """Convert zero-concentrated differential privacy to (epsilon, delta), by both named formulas.

    Example: opendas account --rho 293764/114921 --delta 1e-10
    """
    import opendas

    account = opendas.account(rho=rho, delta=delta)
    epsilon = {name: account.epsilon(name) for name in ("cks", "bun-steinke")}
    if as_json:
        emit_json({"rho": account.rho, "delta": float(account.delta), "epsilon": epsilon})
        return
    click.echo(f"rho {account.rho} at delta {float(account.delta):.3g}")
    for name, value in epsilon.items():
        click.echo(f"  epsilon {value:.4f}  ({name})")
