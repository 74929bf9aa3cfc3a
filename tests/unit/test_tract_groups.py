"""Tract groups: Algorithm 2 and the production variant against literal twins, bounds, Rhode Island."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest
from support.data import shared_data
from support.seeds import seeds

from opendas.errors import ConfigError, GeographyError
from opendas.geography.block_groups import largest_group
from opendas.geography.off_spine_distance import Memberships, distances, memberships_of, subtree_costs
from opendas.geography.partitions import standard_spine
from opendas.geography.tract_group_merges import NONE, county_state, merge_best_first, merge_pairs, pair_score
from opendas.geography.tract_groups import METHODS, tract_groups, tract_groups_for
from opendas.readers import ReaderSpec, make_reader
from opendas.schema.pl94 import pl94_persons

Parents = list[np.ndarray]


def random_case(seed: int) -> tuple[Parents, int, list[np.ndarray]]:
    """Return the parents of a random spine, the level of its tracts and two columns of entities.

    States, counties, tracts, block groups and blocks; entities are runs of blocks, with exceptions.
    """
    rng = np.random.default_rng(seed)
    parents, width = [], int(rng.integers(1, 3))
    for fewest, most in ((1, 3), (1, 10), (1, 3), (1, 5)):
        children = rng.integers(fewest, most + 1, size=width)
        parents.append(np.repeat(np.arange(width), children))
        width = int(children.sum())
    columns = []
    for _ in range(2):
        ends = np.sort(rng.choice(width, size=min(width, int(rng.integers(2, 9))), replace=False))
        column = np.searchsorted(ends, np.arange(width)).astype("S3")
        column[rng.random(width) < 0.1] = b"x"
        column[rng.random(width) < 0.2 * rng.random()] = b""
        column[column == b"0"] = b""
        columns.append(column)
    return parents, 2, columns


def all_pairs(columns: list[np.ndarray]) -> tuple[Memberships, int]:
    parts, count = [], 0
    for column in columns:
        codes, own = memberships_of(column)
        parts.append((own.entity + count, own.leaf))
        count += len(codes)
    return Memberships(*(np.concatenate(part) for part in zip(*parts, strict=True))), count


def distances_with(parents: Parents, level: int, columns: list[np.ndarray], group: np.ndarray) -> np.ndarray:
    """Return every entity's distance with the groups as a level of the spine: all levels sorted again."""
    labels = [np.arange(len(parents[-1]))]
    for parent in reversed(parents):
        labels.insert(0, parent[labels[0]])
    labels.insert(level, group[labels[level]])
    order = np.lexsort(labels[::-1])
    turned, above = [], None
    for label in labels:
        here = label[order]
        new = np.concatenate([[True], here[1:] != here[:-1]])
        if above is not None:
            turned.append(above[new])
        above = np.cumsum(new) - 1
    members, count = all_pairs([column[order] for column in columns])
    return distances(turned, len(order), members, count)


def descending(values: np.ndarray) -> list[int]:
    return sorted(values.tolist(), reverse=True)


def literal_greedy(parents: Parents, level: int, columns: list[np.ndarray], cutoff: int) -> np.ndarray:
    """Algorithm 2 as printed: every trial computes all distances from the whole spine again.

    Groups are taken in order of their first tract, and the passes go on after a merge.
    """
    county = parents[level - 1]
    group = np.arange(len(county))
    current = descending(distances_with(parents, level, columns, group))
    changed = True
    while changed:
        changed = False
        for own in range(int(county[-1]) + 1):
            tracts = np.flatnonzero(county == own)
            for u in tracts:
                for v in tracts[tracts > u]:
                    if group[u] != u or group[v] != v:
                        continue
                    if np.sum((group == u) | (group == v)) > np.sqrt(len(tracts)) + cutoff:
                        continue
                    trial = np.where(group == v, u, group)
                    test = descending(distances_with(parents, level, columns, trial))
                    if test <= current:  # lists compare lexicographically
                        group, current, changed = trial, test, True
    return group


