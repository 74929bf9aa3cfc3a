"""The noise a share of the budget buys."""

from __future__ import annotations

from fractions import Fraction

import pytest

from opendas.errors import BudgetError
from opendas.privacy.relations import Mechanism, Neighbours, noise_distribution
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE


def test_gaussian_bounded_follows_theorem_2() -> None:
    noise = noise_distribution(GAUSSIAN, Neighbours.BOUNDED, Fraction(3, 7), Fraction(5, 11))
    assert noise == DiscreteGaussian(Fraction(77, 15))


def test_unbounded_halves_the_variance_parameter() -> None:
    bounded = noise_distribution(GAUSSIAN, Neighbours.BOUNDED, Fraction(1, 3), Fraction(2))
    unbounded = noise_distribution(GAUSSIAN, Neighbours.UNBOUNDED, Fraction(1, 3), Fraction(2))
    assert isinstance(bounded, DiscreteGaussian)
    assert isinstance(unbounded, DiscreteGaussian)
    assert bounded.sigma2 == 2 * unbounded.sigma2


@pytest.mark.parametrize(("neighbours", "d1"), [(Neighbours.BOUNDED, 2), (Neighbours.UNBOUNDED, 1)])
def test_laplace_scale_is_the_l1_sensitivity_over_the_share_of_epsilon(
    neighbours: Neighbours, d1: int
) -> None:
    assert neighbours.l1 == d1
    noise = noise_distribution(LAPLACE, neighbours, Fraction(1, 5), Fraction(3))
    assert noise == DiscreteLaplace(Fraction(5 * d1, 3))


@pytest.mark.parametrize("share", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_a_share_outside_zero_to_one_is_refused(share: Fraction) -> None:
    with pytest.raises(BudgetError, match="share"):
        noise_distribution(GAUSSIAN, Neighbours.BOUNDED, share, Fraction(1))


@pytest.mark.parametrize(("mechanism", "name"), [(GAUSSIAN, "rho"), (LAPLACE, "epsilon")])
def test_a_total_that_is_not_positive_is_refused(mechanism: Mechanism, name: str) -> None:
    with pytest.raises(BudgetError, match=name):
        noise_distribution(mechanism, Neighbours.BOUNDED, Fraction(1), Fraction(0))


def test_names_are_those_of_the_run_file() -> None:
    assert [mechanism.value for mechanism in Mechanism] == ["discrete-gaussian", "discrete-laplace"]
    assert [relation.value for relation in Neighbours] == ["bounded", "unbounded"]
