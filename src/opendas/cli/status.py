"""``opendas status``: how far the runs in an output folder are."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import json_option, out_argument
from opendas.cli.output import emit_json, text_table

__all__ = ["command"]


@click.command("status")
@out_argument
@json_option
def command(out: Path, as_json: bool) -> None:
    """Show the runs in OUT: product, phase, whether the key is still there, and what is spent.

    Example: opendas status out
    """
    import opendas

    rows = opendas.status(out)
    if as_json:
        emit_json({"out": out, "runs": rows})
    else:
        click.echo(text_table(rows))
