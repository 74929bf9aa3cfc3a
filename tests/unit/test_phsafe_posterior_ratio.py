"""Averages: closed forms and one-dimensional integrals against the integral over all unknowns."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from opendas.errors import ConfigError, DataError, EstimationError
from opendas.phsafe.posterior import density
from opendas.phsafe.posterior.curve import fit_curve
from opendas.phsafe.posterior.ratio import (
    Block,
    Fit,
    fieller,
    fit_block,
    fit_total,
    mean_inverse,
    pair_average,
    pair_count,
)

Array = np.ndarray

BLOCKS = {
    "small families": Block((30.0, 60.0), (1500.0, 1700.0), 25.0, 1600.0, 2.0, 10.0),
    "negative numerator": Block((-60.0, 40.0), (900.0, 900.0), 20.0, 900.0, 1.0, 10.0),
    "negative denominator": Block((10.0, 50.0), (400.0, 900.0), -40.0, 625.0, 2.0, 10.0),
    "below the bound": Block((20.0, 10.0), (400.0, 400.0), 60.0, 900.0, 2.0, 10.0),
    "above the bound": Block((400.0, 300.0), (900.0, 900.0), 20.0, 225.0, 1.0, 10.0),
    "sharp numerators": Block((30.0, 60.0), (25.0, 25.0), 25.0, 2500.0, 1.0, 10.0),
    "sharp denominator": Block((30.0, 60.0), (2500.0, 2500.0), 25.0, 25.0, 1.0, 10.0),
}
ALONE = {
    "renters": Block((50.0,), (1600.0,), 30.0, 900.0, 1.0, 10.0),
    "few renters": Block((-20.0,), (400.0,), -5.0, 400.0, 1.0, 10.0),
}


def _panels(low: Array, high: Array, panels: int, order: int) -> tuple[Array, Array]:
    """Nodes and weights on [low, high], one more axis."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    shares = ((np.arange(panels)[:, None] + (nodes + 1) / 2) / panels).ravel()
    width = (high - low)[..., None]
    return low[..., None] + width * shares, width * np.tile(weights / 2 / panels, panels)


def _log(x: Array, z: float, variance: float) -> Array:
    return -((x - z) ** 2) / (2 * variance)


def _nodes(block: Block, u: float | None = None) -> list[tuple[Array, Array, Array, Array]]:
    """Nodes a, s, d over a <= u d and their weights, the posterior up to a constant in them: no formula."""
    (za, zb), (va, vb) = block.counts, block.variances
    c, k = block.least, block.most
    u = k if u is None else u
    peak = max(block.total, c)
    last = min(
        max(block.households, 1.0) + 12 * math.sqrt(block.variance), (peak + 12 * math.sqrt(va + vb)) / c
    )
    d, wd = _panels(np.array(1.0), np.array(last), 30, 12)
    found = []
    for low, high in ((0.0, min(u, c)), (min(u, c), u)):
        a_top = np.minimum(high * d, max(za, 0.0) + 12 * math.sqrt(va))
        a, wa = _panels(np.minimum(low * d, a_top), a_top, 8, 12)
        start = np.maximum(c * d[:, None], a)
        s, ws = _panels(
            start, np.maximum(start, np.minimum(k * d[:, None], peak + 12 * math.sqrt(va + vb))), 10, 10
        )
        logs = _log(a[..., None], za, va) + _log(s - a[..., None], zb, vb)
        logs += _log(d, block.households, block.variance)[:, None, None]
        weights = np.exp(logs + _SHIFT) * ws * wa[..., None] * wd[:, None, None]
        found.append((a[..., None], s, d[:, None, None], weights))
    return found


_SHIFT = 60.0
"""Keeps the unnormalised integrals of measurements far outside from underflow."""


@pytest.mark.parametrize("name", BLOCKS)
def test_averages_agree_with_the_integral_over_all_three(name: str) -> None:
    block = BLOCKS[name]
    fit = fit_block(block)
    assert fit.total is not None
    nodes = _nodes(block)
    one = sum(float(weights.sum()) for *_, weights in nodes)

    def mean(f: Callable[[Array, Array, Array], Array]) -> float:
        return sum(float((f(a, s, d) * weights).sum()) for a, s, d, weights in nodes) / one

    assert fit.average(None).mean == pytest.approx(mean(lambda a, s, d: s / d), rel=1e-6)
    assert fit.average(0).mean == pytest.approx(mean(lambda a, s, d: a / d), rel=1e-6)
    assert fit.average(1).mean == pytest.approx(mean(lambda a, s, d: (s - a) / d), rel=1e-6)
    assert fit.mean_households() == pytest.approx(mean(lambda a, s, d: d), rel=1e-6)
    counts = [mean(lambda a, s, d: a), mean(lambda a, s, d: s - a)]
    assert fit.mean_counts() == pytest.approx(counts, rel=1e-6)
    for part in (0, 1):
        assert fit.count(part).mean == pytest.approx(counts[part], rel=1e-6)
    for p, end in ((0.05, fit.average(0).low), (0.95, fit.average(0).high)):
        below = sum(float(weights.sum()) for *_, weights in _nodes(block, end)) / one
        assert below == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize("name", ALONE)
