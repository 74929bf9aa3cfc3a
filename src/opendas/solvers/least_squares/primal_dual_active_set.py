"""Primal-dual active set for one family: exact when it stops, and it stops in a handful of steps.

In units where ``diag(H) = 1`` the optimality conditions are, for every child c,

    scale_c (H x_c - b_c) + mu + tau_s(c) + G' lambda_c = z_c,   x_c >= 0,  z_c >= 0,  x_c z_c = 0,
    sum_c x_c = parent,   lower <= G x_c <= upper,  lambda_ck <= 0 on a lower bound, >= 0 on an upper one,
    sum of all cells of the children of group s = T_s,   for every joint total s.

Guess which cells are positive (``free``) and which group rows sit on a bound (``side``). The conditions are
then linear: with ``P_c = (H_FF)^-1``, projected on the active rows, x_c is affine in the multiplier mu of the
parent row, and the parent row gives ``S mu = r`` with ``S = sum_c P_c / scale_c``; joint totals are further
rows of that system, with the multipliers tau. Cells and rows whose sign
is wrong change sides, and the loop repeats. There is no proof of termination for these block changes, so
after a stall one wrong sign at a time is changed, and after that the caller takes over.

Where H is singular a ridge is added to it and taken back by proximal steps, ``x <- argmin f(x) + ridge/2
|x - x_previous|^2``: the optimality error of a point is the ridge times its last step, so the loop stops at
an exact optimum, not at that of the ridged problem. Hintermüller, Ito & Kunisch (2002) for the active set;
Rockafellar (1976) for the proximal steps.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.active_set import (
    EQUAL,
    ROWS,
    SIZE,
    Family,
    Sides,
    Work,
    child_optimum,
    factorise,
    inverse_of,
    recover,
    workspace,
)
from opendas.solvers.least_squares.degenerate import UNBOUNDED, UNCHANGED, resolve_dependencies
from opendas.solvers.least_squares.kernels import cholesky, triangular_solve

# The rows that tie children together: S (mu, tau) = r, with r the sums of x_c at mu = tau = 0 less what they
# should be. With ``P~ = P - Y M Y'`` (see active_set), the parent's block of S is the sum of ``P~_c /
# scale_c``; the column of a joint total sums ``P~_c 1 / scale_c`` over its children, and its diagonal
# entry ``1' P~_c 1 / scale_c``. Columns with few free children come first, joint totals last.


SORTED = 8
"""Columns with up to this many free children are sorted by their first one too."""
MIXED = 1e-3
"""A sum of the entries of an inverse counts as made of at least so much of their absolute sum."""


@inner
def _sort_columns(free: Bools, place: Ints) -> None:
    """Place columns with few free children first, and of those with equally few, child by child.

    The system of the parent is then sparse where elimination begins.
    """
    C, n = free.shape
    key = np.zeros(n, np.int64)
    first = np.zeros((SORTED + 1) * C + 2, np.int64)
    step = max(1, C)
    for c in range(C):
        for j in range(n):
            if free[c, j]:
                key[j] = c if key[j] == 0 else key[j]
                key[j] += step
    for j in range(n):
        degree = key[j] // step
        key[j] = max(0, degree - 1) * C + key[j] % step if degree <= SORTED else SORTED * C + degree - 1
        first[key[j] + 1] += 1
    for k in range(len(first) - 1):
        first[k + 1] += first[k]
    for j in range(n):
        place[j] = first[key[j]]
        first[key[j]] += 1


@inner
def _add_to_joint(p: Family, w: Work, P: Floats, c: int, s: int, base: Floats) -> None:
    """Add child c to the row and column of joint total s in S, and to its right-hand side.

    With ``P~ = P - Y M Y'`` the column has ``P~ 1 / scale`` on the parent's rows, and ``1' P~ 1 / scale`` on
    the diagonal.
    """
    S, r, place = w.S, w.r, w.place_in_s
    order, x = w.order[c], w.x[c]
    Y, M = w.Y[c], w.M[c]
    n = len(x)
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
            along[u] += Y[u, a]
    for u in range(q):
        force[u] = 0.0
        for o in range(q):
            force[u] += M[u, o] * along[o]
    total = 0.0
    for a in range(m):
        every += sums[a]
        row = sums[a]
        for u in range(q):
            row -= force[u] * Y[u, a]
        total += row
        r[n + s] += x[order[a]]
        if first:
            S[place[order[a]], first + s] += f * row
    S[first + s, first + s] += f * total
    base[first + s] += f * max(every, MIXED * absolute)


@inner
def coupling_multipliers(p: Family, w: Work, pool: Floats) -> int:
    """Solve for the multipliers of the rows that tie children together: the parent's, and joint totals.

    Returns the number of lost pivots of S.
    """
    S, r, place = w.S, w.r, w.place_in_s
    mu, tau, x = w.mu, w.tau, w.x
    Y, M = w.Y, w.M
    parent, joint, joint_total = p.parent, p.joint, p.joint_total
    size, order = w.place, w.order
    C, n = x.shape
    tied = len(parent) > 0
    first, J = len(parent), len(joint_total)
    if tied:
        _sort_columns(w.free, place)
    row, base = w.scratch[0], w.scratch[3]
    for i in range(first + J):
        base[i] = 0.0
        for j in range(first + J):
            S[i, j] = 0.0
    at = np.empty(n, np.int64)
    for i in range(first):
        mu[i] = 0.0
        r[i] = -parent[i]
    for s in range(J):
        tau[s] = 0.0
        r[n + s] = -joint_total[s]
    for c in range(C):
        P = inverse_of(size, pool, c)
        child_optimum(p, w, P, c, 0.0)
        if tied:
            m, q = size[c, SIZE], size[c, ROWS]
            index, y = order[c], Y[c]
            f = 1.0 / p.scale[c]
            for a in range(m):
                at[a] = place[index[a]]
            for a in range(m):
                i = at[a]
                r[index[a]] += x[c, index[a]]
                base[i] += f * P[a, a]
                for b in range(m):
                    row[b] = P[a, b]
                for u in range(q):  # the projection: P - Y M Y'
                    t = 0.0
                    for o in range(q):
                        t += M[c, u, o] * y[o, a]
                    for b in range(m):
                        row[b] -= t * y[u, b]
                for b in range(m):
                    S[i, at[b]] += f * row[b]
        if J and joint[c] >= 0:
            _add_to_joint(p, w, P, c, joint[c], base)
    lost = cholesky(S, base, w.lost)
    for j in range(first):
        row[place[j]] = r[j]
    for s in range(J):
        row[first + s] = r[n + s]
    triangular_solve(S, row)
    for j in range(first):
        mu[j] = row[place[j]]
    for s in range(J):
        tau[s] = row[first + s]
    return lost


OK, STALLED, SINGULAR, INFEASIBLE, CHANGED = range(5)
PATIENCE = 6
"""Block changes without progress before one change at a time is tried."""
SINGLE = 60
"""Single changes without progress before giving up."""


@inner
def _cover_columns(mask: Bools, z: Floats, free: Bools, dirty: Bools) -> None:
    """Give every column of the family a free child: where none is, the one whose reduced cost is least."""
    C, n = mask.shape
    covered = np.zeros(n, np.bool_)
    for c in range(C):
        for j in range(n):
            covered[j] |= free[c, j]
    for j in range(n):
        if covered[j]:
            continue
        best = -1
        for c in range(C):
            if mask[c, j] and (best < 0 or z[c, j] < z[best, j]):
                best = c
        if best >= 0:
            free[best, j] = True
            dirty[best] = True


@inner
def _cover_joint(mask: Bools, joint: Ints, J: int, z: Floats, free: Bools, dirty: Bools) -> None:
    """Give each of the J joint totals a free cell."""
    C, n = mask.shape
    child, cell = np.full(J, -1), np.full(J, -1)
    covered = np.zeros(J, np.bool_)
    for c in range(C):
        s = joint[c]
        if s < 0 or covered[s]:
            continue
        for j in range(n):
            if free[c, j]:
                covered[s] = True
                break
            if mask[c, j] and (child[s] < 0 or z[c, j] < z[child[s], cell[s]]):
                child[s], cell[s] = c, j
    for s in range(J):
        if not covered[s] and child[s] >= 0:
            free[child[s], cell[s]] = True
            dirty[child[s]] = True


@njit(cache=True, nogil=True)
def cover_rows(mask: Bools, groups: Bools, side: Sides, z: Floats, free: Bools, dirty: Bools) -> None:
    """Give every active row a free cell."""
    C, n = mask.shape
    for c in range(C):
        for k in range(groups.shape[0]):
            if side[c, k] == 0:
                continue
            best = -1
            for j in range(n):
                if not groups[k, j]:
                    continue
                if free[c, j]:
                    best = -1
                    break
                if mask[c, j] and (best < 0 or z[c, j] < z[c, best]):
                    best = j
            if best >= 0:
                free[c, best] = True
                dirty[c] = True


@inner
def _reduced_costs(
    scale: Floats, groups: Bools, joint: Ints, mu: Floats, tau: Floats, lam: Floats, z: Floats
) -> None:
    """Finish the reduced costs: ``z = scale (H x - b) + mu + tau + G' lambda``."""
    C, n = z.shape
    for c in range(C):
        f = scale[c]
        for j in range(n):
            z[c, j] = f * z[c, j] + mu[j]
        if len(joint) and joint[c] >= 0:
            t = tau[joint[c]]
            for j in range(n):
                z[c, j] += t
        for k in range(groups.shape[0]):
            t = lam[c, k]
            if t != 0.0:
                for j in range(n):
                    if groups[k, j]:
                        z[c, j] += t


