"""The page on which a user's table becomes a product file and a run file, as by ``opendas init table``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from opendas.errors import ConfigError
from opendas.explore.fields import Problems, Typed
from opendas.report.views import plural
from opendas.runs.starting.columns import MOST_LEVELS, Column, Role, edges_text, proposed_bins, read_edges
from opendas.runs.starting.guess import (
    TableGuess,
    Use,
    declared_by_use,
    guess_table,
    level_labels,
)
from opendas.runs.starting.reading import columns_of
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
    bins: str  # the field of `edges`
    edges: str | None  # where the classes of its numbers begin; None where it is in none


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """What is shown of a table."""

    rows: list[ColumnRow]
    unit: str
    melt: str  # proposed columns of a wide table; empty where the table is long
    lines: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)  # what is wrong, by field name
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
        """Show the table with what a form chose, or the guess; ``write`` and ``melt`` write."""
        problems = Problems()
        fields = {name: form.get(f"use.{number}", "") for number, name in enumerate(self.columns)}
        chosen = {name: Use(use) for name, use in fields.items() if use in list(Use)}
        bins = self._bins(form, chosen, problems)
        guess, problem = None, problems.sentence if problems else ""
        if not problems:
            try:
                declared = replace(declared_by_use(self.columns, chosen), bins=bins) if chosen else None
                guess = guess_table(self.files.data, declared, self.columns)
            except ConfigError as error:
                problem = str(error)
        unit = form.get("unit") or ("record" if guess is None else guess.protected_unit)
        melt = form.get("melt") or self.proposed_melt
        written = []
        if action in ("write", "melt"):
            try:
                written = self._write(action, guess, unit, melt)
                problem = ""
            except ConfigError as error:
                problem = problem or str(error)
        lines = [] if guess is None else [*guess_lines(guess), ("labels", FROM_RECORDS)]
        if guess is not None:
            chosen = guess.uses
        elif not chosen:
            chosen = {name: _USED.get(column.role, Use.NONE) for name, column in self.columns.items()}
        wrong = {key: form[key] for key in problems.by_field}
        rows = [
            self._row(number, name, chosen.get(name, Use.NONE), wrong.get(f"bins.{number}"), bins)
            for number, name in enumerate(self.columns)
        ]
        return TableAnswer(rows, unit, melt, lines, problem, problems.by_field, written)

    def _bins(self, form: Typed, uses: Mapping[str, Use], problems: Problems) -> dict[str, tuple[float, ...]]:
        """Read where the classes of each column begin that is used as an attribute and holds numbers."""
        found = {}
        for number, (name, column) in enumerate(self.columns.items()):
            key = f"bins.{number}"
            if key in form and column.role == Role.NUMBER and uses.get(name) == Use.ATTRIBUTE:
                try:
                    found[name] = read_edges(column, form[key])
                except ConfigError as error:
                    problems.add(key, str(error))
        return found

    def _row(
        self, number: int, name: str, use: Use, wrong: str | None, bins: Mapping[str, tuple[float, ...]]
    ) -> ColumnRow:
        """Return a column's row; `wrong`: edges that were typed and cannot be used, which have no labels."""
        column = self.columns[name]
        edges = bins.get(name)
        if edges is None and column.role == Role.NUMBER:
            edges = proposed_bins(name, column.numbers())
        shown = _shown(column, use, edges) if wrong is None else ""
        typed = wrong
        if wrong is None and edges is not None and use == Use.ATTRIBUTE:
            typed = edges_text(edges)
        return ColumnRow(name, len(column.values), str(column.role), shown, use, f"bins.{number}", typed)

    def _write(self, action: str, guess: TableGuess | None, unit: str, melt: str) -> list[str]:
        files, paths = self.files, [self.files.product, self.files.run]
        if action == "melt" and self.proposed_melt:
            guess, said = write_melted(files, self.columns, melt, unit)
            paths.append(files.long)
        elif guess is None:
            raise ConfigError("Nothing was written: the columns are not settled yet.")
        else:
            refuse_existing(paths)
            said = [write_guess(files, guess, unit)]
        return [
            f"Written: {', '.join(map(str, paths))}.",
            *[text for text in said if text],
            "Look for CHECK in the files.",
            f"Then: {files.next_command(guess)}",
        ]


def _shown(column: Column, use: Use, edges: Sequence[float] | None) -> str:
    if use == Use.PLACE:
        return plural("place", len(column.labels))
    if use == Use.COUNT:
        return "the number of records of a row"
    if use == Use.NONE and column.role not in (Role.LABELS, Role.NUMBER):
        return column.why_left_out()
    if column.role != Role.NUMBER and len(column.values) > MOST_LEVELS:
        return f"{len(column.values):,} different values"
    labels = level_labels(column, edges)
    more = f", and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more
