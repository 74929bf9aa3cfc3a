"""Projection onto the scaled simplex against slow, obvious answers and general solvers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import clarabel
import numpy as np
import pytest
from scipy import optimize, sparse

from opendas.solvers.rounding.rounding import round_family
from opendas.solvers.simplex import project, project_integers


def slow_projection(z, total):
    """Try every number of entries kept, in exact fractions."""
    z = [Fraction(float(value)) for value in z]
    total = Fraction(float(total))
    best = None
    for kept in range(1, len(z) + 1):
        theta = (sum(sorted(z, reverse=True)[:kept]) - total) / kept
        v = [max(Fraction(0), value - theta) for value in z]
        if sum(v) == total:
            best = v
    return best


def slow_integers(z, total):
    """Give one count at a time to whoever it costs least."""
    v = np.zeros(len(z), dtype=np.int64)
    for _ in range(total):
        v[np.argmin(2 * (v - z) + 1)] += 1
    return v


def families(rng, count, largest=9):
    sizes = rng.integers(1, largest, count)
    family = rng.permutation(np.repeat(np.arange(count), sizes)).astype(np.int64)
    return family, rng.normal(2.0, 6.0, len(family)), rng.integers(0, 40, count)


def test_reals_against_exact_fractions():
    rng = np.random.default_rng(1)
    family, z, totals = families(rng, 300)
    v = project(z, family, totals.astype(np.float64))
    for f, total in enumerate(totals):
        expected = slow_projection(z[family == f], total)
        np.testing.assert_allclose(v[family == f], np.array(expected, dtype=np.float64), atol=1e-13)


def test_reals_against_an_interior_point_solver():
    rng = np.random.default_rng(2)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    for n in (1, 2, 7, 60):
        z, total = rng.normal(0.0, 5.0, n), float(rng.uniform(0.5, 30.0))
        rows = sparse.csc_matrix(np.vstack([np.ones((1, n)), -np.eye(n)]))
        cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
        right = np.concatenate([[total], np.zeros(n)])
        solver = clarabel.DefaultSolver(sparse.csc_matrix(np.eye(n)), -z, rows, right, cones, settings)
        expected = np.array(solver.solve().x)
        v = project(z, np.zeros(n, np.int64), np.array([total]))
        np.testing.assert_allclose(v, expected, atol=1e-6)
        assert ((v - z) ** 2).sum() <= ((np.maximum(expected, 0) - z) ** 2).sum() + 1e-6


@pytest.mark.parametrize("whole", [True, False])
def test_integers_against_one_count_at_a_time(whole):
    rng = np.random.default_rng(3)
    family, z, totals = families(rng, 400)
    z = np.rint(z).astype(np.int64) if whole else z
    v = project_integers(z, family, totals)
    for f, total in enumerate(totals):
        inside = family == f
        expected = slow_integers(z[inside], total)
        cost = ((expected - z[inside]) ** 2).sum()
        assert v[inside].sum() == total
        assert ((v[inside] - z[inside]) ** 2).sum() == pytest.approx(cost, abs=1e-4)


def test_integers_against_a_mixed_integer_program():
    """The squared distance, linear between whole numbers: one binary variable for each count of a child."""
    rng = np.random.default_rng(4)
    for _ in range(15):
        n, total = int(rng.integers(2, 6)), int(rng.integers(1, 13))
        z = rng.normal(2.0, 3.0, n)
        steps = np.arange(1, total + 1)
        cost = (2 * (steps[None, :] - z[:, None]) - 1).ravel()  # of the step from v - 1 to v
        found = optimize.milp(
            cost,
            integrality=np.ones(len(cost)),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(np.ones((1, len(cost))), total, total),
        )
        v = project_integers(z, np.zeros(n, np.int64), np.array([total]))
        assert ((v - z) ** 2).sum() - (z**2).sum() == pytest.approx(found.fun, abs=1e-4)


def test_equal_remainders_fall_as_in_controlled_rounding():
    """A family of one cell, rounded by the flow solver from the projection in reals, gives the same.

    Where remainders are no multiples of 2**-20, that solver has to break them up, so only costs agree.
    """
    exact = 0
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(1, 8))
        z = rng.integers(-4, 12, n)
        total = int(rng.integers(1, 30))
        keys = rng.integers(0, 2**63, n).astype(np.uint64)
        family = np.zeros(n, np.int64)
        x = project(z.astype(float), family, np.array([float(total)]))
        rounded = round_family(
            x[:, None], np.array([total]), np.ones((n, 1), bool), ((np.zeros(1, np.int32),),), None, None,
            None, keys,
        )  # fmt: skip
        v = project_integers(z, family, np.array([total]), keys)
        assert np.abs(v - x).sum() == pytest.approx(np.abs(rounded.values[:, 0] - x).sum(), abs=1e-5)
        if np.array_equal(np.ldexp(x, 20), np.rint(np.ldexp(x, 20))):
            exact += 1
            assert v.tolist() == rounded.values[:, 0].tolist()
    assert exact > 20


def test_no_overflow_at_extremes():
    z = np.array([2**60, -(2**60), 5, 2**60])
    assert project_integers(z, np.zeros(4, np.int64), np.array([7])).sum() == 7
    z = np.full(1000, -(2**51))
    assert project_integers(z, np.zeros(1000, np.int64), np.array([10**6])).tolist() == [1000] * 1000
    with pytest.raises(ValueError, match="64-bit"):
        project_integers(np.full(8, 2**60), np.zeros(8, np.int64), np.array([1]))


def test_all_subsets_of_a_small_case():
    """Every pair of counts that adds up, tried out."""
    for a, b, total in itertools.product(range(-3, 6), range(-3, 6), range(8)):
        v = project_integers(np.array([a, b]), np.zeros(2, np.int64), np.array([total]))
        best = min((x - a) ** 2 + (total - x - b) ** 2 for x in range(total + 1))
        assert (v[0] - a) ** 2 + (v[1] - b) ** 2 == best
