"""``opendas estimate``: the second phase; it opens neither input nor key."""

from __future__ import annotations

import time
from pathlib import Path

import click

from opendas.cli.answers import next_steps, run_answer
from opendas.cli.options import (
    check_engine,
    engine_options,
    json_option,
    out_option,
    remember_out,
    run_file_argument,
)
from opendas.cli.output import emit_json
from opendas.cli.progress import Progress

__all__ = ["command"]


@click.command("estimate")
@run_file_argument
@out_option
@engine_options
@click.option(
    "--mdf-format",
    type=click.Choice(["parquet", "pipe"]),
    default="parquet",
    show_default=True,
    help="Layout of the microdata.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    default=None,
    help="The shared ledger that opendas measure was given; the act is noted there as finished.",
)
@json_option
def command(
    run_file: Path,
    out: Path | None,
    engine: str,
    master: str | None,
    workers: int | None,
    resume: bool,
    mdf_format: str,
    ledger: Path | None,
    as_json: bool,
) -> None:
    """Turn the measurements in OUT into consistent microdata. Spends no budget.

    Example: opendas estimate run.toml --out out
    """
    import opendas

    check_engine(engine, master)
    folder = remember_out(out, run_file)
    started = time.monotonic()
    with Progress() as progress:
        run = opendas.load(run_file, need_input=False)
        opendas.estimate(
            run,
            out=folder,
            workers=workers,
            resume=resume,
            mdf_format=mdf_format,
            ledger=ledger,
            progress=progress,
            engine=engine,
            master=master,
        )
    answer = run_answer(folder, run.product.name, time.monotonic() - started)
    if as_json:
        emit_json(answer)
    else:
        click.echo(next_steps(answer))
