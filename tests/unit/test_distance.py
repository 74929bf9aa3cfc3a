"""Off-spine entity distance: small cases by hand, properties, and Rhode Island."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data import shared_data
from support.seeds import examples

from opendas.errors import GeographyError
from opendas.geography.frame import Frame, official_codes
from opendas.geography.off_spine_distance import (
    EntityDistances,
    Memberships,
    distances,
    entity_distances,
    memberships_of,
    subtree_costs,
)
from opendas.geography.partitions import standard_spine
from opendas.readers import ReaderSpec, make_reader
from opendas.schema.pl94 import pl94_persons

# A state of two counties; tracts of 3, 2 and 4 blocks.
PARENTS = [np.array([0, 0]), np.array([0, 0, 1]), np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])]
LEAVES = 9


def distance_of(*leaves: int, parents: list[np.ndarray] = PARENTS) -> int:
    members = Memberships(np.zeros(len(leaves), dtype=np.int64), np.array(leaves, dtype=np.int64))
    return int(distances(parents, LEAVES, members, 1)[0])


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ((), 0),
        ((4,), 1),
        ((3, 4), 1),  # a tract
        ((0, 1, 2, 3, 4), 1),  # a county
        (tuple(range(9)), 1),  # the state
        ((0, 1), 2),  # two blocks, or a tract less one
        ((5, 6, 7), 2),  # a tract less one block
        ((0, 1, 2, 3, 4, 5), 2),  # a county and a block
        ((0, 1, 2, 3, 5, 6, 7), 3),  # the state less two blocks
        ((0, 3, 5), 3),
    ],
)
def test_by_hand(leaves: tuple[int, ...], expected: int) -> None:
    assert distance_of(*leaves) == expected


def test_roots_add_up() -> None:
    assert distance_of(*range(9), parents=PARENTS[1:]) == 2
    assert distance_of(0, 1, 2, 3, 5, 6, 7, parents=PARENTS[1:]) == 4
    assert distance_of(*range(9), parents=[]) == 9


def test_costs_of_the_touched_tracts() -> None:
    members = Memberships(np.array([1, 0, 1, 1]), np.array([8, 3, 0, 1]))
    costs = subtree_costs(PARENTS, LEAVES, members, 2)
    assert costs.entity.tolist() == [0, 1, 1]
    assert costs.geounit.tolist() == [1, 0, 2]
    assert costs.inside.tolist() == [1, 2, 1]
    assert costs.outside.tolist() == [1, 1, 2]


def test_codes_become_pairs() -> None:
    codes, members = memberships_of(np.array([b"b", b"b", b"", b"a", b"b"], dtype="S3"))
    assert codes.tolist() == [b"a", b"b"]
    assert members.entity.tolist() == [1, 1, 0, 1]
    assert members.leaf.tolist() == [0, 1, 3, 4]
    none = np.zeros(3, dtype="S2")
    assert [len(part) for part in (memberships_of(none)[0], memberships_of(none[:0])[0])] == [0, 0]
    assert len(memberships_of(none)[1].leaf) == 0


def test_reductions() -> None:
    frame = Frame(
        np.array([b"11", b"12", b"21", b"22"]), {"county": np.array([b"1", b"1", b"2", b"2"])}, "block"
    )
    spine = standard_spine(frame)
    found = entity_distances(spine, np.array([b"x", b"x", b"x", b""]), "place")
    assert (found.category, found.codes.tolist(), found.distance.tolist()) == ("place", [b"x"], [2])
    assert found.leaves.tolist() == [3]
    more = EntityDistances("place", np.array([b"x", b"y", b"z"]), np.array([1, 5, 3]), np.array([1, 5, 3]))
    assert (more.mean, more.maximum, sorted(more.distance.tolist())) == (3.0, 5, [1, 3, 5])
    empty = entity_distances(spine, np.zeros(4, dtype="S1"))
    assert (len(empty), empty.mean, empty.maximum, empty.distance.tolist()) == (0, 0.0, 0, [])


def test_codes_come_in_the_order_of_the_frame() -> None:
    # The spine's order differs from the frame's: county b before county a.
    frame = Frame(np.array([b"1", b"2", b"3", b"4"]), {"county": np.array([b"b", b"a", b"b", b"a"])}, "block")
    spine = standard_spine(frame)
    assert spine.leaf_order.tolist() == [1, 3, 0, 2]
    found = entity_distances(spine, np.array([b"x", b"y", b"x", b"y"]))
    assert found.distance.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("entity", "leaf", "message"),
    [
        ([0, 0], [1, 1], "twice"),
        ([0], [9], "not there"),
        ([0], [-1], "not there"),
        ([-1], [0], "not there"),
        ([2], [0], "entity 2 of 1"),
    ],
)
def test_bad_pairs_are_refused(entity: list[int], leaf: list[int], message: str) -> None:
    with pytest.raises(GeographyError, match=message):
        distances(PARENTS, LEAVES, Memberships(np.array(entity), np.array(leaf)), 1)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(GeographyError, match="one of each"):
        Memberships(np.array([0, 1]), np.array([0]))
    one = Memberships(np.array([0]), np.array([0]))
    with pytest.raises(GeographyError, match="not consecutive"):
        distances([np.array([0, 1, 0])], 3, one, 1)
    with pytest.raises(GeographyError, match="each has one"):
        distances(PARENTS, 8, one, 1)
    frame = Frame(np.array([b"1", b"2"]), {}, "block")
    with pytest.raises(GeographyError, match="one per leaf"):
        entity_distances(standard_spine(frame), np.array([b"x"]))


@st.composite
def trees_and_entities(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray]:
    """A tree of three levels below one root, and which leaves lie in each of a few entities."""
    parents, width = [], 1
    for _ in range(3):
        children = draw(st.lists(st.integers(1, 4), min_size=width, max_size=width))
        parents.append(np.repeat(np.arange(width), children))
        width = sum(children)
    rows = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4))
    return parents, np.array(rows)


def distances_of(parents: list[np.ndarray], inside: np.ndarray) -> np.ndarray:
    entity, leaf = np.nonzero(inside)
    return distances(parents, inside.shape[1], Memberships(entity, leaf), len(inside))


@settings(deadline=None, max_examples=examples(150))
@given(trees_and_entities(), st.randoms(use_true_random=False))
def test_properties(case: tuple[list[np.ndarray], np.ndarray], random: object) -> None:
    parents, inside = case
    found = distances_of(parents, inside)
    assert np.all(found <= inside.sum(axis=1))
    assert np.all((found == 0) == ~inside.any(axis=1))
    assert np.all(np.abs(found - distances_of(parents, ~inside)) <= 1)  # the complement is the root less it
    # Every geounit of the spine has distance 1, and a chain of single children changes nothing.
    position = np.arange(inside.shape[1])
    for parent in reversed(parents):
        geounits = position[None, :] == np.arange(int(position.max()) + 1)[:, None]
        assert np.all(distances_of(parents, geounits) == 1)
        position = parent[position]
    chain = [*parents[:2], np.arange(len(parents[1])), *parents[2:]]
    assert np.array_equal(distances_of(chain, inside), found)
    # A level more never takes an entity farther away; a level less never brings one closer.
    fewer = [parents[0], parents[1][parents[2]]]
    assert np.all(distances_of(fewer, inside) >= found)


@settings(deadline=None, max_examples=examples(60))
@given(trees_and_entities(), st.integers(0, 2**32 - 1))
def test_order_does_not_matter(case: tuple[list[np.ndarray], np.ndarray], seed: int) -> None:
    parents, inside = case
    rng = np.random.default_rng(seed)
    turned, order = [], np.zeros(1, dtype=np.int64)
    for parent in parents:  # siblings in another order at every level
        children = [rng.permutation(np.flatnonzero(parent == above)) for above in order]
        turned.append(np.repeat(np.arange(len(order)), [len(own) for own in children]))
        order = np.concatenate(children)
    assert np.array_equal(distances_of(turned, inside[:, order]), distances_of(parents, inside))
    assert np.array_equal(distances_of(parents, inside[::-1]), distances_of(parents, inside)[::-1])


def test_rhode_island_on_its_official_spine() -> None:
    """The leaves are the blocks with a housing unit or an occupied group quarters, the root is the state.

    One of the 40 county subdivisions is water without such a block.
    """
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    frame = make_reader(ReaderSpec("pl94-2010", (path,), pl94_persons(), strict=True)).read().frame
    spine = standard_spine(frame)
    assert spine.names == ("state", "county", "tract", "block_group", "block")
    subdivisions = entity_distances(spine, frame.entities["cousub"], "cousub")
    assert (len(subdivisions), int(subdivisions.distance.sum()), subdivisions.maximum) == (39, 237, 39)
    assert round(subdivisions.mean, 2) == 6.08
    places = entity_distances(spine, frame.entities["place"], "place")
    assert (len(places), int(places.distance.sum()), places.maximum) == (34, 523, 39)
    assert round(places.mean, 1) == 15.4
    for level in ("county", "tract", "block_group"):
        assert np.all(entity_distances(spine, frame.levels[level]).distance == 1)


def test_rhode_island_with_the_blocks_where_nobody_can_live() -> None:
    table = pq.read_table(
        shared_data("pl94_2010_ri/ri_2010_block_geo.parquet"), columns=["GEOID", "COUNTY", "COUSUB", "PLACE"]
    ).sort_by("GEOID")
    geocodes, county, cousub, place = (
        np.array(table[name].to_pylist(), dtype="S15") for name in table.column_names
    )
    frame = Frame(geocodes, official_codes(geocodes, "state"), "block")
    spine = standard_spine(frame)
    subdivisions = entity_distances(spine, np.char.add(county, cousub))
    assert (len(frame), len(subdivisions), round(subdivisions.mean, 2)) == (25_181, 40, 10.15)
    places = entity_distances(spine, np.where(place == b"99999", b"", place))
    assert (len(places), round(places.mean, 2), places.maximum) == (34, 23.76, 53)
