"""H as a multiple of the identity plus a few margins, and roots solved at the cost of the margins.

Where one term distinguishes all cells, ``H = d I + A' W A``. Most terms are coarser than another one (a total
is a sum of any margin), so A needs the rows of the finest terms only, and W gathers the weights of those that
are coarser. With the query groups of the redistricting data, 2,016 cells and 584 rows become 260. Then, on
any set F of free cells, with ``A_F`` the columns of A,

    (d I + A_F' W A_F)^-1 = (I - A_F' (d W^-1 + A_F A_F')^-1 A_F) / d      (Sherman, Morrison, Woodbury),

and ``A_F A_F'`` is a table of counts.

Roots with bounded groups need it, such as the state of redistricting persons: they are solved without a
matrix of all cells. Other families of many cells have their first inverses from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Floats, Ints, value_of_rows
from opendas.solvers.least_squares.active_set import EQUAL, ROWS, SIZE, Family, Work, workspace
from opendas.solvers.least_squares.kernels import DEPENDENT, SINGULAR, cholesky, insert, triangular_solve
from opendas.solvers.least_squares.primal_dual_active_set import CHANGED, STALLED, change_sides, cover_rows


@dataclass(frozen=True, slots=True)
class LowRank:
    """``H = diagonal I + A' core A``."""

    diagonal: float  # weight of the terms that distinguish all cells, and a ridge
    rows: Ints  # (T, n): row of A of every cell, for each of the finest terms; each cell has T ones in A
    core: Floats  # (r, r): W, block-diagonal by finest term
    core_inverse: Floats  # (r, r): its inverse

    @property
    def rank(self) -> int:
        """Number of rows of A."""
        return len(self.core)

    def gather(self, v: Floats, cells: Ints) -> Floats:
        """``A_F v``, shape (r,)."""
        total = np.zeros(self.rank)
        for rows in self.rows:
            total += np.bincount(rows[cells], v, self.rank)
        return total

    def scatter(self, u: Floats, cells: Ints) -> Floats:
        """``A_F' u``, shape (m,)."""
        total = np.zeros(len(cells))
        for rows in self.rows:
            total += u[rows[cells]]
        return total

    def times(self, v: Floats, cells: Ints, out: Ints) -> Floats:
        """``H[out, cells] v``, without the diagonal part where the two sets differ."""
        # einsum, not BLAS: a fixed order of summation, whatever the number of threads
        return self.scatter(np.einsum("ab,b->a", self.core, self.gather(v, cells)), out)

    def factor(self, cells: Ints) -> Factor:
        """Prepare solves with ``H[cells, cells]``."""
        r = self.rank
        system = self.diagonal * self.core_inverse
        for one in self.rows:
            for other in self.rows:
                system += np.bincount(one[cells] * r + other[cells], minlength=r * r).reshape(r, r)
        lost = np.zeros(r, np.bool_)
        cholesky(system, system.diagonal().copy(), lost)
        return Factor(self, cells, system)


@dataclass(frozen=True, slots=True)
class Factor:
    """Solves with ``H[cells, cells]``."""

    H: LowRank
    cells: Ints
    system: Floats

    def solve(self, v: Floats) -> Floats:
        """``H_FF^-1 v``, with one step of refinement."""
        x = self._once(v)
        return x + self._once(v - self.H.diagonal * x - self.H.times(x, self.cells, self.cells))

    def _once(self, v: Floats) -> Floats:
        u = self.H.gather(v, self.cells)
        triangular_solve(self.system, u)
        result: Floats = (v - self.H.scatter(u, self.cells)) / self.H.diagonal
        return result


def low_rank(rows: NDArray[np.int32], weights: Floats, ridge: float) -> LowRank | None:
    """Find the structure of H, with unit diagonal before the ridge; None where no term separates the cells.

    - `rows`, `weights` (Q, n), (Q,): the terms, on the cells that are kept.
    - `ridge`: added to the diagonal.
    """
    n = rows.shape[1]
    unit = 1.0 / float(weights.sum()) if len(weights) else 1.0
    diagonal = ridge
    terms: list[tuple[float, Ints, int]] = []
    for row, weight in zip(rows, weights, strict=True):
        values, compact = np.unique(row, return_inverse=True)
        if len(values) == n:
            diagonal += weight * unit
        else:
            terms.append((weight * unit, compact.astype(np.int64), len(values)))
    if diagonal <= 0.0:
        return None
    finest: list[Ints] = []
    blocks: list[Floats] = []
    for weight, row, size in sorted(terms, key=lambda term: -term[2]):
        for fine, block in zip(finest, blocks, strict=True):
            image = value_of_rows(fine, row)
            if image is not None:  # every fine row lies in one row of this term
                block += weight * (image[:, None] == image[None, :])
                break
        else:
            finest.append(row)
            blocks.append(weight * np.eye(size))
    r = sum(len(block) for block in blocks)
    core, inverse = np.zeros((r, r)), np.zeros((r, r))
    place = np.zeros((len(finest), n), np.int64)
    at = 0
    for t, (fine, block) in enumerate(zip(finest, blocks, strict=True)):
        end = at + len(block)
        core[at:end, at:end] = block
        inverse[at:end, at:end] = _inverse(block)
        place[t] = fine + at
        at = end
    return LowRank(diagonal, place, core, inverse)


def _inverse(block: Floats) -> Floats:
    P = np.zeros(block.shape)
    work = np.empty(len(block))
    for k in range(len(block)):
        insert(P, k, block[k], block[k, k], work, SINGULAR * block[k, k])
    return P


# The active set of a root: the steps of primal_dual_active_set, with H by its structure in place of
# explicit inverses. An iteration costs as much as the margins, not as the cells.


def solve_single(
    p: Family, H: LowRank, center: Floats, ridge: float, limit: int, tolerance: float
) -> tuple[int, int, Floats, Floats]:
    """Solve for one child.

    - `p`: one child, scale 1, no parent; its H is not used. Its B is changed in place.
    - `H`: instead of ``p.H``, ridge included.
    - `center`, `ridge`, `limit`, `tolerance`: as in
      :func:`opendas.solvers.least_squares.primal_dual_active_set.pdas`.
    - Returns: shapes (1, n) and (1, K).
    """
    n = p.B.shape[1]
    everything = np.arange(n)
    guess = H.factor(everything).solve(p.B[0])
    free = p.mask & (guess > 0.0)[None, :]
    side = np.where(p.lower == p.upper, EQUAL, 0).astype(np.int8)
    w = workspace(p, free, side)
    progress = np.zeros(4)
    status, step = CHANGED, 0
    while status == CHANGED and step < limit:
        step += 1
        cover_rows(p.mask, p.groups, side, w.z, free, w.dirty)
        cells = np.flatnonzero(w.free[0])
        factor = H.factor(cells)
        _active_rows(p, w, factor)
        _recover(p, w, factor)
        status = change_sides(p, w, center, ridge, tolerance, progress, step)
    return (STALLED if status == CHANGED else status), step, w.x, w.lam


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
