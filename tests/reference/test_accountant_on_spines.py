"""Theorem 3 of the spines paper by brute force: regrouped and bypassed spines cost what their budget says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product as pairs_of

import numpy as np
import pytest
from support.accounted_plans import (
    GAUSSIAN,
    LAPLACE,
    PRODUCT,
    RECIPES,
    F,
    accountant,
    changed,
    planned,
    release_of,
)
from support.each import each
from support.spine_shares import multiple

from opendas.budget.allocation import Budget
from opendas.geography.recipe import Recipe, build_spine
from opendas.geography.spine import Shares, Spine
from opendas.measurement.account import PlanAccount
from opendas.measurement.loss import attribute_loss, path_kinds, plan_loss, within_loss
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import Invariant


def worst(plan: MeasurementPlan, release: object) -> Fraction:
    ask = accountant.worst_rho if plan.budget.mechanism is GAUSSIAN else accountant.worst_epsilon
    found = ask(release, plan.budget.neighbours.value)
    assert isinstance(found, Fraction)
    return found


@each("mechanism", [GAUSSIAN, LAPLACE])
@each("neighbours", list(Neighbours))
@each("root", ["us", "state"])
@each("name", sorted(RECIPES))
def test_the_worst_pair_costs_exactly_the_budget(
    name: str, root: str, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    for seed in (1, 2):
        plan, _ = planned(name, root, seed, mechanism, neighbours)
        assert worst(plan, release_of(plan)) == plan.budget.total


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_recipes_do_bypass_and_divide(mechanism: Mechanism) -> None:
    """The plans above are the ones meant: geounits without budget, replaced ones, and parts."""
    bypassed, replaced, divided = 0, 0, 0
    for name in RECIPES:
        for seed in (1, 2):
            plan, frame = planned(name, "us", seed, mechanism, Neighbours.BOUNDED)
            plain = build_spine(frame, Recipe(RECIPES[name]), lambda spine: spine)
            for number, level in enumerate(plan.spine.levels):
                bypassed += sum(multiple(plan.spine, number, i) == 0 for i in range(len(level)))
                replaced += len(level) > len(plain.levels[number])
            divided += any(level.whole is not None for level in plain.levels)
    assert bypassed > 20
    assert (replaced > 0) == (mechanism is LAPLACE)
    assert divided == 6


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_who_moves_between_the_parts_of_a_state_pays_the_whole_budget(mechanism: Mechanism) -> None:
    """Neighbours that keep every state's total: their worst pair is as expensive as any, and none is free."""
    power, half = (2, 2) if mechanism is GAUSSIAN else (1, 1)
    for seed in (1, 2, 3):
        plan, frame = planned("aian", "state", seed, mechanism, Neighbours.BOUNDED)
        release = release_of(plan)
        state = frame.codes("state")[plan.spine.leaf_order]
        costs = [
            accountant.cost(release, [before], [after], power) / half
            for before, after in pairs_of(accountant.records(release), repeat=2)
            if before != after and state[before[0]] == state[after[0]]
        ]
        assert min(costs) > 0
        assert max(costs) == plan.budget.total


def neighbours_of(plan: MeasurementPlan, release: object) -> list[Counter[object]]:
    pairs = accountant.PAIRS[plan.budget.neighbours.value](release)
    return [changed(plan, release, old, new) for old, new in pairs]


