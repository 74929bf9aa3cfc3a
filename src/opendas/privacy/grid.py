"""A sum of privacy losses on a grid, under a tilt: the numerical heart of the exact curve.

Three steps, each with its bound. *Spread*: a loss between two grid points goes to both, so that its
probability and the mean of ``exp(-loss)`` stay. *Tilt*: probabilities are multiplied by
``exp(tilt * loss)`` and divided by their sum. *Convolve*: by fast Fourier transform on a circle of grid
points that covers all but a negligible part. ``docs/proofs/exact-accounting.md`` proves that the two numbers
returned enclose delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its fft and special load when they are first named

from opendas.arrays import Floats
from opendas.errors import PrivacyError
from opendas.privacy.loss import UNIT, LossLaw

__all__ = ["GRID_POINTS", "DeltaBounds", "TiltedGrid"]

GRID_POINTS = 1 << 18
"""Points of a grid unless a caller says otherwise."""


_HALF_WIDTHS = (10.0, 15.0, 25.0, 60.0, math.inf)
"""Half-widths of the circle to try, in standard deviations of the tilted sum."""

_OUTSIDE = 1e-15
"""A tilted probability outside the circle that needs no wider one."""

_FFT_UNITS = 16.0
"""A transform of 2^k points errs by at most this many unit roundoffs times k, in the Euclidean norm."""

# Rounding of the logarithm of a probability not below 1e-280, and of the exponential that undoes it.
_LOG_UNITS = 1500.0

# Exponentials beyond this, and their squares, would leave the range of doubles.
_LARGEST_EXPONENT = 300.0

# Above what products that were rounded to zero could have added.
_UNDERFLOW = 1e-150

# Beyond this many widths of the spreading error its Gaussian bound is below the smallest double.
_SPREAD_WIDTHS = 40.0


class DeltaBounds(NamedTuple):
    """Lower and upper bound of delta, noise that was left out apart."""

    lower: float
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """One loss on the grid, tilted: ``weight`` at ``index * h``, summing to one."""

    index: npt.NDArray[np.int64]
    weight: Floats
    log_moment: float
    count: int


class TiltedGrid:
    """Law of the sum of independent losses on a grid.

    Parameters
    ----------
    parts : sequence of (LossLaw, int)
    tilt : float, >= 0
    points : int
        A power of two.
    cover : float
        An epsilon that the circle must cover.

    Attributes
    ----------
    step : float
        Distance of neighbouring grid points, in nats.
    splits : int
        Number of losses that were spread.

    Raises
    ------
    PrivacyError
        If `points` is no power of two, or the sum has no spread at all.
    """

    def __init__(self, parts: Sequence[tuple[LossLaw, int]], tilt: float, points: int, cover: float) -> None:
        if points < 16 or points & (points - 1):
            raise PrivacyError("a grid has a power of two of points, at least 16.")
        self.tilt = tilt
        self.splits = sum(count for _, count in parts)
        mean, deviation = _tilted_moments(parts, tilt)
        least = sum(count * law.start for law, count in parts)
        largest = sum(count * law.largest for law, count in parts)
        for width in _HALF_WIDTHS:
            half = width * max(deviation, 1e-9 * max(abs(least), abs(largest)))
            low, high = max(least, mean - half), min(largest, mean + half)
            low, high = min(low, cover), max(high, cover)
            # Room for spreading beyond the ends, and for an epsilon at them.
            margin = 0.01 * (high - low) + 1e-12
            low, high = low - margin, high + margin
            self.step = (high - low) / (points - 4)
            spread = [_spread(law, count, self.step, tilt) for law, count in parts]
            self.first = math.floor(low / self.step)
            self.points = points
            self._outside_low = _outside(spread, self.step, low, below=True)
            self._outside_high = _outside(spread, self.step, high, below=False)
            if self._outside_low + self._outside_high <= _OUTSIDE:
                break
        self.log_moment = sum(one.count * one.log_moment for one in spread)
        self._weight, self._error = _convolve(spread, points, self.first)
        self._values = (self.first + np.arange(points, dtype=np.float64)) * self.step
        reach = sum(count * law.reach for law, count in parts)
        # Rounding of loss values and of grid places, as a shift of the sum.
        self._shift = 32.0 * UNIT * (reach + abs(low) + abs(high))
        self._relative = 1e-11 + 2.0 * sum(
            count * (law.error + (8.0 * tilt * law.reach + _LOG_UNITS) * UNIT) for law, count in parts
        )

    def covers(self, epsilon: float) -> bool:
        """Whether delta can be bounded at this epsilon."""
        return bool(self._values[0] < epsilon < self._values[-1])

    def delta(self, epsilon: float) -> DeltaBounds:
        """Bound ``E max(0, 1 - exp(epsilon - S))``.

        Parameters
        ----------
        epsilon : float
            Covered by the circle, or above it; there the upper bound is small and the lower one zero.
        """
        lower = self._below(epsilon + self._shift) * (1.0 - self._relative)
        upper = self._above(epsilon - self._shift) * (1.0 + self._relative) + _UNDERFLOW
        # A comparison with "not a number" is false, and leaves the trivial bounds.
        return DeltaBounds(lower if lower > 0.0 else 0.0, upper if upper < 1.0 else 1.0)

    def threshold(self, level: float) -> float:
        """Return the loss that is exceeded under ``Q`` with about the chance `level`; untilted grids only."""
        under_q = np.maximum(0.0, self._weight) * np.exp(-np.maximum(-_LARGEST_EXPONENT, self._values))
        under_q = np.cumsum(under_q[::-1])[::-1]
        place = int(np.searchsorted(-under_q, -level))
        return float(self._values[min(max(place, 8), self.points - 9)])

    def mean_posterior(self, prior: float) -> float:
        """Bound the mean of ``prior / (prior + (1 - prior) exp(-S))``; untilted grids only.

        The function is convex in ``exp(-S)``, so that spreading raises its mean.
        """
        shifted = self._values + self._shift
        belief = 1.0 / (1.0 + (1.0 - prior) / prior * np.exp(-np.clip(shifted, -700.0, 700.0)))
        norm = float(np.sqrt(belief @ belief))
        outside = self._outside_low + self._outside_high
        return float(belief @ self._weight) * (1.0 + self._relative) + norm * self._error + outside

    def tail(self, threshold: float) -> float:
        """Bound the probability that ``S`` exceeds a threshold; untilted grids only."""
        width = self.step * math.sqrt(self.splits)
        # Spreading lowers the sum by more than `slack` with a chance below 1e-14.
        slack = width * math.sqrt(math.log(1e14) / 2.0)
        start = int(np.searchsorted(self._values, threshold - slack - self._shift, side="right"))
        mass = float(self._weight[start:].sum()) * (1.0 + self._relative)
        return mass + 1e-14 + math.sqrt(self.points) * self._error + self._outside_high + self._outside_low

    def _scale(self, epsilon: float) -> float:
        """Turn a tilted probability, measured from epsilon, into a probability; infinity if beyond use.

        Where the factor is huge, weights of the sum may have been rounded to zero: then nothing is known.
        """
        exponent = self.log_moment - self.tilt * epsilon
        return math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf

    def _gain(self, epsilon: float) -> tuple[float, float]:
        """Return the tilted delta on the grid and the Euclidean norm of its weights."""
        start = int(np.searchsorted(self._values, epsilon, side="right"))
        excess = self._values[start:] - epsilon
        gain = -np.expm1(-excess) * np.exp(-self.tilt * excess)
        return float(gain @ self._weight[start:]), float(np.sqrt(gain @ gain))

    def _above(self, epsilon: float) -> float:
        scale = self._scale(epsilon)
        if not self.covers(epsilon) or scale == math.inf:
            return scale  # Chernoff's bound
        value, norm = self._gain(epsilon)
        # What lies above the circle gains at most 1, and exp(-tilt * excess) <= 1 of it is tilted mass.
        return scale * (max(0.0, value) + norm * self._error + self._outside_high)

    def _below(self, epsilon: float) -> float:
        scale = self._scale(epsilon)
        if not self.covers(epsilon) or scale == math.inf:
            return 0.0
        value, norm = self._gain(epsilon)
        wrapped = self._outside_low + self._outside_high
        least = value - norm * self._error - wrapped - self._spread_excess(epsilon)
        return scale * least if least > 0.0 else 0.0

    def _spread_excess(self, epsilon: float) -> float:
        """Bound, tilted, by how much spreading may have raised delta at epsilon."""
        width = self.step * math.sqrt(self.splits)
        mean = self.splits * self.step**2 / 8.0
        near = mean + width * math.sqrt(math.log(4.0) / 2.0)
        reach = near + mean + _SPREAD_WIDTHS * width
        if self.tilt * reach > _LARGEST_EXPONENT:
            return math.inf  # a grid far too coarse for this tilt
        start, stop = np.searchsorted(self._values, [epsilon - reach, epsilon + reach])
        offset = self._values[start:stop] - epsilon
        distance = np.maximum(0.0, np.abs(offset) - near)
        most = mean + width * math.sqrt(math.pi / 8.0)
        tail = scipy.special.erfc(math.sqrt(2.0) * np.maximum(0.0, distance - mean) / width)
        excess = np.maximum(0.0, mean - distance) + width * math.sqrt(math.pi / 8.0) * tail
        weights = 2.0 * excess * np.exp(-self.tilt * offset)
        beyond = 2.0 * most * (self._outside_high + self._outside_low * math.exp(self.tilt * reach))
        return (
            float(weights @ self._weight[start:stop])
            + float(np.sqrt(weights @ weights)) * self._error
            + beyond
        )


def _tilted_moments(parts: Sequence[tuple[LossLaw, int]], tilt: float) -> tuple[float, float]:
    mean = variance = 0.0
    for law, count in parts:
        values = law.values
        with np.errstate(divide="ignore"):
            exponent = np.log(law.mass) + tilt * values
        weight = np.exp(exponent - exponent.max())
        weight /= weight.sum()
        centre = float(weight @ values)
        mean += count * centre
        variance += count * float(weight @ (values - centre) ** 2)
    return mean, math.sqrt(variance)


def _spread(law: LossLaw, count: int, step: float, tilt: float) -> _Spread:
    """Put a loss on the grid: each value to its two neighbours, ``exp(-loss)`` kept in the mean."""
    place = law.values / step
    index = np.floor(place)
    up = np.expm1(-(place - index) * step) / math.expm1(-step)
    both = np.concatenate([index, index + 1.0])
    mass = np.concatenate([law.mass * (1.0 - up), law.mass * up])
    with np.errstate(divide="ignore"):
        exponent = np.log(mass) + tilt * (both * step)
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    return _Spread(both.astype(np.int64), weight / total, top + math.log(total), count)


def _outside(spread: Sequence[_Spread], step: float, edge: float, *, below: bool) -> float:
    """Bound the tilted probability below or above an edge, by Chernoff's bound at a few exponents."""
    sign = -1.0 if below else 1.0
    end = sum(one.count * int(one.index.min() if below else one.index.max()) for one in spread)
    if sign * (edge - end * step) > 0.0:
        return 0.0
    variance = 0.0
    for one in spread:
        values = one.index * step
        centre = float(one.weight @ values)
        variance += one.count * float(one.weight @ (values - centre) ** 2)
    unit = math.sqrt(variance) or step

    def exponent(multiple: float) -> float:
        rate = sign * multiple / unit
        return -rate * edge + sum(one.count * _log_moment(one, rate * step) for one in spread)

    # For laws near a Gaussian the distance of the edge is the best multiple; others need a search.
    best = min(0.0, *(exponent(multiple) for multiple in (8.0, 10.0, 12.0)))
    if best > math.log(_OUTSIDE):
        best = min(best, *(exponent(2.0**power) for power in range(-6, 8)))
    return math.exp(best) * (1.0 + 1e-9)


