"""Feasibility of the constraints of a family, and the least tolerance of held margins.

Both are linear programs, answered by HiGHS. They are asked only when no solver found an optimum,
or by a caller who wants equation (7.6); the hot path never comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Floats
from opendas.errors import EstimationError
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem

__all__ = ["conflict", "minimum_tolerance", "obvious_conflict"]

FILTER_LIMIT = 2_000_000
"""Deletion filtering goes through candidate rows times cells up to this many."""


@dataclass(frozen=True, slots=True)
class _System:
    """``A x >= b`` row by row, equalities as pairs; x are the masked cells, and non-negative."""

    A: sparse.csr_array
    b: Floats
    rows: tuple[ConstraintRow, ...]
    """Same label for the two halves of an equality."""


def _system(problem: FamilyProblem) -> _System:
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    blocks: list[sparse.csr_array] = []
    values: list[float] = []
    labels: list[ConstraintRow] = []
    if problem.parent is not None:
        sums = sparse.csr_array((np.ones(m), (cell, np.arange(m))), shape=(problem.cells, m))
        blocks += [sums, -sums]
        values += [*problem.parent, *(-problem.parent)]
        labels += 2 * [ConstraintRow("parent", -1, j) for j in range(problem.cells)]
    for k, group in enumerate(problem.groups):
        inside = np.flatnonzero(group[cell])
        sums = sparse.csr_array((np.ones(len(inside)), (child[inside], inside)), shape=(problem.children, m))
        name = problem.group_names[k] if problem.group_names else ""
        for kind, sign, bound in (("lower", 1.0, problem.lower[:, k]), ("upper", -1.0, problem.upper[:, k])):
            present = np.flatnonzero(np.isfinite(bound))
            blocks.append(sign * sums[present])
            values += list(sign * bound[present])
            labels += [ConstraintRow(kind, int(c), k, name) for c in present]
    joint, joint_total = problem.joint_rows
    if len(joint_total):
        inside = np.flatnonzero(joint[child] >= 0)
        shape = (len(joint_total), m)
        sums = sparse.csr_array((np.ones(len(inside)), (joint[child[inside]], inside)), shape=shape)
        blocks += [sums, -sums]
        values += [*joint_total, *(-joint_total)]
        labels += 2 * [_joint_row(problem, s) for s in range(len(joint_total))]
    A = sparse.vstack(blocks, format="csr") if blocks else sparse.csr_array((0, m))
    return _System(A, np.array(values), tuple(labels))


def _joint_row(problem: FamilyProblem, s: int) -> ConstraintRow:
    return ConstraintRow("joint", -1, s, problem.joint_names[s] if problem.joint_names else "")


def _violation(system: _System, keep: NDArray[np.int64]) -> tuple[float, Floats]:
    """Least sum of violations of the kept rows, relative to their size, and the dual of each kept row."""
    A, b = system.A[keep], system.b[keep]
    width = A.shape[1]
    eye = sparse.eye_array(len(keep), format="csr")
    cost = np.concatenate([np.zeros(width), np.ones(len(keep))])
    answer = scipy.optimize.linprog(
        cost, A_ub=-sparse.hstack([A, eye], format="csr"), b_ub=-b, method="highs"
    )
    if answer.x is None or answer.fun is None:
        raise EstimationError(f"the feasibility program did not finish: {answer.message}")
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    return float(answer.fun) / scale, np.abs(answer.ineqlin.marginals)


def conflict(problem: FamilyProblem, *, tolerance: float = 1e-7) -> tuple[ConstraintRow, ...]:
    """Rows that cannot hold together with ``x >= 0``, or nothing where the problem is feasible.

    The duals of the least total violation name an infeasible subset (Farkas); rows that are not needed are
    then deleted one by one, so that every row left is necessary.

    Parameters
    ----------
    problem : FamilyProblem
        As stated.
    tolerance : float
        Total violation, relative to the largest bound, that counts as rounding.

    Returns
    -------
    tuple of ConstraintRow
        Empty where feasible.
    """
    system = _system(problem)
    if not system.rows:
        return ()
    if not problem.mask.any():  # no variable at all
        broken = np.flatnonzero(system.b > tolerance * max(1.0, float(np.abs(system.b).max())))
        return (system.rows[broken[0]],) if len(broken) else ()
    everything = np.arange(len(system.rows))
    value, dual = _violation(system, everything)
    if value <= tolerance:
        return ()
    keep = np.flatnonzero(dual > 1e-9)
    if not len(keep) or _violation(system, keep)[0] <= tolerance:
        keep = everything
    if len(keep) * system.A.shape[1] <= FILTER_LIMIT:
        for row in list(keep):
            rest = keep[keep != row]
            if len(rest) and _violation(system, rest)[0] > tolerance:
                keep = rest
    return tuple(dict.fromkeys(system.rows[i] for i in keep))


def obvious_conflict(problem: FamilyProblem, tolerance: float) -> tuple[ConstraintRow, ...]:
    """A conflict that can be read off without a linear program; `tolerance` in counts."""
    C = problem.children
    parent = problem.parent
    if parent is not None:
        orphan = (parent < -tolerance) | ((parent > tolerance) & ~problem.mask.any(axis=0))
        if orphan.any():
            return (ConstraintRow("parent", -1, int(orphan.argmax())),)
    for k, group in enumerate(problem.groups):
        name = problem.group_names[k] if problem.group_names else ""
        low, high = problem.lower[:, k], problem.upper[:, k]
        most = np.full(C, np.inf) if parent is None else (problem.mask[:, group] * parent[group]).sum(axis=1)
        most = np.where(problem.mask[:, group].any(axis=1), most, 0.0)
        for c in np.flatnonzero(low > high + tolerance):
            return (ConstraintRow("lower", int(c), k, name), ConstraintRow("upper", int(c), k, name))
        for c in np.flatnonzero(high < -tolerance):
            return (ConstraintRow("upper", int(c), k, name),)
        cells = [ConstraintRow("parent", -1, int(j)) for j in np.flatnonzero(group)]
        for c in np.flatnonzero(low > most + tolerance):
            used = [row for row in cells if problem.mask[c, row.index]] if parent is not None else []
            return (ConstraintRow("lower", int(c), k, name), *used)
        if parent is None:
            continue
        total = float(parent[group].sum())
        if np.maximum(low, 0.0).sum() > total + C * tolerance:
            return (*(ConstraintRow("lower", int(c), k, name) for c in np.flatnonzero(low > 0.0)), *cells)
        if np.minimum(high, most).sum() < total - C * tolerance:
            return (*(ConstraintRow("upper", int(c), k, name) for c in np.flatnonzero(high < most)), *cells)
    return _obvious_joint(problem, tolerance)


def _obvious_joint(problem: FamilyProblem, tolerance: float) -> tuple[ConstraintRow, ...]:
    """Joint totals that nothing can hold, or that do not add up to the parent."""
    joint, total = problem.joint_rows
    for s in range(len(total)):
        inside = problem.mask[joint == s].any(axis=0)
        if total[s] < -tolerance or (total[s] > tolerance and not inside.any()):
            return (_joint_row(problem, s),)
        if problem.parent is not None and total[s] > problem.parent[inside].sum() + tolerance:
            cells = (ConstraintRow("parent", -1, int(j)) for j in np.flatnonzero(inside))
            return (_joint_row(problem, s), *cells)
    if problem.parent is None or not len(total) or joint.min() < 0:
        return ()
    if abs(float(total.sum() - problem.parent.sum())) <= problem.children * tolerance:
        return ()
    every = (ConstraintRow("parent", -1, j) for j in range(problem.cells))
    return (*(_joint_row(problem, s) for s in range(len(total))), *every)


def minimum_tolerance(
    problem: FamilyProblem, held: Sequence[tuple[NDArray[np.int32], Floats]]
) -> tuple[float, Floats]:
    """Equation (7.6): how far the held margins must give way, by one linear program.

    The slow reference: minimise tau subject to the constraints of `problem` and
    ``|sum_{rows == r} x_c - value_cr| <= tau`` for every held margin.

    Parameters
    ----------
    problem : FamilyProblem
        Only its constraints are used.
    held : sequence of (rows, values)
        Row index of every cell, shape (n,), and the margin to hold, shape (C, number of rows).

    Returns
    -------
    tau, x
        The optimum, in counts, and a point that reaches it, shape (C, n).

    Raises
    ------
    EstimationError
        If the constraints cannot hold whatever tau is.
    """
    system = _system(problem)
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    blocks = [sparse.hstack([system.A, sparse.csr_array((len(system.b), 1))], format="csr")]
    values = [system.b]
    for rows, target in held:
        height = target.size
        sums = sparse.csr_array(
            (np.ones(m), (child * target.shape[1] + rows[cell], np.arange(m))), shape=(height, m)
        )
        one = sparse.csr_array(np.ones((height, 1)))
        blocks += [sparse.hstack([sums, one], format="csr"), sparse.hstack([-sums, one], format="csr")]
        values += [target.ravel(), -target.ravel()]
    cost = np.zeros(m + 1)
    cost[-1] = 1.0
    A, b = sparse.vstack(blocks, format="csr"), np.concatenate(values)
    answer = scipy.optimize.linprog(cost, A_ub=-A, b_ub=-b, method="highs")
    if answer.x is None:
        raise EstimationError("the constraints of the family cannot hold together, whatever the tolerance")
    x = np.zeros(problem.linear.shape)
    x[child, cell] = answer.x[:m]
    return float(answer.x[m]), x
