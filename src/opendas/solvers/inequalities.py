"""Families with linear constraints, whose coefficients are whole numbers; apart from the ladder.

The family is solved without them first. Where its optimum keeps them it is the optimum with them, too: they
leave fewer points and none that is better. Else the interior point solves the whole program, and the active
set from its point on wins the digits that it leaves.

The certificate is that of the family without them: their multipliers ``nu >= 0`` are moved into the linear
part of the objective, ``b_c - C' nu_c``, and what is left to check is that the constraints hold and that
``min(nu, c - C x)`` is zero.

Letters: ``C`` children, ``n`` cells, ``M`` linear constraints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from opendas.arrays import Floats, Ints
from opendas.solvers.least_squares.clarabel import Program, RawAnswer, program, solve_program
from opendas.solvers.least_squares.solve import Metric, solve
from opendas.solvers.problem.certificate import certify, units
from opendas.solvers.problem.partition import as_groups
from opendas.solvers.problem.problem import GENERAL_SOLVER, ConstraintRow, FamilyProblem, Solution, Status

STEPS = 200
"""Most sets of cells and rows that are tried."""
RIDGE = 1e-9
"""Added to the diagonal of its equations, in units of the largest weight; refinement takes it out again."""
REFINED = 5
"""Steps of refinement."""
PATIENCE = 5
"""Sets in turn that may leave no fewer cells and rows on the wrong side."""
WRONG = 1e-10
"""Below zero by this, relative to the largest count, is on the wrong side."""


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
    if stated.parent is not None:  # closed, as else a parent of 0 leaves their multipliers open
        stated = replace(stated, mask=stated.mask & (stated.parent > 0.0))
    qp = _with_rows(program(stated), coefficients, at_most)
    best = Solution(relaxed.x, Status.FAILED, np.inf, 0, GENERAL_SOLVER[0])
    raw = solve_program(qp, problem.linear.shape)
    if raw.status is Status.INFEASIBLE:
        rows = tuple(ConstraintRow("linear", -1, k, name) for k, name in enumerate(names))
        return replace(best, status=Status.INFEASIBLE, conflict=rows)
    for answer in (raw, _active_set(qp, raw, problem.linear.shape)):
        if answer is None or answer.rows is None:
            break
        nu = np.maximum(qp.unit * answer.rows[-at_most.size :], 0.0).reshape(at_most.shape)
        slack = np.maximum(at_most - answer.x @ coefficients.T, 0.0)
        residual = max(
            certify(_moved(stated, nu @ coefficients), answer.x, qp.multipliers(answer.rows, stated)),
            violation(answer.x),
            float(np.minimum(nu * size / _units(stated), slack / size).max(initial=0.0))
            / problem.magnitude(answer.x),
        )
        if residual < best.residual:
            best = Solution(answer.x, Status.FAILED, residual, answer.iterations, GENERAL_SOLVER[0])
        if residual <= tolerance:
            return replace(best, status=Status.OPTIMAL)
    return best


def _active_set(qp: Program, raw: RawAnswer, shape: tuple[int, int]) -> RawAnswer | None:
    """Return the optimum from what an interior point says: which cells are zero, which rows are equalities.

    Block principal pivoting (Júdice and Pires 1994): all cells and rows on the wrong side change sides; once
    that has not lessened their number for `PATIENCE` steps, one alone does. Each step solves the equations of
    a set, regularised by `RIDGE` against dependent rows and refined.
    """
    if raw.y is None or raw.rows is None:
        return None
    y, dual, m, N = raw.y, raw.rows, len(qp.child), len(qp.cost)
    A, P = qp.A, sparse.csr_array(qp.P)
    equal = qp.row_lower == qp.row_upper
    free = np.ones(N, bool)
    free[:m] = y[:m] > (P @ y + qp.cost + A.T @ dual)[:m]
    value = A @ y
    above = ~equal & (dual > qp.row_upper - value)
    below = ~equal & (-dual > value - qp.row_lower)
    least, patience = N + len(dual) + 1, PATIENCE
    for _ in range(STEPS):
        held = equal | above | below
        rows, size = A[held][:, free], int(free.sum())
        exact = sparse.csc_array(sparse.block_array([[P[free][:, free], rows.T], [rows, None]]))
        ridge = np.full(exact.shape[0], RIDGE)
        ridge[size:] = -RIDGE
        solve = splu(sparse.csc_matrix(exact + sparse.diags_array(ridge))).solve
        right = np.concatenate([-qp.cost[free], np.where(below, qp.row_lower, qp.row_upper)[held]])
        found = solve(right)
        for _again in range(REFINED):
            found += solve(right - exact @ found)
        y, dual = np.zeros(N), np.zeros(len(dual))
        y[free], dual[held] = found[:size], found[size:]
        value, some = A @ y, WRONG * max(1.0, float(np.abs(y[:m]).max(initial=0.0)))
        cells = np.where(free, y, P @ y + qp.cost + A.T @ dual)[:m] < -some
        over = np.where(above, -dual, np.where(held, 0.0, value - qp.row_upper)) > some
        under = np.where(below, dual, np.where(held, 0.0, qp.row_lower - value)) > some
        wrong = np.concatenate([cells, over, under])
        count = int(wrong.sum())
        if count == 0:
            break
        least, patience = (count, PATIENCE) if count < least else (least, patience - 1)
        if patience < 0:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        cells, over, under = np.split(wrong, [m, m + len(dual)])
        free = free ^ np.concatenate([cells, np.zeros(N - m, bool)])
        above, below = above ^ over, below ^ under
    return replace(raw, x=qp.unpack(y, shape), y=y, rows=dual)


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
