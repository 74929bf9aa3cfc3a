"""What public facts leave no room for: at each leaf, cells that hold nobody and sums that are fixed.

A fact is what anybody knows exactly: bounds from public units, structural zeros, and the answers of
invariants where they are at hand. Each is read together with the others where
their sets of cells lie inside each other; see ``docs/proofs/protection-map.md``.

Axes: ``L`` leaves in spine order, ``B`` bounds, ``n`` cells, ``a`` atoms, ``s`` sets of cells (bounds, rows
of invariants, atoms), ``d`` patterns (leaves of which the same is known).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from opendas.arrays import Bools, Ints
from opendas.constraints.conflicts import Atoms, forest, is_laminar
from opendas.constraints.table import (
    ConstraintTable,
    bound_cells,
    bound_table,
    bounds_of_leaves,
)
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.schema.declarations import Tie
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

EMPTY, FREE = -1, 0
"""States of an atom at a leaf: it holds nobody; no fixed sum of the leaf counts it."""

_MOST = 1 << 39
"""More records than a run holds, so that sums over all leaves stay below 2**63."""

_ENTRIES = 4_000_000
"""Numbers that are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactQuery:
    """A query group whose answers are exact at one geolevel."""

    name: str  # for instance ``"total@state"``
    query: QueryGroup
    level: int  # index of the geolevel on the spine
    # (L,): official geounit above each leaf, counted in spine order: of divided geounits the whole one.
    unit: Ints
    answers: Ints | None  # (g, m): where they are known
    # It is an invariant of the product's companion: it says in which geounit a protected unit is, and nothing
    # of whether it has a record here, nor of which.
    of_companion: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PublicFacts:
    """Everything that is known exactly about a run's input."""

    possible: Bools  # (n,): cells that are no structural zero
    bound_names: tuple[str, ...]  # length B
    bound_cells: Bools  # (B, n)
    lower: Ints  # (L, B)
    upper: Ints  # (L, B)
    invariants: tuple[ExactQuery, ...]
    linear: bool = False  # There are linear constraints, too. Their consequences are not computed.

    @classmethod
    def of(
        cls, product: Product, spine: Spine, frame: Frame | None = None, table: ConstraintTable | None = None
    ) -> PublicFacts:
        """Collect what is known of a run.

        - `product`: with the invariants that the run holds.
        - `frame`: with public unit counts. Without it, and without `table`, bounds say nothing.
        - `table`: with the answers of the invariants, once they are public.
        """
        if table is None and frame is not None:
            table_of_bounds = bound_table(replace(product, invariants=()), frame, spine, {})
            leaf = table_of_bounds.levels[-1]
        elif table is not None:
            leaf = table.levels[-1]
        else:
            product = replace(product, bounds=())
            leaf = None
        size = (len(spine.leaf), len(product.bounds))
        facts = cls(
            product.possible,
            tuple(bound.name for bound in product.bounds),
            bound_cells(product),
            np.zeros(size, np.int64) if leaf is None else leaf.lower,
            np.zeros(size, np.int64) if leaf is None else leaf.upper,
            tuple(_exact_queries(product, spine, table)),
            bool(product.linear),
        )
        return facts if product.tie is None else facts._with_tied(product, product.tie, spine, frame)

    def _with_tied(self, product: Product, tie: Tie, spine: Spine, frame: Frame | None) -> PublicFacts:
        """Add what the earlier release holds: where this one agrees with it, it is known here, too."""
        query = product.workload.group(tie.query)
        bounds = () if frame is None else tie.bounds
        sets = [query.cells_of(rows) for rows in (tie.impossible, *(bound.rows for bound in bounds))]
        lower = upper = np.zeros((len(spine.leaf), 0), np.int64)
        if frame is not None:
            lower, upper = bounds_of_leaves(bounds, frame, spine)
        return replace(
            self,
            possible=self.possible & ~sets[0],
            bound_names=(*self.bound_names, *(bound.name for bound in bounds)),
            bound_cells=np.vstack([self.bound_cells, *sets[1:]]),
            lower=np.hstack([self.lower, lower]),
            upper=np.hstack([self.upper, upper]),
            linear=self.linear or tie.linear,
        )

    @property
    def nested(self) -> bool:
        """Whether of any two facts one holds the other, or they have no possible place in common.

        If so, all that follows from them is found. If not, more may follow.
        """
        if self.linear:
            return False
        maps = [*self.bound_cells, self.possible, *(exact.query.row_of_cell for exact in self.invariants)]
        atoms = Atoms.of(maps, len(self.possible))
        there = np.flatnonzero(self.possible[atoms.first])
        leaves = np.arange(len(self.lower), dtype=np.int64)
        kinds = [(leaves, sparse.csr_array(atoms.sets(self.bound_cells).astype(np.int64))[:, there])]
        kinds += [(exact.unit, atoms.rows(exact.query)[:, there]) for exact in self.invariants]
        pairs = itertools.combinations_with_replacement(kinds, 2)
        return all(_are_nested(*one, *other) for one, other in pairs)

    def only(self, names: Collection[str]) -> PublicFacts:
        """Return what is left if no other bound and no other invariant than those named were declared."""
        kept = np.array([name in names for name in self.bound_names], dtype=bool)
        return PublicFacts(
            self.possible,
            tuple(name for name in self.bound_names if name in names),
            self.bound_cells[kept],
            self.lower[:, kept],
            self.upper[:, kept],
            tuple(exact for exact in self.invariants if exact.name in names),
        )


