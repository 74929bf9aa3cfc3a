"""Dependent active rows: multipliers that are not unique, or an active set that no point satisfies.

The parent's rows, joint totals and the active group rows of all children may depend on each other on the free
cells: a total held in every child repeats the parent's total, as do joint totals of all children; a group
whose cells are all of a child's free cells repeats its total, and so on. Every such dependency is a direction
``(dmu, dtau, dlambda)`` that leaves x as it is.

Where the bounds agree, the multipliers are not unique: move along the direction to where no sign is wrong, or
as little as can be. Where they disagree, no x satisfies the active set, and the dual objective grows along
the direction without limit until a sign turns: the first cell or row whose sign turns changes sides (the
ratio test of the dual simplex method). If none turns, the family is infeasible, which the caller proves by
other means.
"""

from __future__ import annotations

import numpy as np

from opendas.arrays import Floats
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.active_set import ROWS, SIZE, Family, Work
from opendas.solvers.least_squares.kernels import null_vector

UNCHANGED, CHANGED, UNBOUNDED = 0, 1, 2
ROUNDING = 1e-9
"""Entries of a direction below this are zero."""
SUM = 1e-10
"""Error of a joint total, relative to it, that is rounding: it sums thousands of cells."""


@inner
def _first_turn(p: Family, w: Work, dmu: Floats, dtau: Floats, dlam: Floats) -> tuple[float, int, int]:
    """Step at which the first sign turns along a direction, and the child and cell (n + row) that turns."""
    mask, groups, joint = p.mask, p.groups, p.joint
    free, z = w.free, w.z
    C, n = z.shape
    K = len(groups)
    step, child, place = np.inf, -1, -1
    for c in range(C):
        together = dtau[joint[c]] if len(joint) and joint[c] >= 0 else 0.0
        for j in range(n):
            if free[c, j] or not mask[c, j]:
                continue
            d = dmu[j] + together
            for k in range(K):
                if groups[k, j]:
                    d += dlam[c, k]
            if d < -ROUNDING and -z[c, j] / d < step:
                step, child, place = -z[c, j] / d, c, j
        for k in range(K):
            side = w.side[c, k]
            d = side * dlam[c, k]
            if abs(side) == 1 and d < -ROUNDING:
                turn = -side * w.lam[c, k] / d
                if turn < step:
                    step, child, place = turn, c, n + k
    return step, child, place


@inner
def _move(p: Family, w: Work, dmu: Floats, dtau: Floats, dlam: Floats, step: float) -> None:
    groups, joint = p.groups, p.joint
    z, lam = w.z, w.lam
    C, n = z.shape
    K = len(groups)
    for j in range(n):
        w.mu[j] += step * dmu[j]
    for s in range(len(dtau)):
        w.tau[s] += step * dtau[s]
    for c in range(C):
        for k in range(K):
            lam[c, k] += step * dlam[c, k]
        together = dtau[joint[c]] if len(joint) and joint[c] >= 0 else 0.0
        for j in range(n):
            d = dmu[j] + together
            for k in range(K):
                if groups[k, j]:
                    d += dlam[c, k]
            z[c, j] += step * d


@inner
def _reverse(dmu: Floats, dtau: Floats, dlam: Floats) -> None:
    for j in range(len(dmu)):
        dmu[j] = -dmu[j]
    for s in range(len(dtau)):
        dtau[s] = -dtau[s]
    for c in range(dlam.shape[0]):
        for k in range(dlam.shape[1]):
            dlam[c, k] = -dlam[c, k]


@inner
def _along_direction(
    p: Family, w: Work, dmu: Floats, dtau: Floats, dlam: Floats, gap: float, tolerance: float
) -> int:
    """Deal with one direction, of slope `gap` of the dual objective."""
    n = p.B.shape[1]
    if abs(gap) <= tolerance:
        up, _, _ = _first_turn(p, w, dmu, dtau, dlam)
        _reverse(dmu, dtau, dlam)
        down, _, _ = _first_turn(p, w, dmu, dtau, dlam)
        down = -down  # admissible: down <= step <= up, along the first orientation
        step = 0.5 * (up + down) if up < down else min(max(0.0, down), up)
        if step != 0.0:
            _move(p, w, dmu, dtau, dlam, -step)
        return UNCHANGED
    if gap < 0.0:
        _reverse(dmu, dtau, dlam)
    _, c, place = _first_turn(p, w, dmu, dtau, dlam)
    if c < 0:
        return UNBOUNDED
    if place < n:
        w.free[c, place] = True
    else:
        w.side[c, place - n] = 0
    w.dirty[c] = True
    return CHANGED


@inner
def resolve_dependencies(p: Family, w: Work, lost: int | np.int64, tolerance: float) -> int:
    """Deal with every dependency of the active set.

    Returns ``CHANGED`` if the active set changed, so that x means nothing yet, and ``UNBOUNDED`` if some
    direction increases the dual objective for ever: up to rounding, a proof that the family is infeasible.
    """
    C, n = p.B.shape
    K = p.groups.shape[0]
    result = UNCHANGED
    J = len(p.joint_total)
    dmu = np.zeros(n)
    dtau = np.zeros(J)
    dlam = np.zeros((C, K))
    for c in range(C):
        for k in range(K):
            if not w.dependent[c, k]:
                continue
            gap = 0.0
            for u in range(K):
                dlam[c, u] = w.relation[c, k, u]
                gap -= (
                    dlam[c, u] * (p.lower[c, u] if w.side[c, u] < 0 else p.upper[c, u])
                    if dlam[c, u] != 0.0
                    else 0.0
                )
            found = _along_direction(p, w, dmu, dtau, dlam, gap, tolerance)
            if result == UNCHANGED:  # once the active set has changed, the other directions prove nothing
                result = found
            for u in range(K):
                dlam[c, u] = 0.0
    if lost == 0:
        return result
    t = w.scratch[0]
    columns = len(p.parent)
    for i in range(columns + J):
        if not w.lost[i]:
            continue
        null_vector(w.S, i, t)
        gap = 0.0
        for j in range(columns):
            dmu[j] = t[w.place_in_s[j]]
            gap += dmu[j] * w.r[j]
        size = 0.0
        for s in range(J):
            dtau[s] = t[columns + s]
            gap += dtau[s] * w.r[n + s]
            size += abs(dtau[s]) * p.joint_total[s]
        for c in range(C):
            q = w.place[c, ROWS]
            together = dtau[p.joint[c]] if len(p.joint) and p.joint[c] >= 0 else 0.0
            for k in range(K):
                dlam[c, k] = 0.0
            for u in range(q):
                t[u] = 0.0
                for a in range(w.place[c, SIZE]):
                    t[u] += w.Y[c, u, a] * (dmu[w.order[c, a]] + together)
            for u in range(q):
                for v in range(q):
                    dlam[c, w.rows[c, u]] -= w.M[c, u, v] * t[v]
        found = _along_direction(p, w, dmu, dtau, dlam, gap, max(tolerance, SUM * size))
        if result == UNCHANGED:
            result = found
    return result
