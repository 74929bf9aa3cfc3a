"""Primal-dual active set for one family: exact when it stops, and it stops in a handful of steps.

In units where ``diag(H) = 1`` the optimality conditions are, for every child c,

    scale_c (H x_c - b_c) + mu + G' lambda_c = z_c,   x_c >= 0,  z_c >= 0,  x_c z_c = 0,
    sum_c x_c = parent,   lower <= G x_c <= upper,  lambda_ck <= 0 on a lower bound, >= 0 on an upper one.

Guess which cells are positive (``free``) and which group rows sit on a bound (``side``). The conditions are
then linear: with ``P_c = (H_FF)^-1``, projected on the active rows, x_c is affine in the multiplier mu of the
parent row, and the parent row gives ``S mu = r`` with ``S = sum_c P_c / scale_c``. All cells and rows whose
sign is wrong change sides, and the loop repeats. There is no proof of termination for these block changes, so
after a stall one wrong sign at a time is changed, and after that the caller takes over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.optimize.kernels import cholesky_solve, insert, remove, symmetric_times

__all__ = ["OK", "SINGULAR", "STALLED", "Guess", "pdas"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OK = 0
STALLED = 1
SINGULAR = 2

PATIENCE = 6
"""Block changes without progress before one change at a time is tried."""
SINGLE = 60
"""Single changes without progress before giving up."""
EQUAL = 2
"""Side of a row whose two bounds are the same."""


class Guess(NamedTuple):
    """Active set, changed in place: warm start in, final set out."""

    free: NDArray[np.bool_]
    """Shape (C, n): cell may be positive."""
    side: NDArray[np.int8]
    """Shape (C, K): 0 inactive, -1 on the lower bound, 1 on the upper bound, 2 equality."""


class _State(NamedTuple):
    """Everything the steps share; axes as in the module docstring."""

    H: Any
    B: Any
    parent: Any
    scale: Any
    mask: Any
    groups: Any
    lower: Any
    upper: Any
    free: Any
    side: Any
    x: Any
    z: Any
    mu: Any
    lam: Any
    index: Any  # (C, n) cells of the inverse of child c, in its own order
    size: Any  # (C,)
    offset: Any  # (C,) start of the inverse in the pool
    room: Any  # (C,) leading dimension of the inverse
    rows: Any  # (C, K) active rows
    n_rows: Any  # (C,)
    rhs: Any  # (C, K) value of the active rows
    Y: Any  # (C, K, n) P G' of the active rows
    M: Any  # (C, K, K) (G P G')^-1 of the active rows
    x0: Any  # (C, n) solution at mu = 0
    dirty: Any  # (C,) active set changed
    S: Any
    r: Any
    v: Any
    w: Any


@njit(cache=True, nogil=True)
def _state(
    H: Floats,
    B: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    free: Bools,
    side: NDArray[np.int8],
) -> _State:
    C, n = B.shape
    K = groups.shape[0]
    S = np.empty((n, n)) if len(parent) else np.empty((0, 0))
    return _State(
        H, B, parent, scale, mask, groups, lower, upper, free, side,
        np.zeros((C, n)), -B, np.zeros(n), np.zeros((C, K)),
        np.zeros((C, n), np.int64), np.zeros(C, np.int64), np.zeros(C, np.int64), np.zeros(C, np.int64),
        np.zeros((C, K), np.int64), np.zeros(C, np.int64), np.zeros((C, K)), np.zeros((C, K, n)),
        np.zeros((C, K, K)), np.zeros((C, n)), np.ones(C, np.bool_),
        S, np.zeros(max(n, K)), np.zeros(max(n, K)), np.zeros(max(n, K)),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _cover_columns(s: _State) -> None:
    """Give every column of a family at least one free child: the one whose reduced cost is least."""
    C, n = s.B.shape
    covered = np.zeros(n, np.bool_)
    for c in range(C):
        for j in range(n):
            covered[j] |= s.free[c, j]
    for j in range(n):
        if covered[j]:
            continue
        best = -1
        for c in range(C):
            if s.mask[c, j] and (best < 0 or s.z[c, j] < s.z[best, j]):
                best = c
        if best >= 0:
            s.free[best, j] = True
            s.dirty[best] = True


@njit(cache=True, nogil=True)
def _cover_rows(s: _State) -> None:
    """Give every active row at least one free cell."""
    C, n = s.B.shape
    for c in range(C):
        for k in range(s.groups.shape[0]):
            if s.side[c, k] == 0:
                continue
            best = -1
            for j in range(n):
                if s.groups[k, j] and s.free[c, j]:
                    best = -2
                    break
                if s.groups[k, j] and s.mask[c, j] and (best < 0 or s.z[c, j] < s.z[c, best]):
                    best = j
            if best >= 0:
                s.free[c, best] = True
                s.dirty[c] = True


@njit(cache=True, nogil=True)
def _release_redundant(s: _State, tolerance: float) -> None:
    """A row active in every child repeats the parent's: release one child, on the side that is in excess."""
    C, n = s.B.shape
    for k in range(s.groups.shape[0]):
        excess = 0.0
        for j in range(n):
            if s.groups[k, j]:
                excess -= s.parent[j]
        every = True
        for c in range(C):
            if s.side[c, k] == 0:
                every = False
                break
            excess += s.lower[c, k] if s.side[c, k] < 0 else s.upper[c, k]
        if not every:
            continue
        want = 1 if excess > tolerance else (-1 if excess < -tolerance else 0)
        best = -1
        for c in range(C):
            if s.side[c, k] == EQUAL or (want != 0 and s.side[c, k] != want):
                continue
            if best < 0 or abs(s.lam[c, k]) < abs(s.lam[best, k]):
                best = c
        best = max(best, 0)
        s.side[best, k] = 0
        s.dirty[best] = True


