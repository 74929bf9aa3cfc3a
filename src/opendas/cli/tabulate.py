"""``opendas tabulate``: tables from a release's microdata."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import out_argument, remember_out

__all__ = ["command"]


@click.command("tabulate")
@out_argument
@click.option(
    "--tables", required=True, metavar="P1,...,H1|QUERY,...", help="Tables, or query groups of any product."
)
@click.option(
    "--geolevel", required=True, metavar="LEVEL|CATEGORY", help="Geolevel, or entity category such as place."
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv", "pl94"]),
    default="parquet",
    show_default=True,
    help="File format; pl94 is the legacy layout.",
)
@click.option(
    "--intervals",
    metavar="LEVEL",
    default=None,
    help="Put estimate and interval beside each count, for instance 0.90.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder. Default: the release itself, whose certificate is then issued again.",
)
def command(
    out: Path, tables: str, geolevel: str, file_format: str, intervals: str | None, to: Path | None
) -> None:
    """Write tables of a release, each cell with its margin of error where one is known.

    Example: opendas tabulate out --tables P1,P2 --geolevel tract --format csv --to tables
    """
    import opendas

    level = None if intervals is None else opendas.exact_level(intervals)
    names = [name.strip() for name in tables.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--tables names no table.")
    remember_out(out)
    release = opendas.Release(out)
    written = opendas.tabulate(
        release, tables=names, geolevel=geolevel, format=file_format, intervals=level, to=to
    )
    for path in written:
        click.echo(str(path))
