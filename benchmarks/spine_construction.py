"""The whole construction of a state's spine, on synthetic states of growing size.

    OMP_NUM_THREADS=1 python benchmarks/spine_construction.py [--blocks 10000 100000 900000] [--json FILE]

A state the size of Texas at 900,000 blocks: counties, tracts, places and reservations in the numbers of such
a state, of uneven size, with ragged borders. Every size runs in a process of its own, on one core: processor
seconds (and wall-clock seconds, which other work on the machine lengthens), and the largest resident set, the
synthetic state included. Steps:

- levels: the official levels from the geocodes of the blocks
- construction: the AIAN division and the optimised block groups by the production rule, nested and in order
- bypass: only children give their share to their parents, and the shares along all paths are checked
- distances: of every entity category, from the official spine and from the new one
- obvious: construction and bypass as published, in plain Python, county by county and tract by tract with
  dictionaries; the block groups must be the same ones
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from math import isqrt
from pathlib import Path

import numpy as np

from opendas.budget.presets import preset
from opendas.demo.land import LARGE_STATE, make_land
from opendas.demo.people import make_homes
from opendas.geography.bypass import bypass_only_children
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.geography.recipe import PRODUCTION_AIAN, Recipe, SpineStep, build_spine, in_ranges
from opendas.geography.spine import Spine
from opendas.geography.summary import summarise

SHARES = preset("pr2020-persons").geolevels
STEPS = (SpineStep("aian"), SpineStep("block_groups", off_by_one=True), SpineStep("bypass"))
FANOUT_CUTOFF = 12


def made_frame(blocks: int, seed: int = 1) -> Frame:
    """Make a state up; every third block has no homes, but all are leaves."""
    rng = np.random.default_rng([seed, blocks])
    land = make_land(blocks, rng, LARGE_STATE)
    facilities = make_homes(land.group, rng).facilities
    units = {name: facilities[:, k] for k, name in enumerate(GQ_COLUMNS)}
    return Frame(land.geocodes, official_codes(land.geocodes, "state"), "block", units, land.entities)


def obvious(frame: Frame) -> tuple[list[list[str]], int]:
    """Build block groups and bypass as the published code does, without its scans of lists.

    Returns
    -------
    (list of list of str, int)
        Blocks of each block group; and the number of geounits whose share moved to their parent.
    """
    aian = in_ranges(frame.entities["aianhh"], PRODUCTION_AIAN).tolist()
    place, area = ([code.decode() for code in frame.entities[name].tolist()] for name in ("place", "aianhh"))
    present = np.stack([frame.units[name] > 0 for name in GQ_COLUMNS], axis=1).tolist()
    counties = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for k, geocode in enumerate(code.decode() for code in frame.geocodes.tolist()):
        pattern = "".join("1" if there else "0" for there in present[k])
        key = (place[k], area[k] if aian[k] else "9999", pattern)
        counties[aian[k], geocode[:5]][geocode[:11]][key].append(geocode)
    children, plb, groups = defaultdict(list), {}, []
    levels = {level: [] for level in SHARES}

    def add(level, node, parent):
        levels[level].append(node)
        plb[node] = SHARES[level]
        children[parent].append(node)

    for part, county in sorted(counties):
        if ("state", part) not in plb:
            add("state", ("state", part), None)
        add("county", (part, county), ("state", part))
        for tract, by_key in sorted(counties[part, county].items()):
            add("tract", (part, tract), (part, county))
            cutoff = isqrt(sum(map(len, by_key.values()))) + FANOUT_CUTOFF
            for _, blocks in sorted(by_key.items()):
                current = []
                for block in blocks:
                    if not current or len(current) > cutoff:
                        current = []
                        groups.append(current)
                        add("block_group", (part, tract, len(groups)), (part, tract))
                    current.append(block)
                    add("block", block, (part, tract, len(groups)))
    moved = 0
    for level in ("block_group", "tract", "county", "state"):
        for node in levels[level]:
            if len(children[node]) == 1:
                child = children[node][0]
                plb[node], plb[child] = plb[node] + plb[child], Fraction(0)
                moved += 1
    return groups, moved


def same(spine: Spine, frame: Frame, groups: list[list[str]], moved: int) -> bool:
    """Return whether a spine has these block groups, and as many geounits without a share."""
    starts = spine.leaf_starts(spine.index("block_group"))
    ours = np.split(frame.geocodes[spine.leaf_order], starts[1:-1])
    if {g[0].encode(): len(g) for g in groups} != {bytes(g[0]): len(g) for g in ours}:
        return False
    first = {block.encode(): g[0].encode() for g in groups for block in g}
    if any(first[block] != g[0] for g in ours for block in g.tolist()):
        return False
    emptied = [0 if s is None or s.multiples[0] else int((s.which == 0).sum()) for s in spine.shares]
    return sum(emptied) == moved


@contextmanager
def clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the processor time of a step to `seconds`."""
    start = time.process_time()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.process_time() - start


