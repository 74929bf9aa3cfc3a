"""HiGHS: active set for quadratic programs; in the extra ``solvers``."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from opendas.solvers.least_squares.clarabel import Form, RawAnswer, program
from opendas.solvers.problem.problem import FamilyProblem, Status
from support.general.protocol import required

__all__ = ["STATUS_MAP", "solve"]

STATUS_MAP = {
    "Optimal": Status.OPTIMAL,
    "Infeasible": Status.INFEASIBLE,
    "Primal infeasible or unbounded": Status.FAILED,
    "Unbounded": Status.FAILED,
    "Unknown": Status.FAILED,
    "Not Set": Status.FAILED,
    "Solve error": Status.FAILED,
    "Iteration limit reached": Status.FAILED,
    "Time limit reached": Status.FAILED,
}

OPTIONS = {"output_flag": False, "threads": 1, "qp_regularization_value": 0.0}


def solve(problem: FamilyProblem, *, form: Form = "plain", tolerance: float = 1e-9) -> RawAnswer:
    """Solve to `tolerance` (feasibility), without the solver's own regularisation."""
    highspy = required("highspy")
    qp = program(problem, form)
    N, M = len(qp.cost), len(qp.row_lower)
    infinity = highspy.kHighsInf
    model = highspy.HighsModel()
    lp = model.lp_
    lp.num_col_, lp.num_row_ = N, M
    lp.col_cost_ = qp.cost
    lp.col_lower_ = np.where(np.isfinite(qp.lower), qp.lower, -infinity)
    lp.col_upper_ = np.full(N, infinity)
    lp.row_lower_ = np.where(np.isfinite(qp.row_lower), qp.row_lower, -infinity)
    lp.row_upper_ = np.where(np.isfinite(qp.row_upper), qp.row_upper, infinity)
    A = sparse.csc_array(qp.A)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = A.indptr, A.indices, A.data
    triangle = sparse.csc_array(sparse.tril(qp.P))
    if triangle.nnz:
        model.hessian_.dim_ = N
        model.hessian_.format_ = highspy.HessianFormat.kTriangular
        model.hessian_.start_ = triangle.indptr
        model.hessian_.index_, model.hessian_.value_ = triangle.indices, triangle.data
    solver = highspy.Highs()
    tolerances = dict.fromkeys(("primal_feasibility_tolerance", "dual_feasibility_tolerance"), tolerance)
    for name, value in (OPTIONS | tolerances).items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    message = solver.modelStatusToString(solver.getModelStatus())
    info = solver.getInfo()
    y = np.array(solver.getSolution().col_value)
    return RawAnswer(
        x=qp.unpack(y if len(y) == N else np.zeros(N), problem.linear.shape),
        status=STATUS_MAP.get(message, Status.FAILED),
        iterations=int(info.qp_iteration_count + info.simplex_iteration_count),
        message=message,
    )
