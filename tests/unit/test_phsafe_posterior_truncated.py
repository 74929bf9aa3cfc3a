"""Truncated normals and lattices, against sums and integrals done the slow way."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm
from support.each import each

from opendas.errors import ConfigError
from opendas.phsafe.inputs.levels import NoiseDistribution
from opendas.phsafe.posterior.density import log_interval, log_upper
from opendas.phsafe.posterior.lattice import (
    Lattice,
    count_posterior,
    fine_step,
    geometric_ratio,
    normal_posterior,
    point,
    sum_of,
)
from opendas.phsafe.posterior.truncated import (
    excess_hazard,
    interval_mean,
    truncated_mean,
    truncated_quantile,
)

FAR = (-1000.0, -37.6, -8.5, -8.0, -3.1, -2.9, -1.0, 0.0, 0.5, 3.0, 9.0, 40.0)


def _panels(low: float, high: float, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on many panels."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, count + 1)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * nodes).ravel(), (half * weights).ravel()


def _integrals(z: float, low: float, high: float, cut: float) -> tuple[float, float]:
    """Mean of Normal(z, 1) on [low, high], and the share of it below `cut`."""
    x, w = _panels(low, high)
    density = np.exp(-((x - z) ** 2) / 2 + ((np.clip(z, low, high) - z) ** 2) / 2)
    y, v = _panels(low, cut)
    below = np.exp(-((y - z) ** 2) / 2 + ((np.clip(z, low, high) - z) ** 2) / 2)
    return float((x * density) @ w / (density @ w)), float(below @ v / (density @ w))


@pytest.mark.parametrize("z", FAR)
def test_mean_and_quantiles_agree_with_integrals_far_in_the_tail(z: float) -> None:
    high = z + math.sqrt(min(z, 0) ** 2 + 90)
    low = max(0.0, z - 9.5)
    for p in (0.05, 0.5, 0.95):
        quantile = float(truncated_quantile(z, 1.0, p))
        mean, below = _integrals(z, low, high, quantile)
        assert float(truncated_mean(z, 1.0)) == pytest.approx(mean, rel=1e-12)
        assert below == pytest.approx(p, rel=1e-10)


def test_the_published_form_has_no_digits_where_ours_has_all() -> None:
    # PH3 by race: sigma 12.16. The published step gave -5.05 at -8 standard deviations, then infinity.
    s = math.sqrt(147.818)
    assert float(truncated_mean(-8 * s, s * s)) == pytest.approx(1.4756, abs=1e-4)
    assert float(truncated_mean(-8.5 * s, s * s)) == pytest.approx(1.3933, abs=1e-4)
    naive = -8.5 * s + s * norm.pdf(8.5) / np.float64(1 - norm.cdf(8.5)) if norm.cdf(8.5) < 1 else math.inf
    assert not abs(naive - 1.3933) < 1


def _hazard_fraction(a: Fraction) -> Decimal:
    """Mills' ratio by 3000 terms of the continued fraction in 60 digits."""
    getcontext().prec = 60
    x = Decimal(a.numerator) / Decimal(a.denominator)
    value = x
    for term in range(3000, 1, -1):
        value = x + Decimal(term) / value
    return 1 / value


@pytest.mark.parametrize(
    "a", [Fraction(1, 2), Fraction(299, 100), Fraction(3), Fraction(301, 100), Fraction(10**6)]
)
def test_excess_hazard_has_all_digits(a: Fraction) -> None:
    assert float(excess_hazard(float(a))) == pytest.approx(float(_hazard_fraction(a)), rel=1e-14)


def test_an_exact_count_stays_what_it_is() -> None:
    assert truncated_mean([5, 0, -3], 0.0).tolist() == [5, 0, 0]
    assert truncated_quantile([5, 0, -3], 0.0, 0.05).tolist() == [5, 0, 0]


def test_quantiles_refuse_levels_outside_0_and_1() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        truncated_quantile(0.0, 1.0, 1.0)
    with pytest.raises(ConfigError, match="finite"):
        truncated_mean(math.nan, 1.0)


@pytest.mark.parametrize(
    ("z", "low", "high"),
    [(0.0, -1.0, 2.0), (5.0, 0.0, 1.0), (-5.0, 0.0, 3.0), (-300.0, 0.0, 2.0), (40.0, 0.0, 30.0)],
)
def test_the_mean_of_an_interval_agrees_with_its_integral(z: float, low: float, high: float) -> None:
    x, w = _panels(low, high, 2000)
    density = np.exp(-((x - z) ** 2) / 2 + (np.clip(z, low, high) - z) ** 2 / 2)
    mean = (x * density) @ w / (density @ w)
    assert float(interval_mean(z, 1.0, low, high)) == pytest.approx(float(mean), rel=1e-11)


def test_the_mean_of_a_narrow_interval_lies_in_it() -> None:
    assert float(interval_mean(-50.0, 1.0, 1.0, 1.0 + 1e-9)) == pytest.approx(1.0 + 5e-10, rel=1e-13)
    mirrored = float(interval_mean(50.0, 1.0, -1.0 - 1e-5, -1.0))
    assert -1.0 - 1e-5 < mirrored < -1.0


@pytest.mark.parametrize("x", [-40.0, -1.0, 0.0, 0.3, 7.0, 29.9, 30.1, 37.0])
def test_log_tails_agree_with_the_library(x: float) -> None:
    assert log_upper(x) == pytest.approx(float(norm.logsf(x)), rel=1e-14, abs=1e-300)


