"""The (epsilon, delta) curve of many independent privacy losses, from below and from above.

With ``S`` the sum of the losses under ``P``, the curve is
``delta(epsilon) = E max(0, 1 - exp(epsilon - S))``. ``S`` is a sum over lattices of many spacings. Each loss
is spread on one common grid so that the mean of ``exp(-loss)`` stays: that can only raise the curve, and a
second bound says by how little. The grid laws are convolved by the fast Fourier transform after a tilt
``exp(t * loss)`` that moves the part of the law that matters for the delta asked to the middle, so that even
deltas of 1e-40 come with full relative accuracy. What is left out or rounded on the way is bounded and added.
Proofs: ``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.grid import GRID_POINTS, TiltedGrid
from opendas.privacy.loss import IntegerNoise, LossLaw, loss_law
from opendas.sampling.laws import DiscreteGaussian

__all__ = ["Bounds", "ComposedLoss"]

# Noise left out of one answer. Deltas below _SMALLEST_DELTA would drown in it.
_MISSING = 1e-60
_SMALLEST_DELTA = Fraction(1, 10**45)
_BISECTIONS = 60
# A rough width of the law in standard deviations, and how many grid steps a tilt must leave alone.
_EXTENT = 20.0
_RESOLUTION = 2.0
# Neighbouring deltas share one grid: its tilt need not be the best, only near it.
_TILTS_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number that is known to lie between two doubles.

    Parameters
    ----------
    lower, upper : float
    """

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower


class ComposedLoss:
    """Sum of independent privacy losses.

    Parameters
    ----------
    parts : iterable of (LossLaw, int)
        Laws, and how many independent losses have each.
    points : int
        Points of the grid, a power of two. More points bring the bounds closer together.

    Raises
    ------
    PrivacyError
        If a count is not positive.
    """

    def __init__(self, parts: Iterable[tuple[LossLaw, int]], points: int = GRID_POINTS) -> None:
        listed = list(parts)
        if any(count < 1 for _, count in listed):
            raise PrivacyError("a number of independent losses is positive.")
        self.parts: tuple[tuple[LossLaw, int], ...] = tuple(_joined(law, count) for law, count in listed)
        self.points = points
        self.missing = sum(count * law.missing for law, count in self.parts)
        self._grids: dict[int, TiltedGrid] = {}

    @classmethod
    def of(cls, changes: Mapping[tuple[IntegerNoise, int], int], points: int = GRID_POINTS) -> ComposedLoss:
        """Compose the losses of answers with independent noise.

        Parameters
        ----------
        changes : mapping of (noise, shift) to int
            How many answers with this noise differ by this integer, up to its sign.
        points : int

        Examples
        --------
        >>> from opendas.sampling.laws import DiscreteGaussian
        >>> loss = ComposedLoss.of({(DiscreteGaussian(Fraction(1, 2)), 1): 1})
        >>> round(loss.epsilon("1e-10").upper, 3)
        8.999
        """
        merged: dict[tuple[IntegerNoise, int], int] = {}
        for (noise, shift), count in changes.items():
            if shift and count:
                merged[noise, abs(shift)] = merged.get((noise, abs(shift)), 0) + count
        order = sorted(merged, key=lambda key: (key[0].name, _parameter(key[0]), key[1]))
        return cls(
            ((loss_law(noise, shift, _MISSING), merged[noise, shift]) for noise, shift in order), points
        )

    @property
    def largest(self) -> float:
        """Largest value that the sum can take, in nats, up to rounding; noise left out apart."""
        return sum(count * law.largest for law, count in self.parts)

    @property
    def least(self) -> float:
        """Least value that the sum can take, as :attr:`largest`."""
        return sum(count * law.start for law, count in self.parts)

    def log_moment(self, tilt: float) -> float:
        """Return ``ln E exp(tilt * S)``: ``tilt`` times the Renyi divergence of order ``1 + tilt``."""
        return sum(count * _log_moment(law, tilt) for law, count in self.parts)

    def epsilon(self, delta: Fraction | int | str) -> Bounds:
        """Bound the least epsilon whose delta is at most the one given.

        Parameters
        ----------
        delta : Fraction, int or str, in [1e-45, 1)

        Returns
        -------
        Bounds
            ``upper`` is a valid epsilon. ``lower`` is none: at any epsilon below it delta is larger.

        Raises
        ------
        ConfigError
            If delta is a float or out of range.
        """
        value = _checked_delta(delta)
        if not self.parts:
            return Bounds(0.0, 0.0)
        moments, tilt = self.epsilon_by_moments(value)
        # No loss exceeds `largest`, so there delta is what was left out.
        highest = min(moments * (1.0 + 1e-6) + 1e-9, max(0.0, self.largest) * (1.0 + 1e-12))
        grid = self._grid(tilt, highest)
        if grid.delta(0.0).upper + self.missing <= value:
            return Bounds(0.0, 0.0)
        upper = _bisect(lambda e: grid.delta(e).upper + self.missing <= value, 0.0, highest)[1]
        return Bounds(_largest_below(lambda e: grid.delta(e).lower > value, upper), upper)

    def delta(self, epsilon: Fraction | int | str) -> Bounds:
        """Bound delta at an epsilon, which may be negative.

        Raises
        ------
        ConfigError
            If epsilon is a float or no number.
        """
        return self.delta_at(float(parse_fraction(epsilon, "epsilon")))

    def delta_at(self, epsilon: float) -> Bounds:
        """Bound delta at an epsilon given as a double."""
        if epsilon < 0.0:
            # Exchanging P and Q leaves the law of the loss as it is, so this is the same test read backwards.
            there = self.delta_at(-epsilon)
            offset, factor = -math.expm1(epsilon), math.exp(epsilon)
            return Bounds(
                max(0.0, (offset + factor * there.lower) * (1.0 - 1e-14)),
                min(1.0, (offset + factor * there.upper) * (1.0 + 1e-14)),
            )
        if not self.parts:
            return Bounds(0.0, 0.0)
        tilt = self._best_tilt(epsilon)
        found = self._grid(tilt, epsilon).delta(epsilon)
        return Bounds(max(0.0, found.lower), min(1.0, found.upper + self.missing))

    def epsilon_by_moments(self, delta: float) -> tuple[float, float]:
        """Return an epsilon by the optimised Renyi conversion of the exact moments, and its tilt.

        The conversion is that of :func:`~opendas.privacy.zcdp.epsilon_cks`, with the moments of the actual
        noise in place of the bound by rho. Not rounded up; a start and a comparison.
        """
        allowed = math.log(1.0 / max(delta - self.missing, 0.5 * delta))

        def epsilon(log_tilt: float) -> float:
            t = math.exp(log_tilt)
            return (self.log_moment(t) + allowed - math.log1p(t)) / t - math.log1p(1.0 / t)

        log_tilt = _minimum(epsilon, *self._log_tilts)
        return max(0.0, epsilon(log_tilt)), math.exp(log_tilt)

    def _best_tilt(self, epsilon: float) -> float:
        def exponent(log_tilt: float) -> float:
            t = math.exp(log_tilt)
            return self.log_moment(t) - t * epsilon + t * math.log(t) - (1.0 + t) * math.log1p(t)

        return math.exp(_minimum(exponent, *self._log_tilts))

    @cached_property
    def _log_tilts(self) -> tuple[float, float]:
        """Range of useful tilts: a tilt that changes weights within a grid step resolves nothing."""
        variance = sum(count * law.variance for law, count in self.parts)
        losses = sum(count for _, count in self.parts)
        extent = max(1e-9, min(self.largest - self.least, _EXTENT * math.sqrt(variance)))
        largest = self.points / (_RESOLUTION * math.sqrt(losses) * extent)
        return math.log(1e-6), math.log(max(1.0, largest))

    def _grid(self, tilt: float, epsilon: float) -> TiltedGrid:
        step = round(_TILTS_PER_DOUBLING * math.log2(tilt))
        found = self._grids.get(step)
        if found is None or not found.covers(epsilon):
            found = TiltedGrid(self.parts, 2.0 ** (step / _TILTS_PER_DOUBLING), self.points, epsilon)
            self._grids[step] = found
        return found


