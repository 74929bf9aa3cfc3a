"""A family by its active set: reduce, guess, active set, expand; for one Hessian and for one of each child.

Children that agree in their Hessian are a family with one matrix, whose cells merge where nothing
distinguishes them; all else is the same.

The guess: without groups and signs the optimum of a child is ``z_c = H^-1 b_c``. Projecting every column on
``{x >= 0, sum_c x_c = parent}`` takes no more than a few passes, and leaves most cells on the right side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.active_set import NO_MARGINS, Family, Margins, Sides
from opendas.solvers.least_squares.kernels import SINGULAR, cholesky, insert, symmetric_times
from opendas.solvers.least_squares.lowrank import LowRank, low_rank, solve_single
from opendas.solvers.least_squares.paired import NO_PAIRS, PairedCurvature, Pairs, paired_guess, place_bounds
from opendas.solvers.least_squares.primal_dual_active_set import INFEASIBLE, OK, pdas
from opendas.solvers.least_squares.reduce import (
    complete_multipliers,
    expand,
    merge_cells,
    reduced,
    simpler_bounds,
)
from opendas.solvers.problem.certificate import Multipliers, gradients, units
from opendas.solvers.problem.curvature import Curvature, blocks
from opendas.solvers.problem.problem import Constraints, FamilyProblem, independent_joint

RIDGE = 1e-4
"""Weight of the proximal term where H may be singular; the diagonal of H is 1."""
LARGE = 400
"""Cells from which on the structure of H is used."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Outcome of the structured solver, not yet certified."""

    status: int  # of the active set, see :func:`opendas.solvers.least_squares.primal_dual_active_set.pdas`
    iterations: int  # of the active set
    x: Floats  # (C, n)
    multipliers: Multipliers


@dataclass(frozen=True, slots=True)
class Near:
    """A point whose active set to start from."""

    positive: Bools  # (C, n): cells that may be positive
    groups: Floats  # (C, K): multipliers, whose signs say which rows are on which bound


class _Small(NamedTuple):
    """A reduced family, and how to come back from it."""

    family: Family
    structure: LowRank | None  # of H, where that is used
    # label, first (n,), (m,): number of each cell in the reduced family, -1 for none, and the first cell of
    # each number.
    label: Ints
    first: Ints
    center: Floats  # (C, m): first centre of the proximal steps, empty where there are none
    ridge: float  # their weight
    unit: float = 1.0  # what multipliers of the reduced family are in units of


def solve_direct(
    problem: FamilyProblem, limit: int, precision: float, ridge: float | None = None, near: Near | None = None
) -> Direct:
    """Structured solution of a family.

    - `problem`: the family. Hessians of its children are written out, unless they are in the form of pairs.
    - `precision`: of the signs, relative to ``max(1, max parent)``.
    - `ridge`: weight of the proximal term, relative to the mean diagonal of a Hessian. By default none, but
      ``RIDGE`` where a shared H may be singular.
    - `near`: start of the active set. By default the projected unconstrained optimum.
    """
    stated = problem.constraints
    mask, lower, upper = simpler_bounds(stated)
    simpler = Constraints(stated.parent, mask, stated.groups, lower, upper, stated.joint, stated.joint_total)
    kept = np.zeros(0, np.intp)
    if len(stated.joint_total):
        kept = np.flatnonzero(independent_joint(problem) & (stated.joint_total != 0.0))
    if problem.hessians is None:
        small = _shared(problem, simpler, kept, ridge, near is not None)
    else:
        small = _reduce_parent_cells(problem, problem.hessians, simpler, kept, ridge or 0.0)
    p, tolerance = small.family, precision * magnitude(problem)
    alone = problem.hessians is None and near is None and not len(kept)
    tau = np.zeros(len(stated.joint_total)) if len(stated.joint_total) else stated.joint_total
    if alone and len(small.first) == 1 and len(p.parent) and problem.terms:
        fine, y, mu1, lam = one_cell(p)
        status, iterations = OK if fine else INFEASIBLE, 1
    elif alone and small.structure is not None and not len(p.parent):
        mu1 = np.zeros(len(small.first))
        status, iterations, y, lam = _one_by_one(small, small.structure, limit, tolerance)
    else:
        free, side = _start(p, small.structure) if near is None else _from_point(small, near)
        status, iterations, y, mu1, found, lam = pdas(
            p, free, side, small.center, small.ridge, limit, tolerance
        )
        tau[kept] = found * small.unit
    if small.unit != 1.0:
        mu1, lam = mu1 * small.unit, lam * small.unit
    x, mu, complete = expand(y, mu1, small.label, p.parent, stated)
    multipliers = Multipliers(mu, lam, tau)
    if not complete:
        complete_multipliers(gradients(problem, x), multipliers, small.label, stated)
    return Direct(int(status), int(iterations), x, multipliers)


