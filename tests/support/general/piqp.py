"""PIQP: proximal interior point; in the extra ``solvers``."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from opendas.solvers.least_squares.clarabel import Form, Program, RawAnswer, program
from opendas.solvers.problem.problem import FamilyProblem, Status
from support.general.protocol import required

__all__ = ["STATUS_MAP", "solve", "solve_program"]

STATUS_MAP = {
    "PIQP_SOLVED": Status.OPTIMAL,
    "PIQP_PRIMAL_INFEASIBLE": Status.INFEASIBLE,
    "PIQP_DUAL_INFEASIBLE": Status.FAILED,
    "PIQP_MAX_ITER_REACHED": Status.FAILED,
    "PIQP_NUMERICS": Status.FAILED,
    "PIQP_UNSOLVED": Status.FAILED,
    "PIQP_INVALID_SETTINGS": Status.FAILED,
}


def solve(problem: FamilyProblem, *, form: Form = "nested", tolerance: float = 1e-9) -> RawAnswer:
    """Solve to `tolerance`, absolute and relative."""
    return solve_program(program(problem, form), problem.linear.shape, tolerance)


def solve_program(qp: Program, shape: tuple[int, int], tolerance: float = 1e-9) -> RawAnswer:
    """Likewise for any program whose first variables are the cells of an answer of a shape (C, n)."""
    piqp = required("piqp")
    equal = qp.row_lower == qp.row_upper
    solver = piqp.SparseSolver()
    solver.settings.verbose = False
    solver.settings.eps_abs = solver.settings.eps_rel = tolerance
    solver.settings.max_iter = 500
    solver.setup(
        sparse.csc_matrix(qp.P),
        qp.cost,
        sparse.csc_matrix(qp.A[equal]),
        qp.row_lower[equal],
        sparse.csc_matrix(qp.A[~equal]),
        qp.row_lower[~equal],
        qp.row_upper[~equal],
        qp.lower,
        np.full(len(qp.cost), np.inf),
    )
    message = str(solver.solve()).rpartition(".")[2]
    return RawAnswer(
        x=qp.unpack(np.array(solver.result.x), shape),
        status=STATUS_MAP.get(message, Status.FAILED),
        iterations=int(solver.result.info.iter),
        message=message,
    )
