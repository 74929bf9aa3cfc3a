"""The family as a sparse quadratic program, in three forms.

*Plain*: the variables are the cells a child may use, and the Hessian has one dense block per child.
*Lifted*: the margins ``v = Q x`` of every term with more than one cell in some row are variables too, defined
by equalities. The objective is then diagonal and everything is sparse, which most solvers prefer from a few
hundred cells on.
*Nested*: lifted, and coarse margins are defined from finer ones where they can be, which is sparser still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Floats
from opendas.solvers.problem.joint import independent_joint
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["Form", "Program", "program"]

Form = Literal["lifted", "nested", "plain"]


@dataclass(frozen=True, slots=True)
class Program:
    """Minimise ``y' P y / 2 + cost' y`` with ``row_lower <= A y <= row_upper``.

    The cell variables are non-negative, the margins free.

    Parameters
    ----------
    P : sparse array, shape (N, N)
        Symmetric, in units of the sum of the weights.
    cost : ndarray, shape (N,)
        Likewise.
    A : sparse array, shape (M, N)
        Rows, in this order: margins, parent, groups, joint totals.
    row_lower, row_upper : ndarray, shape (M,)
        Equal for equalities.
    child, cell : ndarray, shape (m,)
        Place in x of the first m variables.
    """

    P: sparse.csc_array
    cost: Floats
    A: sparse.csr_array
    row_lower: Floats
    row_upper: Floats
    child: NDArray[np.int64]
    cell: NDArray[np.int64]

    @property
    def lower(self) -> Floats:
        """Lower bounds of the variables, shape (N,)."""
        bound = np.full(len(self.cost), -np.inf)
        bound[: len(self.child)] = 0.0
        return bound

    def unpack(self, y: Floats, shape: tuple[int, int]) -> Floats:
        """Cells of a solver's answer, shape (C, n), negatives set to 0."""
        x = np.zeros(shape)
        x[self.child, self.cell] = np.maximum(np.asarray(y, dtype=float)[: len(self.child)], 0.0)
        return x


def program(
    problem: FamilyProblem, form: Form = "nested", varied: tuple[Floats, Floats] | None = None
) -> Program:
    """State a family as a sparse quadratic program.

    Parameters
    ----------
    problem : FamilyProblem
    form : str
    varied : (ndarray, ndarray), optional
        Linear term, shape (C, n), and one Hessian per child, shape (C, n, n), in the place of the problem's;
        in the plain form only.
    """
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    margins: list[sparse.csr_array] = []
    linear, unit = problem.scale[:, None] * problem.linear, _unit(problem)
    if varied is not None:
        linear = varied[0]
        largest = float(np.einsum("cii->ci", varied[1]).max(initial=0.0))
        unit = 1.0 / largest if largest > 0.0 else 1.0
        P = _own_blocks(varied[1] * unit, child, cell)
    elif form == "plain":
        P = _blocks(problem, child, cell)
    else:
        diagonal, margins = _margins(problem, child, cell, nested=form == "nested")
        P = sparse.diags_array(diagonal, format="csc")
    N = P.shape[0]
    A: list[sparse.csr_array] = []
    low: list[Floats] = [np.zeros(0)]
    high: list[Floats] = [np.zeros(0)]
    at = m
    for block in margins:
        size = block.shape[0]
        minus = sparse.csr_array(
            (-np.ones(size), (np.arange(size), np.arange(at, at + size))), shape=(size, N)
        )
        A.append(_widen(block, N) + minus)
        low.append(np.zeros(size))
        high.append(np.zeros(size))
        at += size
    if problem.parent is not None:
        A.append(sparse.csr_array((np.ones(m), (cell, np.arange(m))), shape=(problem.cells, N)))
        low.append(problem.parent)
        high.append(problem.parent)
    for k, group in enumerate(problem.groups):
        bounded = np.isfinite(problem.lower[:, k]) | np.isfinite(problem.upper[:, k])
        if _repeats_parent(problem, k):
            bounded[0] = False
        place = np.cumsum(bounded) - 1
        inside = np.flatnonzero(group[cell] & bounded[child])
        shape = (int(bounded.sum()), N)
        A.append(sparse.csr_array((np.ones(len(inside)), (place[child[inside]], inside)), shape=shape))
        low.append(problem.lower[bounded, k])
        high.append(problem.upper[bounded, k])
    joint, joint_total = problem.joint_rows
    kept = independent_joint(problem)
    if kept.any():
        place = np.cumsum(kept) - 1
        inside = np.flatnonzero((joint >= 0)[child] & kept[joint[child]])
        shape = (int(kept.sum()), N)
        A.append(sparse.csr_array((np.ones(len(inside)), (place[joint[child[inside]]], inside)), shape=shape))
        low.append(joint_total[kept])
        high.append(joint_total[kept])
    cost = np.zeros(N)
    cost[:m] = -unit * linear[child, cell]
    return Program(
        P=P,
        cost=cost,
        A=sparse.vstack(A, format="csr") if A else sparse.csr_array((0, N)),
        row_lower=np.concatenate(low),
        row_upper=np.concatenate(high),
        child=child.astype(np.int64),
        cell=cell.astype(np.int64),
    )