@njit(cache=True, nogil=True)
def _grow(s: _State, pool: Floats, c: int, need: int, used: int) -> tuple[Floats, int]:
    """Room for an inverse of `need` rows: moved to the end of the pool, which may be replaced."""
    room = min(s.B.shape[1], need + need // 4 + 4)
    if used + room * room > len(pool):
        larger = np.empty(max(2 * len(pool), used + room * room))
        larger[:used] = pool[:used]
        pool = larger
    m = s.size[c]
    old = s.offset[c]
    for a in range(m):
        for b in range(m):
            pool[used + a * room + b] = pool[old + a * s.room[c] + b]
    s.offset[c] = used
    s.room[c] = room
    return pool, used + room * room


@njit(cache=True, nogil=True)
def _update_inverse(s: _State, P: Floats, c: int) -> bool:
    """Bring the inverse of child c to its free set. False where a submatrix is singular."""
    n = s.B.shape[1]
    index = s.index[c]
    inside = s.w
    for j in range(n):
        inside[j] = 0.0
    m = s.size[c]
    a = m - 1
    while a >= 0:
        if s.free[c, index[a]]:
            inside[index[a]] = 1.0
        else:
            remove(P, m, a, s.v)
            m -= 1
            index[a] = index[m]
        a -= 1
    h = s.r
    fine = True
    for j in range(n):
        if s.free[c, j] and inside[j] == 0.0:
            for a in range(m):
                h[a] = s.H[j, index[a]]
            if insert(P, m, h, s.H[j, j], s.v):
                index[m] = j
                m += 1
            else:
                fine = False
    s.size[c] = m
    return fine


@njit(cache=True, nogil=True)
def _active_rows(s: _State, P: Floats, c: int) -> None:
    """Active rows of child c: values, ``P G'`` and ``(G P G')^-1``; dependent rows are left out."""
    m = s.size[c]
    index = s.index[c]
    q = 0
    M = s.M[c]
    for k in range(s.groups.shape[0]):
        if s.side[c, k] == 0:
            continue
        y = s.Y[c, q]
        for b in range(m):
            y[b] = 0.0
        for a in range(m):
            if s.groups[k, index[a]]:
                for b in range(m):
                    y[b] += P[a, b]
        diagonal = 0.0
        for a in range(m):
            if s.groups[k, index[a]]:
                diagonal += y[a]
        for u in range(q):
            cross = 0.0
            for a in range(m):
                if s.groups[s.rows[c, u], index[a]]:
                    cross += y[a]
            s.v[u] = cross
        if diagonal <= 0.0:
            continue
        if insert(M, q, s.v, diagonal, s.w):
            s.rows[c, q] = k
            s.rhs[c, q] = s.lower[c, k] if s.side[c, k] < 0 else s.upper[c, k]
            q += 1
    s.n_rows[c] = q


@njit(cache=True, nogil=True)
def _child_solution(s: _State, P: Floats, c: int) -> None:
    """Set ``x0``: the child's optimum on its active set where mu is zero."""
    m = s.size[c]
    index = s.index[c]
    x0 = s.x0[c]
    for a in range(m):
        s.v[a] = s.B[c, index[a]]
    symmetric_times(P, m, s.v, x0)
    q = s.n_rows[c]
    if q:
        for u in range(q):
            t = -s.rhs[c, u]
            for a in range(m):
                t += s.Y[c, u, a] * s.v[a]
            s.w[u] = t
        for u in range(q):
            t = 0.0
            for w in range(q):
                t += s.M[c, u, w] * s.w[w]
            for a in range(m):
                x0[a] -= t * s.Y[c, u, a]


@njit(cache=True, nogil=True)
def _factorise(s: _State, pool: Floats, used: int) -> tuple[Floats, int, bool]:
    """Refresh the children whose active set changed. Returns pool, used, and whether all went well."""
    C, n = s.B.shape
    fine = True
    for c in range(C):
        if not s.dirty[c]:
            continue
        need = 0
        for j in range(n):
            if s.free[c, j]:
                need += 1
        if need > s.room[c]:  # cells are removed before others are inserted, so this much is enough
            pool, used = _grow(s, pool, c, need, used)
        room = s.room[c]
        P = pool[s.offset[c] : s.offset[c] + room * room].reshape(room, room)
        fine &= _update_inverse(s, P, c)
        _active_rows(s, P, c)
        _child_solution(s, P, c)
        s.dirty[c] = False
    return pool, used, fine


@njit(cache=True, nogil=True)
def _projected_row(s: _State, P: Floats, c: int, a: int, out: Floats) -> None:
    """Row `a` of the inverse projected on the active rows of child c."""
    m = s.size[c]
    for b in range(m):
        out[b] = P[a, b]
    q = s.n_rows[c]
    for u in range(q):
        t = 0.0
        for w in range(q):
            t += s.M[c, u, w] * s.Y[c, w, a]
        for b in range(m):
            out[b] -= t * s.Y[c, u, b]


@njit(cache=True, nogil=True)
def _parent_multiplier(s: _State, pool: Floats) -> int:
    """Solve ``S mu = r`` for the multiplier of the parent row."""
    C, n = s.B.shape
    S = s.S
    S[:, :] = 0.0
    for j in range(n):
        s.r[j] = -s.parent[j]
    for c in range(C):
        m = s.size[c]
        room = s.room[c]
        P = pool[s.offset[c] : s.offset[c] + room * room].reshape(room, room)
        index = s.index[c]
        f = 1.0 / s.scale[c]
        for a in range(m):
            s.r[index[a]] += s.x0[c, a]
            _projected_row(s, P, c, a, s.v)
            row = S[index[a]]
            for b in range(m):
                row[index[b]] += f * s.v[b]
    for j in range(n):
        s.mu[j] = s.r[j]
    return cholesky_solve(S, s.mu)


@njit(cache=True, nogil=True)
def _recover(s: _State, pool: Floats) -> None:
    """Set x, lambda and the reduced costs z at the current mu."""
    C, n = s.B.shape
    for c in range(C):
        m = s.size[c]
        room = s.room[c]
        P = pool[s.offset[c] : s.offset[c] + room * room].reshape(room, room)
        index = s.index[c]
        f = 1.0 / s.scale[c]
        for a in range(m):
            s.v[a] = s.B[c, index[a]] - f * s.mu[index[a]]
        symmetric_times(P, m, s.v, s.w)
        s.lam[c] = 0.0
        q = s.n_rows[c]
        for u in range(q):
            s.r[u] = -s.rhs[c, u]
            for a in range(m):
                s.r[u] += s.Y[c, u, a] * s.v[a]
        for u in range(q):
            t = 0.0
            for w in range(q):
                t += s.M[c, u, w] * s.r[w]
            s.lam[c, s.rows[c, u]] = t * s.scale[c]
            for a in range(m):
                s.w[a] -= t * s.Y[c, u, a]
        s.x[c] = 0.0
        z = s.z[c]
        for j in range(n):
            z[j] = -s.B[c, j]
        for a in range(m):
            s.x[c, index[a]] = s.w[a]
            row = s.H[index[a]]
            xa = s.w[a]
            for j in range(n):
                z[j] += xa * row[j]


@njit(cache=True, nogil=True)
def _shift_degenerate(s: _State, tolerance: float) -> None:
    """Where one child alone is inactive in a row and sits on its bound, mu and lambda are not unique.

    Move them within the admissible interval, so that no sign is wrong only because of the choice.
    """
    C, n = s.B.shape
    for k in range(s.groups.shape[0]):
        child = -1
        for c in range(C):
            if s.side[c, k] == 0:
                if child >= 0:
                    child = -2
                    break
                child = c
        if child < 0:
            continue
        total = 0.0
        for j in range(n):
            if s.groups[k, j]:
                total += s.x[child, j]
        on_upper = abs(total - s.upper[child, k]) <= tolerance
        on_lower = abs(total - s.lower[child, k]) <= tolerance
        if not (on_upper or on_lower):
            continue
        high, low = np.inf, -np.inf
        for c in range(C):
            if s.side[c, k] == 1:
                high = min(high, s.lam[c, k])
            elif s.side[c, k] == -1:
                low = max(low, s.lam[c, k])
        if not on_lower:
            high = min(high, 0.0)
        if not on_upper:
            low = max(low, 0.0)
        if low > high:
            shift = 0.5 * (low + high)
        else:
            shift = min(max(0.0, low), high)
        for c in range(C):
            s.lam[c, k] -= shift
        for j in range(n):
            if s.groups[k, j]:
                s.mu[j] += shift
        s.side[child, k] = EQUAL if on_upper and on_lower else (1 if on_upper else -1)
        s.dirty[child] = True


@njit(cache=True, nogil=True)
def _price(s: _State) -> None:
    """Finish the reduced costs: ``z = scale (H x - b) + mu + G' lambda``."""
    C, n = s.B.shape
    for c in range(C):
        z = s.z[c]
        f = s.scale[c]
        for j in range(n):
            z[j] = f * z[j] + s.mu[j]
        for k in range(s.groups.shape[0]):
            t = s.lam[c, k]
            if t != 0.0:
                for j in range(n):
                    if s.groups[k, j]:
                        z[j] += t


@njit(cache=True, nogil=True)
def _flip(s: _State, tolerance: float, single: bool) -> int:
    """Change the side of every wrong sign (or of the last one only). Returns how many are wrong."""
    C, n = s.B.shape
    wrong = 0
    last_c, last_j = -1, -1
    for c in range(C):
        ztol = tolerance * s.scale[c]
        for j in range(n):
            if (s.free[c, j] and s.x[c, j] < -tolerance) or (
                not s.free[c, j] and s.mask[c, j] and s.z[c, j] < -ztol
            ):
                wrong += 1
                last_c, last_j = c, j
                if not single:
                    s.free[c, j] = not s.free[c, j]
                    s.dirty[c] = True
        for k in range(s.groups.shape[0]):
            side = _right_side(s, c, k, tolerance, ztol)
            if side != s.side[c, k]:
                wrong += 1
                last_c, last_j = c, n + k
                if not single:
                    s.side[c, k] = side
                    s.dirty[c] = True
    if single and wrong:
        if last_j < n:
            s.free[last_c, last_j] = not s.free[last_c, last_j]
        else:
            k = last_j - n
            s.side[last_c, k] = _right_side(s, last_c, k, tolerance, tolerance * s.scale[last_c])
        s.dirty[last_c] = True
    return wrong


@njit(cache=True, nogil=True)
def _right_side(s: _State, c: int, k: int, tolerance: float, ltol: float) -> int:
    side = int(s.side[c, k])
    if side == 0:
        total = 0.0
        for j in range(s.B.shape[1]):
            if s.groups[k, j]:
                total += s.x[c, j]
        if total < s.lower[c, k] - tolerance:
            return EQUAL if s.lower[c, k] == s.upper[c, k] else -1
        if total > s.upper[c, k] + tolerance:
            return EQUAL if s.lower[c, k] == s.upper[c, k] else 1
    elif (side == -1 and s.lam[c, k] > ltol) or (side == 1 and s.lam[c, k] < -ltol):
        return 0
    return side


@njit(cache=True, nogil=True)
def pdas(
    H: Floats,
    B: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    free: Bools,
    side: NDArray[np.int8],
    limit: int,
    tolerance: float,
) -> tuple[int, int, Floats, Floats, Floats, Floats]:
    """Solve a family whose H is positive definite with unit diagonal.

    Parameters
    ----------
    H : ndarray, shape (n, n)
        Unit diagonal.
    B : ndarray, shape (C, n)
        In counts.
    parent : ndarray, shape (n,) or (0,)
        Empty: no parent row.
    scale, mask, groups, lower, upper
        As in :class:`~opendas.optimize.problem.FamilyProblem`.
    free, side : ndarray
        The guess, see :class:`Guess`; changed in place.
    limit : int
        Most iterations.
    tolerance : float
        In counts: a sign is wrong beyond it.

    Returns
    -------
    status, iterations, x, mu, lam, z
        ``OK``, ``STALLED`` or ``SINGULAR``; x of shape (C, n), mu (n,), lam (C, K), reduced costs (C, n).
    """
    C, n = B.shape
    K = groups.shape[0]
    tied = len(parent) > 0
    s = _state(H, B, parent, scale, mask, groups, lower, upper, free, side)
    for c in range(C):
        for k in range(K):
            if lower[c, k] == upper[c, k]:
                side[c, k] = EQUAL
    pool = np.empty(16)
    used = 0
    best = C * (n + K) + 1
    patience = PATIENCE
    single = False
    for iteration in range(1, limit + 1):
        if tied:
            _cover_columns(s)
            _release_redundant(s, tolerance)
        _cover_rows(s)
        pool, used, fine = _factorise(s, pool, used)
        if not fine:
            return SINGULAR, iteration, s.x, s.mu, s.lam, s.z
        if tied:
            _parent_multiplier(s, pool)
        _recover(s, pool)
        if tied and K:
            _shift_degenerate(s, 10.0 * tolerance)
        _price(s)
        wrong = _flip(s, tolerance, single)
        if wrong == 0:
            return OK, iteration, s.x, s.mu, s.lam, s.z
        if wrong < best:
            best = wrong
            patience = PATIENCE
            single = False
        else:
            patience -= 1
            if patience < 0:
                if single:
                    return STALLED, iteration, s.x, s.mu, s.lam, s.z
                single = True
                patience = SINGLE
    return STALLED, limit, s.x, s.mu, s.lam, s.z
