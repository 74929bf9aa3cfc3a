"""Tract groups, Algorithm 2: bring entities closer to the spine by a level between counties and tracts.

Algorithm 2 of Cumings-Menon et al. (2024), its variant in the 2020 production code, and a search that finds
closer groupings; how groups merge is in :mod:`~opendas.geography.tract_group_merges`. Any grouping is at
least as good to every entity as one group a tract: the level only adds geounits that may be used. The level
needs a budget share of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError, GeographyError
from opendas.geography.block_groups import largest_group
from opendas.geography.off_spine_distance import (
    Memberships,
    SubtreeCosts,
    memberships_of,
    outside_costs,
    parent_costs,
    subtree_costs,
)
from opendas.geography.tract_group_merges import (
    County,
    county_state,
    merge_best_first,
    merge_pairs,
    merge_until_final,
    sweep,
)

METHODS = ("greedy", "production", "best_first")
"""Ways to choose tract groups."""


def tract_groups_for(
    parents: Sequence[Ints],
    level: int,
    columns: Sequence[Codes],
    method: str = "greedy",
    fanout_cutoff: int = 12,
    entity_threshold: int = 9,
) -> Ints:
    """Group the tracts of every county for the entities of some columns over the leaves.

    - `parents`: for each level below the roots down to the leaves, the parent of each geounit in the level
      above.
    - `level`: place of the tracts among the levels, the roots being 0; their parents are the counties.
    - `columns` (leaves,): entity codes of each category, in the order of the spine; the empty code means
      none.
    - `method`, `fanout_cutoff`, `entity_threshold`: as in `tract_groups`.
    - Returns (tracts,): group of each tract: 0, 1, ... in order of the counties, then of the groups' first
      tracts.
    """
    if not 1 <= level <= len(parents):
        raise GeographyError(f"level {level} of {len(parents) + 1} has no level above to group it in.")
    members, listed = _all_memberships(columns)
    leaves = len(parents[-1])
    tract = np.arange(leaves)
    for parent in reversed(parents[level:]):
        tract = parent[tract]
    costs = subtree_costs(parents, leaves, members, level)
    lists = tract[listed.leaf], listed.entity
    return tract_groups(parents[:level], costs, method, fanout_cutoff, entity_threshold, lists)


def tract_groups(
    parents: Sequence[Ints],
    costs: SubtreeCosts,
    method: str = "greedy",
    fanout_cutoff: int = 12,
    entity_threshold: int = 9,
    lists: tuple[Ints, Ints] | None = None,
) -> Ints:
    """Group the tracts of every county.

    - `parents`: for each level below the roots down to the tracts, the parent of each geounit in the level
      above, non-decreasing. The last one holds the county of each tract.
    - `costs`: at the level of the tracts, from `subtree_costs`.
    - `method`, {"greedy", "production", "best_first"}: ``greedy`` is Algorithm 2: passes through all pairs of
      all counties, merging every pair that does not make the sorted distances lexicographically greater,
      until a pass changes nothing. ``production`` is what the 2020 code does, each county for itself.
      ``best_first`` merges the pair that saves most, entities far from the spine first, and ends with the
      passes of ``greedy``.
    - `fanout_cutoff`: a group holds at most ``sqrt(tracts of the county) + fanout_cutoff`` tracts; >= 1.
    - `entity_threshold`: ``production`` only: entities with a distance up to this in the county are ignored;
      >= 0.
    - `lists` (pairs,): ``production`` only: tracts and what their lists hold; tracts with equal lists are
      merged first. The entities of each tract by default; production also lists "none" where a part of a
      tract is in none.
    - Returns (tracts,): group of each tract: 0, 1, ... in order of the counties, then of the groups' first
      tracts.

    Notes
    -----
    If ``production`` finds no entity above the threshold in a county, it joins *groups* of equal lists, as
    many as the bound allows tracts, so that these groups may hold more tracts than the bound.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise ConfigError(f"no method {method!r} for tract groups; there are {known}.")
    if fanout_cutoff < 1 or entity_threshold < 0:
        raise ConfigError(
            f"fanout_cutoff {fanout_cutoff}, entity_threshold {entity_threshold}: expected at least 1 and 0."
        )
    if not parents or np.any(np.diff(parents[-1]) < 0):
        raise GeographyError("tract groups need the county of every tract, the tracts of one side by side.")
    counties = _Counties(parents, costs, fanout_cutoff)
    if method == "production":
        _group_as_production(counties, lists or (costs.geounit, costs.entity), entity_threshold)
    else:
        _group_greedily(counties, best_first=method == "best_first")
    return np.unique(counties.group, return_inverse=True)[1].astype(np.int64)