def test_one_numerator_agrees_with_the_integral_over_both(name: str) -> None:
    block = ALONE[name]
    fit = fit_block(block)
    (z,), (v,) = block.counts, block.variances
    d, wd = _panels(np.array(1.0), np.array(max(block.households, 1) + 10 * block.variance**0.5), 40, 12)
    weight = wd * np.exp(_log(d, block.households, block.variance))

    def below(t: float, f: Callable[[Array, Array], Array] = lambda s, d: np.ones_like(s)) -> float:
        s, ws = _panels(block.least * d, t * d, 30, 12)
        return float(weight @ (np.exp(_log(s, z, v)) * f(s, d[:, None]) * ws).sum(axis=1))

    one = below(block.most)
    found = fit.average(None)
    assert found.mean == pytest.approx(below(block.most, lambda s, d: s / d) / one, rel=1e-7)
    assert below(found.low) / one == pytest.approx(0.05, abs=1e-7)
    assert below(found.high) / one == pytest.approx(0.95, abs=1e-7)
    assert fit.mean_counts()[0] == pytest.approx(below(block.most, lambda s, d: s) / one, rel=1e-7)
    assert fit.count(0).mean == pytest.approx(fit.mean_counts()[0], rel=1e-7)
    households = below(block.most, lambda s, d: d * np.ones_like(s)) / one
    assert fit.mean_households() == pytest.approx(households, rel=1e-7)


@pytest.mark.parametrize("shared", [True, False])
def test_without_constraints_integrals_and_closed_forms_are_one(shared: bool) -> None:
    counts, variances = ((30e3, 50e3), (14.8e3, 14.8e3)) if shared else ((80e3,), (29.6e3,))
    block = Block(counts, variances, 30e3, 14.8e3, 1.0, 10.0)
    free, bounded = Fit(block, None), Fit(block, fit_total(block))
    assert fit_block(block).total is None
    for part in (None, 0) if shared else (None,):
        assert tuple(bounded.average(part)) == pytest.approx(tuple(free.average(part)), rel=1e-9)
        assert tuple(bounded.count(part)) == pytest.approx(tuple(free.count(part)), rel=1e-9)
    assert bounded.mean_counts() == pytest.approx(free.mean_counts(), rel=1e-12)
    assert bounded.mean_households() == pytest.approx(free.mean_households(), rel=1e-12)


def test_the_two_forms_meet_where_one_takes_over() -> None:
    s = 41.0
    near = Block((400.0, 800.0), (s * s, s * s), 8.99 * s, s * s, 1.0, 10.0)
    expected = tuple(Fit(near, None).average(None))
    assert tuple(Fit(near, fit_total(near)).average(None)) == pytest.approx(expected, rel=1e-8)


def test_fieller_is_the_quantile_of_a_ratio() -> None:
    rng = np.random.default_rng(3)
    ratios = rng.normal(50, 4, 400_000) / rng.normal(20, 1, 400_000)
    for q, p in ((-1.6448536269514722, 0.05), (0.0, 0.5), (1.6448536269514722, 0.95)):
        assert fieller(50, 4, 20, 1, q) == pytest.approx(np.quantile(ratios, p), abs=0.005)
    assert mean_inverse(20, 1) == pytest.approx(np.mean(1 / rng.normal(20, 1, 400_000)), abs=1e-5)


