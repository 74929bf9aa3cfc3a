"""The structured solver: reduce, guess, active set, expand."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.optimize.pdas import OK, STALLED, pdas
from opendas.optimize.problem import FamilyProblem
from opendas.optimize.reduce import expand_multipliers, merge_cells, reduced, simpler_bounds, spread
from opendas.optimize.start import project_column, start

__all__ = ["RIDGE", "solve_direct"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RIDGE = 1e-3
"""Weight of the proximal term, where the diagonal of H is 1."""
NO_PARENT: Floats = np.empty(0)
NO_PARENT.flags.writeable = False


@njit(cache=True, nogil=True)
def one_cell(
    B: Floats, parent: Floats, scale: Floats, mask: Bools, groups: Bools, lower: Floats, upper: Floats
) -> tuple[bool, Floats, Floats, Floats]:
    """Exact answer where all cells have merged into one: a quadratic knapsack over children.

    Returns whether the bounds allow any, x of shape (C, 1), mu (1,) and lambda (C, K).
    """
    C = B.shape[0]
    K = groups.shape[0]
    low = np.zeros(C)
    high = np.empty(C)
    low_row = np.full(C, -1, np.int64)
    high_row = np.full(C, -1, np.int64)
    fine = True
    for c in range(C):
        high[c] = np.inf if mask[c, 0] else 0.0
        for k in range(K):
            if not groups[k, 0]:
                fine = fine and lower[c, k] <= 0.0 and upper[c, k] >= 0.0
                continue
            if lower[c, k] > low[c]:
                low[c] = lower[c, k]
                low_row[c] = k
            if upper[c, k] < high[c]:
                high[c] = upper[c, k]
                high_row[c] = k
        fine = fine and low[c] <= high[c]
    x = np.empty(C)
    z = np.empty(C)
    for c in range(C):
        z[c] = B[c, 0]
    theta, within = project_column(z, scale, parent[0], low, high, x)
    lam = np.zeros((C, K))
    for c in range(C):
        force = scale[c] * (x[c] - z[c]) + theta
        if force > 0.0 and low_row[c] >= 0 and x[c] == low[c]:
            lam[c, low_row[c]] = -force
        elif force < 0.0 and high_row[c] >= 0 and x[c] == high[c]:
            lam[c, high_row[c]] = -force
    return fine and within, x.reshape((C, 1)), np.full(1, theta), lam


def solve_direct(
    problem: FamilyProblem, rows: NDArray[np.int32], weights: Floats, limit: int, precision: float
) -> tuple[bool, int, Floats, Floats, Floats]:
    """Structured solution of a family, not yet certified.

    Parameters
    ----------
    problem : FamilyProblem
        The family.
    rows, weights : ndarray, shapes (Q, n) and (Q,)
        Its terms, stacked.
    limit : int
        Most iterations of the active set.
    precision : float
        Of the signs, relative to ``max(1, max parent)``.

    Returns
    -------
    fine, iterations, x, mu, lam
        Whether the active set came to an end; multipliers in units of the sum of the weights.
    """
    parent = NO_PARENT if problem.parent is None else problem.parent
    linear, groups, scale = problem.linear, problem.groups, problem.scale
    mask, lower, upper = simpler_bounds(problem.mask, groups, problem.lower, problem.upper, parent)
    label, first, definite = merge_cells(rows, linear, mask, groups, parent)
    ridge = 0.0 if definite else RIDGE
    H, B, parent1, mask1, groups1, center = reduced(
        rows, weights, linear, mask, groups, parent, label, first, ridge
    )
    tolerance = precision * max(1.0, float(parent.max(initial=0.0)))
    if B.shape[1] == 1 and len(parent) and len(weights):
        fine, y, mu1, lam = one_cell(B, parent1, scale, mask1, groups1, lower, upper)
        status, iterations = OK if fine else STALLED, 1
    else:
        free = start(H, B, parent1, scale, mask1)
        side = np.zeros(lower.shape, np.int8)
        status, iterations, y, mu1, lam = pdas(
            H, B, parent1, scale, mask1, groups1, lower, upper, free, side, center, ridge, limit, tolerance
        )
    x, mu = expand(
        y, mu1, lam, label, parent1, rows, weights, linear, parent, scale, problem.mask, groups, problem.upper
    )
    return status == OK, iterations, x, mu, lam


@njit(cache=True, nogil=True)
def expand(
    y: Floats,
    mu1: Floats,
    lam: Floats,
    label: NDArray[np.int64],
    parent1: Floats,
    rows: NDArray[np.int32],
    weights: Floats,
    linear: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    upper: Floats,
) -> tuple[Floats, Floats]:
    """Answer and multiplier of the parent row on all cells."""
    x = spread(y, label, parent, parent1)
    return x, expand_multipliers(mu1, lam, label, rows, weights, linear, scale, mask, groups, upper, x)
