"""The two integer noise laws: discrete Gaussian (zCDP) and discrete Laplace (pure DP).

Parameters are exact fractions. Probabilities and variances come as doubles for reporting and weighting;
sampling and margins use the integer thresholds of :mod:`opendas.sampling.interval_arithmetic` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats
from opendas.errors import PrivacyError
from opendas.sampling.interval_arithmetic import (
    exp_neg,
    gaussian_tail_floors,
    gaussian_weights,
    laplace_tail_floors,
)

WORD_BITS = 64
"""Bits of the first word that a draw takes."""

MAX_FLOORS = 1 << 21
"""Most thresholds on one side of 0: 16 MB of them, a variance of about 5e10 (Gaussian) or 4e9 (Laplace)."""

# From here on the variance is sigma2 and the normaliser sqrt(2 pi sigma2) to far below one unit of a double:
# by Poisson summation the relative corrections are of order sigma2 * exp(-2 pi**2 sigma2) < 1e-60.
_WIDE = 8
# The smallest positive double is 2**-1074: enough bits that even it keeps a full significand.
_DOUBLE_PRECISION = 1400
# Longest list of thresholds that a margin is searched in: half a minute and some hundred megabytes.
_WIDEST = 1 << 24
# Variance parameter, or squared scale, from which a double may decide a margin, and how near to a tie it is
# not sure: its errors are below 1e-10.
_IN_DOUBLES = 10_000
# Bits beyond those of the smallest probability asked for: those of a double and a margin.
_DIGITS = 72
_SMALLEST = 1080
_DOUBT = 1e-9


class _SymmetricLaw:
    __slots__ = ()

    def margin(self, confidence: Fraction) -> int:
        """Return the smallest ``m`` with ``P(|X| <= m) >= confidence``, decided exactly.

        Parameters
        ----------
        confidence : Fraction, in [0, 1)
            For instance ``Fraction(95, 100)``.

        Returns
        -------
        int
            Half-width, in counts.

        Raises
        ------
        PrivacyError
            If the confidence is not an exact number in [0, 1), or the law is too wide to decide.

        Notes
        -----
        A wide law is decided in doubles where these are sure, at once; else in a number of steps
        proportional to the standard deviation (half a second at a variance of ``10**9``).
        """
        assert isinstance(self, DiscreteGaussian | DiscreteLaplace)
        return _margin(self, _confidence(confidence))

    def tail(self, k: npt.ArrayLike) -> Floats:
        """Return ``P(X > k)``, float64 in the shape of `k`.

        Parameters
        ----------
        k : int, or array of int
            In counts.

        Notes
        -----
        From the integer thresholds, with so many bits that at most the last digit of a double is wrong; 0
        below the smallest double.
        """
        return self._at(k, lambda above, k: above(k))

    def pmf(self, k: npt.ArrayLike) -> Floats:
        """Return ``P(X = k)``, float64 in the shape of `k`, as exact as :meth:`tail`."""
        return self._at(k, lambda above, k: above(k - 1) - above(k))

    def _at(self, k: npt.ArrayLike, value: Callable[[Callable[[int], Fraction], int], Fraction]) -> Floats:
        """Evaluate a function of ``P(X > k)`` at each k."""
        assert isinstance(self, DiscreteGaussian | DiscreteLaplace)
        points = np.asarray(k)
        if points.dtype.kind not in "iu":
            raise PrivacyError(f"k is {points.dtype}; the law lives on the integers.")
        sizes = np.minimum(np.abs(points.astype(np.float64)), 2.0**62)
        near = sizes <= self.support(_SMALLEST)
        most = int(sizes[near].max(initial=0.0)) + 1
        width = math.ceil(math.log2(float(self.parameter) + 2))
        bits = -math.floor(self.log2_weight(most)) + width + _DIGITS
        floors = self.tail_floors(bits)

        def above(k: int) -> Fraction:
            if k < 0:
                return 1 - above(-k - 1)
            return Fraction(floors[k] if k < len(floors) else 0, 1 << bits)

        found = {each: float(value(above, each)) for each in np.unique(points[near]).tolist()}
        far = {each: float(value(_tail_far_out, each)) for each in np.unique(points[~near]).tolist()}
        every = found | far
        return np.array([every[each] for each in points.ravel().tolist()]).reshape(points.shape)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(_SymmetricLaw):
    """The discrete Gaussian, ``P(k)`` proportional to ``exp(-k**2 / (2 sigma2))``.

    Parameters
    ----------
    sigma2 : Fraction, > 0
        Variance parameter, in squared counts. ``1 / (2 sigma2)`` is the zCDP cost per unit of squared
        sensitivity.

    Raises
    ------
    PrivacyError
        If ``sigma2`` is not an exact positive number.

    Notes
    -----
    Canonne, Kamath & Steinke (2020), Definition 1 and Theorem 14.

    Examples
    --------
    >>> DiscreteGaussian(Fraction(10)).variance
    10.0
    >>> DiscreteGaussian(Fraction(10)).margin(Fraction(95, 100))
    6
    """

    sigma2: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma2", _positive("sigma2", self.sigma2))

    @property
    def name(self) -> str:
        """Name written into measurement files."""
        return "discrete-gaussian"

    @property
    def parameter(self) -> Fraction:
        """The parameter that identifies the law: ``sigma2``."""
        return self.sigma2

    @classmethod
    def of_variance(cls, variance: float) -> DiscreteGaussian:
        """Return the law whose :attr:`variance` is given, as plain a fraction as nine digits of it allow.

        Parameters
        ----------
        variance : float, > 0
            In squared counts; the Census Bureau's files state it in single precision.
        """
        if variance >= _WIDE:
            return cls(Fraction(variance).limit_denominator(1 << 20))
        low, high = math.log(variance), math.log(_WIDE)
        while high - low > 1e-14 * max(1.0, abs(low)):
            middle = (low + high) / 2
            if _variance_in_doubles(math.exp(middle)) < variance:
                low = middle
            else:
                high = middle
        return cls(1 / Fraction(math.exp(-high)).limit_denominator(1 << 20))

    @property
    def variance(self) -> float:
        """Variance of the integer law, in squared counts: below ``sigma2``, equal to it when wide.

        Below ``sigma2`` of about 0.0007 it is smaller than the smallest positive double and comes as 0.0.
        """
        return float(self.sigma2) if self.sigma2 >= _WIDE else _narrow_gaussian_variance(self.sigma2)

    def tail_floors(self, bits: int) -> list[int]:
        """Return ``floor(2**bits * P(X > k))`` for ``k = 0, 1, ...`` to the first 0."""
        return gaussian_tail_floors(self.sigma2, bits)

    def tail_length(self, bits: int) -> int:
        """Return an upper bound of ``len(tail_floors(bits))``: ``P(X > k) <= exp(-k**2 / (2 sigma2))``."""
        return 2 + math.isqrt(int(2 * bits * self.sigma2 * Fraction(7, 10)))

    def log2_weight(self, k: int) -> float:
        """Return the logarithm to base 2 of ``P(k) / P(0)``."""
        return -float(Fraction(k * k) / (2 * self.sigma2)) / math.log(2)

    def support(self, bits: int) -> float:
        """Return about where ``P(k) / P(0)`` falls below ``2**-bits``."""
        return math.sqrt(2 * float(self.sigma2) * bits * math.log(2))


@dataclass(frozen=True, slots=True)
class DiscreteLaplace(_SymmetricLaw):
    """The discrete Laplace (two-sided geometric) law, ``P(k)`` proportional to ``exp(-|k| / scale)``.

    Parameters
    ----------
    scale : Fraction, > 0
        Scale in counts: L1 sensitivity over epsilon.

    Raises
    ------
    PrivacyError
        If ``scale`` is not an exact positive number.

    Notes
    -----
    Ghosh, Roughgarden & Sundararajan (2012), the geometric mechanism.

    Examples
    --------
    >>> DiscreteLaplace(Fraction(2)).margin(Fraction(9, 10))
    5
    """

    scale: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _positive("scale", self.scale))

    @property
    def name(self) -> str:
        """Name written into measurement files."""
        return "discrete-laplace"

    @property
    def parameter(self) -> Fraction:
        """The parameter that identifies the law: ``scale``."""
        return self.scale

    @property
    def variance(self) -> float:
        """Variance of the integer law in squared counts: ``2 q / (1 - q)**2``, ``q = exp(-1 / scale)``."""
        return _laplace_variance(self.scale)

    def tail_floors(self, bits: int) -> list[int]:
        """Return ``floor(2**bits * P(X > k))`` for ``k = 0, 1, ...`` to the first 0."""
        return laplace_tail_floors(self.scale, bits)

    def tail_length(self, bits: int) -> int:
        """Return an upper bound of ``len(tail_floors(bits))``: ``P(X > k) <= exp(-k / scale)``."""
        return 2 + int(bits * self.scale * Fraction(7, 10))

    def log2_weight(self, k: int) -> float:
        """Return the logarithm to base 2 of ``P(k) / P(0)``."""
        return -float(Fraction(k) / self.scale) / math.log(2)

    def support(self, bits: int) -> float:
        """Return about where ``P(k) / P(0)`` falls below ``2**-bits``."""
        return float(self.scale) * bits * math.log(2)


Noise = DiscreteGaussian | DiscreteLaplace
"""A symmetric law on the integers that is sampled exactly; hashable, and equal by value."""


def _tail_far_out(k: int) -> Fraction:
    """Return ``P(X > k)`` where it differs from 0 or 1 by less than the smallest double."""
    return Fraction(int(k < 0))


def _positive(field: str, value: Fraction | int) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise PrivacyError(
            f"{field} is a {type(value).__name__}; noise parameters are exact. Give a Fraction or an int."
        )
    if value <= 0:
        raise PrivacyError(
            f"{field} = {value}; expected a positive number: without noise there is no guarantee."
        )
    return Fraction(value)


def _confidence(value: Fraction) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise PrivacyError(f"confidence is a {type(value).__name__}; give a fraction: Fraction(95, 100).")
    if not 0 <= value < 1:
        raise PrivacyError(f"confidence = {value}; expected a number from 0 up to, but not including, 1.")
    return Fraction(value)


@lru_cache(maxsize=16384)
def _margin(law: Noise, confidence: Fraction) -> int:
    found = None
    if isinstance(law, DiscreteGaussian) and _IN_DOUBLES <= law.sigma2 < 10**14:
        found = _gaussian_margin(float(law.sigma2), float(confidence))
    elif isinstance(law, DiscreteLaplace) and _IN_DOUBLES <= law.scale**2 < 10**24:
        found = _laplace_margin(float(law.scale), float(confidence))
    return _decided_margin(law, confidence) if found is None else found


def _gaussian_margin(sigma2: float, confidence: float) -> int | None:
    """Return the margin of a wide law by the midpoint rule and its first correction; None if not sure.

    The next term is at most ``(7 / 2880) max|x^3 - 3 x| phi(x) / sigma^4 < 0.0014 / sigma^4``.
    """
    if not _DOUBT < confidence < 1 - 10 * _DOUBT:
        return None
    sigma = math.sqrt(sigma2)

    def inside(m: int) -> float:
        x = (m + 0.5) / sigma
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return math.erf(x / math.sqrt(2)) + x * density / (12 * sigma2)

    m = round(NormalDist().inv_cdf((1 + confidence) / 2) * sigma - 0.5)
    while m > 0 and inside(m - 1) >= confidence:
        m -= 1
    while inside(m) < confidence:
        m += 1
    if m <= 0:
        return None
    return m if min(abs(inside(m) - confidence), abs(inside(m - 1) - confidence)) > _DOUBT else None


def _laplace_margin(scale: float, confidence: float) -> int | None:
    """Solve ``2 q^(m + 1) / (1 + q) <= 1 - confidence`` with ``q = exp(-1 / scale)``; None if not sure."""
    outside = 1 - confidence
    if not outside > _DOUBT:
        return None
    least = -scale * math.log(outside / 2 * (1 + math.exp(-1 / scale))) - 1
    # outside has lost up to 2**-53 of 1 by rounding, relative to itself more where it is small
    return max(0, math.ceil(least)) if abs(least - round(least)) > 1e-9 * scale / outside else None


def _decided_margin(law: Noise, confidence: Fraction) -> int:
    if law.tail_length(64) > _WIDEST:
        raise PrivacyError(
            f"A {law.name} of variance {law.variance:.3g} is too wide for an exact margin; "
            "the limit is a variance of about 1e14 (discrete-gaussian) or 2e24 (discrete-laplace)."
        )
    # P(|X| <= m) >= c  <=>  S(m) <= (1 - c) / 2. A floor f at some precision decides this except when
    # f < 2**bits (1 - c) / 2 < f + 1; then more bits are taken.
    for bits in (64, 128, 256, 512, 1024, 2048):
        bound = (1 - confidence) / 2 * 2**bits
        floors = law.tail_floors(bits)
        low, high = 0, len(floors) - 1
        if floors[high] + 1 > bound:
            continue
        while low < high:
            middle = (low + high) // 2
            if floors[middle] + 1 <= bound:
                high = middle
            else:
                low = middle + 1
        # All before `low` are undecided or too small a margin; the last of them must be surely too small.
        if low == 0 or floors[low - 1] >= bound:
            return low
    raise PrivacyError(f"The margin at confidence {confidence} could not be decided at 2048 bits.")


@lru_cache(maxsize=1024)
def _narrow_gaussian_variance(sigma2: Fraction) -> float:
    """Return the variance of a discrete Gaussian with ``sigma2 < 8``, by direct sums."""
    weights = list(gaussian_weights(sigma2, _DOUBLE_PRECISION, 1))
    # Weights beyond the list are below 2**-1400 and fall by more than half a step: no double sees them.
    total = (1 << _DOUBLE_PRECISION) + sum(low + high for low, high in weights)
    second = sum(k * k * (low + high) for k, (low, high) in enumerate(weights, start=1))
    return float(Fraction(second, total))


def _variance_in_doubles(sigma2: float) -> float:
    """Return the same to the precision of a double, for ``sigma2`` up to 8, by 40 weights."""
    squares = np.arange(1, 41, dtype=np.float64) ** 2
    weights = np.exp(-squares / (2 * sigma2))
    return float(2 * (squares @ weights) / (1 + 2 * weights.sum()))


@lru_cache(maxsize=1024)
def _laplace_variance(scale: Fraction) -> float:
    low, high = exp_neg(1 / scale, _DOUBLE_PRECISION)
    q = Fraction(low + high, 2 << _DOUBLE_PRECISION)
    return float(2 * q / (1 - q) ** 2)
