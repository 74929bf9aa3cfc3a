"""Tables with a column for each count, recognised and written as long ones; apart from what is long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from opendas.arrays import Ints
from opendas.custody.secret_files import write_secret
from opendas.errors import ConfigError
from opendas.runs.starting.columns import Column, Role, nested
from opendas.schema.attributes import labels_named

CATEGORY, COUNT = "category", "count"
"""Columns of a long table made of a wide one."""

_FEWEST = 3
"""Columns of counts that make a table wide."""
_NO_COUNT = re.compile(
    r".*(area|aland|awater|lat|lon|lng|density|percent|pct|rate|median|mean|average|year|fips|code|_id)[0-9]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class WideTable:
    """A table with one row a place and a column for each count."""

    geocode: str
    counts: tuple[str, ...]  # all columns of counts
    totals: tuple[str, ...]  # those that are sums of their neighbours in every row
    # The others: every record is in one of them. Empty where they are several breakdowns.
    parts: tuple[str, ...]
    example: str  # one breakdown, as ``FIRST..LAST``


def wide_table(columns: Mapping[str, Column]) -> WideTable | None:
    """Recognise a wide table; None where it is long.

    `columns`, name -> Column.
    """
    key = _key(columns)
    if key is None:
        return None
    counts = tuple(name for name, column in columns.items() if column is not key and _counts(column))
    if len(counts) < _FEWEST:
        return None
    totals = _totals(columns, counts)
    if key.role != Role.PLACE and not totals:
        return None  # numbered records with numbers as answers, rather than counts of places
    parts = tuple(name for name in counts if name not in totals)
    first = _breakdown(columns, counts, totals)
    whole = sum(_numbers(columns[name]) for name in parts)
    top = _numbers(columns[first[0]]) if first else whole
    one = not totals or bool(np.array_equal(top, whole))
    example = f"{first[1]}..{first[-1]}" if first else f"{parts[0]}..{parts[-1]}"
    return WideTable(key.name, counts, tuple(totals), parts if one else (), example)


def _key(columns: Mapping[str, Column]) -> Column | None:
    """Return the column of places, if each row is another: by its name, else texts, else the first column."""
    apart = [column for column in columns.values() if column.tells_rows_apart and not column.has_empty]
    named = [column for column in apart if column.role == Role.PLACE]
    texts = [column for column in apart if not column.is_whole]
    first = [column for column in apart if column is next(iter(columns.values()))]
    if named:
        return min(named, key=lambda column: column.named_place or 0)
    return next(iter([*texts, *first]), None)


def _counts(column: Column) -> bool:
    """Whether a column could hold counts, and has no name of another thing."""
    named = column.named_place is not None or _NO_COUNT.fullmatch(column.name.strip()) is not None
    return column.could_be_count and not named


def _numbers(column: Column) -> Ints:
    return np.array([int(float(value)) for value in column.values], dtype=np.int64)[column.of_row]


def _totals(columns: Mapping[str, Column], counts: Sequence[str]) -> set[str]:
    """Return columns that are, in every row, the sum of a run of columns right after or right before them.

    Sums of sums are found from the inside outwards: a total is no part any more.
    """
    numbers = {name: _numbers(columns[name]) for name in counts}
    totals: set[str] = set()
    for order in (list(reversed(counts)), list(counts)):
        for place, name in enumerate(order):
            if name in totals or not numbers[name].any():
                continue
            parts = [other for other in reversed(order[:place]) if other not in totals]
            if _parts_of(numbers[name], [numbers[other] for other in parts]):
                totals.add(name)
    return totals


def _parts_of(total: Ints, parts: Sequence[Ints]) -> int:
    """Return of how many of the first of `parts` a total is the sum; 0 where it is none."""
    so_far = np.zeros_like(total)
    for number, part in enumerate(parts, start=1):
        so_far = so_far + part
        if np.array_equal(so_far, total):
            return number
        if np.any(so_far > total):
            break
    return 0


def _breakdown(columns: Mapping[str, Column], counts: Sequence[str], totals: set[str]) -> tuple[str, ...]:
    """Return the first total with the columns that make it up; empty where there is none."""
    first = next((name for name in counts if name in totals), None)
    if first is None:
        return ()
    after = [name for name in counts[counts.index(first) + 1 :] if name not in totals]
    number = _parts_of(_numbers(columns[first]), [_numbers(columns[name]) for name in after])
    return (first, *after[:number]) if number else ()


@dataclass(frozen=True, slots=True)
class LongTable:
    """What became of a wide table."""

    geocode: str
    above: tuple[str, ...]  # columns of places above it, top first
    labels: tuple[str, ...]  # columns that became labels
    totals: tuple[str, ...]  # columns that were left out as sums of others


def melt(columns: Mapping[str, Column], wanted: str, to: Path) -> LongTable:
    """Write a wide table as a long one: a row for each place and column, the counts of 0 included.

    - `columns`, name -> Column.
    - `wanted`: ``all``, or columns separated by commas, ``FIRST..LAST`` for all from one to another; sums of
      others among them are left out.
    - `to`: CSV file, for its owner alone; it is as confidential as the table.
    """
    wide = wide_table(columns)
    if wide is None:
        raise ConfigError(
            f"--melt: no table with one row a place and {_FEWEST} columns of counts was recognised."
        )
    names = wide.counts if wanted == "all" else labels_named(wanted.split(","), wide.counts)
    unknown = [name for name in names if name not in wide.counts]
    if unknown:
        raise ConfigError(f"--melt: {unknown[0]!r} is not a column of counts, such as {wide.counts[0]}.")
    totals = _totals(columns, names)
    labels = tuple(name for name in names if name not in totals)
    if wanted == "all" and not wide.parts:
        raise ConfigError(
            "--melt all: the columns seem to be several breakdowns of the same records, and each record "
            f"would be counted several times. Choose one breakdown, for instance --melt {wide.example}."
        )
    uppers = nested(
        column
        for column in columns.values()
        if column.role == Role.PLACE and column.name != wide.geocode and not column.tells_rows_apart
    )
    taken = {*uppers, wide.geocode} & {CATEGORY, COUNT}
    if taken:
        raise ConfigError(
            f"--melt: the long table adds a column {min(taken)!r}. Rename the one of this table."
        )
    rows = len(columns[wide.geocode].of_row)
    places = {
        name: np.array(columns[name].values)[columns[name].of_row].repeat(len(labels))
        for name in (*uppers, wide.geocode)
    }
    values = np.stack([_numbers(columns[name]) for name in labels], axis=1).ravel()
    table = pa.table({**places, CATEGORY: np.tile(np.array(labels), rows), COUNT: values})
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink)
    write_secret(to, sink.getvalue().to_pybytes().decode())
    return LongTable(wide.geocode, uppers, labels, tuple(name for name in names if name in totals))
