"""Alternating directions: a robust first-order method that hands the active set a better start.

Split x = y with y >= 0 and the sums G x = t with t within its bounds. Every child has the same penalty
relative to its own multiplier, so one factor serves all, and every iterate satisfies the parent's row:

    x_c = K R_c - (1/scale_c) / (sum 1/scale) (K sum_c R_c - parent),   K = (H + rho I + rho G'G)^-1,
    R_c = b_c + rho (y_c - u_c) + rho G' (t_c - v_c).

Over-relaxation 1.6; rho follows the balance of the residuals every twenty iterations (Boyd et al. 2011,
sections 3.4.1 and 3.4.3). Used only where the active set stalled from its own start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opendas.solvers.blas import one_blas_thread
from opendas.solvers.least_squares.active_set import Family

__all__ = ["admm"]

RELAX = 1.6
CHECK = 20
BALANCE = 3.0
ADAPT_UNTIL = 0.8
"""Share of the iterations in which rho may change, so that the rest can converge."""


def admm(p: Family, limit: int, tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.int8], int]:
    """Guess an active set.

    Parameters
    ----------
    p : Family
        Reduced, all children with the same H, positive definite with unit diagonal.
    limit : int
        Most iterations.
    tolerance : float
        In counts: stop when both residuals are below it.

    Returns
    -------
    free, side, iterations
        As :func:`opendas.solvers.least_squares.primal_dual_active_set.pdas` takes them.
    """
    with one_blas_thread():
        return _admm(p, limit, tolerance)


def _admm(p: Family, limit: int, tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.int8], int]:
    C, n = p.B.shape
    G = p.groups.astype(float)
    tied = len(p.parent) > 0
    share = (1.0 / p.scale) / (1.0 / p.scale).sum()
    y = np.where(p.mask, p.parent / C, 0.0) if tied else np.zeros((C, n))
    u = np.zeros((C, n))
    t = np.clip(y @ G.T, p.lower, p.upper)
    v = np.zeros(t.shape)
    rho, scale_up = 0.3, np.eye(n) + G.T @ G
    K = np.linalg.inv(p.H[0] + rho * scale_up)
    iteration = 0
    for iteration in range(1, limit + 1):
        x = (p.B + rho * (y - u) + rho * ((t - v) @ G)) @ K
        if tied:
            x -= share[:, None] * (x.sum(0) - p.parent)
        sums = x @ G.T
        before, t_before = y, t
        ahead = RELAX * x + (1.0 - RELAX) * y + u
        y = np.where(p.mask, np.maximum(ahead, 0.0), 0.0)
        u = ahead - y
        t_ahead = RELAX * sums + (1.0 - RELAX) * t + v
        t = np.clip(t_ahead, p.lower, p.upper)
        v = t_ahead - t
        if iteration % CHECK:
            continue
        primal = max(np.abs(x - y).max(), np.abs(sums - t).max(initial=0.0))
        dual = rho * max(np.abs(y - before).max(), np.abs(t - t_before).max(initial=0.0))
        if max(primal, dual) <= tolerance:
            break
        factor = float(np.clip(np.sqrt(primal / max(dual, 1e-300)), 0.1, 10.0))
        if not 1.0 / BALANCE < factor < BALANCE and iteration <= ADAPT_UNTIL * limit:
            rho *= factor
            u, v = u / factor, v / factor
            K = np.linalg.inv(p.H[0] + rho * scale_up)
    side = np.sign(np.where(np.abs(v) > 1e-9, v, 0.0)).astype(np.int8)
    return y > 0.0, side, iteration
