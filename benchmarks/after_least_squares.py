"""Time allocations that are optimal after least squares, on a nation and on a state's product.

    python benchmarks/after_least_squares.py [--nodes 11000000] [--data DATA] [--json FILE]

Levels: six levels of a synthetic nation of eleven million blocks, one count each. Shown are the time to find
equal
subtrees, once a hierarchy; one evaluation of the sum of all variances with all its derivatives; and the whole
search, under zCDP (with its certified gap) and under pure differential privacy (32 sets of levels). Product:
the persons of Rhode Island 2010 at the production total, 10 query groups at 5 geolevels, as one convex
problem; without the data this part is left out. Post-processing: the same nation's noisy counts made
consistent from the top down, in whole numbers and in reals. One thread; processor milliseconds, the fastest
of three (one for a search of levels).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import opendas as od
from opendas.allocation.after_least_squares import allocate_after_least_squares
from opendas.allocation.after_least_squares_joint import allocate_queries_after_least_squares
from opendas.allocation.post_processing_8 import post_process
from opendas.geography.hierarchy import Hierarchy
from opendas.gls.collapsed import CollapsedTree, Trace

T = TypeVar("T")
FANOUT = (51, 62, 27, 3, 46)
"""States, counties, tracts, block groups, blocks: mean numbers of children; 11 million blocks in all."""


def fastest(work: Callable[[], T], repeat: int = 3) -> tuple[float, T]:
    """Return the least processor time of several runs, in milliseconds, and the last answer."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        answer = work()
        times.append(1000 * (time.process_time() - start))
    return min(times), answer


def nation(nodes: int) -> Hierarchy:
    """Make a hierarchy of six levels whose families differ in size, with about so many leaves."""
    rng = np.random.default_rng(1)
    scale = (nodes / float(np.prod(FANOUT))) ** (1 / len(FANOUT))
    parents, above = [np.zeros(1, dtype=np.int64)], 1
    for mean in FANOUT:
        sizes = 1 + rng.poisson(rng.gamma(2.0, max(mean * scale - 1, 0.1) / 2.0, above))
        parents.append(np.repeat(np.arange(above, dtype=np.int64), sizes))
        above = int(sizes.sum())
    return Hierarchy(tuple(parents))


def levels(nodes: int) -> dict[str, object]:
    """Time the allocation over levels."""
    tree = nation(nodes)
    found, kinds = fastest(lambda: CollapsedTree.of_hierarchy(tree))
    trace = Trace.counts(kinds, np.ones((len(tree), 1)))
    precision = np.full((len(tree), 1), 0.1)
    once, _ = fastest(lambda: trace.value_and_gradient(precision))
    concentrated, best = fastest(lambda: allocate_after_least_squares(tree, "1/2"), 1)
    pure, _ = fastest(lambda: allocate_after_least_squares(tree, 2, "laplace"), 1)
    return {
        "geounits": tree.sizes,
        "places": [len(level.geounits) for level in kinds.levels],
        "equal subtrees, ms": found,
        "one evaluation with derivatives, ms": once,
        "discrete Gaussian, ms": concentrated,
        "its gap": best.gap,
        "its shares": [float(share) for share in best.shares],
        "Laplace, 32 sets of levels, ms": pure,
    }


def post_processing(nodes: int) -> dict[str, object]:
    """Time the projection of a nation's noisy counts from the top down."""
    tree = nation(nodes)
    rng = np.random.default_rng(2)
    true = tree.totals(rng.negative_binomial(1, 0.03, tree.sizes[-1]))
    whole = [counts + np.rint(rng.laplace(0.0, 2.0, len(counts))).astype(np.int64) for counts in true]
    reals = [counts + 0.25 for counts in whole]
    return {
        "whole numbers, ms": fastest(lambda: post_process(tree, whole))[0],
        "reals, ms": fastest(lambda: post_process(tree, reals))[0],
    }


def product(data: Path) -> dict[str, object] | None:
    """Time the allocation over geolevels and query groups."""
    source = data / "pl94_2010_ri" / "ri2010.pl.zip"
    if not source.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(
            f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2010"\npath = "{source.resolve()}"\n'
        )
        plan = od.load(path).plan
    targets = {"*": dict.fromkeys(plan.product.query_names, 1.0)}
    total = plan.budget.total
    taken, best = fastest(
        lambda: allocate_queries_after_least_squares(plan.product, plan.spine, total, targets)
    )
    return {"query groups": len(targets["*"]), "search, ms": taken, "gap": best.gap}


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=11_000_000)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    answer = {
        "machine": platform.processor() or platform.machine(),
        "levels": levels(given.nodes),
        "post-processing": post_processing(given.nodes),
        "product": product(given.data),
    }
    print(json.dumps(answer, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
