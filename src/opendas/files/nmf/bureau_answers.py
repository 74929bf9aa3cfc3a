"""Values of noisy measurement files of the Bureau's layout, read in parts: apart from what is where in them.

Axes: ``g`` geounits of a geolevel in spine order, ``q`` query groups, ``r`` rows of the files of a geolevel,
``m`` rows of a query group.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import FormatError
from opendas.files.nmf.bureau import BureauLevel, BureauRows, Progress, names_part
from opendas.files.storage.addresses import RemotePath
from opendas.files.storage.parquet import one_array, open_parquet, reading, reads_file
from opendas.intervals.margins import MarginQuery
from opendas.schema.query_groups import QueryGroup

_VALUES_AT_ONCE = 1 << 23
"""About so many values are held when answers are summed."""


class BureauAnswers:
    """Answers read from files of the Bureau's layout, row group by row group; an ``AnswerSource``.

    `row` (g, q): row of each answer in the geolevel's files; -1 where a geounit was not asked.
    """

    def __init__(
        self,
        levels: tuple[BureauLevel, ...],
        queries: tuple[tuple[QueryGroup, ...], ...],
        row: tuple[Ints, ...],
        progress: Progress | None = None,
    ) -> None:
        self._levels = levels
        self._queries = queries
        self._row = row
        self._progress = progress

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of consecutive geounits.

        Raises `FormatError` if an answer has another number of values than its query group.
        """
        wanted = np.arange(first, first + geounits)
        found = [self.of_query(level, column, wanted) for column in range(len(self._queries[level]))]
        if self._progress is not None:
            here = self._levels[level]
            self._progress(f"reading answers of {here.folder}", first + geounits, len(here.geocodes))
        return found

    def of_query(self, level: int, column: int, wanted: Ints) -> Ints:
        """Return answers of some geounits to a query group, int64 (w, m); zeros where it was not asked."""
        here, query = self._levels[level], self._queries[level][column]
        values = np.zeros((len(wanted), query.size), dtype=np.int64)
        rows = self._row[level][wanted, column]
        asked = np.flatnonzero(rows >= 0)
        values[asked] = read_values(
            here.measured, rows[asked], query.size, here.folder, f"query {query.name!r}"
        )
        return values


class BureauMargins:
    """Answers summed to a margin, geolevel by geolevel, and then held; an ``AnswerSource``.

    - `queries`: per geolevel, in the order of the columns of `row`.
    - `row` (g, q): row of each answer in the geolevel's files; -1 where a geounit was not asked.
    """

    def __init__(
        self,
        levels: tuple[BureauLevel, ...],
        queries: tuple[tuple[MarginQuery, ...], ...],
        row: tuple[Ints, ...],
        progress: Progress | None = None,
    ) -> None:
        self._levels = levels
        self._queries = queries
        self._row = row
        self._progress = progress
        self._read: dict[int, list[Ints]] = {}

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return the sums of all noisy answers of consecutive geounits; the first question reads the files.

        Raises `FormatError` if an answer has another number of values than its query group.
        """
        if level not in self._read:
            here, row, queries = self._levels[level], self._row[level], self._queries[level]
            geounit = np.full(len(here.measured), -1, dtype=np.int64)
            maps: list[tuple[str, Ints]] = [("", np.zeros(0, dtype=np.int64))] * len(here.measured.names)
            order = []
            for column, query in enumerate(queries):
                asked = np.flatnonzero(row[:, column] >= 0)
                lines = row[asked, column]
                geounit[lines] = asked
                number = int(here.measured.name[lines[0]]) if len(lines) else -1
                order.append(number)
                if number >= 0:
                    maps[number] = (query.query.name, query.row)
            sums = sum_values(here.measured, geounit, maps, len(row), here.folder, self._progress)
            self._read[level] = [
                sums[number] if number >= 0 else np.zeros((len(row), query.query.size), dtype=np.int64)
                for number, query in zip(order, queries, strict=True)
            ]
        return [values[first : first + geounits] for values in self._read[level]]


def read_values(rows: BureauRows, wanted: Ints, size: int, level: str, what: str) -> Ints:
    """Return the values of some rows, int64 (wanted, size); `what` names them in an error."""
    found = np.zeros((len(wanted), size), dtype=np.int64)
    line = rows.place[wanted]
    place = np.searchsorted(rows.starts, line, side="right") - 1
    for number in np.unique(place).tolist():
        chosen = np.flatnonzero(place == number)
        inside = line[chosen] - rows.starts[number]
        file = rows.files[number]
        with names_part(file):
            stamp = _stamp(file)
            bounds = _row_groups(file, stamp)
        group = np.searchsorted(bounds, inside, side="right") - 1
        for one in np.unique(group).tolist():
            lines = chosen[group == one]
            with names_part(file):
                flat, offsets = _group_values(file, stamp, one, level)
            at = inside[group == one] - bounds[one]
            lengths = offsets[at + 1] - offsets[at]
            if bool(np.any(lengths != size)):
                raise FormatError(
                    f"{level}.parquet: values in {what}: found {int(lengths[lengths != size][0])}, expected "
                    f"{size}."
                )
            found[lines] = flat[offsets[at][:, None] + np.arange(size)]
    return found


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file does: what is kept of it must not outlive it."""
    if isinstance(file, RemotePath):
        return file.stamp()
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4096)
def _row_groups(file: Path, stamp: tuple[int, int]) -> tuple[int, ...]:
    opened = open_parquet(file).metadata
    sizes = [opened.row_group(i).num_rows for i in range(opened.num_row_groups)]
    return tuple(np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist())


