"""The command ``init``: run files to start from; apart from other first commands, since it asks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opendas.cli.options import PATH, to_option
from opendas.cli.output import message
from opendas.custody.folders import write_atomic
from opendas.errors import ConfigError

if TYPE_CHECKING:
    from opendas.runs.starting.guess import TableGuess


@click.group("init")
def init_command() -> None:
    """Write commented run files to start from."""


@init_command.command("pl94")
@click.option("--state", required=True, help="Two letters, for instance ri.")
@click.option("--year", required=True, type=int, help="2010 or 2020.")
@to_option
def init_pl94(state: str, year: int, to: Path) -> None:
    """Write run files for a state's official redistricting file: persons and housing units.

    Example: opendas init pl94 --state ri --year 2010
    """
    from opendas.runs.starting.templates import pl94_run_files

    postal, url, texts = pl94_run_files(state, year)
    _write_new({to / name: text for name, text in texts.items()})
    message(f"The input is {url}; `opendas fetch pl94 {postal} {year}` downloads it.")
    message(f"Then: opendas plan {to / next(iter(texts))}")


@init_command.command("cef")
@to_option
def init_cef(to: Path) -> None:
    """Write run files for census records of one state: redistricting data, and the DHC tied to them.

    Example: opendas init cef --to census
    """
    from opendas.runs.starting.templates import cef_run_files

    texts = cef_run_files()
    _write_new({to / name: text for name, text in texts.items()})
    message("Put the person and unit records and the GRF-C beside them, or write where they are.")


@init_command.command("table")
@click.argument("data", metavar="DATA.csv", type=PATH)
@to_option
@click.option("--geography", metavar="A,B,...", help="Columns of places, top first, leaf last.")
@click.option("--attributes", metavar="A,B,...", help="Columns of attributes.")
@click.option("--count", metavar="COLUMN", help="Column with the number of records of a row.")
@click.option("--unit", help="What one record is, such as patient.")
@click.option("--interactive", is_flag=True, help="Ask which column is what; the guess is offered.")
@click.option(
    "--melt",
    metavar="all|A,B,...",
    help="Of a table with a column for each count: write these columns as a long table, and files for it.",
)
@click.option("--rho", help="Find labels, leaves and hierarchy privately, at this loss.")
@click.option("--delta", default="1e-11", show_default=True, help="With --rho: the delta of the act.")
@click.option("--ledger", type=PATH, help="With --rho: the book of the data set.")
def init_table(
    data: Path,
    to: Path,
    rho: str | None,
    delta: str,
    geography: str | None,
    attributes: str | None,
    count: str | None,
    unit: str | None,
    interactive: bool,
    melt: str | None,
    ledger: Path | None,
) -> None:
    """Write a product file and a run file for a CSV or Parquet table.

    It guesses the role of each column from names and values, and reports its guess. Name columns yourself
    with --geography, --attributes and --count, or answer the questions of --interactive. The files say what
    to check.

    --rho finds labels, leaves and hierarchy privately. This spends a budget of its own, entered in the ledger
    before any noise is drawn. You name the columns. Values that few records have count as "other".

    Example: opendas init table patients.csv --rho 0.05 --geography hospital,ward --attributes age,severity
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", data.name.split(".")[0]).strip("-").lower() or "table"
    path = _from(data, to)
    files = [to / f"{name}-{part}" for part in ("product.toml", "run.toml", "frame.csv")]
    if rho is not None:
        if interactive or melt is not None:
            raise ConfigError("--interactive and --melt look at the values, and so do not go with --rho.")
        columns = _named("--geography", geography), _named("--attributes", attributes), count
        _discover_table(data, path, columns, name, unit or "record", (rho, delta), files, ledger)
        return
    if ledger is not None:
        raise ConfigError("--ledger goes with --rho: a guess is no act of an account.")
    if melt is not None:
        if interactive or geography or attributes or count:
            raise ConfigError("--melt names the columns by itself; leave the other options out.")
        _melt_table(data, name, melt, files, unit)
        return
    declared = _listed("--geography", geography), _listed("--attributes", attributes), count
    _guess_table(data, path, name, declared, files, unit, interactive=interactive)


def _from(data: Path, folder: Path) -> str:
    """Return the path of a file as seen from a folder."""
    return Path(os.path.relpath(data.resolve(), folder.resolve())).as_posix()