def literal_production(
    parents: Parents, level: int, columns: list[np.ndarray], cutoff: int, threshold: int
) -> np.ndarray:
    """What the 2020 code does with one county after another, from sets and lists."""
    leaf_tract = np.arange(len(parents[-1]))
    for parent in reversed(parents[level:]):
        leaf_tract = parent[leaf_tract]
    county = parents[level - 1]
    group = np.arange(len(county))
    for own in range(int(county[-1]) + 1):
        tracts = np.flatnonzero(county == own).tolist()
        bound = int(np.sqrt(len(tracts)) + cutoff)
        inside = np.isin(leaf_tract, tracts)
        below = [tracts.index(t) for t in leaf_tract[inside]]
        short = county_spine(parents, level, own)
        local = [column[inside] for column in columns]
        holds = [
            {(c, code) for c, column in enumerate(local) for code in column[np.array(below) == i].tolist()}
            for i in range(len(tracts))
        ]
        groups: list[list[int]] = []
        waiting = list(range(len(tracts)))
        while waiting:
            same = [t for t in waiting if holds[t] == holds[waiting[0]]]
            waiting = [t for t in waiting if t not in same]
            groups += [same[i : i + bound] for i in range(0, len(same), bound)]
        groups.sort()

        def sorted_distances(
            trial: list[list[int]],
            short: Parents = short,
            local: list[np.ndarray] = local,
            count: int = len(tracts),
        ) -> list[int]:
            label = np.empty(count, dtype=np.int64)
            for members in trial:
                label[members] = min(members)
            found = distances_with(short, 1, local, label)
            bounds = distances_with(short, 1, local, np.arange(count))
            return descending(found[bounds > threshold])

        if not sorted_distances(groups):
            groups = [
                [t for members in groups[i : i + bound] for t in members]
                for i in range(0, len(groups), bound)
            ]
        else:
            best = sorted_distances(groups)
            final: list[list[int]] = []
            while len(groups) > 1:
                merged = False
                siblings = [members for members in groups if members not in final]
                for i, child in enumerate(siblings[:-1]):
                    for sibling in siblings[i + 1 :]:
                        if len(child) + len(sibling) > bound:
                            continue
                        trial = [members for members in groups if members != sibling]
                        trial[trial.index(child)] = child + sibling
                        test = sorted_distances(trial)
                        if test <= best:
                            groups, best, merged = trial, test, True
                            break
                    if merged:
                        break
                    final.append(child)
                if not merged:
                    break
        for members in groups:
            for t in members:
                group[tracts[t]] = tracts[min(members)]
    return group


def county_spine(parents: Parents, level: int, own: int) -> Parents:
    """Return the spine of one county, which is its root."""
    keep = parents[level - 1] == own
    result = [np.zeros(int(keep.sum()), dtype=np.int64)]
    for parent in parents[level:]:
        inside = keep[parent]
        result.append(np.unique(parent[inside], return_inverse=True)[1])
        keep = inside
    return result


