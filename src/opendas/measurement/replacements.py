"""Find the maximal replacements of one record inside the classes of a protection map.

A replacement's changes depend only on how many levels the paths of the two leaves share, on the shares along
each path, and on the query groups that distinguish the two cells. This module finds all combinations that
occur in some class, without listing places. Argument: ``docs/proofs/exact-accounting.md``, section 2.

Axes: ``L`` leaves in spine order, ``t`` types of leaves (same shares along the path, same free
cells), ``k`` levels of an attribute.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from opendas.arrays import Bools, Ints
from opendas.constraints.fixed_sums import FREE
from opendas.measurement.protection import ProtectionMap
from opendas.schema.product import Product

_MOST_TARGETS = 50_000
"""Most ways of cells differing that are distinguished; beyond, cells count as different in every way."""


class Replacement(NamedTuple):
    """Replacements of a record that change the same answers."""

    shared: int  # lowest geolevel at which both leaves share a geounit, -1 if there is none
    # one, other: path of each leaf, as :meth:`~opendas.geography.spine.Spine.paths` numbers them.
    one: int
    other: int
    apart: frozenset[str]  # query groups that distinguish the two cells


class Replacements:
    """The replacements inside the classes of a map.

    `queries`: measured query groups.
    """

    def __init__(self, held: ProtectionMap, queries: Collection[str]) -> None:
        self.held, self.spine = held, held.plan.spine
        self.paths = self.spine.paths()[1]
        self._cells = _CellPairs(held, sorted(queries))

    def all(self) -> list[Replacement]:
        """Return the maximal replacements: none changes only part of what another changes."""
        found = []
        for path, sets in self._same_leaf().items():
            found += [
                Replacement(len(self.spine.levels) - 1, path, path, apart)
                for apart in self._cells.furthest([(one, one) for one in sets])
            ]
        seen = np.zeros_like(self._pairs[0][1]) if self._pairs else np.zeros((0, 0), dtype=bool)
        for shared, together in self._pairs:
            new = together & ~seen
            seen |= together
            by_path: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for a, b in np.argwhere(np.triu(new)).tolist():
                by_path.setdefault((self._types[a][0], self._types[b][0]), []).append((a, b))
            for (one, other), leaves in by_path.items():
                free = [(self._types[a][1], self._types[b][1]) for a, b in leaves]
                found += [Replacement(shared, one, other, apart) for apart in self._cells.furthest(free)]
        return found

    def of_attribute(self, attribute: str) -> list[Replacement]:
        """Return replacements that change one attribute and keep the leaf."""
        leaf = len(self.spine.levels) - 1
        return [
            Replacement(leaf, path, path, apart)
            for path, sets in self._same_leaf().items()
            for apart in self._cells.in_attribute(sets, attribute)
        ]

    def of_place(self, level: int) -> list[Replacement]:
        """Return replacements that move a record inside one geounit of a level and keep its cell."""
        found = []
        seen = np.zeros_like(self._pairs[0][1]) if self._pairs else np.zeros((0, 0), dtype=bool)
        for shared, together in self._pairs:
            if shared < level:
                continue
            new = together & ~seen
            seen |= together
            kinds = {
                (self._types[a][0], self._types[b][0])
                for a, b in np.argwhere(np.triu(new)).tolist()
                if bool((self._cells.sets[self._types[a][1]] & self._cells.sets[self._types[b][1]]).any())
            }
            found += [Replacement(shared, one, other, frozenset()) for one, other in sorted(kinds)]
        return found

    def of_addition(self) -> list[int]:
        """Return the paths of leaves to which a record can be added."""
        return sorted({path for path, _ in self._types}) if self.held.may_add else []

    # Leaves -------------------------------------------------------------------------------------------------

    def _same_leaf(self) -> dict[int, list[int]]:
        """Return for each path the sets of cells that form a class, or part of one, at some leaf of it."""
        patterns = self.held.patterns
        pairs = np.unique(self.paths * len(patterns.state) + patterns.of_leaf)
        found: dict[int, set[int]] = {}
        for path, pattern in (divmod(pair, len(patterns.state)) for pair in pairs.tolist()):
            found.setdefault(path, set()).update(self._cells.classes(pattern))
        return {path: sorted(sets) for path, sets in found.items()}

    @cached_property
    def _type_of_leaf(self) -> tuple[list[tuple[int, int]], Ints]:
        """Return the types of leaves, each a path and a set of free cells, and each leaf's type, (L,)."""
        patterns = self.held.patterns
        free = np.array([self._cells.free(number) for number in range(len(patterns.state))], dtype=np.int64)
        mine = free[patterns.of_leaf]
        key = np.where(mine < 0, -1, self.paths * len(self._cells.sets) + mine)
        distinct, which = np.unique(key, return_inverse=True)
        nobody = int(bool(len(distinct)) and distinct[0] < 0)
        types = [divmod(pair, len(self._cells.sets)) for pair in distinct[nobody:].tolist()]
        return types, which.ravel() - nobody

    @property
    def _types(self) -> list[tuple[int, int]]:
        return self._type_of_leaf[0]

    @cached_property
    def _pairs(self) -> list[tuple[int, Bools]]:
        """Return which types of leaves meet at each lowest shared level, top first, bool (t, t)."""
        spine, lowest = self.spine, self.held.lowest
        above = [
            np.repeat(np.arange(len(level)), np.diff(spine.leaf_starts(number)))
            for number, level in enumerate(spine.levels)
        ]
        first = 0 if lowest is None else lowest.level
        divided = lowest is not None and spine.levels[first].whole is not None
        found = []
        if lowest is None or divided:
            found.append((first - 1, self._meeting(self.held.unit, above[first])))
        return found + [
            (number, self._meeting(above[number], above[number + 1]))
            for number in range(first, len(above) - 1)
        ]

    def _meeting(self, unit: Ints, child: Ints) -> Bools:
        """Return which types lie below two different children of one unit, bool (t, t)."""
        types, of_leaf = self._type_of_leaf
        if not types:
            return np.zeros((0, 0), dtype=bool)
        here = np.flatnonzero(of_leaf >= 0)
        below = _count_kinds(child[here], of_leaf[here], len(types))
        below.data[:] = 1
        above = np.zeros(below.shape[0], dtype=np.int64)
        above[child[here]] = unit[here]
        of_part = above[np.repeat(np.arange(len(above)), np.diff(below.indptr))]
        whole = _count_kinds(of_part, below.indices, len(types))  # number of a unit's children with a type
        single = below.copy()
        single.data[:] = np.asarray(whole[of_part, below.indices]).ravel() == 1
        whole.data[:] = 1
        # among units with two types, skip those where a single child has both
        both, alone = ((found.T @ found).toarray() for found in (whole, single))
        return np.asarray(both > alone)


