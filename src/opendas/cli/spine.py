"""``opendas spine``: the hierarchy that a run would measure. Draws nothing, spends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]

Row = Mapping[str, Any]

_LEVELS = "levels of the spine; children of one geounit: fewest, quartiles, most"
_PERCENTILES = 7
"""A distribution is given at 0, 10, 25, 50, 75, 90 and 100 per cent (`opendas.geography.summary`)."""
_DISTANCES = "off-spine distance of areas; before: from the spine of the official levels"


def _level(level: Row) -> dict[str, Any]:
    """Return what a person reads of a level; the JSON has all percentiles."""
    fewest, _, quarter, half, three_quarters, _, most = level["fanouts"] or (None,) * _PERCENTILES
    return {
        "geolevel": level["geolevel"],
        "geounits": level["geounits"],
        "official": "yes" if level["official"] else "no",
        "fewest": fewest,
        "25%": quarter,
        "median": half,
        "75%": three_quarters,
        "most": most,
        "one_child": level["single_child_parents"] if level["fanouts"] else None,
        "bypassed": level["bypassed"],
    }


def _entity(entity: Row) -> dict[str, Any]:
    half = _PERCENTILES // 2
    return {
        "category": entity["category"],
        "count": entity["count"],
        "mean": round(entity["mean_distance"], 2),
        "mean_before": round(entity["standard_mean"], 2),
        "median": entity["distances"][half],
        "median_before": entity["standard"][half],
        "max": entity["max_distance"],
        "max_before": entity["standard_max"],
    }


@click.command("spine")
@run_file_argument
@json_option
def command(run_file: Path, as_json: bool) -> None:
    """Show the spine of a run: its levels, and how far entities such as places lie from it.

    The distance of an entity is how many geounits must be added or subtracted to make it up; 1 is on the
    spine. Beside it stands the distance from the spine of the official geolevels.

    Example: opendas spine run.toml
    """
    import opendas

    table = opendas.describe_spine(opendas.load(run_file))
    for warning in table.warnings:
        message(f"warning: {warning}")
    answer: dict[str, Any] = table.to_dict()
    if as_json:
        emit_json(answer)
        return
    click.echo(_LEVELS)
    click.echo(text_table([_level(level) for level in answer["levels"]]))
    if answer["entities"]:
        click.echo()
        click.echo(_DISTANCES)
        click.echo(text_table([_entity(entity) for entity in answer["entities"]]))
    if answer["expected"]:
        click.echo()
        click.echo("expected standard error of the total, by least squares on the noise alone")
        click.echo("(released counts are not negative, so that small ones, at blocks, err far less):")
        click.echo(text_table(answer["expected"], ["name", "areas", "mean_sd", "max_sd", "standard_mean_sd"]))
