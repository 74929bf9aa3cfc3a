"""Minimise a smooth function of shares that are not negative and add up to one.

Shares are written as squares, ``s = x^2 / sum(x^2)``, which makes the problem free of constraints: a
quasi-Newton method on ``x`` meets the border of the simplex as an ordinary point. A convex function has no
other local minimum there than the global one, but a point on the border is stationary whatever lies beyond;
so shares start positive, and for a convex function the distance from the optimum is bounded afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # its optimize, a third of the time of all imports, loads when it is first named

from opendas.arrays import Floats

Function = Callable[[Floats], tuple[float, Floats]]

_STEPS = 500
_ROUNDS = 8
_CLOSE = 1e-9
_LONGEST, _SHORTEST = 0.1, 1e-12
_SMALL = 1e-9
"""A share below it that the function would rather have smaller is set to zero."""


def minimise_shares(function: Function, start: Floats) -> tuple[Floats, float]:
    """Find shares at which a positive function has a local minimum.

    - `function`, callable of float64 (n,) to (float, float64 (n,)): value, positive, and its derivatives by
      the shares.
    - `start` (n,), >= 0: shares to start from. One of zero stays zero.
    - Returns `shares` (n,): adding up to one.
    - Returns `value`.
    """
    free = np.flatnonzero(start > 0)
    shares = np.zeros(len(start))
    shares[free] = start[free] / start[free].sum()

    def of_roots(x: Floats) -> tuple[float, Floats]:
        total = float(x @ x)
        full = np.zeros(len(start))
        full[free] = x * x / total
        value, slope = function(full)
        inner = slope[free]
        mean = float(inner @ full[free])
        return float(np.log(value)), 2.0 * x * (inner - mean) / (total * value)

    for _ in range(_ROUNDS):
        found = scipy.optimize.minimize(
            of_roots,
            np.sqrt(shares[free]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _STEPS, "ftol": 1e-15, "gtol": 1e-10},
        )
        x = np.asarray(found.x)
        shares[free] = x * x / float(x @ x)
        value, slope = function(shares)
        if least_gap(value, slope[free], shares[free]) < _CLOSE:
            break
        shares = _towards_corner(function, shares, value, free[int(slope[free].argmin())])
    return _without_dust(function, shares)


def _towards_corner(function: Function, shares: Floats, value: float, corner: int) -> Floats:
    """Give more to the share that would help most, which may have come too near to zero to move."""
    part = _LONGEST
    while part > _SHORTEST:
        moved = (1.0 - part) * shares
        moved[corner] += part
        if function(moved)[0] < value:
            return moved
        part /= 4
    return shares


def _without_dust(function: Function, shares: Floats) -> tuple[Floats, float]:
    """Set shares to zero that have not quite got there."""
    value, slope = function(shares)
    dust = (shares > 0) & (shares < _SMALL) & (slope > float(slope @ shares))
    if not dust.any():
        return shares, value
    cleaned = np.where(dust, 0.0, shares)
    cleaned /= cleaned.sum()
    clean_value = function(cleaned)[0]
    return (cleaned, clean_value) if clean_value <= value else (shares, value)


def least_gap(value: float, slope: Floats, shares: Floats) -> float:
    """Bound how far, relative to the value, a convex function lies above its minimum over shares.

    - `slope` (n,): derivatives by the shares.
    - `shares` (n,).
    - Returns: ``(f - f*) / f`` is at most this.

    Notes
    -----
    ``f* >= f + min over shares t of slope . (t - s)``, and a linear function is least at a corner.
    """
    return float(slope @ shares - slope.min()) / value