def _count_kinds(group: Ints, kind: Ints, kinds: int) -> Any:
    """Count each kind in each group, csr int64 (groups, kinds)."""
    shape = (int(group.max(initial=0)) + 1, kinds)
    return sparse.csr_array((np.ones(len(group), np.int64), (group, kind)), shape=shape)


class _CellPairs:
    """Query groups that distinguish two cells, for cells of two sets that agree on all invariants.

    Levels of an attribute that no fact distinguishes, whatever the other attributes, form one *kind*, and a
    combination of kinds represents all its cells. `sets` holds the numbered sets, a bool for each combination
    of kinds.
    """

    def __init__(self, held: ProtectionMap, queries: Sequence[str]) -> None:
        self.held = held
        self.sets: list[Bools] = []
        self._numbers: dict[bytes, int] = {}
        product = held.plan.product
        self._queries = [product.workload.group(name) for name in queries]
        self._factors = list(dict.fromkeys(name for query in self._queries for name in query.factors))
        exact = {name for one in held.facts.invariants for name in one.query.factors}
        atoms = held.patterns.atoms.of_cell.reshape(product.schema.shape)
        kinds: list[Ints] = []
        for position in range(atoms.ndim):
            # np.unique along an axis takes seconds where slices have hundreds of thousands of cells
            numbers: dict[bytes, int] = {}
            slices = np.moveaxis(atoms, position, 0)
            kind = np.array([numbers.setdefault(one.tobytes(), len(numbers)) for one in slices])
            kinds.append(kind)
            atoms = np.take(atoms, np.unique(kind, return_index=True)[1], axis=position)
        self._atoms = atoms
        self._axes = [
            _Axis.of(product, position, kind, self._factors, exact) for position, kind in enumerate(kinds)
        ]
        self._told = {
            query.name: sum(1 << self._factors.index(name) for name in query.factors)
            for query in self._queries
        }

    def _number(self, cells: Bools) -> int:
        key = cells.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(cells)
        return self._numbers[key]

    def _label(self, pattern: int) -> Ints:
        """Return :meth:`ProtectionMap.label` for each combination of kinds."""
        found: Ints = self.held.patterns.state[pattern][self._atoms]
        return found

    def free(self, pattern: int) -> int:
        """Return the number of the set of free cells, -1 if there is none."""
        cells = self._label(pattern) == FREE
        return self._number(cells) if cells.any() else -1

    def classes(self, pattern: int) -> list[int]:
        """Return the numbers of all sets of cells in one class (one joint row) at a leaf."""
        label = self._label(pattern)
        return [self._number(label == value) for value in np.unique(label[label >= FREE]).tolist()]

    def _apart(self, mask: int) -> frozenset[str]:
        """Return the query groups that distinguish cells that differ in the given factors."""
        return frozenset(name for name, factors in self._told.items() if factors & mask)

    @cached_property
    def _targets(self) -> list[tuple[frozenset[str], list[tuple[int, ...]]]]:
        """Return sets of query groups that can distinguish cells, largest first, and the differences."""
        count = 1
        for axis in self._axes:
            count *= len(axis.masks)
        if count > _MOST_TARGETS:
            return [(self._apart(sum(axis.any for axis in self._axes)), [])]
        found: dict[frozenset[str], list[tuple[int, ...]]] = {}
        for masks in itertools.product(*(axis.masks for axis in self._axes)):
            found.setdefault(self._apart(sum(masks)), []).append(masks)
        return sorted(found.items(), key=lambda item: (-len(item[0]), sorted(item[0])))

    def furthest(self, pairs: Sequence[tuple[int, int]]) -> list[frozenset[str]]:
        """Return the largest sets of query groups that distinguish a cell of one set and one of the other."""
        pairs = sorted(pairs, key=lambda two: -int(self.sets[two[0]].sum() * self.sets[two[1]].sum()))
        found: list[frozenset[str]] = []
        for apart, ways in self._targets:
            if any(apart <= larger for larger in found):
                continue
            if not ways or any(self._exists(a, b, masks) for a, b in pairs for masks in ways):
                found.append(apart)
        return found

    def _exists(self, one: int, other: int, masks: tuple[int, ...]) -> bool:
        """Whether two cells of two sets differ at least by these masks."""
        key = (one, other, masks)
        if key not in self._known:
            reached = self.sets[other]
            for position, (axis, mask) in enumerate(zip(self._axes, masks, strict=True)):
                reached = axis.reached(reached, position, mask)
            self._known[key] = bool((reached & self.sets[one]).any())
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int, tuple[int, ...]], bool]:
        return {}

    def in_attribute(self, sets: Sequence[int], attribute: str) -> list[frozenset[str]]:
        """Return the largest sets of query groups that distinguish two cells that differ in one attribute."""
        position = self.held.plan.product.schema.names.index(attribute)
        axis = self._axes[position]
        masks = set()
        for number in sets:
            by_kind = np.moveaxis(self.sets[number], position, 0)
            flat = by_kind.reshape(len(by_kind), -1).astype(np.float32)
            both = (flat @ flat.T > 0)[np.ix_(axis.kind, axis.kind)]
            both &= axis.agree & ~np.eye(len(both), dtype=bool)
            masks.update(np.unique(axis.mask[both]).tolist())
        found = {self._apart(mask) for mask in masks}
        return [apart for apart in found if not any(apart < larger for larger in found)]