@inner
def _right_side(
    side: int,
    force: float,
    most: float,
    group: Bools,
    x: Floats,
    lower: float,
    upper: float,
    tolerance: float,
) -> int:
    """Side on which a row of a child belongs, given its `side` now, its multiplier `force`, and x.

    A multiplier has the wrong sign beyond `most`, a sum of x beyond `tolerance`.
    """
    if side == EQUAL:
        return side
    if side != 0:
        return 0 if side * force < -most else side
    total = 0.0
    for j in range(len(x)):
        if group[j]:
            total += x[j]
    if total < lower - tolerance:
        side = -1
    elif total > upper + tolerance:
        side = 1
    return EQUAL if side != 0 and lower == upper else side


@inner
def _flip(p: Family, w: Work, tolerance: float, least: float, single: bool) -> int:
    """Change the side of every wrong sign (of the last one only, if `single`). Returns how many are wrong.

    Of the cells that want to enter, only those enter whose reduced cost is at least `least` times the child's
    worst: entering cells compete for the same counts, and most of the weak ones would have to leave again.
    """
    mask, groups = p.mask, p.groups
    free, side, dirty = w.free, w.side, w.dirty
    x, z, lam = w.x, w.z, w.lam
    C, n = x.shape
    wrong = 0
    last_c, last_j, last_side = -1, -1, 0
    for c in range(C):
        ztol = tolerance * p.scale[c]
        worst = 0.0
        for j in range(n):
            if mask[c, j] and not free[c, j]:
                worst = min(worst, z[c, j])
        enter = min(least * worst, -ztol)
        for j in range(n):
            leaves = free[c, j] and x[c, j] < -tolerance
            if leaves or (mask[c, j] and not free[c, j] and z[c, j] < -ztol):
                wrong += 1
                if single:
                    last_c, last_j = c, j
                elif leaves or z[c, j] <= enter:
                    free[c, j] = not free[c, j]
                    dirty[c] = True
        for k in range(side.shape[1]):
            right = _right_side(
                int(side[c, k]),
                lam[c, k],
                ztol,
                groups[k],
                x[c],
                p.lower[c, k],
                p.upper[c, k],
                tolerance,
            )
            if right != side[c, k]:
                wrong += 1
                if single:
                    last_c, last_j, last_side = c, n + k, right
                else:
                    side[c, k] = right
                    dirty[c] = True
    if last_c >= 0:
        if last_j < n:
            free[last_c, last_j] = not free[last_c, last_j]
        else:
            side[last_c, last_j - n] = last_side
        dirty[last_c] = True
    return wrong


