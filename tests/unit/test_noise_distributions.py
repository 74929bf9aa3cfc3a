"""Variance, probabilities and margins of the two laws, against brute-force sums in decimal arithmetic."""

from __future__ import annotations

import dataclasses
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.noise import pmf
from support.seeds import examples

from opendas.errors import PrivacyError
from opendas.sampling import laws
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise

LAWS = [
    DiscreteGaussian(Fraction(1, 1000)),
    DiscreteGaussian(Fraction(1, 100)),
    DiscreteGaussian(Fraction(1, 4)),
    DiscreteGaussian(Fraction(1)),
    DiscreteGaussian(Fraction(7, 3)),
    DiscreteGaussian(Fraction(799, 100)),
    DiscreteGaussian(Fraction(8)),
    DiscreteGaussian(Fraction(5608, 10)),
    DiscreteLaplace(Fraction(1, 300)),
    DiscreteLaplace(Fraction(1, 2)),
    DiscreteLaplace(Fraction(1)),
    DiscreteLaplace(Fraction(31, 4)),
]


def brute_force(law: Noise) -> list[Decimal]:
    """P(X = k) for k = 0, 1, ... to 90 digits, from the definition. Call inside a decimal context."""
    weights = []
    for k in itertools.count():
        x = Fraction(k * k) / (2 * law.sigma2) if isinstance(law, DiscreteGaussian) else k / law.scale
        weights.append((-Decimal(x.numerator) / Decimal(x.denominator)).exp())
        if k > 1 and weights[-1] < weights[1] * Decimal(10) ** -70:
            break
    total = 2 * sum(weights) - 1
    return [weight / total for weight in weights]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_variance_and_probabilities_are_the_sums(law: Noise) -> None:
    with localcontext() as context:
        context.prec = 90
        exact = brute_force(law)
        variance = 2 * sum(k * k * p for k, p in enumerate(exact))
    assert law.variance == pytest.approx(float(variance), rel=2**-52, abs=0)
    for k, p in enumerate(exact):
        if p < Decimal("1e-300"):
            break
        assert pmf(law, k) == pytest.approx(float(p), rel=2e-15, abs=0)
        assert pmf(law, -k) == pmf(law, k)
    assert pmf(law, 10**6) == 0.0


@each("law", LAWS)
@each("confidence", ["0", "1/3", "1/2", "9/10", "95/100", "999/1000", "1e-9", "0.9999999999"])
def test_margins_are_the_smallest_that_cover(law: Noise, confidence: str) -> None:
    level = Fraction(confidence)
    with localcontext() as context:
        context.prec = 90
        wanted = Decimal(level.numerator) / Decimal(level.denominator)
        covered = itertools.accumulate(p if k == 0 else 2 * p for k, p in enumerate(brute_force(law)))
        expected = next(m for m, share in enumerate(covered) if share >= wanted)
    assert law.margin(level) == expected


def test_margins_near_one_take_more_bits() -> None:
    """1 - c below 2**-64 is beyond the first precision."""
    law = DiscreteLaplace(Fraction(2))
    # P(|X| > m) = 2 q**(m + 1) / (1 + q), q = exp(-1/2).
    for digits in (20, 60, 200):
        m = law.margin(1 - Fraction(1, 10**digits))
        log_miss = (m + 1) * -0.5 + math.log(2 / (1 + math.exp(-0.5)))
        assert log_miss <= -digits * math.log(10) < log_miss + 0.5


def test_a_margin_at_an_exact_threshold_is_decided() -> None:
    """A confidence between two values that differ by 2**-100 near P(|X| <= 3)."""
    law = DiscreteGaussian(Fraction(3))
    tail = Fraction(law.tail_floors(100)[3], 2**100)  # just below P(X > 3), by less than 2**-100
    step = Fraction(1, 2**100)
    assert law.margin(1 - 2 * (tail + step)) == 3
    assert law.margin(1 - 2 * tail) == 4


@pytest.mark.parametrize("sigma2", [Fraction(1, 10**6), Fraction(1, 10**4)])
def test_variances_below_the_smallest_double_come_as_zero(sigma2: Fraction) -> None:
    assert DiscreteGaussian(sigma2).variance == 0.0
    assert pmf(DiscreteGaussian(sigma2), 0) == 1.0
    assert DiscreteGaussian(sigma2).margin(Fraction(99, 100)) == 0
    assert DiscreteLaplace(sigma2).variance == 0.0