class _Axis:
    """Differences between two levels of one attribute.

    - `mask` (k, k): bits of the factors that distinguish two levels.
    - `agree` (k, k): whether the invariants leave both levels possible.
    - `kind` (k,): kind of each level; levels of one kind are in the same sets.
    """

    def __init__(self, mask: Ints, agree: Bools, kind: Ints) -> None:
        self.mask, self.agree, self.kind = mask, agree, kind
        self.masks = sorted(set(mask[agree].tolist()))
        self.any = int(np.bitwise_or.reduce(mask[agree]))

    @classmethod
    def of(
        cls, product: Product, position: int, kind: Ints, factors: Sequence[str], exact: Collection[str]
    ) -> _Axis:
        maps = factor_maps(product, position)
        size = product.schema.shape[position]
        mask, agree = np.zeros((size, size), dtype=np.int64), np.ones((size, size), dtype=bool)
        for name, group in maps.items():
            differ = group[:, None] != group
            if name in factors:
                mask |= differ.astype(np.int64) << factors.index(name)
            if name in exact:
                agree &= ~differ
        return cls(mask, agree, kind)

    def reached(self, cells: Bools, position: int, mask: int) -> Bools:
        """Return the kinds of cells that differ in this attribute, at least by the mask, from given ones."""
        step = np.zeros((cells.shape[position],) * 2, dtype=bool)
        one, other = np.nonzero(self.agree & ((self.mask & mask) == mask))
        step[self.kind[one], self.kind[other]] = True
        if step.all():
            return np.broadcast_to(cells.any(axis=position, keepdims=True), cells.shape)
        moved = np.tensordot(cells.astype(np.float32), step.astype(np.float32), axes=([position], [0]))
        return np.moveaxis(moved > 0, -1, position)


@lru_cache(maxsize=256)
def factor_maps(product: Product, position: int) -> dict[str, Ints]:
    """Return the group of each level of an attribute, int64 (k,), by names of attribute and recodes."""
    attribute = product.schema.attributes[position]
    maps = {attribute.name: np.arange(len(attribute), dtype=np.int64)}
    for recode in product.recodes:
        if recode.attribute == attribute.name:
            maps[recode.name] = recode.group_of_level(attribute).astype(np.int64)
    return maps
