"""What one unit costs in two histograms: every change of small units, households that appear included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from reference import brute_force_accountant as accountant
from support.two_histograms import write_two_histograms

import opendas
from opendas.measurement.loss import change_loss, plan_loss
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protected import PROTECTED, SAME, protection_of
from opendas.measurement.protection import ProtectionMap
from opendas.runs.context.run import Run

State = tuple[int, int | None]
"""Status of a unit, and the cell of its household, if it has one."""

BUDGETS = {
    "no total": 'status = "1/3", "tenure * size" = "1/6", detailed = "1/2"',
    "mostly total": 'status = "1/3", total = "1/2", age = "1/12", detailed = "1/12"',
}


@pytest.fixture(scope="module", params=sorted(BUDGETS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The pair under a budget in which a change of households costs most, or one in which appearing does."""
    path = write_two_histograms(tmp_path_factory.mktemp("pair"))
    text = path.read_text()
    path.write_text(text.replace(BUDGETS["no total"], BUDGETS[request.param]))
    return opendas.load(path)


@cache
def measured(plan: MeasurementPlan) -> accountant.Release:
    """Return what a plan measures as the accountant knows it: no code in common."""
    noise, rows, parents = [], [], []
    for number, (level, planned) in enumerate(zip(plan.spine.levels, plan.levels, strict=True)):
        multiples, which = plan.spine.multiples(number)
        laws = [
            {
                each.query.name: plan.distribution(number, each, multiple).parameter
                for each in planned.queries
                if planned.share * multiple
            }
            for multiple in multiples
        ]
        noise.append([laws[k] for k in which.tolist()])
        rows.append({each.query.name: each.query.row_of_cell.tolist() for each in planned.queries})
        parents.append(level.parent.tolist())
    return accountant.Release(parents, rows, noise, plan.product.schema.size)


def states(run: Run) -> list[State]:
    """Every unit there can be: an owned one has an owner, a rented one a renter, others nobody."""
    possible = np.flatnonzero(run.product.possible).tolist()
    tenure = run.product.schema.codes(np.arange(run.product.schema.size))[0]
    lived_in = [(status, cell) for status in (0, 1) for cell in possible if tenure[cell] == status]
    return [*lived_in, (2, None), (3, None)]


def costs(run: Run, one: tuple[int, State], other: tuple[int, State]) -> tuple[Fraction, Fraction]:
    """Return what the replacement of a unit costs in the companion and among the households."""
    assert run.companion is not None
    sides = []
    for plan, part in ((run.companion.plan, 0), (run.plan, 1)):
        before, after = (
            [(leaf, int(state[part]))] if state[part] is not None else [] for leaf, state in (one, other)
        )
        sides.append(accountant.cost(measured(plan), before, after, 2) / 2)
    return sides[0], sides[1]


def test_no_change_of_a_unit_costs_more_than_the_sum_and_none_more_than_its_part(run: Run) -> None:
    assert run.companion is not None
    most = [Fraction(0)] * 3
    for leaves in ((0, 0), (0, 1), (0, 23)):
        for pair in product(states(run), repeat=2):
            first, second = costs(run, (leaves[0], pair[0]), (leaves[1], pair[1]))
            assert first <= run.companion.budget.total
            assert second <= run.budget.total
            most = [max(a, b) for a, b in zip(most, (first, second, first + second), strict=True)]
    assert most[2] <= run.companion.budget.total + run.budget.total == 3
    assert most[0] == run.companion.budget.total  # attained


def neighbours(run: Run) -> Iterator[tuple[State, State]]:
    """Pairs of units between which the facts allow a change: it keeps its block, and a home stays one."""
    for one, other in combinations_with_replacement(states(run), 2):
        if (one[0] == 3) == (other[0] == 3):
            yield one, other


def test_the_exact_loss_is_that_of_the_worst_neighbours_a_household_that_appears_among_them(run: Run) -> None:
    release = measured(run.plan)
    changes: list[Counter[Fraction]] = []
    for one, other in neighbours(run):
        sides = [
            accountant.answers(release, [] if state[1] is None else [(0, state[1])]) for state in (one, other)
        ]
        one_side, other_side = sides
        differing = [key for key in one_side.keys() | other_side if one_side.get(key) != other_side.get(key)]
        changes.append(Counter(release.noise[level][unit][query] for level, unit, query, _ in differing))
    largest = {frozenset(c.items()) for c in changes if not any(c < larger for larger in changes)}
    found = plan_loss(run.plan, run.protection).changes
    stated = [Counter({law.parameter: 0 for law, _ in change}) for change in found]
    for counted, change in zip(stated, found, strict=True):
        for (law, difference), answers in change.items():
            assert difference == 1
            counted[law.parameter] += answers
    assert {frozenset(c.items()) for c in stated} == largest
    assert max(map(change_loss, found)) <= run.budget.total


def test_the_map_says_of_households_what_their_neighbours_do(run: Run) -> None:
    said = protection_of(run.protection)
    assert said.facts == ()  # what the companion publishes exactly is published there
    assert {part.status for part in said.geolevels.values()} == {SAME}
    assert {part.status for part in said.attributes.values()} == {PROTECTED}
    # one more household changes every answer, totals of blocks among them
    assert all(part.known == 0 for levels in said.queries.values() for part in levels.values())
    assert said.least == run.product.possible.sum() - 1  # of a household, in its block
    assert not run.protection.adds


def test_the_map_without_facts_knows_that_households_appear(run: Run) -> None:
    held = ProtectionMap.without_facts(run.plan)
    assert held.appears
    assert run.companion is not None
    assert not ProtectionMap.without_facts(run.companion.plan).appears
