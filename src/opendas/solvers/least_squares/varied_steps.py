"""Families of which only products with the Hessians are known: steps in the shared metric.

Written out, Hessians take C n^2 numbers. Where that is too much, every step solves the family in the shared
metric, made steep enough that it lies above the objective along the step:

    x+ = argmin  sum_c L_c s_c (1/2 (x - y)_c' H (x - y)_c) + (A_c y_c - b_c)' x_c,   with all constraints,

by the structured solver, started from the active set of the step before. Between steps the point moves on (y
is beyond x), as in Beck and Teboulle (2009), and stops doing so where it would go uphill (O'Donoghue and
Candes, 2015). The error goes down by a factor of about 1 - 1 / sqrt(ratio), where the ratio tells how far
apart the metric and the Hessians are: some thirty steps where they are near.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Floats
from opendas.solvers.least_squares.active_set import Family
from opendas.solvers.least_squares.admm import admm
from opendas.solvers.least_squares.direct import Direct, solve_direct
from opendas.solvers.least_squares.primal_dual_active_set import OK
from opendas.solvers.least_squares.varied_direct import active_sides
from opendas.solvers.problem.certificate import Multipliers, certify_varied, stacked_terms, units
from opendas.solvers.problem.curvature import Curvature, SharedCurvature
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["solve_by_steps"]

INSIDE = 300
"""Most iterations of the active set in a step."""
PRECISION = 1e-9
START = (400, 1e-3)
"""First-order start where the active set of a step stalls: most iterations, relative tolerance."""
FLAT = 0.02
"""A metric that does not tell cells apart gets a term that does, of this share of its weight."""
FURTHER = 0.01
"""Part of the residual to reach at which to stop: the last digits come fast."""
PATIENCE = 20
"""Steps without progress before what was reached has to do."""
SLACK = 1.0 + 1e-9
"""Rounding in the comparison of two curvatures."""


def solve_by_steps(
    problem: FamilyProblem, linear: Floats, curvature: Curvature, tolerance: float, *, limit: int
) -> Direct | None:
    """Solve a family by products with its Hessians alone.

    Parameters
    ----------
    problem, linear, curvature
        As in :func:`opendas.solvers.least_squares.varied.solve_varied`.
    tolerance : float
        Residual to reach.
    limit : int
        Most steps.

    Returns
    -------
    Direct or None
        The point of least residual, with multipliers in units of the objective per count. None where the
        constraints are in doubt.
    """
    metric = _metric(problem, units(curvature.diagonal(), problem.mask))
    rows, weights = stacked_terms(metric)
    shape = SharedCurvature(replace(metric, scale=np.ones(problem.children)))
    steep = metric.scale.copy()
    x = y = np.zeros(problem.linear.shape)
    momentum, best, least = 1.0, None, np.inf
    last: Direct | None = None
    since = 0
    for step in range(1, limit + 1):
        slope = curvature.apply(y) - linear
        along = shape.apply(y)
        while True:
            stated = replace(metric, linear=along - slope / steep[:, None], scale=steep)
            found = _step(stated, rows, weights, last)
            if found.status != OK:
                return best
            moved = found.x - y
            bend = np.einsum("cj,cj->c", moved, curvature.apply(moved))
            allowed = steep * np.einsum("cj,cj->c", moved, shape.apply(moved))
            short = bend > SLACK * allowed + 1e-12 * steep * metric.weight
            if not short.any():
                break
            steep = np.where(short, np.maximum(2.0, 1.1 * bend / np.maximum(allowed, 1e-300)) * steep, steep)
        unit = metric.weight
        last = replace(found, iterations=step)
        answer = replace(last, mu=found.mu * unit, lam=found.lam * unit, tau=found.tau * unit)
        residual = certify_varied(
            problem, linear, curvature, found.x, Multipliers(answer.mu, answer.lam, answer.tau)
        )
        if residual < least:
            best, least, since = answer, residual, step
        if least <= FURTHER * tolerance or (least <= tolerance and step - since >= PATIENCE):
            return best
        uphill = np.einsum("c,cj,cj->", steep, y - found.x, shape.apply(found.x - x)) > 0.0
        following = 1.0 if uphill else 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        y = found.x + (0.0 if uphill else (momentum - 1.0) / following) * (found.x - x)
        x, momentum = found.x, following
    return best


def _metric(problem: FamilyProblem, unit: Floats) -> FamilyProblem:
    """The problem with a metric that is definite, and about as steep as the Hessians on the average cell."""
    each = np.arange(problem.cells, dtype=np.int32)
    total = problem.weight
    terms = problem.terms
    if not any(len(np.unique(rows)) == problem.cells for _, rows in terms):
        terms = (*terms, (FLAT * total if total > 0.0 else 1.0, each))
    stated = replace(problem, terms=terms)
    return replace(stated, scale=unit / stated.weight if len(unit) else problem.scale)


def _step(problem: FamilyProblem, rows: NDArray[np.int32], weights: Floats, last: Direct | None) -> Direct:
    """One family in the shared metric, from the active set of the step before where that helps."""
    if last is not None and problem.parent is not None:
        kept = problem.parent != 0.0
        x, lam = last.x, last.lam

        def same(p: Family) -> tuple[NDArray[np.bool_], NDArray[np.int8]]:
            return p.mask & (x[:, kept] > 0.0), active_sides(lam, p.lower, p.upper)

        found = solve_direct(problem, rows, weights, INSIDE, PRECISION, same)
        if found.status == OK:
            return found
    found = solve_direct(problem, rows, weights, INSIDE, PRECISION)
    if found.status == OK or len(problem.joint_rows[1]):
        return found
    limit, precision = START
    top = 1.0 if problem.parent is None else max(1.0, float(problem.parent.max(initial=0.0)))
    return solve_direct(
        problem, rows, weights, INSIDE, PRECISION, lambda p: admm(p, limit, precision * top)[:2]
    )
