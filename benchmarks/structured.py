"""Time the structured solver on synthetic families of the sizes of the DHC, beside the general ladder.

    python benchmarks/structured.py --shapes bg-block ts-bg --general

Cells and children are those of the first pass of DHC persons in Rhode Island; counts, queries and fixed rows
are made. Times are processor times of one thread, compilation excluded.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.least_squares.structured import solve_structured
from opendas.solvers.problem.partition import as_groups
from opendas.solvers.problem.problem import FamilyProblem

AXES = (8, 2, 40, 63, 2, 4)
"""Households and group quarters, Hispanic, merged ages, races, sexes, and quarters of each."""
SHAPES = {
    "bg-block": (420, 18, 1_060), "ts-bg": (750, 4, 4_200), "tsg-ts": (1_650, 6, 27_000),
    "county-prim": (4_300, 8, 200_000), "root-50k": (50_000, 1, 1_050_000), "root": (283_248, 1, 1_050_000),
}  # fmt: skip


def family(cells: int, children: int, people: int, seed: int = 0) -> FamilyProblem:
    """Make a family: cells by skewed margins, people multinomial, answers with rounded noise."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(AXES))
    price = np.zeros(1)
    for axis in AXES:
        weight = rng.dirichlet(np.full(axis, 0.6)) + 1e-4
        price = np.add.outer(price, np.log(weight)).ravel()
    cell = np.sort(np.argsort(-(price + rng.gumbel(size=size)), kind="stable")[: min(cells, size)])
    code = np.array(np.unravel_index(cell, AXES))
    share = np.exp(price[cell] - price[cell].max())
    parent = rng.multinomial(people, share / share.sum())
    if children > 1:
        parent += 1
    truth = np.zeros((children, len(cell)), np.int64)
    rest = parent.copy()
    portions = rng.dirichlet(np.full(children, 2.0))
    for c in range(children):
        truth[c] = rng.binomial(rest, min(1.0, portions[c] / max(1e-12, portions[c:].sum())))
        rest -= truth[c]
    adult = code[2] >= 18
    marginals = [(), (0,), (2,), (2, 4), (0, 4), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4, 5)]
    terms, linear = [], np.zeros((children, len(cell)))
    for number, axes in enumerate(marginals):
        key = np.zeros(len(cell), np.int64)
        for axis in axes:
            key = key * AXES[axis] + code[axis]
        row = np.unique(key, return_inverse=True)[1].astype(np.int32)
        sd = (2.0, 3.0, 6.0, 6.0, 4.0, 3.0, 8.0, 12.0)[number]
        terms.append((1.0 / sd**2, row))
        for c in range(children):
            answers = np.bincount(row, truth[c]) + np.round(rng.normal(0.0, sd, int(row.max()) + 1))
            linear[c] += answers[row] / sd**2
    key = ((code[0] * 2 + adult) * 2 + code[1]) * 63 + code[3]
    fixed_rows = np.unique(key, return_inverse=True)[1].astype(np.int32)
    fixed = np.stack([np.bincount(fixed_rows, one, int(fixed_rows.max()) + 1) for one in truth])
    return FamilyProblem(
        tuple(terms), linear, parent=parent if children > 1 else None, fixed_rows=fixed_rows, fixed=fixed
    )


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--general", action="store_true", help="solve with the general ladder, too")
    options = parser.parse_args()
    solve_structured(family(60, 2, 500), 1e-7)
    print("shape children cells fixed | iterations residual cpu_s status")
    for name in options.shapes:
        problem = family(*SHAPES[name])
        start = time.process_time()
        found = solve_structured(problem, 1e-7)
        seconds = time.process_time() - start
        print(
            name, problem.children, problem.cells, problem.fixed.shape[1],
            f"| {found.iterations} {found.residual:.1e} {seconds:.2f} {found.status.value}", flush=True,
        )  # fmt: skip
        if options.general:
            stated = as_groups(problem)[0]
            start = time.process_time()
            other = solve(stated)
            seconds = time.process_time() - start
            apart = float(np.abs(other.x - found.x).max())
            print(
                f"  general: {other.method} {other.residual:.1e} {seconds:.2f}; apart by {apart:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
