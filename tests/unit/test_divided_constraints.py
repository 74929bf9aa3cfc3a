"""Constraints where states are divided into parts: nothing but the state's total enters un-noised.

In the 2020 production code the bounds of a part used the part's own total, which fixed it where the part had
no group quarters. Here they must not: anyone who moves between parts of a state changes no constraint.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.each import each
from support.random_land import random_frame

from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.errors import ConfigError, InfeasibleFamily
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.recipe import NAMED_SPINES, Recipe, SpineStep, build_spine
from opendas.geography.spine import Spine
from opendas.measurement.invariants import declared_invariants
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_units
from opendas.schema.product import PassPlan, Product

CAP = 99_999
COLUMNS = ("hu", "gq1", "gq3")
SEEDS = (1, 2, 3, 4, 5, 8)


def persons(*, partition: bool = True) -> Product:
    """People by residence and age; the total of a state is invariant, facilities hold at least one person."""
    kinds = ("home", "prison", "nursing") if partition else ("home", "prison", "nursing", "elsewhere")
    return Product(
        name="people",
        schema=Schema((Attribute("kind", kinds), Attribute("adult", ("no", "yes")))),
        recodes=(),
        query_names=("total", "kind", "detailed"),
        invariants=(Invariant("total", "state"),),
        bounds=(
            Bound("kind", "home", "hu"),
            Bound("kind", "prison", "gq1", lower=1),
            Bound("kind", "nursing", "gq3", lower=1),
        ),
        structural_zeros=(),
        protected_unit="person",
        layout="people",
        passes=PassPlan({}, {}),
    )


def spine_of(frame: Frame, name: str) -> Spine:
    steps = {
        **NAMED_SPINES,
        "parts": (SpineStep("aian"),),
        "pure": (SpineStep("aian"), SpineStep("block_groups"), SpineStep("bypass")),
    }[name]

    def finish(spine: Spine) -> Spine:
        shares = [Fraction(1, len(spine.levels))] * len(spine.levels)
        if name == "pure":
            return bypass_general(spine, shares, top=spine.index("state") + 1)
        return bypass_only_children(spine, shares)

    return build_spine(frame, Recipe(steps), finish)


def people_in(frame: Frame, cells: int, seed: int) -> np.ndarray:
    """Counts that obey the bounds, int64 (leaves of the frame, cells)."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((len(frame), cells), dtype=np.int64)
    for kind, column in enumerate(COLUMNS):
        there = frame.units[column] > 0
        dense[there, 2 * kind] = rng.integers(0, 4, int(there.sum()))
        dense[there, 2 * kind + 1] = frame.units[column][there]
    return dense


def constraints(product: Product, frame: Frame, spine: Spine, dense: np.ndarray) -> ConstraintTable:
    rows, cells = np.nonzero(dense)
    histogram = Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)
    held = declared_invariants(product, histogram.take(spine.leaf_order), spine)
    return bound_table(product, frame, spine, held)


def from_people(frame: Frame, spine: Spine) -> Histogram:
    """People of the frame's six cells, in spine order."""
    dense = people_in(frame, 6, 0)
    rows, cells = np.nonzero(dense)
    return Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape).take(spine.leaf_order)


def everything(table: ConstraintTable) -> list[list[object]]:
    out: list[list[object]] = []
    for level in table.levels:
        out.append([level.lower.tolist(), level.upper.tolist()])
        out.append([(i.name, i.query.name, i.answers.tolist()) for i in level.invariants])
        joint = level.joint
        out.append([] if joint is None else [joint.name, joint.group.tolist(), joint.totals.tolist()])
    return out


def tight(lower: list[int], upper: list[int], total: int, *, partition: bool) -> tuple[list[int], list[int]]:
    """What an exact total leaves of bounds, kind by kind, as in production."""
    out_lower, out_upper = [], []
    for low, high in zip(lower, upper, strict=True):
        others_low = sum(lower) - low
        others_high = sum(upper) - high
        out_upper.append(max(low, min(high, total - others_low)))
        out_lower.append(min(high, max(low, total - others_high)) if partition else low)
    return out_lower, out_upper


