"""Families with linear constraints, whose coefficients are whole numbers; apart from the ladder.

The family is solved without them first. Where its optimum keeps them it is the optimum with them, too: they
leave fewer points and none that is better. Else the interior point solves the whole program.

The certificate is that of the family without them: their multipliers ``nu >= 0`` are moved into the linear
part of the objective, ``b_c - C' nu_c``, and what is left to check is that the constraints hold and that
``min(nu, c - C x)`` is zero.

Letters: ``C`` children, ``n`` cells, ``M`` linear constraints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from opendas.arrays import Floats, Ints
from opendas.solvers.least_squares.clarabel import Program, program, solve_program
from opendas.solvers.least_squares.solve import ROUNDS, Metric, solve
from opendas.solvers.problem.certificate import certify, units
from opendas.solvers.problem.partition import as_groups
from opendas.solvers.problem.problem import GENERAL_SOLVER, ConstraintRow, FamilyProblem, Solution, Status


def solve_under(
    problem: FamilyProblem,
    coefficients: Ints,
    at_most: Ints,
    names: tuple[str, ...],
    *,
    tolerance: float = 1e-7,
    metric: Metric | None = None,
) -> Solution:
    """Solve one family under ``coefficients @ x_c <= at_most_c``.

    - `problem`: without these constraints.
    - `coefficients` (M, n).
    - `at_most` (C, M).
    - `names`, length M: for messages.
    - `tolerance`: as of :func:`opendas.solvers.least_squares.solve.solve`; a constraint counts as kept within
      it, relative to the largest count, in units of its largest coefficient.
    - `metric`: likewise.
    - Returns: infeasible where the interior point says so: the caller looks for the proof in whole numbers.

    Notes
    -----
    Abowd et al. (2022), equation (6.2).
    """
    relaxed = solve(problem, tolerance=tolerance, metric=metric)
    size = np.maximum(1, np.abs(coefficients).max(axis=1, initial=0))

    def violation(x: Floats) -> float:
        return float(((x @ coefficients.T - at_most) / size).max(initial=0.0)) / problem.magnitude(x)

    if relaxed.status is not Status.OPTIMAL or violation(relaxed.x) <= tolerance:
        return relaxed
    stated = as_groups(problem)[0] if problem.fixed_rows is not None else problem
    qp = _with_rows(program(stated), coefficients, at_most)
    best = Solution(relaxed.x, Status.FAILED, np.inf, 0, GENERAL_SOLVER[0])
    near = None
    for method in (GENERAL_SOLVER[0], *ROUNDS * GENERAL_SOLVER[1:]):
        raw = solve_program(qp, problem.linear.shape, near=near, magnified=1.0 / min(1.0, best.residual))
        if raw.status is Status.INFEASIBLE and near is None:
            rows = tuple(ConstraintRow("linear", -1, k, name) for k, name in enumerate(names))
            return replace(best, status=Status.INFEASIBLE, conflict=rows)
        if raw.y is None or raw.rows is None:
            break
        nu = np.maximum(qp.unit * raw.rows[-at_most.size :], 0.0).reshape(at_most.shape)
        slack = np.maximum(at_most - raw.x @ coefficients.T, 0.0)
        residual = max(
            certify(_moved(stated, nu @ coefficients), raw.x, qp.multipliers(raw.rows, stated)),
            violation(raw.x),
            float(np.minimum(nu * size / _units(stated), slack / size).max(initial=0.0))
            / problem.magnitude(raw.x),
        )
        if residual >= best.residual:
            break
        best, near = Solution(raw.x, Status.FAILED, residual, raw.iterations, method), raw.y
        if residual <= tolerance:
            return replace(best, status=Status.OPTIMAL)
    return best


def _with_rows(qp: Program, coefficients: Ints, at_most: Ints) -> Program:
    """Return the program with the constraints as its last rows, child by child."""
    used = coefficients[:, qp.cell]
    k, place = np.nonzero(used)
    shape = (at_most.size, len(qp.cost))
    row = qp.child[place] * at_most.shape[1] + k
    rows = sparse.csr_array((used[k, place].astype(np.float64), (row, place)), shape=shape)
    return replace(
        qp,
        A=sparse.csr_array(sparse.vstack([qp.A, rows], format="csr")),
        row_lower=np.concatenate([qp.row_lower, np.full(at_most.size, -np.inf)]),
        row_upper=np.concatenate([qp.row_upper, at_most.ravel().astype(np.float64)]),
        label=np.concatenate([qp.label, np.full(at_most.size, -1)]),
    )


def _moved(problem: FamilyProblem, pull: Floats) -> FamilyProblem:
    """Return the family with the pull of the constraints on each cell, (C, n), in its linear part."""
    scale = problem.scale[:, None] if problem.hessians is None else 1.0
    return replace(problem, linear=problem.linear - problem.unit * pull / scale)


def _units(problem: FamilyProblem) -> Floats:
    """What brings multipliers of each child to counts, (C, 1), as in the certificate."""
    if problem.hessians is None:
        return problem.scale[:, None]
    return units(problem.hessians.diagonal(), problem.mask)[:, None]
