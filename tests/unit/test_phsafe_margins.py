"""Exact margins, their sums, solving in every direction, and Table 10 of the paper."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.each import each
from support.noise import pmf
from support.phsafe_table_10 import Row, budget_totals, markdown, table_10

from opendas.errors import ConfigError
from opendas.phsafe.margins import (
    NINETY,
    PUBLISHED_Z,
    cell_margins,
    formula_budget,
    formula_margin,
    largest_tau,
    least_budget,
    margin,
)
from opendas.phsafe.tables import DERIVED, find_table
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity, noise_for
from opendas.privacy.relations import Mechanism
from opendas.sampling import sums
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.sampling.sums import margin_of_sum

F = Fraction
PAPER, TIGHT = Sensitivity.PAPER, Sensitivity.TIGHT
PERSONS, MINORS, UNITS = Answers(10, 2), Answers(6, 7), Answers(1, 2, is_joined=False)
LAPLACE = Mechanism.DISCRETE_LAPLACE
Law = DiscreteGaussian | DiscreteLaplace


# A literal twin: probabilities as doubles, convolved by definition.


def twin_margin(laws: list[Law], confidence: Fraction) -> tuple[int, float]:
    """Return the margin, and how far the decision was from a tie."""
    total = np.ones(1)
    for law in laws:
        reach = int(12 * law.variance**0.5) + 40
        total = np.convolve(total, [pmf(law, abs(k)) for k in range(-reach, reach + 1)])
    centre = len(total) // 2
    inside, m = total[centre], 0
    closest = abs(inside - float(confidence))
    while inside < confidence:
        m += 1
        inside += 2 * total[centre + m]
        closest = min(closest, abs(inside - float(confidence)))
    return m, closest


LAWS: list[Law] = [
    DiscreteGaussian(F(1, 50)),
    DiscreteGaussian(F(1, 3)),
    DiscreteGaussian(F(2)),
    DiscreteGaussian(F(31)),
    DiscreteGaussian(F(900)),
    DiscreteLaplace(F(1, 4)),
    DiscreteLaplace(F(2)),
    DiscreteLaplace(F(25)),
]


@each("confidence", [F(1, 2), F(9, 10), F(99, 100)])
@each("terms", [1, 2, 3, 5])
@each("law", LAWS)
def test_margins_of_equal_answers_equal_the_twin(law: Law, terms: int, confidence: Fraction) -> None:
    expected, distance = twin_margin([law] * terms, confidence)
    assert distance > 1e-10
    assert margin_of_sum([law] * terms, confidence) == expected


@each(("first", "second"), list(product(LAWS[::3], LAWS)))
def test_margins_of_unlike_answers_equal_the_twin(first: Law, second: Law) -> None:
    laws = [first, second, second]
    assert margin_of_sum(laws, NINETY) == twin_margin(laws, NINETY)[0]


def test_the_three_ways_to_a_margin_agree() -> None:
    for terms in (2, 4):
        gaussian = [DiscreteGaussian(F(150))] * terms
        assert sums._gaussian_margin(gaussian, NINETY) == sums._convolved_margin(gaussian, NINETY)
        assert sums._laplace_margin(F(15), terms, NINETY) == sums._convolved_margin(
            [DiscreteLaplace(F(15))] * terms, NINETY
        )


def test_the_closed_form_of_equal_laplace_answers_encloses_the_tail() -> None:
    scale, terms, precision = F(3), 3, 512
    reach = 200
    one = np.array([pmf(DiscreteLaplace(scale), k) for k in range(-reach, reach + 1)])
    total = np.convolve(np.convolve(one, one), one)
    centre = len(total) // 2
    for m in (0, 1, 7, 30):
        low, high = sums._laplace_tail(scale, terms, m, precision)
        assert 0 < low <= high
        assert high - low < 2 ** (precision - 100)
        assert low / 2**precision == pytest.approx(total[centre + m + 1 :].sum(), rel=1e-9)


def test_a_margin_at_the_very_probability_is_decided() -> None:
    """The confidence is P(|X| <= 3) rounded up in its 60th digit: 3 is not enough."""
    law = DiscreteLaplace(F(1))
    tail_low = law.tail_floors(400)[3]
    inside = 1 - F(2 * (tail_low + 1), 2**400)
    assert margin(law, inside) == 3
    assert margin(law, inside + F(1, 10**60)) == 4
    two = [DiscreteGaussian(F(9, 10))] * 2
    assert margin_of_sum(two, F(0)) == 0


def test_sums_that_cannot_be_decided_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        margin_of_sum([], NINETY)
    with pytest.raises(ConfigError, match="variances add up"):
        margin_of_sum([DiscreteLaplace(F(50000)), DiscreteLaplace(F(40000))], NINETY)


def test_wide_answers_of_pure_privacy_are_exact_too() -> None:
    scale, terms = F(2222), 16
    found = margin_of_sum([DiscreteLaplace(scale)] * terms, NINETY)
    assert found == pytest.approx(1.645 * (terms * 2 * float(scale) ** 2) ** 0.5, rel=0.01)


# Formulas.


def test_the_margin_of_the_papers_text_does_not_always_hold() -> None:
    law = DiscreteGaussian(F(9240168, 100))
    assert (formula_margin(law), margin(law)) == (498, 500)
    assert 1 - 2 * sum(pmf(law, k) for k in range(499, 4000)) < 0.9


def test_the_formula_in_exact_arithmetic() -> None:
    assert formula_budget(500, 484, PUBLISHED_Z["text"]) == F("0.002604")
    assert formula_budget(500, 484, digits=12) == F("0.002619432200")
    assert formula_margin(DiscreteGaussian(F(100)), F(2)) == 20


# Solving.


@each("mechanism", list(Mechanism))
@each("sensitivity", list(Sensitivity))
@each("answers", [PERSONS, MINORS, UNITS, Answers(1, 1, is_joined=False)])
@each(("target", "summed"), [(1, 1), (20, 1), (68, 1), (68, 4)])
def test_the_least_budget_is_the_least(
    answers: Answers, sensitivity: Sensitivity, mechanism: Mechanism, target: int, summed: int
) -> None:
    rho = least_budget(target, answers, sensitivity, mechanism=mechanism, summed=summed, digits=5)
    assert rho * 10**5 == int(rho * 10**5)

    def reached(budget: Fraction) -> int:
        law = noise_for(answers, budget, mechanism, sensitivity)
        return margin_of_sum([law] * summed, NINETY)

    assert reached(rho) <= target
    below = rho - F(1, 10**5)
    assert below == 0 or reached(below) > target


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("sensitivity", list(Sensitivity))
@pytest.mark.parametrize("budget", [F(1, 100), F(1, 5), F(3)])
def test_the_largest_tau_is_the_largest(
    sensitivity: Sensitivity, budget: Fraction, mechanism: Mechanism
) -> None:
    found = largest_tau(90, budget, sensitivity, mechanism=mechanism)

    def reached(tau: int) -> int:
        return margin(noise_for(Answers(tau, 2), budget, mechanism, sensitivity))

    if found is None:
        assert reached(1) > 90
    else:
        assert reached(found) <= 90 < reached(found + 1)


def test_margin_budget_and_tau_give_each_other() -> None:
    assert margin(noise_for(MINORS, F("0.662976"), Mechanism.DISCRETE_GAUSSIAN, PAPER)) == 20
    assert least_budget(20, MINORS, PAPER) == F("0.63057962")
    assert least_budget(68, UNITS, TIGHT) == F("0.00057658")
    assert largest_tau(20, F("0.662976"), PAPER) == 6
    assert largest_tau(1, F("0.0001"), PAPER) is None


def test_what_cannot_be_solved_is_refused() -> None:
    for bad in (0, -3, True, 2.5):
        with pytest.raises(ConfigError, match="positive integer"):
            least_budget(bad, PERSONS, PAPER)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="decimals"):
        least_budget(5, PERSONS, PAPER, digits=40)


# Totals of tables.


def test_cells_and_totals_of_tables() -> None:
    law = DiscreteGaussian(F(147818, 1000))
    ph3 = find_table("PH3")
    assert ph3 is not None
    margins = cell_margins(ph3, law)
    assert set(margins) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    assert {margins[cell] for cell in ph3.cells} == {20}
    assert (margins[3], margins[8], margins[1]) == (40, 28, 53)
    for cell, terms in ((3, 4), (8, 2), (1, 7)):
        assert margins[cell] == twin_margin([law] * terms, NINETY)[0]


def test_the_owner_cell_of_ph8_is_the_sum_of_two() -> None:
    law = DiscreteGaussian(F(1708774, 1000))
    (ph8,) = (one for one in DERIVED if one.name == "PH8_num")
    assert cell_margins(ph8, law) == {2: twin_margin([law, law], NINETY)[0], 3: 68}
    assert cell_margins(ph8, law)[2] == 96
    (ph5,) = (one for one in DERIVED if one.name == "PH5_num")
    assert set(cell_margins(ph5, law).values()) == {68}


# Table 10.

PAPERS_TABLE = {
    "PH1_num": "10 500 .002619 .005238 10 500 .002619 .005238 10 500 .002619 .005238 "
    "10 200 .016371 .032742 10 68 .141622 .283244 10 200 .016371 .032742",
    "PH1_denom": "0 500 .000022 .000044 0 500 .000022 .000044 0 500 .000022 .000044 "
    "0 200 .000135 .00027 0 68 .00117 .00234 0 200 .000135 .00027",
    "PH2": "10 500 .002619 .005238 10 200 .016371 .032742",
    "PH3": "6 500 .001061 .002122 6 500 .001061 .002122 6 500 .001061 .002122 "
    "6 200 .006630 .01326 6 20 .662976 1.325952 6 200 .006630 .01326",
    "PH6": "6 500 .001061 .002122 6 200 .006630 .01326",
}
PAPERS_TABLE |= dict.fromkeys(("PH4", "PH7"), PAPERS_TABLE["PH1_num"])
PAPERS_TABLE |= dict.fromkeys(("PH5_denom", "PH8_denom"), PAPERS_TABLE["PH1_denom"])
PAPERS_ORDER = {
    6: ("usa_*", "usa_A-G", "usa_H,I", "state_*", "state_A-G", "state_H,I"),
    2: ("usa_*", "state_*"),
}


def papers_rows() -> dict[tuple[str, str], tuple[int | None, int, Fraction, Fraction]]:
    rows = {}
    for name, text in PAPERS_TABLE.items():
        words = text.split()
        parts = [words[i : i + 4] for i in range(0, len(words), 4)]
        for level, (tau, target, unbounded, bounded) in zip(PAPERS_ORDER[len(parts)], parts, strict=True):
            rows[name, level] = (int(tau) or None, int(target), F(unbounded), F(bounded))
    return rows


def test_table_10_is_the_papers_in_every_row() -> None:
    found = {
        (row.table, row.level): (row.tau, row.target, row.published, row.published_bounded)
        for row in table_10()
    }
    assert len(found) == 46
    assert found == papers_rows()


def test_table_10_follows_from_its_targets_with_1_645_and_not_with_1_64() -> None:
    assert all(row.by_table_constant == row.published for row in table_10())
    by_text = [row for row in table_10() if row.by_text_constant == row.published]
    assert {(row.tau, row.target) for row in by_text} == {(None, 500)}
    assert len(by_text) == 9


def test_the_totals_of_table_10() -> None:
    totals = budget_totals()
    assert totals["all"]["published"] == F("1.257281")
    assert totals["all"]["published_bounded"] == F("2.514562")
    assert totals["PH3"]["published"] == F("0.679419")
    assert totals["all"]["by_text_constant"] == pytest.approx(1.249654, abs=1e-5)
    puerto_rico = budget_totals(row for row in table_10() if row.level.startswith("state"))
    assert puerto_rico["all"]["published"] == F("1.226649")
    assert puerto_rico["all"]["published_bounded"] == F("2.453298")
    assert list(totals)[-1] == "all"


def test_every_published_budget_meets_its_target_and_the_least_ones_save() -> None:
    for row in table_10():
        assert row.exact_margin <= row.target
        assert row.least_paper <= row.published
        # The squared sensitivities are in this ratio, and so are the budgets, up to the grid.
        assert row.least_tight <= row.least_paper * F(51, 100)
        assert row.formula_margin < row.target


def margin_of(row: Row, budget: Fraction, kind: Sensitivity) -> int:
    cells = 1 if row.table in ("PH1_denom", "PH5_denom") and row.level.endswith("*") else 2
    answers = Answers(row.tau or 1, cells, is_joined=row.tau is not None)
    return margin(noise_for(answers, budget, Mechanism.DISCRETE_GAUSSIAN, kind))


def test_the_least_budgets_of_table_10_are_the_least() -> None:
    step = F(1, 10**8)
    for row in table_10():
        for budget, kind in ((row.least_paper, PAPER), (row.least_tight, TIGHT)):
            assert margin_of(row, budget, kind) <= row.target < margin_of(row, budget - step, kind)
    (by_race,) = (row for row in table_10() if (row.table, row.level) == ("PH3", "state_A-G"))
    assert by_race.least_paper == F("0.63057962")
    assert by_race.exact_margin == 20


def test_the_table_for_the_documentation() -> None:
    lines = markdown().splitlines()
    cells = [line.split("|") for line in lines[2:-1]]
    assert sum(len(row[1].split(",")) * row[2].count("`") // 2 for row in cells) == 46
    assert len({line.count("|") for line in lines}) == 1
    assert lines[-1] == "| **All 46** | | | | 1.257281 | | 0.48832917 | 1.21779769 | 0.47350084 |"


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "phsafe-margins.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not beside the tests")
def test_the_page_on_margins_is_true() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert markdown() in text
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    state = [row for row in table_10() if row.level.startswith("state")]
    sums = budget_totals(state)["all"]
    quoted = ("published", "published_bounded", "least_paper", "least_tight", "least_tight_bounded")
    for name in quoted:
        assert f"{float(sums[name]) + 4.9e-7:.6f}" in text, name
    (race,) = (row for row in table_10() if (row.table, row.level) == ("PH3", "state_A-G"))
    assert race.published > budget_totals()["all"]["published"] / 2