def _shared(
    problem: FamilyProblem, stated: Constraints, kept: NDArray[np.intp], ridge: float | None, started: bool
) -> _Small:
    """Reduce a family whose children share H: cells that nothing distinguishes become one."""
    objective = problem.stacked
    label, first, definite = merge_cells(objective, stated)
    if ridge is None:
        ridge = 0.0 if definite else RIDGE
    structure = low_rank(objective.rows[:, first], objective.weights, ridge) if len(first) >= LARGE else None
    if structure is None or structure.rank >= len(first):
        structure, margins = None, NO_MARGINS
    else:
        core = structure.diagonal * structure.core_inverse
        margins = Margins(structure.rows, core, structure.diagonal)
    # Children one by one know H by its structure; of all cells of a large schema it would fill the memory.
    written = structure is None or len(stated.parent) > 0 or started or len(kept) > 0
    H, B, parent, mask, groups, center = reduced(objective, stated, label, first, ridge, written)
    p = Family(
        H[None], B, parent, problem.scale.copy(), mask, groups, stated.lower, stated.upper, margins,
        *_coupled(stated, kept),
    )  # fmt: skip
    return _Small(p, structure, label, first, center, ridge)


def _reduce_parent_cells(
    problem: FamilyProblem, hessians: Curvature, stated: Constraints, kept: NDArray[np.intp], ridge: float
) -> _Small:
    """Reduce a family whose children have Hessians of their own: cells of the parent only."""
    parent, cells = stated.parent, problem.cells
    first = np.flatnonzero(parent != 0.0) if len(parent) else np.arange(cells)
    if isinstance(hessians, PairedCurvature):
        first = first[np.argsort(hessians.place[first], kind="stable")]
    label = np.full(cells, -1)
    label[first] = np.arange(len(first))
    mask = np.ascontiguousarray(stated.mask[:, first])
    unit = units(hessians.diagonal()[:, first], mask)
    whole = float(unit.mean()) if len(unit) else 1.0
    # A choice of columns lies column by column: in another layout than the kernels are compiled for.
    B = np.ascontiguousarray(problem.linear[:, first] / unit[:, None])
    center = np.zeros((0, 0))
    if ridge > 0.0:
        allowed = np.maximum(1, mask.sum(axis=0))
        center = np.where(mask, parent[first] / allowed, 0.0) if len(parent) else np.zeros(B.shape)
        B += ridge * center
    m = len(first)
    H, pairs = np.zeros((0, m, m)), NO_PAIRS
    if isinstance(hessians, PairedCurvature):
        alpha, beta = hessians.alpha / unit[:, None, None], hessians.beta / unit[:, None, None]
        beta[:, np.arange(beta.shape[1]), np.arange(beta.shape[1])] += ridge
        pairs = Pairs(alpha, beta, hessians.kind[first], *place_bounds(hessians.place[first]))
    else:
        H = blocks(hessians, first, problem.linear.shape)
        H /= unit[:, None, None]
        H[:, np.arange(m), np.arange(m)] += ridge
    p = Family(
        H, B, parent[first] if len(parent) else np.zeros(0), unit / whole, mask,
        np.ascontiguousarray(stated.groups[:, first]), stated.lower, stated.upper,
        NO_MARGINS, *_coupled(stated, kept), pairs,
    )  # fmt: skip
    return _Small(p, None, label, first, center, ridge, whole)


def _coupled(stated: Constraints, kept: NDArray[np.intp]) -> tuple[Ints, Floats]:
    """Joint totals that tie cells together: part of each child, and total.

    One of 0 is a mask, see :func:`simpler_bounds`, and one that follows from other rows is not needed.
    """
    joint, total = stated.joint, stated.joint_total
    if not len(kept):
        return joint[:0], total[:0]
    number = np.full(len(total) + 1, -1)
    number[kept] = np.arange(len(kept))
    return number[joint], total[kept]


def _start(p: Family, structure: LowRank | None) -> tuple[Bools, Sides]:
    """Unconstrained optimum of every child, projected cell by cell."""
    if structure is not None:
        factor = structure.factor(np.arange(p.B.shape[1]))
        Z = np.stack([factor.solve(b) for b in p.B])
    elif len(p.pairs.kind):
        Z = paired_guess(p.pairs, p.mask, p.B)
    elif len(p.H) == 1:
        Z = unconstrained(p.H[0], p.B)
    else:
        Z = np.stack([unconstrained(p.H[c], p.B[c : c + 1])[0] for c in range(len(p.B))])
    return project(Z, p.parent, p.scale, p.mask), np.zeros(p.lower.shape, np.int8)


