"""Independent check of an answer: the residual of the optimality conditions, from the stated problem only.

Nothing here knows how an answer was found. Gradients are computed from the margins, not from H. Any
multipliers prove optimality if they satisfy the conditions, so those of the solver are taken where it has
them, and found by a linear program otherwise.

In units of the sum of the weights W, with ``g_c = (H x_c - b_c) / W`` and ``z_c = g_c + (mu + tau_s(c) +
G' lam_c) / scale_c``, everything is in counts, and the residual is the largest of

* ``|sum_c x_c - parent|``, ``-x``, ``x`` outside the mask, violated group bounds, missed joint totals;
* ``|min(x, z)|`` over the cells a child may use (stationarity and complementarity at once);
* ``|min(lam- / scale, G x - lower)|`` and ``|min(lam+ / scale, upper - G x)|``,

divided by ``max(1, max parent)``, or by ``max(1, max x)`` where there is no parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Bools, Floats
from opendas.solvers.problem.curvature import Curvature
from opendas.solvers.problem.problem import FamilyProblem

__all__ = ["Multipliers", "certify", "certify_varied", "find_multipliers", "stacked_terms", "units"]

NO_PARENT = np.empty(0)
_NONE = np.zeros(0)
ACTIVE = 1e-6
"""Where multipliers are looked for, a cell counts as positive beyond this share of the largest count."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Multipliers in units of the sum of the weights.

    Parameters
    ----------
    parent : ndarray, shape (n,)
        mu, any sign; zeros where there is no parent.
    groups : ndarray, shape (C, K)
        lambda: <= 0 on a lower bound, >= 0 on an upper bound.
    joint : ndarray, shape (J,)
        tau of the joint totals, any sign.
    """

    parent: Floats
    groups: Floats
    joint: Floats = field(default_factory=lambda: _NONE)


def stacked_terms(problem: FamilyProblem) -> tuple[NDArray[np.int32], Floats]:
    """Row indices, shape (Q, n), and weights, shape (Q,)."""
    if not problem.terms:
        return np.zeros((0, problem.cells), np.int32), np.zeros(0)
    return (
        np.array([rows for _, rows in problem.terms], dtype=np.int32),
        np.array([weight for weight, _ in problem.terms]),
    )


@njit(cache=True, nogil=True)
def _gradient(
    rows: NDArray[np.int32],
    weights: Floats,
    linear: Floats,
    x: Floats,
    unit: float,
    g: Floats,
    margin: Floats,
) -> None:
    n = len(x)
    for j in range(n):
        g[j] = -linear[j] * unit
    for q in range(len(weights)):
        for j in range(n):
            margin[rows[q, j]] = 0.0
        for j in range(n):
            margin[rows[q, j]] += x[j]
        w = weights[q] * unit
        for j in range(n):
            g[j] += w * margin[rows[q, j]]


@njit(cache=True, nogil=True)
def kkt_residual(
    rows: NDArray[np.int32],
    weights: Floats,
    linear: Floats,
    parent: Floats,
    scale: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    x: Floats,
    mu: Floats,
    lam: Floats,
    joint: NDArray[np.int64],
    joint_total: Floats,
    tau: Floats,
) -> float:
    """Relative residual; see the module docstring."""
    C, n = x.shape
    total = 0.0
    for q in range(len(weights)):
        total += weights[q]
    unit = 1.0 / total if total > 0.0 else 1.0
    size = n
    for q in range(rows.shape[0]):
        for j in range(n):
            size = max(size, rows[q, j] + 1)
    g = np.empty((C, n))
    margin = np.empty(size)
    for c in range(C):
        _gradient(rows, weights, linear[c], x[c], unit, g[c], margin)
    return _largest_violation(
        g, 1.0 / scale, parent, mask, groups, lower, upper, x, mu, lam, joint, joint_total, tau
    )


@njit(cache=True, nogil=True)
def _largest_violation(
    g: Floats,
    factor: Floats,
    parent: Floats,
    mask: Bools,
    groups: Bools,
    lower: Floats,
    upper: Floats,
    x: Floats,
    mu: Floats,
    lam: Floats,
    joint: NDArray[np.int64],
    joint_total: Floats,
    tau: Floats,
) -> float:
    """Relative residual, given gradients in counts and what brings multipliers to counts, per child."""
    C, n = x.shape
    K = groups.shape[0]
    worst = 0.0
    magnitude = 1.0
    sums = np.zeros(n)
    missing = joint_total.copy()
    for c in range(C):
        f = factor[c]
        s = joint[c] if len(joint) else -1
        for j in range(n):
            value = x[c, j]
            if not np.isfinite(value):
                return np.inf
            sums[j] += value
            if s >= 0:
                missing[s] -= value
            if len(parent) == 0:
                magnitude = max(magnitude, value)
            worst = max(worst, -value)
            if not mask[c, j]:
                worst = max(worst, value)
                continue
            z = mu[j]
            if s >= 0:
                z += tau[s]
            for k in range(K):
                if groups[k, j]:
                    z += lam[c, k]
            worst = max(worst, abs(min(value, g[c, j] + f * z)))
        for k in range(K):
            t = 0.0
            for j in range(n):
                if groups[k, j]:
                    t += x[c, j]
            below = t - lower[c, k]
            above = upper[c, k] - t
            worst = max(worst, max(-below, -above))
            worst = max(worst, min(max(-lam[c, k], 0.0) * f, below))
            worst = max(worst, min(max(lam[c, k], 0.0) * f, above))
    for j in range(len(parent)):
        worst = max(worst, abs(sums[j] - parent[j]))
        magnitude = max(magnitude, parent[j])
    for s in range(len(missing)):
        worst = max(worst, abs(missing[s]))
    if not np.isfinite(worst):
        return np.inf
    return worst / magnitude


def certify(problem: FamilyProblem, x: Floats, multipliers: Multipliers | None = None) -> float:
    """Relative Karush-Kuhn-Tucker residual of `x`.

    Parameters
    ----------
    problem : FamilyProblem
        As stated.
    x : ndarray, shape (C, n)
        The answer.
    multipliers : Multipliers, optional
        Any candidates. Without them the best ones are found, by :func:`find_multipliers`.

    Returns
    -------
    float
        Dimensionless; 0 at an exact optimum. Infinite where x is not finite.
    """
    if not np.isfinite(x).all():
        return float(np.inf)
    if multipliers is None:
        multipliers = find_multipliers(problem, x)
    rows, weights = stacked_terms(problem)
    parent = NO_PARENT if problem.parent is None else problem.parent
    return float(
        kkt_residual(
            rows, weights, problem.linear, _readonly(parent), problem.scale, problem.mask, problem.groups,
            problem.lower, problem.upper, np.ascontiguousarray(x), multipliers.parent, multipliers.groups,
            *problem.joint_rows, multipliers.joint,
        )
    )  # fmt: skip


def certify_varied(
    problem: FamilyProblem,
    linear: Floats,
    curvature: Curvature,
    x: Floats,
    multipliers: Multipliers | None = None,
) -> float:
    """Relative Karush-Kuhn-Tucker residual where every child has a Hessian of its own.

    As above, with ``g_c = (A_c x_c - b_c) / u_c`` by the Hessian's own product, and u_c, the unit of a child,
    the mean of the Hessian's diagonal over the cells it may use: what the sum of the weights is to a Hessian
    that all children share. The problem's terms, scale and linear term have no part in it.

    Parameters
    ----------
    problem : FamilyProblem
        The constraints.
    linear : ndarray, shape (C, n)
    curvature : Curvature
    x : ndarray, shape (C, n)
        The answer.
    multipliers : Multipliers, optional
        In units of the objective per count. Without them the best ones are found, by a linear program.

    Returns
    -------
    float
        Dimensionless; 0 at an exact optimum. Infinite where x or its gradient is not finite.
    """
    if not np.isfinite(x).all():
        return float(np.inf)
    x = np.ascontiguousarray(x)
    factor = 1.0 / units(curvature.diagonal(), problem.mask)
    gradient = (curvature.apply(x) - linear) * factor[:, None]
    if not np.isfinite(gradient[problem.mask]).all():
        return float(np.inf)
    if multipliers is None:
        multipliers = _best_multipliers(problem, x, gradient, factor, ACTIVE)
    parent = NO_PARENT if problem.parent is None else problem.parent
    return float(
        _largest_violation(
            gradient, factor, _readonly(parent), problem.mask, problem.groups, problem.lower, problem.upper,
            x, multipliers.parent, multipliers.groups, *problem.joint_rows, multipliers.joint,
        )
    )  # fmt: skip


def units(diagonal: Floats, mask: Bools) -> Floats:
    """Mean diagonal of each child's Hessian over the cells it may use, shape (C,); 1 where that is 0."""
    sums = np.where(mask, diagonal, 0.0).sum(axis=1)
    mean = sums / np.maximum(1, mask.sum(axis=1))
    return np.where(mean > 0.0, mean, 1.0)


