"""``opendas evaluate``: compare a release with the truth. Confidential."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opendas.cli.options import json_option, out_argument, remember_out
from opendas.cli.output import emit_json, message, text_table

__all__ = ["command"]


@click.command("evaluate")
@out_argument
@click.option(
    "--truth",
    required=True,
    metavar="RUN.toml",
    type=click.Path(path_type=Path),
    help="The run file that names the input.",
)
@click.option("--entities", is_flag=True, help="Also at entity categories: places, districts, ...")
@json_option
def command(out: Path, truth: Path, entities: bool, as_json: bool) -> None:
    """Measure the error of a release against the confidential table.

    The answer is confidential, on stdout too; plots and tables go under OUT/confidential/evaluation.

    Example: opendas evaluate out --truth run.toml
    """
    import opendas

    remember_out(out)
    errors: dict[str, Any] = opendas.evaluate(
        opendas.Release(out), truth=opendas.load(truth), entities=entities
    ).to_dict()
    message("These figures compare with the confidential data: they are confidential. Do not publish them.")
    if as_json:
        emit_json(errors)
    else:
        columns = ["geolevel", "query", "geounits", "mean_abs_error", "mean_signed_error"]
        click.echo(text_table(errors["rows"], columns))
