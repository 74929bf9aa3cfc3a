"""Compute the loss of moves within official areas: geounits, towns, reservations.

A plan states losses within a geounit of its spine. A spine may divide states and regroup blocks, so that
blocks of one official block group lie far apart on it, and a move between them has a larger loss. This module
computes exact losses within official areas from the public spine and frame alone. Argument:
``docs/proofs/exact-accounting.md``.

Axes: ``a`` areas of one kind; ``g`` geounits of a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, Self

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.budget.noise import within_rho
from opendas.constraints.fixed_sums import FREE
from opendas.errors import GeographyError
from opendas.geography.frame import Frame
from opendas.geography.off_spine_distance import Memberships, memberships_of
from opendas.geography.spine import Spine
from opendas.measurement.loss import move_loss
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.composition import WorstLoss
from opendas.privacy.exact import parse_fraction


@dataclass(frozen=True, slots=True)
class AreaLoss:
    """Loss of a record that moves inside one official area, over all areas of a kind."""

    kind: str  # official geolevel or entity category
    areas: int  # Number of areas with at least one leaf. An area with a single leaf has loss 0.
    largest: Fraction  # largest loss of an area: rho, or epsilon for the discrete Laplace
    median: Fraction  # at least half of the areas lose at most this, and at least half lose at least this
    # Number of areas that lose more than the plan states for a spine geounit of this geolevel; None if the
    # spine has no such geolevel.
    above_spine: int | None

    @classmethod
    def from_dict(cls, kind: str, record: Mapping[str, Any]) -> Self:
        """Read an entry of ``within_official`` of a certificate."""
        key = "pure_epsilon" if "pure_epsilon" in record["largest"] else "rho"
        largest, median = (parse_fraction(record[name][key], kind) for name in ("largest", "median"))
        return cls(kind, record["areas"], largest, median, record["above_spine"])


def official_losses(
    plan: MeasurementPlan,
    frame: Frame,
    held: ProtectionMap | None = None,
    stated: Mapping[str, Fraction] | None = None,
) -> tuple[AreaLoss, ...]:
    """Return the losses within official geounits above the leaves, and within the areas of each category.

    - `frame`: the frame from which the plan's spine was built.
    - `held`: compare only inputs that agree on the exact facts. By default, all moves are compared.
    - `stated`, geolevel -> Fraction: stated losses of moves within one geounit of the spine; by default,
      those by shares alone.
    - Returns: official geolevels from the top, then entity categories with at least one area.

    Notes
    -----
    A record moves and keeps its attributes. All pairs of leaves of an area are covered; the largest loss is
    that of the pair whose paths share least. If a protected unit has several records, all of them move, even
    where the facts forbid single moves.
    """
    if len(frame) != len(plan.spine.leaf):
        raise GeographyError(
            f"the frame has {len(frame)} leaves and the spine {len(plan.spine.leaf)}: they do not belong "
            "together."
        )
    stated = within_rho(plan.budget) if stated is None else stated
    found = []
    for kind in (*frame.levels, *frame.entities):
        areas = Areas.of(plan, frame.codes(kind), held)
        if len(areas.which):
            found.append(areas.summary(kind, stated.get(kind)))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Areas:
    """The areas of one kind on a spine, and the loss of a record that moves inside each."""

    # Sets of leaves of one area between which some record can move, numbered along the spine: all leaves of
    # the area, unless exact facts separate them.
    ranges: Memberships
    level: Ints  # (r,): lowest level at which one geounit contains a whole range; -1 if no root does
    losses: tuple[Fraction, ...]  # distinct losses, ascending
    of_range: Ints  # (r,): index into `losses` of each range
    area: Ints  # (r,): area of each range
    which: Ints  # (a,): index into `losses` of each area, by code

    @classmethod
    def of(cls, plan: MeasurementPlan, codes: Codes, held: ProtectionMap | None = None) -> Areas:
        """Find the areas of a kind.

        `codes` (leaves,): area of each leaf, in the order of the frame; the empty code means none.
        """
        spine = plan.spine
        areas, members = memberships_of(codes[spine.leaf_order])
        if held is None or plan.budget.contribution.bound is not None:
            ranges, area = members, np.arange(len(areas))
        else:
            ranges, area = _ranges(members, held)
        first = np.full(len(area), len(spine.leaf), dtype=np.int64)
        last = np.zeros(len(area), dtype=np.int64)
        np.minimum.at(first, ranges.entity, ranges.leaf)
        np.maximum.at(last, ranges.entity, ranges.leaf)
        level, geounit = _common_ancestors(spine, first, last)
        whole = Fraction(2, plan.budget.neighbours.l2_squared) * plan.budget.total
        found = [Fraction(0), whole]  # for an area where nothing moves, and for one below several roots
        of_range = np.ones(len(area), dtype=np.int64)
        for number, (left, kind) in enumerate(_left_below(plan)):
            here = level == number
            of_range[here] = len(found) + kind[geounit[here]]
            found += [part * whole for part in left]
        losses = sorted({Fraction(0), *(found[k] for k in np.unique(of_range).tolist())})
        rank = {loss: number for number, loss in enumerate(losses)}
        of_range = np.array([rank.get(loss, -1) for loss in found], dtype=np.int64)[of_range]
        which = np.zeros(len(areas), dtype=np.int64)
        np.maximum.at(which, area, of_range)
        return cls(ranges, level, tuple(losses), of_range, area, which)

    def summary(self, kind: str, stated: Fraction | None) -> AreaLoss:
        """Summarise the losses; `stated` is that within a geounit of the spine."""
        ascending = np.sort(self.which)
        largest, median = (self.losses[ascending[k]] for k in (-1, (len(ascending) - 1) // 2))
        above = None
        if stated is not None:
            above = int(np.array([loss > stated for loss in self.losses])[self.which].sum())
        return AreaLoss(kind, len(self.which), largest, median, above)

    def worst(self, plan: MeasurementPlan, at_most: Fraction) -> WorstLoss:
        """Return the exact loss of the worst move inside areas whose loss is at most `at_most`.

        Notes
        -----
        All pairs of paths of an area are compared below the geounit that contains the area: if two leaves
        share more, fewer answers differ.
        """
        paths, of_leaf = plan.spine.paths()
        some = np.array([loss <= at_most for loss in self.losses])[self.which][self.area]
        present = np.zeros((len(paths), len(self.level)), dtype=np.bool_)
        present[of_leaf[self.ranges.leaf], self.ranges.entity] = True
        moves = []
        for one, other in combinations_with_replacement(range(len(paths)), 2):
            levels = np.unique(self.level[present[one] & present[other] & some])
            moves += [(paths[one], paths[other], level) for level in levels.tolist()]
        return move_loss(plan, moves)


def _ranges(members: Memberships, held: ProtectionMap) -> tuple[Memberships, Ints]:
    """Split the leaves of areas into sets between which some record can move; also return their areas.

    A record that keeps its cell can move between leaves where the cell is free, inside one geounit of the
    lowest invariant.
    """
    units, patterns = int(held.unit.max()) + 1, held.patterns
    parts, part = np.unique(members.entity * units + held.unit[members.leaf], return_inverse=True)
    entity: list[Ints] = []
    leaf: list[Ints] = []
    area: list[Ints] = []
    for free in np.unique(patterns.state == FREE, axis=1).T:  # cells that are free at the same leaves
        there = np.flatnonzero(free[patterns.of_leaf[members.leaf]])
        some, position = np.unique(part[there], return_inverse=True)
        entity.append(position + sum(map(len, area)))
        leaf.append(members.leaf[there])
        area.append(parts[some] // units)
    return Memberships(np.concatenate(entity), np.concatenate(leaf)), np.concatenate(area)


def _common_ancestors(spine: Spine, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return the lowest common geounits of pairs of leaves, as level (-1 for none) and geounit.

    The leaves below a geounit are consecutive, so a geounit above the first and the last leaf of a set is
    above all of them.
    """
    level = np.full(len(first), -1, dtype=np.int64)
    geounit = np.zeros(len(first), dtype=np.int64)
    for number in reversed(range(len(spine.levels))):
        met = (level < 0) & (first == last)
        level[met], geounit[met] = number, first[met]
        parent = spine.levels[number].parent
        first, last = parent[first], parent[last]
    return level, geounit


@lru_cache(maxsize=1)
def _left_below(plan: MeasurementPlan) -> list[tuple[list[Fraction], Ints]]:
    """Return per level the distinct budget shares that remain below a geounit, and each geounit's.

    The shares along every path sum to one, so the rest below a geounit is the same for all its leaves.
    """
    left, found = [Fraction(1)], []
    which = np.zeros(1, dtype=np.int64)
    for number, (level, planned) in enumerate(zip(plan.spine.levels, plan.levels, strict=True)):
        above = which[level.parent] if number else np.zeros(len(level), dtype=np.int64)
        multiples, own = plan.spine.multiples(number)
        pairs, which = np.unique(above * len(multiples) + own, return_inverse=True)
        kinds = [divmod(pair, len(multiples)) for pair in pairs.tolist()]
        left = [left[before] - planned.share * multiples[multiple] for before, multiple in kinds]
        found.append((left, which))
    return found
