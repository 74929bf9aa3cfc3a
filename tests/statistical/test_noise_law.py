"""Draws follow the exact law: goodness of fit with power, two independent samplers, no correlation.

Keys are fixed, so every p-value here is a constant: a test fails when code changes, never by chance.

Power. With n draws, the chi-squared statistic against a wrong law q instead of p exceeds its degrees of
freedom by about ``n * sum (p - q)**2 / q``. For a scale (standard deviation) 5 % off that sum is at least
0.0016 for the laws below, so n = 300,000 puts the statistic at least 480 above a mean of at most 75, whose
standard deviation is sqrt(2 * 75) = 12: forty standard deviations. The test checks this number too, beside
its verdict. A scale 1 % off would give about 20 instead of 480: for that, 10**6 draws or more are needed.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, count

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.noise import draw, pmf

from opendas.custody.run_key import RunKey
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise
from opendas.sampling.noise import NoiseSource

DRAWS = 300_000
#: Below this p-value a fit is rejected.
REJECT = 1e-4

LAWS: list[tuple[Noise, Noise]] = [
    # The law, and the same with a scale 5 % larger.
    (DiscreteGaussian(Fraction(1, 2)), DiscreteGaussian(Fraction(1, 2) * Fraction(21, 20) ** 2)),
    (DiscreteGaussian(Fraction(1)), DiscreteGaussian(Fraction(21, 20) ** 2)),
    (DiscreteGaussian(Fraction(7, 3)), DiscreteGaussian(Fraction(7, 3) * Fraction(21, 20) ** 2)),
    (DiscreteGaussian(Fraction(10)), DiscreteGaussian(10 * Fraction(21, 20) ** 2)),
    (DiscreteGaussian(Fraction(1000)), DiscreteGaussian(1000 * Fraction(21, 20) ** 2)),
    (DiscreteGaussian(Fraction(10**5)), DiscreteGaussian(10**5 * Fraction(21, 20) ** 2)),
    (DiscreteLaplace(Fraction(1, 2)), DiscreteLaplace(Fraction(21, 40))),
    (DiscreteLaplace(Fraction(2)), DiscreteLaplace(Fraction(21, 10))),
    (DiscreteLaplace(Fraction(30)), DiscreteLaplace(Fraction(63, 2))),
]


def source(seed: int) -> NoiseSource:
    return NoiseSource(RunKey.seeded(seed).derive("test/law"))


def draws(law: Noise, n: int = DRAWS, seed: int = 1) -> NDArray[np.int64]:
    """n draws over several geounits, so that every part of the address varies."""
    units = np.arange(20)
    return draw(source(seed), SamplerTable.build(law), 3, units, 2, np.arange(n // 20)).ravel()


def bins(law: Noise, width: int = 8) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Edges of at most about 70 runs of values out to 99.9 %, and the probabilities of runs and ends."""
    step = max(1, math.isqrt(int(law.variance)) * width // 50)
    edge = law.margin(Fraction(999, 1000)) // step * step
    edges = np.arange(-edge - step // 2, edge + step, step)
    values = np.arange(edges[0], edges[-1])
    p = np.array([pmf(law, int(k)) for k in values])
    inner = np.add.reduceat(p, np.arange(0, len(values), step))
    below = np.array([pmf(law, int(k)) for k in range(int(edges[0]) - 30 * step - 30, int(edges[0]))]).sum()
    return edges, np.concatenate([[below], inner, [1 - below - inner.sum()]])


def tally(drawn: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)


def fit(drawn: NDArray[np.int64], law: Noise) -> float:
    """p-value of the chi-squared test of the draws against the law."""
    edges, p = bins(law)
    return float(stats.chisquare(tally(drawn, edges), p / p.sum() * len(drawn)).pvalue)


@pytest.mark.parametrize(("law", "wrong"), LAWS, ids=[repr(law) for law, _ in LAWS])
def test_the_law_is_accepted_and_a_scale_5_per_cent_off_rejected(law: Noise, wrong: Noise) -> None:
    drawn = draws(law)
    edges, q = bins(wrong)
    values = np.arange(edges[0], edges[-1])
    p = np.array([pmf(law, int(k)) for k in values])
    inner = np.add.reduceat(p, np.arange(0, len(values), edges[1] - edges[0]))
    tail = (1 - inner.sum()) / 2
    p = np.concatenate([[tail], inner, [tail]])
    assert DRAWS * ((p - q) ** 2 / q).sum() > 480  # the power claimed above
    assert len(q) < 75
    assert fit(drawn, law) > REJECT
    assert fit(drawn, wrong) < 1e-20


@pytest.mark.parametrize("law", [DiscreteGaussian(Fraction(9)), DiscreteLaplace(Fraction(3))], ids=repr)
def test_moments(law: Noise) -> None:
    drawn = draws(law, n=2_000_000).astype(float)
    kurtosis = (drawn**4).mean() / law.variance**2
    error = math.sqrt(law.variance / len(drawn))
    assert abs(drawn.mean()) < 4 * error
    assert drawn.var() == pytest.approx(law.variance, rel=4 * math.sqrt((kurtosis - 1) / len(drawn)))


def test_neighbouring_addresses_are_uncorrelated() -> None:
    """A word used twice, or an address field that is ignored, gives a correlation of 1."""
    law = DiscreteGaussian(Fraction(25))
    table, keyed = SamplerTable.build(law), source(4)
    units, cells = np.arange(200), np.arange(500)
    base = draw(keyed, table, 2, units, 7, cells)
    others = {
        "cell": base[:, np.roll(cells, 1)],
        "geounit": base[np.roll(units, 1)],
        "query": draw(keyed, table, 2, units, 8, cells),
        "geolevel": draw(keyed, table, 3, units, 7, cells),
        "key": draw(source(5), table, 2, units, 7, cells),
    }
    for name, other in others.items():
        correlation = (base * other).mean() / law.variance
        assert abs(correlation) < 4 / math.sqrt(base.size), name
    # Squares too: shared magnitude with independent signs would pass the test above.
    for name, other in others.items():
        product = ((base**2 - law.variance) * (other**2 - law.variance)).mean() / (2 * law.variance**2)
        assert abs(product) < 5 / math.sqrt(base.size), name


# Two samplers that share nothing with ours: neither words, nor thresholds, nor the fold.


def bernoulli_exp(generator: random.Random, gamma: Fraction) -> bool:
    """True with probability exp(-gamma). Canonne, Kamath & Steinke (2020), Algorithm 1."""
    while gamma > 1:
        if not bernoulli_exp(generator, Fraction(1)):
            return False
        gamma -= 1
    for k in count(1):
        if generator.randrange(gamma.denominator * k) >= gamma.numerator:
            return k % 2 == 1
    raise AssertionError


def rejection_laplace(generator: random.Random, scale: int) -> int:
    """Discrete Laplace of integer scale. Canonne, Kamath & Steinke (2020), Algorithm 2 with s = 1."""
    while True:
        low = generator.randrange(scale)
        if not bernoulli_exp(generator, Fraction(low, scale)):
            continue
        high = 0
        while bernoulli_exp(generator, Fraction(1)):
            high += 1
        negative, magnitude = generator.randrange(2) == 1, low + scale * high
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def rejection_gaussian(generator: random.Random, sigma2: Fraction) -> int:
    """Discrete Gaussian. Canonne, Kamath & Steinke (2020), Algorithm 3."""
    scale = math.isqrt(int(sigma2)) + 1
    while True:
        candidate = rejection_laplace(generator, scale)
        if bernoulli_exp(generator, (abs(candidate) - sigma2 / scale) ** 2 / (2 * sigma2)):
            return candidate


def bitwise_inverse(law: Noise) -> Callable[[random.Random], int]:
    """Inverse CDF, one random bit at a time until the interval left lies within one step.

    The exponentials are ``(1 - x / 2**400)**(2**400)`` in integers of 500 bits, good to about 2**-90.
    """
    unit = 1 << 500

    def weight(k: int) -> int:
        x = Fraction(k * k) / (2 * law.sigma2) if isinstance(law, DiscreteGaussian) else abs(k) / law.scale
        value = unit - int(x * unit / 2**400)
        for _ in range(400):
            value = value * value // unit
        return value

    edge = law.margin(1 - Fraction(1, 2**60))
    weights = [weight(k) for k in range(-edge, edge + 1)]
    total = sum(weights)
    steps = [unit * below // total for below in accumulate(weights)]

    def draw(generator: random.Random) -> int:
        low, width = 0, unit
        while True:
            first = bisect_right(steps, low)
            if first == len(steps) - 1 or low + width <= steps[first]:
                return first - edge
            width //= 2
            low += generator.getrandbits(1) * width

    return draw


def homogeneity(ours: NDArray[np.int64], theirs: NDArray[np.int64], law: Noise) -> float:
    """p-value of the chi-squared test that two samples have one law."""
    edges, _ = bins(law, width=16)
    counts = np.stack([tally(ours, edges), tally(theirs, edges)])
    return float(stats.chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue)


REFERENCES: list[tuple[str, Noise, Callable[[random.Random], int]]] = [
    ("rejection", DiscreteGaussian(Fraction(7, 3)), lambda g: rejection_gaussian(g, Fraction(7, 3))),
    ("rejection", DiscreteGaussian(Fraction(40)), lambda g: rejection_gaussian(g, Fraction(40))),
    ("rejection", DiscreteLaplace(Fraction(3)), lambda g: rejection_laplace(g, 3)),
    ("inverse", DiscreteGaussian(Fraction(7, 3)), bitwise_inverse(DiscreteGaussian(Fraction(7, 3)))),
    ("inverse", DiscreteGaussian(Fraction(40)), bitwise_inverse(DiscreteGaussian(Fraction(40)))),
    ("inverse", DiscreteLaplace(Fraction(5, 2)), bitwise_inverse(DiscreteLaplace(Fraction(5, 2)))),
]


@pytest.mark.parametrize(("name", "law", "sampler"), REFERENCES, ids=[f"{n}-{d!r}" for n, d, _ in REFERENCES])
def test_draws_agree_with_an_independent_sampler(
    name: str, law: Noise, sampler: Callable[[random.Random], int]
) -> None:
    """20,000 draws of theirs: a variance 21 % off is 20 standard errors (sqrt(2/n) = 1 %) away."""
    generator = random.Random(11)
    theirs = np.array([sampler(generator) for _ in range(20_000)])
    assert fit(theirs, law) > REJECT
    assert homogeneity(draws(law), theirs, law) > REJECT
    if isinstance(law, DiscreteGaussian):
        wrong: Noise = DiscreteGaussian(law.sigma2 * Fraction(121, 100))
    else:
        assert isinstance(law, DiscreteLaplace)
        wrong = DiscreteLaplace(law.scale * Fraction(11, 10))
    assert homogeneity(draws(wrong), theirs, law) < 1e-9
