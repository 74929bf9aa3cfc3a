"""The confidential table: counts sparse over (leaf geounit, cell)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints, sum_by_key
from opendas.errors import DataError

_CELLS_AN_ENTRY = 8
_MOST_CELLS = 1 << 22
"""A whole table is filled, and entries are not sorted, where it has few cells, for its entries and at all."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Histogram:
    """Non-negative counts of geounits (rows) by cells, in compressed sparse rows.

    Confidential when it comes from a reader; formally private when it comes from estimation.
    Its repr shows shapes only. The arrays may be memory mapped (:mod:`opendas.readers.counting.entries`).
    """

    indptr: Ints  # (g + 1,): row ``i`` holds entries ``indptr[i]:indptr[i + 1]``
    cells: npt.NDArray[np.int32]  # (entries,): cell indices, strictly increasing within a row
    counts: Ints  # (entries,): positive counts
    size: int  # number of cells ``n`` of the schema

    def __post_init__(self) -> None:
        for array in (self.indptr, self.cells, self.counts):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"Histogram({self.rows} geounits x {self.size} cells)"

    @property
    def rows(self) -> int:
        """Number of geounits ``g``."""
        return len(self.indptr) - 1

    def total(self) -> int:
        """Return the sum of all counts."""
        return int(self.counts.sum())

    def row_totals(self) -> Ints:
        """Return the sum of each row, int64 (g,)."""
        cumulative = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        return np.asarray(cumulative[self.indptr[1:]] - cumulative[self.indptr[:-1]])

    def row_of_entries(self) -> Ints:
        """Return the row of each entry, int64 (entries,)."""
        return np.repeat(np.arange(self.rows), np.diff(self.indptr))

    def recoded(self, cell_of: npt.NDArray[np.integer], size: int) -> Histogram:
        """Return the same counts in other cells, `size` of them.

        `cell_of` (n,): new cell of each cell; counts of a cell with a negative one are left out.
        """
        cells = cell_of[self.cells]
        kept = np.flatnonzero(cells >= 0)
        rows = self.row_of_entries()[kept]
        return Histogram.from_entries(rows, cells[kept], self.counts[kept], shape=(self.rows, size))

    def pieces(self, rows: int) -> Iterator[tuple[int, Histogram]]:
        """Yield the histogram in runs of at most `rows` rows, each with the position of its first."""
        for start in range(0, self.rows, rows):
            yield start, self.slice(start, min(start + rows, self.rows))

    @classmethod
    def from_entries(
        cls,
        rows: npt.NDArray[np.integer],
        cells: npt.NDArray[np.integer],
        counts: npt.NDArray[np.integer],
        *,
        shape: tuple[int, int],
    ) -> Histogram:
        """Build from (row, cell, count) triples; repeated pairs add up, zeros are dropped."""
        g, n = shape
        added: Ints = np.asarray(counts, dtype=np.int64)
        if added.size and added.min() < 0:
            raise DataError("counts must not be negative.")
        if added.size and float(added.sum(dtype=np.float64)) > 2.0**62:
            raise DataError("counts are too large: their sum must stay below 2**62.")
        key = np.asarray(rows, dtype=np.int64) * n + np.asarray(cells, dtype=np.int64)
        if bool(np.all(key[1:] > key[:-1])):  # as tables often come: nothing to sort, nothing to add
            unique, sums = key, added.copy()
        elif g * n <= min(_CELLS_AN_ENTRY * len(key), _MOST_CELLS):
            every = np.zeros(g * n, dtype=np.int64)
            np.add.at(every, key, added)
            unique = np.flatnonzero(every)
            sums = every[unique]
        else:
            unique, sums = sum_by_key(key, added)
        keep = sums > 0
        if not bool(keep.all()):
            unique, sums = unique[keep], sums[keep]
        indptr = np.searchsorted(unique, np.arange(g + 1, dtype=np.int64) * n).astype(np.int64)
        return cls(indptr, (unique % n).astype(np.int32), sums, n)

    def slice(self, start: int, stop: int) -> Histogram:
        """Return rows ``start:stop`` as a histogram of their own."""
        low, high = int(self.indptr[start]), int(self.indptr[stop])
        return Histogram(
            self.indptr[start : stop + 1] - low,
            self.cells[low:high].copy(),
            self.counts[low:high].copy(),
            self.size,
        )

    def take(self, order: Ints) -> Histogram:
        """Return some rows in any order; row ``i`` of the result is row ``order[i]``.

        Work and memory follow the rows taken, not the histogram.
        """
        if len(order) and np.array_equal(order, np.arange(order[0], order[0] + len(order))):
            first = int(order[0])
            return self if len(order) == self.rows else self.slice(first, first + len(order))
        lengths = self.indptr[order + 1] - self.indptr[order]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        source = np.repeat(self.indptr[:-1][order] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Histogram(indptr, self.cells[source], self.counts[source], self.size)

    @classmethod
    def concatenate(cls, parts: Sequence[Histogram]) -> Histogram:
        """Stack the rows of several histograms of one schema."""
        offsets = np.cumsum([0, *(len(part.cells) for part in parts)])
        indptr = np.concatenate(
            [np.zeros(1, np.int64), *(part.indptr[1:] + o for part, o in zip(parts, offsets, strict=False))]
        )
        cells = np.concatenate([part.cells for part in parts])
        return cls(indptr, cells, np.concatenate([part.counts for part in parts]), parts[0].size)

    def aggregate(self, starts: Ints) -> Histogram:
        """Sum consecutive rows: new row ``j`` is the sum of rows ``starts[j]:starts[j + 1]``.

        `starts` (h + 1,): increasing row positions, from 0 to the number of rows.
        """
        new_row = np.searchsorted(starts, self.row_of_entries(), side="right") - 1
        return Histogram.from_entries(new_row, self.cells, self.counts, shape=(len(starts) - 1, self.size))

    def unlike(self, other: Histogram) -> Ints:
        """Return the rows in which a histogram of equal shape differs, ascending."""
        lengths, others = np.diff(self.indptr), np.diff(other.indptr)
        alike = np.flatnonzero(lengths == others)
        left, right = self.take(alike), other.take(alike)
        differs = (left.cells != right.cells) | (left.counts != right.counts)
        inside = alike[np.repeat(np.arange(len(alike)), lengths[alike])[differs]]
        return np.union1d(np.flatnonzero(lengths != others), inside).astype(np.int64)

    def dense(self, row: int) -> Ints:
        """Return one row as a dense int64 (n,) vector."""
        out = np.zeros(self.size, dtype=np.int64)
        low, high = self.indptr[row], self.indptr[row + 1]
        out[self.cells[low:high]] = self.counts[low:high]
        return out