def _slow_pair(first: Block, second: Block) -> tuple[Array, Array, Array]:
    """Average, weight and total of every combination of a grid over S, D, R and E."""
    sides = []
    for block in (first, second):
        z = (block.total, block.households)
        s, d = math.sqrt(sum(block.variances)), math.sqrt(block.variance)
        x = np.linspace(0, max(z[0], 0) + 5 * s, 261)[:, None]
        y = np.linspace(0, max(z[1], 0) + 5 * d, 261)
        inside = (y >= 1) & (x >= block.least * y) & (x <= block.most * y)
        weight = np.exp(_log(x, z[0], s * s) + _log(y, z[1], d * d)) * inside
        sides.append((x, y, weight / weight.sum()))
    rng = np.random.default_rng(0)
    picks = [rng.choice(side[2].size, 400_000, p=side[2].ravel()) for side in sides]
    total = sum(side[0].ravel()[pick // 261] for side, pick in zip(sides, picks, strict=True))
    households = sum(side[1][pick % 261] for side, pick in zip(sides, picks, strict=True))
    return total / households, np.full(400_000, 1 / 400_000), total


def test_two_blocks_together_agree_with_a_sample_of_both() -> None:
    first = ALONE["renters"]
    second = Block((120.0,), (900.0,), 60.0, 400.0, 1.0, 10.0)
    average, _, total = _slow_pair(first, second)
    fits = fit_block(first), fit_block(second)
    found, count = pair_average(*fits), pair_count(*fits)
    assert found.mean == pytest.approx(average.mean(), abs=0.01)
    assert (found.low, found.high) == pytest.approx(np.quantile(average, [0.05, 0.95]), abs=0.025)
    assert count.mean == pytest.approx(total.mean(), abs=0.5)
    assert (count.low, count.high) == pytest.approx(np.quantile(total, [0.05, 0.95]), abs=1.0)
    assert count.mean == pytest.approx(sum(fit.mean_counts()[0] for fit in fits), rel=1e-6)


def test_two_free_blocks_and_their_integrals_are_one() -> None:
    first = Block((30e3, 50e3), (14.8e3, 14.8e3), 30e3, 14.8e3, 1.0, 10.0)
    second = Block((40e3,), (14.8e3,), 20e3, 14.8e3, 1.0, 10.0)
    closed = pair_average(Fit(first, None), Fit(second, None))
    assert tuple(pair_average(Fit(first, fit_total(first)), Fit(second, fit_total(second)))) == pytest.approx(
        tuple(closed), rel=1e-9
    )
    counts = pair_count(Fit(first, fit_total(first)), Fit(second, fit_total(second)))
    assert tuple(counts) == pytest.approx(tuple(pair_count(Fit(first, None), Fit(second, None))), rel=1e-7)


def test_an_exact_number_beside_noisy_ones_is_nearly_kept() -> None:
    fit = fit_block(Block((300.0, 500.0), (900.0, 900.0), 200.0, 0.0, 1.0, 10.0))
    assert fit.mean_households() == pytest.approx(200.0, abs=0.01)
    assert fit.average(None).mean == pytest.approx(4.0, rel=1e-3)


def test_measurements_that_contradict_the_bounds_are_refused() -> None:
    for z in (-1e6, 1e9):
        with pytest.raises(DataError, match="standard deviations away"):
            fit_block(Block((z, 40.0), (1700.0, 1700.0), 30.0, 1700.0, 2.0, 10.0))


@pytest.mark.parametrize("z", [-3000.0, -3e5, 3e6])
def test_no_measurement_is_too_far_out(z: float) -> None:
    fit = fit_block(Block((z, 40.0), (1700.0, 1700.0), 30.0, 1700.0, 2.0, 10.0))
    for part in (None, 0, 1):
        low, mean, high = (fit.average(part)[k] for k in (1, 0, 2))
        assert (0 if part is not None else 2) <= low <= mean <= high <= 10
        assert 0 <= fit.count(part).low <= fit.count(part).mean <= fit.count(part).high


def test_a_block_needs_bounds_and_variances() -> None:
    with pytest.raises(ConfigError, match="bounds"):
        Block((1.0,), (1.0,), 1.0, 1.0, 10.0, 2.0)
    with pytest.raises(ConfigError, match="variance"):
        Block((1.0, 2.0), (1.0,), 1.0, 1.0, 1.0, 2.0)


def test_a_block_that_is_not_finite_is_an_error() -> None:
    array = density.Parameters(5.0, 1.0, 0.0, 1.0, 2.0, math.nan, 1.0, 10.0, 0.0, alone=True)
    with pytest.raises(EstimationError, match="finite"):
        fit_curve(density.AVERAGE, array, 2.0, 1.0)


def test_a_curve_answers_consistently() -> None:
    curve = fit_curve(density.TOTAL, BLOCKS["small families"].parameters(), 90.0, 50.0)
    x = np.linspace(curve.ends[0], curve.ends[-1], 4001)
    assert np.trapezoid(curve.density(x), x) == pytest.approx(1, abs=1e-5)
    assert np.all(np.diff(curve.probability(x)) >= -1e-12)
    assert curve.probability([curve.ends[0] - 1, curve.ends[-1] + 1]).tolist() == pytest.approx([0, 1])
    assert curve.density([curve.ends[0] - 1]).tolist() == [0]
    for p in (0.05, 0.5, 0.95):
        assert float(curve.probability(curve.quantile(p))[0]) == pytest.approx(p, abs=1e-12)
    mean, variance = curve.moments()
    assert float((curve.nodes * curve.weights).sum()) == pytest.approx(mean, rel=1e-12)
    assert float((curve.nodes**2 * curve.weights).sum()) == pytest.approx(variance + mean**2, rel=1e-12)
    assert curve.lattice(0.5).mean() == pytest.approx(mean, abs=1e-3)
