"""The command ``init``: run files to start from; apart from other first commands, since it asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opendas.cli.options import PATH, to_option
from opendas.cli.output import message
from opendas.errors import ConfigError

if TYPE_CHECKING:
    from opendas.runs.starting.columns import Column
    from opendas.runs.starting.guess import TableGuess
    from opendas.runs.starting.table_files import TableFiles


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
    from opendas.runs.starting.table_files import TableFiles

    files = TableFiles(data, to)
    if rho is not None:
        if interactive or melt is not None:
            raise ConfigError("--interactive and --melt look at the values, and so do not go with --rho.")
        columns = _named("--geography", geography), _named("--attributes", attributes), count
        _discover_table(files, columns, unit or "record", (rho, delta), ledger)
        return
    if ledger is not None:
        raise ConfigError("--ledger goes with --rho: a guess is not an act of an account.")
    if melt is not None:
        if interactive or geography or attributes or count:
            raise ConfigError("--melt names the columns by itself; leave the other options out.")
        _melt_table(files, melt, unit)
        return
    declared = _listed("--geography", geography), _listed("--attributes", attributes), count
    _guess_table(files, declared, unit, interactive=interactive)


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
    files: TableFiles,
    columns: tuple[list[str], list[str], str | None],
    unit: str,
    loss: tuple[str, str],
    book: Path | None,
) -> None:
    from opendas.custody.folders import make_folder
    from opendas.privacy.exact import parse_fraction
    from opendas.runs.starting.discovery import discover_domain
    from opendas.runs.starting.guess import declared_table
    from opendas.runs.starting.table_files import refuse_existing
    from opendas.runs.starting.templates import frame_file, table_product_file, table_run_file

    rho, delta = parse_fraction(loss[0], "--rho"), parse_fraction(loss[1], "--delta")
    declared = declared_table(files.data, *columns)
    frame = files.file("frame.csv")
    refuse_existing((files.product, files.run, frame))
    make_folder(files.folder)
    found = discover_domain(
        files.data,
        declared,
        name=files.name,
        protected_unit=unit,
        rho=rho,
        delta=delta,
        own_ledger=files.file("ledger.jsonl"),
        book=book,
    )
    table, act = found.columns, found.discovery
    _write_new(
        {
            frame: frame_file(table, found.leaves),
            files.product: table_product_file(table, files.name, act, unit),
            files.run: table_run_file(table, files.product.name, files.path, act, frame.name),
        }
    )
    message(f"spent:      rho {rho} and delta {float(delta):g}, entered in {found.ledger}")
    message(
        f"found:      what {found.least:,} records or more have in common, as a rule; all else is 'other'"
    )
    message(f"where:      {len(found.leaves):,} leaves, those of others included")
    message(f"attributes: {', '.join(f'{a} ({len(v)} levels)' for a, v in table.attributes.items())}")
    message("Look for CHECK in the files. Do not ask again for a better answer: each time is charged.")
    message(f"Then: opendas plan {files.run}")


_Columns = tuple[list[str] | None, list[str] | None, str | None]


def _guess_table(files: TableFiles, columns: _Columns, unit: str | None, *, interactive: bool) -> None:
    from opendas.runs.starting.guess import Declared, guess_table
    from opendas.runs.starting.table_files import FROM_RECORDS, guess_lines, refuse_existing, write_guess

    refuse_existing((files.product, files.run))
    guess = _ask_columns(files.data, columns) if interactive else guess_table(files.data, Declared(*columns))
    unit = unit or (
        click.prompt("Protected unit, such as patient", default=guess.protected_unit) if interactive else None
    )
    _tell_written((files.product, files.run), write_guess(files, guess, unit))
    for subject, text in guess_lines(guess):
        message(f"{subject + ':':<11} {text}")
    message(f"{FROM_RECORDS} Look for CHECK in both files, or ask with --rho.")
    message(f"Then: {files.next_command(guess)}")


def _ask_columns(data: Path, columns: _Columns) -> TableGuess:
    """Ask which column is what, offering the guess, until the answers fit the table."""
    from opendas.runs.starting.guess import Declared, guess_table
    from opendas.runs.starting.reading import columns_of

    found = columns_of(data)
    for column in found.values():
        message(f"{column.name}: {len(column.values):,} values, seems to be {column.role}")
    declared = Declared(*columns)
    places, attributes, counts = columns[0], columns[1], [columns[2] or "-"]
    while True:
        try:
            guess = guess_table(data, declared, found)
        except ConfigError as error:
            message(str(error))
        else:
            if declared.geography and declared.attributes:
                bins = {guess.columns[name]: edges for name, edges in guess.bins.items()}
                if bins.keys() <= declared.bins.keys():
                    return guess
                bins = {name: _ask_edges(found[name], edges) for name, edges in bins.items()}
                declared = replace(declared, bins=bins)
                continue
            places, attributes = [*guess.upper_columns, guess.geocode], list(guess.columns.values())
            counts = [guess.count or "-"]
        places = _ask("Columns of places, top first, the smallest last", places)
        attributes = _ask("Columns of attributes", attributes)
        counts = _ask("Column with the number of records of a row, - for none", counts)
        declared = Declared(places, attributes, "" if counts in ([], ["-"]) else counts[0])


def _ask(question: str, offered: list[str] | None) -> list[str]:
    given: str = click.prompt(question, default=",".join(offered) if offered else None, err=True)
    return [name.strip() for name in given.split(",") if name.strip()]


def _ask_edges(column: Column, edges: Sequence[float]) -> tuple[float, ...]:
    """Ask where the classes of a column's numbers begin, until the answer can be used."""
    from opendas.runs.starting.columns import edges_text, read_edges

    question, offered = f"Where classes of {column.name} begin, in ascending order", edges_text(edges)
    while True:
        try:
            return read_edges(column, click.prompt(question, default=offered, err=True))
        except ConfigError as error:
            message(str(error))


def _melt_table(files: TableFiles, wanted: str, unit: str | None) -> None:
    from opendas.runs.starting.reading import columns_of
    from opendas.runs.starting.table_files import write_melted

    guess, said = write_melted(files, columns_of(files.data), wanted, unit)
    _tell_written((files.long, files.product, files.run), *said)
    message(f"Then: {files.next_command(guess)}")


def _write_new(texts: Mapping[Path, str]) -> None:
    from opendas.runs.starting.table_files import write_new

    _tell_written(texts, write_new(texts))


def _tell_written(paths: Iterable[Path], *said: str) -> None:
    for path in paths:
        click.echo(str(path))
    for text in said:
        if text:
            message(text)
