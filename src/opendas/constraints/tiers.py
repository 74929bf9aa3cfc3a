"""Geolevels as constraints see them: bounds as plain sums of the leaves', invariants where they are taken.

Where a spine divides official geounits, these stand as a tier of their own above their parts, since a total
is theirs and not their parts'.

Axes: ``g`` geounits of a tier, ``B`` bounds, ``a`` atoms, ``r`` rows of all bounds and invariants.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from opendas.arrays import Bools, Codes, Ints
from opendas.constraints.conflicts import Atoms, Gathering, invariant_name
from opendas.constraints.table import ConstraintTable, InvariantAnswers, LevelConstraints, LinearSums
from opendas.errors import ConstraintConflict, HeldConstraint
from opendas.geography.spine import Spine
from opendas.schema.declarations import StructuralZero
from opendas.schema.product import Product
from opendas.solvers.problem.conflict import NO_LIMIT

MOST_ZEROS = 40
"""More structural zeros are told as one."""
WIDEST = 60_000
"""Variables of a contradiction that is taken apart; a larger one is told with fewer geolevels."""


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """One geolevel."""

    name: str
    geocodes: Sequence[bytes] | Codes  # (g,)
    parent: Ints  # (g,): index of each geounit's parent in the tier above
    # lower, upper (g, B): sums of the leaves' bounds.
    lower: Ints
    upper: Ints
    # tight_lower, tight_upper (g, B): what exact totals below leave of them.
    tight_lower: Ints
    tight_upper: Ints
    invariants: tuple[InvariantAnswers, ...]  # all that hold here: taken here, or sums of what is taken below
    own: tuple[InvariantAnswers, ...]  # those taken here
    linear: LinearSums | None = None  # on the atoms

    def __len__(self) -> int:
        return len(self.parent)

    def label(self, geounit: int) -> str:
        """Return the geocode of a geounit."""
        return bytes(self.geocodes[geounit]).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, eq=False)
class Tiers:
    """The constraints of a spine by tiers, top first."""

    tiers: tuple[Tier, ...]
    atoms: Atoms
    possible: Bools  # (a,)
    bound_names: tuple[str, ...]  # length B
    bound_sets: Bools  # (B, a)
    sets: Any  # sparse (r, a): of the bounds, then of the rows of each invariant, in the order of `queries`
    queries: tuple[str, ...]  # invariants of the run by name, ``"total@state"``
    # tuple of (str, bool (a,)): structural zeros in words.
    zeros: tuple[tuple[str, Bools], ...]

    @classmethod
    def of(cls, product: Product, spine: Spine, table: ConstraintTable) -> Tiers:
        """Arrange the constraints of a run."""
        tiers = _tiers(product, spine, table)
        invariants = {held.name: held.query for tier in tiers for held in tier.invariants}
        zeros = _zeros(product, table.possible)
        maps = [*table.bound_cells, table.possible, *(mask for _, mask in zeros)]
        maps += [query.row_of_cell for query in invariants.values()]
        linear = table.levels[-1].linear
        maps += [] if linear is None else list(linear.coefficients)
        atoms = Atoms.of(maps, len(table.possible))
        bound_sets = atoms.sets(table.bound_cells)
        blocks = [sparse.csr_array(bound_sets.astype(np.int64)), *map(atoms.rows, invariants.values())]
        return cls(
            tuple(
                tier if tier.linear is None else replace(tier, linear=tier.linear.on(atoms.first))
                for tier in tiers
            ),
            atoms,
            table.possible[atoms.first],
            table.bound_names,
            bound_sets,
            sparse.csr_array(sparse.vstack(blocks, format="csr")),
            tuple(invariants),
            tuple((name, mask[atoms.first]) for name, mask in zeros),
        )

    def starts(self, above: int, below: int) -> Ints:
        """Return int64 (g + 1,): below geounit ``i`` of a tier lie ``starts[i]:starts[i + 1]`` of another."""
        starts = np.arange(len(self.tiers[below]) + 1, dtype=np.int64)
        for number in range(below, above, -1):
            parent = self.tiers[number].parent
            starts = starts[np.searchsorted(parent, np.arange(len(self.tiers[number - 1]) + 1))]
        return starts

    def rows(self, number: int, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return what some geounits of a tier hold of every set, int64 (r, g) each: least and most."""
        tier = self.tiers[number]
        size = (self.sets.shape[0], stop - start)
        lower, upper = np.zeros(size, np.int64), np.full(size, NO_LIMIT)
        bounds = len(self.bound_names)
        lower[:bounds] = tier.tight_lower[start:stop].T
        upper[:bounds] = tier.tight_upper[start:stop].T
        held = {invariant.name: invariant for invariant in tier.invariants}
        at = bounds
        height = {i.name: i.query.size for t in self.tiers for i in t.invariants}
        for name in self.queries:
            if name in held:
                answers = held[name].answers[start:stop].T
                lower[at : at + height[name]] = answers
                upper[at : at + height[name]] = answers
            at += height[name]
        return lower, upper

    def span(self, *, laminar: bool) -> tuple[int, int] | None:
        """Return the topmost and the lowest of the tiers that must be examined together, or None.

        Where bounds count different cells, sums of the leaves' bounds suffice. Else the leaves themselves are
        examined.
        """
        own = [number for number, tier in enumerate(self.tiers) if tier.own]
        leaf = len(self.tiers) - 1
        apart = bool(np.all(self.bound_sets[:, self.possible].sum(axis=0) <= 1))
        linear = self.tiers[leaf].linear
        if linear is not None:
            apart = laminar = False
        nobody = not self.tiers[leaf].lower.any() and (linear is None or bool((linear.at_most >= 0).all()))
        if not own and nobody:
            return None
        top = own[0] if own else leaf
        bottom = own[-1] if own and apart else leaf
        return None if top == bottom and laminar else (top, bottom)

    def explain(self, number: int, geounit: int, others: Sequence[str]) -> ConstraintConflict | None:
        """Return the smallest contradiction of a geounit, by itself or with what lies below it."""
        for bottom in range(number, len(self.tiers)):
            starts = self.starts(number, bottom)
            if int(starts[geounit + 1] - starts[geounit]) * len(self.atoms) > WIDEST and bottom > number:
                return None
            found = self._gathered(number, bottom, geounit).conflict(others)
            if found is not None:
                return found
        return None

    def _gathered(self, top: int, bottom: int, geounit: int) -> Gathering:
        """Return the constraints of one geounit and of all below it down to a tier, by name.

        Variables: atoms of each geounit of the bottom tier, impossible ones included.
        """
        a = len(self.atoms)
        first = int(self.starts(top, bottom)[geounit])
        count = int(self.starts(top, bottom)[geounit + 1]) - first
        gathered = Gathering(count * a)
        for number in range(top, bottom + 1):
            inside = self.starts(top, number)
            down = self.starts(number, bottom) - first
            for unit in range(int(inside[geounit]), int(inside[geounit + 1])):
                blocks = np.arange(int(down[unit]), int(down[unit + 1]))[:, None] * a
                self._gather(gathered, self.tiers[number], unit, blocks)
        for name, mask in self.zeros:
            columns = (np.arange(count)[:, None] * a + np.flatnonzero(mask)).ravel()
            gathered.add(HeldConstraint("", name, "=", 0), columns)
        return gathered

    def _gather(self, gathered: Gathering, tier: Tier, unit: int, blocks: Ints) -> None:
        """Add the constraints of one geounit, whose variables stand in blocks of atoms."""
        where = f"{tier.name} {tier.label(unit)}"
        own = {invariant.name for invariant in tier.own}
        for invariant in tier.invariants:
            rows = self.atoms.rows(invariant.query)
            for row in range(invariant.query.size):
                name = invariant_name(invariant.name, invariant.query, row)
                held = HeldConstraint(
                    where,
                    name if invariant.name in own else f"{name}, summed",
                    "=",
                    int(invariant.answers[unit, row]),
                )
                inside = rows.indices[rows.indptr[row] : rows.indptr[row + 1]]
                gathered.add(held, (blocks + inside).ravel())
        for k, name in enumerate(self.bound_names):
            columns = (blocks + np.flatnonzero(self.bound_sets[k])).ravel()
            low, high = int(tier.lower[unit, k]), int(tier.upper[unit, k])
            if low > 0:
                gathered.add(HeldConstraint(where, f"lower bound of {name}", ">=", low), columns)
            gathered.add(HeldConstraint(where, f"upper bound of {name}", "<=", high), columns)
        if tier.linear is not None:
            gathered.add_linear(tier.linear, unit, where, blocks)


