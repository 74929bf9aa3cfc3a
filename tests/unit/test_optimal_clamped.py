"""Closed forms of clamped errors against quadrature and brute-force sums of their definitions."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from support.clamped_slopes import clamped_curvature, clamped_slope
from support.each import each

from opendas.allocation import NoiseKind, clamped_moments
from opendas.allocation.integer_gaussian import WIDE_RHO
from opendas.errors import BudgetError, ConfigError

BUDGETS = ("1e-6", "1e-3", "0.1", "0.7", "2", "30", "1000")
ALL = list(NoiseKind)


def spread(kind: NoiseKind, budget: str) -> mp.mpf:
    """Return the standard deviation of the noise, roughly."""
    b = mp.mpf(budget)
    return 1 / mp.sqrt(2 * b) if kind.loss_name == "rho" else mp.sqrt(2) / b


def some_counts(kind: NoiseKind, budget: str) -> list[int]:
    """Return counts small and large beside the noise, and the largest there are."""
    near = [int(spread(kind, budget) * factor) for factor in (0.3, 1, 3, 9, 25)]
    return sorted({0, 1, 2, 7, *near, 10**10})


def density(kind: NoiseKind, b: mp.mpf, z: mp.mpf) -> mp.mpf:
    if kind is NoiseKind.LAPLACE:
        return b / 2 * mp.exp(-b * abs(z))
    return mp.sqrt(b / mp.pi) * mp.exp(-b * z * z)


def integral(kind: NoiseKind, budget: str, count: int, power: int) -> mp.mpf:
    """E[(max(0, N + Z) - N)**power] by quadrature: the noise above -N, and the mass that is clamped."""
    b, sigma = mp.mpf(budget), spread(kind, budget)
    # Pieces of a few standard deviations, as far as anything is left; the rest is below 1e-50 of the whole.
    steps = [mp.mpf(0), *(sigma * k for k in (0.5, 1, 2, 4, 7, 11, 16, 24, 40, 80))]
    inner = [x for x in steps if x < count]
    inner += [min(mp.mpf(count), steps[-1])] if inner else []
    below = mp.quad(lambda z: z**power * density(kind, b, z), inner) if inner else mp.mpf(0)
    above = mp.quad(lambda z: z**power * density(kind, b, z), steps)
    clamped = mp.quad(lambda z: density(kind, b, count + z), steps)
    return above + (-1) ** power * (below + mp.mpf(count) ** power * clamped)


def tail_bias(kind: NoiseKind, budget: str, count: int) -> mp.mpf:
    """E[(Z - N) when Z > N]: the bias without cancellation."""
    b, sigma = mp.mpf(budget), spread(kind, budget)
    steps = [sigma * k / 4 for k in (0, 0.1, 0.4, 1, 2, 4, 8, 16, 32, 64, 128, 320)]
    return mp.quad(lambda z: z * density(kind, b, count + z), steps)


def pmf(kind: NoiseKind, budget: str) -> tuple[list[mp.mpf], mp.mpf]:
    """Probabilities of 0, 1, 2, ... until nothing is left, by definition."""
    b = mp.mpf(budget)
    steep = (lambda k: mp.exp(-b * k)) if kind is NoiseKind.DISCRETE_LAPLACE else lambda k: mp.exp(-b * k * k)
    weights = []
    while not weights or weights[-1] > mp.mpf(10) ** -60:
        weights.append(steep(len(weights)))
    return weights, weights[0] + 2 * mp.fsum(weights[1:])


def brute_force(kind: NoiseKind, budget: str, count: int) -> tuple[mp.mpf, mp.mpf]:
    """Bias and mean squared error as sums over the noise."""
    weights, total = pmf(kind, budget)
    bias = mp.fsum((k - count) * w for k, w in enumerate(weights) if k > count) / total
    square = mp.fsum((k * k + min(k, count) ** 2) * w for k, w in enumerate(weights)) / total
    return bias, square


def assert_close(found: float, expected: mp.mpf, rel: float = 1e-10) -> None:
    if expected < mp.mpf("1e-300"):
        assert 0 <= found < 1e-299
    else:
        assert float(abs(mp.mpf(found) - expected) / abs(expected)) < rel


@each("budget", BUDGETS)
@each("kind", [NoiseKind.LAPLACE, NoiseKind.GAUSSIAN])
def test_continuous_closed_forms_are_the_integrals(kind: NoiseKind, budget: str) -> None:
    with mp.workdps(30):
        for count in [*some_counts(kind, budget)[::2], 1]:
            found = clamped_moments(kind, float(budget), [count])
            b = mp.mpf(float(budget))
            bias, mse = tail_bias(kind, str(b), count), integral(kind, str(b), count, 2)
            if count < 10 * spread(kind, budget):
                assert_close(found.bias[0], bias)
            assert_close(found.mse[0], mse)
            assert_close(found.variance[0], mse - bias**2)


@pytest.mark.parametrize("budget", ["0.02", "0.1", "0.7", "2", "30", "600"])
@pytest.mark.parametrize("kind", [NoiseKind.DISCRETE_LAPLACE, NoiseKind.DISCRETE_GAUSSIAN])
def test_discrete_closed_forms_are_the_sums(kind: NoiseKind, budget: str) -> None:
    with mp.workdps(40):
        exact = mp.nstr(mp.mpf(float(budget)), 30)
        for count in some_counts(kind, budget)[:-2]:
            found = clamped_moments(kind, float(budget), [count])
            bias, mse = brute_force(kind, exact, count)
            if bias > mp.mpf("1e-55"):
                assert_close(found.bias[0], bias)
            assert_close(found.mse[0], mse)
            assert_close(found.variance[0], mse - bias**2)


def slow_gaussian(rho: float, count: int) -> tuple[float, float]:
    """Return the sums of a wide discrete Gaussian in doubles, exactly added."""
    reach = int(12 / math.sqrt(2 * rho))
    weights = [math.exp(-rho * k * k) for k in range(reach)]
    total = 1 + 2 * math.fsum(weights[1:])
    bias = math.fsum((k - count) * weights[k] for k in range(count + 1, reach)) / total
    return bias, math.fsum((k * k + min(k, count) ** 2) * w for k, w in enumerate(weights)) / total


@pytest.mark.parametrize("rho", [1e-6, 1e-4, WIDE_RHO, WIDE_RHO * 1.0001, 1e-3])
def test_wide_discrete_gaussian_is_its_sum_on_both_sides_of_the_switch(rho: float) -> None:
    for factor in (0, 0.01, 0.5, 1, 2, 4, 7):
        count = int(factor / math.sqrt(2 * rho))
        found = clamped_moments("discrete-gaussian", rho, [count])
        bias, mse = slow_gaussian(rho, count)
        assert found.bias[0] == pytest.approx(bias, rel=1e-11)
        assert found.mse[0] == pytest.approx(mse, rel=1e-12)


def test_the_deep_tail_of_a_wide_discrete_gaussian_keeps_its_digits() -> None:
    with mp.workdps(40):
        for rho, count in ((0.0004, 900), (0.0004, 1270), (0.000489, 1100)):
            reach = count + 400
            weights = [mp.exp(-mp.mpf(rho) * k * k) for k in range(reach)]
            total = 1 + 2 * mp.fsum(weights[1:])
            bias = mp.fsum((k - count) * weights[k] for k in range(count, reach)) / total
            assert_close(clamped_moments("discrete-gaussian", rho, [count]).bias[0], bias)


def test_discrete_laplace_at_the_smallest_budget_keeps_its_digits() -> None:
    with mp.workdps(60):
        b = mp.mpf(1e-6)
        for count in (0, 1, 1000, 10**6, 10**7, 10**10):
            fade = mp.exp(-b * count)
            bias = fade / (2 * mp.sinh(b))
            mse = (2 - fade * (1 + 2 * count * mp.tanh(b / 2))) / (4 * mp.sinh(b / 2) ** 2)
            found = clamped_moments("discrete-laplace", 1e-6, [count])
            assert_close(found.bias[0], bias)
            assert_close(found.mse[0], mse)
            assert_close(found.variance[0], mse - bias**2)


def mse_of(kind: NoiseKind, b: mp.mpf, count: int) -> mp.mpf:
    """Return the mean squared error to many digits, as a function of the budget."""
    if kind is NoiseKind.LAPLACE:
        return (2 - (1 + b * count) * mp.exp(-b * count)) / b**2
    if kind is NoiseKind.GAUSSIAN:
        x = count * mp.sqrt(2 * b)
        return (mp.ncdf(x) - x * mp.npdf(x) + x**2 * mp.ncdf(-x)) / (2 * b)
    if kind is NoiseKind.DISCRETE_LAPLACE:
        fade = mp.exp(-b * count)
        return (2 - fade * (1 + 2 * count * mp.tanh(b / 2))) / (4 * mp.sinh(b / 2) ** 2)
    reach = int(16 / mp.sqrt(2 * b)) + 12
    weights = [mp.exp(-b * k * k) for k in range(reach)]
    total = 1 + 2 * mp.fsum(weights[1:])
    return mp.fsum((k * k + min(k, count) ** 2) * w for k, w in enumerate(weights)) / total


@each("budget", [0.0004, 0.01, 0.7, 5.0, 40.0])
@each("kind", ALL)
def test_slopes_are_derivatives(kind: NoiseKind, budget: float) -> None:
    with mp.workdps(60):
        step = mp.mpf(budget) * mp.mpf("1e-12")
        for count in [c for c in some_counts(kind, str(budget)) if c < 12 * spread(kind, str(budget))][::2]:
            low, mid, high = (mse_of(kind, mp.mpf(budget) + k * step, count) for k in (-1, 0, 1))
            slope = clamped_slope(kind, budget, [count])[0]
            bend = clamped_curvature(kind, budget, [count])[0]
            assert float(abs(slope / ((high - low) / (2 * step)) - 1)) < 1e-10
            assert float(abs(bend / ((high - 2 * mid + low) / step**2) - 1)) < 1e-9


@pytest.mark.parametrize("kind", ALL)
def test_moments_are_vectorised_over_counts_and_budgets(kind: NoiseKind) -> None:
    budgets, counts = np.array([[1e-4], [0.5], [3.0]]), np.array([0, 2, 10**10])
    table = clamped_moments(kind, budgets, counts)
    slopes = clamped_slope(kind, budgets, counts)
    assert table.mse.shape == table.bias.shape == table.variance.shape == slopes.shape == (3, 3)
    for i in range(3):
        for j in range(3):
            one = clamped_moments(kind, float(budgets[i, 0]), counts[j])
            assert one.mse == table.mse[i, j]
            assert one.bias == table.bias[i, j]
            assert clamped_slope(kind, float(budgets[i, 0]), counts[j]) == slopes[i, j]


@pytest.mark.parametrize("kind", ALL)
def test_every_count_and_budget_gives_finite_ordered_numbers(kind: NoiseKind) -> None:
    counts = np.concatenate([np.arange(60), np.logspace(2, 10, 60).round()])
    for budget in np.logspace(-6, 3, 40):
        found = clamped_moments(kind, budget, counts)
        for values in (found.bias, found.variance, found.mse, -clamped_slope(kind, budget, counts)):
            assert np.isfinite(values).all()
            assert (values >= 0).all()
        assert (np.diff(found.mse) >= -1e-12 * found.mse[-1]).all()
        assert (np.diff(found.bias) <= 0).all()


@pytest.mark.parametrize("bad", [0, -1, math.inf, math.nan])
def test_a_budget_is_positive_and_finite(bad: float) -> None:
    with pytest.raises(BudgetError, match="positive finite"):
        clamped_moments("laplace", bad, [1])


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, 2.0**54])
def test_counts_are_not_negative_and_representable(bad: float) -> None:
    with pytest.raises(ConfigError, match="counts are numbers"):
        clamped_moments("laplace", 1, [bad])


def test_an_unknown_mechanism_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean laplace\?"):
        clamped_moments("laplac", 1, [1])
