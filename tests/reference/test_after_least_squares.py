"""Allocations that are optimal after least squares: dense algebra, general optimisers, real hierarchies."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import optimize
from support.data import shared_data

from opendas.allocation.after_least_squares import (
    allocate_after_least_squares,
    least_squares_variances,
    whole_shares,
)
from opendas.allocation.shares import least_gap, minimise_shares
from opendas.errors import BudgetError
from opendas.geography.hierarchy import Hierarchy
from opendas.gls.collapsed import CollapsedTree, Trace

SMALL = Hierarchy.of([[0], [0, 0, 0], [0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 2, 2, 3, 4, 5, 5, 5]])


@pytest.fixture(scope="module")
def rhode_island():
    table = pq.read_table(shared_data("pl94_2010_ri/ri_2010_block_geo.parquet"), columns=["GEOID"])
    blocks = np.array(table.column("GEOID").to_pylist())
    state, county, tract, group = (blocks.astype(f"U{digits}") for digits in (2, 5, 11, 12))
    return {
        3: Hierarchy.of_codes(state, tract, blocks),
        5: Hierarchy.of_codes(state, county, tract, group, blocks),
    }


def leaves_of(hierarchy):
    """Which leaves lie in each geounit, level by level, from the top."""
    found = [np.eye(hierarchy.sizes[-1])]
    for level in range(len(hierarchy) - 1, 0, -1):
        gather = np.zeros((hierarchy.sizes[level - 1], hierarchy.sizes[level]))
        gather[hierarchy.parents[level], np.arange(hierarchy.sizes[level])] = 1.0
        found.append(gather @ found[-1])
    return found[::-1]


def dense_variances(hierarchy, precisions):
    """Invert the whole information matrix."""
    areas = leaves_of(hierarchy)
    information = sum(p * a.T @ a for p, a in zip(precisions, areas, strict=True))
    covariance = np.linalg.inv(information)
    return np.array([np.trace(a @ covariance @ a.T) for a in areas])


def random_hierarchy(rng):
    parents, above = [np.zeros(int(rng.integers(1, 3)), np.int64)], None
    for _ in range(int(rng.integers(0, 4))):
        above = len(parents[-1])
        children = np.concatenate(
            [np.arange(above), rng.integers(0, above, int(rng.integers(0, 2 * above + 2)))]
        )
        parents.append(rng.permutation(children))
    return Hierarchy.of(parents)


def test_variances_against_dense_algebra():
    rng = np.random.default_rng(1)
    for _ in range(40):
        tree = random_hierarchy(rng)
        rho = rng.uniform(0.05, 2.0, len(tree)) * (rng.random(len(tree)) < 0.8)
        rho[-1] = rho[-1] or 0.3
        found = least_squares_variances(tree, rho, "gaussian")
        np.testing.assert_allclose(found, dense_variances(tree, 2 * rho), rtol=1e-10)
        epsilon = least_squares_variances(tree, rho, "laplace", neighbours="bounded")
        np.testing.assert_allclose(epsilon, dense_variances(tree, rho**2 / 8), rtol=1e-10)


def test_equal_subtrees_are_counted_once():
    tree = CollapsedTree.of_hierarchy(SMALL)
    assert tree.sizes == (1, 3, 6, 11)
    assert [len(places) for places in tree.contexts] == [1, 3, 6, 11]
    twins = Hierarchy.of([[0], [0] * 50, [k // 4 for k in range(200)]])
    assert [len(level.geounits) for level in CollapsedTree.of_hierarchy(twins).levels] == [1, 1, 1]


def test_geounits_without_leaves_are_left_out():
    ragged = Hierarchy.of([[0, 0], [0, 0, 1], [0, 0, 0]])  # the second root has no leaf, nor has tract 2
    plain = Hierarchy.of([[0], [0], [0, 0, 0]])
    np.testing.assert_allclose(
        least_squares_variances(ragged, [0.1, 0.2, 0.3]), least_squares_variances(plain, [0.1, 0.2, 0.3])
    )
    found = allocate_after_least_squares(ragged, 1)
    assert found.shares == allocate_after_least_squares(plain, 1).shares


def test_derivatives_against_differences():
    rng = np.random.default_rng(2)
    for _ in range(20):
        tree = random_hierarchy(rng)
        trace = Trace.counts(CollapsedTree.of_hierarchy(tree), rng.uniform(0, 2, (len(tree), 1)))
        p = rng.uniform(0.1, 2.0, (len(tree), 1))
        value, slope = trace.value_and_gradient(p)
        assert value == pytest.approx(float((trace.targets * trace.parts(p)).sum()), rel=1e-12)
        for level in range(len(tree)):
            step = np.zeros_like(p)
            step[level] = 1e-5
            difference = trace.value_and_gradient(p + step)[0] - trace.value_and_gradient(p - step)[0]
            assert slope[level, 0] == pytest.approx(difference / 2e-5, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("weights", [None, (1, 1, 1, 0.01), (5, 0, 0.2, 1)])
def test_concentrated_allocations_against_a_general_optimiser(weights):
    w = np.ones(4) if weights is None else np.array(weights)

    def objective(shares):
        return float(w @ dense_variances(SMALL, 2 * 0.7 * np.maximum(shares, 1e-12)))

    best = min(
        (
            optimize.minimize(
                objective,
                start,
                method="SLSQP",
                bounds=[(1e-9, 1)] * 4,
                constraints={"type": "eq", "fun": lambda s: s.sum() - 1},
                options={"ftol": 1e-14, "maxiter": 500},
            )
            for start in (np.full(4, 0.25), np.array([0.05, 0.1, 0.25, 0.6]))
        ),
        key=lambda found: found.fun,
    )
    found = allocate_after_least_squares(SMALL, "0.7", "gaussian", weights=weights)
    assert found.objective <= best.fun * (1 + 1e-6)
    np.testing.assert_allclose([float(s) for s in found.shares], best.x, atol=3e-4)
    assert 0 <= found.gap < 1e-6


def test_pure_allocations_against_many_starts():
    """Non-convex: a general optimiser from many starts finds nothing better."""
    rng = np.random.default_rng(3)

    def objective(shares):
        return float(dense_variances(SMALL, (3.0 * np.abs(shares)) ** 2 / 2 + 1e-15).sum())

    best = np.inf
    for start in rng.dirichlet(np.ones(4), 12):
        result = optimize.minimize(
            objective,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda s: s.sum() - 1},
        )
        best = min(best, result.fun)
    found = allocate_after_least_squares(SMALL, 3, "laplace")
    assert found.objective <= best * (1 + 1e-6)
    assert found.supports == 8
    assert found.gap is None


@pytest.mark.parametrize(
    ("levels", "kind", "total", "expected", "variance"),
    [
        (3, "laplace", "2", (0.050, 0.283, 1.667), 22_987),
        (5, "laplace", "2", (0, 0.082, 0, 0.463, 1.454), 35_941),
        (3, "gaussian", "0.5", (0.0027, 0.0397, 0.4576), 30_131),
        (5, "gaussian", "0.5", (0.0017, 0.0043, 0.0231, 0.0587, 0.4122), 37_364),
    ],
)
def test_rhode_island(rhode_island, levels, kind, total, expected, variance):
    found = allocate_after_least_squares(rhode_island[levels], total, kind)
    digits = 3 if kind == "laplace" else 4
    assert [round(float(budget), digits) for budget in found.budgets] == list(expected)
    assert round(found.objective) == variance
    assert sum(found.budgets) == Fraction(total)


def test_rhode_island_other_allocations(rhode_island):
    """What program (6), a uniform allocation, and no consistency would leave."""
    three, five = rhode_island[3], rhode_island[5]

    def total(tree, budgets, kind):
        return sum(least_squares_variances(tree, budgets, kind))

    assert total(three, (0.057, 0.357, 1.586), "laplace") == pytest.approx(23_458, rel=2e-4)
    assert total(three, [Fraction(2, 3)] * 3, "laplace") == pytest.approx(113_314, rel=1e-5)
    assert total(five, [Fraction(2, 5)] * 5, "laplace") == pytest.approx(314_763, rel=1e-5)
    assert total(three, [Fraction(1, 6)] * 3, "gaussian") == pytest.approx(75_543, rel=1e-5)
    assert total(five, [Fraction(1, 10)] * 5, "discrete-gaussian") == pytest.approx(125_905, rel=1e-5)


def test_leaves_alone_get_everything(rhode_island):
    for kind in ("laplace", "gaussian"):
        found = allocate_after_least_squares(rhode_island[3], 1, kind, weights=(0, 0, 1))
        assert float(found.shares[-1]) > 0.999


def test_levels_below_the_lowest_weight_get_nothing():
    found = allocate_after_least_squares(SMALL, 1, weights=(1, 1, 0, 0))
    assert found.shares[2:] == (0, 0)
    assert found.variances[2:] == (None, None)
    assert None not in found.variances[:2]


def test_integer_noise_is_reported_exactly():
    tree = Hierarchy.of([[0]])
    assert least_squares_variances(tree, [1], "discrete-laplace")[0] == pytest.approx(1 / (np.cosh(1) - 1))
    assert least_squares_variances(tree, [Fraction(1, 2)])[0] == pytest.approx(1.0, rel=1e-6)
    assert least_squares_variances(tree, [5])[0] == pytest.approx(2 / (np.exp(5.0) + 2), rel=1e-5)
    assert least_squares_variances(tree, [0]) == (None,)


@pytest.mark.parametrize("kind", ["laplace", "discrete-laplace", "gaussian", "discrete-gaussian"])
@pytest.mark.parametrize("total", ["1/1000000", "0.3", "40"])
def test_totals_are_exact(kind, total):
    found = allocate_after_least_squares(SMALL, total, kind, neighbours="bounded")
    assert sum(found.shares) == 1
    assert sum(found.budgets) == Fraction(total)
    assert all(share >= 0 for share in found.shares)


def test_wrong_arguments():
    for wrong, words in (
        ({"total": 0}, "positive"),
        ({"total": 1, "weights": (1, 1)}, "weights: give one for each of 4 levels"),
        ({"total": 1, "weights": (0, 0, 0, 0)}, "weights: give one for each of 4 levels"),
        ({"total": 1, "weights": (1, 1, 1, -1)}, "weights: give one for each of 4 levels"),
        ({"total": 1, "weights": (1, 1, 1, np.nan)}, "weights: give one for each of 4 levels"),
        ({"total": 1000, "mechanism": "discrete-laplace"}, "above 300"),
    ):
        with pytest.raises(BudgetError, match=words):
            allocate_after_least_squares(SMALL, **wrong)
    deep = Hierarchy.of([[0]] * 13)
    with pytest.raises(BudgetError, match="12 levels"):
        allocate_after_least_squares(deep, 1, "laplace")
    assert sum(allocate_after_least_squares(deep, 1).shares) == 1
    with pytest.raises(BudgetError, match="no leaf"):
        allocate_after_least_squares(Hierarchy.of([[0], []]), 1)
    for budgets in ((1,), (1, 1, 1, -1), (1, 1, 1, np.inf)):
        with pytest.raises(BudgetError, match="budgets: give one for each of 4 levels"):
            least_squares_variances(SMALL, budgets)


def test_shares_rounded():
    assert whole_shares(np.array([1.0])) == (1,)
    assert sum(whole_shares(np.full(7, 1 / 7))) == 1
    assert whole_shares(np.array([0.0, 1 / 3, 2 / 3]), Fraction(1, 10)) == (
        0,
        Fraction(3, 10),
        Fraction(7, 10),
    )


def test_descent_on_shares():
    """A quadratic over positive shares whose minimum lies on the border."""
    centre = np.array([0.7, 0.5, -0.4])

    def function(s):
        return 1.0 + float(((s - centre) ** 2).sum()), 2 * (s - centre)

    shares, value = minimise_shares(function, np.ones(3))
    np.testing.assert_allclose(shares, [0.6, 0.4, 0.0], atol=1e-6)
    assert least_gap(value, function(shares)[1], shares) < 1e-6
    assert least_gap(*function(np.array([0.2, 0.2, 0.6])), np.array([0.2, 0.2, 0.6])) > 0.1
    held, _ = minimise_shares(function, np.array([0.0, 1.0, 1.0]))
    assert held[0] == 0.0
