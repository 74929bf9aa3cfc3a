"""Noise much narrower than one count: its law told by its variance, and what is a contradiction of totals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.each import each
from support.mini import mini_frame, mini_histogram, mini_product
from support.noisy_trees import MadeTree

from opendas.errors import FormatError
from opendas.intervals.answers import Estimated
from opendas.intervals.combined import beyond_chance
from opendas.intervals.laws import Draws, NoiseSum, probabilities
from opendas.intervals.noisy_tree import NoisyLevel, NoisyTree
from opendas.intervals.tree_estimates import MOST_APART, TreeEstimates
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

NARROW = (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 4), Fraction(1))


@given(st.fractions(Fraction(1, 160), 10**6, max_denominator=4099))
def test_the_law_of_a_variance(sigma2: Fraction) -> None:
    """As the files state it, in single precision."""
    law = DiscreteGaussian(sigma2)
    found = DiscreteGaussian.of_variance(float(np.float32(law.variance)))
    assert float(found.sigma2 / sigma2) == pytest.approx(1, abs=2e-7)
    assert found.variance == pytest.approx(law.variance, rel=3e-7)


@each("sigma2", NARROW)
@each("number", [1, 2, 7, 60])
def test_the_parameter_bounds_the_tails(sigma2: Fraction, number: int) -> None:
    one = probabilities(DiscreteGaussian(sigma2))
    law = np.ones(1)
    for _ in range(number):
        law = np.convolve(law, one)
    sizes = np.abs(np.arange(len(law)) - len(law) // 2)
    assert law[sizes > MOST_APART * np.sqrt(number * float(sigma2))].sum() < 5e-11


def published(tree: NoisyTree) -> NoisyTree:
    """Return a tree with the laws that its variances tell, in single precision."""
    levels = [
        NoisyLevel(
            level.geolevel,
            level.queries,
            tuple(
                tuple(DiscreteGaussian.of_variance(float(np.float32(law.variance))) for law in laws)
                for laws in level.laws
            ),
            level.which,
        )
        for level in tree.levels
    ]
    return replace(tree, levels=tuple(levels))


@pytest.mark.parametrize("rho", [Fraction(2), Fraction(20), Fraction(60), Fraction(200)])
def test_totals_on_a_tree_with_narrow_noise(rho: Fraction) -> None:
    """Twenty draws contradict nothing; eleven people too many in a town do."""
    frame = mini_frame(seed=3)
    made = MadeTree(mini_product(), frame, mini_histogram(frame, 3), rho=rho)
    for seed in range(20):
        assert TreeEstimates(published(made.draw(seed))).sweep is not None
    tree = published(made.draw(0))
    spread = max(float(law.sigma2) for level in tree.levels for laws in level.laws for law in laws) ** 0.5
    for answers in tree.answers.values[1]:
        answers[0, 0] += 11 + int(50 * spread)
    with pytest.raises(FormatError, match=r"differ about its total by more than [\d,]+ standard deviations"):
        _ = TreeEstimates(tree).sweep


def estimate(value: float, law: DiscreteGaussian | DiscreteLaplace) -> Estimated:
    """Return an estimate whose error is one draw."""
    kinds = (NoiseSum((Draws(law, law.variance**-0.5),)),)
    return Estimated(np.array([[value]]), np.array([[law.variance]]), kinds, np.array([[0]]))


def test_two_estimates_of_one_count() -> None:
    """With variances of 0.0133 a draw of 1 is nine standard deviations, and happens once in 75 times."""
    narrow = DiscreteGaussian(Fraction(1, 10))
    for apart, contradicts in ((0, False), (1, False), (2, False), (4, True)):
        found = beyond_chance(estimate(5.0, narrow), estimate(5.0 + apart, narrow))[0, 0]
        assert (found > 0) == contradicts, apart
    assert found == pytest.approx(4 / (2 * narrow.variance) ** 0.5)
    wide = DiscreteLaplace(Fraction(10))
    assert beyond_chance(estimate(0.0, wide), estimate(150.0, narrow))[0, 0] == 0  # 10.6 of them: once in 3e6
    assert beyond_chance(estimate(0.0, wide), estimate(300.0, narrow))[0, 0] > 20
    exact = Estimated(np.array([[5.0]]), np.array([[0.0]]), (), np.array([[-1]]))
    assert beyond_chance(exact, exact)[0, 0] == 0
    assert beyond_chance(exact, estimate(6.0, narrow))[0, 0] == 0
    assert beyond_chance(exact, estimate(9.0, narrow))[0, 0] > 0