@pytest.mark.parametrize("sigma2", [Fraction(10**6), Fraction(10**12), Fraction(10**12, 7)])
def test_wide_gaussians_have_the_continuous_variance_and_density(sigma2: Fraction) -> None:
    law = DiscreteGaussian(sigma2)
    assert law.variance == float(sigma2)
    k = round(float(sigma2) ** 0.5)
    density = math.exp(-k * k / (2 * float(sigma2))) / math.sqrt(2 * math.pi * float(sigma2))
    assert pmf(law, k) == pytest.approx(density, rel=1e-14)


def test_a_wide_margin_is_the_normal_quantile() -> None:
    # 1.959963985 * 10**4 = 19599.64 <= m + 1/2, the half for the width of a count.
    assert DiscreteGaussian(Fraction(10**8)).margin(Fraction(95, 100)) == 19_600


@pytest.mark.parametrize(
    "law", [DiscreteGaussian(Fraction(10**60)), DiscreteLaplace(Fraction(10**60))], ids=repr
)
def test_margins_of_absurdly_wide_laws_are_refused(law: Noise) -> None:
    with pytest.raises(PrivacyError, match="too wide for an exact margin"):
        law.margin(Fraction(1, 2))


@pytest.mark.parametrize("value", [0, -1, Fraction(-1, 3), 1.5, "2", None, True])
def test_parameters_are_exact_and_positive(value: object) -> None:
    with pytest.raises(PrivacyError, match=r"sigma2 .*(expected a positive|are exact)"):
        DiscreteGaussian(value)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match=r"scale .*(expected a positive|are exact)"):
        DiscreteLaplace(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("confidence", [Fraction(1), Fraction(-1, 10), Fraction(3, 2), 0.95, "0.95"])
def test_confidences_are_exact_and_below_one(confidence: object) -> None:
    for law in (DiscreteGaussian(Fraction(1)), DiscreteLaplace(Fraction(1))):
        with pytest.raises(PrivacyError, match="confidence"):
            law.margin(confidence)  # type: ignore[arg-type]


@pytest.mark.parametrize("law", [DiscreteGaussian(2), DiscreteLaplace(2)])
def test_laws_are_values_and_fulfil_the_protocol(law: Noise) -> None:
    assert isinstance(law, Noise)
    assert law == type(law)(Fraction(2))  # type: ignore[call-arg]
    assert hash(law) == hash(type(law)(Fraction(2)))  # type: ignore[call-arg]
    assert law.name in {"discrete-gaussian", "discrete-laplace"}
    assert SamplerTable.build(law).distribution == law
    with pytest.raises(AttributeError):
        setattr(law, dataclasses.fields(law)[0].name, Fraction(3))  # type: ignore[arg-type]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.booleans(),
    st.floats(4, 6),
    st.sampled_from([Fraction(1, 1000), Fraction(1, 2), Fraction(9, 10), Fraction(995, 1000)]),
)
def test_margins_decided_in_doubles_are_the_exact_ones(
    gaussian: bool, exponent: float, confidence: Fraction
) -> None:
    parameter = Fraction(10 ** (exponent if gaussian else exponent / 2)).limit_denominator(10**6)
    law = DiscreteGaussian(parameter) if gaussian else DiscreteLaplace(parameter)
    assert law.margin(confidence) == laws._decided_margin(law, confidence)


@pytest.mark.parametrize("low", [10_010, 90_000])
def test_margins_where_they_change(low: int) -> None:
    """Find the variance at which the margin grows by one, and look at both sides of it."""
    ninety = Fraction(9, 10)
    start = DiscreteGaussian(Fraction(low)).margin(ninety)
    steps = (Fraction(low) + Fraction(k, 2) for k in range(10_000))
    above = next(sigma2 for sigma2 in steps if DiscreteGaussian(sigma2).margin(ninety) > start)
    below = Fraction(low)
    for _ in range(60):
        middle = (below + above) / 2
        is_below = DiscreteGaussian(middle).margin(ninety) == start
        below, above = (middle, above) if is_below else (below, middle)
    for sigma2 in (below, above):
        law = DiscreteGaussian(sigma2)
        assert law.margin(ninety) == laws._decided_margin(law, ninety)
