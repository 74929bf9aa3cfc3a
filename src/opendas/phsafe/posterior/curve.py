"""A posterior density as polynomials on panels: mean, probabilities and quantiles from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from opendas.arrays import Floats
from opendas.arrays.kernels import inner
from opendas.errors import EstimationError
from opendas.phsafe.posterior.density import (
    HALVINGS,
    LEGENDRE,
    NODES,
    ORDER,
    SMALL,
    WEIGHTS,
    Parameters,
    bounds,
    first_guess,
    kinks,
    log_density,
    panel_edges,
    searches,
)
from opendas.phsafe.posterior.lattice import Lattice

_MOST_PANELS = 400

_find_peak, _find_reach = searches(log_density)


@njit(cache=True, nogil=True)
def _fit(kind: int, p: Parameters, x: float, w: float) -> tuple[Floats, Floats]:
    """Return the edges of the panels, and the Legendre coefficients of the density on each."""
    guess = first_guess(kind, p)
    low, high = bounds(kind, p)
    top = log_density(kind, x, p, 0.0, guess)
    peak, w, top = _find_peak(kind, p, 0.0, guess, x, w, top, low, high)
    left = _find_reach(kind, p, 0.0, guess, peak, top, -w, low, high)
    right = _find_reach(kind, p, 0.0, guess, peak, top, w, low, high)
    first, second = kinks(kind, p)
    edges = panel_edges(left, peak, right, first, second)
    # What waits on the stack when the limit is reached is kept as it is.
    ends = np.empty(_MOST_PANELS + HALVINGS + 1)
    rows = np.empty((_MOST_PANELS + HALVINGS, ORDER))
    values, coefficients = np.empty(ORDER), np.empty(ORDER)
    count = 0
    stack = np.empty((HALVINGS + 8, 2))
    ends[0] = left
    for start in range(6):
        if not edges[start] < edges[start + 1] < math.inf:
            continue
        stack[0, 0], stack[0, 1] = edges[start], edges[start + 1]
        height = 1
        while height > 0:
            height -= 1
            a, b = stack[height, 0], stack[height, 1]
            half, middle = 0.5 * (b - a), 0.5 * (a + b)
            for i in range(ORDER):
                values[i] = math.exp(log_density(kind, middle + half * NODES[i], p, 0.0, guess) - top)
            for k in range(ORDER):
                coefficients[k] = 0.0
                for i in range(ORDER):
                    coefficients[k] += LEGENDRE[k, i] * values[i]
            tail = np.abs(coefficients[ORDER - 3 :]).max()
            if tail <= SMALL or min(HALVINGS - height, _MOST_PANELS - count) < 2 or not a < middle < b:
                rows[count] = coefficients * half
                count += 1
                ends[count] = b
            else:
                stack[height, 0], stack[height, 1] = middle, b
                stack[height + 1, 0], stack[height + 1, 1] = a, middle
                height += 2
    return ends[: count + 1].copy(), rows[:count].copy()


@inner
def _mass(coefficients: Floats, x: float) -> float:
    """Return the integral from -1 to x of a Legendre series; that of P_k is (P_k+1 - P_k-1) / (2 k + 1)."""
    before, here = 1.0, x
    total = coefficients[0] * (x + 1)
    for k in range(1, ORDER):
        after = ((2 * k + 1) * x * here - k * before) / (k + 1)
        total += coefficients[k] * (after - before) / (2 * k + 1)
        before, here = here, after
    return float(total)


@njit(cache=True, nogil=True)
def _probabilities(ends: Floats, rows: Floats, below: Floats, x: Floats) -> Floats:
    """Return P(X <= x), for each x."""
    out = np.empty(len(x))
    for i in range(len(x)):
        if x[i] <= ends[0]:
            out[i] = 0.0
        elif x[i] >= ends[-1]:
            out[i] = below[-1]
        else:
            k = np.searchsorted(ends, x[i], side="right") - 1
            place = (2 * x[i] - ends[k] - ends[k + 1]) / (ends[k + 1] - ends[k])
            out[i] = below[k] + _mass(rows[k], place)
    return out


@njit(cache=True, nogil=True)
def _densities(ends: Floats, rows: Floats, x: Floats) -> Floats:
    """Return the density at each x, 0 outside."""
    out = np.zeros(len(x))
    for i in range(len(x)):
        if ends[0] <= x[i] <= ends[-1]:
            k = min(np.searchsorted(ends, x[i], side="right") - 1, len(rows) - 1)
            width = ends[k + 1] - ends[k]
            place = (2 * x[i] - ends[k] - ends[k + 1]) / width
            before, here = 1.0, place
            total = rows[k, 0]
            for j in range(1, ORDER):
                total += rows[k, j] * here
                before, here = here, ((2 * j + 1) * place * here - j * before) / (j + 1)
            out[i] = 2 * total / width
    return out


@njit(cache=True, nogil=True)
def _quantile(ends: Floats, rows: Floats, below: Floats, target: float) -> float:
    """Return x with P(X <= x) = target, by bisection within the panel."""
    k = 0
    while k + 1 < len(rows) and below[k + 1] <= target:
        k += 1
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if below[k] + _mass(rows[k], middle) < target:
            low = middle
        else:
            high = middle
    place = 0.5 * (low + high)
    return float(0.5 * (ends[k] + ends[k + 1]) + 0.5 * (ends[k + 1] - ends[k]) * place)


@njit(cache=True, nogil=True)
def log_densities(kind: int, p: Parameters, points: Floats) -> Floats:
    """Return :func:`~opendas.phsafe.posterior.density.log_density` at many points, float64 (n,)."""
    guess = first_guess(kind, p)
    out = np.empty(len(points))
    for i in range(len(points)):
        out[i] = log_density(kind, points[i], p, 0.0, guess)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A density on panels."""

    ends: Floats  # (m + 1,): ends of the panels, ascending
    rows: Floats  # (m, 16): Legendre coefficients on each panel, times half its width; all mass together is 1

    @property
    def below(self) -> Floats:
        """Probability below each end."""
        return np.concatenate([[0.0], np.cumsum(2 * self.rows[:, 0])])

    def moments(self) -> tuple[float, float]:
        """Return mean and variance."""
        middle, half = (self.ends[1:] + self.ends[:-1]) / 2, np.diff(self.ends) / 2
        mass, first = 2 * self.rows[:, 0], 2 * self.rows[:, 1] / 3
        second = 2 * (self.rows[:, 0] / 3 + self.rows[:, 2] * 2 / 15)
        center = float(middle @ mass)
        mean = center + float(half @ first)
        off = middle - mean
        return mean, float((off * off) @ mass + 2 * (off * half) @ first + (half * half) @ second)

    @property
    def nodes(self) -> Floats:
        """Quadrature nodes, float64 (m, 16)."""
        middle, half = (self.ends[1:] + self.ends[:-1]) / 2, np.diff(self.ends) / 2
        return np.asarray(middle[:, None] + half[:, None] * NODES)

    @property
    def weights(self) -> Floats:
        """Weights of the nodes, so that the mean of f(X) is ``sum(f(nodes) * weights)``."""
        return np.asarray(self.rows @ np.polynomial.legendre.legvander(NODES, ORDER - 1).T * WEIGHTS)

    def lattice(self, step: float) -> Lattice:
        """Return the probabilities of intervals of length `step`."""
        size = math.ceil((self.ends[-1] - self.ends[0]) / step) + 1
        below = self.probability(self.ends[0] + step * (np.arange(size + 1) - 0.5))
        weights = np.maximum(np.diff(below), 0.0)
        return Lattice(float(self.ends[0]), step, weights / weights.sum(), False)

    def probability(self, x: npt.ArrayLike) -> Floats:
        """Return P(X <= x)."""
        points = np.atleast_1d(np.asarray(x, dtype=np.float64))
        return np.asarray(_probabilities(self.ends, self.rows, self.below, points))

    def density(self, x: npt.ArrayLike) -> Floats:
        """Return the density, 0 outside the panels."""
        points = np.atleast_1d(np.asarray(x, dtype=np.float64))
        return np.asarray(_densities(self.ends, self.rows, points))

    def quantile(self, p: float) -> float:
        """Return x with P(X <= x) = p."""
        return float(_quantile(self.ends, self.rows, self.below, p))


def fit_curve(kind: int, p: Parameters, near: float, scale: float) -> Curve:
    """Fit the posterior density of one quantity of a block.

    `near`, `scale`: where to start looking for its peak, and the first step.
    """
    if not (all(map(math.isfinite, p)) and math.isfinite(near) and 0 < scale < math.inf):
        raise EstimationError(f"A block of a posterior must be finite; found {list(p)}.")
    ends, rows = _fit(kind, p, float(near), float(scale))
    total = 2 * float(rows[:, 0].sum())
    if not 0 < total < math.inf:
        raise EstimationError(
            f"A posterior density of kind {kind} has no mass. Please report it with its block, which is "
            f"publishable: {list(p)}."
        )
    return Curve(ends, rows / total)
