"""Clamped errors of discrete Gaussian noise: one table of tails per budget, or a corrected integral.

With ``P(k)`` proportional to ``exp(-rho k**2)`` and ``T(m) = P(Z >= m)``

    bias(N) = sum of T(m) over m > N,       mse(N) = V / 2 + sum of (2 m - 1) T(m) over 1 <= m <= N,

sums of positive terms. Derivatives in rho follow from ``d P(k) / d rho = (V - k**2) P(k)``: the same sums
with the weights ``k**2`` and ``k**4``. A common factor ``exp(-rho) / Z`` (Z the normaliser) is taken out, so
that slopes keep their digits where ``exp(-rho)`` underflows.

Where sigma is large the table would be long. There the sum over the integers equals an integral, up to
``exp(-2 pi**2 sigma**2)`` by Poisson summation, except for the kink of ``max(0, N + z)`` at the integer ``z =
-N``. There the Euler-Maclaurin formula gives the difference as a series in derivatives of the density. The
derivative of each in ``sigma**2`` is half of the one two orders higher (the density solves the heat
equation), so that slopes need no further work.

Axes: ``v`` distinct counts, ``k`` table entries.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.special import erfcx, ndtr, zeta

from opendas.arrays import Floats

WIDE_RHO = 1 / 2048
"""Up to here, where sigma is at least 32, the corrected integral is used: its error is below 1e-12."""

_TERMS = 10
EULER = tuple(float((-1) ** (i + 1) * 2 * zeta(2 * i) / (2 * np.pi) ** (2 * i)) for i in range(1, _TERMS + 1))
"""``B(2 i) / (2 i)!`` for i = 1, 2, ...: the coefficients of Euler and Maclaurin."""

_FAR = 38.6  # in sigma: beyond it a density is no double


def moments(b: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
    """Bias, variance and mean squared error; arguments of one shape, checked by the caller."""
    bias, mse = np.empty(b.shape), np.empty(b.shape)
    wide = b <= WIDE_RHO
    if wide.any():
        bias[wide], mse[wide] = _wide_moments(b[wide], n[wide])
    for rho in np.unique(b[~wide]):
        here = b == rho
        below, above, second, factor = _moment_table(float(rho), _reach(rho, _FAR))
        place = np.minimum(n[here], len(below) - 1).astype(np.int64)
        scale = np.exp(-rho) / factor
        bias[here] = np.where(n[here] > place, 0.0, scale * above[place])
        mse[here] = scale * (second + below[place])
    return bias, mse - bias * bias, mse


def _reach(rho: float, sigmas: float) -> int:
    return 3 + int(sigmas / np.sqrt(2 * rho))


@njit(cache=True, nogil=True)
def _moment_table(rho: float, reach: int) -> tuple[Floats, Floats, float, float]:
    """Tables over N = 0 .. reach, all over ``exp(-rho) / normaliser``, and the normaliser.

    First the sums below N of ``(2 m - 1) T(m)``, then those above N of ``T(m)``, then V / 2.
    """
    tail = np.zeros(reach + 2)  # tail[m] = P(Z >= m)
    second = 0.0
    for k in range(reach + 1, 0, -1):
        weight = np.exp(-rho * (k * k - 1.0))
        tail[k - 1] = tail[k] + weight  # shifted by one: P(Z > k - 1)
        second += k * k * weight
    above = np.zeros(reach + 1)
    total = 0.0
    for m in range(reach, -1, -1):
        total += tail[m]
        above[m] = total
    below = np.zeros(reach + 1)
    for m in range(1, reach + 1):
        below[m] = below[m - 1] + (2 * m - 1) * tail[m - 1]
    return below, above, second, 1 + 2 * np.exp(-rho) * tail[0]


@njit(cache=True, nogil=True)
def slope_table(rho: float, reach: int) -> tuple[Floats, Floats, float]:
    """Minus slope and curvature for N = 0 .. reach, over ``exp(-rho) / normaliser``, and the normaliser."""
    tails = np.zeros((3, reach + 2))  # of the weights 1, k**2, k**4
    second, fourth, sixth = 0.0, 0.0, 0.0
    for k in range(reach + 1, 0, -1):
        weight = np.exp(-rho * (k * k - 1.0))
        square = float(k) * k
        tails[0, k - 1] = tails[0, k] + weight
        tails[1, k - 1] = tails[1, k] + square * weight
        tails[2, k - 1] = tails[2, k] + square * square * weight
        second += square * weight
        fourth += square * square * weight
        sixth += square * square * square * weight
    normaliser = 1 + 2 * np.exp(-rho) * tails[0, 0]
    factor = np.exp(-rho) / normaliser
    variance = 2 * factor * second
    variance_slope = variance * variance - 2 * factor * fourth
    first, bend = np.zeros(reach + 1), np.zeros(reach + 1)
    m0, m2, m4 = second, fourth, sixth  # E[f], E[k**2 f], E[k**4 f] for the clamped square f
    for m in range(reach + 1):
        if m > 0:
            m0 += (2 * m - 1) * tails[0, m - 1]
            m2 += (2 * m - 1) * tails[1, m - 1]
            m4 += (2 * m - 1) * tails[2, m - 1]
        first[m] = m2 - variance * m0
        bend[m] = variance_slope * m0 - variance * (first[m] + m2) + m4
    return first, bend, normaliser


def _density_derivatives(sigma2: Floats, n: Floats, order: int) -> list[Floats]:
    """Return the Gaussian density of variance `sigma2` at n, and its derivatives up to an order."""
    near = np.minimum(n, 39.0 * np.sqrt(sigma2))
    density = np.where(n > near, 0.0, np.exp(-0.5 * near * near / sigma2) / np.sqrt(2 * np.pi * sigma2))
    found = [density, -near / sigma2 * density]
    for k in range(1, order):
        found.append(-(near * found[k] + k * found[k - 1]) / sigma2)
    return found


def _correction(n: Floats, p: list[Floats], shift: int) -> Floats:
    """Difference of sum and integral of the clamped square, with derivatives taken `shift` orders higher."""
    total = np.zeros_like(n)
    for i in range(_TERMS, 0, -1):
        odd = 2 * i - 1
        term = 2 * n * odd * p[odd - 1 + shift]
        if i > 1:
            term = term + odd * (odd - 1) * p[odd - 2 + shift]
        total += EULER[i - 1] * term
    return total


def _wide_moments(b: Floats, n: Floats) -> tuple[Floats, Floats]:
    sigma2 = 1 / (2 * b)
    sigma = np.sqrt(sigma2)
    p = _density_derivatives(sigma2, n, 2 * _TERMS)
    near = np.minimum(n / sigma, 39.0)
    mills = np.sqrt(np.pi / 2) * erfcx(near / np.sqrt(2))
    bias = sigma2 * p[0] * (1 - near * mills)
    mse = sigma2 * (ndtr(near) - near * (bias / sigma)) + _correction(n, p, 0)
    for i in range(_TERMS, 0, -1):
        bias = bias - EULER[i - 1] * (2 * i - 1) * p[2 * i - 2]
    return bias, mse