def _zeros(product: Product, possible: Bools) -> list[tuple[str, Bools]]:
    """Return the structural zeros in words, each with the cells that it makes impossible, bool (n,)."""
    declared: Sequence[StructuralZero] = product.structural_zeros
    found = []
    if len(declared) <= MOST_ZEROS:
        for zero in declared:
            words = ", ".join(f"{name}={'|'.join(labels)}" for name, labels in zero.levels.items())
            mask = ~replace(product, structural_zeros=(zero,)).possible
            found.append((f"structural zero {words}", mask))
    left = ~possible & ~np.any([mask for _, mask in found], axis=0) if found else ~possible
    if left.any():
        found.append(("structural zeros", left))
    return found


def _tiers(product: Product, spine: Spine, table: ConstraintTable) -> list[Tier]:
    """Return the tiers, top first: every geolevel, and above a divided one its official geounits."""
    tiers: list[Tier] = []
    leaf = table.levels[-1]
    below: set[str] = set()
    for number in reversed(range(len(spine.levels))):
        level, held = spine.levels[number], table.levels[number]
        lower, upper = leaf.lower, leaf.upper  # of a nation's leaves: no copy
        if number + 1 < len(spine.levels):
            starts = spine.leaf_starts(number)[:-1]
            lower, upper = (np.add.reduceat(bound, starts, axis=0) for bound in (lower, upper))
        own = tuple(invariant for invariant in held.invariants if invariant.name not in below)
        below.update(invariant.name for invariant in held.invariants)
        tier = Tier(
            level.name,
            level.geocodes,
            level.parent,
            lower,
            upper,
            held.lower,
            held.upper,
            held.invariants,
            own,
            held.linear,
        )
        if held.joint is None:
            tiers.insert(0, tier)
            continue
        below.add(held.joint.name)
        tiers[:0] = _divided(product, tier, held)
    return tiers


