"""The normal distribution cut to the numbers that are not negative: mean and quantiles, far in the tails too.

With ``a = -z / s``, ``Q`` the upper tail of the standard normal and ``h(a) = phi(a) / Q(a)`` its hazard, the
mean is ``z + s h(a)``. Written that way it is lost from about ``a = 8`` on: ``1 - Phi(a)`` has no digits
left, and further out the two terms cancel. Here tails are scaled (``erfcx``), and ``h(a) - a`` is the
continued fraction ``1/(a + 2/(a + 3/(a + ...)))`` of Laplace, which has nothing to cancel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, log_ndtr, ndtri_exp

from opendas.arrays import Floats
from opendas.errors import ConfigError

Z95 = 1.6448536269514722
"""95 % quantile of the standard normal: half a 90 % interval, in standard deviations."""

_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)
_FRACTION_FROM = 3.0
"""From here on the continued fraction is used; 200 terms leave an error below 1e-16 of it."""
_TERMS = 200
_NEWTON_STEPS = 60


def excess_hazard(a: npt.ArrayLike) -> Floats:
    """Return ``phi(a) / Q(a) - a``: the mean, in standard deviations, of what exceeds `a`.

    Returns: about ``-a`` for very negative `a`, ``1 / a`` for large ones; relative error below 1e-14.

    Notes
    -----
    The continued fraction of Mills' ratio: Laplace (1805); NIST DLMF 7.9.

    Examples
    --------
    >>> float(excess_hazard(0.0))
    0.7978845608028654
    """
    a = np.asarray(a, dtype=np.float64)
    tail = np.maximum(a, _FRACTION_FROM)
    fraction = tail.copy()
    for term in range(_TERMS, 1, -1):
        fraction = tail + term / fraction
    with np.errstate(over="ignore"):
        direct = _ROOT_TWO_OVER_PI / erfcx(np.minimum(a, _FRACTION_FROM) * _ROOT_HALF) - a
    return np.asarray(np.where(a >= _FRACTION_FROM, 1 / fraction, direct))


def _checked(z: npt.ArrayLike, variance: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return location and standard deviation as arrays of one shape."""
    location, squared = np.broadcast_arrays(
        np.asarray(z, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    )
    if not (np.all(np.isfinite(location)) and np.all(squared >= 0) and np.all(np.isfinite(squared))):
        raise ConfigError("A truncated normal needs finite locations, and variances of zero or more.")
    return location, np.sqrt(squared)


def truncated_mean(z: npt.ArrayLike, variance: npt.ArrayLike) -> Floats:
    """Return the mean of Normal(z, variance) given that it is not negative.

    - `variance`: in squared counts; 0 means exact: the mean is then ``max(z, 0)``.
    - Returns: above 0 where the variance is.

    Examples
    --------
    >>> float(truncated_mean(-8.0, 1.0).round(6))
    0.121368
    """
    z, s = _checked(z, variance)
    exact = s == 0
    a = -z / np.where(exact, 1.0, s)
    return np.asarray(np.where(exact, np.maximum(z, 0.0), s * excess_hazard(a)))


def _log_scaled_tail(x: Floats) -> Any:
    """Return ``log(Q(x)) + x**2 / 2`` for ``x >= 0``, without underflow."""
    return np.log(0.5 * erfcx(x * _ROOT_HALF))


def _tail_quantile(a: Floats, p: float) -> Floats:
    """Return x with ``Q(a + x) = (1 - p) Q(a)``, for ``a >= 1``, by Newton's method on the logarithm.

    ``-log Q`` is convex, so that the first step from 0 lands at or beyond the root and the following ones
    descend to it.
    """
    wanted = -math.log1p(-p)
    base = _log_scaled_tail(a)
    x = wanted / (a + excess_hazard(a))
    for _ in range(_NEWTON_STEPS):
        value = a * x + x * x / 2 - (_log_scaled_tail(a + x) - base) - wanted
        step = value / (a + x + excess_hazard(a + x))
        x = np.maximum(x - step, 0.0)
        if np.all(np.abs(step) <= 1e-15 * x):
            break
    return x


def truncated_quantile(z: npt.ArrayLike, variance: npt.ArrayLike, p: float) -> Floats:
    """Return a quantile of Normal(z, variance) given that it is not negative.

    - `z`, `variance`: as in :func:`truncated_mean`.
    - `p`, 0 < p < 1.
    - Returns: the y with ``P(Y > y | Y >= 0) = 1 - p``.

    Examples
    --------
    >>> float(truncated_quantile(0.0, 1.0, 0.5).round(6))
    0.67449
    """
    if not 0 < p < 1:
        raise ConfigError(f"A quantile is asked for at a level between 0 and 1; found {p}.")
    z, s = _checked(z, variance)
    exact = s == 0
    a = -z / np.where(exact, 1.0, s)
    tail = _tail_quantile(np.maximum(a, 1.0), p)
    body = -a - ndtri_exp(math.log1p(-p) + log_ndtr(np.minimum(-a, 1e9)))
    x = np.where(a >= 1, tail, np.maximum(body, 0.0))
    return np.asarray(np.where(exact, np.maximum(z, 0.0), s * x))


def _mills(x: Floats) -> Floats:
    """Return ``Q(x) / phi(x)`` for ``x >= 0``."""
    return np.asarray(erfcx(x * _ROOT_HALF) / _ROOT_TWO_OVER_PI)


def interval_mean(z: npt.ArrayLike, s: float, low: npt.ArrayLike, high: npt.ArrayLike) -> Floats:
    """Return the mean of Normal(z, s**2) given that it lies between two numbers.

    - `s`, > 0.
    - `low`, `high`: ``low < high``, finite.
    - Returns: between `low` and `high`; absolute error about 1e-15 times the distance to `z`.

    Examples
    --------
    >>> float(interval_mean(0.0, 1.0, -1.0, 1.0))
    0.0
    """
    z, low, high = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (z, low, high)))
    a, b = (low - z) / s, (high - z) / s
    mirrored = b < 0
    near, far = np.where(mirrored, -b, a), np.where(mirrored, -a, b)
    width = far - near
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Both ends on one side of the center: scaled by the density at the nearer one.
        drop = -width * (far + near) / 2
        u, v = np.maximum(near, 0), np.maximum(far, 0)
        tail = -np.expm1(drop) / (_mills(u) - np.exp(drop) * _mills(v)) - near
        inside = erf(far * _ROOT_HALF) - erf(near * _ROOT_HALF)
        body = _ROOT_TWO_OVER_PI * (np.exp(-near * near / 2) - np.exp(-far * far / 2)) / inside - near
        offset = np.where(near > 0, tail, body)
        # A narrow interval: the density is a straight line.
        flat = width * np.maximum(np.abs(near), np.maximum(np.abs(far), 1)) < 1e-4
        offset = np.where(flat, width / 2 - (near + far) / 2 * width * width / 12, offset)
    offset = np.clip(offset, 0, width) * s
    return np.asarray(np.where(mirrored, high - offset, low + offset))
