"""The exact laws and their samplers, as the public functions give them."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

import opendas as od
from opendas.errors import ConfigError, PrivacyError
from opendas.sampling.inverse_cdf import SamplerTable


def exact(kind: str, parameter: Fraction, points: list[int]) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """P(X = k) and P(X > k) by another program, to 60 digits beyond the smallest."""
    with mpmath.workdps(500):
        p = mpmath.mpf(parameter.numerator) / parameter.denominator
        far = int(60 * float(parameter) ** (0.5 if kind == "gaussian" else 1)) + 400
        far = far * 20 if kind == "laplace" else far
        weights = [mpmath.exp(-(j * j) / (2 * p) if kind == "gaussian" else -j / p) for j in range(far + 1)]
        total = 2 * mpmath.fsum(weights[1:]) + weights[0]
        above = [mpmath.fsum(weights[abs(j)] for j in range(k + 1, far + 1)) for k in points]
        return [(weights[abs(k)] / total, tail / total) for k, tail in zip(points, above, strict=True)]


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [("gaussian", "1/100"), ("gaussian", "7/3"), ("gaussian", "400"), ("laplace", "1/3"), ("laplace", "5")],
)
def test_probabilities_are_those_of_another_program(kind: str, parameter: str) -> None:
    law = od.discrete_gaussian(parameter) if kind == "gaussian" else od.discrete_laplace(parameter)
    points = [-9, -1, 0, 1, 2, 7, 30]
    pmf, tail = law.pmf(points), law.tail(points)
    for i, (mass, above) in enumerate(exact(kind, Fraction(parameter), points)):
        assert pmf[i] == pytest.approx(float(mass), rel=5e-16, abs=5e-324)
        assert tail[i] == pytest.approx(float(above), rel=5e-16, abs=5e-324)
    assert law.pmf(2).shape == ()
    assert law.pmf([[1, 2], [3, 4]]).shape == (2, 2)


def test_far_away_there_is_nothing() -> None:
    law = od.discrete_gaussian(10)
    assert law.pmf([10**18, -(10**18)]).tolist() == [0.0, 0.0]
    assert law.tail([10**18, -(10**18)]).tolist() == [0.0, 1.0]
    with pytest.raises(PrivacyError, match="integers"):
        law.pmf(0.5)


@pytest.mark.parametrize("rng", [np.random.default_rng(3), None])
def test_draws_follow_the_law(rng: np.random.Generator | None) -> None:
    """Ten million draws would see a scale that is a hundredth off; a hundred thousand see a twentieth."""
    law = od.discrete_gaussian("7/3")
    found = od.sample_discrete_gaussian("7/3", 200_000, rng)
    k = np.arange(-5, 6)
    seen = np.array([(found == each).sum() for each in k])
    rest = len(found) - seen.sum()
    expected = np.append(law.pmf(k), 2 * law.tail(5)) * len(found)
    # Draws of the operating system differ each time: a level that fails once in a hundred million runs.
    assert stats.chisquare(np.append(seen, rest), expected).pvalue > 1e-8
    wrong = od.discrete_gaussian("257/100")
    other = np.append(wrong.pmf(k), 2 * wrong.tail(5)) * len(found)
    assert stats.chisquare(np.append(seen, rest), other).pvalue < 1e-8


def test_a_generator_repeats_and_the_operating_system_does_not() -> None:
    draw = od.sample_discrete_laplace
    first = draw(30, (100, 3), np.random.default_rng(7))
    assert first.shape == (100, 3)
    assert np.array_equal(first, draw(30, (100, 3), np.random.default_rng(7)))
    assert not np.array_equal(draw(30, (100, 3)), draw(30, (100, 3)))
    assert draw(30).shape == ()
    assert draw(30, 0).shape == (0,)


class Words(np.random.Generator):
    """A generator that gives the words it is told to."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(np.random.PCG64(0))
        self.words = iter(words)

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        return np.array([next(self.words) for _ in range(size)], dtype=dtype)


def test_words_that_decide_nothing_take_more_words() -> None:
    """The first and last word, and one at a threshold, followed by what decides them."""
    law = od.discrete_gaussian(2)
    table = SamplerTable.build(law)
    floor = int(table.floors[1])
    taken = Words([0, 2**64 - 1, floor, floor, 2**62, 2**63, 5, 2**64 - 5])
    found = od.sample_discrete_gaussian(2, 4, taken)
    assert next(taken.words, None) is None
    rank = [int(found[0]), int(found[1])]
    assert rank[0] < -10 < 10 < rank[1]
    # The threshold belongs to P(X > 1): a smaller extension lies below it, a larger one above.
    assert sorted(abs(found[2:]).tolist()) in ([1, 2], [1, 1], [2, 2])
    assert (found[2:] < 0).all()
    bits = law.tail_floors(128)
    for given, value in ((floor << 64 | 5, found[2]), (floor << 64 | (2**64 - 5), found[3])):
        assert abs(value) == sum(each > given for each in bits)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ((0.5, 1), ConfigError, "binary floating-point"),
        ((0, 1), PrivacyError, "positive"),
        (("1e12", 1), PrivacyError, "too wide"),
        ((1, 1, 7), ConfigError, "default_rng"),
        ((1, 1, np.random.RandomState(1)), ConfigError, "default_rng"),
    ],
)
def test_what_is_refused(given, error, said: str) -> None:
    with pytest.raises(error, match=said):
        od.sample_discrete_gaussian(*given)