def literal_bounds(
    frame: Frame, spine: Spine, level: int, dense: np.ndarray, *, partition: bool
) -> list[tuple[list[int], list[int]]]:
    """Bounds of one level from the leaves, the rule of states applied by their codes."""
    state_level = spine.index("state")
    unit_of, starts = {}, spine.leaf_starts(level).tolist()
    for unit, (a, b) in enumerate(itertools.pairwise(starts)):
        unit_of.update(dict.fromkeys(spine.leaf_order[a:b].tolist(), unit))
    states = [code.decode() for code in frame.codes("state")]
    pieces: dict[tuple[int, str], list[int]] = {}
    for leaf, unit in unit_of.items():
        # Above the states, what holds for each state is added up; from the states down, units are.
        pieces.setdefault((unit, states[leaf] if level < state_level else ""), []).append(leaf)
    out = []
    for unit in range(len(spine.levels[level])):
        lower, upper = [0] * 3, [0] * 3
        for (other, state), leaves in pieces.items():
            if other != unit:
                continue
            units = [[int(frame.units[column][leaf]) for leaf in leaves] for column in COLUMNS]
            low = [k and sum(own) for k, own in enumerate(units)]
            high = [CAP * sum(own) for own in units]
            if level < state_level:
                total = int(dense[[s == state for s in states]].sum())
                low, high = tight(low, high, total, partition=partition)
            lower = [a + b for a, b in zip(lower, low, strict=True)]
            upper = [a + b for a, b in zip(upper, high, strict=True)]
        out.append((lower, upper))
    return out


@each("seed", SEEDS)
@each("root", ["us", "state"])
@each("name", ["standard", "parts", "aian", "pure"])
@each("partition", [True, False])
def test_bounds_are_those_of_the_literal_rule(seed: int, root: str, name: str, partition: bool) -> None:
    frame, product = random_frame(seed, root=root), persons(partition=partition)
    spine = spine_of(frame, name)
    dense = people_in(frame, product.schema.size, seed)
    table = constraints(product, frame, spine, dense)
    for number, level in enumerate(table.levels):
        found = list(zip(level.lower.tolist(), level.upper.tolist(), strict=True))
        assert found == literal_bounds(frame, spine, number, dense, partition=partition), spine.names[number]


@pytest.mark.parametrize("seed", range(1, 9))
def test_divided_states_below_several_geounits(seed: int) -> None:
    """A level between nation and states: each of its geounits has the bounds of its own states."""
    frame, product = random_frame(seed, root="us"), persons()
    division = np.where(frame.codes("state") < b"10", b"W", b"E")
    levels = {"us": frame.levels["us"], "division": division, **frame.levels}
    frame = replace(frame, levels=levels)
    spine = spine_of(frame, "aian")
    dense = people_in(frame, product.schema.size, seed)
    table = constraints(product, frame, spine, dense)
    for number, level in enumerate(table.levels):
        found = list(zip(level.lower.tolist(), level.upper.tolist(), strict=True))
        assert found == literal_bounds(frame, spine, number, dense, partition=True), spine.names[number]
    (held,) = table.levels[1].invariants
    codes = spine.levels[1].geocodes.tolist()
    assert held.answers[:, 0].tolist() == [int(dense[division == code].sum()) for code in codes]


@each("seed", SEEDS)
@each("root", ["us", "state"])
@each("name", ["parts", "aian", "pure"])
def test_moving_within_a_state_changes_no_constraint(seed: int, root: str, name: str) -> None:
    frame, product = random_frame(seed, root=root), persons()
    spine = spine_of(frame, name)
    dense = people_in(frame, product.schema.size, seed)
    before = everything(constraints(product, frame, spine, dense))
    rng = np.random.default_rng(seed)
    states = frame.codes("state")
    for _ in range(4):
        # One person moves to any other block of the state; then everybody does.
        source = int(rng.choice(np.flatnonzero(dense.sum(axis=1) > 0)))
        target = int(rng.choice(np.flatnonzero(states == states[source])))
        moved = dense.copy()
        moved[source, int(rng.choice(np.flatnonzero(moved[source])))] -= 1
        moved[target, int(rng.integers(product.schema.size))] += 1
        assert everything(constraints(product, frame, spine, moved)) == before
    shuffled = dense.copy()
    for state in np.unique(states):
        here = np.flatnonzero(states == state)
        shuffled[here] = 0
        shuffled[here[0], 0] = dense[here].sum()
    assert everything(constraints(product, frame, spine, shuffled)) == before
    # The state's own total is another matter.
    dense[0, 0] += 1
    assert everything(constraints(product, frame, spine, dense)) != before


