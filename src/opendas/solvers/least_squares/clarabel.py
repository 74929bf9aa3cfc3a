"""Clarabel, an interior point, and the family as the sparse quadratic program that general solvers take.

The program has three forms. *Plain*: the variables are the cells a child may use, and the Hessian has one
dense block per child. *Lifted*: the margins ``v = Q x`` of every term with more than one cell in some row are
variables too, defined by equalities. The objective is then diagonal and everything is sparse, which most
solvers prefer from a few hundred cells on. *Nested*: lifted, and coarse margins are defined from finer ones
where they can be, which is sparser still.

No family of a run on record has needed it; two in a thousand hostile ones do, with weights that differ by
many orders of magnitude, and so do families under linear constraints that bind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Floats, Ints, value_of_rows
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.curvature import blocks
from opendas.solvers.problem.problem import FamilyProblem, Status, independent_joint

STATUSES = {"Solved": Status.OPTIMAL, "PrimalInfeasible": Status.INFEASIBLE}
"""Words of Clarabel; all others mean that it failed."""
LOOSER = (1e-9, 1e-8)
"""Tried in turn, while the arithmetic ends before the tolerance is reached."""


Form = Literal["lifted", "nested", "plain"]


@dataclass(frozen=True, slots=True)
class Program:
    """Minimise ``y' P y / 2 + cost' y`` with ``row_lower <= A y <= row_upper``.

    The cell variables are non-negative, the margins free.
    """

    P: sparse.csc_array  # (N, N): symmetric, in units of the sum of the weights
    cost: Floats  # (N,): likewise
    A: sparse.csr_array  # (M, N): rows, in this order: margins, parent, groups, joint totals
    # row_lower, row_upper (M,): equal for equalities.
    row_lower: Floats
    row_upper: Floats
    # child, cell (m,): place in x of the first m variables.
    child: Ints
    cell: Ints
    # (M,): which multiplier of the family each row has: of ``mu``, ``lambda`` and ``tau`` one after the
    # other; -1 for the margins.
    label: Ints
    unit: float = 1.0  # what the rows' multipliers are multiplied by, to be in units of the problem

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

    def multipliers(self, y: Floats, problem: FamilyProblem) -> Multipliers:
        """Multipliers of the family, from those of the rows; 0 where a row was left out that others imply."""
        C, n, K, J = problem.children, problem.cells, len(problem.groups), len(problem.joint_rows[1])
        flat = np.zeros(n + C * K + J)
        known = self.label >= 0
        flat[self.label[known]] = self.unit * y[known]
        return Multipliers(flat[:n], flat[n : n + C * K].reshape(C, K), flat[n + C * K :])


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What a general solver says, before certification."""

    x: Floats  # (C, n): its point, negatives set to 0
    # OPTIMAL if it says so; nothing is accepted before :func:`opendas.solvers.problem.certificate.certify`.
    status: Status
    iterations: int  # as reported
    message: str  # its own word for the status
    y: Floats | None = None  # (N,): all variables of the program
    rows: Floats | None = None  # (M,): multipliers of its rows: <= 0 on a lower bound, >= 0 on an upper one


def solve_program(
    qp: Program,
    shape: tuple[int, int],
    tolerance: float = 1e-12,
    near: Floats | None = None,
    magnified: float = 1.0,
) -> RawAnswer:
    """Solve to a tolerance (of gaps and feasibility), or as tightly as the arithmetic allows.

    - `qp`: its first variables are the cells.
    - `shape`: of the answer, (C, n).
    - `near` (N,): an earlier answer. The program is stated for what is left to it, magnified, which wins the
      digits that an interior point loses where weights differ by orders of magnitude (Weber, Sager and
      Gleixner 2019).
    """
    import clarabel  # compiled, and of use to few families

    equal = qp.row_lower == qp.row_upper
    low = np.isfinite(qp.row_lower) & ~equal
    high = np.isfinite(qp.row_upper) & ~equal
    m = len(qp.child)
    signs = sparse.csr_array((-np.ones(m), (np.arange(m), np.arange(m))), shape=(m, len(qp.cost)))
    A = sparse.csc_array(sparse.vstack([qp.A[equal], signs, qp.A[high], -qp.A[low]], format="csc"))
    b = np.concatenate([qp.row_lower[equal], np.zeros(m), qp.row_upper[high], -qp.row_lower[low]])
    equalities = int(equal.sum())
    cones = [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(len(b) - equalities)]
    cost, start = qp.cost, np.zeros(len(qp.cost))
    if near is not None:
        start, cost, b = near, magnified * (qp.P @ near + cost), magnified * (b - A @ near)
    data = (sparse.csc_matrix(sparse.triu(qp.P)), cost, sparse.csc_matrix(A), b, cones)
    for gap in (tolerance, *(looser for looser in LOOSER if looser > tolerance)):
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        settings.max_iter = 300
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = gap
        answer = clarabel.DefaultSolver(*data, settings).solve()
        message = str(answer.status)
        if message in STATUSES or near is not None:
            break
    y, dual, rows = (
        start + np.array(answer.x) / magnified,
        np.array(answer.z) / magnified,
        np.zeros(len(equal)),
    )
    rows[equal] = dual[:equalities]
    above = equalities + m + int(high.sum())
    rows[high] = dual[equalities + m : above]
    rows[low] -= dual[above:]
    status = STATUSES.get(message, Status.FAILED)
    return RawAnswer(qp.unpack(y, shape), status, int(answer.iterations), message, y, rows)