class _Counties:
    """The grouping so far, and what every entity costs in every county under it."""

    def __init__(self, parents: Sequence[Ints], costs: SubtreeCosts, fanout_cutoff: int) -> None:
        self.above = parents[:-1]
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(parents[-1]))])
        self.fanout_cutoff = fanout_cutoff
        self.group = np.arange(len(parents[-1]), dtype=np.int64)
        order = np.argsort(costs.geounit, kind="stable")
        self.pairs = _rows(costs, order)
        self.costs = parent_costs(costs, parents[-1])
        self.rows = np.argsort(self.costs.geounit, kind="stable")
        self.row_starts = np.searchsorted(self.costs.geounit[self.rows], np.arange(len(self) + 1))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def bound(self, county: int) -> int:
        """Return how many tracts a group of a county may hold."""
        return largest_group(int(self.starts[county + 1] - self.starts[county]), self.fanout_cutoff)

    def present(self, county: int) -> Ints:
        """Return the rows of `costs` of a county, by ascending entity."""
        return self.rows[self.row_starts[county] : self.row_starts[county + 1]]

    def base(self, county: int) -> tuple[Ints, Ints]:
        """Return what the distances of a county's entities add to the costs of its groups and complements."""
        rows = self.present(county)
        wanted = np.zeros(int(self.costs.entity[-1]) + 1 if len(self.costs.entity) else 0, dtype=np.bool_)
        wanted[self.costs.entity[rows]] = True
        every = _rows(self.costs, np.flatnonzero(wanted[self.costs.entity]))
        here = every.geounit == county
        a, b = (value[here] for value in outside_costs(self.above, every))
        return np.minimum(a, b + 1), np.minimum(b, a + 1)

    def state(self, county: int, entities: Ints, base: tuple[Ints, Ints]) -> County:
        """Return the groups of a county and the distances of some of its entities (ascending)."""
        start, end = self.starts[county], self.starts[county + 1]
        low, high = np.searchsorted(self.pairs.geounit, [start, end])
        pairs = _rows(self.pairs, slice(low, high))
        pairs = _rows(pairs, np.flatnonzero(np.isin(pairs.entity, entities)))
        starts = np.searchsorted(pairs.geounit, np.arange(start, end + 1))
        number = np.searchsorted(entities, pairs.entity)
        return county_state(self.group[start:end] - start, starts, number, pairs.inside, pairs.outside, base)

    def adopt_groups(self, county: int, state: County) -> None:
        """Take over the groups of a county."""
        start, end = self.starts[county], self.starts[county + 1]
        group = state.group
        while np.any(group[group] != group):
            group = group[group]
        self.group[start:end] = start + group

    def adopt_costs(self, county: int, state: County, base: tuple[Ints, Ints]) -> None:
        """Take over what the entities now cost in a county."""
        rows = self.present(county)
        inside, outside = state.x - base[0], state.y - base[1]
        self.costs.inside[rows] = np.minimum(inside, outside + 1)
        self.costs.outside[rows] = np.minimum(outside, inside + 1)


def _rows(costs: SubtreeCosts, rows: Ints | slice) -> SubtreeCosts:
    return replace(
        costs,
        entity=costs.entity[rows],
        geounit=costs.geounit[rows],
        inside=costs.inside[rows],
        outside=costs.outside[rows],
    )


