"""Logarithms of normal probabilities, compiled, without underflow in the tails."""

from __future__ import annotations

import math

from numba import njit

__all__ = ["interval", "log_interval", "log_upper"]

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
