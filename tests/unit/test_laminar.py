"""Trees of row groups, and the refusal of crossing ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.seeds import seeds

from opendas.errors import ConfigError
from opendas.solvers.rounding.laminar import Rows, check_laminar, forest


def rows(maps, groups=()):
    n = len((list(maps) + list(groups))[0])
    return Rows(
        np.array(maps, np.int32).reshape(len(maps), n), np.array(groups, np.bool_).reshape(len(groups), n)
    )


def tree(family):
    return forest(*family)


def members(found, n):
    """Cells of every node, read off the owners and parents."""
    sets = [set() for _ in found.parent]
    for j in range(n):
        v = found.owner[j]
        while v >= 0:
            sets[v].add(j)
            v = found.parent[v]
    return sets


def test_a_query_tree():
    found = tree(rows([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]]))
    assert members(found, 4) == [{0, 1, 2, 3}, {0, 1}, {2, 3}, {0}, {1}, {2}, {3}]
    assert found.parent.tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert found.size.tolist() == [4, 2, 2, 1, 1, 1, 1]


def test_equal_sets_share_a_node():
    found = tree(rows([[0, 0, 1], [5, 5, 2]], [[True, True, False]]))
    assert len(found.parent) == 2
    assert found.map_node[0].tolist() == found.map_node[1].tolist()
    assert found.group_node[0] == found.map_node[0, 0]


def test_cells_outside_every_row_and_empty_groups():
    found = tree(rows([[0, -1, 0]], [[False, False, False]]))
    assert found.owner.tolist() == [0, -1, 0]
    assert found.group_node.tolist() == [-1]


def test_crossing_names_both_rows():
    with pytest.raises(
        ConfigError, match=r"query 'age', row 1 and query 'sex', row 0 cross|query 'sex'"
    ) as error:
        check_laminar(rows([[0, 0, 1, 1], [0, 1, 0, 1]]), ["age", "sex"])
    assert "'age'" in str(error.value)
    assert "milp = true" in str(error.value)


def test_crossing_group_is_named():
    with pytest.raises(ConfigError, match="constraint 'gq_total'"):
        check_laminar(rows([[0, 0, 1, 1]], [[False, True, True, False]]), ["age"], ["gq_total"])


def crosses(one, two):
    return bool(one & two) and bool(one - two) and bool(two - one)


@pytest.mark.parametrize("seed", seeds(200))
def test_agrees_with_all_pairs(seed):
    """Twin: compare every two sets."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    maps = rng.integers(-1, 3, (rng.integers(1, 3), n)).astype(np.int32)
    groups = rng.random((rng.integers(0, 3), n)) < 0.5
    sets = [frozenset(np.flatnonzero(m == r)) for m in maps for r in range(int(m.max(initial=-1)) + 1)]
    sets += [frozenset(np.flatnonzero(g)) for g in groups]
    found = tree(Rows(maps, groups))
    pairs = {
        frozenset(pair)
        for pair in itertools.combinations(range(len(sets)), 2)
        if crosses(*(sets[k] for k in pair))
    }
    if pairs:
        assert frozenset(found.crossing) in pairs
        with pytest.raises(ConfigError, match="cross"):
            check_laminar(Rows(maps, groups))
    else:
        check_laminar(Rows(maps, groups))
        assert found.crossing == (-1, -1)
        assert sorted(map(sorted, members(found, n))) == sorted(map(sorted, set(sets) - {frozenset()}))
