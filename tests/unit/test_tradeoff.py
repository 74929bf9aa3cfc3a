"""What an attacker can do with a rho."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm
from support.delta_of import delta_of
from support.each import each

from opendas.errors import ConfigError
from opendas.privacy.attacker import gaussian_power, loss_tail, posterior, zcdp_power_bound
from opendas.privacy.zcdp import epsilon_bun_steinke

PERSONS = "293764/114921"


def test_gaussian_power_at_the_production_plan() -> None:
    assert gaussian_power(PERSONS, 1e-3) == pytest.approx(0.2035, abs=1e-4)
    mu = math.sqrt(2 * 293764 / 114921)
    assert gaussian_power(PERSONS, 0.05) == pytest.approx(norm.sf(norm.isf(0.05) - mu), abs=1e-12)


@each("rho", ["0.001", "0.1", "1", PERSONS, "20"])
@each("alpha", [1e-6, 1e-3, 0.05, 0.3, 0.9])
def test_the_bound_lies_between_the_gaussian_power_and_the_approximate_dp_bound(
    rho: str, alpha: float
) -> None:
    bound = zcdp_power_bound(rho, alpha)
    # Continuous Gaussian noise is rho-zCDP, so no valid bound lies below its power.
    assert bound >= gaussian_power(rho, alpha)
    # Each (epsilon, delta) that rho implies bounds the power too, and less tightly.
    for epsilon in ("0", "0.5", "1", "2", "4", "8"):
        assert bound <= math.exp(float(epsilon)) * alpha + delta_of(rho, epsilon) + 1e-9


def test_no_budget_means_no_power() -> None:
    assert gaussian_power(0, 0.05) == pytest.approx(0.05)
    assert zcdp_power_bound(0, 0.05) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("rho", ["0.1", "1"])
@pytest.mark.parametrize("alpha", [0.01, 0.2])
def test_the_bound_treats_both_data_sets_alike(rho: str, alpha: float) -> None:
    # A test of x against x' is, with its answers exchanged, a test of x' against x.
    power = zcdp_power_bound(rho, alpha)
    assert power < 1
    assert zcdp_power_bound(rho, 1 - power) == pytest.approx(1 - alpha, abs=1e-6)


def test_loss_tail_is_the_inverse_of_the_plain_conversion() -> None:
    epsilon = epsilon_bun_steinke(PERSONS, "1e-3")
    assert loss_tail(PERSONS, math.exp(epsilon)) == pytest.approx(1e-3, rel=1e-9)
    assert loss_tail(PERSONS, 2.0) == 1.0
    assert loss_tail(0, 1.5) == 0.0
    assert loss_tail("1e-9", 3.0) > 0.0


def test_posterior_multiplies_the_odds() -> None:
    assert posterior(0.5, 3.0) == pytest.approx(0.75)
    assert posterior(0.01, 12.9) == pytest.approx(0.1153, abs=1e-3)


def test_rates_outside_zero_to_one_are_refused() -> None:
    for call in (gaussian_power, zcdp_power_bound):
        with pytest.raises(ConfigError, match="alpha"):
            call("1", 0.0)
    with pytest.raises(ConfigError, match="prior"):
        posterior(1.0, 2.0)
    with pytest.raises(ConfigError, match="factor"):
        loss_tail("1", 1.0)
    with pytest.raises(ConfigError, match="factor"):
        posterior(0.5, 0.0)
