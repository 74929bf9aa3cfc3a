"""Sensitivities and losses of PHSafe tables: the published constants, the tight ones, and exact totals."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from support.each import each

from opendas.errors import BudgetError, ConfigError
from opendas.phsafe.inputs.levels import LEVELS, Level
from opendas.phsafe.tables import TABLES, Kind, find_table
from opendas.phsafe.tables.sensitivity import (
    Answers,
    LevelNoise,
    Sensitivity,
    noise_for,
    plan_noise,
    spent,
    total_loss,
)
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

F = Fraction
PAPER, TIGHT = Sensitivity.PAPER, Sensitivity.TIGHT
BOUNDED, UNBOUNDED = Neighbours.BOUNDED, Neighbours.UNBOUNDED
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
TAU = {"PH1_num": 10, "PH2": 10, "PH3": 6, "PH4": 10, "PH6": 6, "PH7": 10}
PERSONS, UNITS, ONE_CELL = Answers(10, 2), Answers(1, 7, is_joined=False), Answers(1, 1, is_joined=False)

# The published budgets: persons with tau 10, persons with tau 6, units.
PUBLISHED = {
    10: ("0.002619", "0.016371", "0.141622"),
    6: ("0.001061", "0.006630", "0.662976"),
    None: ("0.000022", "0.000135", "0.001170"),
}


def production(state_only: bool = False) -> tuple[LevelNoise, ...]:
    measured = []
    for table in TABLES:
        nation, state, by_race = map(F, PUBLISHED[TAU.get(table.name)])
        for level in table.levels:
            if state_only and level.name.startswith("usa"):
                continue
            at_state = by_race if level.name == "state_A-G" else state
            measured.append((table, level, nation if level.name.startswith("usa") else at_state))
    return plan_noise(measured, TAU, GAUSSIAN, PAPER)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # paper unbounded, paper bounded, tight unbounded, tight bounded; squared L2, then L1.
        (PERSONS, [(484, 22), (968, 44), (200, 20), (800, 40)]),
        (Answers(6, 7), [(196, 14), (392, 28), (72, 12), (288, 24)]),
        (Answers(5, 1), [(144, 12), (288, 24), (25, 5), (100, 10)]),
        (UNITS, [(4, 2), (8, 4), (2, 2), (8, 4)]),
        (ONE_CELL, [(4, 2), (8, 4), (1, 1), (4, 2)]),
    ],
)
def test_the_constants(answers: Answers, expected: list[tuple[int, int]]) -> None:
    found = [
        (answers.l2_squared(sensitivity, relation), answers.l1(sensitivity, relation))
        for sensitivity in (PAPER, TIGHT)
        for relation in (UNBOUNDED, BOUNDED)
    ]
    assert found == expected
    assert all(type(value) is int for pair in found for value in pair)


def test_single_counts_are_the_star_rows_of_two_denominators() -> None:
    single = {
        (table.name, level.name)
        for table in TABLES
        for level in table.levels
        if Answers.of(table, level, TAU.get(table.name)).cells == 1
    }
    assert single == {(name, f"{g}_*") for name in ("PH1_denom", "PH5_denom") for g in ("usa", "state")}


def test_groups_count_as_cells() -> None:
    table = find_table("PH3")
    assert table is not None
    cells = {level.name: Answers.of(table, level, 6).cells for level in LEVELS}
    assert cells == {"usa_A-G": 49, "usa_H,I": 14, "usa_*": 7, "state_A-G": 49, "state_H,I": 14, "state_*": 7}


@each("mechanism", list(Mechanism))
@each("sensitivity", list(Sensitivity))
@each("relation", list(Neighbours))
@each("answers", [PERSONS, UNITS, ONE_CELL])
def test_noise_spends_exactly_its_budget(
    answers: Answers, relation: Neighbours, sensitivity: Sensitivity, mechanism: Mechanism
) -> None:
    law = noise_for(answers, F("0.002619"), mechanism, sensitivity, relation)
    assert answers.loss(law, sensitivity, relation) == F("0.002619")


def test_the_noise_of_production() -> None:
    noise = {(one.table, one.level): one for one in production()}
    assert len(noise) == 46
    assert float(noise["PH1_num", "usa_*"].sigma2) == pytest.approx(92401.680, abs=1e-3)
    assert float(noise["PH3", "state_A-G"].sigma2) == pytest.approx(147.818, abs=1e-3)
    assert noise["PH8_denom", "state_A-G"].sigma2 == F(4, 2) / F("0.001170")


def test_the_totals_of_production_are_exact() -> None:
    noise = production()
    assert total_loss(noise, PAPER, UNBOUNDED) == F("1.257281")
    assert total_loss(noise, PAPER, BOUNDED) == F("2.514562")
    by_table = {table.name: total_loss(noise, PAPER, UNBOUNDED, table.name) for table in TABLES}
    assert by_table == {
        "PH1_num": F("0.182221"),
        "PH1_denom": F("0.001506"),
        "PH2": F("0.018990"),
        "PH3": F("0.679419"),
        "PH4": F("0.182221"),
        "PH5_denom": F("0.001506"),
        "PH6": F("0.007691"),
        "PH7": F("0.182221"),
        "PH8_denom": F("0.001506"),
    }
    assert total_loss(production(state_only=True), PAPER, UNBOUNDED) == F("1.226649")
    assert total_loss(production(state_only=True), PAPER, BOUNDED) == F("2.453298")


def test_what_production_spent_under_the_tight_bound() -> None:
    noise = production()
    joined = sum(one.budget * (F(100, 242) if one.tau == 10 else F(36, 98)) for one in noise if one.tau)
    units = sum(
        one.budget * (F(1, 4) if one.answers.cells == 1 else F(1, 2)) for one in noise if one.tau is None
    )
    assert total_loss(noise, TIGHT, UNBOUNDED) == joined + units
    assert float(total_loss(noise, TIGHT, UNBOUNDED)) == pytest.approx(0.488, abs=5e-4)
    assert float(total_loss(noise, TIGHT, BOUNDED)) == pytest.approx(1.954, abs=1e-3)


def test_bounded_is_not_a_constant_multiple_of_unbounded() -> None:
    law = DiscreteGaussian(F(100))
    ratios = {
        sensitivity: {
            answers.loss(law, sensitivity, BOUNDED) / answers.loss(law, sensitivity, UNBOUNDED)
            for answers in (PERSONS, UNITS, ONE_CELL)
        }
        for sensitivity in Sensitivity
    }
    assert ratios == {PAPER: {F(2)}, TIGHT: {F(4)}}


def test_tight_is_never_above_paper() -> None:
    for answers in (*(Answers(tau, cells) for tau in range(1, 40) for cells in (1, 2, 9)), UNITS, ONE_CELL):
        for relation in Neighbours:
            assert answers.l2_squared(TIGHT, relation) <= answers.l2_squared(PAPER, relation)
            assert answers.l1(TIGHT, relation) <= answers.l1(PAPER, relation)


def test_pure_differential_privacy() -> None:
    law = noise_for(PERSONS, F(1, 2), LAPLACE, PAPER)
    assert law == DiscreteLaplace(F(44))
    assert spent(PERSONS, law) == {
        (PAPER, BOUNDED): F(1),
        (PAPER, UNBOUNDED): F(1, 2),
        (TIGHT, BOUNDED): F(40, 44),
        (TIGHT, UNBOUNDED): F(20, 44),
    }


def test_an_infinite_budget_has_no_noise_and_an_infinite_loss() -> None:
    table = find_table("PH2")
    assert table is not None
    measured = [(table, table.levels[0], "infinity"), (table, table.levels[1], F(1))]
    noise = plan_noise(measured, TAU, GAUSSIAN, TIGHT)  # type: ignore[arg-type]
    assert noise[0].law is None
    assert noise[0].sigma2 is None
    assert set(noise[0].losses.values()) == {"infinity"}
    assert total_loss(noise, TIGHT, UNBOUNDED) == "infinity"
    assert total_loss(noise, TIGHT, UNBOUNDED, "PH3") == 0


def test_plain_data_is_exact_text() -> None:
    record = production()[0].as_json()
    assert record["budget"] == "2619/1000000"
    assert record["sigma2"] == str(F(484) / (2 * F("0.002619")))
    assert record["loss"]["paper"] == {"bounded": "2619/500000", "unbounded": "2619/1000000"}  # type: ignore[index]


def test_noise_survives_the_way_to_a_worker() -> None:
    noise = production()[0]
    assert pickle.loads(pickle.dumps(noise)) == noise


def test_what_makes_no_sense_is_refused() -> None:
    table = find_table("PH2")
    assert table is not None
    level: Level = table.levels[0]
    with pytest.raises(ConfigError, match="needs a tau"):
        Answers.of(table, level, None)
    with pytest.raises(ConfigError, match="positive integer"):
        Answers.of(table, level, 0)
    with pytest.raises(ConfigError, match="one unit"):
        Answers(2, 1, is_joined=False)
    with pytest.raises(BudgetError, match="budget 0"):
        noise_for(PERSONS, F(0), GAUSSIAN, PAPER)
    assert all(
        Answers.of(table, level, None).rows == 1
        for table in TABLES
        if table.kind is Kind.UNITS
        for level in table.levels
    )