@each("mechanism", [GAUSSIAN, LAPLACE])
@each("neighbours", list(Neighbours))
@each("root", ["us", "state"])
@each("name", sorted(RECIPES))
def test_every_pair_of_neighbours_is_part_of_a_change(
    name: str, root: str, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    """What differs between neighbours is part of a change of the exact account; some pair is all of one."""
    plan, _ = planned(name, root, 1, mechanism, neighbours)
    changes = [Counter(dict(change)) for change in plan_loss(plan).changes]
    pairs = neighbours_of(plan, release_of(plan))
    assert all(any(pair <= change for change in changes) for pair in pairs)
    assert any(pair == change for pair in pairs for change in changes)
    assert len(changes) <= len(path_kinds(plan)) * (len(path_kinds(plan)) + 1) // 2


def test_a_change_left_out_would_be_missed() -> None:
    """The mutant: only the path without bypassed geounits is looked at."""
    plan, _ = planned("bypassed", "us", 1, GAUSSIAN, Neighbours.BOUNDED)
    assert len(path_kinds(plan)) > 1
    some = [Counter(dict(change)) for change in plan_loss(plan).changes][:1]
    assert not all(any(pair <= change for change in some) for pair in neighbours_of(plan, release_of(plan)))


@pytest.mark.parametrize("name", ["standard", "aian", "bypassed"])
def test_pairs_that_agree_on_the_invariants(name: str) -> None:
    """With every state's total held, the totals of states never differ, and nothing else is left out."""
    plan, frame = planned(name, "state", 1, GAUSSIAN, Neighbours.BOUNDED)
    queries = {"*": {"total": F(1, 2), "home": F(1, 4), "detailed": F(1, 4)}}
    budget = Budget(GAUSSIAN, Neighbours.BOUNDED, F(2), plan.budget.geolevels, queries)
    held = replace(PRODUCT, invariants=(Invariant("total", "state"),))
    plan = MeasurementPlan(held, plan.spine, budget)
    release = release_of(plan)
    state = frame.codes("state")[plan.spine.leaf_order]
    records = list(accountant.records(release))
    pairs = [
        changed(plan, release, [old], [new])
        for old, new in pairs_of(records, repeat=2)
        if state[old[0]] == state[new[0]]
    ]
    changes = [Counter(dict(change)) for change in plan_loss(plan, ProtectionMap.of(plan)).changes]
    assert all(any(pair <= change for change in changes) for pair in pairs)
    assert any(pair == change for pair in pairs for change in changes)
    everything = [Counter(dict(change)) for change in plan_loss(plan).changes]
    divided = plan.spine.levels[0].whole is not None
    # parts of a state hold their total together only: who moves between them changes all there is
    assert any(change in everything for change in changes) == divided


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_total_of_a_single_root(neighbours: Neighbours) -> None:
    """Replacing a record cannot change it, whatever it was given; adding one does."""
    plan, _ = planned("standard", "us", 1, GAUSSIAN, neighbours)
    queries = {"*": {"total": F(1, 2), "detailed": F(1, 2)}}
    plan = MeasurementPlan(
        PRODUCT, plan.spine, Budget(GAUSSIAN, neighbours, F(2), plan.budget.geolevels, queries)
    )
    changes = [Counter(dict(change)) for change in plan_loss(plan).changes]
    pairs = neighbours_of(plan, release_of(plan))
    assert all(any(pair <= change for change in changes) for pair in pairs)
    assert any(pair == change for pair in pairs for change in changes)
    answers = 2 * len(plan.levels) * (2 if neighbours is Neighbours.BOUNDED else 1)
    left_out = 2 if neighbours is Neighbours.BOUNDED else 0
    assert [change.total() for change in changes] == [answers - left_out]


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_losses_of_one_attribute_and_within_a_geounit(neighbours: Neighbours) -> None:
    for seed in (1, 2):
        plan, _ = planned("bypassed", "us", seed, GAUSSIAN, neighbours)
        release = release_of(plan)
        records = list(accountant.records(release))
        starts = {name: plan.spine.leaf_starts(plan.spine.index(name)) for name in ("state", "county")}
        leaves = np.arange(len(plan.spine.leaf))
        levels = {name: np.searchsorted(first, leaves, side="right") for name, first in starts.items()}
        for attribute, cells in (("home", 2), ("adult", 1)):
            changes = [Counter(dict(change)) for change in attribute_loss(plan, attribute).changes]
            pairs = [changed(plan, release, [(leaf, cell)], [(leaf, cell ^ cells)]) for leaf, cell in records]
            assert all(any(pair == change for change in changes) for pair in pairs)
        for level, codes in levels.items():
            changes = [Counter(dict(change)) for change in within_loss(plan, level).changes]
            pairs = [
                changed(plan, release, [old], [new])
                for old, new in pairs_of(records, repeat=2)
                if old[1] == new[1] and codes[old[0]] == codes[new[0]]
            ]
            assert all(any(pair <= change for change in changes) for pair in pairs)


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("name", ["standard", "bypassed", "zones"])
def test_stated_losses_of_parts_are_those_of_the_worst_pair(
    name: str, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    """A record that changes in part costs what certificates state, under either relation."""
    plan, _ = planned(name, "us", 1, mechanism, neighbours)
    release, power = release_of(plan), 2 if mechanism is GAUSSIAN else 1

    def cost(old: object, new: object) -> Fraction:
        found = accountant.cost(release, [old], [new], power) / power
        assert isinstance(found, Fraction)
        return found

    account = PlanAccount(plan, F(1, 10**6))
    records = list(accountant.records(release))
    for attribute, bit in (("home", 2), ("adult", 1)):
        assert account.attributes[attribute] == max(cost((a, i), (a, i ^ bit)) for a, i in records)
    for number, level in enumerate(plan.spine.names):
        # The geounits of the run's own spine, which need not be official ones.
        above = np.searchsorted(plan.spine.leaf_starts(number), np.arange(len(plan.spine.leaf)), side="right")
        moves = [
            cost(old, new)
            for old, new in pairs_of(records, repeat=2)
            if old[1] == new[1] and above[old[0]] == above[new[0]]
        ]
        assert max(moves) <= account.within[level]


def mutant(spine: Spine, number: int, change: Sequence[Fraction]) -> Spine:
    """Give some geounits of a level other multiples, without looking at paths."""
    shares = list(spine.shares)
    count = len(spine.levels[number])
    shares[number] = Shares.of(list(change), np.arange(count) % len(change))
    return Spine(spine.levels, spine.leaf_order, tuple(shares))


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_a_child_that_keeps_its_share_is_caught(mechanism: Mechanism) -> None:
    """The mutant of bypassing: the parent takes over what the child has, and the child keeps it."""
    for root in ("us", "state"):
        plan, _ = planned("bypassed", root, 1, mechanism, Neighbours.BOUNDED)
        lowest = max(number for number, shares in enumerate(plan.spine.shares) if shares is not None)
        bad = mutant(plan.spine, lowest, [F(1)])
        object.__setattr__(plan, "spine", bad)  # the plan itself refuses such a spine
        assert worst(plan, release_of(plan)) > plan.budget.total
        with pytest.raises(Exception, match="on the path to leaf"):
            bad.check_paths([level.share for level in plan.levels])