def made_state() -> Frame:
    """One state: 2,500 homes and three prisons outside of AIAN areas, ten homes and nothing else inside."""
    codes = np.array([b"040010000011000", b"040010000011001"])
    levels = {"us": np.full(2, b"1"), "state": codes.astype("S2"), "county": codes.astype("S5")}
    units = {"hu": np.array([2500, 10]), "gq1": np.array([3, 0]), "gq3": np.array([0, 0])}
    return Frame(codes, levels, "block", units, {"aianhh": np.array([b"", b"2430"])})


def test_a_part_without_group_quarters_is_not_fixed() -> None:
    frame, product = made_state(), persons()
    spine = spine_of(frame, "parts")
    dense = np.zeros((2, 6), dtype=np.int64)
    dense[0, 1], dense[0, 2], dense[1, 0] = 5000, 3, 1234
    table = constraints(product, frame, spine, dense)
    assert [code.decode() for code in spine.levels[1].geocodes] == ["004", "104"]
    state = table.levels[1]
    # Production's bounds here would be [1234, 0, 0] to [1234, 0, 0] inside.
    assert state.lower.tolist() == [[0, 3, 0], [0, 0, 0]]
    assert state.upper.tolist() == [[2500 * CAP, 3 * CAP, 0], [10 * CAP, 0, 0]]
    assert state.invariants == ()
    assert state.joint is not None
    assert (state.joint.name, state.joint.totals.tolist()) == ("total@state", [6237])
    us = table.levels[0]
    assert us.lower.tolist() == [[6237 - 3 * CAP if 3 * CAP < 6237 else 0, 3, 0]]
    assert us.upper.tolist() == [[6237 - 3, 6237, 0]]
    assert [(i.name, i.answers.tolist()) for i in us.invariants] == [("total@state", [[6237]])]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("root", ["us", "state"])
def test_what_parts_hold_together(seed: int, root: str) -> None:
    frame, product = random_frame(seed, root=root), persons()
    spine = spine_of(frame, "aian")
    dense = people_in(frame, product.schema.size, seed)
    table = constraints(product, frame, spine, dense)
    check_feasible(product, spine, table)
    place = spine.index("state")
    totals = {
        state: int(dense[frame.codes("state") == state].sum()) for state in set(frame.codes("state").tolist())
    }
    for number, level in enumerate(table.levels):
        if number > place:
            assert level.invariants == ()
        if number < place:
            assert [i.answers.tolist() for i in level.invariants] == [[[sum(totals.values())]]]
        assert (level.joint is not None) == (number == place)
    level = table.levels[place]
    joint = level.joint
    assert joint is not None
    assert level.invariants == ()
    codes = [code[1:] for code in spine.levels[place].geocodes.tolist()]
    assert [totals[code] for code in codes] == joint.totals[joint.group].tolist()
    assert len(joint.totals) == len(totals)
    # Whole states are slices; parts alone are none.
    for first in range(len(codes)):
        for last in range(first + 1, len(codes) + 1):
            cut = (first and codes[first - 1] == codes[first]) or (
                last < len(codes) and codes[last - 1] == codes[last]
            )
            if cut:
                with pytest.raises(ValueError, match="are apart"):
                    level.slice(first, last)
            else:
                part = level.slice(first, last).joint
                assert part is not None
                assert part.totals[part.group].tolist() == [totals[code] for code in codes[first:last]]


