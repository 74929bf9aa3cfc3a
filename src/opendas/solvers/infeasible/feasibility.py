"""Why the constraints of a family, in real numbers, cannot hold together: rows that contradict each other.

Linear programs, answered by HiGHS, asked only when no solver found an optimum; the hot path never comes here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Floats
from opendas.errors import EstimationError
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem

__all__ = ["conflict"]

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
