"""The structured solver: reduce, guess, active set, expand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats
from opendas.solvers.least_squares.active_set import UNPAIRED, Family
from opendas.solvers.least_squares.lowrank import LowRank, low_rank
from opendas.solvers.least_squares.primal_dual_active_set import INFEASIBLE, OK, pdas
from opendas.solvers.least_squares.reduce import (
    expand_multipliers,
    joint_bounds,
    merge_cells,
    reduced,
    simpler_bounds,
    spread,
)
from opendas.solvers.least_squares.single import solve_single
from opendas.solvers.least_squares.start import project, project_column, unconstrained
from opendas.solvers.problem.joint import independent_joint
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["RIDGE", "Direct", "Guess", "coupled_totals", "magnitude", "solve_direct"]


RIDGE = 1e-4
"""Weight of the proximal term, where the diagonal of H is 1."""
LARGE = 400
"""Cells from which on the structure of H is used."""
NO_PARENT: Floats = np.empty(0)
NO_PARENT.flags.writeable = False


@njit(cache=True, nogil=True)
def one_cell(
    B: Floats, parent: Floats, scale: Floats, mask: Bools, groups: Bools, lower: Floats, upper: Floats
) -> tuple[bool, Floats, Floats, Floats]:
    """Exact answer where all cells have merged into one: a quadratic knapsack over children.

    Returns whether the bounds allow any, x of shape (C, 1), mu (1,) and lambda (C, K).
    """
    C = B.shape[0]
    K = groups.shape[0]
    low = np.zeros(C)
    high = np.empty(C)
    low_row = np.full(C, -1, np.int64)
    high_row = np.full(C, -1, np.int64)
    fine = True
    for c in range(C):
        high[c] = np.inf if mask[c, 0] else 0.0
        for k in range(K):
            if not groups[k, 0]:
                fine = fine and lower[c, k] <= 0.0 and upper[c, k] >= 0.0
                continue
            if lower[c, k] > low[c]:
                low[c] = lower[c, k]
                low_row[c] = k
            if upper[c, k] < high[c]:
                high[c] = upper[c, k]
                high_row[c] = k
        fine = fine and low[c] <= high[c]
    x = np.empty(C)
    z = np.empty(C)
    for c in range(C):
        z[c] = B[c, 0]
    theta, within = project_column(z, scale, parent[0], low, high, x)
    lam = np.zeros((C, K))
    for c in range(C):
        force = scale[c] * (x[c] - z[c]) + theta
        if force > 0.0 and low_row[c] >= 0 and x[c] == low[c]:
            lam[c, low_row[c]] = -force
        elif force < 0.0 and high_row[c] >= 0 and x[c] == high[c]:
            lam[c, high_row[c]] = -force
    return fine and within, x.reshape((C, 1)), np.full(1, theta), lam


Guess = Callable[[Family], tuple[Bools, NDArray[np.int8]]]
"""Active set of a reduced family to start from."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Outcome of the structured solver, not yet certified.

    Parameters
    ----------
    status : int
        Of the active set, see :func:`opendas.solvers.least_squares.primal_dual_active_set.pdas`.
    iterations : int
        Of the active set.
    x : ndarray, shape (C, n)
    mu, lam, tau : ndarray, shapes (n,), (C, K) and (J,)
        Multipliers in units of the sum of the weights.
    """

    status: int
    iterations: int
    x: Floats
    mu: Floats
    lam: Floats
    tau: Floats


def solve_direct(
    problem: FamilyProblem,
    rows: NDArray[np.int32],
    weights: Floats,
    limit: int,
    precision: float,
    guess: Guess | None = None,
    ridge: float | None = None,
) -> Direct:
    """Structured solution of a family.

    Parameters
    ----------
    problem : FamilyProblem
        The family.
    rows, weights : ndarray, shapes (Q, n) and (Q,)
        Its terms, stacked.
    limit : int
        Most iterations of the active set.
    precision : float
        Of the signs, relative to ``max(1, max parent)``.
    guess : callable, optional
        Start of the active set. By default the projected unconstrained optimum.
    ridge : float, optional
        Weight of the proximal term. By default none where H is definite, ``RIDGE`` where it may not be.
    """
    parent = NO_PARENT if problem.parent is None else problem.parent
    linear, groups, scale = problem.linear, problem.groups, problem.scale.copy()
    joint, joint_total = problem.joint_rows
    tau = np.zeros(len(joint_total)) if len(joint_total) else joint_total
    mask, lower, upper = simpler_bounds(problem.mask, groups, problem.lower, problem.upper, parent)
    if len(joint):
        joint_bounds(mask, groups, lower, upper, joint, joint_total)
    label, first, definite = merge_cells(rows, linear, mask, groups, parent)
    if ridge is None:
        ridge = 0.0 if definite else RIDGE
    tolerance = precision * magnitude(problem)
    structure = low_rank(rows[:, first], weights, ridge) if len(first) >= LARGE else None
    if structure is None or structure.rank >= len(first):
        structure = None
        known = (np.zeros((0, len(first)), np.int64), np.zeros((0, 0)), 1.0)
    else:
        known = (structure.rows, structure.diagonal * structure.core_inverse, structure.diagonal)
    kept, coupled = coupled_totals(problem, joint, joint_total)
    alone = guess is None and not len(kept)
    # Children one by one know H by its structure; of all cells of a large schema it would fill the memory.
    written = structure is None or len(parent) > 0 or not alone
    H, B, parent1, mask1, groups1, center = reduced(
        rows, weights, linear, mask, groups, parent, label, first, ridge, written
    )
    alike: tuple[Any, ...] = UNPAIRED
    p = Family(H[None], B, parent1, scale, mask1, groups1, lower, upper, *known, *coupled, *alike)
    if len(first) == 1 and len(parent) and len(weights) and alone:
        fine, y, mu1, lam = one_cell(B, parent1, scale, mask1, groups1, lower, upper)
        status, iterations = OK if fine else INFEASIBLE, 1
    elif structure is not None and not len(parent) and alone:
        mu1 = np.zeros(len(first))
        status, iterations, y, lam = _one_by_one(p, structure, center, ridge, limit, tolerance)
    else:
        free, side = (guess or partial(_projected, structure))(p)
        status, iterations, y, mu1, found, lam = pdas(*p, free, side, center, ridge, limit, tolerance)
        tau[kept] = found
    x, mu = expand(
        y, mu1, lam, label, parent1, rows, weights, linear, parent, scale, problem.mask, groups,
        problem.upper, joint, joint_total, tau,
    )  # fmt: skip
    return Direct(int(status), int(iterations), x, mu, lam, tau)


def coupled_totals(
    problem: FamilyProblem, joint: NDArray[np.int64], total: Floats
) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], Floats]]:
    """Joint totals that tie cells together, as numbered by the problem, and their rows for the active set.

    One of 0 is a mask, see :func:`simpler_bounds`, and one that follows from other rows is not needed.
    """
    if not len(total):
        return joint, (joint, total)
    kept = np.flatnonzero(independent_joint(problem) & (total != 0.0))
    if not len(kept):
        return kept, (joint[:0], total[:0])
    number = np.full(len(total) + 1, -1)
    number[kept] = np.arange(len(kept))
    return kept, (number[joint], total[kept])


def _projected(structure: LowRank | None, p: Family) -> tuple[Bools, NDArray[np.int8]]:
    """Unconstrained optimum of every child, projected cell by cell."""
    if structure is None:
        Z = unconstrained(p.H[0], p.B)
    else:
        factor = structure.factor(np.arange(p.B.shape[1]))
        Z = np.stack([factor.solve(b) for b in p.B])
    return project(Z, p.parent, p.scale, p.mask), np.zeros(p.lower.shape, np.int8)


def magnitude(problem: FamilyProblem) -> float:
    """Typical count of a cell: what tolerances are relative to.

    What is exact of a root, or at least there, tells its size; upper bounds only where nothing else does:
    99,999 people in every housing unit are many times a state, and signs would count as right that are wrong
    by more than the certificate allows.
    """
    if problem.parent is not None:
        return max(1.0, float(problem.parent.max(initial=0.0)))
    exact = problem.lower[problem.lower == problem.upper]
    known = np.concatenate([exact, problem.joint_rows[1], problem.lower[np.isfinite(problem.lower)]])
    if not np.any(known > 0.0):
        known = problem.upper[np.isfinite(problem.upper)]
    return max(1.0, float(known.max(initial=0.0)) / max(1, problem.cells))


def _one_by_one(
    p: Family, structure: LowRank, center: Floats, ridge: float, limit: int, tolerance: float
) -> tuple[int, int, Floats, Floats]:
    """Children without a parent or joint totals have nothing to do with each other."""
    C, n = p.B.shape
    y, lam = np.zeros((C, n)), np.zeros((C, len(p.groups)))
    most = 0
    for c in range(C):
        one = p._replace(
            B=p.B[c : c + 1],
            scale=np.ones(1),
            mask=p.mask[c : c + 1],
            lower=p.lower[c : c + 1],
            upper=p.upper[c : c + 1],
        )
        status, iterations, x, force = solve_single(
            one, structure, center[c : c + 1], ridge, limit, tolerance
        )
        y[c], lam[c] = x[0], force[0] * p.scale[c]
        most = max(most, iterations)
        if status != OK:
            return status, most, y, lam
    return OK, most, y, lam


@njit(cache=True, nogil=True)
def expand(
    y: Floats,
    mu1: Floats,
    lam: Floats,
    label: NDArray[np.int64],
    parent1: Floats,
    rows: NDArray[np.int32],
    weights: Floats,
    linear: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    upper: Floats,
    joint: NDArray[np.int64],
    joint_total: Floats,
    tau: Floats,
) -> tuple[Floats, Floats]:
    """Answer and multiplier of the parent row on all cells; completes `lam` and `tau`."""
    x = spread(y, label, parent, parent1)
    mu = expand_multipliers(
        mu1, lam, label, rows, weights, linear, scale, mask, groups, upper, x, joint, joint_total, tau
    )
    return x, mu
