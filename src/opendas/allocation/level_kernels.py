"""Errors and slopes summed over the histograms of many levels, in compiled loops.

The same formulas as in :mod:`~opendas.allocation.clamped_error` and
:mod:`~opendas.allocation.integer_gaussian`, which the tests compare with them. Counts of a level are in
ascending order, so that a loop ends where clamping is no longer seen: all larger counts have the error of
the noise itself. That is most of the distinct counts.

Everything is over a factor of each level that is returned as a logarithm, so that no slope is lost where it
is no double.

Axes: ``l`` levels, ``v`` distinct counts of all levels.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from opendas.allocation.integer_gaussian import EULER, WIDE_RHO, slope_table
from opendas.allocation.noise_kinds import NoiseKind
from opendas.arrays import Floats, Ints

__all__ = ["KIND_CODES", "level_errors", "level_slopes"]


KIND_CODES = {kind: number for number, kind in enumerate(NoiseKind)}
_LAPLACE, _GAUSSIAN, _DISCRETE_LAPLACE = (
    KIND_CODES[kind] for kind in (NoiseKind.LAPLACE, NoiseKind.GAUSSIAN, NoiseKind.DISCRETE_LAPLACE)
)

_FADED = 50.0  # budget times count: exp(-50) x**3 is below a unit in the last place
_PASSED = 9.6  # standard deviations: likewise
_SEEN = 12.0  # standard deviations: no sixth moment sees more of a tail
_ROOT_TWO = math.sqrt(2.0)
_ROOT_TWO_PI = math.sqrt(2 * math.pi)
# Within _PASSED and from sigma = 32 on, each term of Euler and Maclaurin is below 1/400 of the one before.
_TERMS = 5


@njit(cache=True, nogil=True)
def level_slopes(
    code: int, budgets: Floats, counts: Ints, mult: Floats, starts: Ints
) -> tuple[Floats, Floats, Floats]:
    """Slopes of the summed mean squared error of each level.

    Parameters
    ----------
    code : int
        Of the kind of noise.
    budgets : float64 (l,)
        At sensitivity 1.
    counts : int64 (v,), mult : float64 (v,)
        Distinct counts, ascending within a level, and numbers of nodes.
    starts : int64 (l + 1,)

    Returns
    -------
    log_factor, slope, curvature : float64 (l,)
        Minus the slope, and the second derivative times the budget, over ``exp(log_factor)``.
    """
    scale, slopes, curvatures = (
        np.empty(len(budgets)),
        np.empty(len(budgets)),
        np.empty(len(budgets)),
    )
    for level in range(len(budgets)):
        b, start, stop = budgets[level], starts[level], starts[level + 1]
        if code == _LAPLACE:
            scale[level] = -3 * math.log(b)
            found = _laplace_slope(b, counts[start:stop], mult[start:stop])
        elif code == _GAUSSIAN:
            scale[level] = -math.log(2.0) - 2 * math.log(b)
            found = _gaussian_slope(b, counts[start:stop], mult[start:stop])
        elif code == _DISCRETE_LAPLACE:
            scale[level] = -b - 2 * math.log(-math.expm1(-b)) - math.log(math.tanh(0.5 * b))
            found = _discrete_laplace_slope(b, counts[start:stop], mult[start:stop])
        elif b <= WIDE_RHO:
            scale[level] = -2 * math.log(2 * b)
            found = _wide_slope(b, counts[start:stop], mult[start:stop])
        else:
            reach = 3 + int(_SEEN / math.sqrt(2 * b))
            first, bend, normaliser = slope_table(b, reach)
            scale[level] = -b - math.log(normaliser)
            slope, curvature = 0.0, 0.0
            for v in range(start, stop):
                place = min(counts[v], reach)
                slope += mult[v] * first[place]
                curvature += mult[v] * bend[place]
            found = (slope, b * curvature)
        slopes[level], curvatures[level] = found
    return scale, slopes, curvatures


@njit(cache=True, nogil=True)
def level_errors(code: int, budgets: Floats, counts: Ints, mult: Floats, starts: Ints) -> Floats:
    """Summed mean squared error of each level; arguments as :func:`level_slopes`."""
    errors = np.empty(len(budgets))
    for level in range(len(budgets)):
        b, start, stop = budgets[level], starts[level], starts[level + 1]
        if code == _LAPLACE:
            errors[level] = _laplace_error(b, counts[start:stop], mult[start:stop]) / (b * b)
        elif code == _GAUSSIAN:
            errors[level] = _gaussian_error(b, counts[start:stop], mult[start:stop], False)
        elif code == _DISCRETE_LAPLACE:
            lost = -math.expm1(-b)
            half = math.exp(-b) / (lost * lost)
            errors[level] = half * _discrete_laplace_error(b, counts[start:stop], mult[start:stop])
        elif b <= WIDE_RHO:
            errors[level] = _gaussian_error(b, counts[start:stop], mult[start:stop], True)
        else:
            errors[level] = _table_error(b, counts[start:stop], mult[start:stop])
    return errors


@njit(cache=True, nogil=True)
def _laplace_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    for v in range(len(counts)):
        x = b * counts[v]
        if x > _FADED:
            break
        fade = math.exp(-x)
        slope += mult[v] * (4 - ((x + 2) * x + 2) * fade)
        curvature += mult[v] * (12 - (((x + 3) * x + 6) * x + 6) * fade)
        left -= mult[v]
    return slope + 4 * left, curvature + 12 * left


@njit(cache=True, nogil=True)
def _laplace_error(b: float, counts: Ints, mult: Floats) -> float:
    error, left = 0.0, mult.sum()
    for v in range(len(counts)):
        x = b * counts[v]
        if x > _FADED:
            break
        error += mult[v] * (2 - (1 + x) * math.exp(-x))
        left -= mult[v]
    return float(error + 2 * left)


@njit(cache=True, nogil=True)
def _gaussian_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    root = math.sqrt(2 * b)
    for v in range(len(counts)):
        x = root * counts[v]
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        bracket = 0.5 * math.erfc(-x / _ROOT_TWO) - x * density
        slope += mult[v] * bracket
        curvature += mult[v] * (2 * bracket - 0.5 * x * x * x * density)
        left -= mult[v]
    return slope + left, curvature + 2 * left


@njit(cache=True, nogil=True)
def _discrete_laplace_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    t = math.tanh(0.5 * b)
    ratio = (3 - t * t) / (2 * t)
    for v in range(len(counts)):
        n = float(counts[v])
        if b * n > _FADED:
            break
        fade, nt = math.exp(-b * n), n * t
        one = 2 - fade * (1 + 2 * nt + 2 * nt * nt + nt * t * t)
        bend = 2 * nt * nt + 3 * nt * t * t + t * t * (1.5 * t * t - 0.5)
        slope += mult[v] * one
        curvature += mult[v] * (ratio * one - n * fade * bend)
        left -= mult[v]
    return slope + 2 * left, b * (curvature + 2 * ratio * left)


@njit(cache=True, nogil=True)
def _discrete_laplace_error(b: float, counts: Ints, mult: Floats) -> float:
    error, left = 0.0, mult.sum()
    t = math.tanh(0.5 * b)
    for v in range(len(counts)):
        n = float(counts[v])
        if b * n > _FADED:
            break
        error += mult[v] * (2 - math.exp(-b * n) * (1 + 2 * n * t))
        left -= mult[v]
    return float(error + 2 * left)


@njit(cache=True, nogil=True)
def _derivatives(n: float, sigma2: float, density: float, found: Floats) -> None:
    """Fill in the Gaussian density at n and its derivatives."""
    found[0] = density
    found[1] = -n / sigma2 * density
    for k in range(1, len(found) - 1):
        found[k + 1] = -(n * found[k] + k * found[k - 1]) / sigma2


@njit(cache=True, nogil=True)
def _correction(n: float, p: Floats, shift: int) -> float:
    """Sum minus integral of the clamped square; see `integer_gaussian`."""
    total = 0.0
    for i in range(_TERMS, 0, -1):
        odd = 2 * i - 1
        term = 2 * n * odd * p[odd - 1 + shift]
        if i > 1:
            term += odd * (odd - 1) * p[odd - 2 + shift]
        total += EULER[i - 1] * term
    return total


@njit(cache=True, nogil=True)
def _wide_slope(b: float, counts: Ints, mult: Floats) -> tuple[float, float]:
    slope, curvature, left = 0.0, 0.0, mult.sum()
    sigma2 = 1 / (2 * b)
    sigma = math.sqrt(sigma2)
    p = np.empty(2 * _TERMS + 3)
    for v in range(len(counts)):
        n = float(counts[v])
        x = n / sigma
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        _derivatives(n, sigma2, density / sigma, p)
        bracket = 0.5 * math.erfc(-x / _ROOT_TWO) - x * density
        first = _correction(n, p, 2)
        slope += mult[v] * (2 * bracket + first)
        curvature += mult[v] * (
            4 * bracket - x * x * x * density + 2 * first + 0.5 * sigma2 * _correction(n, p, 4)
        )
        left -= mult[v]
    return slope + 2 * left, curvature + 4 * left


@njit(cache=True, nogil=True)
def _gaussian_error(b: float, counts: Ints, mult: Floats, whole_numbers: bool) -> float:
    error, left = 0.0, mult.sum()
    sigma2 = 1 / (2 * b)
    sigma = math.sqrt(sigma2)
    p = np.empty(2 * _TERMS)
    for v in range(len(counts)):
        n = float(counts[v])
        x = n / sigma
        if x > _PASSED:
            break
        density = math.exp(-0.5 * x * x) / _ROOT_TWO_PI
        above = 0.5 * math.erfc(x / _ROOT_TWO)
        one = sigma2 * (1 - above - x * (density - x * above))
        if whole_numbers:
            _derivatives(n, sigma2, density / sigma, p)
            one += _correction(n, p, 0)
        error += mult[v] * one
        left -= mult[v]
    return float(error + sigma2 * left)


@njit(cache=True, nogil=True)
def _table_error(b: float, counts: Ints, mult: Floats) -> float:
    reach = 3 + int(_SEEN / math.sqrt(2 * b))
    tail = np.zeros(reach + 2)
    second = 0.0
    for k in range(reach + 1, 0, -1):
        weight = math.exp(-b * (k * k - 1.0))
        tail[k - 1] = tail[k] + weight
        second += k * k * weight
    error, below, done = 0.0, 0.0, 0
    for v in range(len(counts)):
        place = min(counts[v], reach)
        for m in range(done + 1, place + 1):
            below += (2 * m - 1) * tail[m - 1]
        done = place
        error += mult[v] * (second + below)
    return float(error * math.exp(-b) / (1 + 2 * math.exp(-b) * tail[0]))
