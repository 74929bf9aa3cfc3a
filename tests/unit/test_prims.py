"""The spine of the DHC against a literal twin over blocks, on synthetic land and on Rhode Island."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from support.data import shared_data
from support.random_land import random_frame
from support.seeds import seeds

from opendas.files.geography_files import read_frame, write_frame
from opendas.geography.frame import Frame, official_codes
from opendas.geography.off_spine_distance import entity_distances
from opendas.geography.prims import prim_columns
from opendas.geography.recipe import NAMED_SPINES, STRONG_MCD_STATES, Recipe, build_spine, in_ranges
from opendas.geography.recipe import PRODUCTION_AIAN as AIAN
from opendas.geography.spine import Spine
from opendas.runs.context.run import load
from opendas.schema.pl94 import pl94_persons

LEVELS = ("state", "county", "prim", "tract_subset_group", "tract_subset", "block_group", "block")


def built(frame: Frame) -> Spine:
    return build_spine(frame, Recipe(NAMED_SPINES["dhc"]), lambda spine: spine)


def literal(frame: Frame) -> dict[str, list[set[str]]]:
    """Section 4.1 of the facts, block by block; the blocks of each geounit."""
    names = [code.decode() for code in frame.geocodes]
    area = {name: [c.decode() for c in codes] for name, codes in frame.entities.items()}
    inside = in_ranges(frame.entities["aianhh"], AIAN).tolist()
    mcd, place = (frame.functional_status.get(kind, {}) for kind in ("cousub", "place"))
    governed = set()
    for i, block in enumerate(names):
        code = area["cousub"][i]
        if mcd[code] in "ABC" if code in mcd else bool(code) and block[:2] in STRONG_MCD_STATES:
            governed.add(block[:5])
    prim, subset, key = {}, {}, {}
    for i, block in enumerate(names):
        a = area["cousub"][i] if block[:5] in governed else ""
        b = area["place"][i] if place.get(area["place"][i], "A") in "ABF" else ""
        prim[block] = (inside[i], block[:5], *(("", "") if block[:2] == "72" else (a, b)))
        subset[block] = (*prim[block], block[:11])
        quarters = tuple(frame.units[f"gq{k}"][i] > 0 for k in range(1, 8))
        districts = tuple(area[k][i] for k in ("sduni", "sdsec", "sdelm") if k in area)
        key[block] = (area["aianhh"][i] if inside[i] else "", quarters, districts, block[:12])
    groups = chunks(sorted(set(subset.values())), lambda s: s[:4], lambda s: s[:4])
    blocks = chunks(names, lambda n: subset[n], lambda n: (subset[n], key[n]))
    return {
        "prim": by(names, lambda n: prim[n]),
        "tract_subset": by(names, lambda n: subset[n]),
        "tract_subset_group": [{n for n in names if subset[n] in group} for group in map(set, groups)],
        "block_group": [set(group) for group in blocks],
    }


def by(names, key):
    found = defaultdict(set)
    for name in names:
        found[key(name)].add(name)
    return list(found.values())


def chunks(items, parent, alike):
    """Items that are alike, in order, at most ``int(sqrt(k) + 13)`` of the k of a parent to a group."""
    members = Counter(map(parent, items))
    found = defaultdict(list)
    for item in items:
        found[alike(item)].append(item)
    return [
        run[start : start + size]
        for run in found.values()
        for size in [int(sqrt(members[parent(run[0])]) + 12 + 1)]
        for start in range(0, len(run), size)
    ]


def check(spine: Spine, frame: Frame) -> None:
    assert spine.names[-len(LEVELS) :] == LEVELS
    names = np.array([code.decode() for code in spine.leaf.geocodes])
    for level, wanted in literal(frame).items():
        parts = np.split(names, spine.leaf_starts(spine.index(level))[1:-1])
        assert sorted(map(sorted, parts)) == sorted(map(sorted, wanted)), level


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("known", [False, True])
def test_the_spine_is_that_of_the_literal_description(seed: int, known: bool) -> None:
    frame = random_frame(seed, most_blocks=40)
    if known:
        statuses = {"cousub": {"00100": "A", "10000": "F"}, "place": {"00100": "S", "00200": "F"}}
        frame = replace(frame, functional_status=statuses)
    check(built(frame), frame)


def test_long_runs_are_cut() -> None:
    codes = [f"72001{tract:06d}1{block:03d}" for tract in range(1, 60) for block in range(3)]
    geocodes = np.array(codes, dtype="S15")
    none = np.zeros(len(codes), dtype="S5")
    areas = dict.fromkeys(("place", "cousub", "aianhh", "sduni"), none)
    areas["place"] = np.array([b"72001", b"72002"] * len(codes))[: len(codes)]
    units = {f"gq{k}": np.zeros(len(codes), dtype=np.int64) for k in range(1, 8)}
    frame = Frame(geocodes, official_codes(geocodes, "state"), "block", units, areas)
    spine = built(frame)
    check(spine, frame)
    assert len(spine.levels[spine.index("prim")]) == 1, "in Puerto Rico a prim is a county"
    sizes = np.diff(spine.child_starts(spine.index("tract_subset_group")))
    assert sizes.tolist() == [20, 20, 19]


def test_places_that_always_count() -> None:
    frame = random_frame(1)
    place = np.full(len(frame), b"1150000")
    frame = replace(
        frame, entities={**frame.entities, "place": place}, functional_status={"place": {"1150000": "N"}}
    )
    found = prim_columns(frame, frame.entities["cousub"], place, np.ones(len(frame), dtype=bool))
    assert set(found[1].tolist()) == {b"1150000"}


def test_detailed_types_of_group_quarters_do_not_divide_block_groups() -> None:
    frame = random_frame(3, most_blocks=40)
    detailed = {f"gq{code}": np.arange(len(frame)) % 2 for code in (101, 997)}
    finer = replace(frame, units={**frame.units, **detailed})
    for name in ("dhc", "optimized"):
        recipe = Recipe(NAMED_SPINES[name])
        one, other = (build_spine(land, recipe, lambda spine: spine) for land in (frame, finer))
        assert one.digest() == other.digest(), name


def test_a_frame_on_file_gives_the_same_spine(tmp_path: Path) -> None:
    """Statuses are not those that the rule assumes without them, so that losing them would show."""
    frame = random_frame(2, most_blocks=40)
    places = {code.decode(): "S" for code in np.unique(frame.entities["place"]) if code}
    known = replace(frame, functional_status={"place": places, "cousub": {}})
    assert built(known).digest() != built(frame).digest()
    write_frame(tmp_path / "frame.parquet", known, pl94_persons())
    again = read_frame(tmp_path / "frame.parquet")
    assert again.functional_status == known.functional_status
    assert built(again).digest() == built(known).digest()


def test_rhode_island(tmp_path: Path) -> None:
    archive = shared_data("pl94_2010_ri/ri2010.pl.zip")
    (tmp_path / "run.toml").write_text(
        f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2010"\npath = "{archive}"\n'
        '[geography]\nspine = "dhc"\n[budget]\npreset = "pr2020-persons"\n'
        'geolevels = { state = "1/10", county = "1/10", prim = "1/10", tract_subset_group = "1/10", '
        'tract_subset = "2/10", block_group = "2/10", block = "2/10" }\n'
    )
    run = load(tmp_path / "run.toml")
    frame = run.frame
    status = frame.functional_status
    assert Counter(status["place"].values()) == {"S": 26, "A": 8}
    assert Counter(status["cousub"].values()) == {"A": 31, "F": 9}
    check(run.spine, frame)
    assert entity_distances(run.spine, frame.entities["cousub"], "cousub").mean < 1.1
    prim = run.spine.index("prim")
    label = np.empty(len(frame), dtype=np.int64)
    starts = run.spine.leaf_starts(prim)
    label[run.spine.leaf_order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    government = [c for c, s in status["place"].items() if s in "ABF"]
    for kind, codes in (("place", government), ("cousub", list(status["cousub"]))):
        for code in codes:
            within = frame.entities[kind] == code.encode()
            assert not set(label[within]) & set(label[~within]), (kind, code)
