"""What bounds and exact totals imply, against brute force over all cells; cutting intervals off."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from support.mini import mini_frame, mini_histogram, mini_product, to_dense

from opendas.constraints.table import bound_table
from opendas.geography.partitions import standard_spine
from opendas.intervals.implied import UNBOUNDED, area_limits, cut, geounit_limits
from opendas.measurement.invariants import declared_invariants


@pytest.fixture(scope="module")
def land():
    product, frame = mini_product(), mini_frame(seed=4)
    counts = mini_histogram(frame, seed=4)
    spine = standard_spine(frame)
    table = bound_table(product, frame, spine, declared_invariants(product, counts, spine))
    return product, frame, spine, table, to_dense(counts)


QUERIES = ("total", "kind", "minor", "kind * minor", "detailed")


def boxes(product) -> np.ndarray:
    rows = [product.workload.group(name) for name in QUERIES]
    members = [g.row_of_cell[None, :] == np.arange(g.size)[:, None] for g in rows]
    rng = np.random.default_rng(0)
    return np.concatenate([*members, rng.random((20, product.schema.size)) < 0.5])


def test_truths_lie_within_their_limits(land) -> None:
    product, _, spine, table, dense = land
    members = boxes(product)
    for level in range(len(spine.levels)):
        starts = spine.leaf_starts(level)
        truth = np.add.reduceat(dense[spine.leaf_order], starts[:-1], axis=0) @ members.T
        lower, upper = geounit_limits(product, spine, table, level, np.arange(len(truth))).of(members)
        assert np.all(lower <= truth)
        assert np.all(truth <= upper)


@pytest.mark.parametrize("level", [0, 2])
def test_limits_are_those_of_a_linear_program(land, level: int) -> None:
    """At one geounit: bounds by kind, structural zeros and the exact total, if there is one."""
    product, _, spine, table, _ = land
    members = boxes(product)
    here = table.levels[level]
    lower, upper = geounit_limits(product, spine, table, level, np.arange(2)).of(members)
    region = table.levels[0].invariants[0].answers[:, 0]
    for unit in range(2):
        total = region[unit if level == 0 else 0]
        rows = [*table.bound_cells, *(-table.bound_cells.astype(int)), np.ones(9)]
        limits = [*here.upper[unit], *(-here.lower[unit]), total]
        equal = {"A_eq": np.ones((1, 9)), "b_eq": [total]} if level == 0 else {}
        each = [(0, None if ok else 0) for ok in product.possible]
        for k, box in enumerate(members):
            found = [
                sign
                * linprog(sign * box.astype(float), np.array(rows, float), limits, **equal, bounds=each).fun
                for sign in (1, -1)
            ]
            assert lower[unit, k] == pytest.approx(found[0], abs=1e-6)
            assert upper[unit, k] == pytest.approx(found[1], abs=1e-6)


def test_areas_add_up_leaves(land) -> None:
    product, _, spine, table, dense = land
    members = boxes(product)
    leaf = np.array([0, 1, 5, 7, 7, 20])
    which = np.array([0, 0, 0, 1, 2, 2])
    lower, upper = area_limits(product, spine, table, (which, leaf), 4).of(members)
    ordered = dense[spine.leaf_order]
    for area in range(4):
        truth = ordered[leaf[which == area]].sum(axis=0) @ members.T
        assert np.all(lower[area] <= truth)
        assert np.all(truth <= upper[area])
    assert not upper[3].any()
    regions = table.levels[0].invariants[0].answers[:, 0]
    assert upper[2].max() <= regions.sum()
    assert upper[0].max() <= regions[0]


def test_closed_categories_are_exactly_zero(land) -> None:
    product, frame, spine, table, _ = land
    members = boxes(product)[1:4]
    leaves = np.flatnonzero(frame.units["prisons"][spine.leaf_order] == 0)
    lower, upper = geounit_limits(product, spine, table, 2, leaves).of(members)
    assert not upper[:, 2].any()
    assert not lower[:, 2].any()


def test_an_invariant_query_is_exact(land) -> None:
    product, _, spine, table, _ = land
    lower, upper = geounit_limits(product, spine, table, 0, np.arange(2)).of(boxes(product)[:1])
    assert np.array_equal(lower, upper)
    assert np.array_equal(lower[:, 0], table.levels[0].invariants[0].answers[:, 0])


def test_cut_keeps_whole_numbers_within_limits_and_is_never_empty() -> None:
    rng = np.random.default_rng(1)
    middle = rng.uniform(-20, 20, 4000)
    half = rng.uniform(0, 6, 4000)
    least = rng.integers(0, 5, 4000)
    most = least + rng.integers(0, 10, 4000)
    lower, upper = cut(middle - half, middle + half, least, most)
    assert np.all(lower <= upper)
    assert np.all((lower == np.rint(lower)) & (upper == np.rint(upper)))
    assert np.all((least <= lower) & (upper <= most))
    for truth in range(15):
        possible = (least <= truth) & (truth <= most)
        before = (middle - half <= truth) & (truth <= middle + half)
        after = (lower <= truth) & (truth <= upper)
        single = lower == upper
        assert np.all(after[possible & before])
        assert np.all(before[possible & after & ~single])


def test_cut_of_what_is_not_bounded() -> None:
    lower, upper = cut([-np.inf, 1.2], [np.inf, 3.9999999999], np.array([2, 0]), np.array([UNBOUNDED] * 2))
    assert lower.tolist() == [2.0, 2.0]
    assert upper.tolist() == [np.inf, 4.0]
