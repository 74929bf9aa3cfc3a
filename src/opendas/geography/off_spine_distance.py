"""Off-spine entity distance, Algorithm 1: how far entities lie from a spine.

The distance of an entity is the least number of geounits that must be added to or subtracted from one another
to give it; that of a geounit of the spine is 1. Equations (4.1) to (4.4) of Cumings-Menon et al. (2024) find
it from the leaves upwards,

    c  = min(sum of the children's c,  1 + sum of the children's c')
    c' = min(sum of the children's c', 1 + sum of the children's c)

with ``c`` the cost of what lies of the entity inside a geounit and ``c'`` that of the rest of the geounit. A
geounit that an entity does not touch has ``c = 0, c' = 1`` at every level, so only touched geounits are
visited: the work is linear in the number of (entity, leaf) pairs, times the number of levels.

The minimum is over all signed combinations. Write beside every geounit the sum of the coefficients from the
root down to it: 0 above the roots, the entity's indicator at the leaves. A geounit has a coefficient exactly
where its sum differs from its parent's. Replacing every sum other than 1 by 0 keeps both ends and makes no
two equal sums different, so sums of 0 and 1 are enough, and those are what the recursion goes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import GeographyError
from opendas.geography.frame import Grouping
from opendas.geography.spine import Spine

_BEYOND = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Memberships:
    """Which leaves lie in which entities, as pairs; a leaf may lie in several entities."""

    entity: Ints  # (pairs,): entity, numbered from 0
    leaf: Ints  # (pairs,): leaf, numbered in the order of the spine

    def __post_init__(self) -> None:
        if self.entity.shape != self.leaf.shape or self.entity.ndim != 1:
            raise GeographyError(
                f"{self.entity.size} entities beside {self.leaf.size} leaves; pairs have one of each."
            )


@dataclass(frozen=True, slots=True, eq=False)
class SubtreeCosts:
    """The ``c`` and ``c'`` of every touched geounit of one level, sorted by entity, then geounit."""

    # entity, geounit (pairs,): pairs that share at least one leaf; every other geounit has ``c = 0`` and ``c'
    # = 1``.
    entity: Ints
    geounit: Ints
    inside: Ints  # (pairs,): ``c``: cost of the part of the geounit inside the entity
    outside: Ints  # (pairs,): ``c'``: cost of the part of the geounit outside the entity


@dataclass(frozen=True, slots=True, eq=False)
class EntityDistances:
    """Distances of the entities of one category, with the reductions of Algorithm 1."""

    category: str  # entity category, for instance ``"place"``
    codes: Codes  # (entities,): entities with at least one leaf, ascending
    distance: Ints  # (entities,): least number of geounits added or subtracted
    leaves: Ints  # (entities,): leaves in each entity

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def mean(self) -> float:
        """Mean distance; 0 without entities."""
        return float(self.distance.mean()) if len(self) else 0.0

    @property
    def maximum(self) -> int:
        """Largest distance; 0 without entities."""
        return int(self.distance.max()) if len(self) else 0


def entity_distances(spine: Spine, codes: Codes, category: str = "") -> EntityDistances:
    """Return the distance of every entity of one category from a spine.

    - `codes` (leaves,): entity of each leaf, in the order of the frame; the empty code means none.
    - `category`: name that the result carries.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 1. A spine of several roots has no geounit above them: the costs of
    the roots add up.
    """
    if len(codes) != len(spine.leaf_order):
        raise GeographyError(
            f"{len(codes)} entity codes for {len(spine.leaf_order)} leaves; one per leaf is needed."
        )
    found, members = memberships_of(codes[spine.leaf_order])
    parents = [level.parent for level in spine.levels[1:]]
    distance = distances(parents, len(spine.leaf_order), members, len(found))
    return EntityDistances(category, found, distance, np.bincount(members.entity, minlength=len(found)))


def memberships_of(codes: Codes) -> tuple[Codes, Memberships]:
    """Return the entity codes of one category, ascending, and the pairs; the empty code is no entity.

    `codes` (leaves,): in the order of the leaves.
    """
    grouping = Grouping.of("", codes)
    leaf = grouping.members
    return grouping.geocodes, Memberships(grouping.of_leaf[leaf], leaf)


def distances(parents: Sequence[Ints], leaf_count: int, memberships: Memberships, entities: int) -> Ints:
    """Return each entity's distance from a spine: the costs of its parts, added over the roots.

    - `parents`: for each level below the roots down to the leaves, the parent of each geounit in the level
      above, non-decreasing. Empty if the leaves are the roots.
    - `entities`: number of entities; one without a leaf has distance 0.
    - Returns (entities,): an entity in several roots costs the sum over the roots.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 1, before it is reduced to a mean or a maximum.
    """
    top = subtree_costs(parents, leaf_count, memberships, 0)
    if len(top.entity) and int(top.entity[-1]) >= entities:
        raise GeographyError(f"entity {int(top.entity[-1])} of {entities}; entities are numbered from 0.")
    result = np.zeros(entities, dtype=np.int64)
    np.add.at(result, top.entity, top.inside)
    return result


