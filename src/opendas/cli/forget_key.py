"""``opendas forget-key``: destroy the keys, once the wanted measurements exist."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import out_argument
from opendas.cli.output import message

__all__ = ["command"]


@click.command("forget-key")
@out_argument
def command(out: Path) -> None:
    """Destroy the run keys in OUT.

    Key and measurements together give the confidential data away, for as long as the release exists.
    Afterwards an unfinished run cannot be resumed, and no further measurement can be drawn.

    Example: opendas forget-key out
    """
    import opendas

    gone = opendas.forget_key(out)
    if gone:
        click.echo(f"destroyed the key of {', '.join(gone)}")
        message("Copies that a backup or the file system keeps are beyond reach.")
    else:
        click.echo("there is no key left")
