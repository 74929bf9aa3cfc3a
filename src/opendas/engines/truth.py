"""The confidential table as engines see it: cut into slices, summed up the spine, never whole in memory.

Axes: leaves stand in the frame's order in the table, and in the spine's order in everything given out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.custody.input_tag import TagSum, tag_entries, tag_key, tag_of
from opendas.custody.run_key import RunKey
from opendas.errors import Finding
from opendas.geography.spine import Spine
from opendas.measurement.invariants import exact_answers
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup

LEAVES_AT_ONCE = 1 << 16
"""Leaves that are held in memory at a time when a mapped table is summed up."""

KEPT = 1 << 25
"""Most cells of a geolevel whose counts are summed up at once and kept: tasks ask for them up and down."""


def input_tag(key: RunKey, table: Histogram) -> str:
    """Return the keyed tag of a table, rows in the frame's order (see :mod:`opendas.custody.input_tag`)."""
    secret = tag_key(key)
    total = TagSum()
    for first, rows in table.pieces(LEAVES_AT_ONCE):
        leaf = np.repeat(np.arange(first, first + rows.rows), np.diff(rows.indptr))
        total += tag_entries(secret, leaf, rows.cells, rows.counts)
    return tag_of(key, total, (table.rows, table.size))


class ExactCounts(Protocol):
    """The exact counts of a run, wherever they stand. Confidential."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Warnings that came of counting, beside those of reading."""
        ...

    def total(self) -> int:
        """Return the number of records."""
        ...

    def tag(self, key: RunKey) -> str:
        """Return the keyed tag of the input."""
        ...

    def answers(self, group: QueryGroup, level: int) -> Ints:
        """Return the exact answers of a query group that is declared invariant at a geolevel, (g, m)."""
        ...

    def slice(self, level: int, start: int, stop: int) -> Histogram | None:
        """Return the counts of geounits ``start:stop`` of a geolevel; None where executors have them."""
        ...


class LeafCounts:
    """Exact counts of all leaves on this machine; see :class:`ExactCounts`.

    `table`: one row per leaf of the frame, in its order; it may be memory mapped.
    """

    __slots__ = ("_spine", "_sums", "_table")

    def __init__(self, table: Histogram, spine: Spine) -> None:
        self._table = table
        self._spine = spine
        self._sums: dict[int, Histogram] = {}

    @classmethod
    def on(cls, spine: Spine, counts: Histogram) -> LeafCounts:
        """Return counts whose rows stand in the spine's order already."""
        return cls(counts.take(spine.place_of_leaf), spine)

    findings: tuple[Finding, ...] = ()
    """None come of counting here: those of reading are with what was read."""

    def total(self) -> int:
        """Return the number of records."""
        return self._table.total()

    def tag(self, key: RunKey) -> str:
        """Return the keyed tag of the input."""
        return input_tag(key, self._table)

    def answers(self, group: QueryGroup, level: int) -> Ints:
        """Return the exact answers of a query group at a geolevel, int64 (g, m)."""
        return exact_answers(group, self.at(level))

    def rows(self, low: int, high: int) -> Histogram:
        """Return leaves ``low:high`` of the spine."""
        return self._table.take(self._spine.leaf_order[low:high])

    def at(self, level: int) -> Histogram:
        """Return the counts of all geounits of a geolevel; those above the leaves are summed up once."""
        last = len(self._spine.levels) - 1
        if level == last:
            return self.rows(0, len(self._spine.leaf))
        if level not in self._sums:
            below = min((known for known in self._sums if known > level), default=last)
            starts = self._spine.starts_at(level, below)
            self._sums[level] = (
                self._sum_of_leaves(starts) if below == last else self._sums[below].aggregate(starts)
            )
        return self._sums[level]

    def slice(self, level: int, start: int, stop: int) -> Histogram:
        """Return the counts of geounits ``start:stop`` of a geolevel."""
        if level == len(self._spine.levels) - 1:
            return self.rows(start, stop)
        few = len(self._spine.levels[level]) * self._table.size <= KEPT
        if few or level in self._sums:
            return self.at(level).slice(start, stop)
        starts = self._spine.leaf_starts(level)[start : stop + 1]
        if int(starts[-1] - starts[0]) > LEAVES_AT_ONCE:
            return self.at(level).slice(start, stop)
        return self.rows(int(starts[0]), int(starts[-1])).aggregate(starts - starts[0])

    def _sum_of_leaves(self, starts: Ints) -> Histogram:
        """Sum leaves into the geounits that they lie in, a run of leaves at a time."""
        parts = list(self._partial_sums(starts))
        return Histogram.from_entries(
            *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)),
            shape=(len(starts) - 1, self._table.size),
        )

    def _partial_sums(self, starts: Ints) -> Iterator[tuple[Ints, npt.NDArray[np.int32], Ints]]:
        leaves = int(starts[-1])
        for low in range(0, leaves, LEAVES_AT_ONCE):
            high = min(low + LEAVES_AT_ONCE, leaves)
            first = int(np.searchsorted(starts, low, side="right")) - 1
            last = int(np.searchsorted(starts, high, side="left"))
            cuts = np.clip(starts[first : last + 1], low, high) - low
            sums = self.rows(low, high).aggregate(cuts)
            yield np.repeat(np.arange(first, last), np.diff(sums.indptr)), sums.cells, sums.counts
