"""``opendas demo``: a whole release of a made state, in about a minute."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from opendas.cli.answers import run_answer
from opendas.cli.output import message
from opendas.cli.progress import Progress, duration
from opendas.errors import CheckFailed, ConfigError

__all__ = ["command"]

_FOLDER = "demo-out"


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"Folder, new or empty. Default: {_FOLDER}, or the first free {_FOLDER}-2, -3 ...",
)
@click.option(
    "--blocks", type=click.IntRange(min=50), default=3000, show_default=True, help="Size of the state."
)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes.")
def command(out: Path | None, blocks: int, workers: int | None) -> None:
    """Make a small state up, release its persons and housing units, and verify the release.

    Nobody's data are in it.

    Example: opendas demo
    """
    import opendas
    from opendas.demo import write_demo

    folder = _free_folder(out)
    release_folder = folder / "out"
    click.get_current_context().obj["out"] = release_folder
    started = time.monotonic()
    message(f"making a state of {blocks:,} blocks up in {folder / 'input'} ...")
    run_files = write_demo(folder / "input", blocks)
    message("the first release on a machine compiles its kernels, which takes about a minute")
    answers = []
    for run_file in run_files:
        begun = time.monotonic()
        message(f"releasing {run_file.name} ...")
        run = opendas.load(run_file)
        with Progress() as progress:
            opendas.release(run, out=release_folder, workers=workers, progress=progress)
        answers.append(run_answer(release_folder, run.product.name, time.monotonic() - begun))
    message("verifying the release from its own files ...")
    checks = opendas.Release(release_folder).verify()
    failed = [check for check in checks if not check.ok]
    if failed:
        raise CheckFailed(f"the release does not verify: {failed[0].name}: {failed[0].detail}")
    for answer in answers:
        click.echo(f"{answer['product']}: {answer['records']:,} records released, rho {answer['rho']}")
    click.echo(f"verified: {len(checks)} checks passed; {duration(time.monotonic() - started)} in all")
    click.echo(_next(folder, run_files[0]))


def _free_folder(out: Path | None) -> Path:
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise ConfigError(f"{out} is not empty; give a new folder with --out.")
        return out
    number = 1
    while True:
        folder = Path(_FOLDER if number == 1 else f"{_FOLDER}-{number}")
        if not folder.exists():
            return folder
        number += 1


def _next(folder: Path, run_file: Path) -> str:
    out = folder / "out"
    activate = Path(sys.prefix, "bin", "activate")
    first = f"  . {activate}\n" if shutil.which("opendas") is None and activate.is_file() else ""
    return f"""
The report is {out}/release/report.html: open it in a browser.

Next, try
{first}\
  opendas tabulate {out} --tables P1,H1 --geolevel tract --format csv --to {folder}/tables
  opendas evaluate {out} --truth {run_file}
  opendas plan {run_file}
  opendas init table YOUR-DATA.csv          your own data (docs/own-csv.md)
  opendas init pl94 --state ri --year 2010  a real state"""
