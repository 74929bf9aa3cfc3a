"""Small dense kernels in a fixed order of summation.

The inverse of a principal submatrix ``H[F, F]`` is kept as ``P`` and changed one index at a time: an index
that enters or leaves ``F`` costs O(m^2), and every inner loop runs along a contiguous row, so it is
vectorised without reordering a sum. No BLAS: same bytes with any number of threads.

Loops that do not start at 0 count in unsigned integers. A signed index might be negative and count from the
end; numba allows for that, and then the loop is not vectorised.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Bools, Floats
from opendas.arrays.kernels import inner

SINGULAR = 1e-11
"""Smallest pivot accepted, where the diagonal of H is 1."""
DEPENDENT = 1e-10
"""Smallest pivot accepted, relative to what the diagonal is made of."""
HUGE = 1e150
ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT = (np.uint64(k) for k in range(9))


@inner
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


@inner
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
def cholesky(A: Floats, base: Floats, lost: Bools) -> int:
    """Factorise ``A = U' U`` in place (upper triangle), right-looking in blocks of eight pivots.

    Rows that a block does not touch are skipped, so an order of the unknowns with few neighbours first pays.
    A pivot below ``DEPENDENT * base`` is lost: its row of U is cleared and its pivot made so large that
    :func:`triangular_solve` sets its component to zero, which solves a consistent singular system.
    `base` may be longer than A. Returns the number of lost pivots, marked in `lost`.
    """
    n = np.uint64(A.shape[0])
    count = 0
    for k in range(ZERO, n, EIGHT):
        top = min(k + EIGHT, n)
        for i in range(k, top):  # the rows of this block, against each other
            for r in range(k, i):
                f = A[r, i]
                if f != 0.0:
                    for j in range(i, n):
                        A[i, j] -= f * A[r, j]
            lost[i] = not A[i, i] > DEPENDENT * base[i]
            if lost[i]:
                count += 1
                for j in range(i + ONE, n):
                    A[i, j] = 0.0
                A[i, i] = HUGE
            else:
                root = 1.0 / np.sqrt(A[i, i])
                for j in range(i, n):
                    A[i, j] *= root
        if top - k == EIGHT:
            _less_the_block(A, np.uint64(k), n)
    return count


@inner
def _less_the_block(A: Floats, k: np.uint64, n: np.uint64) -> None:
    """Subtract what the eight pivots from k explain from all rows after them."""
    k1, k2, k3, k4, k5, k6, k7 = k + ONE, k + TWO, k + THREE, k + FOUR, k + FIVE, k + SIX, k + SEVEN
    for i in range(k + EIGHT, n):
        f0, f1, f2, f3 = A[k, i], A[k1, i], A[k2, i], A[k3, i]
        f4, f5, f6, f7 = A[k4, i], A[k5, i], A[k6, i], A[k7, i]
        low = (f0 != 0.0) or (f1 != 0.0) or (f2 != 0.0) or (f3 != 0.0)
        high = (f4 != 0.0) or (f5 != 0.0) or (f6 != 0.0) or (f7 != 0.0)
        if low and high:
            for j in range(i, n):
                A[i, j] -= ((f0 * A[k, j] + f1 * A[k1, j]) + (f2 * A[k2, j] + f3 * A[k3, j])) + (
                    (f4 * A[k4, j] + f5 * A[k5, j]) + (f6 * A[k6, j] + f7 * A[k7, j])
                )
        elif low:
            for j in range(i, n):
                A[i, j] -= (f0 * A[k, j] + f1 * A[k1, j]) + (f2 * A[k2, j] + f3 * A[k3, j])
        elif high:
            for j in range(i, n):
                A[i, j] -= (f4 * A[k4, j] + f5 * A[k5, j]) + (f6 * A[k6, j] + f7 * A[k7, j])


@njit(cache=True, nogil=True)
def triangular_solve(U: Floats, x: Floats) -> None:
    """Solve ``U' U y = x`` in place."""
    n = np.uint64(U.shape[0])
    for k in range(n):
        f = x[k] / U[k, k]
        x[k] = f
        for o in range(k + ONE, n):
            x[o] -= f * U[k, o]
    i = n
    while i > ZERO:
        i -= ONE
        f0, f1, f2, f3 = x[i], 0.0, 0.0, 0.0
        j = i + ONE
        while j + FOUR <= n:  # four sums at once: a fixed order, and no waiting for the last addition
            f0 -= U[i, j] * x[j]
            f1 -= U[i, j + ONE] * x[j + ONE]
            f2 -= U[i, j + TWO] * x[j + TWO]
            f3 -= U[i, j + THREE] * x[j + THREE]
            j += FOUR
        while j < n:
            f0 -= U[i, j] * x[j]
            j += ONE
        x[i] = ((f0 + f1) + (f2 + f3)) / U[i, i]


@inner
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
