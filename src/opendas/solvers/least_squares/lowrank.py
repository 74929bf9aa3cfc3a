"""H as a multiple of the identity plus a few margins, and solves that cost no more than the margins.

Where one term tells all cells apart, ``H = d I + A' W A``. Most terms are coarser than another one (a total
is a sum of any margin), so A needs the rows of the finest terms only, and W gathers the weights of those that
are coarser. With the query groups of the redistricting data, 2,016 cells and 584 rows become 260. Then, on
any set F of free cells, with ``A_F`` the columns of A,

    (d I + A_F' W A_F)^-1 = (I - A_F' (d W^-1 + A_F A_F')^-1 A_F) / d      (Sherman, Morrison, Woodbury),

and ``A_F A_F'`` is a table of counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Floats, Ints
from opendas.solvers.least_squares.kernels import SINGULAR, cholesky, insert, triangular_solve

__all__ = ["Factor", "LowRank", "low_rank"]


@dataclass(frozen=True, slots=True)
class LowRank:
    """``H = diagonal I + A' core A``.

    Parameters
    ----------
    diagonal : float
        Weight of the terms that tell all cells apart, and a ridge.
    rows : ndarray, shape (T, n)
        Row of A of every cell, for each of the finest terms; each cell has T ones in A.
    core : ndarray, shape (r, r)
        W, block-diagonal by finest term.
    core_inverse : ndarray, shape (r, r)
        Its inverse.
    """

    diagonal: float
    rows: Ints
    core: Floats
    core_inverse: Floats

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

    Parameters
    ----------
    rows, weights : ndarray, shapes (Q, n) and (Q,)
        The terms, on the cells that are kept.
    ridge : float
        Added to the diagonal.
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
            image = np.zeros(len(block), np.int64)
            image[fine] = row
            if np.array_equal(image[fine], row):  # every fine row lies in one row of this term
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
