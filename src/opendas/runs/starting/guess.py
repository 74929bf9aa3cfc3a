"""What a table seems to be: which columns say where, which are attributes, which count, whose a row is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.custody.protected_units import unit_of_column
from opendas.errors import ConfigError
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.columns.identifiers import seems_identifier
from opendas.runs.starting.columns import (
    FEW_NUMBERS,
    MOST_DECLARED,
    MOST_LEVELS,
    Column,
    Role,
    bin_labels,
    proposed_bins,
)
from opendas.runs.starting.geolevels import (
    Level,
    leaf_column,
    levels_of,
    refuse_no_codes,
    same_as,
    upper_columns,
)
from opendas.runs.starting.reading import columns_of
from opendas.runs.starting.wide import WideTable, wide_table
from opendas.schema.attributes import RESERVED_NAMES

OTHER = "other"
"""Label of what a private discovery did not find, and leaf of the records whose leaf it did not find."""

NOT_GIVEN = "not given"
"""Label of an empty field."""

MOST_CELLS = 1 << 22
"""A guess has at most so many cells; products made by hand may have more, up to what memory holds."""

_COUNT_NAMES = (
    "count", "counts", "n", "number", "records", "population", "pop", "total", "persons", "people", "freq",
    "votes", "ballots", "cases", "admissions", "stays", "births", "deaths", "pupils", "students",
)  # fmt: skip
_ASKED_FIRST = re.compile(
    r"(.*[_ .-])?(agep?|sex|gender|race|rac1p|cenrace|ethnicity|hisp|hispanic|tenure|mar|marital|grade|party|"
    r"severity|diagnosis)([_ .-].*)?",
    re.IGNORECASE,
)
"""Attributes that are proposed before others where not all can be had."""

_PROPOSED_CELLS = (200, 2_000, 20_000)


@dataclass(frozen=True, slots=True)
class Declared:
    """What is said of a table beforehand; the rest is guessed."""

    geography: Sequence[str] | None = None  # columns with codes of places, top first, the leaf last
    attributes: Sequence[str] | None = None
    count: str | None = None  # column with the number of records of a row; empty: none has it
    # By column of numbers: where its classes begin, as `read_edges` returns it.
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class Use(StrEnum):
    """What a column is used as."""

    PLACE = "place"
    ATTRIBUTE = "attribute"
    COUNT = "count"
    NONE = "not used"


def declared_by_use(columns: Mapping[str, Column], uses: Mapping[str, Use]) -> Declared:
    """Return what is declared where someone chose a use for each column: places with fewer codes stand above.

    Raises `ConfigError` if no column is a place, none an attribute, or two are counts.
    """
    named = {use: [name for name in columns if uses.get(name) == use] for use in Use}
    for use in (Use.PLACE, Use.ATTRIBUTE):
        if not named[use]:
            raise ConfigError(f"No column is used as {use}: choose at least one.")
    counts = named[Use.COUNT]
    if len(counts) > 1:
        raise ConfigError(f"{', '.join(counts)} are used as count: choose one column for it.")
    places = sorted(named[Use.PLACE], key=lambda name: len(columns[name].values))
    return Declared(places, named[Use.ATTRIBUTE], counts[0] if counts else "")


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What a table seems to be."""

    file: str
    reader: str  # ``records`` or ``histogram``
    geocode: str  # column with the leaf
    count: str | None  # column with the number of records, for ``histogram``
    attributes: Mapping[str, tuple[str, ...]]  # level labels, by attribute
    columns: Mapping[str, str]  # column of each attribute
    # (name, prefix or None, column or None) of each geolevel, top first, the leaf last.
    levels: tuple[Level, ...]
    left_out: Mapping[str, str]  # columns that were not taken, and why
    unit_id: str | None = None  # column that seems to say whose a record is, where some have several
    # Where the levels of an attribute begin whose column holds numbers.
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # By attribute: label of the level of empty fields, where there are some.
    other: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0  # 0 where the table was not read; `records` and `leaves` likewise
    records: int = 0
    leaves: int = 0
    unsure: tuple[str, ...] = ()  # what the names did not say, and anyone who asked should look at

    @property
    def protected_unit(self) -> str:
        """What one row is in a word or two: of the column ``patient_id`` a patient, else a record."""
        return "record" if self.unit_id is None else unit_of_column(self.unit_id)

    @property
    def cells(self) -> int:
        """Number of combinations of levels."""
        return math.prod(len(levels) for levels in self.attributes.values())

    @property
    def upper_columns(self) -> tuple[str, ...]:
        """Columns with the codes of the levels above the leaf, top first."""
        return tuple(column for _, _, column in self.levels if column is not None)

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the geolevels, top first."""
        return tuple(name for name, _, _ in self.levels)

    @property
    def uses(self) -> dict[str, Use]:
        """What each column is used as that is used at all."""
        places = dict.fromkeys([*self.upper_columns, self.geocode], Use.PLACE)
        counts = {} if self.count is None else {self.count: Use.COUNT}
        return {**places, **dict.fromkeys(self.columns.values(), Use.ATTRIBUTE), **counts}

    def level_entries(self) -> list[dict[str, object]]:
        """Return the geolevels as a run file writes them."""
        entries = []
        for name, prefix, column in self.levels:
            entry: dict[str, object] = {"name": name}
            if prefix is not None:
                entry["prefix"] = prefix
            if column is not None:
                entry["column"] = column
            entries.append(entry)
        return entries


def guess_table(
    path: Path, declared: Declared | None = None, columns: Mapping[str, Column] | None = None
) -> TableGuess:
    """Guess what a CSV or Parquet table holds.

    `columns`: what :func:`columns_of` read from the file, where it was.

    Raises `ConfigError` if there is no such file, no column that could say where a record belongs, none that
    could be an attribute, or if the attributes have more combinations than can be counted; or if the table
    has a column for each count; `FormatError` if it is no table.
    """
    declared = declared or Declared()
    columns = columns_of(path) if columns is None else columns
    _check_declared(path, declared, columns)
    if declared.attributes is None and declared.count is None:
        wide = wide_table(columns)
        if wide is not None:
            raise ConfigError(_melt_first(path, wide))
    if any(len(column.of_row) == 1 for column in columns.values()):
        raise ConfigError(
            f"{path.name} has one row, which does not show what its columns are. Give a table with more "
            "rows, or write a product file and a run file by hand."
        )
    unsure: tuple[str, ...] = ()
    if declared.geography:
        *above, geocode = declared.geography
        uppers = tuple(above)
    else:
        geocode, unsure = leaf_column(path, columns)
        uppers = upper_columns(columns, geocode, declared.attributes or ())
    refuse_no_codes(path, [columns[name] for name in (geocode, *uppers)])
    unread = {geocode, *uppers}
    same = set() if declared.attributes is not None else same_as(columns[geocode], columns.values())
    rest = [column for name, column in columns.items() if name not in unread | same]
    count = declared.count or None
    if declared.count is None:
        guessed = _count(rest)
        count = None if guessed in (declared.attributes or ()) else guessed
    taken = _attributes(rest, count, declared)
    key = [columns[geocode], *taken]
    if declared.count is None and count is not None and not _differ(key):
        count, taken = None, _attributes(rest, None, declared)
    if not taken and declared.attributes is not None:
        raise ConfigError(
            f"{path.name}: {geocode} was taken as the place of a record, and cannot be an attribute as well. "
            "Name the columns of places with --geography, or another attribute."
        )
    if not taken:
        raise ConfigError(
            f"{path.name}: no column seems to be an attribute, apart from those used as places or as the "
            "count. Name some with --attributes, or write a product file by hand."
        )
    names = _attribute_names([column.name for column in taken])
    bins = {
        name: declared.bins.get(column) or proposed_bins(column, columns[column].numbers())
        for name, column in names.items()
        if columns[column].role == Role.NUMBER
    }
    return _checked(
        path,
        TableGuess(
            file=path.name,
            reader="records" if count is None else "histogram",
            geocode=geocode,
            count=count,
            attributes={
                name: level_labels(columns[column], bins.get(name)) for name, column in names.items()
            },
            columns=names,
            levels=levels_of(list(columns[geocode].labels), geocode, uppers),
            left_out={
                name: f"it says the same as {geocode}" if name in same else column.why_left_out()
                for name, column in columns.items()
                if name not in {*unread, count, *names.values()}
            },
            unit_id=_unit_id(columns, count),
            bins=bins,
            other={name: NOT_GIVEN for name, column in names.items() if columns[column].has_empty},
            rows=len(columns[geocode].of_row),
            records=_records(columns[geocode if count is None else count], counted=count is not None),
            leaves=len(columns[geocode].labels),
            unsure=(*unsure, *_perhaps_codes(columns[column] for column in names.values())),
        ),
    )


def _check_declared(path: Path, declared: Declared, columns: Mapping[str, Column]) -> None:
    wanted = [*(declared.geography or ()), *(declared.attributes or ())]
    wanted += [declared.count] if declared.count else []
    _refuse_unknown(path, wanted, list(columns))
    places, leaf = list(declared.geography or ()), columns.get((declared.geography or ("",))[-1])
    for upper in places[:-1]:
        if leaf is not None and not leaf.determines(columns[upper]):
            raise ConfigError(
                f"{path.name}: one {leaf.name} lies in two of {upper}. Name places from the top down, the "
                "smallest last: each must lie in only one of those above it."
            )
    for name in declared.attributes or ():
        column = columns[name]
        if column.role in (Role.CONSTANT, Role.DATE):
            raise ConfigError(f"{path.name}: {name} cannot be an attribute: {column.why_left_out()}.")
        if column.role != Role.NUMBER and len(column.values) > MOST_DECLARED:
            raise ConfigError(
                f"{path.name}: {name} has {len(column.values):,} different values; an attribute has at most "
                f"{MOST_DECLARED:,}."
            )


def _melt_first(path: Path, wide: WideTable) -> str:
    if not wide.parts:
        return (
            f"{path.name} has one row for each {wide.geocode} and {len(wide.counts)} columns of counts, "
            "which seem to be several breakdowns of the same records. Write one breakdown as a long table, "
            f"with one row for each {wide.geocode} and column: --melt FIRST..LAST, for instance --melt "
            f"{wide.example}."
        )
    total = f", {len(wide.totals)} of them sums of others, which are left out" if wide.totals else ""
    return (
        f"{path.name} has one row for each {wide.geocode} and {len(wide.counts)} columns of counts{total}. A "
        f"long table is needed, with one row for each {wide.geocode} and column. --melt all writes it, with "
        "its product file and run file; --melt A,B,... or --melt FIRST..LAST takes some of the columns."
    )


def _count(columns: Sequence[Column]) -> str | None:
    """Choose by name, else the one column of numbers with too many values for an attribute, if whole."""
    numbers = [column for column in columns if column.could_be_count and not seems_identifier(column.name)]
    for known in _COUNT_NAMES:
        for column in numbers:
            if column.name.strip().lower() == known:
                return column.name
    many = [column for column in numbers if len(column.values) > MOST_LEVELS]
    others = any(column.role == Role.NUMBER and column not in many for column in columns)
    return many[0].name if len(many) == 1 and not others else None


def _attributes(columns: Sequence[Column], count: str | None, declared: Declared) -> list[Column]:
    if declared.attributes is not None:
        by_name = {column.name: column for column in columns}
        return [by_name[name] for name in declared.attributes if name in by_name]
    return [
        column
        for column in columns
        if column.name != count
        and (
            column.role in (Role.LABELS, Role.NUMBER)
            or (column.role == Role.PLACE and 2 <= len(column.values) <= MOST_LEVELS)
        )
    ]


def _records(column: Column, *, counted: bool) -> int:
    """Return how many records there are: a row each, or as many as the numbers of a column add up to."""
    if not (counted and column.could_be_count):
        return len(column.of_row)
    rows = np.bincount(column.of_row, minlength=len(column.values)).tolist()
    return sum(int(float(value)) * number for value, number in zip(column.values, rows, strict=True))


def _differ(columns: Sequence[Column]) -> bool:
    """Whether no two rows agree in all the columns."""
    keys: Ints = np.stack([column.of_row for column in columns])
    return bool(np.unique(keys, axis=1).shape[1] == keys.shape[1])


def level_labels(column: Column, edges: Sequence[float] | None = None) -> tuple[str, ...]:
    """Return the labels of a column as an attribute: its values, or the classes that begin at `edges`."""
    labels = in_order(column.labels) if edges is None else bin_labels(edges, whole=column.is_whole)
    return (*labels, NOT_GIVEN) if column.has_empty else labels


def _perhaps_codes(taken: Iterable[Column]) -> Iterator[str]:
    """Name columns of whole numbers that may be something else than they are taken for.

    Those in classes could be codes, or number households; those taken as labels could be incomplete.
    """
    for column in taken:
        if column.could_number_units:
            yield (
                f"{column.name} has {len(column.labels):,} different whole numbers of one length: the files "
                "put them into classes. If they number households or other units, leave it out: name the "
                "others with --attributes."
            )
        if column.is_number_or_code and len(column.labels) <= FEW_NUMBERS:
            yield (
                f"{column.name} has {len(column.labels)} different whole numbers: the files put them into "
                "classes. If they are codes, list them in the product file, and remove their bins from the "
                "run file."
            )
        if absent := column.absent_numbers:
            what = "number does" if absent == 1 else "numbers do"
            fate = f"counts it as {NOT_GIVEN!r}" if column.has_empty else "refuses it"
            yield (
                f"{column.name} has {len(column.labels)} different whole numbers, taken as labels. Between "
                f"the least and the greatest, {absent:,} {what} not occur. Where a later record has such a "
                f"number, a run {fate}. List all that can occur in the product file; or list classes there, "
                "and where they begin as bins in the run file."
            )


def _unit_id(columns: Mapping[str, Column], count: str | None) -> str | None:
    """Return the first column that seems to say whose a record is, where some have several records."""
    if count is not None:
        return None
    found = [c for c in columns.values() if c.role == Role.IDENTIFIER and not c.tells_rows_apart]
    return found[0].name if found else None


def _checked(path: Path, guess: TableGuess) -> TableGuess:
    """Return a guess that can be counted."""
    if guess.cells <= MOST_CELLS:
        return guess
    choices = "\n".join(
        f"  --attributes {','.join(names)}   ({cells:,} cells)" for names, cells in smaller_choices(guess)
    )
    size = f"{guess.cells:,}" if guess.cells < 10**9 else f"{guess.cells:.1e}"
    empty = ""
    if guess.cells >= 10 * guess.rows:
        empty = f", and {guess.rows:,} rows would leave at least nine in ten of them empty"
    raise ConfigError(
        f"{path.name}: {len(guess.attributes)} attributes make {size} cells; a guess has at most "
        f"{MOST_CELLS:,}{empty}. These choices have fewer:\n{choices}\nOr name others with --attributes. "
        "Further attributes can be tables of their own, each with a part of the budget."
    )


def smaller_choices(guess: TableGuess) -> list[tuple[tuple[str, ...], int]]:
    """Return choices of columns for attributes, with their numbers of cells: smaller ones first."""
    ranked = sorted(guess.attributes, key=lambda name: _ASKED_FIRST.fullmatch(name) is None)
    found: dict[tuple[str, ...], int] = {}
    for most in _PROPOSED_CELLS:
        chosen, cells = [], 1
        for name in ranked:
            levels = len(guess.attributes[name])
            if cells * levels <= most:
                chosen.append(name)
                cells *= levels
        columns = tuple(guess.columns[name] for name in guess.attributes if name in chosen)
        if columns and len(chosen) < len(guess.attributes):
            found[columns] = cells
    return list(found.items())


def declared_table(
    path: Path, geography: Sequence[str], attributes: Sequence[str], count: str | None = None
) -> TableGuess:
    """Return what a table is by declaration: of the table itself, only the header is read.

    - `geography`: columns with codes of places, top first, the leaf last.
    - `attributes`: columns with attributes; their labels are left open.
    - `count`: column with the number of records of a row.

    Raises `ConfigError` if a column is missing, or named twice; `FormatError` if it is no table.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    header = column_names(path)
    wanted = [*geography, *attributes, *([] if count is None else [count])]
    _refuse_unknown(path, wanted, header)
    *above, geocode = geography
    columns = _attribute_names(list(attributes))
    return TableGuess(
        file=path.name,
        reader="records" if count is None else "histogram",
        geocode=geocode,
        count=count,
        attributes=dict.fromkeys(columns, ()),
        columns=columns,
        levels=levels_of([], geocode, tuple(above)),
        left_out={name: "not named" for name in header if name not in wanted},
    )


def _refuse_unknown(path: Path, wanted: Sequence[str], header: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in header]
    if missing:
        known = ", ".join(header[:40]) + (", ..." if header[40:] else ".")
        raise ConfigError(f"{path.name} has no column {missing[0]!r}; it has {known}")
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{twice} is named twice: name a column once in --geography, --attributes and --count together."
        )


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Return level labels in their natural order, numbers by size; an empty field is no level."""

    def natural(value: str) -> list[tuple[int, int, str]]:
        # Numbers compare by their digits: some are longer than Python would convert.
        parts = [(part, part.lstrip("0")) for part in re.split(r"([0-9]+)", value) if part]
        return [(0, len(bare), bare) if part[0] in "0123456789" else (1, 0, part) for part, bare in parts]

    return tuple(sorted((value for value in values if value), key=natural))


def _attribute_names(columns: list[str]) -> dict[str, str]:
    """Return a usable attribute name for each column."""
    names: dict[str, str] = {}
    for column in columns:
        base = re.sub(r"[^A-Za-z0-9_-]+", "_", column).strip("_").lower() or "attribute"
        name = f"{base}_" if base in RESERVED_NAMES else base
        while name in names:
            name += "_"
        names[name] = column
    return names
