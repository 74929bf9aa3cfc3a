"""Hessians of pairs of a kind and a place: a sum over places, and what is alike in every place.

Let every cell have a kind and a place, no two cells both alike, and let a Hessian see of places only whether
they are the same:

    A[i, j] = alpha[kind_i, kind_j] + [place_i == place_j] beta[kind_i, kind_j].

Full-tree precisions have this form: places are the levels of the largest attribute (63 races), kinds are all
else that distinguishes cells (8 x 2 x 2). On any set F of free cells A is a block per place plus a matrix of
rank K, the number of kinds: with D the blocks, U the indicators of kinds, N = U D^-1 U',

    A_FF^-1 = D^-1 - D^-1 U' C U D^-1,   C = (I + alpha N)^-1 alpha      (Woodbury; alpha may be singular).

The informed estimator needs it for every product in which some attribute meets neither structural zeros nor
closed bounds: there it is no slower than one Hessian for all.

Cells are sorted by place. Letters: ``C`` children (and the matrix C above), ``n`` cells, ``m`` free cells,
``K`` kinds; ``begin`` and ``end`` of shape (n,) bound the place of each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.errors import EstimationError
from opendas.solvers.least_squares.kernels import SINGULAR, insert


@dataclass(frozen=True, slots=True)
class PairedCurvature:
    """Hessians of this form, as a :class:`~opendas.solvers.problem.curvature.Curvature`."""

    # alpha, beta (C, K, K): symmetric. In inverse squared counts.
    alpha: Floats
    beta: Floats
    # kind, place (n,): of each cell; kinds from 0 to K - 1, places from 0.
    kind: Ints
    place: Ints

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("alpha", "beta"):
            put(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        for name in ("kind", "place"):
            put(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.int64))
        if self.alpha.ndim != 3 or self.alpha.shape != self.beta.shape or len(self.kind) != len(self.place):
            raise EstimationError("alpha and beta, or kind and place, differ in shape")
        within, apart = _checked(self.kind, self.place, self.alpha.shape[1])
        if not within:
            raise EstimationError("a cell has a kind or place out of range")
        if not apart:
            raise EstimationError("two cells have the same kind and place")

    def apply(self, x: Floats) -> Floats:
        """``A_c x_c`` of every child, shape (C, n)."""
        return _apply(self.alpha, self.beta, self.kind, self.place, np.ascontiguousarray(x))

    def diagonal(self) -> Floats:
        """Diagonal of every A_c, shape (C, n)."""
        return _diagonal(self.alpha, self.beta, self.kind)

    def blocks(self, cells: NDArray[np.intp]) -> Floats:
        """``A_c[cells, cells]`` of every child, shape (C, m, m)."""
        kind, place = self.kind[cells], self.place[cells]
        same = place[:, None] == place[None, :]
        found = np.ascontiguousarray(self.alpha[:, kind[:, None], kind[None, :]])
        return found + np.where(same, self.beta[:, kind[:, None], kind[None, :]], 0.0)


class Pairs(NamedTuple):
    """The same on the cells of a reduced family, sorted by place, as compiled code takes it."""

    # alpha, beta (C, K, K)
    alpha: Floats
    beta: Floats
    kind: Ints  # (n,), or (0,) where Hessians are not of this form
    begin: Ints  # (n,) first cell of the place of each cell
    end: Ints  # (n,) one past its last


NO_PAIRS = Pairs(np.zeros((0, 0, 0)), np.zeros((0, 0, 0)), *3 * (np.zeros(0, np.int64),))


@njit(cache=True, nogil=True)
def _checked(kind: Ints, place: Ints, kinds: int) -> tuple[bool, bool]:
    """Whether kinds and places are in range, and no two cells have both alike."""
    top = -1
    for j in range(len(kind)):
        if kind[j] < 0 or kind[j] >= kinds or place[j] < 0:
            return False, True
        top = max(top, place[j])
    if top >= 4 * len(kind) + 4096:  # too many places for a table of them
        pairs = np.sort(place * kinds + kind)
        for j in range(1, len(pairs)):
            if pairs[j] == pairs[j - 1]:
                return True, False
        return True, True
    seen = np.zeros((top + 1) * kinds, np.bool_)
    for j in range(len(kind)):
        at = place[j] * kinds + kind[j]
        if seen[at]:
            return True, False
        seen[at] = True
    return True, True


@njit(cache=True, nogil=True)
def _diagonal(alpha: Floats, beta: Floats, kind: Ints) -> Floats:
    out = np.empty((len(alpha), len(kind)))
    for c in range(len(alpha)):
        for j in range(len(kind)):
            k = kind[j]
            out[c, j] = alpha[c, k, k] + beta[c, k, k]
    return out


@njit(cache=True, nogil=True)
def _apply(alpha: Floats, beta: Floats, kind: Ints, place: Ints, x: Floats) -> Floats:
    C, n = x.shape
    K = alpha.shape[1]
    places = 0
    for j in range(n):
        places = max(places, place[j] + 1)
    first = np.zeros(places + 1, np.int64)
    for j in range(n):
        first[place[j] + 1] += 1
    for s in range(places):
        first[s + 1] += first[s]
    at = first.copy()
    order = np.empty(n, np.int64)
    for j in range(n):
        order[at[place[j]]] = j
        at[place[j]] += 1
    out = np.empty((C, n))
    sums = np.empty(K)
    force = np.empty(K)
    for c in range(C):
        sums[:] = 0.0
        for j in range(n):
            sums[kind[j]] += x[c, j]
        force[:] = 0.0
        for k in range(K):
            if sums[k] != 0.0:
                for o in range(K):
                    force[o] += alpha[c, k, o] * sums[k]
        for j in range(n):
            out[c, j] = force[kind[j]]
        for s in range(places):
            for a in range(first[s], first[s + 1]):
                value = x[c, order[a]]
                if value != 0.0:
                    k = kind[order[a]]
                    for b in range(first[s], first[s + 1]):
                        out[c, order[b]] += value * beta[c, k, kind[order[b]]]
    return out


@njit(cache=True, nogil=True)
def place_bounds(place: Ints) -> tuple[Ints, Ints]:
    """First cell, and one past the last, of the place of each cell; cells are sorted by place."""
    n = len(place)
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    for j in range(n):
        begin[j] = begin[j - 1] if j and place[j] == place[j - 1] else j
    for j in range(n - 1, -1, -1):
        end[j] = end[j + 1] if j + 1 < n and place[j] == place[j + 1] else j + 1
    return begin, end


@inner
def paired_column(pairs: Pairs, c: int, j: int, index: Ints, m: int, h: Floats) -> float:
    """Set h to the entries of row j on the first m cells of `index`; returns the one on the diagonal."""
    kind, begin = pairs.kind, pairs.begin
    along = pairs.alpha[c, kind[j]]
    here = pairs.beta[c, kind[j]]
    for a in range(m):
        i = index[a]
        h[a] = along[kind[i]]
        if begin[i] == begin[j]:
            h[a] += here[kind[i]]
    return float(along[kind[j]] + here[kind[j]])


@inner
def paired_times(pairs: Pairs, c: int, order: Ints, m: int, x: Floats, z: Floats) -> None:
    """Add ``A_c x`` to z, of shape (n,); x is positive on the first m cells of `order` only."""
    alpha, beta, kind, begin, end = pairs.alpha[c], pairs.beta[c], pairs.kind, pairs.begin, pairs.end
    K = alpha.shape[0]
    sums = np.zeros(K)
    force = np.zeros(K)
    for a in range(m):
        sums[kind[order[a]]] += x[order[a]]
    for k in range(K):
        if sums[k] != 0.0:
            for o in range(K):
                force[o] += alpha[k, o] * sums[k]
    for j in range(len(z)):
        z[j] += force[kind[j]]
    for a in range(m):
        i = order[a]
        value = x[i]
        row = beta[kind[i]]
        for j in range(begin[i], end[i]):
            z[j] += value * row[kind[j]]


@inner
def _places(
    pairs: Pairs, c: int, free: Bools, order: Ints, low: Ints, D: Floats, N: Floats
) -> tuple[int, bool]:
    """Invert the blocks of the free cells of a child.

    Sets `order`, the free cells by place; `low`, for each of them the first of its place; row a of D, the
    inverse of a's block from there on; and N. Returns m, and False where a block is singular.
    """
    beta, kind, end = pairs.beta[c], pairs.kind, pairs.end
    n = len(kind)
    K = N.shape[0]
    P = np.empty((K, K))
    h, work = np.empty(K), np.empty(K)
    N[:] = 0.0
    m = 0
    fine = True
    j = 0
    while j < n:
        stop = end[j]
        start = m
        for i in range(j, stop):
            if not free[i]:
                continue
            size = m - start
            k = kind[i]
            for a in range(size):
                h[a] = beta[k, kind[order[start + a]]]
            if not insert(P, size, h, beta[k, k], work, SINGULAR):
                fine = False
                continue
            order[m] = i
            low[m] = start
            m += 1
        for a in range(m - start):
            for b in range(m - start):
                D[start + a, b] = P[a, b]
                N[kind[order[start + a]], kind[order[start + b]]] += P[a, b]
        j = stop
    return m, fine


@inner
def _kinds_of_free_cells(N: Floats, kinds: Ints) -> int:
    """Set `kinds` to those of the free cells. Returns how many."""
    count = 0
    for k in range(N.shape[0]):
        if N[k, k] > 0.0:
            kinds[count] = k
            count += 1
    return count


@inner
def _core(alpha: Floats, N: Floats, kinds: Ints, count: int) -> Floats:
    """``(I + alpha N)^-1 alpha`` on the kinds of the free cells, by elimination with row pivots."""
    K = count
    # G = I + alpha N and C = alpha; then G C = alpha is solved in place.
    G = np.empty((K, K))
    C = np.empty((K, K))
    for i in range(K):
        for j in range(K):
            G[i, j] = 1.0 if i == j else 0.0
            C[i, j] = alpha[kinds[i], kinds[j]]
        for k in range(K):
            f = C[i, k]
            if f != 0.0:
                for j in range(K):
                    G[i, j] += f * N[kinds[k], kinds[j]]
    for k in range(K):
        best = k
        for i in range(k + 1, K):
            if abs(G[i, k]) > abs(G[best, k]):
                best = i
        if best != k:
            for j in range(K):
                G[k, j], G[best, j] = G[best, j], G[k, j]
                C[k, j], C[best, j] = C[best, j], C[k, j]
        inverse = 1.0 / G[k, k] if G[k, k] != 0.0 else 0.0
        for i in range(k + 1, K):
            f = G[i, k] * inverse
            if f != 0.0:
                for j in range(k, K):
                    G[i, j] -= f * G[k, j]
                for j in range(K):
                    C[i, j] -= f * C[k, j]
    for k in range(K - 1, -1, -1):
        for i in range(k + 1, K):
            f = G[k, i]
            if f != 0.0:
                for j in range(K):
                    C[k, j] -= f * C[i, j]
        inverse = 1.0 / G[k, k] if G[k, k] != 0.0 else 0.0
        for j in range(K):
            C[k, j] *= inverse
    return C


@inner
def paired_inverse(pairs: Pairs, c: int, free: Bools, order: Ints, P: Floats) -> tuple[int, bool]:
    """Set ``P = A_FF^-1`` in the order of cells that is left in `order`. Returns m, and False if singular."""
    kind = pairs.kind
    K = pairs.alpha.shape[1]
    most = 0
    for j in range(len(free)):
        most += free[j]
    low = np.empty(most, np.int64)
    D = np.empty((most, K))
    N = np.empty((K, K))
    m, fine = _places(pairs, c, free, order, low, D, N)
    kinds = np.empty(K, np.int64)
    count = _kinds_of_free_cells(N, kinds)
    C = _core(pairs.alpha[c], N, kinds, count)
    at = np.empty(K, np.int64)
    for u in range(count):
        at[kinds[u]] = u
    E = np.zeros((count, m))  # C U D^-1
    for b in range(m):
        stop = b + 1
        while stop < m and low[stop] == low[b]:
            stop += 1
        for a in range(low[b], stop):
            f = D[b, a - low[b]]
            o = at[kind[order[a]]]
            for u in range(count):
                E[u, b] += C[u, o] * f
    for a in range(m):  # P = D^-1 - D^-1 U' E
        for b in range(m):
            P[a, b] = 0.0
        stop = a + 1
        while stop < m and low[stop] == low[a]:
            stop += 1
        for i in range(low[a], stop):
            f = D[a, i - low[a]]
            P[a, i] = f
        for i in range(low[a], stop):
            f = D[a, i - low[a]]
            row = E[at[kind[order[i]]]]
            for b in range(m):
                P[a, b] -= f * row[b]
    return m, fine


@njit(cache=True, nogil=True)
def paired_guess(pairs: Pairs, mask: Bools, B: Floats) -> Floats:
    """Unconstrained optimum of every child on the cells it may use, shape (C, n); rough where singular."""
    kind = pairs.kind
    C, n = B.shape
    K = pairs.alpha.shape[1]
    Z = np.zeros((C, n))
    order, low = np.empty(n, np.int64), np.empty(n, np.int64)
    D = np.empty((n, K))
    N = np.empty((K, K))
    sums, force = np.empty(K), np.zeros(K)
    kinds = np.empty(K, np.int64)
    for c in range(C):
        m, _ = _places(pairs, c, mask[c], order, low, D, N)
        count = _kinds_of_free_cells(N, kinds)
        core = _core(pairs.alpha[c], N, kinds, count)
        # D^-1 b, its sums by kind, and C times these: the force that is taken back.
        sums[:] = 0.0
        for a in range(m):
            t = 0.0
            b = low[a]
            while b < m and low[b] == low[a]:
                t += D[a, b - low[a]] * B[c, order[b]]
                b += 1
            Z[c, order[a]] = t
            sums[kind[order[a]]] += t
        for u in range(count):
            force[kinds[u]] = 0.0
            for o in range(count):
                force[kinds[u]] += core[u, o] * sums[kinds[o]]
        for a in range(m):
            b = low[a]
            while b < m and low[b] == low[a]:
                Z[c, order[a]] -= D[a, b - low[a]] * force[kind[order[b]]]
                b += 1
    return Z