def _from_point(small: _Small, near: Near) -> tuple[Bools, Sides]:
    """Active set of a point: its positive cells, and rows by the signs of their multipliers."""
    p = small.family
    free = np.zeros(p.mask.shape, np.bool_)
    inside = np.flatnonzero(small.label >= 0)
    np.logical_or.at(free.T, small.label[inside], near.positive.T[inside])
    side = np.sign(near.groups)
    side[((side < 0) & ~np.isfinite(p.lower)) | ((side > 0) & ~np.isfinite(p.upper))] = 0
    return free & p.mask, side.astype(np.int8)


def magnitude(problem: FamilyProblem) -> float:
    """Typical count of a cell: what tolerances are relative to.

    What is exact of a root, or at least there, tells its size, but it may be of a few cells only, or far
    below the counts. So the linear term ``b`` tells it too: no entry of a Hessian exceeds its largest
    diagonal, so that ``b = A x`` of the positive cells asks for a total of at least ``b`` over that diagonal,
    as far as an upper bound on all cells allows. Upper bounds alone tell nothing: 99,999 people in every
    housing unit are many times a state, and signs would count as right that are wrong by more than the
    certificate allows.
    """
    if problem.parent is not None:
        return problem.top
    joint, joint_total = problem.joint_rows
    most = problem.upper[:, problem.groups.all(axis=1)].min(axis=1, initial=np.inf)
    if len(joint):
        most = np.minimum(most, np.append(joint_total, np.inf)[joint])  # -1, for none, is the last
    largest = np.asarray(problem.weight)  # the linear term has no scale in it, either
    if problem.hessians is not None:
        largest = problem.hessians.diagonal().max(axis=1, initial=0.0)
    asked = problem.linear.max(axis=1, initial=0.0) / np.where(largest > 0.0, largest, 1.0)
    known = (problem.lower[np.isfinite(problem.lower)], joint_total, np.minimum(most, asked))
    return max(1.0, float(np.concatenate(known).max(initial=0.0)) / max(1, problem.cells))


def _one_by_one(
    small: _Small, structure: LowRank, limit: int, tolerance: float
) -> tuple[int, int, Floats, Floats]:
    """Children without a parent or joint totals have nothing to do with each other."""
    p = small.family
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
            one, structure, small.center[c : c + 1], small.ridge, limit, tolerance
        )
        y[c], lam[c] = x[0], force[0] * p.scale[c]
        most = max(most, iterations)
        if status != OK:
            return status, most, y, lam
    return OK, most, y, lam


@njit(cache=True, nogil=True)
def one_cell(p: Family) -> tuple[bool, Floats, Floats, Floats]:
    """Exact answer where all cells have merged into one: a quadratic knapsack over children.

    Returns whether the bounds allow any, x of shape (C, 1), mu (1,) and lambda (C, K).
    """
    C, K = p.lower.shape
    low = np.zeros(C)
    high = np.empty(C)
    low_row = np.full(C, -1, np.int64)
    high_row = np.full(C, -1, np.int64)
    fine = True
    for c in range(C):
        high[c] = np.inf if p.mask[c, 0] else 0.0
        for k in range(K):
            if not p.groups[k, 0]:
                fine = fine and p.lower[c, k] <= 0.0 and p.upper[c, k] >= 0.0
                continue
            if p.lower[c, k] > low[c]:
                low[c] = p.lower[c, k]
                low_row[c] = k
            if p.upper[c, k] < high[c]:
                high[c] = p.upper[c, k]
                high_row[c] = k
        fine = fine and low[c] <= high[c]
    x = np.empty(C)
    z = np.empty(C)
    for c in range(C):
        z[c] = p.B[c, 0]
    theta, within = project_column(z, p.scale, p.parent[0], low, high, x)
    lam = np.zeros((C, K))
    for c in range(C):
        force = p.scale[c] * (x[c] - z[c]) + theta
        if force > 0.0 and low_row[c] >= 0 and x[c] == low[c]:
            lam[c, low_row[c]] = -force
        elif force < 0.0 and high_row[c] >= 0 and x[c] == high[c]:
            lam[c, high_row[c]] = -force
    return fine and within, x.reshape((C, 1)), np.full(1, theta), lam


