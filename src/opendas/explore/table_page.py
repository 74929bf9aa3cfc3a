"""The page on which a user's table becomes a product file and a run file, as by ``opendas init table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from opendas.errors import ConfigError
from opendas.explore.fields import Typed
from opendas.runs.starting.columns import MOST_LEVELS, Column, Role
from opendas.runs.starting.guess import (
    TableGuess,
    Use,
    columns_of,
    declared_by_use,
    guess_table,
    level_labels,
)
from opendas.runs.starting.table_files import (
    FROM_RECORDS,
    TableFiles,
    guess_lines,
    refuse_existing,
    write_guess,
    write_melted,
)
from opendas.runs.starting.wide import wide_table

_SHOWN: Final = 12
_USED: Final = {Role.PLACE: Use.PLACE, Role.LABELS: Use.ATTRIBUTE, Role.NUMBER: Use.ATTRIBUTE}


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A column, as a row of the page."""

    name: str
    values: int  # different ones
    role: str
    shown: str  # its labels, or why it is not used
    use: Use


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """What is shown of a table."""

    rows: list[ColumnRow]
    unit: str
    melt: str  # proposed columns of a wide table; empty where the table is long
    lines: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""
    written: list[str] = field(default_factory=list)


class TablePage:
    """A table that was read when the explorer started, and where its files go.

    Raises `ConfigError` or `FormatError` if the table cannot be read.
    """

    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self.columns: Mapping[str, Column] = columns_of(files.data)
        wide = wide_table(self.columns)
        self.proposed_melt = "" if wide is None else "all" if wide.parts else wide.example

    def answer(self, form: Typed, action: str = "") -> TableAnswer:
        """Show the table with the uses that a form chose, or the guess; ``write`` and ``melt`` write."""
        uses, guess, problem = self._guess(form)
        unit = form.get("unit") or ("record" if guess is None else guess.protected_unit)
        melt = form.get("melt") or self.proposed_melt
        written = []
        if action in ("write", "melt"):
            try:
                written = self._write(guess if action == "write" else None, unit, melt)
                problem = ""
            except ConfigError as error:
                problem = problem or str(error)
        lines = [] if guess is None else [*guess_lines(guess), ("labels", FROM_RECORDS)]
        rows = [
            ColumnRow(name, len(column.values), str(column.role), _shown(column, uses[name]), uses[name])
            for name, column in self.columns.items()
        ]
        return TableAnswer(rows, unit, melt, lines, problem, written)

    def _guess(self, form: Typed) -> tuple[dict[str, Use], TableGuess | None, str]:
        """Return the use of each column, the guess with these uses, and what is wrong with it."""
        fields = {name: form.get(f"use.{number}", "") for number, name in enumerate(self.columns)}
        chosen = {name: Use(use) for name, use in fields.items() if use in list(Use)}
        uses = chosen or {name: _USED.get(column.role, Use.NONE) for name, column in self.columns.items()}
        guess, problem = None, ""
        try:
            declared = declared_by_use(self.columns, chosen) if chosen else None
            guess = guess_table(self.files.data, declared, self.columns)
            uses = guess.uses
        except ConfigError as error:
            problem = str(error)
        return {name: uses.get(name, Use.NONE) for name in self.columns}, guess, problem

    def _write(self, guess: TableGuess | None, unit: str, melt: str) -> list[str]:
        files, paths = self.files, [self.files.product, self.files.run]
        if guess is None:
            if not self.proposed_melt:
                raise ConfigError("Nothing was written: the columns are not settled yet.")
            said = write_melted(files, self.columns, melt, unit)
            paths.append(files.long)
        else:
            refuse_existing(paths)
            said = [write_guess(files, guess, unit)]
        return [
            f"Written: {', '.join(map(str, paths))}.",
            *[text for text in said if text],
            "Look for CHECK in the files.",
            f"Then: {files.next_command}",
        ]


def _shown(column: Column, use: Use) -> str:
    if use == Use.PLACE:
        return f"{len(column.labels):,} places"
    if use == Use.COUNT:
        return "the number of records of a row"
    if use == Use.NONE and column.role not in (Role.LABELS, Role.NUMBER):
        return column.why_left_out()
    if column.role != Role.NUMBER and len(column.values) > MOST_LEVELS:
        return f"{len(column.values):,} different values"
    labels = level_labels(column)
    more = f", and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more
