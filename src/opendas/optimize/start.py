"""A first guess of the active set: the unconstrained optimum of each child, projected cell by cell.

Without groups and signs the optimum of a child is ``z_c = H^-1 b_c``. Projecting every column on
``{x >= 0, sum_c x_c = parent}`` takes no more than a few passes, and leaves most cells on the right side.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.optimize.kernels import SINGULAR, cholesky, insert, symmetric_times

__all__ = ["project", "project_column", "unconstrained"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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


@njit(cache=True, nogil=True)
def _solve_together(U: Floats, B: Floats, Z: Floats) -> None:
    """Solve ``U' U z_c = b_c`` for all children; their loop is innermost, along contiguous memory."""
    C, n = B.shape
    W = np.empty((n, C))
    for c in range(C):
        for j in range(n):
            W[j, c] = B[c, j]
    for i in range(n):
        for c in range(C):
            W[i, c] /= U[i, i]
        for j in range(i + 1, n):
            f = U[i, j]
            for c in range(C):
                W[j, c] -= f * W[i, c]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            f = U[i, j]
            for c in range(C):
                W[i, c] -= f * W[j, c]
        for c in range(C):
            W[i, c] /= U[i, i]
            Z[c, i] = W[i, c]


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
