"""Time the allocation of a budget, beside general optimisers on the same problem.

    python benchmarks/allocation.py [--nodes 11000000] [--groups 20] [--repeat 7] [--json FILE]

Two problems, for each of the four kinds of noise. Levels: six levels of a synthetic nation, eleven million
blocks, a third of them empty; programs (6) and (7). Groups: 20 query groups at each of six geolevels, as one
program. Shown is the fastest of several runs in processor milliseconds of one core, from histograms to exact
fractions and the report of errors; counting the nodes is shown beside it, since both programs and all kinds
of noise share it. The general solvers run once on the groups, three times on the levels.

The peers are general solvers of smooth programs: the objective is no disciplined convex program, so that
CVXPY takes it in no form. `plain` is scipy's SLSQP on the problem as it stands: budgets as variables, the
closed forms in numpy over the same histograms, differences for gradients (levels only; with 114 variables it
takes many minutes). SLSQP and trust-constr are given all that we know: logarithms of budgets and objective,
exact gradients, and our compiled sums. All start from an even split. A gap is the relative excess of the
objective over ours.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import NonlinearConstraint, minimize

from opendas.allocation import CountHistogram, Level, NoiseKind, allocate_target, allocate_total
from opendas.allocation.separable import Separable
from opendas.privacy.relations import Neighbours

Floats = npt.NDArray[np.float64]

TOTALS = {NoiseKind.LAPLACE: "2", NoiseKind.DISCRETE_LAPLACE: "2"}  # of the Gaussian kinds: RHO
RHO = "1/2"
FANOUT = (51, 62, 27, 3, 46)  # states, counties, tracts, block groups, blocks; 11 million in all


def fastest(work: Callable[[], object], repeat: int) -> float:
    """Return the least processor time of several runs, in milliseconds."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def made_nation(nodes: int) -> list[npt.NDArray[np.int64]]:
    """Counts of six levels, top first: sizes in the proportions of the United States."""
    rng = np.random.default_rng(2020)
    blocks = rng.negative_binomial(0.7, 0.7 / 30.7, nodes) * (rng.random(nodes) > 0.3)
    levels = [blocks]
    for fanout in reversed(FANOUT):
        above = max(1, len(levels[0]) // fanout)
        parent = np.minimum(np.arange(len(levels[0])) // fanout, above - 1)
        levels.insert(0, np.bincount(parent, weights=levels[0]).astype(np.int64))
    return levels


def made_groups(levels: Sequence[npt.NDArray[np.int64]], groups: int) -> list[Level]:
    """Histograms of query groups of 1 to 2,016 cells at each level: counts thinned over the cells."""
    rng = np.random.default_rng(7)
    found = []
    for number, counts in enumerate(levels):
        sample = counts if len(counts) <= 20_000 else rng.choice(counts, 20_000, replace=False)
        for group, cells in enumerate(np.geomspace(1, 2016, groups).astype(int).tolist()):
            shares = rng.dirichlet(np.full(min(cells, 50), 0.3))
            answers = rng.binomial(sample[:2000, None], shares).ravel()
            histogram = CountHistogram.of(answers)
            scale = max(1, len(counts) * cells // histogram.nodes)
            found.append(Level(f"{number}/{group}", CountHistogram(histogram.values, histogram.mult * scale)))
    return found


def plain(levels: Sequence[Level], kind: NoiseKind, total: float) -> Floats:
    """Solve program (6) with SLSQP as it stands."""
    problem = Separable(levels, kind, Neighbours.UNBOUNDED, np.ones(len(levels)))
    answer = minimize(
        lambda budgets: float(problem.errors(np.maximum(budgets, 1e-9))[:, 2].sum()),
        np.full(len(levels), total / len(levels)),
        method="SLSQP",
        bounds=[(1e-9, total)] * len(levels),
        constraints={"type": "eq", "fun": lambda budgets: budgets.sum() - total},
        options={"maxiter": 1000},
    )
    budgets = np.maximum(answer.x, 1e-9)
    return np.asarray(budgets * (total / budgets.sum()))


def general(levels: Sequence[Level], kind: NoiseKind, total: float, method: str) -> Floats:
    """Solve program (6) with a general solver that is given logarithms and gradients."""
    if method == "plain":
        return plain(levels, kind, total)
    problem = Separable(levels, kind, Neighbours.UNBOUNDED, np.ones(len(levels)))

    def objective(logs: Floats) -> tuple[float, Floats]:
        value = problem.objective(np.exp(logs))
        slopes, _ = problem.log_slopes(logs)
        return float(np.log(value)), -np.exp(slopes + logs - np.log(value))

    start = np.log(np.full(len(levels), total / len(levels)))
    if method == "SLSQP":
        constraint: object = {
            "type": "eq",
            "fun": lambda logs: np.exp(logs).sum() / total - 1,
            "jac": lambda logs: np.exp(logs) / total,
        }
        options = {"ftol": 1e-14, "maxiter": 1000}
    else:
        constraint = NonlinearConstraint(
            lambda logs: np.exp(logs).sum() / total, 1, 1, jac=lambda logs: (np.exp(logs) / total)[None]
        )
        options = {"gtol": 1e-10, "xtol": 1e-14, "maxiter": 2000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = minimize(objective, start, jac=True, method=method, constraints=constraint, options=options)
    budgets = np.exp(answer.x)
    return np.asarray(budgets * (total / budgets.sum()))


def measured(name: str, levels: Sequence[Level], repeat: int, peer_repeat: int) -> list[dict[str, object]]:
    """Time our programs and the general solvers on one set of levels."""
    rows = []
    for kind in NoiseKind:
        total = TOTALS.get(kind, RHO)
        ours = allocate_total(levels, kind, total)
        target = format(ours.objective, ".17g")
        row: dict[str, object] = {"problem": name, "kind": kind.value, "levels": len(levels)}
        row["program_6_ms"] = fastest(lambda k=kind, t=total: allocate_total(levels, k, t), repeat)
        row["program_7_ms"] = fastest(lambda k=kind, t=target: allocate_target(levels, k, t), repeat)
        problem = Separable(levels, kind, Neighbours.UNBOUNDED, np.ones(len(levels)))
        whole = float(ours.total)
        for method in (*(["plain"] if len(levels) < 10 else []), "SLSQP", "trust-constr"):
            found: list[Floats] = []
            row[f"{method}_ms"] = fastest(
                lambda k=kind, m=method, f=found, w=whole: f.append(general(levels, k, w, m)),
                peer_repeat,
            )
            row[f"{method}_gap"] = problem.objective(found[0]) / ours.objective - 1
        rows.append(row)
        shown = (f"{k} {v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items())
        print("  ".join(shown), flush=True)
    return rows


def direct_evaluation(counts: npt.NDArray[np.int64]) -> float:
    """Return the time of one evaluation of the error over single nodes, in milliseconds."""
    from opendas.allocation import clamped_moments

    return fastest(lambda: clamped_moments("laplace", 1.5, counts).mse.sum(), 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=11_000_000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    counts = made_nation(arguments.nodes)
    levels = [Level(str(k), CountHistogram.of(each)) for k, each in enumerate(counts)]
    counting = fastest(lambda: [CountHistogram.of(each) for each in counts], 3)
    sorting = fastest(lambda: [np.unique(each, return_counts=True) for each in counts], 1)
    direct = direct_evaluation(counts[-1])
    print(f"{sum(map(len, counts)):,} nodes, {sum(len(x.counts.values) for x in levels):,} distinct counts")
    print(
        f"histograms {counting:.1f} ms (numpy.unique {sorting:.0f} ms); one error over nodes {direct:.0f} ms"
    )
    answer: dict[str, object] = {"machine": platform.machine(), "histograms_ms": counting}
    answer |= {"unique_ms": sorting, "direct_evaluation_ms": direct}
    groups = made_groups(counts, arguments.groups)
    print(f"{len(groups)} pairs with {sum(len(x.counts.values) for x in groups):,} distinct counts")
    answer["rows"] = [
        *measured("levels", levels, arguments.repeat, 3),
        *measured("groups", groups, arguments.repeat, 1),
    ]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
