"""The family as a sparse quadratic program, with the margins as variables.

Variables are the masked cells, child by child, then the margins ``v = Q x`` of every term that has more
than one cell in some row. The objective is then diagonal, and everything a general solver sees is sparse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from opendas.optimize.problem import FamilyProblem

__all__ = ["LiftedProgram", "lift"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LiftedProgram:
    """Minimise ``y' diag(diagonal) y / 2 + cost' y`` with ``row_lower <= A y <= row_upper``.

    The cell variables are non-negative, the margins free.

    Parameters
    ----------
    diagonal, cost : ndarray, shape (N,)
        In units of the sum of the weights.
    A : sparse array, shape (M, N)
        Rows, in this order: margins, parent, groups.
    row_lower, row_upper : ndarray, shape (M,)
        Equal for equalities.
    child, cell : ndarray, shape (number of cell variables,)
        Place of the first variables in x.
    cells_only : int
        Number of cell variables.
    """

    diagonal: Floats
    cost: Floats
    A: sparse.csr_array
    row_lower: Floats
    row_upper: Floats
    child: NDArray[np.int64]
    cell: NDArray[np.int64]

    def unpack(self, y: Floats, shape: tuple[int, int]) -> Floats:
        """Cells of a solver's answer, negatives set to 0."""
        x = np.zeros(shape)
        x[self.child, self.cell] = np.maximum(np.asarray(y)[: len(self.child)], 0.0)
        return x


def lift(problem: FamilyProblem) -> LiftedProgram:
    """State a family as a sparse quadratic program."""
    C, n = problem.children, problem.cells
    unit = 1.0 / problem.weight if problem.terms else 1.0
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    diagonal = [np.zeros(m)]
    blocks: list[sparse.csr_array] = []
    defined: list[int] = []
    for weight, rows in problem.terms:
        size = int(rows.max(initial=-1)) + 1
        w = weight * unit * problem.scale
        if len(np.unique(rows)) == n:
            diagonal[0] += w[child]
            continue
        blocks.append(
            sparse.csr_array((np.ones(m), (child * size + rows[cell], np.arange(m))), shape=(C * size, m))
        )
        diagonal.append(np.repeat(w, size))
        defined.append(C * size)
    N = m + sum(defined)
    A: list[sparse.csr_array] = []
    low: list[Floats] = []
    high: list[Floats] = []
    at = m
    for block, size in zip(blocks, defined, strict=True):
        minus = sparse.csr_array(
            (-np.ones(size), (np.arange(size), at - m + np.arange(size))), shape=(size, N - m)
        )
        A.append(sparse.hstack([block, minus], format="csr"))
        low.append(np.zeros(size))
        high.append(np.zeros(size))
        at += size
    if problem.parent is not None:
        A.append(sparse.csr_array((np.ones(m), (cell, np.arange(m))), shape=(n, N)))
        low.append(problem.parent)
        high.append(problem.parent)
    for k, group in enumerate(problem.groups):
        bounded = np.isfinite(problem.lower[:, k]) | np.isfinite(problem.upper[:, k])
        place = np.cumsum(bounded) - 1
        inside = np.flatnonzero(group[cell] & bounded[child])
        count = int(bounded.sum())
        A.append(sparse.csr_array((np.ones(len(inside)), (place[child[inside]], inside)), shape=(count, N)))
        low.append(problem.lower[bounded, k])
        high.append(problem.upper[bounded, k])
    matrix = sparse.vstack(A, format="csr") if A else sparse.csr_array((0, N))
    cost = np.zeros(N)
    cost[:m] = -unit * (problem.scale[:, None] * problem.linear)[child, cell]
    empty = [np.zeros(0)]
    return LiftedProgram(
        diagonal=np.concatenate(diagonal),
        cost=cost,
        A=matrix,
        row_lower=np.concatenate(low or empty),
        row_upper=np.concatenate(high or empty),
        child=child.astype(np.int64),
        cell=cell.astype(np.int64),
    )
