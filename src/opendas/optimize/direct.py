"""The structured solver in one compiled call: reduce, guess, active set, proximal steps, expand."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.optimize.pdas import OK, pdas
from opendas.optimize.reduce import expand_multiplier, merge_cells, reduced, spread
from opendas.optimize.start import project_column, start

__all__ = ["NO_CELL", "RIDGE", "solve_direct"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RIDGE = 1e-3
"""Weight of the proximal term, where the diagonal of H is 1."""
PROXIMAL = 200
"""Most proximal steps."""
NO_CELL = 3
"""Status: a bounded row or a parent count has no cell to go to; the caller proves it."""


@njit(cache=True, nogil=True)
def _one_cell(
    B: Floats, parent: Floats, scale: Floats, mask: Bools, groups: Bools, lower: Floats, upper: Floats
) -> tuple[int, Floats, Floats, Floats]:
    """Exact answer where all cells have merged into one: a quadratic knapsack over children."""
    C = B.shape[0]
    K = groups.shape[0]
    low = np.zeros(C)
    high = np.empty(C)
    low_row = np.full(C, -1, np.int64)
    high_row = np.full(C, -1, np.int64)
    for c in range(C):
        high[c] = np.inf if mask[c, 0] else 0.0
        for k in range(K):
            if not groups[k, 0]:
                if lower[c, k] > 0.0 or upper[c, k] < 0.0:
                    return NO_CELL, B, np.zeros(1), np.zeros((C, K))
                continue
            if lower[c, k] > low[c]:
                low[c] = lower[c, k]
                low_row[c] = k
            if upper[c, k] < high[c]:
                high[c] = upper[c, k]
                high_row[c] = k
        if low[c] > high[c]:
            return NO_CELL, B, np.zeros(1), np.zeros((C, K))
    x = np.empty(C)
    theta, fine = project_column(B[:, 0].copy(), scale, parent[0], low, high, x)
    lam = np.zeros((C, K))
    for c in range(C):
        force = scale[c] * (x[c] - B[c, 0]) + theta
        if force > 0.0 and low_row[c] >= 0 and x[c] == low[c]:
            lam[c, low_row[c]] = -force
        elif force < 0.0 and high_row[c] >= 0 and x[c] == high[c]:
            lam[c, high_row[c]] = -force
    return (OK if fine else NO_CELL), x.reshape(C, 1), np.full(1, theta), lam


@njit(cache=True, nogil=True)
def _proximal(
    H: Floats,
    B: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    limit: int,
    tolerance: float,
) -> tuple[int, int, Floats, Floats, Floats]:
    """Exact optimum where H is singular: ``x <- argmin f(x) + RIDGE/2 |x - x_previous|^2`` until it stays.

    The optimality error of the k-th point is RIDGE times its last step, so the stop is a certificate too.
    """
    C, m = B.shape
    x = np.zeros((C, m))
    for j in range(m):
        allowed = 0
        for c in range(C):
            if mask[c, j]:
                allowed += 1
        if len(parent) and allowed:
            for c in range(C):
                if mask[c, j]:
                    x[c, j] = parent[j] / allowed
    ridged = H.copy()
    for j in range(m):
        ridged[j, j] += RIDGE
    shifted = B + RIDGE * x
    free = start(ridged, shifted, parent, scale, mask)
    side = np.zeros((C, groups.shape[0]), np.int8)
    steps = 0
    for _ in range(PROXIMAL):
        status, iterations, y, mu, lam, _ = pdas(
            ridged, shifted, parent, scale, mask, groups, lower, upper, free, side, limit, tolerance
        )
        steps += iterations
        if status != OK:
            return status, steps, y, mu, lam
        moved = 0.0
        for c in range(C):
            for j in range(m):
                moved = max(moved, abs(y[c, j] - x[c, j]))
                x[c, j] = y[c, j]
                shifted[c, j] = B[c, j] + RIDGE * y[c, j]
        if RIDGE * moved <= tolerance:
            break
    return status, steps, x, mu, lam


@njit(cache=True, nogil=True)
def solve_direct(
    rows: NDArray[np.int32],
    weights: Floats,
    linear: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    limit: int,
    precision: float,
) -> tuple[int, int, Floats, Floats, Floats]:
    """Structured solution of a family.

    Parameters
    ----------
    rows, weights : ndarray, shapes (Q, n) and (Q,)
        The terms.
    linear, parent, scale, mask, groups, lower, upper
        As in :class:`~opendas.optimize.problem.FamilyProblem`; parent empty where there is none.
    limit : int
        Most iterations of the active set.
    precision : float
        Of the signs, relative to ``max(1, max parent)``.

    Returns
    -------
    status, iterations, x, mu, lam
        Multipliers in units of the sum of the weights. Not yet certified.
    """
    label, first, definite = merge_cells(rows, linear, mask, groups, parent)
    H, B, parent1, mask1, groups1 = reduced(rows, weights, linear, mask, groups, parent, label, first)
    scale = scale.copy()
    lower = lower.copy()
    upper = upper.copy()
    C, m = B.shape
    magnitude = 1.0
    for j in range(len(parent)):
        magnitude = max(magnitude, parent[j])
    tolerance = precision * magnitude
    if m == 1 and len(parent) and len(weights):
        status, y, mu1, lam = _one_cell(B, parent1, scale, mask1, groups1, lower, upper)
        iterations = 1
    elif definite:
        free = start(H, B, parent1, scale, mask1)
        side = np.zeros((C, groups.shape[0]), np.int8)
        status, iterations, y, mu1, lam, _ = pdas(
            H, B, parent1, scale, mask1, groups1, lower, upper, free, side, limit, tolerance
        )
    else:
        status, iterations, y, mu1, lam = _proximal(
            H, B, parent1, scale, mask1, groups1, lower, upper, limit, tolerance
        )
    x = spread(y, label, parent, parent1)
    mu = expand_multiplier(mu1, lam, label, rows, weights, linear, scale, mask, groups, x)
    return status, iterations, x, mu, lam
