"""Steps of a spine recipe against literal twins: plain dictionaries over blocks."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from math import isqrt, sqrt

import numpy as np
import pytest
from support.each import each
from support.random_land import random_frame
from support.seeds import seeds

from opendas.errors import ConfigError, GeographyError
from opendas.geography.block_groups import block_groups
from opendas.geography.block_groups import group as group_level
from opendas.geography.frame import Frame
from opendas.geography.partitions import (
    Partitions,
    combine,
    divide_into_parts,
    insert_intersections,
    official_partitions,
    split,
    standard_spine,
)
from opendas.geography.recipe import STRONG_MCD_STATES, Recipe, SpineStep, build_spine, in_ranges
from opendas.geography.spine import Spine

SEEDS = seeds(30)
Partition = list[list[str]]


def as_is(spine: Spine) -> Spine:
    return spine


def partition(spine: Spine, level: str) -> Partition:
    """Return the leaves of each geounit, geounits in the order of the spine."""
    codes = [code.decode() for code in spine.leaf.geocodes]
    starts = spine.leaf_starts(spine.index(level)).tolist()
    return [codes[a:b] for a, b in itertools.pairwise(starts)]


def unordered(groups: Partition) -> Partition:
    return sorted(sorted(leaves) for leaves in groups)


def grouped(frame: Frame, key: dict[str, object]) -> Partition:
    """Group the blocks by a key, groups in the order of the key."""
    found: dict[object, list[str]] = {}
    for code in texts(frame.geocodes):
        found.setdefault(key[code], []).append(code)
    return [found[k] for k in sorted(found)]  # type: ignore[type-var]


def texts(codes: np.ndarray) -> list[str]:
    return [code.decode() for code in codes]


def area_of(frame: Frame, category: str) -> dict[str, str]:
    return dict(zip(texts(frame.geocodes), texts(frame.codes(category)), strict=True))


def check_spine(spine: Spine, frame: Frame) -> None:
    """Steps only regroup leaves: each is there once, levels nest, codes are unique, no geounit is empty."""
    assert sorted(texts(spine.leaf.geocodes)) == texts(frame.geocodes)
    assert np.array_equal(frame.geocodes[spine.leaf_order], spine.leaf.geocodes)
    for number, level in enumerate(spine.levels):
        assert len(set(level.geocodes.tolist())) == len(level), level.name
        assert np.all(np.diff(spine.leaf_starts(number)) > 0)
        if number:
            assert set(level.parent.tolist()) == set(range(len(spine.levels[number - 1])))
        if level.official:
            official = grouped(frame, area_of(frame, level.name))
            assert unordered(partition(spine, level.name)) == unordered(official), level.name


def in_production_aian(code: str) -> bool:
    """The kinds of areas of the 2020 run by their ranges: all but 8000-8999 (TDSA) and 9500-9998 (SDTSA)."""
    return len(code) == 4 and (1 <= int(code) < 8000 or 9000 <= int(code) < 9500)


# Block groups -----------------------------------------------------------------------------------------------


def literal_block_groups(
    blocks: list[str], key: dict[str, str], cutoff: int, *, off_by_one: bool
) -> Partition:
    """Production, item by item: keys in lexicographic order, blocks in order of geocode, one tract.

    ``cutoff = int(sqrt(n) + fanout_cutoff)``; production opened a new group when the current one held *more*
    than that, and the paper's groups hold at most that.
    """
    largest = int(sqrt(len(blocks)) + cutoff)
    groups = []
    for name in sorted({key[block] for block in blocks}):
        current: list[str] = []
        for block in sorted(block for block in blocks if key[block] == name):
            full = len(current) > largest if off_by_one else len(current) >= largest
            if full:
                groups.append(current)
                current = []
            current.append(block)
        groups.append(current)
    return groups


@each("seed", SEEDS)
@each("off_by_one", [False, True])
@each("entities", [("place",), ("sduni", "block_group"), ("cousub", "aianhh", "place")])
def test_block_groups_are_those_of_the_literal_description(
    seed: int, off_by_one: bool, entities: tuple[str, ...]
) -> None:
    frame, cutoff = random_frame(seed), 1 + seed % 3
    step = SpineStep("block_groups", fanout_cutoff=cutoff, off_by_one=off_by_one, entities=entities)
    spine = build_spine(frame, Recipe((step,)), as_is)
    columns = [area_of(frame, entity) for entity in entities]
    # Padded with blanks, joined codes sort as tuples of codes do: no area comes first.
    key = {code: "".join(f"{column[code]:12}" for column in columns) for code in texts(frame.geocodes)}
    wanted = [
        group
        for blocks in grouped(frame, area_of(frame, "tract"))
        for group in literal_block_groups(blocks, key, cutoff, off_by_one=off_by_one)
    ]
    assert partition(spine, "block_group") == wanted
    check_spine(spine, frame)
    assert spine.names == ("state", "county", "tract", "block_group", "block")
    assert [level.official for level in spine.levels] == [True, True, True, False, True]


def production_key(frame: Frame, *, facilities: bool) -> dict[str, str]:
    """The entities of the 2020 run: MCD or place, AIAN area, kinds of group quarters that are there."""
    place, cousub, aian = (area_of(frame, name) for name in ("place", "cousub", "aianhh"))
    key = {}
    for i, code in enumerate(texts(frame.geocodes)):
        inside = in_production_aian(aian[code])
        strong = code[:2] in STRONG_MCD_STATES
        area = cousub[code] if strong and not inside else place[code]
        pattern = "".join("01"[int(frame.units[f"gq{k}"][i]) > 0] for k in range(1, 8))
        key[code] = f"{area:5}|{aian[code] if inside else '':4}|{pattern if facilities else '0000000'}"
    return key


@each("seed", SEEDS)
@each("facilities", [True, False])
@each("divided", [True, False])
def test_the_production_rule(seed: int, facilities: bool, divided: bool) -> None:
    frame = random_frame(seed)
    made = SpineStep("block_groups", fanout_cutoff=2, off_by_one=True)
    recipe = Recipe((SpineStep("aian"), made) if divided else (made,), facilities=facilities)
    spine = build_spine(frame, recipe, as_is)
    key, aian = production_key(frame, facilities=facilities), area_of(frame, "aianhh")
    tract = {
        code: (f"{int(in_production_aian(aian[code]))}" if divided else "") + code[:11]
        for code in texts(frame.geocodes)
    }
    wanted = [
        group
        for blocks in grouped(frame, tract)
        for group in literal_block_groups(blocks, key, 2, off_by_one=True)
    ]
    assert unordered(partition(spine, "block_group")) == unordered(wanted)
    check_spine(spine, frame)


def test_the_strong_mcd_states_are_the_twelve_of_the_paper() -> None:
    names = {
        "09": "Connecticut", "23": "Maine", "25": "Massachusetts", "26": "Michigan", "27": "Minnesota",
        "33": "New Hampshire", "34": "New Jersey", "36": "New York", "42": "Pennsylvania",
        "44": "Rhode Island", "50": "Vermont", "55": "Wisconsin",
    }  # fmt: skip
    assert set(STRONG_MCD_STATES) == set(names)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_the_bound_and_never_mix_keys(seed: int) -> None:
    frame, cutoff = random_frame(seed, most_blocks=40), 1 + seed % 4
    place = area_of(frame, "place")
    partitions = official_partitions(frame)
    for off_by_one in (False, True):
        made = block_groups(
            partitions, combine([frame.codes("place")]), fanout_cutoff=cutoff, off_by_one=off_by_one
        ).spine()
        in_tract = Counter(code[:11] for code in place)
        for group in partition(made, "block_group"):
            assert len({(code[:11], place[code]) for code in group}) == 1
            assert len(group) <= isqrt(in_tract[group[0][:11]]) + cutoff + off_by_one
        # As few groups as the bound allows: all of a key's groups but the last are full.
        sizes: dict[tuple[str, str], list[int]] = {}
        for group in partition(made, "block_group"):
            sizes.setdefault((group[0][:11], place[group[0]]), []).append(len(group))
        for (tract, _), found in sizes.items():
            assert set(found[:-1]) <= {isqrt(in_tract[tract]) + cutoff + off_by_one}


def test_a_hundred_alike_blocks_fall_into_groups_of_eleven_and_of_twelve_as_in_production() -> None:
    codes = np.array([f"44001000100{1000 + i}" for i in range(100)], dtype="S15")
    frame = Frame(codes, {"county": codes.astype("S5"), "tract": codes.astype("S11")}, "block")
    key = np.zeros(100, dtype=np.int64)
    for off_by_one, sizes in ((False, [11] * 9 + [1]), (True, [12] * 8 + [4])):
        spine = block_groups(official_partitions(frame), key, fanout_cutoff=1, off_by_one=off_by_one).spine()
        assert [len(group) for group in partition(spine, "block_group")] == sizes


# Division into parts ----------------------------------------------------------------------------------------


@each("seed", SEEDS)
@each("root", ["us", "state"])
@each("codes", [None, ("8000-8999", "2415"), ("0010",)])
def test_the_aian_spine_divides_the_state_and_all_below(
    seed: int, root: str, codes: tuple[str, ...] | None
) -> None:
    frame = random_frame(seed, root=root)
    aian = area_of(frame, "aianhh")
    chosen = {None: in_production_aian, ("0010",): lambda code: code == "0010"}.get(
        codes, lambda code: code == "2415" or code.startswith("8")
    )
    inside = {code: bool(chosen(area)) for code, area in aian.items()}
    recipe = Recipe((SpineStep("aian", codes=codes),))
    if codes is not None and not any(inside.values()):
        with pytest.raises(ConfigError, match="no leaf of the input lies in the codes"):
            build_spine(frame, recipe, as_is)
        return
    spine = build_spine(frame, recipe, as_is)
    check_spine(spine, frame)
    width = {"state": 2, "county": 5, "tract": 11, "block_group": 12}
    for level in spine.levels:
        if level.name not in width:
            assert level.official
            assert level.whole is None
            continue
        w = width[level.name]
        mark = {code: f"{int(inside[code])}{code[:w]}" for code in inside}
        assert not level.official
        assert sorted(texts(level.geocodes)) == sorted(set(mark.values()))
        for code, leaves in zip(texts(level.geocodes), partition(spine, level.name), strict=True):
            assert leaves == sorted(leaf for leaf in mark if mark[leaf] == code)
        if level.name == "state":
            assert level.whole is not None
            states = [code[1:] for code in texts(level.geocodes)]
            # Parts of a state lie side by side, and each state is numbered once.
            assert states == [sorted(set(states))[k] for k in level.whole]
        else:
            assert level.whole is None


@pytest.mark.parametrize("seed", range(8))
def test_any_areas_and_any_level_may_divide(seed: int) -> None:
    frame = random_frame(seed)
    spine = build_spine(frame, Recipe((SpineStep("aian", areas="place", level="tract"),)), as_is)
    check_spine(spine, frame)
    place = area_of(frame, "place")
    parts = {(code[:11], place[code] != "") for code in place}
    assert {(g[0][:11], place[g[0]] != "") for g in partition(spine, "tract")} == parts
    assert len(spine.levels[spine.index("tract")]) == len(parts)
    assert [level.official for level in spine.levels] == [True, True, False, False, True]


def test_a_spine_is_divided_once_and_never_at_the_leaves() -> None:
    frame = random_frame(1)
    inside = frame.codes("aianhh") != b""
    once = divide_into_parts(official_partitions(frame), "state", inside)
    with pytest.raises(ConfigError, match="divided into parts only once"):
        divide_into_parts(once, "county", inside)
    with pytest.raises(ConfigError, match="leaf level"):
        divide_into_parts(official_partitions(frame), "block", inside)
    with pytest.raises(ConfigError, match="needs the level 'parish'"):
        divide_into_parts(official_partitions(frame), "parish", inside)


def test_an_empty_part_does_not_exist_and_an_area_without_people_works() -> None:
    frame = random_frame(1)
    for inside in (np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool)):
        spine = divide_into_parts(official_partitions(frame), "state", inside).spine()
        check_spine(spine, frame)
        assert len(spine.levels[0]) == len(set(frame.codes("state").tolist()))
    empty = Frame(
        frame.geocodes,
        frame.levels,
        "block",
        {name: np.where(frame.codes("aianhh") != b"", 0, counts) for name, counts in frame.units.items()},
        frame.entities,
    )
    check_spine(build_spine(empty, Recipe((SpineStep("aian"), SpineStep("block_groups"))), as_is), empty)


def test_ranges_that_are_none() -> None:
    for bad in ["", "1-2-3", "4799-0001", "0001-479", "-0001", "0001-", " - ", "0001--4799"]:
        with pytest.raises(ConfigError, match="is no range of codes"):
            in_ranges(np.array([b"0001"]), [bad])


def test_ranges_include_their_ends_and_not_the_empty_code() -> None:
    codes = np.array([b"", b"0000", b"0001", b"4799", b"4800", b"479", b"47990", b"9999"])
    assert in_ranges(codes, ["0001-4799"]).tolist() == [False, False, True, True] + [False] * 4
    assert in_ranges(codes, ["479", " 9999 "]).tolist() == [False] * 5 + [True, False, True]
    assert not in_ranges(np.array([b"", b""]), ["0001-4799"]).any()


# Split, intersect, group ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_split_divides_a_level_and_those_below(seed: int) -> None:
    frame = random_frame(seed)
    step = SpineStep("split", level="tract", name="tract_subset", entities=("place", "sduni"))
    spine = build_spine(frame, Recipe((step,)), as_is)
    check_spine(spine, frame)
    place, school = area_of(frame, "place"), area_of(frame, "sduni")
    assert spine.names == ("state", "county", "tract_subset", "block_group", "block")
    for name, width in (("tract_subset", 11), ("block_group", 12)):
        wanted = grouped(frame, {code: (code[:width], place[code], school[code]) for code in place})
        assert unordered(partition(spine, name)) == unordered(wanted)


def test_split_without_entities_only_renames() -> None:
    frame = random_frame(3)
    spine = build_spine(frame, Recipe((SpineStep("split", level="tract", name="zone"),)), as_is)
    assert spine.names == ("state", "county", "zone", "block_group", "block")
    for level, other in zip(spine.levels, standard_spine(frame).levels, strict=True):
        assert np.array_equal(level.geocodes, other.geocodes)
        assert level.official


@pytest.mark.parametrize("seed", SEEDS)
def test_intersect_inserts_a_level_that_nests(seed: int) -> None:
    frame = random_frame(seed)
    step = SpineStep("intersect", level="tract", name="prim", entities=("place",))
    spine = build_spine(frame, Recipe((step,)), as_is)
    check_spine(spine, frame)
    place = area_of(frame, "place")
    assert spine.names == ("state", "county", "prim", "tract", "block_group", "block")
    prims = grouped(frame, {code: (code[:5], place[code]) for code in place})
    assert unordered(partition(spine, "prim")) == unordered(prims)
    for name, width in (("tract", 11), ("block_group", 12)):
        wanted = grouped(frame, {code: (code[:width], place[code]) for code in place})
        assert unordered(partition(spine, name)) == unordered(wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_group_joins_geounits_that_hold_the_same_areas(seed: int) -> None:
    frame, cutoff = random_frame(seed), 1
    step = SpineStep("group", level="tract", name="tract_group", entities=("place",), fanout_cutoff=cutoff)
    spine = build_spine(frame, Recipe((step,)), as_is)
    check_spine(spine, frame)
    place = area_of(frame, "place")
    assert spine.names == ("state", "county", "tract_group", "tract", "block_group", "block")
    tracts = grouped(frame, {code: code[:11] for code in place})
    held = {leaves[0][:11]: tuple(sorted({place[leaf] for leaf in leaves})) for leaves in tracts}
    wanted = []
    for county in sorted({tract[:5] for tract in held}):
        mine = sorted(tract for tract in held if tract[:5] == county)
        for kind in sorted({held[tract] for tract in mine}):
            alike = [tract for tract in mine if held[tract] == kind]
            largest = isqrt(len(mine)) + cutoff
            wanted += [alike[i : i + largest] for i in range(0, len(alike), largest)]
    found = [sorted({leaf[:11] for leaf in leaves}) for leaves in partition(spine, "tract_group")]
    assert found == wanted


@pytest.mark.parametrize("seed", seeds(12))
def test_names_and_order_of_areas_do_not_matter(seed: int) -> None:
    """Renaming areas by a random bijection, or giving categories in another order, regroups nothing."""
    frame = random_frame(seed)
    rng = np.random.default_rng(seed)
    entities = {}
    for name, codes in frame.entities.items():
        values = sorted(set(codes.tolist()))
        new = [f"{k:05d}".encode() for k in rng.permutation(len(values))]
        entities[name] = np.array([new[values.index(code)] for code in codes.tolist()])
    other = Frame(frame.geocodes, frame.levels, "block", frame.units, entities)
    found = []
    for at, names in (
        (frame, ("place", "cousub")),
        (other, ("place", "cousub")),
        (frame, ("cousub", "place")),
    ):
        recipe = Recipe(
            (
                SpineStep("intersect", level="tract", name="prim", entities=names[:1]),
                SpineStep("split", level="tract", entities=names),
                SpineStep("block_groups", fanout_cutoff=1, entities=names),
            )
        )
        spine = build_spine(at, recipe, as_is)
        check_spine(spine, at)
        found.append([unordered(partition(spine, name)) for name in spine.names])
    assert found[0][3:] == found[1][3:] == found[2][3:]
    assert found[0][2] == found[1][2]


def test_steps_that_do_not_fit() -> None:
    frame = random_frame(1)
    partitions = official_partitions(frame)
    key = combine([frame.codes("place")])
    with pytest.raises(ConfigError, match="topmost level"):
        group_level(partitions, "state", key, "region", fanout_cutoff=1)
    with pytest.raises(ConfigError, match="at least 1"):
        group_level(partitions, "tract", key, "zone", fanout_cutoff=0)
    with pytest.raises(ConfigError, match="leaf level"):
        split(partitions, "block", key)
    with pytest.raises(ConfigError, match="topmost level"):
        insert_intersections(partitions, "state", key, "zone")
    with pytest.raises(ConfigError, match="two levels would have the name"):
        group_level(partitions, "tract", key, "county", fanout_cutoff=1)


def test_official_levels_that_do_not_nest_are_named() -> None:
    codes = np.array([b"A1", b"A2", b"B1"])
    levels = {"region": np.array([b"N", b"S", b"S"]), "town": np.array([b"x", b"x", b"y"])}
    with pytest.raises(GeographyError, match="town: x lies in more than one parent") as caught:
        standard_spine(Frame(codes, levels, "ward"))
    assert caught.value.exit_code == 3


def nest(partitions: Partitions) -> Spine:
    return partitions.spine()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_sequences_of_steps_keep_the_leaves_and_nest(seed: int) -> None:
    frame = random_frame(seed, root="us" if seed % 2 else "state")
    rng = np.random.default_rng(seed)
    names = tuple(frame.entities)
    chosen: list[SpineStep] = []
    if rng.random() < 0.5:
        chosen.append(SpineStep("aian"))
    for number in range(int(rng.integers(1, 5))):
        level = str(rng.choice(["county", "tract", "block_group"]))
        areas = tuple(rng.choice(names, size=int(rng.integers(1, 3)), replace=False).tolist())
        kind = str(rng.choice(["split", "intersect", "group"]))
        name = None if kind == "split" else f"made{number}"
        chosen.append(SpineStep(kind, level=level, name=name, entities=areas, fanout_cutoff=1))
    chosen.append(SpineStep("block_groups", name=str(rng.choice(["block_group", "custom"])), fanout_cutoff=1))
    spine = build_spine(frame, Recipe(tuple(chosen), entities=("place",)), as_is)
    check_spine(spine, frame)
    again = build_spine(frame, Recipe(tuple(chosen), entities=("place",)), as_is)
    assert spine.digest() == again.digest()


# What invariants rest on ------------------------------------------------------------------------------------


def two_states() -> Frame:
    """Two states of two blocks, the second one in an AIAN area; a district parts the first state."""
    codes = np.array([b"010010000011000", b"010010000011001", b"020010000011000", b"020010000011001"])
    areas = np.array([b"", b"0010", b"", b"0010"])
    districts = np.array([b"1", b"2", b"2", b"2"])
    levels = {
        "us": np.full(4, b"1"),
        "state": codes.astype("S2"),
        "county": codes.astype("S5"),
        "tract": codes.astype("S11"),
    }
    return Frame(codes, levels, "block", {}, {"aianhh": areas, "cd": districts})


@pytest.mark.parametrize("kind", ["split", "intersect", "group"])
def test_parts_of_one_state_in_two_geounits_above_share_no_total(kind: str) -> None:
    frame = two_states()
    level = "us" if kind == "split" else "state"
    name = None if kind == "split" else "region"
    more = SpineStep(kind, level=level, name=name, entities=("cd",), fanout_cutoff=1)
    spine = build_spine(frame, Recipe((SpineStep("aian"), more)), as_is)
    check_spine(spine, frame)
    assert len(spine.levels[spine.index("state") - 1]) > 1
    # Parts of the first state lie in two geounits above: nothing says that they hold a total together.
    assert spine.levels[spine.index("state")].whole is None


def test_parts_of_what_is_no_official_geounit_are_parts_of_nothing() -> None:
    # What parts hold together is published exactly: they must be parts of the declared geounit.
    frame = two_states()
    first = SpineStep("split", level="state", entities=("cd",))
    with pytest.raises(ConfigError, match="before the steps that make or divide 'state'"):
        build_spine(frame, Recipe((first, SpineStep("aian"))), as_is)


def test_an_own_hierarchy_whose_codes_look_like_those_of_parts() -> None:
    codes = np.array([b"a", b"b", b"c", b"d"])
    levels = {"all": np.full(4, b"1"), "town": np.array([b"A", b"A", b"A.1", b"A.2"])}
    frame = Frame(codes, levels, "ward", {}, {"place": np.array([b"x", b"y", b"x", b"y"])})
    spine = build_spine(frame, Recipe((SpineStep("split", level="town", entities=("place",)),)), as_is)
    check_spine(spine, frame)
    assert len(spine.levels[1]) == 4


def test_the_digest_tells_which_geounits_are_parts_of_one() -> None:
    frame = two_states()
    spine = build_spine(frame, Recipe((SpineStep("aian"),)), as_is)
    place = spine.index("state")
    level = spine.levels[place]
    other = replace(level, whole=np.array([0, 1, 1, 2]))
    levels = (*spine.levels[:place], other, *spine.levels[place + 1 :])
    assert replace(spine, levels=levels).digest() != spine.digest()
