"""OSQP: operator splitting with a polish step; in the extra ``solvers``."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from opendas.solvers.least_squares.clarabel import Form, RawAnswer, program
from opendas.solvers.problem.problem import FamilyProblem, Status
from support.general.protocol import required

__all__ = ["STATUS_MAP", "solve"]

STATUS_MAP = {
    "solved": Status.OPTIMAL,
    "solved inaccurate": Status.FAILED,
    "primal infeasible": Status.INFEASIBLE,
    "primal infeasible inaccurate": Status.FAILED,
    "dual infeasible": Status.FAILED,
    "dual infeasible inaccurate": Status.FAILED,
    "maximum iterations reached": Status.FAILED,
    "run time limit reached": Status.FAILED,
    "problem non convex": Status.FAILED,
    "unsolved": Status.FAILED,
}


def solve(problem: FamilyProblem, *, form: Form = "plain", tolerance: float = 1e-8) -> RawAnswer:
    """Solve to `tolerance`, absolute and relative, and polish."""
    osqp = required("osqp")
    qp = program(problem, form)
    m = len(qp.child)
    signs = sparse.csr_array((np.ones(m), (np.arange(m), np.arange(m))), shape=(m, len(qp.cost)))
    solver = osqp.OSQP()
    solver.setup(
        sparse.csc_matrix(sparse.triu(qp.P)),
        qp.cost,
        sparse.csc_matrix(sparse.vstack([qp.A, signs])),
        np.concatenate([qp.row_lower, np.zeros(m)]),
        np.concatenate([qp.row_upper, np.full(m, np.inf)]),
        verbose=False,
        polishing=True,
        eps_abs=tolerance,
        eps_rel=tolerance,
        max_iter=100_000,
        adaptive_rho_interval=50,  # not by clock
    )
    answer = solver.solve(raise_error=False)
    message = str(answer.info.status)
    y = np.nan_to_num(np.array(answer.x, dtype=float))
    return RawAnswer(
        x=qp.unpack(y, problem.linear.shape),
        status=STATUS_MAP.get(message, Status.FAILED),
        iterations=int(answer.info.iter),
        message=message,
    )
