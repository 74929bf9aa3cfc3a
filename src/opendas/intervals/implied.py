"""Limits of a true count that follow from public facts: zero, bounds and exact totals.

The truth satisfies its bounds, exact answers and structural zeros. So an interval cut off at the limits that
they imply covers it exactly as often as before.

Axes: ``a`` areas, ``r`` rows of a query group, ``t`` sums asked for, ``n`` cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.constraints.table import ConstraintTable, LevelConstraints
from opendas.geography.spine import Spine
from opendas.schema.product import Product

UNBOUNDED = 1 << 60
"""Where nothing bounds a count."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Limits on rows of one query group; no two rows share a cell."""

    cells: Bools  # (r, n)
    lower: Ints  # (a, r)
    upper: Ints  # (a, r)


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """Limits on counts of some areas."""

    possible: Bools  # (n,): cells that are no structural zero
    rows: tuple[_Rows, ...]
    totals: Ints  # (a,): a total that the area's own does not exceed; :data:`UNBOUNDED` where none is known
    exact: Bools  # (a,): whether it is the area's own

    def of(self, members: Bools) -> tuple[Ints, Ints]:
        """Return the least and the largest value of sums over cells.

        - `members` (t, n).
        - Returns `lower`, `upper` (a, t): `upper` is :data:`UNBOUNDED` or more where nothing bounds a sum.
        """
        inside = members & self.possible
        lower, upper = self._direct(inside)
        if self.exact.any():
            others_lower, others_upper = self._direct(self.possible & ~members)
            totals = self.totals[:, None]
            known = self.exact[:, None]
            upper = np.where(known, np.minimum(upper, totals - others_lower), upper)
            lower = np.where(known, np.maximum(lower, totals - others_upper), lower)
        upper = np.minimum(upper, self.totals[:, None])
        upper[:, ~inside.any(axis=1)] = 0
        lower = np.maximum(lower, 0)
        return lower, np.maximum(lower, upper)

    def _direct(self, inside: Bools) -> tuple[Ints, Ints]:
        areas, sums = len(self.totals), len(inside)
        lower = np.zeros((areas, sums), dtype=np.int64)
        upper = np.full((areas, sums), UNBOUNDED, dtype=np.int64)
        counted = inside.astype(np.float32)
        for rows in self.rows:
            cells = (rows.cells & self.possible).astype(np.float32)
            common = counted @ cells.T
            # Sums of integers in double precision: bounds lie far below 2**53, or are no bounds at all.
            held = ((common == cells.sum(axis=1)) & (common > 0)).astype(np.float64)
            lower = np.maximum(lower, (rows.lower @ held.T).astype(np.int64))
            covered = common.sum(axis=1) == inside.sum(axis=1)
            touched = (common > 0).astype(np.float64)
            most = np.minimum(rows.upper, UNBOUNDED) @ touched.T
            most = np.minimum(most, UNBOUNDED).astype(np.int64)
            upper = np.where(covered, np.minimum(upper, most), upper)
        return lower, upper


def geounit_limits(
    product: Product, spine: Spine, table: ConstraintTable, level: int, geounits: Ints
) -> Limits:
    """Return what is implied about geounits of a geolevel of the spine.

    `geounits` (a,).
    """
    here = table.levels[level]
    rows = _bound_rows(product, table, here.lower[geounits], here.upper[geounits])
    rows += [
        _Rows(held.query.members, held.answers[geounits], held.answers[geounits]) for held in here.invariants
    ]
    totals, exact = _totals(here, geounits)
    above = geounits
    for number in range(level, 0, -1):
        above = spine.levels[number].parent[above]
        totals = np.minimum(totals, _totals(table.levels[number - 1], above)[0])
    return Limits(table.possible, tuple(rows), totals, exact)


def area_limits(
    product: Product,
    spine: Spine,
    table: ConstraintTable,
    members: tuple[Ints, Ints],
    areas: int,
) -> Limits:
    """Return what is implied about sets of leaves.

    `members` (int64 (p,), int64 (p,)): area and leaf (position on the spine) of each membership.
    """
    which, leaf = members
    here = table.levels[-1]

    def summed(values: Ints) -> Ints:
        found = np.zeros((areas, values.shape[1]), dtype=np.int64)
        np.add.at(found, which, np.minimum(values, UNBOUNDED)[leaf])
        return found

    rows = _bound_rows(product, table, summed(here.lower), summed(here.upper))
    for held in here.invariants:
        answers = summed(held.answers)
        rows.append(_Rows(held.query.members, answers, answers))
    totals = np.full(areas, UNBOUNDED, dtype=np.int64)
    exact = np.zeros(areas, dtype=bool)
    if any(held.query.size == 1 for held in here.invariants):
        held = next(held for held in here.invariants if held.query.size == 1)
        totals, exact = summed(held.answers)[:, 0], np.ones(areas, dtype=bool)
    totals = np.minimum(totals, _above(spine, table, which, leaf, areas))
    return Limits(table.possible, tuple(rows), totals, exact)


