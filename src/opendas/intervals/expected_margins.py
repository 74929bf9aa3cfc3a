"""Expected errors of a product of many cells: each query group on its own margin, before any noise is drawn.

The blocks of :mod:`opendas.gls.blocks` are too many for a million cells whose recodes cross. Here a question
about some rows is answered on the margin that tells them apart, from the sums of all measurements, as
``opendas interval`` does from noisy answers (:mod:`opendas.intervals.margins`): one small matrix a geounit.

Axes: ``q`` query groups, ``c`` possible cells of the margin, ``m`` rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Floats
from opendas.geography.frame import Frame
from opendas.gls.blocks import Algebra, Blocks, RowClasses
from opendas.gls.expected_error import ExpectedError, ExpectedRow, expected_rows
from opendas.intervals.margins import Margin, joined
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

MOST_CELLS = 1 << 16
"""Products of more cells are answered margin by margin."""
MOST_ROWS = 100
"""Query groups of more rows have no expected errors then: a kind of geounit takes a matrix of that size."""

_COPIES = 8
"""Matrices of each kind of geounit that stand in memory at a time, at the peak."""
_PACE = 1.5
"""Seconds for each second in which as many matrices are inverted and decomposed once."""
_TIMED = 20
"""Matrices that are timed for a forecast."""


@dataclass(frozen=True, slots=True, eq=False)
class _MarginAlgebra(Algebra):
    """One block, with a coordinate for each possible cell of a margin."""

    margin: Margin

    def rows(self, query: QueryGroup) -> RowClasses:
        """Describe the rows of a query group that the margin answers; those of impossible cells are zero."""
        found = self.margin.query(query)
        held = _indicators(found.query, self.margin)
        rows = np.where(found.row[:, None] < 0, 0.0, held[found.row])
        return RowClasses(np.arange(len(rows)), ((rows[:, :, None] * rows[:, None, :])[:, None],))


def _indicators(query: QueryGroup, margin: Margin) -> Floats:
    """Return which possible cells of a margin each row of a query group of it counts, float64 (m, c)."""
    row = query.row_of_cell[np.flatnonzero(margin.product.possible)]
    return np.asarray(row[None, :] == np.arange(query.size)[:, None], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class MarginCost:
    """What the expected errors of one query group take."""

    seconds: float  # on this machine, about
    megabytes: float


def margin_cost(expected: ExpectedError, rows: int) -> MarginCost:
    """Forecast the expected errors of a query group of so many rows, from those of another on the same spine.

    Time and memory follow the kinds of geounits, with the matrix of a margin each.
    """
    stack = np.eye(rows)[None] + np.full((_TIMED, rows, rows), 0.5)
    began = time.perf_counter()
    np.linalg.inv(stack)
    np.linalg.eigh(stack)
    one = (time.perf_counter() - began) / _TIMED
    return MarginCost(_PACE * one * _kinds(expected), margin_megabytes(expected, rows))


def margin_megabytes(expected: ExpectedError, rows: int) -> float:
    """Return the memory of :func:`margin_cost` alone, which needs no timing."""
    return _COPIES * _kinds(expected) * rows**2 * 8 / 2**20


def _kinds(expected: ExpectedError) -> int:
    return sum(len(level.parent) for level in expected.tree.levels)


def margin_algebra(product: Product, queries: Iterable[QueryGroup], question: str) -> Algebra:
    """Return the margin that tells the rows of a question apart, as a block under some query groups."""
    workload, asked = product.workload, product.workload.group(question)
    groups = [np.zeros(length, dtype=np.int64) for length in product.schema.shape]
    for factor in asked.factors:
        levels = workload.group_of_level(factor)
        groups[workload.positions[factor]] = joined(levels, levels)  # in the order of their first levels
    margin = Margin(product, tuple(groups))
    queries = tuple(queries)
    size = int(np.count_nonzero(margin.product.possible))
    matrices = np.empty((len(queries), 1, size, size))
    for number, query in enumerate(queries):
        summed = margin.query(query).query
        held = _indicators(summed, margin)
        draws = np.ones(summed.size) if summed.draws is None else summed.draws
        matrices[number, 0] = held.T @ (held / draws[:, None])
    start = np.zeros(1, dtype=np.int64)
    block = Blocks(matrices, np.arange(size)[None], start)
    return _MarginAlgebra((), (), tuple(query.name for query in queries), (block,), margin)


def expected_on_margin(plan: MeasurementPlan, question: str) -> ExpectedError:
    """Prepare the expected errors of one query group, from what all others say about the margin of its rows.

    Of `question` alone, and of those that are sums of its rows.
    """
    product = plan.product
    queries = {planned.query.name: planned.query for level in plan.levels for planned in level.queries}
    held = map(product.workload.group, product.invariant_levels(plan.spine))
    queries |= {query.name: query for query in held}
    return ExpectedError.build(plan, algebra=margin_algebra(product, queries.values(), question))


def expected_total(plan: MeasurementPlan) -> ExpectedError:
    """Prepare the expected errors of the total, on its margin where there are many cells."""
    if plan.product.schema.size > MOST_CELLS:
        return expected_on_margin(plan, "total")
    return ExpectedError.build(plan)


def margin_rows(plan: MeasurementPlan, frame: Frame, queries: Iterable[str]) -> tuple[ExpectedRow, ...]:
    """Summarise query groups per official geolevel, each on the margin of its rows."""
    found = (
        expected_rows(expected_on_margin(plan, name), frame, (name,), entities=False) for name in queries
    )
    return tuple(row for rows in found for row in rows)
