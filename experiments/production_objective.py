"""Our families against the production solver and objective, at the size its free licence allows.

    python experiments/production_objective.py [--families 20] [--to DIR]

Needs gurobipy, which is proprietary and no dependency of ours: pip install gurobipy. Its free licence takes
problems of up to 200 quadratic variables, hence small families (6 children, 30 cells).

Least squares: the objective of (7.2) at our solution beside the production solver's, and how far both are
from the parent. Rounding: production does not minimise (7.7) but the distance to *rounded* fractional
targets; the table shows both objectives for both roundings. Ours must not lose on (7.7), theirs must not on
its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from families import family

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem
from opendas.solvers.rounding.rounding import round_family

CHILDREN, CELLS = 6, 30


def least_squares(gurobi, problem: FamilyProblem) -> np.ndarray:
    """Solve (7.2) with the production solver."""
    model = quiet(gurobi)
    x = model.addMVar((problem.children, problem.cells), lb=0.0)
    H = problem.hessian()
    model.setObjective(
        sum(0.5 * (x[c] @ H @ x[c]) - problem.linear[c] @ x[c] for c in range(problem.children))
    )
    model.addConstr(x.sum(axis=0) == problem.parent)
    model.Params.BarConvTol = 1e-12
    model.optimize()
    return x.X


def quiet(gurobi):
    """Return a model that prints nothing."""
    environment = gurobi.Env(params={"OutputFlag": 0})
    return gurobi.Model(env=environment)


def distance(targets: list[tuple[np.ndarray, np.ndarray]], y: np.ndarray) -> float:
    """Sum over query groups of the L1 distance of their answers from given targets."""
    return float(sum(np.abs(margins(y, rows) - target).sum() for rows, target in targets))


def margins(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Answers of a query group, (C, m)."""
    out = np.zeros((len(y), int(rows.max()) + 1))
    np.add.at(out.T, rows, y.T)
    return out


def production_rounding(gurobi, x: np.ndarray, parent: np.ndarray, queries: list[np.ndarray]) -> np.ndarray:
    """Round as production does: binary y, least L1 distance of Q y from rint(Q f)."""
    base = np.floor(x)
    fraction = x - base
    model = quiet(gurobi)
    y = model.addMVar(x.shape, vtype="B")
    model.addConstr(y.sum(axis=0) == parent - base.sum(axis=0))
    cost = 0
    for rows in queries:
        target = np.rint(margins(fraction, rows))
        gap = model.addMVar(target.shape, lb=0.0)
        for row in range(target.shape[1]):
            inside = np.flatnonzero(rows == row)
            answer = y[:, inside].sum(axis=1)
            model.addConstr(gap[:, row] >= answer - target[:, row])
            model.addConstr(gap[:, row] >= target[:, row] - answer)
        cost += gap.sum()
    model.setObjective(cost)
    model.optimize()
    return base + np.rint(y.X)


def compare(gurobi, seed: int) -> dict[str, float]:
    """Solve and round one synthetic family both ways."""
    problem = family("block", CHILDREN, CELLS, 500.0, seed).problem
    parent = problem.parent
    ours, theirs = solve(problem), least_squares(gurobi, problem)
    # Only total and detail: the tree of a whole pass does not fit the free licence.
    queries = [np.zeros(CELLS, np.int32), np.arange(CELLS, dtype=np.int32)]
    x = ours.x * (parent / np.maximum(ours.x.sum(axis=0), 1e-300))
    x = np.where(np.abs(x - np.rint(x)) < 1e-6, np.rint(x), x)
    rounded = round_family(
        x,
        parent.astype(np.int64),
        problem.mask,
        (tuple(queries),),
        None,
        None,
        None,
        np.arange(CHILDREN, dtype=np.uint64),
    ).values
    production = production_rounding(gurobi, x, parent, queries)
    base = np.floor(x)
    exact = [(rows, margins(x - base, rows)) for rows in queries]
    whole = [(rows, np.rint(target)) for rows, target in exact]
    return {
        "least_squares_gap": (problem.objective(ours.x) - problem.objective(theirs))
        / max(1.0, abs(problem.objective(theirs))),
        "parent_ours": float(np.abs(ours.x.sum(axis=0) - parent).max()),
        "parent_production": float(np.abs(theirs.sum(axis=0) - parent).max()),
        "paper_ours": distance(exact, rounded - base),
        "paper_production": distance(exact, production - base),
        "production_ours": distance(whole, rounded - base),
        "production_production": distance(whole, production - base),
    }


def main() -> int:
    """Compare synthetic families and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", type=int, default=20)
    parser.add_argument("--to", type=Path, default=None, help="folder for the rows as JSON")
    given = parser.parse_args()
    try:
        import gurobipy
    except ImportError:
        print("gurobipy is not installed: pip install gurobipy (proprietary; its free licence is enough)")
        return 1
    rows = [compare(gurobipy, seed) for seed in range(given.families)]
    print(f"{given.families} families of {CHILDREN} children and {CELLS} cells\n")
    print("| figure | least | median | largest |\n|---|---|---|---|")
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        print(f"| {name} | {values.min():.3g} | {np.median(values):.3g} | {values.max():.3g} |")
    if given.to is not None:
        given.to.mkdir(parents=True, exist_ok=True)
        (given.to / "production_objective.json").write_text(json.dumps(rows, indent=1))
    lost = [
        r for r in rows if r["least_squares_gap"] > 1e-8 or r["paper_ours"] > r["paper_production"] + 1e-4
    ]
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