def construct(frame: Frame, seconds: dict[str, float]) -> Spine:
    """Build the spine, timing its steps."""

    def finish(spine: Spine) -> Spine:
        with clock(seconds, "bypass"):
            return bypass_only_children(spine, [SHARES[name] for name in spine.names])

    with clock(seconds, "construction"):
        spine = build_spine(frame, Recipe(STEPS), finish)
    seconds["construction"] -= seconds["bypass"]
    return spine


def measure(blocks: int) -> dict[str, object]:
    """Build everything for one size, once."""
    seconds: dict[str, float] = {}
    with clock(seconds, "made"):
        frame = made_frame(blocks)
    start = time.perf_counter()
    with clock(seconds, "levels"):
        frame = Frame(
            frame.geocodes, official_codes(frame.geocodes, "state"), "block", frame.units, frame.entities
        )
    spine = construct(frame, seconds)
    with clock(seconds, "distances"):
        summary = summarise(spine, frame)
    wall = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    with clock(seconds, "obvious"):
        groups, moved = obvious(frame)
    if not same(spine, frame, groups, moved):
        raise SystemExit(f"{blocks:,} blocks: the plain Python spine is another one")
    return {
        "blocks": blocks,
        "seconds": seconds,
        "total": sum(seconds[step] for step in ("levels", "construction", "bypass", "distances")),
        "ratio": seconds["obvious"] / (seconds["levels"] + seconds["construction"] + seconds["bypass"]),
        "wall": wall,
        "peak_mb": peak,
        "geounits": {level.geolevel: level.geounits for level in summary.levels},
        "bypassed": moved,
        "distances": {
            entity.category: (entity.count, entity.standard_mean, entity.mean_distance)
            for entity in summary.entities
        },
    }


def in_own_process(blocks: int) -> dict[str, object]:
    """Run one size in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, __file__, "--one", str(blocks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(found.stdout)


def show(row: dict[str, object]) -> None:
    """Print one size."""
    seconds = row["seconds"]
    steps = "  ".join(
        f"{name} {seconds[name]:.2f}" for name in ("levels", "construction", "bypass", "distances")
    )
    print(
        f"{row['blocks']:>9,} blocks: {row['total']:.2f} s ({steps}), wall {row['wall']:.1f} s, "
        f"{row['peak_mb']:.0f} MB; obvious {seconds['obvious']:.2f} s, {row['ratio']:.1f} times; "
        f"made in {seconds['made']:.2f} s"
    )
    print("          " + ", ".join(f"{count:,} {level}" for level, count in row["geounits"].items()))
    print(
        "          mean distance before and after: "
        + ", ".join(f"{name} {a:.1f} {b:.1f} ({n:,})" for name, (n, a, b) in row["distances"].items()),
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", nargs="+", type=int, default=[10_000, 100_000, 900_000])
    parser.add_argument("--json", type=Path, default=None, help="also write the rows to a file")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        json.dump(measure(given.one), sys.stdout)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one core used")
    rows = []
    for blocks in given.blocks:
        rows.append(in_own_process(blocks))
        show(rows[-1])
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
