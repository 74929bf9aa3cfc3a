"""Clarabel: interior point, in the core install; the recorded fallback."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from opendas.arrays import Floats
from opendas.solvers.general.program import Form, Program, program
from opendas.solvers.general.protocol import RawAnswer, required
from opendas.solvers.problem.problem import FamilyProblem, Status

__all__ = ["STATUS_MAP", "solve", "solve_program", "solve_varied"]


STATUS_MAP = {
    "Solved": Status.OPTIMAL,
    "PrimalInfeasible": Status.INFEASIBLE,
    "AlmostSolved": Status.FAILED,
    "AlmostPrimalInfeasible": Status.FAILED,
    "DualInfeasible": Status.FAILED,
    "AlmostDualInfeasible": Status.FAILED,
    "MaxIterations": Status.FAILED,
    "MaxTime": Status.FAILED,
    "NumericalError": Status.FAILED,
    "InsufficientProgress": Status.FAILED,
    "CallbackTerminated": Status.FAILED,
    "Unsolved": Status.FAILED,
}
LOOSER = (1e-9, 1e-8)
"""Tried in turn, while the arithmetic ends before the tolerance is reached."""


def solve(problem: FamilyProblem, *, form: Form = "nested", tolerance: float = 1e-12) -> RawAnswer:
    """Solve to `tolerance` (gaps and feasibility), or as tightly as the arithmetic allows."""
    return solve_program(program(problem, form), problem.linear.shape, tolerance)


def solve_varied(
    problem: FamilyProblem, linear: Floats, matrices: Floats, *, tolerance: float = 1e-12
) -> RawAnswer:
    """Likewise where every child has its own Hessian, shape (C, n, n); the problem gives the constraints."""
    return solve_program(program(problem, "plain", (linear, matrices)), problem.linear.shape, tolerance)


def solve_program(qp: Program, shape: tuple[int, int], tolerance: float = 1e-12) -> RawAnswer:
    """Likewise for any program whose first variables are the cells of an answer of a shape (C, n)."""
    clarabel = required("clarabel")
    equal = qp.row_lower == qp.row_upper
    low = np.isfinite(qp.row_lower) & ~equal
    high = np.isfinite(qp.row_upper) & ~equal
    m = len(qp.child)
    signs = sparse.csr_array((-np.ones(m), (np.arange(m), np.arange(m))), shape=(m, len(qp.cost)))
    A = sparse.vstack([qp.A[equal], signs, qp.A[high], -qp.A[low]], format="csc")
    b = np.concatenate([qp.row_lower[equal], np.zeros(m), qp.row_upper[high], -qp.row_lower[low]])
    equalities = int(equal.sum())
    cones = [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(len(b) - equalities)]
    data = (sparse.csc_matrix(sparse.triu(qp.P)), qp.cost, sparse.csc_matrix(A), b, cones)
    for gap in (tolerance, *(looser for looser in LOOSER if looser > tolerance)):
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        settings.max_iter = 300
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = gap
        answer = clarabel.DefaultSolver(*data, settings).solve()
        message = str(answer.status)
        if STATUS_MAP.get(message) in (Status.OPTIMAL, Status.INFEASIBLE):
            break
    return RawAnswer(
        x=qp.unpack(np.array(answer.x), shape),
        status=STATUS_MAP.get(message, Status.FAILED),
        iterations=int(answer.iterations),
        message=message,
    )
