"""Families whose children have different Hessians: solve, certify, and fall through a fixed chain.

    minimise    sum_c 1/2 x_c' A_c x_c - b_c' x_c,   with the constraints of a FamilyProblem.

The active set of :mod:`opendas.solvers.least_squares.primal_dual_active_set` works with one matrix per child
as it does with one for all:
every child has its own inverse anyway. What differs is where entries, gradients and a first guess come from.
The chain is the active set, with proximal steps where a Hessian is singular or nearly so; steps in the shared
metric, then in that of single cells, to the end or to a point whose active set is right, which is also what
there is where Hessians are too large to be written out; Clarabel; and a proof of infeasibility. As
everywhere, a step down is decided by sizes, iterations and residuals only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from opendas.arrays import Floats
from opendas.errors import EstimationError
from opendas.solvers.general import clarabel
from opendas.solvers.infeasible.feasibility import conflict, obvious_conflict
from opendas.solvers.least_squares.direct import Direct
from opendas.solvers.least_squares.paired import PairedCurvature
from opendas.solvers.least_squares.primal_dual_active_set import INFEASIBLE, OK
from opendas.solvers.least_squares.varied_direct import solve_explicit
from opendas.solvers.least_squares.varied_steps import solve_by_steps
from opendas.solvers.problem.certificate import Multipliers, certify_varied
from opendas.solvers.problem.curvature import Curvature, blocks
from opendas.solvers.problem.problem import FamilyProblem, Solution, Status

__all__ = ["solve_varied"]

logger = logging.getLogger(__name__)

SETTINGS = ((300, 1e-9, 0.0), (2000, 1e-9, 1e-4), (2000, 1e-8, 1e-3), (2000, 1e-8, 1e-6))
"""Tries of the active set: most iterations, precision of signs, ridge of the proximal steps."""
WRITTEN = 40_000_000
"""Entries of all Hessians, on the cells of the parent, up to which they are written out."""
STEPS = 1000
"""Most steps in the problem's metric."""
PLAIN_STEPS = 4000
"""Most steps in the metric of single cells, where the problem's does not lead on."""
GENERAL = 4_000_000
"""Entries of all Hessians up to which a general solver is tried."""


def solve_varied(
    problem: FamilyProblem,
    linear: Floats,
    curvature: Curvature,
    *,
    tolerance: float = 1e-7,
    metric: Callable[[FamilyProblem], FamilyProblem] | None = None,
) -> Solution:
    """Solve one family whose children have Hessians of their own.

    Parameters
    ----------
    problem : FamilyProblem
        The constraints. Its terms and scale are a metric that is near the Hessians, which makes steps
        fewer and has no part in the answer; its linear term is not used.
    linear : ndarray, shape (C, n)
        ``b``.
    curvature : Curvature
        ``A_c``.
    tolerance : float
        Largest relative Karush-Kuhn-Tucker residual, see
        :func:`opendas.solvers.problem.certificate.certify_varied`, of an answer that counts as optimal.
    metric : callable, optional
        Gives the problem its terms and scale, where they are wanted: few families need steps.

    Returns
    -------
    Solution
        ``OPTIMAL`` with a certified residual; ``INFEASIBLE`` with rows in conflict; or ``FAILED``.

    Raises
    ------
    EstimationError
        If shapes disagree, or a linear term or Hessian is not finite.
    """
    linear = np.ascontiguousarray(linear, dtype=np.float64)
    shape = problem.linear.shape
    diagonal = curvature.diagonal()
    for name, array in (("linear", linear), ("the diagonal of the curvature", diagonal)):
        if array.shape != shape:
            raise EstimationError(f"{name} has shape {array.shape}, expected {shape}")
        if not np.isfinite(array).all():
            raise EstimationError(f"{name} must be finite")
    if problem.parent is not None and problem.children == 1:
        return _only_child(problem, problem.parent, linear, curvature, tolerance)
    best = Solution(np.zeros(shape), Status.FAILED, np.inf, 0, "pdas")
    settings = SETTINGS if _explicit(problem, curvature) else ()
    for step, (limit, precision, ridge) in enumerate(settings):
        found = solve_explicit(problem, linear, curvature, limit, precision, ridge)
        answer = _certified(
            problem, linear, curvature, found if found.status == OK else None, tolerance, best
        )
        if answer.status is Status.OPTIMAL:
            return answer
        logger.info("residual %.1e after the active set with ridge %g", answer.residual, ridge)
        if step == 0:
            rows = obvious_conflict(problem, tolerance * _top(problem))
            if not rows and found.status == INFEASIBLE:
                rows = conflict(problem, tolerance=tolerance)
            if rows:
                return replace(answer, status=Status.INFEASIBLE, conflict=rows)
        best = min(best, answer, key=lambda solution: solution.residual)
    near = problem if metric is None else metric(problem)
    for limit, stated in ((STEPS, near), (PLAIN_STEPS, _plain(problem))):
        stepped = solve_by_steps(stated, linear, curvature, tolerance, limit=limit)
        answer = _certified(problem, linear, curvature, stepped, tolerance, replace(best, method="steps"))
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, answer, key=lambda solution: solution.residual)
        if stepped is None or not settings:
            continue
        found = solve_explicit(problem, linear, curvature, *SETTINGS[0], stepped)
        sharper = found if found.status == OK else None
        like = replace(best, method="steps+pdas")
        answer = _certified(problem, linear, curvature, sharper, tolerance, like)
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, answer, key=lambda solution: solution.residual)
    return _last_resort(problem, linear, curvature, tolerance, best)


