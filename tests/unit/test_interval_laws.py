"""The law of weighted sums of noise draws, against enumeration in exact numbers and against simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from support.each import each
from support.noise import pmf

from opendas.errors import ConfigError
from opendas.intervals.laws import (
    CHARACTERISTIC,
    ENUMERATED,
    EXACT,
    NORMAL,
    Draws,
    NoiseSum,
    characteristic,
    confidence_level,
    noise_sum,
    probabilities,
)
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

NARROW = DiscreteGaussian(Fraction(1, 3))
SMALL = DiscreteGaussian(Fraction(197, 100))
WIDE = DiscreteGaussian(Fraction(400))
LAPLACE = DiscreteLaplace(Fraction(2))
LONG = DiscreteLaplace(Fraction(30))


def chances(law, reach: int) -> dict[int, float]:
    return {k: pmf(law, k) for k in range(-reach, reach + 1)}


@pytest.mark.parametrize("law", [NARROW, SMALL, WIDE, LAPLACE, LONG])
def test_probabilities_and_characteristic_function_are_those_of_the_law(law) -> None:
    found = probabilities(law)
    reach = len(found) // 2
    for k in (0, 1, 2, reach // 2):
        assert found[reach + k] == pytest.approx(pmf(law, k), rel=1e-12)
        assert found[reach - k] == found[reach + k]
    t = np.array([0.0, 0.1, 1.0, math.pi, 5.0, 2 * math.pi, -7.3])
    k = np.arange(-reach, reach + 1)
    assert characteristic(law, t) == pytest.approx(np.cos(np.outer(t, k)) @ found, abs=1e-12)


def enumerated(draws: list[tuple[object, float]], confidence: Fraction) -> float:
    """Find the least half-width by going through every outcome."""
    atoms: dict[float, float] = {}
    tables = [chances(law, 40) for law, _ in draws]
    for outcome in itertools.product(*tables):
        size = round(abs(sum(w * k for (_, w), k in zip(draws, outcome, strict=True))), 9)
        atoms[size] = atoms.get(size, 0.0) + math.prod(t[k] for t, k in zip(tables, outcome, strict=True))
    total = 0.0
    for size in sorted(atoms):
        total += atoms[size]
        if total >= float(confidence) - 1e-12:
            return size
    raise AssertionError


@each("confidence", [Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)])
@each(
    "draws",
    [
        [(SMALL, 1.0)],
        [(NARROW, 2.5)],
        [(LAPLACE, 1.0)],
        [(SMALL, 0.3), (SMALL, 0.7)],
        [(LAPLACE, 0.9), (SMALL, 0.37)],
    ],
)
def test_few_draws_are_enumerated(draws, confidence: Fraction) -> None:
    law = NoiseSum(tuple(Draws(one, weight) for one, weight in draws))
    found = law.half_width(float(confidence))
    assert found.law == ENUMERATED
    assert found.value == pytest.approx(enumerated(draws, confidence), abs=1e-8)
    assert law.coverage(found.value) >= float(confidence) - 1e-12
    assert law.coverage(found.value - 1e-6) < float(confidence)


@pytest.mark.parametrize("law", [SMALL, WIDE, LAPLACE, LONG])
def test_one_draw_has_the_exact_margin_of_its_law(law) -> None:
    for confidence in (Fraction(9, 10), Fraction(95, 100), Fraction(99, 100)):
        assert NoiseSum((Draws(law, 1.0),)).half_width(float(confidence)).value == law.margin(confidence)


def test_alike_draws_are_convolved() -> None:
    twice = NoiseSum((Draws(SMALL, 0.5, 2),))
    assert twice.half_width(0.9).value == pytest.approx(enumerated([(SMALL, 0.5)] * 2, Fraction(9, 10)))
    assert twice.variance == pytest.approx(2 * 0.25 * SMALL.variance)


def simulated(law: NoiseSum, size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = math.sqrt(law.rest) * rng.standard_normal(size)
    for draws in law.draws:
        chance = probabilities(draws.law)
        k = np.arange(len(chance)) - len(chance) // 2
        for _ in range(draws.number):
            found += draws.weight * rng.choice(k, size, p=chance)
    return np.abs(found)


@pytest.mark.parametrize(
    ("law", "way"),
    [
        (NoiseSum((Draws(SMALL, 1.0),), 0.1), CHARACTERISTIC),
        (NoiseSum((Draws(SMALL, 1.0),), 2.0), NORMAL),
        (NoiseSum((Draws(LAPLACE, 1.0),), 4.0), CHARACTERISTIC),
        (NoiseSum((Draws(LONG, 1.0), Draws(WIDE, 1.0)), 1.0), CHARACTERISTIC),
        (
            NoiseSum((Draws(LONG, 0.311, 3), Draws(LONG, 0.7, 2), Draws(WIDE, 0.129, 5))),
            CHARACTERISTIC,
        ),
        (NoiseSum((Draws(WIDE, 0.1, 8),), 1.0), NORMAL),
    ],
)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_coverage_against_simulation(law: NoiseSum, way: str, confidence: float) -> None:
    found = law.half_width(confidence)
    assert found.law == way
    covered = float(np.mean(simulated(law, 200_000, seed=5) <= found.value + 1e-9))
    stated = law.coverage(found.value)
    assert stated >= confidence - 1e-4
    assert covered == pytest.approx(stated, abs=5 * math.sqrt(0.25 / 200_000))


def test_many_draws_are_normal() -> None:
    law = NoiseSum((Draws(WIDE, 0.1, 50),), 3.0)
    assert law.is_normal
    assert law.half_width(0.9).value == pytest.approx(1.6448536 * math.sqrt(law.variance), rel=1e-6)


def test_steps_and_tails_are_seen() -> None:
    assert NoiseSum((Draws(SMALL, 1.0),)).steps == pytest.approx(1.0)
    assert NoiseSum((Draws(SMALL, 1.0),), 1.0).steps < 1e-8
    assert NoiseSum((Draws(LONG, 1.0),)).excess == pytest.approx(3.0, abs=0.01)
    assert not NoiseSum((Draws(LONG, 1.0),), 1.0).is_normal


def test_no_noise_has_no_width() -> None:
    found = NoiseSum(()).half_width(0.9)
    assert (found.value, found.law) == (0.0, EXACT)
    assert NoiseSum(()).coverage(0.0) == 1.0


@pytest.mark.parametrize("level", [0, 1, -0.5, 1.5, float("nan"), Fraction(1)])
def test_levels_outside_the_open_interval_are_refused(level) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        confidence_level(level)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        NoiseSum((), 1.0).half_width(level)


def test_weights_become_draws_and_a_rest() -> None:
    weights = [np.array([0.9, -0.1, 0.1, 1e-9]), np.array([0.0, 0.2])]
    variance = 2.0 * SMALL.variance
    law = noise_sum(weights, [SMALL, LAPLACE], variance)
    assert [(d.law, round(d.weight, 6), d.number) for d in law.draws] == [
        (SMALL, 0.9, 1),
        (LAPLACE, 0.2, 1),
        (SMALL, 0.1, 2),
    ]
    assert law.variance == pytest.approx(variance)
    assert noise_sum([np.array([1.0])], [SMALL], SMALL.variance).rest == 0.0
    assert len(noise_sum([np.linspace(1, 2, 50)], [SMALL], 1e3, most=5).draws) == 5
