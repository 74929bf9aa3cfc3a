"""The active set of a single child without a parent (a root), for thousands of cells.

The same steps as :mod:`opendas.solvers.least_squares.primal_dual_active_set`, with
:mod:`opendas.solvers.least_squares.lowrank` in the place of explicit
inverses: an iteration costs as much as the margins, not as the cells.
"""

from __future__ import annotations

import numpy as np

from opendas.arrays import Floats
from opendas.solvers.least_squares.active_set import EQUAL, ROWS, SIZE, Family, Work, workspace
from opendas.solvers.least_squares.degenerate import UNBOUNDED, UNCHANGED, settle
from opendas.solvers.least_squares.kernels import DEPENDENT, insert
from opendas.solvers.least_squares.lowrank import Factor, LowRank
from opendas.solvers.least_squares.primal_dual_active_set import (
    INFEASIBLE,
    OK,
    PATIENCE,
    SINGLE,
    STALLED,
    cover_rows,
    flip,
    price,
    proximal_step,
)

__all__ = ["solve_single"]


def solve_single(
    p: Family, H: LowRank, center: Floats, ridge: float, limit: int, tolerance: float
) -> tuple[int, int, Floats, Floats]:
    """Solve for one child.

    Parameters
    ----------
    p : Family
        One child, scale 1, no parent; its H is not used. Its B is changed in place.
    H : LowRank
        In the place of ``p.H``, ridge included.
    center, ridge, limit, tolerance
        As in :func:`opendas.solvers.least_squares.primal_dual_active_set.pdas`.

    Returns
    -------
    status, iterations, x, lam
        Shapes (1, n) and (1, K).
    """
    n = p.B.shape[1]
    everything = np.arange(n)
    guess = H.factor(everything).solve(p.B[0])
    free = p.mask & (guess > 0.0)[None, :]
    side = np.where(p.lower == p.upper, EQUAL, 0).astype(np.int8)
    w = workspace(p, free, side)
    best, patience, single, least = n + len(p.groups) + 1, PATIENCE, False, 0.5
    for iteration in range(1, limit + 1):
        cover_rows(p, w)
        cells = np.flatnonzero(w.free[0])
        factor = H.factor(cells)
        _active_rows(p, w, factor)
        _recover(p, w, factor)
        price(p, w)
        settled = settle(p, w, 0, 10.0 * tolerance)
        if settled == UNBOUNDED:
            return INFEASIBLE, iteration, w.x, w.lam
        if settled != UNCHANGED:
            continue
        wrong = flip(p, w, tolerance, least, int(single))
        least = 0.4 * least if iteration < 4 else 0.0
        if wrong == 0:
            if ridge == 0.0 or proximal_step(p, w, center, ridge) <= tolerance:
                return OK, iteration, w.x, w.lam
            best, patience, single = n + len(p.groups) + 1, PATIENCE, False
        elif wrong < best:
            best, patience, single = wrong, PATIENCE, False
        else:
            patience -= 1
            if patience < 0:
                if single:
                    break
                single, patience = True, SINGLE
    return STALLED, iteration, w.x, w.lam


def _active_rows(p: Family, w: Work, factor: Factor) -> None:
    """Set rows, bounds, Y and M of the child, as the compiled twin does for many."""
    cells = factor.cells
    m = len(cells)
    w.order[0, :m] = cells
    work = np.empty(max(1, len(p.groups)))
    q = 0
    for k in np.flatnonzero(w.side[0]):
        w.dependent[0, k] = False
        inside = p.groups[k, cells]
        y = factor.solve(inside.astype(float))
        diagonal = float(y[inside].sum())
        cross = np.array([y[p.groups[u, cells]].sum() for u in w.rows[0, :q]])
        if insert(w.M[0], q, cross, diagonal, work, DEPENDENT * diagonal):
            w.Y[0, q, :m] = y
            w.rows[0, q] = k
            w.rhs[0, q] = p.lower[0, k] if w.side[0, k] < 0 else p.upper[0, k]
            q += 1
            continue
        w.dependent[0, k] = True
        w.relation[0, k] = 0.0
        w.relation[0, k, w.rows[0, :q]] = -np.einsum("uv,v->u", w.M[0, :q, :q], cross)
        w.relation[0, k, k] = 1.0
    w.dependent[0, w.side[0] == 0] = False
    w.place[0, SIZE] = m
    w.place[0, ROWS] = q


def _recover(p: Family, w: Work, factor: Factor) -> None:
    """Set x, lambda and the gradient, in z."""
    cells = factor.cells
    m, q = len(cells), int(w.place[0, ROWS])
    x = factor.solve(p.B[0, cells])
    Y, M = w.Y[0, :q, :m], w.M[0, :q, :q]
    w.lam[0] = 0.0
    if q:
        sums = np.array([x[p.groups[k, cells]].sum() for k in w.rows[0, :q]])
        force = np.einsum("uv,v->u", M, sums - w.rhs[0, :q])
        w.lam[0, w.rows[0, :q]] = force
        x = x - np.einsum("u,um->m", force, Y)
    w.x[0] = 0.0
    w.x[0, cells] = x
    w.z[0] = factor.H.times(x, cells, np.arange(p.B.shape[1])) + factor.H.diagonal * w.x[0] - p.B[0]