def _are_nested(unit: Ints, sets: Any, other_unit: Ints, other_sets: Any) -> bool:
    """Whether two kinds of facts, each some sets of atoms (k, a) in every unit of leaves (L,), are nested."""
    if np.array_equal(unit, other_unit):
        return is_laminar(sparse.vstack([sets, other_sets], format="csr"))
    if unit[-1] > other_unit[-1]:
        unit, sets, other_unit, other_sets = other_unit, other_sets, unit, sets
    # units are numbered along the leaves: where one of the upper kind begins, so does one of the lower
    begins, other_begins = np.diff(unit) != 0, np.diff(other_unit) != 0
    if bool(np.any(begins & ~other_begins)):
        return False  # a unit of the lower kind reaches over several of the other
    common: Any = sparse.coo_array(other_sets @ sets.T)
    size = np.asarray(other_sets.sum(axis=1)).ravel()
    return bool(np.all(common.data == size[common.row]))


def _exact_queries(product: Product, spine: Spine, table: ConstraintTable | None) -> Iterator[ExactQuery]:
    for query, level in product.invariant_levels(spine).items():
        name = f"{query}@{spine.names[level]}"
        unit = np.repeat(np.arange(len(spine.levels[level])), np.diff(spine.leaf_starts(level)))
        whole, answers = spine.levels[level].whole, None
        if whole is not None:
            unit = whole[unit]
        if table is not None:
            joint = table.levels[level].joint
            held = {each.name: each.answers for each in table.levels[level].invariants}
            answers = held.get(name)
            if answers is None and joint is not None and joint.name == name:
                answers = joint.totals[:, None]
        yield ExactQuery(name, product.workload.group(query), level, unit.astype(np.int64), answers)
    if product.companion is not None:  # a partition of all units: it gives their number in each geounit
        for exact in _exact_queries(product.companion, spine, None):
            total = product.workload.group("total")
            yield replace(exact, query=total, answers=None, of_companion=True)


@dataclass(frozen=True, slots=True, eq=False)
class LeafPatterns:
    """Known facts about leaves: one row for all leaves with the same facts."""

    atoms: Atoms
    # (d, a): :data:`EMPTY`, :data:`FREE`, or a positive number: which of the fixed sums of the leaf count the
    # atom. Two atoms of a leaf with the same number are counted by the same ones.
    state: Ints
    of_leaf: Ints  # (L,)


