"""The exact curve against full enumeration, closed forms and published figures."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from support.privacy_loss import Answer, slow_delta

from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.composed import ComposedLoss
from opendas.privacy.loss import loss_law
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

POINTS = 1 << 14

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
    changes: dict[tuple[DiscreteGaussian | DiscreteLaplace, int], int] = {}
    for kind, parameter, shift in answers:
        noise = DiscreteGaussian(parameter) if kind == "gaussian" else DiscreteLaplace(parameter)
        changes[noise, shift] = changes.get((noise, shift), 0) + 1
    return ComposedLoss.of(changes, points)


@pytest.mark.parametrize(("answers", "reach"), CASES, ids=range(len(CASES)))
def test_full_enumeration_lies_between_the_bounds(answers: list[Answer], reach: int) -> None:
    loss = composed(answers)
    for epsilon in ("-1.3", "0", "0.3", "1", "2.2"):
        exact = slow_delta(answers, float(epsilon), reach)
        bounds = loss.delta(epsilon)
        assert bounds.lower <= exact * (1 + 1e-12) + mpmath.mpf(10) ** -25
        assert exact <= bounds.upper * (1 + 1e-12) + 1e-25
        assert bounds.gap <= 1e-2 * bounds.upper + 1e-12


def test_small_deltas_keep_their_relative_accuracy() -> None:
    answers: list[Answer] = [("gaussian", Fraction(2), 1), ("gaussian", Fraction(5, 2), 1)]
    loss = composed(answers, 1 << 16)
    for epsilon in (4.0, 6.0, 9.0):
        exact = slow_delta(answers, epsilon, 60)
        bounds = loss.delta_at(epsilon)
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
            bounds = ComposedLoss.of({(DiscreteLaplace(scale), 1): count}).delta_at(epsilon)
            assert bounds.lower <= exact <= bounds.upper
            assert bounds.gap < 1e-4


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
    bounds = ComposedLoss.of({(noise, 1): 1}).epsilon("1e-10")
    assert bounds.lower <= bounds.upper
    assert bounds.upper == pytest.approx(epsilon, abs=6e-4)
    assert bounds.gap < 4e-4


def test_continuous_noise_is_the_limit_of_many_wide_answers() -> None:
    """With rho spread over 4,000 answers the law is that of the Gaussian mechanism to four digits."""
    count, rho = 4000, Fraction(1)
    loss = ComposedLoss.of({(DiscreteGaussian(count / (2 * rho)), 1): count})
    mu, normal = math.sqrt(2.0), NormalDist()

    def gaussian_delta(epsilon: float) -> float:
        return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)

    for epsilon in (0.5, 2.0, 5.0):
        bounds = loss.delta_at(epsilon)
        assert bounds.lower * (1 - 1e-4) <= gaussian_delta(epsilon) <= bounds.upper * (1 + 1e-4)


@pytest.mark.parametrize("delta", ["1e-40", "1e-10", "1e-3", "0.9", "0.999"])
@pytest.mark.parametrize("size", [500, 10**4, 10**6, 10**9])
def test_hardly_any_noise(size: int, delta: str) -> None:
    """Noise that is hardly ever anything but zero: the loss is one number, epsilon near it."""
    laplace, gaussian = DiscreteLaplace(Fraction(3, 2 * size)), DiscreteGaussian(Fraction(3, 2 * size))
    bounds = ComposedLoss.of({(laplace, 1): 1, (gaussian, 1): 1}).epsilon(delta)
    exact = size + math.log1p(-float(delta))
    assert bounds.lower <= exact * (1 + 1e-12) + 1e-6
    assert bounds.upper >= exact * (1 - 1e-15)
    if float(delta) >= 1e-10:  # below, other values of the noise may count
        assert bounds.upper <= exact * (1 + 1e-5) + 1


def test_the_law_of_one_answer_sums_to_one_and_has_mean_ratio_one() -> None:
    for noise in (DiscreteGaussian(Fraction(9, 7)), DiscreteLaplace(Fraction(9, 7))):
        for shift in (1, 2, 5):
            law = loss_law(noise, shift)
            assert law.mass.sum() == pytest.approx(1.0, abs=1e-14)
            assert law.mass @ np.exp(-law.values) == pytest.approx(1.0, abs=1e-12)
            twice = law.times(2)
            assert twice is not None
            assert twice.mass @ np.exp(-twice.values) == pytest.approx(1.0, abs=1e-12)


def test_bad_input_is_refused() -> None:
    loss = composed([("gaussian", Fraction(1), 1)])
    for delta in ("0", "1", "-1e-3", "1e-60"):
        with pytest.raises(ConfigError, match="delta"):
            loss.epsilon(delta)
    with pytest.raises(ConfigError):
        loss.epsilon(1e-10)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError):
        loss_law(DiscreteGaussian(Fraction(1)), 0)
    with pytest.raises(PrivacyError):
        loss_law(DiscreteGaussian(Fraction(10**20)))
    with pytest.raises(PrivacyError, match="power of two"):
        composed([("gaussian", Fraction(1), 1)], 1000).delta("1")


def test_nothing_that_changes_loses_nothing() -> None:
    loss = ComposedLoss.of({})
    assert loss.epsilon("1e-10").upper == 0.0
    assert loss.delta("0").upper == 0.0
    assert loss.delta("-1").upper == pytest.approx(1 - math.exp(-1))
