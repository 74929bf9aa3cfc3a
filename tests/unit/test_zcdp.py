"""Conversions: published figures, an independent minimisation, and the extremes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from scipy.optimize import minimize_scalar
from support.delta_of import delta_of
from support.each import each

from opendas.errors import ConfigError
from opendas.privacy.zcdp import (
    Account,
    PureAccount,
    epsilon_bun_steinke,
    epsilon_cks,
    epsilon_curve,
)

PERSONS, UNITS = "293764/114921", "11417641/152349649"
DELTA = "1e-10"


def scipy_epsilon(rho: float, delta: float) -> float:
    """The slow twin: minimise the Renyi conversion over the order, in floats."""

    def at_order(log_t: float) -> float:
        t = math.exp(log_t)
        return rho * (1 + t) - math.log1p(1 / t) + (math.log(1 / delta) - math.log1p(t)) / t

    return float(minimize_scalar(at_order, bounds=(-20, 40), method="bounded", options={"xatol": 1e-12}).fun)


@pytest.mark.parametrize(
    ("rho", "cks", "bun_steinke"),
    [
        (PERSONS, 17.14, 17.90),  # production certificate: 17849145/1041158
        (UNITS, 2.4747, 2.7022),  # production certificate: 1455307/588081
        ("1.095", 10.558, 11.14),  # 11.14: TopDown paper, section 8.1
        ("0.1885", 4.037, 4.36),  # 4.36: TopDown paper, section 8.1
        ("1.05", 10.31, 10.884),  # 10.3: the Bureau's statement on the April 2021 person file
        ("2.63", 17.431, 18.194),
        ("2.56", 17.158, 17.915),
        ("1", 10.034, 10.597),
        ("0.07", 2.387, 2.609),
    ],
)
def test_published_epsilons(rho: str, cks: float, bun_steinke: float) -> None:
    assert epsilon_cks(rho, DELTA) == pytest.approx(cks, abs=0.006 if cks in (17.14, 10.31) else 6e-4)
    assert epsilon_bun_steinke(rho, DELTA) == pytest.approx(bun_steinke, abs=6e-3)


def test_certificate_fractions_to_seven_digits() -> None:
    assert epsilon_cks(PERSONS, DELTA) == pytest.approx(17849145 / 1041158, abs=2e-7)
    assert epsilon_cks(UNITS, DELTA) == pytest.approx(1455307 / 588081, abs=2e-7)


@each("rho", [1e-12, 1e-6, 1e-3, 0.1, 1.0, 2.5562256, 40.0, 1e3, 1e6])
@each("delta", [1e-15, 1e-10, 1e-5, 1e-2])
def test_cks_agrees_with_a_general_minimiser(rho: float, delta: float) -> None:
    exact_rho, exact_delta = Fraction(rho), Fraction(delta)
    expected = max(0.0, scipy_epsilon(rho, delta))
    found = epsilon_cks(exact_rho, exact_delta)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("rho", ["1e-12", "1e-6", "0.001", "1/7", "1", PERSONS, "1000", "1e6"])
def test_cks_is_an_upper_bound_that_its_delta_confirms(rho: str) -> None:
    epsilon = epsilon_cks(rho, DELTA)
    # The rounded-up epsilon has at most the delta asked for; a float just below has more.
    assert delta_of(rho, Fraction(epsilon)) <= 1e-10 * (1 + 1e-12)
    assert delta_of(rho, Fraction(epsilon) * Fraction(999_999, 1_000_000)) > 1e-10


@pytest.mark.parametrize("rho", ["1e-12", "0.1", PERSONS, "1e6"])
def test_cks_is_never_above_bun_steinke(rho: str) -> None:
    for digits in (1, 3, 10, 30, 300):
        delta = Fraction(1, 10**digits)
        assert epsilon_cks(rho, delta) <= epsilon_bun_steinke(rho, delta)


def test_extremes_stay_finite_and_valid() -> None:
    assert epsilon_cks(0, DELTA) == 0.0
    assert epsilon_bun_steinke(0, DELTA) == 0.0
    assert epsilon_cks("1e-30", DELTA) == 0.0
    assert epsilon_cks("1e30", DELTA) >= 1e30


def test_float_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="quotes"):
        epsilon_cks(0.5, DELTA)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="quotes"):
        epsilon_bun_steinke("0.5", 1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", ["0", "1", "-1e-10", "2"])
def test_a_delta_outside_the_unit_interval_is_refused(delta: str) -> None:
    with pytest.raises(ConfigError, match="delta"):
        epsilon_cks("1", delta)


def test_negative_losses_are_refused() -> None:
    with pytest.raises(ConfigError, match="negative"):
        epsilon_cks("-1", DELTA)


def test_account_answers_the_interface() -> None:
    account = Account(Fraction(293764, 114921), Fraction(1, 10**10))
    assert account.epsilon() == account.epsilon("cks") == epsilon_cks(PERSONS, DELTA)
    assert account.epsilon("bun-steinke") == epsilon_bun_steinke(PERSONS, DELTA)
    assert Account("2.5", "1e-10") == Account(Fraction(5, 2), Fraction(1, 10**10))  # type: ignore[arg-type]
    answer = account.as_json()
    assert answer["rho"] == PERSONS
    assert answer["delta"] == 1e-10
    assert list(answer["epsilon"]) == ["cks", "bun-steinke"]  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="bun-steinke, cks"):
        account.epsilon("renyi")


def test_the_curve_has_a_point_per_delta() -> None:
    rows = epsilon_curve(1, ["1e-5", "1e-9", "1e-12"])
    assert [row.delta for row in rows] == [Fraction(1, 10**digits) for digits in (5, 9, 12)]
    assert [row.cks for row in rows] == [epsilon_cks(1, row.delta) for row in rows]
    assert [row.cks for row in rows] == sorted(row.cks for row in rows)


def test_pure_account_keeps_its_epsilon_and_quotes_rho_beside() -> None:
    account = PureAccount("1/3")  # type: ignore[arg-type]
    assert Fraction(account.epsilon()) >= Fraction(1, 3)
    assert account.epsilon() == pytest.approx(1 / 3, rel=1e-15)
    assert account.implied_rho == Fraction(1, 18)
    assert account.as_json()["rho"] is None
    with pytest.raises(ConfigError, match="pure"):
        account.epsilon("cks")
