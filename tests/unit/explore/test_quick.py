"""What is worked out quickly is what is worked out exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.explore import quick
from opendas.phsafe import margins
from opendas.phsafe.sensitivity import Answers, Sensitivity
from opendas.privacy.relations import Mechanism
from opendas.privacy.zcdp import epsilon_bun_steinke, epsilon_cks
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace


@settings(max_examples=examples(60))
@given(st.floats(-3.5, 4.7))
def test_margins_and_variances_of_gaussian_noise(exponent: float) -> None:
    law = DiscreteGaussian(Fraction(10**exponent).limit_denominator(10**6))
    assert quick.margin(law) == law.margin(quick.CONFIDENCE)
    assert quick.variance(law) == pytest.approx(law.variance, rel=1e-11, abs=1e-250)


@settings(max_examples=examples(100))
@given(st.floats(-2.5, 3))
def test_margins_and_variances_of_laplace_noise(exponent: float) -> None:
    law = DiscreteLaplace(Fraction(10**exponent).limit_denominator(10**6))
    assert quick.margin(law) == law.margin(quick.CONFIDENCE)
    assert quick.variance(law) == pytest.approx(law.variance, rel=1e-11)


@pytest.mark.parametrize("low", [400, 9_990, 90_000])
def test_margins_where_they_change(low: int) -> None:
    """Find the variance at which the margin grows by one, and look at both sides of it."""
    below = Fraction(low)
    start = quick.margin(DiscreteGaussian(below))
    above = next(
        Fraction(low) + Fraction(k, 2)
        for k in range(10_000)
        if quick.margin(DiscreteGaussian(low + Fraction(k, 2))) > start
    )
    for _ in range(60):
        middle = (below + above) / 2
        law = DiscreteGaussian(middle)
        below, above = (middle, above) if quick.margin(law) == start else (below, middle)
    for sigma2 in (below, above):
        law = DiscreteGaussian(sigma2)
        assert quick.margin(law) == law.margin(quick.CONFIDENCE)


@settings(max_examples=examples(25))
@given(st.booleans(), st.floats(-1, 2.5), st.sampled_from([1, 2, 3, 7, 16]))
def test_margins_of_totals(gaussian: bool, exponent: float, summed: int) -> None:
    parameter = Fraction(10**exponent).limit_denominator(1000)
    law = DiscreteGaussian(parameter) if gaussian else DiscreteLaplace(parameter)
    assert quick.margin_of_total(law, summed) == margins.margin_of_sum([law] * summed, quick.CONFIDENCE)


@settings(max_examples=examples(40))
@given(
    st.sampled_from([1, 3, 6, 10]),
    st.sampled_from([1, 2, 14]),
    st.sampled_from([1, 2, 5, 20, 68, 200]),
    st.sampled_from(list(Sensitivity)),
    st.sampled_from(list(Mechanism)),
    st.sampled_from([6, 8]),
)
def test_least_budgets(
    rows: int, cells: int, target: int, sensitivity: Sensitivity, mechanism: Mechanism, digits: int
) -> None:
    answers = Answers(rows, cells)
    found = quick.least_budget(target, answers, sensitivity, mechanism, digits)
    assert found == margins.least_budget(target, answers, sensitivity, mechanism=mechanism, digits=digits)


@settings(max_examples=examples(60))
@given(st.floats(-6, 3), st.floats(-17, -0.1))
def test_conversions(rho_exponent: float, delta_exponent: float) -> None:
    rho = Fraction(10**rho_exponent).limit_denominator(10**9)
    delta = Fraction(10**delta_exponent).limit_denominator(10**20)
    assume(rho > 0)
    found = quick.epsilon_quick(float(rho), float(delta))
    assert found == pytest.approx(epsilon_cks(rho, delta), rel=1e-9, abs=1e-9)
    found = quick.epsilon_quick(float(rho), float(delta), "bun-steinke")
    assert found == pytest.approx(epsilon_bun_steinke(rho, delta), rel=1e-12)


def test_no_loss_has_no_epsilon() -> None:
    assert quick.epsilon_quick(0.0, 1e-10) == 0.0
    assert math.isfinite(quick.epsilon_quick(1e-300, 1e-300))
    assert quick.epsilon_quick(2.0, 1.0) == 0.0
    assert quick.epsilon_quick(2.0, 1.0, "bun-steinke") == 2.0
