"""Take measurements: exact answers plus keyed noise.

A lazily drawn answer equals that coordinate of the full measurement bit for bit, because marginals sum over
all cells and the noise of an address never changes. Which coordinates are read depends only on earlier noisy
answers, invariants and public data. The ledger charges the full measurement. See docs/proofs/noise.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.measurement.family import FamilyMeasurement, QueryAnswers, UsedAnswers
from opendas.measurement.kernels import add_drawn_rows, compact_rows, sum_rows, sum_touched, touched_pairs
from opendas.measurement.plan import MeasurementPlan
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.mechanisms import AnyNoise, StatedNoise
from opendas.sampling.noise import NoiseSource
from opendas.schema.histogram import Histogram

PAIRS = 1 << 18
"""Approximate number of (geounit, cell) pairs, over several families, that are read at once."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredQuery:
    """One query group with its noise, ready to draw."""

    name: str
    address: int  # number of the query group in noise addresses
    size: int  # number of rows
    row_of_cell: npt.NDArray[np.int32]  # (n,)
    noise: tuple[AnyNoise, ...]  # one for each distinct budget multiple of the level
    # Variance of the first noise; cached, because computing it takes longer than a small family.
    variance: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", self.noise[0].variance)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredLevel:
    """The queries of one geolevel and the budget multiples of its geounits."""

    geolevel: str
    level: int  # number of the geolevel in noise addresses, 0 at the top
    queries: tuple[MeasuredQuery, ...]
    multiples: tuple[Fraction, ...]  # distinct budget multiples > 0, in ascending order
    # (g,): index into `multiples` of each geounit, -1 without budget; None if all have the first.
    which: Ints | None

    def budgets(self, first: int, geounits: int) -> Ints:
        """Return the index into `multiples` of consecutive geounits, int64 (g,); -1 without budget."""
        if self.which is None:
            return np.zeros(geounits, dtype=np.int64)
        return self.which[first : first + geounits].astype(np.int64)

    def precision(self, first: int, children: int) -> Floats:
        """Return the budget multiples of consecutive geounits relative to the least one, float64 (C,)."""
        if self.which is None:
            return np.ones(children)
        base = self.multiples[0]
        ratios = np.array([float(multiple / base) for multiple in self.multiples] + [1.0])
        return np.asarray(ratios[self.which[first : first + children]])


def measured_levels(plan: MeasurementPlan) -> tuple[MeasuredLevel, ...]:
    """Resolve the noise of every geolevel of a plan."""
    levels = []
    for number, level in enumerate(plan.levels):
        shares = plan.spine.shares[number]
        multiples: tuple[Fraction, ...] = (Fraction(1),)
        which = None
        if shares is not None:
            positive = tuple(multiple for multiple in shares.multiples if multiple > 0)
            which = shares.which - (len(shares.multiples) - len(positive))  # zero, if present, comes first
            multiples = positive or multiples  # nothing is drawn if every geounit was bypassed
        queries = tuple(
            MeasuredQuery(
                planned.query.name,
                planned.address,
                planned.query.size,
                planned.query.row_of_cell,
                tuple(plan.distribution(number, planned, multiple) for multiple in multiples),
            )
            for planned in level.queries
        )
        levels.append(MeasuredLevel(level.geolevel, number, queries, multiples, which))
    return tuple(levels)


