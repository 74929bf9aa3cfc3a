"""Roots that share one joint total, by its price: the slow way round, and the more exact one.

At a given multiplier tau the roots have nothing to do with each other, and each is solved by the method made
for roots, in the structure of H. The sum of all cells falls with tau, along straight lines between changes of
an active set, so the tau at which it is the joint total is found by false position (Illinois rule).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opendas.solvers.least_squares.direct import Direct, solve_direct
from opendas.solvers.least_squares.primal_dual_active_set import OK
from opendas.solvers.problem.certificate import stacked_terms
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["has_one_price", "solve_by_price"]

STEPS = 80
"""Most solutions; false position takes about ten."""
CLOSE = 1e-13
"""Distance from the joint total, relative to it, at which to stop."""


def has_one_price(problem: FamilyProblem) -> bool:
    """Whether the children are roots, and all of them share one joint total."""
    joint, total = problem.joint_rows
    return problem.parent is None and len(total) == 1 and not joint.any()


def solve_by_price(problem: FamilyProblem, limit: int, precision: float) -> Direct | None:
    """Solve for roots that share one joint total.

    Parameters
    ----------
    problem : FamilyProblem
        See :func:`has_one_price`.
    limit, precision
        As in :func:`opendas.solvers.least_squares.direct.solve_direct`.

    Returns
    -------
    Direct or None
        None where a root has no solution, or no price reaches the total.
    """
    rows, weights = stacked_terms(problem)
    total = float(problem.joint_rows[1][0])
    each = (problem.weight / problem.scale)[:, None]

    def at(tau: float) -> tuple[Direct, float]:
        shifted = replace(
            problem, linear=problem.linear - tau * each, joint=None, joint_total=None, joint_names=()
        )
        found = solve_direct(shifted, rows, weights, limit, precision)
        return replace(found, tau=np.array([tau])), float(found.x.sum()) - total

    low = high = 0.0  # the sum is above the total at low, below it at high
    found, gap = at(0.0)
    above = below = gap
    step = max(1.0, abs(gap) / problem.linear.size)
    for _ in range(STEPS):
        if found.status != OK:
            return None
        if abs(gap) <= CLOSE * max(1.0, total):
            return found
        if above > 0.0 > below:
            tau = low + (high - low) * above / (above - below)
            if not low < tau < high:
                return found
        else:
            tau = high + step if gap > 0.0 else low - step
            step *= 4.0
        found, now = at(tau)
        if now > 0.0:
            low, above = tau, now
            below = 0.5 * below if gap > 0.0 else below
        else:
            high, below = tau, now
            above = 0.5 * above if gap <= 0.0 else above
        gap = now
    return found
