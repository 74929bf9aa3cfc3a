"""``opendas spine``: the hierarchy that a run would measure. Draws nothing, spends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, run_file_argument
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]


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
    levels = ["geolevel", "geounits", "max_fanout", "single_child_parents", "bypassed"]
    click.echo(text_table(answer["levels"], levels))
    if answer["entities"]:
        click.echo()
        columns = ["category", "count", "mean_distance", "max_distance", "standard_mean", "standard_max"]
        click.echo(text_table(answer["entities"], columns))
    if answer["expected"]:
        click.echo()
        click.echo("expected standard error of the total, least squares on the noise alone:")
        click.echo(text_table(answer["expected"], ["name", "areas", "mean_sd", "max_sd", "standard_mean_sd"]))
