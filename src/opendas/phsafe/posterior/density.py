"""Densities of averages and of their parts, as integrals over one variable in closed form otherwise.

A block has numerators A and B (persons in two cells), or A alone, and one denominator D (households), each
measured with independent normal noise, and a flat prior on

    A >= 0,  B >= 0,  D >= 1,  c D <= S <= k D,  with S = A + B.

Once D is given, what S adds up to decides about the constraints, so that everything asked for has a density
that is a closed form or one integral over D (over S for the density of D itself). Every integrand is
log-concave: a density of normals, the probability of an interval with ends linear in D, and the factor D of a
ratio. Its peak is searched, its effective range follows, and Gauss-Legendre panels are halved until their
Legendre coefficients have died out.

A block is an array: location and standard deviation of A, B and D, c, k, t, and whether there is no B.

Who changes a compiled function here deletes the compiled files of :mod:`~opendas.phsafe.posterior.curve` too
(``__pycache__/*.nbi``): they hold a copy of it, and look at their own source only.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numba import njit

from opendas.arrays import Floats

__all__ = [
    "AVERAGE",
    "AVERAGE_OF_A",
    "DENOMINATOR",
    "DENOMINATOR_BY_TOTAL",
    "DIFFERENCE",
    "DROP",
    "HALVINGS",
    "LEGENDRE",
    "NODES",
    "ORDER",
    "PART",
    "SMALL",
    "STEPS",
    "TOTAL",
    "WEIGHTS",
    "block",
    "bounds",
    "first_guess",
    "interval",
    "kinks",
    "log_density",
    "log_interval",
    "log_upper",
]

# Logarithms of normal probabilities, compiled, without underflow in the tails.


_ROOT_HALF = math.sqrt(0.5)
_SERIES_FROM = 30.0
_NEGLIGIBLE = 8.5
"""What lies this much further out on one side is less than 1e-16 of the tail."""
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@njit(cache=True, nogil=True)
def log_upper(x: float) -> float:
    """Return ``log P(N > x)`` for a standard normal N; absolute error a few units in the last place.

    Notes
    -----
    Beyond 30, where the complementary error function will underflow, its asymptotic series (NIST DLMF
    7.12.1); the first term left out is below 1e-13.
    """
    if x == math.inf:
        return -math.inf
    if x < 0:
        return math.log1p(-0.5 * math.erfc(-x * _ROOT_HALF))
    if x < _SERIES_FROM:
        return math.log(0.5 * math.erfc(x * _ROOT_HALF))
    r = 1 / (x * x)
    series = -r * (1 - 3 * r * (1 - 5 * r * (1 - 7 * r * (1 - 9 * r))))
    return -0.5 * x * x - _HALF_LOG_TWO_PI - math.log(x) + math.log1p(series)


@njit(cache=True, nogil=True)
def log_interval(low: float, high: float) -> float:
    """Return ``log P(low < N < high)`` for a standard normal N; -inf where the interval is empty."""
    if not low < high:
        return -math.inf
    if low <= 0 <= high:
        return math.log(0.5 * (math.erf(high * _ROOT_HALF) - math.erf(low * _ROOT_HALF)))
    if high < 0:
        low, high = -high, -low
    near = log_upper(low)
    if high == math.inf:
        return near
    ratio = -math.expm1(log_upper(high) - near)
    return near + math.log(ratio) if ratio > 0 else -math.inf


@njit(cache=True, nogil=True)
def interval(low: float, high: float) -> float:
    """Return ``P(low < N < high)`` for a standard normal N, to full relative accuracy until it underflows."""
    if not low < high:
        return 0.0
    if high < 0:
        low, high = -high, -low
    if low > 0:
        near = 0.5 * math.erfc(low * _ROOT_HALF)
        return near if high - low > _NEGLIGIBLE else near - 0.5 * math.erfc(high * _ROOT_HALF)
    return 0.5 * (math.erf(high * _ROOT_HALF) - math.erf(low * _ROOT_HALF))


AVERAGE: Final = 0
"""S / D."""
AVERAGE_OF_A: Final = 1
"""A / D."""
PART: Final = 2
"""A."""
TOTAL: Final = 3
"""S."""
DIFFERENCE: Final = 4
"""S - t D, for c <= t <= k."""
DENOMINATOR: Final = 5
"""D."""
DENOMINATOR_BY_TOTAL: Final = 6
"""E[S | D] times the density of D."""

ZA, SA, ZB, SB, ZD, SD, C, K, T, ALONE = range(10)

ORDER: Final = 16
NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
LEGENDRE = np.ascontiguousarray(
    np.polynomial.legendre.legvander(NODES, ORDER - 1).T * WEIGHTS * (np.arange(ORDER)[:, None] + 0.5)
)
"""Values at the nodes to Legendre coefficients: row k gives the k-th."""
_TAIL = np.ascontiguousarray(LEGENDRE[-3:])

DROP: Final = 38.0
"""What is below exp(-38) of the peak is left out."""
SMALL: Final = 1e-6
"""Largest last Legendre coefficients of an accepted panel, beside the peak: the integral's relative error is
of the order of their square."""
_INNER_SMALL: Final = 1e-5
"""The same for the integrals behind each point."""
_TINY: Final = 1e-280
HALVINGS: Final = 40
STEPS: Final = 400


@njit(cache=True, nogil=True)
def _log_normal(x: float, z: float, s: float) -> float:
    r = (x - z) / s
    return -0.5 * r * r


@njit(cache=True, nogil=True)
def _sum_factors(x: float, p: Floats) -> tuple[float, float, float]:
    """Return the density of S at x before the constraints with D: log of a normal density, and an interval.

    The interval, in standard deviations, is where A can lie; its normal probability is the other factor.
    """
    if p[ALONE] != 0.0:
        return _log_normal(x, p[ZA], p[SA]), -math.inf, math.inf
    variance = p[SA] * p[SA] + p[SB] * p[SB]
    tau = math.sqrt(variance)
    mean = p[ZA] + p[SA] * p[SA] / variance * (x - p[ZA] - p[ZB])
    s = p[SA] * p[SB] / tau
    return _log_normal(x, p[ZA] + p[ZB], tau), -mean / s, (x - mean) / s


@njit(cache=True, nogil=True)
def _factors(kind: int, x: float, d: float, p: Floats) -> tuple[float, float, float, float]:
    """Return what is integrated over D as ``exp(log) * P(low < N < high) * times``: these four numbers.

    For the density of D itself, `d` is S and `x` is D.
    """
    times = 1.0
    if kind >= DENOMINATOR:
        value, low, high = _sum_factors(d, p)
        value += _log_normal(x, p[ZD], p[SD])
        if kind == DENOMINATOR_BY_TOTAL:
            times = d
    elif kind == AVERAGE:
        value, low, high = _sum_factors(x * d, p)
        value += _log_normal(d, p[ZD], p[SD])
        times = d
    elif kind == DIFFERENCE:
        value, low, high = _sum_factors(x + p[T] * d, p)
        value += _log_normal(d, p[ZD], p[SD])
    else:
        a = x
        if kind == AVERAGE_OF_A:
            a, times = x * d, d
        low = (max(0.0, p[C] * d - a) - p[ZB]) / p[SB]
        high = (p[K] * d - a - p[ZB]) / p[SB]
        value = _log_normal(d, p[ZD], p[SD]) + _log_normal(a, p[ZA], p[SA])
    return value, low, high, times


@njit(cache=True, nogil=True)
def _integrand(kind: int, x: float, d: float, p: Floats) -> float:
    """Return the log of what is integrated."""
    value, low, high, times = _factors(kind, x, d, p)
    return value + log_interval(low, high) + math.log(times)


@njit(cache=True, nogil=True)
def _scaled(kind: int, x: float, d: float, p: Floats, top: float) -> float:
    """Return what is integrated, divided by exp(top); without logarithms where it is no loss."""
    value, low, high, times = _factors(kind, x, d, p)
    probability = interval(low, high)
    if probability > _TINY:
        return math.exp(value - top) * probability * times
    return math.exp(value - top + log_interval(low, high)) * times


@njit(cache=True, nogil=True)
def _range(kind: int, x: float, p: Floats) -> tuple[float, float]:
    """Return the smallest and the largest D (or S) that x allows."""
    if kind >= DENOMINATOR:
        return p[C] * x, p[K] * x
    low = 1.0
    if kind == PART:
        low = max(low, x / p[K])
    elif kind == DIFFERENCE:
        if x < 0:
            low = max(low, -x / (p[T] - p[C])) if p[T] > p[C] else math.inf
        elif x > 0:
            low = max(low, x / (p[K] - p[T])) if p[T] < p[K] else math.inf
    return low, math.inf


@njit(cache=True, nogil=True)
def _reach(
    kind: int, x: float, p: Floats, peak: float, top: float, step: float, low: float, high: float
) -> float:
    """Return where the integrand has dropped by DROP, in the direction of `step`."""
    inside, outside = 0.0, step
    for _ in range(STEPS):
        d = peak + outside
        if d <= low:
            return low
        if d >= high:
            return high
        if top - _integrand(kind, x, d, p) > DROP:
            break
        inside, outside = outside, 2 * outside
    for _ in range(3):
        middle = 0.5 * (inside + outside)
        if top - _integrand(kind, x, peak + middle, p) > DROP:
            outside = middle
        else:
            inside = middle
    return peak + outside


@njit(cache=True, nogil=True)
def _panel(kind: int, x: float, p: Floats, top: float, a: float, b: float) -> tuple[float, float]:
    """Return the integral over a panel, and the size of its last Legendre coefficients."""
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    total, t0, t1, t2 = 0.0, 0.0, 0.0, 0.0
    for i in range(ORDER):
        value = _scaled(kind, x, middle + half * NODES[i], p, top)
        total += WEIGHTS[i] * value
        t0 += _TAIL[0, i] * value
        t1 += _TAIL[1, i] * value
        t2 += _TAIL[2, i] * value
    return half * total, max(abs(t0), abs(t1), abs(t2))


@njit(cache=True, nogil=True)
def _integral(kind: int, x: float, p: Floats, guess: Floats) -> float:
    """Return the log of the integral over D; `guess` holds a likely peak and scale, and is updated."""
    low, high = _range(kind, x, p)
    if not low < high:
        return -math.inf
    d, w = min(max(guess[0], low), high), guess[1]
    top = _integrand(kind, x, d, p)
    if top == -math.inf:
        # The peak of another x can lie outside; somewhat inside the range every integrand is positive.
        d = min(low + w, 0.5 * (low + high))
        top = _integrand(kind, x, d, p)
    for _ in range(STEPS):
        below, above = max(low, d - w), min(high, d + w)
        left, right = _integrand(kind, x, below, p), _integrand(kind, x, above, p)
        if right > top and right >= left:
            d, top, w = above, right, 2 * w
        elif left > top:
            d, top, w = below, left, 2 * w
        elif (top - right <= 1.0 and top - left <= 1.0) or w < 1e-13 * abs(d):
            break
        else:
            w *= 0.5
    if top == -math.inf:
        return -math.inf
    guess[0], guess[1] = d, w
    left, right = _reach(kind, x, p, d, top, -w, low, high), _reach(kind, x, p, d, top, w, low, high)
    edges = np.empty(6)
    edges[0], edges[1], edges[2] = left, d + 0.4 * (left - d), d
    edges[3], edges[4], edges[5] = d + 0.4 * (right - d), right, math.inf
    if kind == PART:
        kink = x / p[C]
        if edges[0] < kink < edges[4]:
            edges[5] = kink
            edges.sort()
    total, panels = 0.0, 0
    stack = np.empty((HALVINGS + 8, 2))
    for first in range(5):
        if not edges[first] < edges[first + 1] < math.inf:
            continue
        stack[0, 0], stack[0, 1] = edges[first], edges[first + 1]
        height = 1
        while height > 0:
            height -= 1
            a, b = stack[height, 0], stack[height, 1]
            value, tail = _panel(kind, x, p, top, a, b)
            middle = 0.5 * (a + b)
            panels += 1
            if tail <= _INNER_SMALL or max(height + 2, panels) > HALVINGS or not a < middle < b:
                total += value
            else:
                stack[height, 0], stack[height, 1] = a, middle
                stack[height + 1, 0], stack[height + 1, 1] = middle, b
                height += 2
    return top + math.log(total) if total > 0 else -math.inf


@njit(cache=True, nogil=True)
def _difference_alone(x: float, p: Floats) -> float:
    """Return the log density of A - t D where A is alone: a normal one, times the chance that D fits."""
    low = _range(DIFFERENCE, x, p)[0]
    s2, d2, t = p[SA] * p[SA], p[SD] * p[SD], p[T]
    variance = s2 + t * t * d2
    mean = p[ZA] - t * p[ZD]
    of_d = p[ZD] - t * d2 / variance * (x - mean)
    s = p[SA] * p[SD] / math.sqrt(variance)
    return _log_normal(x, mean, math.sqrt(variance)) + log_upper((low - of_d) / s) + math.log(s)


@njit(cache=True, nogil=True)
def first_guess(kind: int, p: Floats) -> Floats:
    """Return a likely peak and scale of what is integrated over, float64 (2,)."""
    guess = np.empty(2)
    guess[0], guess[1] = max(1.0, p[ZD]), p[SD]
    if kind >= DENOMINATOR:
        guess[0], guess[1] = max(1.0, p[ZA] + p[ZB]), p[SA]
    return guess


@njit(cache=True, nogil=True)
def log_density(kind: int, x: float, p: Floats, guess: Floats) -> float:
    """Return the log of a posterior density at one point, up to a constant of the block.

    Parameters
    ----------
    kind : int
        One of the kinds of this module.
    x : float
    p : float64 (10,)
        The block.
    guess : float64 (2,)
        Likely peak and scale of D; updated, so that neighbouring points start well.
    """
    if kind == TOTAL:
        ends = (max(1.0, x / p[K]) - p[ZD]) / p[SD], (x / p[C] - p[ZD]) / p[SD]
        value, low, high = _sum_factors(x, p)
        return value + log_interval(low, high) + log_interval(ends[0], ends[1]) + math.log(p[SD])
    if kind == DIFFERENCE and p[ALONE] != 0.0:
        return _difference_alone(x, p)
    return _integral(kind, x, p, guess)


@njit(cache=True, nogil=True)
def bounds(kind: int, p: Floats) -> tuple[float, float]:
    """Return the range of a kind."""
    if kind == AVERAGE:
        return p[C], p[K]
    if kind == AVERAGE_OF_A:
        return 0.0, p[K]
    if kind == PART:
        return 0.0, math.inf
    if kind == TOTAL:
        return p[C], math.inf
    if kind >= DENOMINATOR:
        return 1.0, math.inf
    return -math.inf, math.inf


@njit(cache=True, nogil=True)
def kinks(kind: int, p: Floats) -> tuple[float, float]:
    """Return where a density has a kink, NaN for none."""
    if kind == AVERAGE_OF_A:
        return p[C], math.nan
    if kind == PART:
        return p[C], p[K]
    if kind == TOTAL:
        return p[K], math.nan
    if kind == DIFFERENCE:
        return p[C] - p[T], p[K] - p[T]
    return math.nan, math.nan


def block(
    a: tuple[float, float],
    b: tuple[float, float] | None,
    d: tuple[float, float],
    least: float,
    most: float,
    t: float = 0.0,
) -> Floats:
    """Return the array of a block.

    Parameters
    ----------
    a, b, d : (float, float)
        Location and standard deviation, above 0; None for no B.
    least, most : float
        c and k.
    t : float
        For the kind DIFFERENCE.
    """
    alone = b is None
    return np.array([*a, *(b or (0.0, 1.0)), *d, least, most, t, float(alone)])