FEWEST, LEFT, ALONE, ENTER = 0, 1, 2, 3
"""Of the progress of an active set: fewest wrong signs, changes left without fewer, whether one at a time,
and the share of the worst reduced cost from which cells enter."""
EAGER = 0.4
"""What this share is multiplied with in each of the first steps; then all cells enter."""


@inner
def _begin(progress: Floats, most: float) -> None:
    """Begin to count wrong signs, of which there are fewer than `most`."""
    progress[FEWEST], progress[LEFT], progress[ALONE] = most, PATIENCE, 0.0


@inner
def _stalled(progress: Floats, wrong: int) -> bool:
    """Whether wrong signs have not become fewer for too long, one change at a time included."""
    if wrong < progress[FEWEST]:
        _begin(progress, float(wrong))
        return False
    progress[LEFT] -= 1
    if progress[LEFT] >= 0:
        return False
    if progress[ALONE]:
        return True
    progress[LEFT], progress[ALONE] = SINGLE, 1.0
    return False


@inner
def _proximal_step(x: Floats, center: Floats, ridge: float, B: Floats) -> float:
    """Move the centre to x. Returns the optimality error of x: ridge times the longest step."""
    C, n = B.shape
    moved = 0.0
    for c in range(C):
        for j in range(n):
            step = x[c, j] - center[c, j]
            moved = max(moved, abs(step))
            center[c, j] += step
            B[c, j] += ridge * step
    return ridge * moved


