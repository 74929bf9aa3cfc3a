"""Losses within official areas by brute force: every pair of leaves of an area, every answer that differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from support.accounted_plans import (
    CELLS,
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
from support.seeds import examples

from opendas.budget.allocation import Budget, Contribution
from opendas.errors import ConfigError, GeographyError
from opendas.geography.frame import Frame
from opendas.measurement.account import PlanAccount
from opendas.measurement.loss import within_loss
from opendas.measurement.official_losses import AreaLoss, Areas, official_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import Bound, ContributionBound, Distinct, Invariant, StructuralZero


def slow_losses(plan: MeasurementPlan, codes: np.ndarray) -> dict[bytes, Fraction]:
    """Replace the record of every leaf of an area by the same at every other leaf; code -> worst loss."""
    release = release_of(plan)
    power, half = (2, 2) if plan.budget.mechanism is GAUSSIAN else (1, 1)
    found: dict[bytes, Fraction] = {}
    on_spine = codes[plan.spine.leaf_order].tolist()
    for code in sorted(set(on_spine) - {b""}):
        leaves = [leaf for leaf, other in enumerate(on_spine) if other == code]
        costs = [
            accountant.cost(release, [(one, 0)], [(other, 0)], power) / half
            for one, other in combinations(leaves, 2)
        ]
        found[code] = max(costs, default=Fraction(0))
    return found


def slow_row(plan: MeasurementPlan, frame: Frame, kind: str) -> AreaLoss:
    losses = sorted(slow_losses(plan, frame.codes(kind)).values())
    above = None
    if kind in plan.spine.names:
        share = sum(level.share for level in plan.levels[plan.spine.index(kind) + 1 :])
        stated = share * plan.budget.total * (2 if plan.budget.neighbours is Neighbours.UNBOUNDED else 1)
        above = sum(loss > stated for loss in losses)
    median = next(x for x in losses if 2 * sum(loss <= x for loss in losses) >= len(losses))
    return AreaLoss(kind, len(losses), losses[-1], median, above)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(RECIPES)),
    st.sampled_from(["us", "state"]),
    st.integers(0, 10_000),
    st.sampled_from([GAUSSIAN, LAPLACE]),
    st.sampled_from(list(Neighbours)),
)
def test_every_pair_of_leaves(
    name: str, root: str, seed: int, mechanism: Mechanism, neighbours: Neighbours
) -> None:
    plan, frame = planned(name, root, seed, mechanism, neighbours)
    kinds = [kind for kind in (*frame.levels, *frame.entities) if (frame.codes(kind) != b"").any()]
    assert official_losses(plan, frame) == tuple(slow_row(plan, frame, kind) for kind in kinds)
    for kind in kinds:
        areas = Areas.of(plan, frame.codes(kind))
        assert [areas.losses[k] for k in areas.which] == list(slow_losses(plan, frame.codes(kind)).values())


FACTS = (
    {"invariants": (Invariant("total", "state"),)},
    {"invariants": (Invariant("home", "county"),)},
    {"invariants": (Invariant("total", "leaf"),)},
    {"bounds": (Bound("home", "hall", "gq1"),)},
    {"bounds": (Bound("home", "hall", "gq1"), Bound("home", "house", "gq2", lower=1, upper=1))},
    {
        "bounds": (Bound("home", "hall", "gq1"),),
        "invariants": (Invariant("total", "state"),),
        "structural_zeros": (StructuralZero({"home": ("house",), "adult": ("no",)}),),
    },
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(RECIPES)),
    st.sampled_from(["us", "state"]),
    st.integers(0, 10_000),
    st.sampled_from(FACTS),
    st.sampled_from([GAUSSIAN, LAPLACE]),
)
def test_every_pair_of_places_that_exact_facts_leave(
    name: str, root: str, seed: int, facts: dict[str, Any], mechanism: Mechanism
) -> None:
    """Only a record that may be at both leaves, for all that is known, moves between them."""
    made, frame = planned(name, root, seed, mechanism, Neighbours.BOUNDED)
    queries = {"*": {"total": F(1, 5), "adult": F(1, 5), "detailed": F(3, 5)}}
    budget = Budget(mechanism, Neighbours.BOUNDED, F(2), made.budget.geolevels, queries)
    plan = MeasurementPlan(replace(PRODUCT, **facts), made.spine, budget)
    try:
        held = ProtectionMap.of(plan, frame)
    except ConfigError:  # bypassing under pure privacy may leave no geounit that has the invariant
        reject()
    release = release_of(plan)
    power, half = (2, 2) if mechanism is GAUSSIAN else (1, 1)
    for kind in (*frame.levels, "place", "aianhh"):
        on_spine = frame.codes(kind)[plan.spine.leaf_order].tolist()
        worst = dict.fromkeys(sorted(set(on_spine) - {b""}), Fraction(0))
        for one, other in combinations(range(len(on_spine)), 2):
            free = [
                cell
                for cell in range(CELLS)
                if held.place(one, cell) is not None and held.place(one, cell) == held.place(other, cell)
            ]
            if on_spine[one] == on_spine[other] != b"" and free:
                cost = accountant.cost(release, [(one, free[0])], [(other, free[0])], power) / half
                worst[on_spine[one]] = max(worst[on_spine[one]], cost)
        areas = Areas.of(plan, frame.codes(kind), held)
        assert [areas.losses[k] for k in areas.which] == list(worst.values())


@pytest.mark.parametrize("distinct", [None, *Distinct])
@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_units_of_two_records_that_move_inside_an_area(
    mechanism: Mechanism, distinct: Distinct | None
) -> None:
    """Whatever pairs of leaves both of them take before and after, where they may be equal or must differ."""
    made, frame = planned("zones", "us", 1, mechanism, Neighbours.BOUNDED)
    bound = ContributionBound("person", 2, distinct)
    contribution = Contribution.of(bound, made.product, made.spine.names[-1])
    plan = MeasurementPlan(made.product, made.spine, replace(made.budget, contribution=contribution))
    release = release_of(plan)
    power, half = (2, 2) if mechanism is GAUSSIAN else (1, 1)
    codes = frame.codes("county")[plan.spine.leaf_order]
    areas = Areas.of(plan, frame.codes("county"))
    for code, k in zip(np.unique(codes), areas.which.tolist(), strict=True):
        places = [(leaf, cell) for leaf in np.flatnonzero(codes == code).tolist() for cell in (0, 3)]
        units = [
            pair
            for pair in combinations_with_replacement(places, 2)
            if distinct is not Distinct.LEAF or pair[0][0] != pair[1][0]
            if distinct is not Distinct.CELL or pair[0][1] != pair[1][1]
            if distinct is not Distinct.RECORD or pair[0] != pair[1]
        ]
        moves = [
            (one, other)
            for one, other in combinations(units, 2)
            if sorted(cell for _, cell in one) == sorted(cell for _, cell in other)
        ]
        worst = [accountant.cost(release, list(one), list(other), power) / half for one, other in moves]
        assert max(worst, default=Fraction(0)) <= areas.losses[k]
        if distinct is None and worst:
            assert max(worst) == areas.losses[k]


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize("name", ["aian", "bypassed", "zones"])
def test_what_differs_in_a_move_is_part_of_a_change(name: str, mechanism: Mechanism) -> None:
    """And nothing is counted that no move can change, where an area loses most."""
    for seed in (1, 2, 3):
        plan, frame = planned(name, "us", seed, mechanism, Neighbours.BOUNDED)
        release = release_of(plan)
        for kind in (*frame.levels, "place"):
            codes = frame.codes(kind)[plan.spine.leaf_order]
            areas = Areas.of(plan, frame.codes(kind))
            loss = dict(zip(np.unique(codes[codes != b""]).tolist(), areas.which.tolist(), strict=True))
            for at_most in {areas.losses[-1], areas.losses[len(areas.losses) // 2]}:
                changes = [Counter(dict(change)) for change in areas.worst(plan, at_most).changes]
                pairs = [
                    changed(plan, release, [(one, 0)], [(other, 0)])
                    for one, other in combinations(range(len(codes)), 2)
                    if codes[one] == codes[other] != b"" and areas.losses[loss[codes[one]]] <= at_most
                ]
                assert all(any(pair <= change for change in changes) for pair in pairs)
                assert not pairs or any(pair == change for pair in pairs for change in changes)


def test_on_the_official_spine_no_geounit_loses_more_than_stated() -> None:
    plan, frame = planned("standard", "us", 1, GAUSSIAN, Neighbours.BOUNDED)
    below = plan.budget.total
    found = [row for row in official_losses(plan, frame) if row.kind in frame.levels]
    for level, row in zip(plan.levels, found, strict=False):
        below -= level.share * plan.budget.total
        assert (row.kind, row.above_spine) == (level.geolevel, 0)
        # less where every geounit has but one child, so that who moves stays in that as well
        assert row.largest <= below
    assert found[0].largest == plan.budget.total * (1 - plan.levels[0].share)


def test_regrouped_spines_do_lose_more() -> None:
    """Else the test of pairs would not have looked at what it is about."""
    above = 0
    for seed in range(4):
        plan, frame = planned("aian", "us", seed, GAUSSIAN, Neighbours.BOUNDED)
        above += sum(row.above_spine or 0 for row in official_losses(plan, frame))
    assert above > 4


def test_an_area_of_one_leaf_and_a_category_without_an_area() -> None:
    plan, frame = planned("standard", "us", 1, GAUSSIAN, Neighbours.BOUNDED)
    codes = np.full(len(frame), b"", dtype="S5")
    assert "place" not in [row.kind for row in official_losses(plan, _with_places(frame, codes))]
    codes[2] = b"1"
    (row,) = [row for row in official_losses(plan, _with_places(frame, codes)) if row.kind == "place"]
    assert row == AreaLoss("place", 1, Fraction(0), Fraction(0), None)


def test_a_frame_of_other_leaves_is_refused() -> None:
    plan, frame = planned("standard", "us", 1, GAUSSIAN, Neighbours.BOUNDED)
    with pytest.raises(GeographyError, match="leaves and the spine"):
        official_losses(plan, frame.take(np.arange(2)))


def _with_places(frame: Frame, codes: np.ndarray) -> Frame:
    return replace(frame, entities={**frame.entities, "place": codes})


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "some"), [(GAUSSIAN, 1), (LAPLACE, 9)])
def test_exact_epsilons_leave_no_change_out(mechanism: Mechanism, some: int) -> None:
    """The account stops at changes that the formula bounds; the slow way looks at all."""
    plan, frame = planned("bypassed", "state", 1, mechanism, Neighbours.BOUNDED)
    account = PlanAccount(plan, Fraction(1, 10**6), frame)
    rows = account.within_official[:some]
    compared = [(within_loss(plan, row.kind), account.upper(within_loss(plan, row.kind))) for row in rows[:2]]
    parts = account.official_parts(exact=True)
    for row in rows:
        areas = Areas.of(plan, frame.codes(row.kind))
        for loss, part in zip((row.largest, row.median), parts[row.kind], strict=True):
            assert part.loss == loss
            compared.append((areas.worst(plan, loss), part.epsilon["exact"]))
    for worst, upper in compared:
        bounds = worst.epsilon(account.delta)
        assert bounds.lower <= upper <= bounds.upper * (1 + 1e-3) + 1e-9
