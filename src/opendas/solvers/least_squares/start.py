"""A first guess of the active set, in kernels that are compiled once: projected unconstrained optima.

The unconstrained optimum of each child is projected cell by cell.

Without groups and signs the optimum of a child is ``z_c = H^-1 b_c``. Projecting every column on
``{x >= 0, sum_c x_c = parent}`` takes no more than a few passes, and leaves most cells on the right side.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Bools, Floats
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.kernels import SINGULAR, cholesky, insert, symmetric_times


@njit(cache=True, nogil=True)
def project_column(
    z: Floats, scale: Floats, total: float, lower: Floats, upper: Floats, x: Floats
) -> tuple[float, bool]:
    """Nearest x to z in the metric `scale` with ``lower <= x <= upper`` and the given sum.

    Bitran and Hax's variable fixing: exact, at most C passes. Returns the multiplier of the sum
    (``scale (x - z) + theta = 0`` where x is strictly between its bounds) and whether the set is not empty.
    """
    C = len(z)
    at = np.zeros(C, np.int8)
    left = total
    theta = 0.0
    for _ in range(C + 1):
        weight = 0.0
        t = 0.0
        for c in range(C):
            if at[c] == 0:
                weight += 1.0 / scale[c]
                t += z[c]
        if weight == 0.0:
            break
        theta = (t - left) / weight
        below = 0.0
        above = 0.0
        for c in range(C):
            if at[c] == 0:
                x[c] = z[c] - theta / scale[c]
                below += max(lower[c] - x[c], 0.0)
                above += max(x[c] - upper[c], 0.0)
        if below == 0.0 and above == 0.0:
            return theta, True
        for c in range(C):
            if at[c] == 0:
                if below >= above and x[c] <= lower[c]:
                    at[c] = -1
                    x[c] = lower[c]
                    left -= x[c]
                elif above >= below and x[c] >= upper[c]:
                    at[c] = 1
                    x[c] = upper[c]
                    left -= x[c]
    return theta, abs(left) <= 1e-9 * max(1.0, abs(total))


@inner
def _less_the_rest(W: Floats, i: int, f: Floats, low: int, high: int) -> None:
    """Set row i of W to ``(W_i - sum_j f_j W_j) / f_i``, the sum over `low` to `high` - 1 in this order.

    Its eight columns stay in registers.
    """
    a0, a1, a2, a3, a4, a5, a6, a7 = W[i, 0], W[i, 1], W[i, 2], W[i, 3], W[i, 4], W[i, 5], W[i, 6], W[i, 7]
    for j in range(low, high):
        g = f[j]
        a0 -= g * W[j, 0]
        a1 -= g * W[j, 1]
        a2 -= g * W[j, 2]
        a3 -= g * W[j, 3]
        a4 -= g * W[j, 4]
        a5 -= g * W[j, 5]
        a6 -= g * W[j, 6]
        a7 -= g * W[j, 7]
    d = f[i]
    W[i, 0], W[i, 1], W[i, 2], W[i, 3] = a0 / d, a1 / d, a2 / d, a3 / d
    W[i, 4], W[i, 5], W[i, 6], W[i, 7] = a4 / d, a5 / d, a6 / d, a7 / d


@inner
def _solve_together(U: Floats, B: Floats, Z: Floats) -> None:
    """Solve ``U' U z_c = b_c`` for all children, eight at a time."""
    C, n = B.shape
    W = np.zeros((n, 8))
    for first in range(0, C, 8):
        some = min(8, C - first)
        for c in range(some):
            for j in range(n):
                W[j, c] = B[first + c, j]
        for i in range(n):
            _less_the_rest(W, i, U[:, i], 0, i)
        for i in range(n - 1, -1, -1):
            _less_the_rest(W, i, U[i], i + 1, n)
        for c in range(some):
            for j in range(n):
                Z[first + c, j] = W[j, c]


@njit(cache=True, nogil=True)
def unconstrained(H: Floats, B: Floats) -> Floats:
    """``H^-1 b_c`` of every child, shape (C, n); a rough guess where H is singular."""
    C, n = B.shape
    Z = np.empty((C, n))
    if n > 10 * C:  # few right-hand sides: no inverse, and all of them at once
        U = H.copy()
        cholesky(U, np.ones(n), np.empty(n, np.bool_))
        _solve_together(U, B, Z)
        return Z
    P = np.zeros((n, n))
    work = np.empty(n)
    fine = True
    for j in range(n):
        fine = insert(P, j, H[j], H[j, j], work, SINGULAR) and fine
    for c in range(C):
        if fine:
            symmetric_times(P, n, B[c], Z[c])
        else:
            for j in range(n):
                Z[c, j] = 1.0
    return Z


@njit(cache=True, nogil=True)
def project(Z: Floats, parent: Floats, scale: Floats, mask: Bools) -> Bools:
    """Cells that are positive after the projection of every column, shape (C, n)."""
    C, n = Z.shape
    free = np.zeros((C, n), np.bool_)
    if len(parent) == 0:
        for c in range(C):
            for j in range(n):
                free[c, j] = mask[c, j] and Z[c, j] > 0.0
        return free
    z = np.empty(C)
    x = np.empty(C)
    lower = np.zeros(C)
    upper = np.empty(C)
    for j in range(n):
        for c in range(C):
            z[c] = Z[c, j]
            upper[c] = np.inf if mask[c, j] else 0.0
        project_column(z, scale, parent[j], lower, upper, x)
        for c in range(C):
            free[c, j] = mask[c, j] and x[c] > 0.0
    return free