def _listed(option: str, given: str | None) -> list[str] | None:
    """Return the columns that an option names; None where it is not given."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise ConfigError(f"{option}: names of columns, separated by commas.")
    return names


def _named(option: str, given: str | None) -> list[str]:
    """Return the columns that an option names which is required."""
    if not given:
        raise ConfigError(
            f"{option} is required with --rho, as names of columns separated by commas: which columns are "
            "taken must not depend on their values."
        )
    return _listed(option, given) or []


def _discover_table(
    data: Path,
    path: str,
    columns: tuple[list[str], list[str], str | None],
    name: str,
    unit: str,
    loss: tuple[str, str],
    files: list[Path],
    book: Path | None,
) -> None:
    from opendas.custody.folders import make_folder
    from opendas.privacy.exact import parse_fraction
    from opendas.runs.starting.discovery import discover_domain
    from opendas.runs.starting.guess import declared_table
    from opendas.runs.starting.templates import frame_file, table_product_file, table_run_file

    rho, delta = parse_fraction(loss[0], "--rho"), parse_fraction(loss[1], "--delta")
    declared = declared_table(data, *columns)
    product, run, frame = files
    _refuse_existing(files)
    make_folder(product.parent)
    own_ledger = product.with_name(f"{name}-ledger.jsonl")
    found = discover_domain(
        data, declared, name=name, protected_unit=unit, rho=rho, delta=delta, own_ledger=own_ledger, book=book
    )
    table, act = found.columns, found.discovery
    _write_new(
        {
            frame: frame_file(table, found.leaves),
            product: table_product_file(table, name, act, unit),
            run: table_run_file(table, product.name, path, act, frame.name),
        }
    )
    message(f"spent:      rho {rho} and delta {float(delta):g}, entered in {found.ledger}")
    message(
        f"found:      what {found.least:,} records or more have in common, as a rule; all else is 'other'"
    )
    message(f"where:      {len(found.leaves):,} leaves, those of others included")
    message(f"attributes: {', '.join(f'{a} ({len(v)} levels)' for a, v in table.attributes.items())}")
    message("Look for CHECK in the files. Do not ask again for a better answer: each time is charged.")
    message(f"Then: opendas plan {run}")


_Columns = tuple[list[str] | None, list[str] | None, str | None]


def _guess_table(
    data: Path,
    path: str,
    name: str,
    columns: _Columns,
    files: list[Path],
    unit: str | None,
    *,
    interactive: bool,
) -> None:
    from opendas.runs.starting.guess import Declared, guess_table

    product, run, _ = files
    _refuse_existing((product, run))
    guess = _asked(data, columns) if interactive else guess_table(data, Declared(*columns))
    unit = unit or (click.prompt("What is one row", default=guess.protected_unit) if interactive else None)
    _write_guess(guess, path, name, product, run, unit)
    message(f"where:      column {guess.geocode}, levels {', '.join(guess.level_names)}")
    message(f"attributes: {', '.join(f'{a} ({len(v)} levels)' for a, v in guess.attributes.items())}")
    message(f"rows:       {'counts in column ' + guess.count if guess.count else 'one record each'}")
    if guess.unit_id is not None:
        message(f"units:      {guess.unit_id}; some have several rows, of which the run file counts 3")
    for why in dict.fromkeys(guess.left_out.values()):
        columns_left = ", ".join(column for column, reason in guess.left_out.items() if reason == why)
        message(f"not taken:  {columns_left}: {why}")
    for text in guess.unsure:
        message(f"not sure:   {text}")
    message(_size(guess))
    message(
        "This is a guess that shows what it read: the release will be stamped DOMAIN FROM RECORDS. Look for "
        "CHECK in both files, or ask with --rho."
    )
    message(f"Then: opendas plan {run} --read-records")


def _write_guess(guess: TableGuess, path: str, name: str, product: Path, run: Path, unit: str | None) -> None:
    from opendas.runs.starting.templates import table_product_file, table_run_file

    protected = unit or guess.protected_unit
    _write_new(
        {
            product: table_product_file(guess, name, protected_unit=protected),
            run: table_run_file(guess, product.name, path),
        }
    )


_ROWS_A_CELL = 1.0


def _size(guess: TableGuess) -> str:
    """Say how many cells there are, and smaller choices where there are more than rows."""
    from opendas.runs.starting.guess import smaller_choices

    text = f"size:       {guess.cells:,} cells in each of {guess.leaves:,} leaves, {guess.rows:,} rows"
    if guess.count is None and guess.cells > _ROWS_A_CELL * guess.rows:
        choices = "; ".join(f"--attributes {','.join(names)}" for names, _ in smaller_choices(guess))
        text += f"\nsparse:     more cells than rows: most counts would be noise. Smaller: {choices}"
    return text


def _asked(data: Path, columns: _Columns) -> TableGuess:
    """Ask which column is what, offering the guess, until the answers fit the table."""
    from opendas.runs.starting.guess import Declared, columns_of, guess_table

    for column in columns_of(data).values():
        message(f"{column.name}: {len(column.values):,} values, seems to be {column.role}")
    declared = Declared(*columns)
    places, attributes, counts = columns[0], columns[1], [columns[2] or "-"]
    while True:
        try:
            guess = guess_table(data, declared)
        except ConfigError as error:
            message(str(error))
        else:
            if declared.geography and declared.attributes:
                return guess
            places, attributes = [*guess.upper_columns, guess.geocode], list(guess.columns.values())
            counts = [guess.count or "-"]
        places = _ask("Columns of places, top first, the smallest last", places)
        attributes = _ask("Columns of attributes", attributes)
        counts = _ask("Column with the number of records of a row, - for none", counts)
        declared = Declared(places, attributes, None if counts == ["-"] else counts[0])


def _ask(question: str, offered: list[str] | None) -> list[str]:
    given: str = click.prompt(question, default=",".join(offered) if offered else None, err=True)
    return [name.strip() for name in given.split(",") if name.strip()]


def _melt_table(data: Path, name: str, wanted: str, files: list[Path], unit: str | None) -> None:
    from opendas.custody.folders import make_folder
    from opendas.runs.starting.guess import Declared, columns_of, guess_table
    from opendas.runs.starting.wide import CATEGORY, COUNT, melt

    product, run, _ = files
    long = product.with_name(f"{name}-long.csv")
    _refuse_existing((long, product, run))
    columns = columns_of(data)
    make_folder(long.parent)
    made = melt(columns, wanted, long)
    guess = guess_table(long, Declared((*made.above, made.geocode), (CATEGORY,), COUNT))
    click.echo(str(long))
    _write_guess(guess, long.name, name, product, run, unit)
    message(f"{len(made.labels)} columns became labels of {CATEGORY}")
    if made.totals:
        message(f"left out, as each is the sum of columns beside it: {', '.join(made.totals)}")
    message(f"{long} is as confidential as {data.name}, and for your eyes alone")
    message("Look for CHECK in the files, and replace the labels by words of a code book.")
    message(f"Then: opendas plan {run} --read-records")


def _refuse_existing(paths: Iterable[Path]) -> None:
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise ConfigError(
            f"{', '.join(there)}: there already, and not overwritten. Move it away, or use --to."
        )


def _write_new(texts: dict[Path, str]) -> None:
    """Write files that are not there yet, all or none."""
    _refuse_existing(texts)
    for path, text in texts.items():
        write_atomic(path, text.encode())
        click.echo(str(path))
    for folder in dict.fromkeys(path.parent for path in texts):
        # OUT has the run file's name, unless --out says otherwise
        outputs = [f"/{path.stem}/" for path in texts if path.parent == folder and path.suffix == ".toml"]
        _keep_out_of_git(folder, outputs)


_NOT_FOR_GIT = ("confidential/", "*.key", "*-long.csv", "*.pl.zip")


def _keep_out_of_git(folder: Path, outputs: list[str]) -> None:
    """Write a list of what git is to leave alone, where there is none: keys, counts and outputs of runs."""
    listed = folder / ".gitignore"
    if listed.exists():
        message(f"{listed} is there already: have it name {' '.join(_NOT_FOR_GIT[:2])}")
        return
    lines = ["# Written by opendas init: keys, counts and inputs of runs do not belong into a repository."]
    write_atomic(listed, "\n".join([*lines, *_NOT_FOR_GIT, *outputs, ""]).encode())