def leaf_patterns(facts: PublicFacts) -> LeafPatterns:
    """Return what the facts, each read together with the others, fix at each leaf.

    Every answer is sound: no input that the facts allow has a record in an empty atom, or another value of a
    fixed sum. It is complete where the sets of bounds and of invariants are laminar.
    """
    known = [exact for exact in facts.invariants if exact.answers is not None]
    maps = [*facts.bound_cells, facts.possible, *(exact.query.row_of_cell for exact in facts.invariants)]
    reader = _Reader(facts, Atoms.of(maps, len(facts.possible)), known)
    forced = [reader.forced(exact) for exact in known if exact.unit[-1] + 1 < len(facts.lower)]
    leaf, kind = reader.leaf, reader.kind
    for unit, least, most in forced:
        patterns, pattern = np.unique(np.vstack([least, most]), axis=1, return_inverse=True)
        pairs = kind * patterns.shape[1] + pattern.ravel()[unit]
        _, leaf, kind = np.unique(pairs, return_index=True, return_inverse=True)
    rows: dict[bytes, int] = {}
    states: list[Ints] = []
    of_kind = np.zeros(len(leaf), dtype=np.int64)
    for start, stop in reader.chunks(len(leaf)):
        lower, upper = reader.tight(leaf[start:stop], forced)
        fixed = reader.fixed_sums(lower, upper)
        packed = np.packbits(fixed, axis=0).T
        distinct, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        numbers = []
        for row, leaf in zip(distinct, first.tolist(), strict=True):
            if row.tobytes() not in rows:
                rows[row.tobytes()] = len(states)
                states.append(reader.state(fixed[:, leaf]))
            numbers.append(rows[row.tobytes()])
        of_kind[start:stop] = np.array(numbers, dtype=np.int64)[which.ravel()]
    return LeafPatterns(reader.atoms, np.array(states, dtype=np.int64), of_kind[kind])


_MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, and nothing else is asked of it: keys that fall together are seen."""


def _leaf_kinds(known: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return a leaf of each kind, int64 (k,), and the kind of each leaf, (L,), by tables of known facts.

    Leaves are of one kind if all their rows in the tables, int64 (L, c) each, are the same.
    """
    columns = [column for table in known for column in table.T]
    key = np.zeros(len(known[0]), dtype=np.uint64)
    for column in columns:
        key = key * np.uint64(_MULTIPLIER) + column.astype(np.uint64)
    _, leaf, kind = np.unique(key, return_index=True, return_inverse=True)
    if not all(np.array_equal(column[leaf][kind], column) for column in columns):
        _, leaf, kind = np.unique(np.hstack(known), axis=0, return_index=True, return_inverse=True)
    return leaf, kind.ravel()


@dataclass(frozen=True, slots=True, eq=False)
class _Nest:
    """Sets of cells of which any two are disjoint or one holds the other."""

    sets: Ints  # indices (k,)
    order: list[int]
    below: list[list[int]]

    def tighten(self, lower: Ints, upper: Ints) -> None:
        """Bring intervals, int64 (s, columns), down to the values that every set can take by itself."""
        low, high = lower[self.sets], upper[self.sets]
        sums = {}
        for one in self.order:
            if self.below[one]:
                sums[one] = low[self.below[one]].sum(axis=0), high[self.below[one]].sum(axis=0)
                np.maximum(low[one], sums[one][0], out=low[one])
                np.minimum(high[one], sums[one][1], out=high[one])
        for one in reversed(self.order):
            for inner in self.below[one]:
                least, most = low[inner].copy(), high[inner].copy()
                np.maximum(low[inner], low[one] - (sums[one][1] - most), out=low[inner])
                np.minimum(high[inner], high[one] - (sums[one][0] - least), out=high[inner])
        lower[self.sets], upper[self.sets] = low, high


