"""Small dense kernels in a fixed order of summation.

The inverse of a principal submatrix ``H[F, F]`` is kept as ``P`` and changed one index at a time: an index
that enters or leaves ``F`` costs O(m^2), and every inner loop runs along a contiguous row, so it is
vectorised without reordering a sum. No BLAS: same bytes with any number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["cholesky", "insert", "null_vector", "remove", "symmetric_times", "triangular_solve"]

Floats = NDArray[np.float64]

SINGULAR = 1e-11
"""Smallest pivot accepted, where the diagonal of H is 1."""
DEPENDENT = 1e-10
"""Smallest pivot accepted, relative to what the diagonal is made of."""
HUGE = 1e150


@njit(cache=True, nogil=True)
def symmetric_times(P: Floats, m: int, v: Floats, out: Floats) -> None:
    """Set ``out[:m] = P[:m, :m] @ v[:m]`` for symmetric P, four rows at a time."""
    for b in range(m):
        out[b] = 0.0
    a = 0
    while a + 4 <= m:
        v0, v1, v2, v3 = v[a], v[a + 1], v[a + 2], v[a + 3]
        for b in range(m):
            out[b] += (v0 * P[a, b] + v1 * P[a + 1, b]) + (v2 * P[a + 2, b] + v3 * P[a + 3, b])
        a += 4
    while a < m:
        v0 = v[a]
        for b in range(m):
            out[b] += v0 * P[a, b]
        a += 1


@njit(cache=True, nogil=True)
def insert(P: Floats, m: int, h: Floats, diagonal: float, work: Floats, least: float) -> bool:
    """Grow the inverse ``P[:m, :m]`` by one row: `h` is the new column of H on F, `diagonal` its pivot.

    Returns False, and leaves P as it is, where the new pivot is not above `least`: numerically singular.
    """
    symmetric_times(P, m, h, work)
    pivot = diagonal
    for a in range(m):
        pivot -= h[a] * work[a]
    if not pivot > least:
        return False
    inverse = 1.0 / pivot
    for a in range(m):
        f = work[a] * inverse
        for b in range(m):
            P[a, b] += f * work[b]
        P[a, m] = -f
        P[m, a] = -f
    P[m, m] = inverse
    return True


@njit(cache=True, nogil=True)
def remove(P: Floats, m: int, k: int, work: Floats) -> None:
    """Shrink the inverse ``P[:m, :m]`` by index k; the last index takes its place."""
    inverse = 1.0 / P[k, k]
    for b in range(m):
        work[b] = P[k, b]
    for a in range(m):
        f = work[a] * inverse
        for b in range(m):
            P[a, b] -= f * work[b]
    last = m - 1
    if k != last:
        for b in range(m):
            P[k, b] = P[last, b]
        for a in range(m):
            P[a, k] = P[a, last]
        P[k, k] = P[last, last]


@njit(cache=True, nogil=True)
def cholesky(A: Floats, base: Floats, lost: NDArray[np.bool_]) -> int:
    """Factorise ``A = U' U`` in place (upper triangle), right-looking in blocks of eight pivots.

    Rows that a block does not touch are skipped, so an order of the unknowns with few neighbours first pays.
    A pivot below ``DEPENDENT * base`` is lost: its row of U is cleared and its pivot made so large that
    :func:`triangular_solve` sets its component to zero, which solves a consistent singular system.
    `base` may be longer than A. Returns the number of lost pivots, marked in `lost`.
    """
    n = A.shape[0]
    count = 0
    for k in range(0, n, 8):
        top = min(k + 8, n)
        for i in range(k, top):  # the rows of this block, against each other
            for r in range(k, i):
                f = A[r, i]
                if f != 0.0:
                    for j in range(i, n):
                        A[i, j] -= f * A[r, j]
            lost[i] = not A[i, i] > DEPENDENT * base[i]
            if lost[i]:
                count += 1
                for j in range(i + 1, n):
                    A[i, j] = 0.0
                A[i, i] = HUGE
            else:
                root = 1.0 / np.sqrt(A[i, i])
                for j in range(i, n):
                    A[i, j] *= root
        if top - k == 8:
            for i in range(top, n):
                f0, f1, f2, f3 = A[k, i], A[k + 1, i], A[k + 2, i], A[k + 3, i]
                f4, f5, f6, f7 = A[k + 4, i], A[k + 5, i], A[k + 6, i], A[k + 7, i]
                low = (f0 != 0.0) or (f1 != 0.0) or (f2 != 0.0) or (f3 != 0.0)
                high = (f4 != 0.0) or (f5 != 0.0) or (f6 != 0.0) or (f7 != 0.0)
                if low and high:
                    for j in range(i, n):
                        A[i, j] -= (
                            (f0 * A[k, j] + f1 * A[k + 1, j]) + (f2 * A[k + 2, j] + f3 * A[k + 3, j])
                        ) + ((f4 * A[k + 4, j] + f5 * A[k + 5, j]) + (f6 * A[k + 6, j] + f7 * A[k + 7, j]))
                elif low:
                    for j in range(i, n):
                        A[i, j] -= (f0 * A[k, j] + f1 * A[k + 1, j]) + (f2 * A[k + 2, j] + f3 * A[k + 3, j])
                elif high:
                    for j in range(i, n):
                        A[i, j] -= (f4 * A[k + 4, j] + f5 * A[k + 5, j]) + (
                            f6 * A[k + 6, j] + f7 * A[k + 7, j]
                        )
    return count


@njit(cache=True, nogil=True)
def triangular_solve(U: Floats, x: Floats) -> None:
    """Solve ``U' U y = x`` in place."""
    n = U.shape[0]
    for i in range(n):
        f = x[i] / U[i, i]
        x[i] = f
        for j in range(i + 1, n):
            x[j] -= f * U[i, j]
    for i in range(n - 1, -1, -1):
        f0, f1, f2, f3 = x[i], 0.0, 0.0, 0.0
        j = i + 1
        while j + 4 <= n:  # four sums at once: a fixed order, and no waiting for the last addition
            f0 -= U[i, j] * x[j]
            f1 -= U[i, j + 1] * x[j + 1]
            f2 -= U[i, j + 2] * x[j + 2]
            f3 -= U[i, j + 3] * x[j + 3]
            j += 4
        while j < n:
            f0 -= U[i, j] * x[j]
            j += 1
        x[i] = ((f0 + f1) + (f2 + f3)) / U[i, i]


@njit(cache=True, nogil=True)
def null_vector(U: Floats, k: int, y: Floats) -> None:
    """Set y to the null vector of ``U' U`` that belongs to the lost pivot k, scaled to largest entry 1."""
    n = U.shape[0]
    for j in range(n):
        y[j] = 0.0
    y[k] = 1.0
    largest = 1.0
    for i in range(k - 1, -1, -1):
        f = 0.0
        for j in range(i + 1, k + 1):
            f -= U[i, j] * y[j]
        y[i] = f / U[i, i]
        largest = max(largest, abs(y[i]))
    for j in range(k + 1):
        y[j] /= largest
        if abs(y[j]) < 1e-10:
            y[j] = 0.0
