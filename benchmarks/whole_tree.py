"""Least squares over the whole tree: time a geounit, up, down and with all variances.

    OMP_NUM_THREADS=1 python benchmarks/whole_tree.py [--shape ri|large] [--repeats R] [--json FILE]

A synthetic tree with the number of geounits of Rhode Island (1, 5, 244, 1,800, 25,181), or with 250,000
blocks in
ten counties, the production persons product, the production budget of Puerto Rico, and group quarters in one
block of 50. Answers are drawn before the clock runs, as rounded normal numbers: neither drawing nor counting
is measured. Processor time of one thread, best of the repeats.

up: by county and then the top, with the statistics that estimation uses. everything: the whole tree up and
down, with estimates of all cells and the variances of all answers of all query groups. Memory is the peak of
what the passes allocate, in a run of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.engines.upward import BelowPart
from opendas.geography.frame import GQ_COLUMNS, Frame
from opendas.geography.spine import Spine, SpineLevel
from opendas.gls.downward import down_pass
from opendas.gls.model import TreeModel
from opendas.gls.upward import UpwardMessages, up_statistics, up_sweep
from opendas.intervals.rows import Rows
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.pl94 import pl94_persons

SHAPES = {"ri": (1, 5, 244, 1_800, 25_181), "large": (1, 10, 2_440, 18_000, 250_000)}
NAMES = ("state", "county", "tract", "block_group", "block")
NATION = 7_000_000
DRAWN = 3_000
"""Answers are drawn for so many geounits of a level, and used again: times do not depend on them."""


@dataclass
class Tree:
    """A synthetic tree with answers."""

    model: TreeModel
    answers: list[list[np.ndarray]]

    def full(self, level: int, first: int, geounits: int) -> list[np.ndarray]:
        """Return noisy answers of consecutive geounits."""
        values = self.answers[level]
        start = first % DRAWN
        if start + geounits <= DRAWN:
            return [v[start : start + geounits] for v in values]
        rows = (start + np.arange(geounits)) % DRAWN
        return [np.ascontiguousarray(v[rows]) for v in values]


def made_tree(shape: tuple[int, ...], seed: int = 0) -> Tree:
    """Make spine, frame, plan, constraints and answers."""
    rng = np.random.default_rng(seed)
    product = pl94_persons()
    levels = []
    parent = np.zeros(1, dtype=np.int64)
    for number, (name, size) in enumerate(zip(NAMES, shape, strict=True)):
        if number:
            above = shape[number - 1]
            parent = np.sort(np.concatenate([np.arange(above), rng.integers(0, above, size - above)]))
        codes = np.char.zfill(np.arange(size).astype("S9"), 9)
        levels.append(SpineLevel(name, codes, parent))
    spine = Spine(tuple(levels), np.arange(shape[-1]), (None,) * len(shape))
    units = {"hu": rng.integers(0, 40, shape[-1]) + 1}
    homes = rng.random(shape[-1]) < 0.02
    for column in GQ_COLUMNS:
        units[column] = (homes & (rng.random(shape[-1]) < 0.3)).astype(np.int64)
    frame = Frame(levels[-1].geocodes, {"state": np.full(shape[-1], b"1")}, "block", units)
    budget = resolve_budget(BudgetSpec(preset="pr2020-persons"), list(NAMES))
    plan = MeasurementPlan(product, spine, budget)
    total = np.array([[shape[-1] * 40]], dtype=np.int64)
    table: ConstraintTable = bound_table(product, frame, spine, {"total": total})
    answers = []
    for number, level in enumerate(plan.levels):
        count = DRAWN
        drawn = []
        for planned in level.queries:
            sd = plan.distribution(number, planned).variance ** 0.5
            noise = rng.normal(0.0, sd, (count, planned.query.size))
            drawn.append(
                np.rint(noise + shape[-1] / shape[number] * 40 / planned.query.size).astype(np.int64)
            )
        answers.append(drawn)
    return Tree(TreeModel.of_plan(plan, table), answers)


def counties(model: TreeModel) -> list[dict[int, tuple[int, int]]]:
    """Return the ranges of each county."""
    found = []
    for county in range(len(model.levels[1])):
        start, stop = county, county + 1
        ranges = {1: (start, stop)}
        for level in range(2, len(NAMES)):
            parent = model.levels[level].parent
            start, stop = (int(x) for x in np.searchsorted(parent, [start, stop]))
            ranges[level] = (start, stop)
        found.append(ranges)
    return found


def by_county(tree: Tree) -> UpwardMessages:
    """Go up, every county by itself and then the top, and return what is known of the nation."""
    model = tree.model
    parts = ((model.slice(ranges), ranges) for ranges in counties(model))
    found = [BelowPart.of(up_statistics(part, ranges, tree.full)[0]) for part, ranges in parts]
    top = {0: (0, len(model.levels[0])), 1: (0, len(model.levels[1]))}
    known = BelowPart.joined(found).within(model.domain)
    return up_statistics(model.slice(top), top, tree.full, known)[0]


def everything(tree: Tree) -> int:
    """Go up and down the whole tree, and return the number of variances."""
    domain = tree.model.domain
    rows = [Rows.of_query(domain, query) for query in tree.model.queries]
    parts = down_pass(up_sweep(tree.model, tree.full))
    return sum(row.quadratic(part.covariance).size for part in parts for row in rows)


def timed(repeats: int, act: Callable[[], object]) -> float:
    """Return the shortest processor time of ``act`` in seconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        act()
        best = min(best, time.thread_time() - start)
    return best


def allocated(act: Callable[[], object]) -> float:
    """Return the most memory in use at once for ``act``, in MB."""
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="ri")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    everything(made_tree((1, 2, 4, 12, 60)))  # compiled code is loaded
    start = time.thread_time()
    tree = made_tree(shape)
    prepared = time.thread_time() - start
    model, geounits = tree.model, sum(shape)
    seconds = {
        "up": timed(options.repeats, lambda: by_county(tree)),
        "everything": timed(options.repeats, lambda: everything(tree)),
    }
    largest = max(stop - start for ranges in counties(model) for start, stop in [ranges[4]])
    result = {
        "machine": platform.processor() or platform.machine(),
        "shape": shape,
        "geounits": geounits,
        "microseconds_a_geounit": {name: round(s / geounits * 1e6, 1) for name, s in seconds.items()},
        "seven_million_geounits_core_minutes": {
            name: round(s / geounits * NATION / 60, 1) for name, s in seconds.items()
        },
        "prepare_microseconds_a_geounit": round(prepared / geounits * 1e6, 1),
        "blocks_of_the_largest_county": largest,
        "peak_mb": {
            "up": round(allocated(lambda: by_county(tree))),
            "everything": round(allocated(lambda: everything(tree))),
        },
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
