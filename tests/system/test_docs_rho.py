"""The numbers on the page "What rho means" are those the code computes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import NormalDist

import pytest

from opendas.budget import BudgetSpec, attribute_rho, preset, resolve_budget, within_rho
from opendas.budget.plan import budget_loss
from opendas.privacy import (
    epsilon_bun_steinke,
    epsilon_cks,
    gaussian_power,
    loss_tail,
    posterior,
    zcdp_power_bound,
)
from opendas.privacy.attacker import Attacker

PAGE = (Path(__file__).parents[2] / "docs" / "what-rho-means.md").read_text("utf-8")
ATTRIBUTES = ("hhgq", "votingage", "hispanic", "cenrace")


def table(header: str) -> list[list[str]]:
    """Cells of the table whose header line starts so."""
    lines = PAGE.split("\n")
    start = next(k for k, line in enumerate(lines) if line.startswith(header)) + 2
    rows = []
    while lines[start].startswith("|"):
        rows.append([cell.strip() for cell in lines[start].strip("|").split("|")])
        start += 1
    return rows


def losses() -> dict[str, Fraction]:
    us = resolve_budget(BudgetSpec(preset="us2020-persons"), list(preset("us2020-persons").geolevels))
    apart = {query: tuple(query.split(" * ")) for shares in us.queries.values() for query in shares}
    apart |= {"total": (), "hhinstlevels": ("hhgq",), "detailed": ATTRIBUTES}
    place, attribute = within_rho(us), attribute_rho(us, apart)
    return {
        "The whole record, anywhere": us.total,
        "Place, within one state": place["state"],
        "Place, within one county": place["county"],
        "Place, within one tract": place["tract"],
        "Place, within one block group": place["block_group"],
        "Race only": attribute["cenrace"],
        "Hispanic origin only": attribute["hispanic"],
        "Voting age only": attribute["votingage"],
        "Household or group-quarters type only": attribute["hhgq"],
    }


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def best_guess(rho: Fraction) -> tuple[float, float]:
    """Chance of a right guess between two equally likely worlds: Gaussian, and at most."""
    gaussian = NormalDist().cdf(math.sqrt(2 * float(rho)) / 2)
    low, high = 1, 99
    while low < high:  # concave in the level
        middle = (low + high) // 2
        low, high = (middle + 1, high) if at_level(rho, middle) < at_level(rho, middle + 1) else (low, middle)
    return gaussian, at_level(rho, low)


@cache
def at_level(rho: Fraction, per_cent: int) -> float:
    return (1 - per_cent / 100 + zcdp_power_bound(rho, per_cent / 100)) / 2


LOSSES = losses()


@pytest.mark.parametrize("row", table("| What changes | rho"), ids=lambda row: row[0])
def test_the_table_of_tests(row: list[str]) -> None:
    rho = LOSSES[row[0]]
    powers = [
        percent(power(rho, level)) for level in (0.001, 0.05) for power in (gaussian_power, zcdp_power_bound)
    ]
    assert row[1:] == [f"{float(rho):.3f}", *powers, *map(percent, best_guess(rho))]


def test_every_change_has_its_row() -> None:
    assert [row[0] for row in table("| What changes | rho")] == list(LOSSES)


@pytest.mark.parametrize("row", table("| Odds multiplied"), ids=lambda row: row[0])
def test_the_table_of_odds(row: list[str]) -> None:
    rho, factor = LOSSES["Place, within one block group"], float(row[0])
    assert float(row[1]) == pytest.approx(loss_tail(rho, factor), rel=0.02)
    assert row[2:] == [percent(posterior(0.01, factor)), percent(posterior(0.5, factor))]


def test_the_numbers_in_the_text() -> None:
    rho = LOSSES["The whole record, anywhere"]
    text = re.sub(r"\s+", " ", PAGE)
    assert "rho is 0.103" in text
    assert "delta = 1e-10 gives epsilon = 17.14 by one formula and 17.90 by another" in text
    assert (round(epsilon_cks(rho, "1e-10"), 2), round(epsilon_bun_steinke(rho, "1e-10"), 2)) == (
        17.14,
        17.90,
    )
    assert round(math.exp(17.90) / 1e6) == 59
    assert "at delta = 1e-5 the same release has epsilon 12.47" in text
    assert round(epsilon_cks(rho, "1e-5"), 2) == 12.47
    assert "a factor above 1,000 has a chance of at most 0.16" in text
    assert round(loss_tail(rho, 1000), 2) == 0.16


def held(change: str) -> list[tuple[str, str]]:
    """Answers of the production plan that are the same on both sides of a change."""
    us = resolve_budget(BudgetSpec(preset="us2020-persons"), list(preset("us2020-persons").geolevels))
    levels = list(us.geolevels)
    asked = [(level, query) for level in levels for query in us.queries.get(level, {})]
    if change == "The whole record, anywhere":
        return []
    if change == "The whole record, within its state":
        return [("us", "total"), ("state", "total")]
    if change.startswith("Place, within one "):
        top = levels.index(change.removeprefix("Place, within one ").replace(" ", "_"))
        return [(level, query) for level, query in asked if levels.index(level) <= top]
    attribute = {
        "Race only": "cenrace",
        "Hispanic origin only": "hispanic",
        "Voting age only": "votingage",
        "Household or group-quarters type only": "hhgq",
    }[change]
    apart = {"total": (), "hhinstlevels": ("hhgq",), "detailed": ATTRIBUTES}
    return [(level, query) for level, query in asked if attribute not in apart.get(query, query.split(" * "))]


@pytest.mark.parametrize("row", table("| What changes | Epsilon"), ids=lambda row: row[0])
def test_the_table_by_the_noise(row: list[str]) -> None:
    us = resolve_budget(BudgetSpec(preset="us2020-persons"), list(preset("us2020-persons").geolevels))
    loss = budget_loss(us, held(row[0]))
    rho = LOSSES.get(row[0], us.total)
    attacker = Attacker(loss)
    assert row[1:3] == [f"{epsilon_cks(rho, '1e-10'):.2f}", f"{loss.epsilon('1e-10').upper:.2f}"]
    assert row[3:6] == [percent(x) for x in (attacker.power(0.001), attacker.power(0.05), attacker.guess())]
    assert row[6:] == [percent(attacker.belief(0.01)), percent(attacker.belief(0.5))]
