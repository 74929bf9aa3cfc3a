"""Densities of averages and of their parts, as integrals over one variable in closed form otherwise.

A block has numerators A and B (persons in two cells), or A alone, and one denominator D (households), each
measured with independent normal noise, and a flat prior on

    A >= 0,  B >= 0,  D >= 1,  c D <= S <= k D,  with S = A + B.

Once D is given, what S adds up to decides about the constraints, so that everything asked for has a density
that is a closed form or one integral over D (over S for the density of D itself). Every integrand is
log-concave: a density of normals, the probability of an interval with ends linear in D, and the factor D of a
ratio. Its peak is searched, its effective range follows, and Gauss-Legendre panels are halved until their
Legendre coefficients have died out.

Who changes a compiled function here deletes the compiled files of :mod:`~opendas.phsafe.posterior.curve` too
(``__pycache__/*.nbi``): they hold a copy of it, and look at their own source only.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

from opendas.arrays import Floats
from opendas.arrays.kernels import inner

# Normal probabilities without underflow in the tails.
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


class Parameters(NamedTuple):
    """What a density of a block depends on."""

    # za, sa, zb, sb, zd, sd: location and standard deviation, above 0, of A, B and D.
    za: float
    sa: float
    zb: float
    sb: float
    zd: float
    sd: float
    # c, k: least and largest average.
    c: float
    k: float
    t: float  # for the kind DIFFERENCE
    alone: bool  # whether there is no B


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


def searches(log_of: Any) -> tuple[Any, Any]:
    """Compile the search for the peak of a log-concave function, and for where it has dropped from it.

    - `log_of`, compiled function: called as ``log_of(kind, x, p, fixed, guess)``. A compiled function that
      takes another one as its argument is not cached; this way it becomes part of its caller.
    - Returns `find_peak`: from a start x, a first step w and the value there to peak, scale and log height on
      [low, high].
    - Returns `find_reach`: from a peak to where the function has dropped by DROP, in the direction of a step.
    """

    @njit(nogil=True)
    def find_peak(
        kind: int,
        p: Parameters,
        fixed: float,
        guess: Floats,
        x: float,
        w: float,
        top: float,
        low: float,
        high: float,
    ) -> tuple[float, float, float]:
        for _ in range(STEPS):
            below, above = max(low, x - w), min(high, x + w)
            left, right = log_of(kind, below, p, fixed, guess), log_of(kind, above, p, fixed, guess)
            if right > top and right >= left:
                x, top, w = above, right, 2 * w
            elif left > top:
                x, top, w = below, left, 2 * w
            elif (
                (top - right <= 1.0 or above == x) and (top - left <= 1.0 or below == x)
            ) or w <= 1e-13 * abs(x):
                break
            else:
                w *= 0.5
        return x, w, top

    @njit(nogil=True)
    def find_reach(
        kind: int,
        p: Parameters,
        fixed: float,
        guess: Floats,
        peak: float,
        top: float,
        step: float,
        low: float,
        high: float,
    ) -> float:
        inside, outside = 0.0, step
        for _ in range(STEPS):
            x = peak + outside
            if x <= low:
                return low
            if x >= high:
                return high
            if top - log_of(kind, x, p, fixed, guess) > DROP:
                break
            inside, outside = outside, 2 * outside
        for _ in range(3):
            middle = 0.5 * (inside + outside)
            if top - log_of(kind, peak + middle, p, fixed, guess) > DROP:
                outside = middle
            else:
                inside = middle
        return peak + outside

    return find_peak, find_reach


@inner
def panel_edges(left: float, peak: float, right: float, first: float, second: float) -> Floats:
    """Return ends of panels, float64 (7,): closer around the peak, and kinks inside; inf where unused."""
    edges = np.full(7, math.inf)
    edges[0], edges[1], edges[2] = left, peak + 0.4 * (left - peak), peak
    edges[3], edges[4] = peak + 0.4 * (right - peak), right
    if left < first < right:
        edges[5] = first
    if left < second < right:
        edges[6] = second
    edges.sort()
    return edges


@inner
def _log_normal(x: float, z: float, s: float) -> float:
    r = (x - z) / s
    return -0.5 * r * r


@inner
def _sum_factors(x: float, p: Parameters) -> tuple[float, float, float]:
    """Return the density of S at x before the constraints with D: log of a normal density, and an interval.

    The interval, in standard deviations, is where A can lie; its normal probability is the other factor.
    """
    if p.alone:
        return _log_normal(x, p.za, p.sa), -math.inf, math.inf
    variance = p.sa * p.sa + p.sb * p.sb
    tau = math.sqrt(variance)
    mean = p.za + p.sa * p.sa / variance * (x - p.za - p.zb)
    s = p.sa * p.sb / tau
    return _log_normal(x, p.za + p.zb, tau), -mean / s, (x - mean) / s


@njit(cache=True, nogil=True)
def _factors(kind: int, x: float, d: float, p: Parameters) -> tuple[float, float, float, float]:
    """Return what is integrated over D as ``exp(log) * P(low < N < high) * times``: these four numbers.

    For the density of D itself, `d` is S and `x` is D.
    """
    times = 1.0
    if kind >= DENOMINATOR:
        value, low, high = _sum_factors(d, p)
        value += _log_normal(x, p.zd, p.sd)
        if kind == DENOMINATOR_BY_TOTAL:
            times = d
    elif kind == AVERAGE:
        value, low, high = _sum_factors(x * d, p)
        value += _log_normal(d, p.zd, p.sd)
        times = d
    elif kind == DIFFERENCE:
        value, low, high = _sum_factors(x + p.t * d, p)
        value += _log_normal(d, p.zd, p.sd)
    else:
        a = x
        if kind == AVERAGE_OF_A:
            a, times = x * d, d
        low = (max(0.0, p.c * d - a) - p.zb) / p.sb
        high = (p.k * d - a - p.zb) / p.sb
        value = _log_normal(d, p.zd, p.sd) + _log_normal(a, p.za, p.sa)
    return value, low, high, times


@njit(cache=True, nogil=True)
def _integrand(kind: int, d: float, p: Parameters, x: float, guess: Floats) -> float:
    """Return the log of what is integrated over D."""
    value, low, high, times = _factors(kind, x, d, p)
    return value + log_interval(low, high) + math.log(times)


_find_peak, _find_reach = searches(_integrand)


@inner
def _scaled(kind: int, x: float, d: float, p: Parameters, top: float) -> float:
    """Return what is integrated, divided by exp(top); without logarithms where that loses no digits."""
    value, low, high, times = _factors(kind, x, d, p)
    probability = interval(low, high)
    if probability > _TINY:
        return math.exp(value - top) * probability * times
    return math.exp(value - top + log_interval(low, high)) * times


@inner
def _range(kind: int, x: float, p: Parameters) -> tuple[float, float]:
    """Return the smallest and the largest D (or S) that x allows."""
    if kind >= DENOMINATOR:
        return p.c * x, p.k * x
    low = 1.0
    if kind == PART:
        low = max(low, x / p.k)
    elif kind == DIFFERENCE:
        if x < 0:
            low = max(low, -x / (p.t - p.c)) if p.t > p.c else math.inf
        elif x > 0:
            low = max(low, x / (p.k - p.t)) if p.t < p.k else math.inf
    return low, math.inf


@inner
def _panel(kind: int, x: float, p: Parameters, top: float, a: float, b: float) -> tuple[float, float]:
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
def _integral(kind: int, x: float, p: Parameters, guess: Floats) -> float:
    """Return the log of the integral over D; `guess` holds a likely peak and scale, and is updated."""
    low, high = _range(kind, x, p)
    if not low < high:
        return -math.inf
    d, w = min(max(guess[0], low), high), guess[1]
    top = _integrand(kind, d, p, x, guess)
    if top == -math.inf:
        # The peak of another x can lie outside; somewhat inside the range every integrand is positive.
        d = min(low + w, 0.5 * (low + high))
        top = _integrand(kind, d, p, x, guess)
    d, w, top = _find_peak(kind, p, x, guess, d, w, top, low, high)
    if top == -math.inf:
        return -math.inf
    guess[0], guess[1] = d, w
    left = _find_reach(kind, p, x, guess, d, top, -w, low, high)
    right = _find_reach(kind, p, x, guess, d, top, w, low, high)
    edges = panel_edges(left, d, right, x / p.c if kind == PART else math.nan, math.nan)
    total, panels = 0.0, 0
    stack = np.empty((HALVINGS + 8, 2))
    for first in range(6):
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


@inner
def _difference_alone(x: float, p: Parameters) -> float:
    """Return the log density of A - t D where A is alone: a normal one, times the chance that D fits."""
    low = _range(DIFFERENCE, x, p)[0]
    s2, d2, t = p.sa * p.sa, p.sd * p.sd, p.t
    variance = s2 + t * t * d2
    mean = p.za - t * p.zd
    of_d = p.zd - t * d2 / variance * (x - mean)
    s = p.sa * p.sd / math.sqrt(variance)
    return _log_normal(x, mean, math.sqrt(variance)) + log_upper((low - of_d) / s) + math.log(s)


@njit(cache=True, nogil=True)
def first_guess(kind: int, p: Parameters) -> Floats:
    """Return a likely peak and scale of what is integrated over, float64 (2,)."""
    guess = np.empty(2)
    guess[0], guess[1] = max(1.0, p.zd), p.sd
    if kind >= DENOMINATOR:
        guess[0], guess[1] = max(1.0, p.za + p.zb), p.sa
    return guess


@njit(cache=True, nogil=True)
def log_density(kind: int, x: float, p: Parameters, fixed: float, guess: Floats) -> float:
    """Return the log of a posterior density at one point, up to a constant of the block.

    - `fixed`: not used: the place of what an integrand over D holds fixed.
    - `guess` (2,): likely peak and scale of D; updated, so that neighbouring points start well.
    """
    if kind == TOTAL:
        ends = (max(1.0, x / p.k) - p.zd) / p.sd, (x / p.c - p.zd) / p.sd
        value, low, high = _sum_factors(x, p)
        return value + log_interval(low, high) + log_interval(ends[0], ends[1]) + math.log(p.sd)
    if kind == DIFFERENCE and p.alone:
        return _difference_alone(x, p)
    return _integral(kind, x, p, guess)


@njit(cache=True, nogil=True)
def bounds(kind: int, p: Parameters) -> tuple[float, float]:
    """Return the range of a kind."""
    if kind == AVERAGE:
        return p.c, p.k
    if kind == AVERAGE_OF_A:
        return 0.0, p.k
    if kind == PART:
        return 0.0, math.inf
    if kind == TOTAL:
        return p.c, math.inf
    if kind >= DENOMINATOR:
        return 1.0, math.inf
    return -math.inf, math.inf


@inner
def kinks(kind: int, p: Parameters) -> tuple[float, float]:
    """Return where a density has a kink, NaN for none."""
    if kind == AVERAGE_OF_A:
        return p.c, math.nan
    if kind == PART:
        return p.c, p.k
    if kind == TOTAL:
        return p.k, math.nan
    if kind == DIFFERENCE:
        return p.c - p.t, p.k - p.t
    return math.nan, math.nan