@lru_cache(maxsize=4)
@reads_file
def _group_values(file: Path, stamp: tuple[int, int], group: int, level: str) -> tuple[Ints, Ints]:
    """Return the flat values of one row group and where each row's begin."""
    column = one_array(open_parquet(file).read_row_group(group, columns=["value"]).column(0))
    if column.null_count:
        raise FormatError(f"{level}.parquet: a row has no values.")
    offsets = np.asarray(column.offsets, dtype=np.int64)
    flat = np.asarray(column.values)
    with np.errstate(invalid="ignore"):  # a missing number is no whole one either
        whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise FormatError(f"{level}.parquet: a value that is missing or not a whole number.")
    return whole, offsets


def sum_values(
    rows: BureauRows,
    geounit: Ints,
    maps: Sequence[tuple[str, Ints]],
    geounits: int,
    level: str,
    progress: Progress | None = None,
) -> list[Ints]:
    """Return the values of all rows, summed to coarser rows: int64 (geounits, coarse rows) for each query.

    The files are read once, a few answers at a time, and row groups without a wanted row not at all.

    - `geounit` (r,): geounit of each row; -1 for rows that are not wanted.
    - `maps`, sequence of (str, int64 (m,)): per name in `rows.names`, the query in words, and the coarse row
      of each value, -1 for none.
    """
    # The last coarse row takes what belongs to none, and is dropped.
    sizes = [int(coarse.max(initial=-1)) + 1 for _, coarse in maps]
    padded = [np.where(coarse < 0, size, coarse) for (_, coarse), size in zip(maps, sizes, strict=True)]
    found = [np.zeros((geounits, size), dtype=np.int64) for size in sizes]
    step = max(1, _VALUES_AT_ONCE // max((len(coarse) for coarse in padded), default=1))
    for file, start in zip(rows.files, rows.starts.tolist(), strict=False):
        with names_part(file), reading(file):
            bounds = _row_groups(file, _stamp(file))
            opened = open_parquet(file)
            for group, (low, high) in enumerate(itertools.pairwise(bounds)):
                line = start + low
                if not np.any(geounit[slice(*np.searchsorted(rows.place, (line, start + high)))] >= 0):
                    continue
                for batch in opened.iter_batches(step, row_groups=[group], columns=["value"]):
                    column = batch.column(0)
                    first, last = np.searchsorted(rows.place, (line, line + len(column)))
                    numbers = first + np.flatnonzero(geounit[first:last] >= 0)
                    wanted = rows.place[numbers] - line
                    if column.null_count and bool(np.asarray(column.is_null())[wanted].any()):
                        raise FormatError(f"{level}.parquet: a row has no values.")
                    offsets, flat = np.asarray(column.offsets), np.asarray(column.values)
                    for number, i in zip(numbers.tolist(), wanted.tolist(), strict=True):
                        name = int(rows.name[number])
                        values = flat[offsets[i] : offsets[i + 1]]
                        _check_values(values, len(padded[name]), maps[name][0], level)
                        sums = np.bincount(padded[name], values, sizes[name] + 1)[:-1]
                        found[name][geounit[number]] = sums.astype(np.int64)
                    line += len(column)
                    if progress is not None:
                        progress(f"reading answers of {level}", line, int(rows.starts[-1]))
    return found


def _check_values(values: npt.NDArray[Any], size: int, query: str, level: str) -> None:
    if len(values) != size:
        raise FormatError(
            f"{level}.parquet: values in query {query!r}: found {len(values)}, expected {size}."
        )
    if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
        raise FormatError(f"{level}.parquet: a value that is missing or not a whole number.")