def subtree_costs(
    parents: Sequence[Ints], leaf_count: int, memberships: Memberships, level: int
) -> SubtreeCosts:
    """Return ``c`` and ``c'`` of every touched geounit of one level.

    - `parents`, `leaf_count`, `memberships`: as in `distances`.
    - `level`: 0 for the roots, ``len(parents)`` for the leaves.
    """
    costs = _leaf_costs(memberships, leaf_count)
    below = leaf_count
    for parent in reversed(parents[level:]):
        if len(parent) != below:
            raise GeographyError(f"a level of {below} geounits has {len(parent)} parents; each has one.")
        if np.any(parent[1:] < parent[:-1]):
            raise GeographyError("children of one parent are not consecutive.")
        costs = parent_costs(costs, parent)
        below = int(parent[-1]) + 1 if len(parent) else 0
    return costs


def parent_costs(costs: SubtreeCosts, parent: Ints) -> SubtreeCosts:
    """Return the costs one level up; `parent` is the parent of every geounit of the level of `costs`.

    Notes
    -----
    Cumings-Menon et al. (2024), equations (4.3) and (4.4); of leaves, (4.1) and (4.2).
    """
    if len(costs.entity) == 0:
        return costs
    above = parent[costs.geounit]
    first = np.flatnonzero(
        np.concatenate([[True], (above[1:] != above[:-1]) | (costs.entity[1:] != costs.entity[:-1])])
    )
    entity, geounit = costs.entity[first], above[first]
    touched = np.diff(np.append(first, len(above)))
    children = np.bincount(parent)[geounit]
    inside = np.add.reduceat(costs.inside, first)
    outside = np.add.reduceat(costs.outside, first) + (children - touched)  # an untouched child costs 1
    return SubtreeCosts(
        entity,
        geounit,
        np.minimum(inside, 1 + outside),
        np.minimum(outside, 1 + inside),
    )


def outside_costs(parents: Sequence[Ints], costs: SubtreeCosts) -> tuple[Ints, Ints]:
    """Return what the entities cost outside a geounit: the distance is ``min(a + c, b + c')``.

    - `parents`: as in `distances`, but down to the level of `costs` only; empty where its geounits are the
      roots.
    - `costs`: all pairs of the entities in it; ``c`` and ``c'`` of the pair itself do not matter.
    - Returns `a`, `b` (pairs,): with the geounits above summing to 0 and to 1 on the geounit. In a root,
      where nothing is above, ``b`` is beyond every distance.
    """
    levels = [costs]
    for parent in reversed(parents):
        levels.append(parent_costs(levels[-1], parent))
    top = levels[-1]
    total = np.zeros(int(top.entity[-1]) + 1 if len(top.entity) else 0, dtype=np.int64)
    np.add.at(total, top.entity, top.inside)
    a = total[top.entity] - top.inside
    b = np.full(len(a), _BEYOND, dtype=np.int64)
    for lower, upper, parent in zip(levels[-2::-1], levels[:0:-1], parents, strict=True):
        above = np.searchsorted(
            upper.entity * len(parent) + upper.geounit, lower.entity * len(parent) + parent[lower.geounit]
        )
        untouched = np.bincount(parent)[upper.geounit] - np.bincount(above)
        inside = np.bincount(above, lower.inside).astype(np.int64)
        outside = np.bincount(above, lower.outside).astype(np.int64) + untouched
        a, b = (
            (np.minimum(a, b + 1) + inside)[above] - lower.inside,
            (np.minimum(b, a + 1) + outside)[above] - lower.outside,
        )
    return a, b


def _leaf_costs(memberships: Memberships, leaf_count: int) -> SubtreeCosts:
    """Return the pairs sorted by entity, then leaf, with ``c = 1`` and ``c' = 0``."""
    entity, leaf = memberships.entity, memberships.leaf
    if len(leaf) and (int(leaf.min()) < 0 or int(leaf.max()) >= leaf_count or int(entity.min()) < 0):
        raise GeographyError(f"memberships name a leaf or an entity that is not there ({leaf_count} leaves).")
    if np.any(leaf[1:] < leaf[:-1]):
        order = np.argsort(leaf, kind="stable")
        entity, leaf = entity[order], leaf[order]
    order = np.argsort(entity, kind="stable")
    entity, leaf = entity[order], leaf[order]
    if np.any((entity[1:] == entity[:-1]) & (leaf[1:] == leaf[:-1])):
        raise GeographyError("a leaf is listed twice in one entity.")
    return SubtreeCosts(entity, leaf, np.ones(len(leaf), np.int64), np.zeros(len(leaf), np.int64))
