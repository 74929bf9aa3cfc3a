"""The linear algebra of an active set, child by child: inverses of the free cells, active rows.

Notation as in :mod:`opendas.solvers.least_squares.primal_dual_active_set`. The inverse ``P_c = (H_FF)^-1`` of
every child lies in one pool
of memory, in the child's own order of cells, and is changed by the cells that enter or leave. With
``Y = P G'`` and ``M = (G P G')^-1`` of the active rows, the optimum of a child on its active set at mu is

    v = b - (mu + tau) / scale,   lambda = M (Y' v - bound),   x = P v - Y lambda,

where tau is the multiplier of the joint total that the child has a part in, the same in all its cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.kernels import (
    DEPENDENT,
    SINGULAR,
    insert,
    remove,
    symmetric_times,
)
from opendas.solvers.least_squares.paired import (
    NO_PAIRS,
    Pairs,
    paired_column,
    paired_inverse,
    paired_times,
)

Sides = NDArray[np.int8]

SIZE, OFFSET, ROOM, ROWS = 0, 1, 2, 3
"""Columns of ``Work.place``: cells in the inverse, where it starts, its leading dimension, active rows."""


RESEED = 20
"""Changes of a free set from which a new inverse from the structure of H is cheaper."""
PAIRED = 20
"""Likewise, and least size of the set, where H is in the form of pairs."""
EQUAL = 2
"""Side of a row whose two bounds are the same."""


class Margins(NamedTuple):
    """``H = diagonal I + A' W A``, see lowrank."""

    rows: Ints  # (T, n) rows of A of each cell; T = 0 where H is not known in this form
    core: Floats  # (r, r) diagonal times the inverse of W
    diagonal: float


NO_MARGINS = Margins(np.zeros((0, 0), np.int64), np.zeros((0, 0)), 1.0)


class Family(NamedTuple):
    """The reduced problem; H has unit diagonal up to a ridge, everything is in counts."""

    H: Floats  # (1, n, n); (C, n, n) where every child has its own, of unit mean diagonal; (0, n, n): paired
    B: Floats  # (C, n)
    parent: Floats  # (n,), or (0,) where there is no parent row
    scale: Floats  # (C,)
    mask: Bools  # (C, n)
    groups: Bools  # (K, n)
    lower: Floats  # (C, K)
    upper: Floats  # (C, K)
    margins: Margins
    joint: Ints  # (C,) joint total that each child has a part in, -1 for none; (0,) where there are none
    joint_total: Floats  # (J,)
    pairs: Pairs = NO_PAIRS  # every child's own H in that form


class Work(NamedTuple):
    """The active set and everything computed from it."""

    free: Bools  # (C, n) cell may be positive
    side: Sides  # (C, K) 0 inactive, -1 on the lower bound, 1 on the upper bound, 2 equality
    dirty: Bools  # (C,) active set changed since the inverse was made
    order: Ints  # (C, n) cells of the inverse, in its order
    place: Ints  # (C, 4)
    rows: Ints  # (C, K) active rows that are independent
    rhs: Floats  # (C, K) their bounds
    Y: Floats  # (C, K, n)
    M: Floats  # (C, K, K)
    dependent: Bools  # (C, K) active rows that depend on earlier ones
    relation: Floats  # (C, K, K) for those: coefficients that sum the active rows to zero on the free cells
    place_in_s: Ints  # (n,) row of S of each column of the family
    S: Floats  # (n + J, n + J) factor of the coupling rows, see coupling; (J, J) where there is no parent
    lost: Bools  # (n + J,) its lost pivots
    r: Floats  # (n + J,) its right-hand side, joint totals last; the first n of no meaning without a parent
    x: Floats  # (C, n)
    z: Floats  # (C, n) reduced costs
    mu: Floats  # (n,)
    tau: Floats  # (J,)
    lam: Floats  # (C, K)
    scratch: Floats  # (4, max(n + J, K))


def workspace(p: Family, free: Bools, side: Sides) -> Work:
    """Nothing factorised yet; the first reduced costs are those of x = 0."""
    C, n = p.B.shape
    K = p.groups.shape[0]
    J = len(p.joint_total)
    return Work(
        free,
        side,
        np.ones(C, np.bool_),
        np.zeros((C, n), np.int64),
        np.zeros((C, 4), np.int64),
        np.zeros((C, K), np.int64),
        np.zeros((C, K)),
        np.zeros((C, K, n)),
        np.zeros((C, K, K)),
        np.zeros((C, K), np.bool_),
        np.zeros((C, K, K)),
        np.zeros(n, np.int64),
        np.empty((len(p.parent) + J, len(p.parent) + J)),
        np.zeros(n + J, np.bool_),
        np.zeros(n + J),
        np.zeros((C, n)),
        -p.B,
        np.zeros(n),
        np.zeros(J),
        np.zeros((C, K)),
        np.zeros((4, max(n + J, K))),
    )


