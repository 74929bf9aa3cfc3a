"""The rows that tie children together, the parent's and joint totals, and their multipliers.

On an active set every child is affine in its linear term, with the matrix ``P~ = P - Y M Y'`` (see
:mod:`opendas.solvers.least_squares.active_set`). The coupling rows then are

    S (mu, tau) = r,   r = sums of x_c at mu = tau = 0, less what they should be.

The parent's block of S is the sum of ``P~_c / scale_c``. The column of a joint total sums
``P~_c 1 / scale_c`` over its children, and its diagonal entry ``1' P~_c 1 / scale_c``. Columns of the parent
with few free children come first, joint totals last.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Floats
from opendas.solvers.least_squares.active_set import ROWS, SIZE, Family, Work, child_optimum, inverse_of
from opendas.solvers.least_squares.kernels import cholesky, triangular_solve

__all__ = ["coupling_multipliers"]

SORTED = 8
"""Columns with up to this many free children are sorted by their first one too."""
MIXED = 1e-3
"""A sum of the entries of an inverse counts as made of at least so much of their absolute sum."""


@njit(cache=True, nogil=True)
def _sort_columns(w: Work) -> None:
    """Place columns with few free children first, and of those with equally few, child by child.

    The system of the parent is then sparse where elimination begins.
    """
    C, n = w.free.shape
    key = np.zeros(n, np.int64)
    first = np.zeros((SORTED + 1) * C + 2, np.int64)
    step = max(1, C)
    for c in range(C):
        for j in range(n):
            if w.free[c, j]:
                key[j] = c if key[j] == 0 else key[j]
                key[j] += step
    for j in range(n):
        degree = key[j] // step
        key[j] = max(0, degree - 1) * C + key[j] % step if degree <= SORTED else SORTED * C + degree - 1
        first[key[j] + 1] += 1
    for k in range(len(first) - 1):
        first[k + 1] += first[k]
    for j in range(n):
        w.place_in_s[j] = first[key[j]]
        first[key[j]] += 1


@njit(cache=True, nogil=True)
def _add_to_joint(p: Family, w: Work, P: Floats, c: int, s: int, base: Floats) -> None:
    """Add child c to the row and column of joint total s in S, and to its right-hand side.

    With ``P~ = P - Y M Y'`` the column has ``P~ 1 / scale`` on the parent's rows, and ``1' P~ 1 / scale`` on
    the diagonal.
    """
    n = p.B.shape[1]
    first = len(p.parent)
    m = w.place[c, SIZE]
    q = w.place[c, ROWS]
    f = 1.0 / p.scale[c]
    sums, along, force = w.scratch[0], w.scratch[1], w.scratch[2]
    every, absolute = 0.0, 0.0
    for b in range(m):
        sums[b] = 0.0
    for a in range(m):
        for b in range(m):
            sums[b] += P[a, b]
            absolute += abs(P[a, b])
    for u in range(q):
        along[u] = 0.0
        for a in range(m):
            along[u] += w.Y[c, u, a]
    for u in range(q):
        force[u] = 0.0
        for o in range(q):
            force[u] += w.M[c, u, o] * along[o]
    total = 0.0
    for a in range(m):
        every += sums[a]
        row = sums[a]
        for u in range(q):
            row -= force[u] * w.Y[c, u, a]
        total += row
        w.r[n + s] += w.x[c, w.order[c, a]]
        if first:
            w.S[w.place_in_s[w.order[c, a]], first + s] += f * row
    w.S[first + s, first + s] += f * total
    base[first + s] += f * max(every, MIXED * absolute)


@njit(cache=True, nogil=True)
def coupling_multipliers(p: Family, w: Work, pool: Floats) -> int:
    """Solve for the multipliers of the rows that tie children together: the parent's, and joint totals.

    Returns the number of lost pivots of S.
    """
    C, n = p.B.shape
    S, r, place = w.S, w.r, w.place_in_s
    tied = len(p.parent) > 0
    first, J = len(p.parent), len(p.joint_total)
    if tied:
        _sort_columns(w)
    for i in range(first + J):
        for j in range(first + J):
            S[i, j] = 0.0
    row, base = w.scratch[0], w.scratch[3]
    at = np.empty(n, np.int64)
    for i in range(first):
        w.mu[i] = 0.0
        r[i] = -p.parent[i]
    for s in range(J):
        w.tau[s] = 0.0
        r[n + s] = -p.joint_total[s]
    for i in range(first + J):
        base[i] = 0.0
    for c in range(C):
        P = inverse_of(w, pool, c)
        child_optimum(p, w, P, c, 0.0)
        if tied:
            m = w.place[c, SIZE]
            q = w.place[c, ROWS]
            index = w.order[c]
            f = 1.0 / p.scale[c]
            for a in range(m):
                at[a] = place[index[a]]
            for a in range(m):
                i = at[a]
                r[index[a]] += w.x[c, index[a]]
                base[i] += f * P[a, a]
                for b in range(m):
                    row[b] = P[a, b]
                for u in range(q):  # the projection: P - Y M Y'
                    t = 0.0
                    for o in range(q):
                        t += w.M[c, u, o] * w.Y[c, o, a]
                    for b in range(m):
                        row[b] -= t * w.Y[c, u, b]
                for b in range(m):
                    S[i, at[b]] += f * row[b]
        if J and p.joint[c] >= 0:
            _add_to_joint(p, w, P, c, p.joint[c], base)
    lost = cholesky(S, base, w.lost)
    for j in range(first):
        row[place[j]] = r[j]
    for s in range(J):
        row[first + s] = r[n + s]
    triangular_solve(S, row)
    for j in range(first):
        w.mu[j] = row[place[j]]
    for s in range(J):
        w.tau[s] = row[first + s]
    return lost
