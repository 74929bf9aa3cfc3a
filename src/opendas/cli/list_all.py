"""``opendas list``: what a run file may name."""

from __future__ import annotations

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json

__all__ = ["command"]

_PRODUCTS = {
    "pl94-persons": "2020 redistricting data, persons: 8 x 2 x 2 x 63 = 2,016 cells",
    "pl94-units": "2020 redistricting data, housing units: vacant or occupied",
    "FILE.toml": "a product of your own; `opendas init table DATA.csv` writes one to start from",
}
_READERS = {
    "pl94-2010": "official 2010 P.L. 94-171 zip, as downloaded",
    "pl94-2020": "official 2020 P.L. 94-171 zip, as downloaded",
    "ppmf": "privacy-protected microdata files of the Census Bureau",
    "mdf": "microdata of the production layout, ours included",
    "cef": "person and unit records of a census, with the GRF-C",
    "records": "one record a row, CSV or Parquet, any hierarchy",
    "histogram": "counts in long form, CSV or Parquet, any hierarchy",
}
_SPINES = {
    "standard": "the official hierarchy",
    "optimized": "block groups made of blocks in the same off-spine entities; only children bypassed",
    "aian": "the same, with every level from the state down divided into AIAN areas and the rest",
}
_ENGINES = {
    "local": "processes on this machine",
    "spark": "executors of a Spark cluster (opendas[spark], Java 17); the same release",
}
_ESTIMATORS = {
    "topdown": "the TopDown Algorithm: from the root down, families solved jointly",
    "informed": "the same, each family estimated from all that was measured below it",
    "block-by-block": "each leaf on its own (TopDown paper, Appendix A)",
}


def _everything() -> dict[str, dict[str, str]]:
    from opendas.budget.presets import preset, preset_names

    return {
        "products": _PRODUCTS,
        "presets": {name: preset(name).description for name in preset_names()},
        "readers": _READERS,
        "spines": _SPINES,
        "engines": _ENGINES,
        "estimators": _ESTIMATORS,
    }


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """List products, budget presets, readers, spines, engines and estimators.

    Example: opendas list
    """
    known = _everything()
    if as_json:
        emit_json(known)
        return
    width = max(len(name) for entries in known.values() for name in entries)
    for kind, entries in known.items():
        click.echo(kind)
        for name, line in entries.items():
            click.echo(f"  {name.ljust(width)}  {line}")
