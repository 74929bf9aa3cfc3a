"""Compute the protection map of a plan: what remains to protect given exact facts.

A *place* of a record is a pair of leaf and cell. A record can be in another place only if every exact fact
(invariant, fixed bound, structural zero) stays true. The map divides all places into classes: noise protects
a record inside its class, and nothing protects which class it is in. Definition and proof:
``docs/proofs/protection-map.md``.

Axes: ``L`` leaves in spine order, ``n`` cells, ``a`` atoms, ``d`` patterns of leaves, ``r`` joint rows of all
invariants, ``c`` classes, ``v`` statistics of a cell (its level of each attribute, its row of each query).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from opendas.arrays import Bools, Ints
from opendas.constraints.conflicts import Atoms
from opendas.constraints.fixed_sums import EMPTY, FREE, ExactQuery, LeafPatterns, PublicFacts, leaf_patterns
from opendas.constraints.table import ConstraintTable
from opendas.errors import PrivacyError
from opendas.geography.frame import Frame
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Neighbours
from opendas.schema.attributes import listed

_NUMBERS = 4_000_000
"""Numbers processed at a time."""

_MOST_TRIED = 200
"""Most sets of declarations tried in the search for the smallest sufficient one."""


class Classes(NamedTuple):
    """A batch of classes of places."""

    size: Ints  # (c,): number of places in each
    times: Ints  # (c,): number of equal classes
    differ: Bools  # (v, c): statistics of the cell that differ inside the class
    moves: Bools  # (levels, c): geolevels at which its places lie in several geounits
    free: bool  # whether no fixed sum of a leaf counts them


@dataclass(frozen=True, eq=False)
class ProtectionMap:
    """The exact partition of places (leaf, cell) that the facts determine.

    Two places are in one class if in some input that satisfies the facts, a record in one place can be
    replaced by one in the other without violating them. Every pair of neighbours of the guarantee replaces a
    record inside one class. Classes have product form and are never listed: each is

    - all *free* places of one official geounit of the lowest geolevel with an invariant (`unit`; the whole
      input without invariants) whose cells have the same joint row of all invariants (`row`), or
    - places of one leaf that the same fixed sums count, with the same joint row.

    Examples
    --------
    Whether a record may move from one place to another: ``map.place(leaf, cell) == map.place(leaf2, cell2)``,
    where neither is None. For a whole nation, use `unit` (L,), `patterns.of_leaf` (L,), `row` (n,) and
    `label` of a pattern (n,) instead.
    """

    plan: MeasurementPlan
    facts: PublicFacts
    patterns: LeafPatterns

    def __repr__(self) -> str:
        return f"ProtectionMap({self.plan.product.name}: {len(self.patterns.of_leaf):,} leaves)"

    @classmethod
    def of(
        cls, plan: MeasurementPlan, frame: Frame | None = None, table: ConstraintTable | None = None
    ) -> ProtectionMap:
        """Build the map of a plan.

        - `frame`: with public unit counts; without it, bounds are ignored.
        - `table`: constraints of the run. With it, the map uses what the values of invariants fix, alone (a
          total of zero) and with bounds (a total equal to the sum of its lower bounds), and can only be
          finer.
        """
        facts = PublicFacts.of(plan.product, plan.spine, frame, table)
        return cls(plan, facts, leaf_patterns(facts))

    @classmethod
    def without_facts(cls, plan: MeasurementPlan) -> ProtectionMap:
        """Return the map with a single class: neighbours need not agree on any fact."""
        facts = PublicFacts.of(plan.product, plan.spine).only(())
        facts = PublicFacts(np.ones_like(facts.possible), (), facts.bound_cells, facts.lower, facts.upper, ())
        return cls(plan, facts, leaf_patterns(facts))

    # Classes ------------------------------------------------------------------------------------------------

    @cached_property
    def lowest(self) -> ExactQuery | None:
        """Invariant of the lowest geolevel, or None."""
        return max(self.facts.invariants, key=lambda exact: exact.level, default=None)

    @cached_property
    def unit(self) -> Ints:
        """Official geounit that confines the free places of each leaf, int64 (L,), along the spine."""
        return np.zeros(len(self.patterns.of_leaf), np.int64) if self.lowest is None else self.lowest.unit

    @cached_property
    def row(self) -> Ints:
        """Joint row of all invariants that each cell counts in, int64 (n,)."""
        maps = [exact.query.row_of_cell for exact in self.facts.invariants]
        return Atoms.of(maps, len(self.facts.possible)).of_cell

    def label(self, pattern: int) -> Ints:
        """Return the label of each cell, int64 (n,), at leaves of a pattern.

        ``EMPTY`` (-1): no record can be there. ``FREE`` (0): no fixed sum counts it. A positive number
        identifies the fixed sums that count it; a record there stays in cells of this leaf with that number.
        """
        found: Ints = self.patterns.state[pattern][self.patterns.atoms.of_cell]
        return found

    def place(self, leaf: int, cell: int) -> tuple[int, ...] | None:
        """Return the class of a place, None where no record can be.

        `leaf`: position along the spine.
        """
        state = int(self.patterns.state[self.patterns.of_leaf[leaf], self.patterns.atoms.of_cell[cell]])
        if state == EMPTY:
            return None
        row = int(self.row[cell])
        return (int(self.unit[leaf]), row) if state == FREE else (leaf, row, state)

    @property
    def adds(self) -> bool:
        """Whether neighbours differ by an added or removed record, rather than a replaced one."""
        return self.plan.budget.neighbours is Neighbours.UNBOUNDED

    @property
    def appears(self) -> bool:
        """Whether a record can also appear or disappear, not only be replaced; its unit stays."""
        return self.plan.product.companion is not None and self.may_add and not self.adds

    @property
    def may_add(self) -> bool:
        """Whether records can be added, in free places, because no invariant counts them."""
        return all(exact.of_companion for exact in self.facts.invariants)

    def classes(self, statistics: Sequence[Ints]) -> Iterator[Classes]:
        """Yield all classes in batches, with the statistics of cells, int64 (n,) each, that differ inside."""
        atoms = self.patterns.atoms
        of_row = np.argsort(self.row[atoms.first], kind="stable")  # an atom lies within one row
        rank = np.empty_like(of_row)
        rank[of_row] = np.arange(len(of_row))
        of_cell = rank[atoms.of_cell]
        order = np.argsort(of_cell, kind="stable")
        starts = np.flatnonzero(np.diff(of_cell[order], prepend=-1))
        least, most = (
            np.stack([extreme.reduceat(np.asarray(one, np.int64)[order], starts) for one in statistics])
            for extreme in (np.minimum, np.maximum)
        )
        table = _AtomTable(
            np.diff(starts, append=len(order)),
            least,
            most,
            self.row[atoms.first][of_row],
            self.patterns.state[:, of_row],
        )
        yield from self._free_classes(table)
        yield from self._fixed_classes(table)

    def _free_classes(self, table: _AtomTable) -> Iterator[Classes]:
        spine, of_leaf = self.plan.spine, self.patterns.of_leaf
        alone = bool(self.unit[-1] + 1 == len(self.unit))
        unit = of_leaf if alone else self.unit  # leaves by themselves are all one kind per pattern
        pair, first, count = np.unique(
            unit * (len(self.patterns.state) + 1) + of_leaf, return_index=True, return_counts=True
        )
        of_pair = np.searchsorted(pair, unit * (len(self.patterns.state) + 1) + of_leaf)
        last = np.zeros(len(pair), dtype=np.int64)
        np.maximum.at(last, of_pair, np.arange(len(of_leaf)))
        times = count if alone else np.ones_like(count)
        held, last = (np.ones_like(count), first) if alone else (count, last)
        unit, pattern = unit[first], of_leaf[first]
        above = [
            np.repeat(np.arange(len(level)), np.diff(spine.leaf_starts(number)))
            for number, level in enumerate(spine.levels)
        ]
        bounds = np.append(np.flatnonzero(np.diff(unit, prepend=-1)), len(unit))
        width = max(1, _NUMBERS // (int(table.row[-1] + 1) * (len(table.least) + 3)))
        for begin, end in _portions(bounds, width):
            here, at = np.unique(pattern[begin:end], return_inverse=True)
            some = [table.of_rows(number) for number in here.tolist()]
            size, least, most = (np.stack(parts)[at.ravel()] for parts in zip(*some, strict=True))
            groups = np.flatnonzero(np.diff(unit[begin:end], prepend=-1))
            there = size > 0
            left = np.minimum.reduceat(np.where(there, first[begin:end, None], len(of_leaf)), groups)
            right = np.maximum.reduceat(np.where(there, last[begin:end, None], -1), groups)
            size = np.add.reduceat(size * held[begin:end, None], groups)
            differ = np.minimum.reduceat(least, groups) < np.maximum.reduceat(most, groups)
            there = size > 0
            repeated = np.broadcast_to(times[begin:end][groups][:, None], size.shape)
            yield Classes(
                size[there],
                repeated[there],
                differ.transpose(1, 0, 2)[:, there],
                np.stack([level[left[there]] != level[right[there]] for level in above]),
                free=True,
            )

    def _fixed_classes(self, table: _AtomTable) -> Iterator[Classes]:
        leaves = np.bincount(self.patterns.of_leaf, minlength=len(self.patterns.state))
        for pattern in np.flatnonzero((table.state > FREE).any(axis=1)).tolist():
            label = table.state[pattern]
            fixed = np.flatnonzero(label > FREE)
            _, group = np.unique(np.stack([table.row[fixed], label[fixed]]), axis=1, return_inverse=True)
            order = np.argsort(group.ravel(), kind="stable")
            starts = np.flatnonzero(np.diff(group.ravel()[order], prepend=-1))
            chosen = fixed[order]
            size = np.add.reduceat(table.size[chosen], starts)
            differ = np.minimum.reduceat(table.least[:, chosen], starts, axis=1) < np.maximum.reduceat(
                table.most[:, chosen], starts, axis=1
            )
            moves = np.zeros((len(self.plan.spine.levels), len(size)), dtype=bool)
            yield Classes(size, np.full_like(size, leaves[pattern]), differ, moves, free=False)

    # What follows -------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Counter[int]:
        """Size of a class -> number of classes of this size."""
        found: Counter[int] = Counter()
        for some in self.classes([np.zeros(len(self.row), dtype=np.int64)]):
            for size in np.unique(some.size).tolist():
                found[size] += int(some.times[some.size == size].sum())
        return found

    @property
    def places(self) -> int:
        """Number of places in which a record can be."""
        return sum(size * times for size, times in self.sizes.items())

    @property
    def alone(self) -> int:
        """Number of places that form a class alone: their records are known."""
        return self.sizes[1]

    @property
    def least(self) -> int:
        """Least number of other places that the facts leave to a record."""
        return min(self.sizes, default=1) - 1

    @property
    def median(self) -> int:
        """Number of other places that the facts leave, at the (lower) median of all places."""
        seen, half = 0, Fraction(self.places, 2)
        for size in sorted(self.sizes):
            seen += size * self.sizes[size]
            if seen >= half:
                return size - 1
        return 0

    @cached_property
    def protects(self) -> bool:
        """Whether the facts allow two neighbouring inputs."""
        if self.adds:
            states = self.patterns.state
            return self.may_add and bool((states == FREE).any())
        if self.appears and bool((self.patterns.state == FREE).any()):
            return True
        return any(size > 1 for size in self.sizes)

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Names of exactly published facts: invariants, and bounds that coincide where there are units."""
        equal = (self.facts.lower == self.facts.upper) & (self.facts.upper > 0)
        bounds = itertools.compress(self.facts.bound_names, equal.any(axis=0).tolist())
        own = (exact.name for exact in self.facts.invariants if not exact.of_companion)
        return (*own, *bounds)

    def check(self) -> None:
        """Refuse facts that leave no neighbours."""
        if self.protects:
            return
        names = self.responsible()
        what = f"{listed(names)} published exactly" if names else "no more than one place for a record"
        todo = "Give up an invariant with drop_invariants in [run], or leave room between bounds."
        if not names:
            todo = "Use a domain with more than one combination of leaf and cell."
        cannot = (
            'added or removed (neighbours = "unbounded"), so that no two inputs are neighbours: use '
            'neighbours = "bounded"'
            if self.adds
            else "replaced by another one, so that no two inputs are neighbours"
        )
        raise PrivacyError(
            f"nothing is protected: with {what}, no record can be {cannot}. The guarantee would be empty. "
            f"{todo}"
        )

    def responsible(self) -> tuple[str, ...]:
        """Return the smallest set of declarations that leaves no neighbours, empty if none are needed.

        If many are declared, a minimal set instead.
        """
        names = (*(exact.name for exact in self.facts.invariants), *self.facts.bound_names)
        some = itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names)))
        for chosen in itertools.islice(some, _MOST_TRIED):
            if not self._only(chosen).protects:
                return chosen
        kept = names
        for name in names:
            fewer = tuple(other for other in kept if other != name)
            kept = kept if self._only(fewer).protects else fewer
        return kept

    def _only(self, names: Sequence[str]) -> ProtectionMap:
        facts = self.facts.only(names)
        return ProtectionMap(self.plan, facts, leaf_patterns(facts))


class _AtomTable(NamedTuple):
    """Sizes and statistics of atoms, ordered by joint row."""

    size: Ints  # (a,): cells in each
    # least, most (v, a): least and largest value of each statistic.
    least: Ints
    most: Ints
    row: Ints  # (a,)
    state: Ints  # (d, a)

    def of_rows(self, pattern: int) -> tuple[Ints, Ints, Ints]:
        """Return the number (r,) of free cells in each joint row, and their extreme values (v, r)."""
        free, starts = self.state[pattern] == FREE, np.flatnonzero(np.diff(self.row, prepend=-1))
        least = np.minimum.reduceat(np.where(free, self.least, np.iinfo(np.int64).max), starts, axis=1)
        most = np.maximum.reduceat(np.where(free, self.most, -1), starts, axis=1)
        return np.add.reduceat(np.where(free, self.size, 0), starts), least, most


def _portions(bounds: Ints, width: int) -> Iterator[tuple[int, int]]:
    """Cut rows at some of the given bounds, into portions of about the given width."""
    begin = 0
    for end in bounds[1:].tolist():
        if end - begin >= width or end == bounds[-1]:
            yield begin, end
            begin = end
