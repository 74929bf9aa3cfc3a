"""The certificate of an answer without its multipliers: the best ones are found by a linear program."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
from scipy import sparse

from opendas.arrays import Floats
from opendas.solvers.problem import certificate
from opendas.solvers.problem.certificate import Multipliers, gradients, units
from opendas.solvers.problem.problem import FamilyProblem

ACTIVE = 1e-6
"""A cell counts as positive beyond this share of the largest count."""


def certify(problem: FamilyProblem, x: Floats, multipliers: Multipliers | None = None) -> float:
    """Relative Karush-Kuhn-Tucker residual of `x`, by given multipliers or by the best ones."""
    if multipliers is None:
        if not np.isfinite(x).all():
            return float(np.inf)
        multipliers = find_multipliers(problem, x)
    return certificate.certify(problem, x, multipliers)


def find_multipliers(problem: FamilyProblem, x: Floats, *, active: float = ACTIVE) -> Multipliers:
    """Multipliers that leave the smallest stationarity error at `x`.

    A cell counts as positive, and a row as off its bound, beyond ``active * max(1, max parent)``. With t the
    error: minimise t subject to ``|z_cj| <= t`` on positive cells and ``z_cj >= -t`` on the others.
    """
    x = np.ascontiguousarray(x)
    factor = 1.0 / problem.scale
    if problem.hessians is not None:
        factor = 1.0 / units(problem.hessians.diagonal(), problem.mask)
    return _best_multipliers(problem, x, gradients(problem, x) * factor[:, None], factor, active)


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
