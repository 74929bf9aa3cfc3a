"""``opendas run``: from the confidential table to a verified release."""

from __future__ import annotations

import time
from pathlib import Path

import click

from opendas.cli.answers import findings_message, next_steps, run_answer
from opendas.cli.options import (
    check_engine,
    engine_options,
    given_passphrase,
    json_option,
    key_options,
    out_option,
    remember_out,
    run_file_argument,
    seed_option,
    strict_option,
)
from opendas.cli.output import emit_json, message
from opendas.cli.progress import Progress

__all__ = ["command"]


@click.command("run")
@run_file_argument
@out_option
@engine_options
@seed_option
@click.option(
    "--measurements",
    type=click.Choice(["used", "full"]),
    default="used",
    show_default=True,
    help="Write the noisy measurements that estimation used, or all of them.",
)
@click.option(
    "--mdf-format",
    type=click.Choice(["parquet", "pipe"]),
    default="parquet",
    show_default=True,
    help="Layout of the microdata.",
)
@strict_option
@key_options
@json_option
def command(
    run_file: Path,
    out: Path | None,
    engine: str,
    master: str | None,
    workers: int | None,
    resume: bool,
    seed: int | None,
    measurements: str,
    mdf_format: str,
    strict: bool,
    ledger: Path | None,
    key_command: str | None,
    key_passphrase_file: Path | None,
    ask_passphrase: bool,
    as_json: bool,
) -> None:
    """Measure, estimate and write a release into OUT.

    OUT/release may be published; OUT/confidential must not. The run spends its budget once; --resume after an
    interruption repeats the same noise.

    Example: opendas run run.toml --out out
    """
    import opendas
    from opendas.api import with_strict

    check_engine(engine, master)
    folder = remember_out(out, run_file)
    started = time.monotonic()
    run = opendas.load(run_file)
    passphrase = given_passphrase(key_passphrase_file, ask_passphrase, folder, run.product.name)
    with Progress() as progress:
        if strict:
            run = with_strict(run)
        opendas.release(
            run,
            out=folder,
            workers=workers,
            resume=resume,
            seed=seed,
            measurements=measurements,
            mdf_format=mdf_format,
            ledger=ledger,
            key_command=key_command,
            passphrase=passphrase,
            progress=progress,
            expect=progress.announce,
            engine=engine,
            master=master,
        )
    answer = run_answer(folder, run.product.name, time.monotonic() - started)
    findings = findings_message(folder, run.product.name)
    if findings is not None:
        message(findings)
    if seed is not None:
        message("warning: noise from a seed protects nobody. This release is stamped NOT FOR RELEASE.")
    if as_json:
        emit_json(answer)
    else:
        click.echo(next_steps(answer))
