"""The protection map against all neighbouring inputs of tiny domains."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.accounted_plans import CELLS, PRODUCT
from support.seeds import examples
from support.spine_shares import multiple

from opendas.budget.allocation import Budget
from opendas.constraints.fixed_sums import FREE, ExactQuery, PublicFacts, leaf_patterns
from opendas.geography.bypass import bypass_only_children
from opendas.geography.spine import Spine, SpineLevel
from opendas.measurement.loss import (
    attribute_loss,
    attribute_losses,
    change_loss,
    plan_loss,
    within_loss,
    within_losses,
)
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.composition import WorstLoss
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import Noise

F = Fraction
SETS = [np.array(bits, dtype=bool) for bits in itertools.product([False, True], repeat=CELLS) if any(bits)]
QUERIES = {
    "all": {"total": F(1, 5), "home": F(1, 10), "adult": F(1, 10), "detailed": F(3, 5)},
    "some": {"total": F(1, 3), "adult": F(2, 3)},
}
Place = tuple[int, int]


def spine_of(parents: tuple[tuple[int, ...], ...], divided: tuple[int, ...]) -> Spine:
    """Return a spine: one root over levels given by their parents; `divided`: wholes of the first level."""
    levels = [SpineLevel("us", np.array([b"us"]), np.zeros(1, np.int64))]
    for number, parent in enumerate(parents):
        codes = np.array([f"{number}{i}".encode() for i in range(len(parent))])
        whole = np.array(divided) if divided and number == 0 else None
        name = ("leaf", "county", "state")[len(parents) - 1 - number]
        levels.append(SpineLevel(name, codes, np.array(parent, dtype=np.int64), not divided, whole))
    return Spine(tuple(levels), np.arange(len(parents[-1])), (None,) * len(levels))


@dataclass(frozen=True)
class Tiny:
    """A domain, one input, and what is known exactly of it."""

    spine: Spine
    facts: PublicFacts
    counts: np.ndarray  # (leaves, cells)
    neighbours: Neighbours = Neighbours.BOUNDED
    queries: str = "all"

    @cached_property
    def map(self) -> ProtectionMap:
        spine = bypass_only_children(self.spine, [F(1, len(self.spine.levels))] * len(self.spine.levels))
        shares = {name: F(1, len(spine.levels)) for name in spine.names}
        budget = Budget(
            Mechanism.DISCRETE_GAUSSIAN, self.neighbours, F(1), shares, {"*": QUERIES[self.queries]}
        )
        return ProtectionMap(MeasurementPlan(PRODUCT, spine, budget), self.facts, leaf_patterns(self.facts))

    @property
    def places(self) -> list[Place]:
        return list(itertools.product(range(len(self.counts)), range(CELLS)))

    def sums(self) -> Iterator[tuple[frozenset[Place], int, int]]:
        """Every fact as a set of places with the least and the most that it holds."""
        for leaf, cells in self.places:
            if not self.facts.possible[cells]:
                yield frozenset([(leaf, cells)]), 0, 0
        for leaf, k in itertools.product(range(len(self.counts)), range(len(self.facts.bound_names))):
            cells = np.flatnonzero(self.facts.bound_cells[k]).tolist()
            yield (
                frozenset((leaf, cell) for cell in cells),
                int(self.facts.lower[leaf, k]),
                int(self.facts.upper[leaf, k]),
            )
        for exact in self.facts.invariants:
            for unit, row in itertools.product(range(int(exact.unit[-1]) + 1), range(exact.query.size)):
                inside = frozenset(
                    (leaf, cell)
                    for leaf, cell in self.places
                    if exact.unit[leaf] == unit and exact.query.row_of_cell[cell] == row
                )
                value = sum(int(self.counts[place]) for place in inside)
                yield inside, value, value

    def laminar(self) -> bool:
        """Whether of any two facts one holds the other, or they have no possible place in common."""
        possible = {(leaf, cell) for leaf, cell in self.places if self.facts.possible[cell]}
        sets = [inside & possible for inside, _, _ in self.sums()]
        return all(not a & b or a <= b or b <= a for a, b in itertools.combinations(sets, 2))

    def inputs(self, records: range) -> Iterator[dict[Place, int]]:
        """All inputs of some numbers of records that the facts allow."""
        sums = list(self.sums())
        for number in records:
            for chosen in itertools.combinations_with_replacement(self.places, number):
                x = {place: chosen.count(place) for place in self.places}
                if all(low <= sum(x[place] for place in inside) <= high for inside, low, high in sums):
                    yield x

    def pairs(self, records: range) -> set[tuple[Place, Place]]:
        """All pairs of places between which a record of some input can be moved."""
        sums = list(self.sums())
        found = set()
        for x in self.inputs(records):
            for old, new in itertools.permutations(self.places, 2):
                if x[old] and (old, new) not in found:
                    after = dict(x)
                    after[old] -= 1
                    after[new] += 1
                    if all(low <= sum(after[p] for p in inside) <= high for inside, low, high in sums):
                        found.add((old, new))
        return found

    def mapped(self) -> set[tuple[Place, Place]]:
        """The pairs that the map holds for possible."""
        found = self.map
        return {
            (old, new)
            for old, new in itertools.permutations(self.places, 2)
            if found.place(*old) is not None and found.place(*old) == found.place(*new)
        }


SPINES: list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = [
    (((0, 0),), ()),
    (((0, 0, 0),), ()),
    (((0, 0), (0, 1)), ()),
    (((0, 0), (0, 0, 1)), ()),
    (((0, 0), (0, 0, 1), (0, 1, 2)), ()),
    (((0, 0, 0),), (0, 0, 1)),
    (((0, 0), (0, 0, 1)), (0, 0)),
    (((0, 0, 0), (0, 1, 2)), (0, 0, 1)),
]


@st.composite
def tiny(draw: st.DrawFn, *, known: bool) -> Tiny:
    """Draw a spine, an input, bounds close around it, zeros where it is empty, and invariants."""
    parents, divided = draw(st.sampled_from(SPINES))
    spine = spine_of(parents, divided)
    leaves = len(spine.leaf)
    places = list(itertools.product(range(leaves), range(CELLS)))
    counts = np.zeros((leaves, CELLS), dtype=np.int64)
    for place in draw(st.lists(st.sampled_from(places), max_size=3)):
        counts[place] += 1
    possible = np.array([bool(counts[:, cell].any()) or draw(st.integers(0, 4)) > 0 for cell in range(CELLS)])
    cells = np.array(draw(st.lists(st.sampled_from(SETS), max_size=2)), dtype=bool).reshape(-1, CELLS)
    held = counts @ cells.T.astype(np.int64)
    below, above = (
        np.array([[draw(st.sampled_from(room)) for _ in row] for row in held], dtype=np.int64).reshape(
            held.shape
        )
        for room in ((0, 0, 1, 2), (0, 0, 1, 5))
    )
    invariants = []
    for query, level in draw(
        st.lists(
            st.tuples(st.sampled_from(PRODUCT.query_names), st.integers(0, len(spine.levels) - 1)),
            max_size=2,
            unique=True,
        )
    ):
        group = PRODUCT.workload.group(query)
        unit = np.repeat(np.arange(len(spine.levels[level])), np.diff(spine.leaf_starts(level)))
        whole = spine.levels[level].whole
        unit = unit if whole is None else whole[unit]
        answers = np.zeros((int(unit[-1]) + 1, group.size), dtype=np.int64)
        np.add.at(answers, unit, group.answers(counts))
        invariants.append(
            ExactQuery(f"{query}@{spine.names[level]}", group, level, unit, answers if known else None)
        )
    names = tuple(f"bound {k}" for k in range(len(cells)))
    facts = PublicFacts(possible, names, cells, np.maximum(held - below, 0), held + above, tuple(invariants))
    return Tiny(spine, facts, counts, draw(st.sampled_from(Neighbours)), draw(st.sampled_from(list(QUERIES))))


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(tiny(known=True))
def test_classes_are_those_of_all_neighbours(one: Tiny) -> None:
    """No neighbours lie in two classes; where facts are laminar, all places of a class are neighbours."""
    records = int(one.counts.sum())
    several = range(records, records + 1) if one.facts.invariants else range(records + 2)
    pairs, mapped = one.pairs(several), one.mapped()
    assert pairs <= mapped
    if one.laminar():
        assert pairs == mapped
    if one.facts.nested:  # what a certificate may call complete
        assert one.laminar()
        assert pairs == mapped


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans().flatmap(lambda known: tiny(known=known)))
def test_what_is_said_of_classes_is_what_listing_them_says(one: Tiny) -> None:
    """Sizes, and which attributes and geounits differ inside: without listing, and by listing."""
    listed: dict[tuple[int, ...], list[Place]] = {}
    found = one.map
    for leaf, cell in one.places:
        key = found.place(leaf, cell)
        if key is not None:
            listed.setdefault(key, []).append((leaf, cell))
    statistics = [*PRODUCT.schema.codes(np.arange(CELLS)), PRODUCT.workload.group("total").row_of_cell]
    above = [
        np.repeat(np.arange(len(level)), np.diff(one.spine.leaf_starts(number)))
        for number, level in enumerate(one.spine.levels)
    ]
    expected = Counter(
        (
            len(some),
            tuple(len({int(one_of[cell]) for _, cell in some}) > 1 for one_of in statistics),
            tuple(len({int(level[leaf]) for leaf, _ in some}) > 1 for level in above),
        )
        for some in listed.values()
    )
    told: Counter[object] = Counter()
    for part in found.classes(statistics):
        rows = zip(part.size.tolist(), part.differ.T.tolist(), part.moves.T.tolist(), strict=True)
        for (size, differ, moves), times in zip(rows, part.times.tolist(), strict=True):
            told[size, tuple(differ), tuple(moves)] += times
    assert told == expected
    sizes = sorted(len(some) for some in listed.values() for _ in some)
    assert found.places == len(sizes)
    assert found.alone == sizes.count(1)
    if sizes:
        assert (found.least, found.median) == (sizes[0] - 1, sizes[(len(sizes) - 1) // 2] - 1)
    if one.neighbours is Neighbours.BOUNDED:
        assert found.protects == any(len(some) > 1 for some in listed.values())
    else:
        assert (
            found.protects
            == any(
                all(place not in inside or low < high for inside, low, high in one.sums())
                for place in one.places
            )
            or not one.laminar()
        )


Change = Counter[tuple[Noise, int]]


def changed(one: Tiny, old: Place | None, new: Place) -> Change:
    """Every measured answer that differs if a record moves from one place to another, by its noise."""
    plan = one.map.plan
    found: Change = Counter()
    for number, level in enumerate(plan.levels):
        above = np.repeat(np.arange(len(plan.spine.levels[number])), np.diff(plan.spine.leaf_starts(number)))
        for planned in level.queries:
            answers: Counter[tuple[int, int]] = Counter()
            for sign, place in ((-1, old), (1, new)):
                if place is not None:
                    answers[int(above[place[0]]), int(planned.query.row_of_cell[place[1]])] += sign
            for (geounit, _), difference in answers.items():
                own = multiple(plan.spine, number, geounit)
                if difference and own:
                    found[plan.distribution(number, planned, own), abs(difference)] += 1
    return found


def free(held: ProtectionMap, leaf: int, cell: int) -> bool:
    return bool(held.label(int(held.patterns.of_leaf[leaf]))[cell] == FREE)


def agree(one: Tiny, found: WorstLoss, pairs: Iterable[tuple[Place | None, Place]]) -> None:
    """The changes hold those of every pair, and each is that of some pair."""
    changes = [Counter(dict(change)) for change in found.changes]
    every = [changed(one, *pair) for pair in pairs] or [Counter()]
    assert all(any(some <= change for change in changes) for some in every)
    assert all(change in every for change in changes)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans().flatmap(lambda known: tiny(known=known)))
def test_losses_are_those_of_the_worst_pairs_inside_classes(one: Tiny) -> None:
    held, plan = one.map, one.map.plan
    pairs = one.mapped()
    if held.protects and held.adds:
        agree(
            one,
            plan_loss(plan, held),
            [(None, place) for place in one.places if held.may_add and free(held, *place)],
        )
    elif held.protects:
        agree(one, plan_loss(plan, held), pairs)
    losses, codes = attribute_losses(plan, held), PRODUCT.schema.codes(np.arange(CELLS))
    for number, name in enumerate(PRODUCT.schema.names):
        other = codes[1 - number]
        alone = [(old, new) for old, new in pairs if old[0] == new[0] and other[old[1]] == other[new[1]]]
        agree(one, attribute_loss(plan, name, held), alone)
        assert losses.get(name, 0) == max((change_loss(changed(one, *pair)) for pair in alone), default=0)
    within = within_losses(plan, held)
    for number, name in enumerate(plan.spine.names):
        above = np.repeat(np.arange(len(plan.spine.levels[number])), np.diff(plan.spine.leaf_starts(number)))
        moves = [(old, new) for old, new in pairs if old[1] == new[1] and above[old[0]] == above[new[0]]]
        agree(one, within_loss(plan, name, held), moves)
        assert within[name] == max((change_loss(changed(one, *pair)) for pair in moves), default=0)
