"""Spines: distances of entities and tract groups, on synthetic land and on Rhode Island.

    OMP_NUM_THREADS=1 python benchmarks/spines.py PART... [--pl94 ri2010.pl.zip] [--json FILE]

Parts: distance, tract-groups. Times are wall-clock seconds on one core, least of three for `distance`, one
run after compilation for `tract-groups`.

distance: synthetic land of 10,000 to 1,000,000 blocks, one entity for every 100 blocks, each a run of blocks
with
every tenth block given to a random entity. opendas = entity_distances, from the codes of the blocks; naive =
the recursion over the whole tree for one entity after another, from 20 entities, times their number.

tract-groups: synthetic counties, tracts of 16 blocks on a square grid in rows, entities that are cells around
random centres (towns of two sizes that cover the county, places that cover some of it). literal = Algorithm 2
with all distances computed again for every pair, on the smallest county only. With --pl94, Rhode Island 2010
from its redistricting file as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np

from opendas.geography.block_groups import largest_group
from opendas.geography.off_spine_distance import (
    Memberships,
    SubtreeCosts,
    distances,
    entity_distances,
    memberships_of,
    parent_costs,
    subtree_costs,
)
from opendas.geography.spine import Spine, SpineLevel
from opendas.geography.tract_groups import METHODS, tract_groups_for


def made_spine(blocks, seed=0):
    """Return a spine of one state: about 8 blocks a block group, 4 of these a tract, 60 tracts a county."""
    rng = np.random.default_rng(seed)
    sizes = [max(1, blocks // 1920), max(1, blocks // 32), max(1, blocks // 8), blocks]
    levels = [SpineLevel("state", np.array([b"1"]), np.zeros(1, dtype=np.int64))]
    for name, size in zip(("county", "tract", "block_group", "block"), sizes, strict=True):
        above = len(levels[-1])
        extra = np.sort(rng.integers(0, above, size=size - above))
        parent = np.sort(np.concatenate([np.arange(above), extra]))
        levels.append(SpineLevel(name, np.arange(size).astype("S8"), parent))
    return Spine(tuple(levels), rng.permutation(blocks), (None,) * 5)


def made_codes(blocks, entities, seed=1):
    """Return the entity of each leaf of the spine: runs, with every tenth block somewhere else."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(blocks, size=entities - 1, replace=False))
    number = np.searchsorted(ends, np.arange(blocks), side="right")
    other = rng.random(blocks) < 0.1
    number[other] = rng.integers(0, entities, size=int(other.sum()))
    return np.char.zfill(number.astype("S7"), 7)


def naive_distance(parents, inside):
    """Return one entity's distance by the recursion over every geounit."""
    c, rest = inside.astype(np.int64), 1 - inside.astype(np.int64)
    for parent in reversed(parents):
        sum_c = np.bincount(parent, c).astype(np.int64)
        sum_rest = np.bincount(parent, rest).astype(np.int64)
        c, rest = np.minimum(sum_c, 1 + sum_rest), np.minimum(sum_rest, 1 + sum_c)
    return int(c.sum())


