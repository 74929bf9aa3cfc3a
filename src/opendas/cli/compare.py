"""The commands ``compare``, what changed where, and ``swap``, which makes something to compare with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import FILE, PATH, json_option, ledger_option, listed
from opendas.cli.output import echo_paths, emit_json, message, text_table


@click.command("compare")
@click.argument("sources", metavar="A [B ...]", nargs=-1, required=True, type=PATH)
@click.option("--truth", metavar="RUN.toml", type=PATH, help="Also with the confidential input.")
@click.option(
    "--geometry",
    metavar="FILE",
    multiple=True,
    type=PATH,
    help="Shapes for the map: shapefile, GeoPackage or GeoJSON, of any level. May be repeated.",
)
@click.option("--blocks", type=FILE, help="A plan: which block is in which district.")
@click.option("--tables", multiple=True, metavar="P1,...|QUERY", help="Tables or query groups.")
@click.option("--geolevel", "geolevels", multiple=True, metavar="LEVEL|CATEGORY", help="May be repeated.")
@click.option("--level", metavar="LEVEL", default="0.90", show_default=True, help="Of the margins.")
@click.option("--to", required=True, type=PATH, help="Folder for compare.parquet and compare.html.")
@ledger_option
@json_option
def compare_command(
    sources: tuple[Path, ...],
    truth: Path | None,
    geometry: tuple[Path, ...],
    tables: tuple[str, ...],
    to: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Put counts of the same places beside each other: a long table, and a page with a map.

    A, B ... are output folders, official redistricting files (zip), or microdata (MDF, PPMF). All are
    compared with the last one; with --truth, with the confidential input: every output is then confidential,
    and the reading is noted in the account, as by `opendas evaluate`.

    Example: opendas compare out ri2010.pl.zip --to changed
    """
    import opendas

    comparison = opendas.compare(
        *sources,
        truth=None if truth is None else opendas.load(truth),
        tables=listed(tables),
        **options,
    )
    written = opendas.write_comparison(comparison, to, geometry=geometry)
    summary: dict[str, Any] = comparison.summary
    if comparison.confidential:
        message("This compares with the confidential data: all of it is confidential. Do not publish it.")
    if as_json:
        emit_json({**summary, "files": written})
        return
    for product in summary["products"]:
        rows = [row for row in product["bias"] if row["group"] == "total" and row["size"] is None]
        click.echo(f"{product['product']}, total: {summary['difference']}")
        click.echo(
            text_table(rows, ["geolevel", "source", "geounits", "mean_difference", "mean_abs_difference"])
        )
    echo_paths(written)


@click.command("swap")
@click.argument("run", metavar="RUN.toml", type=PATH)
@click.option("--to", required=True, type=PATH, help="New folder, for `opendas compare`.")
@click.option("--rate", type=float, default=0.05, show_default=True, help="Share of households that move.")
@click.option(
    "--targeting",
    type=float,
    default=10.0,
    show_default=True,
    help="How many times likelier a household unlike its neighbours is chosen.",
)
@click.option(
    "--match",
    multiple=True,
    metavar="ATTRIBUTE",
    default=("votingage",),
    show_default=True,
    help="Partners have as many persons at each of its levels. May be repeated.",
)
@click.option("--within", metavar="LEVEL", default="county", show_default=True, help="Partners share it.")
@click.option("--across", metavar="LEVEL", default="tract", show_default=True, help="Partners differ in it.")
@click.option("--risk", metavar="LEVEL", default="block", show_default=True, help="Where neighbours are.")
@click.option("--household", metavar="COLUMN", default="household", show_default=True, help="0 for none.")
@click.option("--seed", type=click.IntRange(min=0), help="Default: drawn, and kept nowhere.")
@ledger_option
@json_option
def swap_command(
    run: Path, to: Path, seed: int | None, ledger: Path | None, as_json: bool, **parameters: Any
) -> None:
    """Swap households as before 2020: a baseline to compare with. It gives NO FORMAL GUARANTEE.

    RUN.toml names records of persons with a column that numbers the households of a leaf; persons in
    households only move. The output is exact except for the swaps: compare with it, do not publish it.

    Example: opendas swap made/run-pl94-persons.toml --to swapped
    """
    import opendas

    found = opendas.swap(opendas.load(run), to, seed=seed, ledger=ledger, **parameters)
    message("Swapped counts have no formal guarantee: they are confidential. Do not publish them.")
    if as_json:
        emit_json({"out": str(to), **asdict(found)})
        return
    click.echo(
        f"{found.moved:,} of {found.households:,} households moved, {found.moved_at_risk:,} of the "
        f"{found.at_risk:,} that were unlike their neighbours; {found.unmatched:,} found no partner"
    )
    click.echo(str(to))
