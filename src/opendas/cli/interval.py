"""``opendas interval``: estimates and intervals from published noisy measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]

_SHOWN = ("geocode", "cell", "count", "estimate", "sd", "lower", "upper")


@click.command("interval")
@click.argument("path", metavar="OUT|NMF", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--query", required=True, metavar="Q", help="Table (P1 ... H1) or query group, measured or not."
)
@click.option(
    "--blocks",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="CSV, Parquet or text file of block geocodes; columns area and weight if wanted.",
)
@click.option(
    "--geolevel", metavar="LEVEL|CATEGORY", default=None, help="Geolevel, or entity category such as place."
)
@click.option(
    "--level", metavar="LEVEL", default="0.90", show_default=True, help="Level, strictly between 0 and 1."
)
@click.option(
    "--skip-unknown", is_flag=True, help="Leave out blocks that the release does not have: they are empty."
)
@json_option
def command(
    path: Path,
    query: str,
    blocks: Path | None,
    geolevel: str | None,
    level: str,
    skip_unknown: bool,
    as_json: bool,
) -> None:
    """Give estimates, variances and intervals for true counts, in official areas or in a set of blocks.

    OUT is an output folder; NMF a published noisy measurement file, of the Census Bureau's layout (a folder
    with State.parquet, County.parquet and so on) or the folder release/measurements/PRODUCT. Nothing
    confidential is read. An interval covers the noise, and nothing else.

    Example: opendas interval out --query votingage --blocks district.csv
    """
    import opendas

    if (blocks is None) == (geolevel is None):
        raise click.UsageError("give either --blocks or --geolevel.")
    exact = opendas.exact_level(level)
    noisy = opendas.NoisyFile(path)
    if geolevel is not None:
        table = noisy.intervals(query, geolevel=geolevel, level=exact)
    else:
        table = noisy.interval(query, blocks=blocks, level=exact, skip_unknown=skip_unknown)
    rows = [_plain(row) for row in table.to_arrow().to_pylist()]
    if as_json:
        emit_json({"level": float(exact), "rows": rows})
        return
    click.echo(text_table([_readable(row) for row in rows], _SHOWN))
    message(
        f"{float(100 * exact):.10g} % intervals for the true count. They cover the noise, and nothing else: "
        "not what the enumeration itself got wrong."
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with whole ends as integers, without a count where none is published."""
    for name in ("lower", "upper", "count"):
        value = row[name]
        if value is not None and value == int(value):
            row[name] = int(value)
    if row["count"] is None:
        del row["count"]
    row["unbounded"] = row["upper"] is None or row["lower"] is None
    return row


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row.get(name) for name in _SHOWN}
    shown["sd"] = None if row["variance"] is None else round(row["variance"] ** 0.5, 2)
    if row["estimate"] is not None:
        shown["estimate"] = f"{row['estimate']:.1f}"
    return shown
