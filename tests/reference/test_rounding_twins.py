"""The flow rounder against enumeration, mixed-integer programs and the interpolated linear program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from reference import slow_rounding as slow
from support.seeds import seeds

from opendas.errors import InfeasibleFamily
from opendas.solvers.rounding.rounding import UNBOUNDED, round_family


def nested_maps(rng, n, depth):
    """Total, some random refinements, and the cells."""
    maps = [np.zeros(n, np.int32)]
    for _ in range(depth):
        finer = maps[-1] * 3 + rng.integers(0, 2 + rng.integers(2), n)
        maps.append(np.unique(finer, return_inverse=True)[1].astype(np.int32))
    maps.append(np.arange(n, dtype=np.int32))
    return maps


def instance(seed, children, n, *, root=False):
    """A synthetic family with a feasible estimate, masks, group bounds, one to three passes and keys."""
    rng = np.random.default_rng(seed)
    truth = rng.poisson(rng.lognormal(0, 1, (children, 1)) * rng.lognormal(0, 1, (1, n)) * 0.7)
    mask = rng.random((children, n)) < 0.85
    truth *= mask
    noisy = np.maximum(truth + rng.normal(0, 1.5, (children, n)), 0) * mask
    noisy = [noisy, np.round(noisy * 4) / 4, np.round(noisy)][rng.integers(3)]
    maps = nested_maps(rng, n, rng.integers(0, 3))
    of = maps[rng.integers(len(maps))]
    groups = np.array([of == r for r in np.unique(of)][:3]) if rng.random() < 0.7 else np.zeros((0, n), bool)
    if root:
        parent = None
        fixed = np.rint(noisy.sum(axis=1)).astype(np.int64)
        x = noisy * (fixed / np.maximum(noisy.sum(axis=1), 1e-9))[:, None]
    else:
        parent = truth.sum(axis=0)
        sums = noisy.sum(axis=0)
        x = np.where(sums > 0, noisy / np.where(sums > 0, sums, 1) * parent, truth)
    sums = x @ groups.T
    lower = np.where(rng.random(sums.shape) < 0.5, np.floor(sums + 1e-9), 0).astype(np.int64)
    upper = np.where(rng.random(sums.shape) < 0.5, np.ceil(sums - 1e-9), UNBOUNDED).astype(np.int64)
    if root:
        groups = np.vstack([groups, np.ones((1, n), bool)])
        lower, upper = np.c_[lower, fixed], np.c_[upper, fixed]
    passes = [
        tuple(maps[k] for k in sorted(rng.integers(0, len(maps), rng.integers(1, 4))))
        for _ in range(rng.integers(1, 4))
    ]
    if rng.random() < 0.8:
        passes[-1] = (*passes[-1], maps[-1])
    child_keys = rng.integers(0, 2**63, children).astype(np.uint64)
    cell_keys = rng.integers(0, 2**63, n).astype(np.uint64)
    return x, parent, mask, tuple(passes), groups, lower, upper, child_keys, cell_keys


def fast(case):
    *rest, cell_keys = case
    return round_family(*rest, cell_keys=cell_keys)


def quanta(result):
    return tuple(round(value * slow.ONE) for value in result.objective)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("seed", seeds(40))
def test_enumeration_finds_the_same_table(seed, root):
    shapes = [(2, 3), (3, 3), (2, 4), (4, 2)] if not root else [(1, 6), (2, 3), (1, 9)]
    case = instance(seed, *shapes[seed % len(shapes)], root=root)
    expected, objectives = slow.enumerate_rounding(*case)
    result = fast(case)
    np.testing.assert_array_equal(result.values, expected)
    assert quanta(result) == objectives


@pytest.mark.parametrize("seed", seeds(40))
def test_milp_reaches_the_same_objectives(seed):
    shapes = [(4, 6), (3, 12), (6, 8)]
    case = instance(1000 + seed, *shapes[seed % 3], root=seed % 5 == 0)
    # One pass: where an early pass has several optima, a solver without the tie rule may hold another one.
    passes = (tuple(rows for one in case[3] for rows in one),)
    case = (*case[:3], passes, *case[4:])
    expected, objectives = slow.solve_milp(*case)
    result = fast(case)
    assert expected is not None
    assert abs(quanta(result)[0] - objectives[0]) <= 1


@pytest.mark.parametrize("seed", seeds(30))
def test_interpolated_lp_has_the_same_optimum(seed):
    case = instance(2000 + seed, 5, 16, root=seed % 5 == 0)
    maps = tuple(rows for one in case[3] for rows in one)
    result = fast((*case[:3], (maps,), *case[4:]))
    optimum = slow.solve_interpolated_lp(*case[:3], maps, *case[4:])
    assert result.objective[0] == pytest.approx(optimum, abs=1e-6)


def test_the_literal_relaxation_is_not_integral():
    """Why breakpoints are needed: with fractional targets y = f costs nothing, and is no rounding."""
    case = instance(3, 4, 10)
    part = slow.snap(*case[:3], *case[7:])[1]
    assert part.any()
    sets = slow.row_sets(case[3][0])
    assert slow.objective(sets, part, part / slow.ONE) == 0


@pytest.mark.parametrize("seed", seeds(40))
def test_tight_bounds_agree_with_enumeration_on_feasibility(seed):
    x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys = instance(seed, 3, 3)
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 2, 3)
    passes = tuple(
        tuple(rows for rows in one if len(np.unique(rows)) in (1, 3)) or (np.zeros(3, np.int32),)
        for one in passes
    )
    groups = np.array([of == 0, of == 1])
    sums = np.floor(x) @ groups.T
    lower = (sums + rng.integers(0, 3, sums.shape)).astype(np.int64)
    upper = lower + rng.integers(0, 2, sums.shape)
    case = (x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys)
    expected, _ = slow.enumerate_rounding(*case)
    if expected is None:
        with pytest.raises(InfeasibleFamily):
            fast(case)
    else:
        np.testing.assert_array_equal(fast(case).values, expected)


@pytest.mark.parametrize("seed", seeds(25))
def test_crossing_rows_by_milp_agree_with_enumeration(seed):
    """Two attributes that cross; fractions in quarters make ties exact, so the solver is not in doubt."""
    rng = np.random.default_rng(seed)
    children, n = 2, 4
    x = np.round(rng.random((children, n)) * 8) / 4
    x[-1] = np.ceil(x.sum(axis=0)) - x[:-1].sum(axis=0)
    parent = np.rint(x.sum(axis=0)).astype(np.int64)
    one, two = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    passes = (((one, two),), ((np.zeros(n, np.int32),), (one, two, np.arange(n, dtype=np.int32))))[seed % 2]
    keys = rng.integers(0, 2**63, children).astype(np.uint64), rng.integers(0, 2**63, n).astype(np.uint64)
    groups, bounds = np.zeros((0, n), bool), np.zeros((children, 0), np.int64)
    case = (x, parent, np.ones(x.shape, bool), passes, groups, bounds, bounds)
    expected, objectives = slow.enumerate_rounding(*case, *keys)
    result = round_family(*case, keys[0], cell_keys=keys[1], milp=True)
    assert result.method == "milp"
    assert quanta(result) == objectives
    np.testing.assert_array_equal(result.values, expected)


@pytest.mark.parametrize("seed", seeds(40))
def test_rows_that_a_mask_makes_equal_keep_both_ties(seed):
    """Two children allow only the first pair: total and pair are one row there, with the ties of both."""
    rng = np.random.default_rng(seed)
    x = np.array([[0.25, 0.25, 0.0, 0.0], [0.25, 0.25, 0.0, 0.0], [0.5, 0.5, 1.0, 1.0]])
    mask = x > 0
    total, pairs = np.zeros(4, np.int32), np.array([0, 0, 1, 1], np.int32)
    passes = ((total, pairs), (np.arange(4, dtype=np.int32),))
    groups, bounds = np.zeros((0, 4), bool), np.zeros((3, 0), np.int64)
    keys = rng.integers(0, 2**63, 3).astype(np.uint64), rng.integers(0, 2**63, 4).astype(np.uint64)
    case = (x, x.sum(axis=0).astype(np.int64), mask, passes, groups, bounds, bounds, *keys)
    expected, objectives = slow.enumerate_rounding(*case)
    result = fast(case)
    np.testing.assert_array_equal(result.values, expected)
    assert quanta(result) == objectives


def test_with_other_coefficients_whole_numbers_may_not_exist():
    """Seven people in one household, four of them in one child: `people <= 7 households`, by brute force.

    The parent keeps the row, fractions keep it in both children, and no whole numbers do: a household lies in
    one child, and people are in both.
    """
    people, households, at_most = (4, 3), 1, 7
    assert sum(people) <= at_most * households
    fractions = [at_most * part / 7 for part in people]  # households of 4/7 and 3/7
    assert all(p <= room for p, room in zip(people, fractions, strict=True))
    whole = [
        (first, households - first)
        for first in range(households + 1)
        if people[0] <= at_most * first and people[1] <= at_most * (households - first)
    ]
    assert whole == []


@pytest.mark.parametrize("seed", seeds(5))
def test_only_other_coefficients_leave_fractions_without_whole_numbers(seed):
    """Random families of two children and three cells with a row `a x <= c` each: 0 and 1, then 0 to 3."""
    rng = np.random.default_rng(seed)
    stuck = {2: 0, 4: 0}
    for limit in stuck:
        for _ in range(500):
            a, parent, top = rng.integers(0, limit, 3), rng.integers(0, 4, 3), rng.integers(0, 5, 2)
            splits = itertools.product(*(range(n + 1) for n in parent))
            whole = any(a @ x <= top[0] and a @ (parent - x) <= top[1] for x in map(np.array, splits))
            fractions = bool(a @ parent <= top.sum())  # a @ x of one child is any number up to that
            assert fractions or not whole
            stuck[limit] += fractions and not whole
    assert stuck[2] == 0 < stuck[4]
