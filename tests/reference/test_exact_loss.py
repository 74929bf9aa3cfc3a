"""The exact curve against full enumeration, closed forms and published figures."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from support.each import each
from support.privacy_loss import Answer, slow_delta

from opendas.budget.noise import budget_loss
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.privacy.composition import ChangedAnswers, ComposedLoss
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise

POINTS = 1 << 15

CASES: list[tuple[list[Answer], int]] = [
    ([("gaussian", Fraction(1, 2), 1)], 12),
    ([("gaussian", Fraction(1, 20), 1)], 6),
    ([("gaussian", Fraction(7, 2), 2)], 40),
    ([("gaussian", Fraction(2), 1), ("gaussian", Fraction(2), -1)], 24),
    ([("gaussian", Fraction(1, 2), 1), ("gaussian", Fraction(3, 2), 1), ("gaussian", Fraction(7, 3), 2)], 17),
    ([("laplace", Fraction(1), 1), ("laplace", Fraction(3), 1), ("laplace", Fraction(2), 3)], 5),
    ([("laplace", Fraction(3, 2), 1), ("gaussian", Fraction(5, 2), 1)], 25),
]


def composed(answers: list[Answer], points: int = POINTS) -> ComposedLoss:
    changes: dict[tuple[Noise, int], int] = {}
    for kind, parameter, shift in answers:
        noise = DiscreteGaussian(parameter) if kind == "gaussian" else DiscreteLaplace(parameter)
        changes[noise, shift] = changes.get((noise, shift), 0) + 1
    return ComposedLoss(changes, points)


@pytest.mark.parametrize(
    ("answers", "reach"),
    [pytest.param(*case, id=str(i), marks=[pytest.mark.slow] * (i == 4)) for i, case in enumerate(CASES)],
)
def test_full_enumeration_lies_between_the_bounds(answers: list[Answer], reach: int) -> None:
    loss = composed(answers)
    for epsilon in (-1.3, 0.0, 0.3, 1.0, 2.2):
        exact = slow_delta(answers, epsilon, reach)
        bounds = loss.delta(epsilon)
        assert bounds.lower <= exact * (1 + 1e-12) + mpmath.mpf(10) ** -25
        assert exact <= bounds.upper * (1 + 1e-12) + 1e-25
        assert bounds.gap <= 1e-2 * bounds.upper + 1e-12


def test_small_deltas_keep_their_relative_accuracy() -> None:
    answers: list[Answer] = [("gaussian", Fraction(2), 1), ("gaussian", Fraction(5, 2), 1)]
    loss = composed(answers, 1 << 16)
    for epsilon in (4.0, 6.0, 9.0):
        exact = slow_delta(answers, epsilon, 60)
        bounds = loss.delta(epsilon)
        assert bounds.lower <= exact <= bounds.upper
        assert bounds.gap < 1e-2 * float(exact)
    assert float(slow_delta(answers, 9.0, 60)) < 1e-18


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_laplace_answers_are_randomised_responses(count: int) -> None:
    """k equal answers: the loss is (2 B - k) / s with B binomial, so delta is a finite sum."""
    scale = Fraction(4)
    with mpmath.workdps(40):
        heads = 1 / (1 + mpmath.exp(mpmath.mpf(-1) / 4))
        for epsilon in (0.0, 0.4, 1.1):
            exact = mpmath.fsum(
                mpmath.binomial(count, b)
                * heads**b
                * (1 - heads) ** (count - b)
                * max(mpmath.mpf(0), 1 - mpmath.exp(epsilon - (2 * mpmath.mpf(b) - count) / 4))
                for b in range(count + 1)
            )
            bounds = ComposedLoss({(DiscreteLaplace(scale), 1): count}).delta(epsilon)
            assert bounds.lower <= exact <= bounds.upper
            assert bounds.gap < 1e-3


# A single discrete Gaussian answer with sigma2 = 1 / (2 rho) at delta = 1e-10, from 60-digit sums made before
# this code existed.
SINGLE = [
    ("2.63", 13.150),
    ("2.56", 12.800),
    ("1.095", 9.848),
    ("1", 8.999),
    ("0.1885", 3.901),
    ("0.07", 2.287),
]


@pytest.mark.parametrize(("rho", "epsilon"), SINGLE)
def test_single_answers_have_the_known_epsilons(rho: str, epsilon: float) -> None:
    noise = DiscreteGaussian(1 / (2 * Fraction(rho)))
    bounds = ComposedLoss({(noise, 1): 1}).epsilon("1e-10")
    assert bounds.lower <= epsilon + 6e-4
    assert epsilon - 6e-4 <= bounds.upper <= epsilon * (1 + 5e-4)
    assert bounds.gap < 1e-3 * epsilon


def test_continuous_noise_is_the_limit_of_many_wide_answers() -> None:
    """With rho spread over 4,000 answers the law is that of the Gaussian mechanism to four digits."""
    count, rho = 4000, Fraction(1)
    loss = ComposedLoss({(DiscreteGaussian(count / (2 * rho)), 1): count})
    mu, normal = math.sqrt(2.0), NormalDist()

    def gaussian_delta(epsilon: float) -> float:
        return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)

    for epsilon in (0.5, 2.0, 5.0):
        bounds = loss.delta(epsilon)
        assert bounds.lower * (1 - 1e-4) <= gaussian_delta(epsilon) <= bounds.upper * (1 + 1e-4)


@each("delta", ["1e-40", "1e-10", "1e-3", "0.9", "0.999"])
@each("size", [500, 10**4, 10**6, 10**9])
def test_hardly_any_noise(size: int, delta: str) -> None:
    """Noise that is hardly ever anything but zero: the loss is one number, epsilon near it."""
    laplace, gaussian = DiscreteLaplace(Fraction(3, 2 * size)), DiscreteGaussian(Fraction(3, 2 * size))
    bounds = ComposedLoss({(laplace, 1): 1, (gaussian, 1): 1}).epsilon(delta)
    exact = size + math.log1p(-float(delta))
    assert bounds.lower <= exact * (1 + 1e-12) + 1e-6
    assert bounds.upper >= exact * (1 - 1e-15)
    if float(delta) >= 1e-10:  # below, other values of the noise may count
        assert bounds.upper <= exact * (1 + 1e-5) + 1


def test_bad_input_is_refused() -> None:
    loss = composed([("gaussian", Fraction(1), 1)])
    for delta in ("0", "1", "-1e-3", "1e-60"):
        with pytest.raises(ConfigError, match="delta"):
            loss.epsilon(delta)
    with pytest.raises(ConfigError):
        loss.epsilon(1e-10)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="too wide"):
        ComposedLoss({(DiscreteGaussian(Fraction(10**20)), 1): 1})


def test_nothing_that_changes_loses_nothing() -> None:
    loss = ComposedLoss({})
    assert loss.epsilon("1e-10").upper == 0.0
    assert loss.delta(0.0).upper == 0.0
    assert loss.delta(-1.0).upper == pytest.approx(1 - math.exp(-1))


def production_plan() -> ChangedAnswers:
    """Return the persons plan of 2020: two answers for every query group of every geolevel."""
    levels = ["us", "state", "county", "tract", "block_group", "block"]
    budget = resolve_budget(BudgetSpec(preset="us2020-persons"), levels)
    changes: dict[tuple[Noise, int], int] = {}
    for level in levels:
        for query in budget.queries.get(level, {}):
            key = (budget.distribution(level, query), 1)
            changes[key] = changes.get(key, 0) + 2
    (change,) = budget_loss(budget).changes
    assert change == changes
    return changes


def quadrature(changes: ChangedAnswers, epsilon: float, tilt: float) -> float:
    """Delta as an integral of the moment generating function along a vertical line; no grid of losses.

    ``(1 / 2 pi) int M(t + iu) exp(-(t + iu) epsilon) / ((t + iu)(t + iu + 1)) du`` by the trapezoidal rule.
    With many spacings the integrand has died out long before the end of the range.
    """
    step, end = 0.06, 48.0
    z = tilt + 1j * np.arange(0.0, end, step)
    log_moment = np.zeros(len(z), dtype=np.complex128)
    for (noise, _), count in changes.items():
        sigma2 = float(noise.parameter)
        x = np.arange(-math.ceil(13 * math.sqrt(sigma2)) - 1, math.ceil(13 * math.sqrt(sigma2)) + 2)
        weight = np.exp(-(x**2) / (2 * sigma2))
        weight /= weight.sum()
        log_moment += count * np.log(np.exp(np.outer(z, (1 - 2 * x) / (2 * sigma2))) @ weight)
    integrand = (np.exp(log_moment - z * epsilon) / (z * (z + 1))).real
    assert abs(integrand[-200:]).max() < 1e-9 * integrand[0]
    return float((integrand[0] / 2 + integrand[1:].sum()) * step / math.pi)


@pytest.mark.parametrize(("epsilon", "tilt"), [(2.0, 0.8), (16.465, 3.0)])
def test_the_production_plan_by_quadrature(epsilon: float, tilt: float) -> None:
    changes = production_plan()
    exact = quadrature(changes, epsilon, tilt)
    bounds = ComposedLoss(changes).delta(epsilon)
    assert bounds.lower <= exact * (1 + 1e-9)
    assert exact <= bounds.upper * (1 + 1e-9)
    assert bounds.upper <= exact * (1 + 2e-3)
    assert bounds.gap < 3e-2 * exact


def test_without_the_extra_the_words_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    loss = composed([("gaussian", Fraction(1), 1)])
    with pytest.raises(EnvironmentFailure, match=r"pip install 'opendas\[account\]'") as caught:
        loss.epsilon("1e-10")
    assert caught.value.exit_code == 6