def program(problem: FamilyProblem, form: Form = "nested") -> Program:
    """State a family as a sparse quadratic program; plain, if children have Hessians of their own."""
    child, cell = np.nonzero(problem.mask)
    m, n, C, K = len(child), problem.cells, problem.children, len(problem.groups)
    margins: list[sparse.csr_array] = []
    linear, unit = problem.linear, problem.unit
    if problem.hessians is not None:
        matrices = blocks(problem.hessians, np.arange(n), linear.shape)
        largest = float(np.einsum("cii->ci", matrices).max(initial=0.0))
        unit = largest if largest > 0.0 else 1.0
        P = _block_diagonal(matrices / unit, child, cell)
    elif form == "plain":
        H = problem.hessian() / unit
        P = _block_diagonal((scale * H for scale in problem.scale), child, cell)
    else:
        diagonal, margins = _margins(problem, child, cell, nested=form == "nested")
        P = sparse.diags_array(diagonal, format="csc")
    if problem.hessians is None:
        linear = problem.scale[:, None] * linear
    N = P.shape[0]
    A: list[sparse.csr_array] = []
    bounds: list[tuple[Floats, Floats, Ints]] = []

    def add(block: sparse.csr_array, low: Floats, high: Floats, label: Ints) -> None:
        A.append(block)
        bounds.append((low, high, label))

    def sums(row: Ints, column: Ints, count: int) -> sparse.csr_array:
        return sparse.csr_array((np.ones(len(column)), (row, column)), shape=(count, N))

    at = m
    for block in margins:  # Q x - v = 0
        size = block.shape[0]
        minus = (-np.ones(size), (np.arange(size), np.arange(at, at + size)))
        none = np.zeros(size)
        add(_widen(block, N) + sparse.csr_array(minus, shape=(size, N)), none, none, np.full(size, -1))
        at += size
    if problem.parent is not None:  # sum_c x_c = parent
        add(sums(cell, np.arange(m), n), problem.parent, problem.parent, np.arange(n))
    for k, group in enumerate(problem.groups):  # lower <= G x_c <= upper
        bounded = np.isfinite(problem.lower[:, k]) | np.isfinite(problem.upper[:, k])
        if _repeats_parent(problem, k):
            bounded[0] = False
        number = np.cumsum(bounded) - 1
        inside = np.flatnonzero(group[cell] & bounded[child])
        label = n + K * np.flatnonzero(bounded) + k
        rows = sums(number[child[inside]], inside, int(bounded.sum()))
        add(rows, problem.lower[bounded, k], problem.upper[bounded, k], label)
    joint, joint_total = problem.joint_rows
    kept = independent_joint(problem)
    if kept.any():  # sum of all cells of the children of s = T_s
        number = np.cumsum(kept) - 1
        inside = np.flatnonzero((joint >= 0)[child] & kept[joint[child]])
        total = joint_total[kept]
        rows = sums(number[joint[child[inside]]], inside, len(total))
        add(rows, total, total, n + C * K + np.flatnonzero(kept))
    low, high, label = (np.concatenate(parts) for parts in zip(*bounds, strict=True)) if bounds else (
        np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    )  # fmt: skip
    cost = np.zeros(N)
    cost[:m] = -linear[child, cell] / unit
    rows = sparse.vstack(A, format="csr") if A else sparse.csr_array((0, N))
    return Program(P, cost, rows, low, high, child, cell, label, unit / problem.unit)


def _repeats_parent(problem: FamilyProblem, k: int) -> bool:
    """Whether a group is fixed in every child, so that one of its rows follows from the parent's.

    Interior-point methods lose digits on dependent equalities.
    """
    if problem.parent is None or not (problem.lower[:, k] == problem.upper[:, k]).all():
        return False
    total = float(problem.parent[problem.groups[k]].sum())
    return abs(float(problem.lower[:, k].sum()) - total) <= 1e-9 * max(1.0, total)


def _widen(block: sparse.csr_array, width: int) -> sparse.csr_array:
    return sparse.csr_array((block.data, block.indices, block.indptr), shape=(block.shape[0], width))


def _block_diagonal(matrices: Iterable[Floats], child: Ints, cell: Ints) -> sparse.csc_array:
    """The children's Hessians, each on the cells that it may use."""
    parts = [cell[child == c] for c in range(int(child.max(initial=-1)) + 1)]
    written = (sparse.csc_array(A[np.ix_(used, used)]) for A, used in zip(matrices, parts, strict=False))
    return sparse.csc_array(sparse.block_diag([sparse.csc_array((0, 0)), *written], format="csc"))


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
        w = problem.terms[q][0] * problem.scale / problem.unit
        if size == problem.cells:
            diagonal[0] += w[child]
            continue
        source, place = np.arange(m), child * size + rows[cell]
        for fine, count, first in reversed(known) if nested else ():
            image = value_of_rows(fine, rows)
            if image is not None:
                source = first + np.arange(C * count)
                place = (np.arange(C)[:, None] * size + image[None, :]).ravel()
                break
        blocks.append(sparse.csr_array((np.ones(len(source)), (place, source)), shape=(C * size, at)))
        known.append((rows, size, at))
        diagonal.append(np.repeat(w, size))
        at += C * size
    return np.concatenate(diagonal), blocks
