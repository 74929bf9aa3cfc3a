"""``opendas fetch``: official files from the Census Bureau's site."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.output import message

__all__ = ["command"]


@click.group("fetch")
def command() -> None:
    """Download official input files."""


@command.command("pl94")
@click.argument("state")
@click.argument("year", type=int)
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder.")
def pl94(state: str, year: int, to: Path) -> None:
    """Download the redistricting file of STATE (two letters) for YEAR (2010 or 2020).

    Example: opendas fetch pl94 ri 2010
    """
    from opendas.readers.pl94.fetch import fetch_pl94

    message(f"fetching the official file of {state} for {year} from the Census Bureau ...")
    click.echo(str(fetch_pl94(state, year, to)))
