"""The off-spine entity distance against all signed combinations of geounits, on small trees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.seeds import seeds

from opendas.geography.off_spine_distance import (
    Memberships,
    SubtreeCosts,
    distances,
    outside_costs,
    parent_costs,
    subtree_costs,
)

MOST_GEOUNITS = 10


def random_tree(rng: np.random.Generator, roots: int = 1) -> list[np.ndarray]:
    """Return the parents of a random tree of two to four levels with at most `MOST_GEOUNITS` geounits."""
    while True:
        parents, width = [], roots
        for _ in range(int(rng.integers(1, 4))):
            children = rng.integers(1, 4, size=width)
            parents.append(np.repeat(np.arange(width), children))
            width = int(children.sum())
        if roots + sum(map(len, parents)) <= MOST_GEOUNITS:
            return parents


def leaves_below(parents: list[np.ndarray], roots: int) -> np.ndarray:
    """Return bool (geounits, leaves): which leaves each geounit of each level holds."""
    leaf_count = len(parents[-1])
    rows = []
    position = np.arange(leaf_count)
    for level in range(len(parents), -1, -1):
        width = roots if level == 0 else len(parents[level - 1])
        rows.append(position[None, :] == np.arange(width)[:, None])
        if level:
            position = parents[level - 1][position]
    return np.concatenate(rows)


def least_by_brute_force(below: np.ndarray, target: np.ndarray, values: tuple[float, ...]) -> int:
    """Return the least number of geounits with a coefficient in `values` whose sum is the entity."""
    coefficients = np.array(list(itertools.product((0.0, *values), repeat=len(below))), dtype=np.float32)
    right = (coefficients @ below.astype(np.float32) == target).all(axis=1)
    return int((coefficients[right] != 0).sum(axis=1).min())


def pairs_of(inside: np.ndarray) -> Memberships:
    """Return the pairs of a table of entities by leaves, in no particular order."""
    entity, leaf = np.nonzero(inside)
    order = np.random.default_rng(0).permutation(len(entity))
    return Memberships(entity[order], leaf[order])


@pytest.mark.parametrize("seed", seeds(60))
def test_distance_is_the_least_number_of_signed_geounits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    roots = int(rng.integers(1, 3))
    parents = random_tree(rng, roots)
    below = leaves_below(parents, roots)
    leaf_count = below.shape[1]
    inside = rng.random((4, leaf_count)) < rng.random((4, 1))  # overlapping; some may be empty
    found = distances(parents, leaf_count, pairs_of(inside), len(inside))
    expected = [least_by_brute_force(below, row, (-1.0, 1.0)) for row in inside]
    assert found.tolist() == expected


def test_every_entity_of_one_tree() -> None:
    parents = [np.array([0, 0]), np.array([0, 0, 0, 1, 1])]
    below = leaves_below(parents, 1)
    inside = np.array(list(itertools.product((False, True), repeat=5)))
    found = distances(parents, 5, pairs_of(inside), len(inside))
    assert found.tolist() == [least_by_brute_force(below, row, (-1.0, 1.0)) for row in inside]
    assert set(found.tolist()) == {0, 1, 2, 3}


def test_other_coefficients_need_no_fewer_geounits() -> None:
    rng = np.random.default_rng(7)
    for _ in range(12):
        parents = random_tree(rng)
        while 1 + sum(map(len, parents)) > 7:
            parents = random_tree(rng)
        below = leaves_below(parents, 1)
        inside = rng.random((2, below.shape[1])) < 0.5
        found = distances(parents, below.shape[1], pairs_of(inside), 2)
        wide = [least_by_brute_force(below, row, (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)) for row in inside]
        assert found.tolist() == wide


def slow_costs(parents: list[np.ndarray], inside: np.ndarray, level: int) -> list[tuple[int, int]]:
    """Return c and c' of every geounit of a level for one entity: equations 4.1 to 4.4 as printed."""
    costs = [(1, 0) if leaf else (0, 1) for leaf in inside]
    for parent in reversed(parents[level:]):
        sums = [[0, 0] for _ in range(int(parent[-1]) + 1)]
        for above, (c, rest) in zip(parent, costs, strict=True):
            sums[above][0] += c
            sums[above][1] += rest
        costs = [(min(c, 1 + rest), min(rest, 1 + c)) for c, rest in sums]
    return costs


def larger_tree(rng: np.random.Generator, roots: int) -> list[np.ndarray]:
    parents, width = [], roots
    for _ in range(4):
        children = rng.integers(1, 6, size=width)
        parents.append(np.repeat(np.arange(width), children))
        width = int(children.sum())
    return parents


@pytest.mark.parametrize("seed", seeds(20))
def test_touched_geounits_are_enough(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = larger_tree(rng, int(rng.integers(1, 4)))
    leaf_count = len(parents[-1])
    inside = rng.random((9, leaf_count)) < rng.random((9, 1)) ** 2
    for level in range(5):
        costs = subtree_costs(parents, leaf_count, pairs_of(inside), level)
        assert np.all(np.diff(costs.entity * leaf_count + costs.geounit) > 0)
        for k, row in enumerate(inside):
            expected = slow_costs(parents, row, level)
            own = costs.entity == k
            found = dict.fromkeys(range(len(expected)), (0, 1))
            found.update(
                zip(
                    costs.geounit[own].tolist(),
                    zip(costs.inside[own].tolist(), costs.outside[own].tolist(), strict=True),
                    strict=True,
                )
            )
            assert [found[g] for g in range(len(expected))] == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_geounit_and_what_is_outside_it_make_the_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = larger_tree(rng, int(rng.integers(1, 4)))
    leaf_count = len(parents[-1])
    members = pairs_of(rng.random((9, leaf_count)) < rng.random((9, 1)))
    expected = distances(parents, leaf_count, members, 9)
    for level in range(5):
        costs = subtree_costs(parents, leaf_count, members, level)
        a, b = outside_costs(parents[:level], costs)
        assert np.array_equal(np.minimum(a + costs.inside, b + costs.outside), expected[costs.entity])
        # and with other costs in one geounit, recomputed from there
        for row in rng.integers(0, len(costs.entity), size=3):
            inside = costs.inside.copy()
            inside[row] += 3
            up = SubtreeCosts(costs.entity, costs.geounit, inside, costs.outside)
            for parent in reversed(parents[:level]):
                up = parent_costs(up, parent)
            changed = up.inside[up.entity == costs.entity[row]].sum()
            assert changed == min(a[row] + inside[row], b[row] + costs.outside[row])