@inner
def project_column(
    z: Floats, scale: Floats, total: float, lower: Floats, upper: Floats, x: Floats
) -> tuple[float, bool]:
    """Nearest x to z in the metric `scale` with ``lower <= x <= upper`` and the given sum.

    Bitran and Hax's variable fixing: exact, at most C passes. Returns the multiplier of the sum
    (``scale (x - z) + theta = 0`` where x is strictly between its bounds) and whether the set is not empty.
    """
    C = len(z)
    at = np.zeros(C, np.int8)
    left = total
    theta = 0.0
    for _ in range(C + 1):
        weight = 0.0
        t = 0.0
        for c in range(C):
            if at[c] == 0:
                weight += 1.0 / scale[c]
                t += z[c]
        if weight == 0.0:
            break
        theta = (t - left) / weight
        below = 0.0
        above = 0.0
        for c in range(C):
            if at[c] == 0:
                x[c] = z[c] - theta / scale[c]
                below += max(lower[c] - x[c], 0.0)
                above += max(x[c] - upper[c], 0.0)
        if below == 0.0 and above == 0.0:
            return theta, True
        for c in range(C):
            if at[c] == 0:
                if below >= above and x[c] <= lower[c]:
                    at[c] = -1
                    x[c] = lower[c]
                    left -= x[c]
                elif above >= below and x[c] >= upper[c]:
                    at[c] = 1
                    x[c] = upper[c]
                    left -= x[c]
    return theta, abs(left) <= 1e-9 * max(1.0, abs(total))


@inner
def _less_the_rest(W: Floats, i: int, f: Floats, low: int | np.int64, high: int) -> None:
    """Set row i of W to ``(W_i - sum_j f_j W_j) / f_i``, the sum over `low` to `high` - 1 in this order.

    Its eight columns stay in registers.
    """
    a0, a1, a2, a3, a4, a5, a6, a7 = W[i, 0], W[i, 1], W[i, 2], W[i, 3], W[i, 4], W[i, 5], W[i, 6], W[i, 7]
    for j in range(low, high):
        g = f[j]
        a0 -= g * W[j, 0]
        a1 -= g * W[j, 1]
        a2 -= g * W[j, 2]
        a3 -= g * W[j, 3]
        a4 -= g * W[j, 4]
        a5 -= g * W[j, 5]
        a6 -= g * W[j, 6]
        a7 -= g * W[j, 7]
    d = f[i]
    W[i, 0], W[i, 1], W[i, 2], W[i, 3] = a0 / d, a1 / d, a2 / d, a3 / d
    W[i, 4], W[i, 5], W[i, 6], W[i, 7] = a4 / d, a5 / d, a6 / d, a7 / d


@inner
def _solve_together(U: Floats, B: Floats, Z: Floats) -> None:
    """Solve ``U' U z_c = b_c`` for all children, eight at a time; U' stands below the diagonal of U."""
    C, n = B.shape
    W = np.zeros((n, 8))
    for first in range(0, C, 8):
        some = min(8, C - first)
        for c in range(some):
            for j in range(n):
                W[j, c] = B[first + c, j]
        for i in range(n):
            _less_the_rest(W, i, U[i], np.int64(0), i)  # a literal would have it compiled again
        for i in range(n - 1, -1, -1):
            _less_the_rest(W, i, U[i], i + 1, n)
        for c in range(some):
            for j in range(n):
                Z[first + c, j] = W[j, c]


@njit(cache=True, nogil=True)
def unconstrained(H: Floats, B: Floats) -> Floats:
    """``H^-1 b_c`` of every child, shape (C, n); a rough guess where H is singular."""
    C, n = B.shape
    Z = np.empty((C, n))
    if n > 10 * C:  # few right-hand sides: no inverse, and all of them at once
        U = H.copy()
        cholesky(U, np.ones(n), np.empty(n, np.bool_))
        for i in range(n):  # U' too: columns of U would be another layout, and compiled once more
            for j in range(i):
                U[i, j] = U[j, i]
        _solve_together(U, B, Z)
        return Z
    P = np.zeros((n, n))
    work = np.empty(n)
    fine = True
    for j in range(n):
        fine = insert(P, j, H[j], H[j, j], work, SINGULAR) and fine
    for c in range(C):
        if fine:
            symmetric_times(P, n, B[c], Z[c])
        else:
            for j in range(n):
                Z[c, j] = 1.0
    return Z


@njit(cache=True, nogil=True)
def project(Z: Floats, parent: Floats, scale: Floats, mask: Bools) -> Bools:
    """Cells that are positive after the projection of every column, shape (C, n)."""
    C, n = Z.shape
    free = np.zeros((C, n), np.bool_)
    if len(parent) == 0:
        for c in range(C):
            for j in range(n):
                free[c, j] = mask[c, j] and Z[c, j] > 0.0
        return free
    z = np.empty(C)
    x = np.empty(C)
    lower = np.zeros(C)
    upper = np.empty(C)
    for j in range(n):
        for c in range(C):
            z[c] = Z[c, j]
            upper[c] = np.inf if mask[c, j] else 0.0
        project_column(z, scale, parent[j], lower, upper, x)
        for c in range(C):
            free[c, j] = mask[c, j] and x[c] > 0.0
    return free
