"""Table 10 of the PHSafe paper through the explorer; budgets, targets, levels and thresholds."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.phsafe_table_10 import budget_totals, table_10
from support.seeds import examples

from opendas.explore.fields import Problems, Typed
from opendas.explore.household_page import HouseholdPage, household_state
from opendas.explore.households import (
    TICKS,
    HouseholdAnswers,
    answer_households,
    config_fields,
    config_json,
    convert_mode,
    production,
    read_households,
    value_field,
)
from opendas.phsafe.config import Mode, parse_config
from opendas.phsafe.inputs.levels import LEVELS
from opendas.phsafe.margins import cell_margins
from opendas.phsafe.tables import TABLES, find_table
from opendas.phsafe.tables.sensitivity import Sensitivity
from opendas.privacy.relations import Neighbours


def tick(level: str) -> str:
    """The field that says whether a level is tabulated."""
    return TICKS[[known.name for known in LEVELS].index(level)]


PAPER, TIGHT = Sensitivity.PAPER, Sensitivity.TIGHT
UNBOUNDED, BOUNDED = Neighbours.UNBOUNDED, Neighbours.BOUNDED


def answers_of(draft: Typed) -> HouseholdAnswers:
    problems = Problems()
    planned = read_households(draft, "a", problems)
    assert planned is not None, problems.by_field
    return answer_households(planned)


@pytest.mark.parametrize(
    "draft", [production("budget"), production("target", "published")], ids=["budgets", "targets"]
)
def test_table_10_comes_out(draft: Typed) -> None:
    found = {(row.noise.table, row.noise.level): row for row in answers_of(draft).rows}
    rows = table_10()
    assert len(rows) == len(found) == 46
    for row in rows:
        here = found[row.table, row.level]
        losses = here.noise.losses
        assert here.noise.tau == row.tau
        assert losses[PAPER, UNBOUNDED] == row.published
        assert losses[PAPER, BOUNDED] == row.published_bounded == 2 * row.published
        assert losses[TIGHT, UNBOUNDED] == row.tight_unbounded
        assert losses[TIGHT, BOUNDED] == row.tight_bounded
        assert here.margin == row.exact_margin
        assert here.formula == row.formula_margin
        if draft["mode"] == "target":
            assert here.target == row.target


def test_the_sums_of_table_10_come_out() -> None:
    found = answers_of(production("budget"))
    for name, losses in found.sums.items():
        totals = budget_totals()[name]
        assert losses[PAPER, UNBOUNDED] == totals["published"]
        assert losses[PAPER, BOUNDED] == totals["published_bounded"]
        assert losses[TIGHT, UNBOUNDED] == totals["tight_unbounded"]
        assert losses[TIGHT, BOUNDED] == totals["tight_bounded"]
    assert float(found.spent[PAPER, BOUNDED]) == pytest.approx(2.514562, abs=1e-12)


def test_the_printed_table_is_on_the_page() -> None:
    """The numbers as the paper prints them, in the text that a reader sees."""
    page = HouseholdPage()
    shown = page.context(page.answer(page.started("targets")))
    lines = {(table, level): [str(cell) for cell in cells] for table, level, cells in shown["lines"]}
    assert lines["PH3", "state_A-G"][5:7] == ["0.662976", "1.325952"]
    assert lines["PH1_num", "usa_*"][5:7] == ["0.002619", "0.005238"]
    assert lines["PH8_denom", "state_H,I"][5:7] == ["0.000135", "0.000270"]
    assert lines["PH1_num", "state_A-G"][2] == "\u00b168 meets 68"


@pytest.mark.parametrize("sensitivity", [PAPER, TIGHT])
def test_targets_give_the_least_budgets_that_meet_them(sensitivity: Sensitivity) -> None:
    draft = {**production("target", "exact"), "sensitivity": sensitivity.value}
    found = {(row.noise.table, row.noise.level): row for row in answers_of(draft).rows}
    for row in table_10():
        here = found[row.table, row.level]
        least = row.least_paper if sensitivity is PAPER else row.least_tight
        assert here.noise.budget == least
        assert here.margin <= row.target
        assert not here.misses


def test_margins_of_totals_are_those_of_the_widest_cell() -> None:
    for row in answers_of(production("budget")).rows:
        table = find_table(row.noise.table)
        assert table is not None
        assert row.noise.law is not None
        assert row.widest == max(cell_margins(table, row.noise.law).values())


def test_a_level_that_is_off_costs_nothing_and_a_threshold_changes_its_table_only() -> None:
    start = production("budget")
    without = answers_of({**start, tick("usa_A-G"): ""})
    lost = sum(row.published for row in table_10() if row.level == "usa_A-G")
    assert without.spent[PAPER, UNBOUNDED] == budget_totals()["all"]["published"] - lost
    lower = answers_of({**start, "tau.PH3": "3"})
    changed = {
        a.noise.table for a, b in zip(answers_of(start).rows, lower.rows, strict=True) if a.margin != b.margin
    }
    assert changed == {"PH3"}
    assert lower.spent[PAPER, UNBOUNDED] == budget_totals()["all"]["published"]


def test_the_pure_definition_charges_epsilon() -> None:
    draft = {**production("budget"), "definition": "puredp"}
    found = answers_of(draft)
    assert not found.is_gaussian
    assert found.epsilon == {}
    assert found.spent[PAPER, UNBOUNDED] == budget_totals()["all"]["published"]
    assert all(row.formula is None for row in found.rows)


def test_budgets_and_targets_turn_into_each_other() -> None:
    targets = convert_mode(production("budget"), "target")
    assert targets["mode"] == "target"
    assert targets[value_field("PH3", "state_A-G")] == "20"
    back = convert_mode({**targets, "rule": "exact"}, "budget")
    assert back["mode"] == "budget"
    assert Fraction(back[value_field("PH3", "state_A-G")]) == Fraction("0.63058") or float(
        back[value_field("PH3", "state_A-G")]
    ) == pytest.approx(0.63058, abs=1e-6)
    assert HouseholdPage().after_action(household_state(production()), "target:a").plans == (targets,)


FIELDS = {
    "a.definition": ("guess", "is unknown"),
    "a.sensitivity": ("loose", "is unknown"),
    "a.mode": ("both", "is unknown"),
    "a.reader": ("xls", "is unknown"),
    "a.delta": ("2", "between 0 and 1"),
    "a.states": ("99", "No state has the code 99"),
    "a.tau.PH3": ("0", "no threshold"),
    "a." + value_field("PH3", "state_A-G"): ("-1", "negative"),
    "a." + value_field("PH2", "usa_*"): ("1/3", "as decimals"),
    "a." + value_field("PH4", "usa_*"): ("1e-20", "Too small"),
    "a." + value_field("PH7", "usa_*"): ("1e12", "protects nobody"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_wrong_is_said_at_the_field(name: str) -> None:
    text, message = FIELDS[name]
    draft = {**production("budget"), name.removeprefix("a."): text}
    problems = Problems()
    assert read_households(draft, "a", problems) is None
    assert list(problems.by_field) == [name]
    assert message in problems.by_field[name]


@pytest.mark.parametrize("text", ["2.5", "0", "1e9", "many"])
def test_a_target_is_a_whole_number(text: str) -> None:
    name = "a." + value_field("PH2", "state_*")
    draft = {**production("target"), name.removeprefix("a."): text}
    problems = Problems()
    assert read_households(draft, "a", problems) is None
    assert list(problems.by_field) == [name]


def test_nothing_to_tabulate_and_a_formula_that_does_not_fit_are_said() -> None:
    problems = Problems()
    assert read_households({**production(), **dict.fromkeys(TICKS, "")}, "a", problems) is None
    assert "nothing to tabulate" in problems.by_field["a.levels"]
    problems = Problems()
    draft = {**production("target", "published"), "definition": "puredp"}
    assert read_households(draft, "a", problems) is None
    assert "Choose exact" in problems.by_field["a.rule"]
    problems = Problems()
    assert read_households({**production(), "states": "72 01"}, "a", problems) is None
    assert "Puerto Rico" in problems.by_field["a.states"]


@settings(max_examples=examples(60))
@given(st.text(max_size=150))
def test_anything_may_be_typed(text: str) -> None:
    start = production("budget")
    for name in ("a.states", "a.tau.PH2", "a." + value_field("PH2", "usa_*"), "a.delta"):
        problems = Problems()
        read_households({**start, name.removeprefix("a."): text}, "a", problems)
        assert set(problems.by_field) <= {name}


def test_the_configuration_is_what_phsafe_reads_exactly(tmp_path: Path) -> None:
    start = production("budget")
    draft = {**start, "states": "44 09", tick("state_H,I"): ""}
    text = config_json(answers_of(draft).plan.config)
    config = parse_config(text, Mode.PRIVATE)
    assert config.state_filter == ("09", "44")
    published = {(row.table, row.level): row.published for row in table_10()}
    for table in TABLES:
        for level in table.levels:
            wanted = published[table.name, level.name] if level.name != "state_H,I" else None
            assert config.budgets[table.name].get(level) == wanted
    assert dict(config.tau) == {n[4:]: int(tau) for n, tau in start.items() if n.startswith("tau.")}
    again = config_fields(parse_config(text, Mode.PRIVATE))
    assert answers_of(again).spent == answers_of(draft).spent
    assert {n: again[n] for n in TICKS} == {n: draft[n] for n in TICKS}
    assert json.loads(text)["privacy_defn"] == "zcdp"


def test_every_state_is_written_as_all() -> None:
    text = config_json(answers_of(production()).plan.config)
    assert len(json.loads(text)["state_filter"]) == 51
    assert config_fields(parse_config(text, Mode.PRIVATE))["states"] == "all"


def test_the_levels_are_those_of_the_published_program() -> None:
    assert len(TICKS) == len(LEVELS)
    assert {production()[name] for name in TICKS} == {"1"}
