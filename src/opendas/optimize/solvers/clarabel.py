"""Clarabel: interior point, in the core install; the recorded fallback."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from opendas.optimize.problem import FamilyProblem, Status
from opendas.optimize.solvers.lifted import lift
from opendas.optimize.solvers.protocol import RawAnswer, required

__all__ = ["STATUS_MAP", "solve"]

STATUS_MAP = {
    "Solved": Status.OPTIMAL,
    "AlmostSolved": Status.FAILED,
    "PrimalInfeasible": Status.INFEASIBLE,
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

GAPS = (1e-12, 1e-9, 1e-8)
"""Tried in turn, while the arithmetic ends before the gap is reached."""


def solve(problem: FamilyProblem) -> RawAnswer:
    """Solve the lifted program as tightly as the arithmetic allows."""
    clarabel = required("clarabel")
    program = lift(problem)
    equal = program.row_lower == program.row_upper
    low = np.isfinite(program.row_lower) & ~equal
    high = np.isfinite(program.row_upper) & ~equal
    m = len(program.child)
    eye = sparse.csr_array((-np.ones(m), (np.arange(m), np.arange(m))), shape=(m, len(program.cost)))
    A = sparse.vstack([program.A[equal], eye, program.A[high], -program.A[low]], format="csc")
    b = np.concatenate(
        [program.row_lower[equal], np.zeros(m), program.row_upper[high], -program.row_lower[low]]
    )
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(len(b) - int(equal.sum()))]
    P = sparse.diags_array(program.diagonal, format="csc")
    data = (sparse.csc_matrix(P), program.cost, sparse.csc_matrix(A), b, cones)
    for gap in GAPS:
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
        x=program.unpack(np.array(answer.x), problem.linear.shape),
        status=STATUS_MAP.get(message, Status.FAILED),
        iterations=int(answer.iterations),
        message=message,
    )