def _joined(law: LossLaw, count: int) -> tuple[LossLaw, int]:
    joined = law.times(count)
    return (law, count) if joined is None else (joined, 1)


def _parameter(noise: IntegerNoise) -> Fraction:
    return noise.sigma2 if isinstance(noise, DiscreteGaussian) else noise.scale


def _log_moment(law: LossLaw, tilt: float) -> float:
    exponent = tilt * law.values
    with np.errstate(divide="ignore"):
        exponent += np.log(law.mass)
    top = float(exponent.max())
    return top + math.log(float(np.exp(exponent - top).sum()))


def _checked_delta(delta: Fraction | int | str) -> float:
    exact = parse_fraction(delta, "delta")
    if not 0 < exact < 1:
        raise ConfigError(
            f'delta is {format_fraction(exact)}; it must lie strictly between 0 and 1, for instance "1e-10".'
        )
    if exact < _SMALLEST_DELTA:
        raise ConfigError("delta is below 1e-45, where the exact curve is not computed; use the conversions.")
    value = float(exact)
    return math.nextafter(value, 0.0) if Fraction(value) > exact else value


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Narrow ``low < high`` where `holds` is false at low and true at high."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if middle in (low, high) or high - low <= 1e-12 * high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _largest_below(holds: Callable[[float], bool], high: float) -> float:
    """Find a number as close below `high` as can be where `holds` is true; 0 if none is found."""
    width = 1e-9 * (1.0 + high)
    while width < high:
        if holds(high - width):
            return _bisect(lambda x: not holds(x), high - width, high)[0]
        width *= 2.0
    return 0.0


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function with one minimum is smallest, roughly: the answer steers, it proves nothing."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    left, right = function(inner), function(outer)
    while high - low > 1e-3:
        if left <= right:
            high, outer, right = outer, inner, left
            inner = high - ratio * (high - low)
            left = function(inner)
        else:
            low, inner, left = inner, outer, right
            outer = low + ratio * (high - low)
            right = function(outer)
    return (low + high) / 2.0
