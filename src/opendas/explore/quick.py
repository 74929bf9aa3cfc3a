"""What a slider asks for many times: margins, variances and conversions, in microseconds.

Margins are the exact ones of :mod:`opendas.sampling.laws`: a double decides where it is far enough
from the border to be sure, and the exact computation where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from opendas.phsafe.margins import margin_of_sum
from opendas.phsafe.sensitivity import Answers, Sensitivity, noise_for
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

__all__ = ["CONFIDENCE", "epsilon_quick", "least_budget", "margin", "margin_of_total", "variance"]

Law = DiscreteGaussian | DiscreteLaplace

CONFIDENCE: Final = Fraction(9, 10)
"""The confidence of the margins that ``opendas plan`` shows."""

_NORMAL: Final = 1.6448536269514722
_SUMMED: Final = 10_000.0
"""Variance parameter up to which probabilities are added up one by one."""

_DOUBT: Final = 1e-9
"""A probability this close to 0.9 is decided exactly. Errors of the sums are below 1e-13, of the series below
1e-10: its next term is at most ``(7 / 2880) max|x^3 - 3 x| phi(x) / sigma^4 < 0.0014 / sigma^4``."""


@lru_cache(maxsize=65536)
def margin(law: Law) -> int:
    """Return the smallest ``m`` with ``P(|X| <= m) >= 0.9``, as :meth:`DiscreteGaussian.margin` does.

    Parameters
    ----------
    law : DiscreteGaussian or DiscreteLaplace

    Examples
    --------
    >>> margin(DiscreteGaussian(Fraction(10))) == DiscreteGaussian(Fraction(10)).margin(CONFIDENCE)
    True
    """
    if isinstance(law, DiscreteLaplace):
        return _laplace(law)
    sigma2 = float(law.sigma2)
    if not 1e-3 < sigma2 < 1e14:
        return law.margin(CONFIDENCE)
    return _decided(law, _summed(sigma2) if sigma2 < _SUMMED else _series(sigma2))


def _decided(law: DiscreteGaussian, inside: Callable[[int], float]) -> int:
    """Search from the normal quantile for the first m whose probability is at least 0.9."""
    wanted = float(CONFIDENCE)
    m = max(0, round(_NORMAL * math.sqrt(float(law.sigma2)) - 0.5))
    while m > 0 and inside(m - 1) >= wanted:
        m -= 1
    while inside(m) < wanted:
        m += 1
    if abs(inside(m) - wanted) < _DOUBT or (m > 0 and abs(inside(m - 1) - wanted) < _DOUBT):
        return law.margin(CONFIDENCE)
    return m


def _summed(sigma2: float) -> Callable[[int], float]:
    """Return ``P(|X| <= m)`` from the sum of all probabilities that a double can see."""
    weights = np.exp(-(np.arange(int(9 * math.sqrt(sigma2)) + 9, dtype=np.float64) ** 2) / (2 * sigma2))
    reached = 2 * np.cumsum(weights) - weights[0]
    return lambda m: float(reached[min(m, len(reached) - 1)] / reached[-1])


def _series(sigma2: float) -> Callable[[int], float]:
    """Return ``P(|X| <= m)`` by the midpoint rule and its first correction."""
    sigma = math.sqrt(sigma2)

    def inside(m: int) -> float:
        x = (m + 0.5) / sigma
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return math.erf(x / math.sqrt(2)) + x * density / (12 * sigma2)

    return inside


def _laplace(law: DiscreteLaplace) -> int:
    """Solve ``2 q^(m+1) / (1 + q) <= 0.1`` with ``q = exp(-1 / scale)``."""
    scale = float(law.scale)
    if not 1e-2 < scale < 1e12:
        return law.margin(CONFIDENCE)
    least = -scale * math.log(0.05 * (1 + math.exp(-1 / scale))) - 1
    if abs(least - round(least)) < max(1e-9 * scale, 1e-9):
        return law.margin(CONFIDENCE)
    return max(0, math.ceil(least))


@lru_cache(maxsize=65536)
def variance(law: Law) -> float:
    """Return the variance of a law in squared counts, to about twelve digits; 0.0 below 1e-300."""
    if isinstance(law, DiscreteGaussian):
        sigma2 = float(law.sigma2)
        if sigma2 >= 8:
            return law.variance
        if sigma2 < 1e-3:
            return law.variance
        k = np.arange(1, int(9 * math.sqrt(sigma2)) + 30, dtype=np.float64)
        weights = np.exp(-(k**2) / (2 * sigma2))
        return float(2 * (k**2 * weights).sum() / (1 + 2 * weights.sum()))
    scale = float(law.scale)
    if scale < 1e-2:
        return law.variance
    q = math.exp(-1 / scale)
    return 2 * q / math.expm1(-1 / scale) ** 2


@lru_cache(maxsize=65536)
def epsilon_quick(rho: float, delta: float, formula: str = "cks") -> float:
    """Return the epsilon of a rho in doubles, for pictures and tables of two decimals.

    Parameters
    ----------
    rho : float, >= 0
    delta : float, in (0, 1)
    formula : {"cks", "bun-steinke"}

    Returns
    -------
    float
        :func:`opendas.privacy.zcdp.epsilon_cks` or ``epsilon_bun_steinke`` to about ten digits, not rounded
        up.

    Notes
    -----
    As there: with ``t = alpha - 1`` and ``L = ln(1/delta)``, the root of ``rho t^2 + ln(1 + t) - L``.
    """
    if rho == 0.0:
        return 0.0
    log_term = -math.log(delta)
    if log_term == 0.0:  # a delta that no double tells from 1
        return rho if formula == "bun-steinke" else 0.0
    if formula == "bun-steinke":
        return rho + 2 * math.sqrt(rho * log_term)
    low, high = 0.0, math.sqrt(log_term / rho)
    for _ in range(200):
        t = (low + high) / 2
        if t in (low, high):
            break
        if rho * t * t + math.log1p(t) < log_term:
            low = t
        else:
            high = t
    value = rho * (1 + high) - math.log1p(1 / high) + (log_term - math.log1p(high)) / high
    return max(0.0, value)


@lru_cache(maxsize=65536)
def margin_of_total(law: Law, summed: int) -> int:
    """Return the 90 % margin of a sum of independent answers with the same noise, exactly.

    Parameters
    ----------
    law : DiscreteGaussian or DiscreteLaplace
    summed : int, >= 1

    Notes
    -----
    A sum of discrete Gaussians is not one, but for ``sigma2 >= 8`` its probabilities differ from those of the
    discrete Gaussian with the summed parameter by less than one part in 1e30 (Kairouz, Liu and Steinke 2021,
    Theorem 9), which the margin of doubt of :func:`margin` covers.
    """
    if summed == 1:
        return margin(law)
    if isinstance(law, DiscreteGaussian) and law.sigma2 >= 8:
        wide = DiscreteGaussian(law.sigma2 * summed)
        return margin(wide) if _is_clear(wide) else margin_of_sum([law] * summed, CONFIDENCE)
    return margin_of_sum([law] * summed, CONFIDENCE)


def _is_clear(law: DiscreteGaussian) -> bool:
    """Return whether the margin of a law was decided far from the border."""
    sigma2 = float(law.sigma2)
    if sigma2 >= 1e14:
        return False
    inside = _summed(sigma2) if sigma2 < _SUMMED else _series(sigma2)
    m = margin(law)
    near = (inside(m), inside(m - 1) if m else 0.0)
    return all(abs(value - float(CONFIDENCE)) >= _DOUBT for value in near)


@lru_cache(maxsize=65536)
def least_budget(
    target: int, answers: Answers, sensitivity: Sensitivity, mechanism: Mechanism, digits: int = 8
) -> Fraction:
    """Return the least budget whose margin meets a target, as :func:`opendas.phsafe.margins.least_budget`.

    Parameters
    ----------
    target : int, >= 1
    answers : Answers
    sensitivity : Sensitivity
    mechanism : Mechanism
    digits : int
        The budget is a multiple of ``10**-digits``.
    """
    unit = Fraction(1, 10**digits)

    def enough(count: int) -> bool:
        return margin(noise_for(answers, count * unit, mechanism, sensitivity)) <= target

    if mechanism is Mechanism.DISCRETE_GAUSSIAN:
        width = answers.l2_squared(sensitivity, Neighbours.UNBOUNDED)
        guess = _NORMAL**2 * width / (2 * (target + 0.5) ** 2)
    else:
        guess = 2.3 * answers.l1(sensitivity, Neighbours.UNBOUNDED) / (target + 0.5)
    low = high = max(1, int(guess / float(unit)))
    step = max(1, low >> 8)
    while not enough(high):
        high, step = high + step, 2 * step
    step = max(1, low >> 8)
    while low > 0 and enough(low):
        low, step = max(0, low - step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high * unit