def _log_moment(one: _Spread, rate: float) -> float:
    with np.errstate(divide="ignore"):
        exponent = np.log(one.weight) + rate * one.index
    top = float(exponent.max())
    return top + math.log(float(np.exp(exponent - top).sum()))


def _convolve(spread: Sequence[_Spread], points: int, first: int) -> tuple[Floats, float]:
    """Convolve on the circle; the law from grid point `first` on, and its error in the Euclidean norm."""
    spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
    norms, splits = 0.0, 0
    for one in spread:
        dense = np.bincount(one.index % points, weights=one.weight, minlength=points)
        norms += one.count * float(np.sqrt(dense @ dense))
        splits += one.count
        spectrum *= _power(scipy.fft.rfft(dense), one.count)
    law = scipy.fft.irfft(spectrum, points)
    transform = _FFT_UNITS * UNIT * math.log2(points)
    error = 1.01 * (transform * (norms + 1.0) + 4.0 * splits * UNIT)
    return np.roll(law, -(first % points)), error


def _power(spectrum: npt.NDArray[np.complex128], count: int) -> npt.NDArray[np.complex128]:
    """Raise to a power by multiplications only, whose rounding is known."""
    result = spectrum
    for bit in bin(count)[3:]:
        result = result * result
        if bit == "1":
            result = result * spectrum
    return result
