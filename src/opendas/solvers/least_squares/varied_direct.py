"""The active set with one matrix per child, written out: reduce, guess, active set, expand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats
from opendas.solvers.least_squares.active_set import UNPAIRED, Family
from opendas.solvers.least_squares.direct import Direct, coupled_totals, magnitude
from opendas.solvers.least_squares.paired import PairedCurvature, paired_guess, place_bounds
from opendas.solvers.least_squares.primal_dual_active_set import pdas
from opendas.solvers.least_squares.reduce import (
    complete_multipliers,
    joint_bounds,
    kept_multipliers,
    simpler_bounds,
)
from opendas.solvers.least_squares.start import project, unconstrained
from opendas.solvers.problem.certificate import units
from opendas.solvers.problem.curvature import Curvature, blocks
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["active_sides", "solve_explicit"]

NO_PARENT: Floats = np.empty(0)
NO_PARENT.flags.writeable = False


def solve_explicit(
    problem: FamilyProblem,
    linear: Floats,
    curvature: Curvature,
    limit: int,
    precision: float,
    ridge: float,
    near: Direct | None = None,
) -> Direct:
    """Structured solution of a family whose Hessians are written out on the cells of the parent.

    Parameters
    ----------
    problem : FamilyProblem
        Constraints, and a metric for the first guess.
    linear, curvature
        As in :func:`opendas.solvers.least_squares.varied.solve_varied`.
    limit : int
        Most iterations of the active set.
    precision : float
        Of the signs, relative to ``max(1, max parent)``.
    ridge : float
        Weight of the proximal term, relative to the mean diagonal of a Hessian; 0 for none.
    near : Direct, optional
        A point whose active set to start from. By default the projected unconstrained optimum.

    Returns
    -------
    Direct
        Not yet certified. Multipliers in units of the objective per count.
    """
    parent = NO_PARENT if problem.parent is None else problem.parent
    groups = problem.groups
    joint, joint_total = problem.joint_rows
    tau = np.zeros(len(joint_total)) if len(joint_total) else joint_total
    mask, lower, upper = simpler_bounds(problem.mask, groups, problem.lower, problem.upper, parent)
    if len(joint):
        joint_bounds(mask, groups, lower, upper, joint, joint_total)
    first = _kept_cells(curvature, parent, problem.cells)
    label = np.full(problem.cells, -1)
    label[first] = np.arange(len(first))
    mask1 = np.ascontiguousarray(mask[:, first])
    unit = units(curvature.diagonal()[:, first], mask1)
    whole = float(unit.mean()) if len(unit) else 1.0
    # A choice of columns lies column by column: in another layout than the kernels are compiled for.
    B = np.ascontiguousarray(linear[:, first] / unit[:, None])
    center = np.zeros((0, 0))
    if ridge > 0.0:
        allowed = np.maximum(1, mask1.sum(axis=0))
        center = np.where(mask1, parent[first] / allowed, 0.0) if len(parent) else np.zeros(B.shape)
        B += ridge * center
    kept, coupled = coupled_totals(problem, joint, joint_total)
    known = (np.zeros((0, len(first)), np.int64), np.zeros((0, 0)), 1.0)
    parent1 = parent[first] if len(parent) else np.zeros(0)
    groups1 = np.ascontiguousarray(groups[:, first])
    H, pairs = _hessians(curvature, first, unit, ridge)
    p = Family(H, B, parent1, unit / whole, mask1, groups1, lower, upper, *known, *coupled, *pairs)
    if near is None:
        free, side = _guess(p), np.zeros(lower.shape, np.int8)
    else:
        free, side = mask1 & (near.x[:, first] > 0.0), active_sides(near.lam, lower, upper)
    tolerance = precision * magnitude(problem)
    status, iterations, y, mu1, found, lam = pdas(*p, free, side, center, ridge, limit, tolerance)
    tau[kept] = found
    x = np.zeros(problem.linear.shape)
    x[:, first] = np.maximum(y, 0.0)
    mu, complete = kept_multipliers(mu1, label, problem.upper, joint_total)
    if not complete:
        z = (curvature.apply(x) - linear) / whole
        complete_multipliers(z, mu, lam, label, problem.mask, groups, problem.upper, joint, joint_total, tau)
    return Direct(int(status), int(iterations), x, mu * whole, lam * whole, tau * whole)


def active_sides(lam: Floats, lower: Floats, upper: Floats) -> NDArray[np.int8]:
    """Side of each row by the sign of its multiplier, 0 where there is no such bound, shape (C, K)."""
    side = np.sign(lam)
    side[((side < 0) & ~np.isfinite(lower)) | ((side > 0) & ~np.isfinite(upper))] = 0
    return side.astype(np.int8)


def _kept_cells(curvature: Curvature, parent: Floats, cells: int) -> NDArray[np.intp]:
    """Cells that can be positive; by place, where the Hessians are in the form of pairs."""
    first = np.flatnonzero(parent != 0.0) if len(parent) else np.arange(cells)
    if isinstance(curvature, PairedCurvature):
        first = first[np.argsort(curvature.place[first], kind="stable")]
    return first


def _hessians(
    curvature: Curvature, first: NDArray[np.intp], unit: Floats, ridge: float
) -> tuple[Floats, tuple[Any, ...]]:
    """``A_c / unit_c`` plus a ridge: H of a Family, and its form of pairs."""
    if isinstance(curvature, PairedCurvature):
        kind = curvature.kind[first]
        begin, end = place_bounds(curvature.place[first])
        alpha = curvature.alpha / unit[:, None, None]
        beta = curvature.beta / unit[:, None, None]
        beta[:, np.arange(beta.shape[1]), np.arange(beta.shape[1])] += ridge
        return np.zeros((0, len(first), len(first))), (kind, begin, end, alpha, beta)
    H = blocks(curvature, first, (len(unit), len(curvature.diagonal()[0])))
    H /= unit[:, None, None]
    H[:, np.arange(len(first)), np.arange(len(first))] += ridge
    return H, UNPAIRED


def _guess(p: Family) -> Bools:
    """Unconstrained optimum of every child, projected cell by cell."""
    if len(p.kind):
        Z = paired_guess(p.alpha, p.beta, p.kind, p.end, p.mask, p.B)
    else:
        Z = np.stack([unconstrained(p.H[c], p.B[c : c + 1])[0] for c in range(len(p.B))])
    return project(Z, p.parent, p.scale, p.mask)
