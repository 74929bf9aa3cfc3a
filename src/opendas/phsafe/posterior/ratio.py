"""The joint posterior of numerators and denominator: averages, parts, totals.

Two forms of the same model. :class:`Free` is the untruncated normal, where no constraint reaches into the
posterior: closed forms. :class:`Bounded` integrates. :func:`fit_block` chooses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from opendas.arrays import Floats
from opendas.errors import ConfigError, DataError
from opendas.phsafe.posterior import density
from opendas.phsafe.posterior.counts import LEVEL
from opendas.phsafe.posterior.curve import Curve, fit_curve
from opendas.phsafe.posterior.truncated import Z95, interval_mean

__all__ = [
    "FREE_FROM",
    "LEAST_DEVIATION",
    "Block",
    "Bounded",
    "Estimate",
    "Fit",
    "Free",
    "fieller",
    "fit_block",
    "mean_inverse",
]


FREE_FROM = 9.0
"""Distance of the measurement from each constraint, in its standard deviations, from which constraints are
left out: they cut off less than 1e-18."""
FARTHEST = 1e4
"""Distance outside a constraint, in standard deviations, beyond which measurements contradict the model."""
LEAST_DEVIATION = 0.01
"""Standard deviation, in counts, given to an exact number that stands beside noisy ones."""


class Estimate(NamedTuple):
    """Posterior mean and the ends of the 90 % credible interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Block:
    """Numerators and denominator of one region and group, as measured.

    Parameters
    ----------
    counts : tuple of float
        One or two numerators, in persons.
    variances : tuple of float
        In squared persons.
    households : float
        Denominator.
    variance : float
        Of the denominator, in squared households.
    least, most : float
        Bounds of the average: persons per household.
    """

    counts: tuple[float, ...]
    variances: tuple[float, ...]
    households: float
    variance: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if len(self.counts) not in (1, 2) or len(self.variances) != len(self.counts):
            raise ConfigError("A block has one or two numerators, each with a variance.")
        if not 0 < self.least < self.most < math.inf:
            raise ConfigError(f"Averages need bounds 0 < least < most; found {self.least} and {self.most}.")

    @property
    def exact(self) -> bool:
        """Whether nothing in it is noisy."""
        return self.variance == 0 and not any(self.variances)

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviations of the numerators and then of the denominator, none of them 0."""
        return tuple(max(math.sqrt(v), LEAST_DEVIATION) for v in (*self.variances, self.variance))

    @property
    def total(self) -> float:
        """All numerators together."""
        return sum(self.counts)

    def array(self, *, swapped: bool = False) -> Floats:
        """Return the block in the form of :mod:`~opendas.phsafe.posterior.density`."""
        parts = list(zip(self.counts, self.deviations[:-1], strict=True))
        if swapped:
            parts.reverse()
        second = parts[1] if len(parts) == 2 else None
        households = (self.households, self.deviations[-1])
        return density.block(parts[0], second, households, self.least, self.most)

    def total_array(self, t: float = 0.0) -> Floats:
        """Return the block where only the sum of the numerators matters.

        One numerator is enough if neither can come near 0: the sum of two normals is normal.
        """
        households = (self.households, self.deviations[-1])
        if all(z >= FREE_FROM * s for z, s in zip(self.counts, self.deviations, strict=False)):
            one = (self.total, math.hypot(*self.deviations[:-1]))
            return density.block(one, None, households, self.least, self.most, t)
        array = self.array()
        array[density.T] = t
        return array

    def distance(self) -> float:
        """Return the least distance of the measurement from a constraint, in its standard deviations."""
        *parts, d = self.deviations
        numerator = math.hypot(*parts)
        rows = [
            ((self.households - 1) / d),
            (self.total - self.least * self.households) / math.hypot(numerator, self.least * d),
            (self.most * self.households - self.total) / math.hypot(numerator, self.most * d),
        ]
        if len(parts) == 2:
            rows += [count / s for count, s in zip(self.counts, parts, strict=True)]
        return min(rows)


class Fit(Protocol):
    """A fitted block; numerators are numbered from 0, None means all together."""

    @property
    def block(self) -> Block:
        """What was measured."""

    def average(self, part: int | None) -> Estimate:
        """Return a numerator divided by the denominator."""

    def count(self, part: int | None) -> Estimate:
        """Return a numerator."""

    def mean_counts(self) -> tuple[float, ...]:
        """Return the posterior means of the numerators."""

    def mean_households(self) -> float:
        """Return the posterior mean of the denominator."""


def fieller(numerator: float, s: float, denominator: float, d: float, q: float) -> float:
    """Return the quantile of a ratio of independent normals whose denominator is surely positive.

    Parameters
    ----------
    numerator, s, denominator, d : float
        Locations and standard deviations.
    q : float
        Standard normal quantile of the level wanted.

    Notes
    -----
    ``P(A / D <= u) = P(A - u D <= 0)``, solved for u: Fieller (1954).
    """
    root = math.sqrt((numerator * d) ** 2 + (denominator * s) ** 2 - (q * s * d) ** 2)
    return (numerator * denominator + q * root) / (denominator**2 - (q * d) ** 2)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def mean_inverse(z: float, s: float) -> float:
    """Return ``E[1 / D]`` for a normal D that is positive by at least nine standard deviations."""
    x = 8.5 * _NODES
    weights = np.exp(-x * x / 2) * _WEIGHTS
    return float((weights / (z + s * x)).sum() / weights.sum())


@dataclass(frozen=True, slots=True)
class Free:
    """A block that no constraint touches: independent normals."""

    block: Block

    def _numerator(self, part: int | None) -> tuple[float, float]:
        if part is None:
            return self.block.total, math.hypot(*self.block.deviations[:-1])
        return self.block.counts[part], self.block.deviations[part]

    def average(self, part: int | None) -> Estimate:
        """Return a numerator divided by the denominator."""
        z, s = self._numerator(part)
        of_households = (self.block.households, self.block.deviations[-1])
        ends = [fieller(z, s, *of_households, q) for q in (-Z95, Z95)]
        return Estimate(z * mean_inverse(*of_households), *ends)

    def count(self, part: int | None) -> Estimate:
        """Return a numerator."""
        z, s = self._numerator(part)
        return Estimate(z, z - Z95 * s, z + Z95 * s)

    def mean_counts(self) -> tuple[float, ...]:
        """Return the numerators."""
        return self.block.counts

    def mean_households(self) -> float:
        """Return the denominator."""
        return self.block.households


def _estimate(curve: Curve) -> Estimate:
    return Estimate(curve.moments()[0], *(curve.quantile(p) for p in LEVEL))


class Bounded:
    """A block whose posterior the constraints cut.

    Parameters
    ----------
    block : Block
    """

    __slots__ = ("_total", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        # A start well inside; the search finds the peak from anywhere.
        scale = math.hypot(*block.deviations[:-1])
        self._total = fit_curve(
            density.TOTAL, block.total_array(), max(block.total, block.least + 0.1 * scale), scale
        )

    @property
    def total(self) -> Curve:
        """The posterior of all numerators together."""
        return self._total

    def average(self, part: int | None) -> Estimate:
        """Return a numerator divided by the denominator."""
        block = self.block
        households = max(block.households, 1.0)
        numerator = block.total if part is None else block.counts[part]
        middle = (block.least + block.most) / 2 if part is None else block.most / 2
        near = numerator / households
        low = block.least if part is None else 0.0
        near = min(max(near, low + 0.01 * middle), block.most - 0.01 * middle)
        if part is None or len(block.counts) == 1:
            return _estimate(fit_curve(density.AVERAGE, block.total_array(), near, 0.1 * middle))
        array = block.array(swapped=part == 1)
        return _estimate(fit_curve(density.AVERAGE_OF_A, array, near, 0.1 * middle))

    def count(self, part: int | None) -> Estimate:
        """Return a numerator."""
        if part is None or len(self.block.counts) == 1:
            return _estimate(self._total)
        s = self.block.deviations[part]
        near = max(self.block.counts[part], s)
        return _estimate(fit_curve(density.PART, self.block.array(swapped=part == 1), near, s))

    def mean_counts(self) -> tuple[float, ...]:
        """Return the posterior means of the numerators: given their sum, a truncated normal has a formula."""
        total, weights = self._total.nodes, self._total.weights
        if len(self.block.counts) == 1:
            return (float((total * weights).sum()),)
        (za, zb), (sa, sb, _) = self.block.counts, self.block.deviations
        variance = sa * sa + sb * sb
        given = za + sa * sa / variance * (total - za - zb)
        first = float((interval_mean(given, sa * sb / math.sqrt(variance), 0.0, total) * weights).sum())
        return first, float((total * weights).sum()) - first

    def mean_households(self) -> float:
        """Return the posterior mean of the denominator: given the total, it is a truncated normal."""
        block, total = self.block, self._total.nodes
        low, high = np.maximum(1.0, total / block.most), total / block.least
        means = interval_mean(block.households, block.deviations[-1], low, high)
        return float((means * self._total.weights).sum())


def fit_block(block: Block) -> Fit:
    """Fit a block, in closed form where no constraint matters.

    Raises
    ------
    DataError
        If the measurement lies thousands of standard deviations outside what is possible.
    """
    distance = block.distance()
    if distance < -FARTHEST:
        raise DataError(
            f"Measured counts are {-distance:.3g} standard deviations away from any possible average between "
            f"{block.least:g} and {block.most:g}. Check that numerator and denominator are of one run, and "
            "the largest average (--most), which is the number of persons a household was truncated to."
        )
    return Free(block) if distance >= FREE_FROM else Bounded(block)