def _group_greedily(counties: _Counties, best_first: bool) -> None:
    """Merge in place until nothing changes, after merging best pairs first if asked.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 2: its passes over the counties.
    """
    final: dict[int, tuple[Ints, Ints]] = {}  # the base with which a county's last pass changed nothing
    changed, first = True, True
    while changed:
        changed = False
        for county in range(len(counties)):
            base = counties.base(county)
            if county in final and all(map(np.array_equal, final[county], base)):
                continue
            bound = counties.bound(county)
            state = counties.state(county, counties.costs.entity[counties.present(county)], base)
            if first and best_first:
                weight = np.where(state.x <= state.y, state.x, -state.y)
                changed |= len(merge_best_first(state, bound, weight)) > 0
            if sweep(state, bound):
                changed = True
            else:
                final[county] = base
            counties.adopt_groups(county, state)
            counties.adopt_costs(county, state, base)
        first = False


def _group_as_production(counties: _Counties, lists: tuple[Ints, Ints], entity_threshold: int) -> None:
    """Group each county for itself as the 2020 code does, in place."""
    kinds = _equal_lists(len(counties.group), *lists)
    for county in range(len(counties)):
        start, end = counties.starts[county], counties.starts[county + 1]
        bound = counties.bound(county)
        rows = counties.present(county)
        targeted = counties.costs.entity[rows[counties.costs.inside[rows] > entity_threshold]]
        nothing = np.zeros(len(targeted), dtype=np.int64)
        state = counties.state(county, targeted, (nothing, nothing + 1))
        merge_pairs(state, *_chunks(kinds[start:end], bound))
        if len(targeted):
            merge_until_final(state, bound)
        else:
            groups = np.flatnonzero(state.size)
            position = np.arange(len(groups)) // bound
            left = groups[position * bound]
            joined = left != groups
            merge_pairs(state, left[joined], groups[joined])
        counties.adopt_groups(county, state)


def _equal_lists(tracts: int, tract: Ints, item: Ints) -> Ints:
    """Number the different lists; return int64 (tracts,), equal where the tracts list the same items."""
    pairs = np.unique(np.stack([tract, item], axis=1), axis=0)
    starts = np.searchsorted(pairs[:, 0], np.arange(tracts + 1))
    numbers: dict[bytes, int] = {}
    kinds = [
        numbers.setdefault(pairs[low:high, 1].tobytes(), len(numbers))
        for low, high in itertools.pairwise(starts.tolist())
    ]
    return np.array(kinds, dtype=np.int64)


def _chunks(kind: Ints, bound: int) -> tuple[Ints, Ints]:
    """Return the merges that put tracts of one kind together, `bound` at a time in their order."""
    order = np.argsort(kind, kind="stable")
    first = np.searchsorted(kind[order], kind[order])  # where the tract's kind starts
    position = np.arange(len(kind)) - first
    left = order[first + position // bound * bound]
    joined = left != order
    return left[joined], order[joined]


def _all_memberships(columns: Sequence[Codes]) -> tuple[Memberships, Memberships]:
    """Return the pairs of all categories, and the same with "in none" of a category as one more entity."""
    members: list[Memberships] = []
    listed: list[Memberships] = []
    count = 0
    for column in columns:
        codes, own = memberships_of(column)
        members.append(Memberships(own.entity + count, own.leaf))
        none = np.setdiff1d(np.arange(len(column)), own.leaf, assume_unique=True)
        listed.append(members[-1])
        listed.append(Memberships(np.full(len(none), count + len(codes), dtype=np.int64), none))
        count += len(codes) + 1
    return _joined(members), _joined(listed)


def _joined(parts: Sequence[Memberships]) -> Memberships:
    none = np.empty(0, dtype=np.int64)
    return Memberships(
        np.concatenate([none, *(part.entity for part in parts)]),
        np.concatenate([none, *(part.leaf for part in parts)]),
    )
