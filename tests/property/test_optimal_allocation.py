"""Propositions 3 and 4, Theorem 3 and exactness of the answers, for every kind of noise."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.clamped_slopes import clamped_curvature, clamped_slope

from opendas.allocation import (
    CountHistogram,
    Level,
    NoiseKind,
    allocate_target,
    allocate_total,
    clamped_moments,
    errors_at,
    power_rule,
)
from opendas.allocation.programs_6_7 import weighted
from opendas.allocation.separable import Separable
from opendas.allocation.solver import exact_split, rounded_up

KINDS = st.sampled_from(list(NoiseKind))
BUDGETS = st.floats(1e-6, 300)
COUNTS = st.integers(0, 10**10) | st.integers(0, 60)


@given(KINDS, BUDGETS, COUNTS)
def test_proposition_4_the_error_lies_between_half_the_variance_of_the_noise_and_all_of_it(
    kind: NoiseKind, budget: float, count: int
) -> None:
    zero, here, far = clamped_moments(kind, budget, [0, count, 10**15]).mse
    assert zero == pytest.approx(far / 2, rel=1e-12)
    assert zero * (1 - 1e-12) <= here <= far * (1 + 1e-12)


@given(KINDS, BUDGETS, COUNTS)
def test_bias_is_not_negative_and_moments_add_up(kind: NoiseKind, budget: float, count: int) -> None:
    found = clamped_moments(kind, budget, [count])
    assert found.bias[0] >= 0
    assert found.variance[0] >= 0
    assert found.variance[0] + found.bias[0] ** 2 == pytest.approx(found.mse[0], rel=1e-12)


@given(KINDS, BUDGETS, COUNTS)
def test_proposition_3_the_error_is_decreasing_and_convex(kind: NoiseKind, budget: float, count: int) -> None:
    slope, all_of_it = clamped_slope(kind, budget, [count, 10**15])
    assert slope < 0
    assert clamped_curvature(kind, budget, [count])[0] > 0
    # the slope lies between half of that of the noise's variance and all of it
    assert all_of_it * (1 + 1e-12) <= slope <= all_of_it / 2 * (1 - 1e-12)


@st.composite
def hierarchies(draw: st.DrawFn) -> list[list[int]]:
    """Counts of nested levels, each node with one child at least, top first."""
    leaves = draw(st.lists(st.integers(0, 500), min_size=1, max_size=25))
    levels = [leaves]
    for _ in range(draw(st.integers(1, 4))):
        below = levels[0]
        cuts = sorted(draw(st.sets(st.integers(1, len(below) - 1)))) if len(below) > 1 else []
        edges = [0, *cuts, len(below)]
        levels.insert(0, [sum(below[a:b]) for a, b in itertools.pairwise(edges)])
    return levels


def made(levels: list[list[int]]) -> list[Level]:
    return [Level(f"level {k}", CountHistogram.of(counts)) for k, counts in enumerate(levels)]


TOTALS = st.sampled_from(["0.0003", "1/7", "1", "5.5", "40"])


@settings(deadline=None)
@given(hierarchies(), KINDS, TOTALS)
def test_theorem_3_lower_levels_get_more_at_equal_weights(
    levels: list[list[int]], kind: NoiseKind, total: str
) -> None:
    budgets = allocate_total(made(levels), kind, total).budgets
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(budgets))
    for k in range(len(levels) - 1):
        if len(levels[k]) < len(levels[k + 1]):
            assert budgets[k] < budgets[k + 1]


@settings(deadline=None)
@given(hierarchies(), KINDS, TOTALS, st.data())
def test_no_other_allocation_is_better_and_exact_answers_sum_to_the_total(
    levels: list[list[int]], kind: NoiseKind, total: str, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(levels), max_size=len(levels)))
    found = allocate_total(made(levels), kind, total, weights)
    others = data.draw(st.lists(st.floats(0.01, 1), min_size=len(levels), max_size=len(levels)))
    budgets = [float(Fraction(total)) * other / sum(others) for other in others]
    for rival in (budgets, power_rule([len(x) for x in levels], kind, float(Fraction(total)), weights)):
        error = weighted(errors_at(made(levels), kind, rival), weights)
        assert found.objective <= error * (1 + 1e-12)
    assert found.objective <= found.uniform_objective * (1 + 1e-12)
    assert sum(found.exact) == Fraction(total)
    assert min(found.exact) > 0
    exact = weighted(errors_at(made(levels), kind, found.exact), weights)
    assert exact <= found.objective * (1 + 1e-10)


@settings(deadline=None)
@given(hierarchies(), KINDS, st.floats(1e-3, 1e9))
def test_the_exact_answer_meets_the_target(levels: list[list[int]], kind: NoiseKind, target: float) -> None:
    found = allocate_target(made(levels), kind, Fraction(target))
    error = weighted(errors_at(made(levels), kind, found.exact), (1.0,) * len(levels))
    assert error <= target
    assert error == pytest.approx(target, rel=1e-4)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=8), min_size=1, max_size=5),
    KINDS,
    st.floats(-11.9, 14.9),
    st.lists(st.floats(-14, 14), min_size=5, max_size=5),
)
@example([[0]] * 5, NoiseKind.DISCRETE_LAPLACE, 11.03125, [0.0, 0.0, 0.0, 12.0, -11.0])
def test_extreme_budgets_and_weights_have_equal_slopes_too(
    counts: list[list[int]], kind: NoiseKind, exponent: float, weights: list[float]
) -> None:
    levels, factors = made(counts), [10.0**weight for weight in weights[: len(counts)]]
    total = Fraction(10.0**exponent)
    found = allocate_total(levels, kind, total, factors)
    assert found.total == total
    assert min(found.exact) > 0
    problem = Separable(levels, kind, found.neighbours, np.array(factors))
    slopes, rates = problem.log_slopes(np.log(found.budgets))
    assert np.ptp(slopes) <= 1e-12 * max(1.0, np.abs(slopes).max(), np.abs(rates).max())
    if 1e-290 < found.objective < 1e290:
        back = allocate_target(levels, kind, Fraction(found.objective), factors)
        assert math.fsum(back.budgets) == pytest.approx(float(total), rel=1e-9)


POSITIVE = st.floats(1e-9, 1e9)


@given(st.lists(POSITIVE | st.just(0.0), min_size=1, max_size=40), st.fractions(Fraction(1, 10**9), 10**9))
def test_an_exact_split_spends_exactly_everything(budgets: list[float], total: Fraction) -> None:
    if not any(budgets):
        return
    split = exact_split(budgets, total)
    assert sum(split) == total
    whole = math.fsum(budgets)
    for exact, budget in zip(split, budgets, strict=True):
        assert (exact > 0) == (budget > 0)
        assert float(exact) == pytest.approx(float(total) * budget / whole, rel=1e-5)


@given(st.lists(POSITIVE | st.just(0.0), min_size=1, max_size=40))
def test_rounding_up_is_up_and_by_little(budgets: list[float]) -> None:
    for exact, budget in zip(rounded_up(budgets), budgets, strict=True):
        assert exact >= Fraction(budget)
        assert float(exact) <= np.nextafter(budget * (1 + 3e-7), np.inf)
