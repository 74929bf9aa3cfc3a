"""What truncation leaves out: shares, bias per cell against many keys, and the noisy release."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from opendas.errors import ConfigError
from opendas.phsafe.counting import count_cube, counted_rows, level_counts, truncated
from opendas.phsafe.linking import Linked, link
from opendas.phsafe.model import LEVELS, Geography, Inputs, Persons, Places, Units, find_level
from opendas.phsafe.sensitivity import Sensitivity
from opendas.phsafe.tables import TABLES, Kind, Table, find_table
from opendas.phsafe.truncation import Truncation
from opendas.phsafe.truncation_error import (
    dropped_loss,
    dropped_share,
    plan_dropped,
    release_dropped,
    tradeoff,
    truncation_error,
)
from opendas.privacy.relations import Mechanism, Neighbours

F = Fraction
STATES = ("01", "02")
SIZES = (1, 3, 5, 8, 14, 2)
KEY = bytes(range(32))


def small_world(extra: int = 0) -> Linked:
    """Six households, the last `extra` persons larger, half of each below 18."""
    people, homes, places = [], [], []
    for number, size in enumerate((*SIZES[:-1], SIZES[-1] + extra)):
        mafid = 100_000_001 + number
        kind = (1, 1, 1, 1) if number % 2 else (3, 2, 10, 5)  # TEN, HHT, HHT2, CPLT
        homes.append((2, mafid, size, 0, 1 + number % 2, 1 + number, *kind))
        places.append((2, mafid, 1 + number % 2))
        people += [
            (3, mafid, 30 if place % 2 == 0 else 7, 1, 1, 20 if place == 0 else 25) for place in range(size)
        ]
    names = ("rtype", "mafid", "qage", "cenhisp", "cenrace", "relship")
    unit_names = ("rtype", "mafid", "final_pop", "npf", "hhspan", "hhrace", "ten", "hht", "hht2", "cplt")
    return link(
        Inputs(
            Persons.of(**dict(zip(names, np.array(people).T, strict=True))),
            Units.of(**dict(zip(unit_names, np.array(homes).T, strict=True))),
            Places.of(**dict(zip(("rtype", "mafid", "state"), np.array(places).T, strict=True))),
        ),
        STATES,
    )


def table_named(name: str) -> Table:
    table = find_table(name)
    assert table is not None
    return table


def test_the_share_of_a_distribution() -> None:
    sizes = {0: 9, 1: 10, 5: 4, 6: 3, 12: 1}
    people = [size for size, count in sizes.items() for _ in range(count)]
    for tau in range(1, 14):
        dropped = sum(size - min(size, tau) for size in people)
        assert dropped_share(sizes, tau) == F(dropped, sum(people))
    assert dropped_share({}, 3) == 0
    with pytest.raises(ConfigError, match="negative"):
        dropped_share({2: -1}, 3)


@pytest.mark.parametrize(
    "table", [table for table in TABLES if table.kind is Kind.PERSONS], ids=lambda t: t.name
)
def test_the_bias_is_the_mean_over_the_keys(table: Table) -> None:
    linked, tau, trials = small_world(), 4, 1500
    found = truncation_error(table, linked, tau, len(STATES))
    rows = counted_rows(table, linked)
    total = np.zeros(found.bias.shape)
    for number in range(trials):
        kept = truncated(rows, tau, Truncation.KEYED, number.to_bytes(32, "little"))
        total += count_cube(table, kept, linked.state, len(STATES))
    # One count of one household has a deviation of at most sqrt(tau) / 2.
    noise = np.sqrt(tau / trials) * 1.5
    assert np.abs(total / trials - found.counts - found.bias).max() < 5 * noise / 2
    assert found.bias.min() < -0.5
    assert found.bias.sum() == pytest.approx(-found.dropped)
    for level in table.levels:
        assert found.level_bias(level).shape == level_counts(found.counts, level).shape
        assert np.all(found.level_bias(level) <= 0)


def test_shares_and_numbers_of_a_table() -> None:
    found = truncation_error(table_named("PH1_num"), small_world(), 4, len(STATES))
    assert (found.persons, found.households, found.cut) == (33, 6, 3)
    assert found.dropped == 1 + 4 + 10
    assert found.share == pytest.approx(15 / 33)
    assert "15" not in repr(found)
    everyone = truncation_error(table_named("PH1_num"), small_world(), 14, len(STATES))
    assert (everyone.dropped, everyone.cut, everyone.share) == (0, 0, 0.0)
    assert not everyone.bias.any()


def test_a_filter_before_truncation_counts() -> None:
    """PH3 truncates the minors of a household, not its persons."""
    found = truncation_error(table_named("PH3"), small_world(), 4, len(STATES))
    assert (found.persons, found.dropped, found.cut) == (0 + 1 + 2 + 4 + 7 + 1, 3, 1)


def test_units_and_nonsense_are_refused() -> None:
    with pytest.raises(ConfigError, match="counts units"):
        truncation_error(table_named("PH1_denom"), small_world(), 4, 2)
    for tau in (0, True, -2):
        with pytest.raises(ConfigError, match="positive integer"):
            truncation_error(table_named("PH2"), small_world(), tau, 2)
        with pytest.raises(ConfigError, match="positive integer"):
            dropped_share({1: 1}, tau)
    with pytest.raises(ConfigError, match="no table"):
        plan_dropped({}, F(1))
    with pytest.raises(ConfigError, match="positive integer"):
        plan_dropped({"PH2": 3}, F(1), cap=0)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_plan_spends_exactly_its_budget(mechanism: Mechanism) -> None:
    both = (Geography.USA, Geography.STATE)
    plans = plan_dropped({"PH2": 10, "PH3": 6}, F("0.001"), mechanism=mechanism, geographies=both)
    assert len(plans) == 4
    assert dropped_loss(plans, Neighbours.UNBOUNDED) == F("0.001")
    factor = 4 if mechanism is Mechanism.DISCRETE_GAUSSIAN else 2
    assert dropped_loss(plans, Neighbours.BOUNDED) == factor * F("0.001")


def test_the_release_is_the_truth_and_the_noise() -> None:
    plans = plan_dropped(
        {"PH1_num": 4, "PH3": 3}, F(10**9), geographies=(Geography.USA, Geography.STATE), cap=20
    )
    answers = release_dropped(plans, TABLES, small_world(), STATES, KEY)
    exact = [(one.table, one.region, one.dropped) for one in answers]
    assert exact == [
        ("PH1_num", "1", 15),
        ("PH1_num", "01", 11),
        ("PH1_num", "02", 4),
        ("PH3", "1", 5),
        ("PH3", "01", 4),
        ("PH3", "02", 1),
    ]
    assert {one.margin for one in answers} == {0}


def test_the_noise_is_the_declared_one() -> None:
    plans = plan_dropped({"PH1_num": 4}, F(2), geographies=(Geography.STATE,), cap=5)
    (plan,) = plans
    truth = np.array([6, 4])  # the household of 14 counts with the cap, not with its 10
    linked = small_world()
    drawn = np.array(
        [
            [one.dropped for one in release_dropped(plans, TABLES, linked, STATES, n.to_bytes(32, "big"))]
            for n in range(3000)
        ]
    )
    deviation = plan.law.variance**0.5
    assert plan.law.variance == pytest.approx(25 / 4, rel=0.01)
    assert np.abs(drawn.mean(axis=0) - truth).max() < 5 * deviation / 3000**0.5
    assert np.allclose(drawn.var(axis=0), plan.law.variance, rtol=0.15)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.1


def test_one_address_changes_one_answer_by_the_cap_at_most() -> None:
    """Squared sensitivity cap^2, attained: a household that grows without end."""
    plans = plan_dropped({"PH1_num": 4}, F(10**9), geographies=(Geography.STATE,), cap=5)
    before = [one.dropped for one in release_dropped(plans, TABLES, small_world(), STATES, KEY)]
    changes = set()
    for extra in range(1, 30):
        after = [one.dropped for one in release_dropped(plans, TABLES, small_world(extra), STATES, KEY)]
        changes.add(sum((a - b) ** 2 for a, b in zip(after, before, strict=True)))
    assert max(changes) == 5**2


def test_every_level_of_every_table_has_a_bias() -> None:
    found = truncation_error(table_named("PH7"), small_world(), 2, len(STATES))
    assert {level.name for level in LEVELS} == {level.name for level in table_named("PH7").levels}
    level = find_level("state_A-G")
    assert level is not None
    assert found.level_bias(level).shape == (2, 7, 3)
    assert found.level_counts(level).sum() == found.persons


def test_noise_and_truncation_side_by_side() -> None:
    sizes = {1: 50, 4: 20, 7: 3, 12: 1}
    rows = tradeoff(sizes, target=68, sensitivity=Sensitivity.TIGHT, taus=range(1, 13))
    assert [one.solution.tau for one in rows] == list(range(1, 13))
    assert [one.share for one in rows] == [dropped_share(sizes, tau) for tau in range(1, 13)]
    budgets = [one.solution.budget for one in rows]
    assert budgets == sorted(budgets)
    assert rows[-1].share == 0 < rows[0].share
    by_budget = tradeoff(sizes, budget=F(1, 10), taus=(2, 9))
    assert [one.solution.sensitivity for one in by_budget] == [kind for kind in Sensitivity for _ in range(2)]
    assert by_budget[0].solution.margin < by_budget[1].solution.margin
    for both in ({}, {"target": 5, "budget": F(1)}):
        with pytest.raises(ConfigError, match="not both"):
            tradeoff(sizes, **both)  # type: ignore[arg-type]
