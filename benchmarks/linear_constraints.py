"""Families under a linear constraint that binds in every child: processor time of least squares and rounding.

    nice python benchmarks/linear_constraints.py

Synthetic counts, half of the cells with coefficient 1 and half with -2; every child may have what it has, so
that noise breaks the constraint in about half of them. Beside it the flow, which knows nothing of it.
"""

from __future__ import annotations

import time

import numpy as np

from opendas.solvers.inequalities import solve_under
from opendas.solvers.problem.problem import FamilyProblem
from opendas.solvers.rounding.rounding import round_family


def main() -> None:
    """Print a line for each size of family."""
    for children, cells in ((2, 4), (20, 32), (40, 64), (80, 64), (40, 252)):
        rng = np.random.default_rng(1)
        counts = rng.poisson(rng.lognormal(0, 1.2, (children, cells)))
        coefficients = np.where(np.arange(cells) < cells // 2, 1, -2)[None, :]
        at_most, parent = counts @ coefficients.T, counts.sum(axis=0)
        total, each = np.zeros(cells, np.int32), np.arange(cells, dtype=np.int32)
        noisy = counts + rng.normal(0, 2, counts.shape)
        problem = FamilyProblem(((1.0, each),), noisy, parent=parent.astype(float))
        keys, mask = np.arange(children, dtype=np.uint64), np.ones(counts.shape, bool)
        began = time.process_time()
        solution = solve_under(problem, coefficients, at_most, ("benchmark",))
        found = [
            f"least squares ({solution.method}, {solution.residual:.0e}) {time.process_time() - began:.2f} s"
        ]
        for linear in (None, (coefficients, at_most)):
            began = time.process_time()
            result = round_family(
                solution.x, parent, mask, ((total,), (each,)), None, None, None, keys, linear=linear
            )
            found.append(f"{result.method} {time.process_time() - began:.2f} s")
        if np.any(result.values @ coefficients.T > at_most):
            raise SystemExit("the constraint is broken")
        print(f"{children} children, {cells} cells: {'; '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
