"""Independent check of an answer: the residual of the optimality conditions, from the stated problem only.

Nothing here knows how an answer was found. Gradients are computed from the margins, or by the Hessians' own
products, not from anything that a solver wrote down. Any multipliers prove optimality if they satisfy the
conditions, so those of the solver are taken.

In units u_c of each child, with ``g_c = (A_c x_c - b_c) / u_c`` and ``z_c = g_c + (mu + tau_s(c) + G' lam_c)
/ u_c``, everything is in counts, and the residual is the largest of

* ``|sum_c x_c - parent|``, ``-x``, ``x`` outside the mask, violated group bounds, missed joint totals;
* ``|min(x, z)|`` over the cells a child may use (stationarity and complementarity at once);
* ``|sum x_cj - fixed_cr|`` over the cells of a fixed row, whose multiplier ``nu_cr`` is a part of ``z_c``;
* ``|min(lam- / u, G x - lower)|`` and ``|min(lam+ / u, upper - G x)|``,

divided by ``max(1, max parent)``, or by ``max(1, max x)`` where there is no parent. The unit of a child is
the mean diagonal of its Hessian over the cells it may use: ``scale_c`` times the sum of the weights, where
children share one Hessian.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats
from opendas.solvers.problem.problem import Constraints, FamilyProblem, Objective

_NONE = np.zeros(0)


class Multipliers(NamedTuple):
    """Multipliers in units of :attr:`~opendas.solvers.problem.problem.FamilyProblem.unit` per count."""

    parent: Floats  # (n,): mu, any sign; zeros where there is no parent
    groups: Floats  # (C, K): lambda: <= 0 on a lower bound, >= 0 on an upper bound
    joint: Floats = _NONE  # (J,): tau of the joint totals, any sign


@njit(cache=True, nogil=True)
def _shared_gradients(objective: Objective, x: Floats) -> Floats:
    """``(H x_c - linear_c) / sum of the weights`` of every child, in counts, from the margins of x."""
    rows, weights, linear = objective
    C, n = x.shape
    total = 0.0
    for q in range(len(weights)):
        total += weights[q]
    unit = 1.0 / total if total > 0.0 else 1.0
    size = n
    for q in range(rows.shape[0]):
        for j in range(n):
            size = max(size, rows[q, j] + 1)
    g = np.empty((C, n))
    margin = np.empty(size)
    for c in range(C):
        for j in range(n):
            g[c, j] = -linear[c, j] * unit
        for q in range(len(weights)):
            for j in range(n):
                margin[rows[q, j]] = 0.0
            for j in range(n):
                margin[rows[q, j]] += x[c, j]
            w = weights[q] * unit
            for j in range(n):
                g[c, j] += w * margin[rows[q, j]]
    return g


@njit(cache=True, nogil=True)
def _largest_violation(
    g: Floats, factor: Floats, stated: Constraints, x: Floats, multipliers: Multipliers
) -> float:
    """Relative residual, given gradients in counts and what brings multipliers to counts, per child."""
    parent, mask, groups, lower, upper, joint, joint_total = stated
    mu, lam, tau = multipliers
    C, n = x.shape
    K = groups.shape[0]
    worst = 0.0
    magnitude = 1.0
    sums = np.zeros(n)
    missing = joint_total.copy()
    for c in range(C):
        f = factor[c]
        s = joint[c] if len(joint) else -1
        # x >= 0, x = 0 outside the mask, and |min(x, z)| inside.
        for j in range(n):
            value = x[c, j]
            if not np.isfinite(value):
                return np.inf
            sums[j] += value
            if s >= 0:
                missing[s] -= value
            if len(parent) == 0:
                magnitude = max(magnitude, value)
            worst = max(worst, -value)
            if not mask[c, j]:
                worst = max(worst, value)
                continue
            z = mu[j]
            if s >= 0:
                z += tau[s]
            for k in range(K):
                if groups[k, j]:
                    z += lam[c, k]
            worst = max(worst, abs(min(value, g[c, j] + f * z)))
        # lower <= G x <= upper, and the products of slacks and multipliers.
        for k in range(K):
            t = 0.0
            for j in range(n):
                if groups[k, j]:
                    t += x[c, j]
            below = t - lower[c, k]
            above = upper[c, k] - t
            worst = max(worst, max(-below, -above))
            worst = max(worst, min(max(-lam[c, k], 0.0) * f, below))
            worst = max(worst, min(max(lam[c, k], 0.0) * f, above))
    # What children have together.
    for j in range(len(parent)):
        worst = max(worst, abs(sums[j] - parent[j]))
        magnitude = max(magnitude, parent[j])
    for s in range(len(missing)):
        worst = max(worst, abs(missing[s]))
    if not np.isfinite(worst):
        return np.inf
    return worst / magnitude


def certify(
    problem: FamilyProblem, x: Floats, multipliers: Multipliers, fixed: Floats | None = None
) -> float:
    """Relative Karush-Kuhn-Tucker residual of `x`.

    - `fixed` (C, R): nu of the fixed rows, any sign, in the same units. Default: zeros.
    - Returns: dimensionless; 0 at an exact optimum. Infinite where x or its gradient is not finite.
    """
    x = np.ascontiguousarray(x)
    if problem.fixed_rows is not None and problem.fixed is not None:
        return _with_fixed_rows(problem, problem.fixed_rows, problem.fixed, x, multipliers, fixed)
    if problem.hessians is None:
        gradient = _shared_gradients(problem.stacked, x)
        return float(_largest_violation(gradient, 1.0 / problem.scale, problem.constraints, x, multipliers))
    if not np.isfinite(x).all():
        return float(np.inf)
    return _residual(problem, x, multipliers, gradients(problem, x))


def _with_fixed_rows(
    problem: FamilyProblem,
    rows: NDArray[np.int32],
    answers: Floats,
    x: Floats,
    multipliers: Multipliers,
    fixed: Floats | None,
) -> float:
    """Residual where a partition has fixed sums: their multipliers join the gradient, O(C n Q) in all."""
    if not np.isfinite(x).all():
        return float(np.inf)
    sums = np.stack([np.bincount(rows, one, answers.shape[1]) for one in x]) if len(x) else answers
    missed = float(np.abs(sums - answers).max(initial=0.0)) / problem.magnitude(x)
    gradient = gradients(problem, x)
    if fixed is not None:
        gradient = gradient + fixed[:, rows]
    return max(missed, _residual(problem, x, multipliers, gradient))


def _residual(problem: FamilyProblem, x: Floats, multipliers: Multipliers, gradient: Floats) -> float:
    """Relative residual, given the gradients of the children in units of the problem."""
    factor = 1.0 / problem.scale
    if problem.hessians is not None:
        factor = 1.0 / units(problem.hessians.diagonal(), problem.mask)
    gradient = gradient * factor[:, None]
    if not np.isfinite(gradient[problem.mask]).all():
        return float(np.inf)
    return float(_largest_violation(gradient, factor, problem.constraints, x, multipliers))


def gradients(problem: FamilyProblem, x: Floats) -> Floats:
    """``A_c x_c - b_c`` of every child, shape (C, n), in units of the problem."""
    if problem.hessians is not None:
        return problem.hessians.apply(x) - problem.linear
    return _shared_gradients(problem.stacked, x) * problem.scale[:, None]


def units(diagonal: Floats, mask: Bools) -> Floats:
    """Mean diagonal of each child's Hessian over the cells it may use, shape (C,); 1 where that is 0."""
    sums = np.where(mask, diagonal, 0.0).sum(axis=1)
    mean = sums / np.maximum(1, mask.sum(axis=1))
    return np.where(mean > 0.0, mean, 1.0)