@inner
def _change_sides(
    p: Family,
    w: Work,
    lost: int | np.int64,
    center: Floats,
    ridge: float,
    tolerance: float,
    progress: Floats,
    step: int,
) -> int:
    """End an iteration, of which x, the multipliers and the gradients are known: wrong signs change sides.

    - `lost`: pivots that the multipliers of the rows that tie children together have lost.
    - `center`, `ridge`, `tolerance`: as of :func:`pdas`.
    - `progress` (4,): how it goes, all zeros before the first step.
    - `step`: from 1.
    - Returns: ``OK``, ``STALLED``, ``INFEASIBLE``, or ``CHANGED``: another iteration is needed.
    """
    C, n = p.B.shape
    most = float(C * (n + p.groups.shape[0]) + 1)
    if step == 1:
        _begin(progress, most)
        progress[ENTER] = 0.5
    _reduced_costs(p.scale, p.groups, p.joint, w.mu, w.tau, w.lam, w.z)
    constrained = p.groups.shape[0] > 0 or len(p.joint_total) > 0
    degenerate = resolve_dependencies(p, w, lost, 10.0 * tolerance) if constrained else UNCHANGED
    if degenerate != UNCHANGED:
        return INFEASIBLE if degenerate == UNBOUNDED else CHANGED
    wrong = _flip(p, w, tolerance, progress[ENTER], progress[ALONE] > 0.0)
    progress[ENTER] = EAGER * progress[ENTER] if step < 4 else 0.0
    if wrong:
        return STALLED if _stalled(progress, wrong) else CHANGED
    if ridge == 0.0 or _proximal_step(w.x, center, ridge, p.B) <= tolerance:
        return OK
    _begin(progress, most)
    return CHANGED


def pdas(
    p: Family, free: Bools, side: Sides, center: Floats, ridge: float, limit: int, tolerance: float
) -> tuple[int, int, Floats, Floats, Floats, Floats]:
    """Solve a reduced family.

    - `p`: B, in counts plus ridge times `center`, is changed in place.
    - `free` (C, n): guess of the cells that may be positive; the final set on return.
    - `side` (C, K): guess of the rows on a bound: 0 inactive, -1 lower, 1 upper; likewise.
    - `center` (C, n): first centre of the proximal steps; changed in place.
    - `ridge`: 0 where H is definite by itself: one solve, no proximal steps.
    - `limit`: most iterations.
    - `tolerance`: in counts: a sign is wrong beyond it.
    - Returns: ``OK``, ``STALLED``, ``SINGULAR``, or ``INFEASIBLE`` (not yet proved); shapes (C, n), (n,),
      (J,), (C, K).
    """
    w = workspace(p, free, side)
    status, step = _iterate(p, w, center, ridge, limit, tolerance)
    return status, step, w.x, w.mu, w.tau, w.lam


@njit(cache=True, nogil=True)
def _iterate(
    p: Family, w: Work, center: Floats, ridge: float, limit: int, tolerance: float
) -> tuple[int, int]:
    """Change the active set until it is that of the optimum. Returns status and iterations."""
    mask, groups = p.mask, p.groups
    lower, upper = p.lower, p.upper
    free, side, dirty = w.free, w.side, w.dirty
    z = w.z
    C = len(mask)
    J = len(p.joint_total)
    tied = len(p.parent) > 0
    # Equalities sit on their bound from the start.
    for k in range(len(groups)):
        fixed = 0
        for c in range(C):
            if lower[c, k] == upper[c, k]:
                side[c, k] = EQUAL
                fixed += 1
        if tied and fixed == C:  # one of them follows from the parent; if it does not, its sign will be wrong
            side[0, k] = 0
    pool = np.empty(0)
    progress = np.zeros(4)
    status = CHANGED
    step = 0
    while status == CHANGED and step < limit:
        step += 1
        # A system that can be solved: every row has a free cell.
        if tied:
            _cover_columns(mask, z, free, dirty)
        if J:
            _cover_joint(mask, p.joint, J, z, free, dirty)
        cover_rows(mask, groups, side, z, free, dirty)
        # P_c of the active set, then S (mu, tau) = r, then x and lambda, then z.
        pool, regular = factorise(p, w, pool)
        if not regular:
            return SINGULAR, step
        lost = coupling_multipliers(p, w, pool) if tied or J else 0
        recover(p, w, pool)
        status = _change_sides(p, w, lost, center, ridge, tolerance, progress, step)
    return (STALLED if status == CHANGED else status), step


@njit(cache=True, nogil=True)
def change_sides(
    p: Family, w: Work, center: Floats, ridge: float, tolerance: float, progress: Floats, step: int
) -> int:
    """End an iteration of a caller in Python, without rows that tie children together."""
    none = np.int64(0)  # a literal would have all of it compiled again
    return _change_sides(p, w, none, center, ridge, tolerance, progress, step)