def _readonly(array: Floats) -> Floats:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def find_multipliers(problem: FamilyProblem, x: Floats, *, active: float = ACTIVE) -> Multipliers:
    """Multipliers that leave the smallest stationarity error at `x`, by a linear program.

    A cell counts as positive, and a row as off its bound, beyond ``active * max(1, max parent)``. With t the
    error: minimise t subject to ``|z_cj| <= t`` on positive cells and ``z_cj >= -t`` on the others.
    """
    unit = 1.0 / problem.weight if problem.terms else 1.0
    rows, weights = stacked_terms(problem)
    gradient = np.empty(x.shape)
    margin = np.empty(max(x.shape[1], int(rows.max(initial=0)) + 1))
    for c in range(len(x)):
        _gradient(rows, weights, problem.linear[c], np.ascontiguousarray(x[c]), unit, gradient[c], margin)
    return _best_multipliers(problem, x, gradient, 1.0 / problem.scale, active)


def _best_multipliers(
    problem: FamilyProblem, x: Floats, gradient: Floats, factor: Floats, active: float
) -> Multipliers:
    """Multipliers for gradients in counts, and what brings multipliers to counts, per child."""
    C, n = x.shape
    K = len(problem.groups)
    top = problem.parent if problem.parent is not None else x
    cut = active * max(1.0, float(top.max(initial=0.0)))
    child, cell = np.nonzero(problem.mask)
    m = len(child)
    inverse = factor[child]
    joint, joint_total = problem.joint_rows
    J = len(joint_total)
    width = n + C * K + J + 1  # mu, lambda, tau, t
    blocks = [sparse.csr_array((inverse, (np.arange(m), cell)), shape=(m, width))]
    for k in range(K):
        inside = problem.groups[k, cell]
        at = np.flatnonzero(inside)
        column = n + child[at] * K + k
        blocks.append(sparse.csr_array((inverse[at], (at, column)), shape=(m, width)))
    if J:
        at = np.flatnonzero(joint[child] >= 0)
        column = n + C * K + joint[child[at]]
        blocks.append(sparse.csr_array((inverse[at], (at, column)), shape=(m, width)))
    stationarity = sum(blocks[1:], blocks[0])
    t = sparse.csr_array((np.ones(m), (np.arange(m), np.full(m, width - 1))), shape=(m, width))
    g = gradient[child, cell]
    positive = x[child, cell] > cut
    A: Any = sparse.vstack([-stationarity - t, (stationarity - t)[positive]], format="csr")
    b = np.concatenate([g, -g[positive]])
    sums = x @ problem.groups.T.astype(float)
    low = np.where(sums <= problem.lower + cut, -np.inf, 0.0).ravel()
    high = np.where(sums >= problem.upper - cut, np.inf, 0.0).ravel()
    free = (-np.inf, np.inf) if problem.parent is not None else (0.0, 0.0)
    bounds: Any = [free] * n + list(zip(low, high, strict=True)) + [(-np.inf, np.inf)] * J + [(0.0, np.inf)]
    cost = np.zeros(width)
    cost[-1] = 1.0
    answer = scipy.optimize.linprog(cost, A_ub=A, b_ub=b, bounds=bounds, method="highs")
    if answer.x is None:
        return Multipliers(np.zeros(n), np.zeros((C, K)), np.zeros(J))
    at = n + C * K
    return Multipliers(answer.x[:n].copy(), answer.x[n:at].reshape(C, K).copy(), answer.x[at : at + J].copy())
