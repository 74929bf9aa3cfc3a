"""The protection map against all neighbouring inputs of tiny domains."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opendas.budget import Budget
from opendas.constraints.fixed_sums import ExactQuery, PublicFacts, leaf_patterns
from opendas.geography.spine import Spine, SpineLevel
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy import Mechanism, Neighbours
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.product import PassPlan, Product

F = Fraction
PRODUCT = Product(
    name="tiny",
    schema=Schema((Attribute("home", ("house", "hall")), Attribute("adult", ("no", "yes")))),
    recodes=(),
    query_names=("total", "home", "adult", "detailed"),
    invariants=(),
    bounds=(),
    structural_zeros=(),
    protected_unit="person",
    layout="tiny",
    passes=PassPlan({}, {}),
)
CELLS = 4
SETS = [np.array(bits, dtype=bool) for bits in itertools.product([False, True], repeat=CELLS) if any(bits)]
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

    @property
    def map(self) -> ProtectionMap:
        shares = {name: F(1, len(self.spine.levels)) for name in self.spine.names}
        queries = {"*": {"total": F(1, 4), "home": F(1, 4), "detailed": F(1, 2)}}
        budget = Budget(Mechanism.DISCRETE_GAUSSIAN, self.neighbours, F(1), shares, queries)
        return ProtectionMap(
            MeasurementPlan(PRODUCT, self.spine, budget), self.facts, leaf_patterns(self.facts)
        )

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
    return Tiny(spine, facts, counts)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(tiny(known=True))
def test_classes_are_those_of_all_neighbours(one: Tiny) -> None:
    """No neighbours lie in two classes; where facts are laminar, all places of a class are neighbours."""
    records = int(one.counts.sum())
    several = range(records, records + 1) if one.facts.invariants else range(records + 2)
    pairs, mapped = one.pairs(several), one.mapped()
    assert pairs <= mapped
    if one.laminar():
        assert pairs == mapped


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
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
    assert found.protects == any(len(some) > 1 for some in listed.values())
