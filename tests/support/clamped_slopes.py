"""Slope and curvature of clamped errors, count by count: the slow twin of the kernels of a level."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from opendas.allocation.clamped_error import _FAR, _ROOT_TWO_PI, _broadcast
from opendas.allocation.integer_gaussian import (
    _TERMS,
    WIDE_RHO,
    _correction,
    _density_derivatives,
    _reach,
    slope_table,
)
from opendas.allocation.noise_kinds import NoiseKind, noise_kind
from opendas.arrays import Floats
from opendas.privacy.relations import Mechanism

_SEEN = 12.0  # in sigma: beyond it no sixth moment sees a tail


def clamped_slope(
    mechanism: str | Mechanism | NoiseKind, budget: npt.ArrayLike, counts: npt.ArrayLike
) -> Floats:
    """Derivative of the mean squared error in the budget; negative. Arguments as :func:`clamped_moments`."""
    kind = noise_kind(mechanism)
    b, n = _broadcast(budget, counts)
    if kind is NoiseKind.DISCRETE_GAUSSIAN:
        return _integer_slopes(b, n)[0]
    slope, _ = _scaled_slope(kind, b, n)
    return -np.exp(_log_scale(kind, b)) * slope


def clamped_curvature(
    mechanism: str | Mechanism | NoiseKind, budget: npt.ArrayLike, counts: npt.ArrayLike
) -> Floats:
    """Second derivative of the mean squared error in the budget. Arguments as :func:`clamped_moments`."""
    kind = noise_kind(mechanism)
    b, n = _broadcast(budget, counts)
    if kind is NoiseKind.DISCRETE_GAUSSIAN:
        return _integer_slopes(b, n)[1]
    _, curvature = _scaled_slope(kind, b, n)
    return np.exp(_log_scale(kind, b)) * curvature / b


def _log_scale(kind: NoiseKind, b: Floats) -> Floats:
    """Logarithm of what slopes are given over, by budget; not for the discrete Gaussian."""
    if kind is NoiseKind.LAPLACE:
        scale = -3 * np.log(b)
    elif kind is NoiseKind.GAUSSIAN:
        scale = -np.log(2.0) - 2 * np.log(b)
    else:  # q / ((1 - q)**2 tanh(b / 2)), with q = exp(-b): half the variance over the hyperbolic tangent
        scale = -b - 2 * np.log(-np.expm1(-b)) - np.log(np.tanh(0.5 * b))
    return np.asarray(scale, dtype=np.float64)


def _scaled_slope(kind: NoiseKind, b: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Slope and curvature of the mean squared error without underflow; not for the discrete Gaussian.

    Parameters
    ----------
    kind : NoiseKind
    b, n : float64 arrays of one shape
        Budgets and counts, checked.

    Returns
    -------
    slope : float64 array
        Minus the slope over ``exp(_log_scale)``: between two constants, the upper one twice the lower.
    curvature : float64 array
        Second derivative times the budget, over the same.
    """
    if kind is NoiseKind.LAPLACE:
        x = np.minimum(b * n, 800.0)  # beyond it the exponential is 0, and no power of x may be infinite
        fade = np.exp(-x)
        slope = 4 - ((x + 2) * x + 2) * fade
        return slope, 12 - (((x + 3) * x + 6) * x + 6) * fade
    if kind is NoiseKind.GAUSSIAN:
        x = np.minimum(n * np.sqrt(2 * b), _FAR)
        density = np.exp(-0.5 * x * x) / _ROOT_TWO_PI
        slope = ndtr(x) - x * density
        return slope, 2 * slope - 0.5 * x**3 * density
    t = np.tanh(0.5 * b)
    fade = np.exp(-b * n)
    near = np.where(fade > 0, n, 0.0)
    nt = near * t
    slope = 2 - fade * (1 + 2 * nt + 2 * nt * nt + nt * t * t)
    bend = 2 * nt * nt + 3 * nt * t * t + t * t * (1.5 * t * t - 0.5)
    return slope, b * ((3 - t * t) / (2 * t) * slope - near * fade * bend)


def _integer_slopes(b: Floats, n: Floats) -> tuple[Floats, Floats]:
    """First and second derivative of the mean squared error in rho."""
    slope, curvature = np.empty(b.shape), np.empty(b.shape)
    wide = b <= WIDE_RHO
    if wide.any():
        rho = b[wide]
        first, second = _wide_slopes(rho, n[wide])
        slope[wide], curvature[wide] = -first / (4 * rho**2), second / (4 * rho**3)
    for rho in np.unique(b[~wide]):
        here = b == rho
        first, second, factor = slope_table(float(rho), _reach(rho, _SEEN))
        place = np.minimum(n[here], len(first) - 1).astype(np.int64)
        scale = np.exp(-rho) / factor
        slope[here], curvature[here] = -scale * first[place], scale * second[place]
    return slope, curvature


def _wide_slopes(b: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Slope and curvature where rho is at most ``WIDE_RHO``.

    Returns
    -------
    slope : float64 array
        Minus the derivative in rho, over ``sigma**4``.
    curvature : float64 array
        Second derivative times rho, over ``sigma**4``.
    """
    sigma2 = 1 / (2 * b)
    sigma = np.sqrt(sigma2)
    p = _density_derivatives(sigma2, n, 2 * _TERMS + 2)
    near = np.minimum(n / sigma, 39.0)
    density = sigma * p[0]
    bracket = ndtr(near) - near * density
    # d/d rho = -2 sigma**4 d/d sigma**2, and d/d sigma**2 of the density is half its second derivative.
    first = _correction(n, p, 2)
    slope = 2 * bracket + first
    curvature = 4 * bracket - near**3 * density + 2 * first + 0.5 * sigma2 * _correction(n, p, 4)
    return slope, curvature
