"""From the stated problem to a smaller one in natural units, and back; a file of kernels, compiled once.

Cells that share their row in every term, their groups, their mask and their linear term enter the objective
and the constraints only through their sum: they become one cell, and the answer is spread over them in
proportion to the parent. Cells where the parent is 0 are 0 in every child. What is left is divided by the sum
of the weights, so that the diagonal of H is 1 and gradients are in counts.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.problem import Constraints, Objective

SAME = 1e-12
"""Relative difference of linear terms that is rounding, not data."""


@inner
def _same(
    i: int, j: int, rows: NDArray[np.int32], linear: Floats, unit: float, mask: Bools, groups: Bools
) -> bool:
    for q in range(rows.shape[0]):
        if rows[q, i] != rows[q, j]:
            return False
    for k in range(groups.shape[0]):
        if groups[k, i] != groups[k, j]:
            return False
    for c in range(mask.shape[0]):
        if mask[c, i] != mask[c, j] or abs(linear[c, i] - linear[c, j]) > SAME * unit:
            return False
    return True


@njit(cache=True, nogil=True)
def merge_cells(objective: Objective, stated: Constraints) -> tuple[Ints, Ints, bool]:
    """Number the cells to keep: ``label`` (n,), -1 where the parent is 0, and the first cell of each label.

    The third value says whether some term distinguishes all kept cells, so that H is positive definite.
    """
    rows, _, linear = objective
    parent, mask, groups = stated.parent, stated.mask, stated.groups
    n = rows.shape[1]
    label = np.full(n, -1, np.int64)
    first = np.empty(n, np.int64)
    tied = len(parent) > 0
    n_kept = 0
    for j in range(n):
        if not tied or parent[j] != 0.0:
            first[n_kept] = j
            n_kept += 1
    definite = _separates(rows, first[:n_kept])
    if definite:
        for a in range(n_kept):
            label[first[a]] = a
        return label, first[:n_kept].copy(), definite
    unit = 0.0
    for c in range(linear.shape[0]):
        for j in range(n):
            unit = max(unit, abs(linear[c, j]))
    m = 0
    for j in range(n):
        if tied and parent[j] == 0.0:
            continue
        for a in range(m):
            if _same(first[a], j, rows, linear, unit, mask, groups):
                label[j] = a
                break
        if label[j] < 0:
            first[m] = j
            label[j] = m
            m += 1
    first = first[:m].copy()
    return label, first, _separates(rows, first)


@inner
def _separates(rows: NDArray[np.int32], cells: Ints) -> bool:
    n = rows.shape[1]
    for q in range(rows.shape[0]):
        seen = np.zeros(n, np.bool_)
        distinct = True
        for j in cells:
            r = rows[q, j]
            if r >= n or seen[r]:
                distinct = False
                break
            seen[r] = True
        if distinct:
            return True
    return False


@njit(cache=True, nogil=True)
def reduced(
    objective: Objective,
    stated: Constraints,
    label: Ints,
    first: Ints,
    ridge: float,
    written: bool,
) -> tuple[Floats, Floats, Floats, Bools, Bools, Floats]:
    """H (unit diagonal), B, parent, mask and groups of the kept cells; the centre of the proximal steps.

    `ridge` is added to the diagonal of H, and ridge times the centre to B; the centre shares cells equally.
    H is empty unless `written`.
    """
    rows, weights, linear = objective
    parent, mask, groups = stated.parent, stated.mask, stated.groups
    C = linear.shape[0]
    K = groups.shape[0]
    m = len(first)
    total = 0.0
    for q in range(len(weights)):
        total += weights[q]
    unit = 1.0 / total if total > 0.0 else 1.0
    side = m if written else 0
    # H = sum_q weight_q [row_q(i) == row_q(j)] / sum_q weight_q, plus the ridge.
    H = np.zeros((side, side))
    row = np.empty(m, np.int32)
    for q in range(len(weights) if written else 0):
        w = weights[q] * unit
        for a in range(m):
            row[a] = rows[q, first[a]]
        for a in range(m):
            for b in range(m):
                H[a, b] += w if row[b] == row[a] else 0.0
    for a in range(side):
        H[a, a] += ridge
    # The constraints, on the kept cells.
    parent1 = np.zeros(m if len(parent) else 0)
    if len(parent):
        for j in range(len(label)):
            if label[j] >= 0:
                parent1[label[j]] += parent[j]
    groups1 = np.empty((K, m), np.bool_)
    for k in range(K):
        for a in range(m):
            groups1[k, a] = groups[k, first[a]]
    # B = linear / sum_q weight_q, plus the ridge times the centre.
    B = np.empty((C, m))
    mask1 = np.empty((C, m), np.bool_)
    center = np.zeros((C, m)) if ridge > 0.0 else np.zeros((0, 0))
    for a in range(m):
        allowed = 0
        for c in range(C):
            mask1[c, a] = mask[c, first[a]]
            allowed += mask1[c, a]
        for c in range(C):
            B[c, a] = linear[c, first[a]] * unit
            if ridge > 0.0 and mask1[c, a]:
                center[c, a] = parent1[a] / allowed if len(parent) else 0.0
                B[c, a] += ridge * center[c, a]
    return H, B, parent1, mask1, groups1, center


@inner
def _spread(y: Floats, label: Ints, parent: Floats, parent1: Floats) -> Floats:
    """Answer on all cells from the answer on kept ones, shapes (C, m) and (C, n); negatives become 0."""
    C, m = y.shape
    n = len(label)
    x = np.zeros((C, n))
    share = np.ones(n)
    if len(parent):
        for j in range(n):
            if label[j] >= 0:
                share[j] = parent[j] / parent1[label[j]]
    else:
        size = np.zeros(m)
        for j in range(n):
            size[label[j]] += 1.0
        for j in range(n):
            share[j] = 1.0 / size[label[j]]
    for c in range(C):
        for j in range(n):
            if label[j] >= 0 and y[c, label[j]] > 0.0:
                x[c, j] = y[c, label[j]] * share[j]
    return x


@njit(cache=True, nogil=True)
def simpler_bounds(stated: Constraints) -> tuple[Bools, Floats, Floats]:
    """Mask, lower and upper bounds without those that say nothing.

    A lower bound of 0 or less follows from x >= 0; an upper bound of 0 is a mask; an upper bound of no less
    than all that the parent has follows from the parent's row. A joint total of 0 is a mask, and no sum in it
    can exceed it. Left in, they make active sets degenerate.
    """
    parent, groups, joint, joint_total = stated.parent, stated.groups, stated.joint, stated.joint_total
    mask = stated.mask.copy()
    lower = stated.lower.copy()
    upper = stated.upper.copy()
    C, n = mask.shape
    for c in range(C):
        for k in range(groups.shape[0]):
            if lower[c, k] <= 0.0:
                lower[c, k] = -np.inf
            if upper[c, k] <= 0.0:
                if upper[c, k] == 0.0:
                    upper[c, k] = np.inf
                for j in range(n):
                    if groups[k, j]:
                        mask[c, j] = False
    for c in range(C):
        for k in range(groups.shape[0]):
            if len(parent) and upper[c, k] < np.inf and upper[c, k] > 0.0:
                most = 0.0
                for j in range(n):
                    if groups[k, j] and mask[c, j]:
                        most += parent[j]
                if upper[c, k] >= most and lower[c, k] < upper[c, k]:
                    upper[c, k] = np.inf
    for c in range(len(joint)):
        if joint[c] < 0:
            continue
        total = joint_total[joint[c]]
        if total == 0.0:
            for j in range(n):
                mask[c, j] = False
        for k in range(groups.shape[0]):
            if upper[c, k] >= total and lower[c, k] < upper[c, k]:
                upper[c, k] = np.inf
    return mask, lower, upper


@inner
def _raise_joint_multiplier(s: int, z: Floats, label: Ints, mask: Bools, joint: Ints, tau: Floats) -> None:
    """Raise the multiplier of joint total s until no cell of its children wants to be positive."""
    force = 0.0
    for c in range(z.shape[0]):
        for j in range(len(label)):
            if joint[c] == s and mask[c, j] and label[j] >= 0:
                force = max(force, -z[c, j])
    tau[s] += force
    for c in range(z.shape[0]):
        for j in range(len(label)):
            if joint[c] == s:
                z[c, j] += force


@inner
def _kept_multipliers(mu1: Floats, label: Ints, stated: Constraints) -> tuple[Floats, bool]:
    """Multiplier of the parent row on all cells, -inf where the parent is 0; whether all is known by that."""
    upper, joint_total = stated.upper, stated.joint_total
    n = len(label)
    mu = np.empty(n)
    complete = True
    for j in range(n):
        mu[j] = mu1[label[j]] if label[j] >= 0 else -np.inf
        complete = complete and label[j] >= 0
    for c in range(upper.shape[0]):
        for k in range(upper.shape[1]):
            complete = complete and upper[c, k] > 0.0
    for s in range(len(joint_total)):
        complete = complete and joint_total[s] != 0.0
    return mu, complete


@njit(cache=True, nogil=True)
def complete_multipliers(z: Floats, multipliers: Multipliers, label: Ints, stated: Constraints) -> None:
    """Complete multipliers in place, given the gradients z of the objective, shape (C, n).

    Neither a cell whose parent is 0 nor one in a group with an upper bound of 0, or in a child whose joint
    total is 0, has a part in the small problem; the least multipliers are taken at which none of them wants
    to be positive.
    """
    mu, lam, tau = multipliers
    mask, groups, upper = stated.mask, stated.groups, stated.upper
    joint, joint_total = stated.joint, stated.joint_total
    C, n = z.shape
    # z = gradient + mu + tau + G' lambda, and lambda of the groups that are closed.
    for c in range(C):
        for j in range(n):
            for k in range(groups.shape[0]):
                if groups[k, j]:
                    z[c, j] += lam[c, k]
            if label[j] >= 0:
                z[c, j] += mu[j]
            if len(joint) and joint[c] >= 0:
                z[c, j] += tau[joint[c]]
        for k in range(groups.shape[0]):
            if upper[c, k] > 0.0:
                continue
            force = 0.0
            for j in range(n):
                if groups[k, j] and mask[c, j] and label[j] >= 0:
                    force = max(force, -z[c, j])
            lam[c, k] += force
            for j in range(n):
                if groups[k, j]:
                    z[c, j] += force
    # tau of the joint totals that are 0.
    for s in range(len(tau)):
        if joint_total[s] == 0.0:
            _raise_joint_multiplier(s, z, label, mask, joint, tau)
    # mu of the cells that the parent does not have.
    for c in range(C):
        for j in range(n):
            if label[j] < 0 and mask[c, j]:
                mu[j] = max(mu[j], -z[c, j])
    for j in range(n):
        if mu[j] == -np.inf:
            mu[j] = 0.0


@njit(cache=True, nogil=True)
def expand(
    y: Floats, mu1: Floats, label: Ints, parent1: Floats, stated: Constraints
) -> tuple[Floats, Floats, bool]:
    """Answer and multiplier of the parent row on all cells; whether multipliers are complete by that."""
    x = _spread(y, label, stated.parent, parent1)
    mu, complete = _kept_multipliers(mu1, label, stated)
    return x, mu, complete