def test_only_sums_of_all_parts_leave_the_confidential_table() -> None:
    frame, product = random_frame(4, root="us"), persons()
    spine = spine_of(frame, "parts")
    dense = people_in(frame, product.schema.size, 4)
    rows, cells = np.nonzero(dense)
    histogram = Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)
    held = declared_invariants(product, histogram.take(spine.leaf_order), spine)
    states = sorted(set(frame.codes("state").tolist()))
    assert len(spine.levels[1]) > len(states)
    wanted = [[int(dense[frame.codes("state") == state].sum())] for state in states]
    assert {name: answers.tolist() for name, answers in held.items()} == {"total": wanted}


@pytest.mark.parametrize("name", list(NAMED_SPINES))
@pytest.mark.parametrize("root", ["us", "state"])
def test_the_units_of_every_block_stay_invariant(name: str, root: str) -> None:
    frame, product = random_frame(2, root=root), pl94_units()
    spine = spine_of(frame, name)
    dense = np.stack([frame.units["hu"] // 2, frame.units["hu"] - frame.units["hu"] // 2], axis=1)
    table = constraints(product, frame, spine, dense)
    for number, level in enumerate(table.levels):
        assert level.joint is None
        (held,) = level.invariants
        starts = spine.leaf_starts(number).tolist()
        own = frame.units["hu"][spine.leaf_order]
        assert held.answers[:, 0].tolist() == [int(own[a:b].sum()) for a, b in itertools.pairwise(starts)]
    assert product.invariant_levels(spine) == {"total": len(spine.levels) - 1}


def test_an_invariant_of_several_cells_cannot_be_held_by_parts() -> None:
    frame = made_state()
    product = replace(persons(), invariants=(Invariant("kind", "state"),))
    with pytest.raises(ConfigError, match="has several cells, and this spine divides"):
        product.invariant_levels(spine_of(frame, "parts"))
    assert product.invariant_levels(spine_of(frame, "standard")) == {"kind": 1}


def test_an_invariant_below_the_division_is_refused() -> None:
    product = replace(persons(), invariants=(Invariant("total", "county"),))
    with pytest.raises(ConfigError, match="not the official ones"):
        product.invariant_levels(spine_of(made_state(), "parts"))


def test_a_total_that_the_parts_of_a_state_cannot_hold_is_told_by_the_state() -> None:
    """The prisons and nursing homes of both parts need more people than the whole state has."""
    product, frame = persons(), random_frame(11)  # one state in two parts, with eleven facilities
    spine = spine_of(frame, "parts")
    held = declared_invariants(product, from_people(frame, spine), spine)
    check_feasible(product, spine, bound_table(product, frame, spine, held))
    held["total"][0] = 1
    table = bound_table(product, frame, spine, held)
    with pytest.raises(InfeasibleFamily) as caught:
        check_feasible(product, spine, table)
    conflict = caught.value.conflict
    assert conflict is not None
    assert conflict.smallest
    assert str(conflict.constraints[0]).endswith("invariant total@state = 1")
    assert {held.relation for held in conflict.constraints[1:]} == {">="}
    assert (conflict.least, conflict.most) == (
        sum(held.value for held in conflict.constraints[1:]),
        1,
    )


def test_a_total_where_every_cell_is_a_structural_zero_is_told_with_the_zero() -> None:
    """Nobody can live in the only kind of place there is."""
    frame = random_frame(1)
    zero = StructuralZero({"kind": ("home", "prison", "nursing")})
    product = replace(persons(), structural_zeros=(zero,), bounds=())
    spine = spine_of(frame, "standard")
    states = len(spine.levels[spine.index("state")])
    table = bound_table(product, frame, spine, {"total": np.full((states, 1), 7)})
    with pytest.raises(InfeasibleFamily) as caught:
        check_feasible(product, spine, table)
    assert caught.value.conflict is not None
    assert [held.name for held in caught.value.conflict.constraints] == [
        "invariant total@state",
        "structural zero kind=home|prison|nursing",
    ]
    assert len(caught.value.conflict.others) == states - 1