def seconds(call, repeat):
    """Return the least wall-clock time of some calls, and the last result."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


def measure_distance(blocks):
    """Return one row: the distances of one entity for every 100 blocks."""
    entities = blocks // 100
    spine = made_spine(blocks)
    parents = [level.parent for level in spine.levels[1:]]
    in_order = made_codes(blocks, entities)
    codes = np.empty_like(in_order)
    codes[spine.leaf_order] = in_order
    took, found = seconds(lambda: entity_distances(spine, codes), 3)
    _, members = memberships_of(in_order)
    pairs_took, _ = seconds(lambda: distances(parents, blocks, members, entities), 3)
    sample = np.linspace(0, entities - 1, 20).astype(np.int64)
    naive, slow = seconds(lambda: [naive_distance(parents, in_order == found.codes[k]) for k in sample], 1)
    assert slow == found.distance[sample].tolist()
    naive *= entities / len(sample)
    return {
        "blocks": blocks,
        "entities": entities,
        "opendas_s": round(took, 4),
        "from_pairs_s": round(pairs_took, 4),
        "naive_s": round(naive, 2),
        "ratio": round(naive / took),
        "mean_distance": round(found.mean, 2),
    }


def part_distance(arguments):
    """Distances on 10,000, 100,000 and 1,000,000 blocks."""
    rows = []
    for blocks in (10_000, 100_000, 1_000_000):
        rows.append(measure_distance(blocks))
        show(rows[-1])
    return rows


def made_county(side, seed=0):
    """Return the parents of a county of `side` x `side` tracts of 16 blocks, and three entity columns."""
    rng = np.random.default_rng(seed)
    width = 4 * side
    row, column = np.divmod(np.arange(width * width), width)
    order = np.argsort((row // 4) * side + column // 4, kind="stable")
    columns = []
    tracts = side * side
    for cells, everywhere in ((tracts // 40, True), (tracts // 8, True), (tracts // 6, False)):
        cells = max(cells, 2)
        y, x = rng.random((2, cells)) * width
        reach = rng.gamma(2.0, 0.5, size=cells) * width / np.sqrt(cells) / 2
        far = (row[:, None] - y) ** 2 + (column[:, None] - x) ** 2 - reach**2
        nearest = far.argmin(axis=1)
        codes = np.char.zfill(nearest.astype("S5"), 5)
        if not everywhere:
            codes[far.min(axis=1) > -0.4 * reach[nearest] ** 2] = b""
        columns.append(codes[order])
    blocks = width * width
    parents = [np.zeros(tracts, dtype=np.int64), np.arange(blocks // 4) // 4, np.arange(blocks) // 4]
    return parents, columns


def all_pairs(columns):
    """Return the pairs of all categories, and the number of entities."""
    entity, leaf, count = [], [], 0
    for column in columns:
        codes, own = memberships_of(column)
        entity.append(own.entity + count)
        leaf.append(own.leaf)
        count += len(codes)
    return Memberships(np.concatenate(entity), np.concatenate(leaf)), count


def distances_with(parents, level, costs, count, group):
    """Return the distances with the groups as a level of the spine."""
    county = parents[level - 1]
    order = np.lexsort((group, county))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    moved = place[costs.geounit]
    rows = np.lexsort((moved, costs.entity))
    costs = SubtreeCosts(costs.entity[rows], moved[rows], costs.inside[rows], costs.outside[rows])
    new = np.concatenate([[True], np.diff(group[order]) != 0])
    costs = parent_costs(parent_costs(costs, np.cumsum(new) - 1), county[order][new])
    for parent in reversed(parents[: level - 1]):
        costs = parent_costs(costs, parent)
    result = np.zeros(count, dtype=np.int64)
    np.add.at(result, costs.entity, costs.inside)
    return result


def literal(parents, level, costs, count, cutoff=12):
    """Return the groups of Algorithm 2, all distances computed again for every pair."""
    county = parents[level - 1]
    group = np.arange(len(county))
    current = np.sort(distances_with(parents, level, costs, count, group))[::-1].tolist()
    changed = True
    while changed:
        changed = False
        for own in range(int(county[-1]) + 1):
            tracts = np.flatnonzero(county == own)
            for u in tracts:
                for v in tracts[tracts > u]:
                    if group[u] != u or group[v] != v:
                        continue
                    if np.sum((group == u) | (group == v)) > largest_group(len(tracts), cutoff):
                        continue
                    trial = np.where(group == v, u, group)
                    test = np.sort(distances_with(parents, level, costs, count, trial))[::-1].tolist()
                    if test <= current:
                        group, current, changed = trial, test, True
    return np.unique(group, return_inverse=True)[1]


def compare_methods(where, parents, level, columns, with_literal):
    """Return one row a method: groups, distances, seconds."""
    members, count = all_pairs(columns)
    costs = subtree_costs(parents, len(parents[-1]), members, level)
    rows = []
    for method in ("one_tract", *METHODS, *(["literal"] if with_literal else [])):
        if method == "one_tract":
            took, group = 0.0, np.arange(len(parents[level - 1]))
        elif method == "literal":
            took, group = seconds(lambda: literal(parents, level, costs, count), 1)
            assert np.array_equal(group, tract_groups_for(parents, level, columns, "greedy"))
        else:
            took, group = seconds(lambda m=method: tract_groups_for(parents, level, columns, m), 1)
        found = distances_with(parents, level, costs, count, group)
        rows.append(
            {
                "where": where,
                "tracts": len(group),
                "entities": count,
                "method": method,
                "groups": int(group.max()) + 1,
                "mean": round(float(found.mean()), 2),
                "max": int(found.max()),
                "seconds": round(took, 3),
            }
        )
        show(rows[-1])
    return rows


def part_tract_groups(arguments):
    """Methods side by side on synthetic counties and, where its file is given, on Rhode Island."""
    parents, columns = made_county(4)
    for method in METHODS:  # compile
        tract_groups_for(parents, 1, columns, method)
    rows = []
    for side in (10, 24, 50):
        parents, columns = made_county(side)
        rows += compare_methods("made", parents, 1, columns, with_literal=side == 10)
    if arguments.pl94:
        for categories in (("cousub",), ("place",), ("cousub", "place")):
            parents, columns = rhode_island(arguments.pl94, categories)
            where = "RI " + " + ".join(categories)
            rows += compare_methods(where, parents, 2, columns, with_literal=True)
    return rows


def rhode_island(path, categories):
    """Return the parents of the official spine, state at the top, and columns of entities."""
    from opendas.geography.partitions import standard_spine
    from opendas.readers import ReaderSpec, make_reader
    from opendas.schema.pl94 import pl94_persons

    frame = make_reader(ReaderSpec("pl94-2010", (path,), pl94_persons(), strict=False)).read().frame
    spine = standard_spine(frame)
    columns = [frame.entities[name][spine.leaf_order] for name in categories]
    return [level.parent for level in spine.levels[1:]], columns


def show(row):
    """Print one result."""
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


PARTS = {"distance": part_distance, "tract-groups": part_tract_groups}


def main():
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS), metavar="PART")
    parser.add_argument("--pl94", type=Path, help="the 2010 redistricting file of Rhode Island")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    results = {"machine": platform.platform(), "python": platform.python_version(), "parts": {}}
    for part in arguments.parts:
        print(f"{part}:")
        results["parts"][part] = PARTS[part](arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
