"""Solve a family: route, certify, and fall through a fixed chain.

The chain is active set, active set from a first-order start, general solver, proof of infeasibility. A step
down is decided by iterations and residuals only, never by clock or memory, so the same problem takes the same
way on every machine.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from opendas.optimize.certificate import Multipliers, certify, stacked_terms
from opendas.optimize.direct import solve_direct
from opendas.optimize.feasibility import conflict, obvious_conflict
from opendas.optimize.problem import ConstraintRow, FamilyProblem, Solution, Status
from opendas.optimize.solvers import clarabel

__all__ = ["solve"]

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
LIMIT = 300
"""Most active-set iterations."""
PRECISION = 1e-9
"""Wrong signs smaller than this, relative to max(1, max parent), are rounding."""


def solve(problem: FamilyProblem, *, tolerance: float = 1e-7) -> Solution:
    """Solve one family.

    Parameters
    ----------
    problem : FamilyProblem
        The family.
    tolerance : float
        Largest relative Karush-Kuhn-Tucker residual of an answer that counts as optimal.

    Returns
    -------
    Solution
        ``OPTIMAL`` with a certified residual; ``INFEASIBLE`` with rows in conflict; or ``FAILED``.

    Notes
    -----
    Equations (7.1), (7.2) and (7.5) of the TopDown paper.
    """
    if problem.parent is not None and problem.children == 1:
        return _only_child(problem, tolerance)
    rows, weights = stacked_terms(problem)
    fine, iterations, x, mu, lam = solve_direct(problem, rows, weights, LIMIT, PRECISION)
    best = Solution(x, Status.FAILED, np.inf, int(iterations), "pdas")
    if fine:
        residual = certify(problem, x, Multipliers(mu, lam))
        if residual <= tolerance:
            return Solution(x, Status.OPTIMAL, residual, int(iterations), "pdas")
        best = Solution(x, Status.FAILED, residual, int(iterations), "pdas")
    return _fall_through(problem, tolerance, best)


def _only_child(problem: FamilyProblem, tolerance: float) -> Solution:
    """A single child is its parent; only the bounds can be wrong."""
    assert problem.parent is not None
    x = np.where(problem.mask, problem.parent, 0.0)[:1]
    residual = certify(problem, x, _pricing(problem, x))
    if residual <= tolerance:
        return Solution(x, Status.OPTIMAL, residual, 0, "parent")
    return Solution(x, Status.INFEASIBLE, residual, 0, "parent", _why(problem, tolerance))


def _pricing(problem: FamilyProblem, x: Floats) -> Multipliers:
    """Multipliers of a single child: the parent row carries the whole gradient."""
    gradient = -problem.linear[0].copy()
    for weight, rows in problem.terms:
        gradient += weight * np.bincount(rows, x[0])[rows]
    unit = problem.weight if problem.terms else 1.0
    return Multipliers(-problem.scale[0] * gradient / unit, np.zeros((1, len(problem.groups))))


def _why(problem: FamilyProblem, tolerance: float) -> tuple[ConstraintRow, ...]:
    top = 1.0 if problem.parent is None else max(1.0, float(problem.parent.max(initial=0.0)))
    return obvious_conflict(problem, tolerance * top) or conflict(problem, tolerance=tolerance)


def _fall_through(problem: FamilyProblem, tolerance: float, best: Solution) -> Solution:
    logger.info("the active set was not certified (residual %.1e); trying the next method", best.residual)
    found = _why(problem, tolerance)
    if found:
        return Solution(best.x, Status.INFEASIBLE, best.residual, best.iterations, "linear program", found)
    raw = clarabel.solve(problem)
    residual = certify(problem, raw.x)
    if residual < best.residual:
        best = Solution(raw.x, Status.FAILED, residual, raw.iterations, "clarabel")
    if best.residual <= tolerance:
        return Solution(best.x, Status.OPTIMAL, best.residual, best.iterations, best.method)
    return best
