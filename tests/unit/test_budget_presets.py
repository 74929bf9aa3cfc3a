"""Presets: the published tables, their sums, and the figures the production system printed for them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.each import each

from opendas.budget.allocation import Budget
from opendas.budget.noise import attribute_rho, invariant_shares, within_rho
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import ConfigError
from opendas.privacy.zcdp import epsilon_cks

F = Fraction
US = ("us", "state", "county", "tract", "block_group", "block")
PR = US[1:]
US_DHC = ("us", "state", "county", "prim", "tract_subset_group", "tract_subset", "block_group", "block")
DELTA = "1e-10"

# Noise parameters that the production system used at geounits that bypass nothing, to four digits.
SMALL = ("hispanic", "votingage", "hhinstlevels", "hhgq", "votingage * hispanic")
SIGMA2_US = {
    "total": (None, 1.209, 4.702, 6.11, 3.069, 7963),
    "cenrace": (1215, 760.4, 1470, 1197, 1744, 4424),
    **dict.fromkeys(SMALL, (2430, 760.4, 1470, 1915, 1744, 7963)),
    "hispanic * cenrace": (485.9, 380.2, 524.9, 4.953, 4.96, 1896),
    "votingage * cenrace": (485.9, 380.2, 524.9, 478.7, 581.5, 1896),
    "votingage * hispanic * cenrace": (142.9, 134.2, 145.5, 142.9, 218, 560.8),
    "detailed": (19.66, 19.84, 19.49, 19.86, 4.063, 10.09),
}
SIGMA2_PR = {
    "total": (None, 3.024, 5.808, 1.972, 7963),
    "hispanic * cenrace": (22.53, 337.6, 4.919, 4.94, 1896),
    "detailed": (31.84, 12.54, 11.75, 2.611, 10.09),
}
TOLD_APART = {
    "total": (),
    "hhinstlevels": ("hhgq",),
    "detailed": ("hhgq", "votingage", "hispanic", "cenrace"),
}


def resolved(name: str) -> Budget:
    return resolve_budget(BudgetSpec(preset=name), tuple(preset(name).geolevels))


def attributes(budget: Budget) -> dict[str, tuple[str, ...]]:
    queries = {query for shares in budget.queries.values() for query in shares}
    return {query: TOLD_APART.get(query, tuple(query.split(" * "))) for query in queries}


@each("name", preset_names())
def test_every_column_sums_to_exactly_one(name: str) -> None:
    found = preset(name)
    assert sum(found.geolevels.values()) == 1
    assert list(found.queries) == list(found.geolevels)
    for shares in found.queries.values():
        assert sum(shares.values()) == 1
    levels = US_DHC if "dhc" in name else US
    assert tuple(found.geolevels) == (levels[1:] if name.startswith(("pr", "opendas")) else levels)


def test_totals_are_those_published() -> None:
    assert {name: preset(name).rho for name in preset_names()} == {
        "us2020-persons": F(542, 339) ** 2,
        "pr2020-persons": F(542, 339) ** 2,
        "opendas2026-persons": F(542, 339) ** 2,
        "opendas2026-blocks-persons": F(542, 339) ** 2,
        "us2020-units": F(3379, 12343) ** 2,
        "pr2020-units": F(3379, 12343) ** 2,
        "opendas2026-units": F(3379, 12343) ** 2,
        "april2021-persons": F("1.05"),
        "april2021-units": F("0.045"),
        "april2021-low-persons": F("0.185"),
        "april2021-low-units": F("0.0035"),
        "us2020-dhc-persons": F(24811, 5000),
        "pr2020-dhc-persons": F(24811, 5000),
        "us2020-dhc-units": F(15401, 2000),
        "pr2020-dhc-units": F(15401, 2000),
    }
    assert preset("april2021-persons").rho + preset("april2021-units").rho == F("1.095")
    assert preset("april2021-low-persons").rho + preset("april2021-low-units").rho == F("0.1885")


def test_the_plan_that_keeps_the_geolevels_keeps_every_loss_within_a_geography() -> None:
    kept, production = resolved("opendas2026-persons"), resolved("pr2020-persons")
    assert within_rho(kept) == within_rho(production)


@pytest.mark.parametrize(("name", "table"), [("us2020-persons", SIGMA2_US), ("pr2020-persons", SIGMA2_PR)])
def test_noise_parameters_of_production(name: str, table: dict[str, tuple[float | None, ...]]) -> None:
    budget = resolved(name)
    for query, row in table.items():
        for level, expected in zip(budget.geolevels, row, strict=True):
            if expected is None:
                assert query not in budget.query_shares(level)
            else:
                sigma2 = budget.distribution(level, query).sigma2  # type: ignore[union-attr]
                assert float(sigma2) == pytest.approx(expected, rel=6e-4)


def test_the_papers_example_of_a_product_of_shares() -> None:
    # TopDown paper, section 8.1: "342/1024 x 78/1024, or approximately 2.5% of the total".
    share = resolved("april2021-persons").share("county", "total")
    assert share == F(342, 1024) * F(78, 1024)
    assert float(share) == pytest.approx(0.0254, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("us2020-persons", {"hhgq": 7.24, "votingage": 7.57, "hispanic": 10.04, "cenrace": 10.08}),
        ("pr2020-persons", {"hhgq": 8.69, "votingage": 9.49, "hispanic": 11.65, "cenrace": 11.69}),
    ],
)
def test_epsilon_per_attribute_of_the_certificates(name: str, expected: dict[str, float]) -> None:
    budget = resolved(name)
    found = attribute_rho(budget, attributes(budget))
    assert {attribute: round(epsilon_cks(rho, DELTA), 2) for attribute, rho in found.items()} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "us2020-persons",
            {"us": 16.89, "state": 13.05, "county": 11.70, "tract": 9.38, "block_group": 2.93},
        ),
        ("pr2020-persons", {"state": 15.41, "county": 13.51, "tract": 11.18, "block_group": 2.93}),
        ("us2020-units", {"us": 2.47, "state": 2.46, "county": 2.35, "tract": 1.81, "block_group": 0.82}),
    ],
)
def test_epsilon_within_a_geolevel_of_the_certificates(name: str, expected: dict[str, float]) -> None:
    found = within_rho(resolved(name))
    assert found["block"] == 0
    epsilons = {level: round(epsilon_cks(rho, DELTA), 2) for level, rho in found.items() if level != "block"}
    assert epsilons == expected


@pytest.mark.parametrize(("name", "expected"), [("us2020-persons", 17.14), ("us2020-units", 2.4747)])
def test_epsilon_of_the_certificates(name: str, expected: float) -> None:
    assert epsilon_cks(resolved(name).total, DELTA) == pytest.approx(expected, abs=4e-3)


def test_the_us_preset_spends_a_third_on_state_totals() -> None:
    shares = invariant_shares(resolved("us2020-persons"), [("state", "total"), ("us", "total")])
    assert list(shares) == [("state", "total")]
    assert float(shares["state", "total"]) == pytest.approx(0.32, abs=5e-3)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean us2020-persons\?"):
        preset("us2020-person")


def test_our_plan_for_units_measures_what_the_production_did_and_names_its_estimator() -> None:
    ours, production = preset("opendas2026-units"), preset("pr2020-units")
    assert ours.estimator == "informed"
    assert production.estimator is None
    assert ours.queries == production.queries
    assert ours.geolevels["block"] > 2 * production.geolevels["block"]
