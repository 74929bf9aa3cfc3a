"""The structured solver: reduce, guess, active set, expand; for one Hessian and for one of each child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.solvers.least_squares.active_set import Family, Sides
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
from opendas.solvers.least_squares.start import project, project_column, unconstrained
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
        small = _apart(problem, problem.hessians, simpler, kept, ridge or 0.0)
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
        structure, known = None, _no_structure(len(first))
    else:
        known = (structure.rows, structure.diagonal * structure.core_inverse, structure.diagonal)
    # Children one by one know H by its structure; of all cells of a large schema it would fill the memory.
    written = structure is None or len(stated.parent) > 0 or started or len(kept) > 0
    H, B, parent, mask, groups, center = reduced(objective, stated, label, first, ridge, written)
    p = Family(
        H[None], B, parent, problem.scale.copy(), mask, groups, stated.lower, stated.upper, *known,
        *_coupled(stated, kept),
    )  # fmt: skip
    return _Small(p, structure, label, first, center, ridge)


def _apart(
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
        *_no_structure(m), *_coupled(stated, kept), pairs,
    )  # fmt: skip
    return _Small(p, None, label, first, center, ridge, whole)


def _no_structure(cells: int) -> tuple[Ints, Floats, float]:
    """The structure of an H that has none."""
    return np.zeros((0, cells), np.int64), np.zeros((0, 0)), 1.0


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

    What is exact of a root, or at least there, tells its size; upper bounds only where nothing else does:
    99,999 people in every housing unit are many times a state, and signs would count as right that are wrong
    by more than the certificate allows.
    """
    if problem.parent is not None:
        return problem.top
    exact = problem.lower[problem.lower == problem.upper]
    known = np.concatenate([exact, problem.joint_rows[1], problem.lower[np.isfinite(problem.lower)]])
    if not np.any(known > 0.0):
        known = problem.upper[np.isfinite(problem.upper)]
    return max(1.0, float(known.max(initial=0.0)) / max(1, problem.cells))


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