def _above(spine: Spine, table: ConstraintTable, which: Ints, leaf: Ints, areas: int) -> Ints:
    """Return the least sum of totals of the geounits that an area touches, over geolevels, int64 (a,)."""
    found = np.full(areas, UNBOUNDED, dtype=np.int64)
    above = leaf
    for number in range(len(spine.levels) - 1, -1, -1):
        totals = _totals(table.levels[number], above)[0]
        joint = table.levels[number].joint
        unit = above if joint is None else joint.group[above].astype(np.int64)
        pairs, first = np.unique(np.column_stack([which, unit]), axis=0, return_index=True)
        known = np.ones(areas, dtype=bool)
        known[pairs[totals[first] >= UNBOUNDED, 0]] = False
        sums = np.zeros(areas, dtype=np.int64)
        np.add.at(sums, pairs[:, 0], np.where(totals[first] >= UNBOUNDED, 0, totals[first]))
        found = np.where(known, np.minimum(found, sums), found)
        above = spine.levels[number].parent[above]
    return found


def _totals(here: LevelConstraints, geounits: Ints) -> tuple[Ints, Bools]:
    """Return a total that geounits do not exceed, and whether it is their own."""
    for held in here.invariants:
        if held.query.size == 1:
            return held.answers[geounits, 0], np.ones(len(geounits), dtype=bool)
    none = np.zeros(len(geounits), dtype=bool)
    if here.joint is not None:
        return here.joint.totals[here.joint.group[geounits]], none
    return np.full(len(geounits), UNBOUNDED, dtype=np.int64), none


def _bound_rows(product: Product, table: ConstraintTable, lower: Ints, upper: Ints) -> list[_Rows]:
    """Combine the bounds of each query group; no two rows share a cell."""
    queries = [product.workload.canonical(bound.query) for bound in product.bounds]
    found = []
    for query in dict.fromkeys(queries):
        chosen = _distinct(np.flatnonzero([name == query for name in queries]), table.bound_cells)
        found.append(_Rows(table.bound_cells[chosen], lower[:, chosen], upper[:, chosen]))
    return found


def _distinct(chosen: npt.NDArray[np.intp], cells: Bools) -> list[int]:
    """Return those bounds whose cells no earlier one counts: two bounds may be on one row."""
    kept: list[int] = []
    for number in chosen.tolist():
        if not any(bool((cells[number] & cells[other]).any()) for other in kept):
            kept.append(number)
    return kept


def cut(
    lower: Sequence[float] | Floats, upper: Sequence[float] | Floats, least: Ints, most: Ints
) -> tuple[Floats, Floats]:
    """Cut intervals to whole numbers between implied limits; none becomes empty.

    The true count is a whole number within the limits, so that the whole numbers of an interval that lie
    within them cover it exactly when the interval does. Where there is none, the interval becomes the one
    possible value nearest to its middle, which can only cover more.

    - `lower`, `upper`: ends of intervals, possibly infinite.
    - `least`, `most`, int64, same shape: implied limits; `most` of :data:`UNBOUNDED` or more is none.
    - Returns `lower`, `upper`: whole numbers; `upper` infinite where nothing bounds it.
    """
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    top = np.where(most >= UNBOUNDED, np.inf, most.astype(np.float64))
    # An end that is a whole number but for rounding errors is that number.
    slack = 1e-7 + 1e-12 * np.abs(np.where(np.isfinite(high), high, 0.0))
    inner_low = np.maximum(np.ceil(low - slack), least)
    inner_high = np.minimum(np.floor(high + slack), top)
    finite = np.isfinite(low) & np.isfinite(high)
    middle = np.where(finite, 0.5 * (np.where(finite, low, 0.0) + np.where(finite, high, 0.0)), least)
    nearest = np.clip(np.rint(middle), least, top)
    empty = inner_low > inner_high
    return np.where(empty, nearest, inner_low), np.where(empty, nearest, inner_high)