class _Reader:
    """Reads facts together; all sets in one order: bounds, rows of known invariants, atoms."""

    def __init__(self, facts: PublicFacts, atoms: Atoms, known: Sequence[ExactQuery]) -> None:
        self.facts, self.atoms, self.known = facts, atoms, known
        bounds = len(facts.bound_names)
        blocks = [sparse.csr_array(atoms.sets(facts.bound_cells).astype(np.int64))]
        blocks += [atoms.rows(exact.query) for exact in known]
        self.sets = sparse.csr_array(
            sparse.vstack([*blocks, sparse.eye_array(len(atoms), dtype=np.int64)], format="csr")
        )
        self.possible = facts.possible[atoms.first]
        ends = bounds + np.cumsum([0, *(exact.query.size for exact in known)])
        self.rows = [slice(a, b) for a, b in itertools.pairwise(ends.tolist())]
        self.first_atom = int(ends[-1])
        self.nests = list(self._nests(bounds))
        of_leaves = [exact.answers for exact in known if exact.answers is not None and self._at_leaves(exact)]
        self.leaf, self.kind = _leaf_kinds([facts.lower, facts.upper, *of_leaves])

    def _at_leaves(self, exact: ExactQuery) -> bool:
        return int(exact.unit[-1]) + 1 == len(self.facts.lower)

    def _nests(self, bounds: int) -> Iterator[_Nest]:
        holding = self.sets[:, np.flatnonzero(self.possible)]
        apart = is_laminar(holding[:bounds])
        for some in [range(bounds)] if apart else [range(k, k + 1) for k in range(bounds)]:
            yield self._nest(list(some))
        for rows in self.rows:
            inner = list(range(bounds))
            both = [*inner, *range(rows.start, rows.stop)]
            yield self._nest(both if is_laminar(holding[both]) else both[bounds:])

    def _nest(self, chosen: list[int]) -> _Nest:
        sets = np.array([*chosen, *range(self.first_atom, self.sets.shape[0])], dtype=np.int64)
        order, below, _ = forest(self.sets[sets], self.possible, laminar=True)
        return _Nest(sets, order, below)

    def chunks(self, columns: int) -> Iterator[tuple[int, int]]:
        size = max(1, _ENTRIES // self.sets.shape[0])
        for start in range(0, columns, size):
            yield start, min(start + size, columns)

    def _start(self, columns: int) -> tuple[Ints, Ints]:
        """Return intervals of every set that say nothing but what is impossible."""
        lower = np.zeros((self.sets.shape[0], columns), dtype=np.int64)
        upper = np.full_like(lower, _MOST)
        upper[self.first_atom :][~self.possible] = 0
        return lower, upper

    def tight(self, leaves: Ints, forced: Sequence[tuple[Ints, Bools, Bools]] = ()) -> tuple[Ints, Ints]:
        """Return the least and the most of every set at some leaves, int64 (s, leaves)."""
        facts = self.facts
        lower, upper = self._start(len(leaves))
        bounds = len(facts.bound_names)
        lower[:bounds] = facts.lower[leaves].T
        upper[:bounds] = np.minimum(_MOST, facts.upper[leaves].T)
        for exact, rows in zip(self.known, self.rows, strict=True):
            if exact.answers is not None and self._at_leaves(exact):
                lower[rows] = upper[rows] = exact.answers[leaves].T
        for nest in self.nests:
            nest.tighten(lower, upper)
        if forced:
            for unit, least, most in forced:
                here = unit[leaves]
                low, high = least[:, here], most[:, here]
                upper[low], lower[high] = lower[low], upper[high]
            for nest in self.nests:
                nest.tighten(lower, upper)
        return lower, upper

    def forced(self, exact: ExactQuery) -> tuple[Ints, Bools, Bools]:
        """Return geounit of each leaf, and which sets an exact total forces to their least or most there."""
        if exact.answers is None:
            raise ValueError("the answers of this invariant are not at hand")
        units = len(exact.answers)
        lower, upper = (np.zeros((self.sets.shape[0], units), dtype=np.int64) for _ in range(2))
        one = np.ones(len(self.kind), dtype=np.int64)
        number_of: Any = sparse.csc_array((one, (exact.unit, self.kind)), shape=(units, len(self.leaf)))
        for start, stop in self.chunks(len(self.leaf)):
            for whole, part in zip((lower, upper), self.tight(self.leaf[start:stop]), strict=True):
                whole += (number_of[:, start:stop] @ part.T).T
        np.minimum(upper, _MOST, out=upper)
        least, most = lower.copy(), upper.copy()
        number = self.known.index(exact)
        lower[self.rows[number]] = upper[self.rows[number]] = exact.answers.T
        self.nests[len(self.nests) - len(self.known) + number].tighten(lower, upper)
        return exact.unit, upper <= least, lower >= most

    def fixed_sums(self, lower: Ints, upper: Ints) -> Bools:
        """Return which sets are fixed at each leaf, bool (s, leaves): a bound or an atom; rows are known."""
        fixed = lower >= upper
        fixed[len(self.facts.bound_names) : self.first_atom] = False
        empty = upper[self.first_atom :] <= 0
        return np.concatenate([fixed, empty])

    def state(self, fixed: Bools) -> Ints:
        """Return the state of every atom at a leaf, int64 (a,)."""
        sets, empty = fixed[: self.sets.shape[0]], fixed[self.sets.shape[0] :]
        chosen = np.flatnonzero(sets)
        counted = self.sets[chosen].toarray().astype(bool)
        _, number = np.unique(counted, axis=1, return_inverse=True)
        found = np.where(counted.any(axis=0), number.ravel() + 1, FREE)
        return np.where(empty, EMPTY, found).astype(np.int64)