def _divided(product: Product, parts: Tier, held: LevelConstraints) -> tuple[Tier, Tier]:
    """Return official geounits that are divided, and their parts."""
    joint = held.joint
    if joint is None:
        raise ValueError("a divided geolevel has a total that its parts hold together")
    first = np.flatnonzero(np.diff(joint.group, prepend=-1))
    total = InvariantAnswers(joint.name, product.workload.group("total"), joint.totals[:, None])
    summed = tuple(
        InvariantAnswers(held.name, held.query, np.add.reduceat(held.answers, first, axis=0))
        for held in parts.invariants
    )
    lower, upper, tight_lower, tight_upper = (
        np.add.reduceat(bound, first, axis=0)
        for bound in (parts.lower, parts.upper, parts.tight_lower, parts.tight_upper)
    )
    whole = Tier(
        parts.name,
        _whole_codes(parts.geocodes, first, len(parts)),
        parts.parent[first],
        lower,
        upper,
        tight_lower,
        tight_upper,
        (*summed, total),
        (total,),
        None
        if parts.linear is None
        else replace(parts.linear, at_most=np.add.reduceat(parts.linear.at_most, first, axis=0)),
    )
    return whole, replace(parts, parent=joint.group.astype(np.int64))


def _whole_codes(geocodes: Sequence[bytes] | Codes, first: Ints, count: int) -> tuple[bytes, ...]:
    """Return the codes of divided geounits: those of their parts without the character that differs."""
    codes = []
    for start, stop in itertools.pairwise([*first.tolist(), count]):
        parts = [bytes(code) for code in geocodes[start:stop]]
        rest = {code[1:] for code in parts}
        codes.append(parts[0] if len(parts) == 1 or len(rest) != 1 else rest.pop())
    return tuple(codes)
