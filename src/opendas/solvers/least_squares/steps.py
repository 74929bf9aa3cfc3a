"""Families whose Hessians are too large to be written out: steps in a metric that all children share.

Written out, Hessians take C n^2 numbers. Where that is too much, they are only multiplied with: every step
solves the family in the metric of the problem's terms, made steep enough that it lies above the objective
along the step,

    x+ = argmin  sum_c L_c s_c (1/2 (x - y)_c' H (x - y)_c) + (A_c y_c - b_c)' x_c,   with all constraints,

by the structured solver, started from the active set of the step before. Between steps the point moves on (y
is beyond x), as in Beck and Teboulle (2009), and stops doing so where it would go uphill (O'Donoghue and
Candes, 2015). The error goes down by a factor of about 1 - 1 / sqrt(ratio), where the ratio tells how far
apart the metric and the Hessians are: some thirty steps where they are near.

Families of the informed estimator need it whose Hessians are not in the form of pairs and have more than 40
million entries, so that no run ends for want of memory with its budget spent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opendas.arrays import Floats
from opendas.solvers.least_squares.direct import Direct, Near, solve_direct
from opendas.solvers.least_squares.primal_dual_active_set import OK
from opendas.solvers.problem.certificate import Multipliers, certify, units
from opendas.solvers.problem.curvature import SharedCurvature
from opendas.solvers.problem.problem import FamilyProblem

STEPS = 1000
"""Most steps in the problem's metric."""
PLAIN_STEPS = 4000
"""Most steps in the metric of single cells, far from any Hessian and never degenerate."""
INSIDE = 300
"""Most iterations of the active set in a step."""
PRECISION = 1e-9
FLAT = 0.02
"""A metric that does not distinguish cells gets a term that does, of this share of its weight."""
FURTHER = 0.01
"""Part of the residual to reach at which to stop: the last digits come fast."""
PATIENCE = 20
"""Steps without progress before what was reached has to do."""
SLACK = 1.0 + 1e-9
"""Rounding in the comparison of two curvatures."""


def solve_by_steps(problem: FamilyProblem, tolerance: float) -> Direct | None:
    """Solve a family by products with its Hessians alone.

    - `problem`: its children have Hessians of their own; its terms and scale are a metric.
    - `tolerance`: residual to reach.
    - Returns: the point of least residual. None where the constraints are in doubt.
    """
    plain = replace(problem, terms=((1.0, np.arange(problem.cells, dtype=np.int32)),))
    found, residual = _steps(problem, tolerance, STEPS)
    other, least = (None, np.inf) if residual <= tolerance else _steps(plain, tolerance, PLAIN_STEPS)
    return other if least < residual else found


def _steps(problem: FamilyProblem, tolerance: float, limit: int) -> tuple[Direct | None, float]:
    """The point of least residual, and its residual."""
    curvature = problem.curvature
    metric = _metric(problem, units(curvature.diagonal(), problem.mask))
    shape = SharedCurvature(metric.terms, np.ones(problem.children))
    steep = metric.scale.copy()
    x = y = np.zeros(problem.linear.shape)
    momentum, least = 1.0, np.inf
    best: Direct | None = None
    last: Near | None = None
    since = 0
    for step in range(1, limit + 1):
        slope = curvature.apply(y) - problem.linear
        along = shape.apply(y)
        # The step at y: steeper, until the metric lies above the objective along it.
        while True:
            found = _step(replace(metric, linear=along - slope / steep[:, None], scale=steep), last)
            if found.status != OK:
                return best, least
            moved = found.x - y
            bend = np.einsum("cj,cj->c", moved, curvature.apply(moved))
            allowed = steep * np.einsum("cj,cj->c", moved, shape.apply(moved))
            short = bend > SLACK * allowed + 1e-12 * steep * metric.weight
            if not short.any():
                break
            steep = np.where(short, np.maximum(2.0, 1.1 * bend / np.maximum(allowed, 1e-300)) * steep, steep)
        last = Near(found.x > 0.0, found.multipliers.groups)
        multipliers = Multipliers(*(part * metric.weight for part in found.multipliers))
        residual = certify(problem, found.x, multipliers)
        if residual < least:
            best, least, since = Direct(OK, step, found.x, multipliers), residual, step
        if least <= FURTHER * tolerance or (least <= tolerance and step - since >= PATIENCE):
            return best, least
        # Where to look next: beyond x, unless that is uphill.
        uphill = np.einsum("c,cj,cj->", steep, y - found.x, shape.apply(found.x - x)) > 0.0
        following = 1.0 if uphill else 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        y = found.x + (0.0 if uphill else (momentum - 1.0) / following) * (found.x - x)
        x, momentum = found.x, following
    return best, least


def _metric(problem: FamilyProblem, unit: Floats) -> FamilyProblem:
    """The problem with a metric that is definite, and about as steep as the Hessians on the average cell."""
    each = np.arange(problem.cells, dtype=np.int32)
    total = problem.weight
    terms = problem.terms
    if not any(len(np.unique(rows)) == problem.cells for _, rows in terms):
        terms = (*terms, (FLAT * total if total > 0.0 else 1.0, each))
    stated = replace(problem, terms=terms, hessians=None)
    return replace(stated, scale=unit / stated.weight if len(unit) else problem.scale)


def _step(problem: FamilyProblem, last: Near | None) -> Direct:
    """One family in the shared metric, from the active set of the step before where that helps."""
    if last is not None and problem.parent is not None:
        found = solve_direct(problem, INSIDE, PRECISION, near=last)
        if found.status == OK:
            return found
    return solve_direct(problem, INSIDE, PRECISION)
