"""Constraints as numbers: bounds, linear constraints and invariants of every geounit of a spine.

Bounds come from public unit counts and are summed up the spine, so that what holds for children can hold
for their parent. Invariant answers hold where they are declared and, as sums, above. Nothing else enters
un-noised; in particular the bounds of a part of a state use no total of that part.

Axes: ``g`` geounits of a level, ``B`` bounds, ``n`` cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Ints, refines
from opendas.errors import DataError
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.schema.declarations import Bound, TiedBound
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

_MOST_BOUND = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class InvariantAnswers:
    """The exact answers of one invariant at one geolevel."""

    name: str  # for instance ``"total@state"``
    query: QueryGroup
    answers: Ints  # (g, m)


@dataclass(frozen=True, slots=True, eq=False)
class JointTotal:
    """An invariant total that several geounits hold together: the parts of a divided geounit."""

    name: str  # for instance ``"total@state"``
    # (g,): number of the divided geounit that each geounit is a part of, not decreasing.
    group: npt.NDArray[np.int32]
    totals: Ints  # (J,): records in all parts of each divided geounit

    def slice(self, start: int, stop: int) -> JointTotal:
        """Return what geounits ``start:stop`` hold together; a divided geounit must not be cut."""
        group = self.group[start:stop]
        if len(group) and (
            (start and self.group[start - 1] == group[0])
            or (stop < len(self.group) and self.group[stop] == group[-1])
        ):
            raise ValueError(f"parts of one geounit with the joint {self.name} are apart")
        first, last = (int(group[0]), int(group[-1]) + 1) if len(group) else (0, 0)
        return JointTotal(self.name, (group - first).astype(np.int32), self.totals[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class PublicCounts:
    """Public counts from elsewhere: of a release that this one agrees with, or a prior table."""

    name: str  # of the earlier product, or of the table, for messages
    query: QueryGroup  # of this product; its rows are what is counted there
    starts: Ints  # (g + 1,): geounit ``i`` has entries ``starts[i]:starts[i + 1]``
    rows: npt.NDArray[np.int32]  # (entries,): rows of `query`, ascending for each geounit
    counts: Ints  # (entries,): positive. Public.

    @property
    def geounits(self) -> Ints:
        """Geounit of each entry."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def slice(self, start: int, stop: int) -> PublicCounts:
        """Return the counts of geounits ``start:stop``."""
        low, high = int(self.starts[start]), int(self.starts[stop])
        return replace(
            self,
            starts=self.starts[start : stop + 1] - low,
            rows=self.rows[low:high],
            counts=self.counts[low:high],
        )

    def on(self, rows: npt.NDArray[np.int32]) -> Ints:
        """Return the counts of some rows, ascending, as a dense array, int64 (g, r)."""
        found = np.zeros((len(self.starts) - 1, len(rows)), dtype=np.int64)
        if len(rows):
            at = np.minimum(np.searchsorted(rows, self.rows), len(rows) - 1)
            inside = rows[at] == self.rows
            found[self.geounits[inside], at[inside]] = self.counts[inside]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class LinearSums:
    """Linear constraints ``coefficients @ x <= at_most`` with whole numbers.

    Notes
    -----
    Abowd et al. (2022), equation (6.2).
    """

    names: tuple[str, ...]  # length M
    coefficients: Ints  # (M, n): of each cell
    at_most: Ints  # (g, M): of each geounit

    def on(self, cells: npt.NDArray[np.integer]) -> LinearSums:
        """Return the same for tables of some cells."""
        return replace(self, coefficients=np.ascontiguousarray(self.coefficients[:, cells]))

    def excess(self, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return by how much tables, (g, n), go beyond each constraint, (g, M); not positive where kept."""
        return np.asarray(counts @ self.coefficients.T - self.at_most)


@dataclass(frozen=True, slots=True, eq=False)
class LevelConstraints:
    """Constraints of the geounits of one geolevel."""

    # lower, upper (g, B): bounds on the number of records in the cells of each bound.
    lower: Ints
    upper: Ints
    invariants: tuple[InvariantAnswers, ...]  # those that hold at this geolevel
    joint: JointTotal | None = None  # a total that holds for parts together
    tied: PublicCounts | None = None  # counts of an earlier release, which hold here
    prior: PublicCounts | None = None  # Counts that a posterior starts from. They constrain nothing.
    linear: LinearSums | None = None  # linear constraints with coefficients

    def slice(self, start: int, stop: int) -> LevelConstraints:
        """Return the constraints of geounits ``start:stop``."""
        return LevelConstraints(
            self.lower[start:stop],
            self.upper[start:stop],
            tuple(InvariantAnswers(i.name, i.query, i.answers[start:stop]) for i in self.invariants),
            None if self.joint is None else self.joint.slice(start, stop),
            None if self.tied is None else self.tied.slice(start, stop),
            None if self.prior is None else self.prior.slice(start, stop),
            None if self.linear is None else replace(self.linear, at_most=self.linear.at_most[start:stop]),
        )

    def without_tied(self, possible: Bools) -> LevelConstraints:
        """Return the constraints without what a tie determines, totals among them: it was compared with them.

        `possible` (n,): cells that are no structural zero.
        """
        if self.tied is None:
            return self
        rows = self.tied.query.row_of_cell[possible]
        kept = tuple(
            held
            for held in self.invariants
            if held.query.size > 1 and not refines(rows, held.query.row_of_cell[possible])
        )
        return replace(self, invariants=kept, joint=None)


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintTable:
    """Constraints of a whole spine."""

    bound_names: tuple[str, ...]  # length B
    bound_cells: Bools  # (B, n): cells that each bound counts
    possible: Bools  # (n,): cells that are no structural zero
    levels: tuple[LevelConstraints, ...]  # one per geolevel, top first

    def with_prior(self, name: str, query: QueryGroup, counts: Histogram) -> ConstraintTable:
        """Return the constraints with a prior table at the leaves.

        - `name`: of the table.
        - `counts`: over its rows, one row per leaf in the spine's order. Public.
        """
        prior = PublicCounts(name, query, counts.indptr, counts.cells, counts.counts)
        return replace(self, levels=(*self.levels[:-1], replace(self.levels[-1], prior=prior)))

    def tied_to(self, name: str, query: QueryGroup, counts: Histogram, spine: Spine) -> ConstraintTable:
        """Return the constraints with the counts of an earlier release, at every geolevel.

        - `name`: of the earlier product.
        - `query`: whose rows are that product's cells.
        - `counts`: over these rows, one row per leaf in the spine's order. Public.
        """
        possible = np.zeros(query.size, dtype=bool)
        possible[query.row_of_cell[self.possible]] = True
        impossible = ~possible[counts.cells]
        if impossible.any():
            row = int(counts.cells[impossible][0])
            raise DataError(
                f"the tied release of {name} has records with {query.row_label(row)}, which structural zeros "
                "of this product forbid."
            )
        levels = []
        for number in range(len(spine.levels)):
            sums = counts if number + 1 == len(spine.levels) else counts.aggregate(spine.leaf_starts(number))
            tied = PublicCounts(name, query, sums.indptr, sums.cells, sums.counts)
            held = self.levels[number]
            for invariant in held.invariants:
                _check_tied(tied, invariant, self.possible, spine.levels[number].geocodes)
            if held.joint is not None:
                together = np.zeros_like(held.joint.totals)
                np.add.at(together, held.joint.group, sums.row_totals())
                if not np.array_equal(together, held.joint.totals):
                    raise DataError(_UNLIKE.format(name, held.joint.name, spine.names[number]))
            levels.append(replace(held, tied=tied))
        return replace(self, levels=tuple(levels))


_UNLIKE = (
    "the tied release of {} has other counts than the invariant {} in {!r}, and no counts agree with both. "
    "Tie to a release of the same data set, or drop the invariant with drop_invariants in [run]."
)


def _check_tied(tied: PublicCounts, invariant: InvariantAnswers, possible: Bools, geocodes: Codes) -> None:
    """Compare tied counts with an invariant that they determine."""
    rows, coarser = tied.query.row_of_cell[possible], invariant.query.row_of_cell[possible]
    if not refines(rows, coarser):
        return
    coarse = np.full(tied.query.size, -1, dtype=np.int64)
    coarse[rows] = coarser
    answers = np.zeros_like(invariant.answers)
    np.add.at(answers, (tied.geounits, coarse[tied.rows]), tied.counts)
    unlike = np.flatnonzero((answers != invariant.answers).any(axis=1))
    if len(unlike):
        where = bytes(geocodes[unlike[0]]).decode()
        raise DataError(_UNLIKE.format(tied.name, invariant.name, where))


def bounds_of_leaves(bounds: Sequence[Bound | TiedBound], frame: Frame, spine: Spine) -> tuple[Ints, Ints]:
    """Return the least and the most records that bounds allow at each leaf, int64 (L, bounds), by the spine.

    Raises `DataError` if the frame lacks a column of units, or holds a count that cannot be one.
    """
    shape = (len(spine.leaf), len(bounds))
    lower = np.zeros(shape, dtype=np.int64)
    upper = np.zeros(shape, dtype=np.int64)
    for k, bound in enumerate(bounds):
        units = _units(frame, spine, bound.column, f"bound {bound.name!r}", bound.upper)
        lower[:, k] = bound.lower * units
        upper[:, k] = bound.upper * units
    return lower, upper


def _units(frame: Frame, spine: Spine, column: str, what: str, most: int) -> Ints:
    """Return the public unit counts of the leaves that a constraint multiplies by at most `most`."""
    if column not in frame.units:
        raise DataError(
            f"{what} needs the unit column {column!r}; the frame has "
            f"{', '.join(frame.units) or 'none'}. Give it in the frame file or in [input] units."
        )
    units = frame.units[column][spine.leaf_order]
    if units.size and units.min() < 0:
        raise DataError(f"unit column {column!r} holds a negative count.")
    if units.size and int(units.max()) * max(1, most) * len(units) >= _MOST_BOUND:
        raise DataError(
            f"unit column {column!r} holds a count so large that {what} does not fit into a "
            "64-bit integer. Check the frame."
        )
    return units


def linear_sums(product: Product, frame: Frame, spine: Spine) -> tuple[LinearSums | None, ...]:
    """Return the linear constraints of a product at every geolevel, top first; what leaves may, adds up."""
    if not product.linear:
        return (None,) * len(spine.levels)
    names = tuple(one.name for one in product.linear)
    coefficients = np.array([product.coefficients(one) for one in product.linear])
    at_most = np.zeros((len(spine.leaf), len(names)), dtype=np.int64)
    for k, one in enumerate(product.linear):
        what = f"linear constraint {one.name!r}"
        units = _units(frame, spine, one.column, what, abs(one.at_most)) if one.column else 1
        at_most[:, k] = one.at_most * units
    levels = [LinearSums(names, coefficients, at_most)]
    for number in reversed(range(len(spine.levels) - 1)):
        at_most = np.add.reduceat(at_most, spine.child_starts(number)[:-1], axis=0)
        levels.insert(0, LinearSums(names, coefficients, at_most))
    return tuple(levels)


def bound_cells(product: Product) -> Bools:
    """Return which cells of the schema each bound of a product counts, bool (bounds, n)."""
    cells = np.zeros((len(product.bounds), product.schema.size), dtype=bool)
    for k, bound in enumerate(product.bounds):
        cells[k] = product.workload.group(bound.query).row_of_cell == product.bound_row(bound)
    return cells


def bound_table(
    product: Product, frame: Frame, spine: Spine, invariants: Mapping[str, Ints]
) -> ConstraintTable:
    """Assemble the constraints of every geounit.

    - `frame`: public unit counts.
    - `invariants`, query name -> (g, m): exact answers of each declared invariant at its own geolevel, in
      spine order: those of official geounits, also where the spine divides them into parts.
    """
    where = product.invariant_levels(spine)
    cells = bound_cells(product)
    partitions = _partitions(product, cells)
    levels: list[LevelConstraints] = []
    lower, upper = bounds_of_leaves(product.bounds, frame, spine)
    linear = linear_sums(product, frame, spine)
    for number in reversed(range(len(spine.levels))):
        held, joint = _exact_at_level(product, spine, where, invariants, number)
        levels.insert(0, LevelConstraints(lower, upper, held, joint, linear=linear[number]))
        if number == 0:
            break
        for invariant in held:
            if invariant.query.size == 1:
                lower, upper = _tightened(lower, upper, invariant.answers[:, 0], partitions)
        starts = spine.child_starts(number - 1)[:-1]
        if joint is not None:  # the divided geounits stand between their parts and the level above
            parts = np.flatnonzero(np.diff(joint.group, prepend=-1))
            lower, upper = (np.add.reduceat(bound, parts, axis=0) for bound in (lower, upper))
            lower, upper = _tightened(lower, upper, joint.totals, partitions)
            starts = joint.group[starts].astype(np.int64)
        lower, upper = (np.add.reduceat(bound, starts, axis=0) for bound in (lower, upper))
    names = tuple(bound.name for bound in product.bounds)
    return ConstraintTable(names, cells, product.possible, tuple(levels))


def _exact_at_level(
    product: Product,
    spine: Spine,
    where: Mapping[str, int],
    invariants: Mapping[str, Ints],
    number: int,
) -> tuple[tuple[InvariantAnswers, ...], JointTotal | None]:
    """Return what is exact at one geolevel: invariants taken there or below, and what parts share."""
    held = []
    joint = None
    for query, level in where.items():
        if number > level:
            continue
        name = f"{query}@{spine.names[level]}"
        answers = np.asarray(invariants[query], dtype=np.int64)
        whole = spine.levels[level].whole
        if whole is not None:
            if number == level:
                joint = JointTotal(name, whole.astype(np.int32), answers[:, 0])
                continue
            # The parts of a geounit have one parent: its total is that of its divided children.
            level -= 1
            answers = np.add.reduceat(answers, whole[spine.child_starts(level)[:-1]], axis=0)
        for above in range(level - 1, number - 1, -1):
            answers = np.add.reduceat(answers, spine.child_starts(above)[:-1], axis=0)
        held.append(InvariantAnswers(name, product.workload.group(query), answers))
    return tuple(held), joint


def _partitions(product: Product, cells: Bools) -> tuple[tuple[npt.NDArray[np.intp], bool], ...]:
    """Return the bounds of each query group, and whether together they count every possible cell."""
    queries = [product.workload.canonical(bound.query) for bound in product.bounds]
    found = []
    for query in dict.fromkeys(queries):
        chosen = np.flatnonzero([name == query for name in queries])
        covered = np.asarray(cells[chosen].any(axis=0))
        found.append((chosen, bool(covered[product.possible].all())))
    return tuple(found)


def _tightened(
    lower: Ints,
    upper: Ints,
    total: Ints,
    partitions: tuple[tuple[npt.NDArray[np.intp], bool], ...],
) -> tuple[Ints, Ints]:
    """Return what an exact total leaves of the bounds: what is over for one row, and what it must take.

    The total implies it where it holds; summed over children it keeps their parent within what they can take.
    As in production, with the exact total of the geounit itself (docs/constraints.md).
    """
    lower, upper = lower.copy(), upper.copy()
    for chosen, complete in partitions:
        least, most = lower[:, chosen], upper[:, chosen]
        others_least = least.sum(axis=1, keepdims=True) - least
        others_most = most.sum(axis=1, keepdims=True) - most
        upper[:, chosen] = np.maximum(least, np.minimum(most, total[:, None] - others_least))
        if complete:
            lower[:, chosen] = np.minimum(most, np.maximum(least, total[:, None] - others_most))
    return lower, upper