def _repeats_parent(problem: FamilyProblem, k: int) -> bool:
    """Whether a group is fixed in every child, so that one of its rows follows from the parent's.

    Interior-point methods lose digits on dependent equalities.
    """
    if problem.parent is None or not (problem.lower[:, k] == problem.upper[:, k]).all():
        return False
    total = float(problem.parent[problem.groups[k]].sum())
    return abs(float(problem.lower[:, k].sum()) - total) <= 1e-9 * max(1.0, total)


def _unit(problem: FamilyProblem) -> float:
    return 1.0 / problem.weight if problem.terms else 1.0


def _widen(block: sparse.csr_array, width: int) -> sparse.csr_array:
    return sparse.csr_array((block.data, block.indices, block.indptr), shape=(block.shape[0], width))


def _own_blocks(matrices: Floats, child: NDArray[np.intp], cell: NDArray[np.intp]) -> sparse.csc_array:
    used = [cell[child == c] for c in range(len(matrices))]
    return sparse.csc_array(
        sparse.block_diag(
            [sparse.csc_array(A[np.ix_(inside, inside)]) for A, inside in zip(matrices, used, strict=True)],
            format="csc",
        )
    )


def _blocks(problem: FamilyProblem, child: NDArray[np.intp], cell: NDArray[np.intp]) -> sparse.csc_array:
    H = _unit(problem) * problem.hessian()
    parts = []
    for c in range(problem.children):
        used = cell[child == c]
        parts.append(sparse.csc_array(problem.scale[c] * H[np.ix_(used, used)]))
    return sparse.csc_array(sparse.block_diag(parts, format="csc"))


def _margins(
    problem: FamilyProblem, child: NDArray[np.intp], cell: NDArray[np.intp], *, nested: bool
) -> tuple[Floats, list[sparse.csr_array]]:
    """Diagonal of P, and the definition of each block of margins, as rows over the variables before it.

    Nested, a margin is summed from the coarsest earlier one that refines it: far fewer entries than from the
    cells.
    """
    C, m = problem.children, len(child)
    diagonal = [np.zeros(m)]
    blocks: list[sparse.csr_array] = []
    known: list[tuple[NDArray[np.intp], int, int]] = []  # compact rows, how many, first variable
    at = m
    compact = [np.unique(rows, return_inverse=True)[1] for _, rows in problem.terms]
    sizes = [int(rows.max(initial=-1)) + 1 for rows in compact]
    for q in sorted(range(len(sizes)), key=lambda q: -sizes[q]):
        rows, size = compact[q], sizes[q]
        w = problem.terms[q][0] * _unit(problem) * problem.scale
        if size == problem.cells:
            diagonal[0] += w[child]
            continue
        source, place = np.arange(m), child * size + rows[cell]
        for fine, count, first in reversed(known) if nested else ():
            image = np.zeros(count, np.intp)
            image[fine] = rows
            if np.array_equal(image[fine], rows):
                source = first + np.arange(C * count)
                place = (np.arange(C)[:, None] * size + image[None, :]).ravel()
                break
        blocks.append(sparse.csr_array((np.ones(len(source)), (place, source)), shape=(C * size, at)))
        known.append((rows, size, at))
        diagonal.append(np.repeat(w, size))
        at += C * size
    return np.concatenate(diagonal), blocks
