"""``opendas measure``: the first of the two phases, the only one that needs input and key."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.answers import findings_message
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


@click.command("measure")
@run_file_argument
@out_option
@engine_options
@seed_option
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
    strict: bool,
    ledger: Path | None,
    key_command: str | None,
    key_passphrase_file: Path | None,
    ask_passphrase: bool,
    as_json: bool,
) -> None:
    """Take all noisy measurements of a run and write them into OUT/release/measurements.

    Example: opendas measure run.toml --out out && opendas estimate run.toml --out out
    """
    import opendas
    from opendas.api import with_strict

    check_engine(engine, master)
    folder = remember_out(out, run_file)
    run = opendas.load(run_file)
    passphrase = given_passphrase(key_passphrase_file, ask_passphrase, folder, run.product.name)
    with Progress() as progress:
        if strict:
            run = with_strict(run)
        opendas.measure(
            run,
            out=folder,
            workers=workers,
            resume=resume,
            seed=seed,
            ledger=ledger,
            key_command=key_command,
            passphrase=passphrase,
            progress=progress,
            expect=progress.announce,
            engine=engine,
            master=master,
        )
    findings = findings_message(folder, run.product.name)
    if findings is not None:
        message(findings)
    if seed is not None:
        message("warning: noise from a seed protects nobody. These measurements are NOT FOR RELEASE.")
    product = run.product.name
    answer = {
        "out": folder,
        "product": product,
        "measurements": folder / "release" / "measurements" / product,
    }
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{product}: measurements in {answer['measurements']}")
        click.echo(f"next: opendas estimate {run_file} --out {folder}")