@inner
def _make_room(free: Bools, place: Ints, pool: Floats) -> Floats:
    """Room for the inverse of every child; where one has outgrown its own, all move to a new pool."""
    C, n = free.shape
    room = np.empty(C, np.int64)
    enough = True
    used = 0
    for c in range(C):
        need = 0
        for j in range(n):
            if free[c, j]:
                need += 1
        room[c] = place[c, ROOM]
        if need > room[c]:
            enough = False
            room[c] = min(n, need + (need // 4 + 8 if need < 128 else need // 8))
        used += room[c] * room[c]
    if enough:
        return pool
    larger = np.empty(used)
    at = 0
    for c in range(C):
        m = place[c, SIZE]
        old = place[c, OFFSET]
        stride = place[c, ROOM]
        for a in range(m):
            for b in range(m):
                larger[at + a * room[c] + b] = pool[old + a * stride + b]
        place[c, OFFSET] = at
        place[c, ROOM] = room[c]
        at += room[c] * room[c]
    return larger


@inner
def inverse_of(place: Ints, pool: Floats, c: int) -> Floats:
    """Inverse of child c, with its leading dimension."""
    room = place[c, ROOM]
    at = place[c, OFFSET]
    return pool[at : at + room * room].reshape((room, room))


@inner
def _seed_inverse(margins: Margins, free: Bools, order: Ints, P: Floats) -> int:
    """First inverse of a child with many free cells, by the Woodbury formula: O(m^2) where rows are few.

    Returns the number of its cells, which are left in `order`.
    """
    rows, core, diagonal = margins
    T = rows.shape[0]
    r = core.shape[0]
    m = 0
    for j in range(len(free)):
        if free[j]:
            order[m] = j
            m += 1
    # N = (diagonal W^-1 + A_F A_F')^-1
    A = core.copy()
    for a in range(m):
        for t in range(T):
            for u in range(T):
                A[rows[t, order[a]], rows[u, order[a]]] += 1.0
    N = np.empty((r, r))
    along = np.empty(r)
    for k in range(len(along)):
        insert(N, k, A[k], A[k, k], along, 0.0)
    # P = (I - A_F' N A_F) / diagonal
    for a in range(m):
        for k in range(r):
            along[k] = 0.0
        for t in range(T):
            for k in range(r):
                along[k] -= N[rows[t, order[a]], k] / diagonal
        for b in range(m):
            P[a, b] = 0.0
            for t in range(T):
                P[a, b] += along[rows[t, order[b]]]
        P[a, a] += 1.0 / diagonal
    return m


@inner
def _update_inverse(
    p: Family, place: Ints, scratch: Floats, free: Bools, index: Ints, P: Floats, c: int
) -> bool:
    """Bring the inverse of child c to its free set. False where a submatrix is singular.

    - `place` (4,), `free` (n,), `index` (n,): of the child.
    """
    n = len(free)
    inside, work, h = scratch[0], scratch[1], scratch[2]
    need = 0
    for j in range(n):
        inside[j] = 0.0
        need += free[j]
    m = place[SIZE]
    changes = m + need
    for a in range(m):
        changes -= 2 * free[index[a]]
    if p.margins.rows.shape[0] and need > p.margins.core.shape[0] and changes > RESEED:
        place[SIZE] = _seed_inverse(p.margins, free, index, P)
        return True
    paired = len(p.pairs.kind) > 0
    if paired and need > PAIRED and changes > PAIRED:
        m, fine = paired_inverse(p.pairs, c, free, index, P)
        place[SIZE] = m
        return fine
    for k in range(m - 1, -1, -1):
        if free[index[k]]:
            inside[index[k]] = 1.0
        else:
            remove(P, m, k, work)
            m -= 1
            index[k] = index[m]
    fine = True
    for j in range(n):
        if free[j] and inside[j] == 0.0:
            if paired:
                diagonal = paired_column(p.pairs, c, j, index, m, h)
            else:
                own = c if p.H.shape[0] > 1 else 0
                H = p.H[own, j]
                diagonal = H[j]
                for a in range(m):
                    h[a] = H[index[a]]
            if insert(P, m, h, diagonal, work, SINGULAR):
                index[m] = j
                m += 1
            else:
                fine = False
    place[SIZE] = m
    return fine


@inner
def _active_rows(p: Family, w: Work, P: Floats, c: int) -> None:
    """Set rows, bounds, Y and M of child c; rows that depend on earlier ones are set aside."""
    groups, side, index = p.groups, w.side[c], w.order[c]
    rows, Y, M = w.rows[c], w.Y[c], w.M[c]
    dependent, place = w.dependent[c], w.place[c]
    m = place[SIZE]
    cross, work = w.scratch[0], w.scratch[1]
    place[ROWS] = 0
    for k in range(len(groups)):
        dependent[k] = False
        if side[k] == 0:
            continue
        # A further row g of G: its column y = P g of Y, and M grown by g' y and G y.
        q = place[ROWS]
        y = Y[q]
        for b in range(m):
            y[b] = 0.0
        for a in range(m):
            if groups[k, index[a]]:
                for b in range(m):
                    y[b] += P[a, b]
        diagonal = 0.0
        for a in range(m):
            if groups[k, index[a]]:
                diagonal += y[a]
        for u in range(q):
            cross[u] = 0.0
            for a in range(m):
                if groups[rows[u], index[a]]:
                    cross[u] += y[a]
        if insert(M, q, cross, diagonal, work, DEPENDENT * diagonal):
            rows[q] = k
            w.rhs[c, q] = p.lower[c, k] if side[k] < 0 else p.upper[c, k]
            place[ROWS] = q + 1
            continue
        symmetric_times(M, q, cross, work)
        dependent[k] = True
        relation = w.relation[c, k]
        for u in range(len(groups)):
            relation[u] = 0.0
        for u in range(q):
            relation[rows[u]] = -work[u]
        relation[k] = 1.0


@inner
def factorise(p: Family, w: Work, pool: Floats) -> tuple[Floats, bool]:
    """Refresh the children whose active set changed. Returns the pool, and False where H is singular."""
    free, dirty, place = w.free, w.dirty, w.place
    pool = _make_room(free, place, pool)
    fine = True
    for c in range(len(dirty)):
        if dirty[c]:
            P = inverse_of(place, pool, c)
            fine = _update_inverse(p, place[c], w.scratch, free[c], w.order[c], P, c) and fine
            _active_rows(p, w, P, c)
            dirty[c] = False
    return pool, fine


@inner
def child_optimum(p: Family, w: Work, P: Floats, c: int, f: float) -> None:
    """Set x and lambda of child c on its active set, at the linear term ``b - f (mu + tau)``."""
    B, index, mu = p.B[c], w.order[c], w.mu
    x, lam = w.x[c], w.lam[c]
    Y, M = w.Y[c], w.M[c]
    m = w.place[c, SIZE]
    v, y, t = w.scratch[0], w.scratch[1], w.scratch[2]
    # v = b - f (mu + tau), and y = P v
    for a in range(m):
        v[a] = B[index[a]] - f * mu[index[a]]
    if len(p.joint) and p.joint[c] >= 0:
        tau = w.tau[p.joint[c]]
        for a in range(m):
            v[a] -= f * tau
    symmetric_times(P, m, v, y)
    # lambda = M (Y' v - bound), and x = P v - Y lambda
    for k in range(len(lam)):
        lam[k] = 0.0
    q = w.place[c, ROWS]
    for u in range(q):
        t[u] = -w.rhs[c, u]
        for a in range(m):
            t[u] += Y[u, a] * v[a]
    for u in range(q):
        force = 0.0
        for r in range(q):
            force += M[u, r] * t[r]
        lam[w.rows[c, u]] = force * p.scale[c]
        for a in range(m):
            y[a] -= force * Y[u, a]
    for j in range(len(x)):
        x[j] = 0.0
    for a in range(m):
        x[index[a]] = y[a]


@inner
def recover(p: Family, w: Work, pool: Floats) -> None:
    """Set x, lambda and the gradients ``H x - b`` (in z) at the current mu and tau."""
    place, order = w.place, w.order
    B, x, z = p.B, w.x, w.z
    H, pairs = p.H, p.pairs
    C, n = B.shape
    for c in range(C):
        child_optimum(p, w, inverse_of(place, pool, c), c, 1.0 / p.scale[c])
        for j in range(n):
            z[c, j] = -B[c, j]
        if len(pairs.kind):
            paired_times(pairs, c, order[c], place[c, SIZE], x[c], z[c])
            continue
        own = c if len(H) > 1 else 0
        h = H[own]
        for a in range(place[c, SIZE]):
            i = order[c, a]
            t = x[c, i]
            for j in range(n):
                z[c, j] += t * h[i, j]
