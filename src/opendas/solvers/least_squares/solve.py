"""Solve a family: route, certify, and fall through a fixed chain.

The chain is active set, active set from a first-order start (twice, the second time tighter), for a root its
last linear solve again in extended precision, general solver with the active set to sharpen it, proof of
infeasibility. Families with joint totals go from the active set to the general solver, roots with one of them
by its price. A step down is decided by iterations and residuals only, never by clock or memory, so the same
problem takes the same way on every machine.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats
from opendas.solvers.general import clarabel
from opendas.solvers.infeasible.feasibility import conflict, obvious_conflict
from opendas.solvers.least_squares.active_set import Family
from opendas.solvers.least_squares.admm import admm
from opendas.solvers.least_squares.direct import Guess, solve_direct
from opendas.solvers.least_squares.polish import polish_root
from opendas.solvers.least_squares.prices import has_one_price, solve_by_price
from opendas.solvers.least_squares.primal_dual_active_set import INFEASIBLE, OK
from opendas.solvers.problem.certificate import Multipliers, certify, stacked_terms
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem, Solution, Status

__all__ = ["solve"]

logger = logging.getLogger(__name__)

Sides = NDArray[np.int8]
LIMIT = 300
"""Most active-set iterations."""
PRECISION = 1e-9
"""Wrong signs smaller than this, relative to max(1, max parent), are rounding."""
PROXIMAL = ((2000, 1e-8, 1e-3), (2000, 1e-8, 1e-6))
"""Second and third try, for an H that is definite by little: most iterations, precision, ridge."""
STARTS = ((400, 1e-3), (4000, 1e-6))
"""First-order starts: most iterations, and tolerance relative to max(1, max parent)."""
NEARLY = 1e-4
"""Residual of a root below which its active set is taken as right, and refined."""


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
        return _only_child(problem, problem.parent, tolerance)
    answer = _structured(problem, tolerance, "pdas")
    if answer.status is Status.OPTIMAL:
        return answer
    found = obvious_conflict(problem, tolerance * _top(problem))
    if not found and answer.status is Status.INFEASIBLE:
        found = conflict(problem, tolerance=tolerance)
    if found:
        return replace(answer, status=Status.INFEASIBLE, conflict=found)
    return _fall_through(problem, tolerance, replace(answer, status=Status.FAILED))


def _structured(
    problem: FamilyProblem,
    tolerance: float,
    method: str,
    guess: Guess | None = None,
    settings: tuple[int, float, float | None] = (LIMIT, PRECISION, None),
) -> Solution:
    """One run of the active set. OPTIMAL is certified; INFEASIBLE is not yet proved."""
    rows, weights = stacked_terms(problem)
    limit, precision, ridge = settings
    found = solve_direct(problem, rows, weights, limit, precision, guess, ridge)
    fine = found.status == OK
    residual = certify(problem, found.x, Multipliers(found.mu, found.lam, found.tau)) if fine else np.inf
    status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
    if found.status == INFEASIBLE:
        status = Status.INFEASIBLE
    return Solution(found.x, status, residual, found.iterations, method)


def _priced(problem: FamilyProblem, tolerance: float) -> Solution:
    """Roots that share one joint total, each by itself at the price that all of them pay."""
    found = solve_by_price(problem, LIMIT, PRECISION)
    if found is None:
        return Solution(np.zeros(problem.linear.shape), Status.FAILED, np.inf, 0, "price")
    residual = certify(problem, found.x, Multipliers(found.mu, found.lam, found.tau))
    status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
    return Solution(found.x, status, residual, found.iterations, "price")


def _only_child(problem: FamilyProblem, parent: Floats, tolerance: float) -> Solution:
    """A single child is its parent; only the bounds can be wrong."""
    x = np.where(problem.mask, parent, 0.0)
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
    tau = np.zeros(len(problem.joint_rows[1]))
    return Multipliers(-problem.scale[0] * gradient / unit, np.zeros((1, len(problem.groups))), tau)


def _top(problem: FamilyProblem) -> float:
    return 1.0 if problem.parent is None else max(1.0, float(problem.parent.max(initial=0.0)))


def _why(problem: FamilyProblem, tolerance: float) -> tuple[ConstraintRow, ...]:
    found = obvious_conflict(problem, tolerance * _top(problem))
    return found or conflict(problem, tolerance=tolerance)


def _fall_through(problem: FamilyProblem, tolerance: float, best: Solution) -> Solution:
    """Everything after the first method, in order."""
    if has_one_price(problem):
        answer = _priced(problem, tolerance)
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, answer, key=lambda solution: solution.residual)
    for settings in PROXIMAL:
        answer = _structured(problem, tolerance, "pdas", settings=settings)
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, replace(answer, status=Status.FAILED), key=lambda solution: solution.residual)
    top = _top(problem)
    joint = len(problem.joint_rows[1]) > 0  # neither the first-order start nor the refinement knows such rows
    for limit, precision in () if joint else STARTS:
        logger.info("residual %.1e after %s; starting the active set from ADMM", best.residual, best.method)

        def first_order(p: Family, limit: int = limit, precision: float = precision) -> tuple[Bools, Sides]:
            return admm(p, limit, precision * top)[:2]

        answer = _structured(problem, tolerance, "admm+pdas", guess=first_order)
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, replace(answer, status=Status.FAILED), key=lambda solution: solution.residual)
    if problem.parent is None and not joint and best.residual < NEARLY:
        refined, multipliers = polish_root(problem, best.x)
        residual = certify(problem, refined, multipliers)
        if residual <= tolerance:
            return replace(best, x=np.maximum(refined, 0.0), status=Status.OPTIMAL, residual=residual)
    logger.info("residual %.1e after %s; trying Clarabel", best.residual, best.method)
    raw = clarabel.solve(problem)
    if raw.status is not Status.INFEASIBLE:
        residual = certify(problem, raw.x)
        status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
        answer = Solution(raw.x, status, residual, raw.iterations, "clarabel")
        if answer.status is Status.OPTIMAL:
            return answer
        best = min(best, answer, key=lambda solution: solution.residual)
    found = conflict(problem, tolerance=tolerance)
    if found:
        return replace(best, status=Status.INFEASIBLE, conflict=found)
    return best