class NoisyMeasurements:
    """Measurements of part of a spine, through which a run sees confidential counts.

    Public methods return noisy answers only, never exact counts.

    - `levels`: all geolevels of the run.
    - `tables`, level number -> Histogram: exact counts of consecutive geounits of each level needed.
    - `first`, level number -> int: index, in the whole spine, of each table's first geounit.
    """

    __slots__ = ("_first", "_levels", "_noise", "_rows", "_samplers", "_tables")

    def __init__(
        self,
        levels: Sequence[MeasuredLevel],
        tables: dict[int, Histogram],
        first: dict[int, int],
        noise: NoiseSource,
    ) -> None:
        self._levels = levels
        self._tables = tables
        self._first = first
        self._noise = noise
        self._samplers: dict[tuple[MeasuredQuery, int], SamplerTable] = {}
        self._rows: dict[tuple[int, bytes], list[Ints]] = {}

    def _sampler(self, query: MeasuredQuery, multiple: int) -> SamplerTable:
        # Keyed by object, because hashing exact fractions takes longer than a small draw; never by address,
        # because a wrong address would then also draw with a wrong scale.
        if (query, multiple) not in self._samplers:
            law = query.noise[multiple]
            assert not isinstance(law, StatedNoise)  # AnsweredMeasurements draws those
            self._samplers[query, multiple] = SamplerTable.build(law)
        return self._samplers[query, multiple]

    def family(
        self, level: int, first: int, children: int, support: npt.NDArray[np.int32]
    ) -> FamilyMeasurement:
        """Return the noisy answers that touch a support (see :class:`MeasurementSource`)."""
        measured = self._levels[level]
        touched = [compact_rows(query.row_of_cell, support, query.size) for query in measured.queries]
        rows = [found[0] for found in touched]
        values = self._noisy(level, first, children, rows, [found[2] for found in touched])
        answers = tuple(
            QueryAnswers(query.name, found[0], found[1], value, query.variance)
            for query, found, value in zip(measured.queries, touched, values, strict=True)
        )
        return FamilyMeasurement(answers, measured.precision(first, children))

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers, int64 (geounits, m), of each measured query group of `level`.

        Answers of geounits without their own budget are zero without noise, and the caller must drop them.
        """
        rows = [np.arange(query.size, dtype=np.int32) for query in self._levels[level].queries]
        return self._noisy(level, first, geounits, rows, rows)

    def sums(
        self,
        level: int,
        first: int,
        cells: Bools,
        which: Ints,
        group: Ints,
    ) -> list[Ints]:
        """Return sums of the noisy answers that touch some cells (see :class:`PartialSource`)."""
        measured = self._levels[level]
        units = np.arange(first, first + len(which), dtype=np.int64)
        groups = int(group.max(initial=-1)) + 1
        budgets = measured.budgets(first, len(which))
        values = [np.zeros((groups, query.size), dtype=np.int64) for query in measured.queries]
        drawn, rows = self._touched(level, cells)
        requests = []
        for multiple in np.unique(budgets[budgets >= 0]).tolist():
            for u in range(len(cells)):
                members = np.flatnonzero((budgets == multiple) & (which == u))
                if len(members):
                    mine, to = units[members], group[members]
                    requests += [
                        (self._sampler(query, multiple), mine, query.address, some, to, value)
                        for query, some, value in zip(measured.queries, rows[u], values, strict=True)
                    ]
        self._noise.add_sums(measured.level, requests)
        # A geounit without budget has no measurement, so its exact answers must not be added.
        asked = np.where(budgets < 0, len(cells), which)
        table, start = self._tables[level], first - self._first[level]
        for query, touched, value in zip(measured.queries, drawn, values, strict=True):
            add_drawn_rows(
                table.indptr,
                table.cells,
                table.counts,
                start,
                query.row_of_cell,
                touched,
                asked,
                group,
                value,
            )
        return values

    def used(
        self, level: int, families: Sequence[tuple[int, int, npt.NDArray[np.int32]]]
    ) -> list[UsedAnswers]:
        """Return the noisy answers that touch the supports of many families (see :class:`PartialSource`)."""
        found: list[UsedAnswers] = []
        sizes = np.cumsum([children * len(support) for _, children, support in families])
        cuts = np.searchsorted(sizes, np.arange(0, sizes[-1:].sum() + PAIRS, PAIRS)).tolist()
        for low, high in itertools.pairwise([*cuts, len(families)]):
            found += self._used(level, families[low:high]) if low < high else []
        return found

    def _used(
        self, level: int, families: Sequence[tuple[int, int, npt.NDArray[np.int32]]]
    ) -> list[UsedAnswers]:
        measured, table, start = self._levels[level], self._tables[level], self._first[level]
        first, children = (np.array([each[i] for each in families], dtype=np.int64) for i in (0, 1))
        support = np.concatenate([each[2] for each in families])
        starts = np.cumsum([0, *(len(each[2]) for each in families)])
        budget = measured.budgets(start, len(table.indptr) - 1)
        found = []
        for query in measured.queries:
            row_of_cell, size = query.row_of_cell, query.size
            rows, ends, units, cells = touched_pairs(row_of_cell, size, support, starts, first, children)
            values = self._pairs(query, measured.level, budget[units - start], units, cells)
            exact = (table.indptr, table.cells, table.counts, start, row_of_cell, size)
            # A geounit without budget has no measurement, so its exact sums must not be added.
            sum_touched(*exact, rows, ends, first, children, budget >= 0, values)
            found.append((rows, np.append(0, ends), values))
        offsets = [np.append(0, np.cumsum(children * np.diff(ends))) for _, ends, _ in found]
        return [
            UsedAnswers(
                level,
                low,
                count,
                query.name,
                rows[ends[f] : ends[f + 1]],
                values[at[f] : at[f + 1]].reshape(count, -1),
            )
            for f, (low, count, _) in enumerate(families)
            for query, (rows, ends, values), at in zip(measured.queries, found, offsets, strict=True)
        ]

    def _pairs(
        self,
        query: MeasuredQuery,
        level: int,
        budget: Ints,
        units: Ints,
        cells: Ints,
    ) -> Ints:
        """Return the noise of (geounit, row) pairs, each with its budget; zero without budget."""
        values = np.zeros(len(units), dtype=np.int64)
        for multiple in np.unique(budget[budget >= 0]).tolist():
            some = np.flatnonzero(budget == multiple)
            request = (self._sampler(query, multiple), units[some], query.address, cells[some])
            values[some] = self._noise.draw_pairs(level, [request])[0]
        return values

    def _touched(self, level: int, cells: Bools) -> tuple[list[Bools], list[list[Ints]]]:
        """Return the rows of each query group that touch sets of cells.

        As masks, bool (u + 1, m) of each query group with an empty last set, and as row numbers of each set.
        """
        queries = self._levels[level].queries
        masks = [np.zeros((len(cells) + 1, query.size), dtype=np.bool_) for query in queries]
        numbers = []
        for u, some in enumerate(cells):
            of = self._rows.get((level, some.tobytes()))
            if of is None:  # neighbouring families share a few sets
                for mask, query in zip(masks, queries, strict=True):
                    mask[u, query.row_of_cell[some]] = True
                of = [np.flatnonzero(mask[u]) for mask in masks]
                self._rows[level, some.tobytes()] = of
            else:
                for mask, rows in zip(masks, of, strict=True):
                    mask[u, rows] = True
            numbers.append(of)
        return masks, numbers

    def _noisy(
        self,
        level: int,
        first: int,
        geounits: int,
        rows: Sequence[npt.NDArray[np.int32]],
        positions: Sequence[npt.NDArray[np.int32]],
    ) -> list[Ints]:
        measured = self._levels[level]
        units = np.arange(first, first + geounits, dtype=np.int64)
        if measured.which is None:
            groups = [(0, units)]
        else:
            which = measured.which[first : first + geounits]
            groups = [(int(k), units[which == k]) for k in np.unique(which[which >= 0])]
        values: list[Ints] = []
        if len(groups) != 1 or len(groups[0][1]) != geounits:
            values = [np.zeros((geounits, len(r)), dtype=np.int64) for r in rows]
        for multiple, members in groups:
            requests = [
                (self._sampler(query, multiple), members, query.address, r)
                for query, r in zip(measured.queries, rows, strict=True)
            ]
            drawn = self._noise.draw_many(measured.level, requests)
            if not values:  # all geounits have one share, so the draw is already in place
                values = drawn
                continue
            for value, noise in zip(values, drawn, strict=True):
                value[members - first] = noise
        table = self._tables[level]
        start = first - self._first[level]
        for query, position, value in zip(measured.queries, positions, values, strict=True):
            if measured.which is not None and len(groups) == 0:
                continue
            sum_rows(table.indptr, table.cells, table.counts, start, query.row_of_cell, position, value)
        if measured.which is not None:
            # A geounit without budget has no measurement, so its exact sums must be zeroed.
            for value in values:
                value[measured.which[first : first + geounits] < 0] = 0
        return values