def same_partition(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.array_equal(found, np.unique(expected, return_inverse=True)[1])


@pytest.mark.parametrize("seed", seeds(40))
def test_greedy_is_algorithm_2(seed: int) -> None:
    parents, level, columns = random_case(seed)
    cutoff = seed % 3 + 1
    found = tract_groups_for(parents, level, columns, "greedy", cutoff)
    assert same_partition(found, literal_greedy(parents, level, columns, cutoff))


@pytest.mark.parametrize("seed", seeds(40))
def test_production_is_what_the_2020_code_does(seed: int) -> None:
    parents, level, columns = random_case(seed)
    cutoff, threshold = seed % 3 + 1, seed % 4
    found = tract_groups_for(parents, level, columns, "production", cutoff, threshold)
    assert same_partition(found, literal_production(parents, level, columns, cutoff, threshold))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", seeds(20))
def test_every_grouping_is_within_the_bound_and_no_worse(method: str, seed: int) -> None:
    parents, level, columns = random_case(seed + 100)
    county = parents[level - 1]
    # A threshold of 0 targets every entity, so that production never joins whole lists of groups.
    found = tract_groups_for(parents, level, columns, method, 2, 0)
    assert np.array_equal(np.unique(found), np.arange(found.max() + 1))
    sizes = np.bincount(found)
    touched = np.zeros(int(county[-1]) + 1, dtype=bool)
    touched[subtree_costs(parents, len(parents[-1]), all_pairs(columns)[0], level - 1).geounit] = True
    for own in range(int(county[-1]) + 1):
        groups = np.unique(found[county == own])
        if method != "production" or touched[own]:
            assert sizes[groups].max() <= largest_group(int((county == own).sum()), 2)
        assert not np.isin(groups, found[county != own]).any()
    alone = distances_with(parents, level, columns, np.arange(len(county)))
    grouped = distances_with(parents, level, columns, found)
    assert np.all(grouped <= alone)
    if method == "greedy":
        assert descending(grouped) <= descending(alone)


def one_county(seed: int) -> tuple[object, np.ndarray]:
    """Return the state of a county of random tracts, and the weights of its entities."""
    rng = np.random.default_rng(seed)
    tracts, entities = int(rng.integers(2, 25)), int(rng.integers(1, 7))
    touched = rng.random((tracts, entities)) < 0.5
    tract, entity = np.nonzero(touched)
    inside = rng.integers(1, 6, size=len(tract))
    outside = np.maximum(inside + rng.integers(-1, 2, size=len(tract)), 0)
    starts = np.searchsorted(tract, np.arange(tracts + 1))
    base = np.zeros(entities, dtype=np.int64), np.ones(entities, dtype=np.int64)
    state = county_state(np.arange(tracts), starts, entity, inside, outside, base)
    return state, np.where(state.x <= state.y, state.x, -state.y)


@pytest.mark.parametrize("seed", seeds(40))
def test_best_first_merges_a_best_pair_every_time(seed: int) -> None:
    state, weight = one_county(seed)
    pairs = merge_best_first(state, 8, weight)
    again, _ = one_county(seed)
    for u, v in pairs:
        scores = {
            (a, b): pair_score(again, a, b, weight)
            for a in np.flatnonzero(again.size)
            for b in np.flatnonzero(again.size)
            if a < b and again.size[a] + again.size[b] <= 8
        }
        assert scores[u, v] == max(scores.values()) > NONE
        merge_pairs(again, np.array([u]), np.array([v]))
    left = np.flatnonzero(again.size)
    for i, a in enumerate(left):
        for b in left[i + 1 :]:
            assert again.size[a] + again.size[b] > 8 or pair_score(again, a, b, weight) == NONE
    assert np.array_equal(again.size, state.size)


def test_two_towns_whose_tracts_alternate() -> None:
    """Algorithm 2 merges the first tracts of both towns, which changes nothing, and is stuck with them."""
    parents = [np.zeros(8, dtype=np.int64), np.repeat(np.arange(8), 3)]
    town = np.tile(np.array([b"a", b"b"]), 4)[parents[1]]
    assert distances_with(parents, 1, [town], np.arange(8)).tolist() == [4, 4]
    found = {method: tract_groups_for(parents, 1, [town], method, 2, 0) for method in METHODS}
    assert {method: group.tolist() for method, group in found.items()} == {
        "greedy": [0, 0, 0, 0, 1, 1, 1, 1],
        "production": [0, 1] * 4,  # equal lists first
        "best_first": [0, 1] * 4,
    }
    assert distances_with(parents, 1, [town], found["greedy"]).tolist() == [4, 4]
    assert distances_with(parents, 1, [town], found["best_first"]).tolist() == [1, 1]


def test_without_entities_production_joins_whole_lists_and_the_others_fill_groups() -> None:
    parents = [np.zeros(9, dtype=np.int64), np.repeat(np.arange(9), 2)]
    none = np.zeros(18, dtype="S1")
    assert tract_groups_for(parents, 1, [none], "greedy", 1).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert tract_groups_for(parents, 1, [], "best_first", 1).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    # Equal lists give groups of 4, 4 and 1; then up to four groups become one.
    assert tract_groups_for(parents, 1, [none], "production", 1).tolist() == [0] * 9


def test_production_lists_none_where_a_tract_is_partly_in_none() -> None:
    parents = [np.zeros(4, dtype=np.int64), np.repeat(np.arange(4), 10)]
    place = np.array([b"p"] * 40)
    place[[15, 35]] = b""  # tracts 1 and 3 list "p" and "none", tracts 0 and 2 only "p"
    costs = subtree_costs(parents, 40, memberships_of(place)[1], 1)
    assert tract_groups_for(parents, 1, [place], "production", 1, 0).tolist() == [0, 1, 0, 1]
    assert tract_groups(parents[:1], costs, "production", 1, 0).tolist() == [0, 0, 0, 1]


def test_bad_calls_are_refused() -> None:
    for call, error, message in [
        (lambda p, c: tract_groups(p, c, "best"), ConfigError, "no method 'best'"),
        (lambda p, c: tract_groups(p, c, fanout_cutoff=0), ConfigError, "fanout_cutoff 0"),
        (lambda p, c: tract_groups(p, c, entity_threshold=-1), ConfigError, "entity_threshold -1"),
        (lambda p, c: tract_groups([], c), GeographyError, "county of every tract"),
        (lambda p, c: tract_groups([p[0][::-1]], c), GeographyError, "side by side"),
        (lambda p, c: tract_groups_for(p, 0, []), GeographyError, "no level above"),
    ]:
        parents = [np.array([0, 0, 1])]
        costs = subtree_costs(parents, 3, Memberships(np.array([0]), np.array([0])), 1)
        with pytest.raises(error, match=message):
            call(parents, costs)


def test_bound_is_the_integer_part() -> None:
    for tracts in range(1, 400):
        assert largest_group(tracts, 12) == int(np.sqrt(tracts) + 12) == isqrt(tracts) + 12


def test_rhode_island() -> None:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    frame = make_reader(ReaderSpec("pl94-2010", (path,), pl94_persons(), strict=True)).read().frame
    spine = standard_spine(frame)
    parents = [level.parent for level in spine.levels[1:]]

    def reached(categories: tuple[str, ...], method: str) -> np.ndarray:
        columns = [frame.entities[name][spine.leaf_order] for name in categories]
        if method == "none":
            return distances_with(parents, 2, columns, np.arange(len(spine.levels[2])))
        return distances_with(parents, 2, columns, tract_groups_for(parents, 2, columns, method))

    def mean(found: np.ndarray) -> float:
        return round(float(found.mean()), 2)

    methods = ("none", *METHODS)
    subdivisions = {method: reached(("cousub",), method) for method in methods}
    assert {m: (mean(d), int(d.max())) for m, d in subdivisions.items()} == {
        "none": (6.08, 39),
        "greedy": (1.64, 7),
        "production": (3.26, 8),  # entities up to 9 are ignored
        "best_first": (1.08, 2),
    }
    both = {method: reached(("cousub", "place"), method) for method in methods}
    assert mean(both["none"]) == 10.41
    assert descending(both["best_first"]) <= descending(both["greedy"]) <= descending(both["none"])
    assert both["best_first"].mean() < both["greedy"].mean() < 0.65 * both["none"].mean()
