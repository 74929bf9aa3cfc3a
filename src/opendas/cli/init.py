"""``opendas init``: run files to start from."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from opendas.cli.output import message
from opendas.errors import ConfigError

__all__ = ["command"]

_TO = click.option("--to", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder.")


@click.group("init")
def command() -> None:
    """Write commented run files to start from."""


@command.command("pl94")
@click.option("--state", required=True, help="Two letters, for instance ri.")
@click.option("--year", required=True, type=int, help="2010 or 2020.")
@_TO
def pl94(state: str, year: int, to: Path) -> None:
    """Write run files for a state's official redistricting file: persons and housing units.

    Example: opendas init pl94 --state ri --year 2010
    """
    from opendas.geography.states import find_state
    from opendas.readers.pl94.fetch import pl94_url
    from opendas.runs.config.templates import pl94_run_file

    found = find_state(state)
    url = pl94_url(found, year)
    stem = f"{found.postal.lower()}{year}"
    texts = {to / f"{stem}-{kind}.toml": pl94_run_file(found, year, kind) for kind in ("persons", "units")}
    _write_new(texts)
    message(f"The input is {url}; `opendas fetch pl94 {found.postal.lower()} {year}` downloads it.")
    message(f"Then: opendas plan {to / stem}-persons.toml")


@command.command("table")
@click.argument("data", metavar="DATA.csv", type=click.Path(path_type=Path))
@_TO
def table(data: Path, to: Path) -> None:
    """Guess a product file and a run file from a CSV or Parquet table.

    The guess goes by column names and by how many different values a column has; the files say what to check.

    Example: opendas init table patients.csv
    """
    from opendas.runs.config.guess import guess_table
    from opendas.runs.config.templates import table_product_file, table_run_file

    guess = guess_table(data)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", data.name.split(".")[0]).strip("-").lower() or "table"
    product, run = to / f"{name}-product.toml", to / f"{name}-run.toml"
    path = os.path.relpath(data.resolve(), to.resolve())
    _write_new(
        {
            product: table_product_file(guess, name),
            run: table_run_file(guess, product.name, Path(path).as_posix()),
        }
    )
    message(f"where:      column {guess.geocode}, levels {', '.join(guess.level_names)}")
    message(f"attributes: {', '.join(f'{a} ({len(v)} levels)' for a, v in guess.attributes.items())}")
    message(f"rows:       {'counts in column ' + guess.count if guess.count else 'one record each'}")
    message(f"not taken:  {', '.join(guess.ignored) or 'nothing'}")
    message("This is a guess. Look for CHECK in both files: the levels listed there would be published.")
    message(f"Then: opendas plan {run}")


def _write_new(texts: dict[Path, str]) -> None:
    """Write files that are not there yet, all or none."""
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise ConfigError(
            f"{', '.join(there)}: there already, and not overwritten. Move it away, or use --to."
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        click.echo(str(path))