def test_log_intervals_agree_with_the_library_and_are_empty_where_they_should() -> None:
    for low, high in (
        (-1.0, 2.0),
        (3.0, 4.0),
        (-9.0, -8.0),
        (20.0, math.inf),
        (-0.1, math.inf),
        (50.0, 50.1),
    ):
        ends = (low, high) if low <= 0 else (-high, -low)
        logs = norm.logcdf(ends[1]) + np.log1p(-np.exp(norm.logcdf(ends[0]) - norm.logcdf(ends[1])))
        assert log_interval(low, high) == pytest.approx(float(logs), rel=1e-12)
    assert log_interval(2.0, 2.0) == -math.inf


def _enumerated(z: int, weight_of: object) -> tuple[list[float], float]:
    weights = [weight_of(y - z) for y in range(3000)]  # type: ignore[operator]
    total = math.fsum(weights)
    return [w / total for w in weights], math.fsum(y * w for y, w in enumerate(weights)) / total


@each("z", [-60, -3, 0, 4, 300])
@each("variance", [0.3, 147.8, 900.0])
def test_a_count_posterior_is_the_noise_seen_from_the_count(z: int, variance: float) -> None:
    top = max(z, 0) - z
    weights, mean = _enumerated(z, lambda k: math.exp(-(k * k - top * top) / (2 * variance)))
    found = count_posterior(z, variance, NoiseDistribution.GAUSSIAN)
    assert found.mean() == pytest.approx(mean, rel=1e-11, abs=1e-14)
    start = int(found.origin)
    assert found.weights.tolist() == pytest.approx(weights[start : start + len(found.weights)], abs=1e-15)
    low, high = (int(found.quantile(p)) for p in (0.05, 0.95))
    assert sum(weights[:low]) < 0.05 <= sum(weights[: low + 1])
    assert sum(weights[:high]) < 0.95 <= sum(weights[: high + 1])


@pytest.mark.parametrize("z", [-60, -3, 0, 4, 300])
def test_geometric_noise_has_its_own_posterior(z: int) -> None:
    r = math.exp(-1 / 7)
    variance = 2 * r / (1 - r) ** 2
    assert geometric_ratio(variance) == pytest.approx(r, rel=1e-13)
    assert geometric_ratio(2e-20) == pytest.approx(1e-20)  # 2 r / (1 - r)^2 of a tiny r
    sure = count_posterior(z, 2e-20, NoiseDistribution.GEOMETRIC)
    assert sure.mean() == pytest.approx(max(z, 0), abs=1e-15)
    top = max(z, 0) - z
    _, mean = _enumerated(z, lambda k: r ** (abs(k) - abs(top)))
    assert count_posterior(z, variance, NoiseDistribution.GEOMETRIC).mean() == pytest.approx(mean, rel=1e-10)


def test_large_noise_takes_several_integers_a_point() -> None:
    for z in (-9000, 3000, 10**6):
        coarse = count_posterior(z, 2050.0**2, NoiseDistribution.GAUSSIAN)
        assert coarse.step > 1
        y = np.arange(max(0, z - 20000), max(z, 0) + 20000)
        weights = np.exp(-((y - z) ** 2 - (max(z, 0) - z) ** 2) / (2 * 2050.0**2))
        below = np.cumsum(weights) / weights.sum()
        assert coarse.mean() == pytest.approx(float(y @ weights / weights.sum()), abs=0.02)
        for p in (0.05, 0.95):
            assert abs(coarse.quantile(p) - y[np.searchsorted(below, p)]) <= 1.0


def test_a_sum_is_the_convolution() -> None:
    parts = [count_posterior(z, v, NoiseDistribution.GAUSSIAN) for z, v in ((-4, 9.0), (3, 4.0), (0, 1.0))]
    together = sum_of([*parts, point(7.0)])
    weights = np.ones(1)
    for part in parts:
        weights = np.convolve(weights, part.weights)
    assert together.origin == sum(part.origin for part in parts) + 7
    np.testing.assert_allclose(together.weights, weights, atol=1e-15)
    assert together.mean() == pytest.approx(7 + sum(part.mean() for part in parts), rel=1e-12)
    assert sum_of([point(2.0), point(3.0)]).quantile(0.05) == 5.0
    with pytest.raises(ConfigError, match="different steps"):
        sum_of([parts[0], Lattice(0.0, 2.0, np.array([0.5, 0.5]), True)])


def test_sums_of_continuous_posteriors_agree_with_a_finer_convolution() -> None:
    zs, variance = (-30.0, 10.0, 55.0), 900.0
    step = fine_step(zs, variance)
    together = sum_of([normal_posterior(z, variance, step) for z in zs])
    finer = sum_of([normal_posterior(z, variance, step / 8) for z in zs])
    assert together.mean() == pytest.approx(float(truncated_mean(zs, variance).sum()), rel=1e-5)
    for p in (0.05, 0.5, 0.95):
        assert together.quantile(p) == pytest.approx(finer.quantile(p), abs=1e-3)
    alone = normal_posterior(-30.0, variance, fine_step(-30.0, variance))
    assert alone.quantile(0.95) == pytest.approx(float(truncated_quantile(-30.0, variance, 0.95)), abs=1e-2)