def _plain(problem: FamilyProblem) -> FamilyProblem:
    """The same constraints in the metric of single cells: far from any Hessian, and never degenerate."""
    return replace(problem, terms=((1.0, np.arange(problem.cells, dtype=np.int32)),))


def _explicit(problem: FamilyProblem, curvature: Curvature) -> bool:
    """Whether the active set can have every entry that it asks for."""
    cells = problem.cells if problem.parent is None else int(np.count_nonzero(problem.parent))
    return isinstance(curvature, PairedCurvature) or problem.children * cells**2 <= WRITTEN


def _certified(
    problem: FamilyProblem,
    linear: Floats,
    curvature: Curvature,
    found: Direct | None,
    tolerance: float,
    like: Solution,
) -> Solution:
    """What was found, with its residual; or nothing, by the same method."""
    if found is None:
        return replace(like, residual=np.inf)
    multipliers = Multipliers(found.mu, found.lam, found.tau)
    residual = certify_varied(problem, linear, curvature, found.x, multipliers)
    status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
    return Solution(found.x, status, residual, found.iterations, like.method)


def _last_resort(
    problem: FamilyProblem, linear: Floats, curvature: Curvature, tolerance: float, best: Solution
) -> Solution:
    """A general solver, where the Hessians can be written out, and a proof of infeasibility."""
    if problem.children * problem.cells**2 <= GENERAL:
        matrices = blocks(curvature, np.arange(problem.cells), problem.linear.shape)
        raw = clarabel.solve_varied(problem, linear, matrices)
        if raw.status is not Status.INFEASIBLE:
            residual = certify_varied(problem, linear, curvature, raw.x)
            answer = Solution(raw.x, Status.FAILED, residual, raw.iterations, "clarabel")
            if residual <= tolerance:
                return replace(answer, status=Status.OPTIMAL)
            best = min(best, answer, key=lambda solution: solution.residual)
    rows = conflict(problem, tolerance=tolerance)
    if rows:
        return replace(best, status=Status.INFEASIBLE, conflict=rows)
    return best


def _only_child(
    problem: FamilyProblem, parent: Floats, linear: Floats, curvature: Curvature, tolerance: float
) -> Solution:
    """A single child is its parent; only the bounds can be wrong."""
    x = np.where(problem.mask, parent, 0.0)
    price = (linear - curvature.apply(x))[0]
    none = np.zeros(problem.lower.shape)
    multipliers = Multipliers(price, none, np.zeros(len(problem.joint_rows[1])))
    residual = certify_varied(problem, linear, curvature, x, multipliers)
    if residual <= tolerance:
        return Solution(x, Status.OPTIMAL, residual, 0, "parent")
    rows = obvious_conflict(problem, tolerance * _top(problem)) or conflict(problem, tolerance=tolerance)
    return Solution(x, Status.INFEASIBLE, residual, 0, "parent", rows)


def _top(problem: FamilyProblem) -> float:
    return 1.0 if problem.parent is None else max(1.0, float(problem.parent.max(initial=0.0)))
