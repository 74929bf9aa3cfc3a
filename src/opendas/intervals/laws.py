"""The law of a weighted sum of noise draws, that is of an estimate's error.

A least-squares estimate is the true count plus a known weighted sum of the draws behind the measurements. A
sum of many draws is normal to more digits than matter. Where one or a few draws carry most of the variance
the sum keeps their shape: steps, and for the Laplace law heavier tails. Then the law is computed exactly.

Axes: ``t`` arguments of a characteristic function, ``a`` atoms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtri

from opendas.arrays import Floats, Ints
from opendas.errors import ConfigError
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

NoiseLaw = DiscreteGaussian | DiscreteLaplace

EXACT = "exact"
NORMAL = "normal"
ENUMERATED = "enumerated"
CHARACTERISTIC = "characteristic function"

_TAIL = 1e-14
"""Probability beyond which an atom is left out."""

_MOST_ATOMS = 1 << 20
"""Sums with more atoms than this are not enumerated."""

_NEGLIGIBLE = 1e-9
"""Part of the variance that is rounding error."""

_SMOOTHED = 1e-3
"""Where too many atoms have no normal part beside them, one with this part of the spread is added."""

_STEPS_MATTER = 1e-3
"""A characteristic function this far from zero at the frequency of a draw's steps leaves steps in the sum."""

_TAILS_MATTER = 1e-2
"""Excess kurtosis from which tails are not taken as normal: coverage changes by some 1e-4 at 99 per cent."""

_MOST_FREQUENCIES = 1 << 20


@dataclass(frozen=True, slots=True)
class HalfWidth:
    """Half the width of an interval around an estimate."""

    value: float  # in counts
    # How it was found: :data:`EXACT` (no noise), :data:`NORMAL`, :data:`ENUMERATED` or
    # :data:`CHARACTERISTIC`.
    law: str


@dataclass(frozen=True, slots=True)
class Draws:
    """Independent draws of one law that enter a sum with one weight."""

    law: NoiseLaw
    weight: float  # > 0: the law is symmetric: only the size of a weight counts
    number: int = 1

    @property
    def variance(self) -> float:
        """Variance of their weighted sum."""
        return self.number * self.weight**2 * self.law.variance


@dataclass(frozen=True, eq=True)
class NoiseSum:
    """The law of ``sum of weight * draw + normal rest``, symmetric around zero."""

    draws: tuple[Draws, ...]  # the draws that are examined one by one
    rest: float = 0.0  # >= 0: variance of all others together, taken as normal

    @cached_property
    def variance(self) -> float:
        """Variance of the sum."""
        return math.fsum([self.rest, *(draws.variance for draws in self.draws)])

    @cached_property
    def excess(self) -> float:
        """Excess kurtosis: 0 for the normal law, 3 for one Laplace draw."""
        if self.variance <= 0:
            return 0.0
        fourth = math.fsum(d.number * d.weight**4 * fourth_cumulant(d.law) for d in self.draws)
        return fourth / self.variance**2

    @cached_property
    def steps(self) -> float:
        """How much of a draw's steps is left in the sum: 0 for none, 1 where all draws are on one lattice."""
        if not self.draws:
            return 0.0
        frequencies = 2 * math.pi / np.array([draws.weight for draws in self.draws])
        return float(np.abs(self.characteristic(frequencies)).max())

    @property
    def is_normal(self) -> bool:
        """Whether the normal law has the same tails and no visible steps."""
        return abs(self.excess) < _TAILS_MATTER and self.steps < _STEPS_MATTER

    def characteristic(self, t: Floats) -> Floats:
        """Return the characteristic function, real because the law is symmetric, float64 (t,)."""
        found = np.exp(-0.5 * self.rest * t * t)
        for draws in self.draws:
            found = found * characteristic(draws.law, draws.weight * t) ** draws.number
        return np.asarray(found, dtype=np.float64)

    def half_width(self, confidence: float) -> HalfWidth:
        """Return the least half-width that covers the sum with a probability of at least `confidence`.

        `confidence`: in (0, 1).
        """
        confidence_level(confidence)
        if self.variance <= 0:
            return HalfWidth(0.0, EXACT)
        if self.is_normal:
            return HalfWidth(float(ndtri(0.5 + 0.5 * confidence)) * math.sqrt(self.variance), NORMAL)
        return _half_width(self, float(confidence))

    def coverage(self, half_width: float) -> float:
        """Return the probability that the sum is at most `half_width` away from zero."""
        if self.variance <= 0:
            return 1.0
        atoms = self._atoms()
        if atoms is not None:
            sizes, cumulated = atoms
            place = int(np.searchsorted(sizes, half_width + _NEGLIGIBLE * math.sqrt(self.variance), "right"))
            return float(cumulated[place - 1]) if place else 0.0
        return self._smooth()._inverted()(half_width)

    def _atoms(self) -> tuple[Floats, Floats] | None:
        """Return sizes of the sum and their cumulated probabilities; None where it is not a few atoms."""
        if self.rest > _NEGLIGIBLE * self.variance:
            return None
        laws = [_lattice(draws) for draws in self.draws]
        if any(law is None for law in laws):
            return None
        found = [law for law in laws if law is not None]
        if math.prod(len(law) for law in found) > _MOST_ATOMS:
            return None
        atoms, chances = np.zeros(1), np.ones(1)
        for draws, law in zip(self.draws, found, strict=True):
            places = draws.weight * (np.arange(len(law)) - len(law) // 2)
            atoms = np.add.outer(atoms, places).ravel()
            chances = np.multiply.outer(chances, law).ravel()
        sizes = np.abs(atoms)
        order = np.argsort(sizes, kind="stable")
        sizes, chances = sizes[order], chances[order]
        # Sums that differ by rounding errors are one atom.
        last = np.append(np.diff(sizes) > _NEGLIGIBLE * math.sqrt(self.variance), True)
        return sizes[last], np.cumsum(chances)[last]

    def _smooth(self) -> NoiseSum:
        """Return the law with a normal part that makes it continuous, where it has none."""
        least = _SMOOTHED**2 * self.variance
        return self if self.rest >= least else NoiseSum(self.draws, least)

    def _inverted(self) -> _Inverted:
        return _Inverted.of(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Inverted:
    """A characteristic function on a grid of frequencies, ready to be inverted.

    Notes
    -----
    Davies (1973), "Numerical inversion of a characteristic function", with half steps: the error is the
    probability beyond one period, which the grid makes negligible, and the tail of the function itself.
    """

    frequencies: Floats
    weights: Floats
    reach: float

    @classmethod
    def of(cls, law: NoiseSum) -> _Inverted:
        spread = math.sqrt(law.variance)
        scales = [d.weight * float(d.law.scale) for d in law.draws if isinstance(d.law, DiscreteLaplace)]
        heavy = max(scales, default=0.0)
        reach = 10.0 * spread + 40.0 * heavy
        step = math.pi / reach
        number = min(int(9.0 / math.sqrt(law.rest) / step) + 16, _MOST_FREQUENCIES)
        half: Floats = np.arange(number, dtype=np.float64) + 0.5
        weights = 2.0 / math.pi * law.characteristic(half * step) / half
        used = np.flatnonzero(np.abs(weights) > 1e-18)
        stop = int(used[-1]) + 1 if len(used) else 1
        return cls(half[:stop] * step, weights[:stop], reach)

    def __call__(self, half_width: float) -> float:
        if half_width >= self.reach:
            return 1.0
        return min(1.0, max(0.0, float(np.sin(self.frequencies * half_width) @ self.weights)))


def confidence_level(confidence: float | Fraction) -> float:
    """Check the level of an interval and return it."""
    if not 0 < confidence < 1:
        raise ConfigError(
            f"the level of an interval must lie between 0 and 1, for instance 0.90; found {confidence}."
        )
    return float(confidence)


def exact_level(level: str | float | Fraction) -> Fraction:
    """Return the level of an interval as an exact number.

    Raises
    ------
    ConfigError
        If it is not a number strictly between 0 and 1.
    """
    try:
        found = Fraction(str(level))
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"the level of an interval must be a number such as 0.90; found {level!r}."
        ) from error
    confidence_level(found)
    return found


@lru_cache(maxsize=1 << 14)
def _half_width(law: NoiseSum, confidence: float) -> HalfWidth:
    atoms = law._atoms()
    if atoms is not None:
        sizes, cumulated = atoms
        place = int(np.searchsorted(cumulated, confidence - 1e-12))
        return HalfWidth(float(sizes[min(place, len(sizes) - 1)]), ENUMERATED)
    smooth = law._smooth()
    inverted = smooth._inverted()
    low, high = 0.0, inverted.reach
    for _ in range(60):
        middle = 0.5 * (low + high)
        if inverted(middle) >= confidence:
            high = middle
        else:
            low = middle
    # A smoothed atom on the border counts by half: three standard deviations of the smoothing take it in.
    added = 0.0 if smooth is law else 3.0 * _SMOOTHED * math.sqrt(law.variance)
    return HalfWidth(high + added, CHARACTERISTIC)


def characteristic(law: NoiseLaw, t: Floats) -> Floats:
    """Return the characteristic function of one draw, float64 (t,).

    Notes
    -----
    Discrete Laplace: ``(1 - q)**2 / (1 - 2 q cos t + q**2)`` with ``q = exp(-1 / scale)``. Discrete Gaussian:
    the normal one repeated with period ``2 pi`` (Poisson summation), or for a narrow law its few terms.
    """
    if isinstance(law, DiscreteLaplace):
        q = math.exp(-float(1 / law.scale))
        return np.asarray((1 - q) ** 2 / ((1 - q) ** 2 + 4 * q * np.sin(0.5 * t) ** 2))
    sigma2 = float(law.sigma2)
    if sigma2 < 1.0:
        chances = probabilities(law)
        middle = len(chances) // 2
        found = np.full_like(t, chances[middle])
        for k in range(1, middle + 1):
            found += 2 * chances[middle + k] * np.cos(k * t)
        return found
    near = t - 2 * math.pi * np.round(t / (2 * math.pi))
    images = [np.exp(-0.5 * sigma2 * (near + 2 * math.pi * k) ** 2) for k in (-1, 0, 1)]
    return np.asarray(sum(images) / (1 + 2 * math.exp(-2 * math.pi**2 * sigma2)))


@lru_cache(maxsize=256)
def probabilities(law: NoiseLaw) -> Floats:
    """Return the probabilities of ``-k ... k`` with all that matters inside, float64 (2 k + 1,)."""
    spread = math.sqrt(law.variance)
    reach = 36.0 * float(law.scale) if isinstance(law, DiscreteLaplace) else 8.5 * spread
    k = np.arange(-math.ceil(reach) - 1, math.ceil(reach) + 2, dtype=np.float64)
    if isinstance(law, DiscreteLaplace):
        weights = np.exp(-np.abs(k) / float(law.scale))
    else:
        weights = np.exp(-k * k / (2 * float(law.sigma2)))
    found = np.asarray(weights / weights.sum())
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1024)
def fourth_cumulant(law: NoiseLaw) -> float:
    """Return the fourth cumulant of one draw: 0 for the normal law."""
    if isinstance(law, DiscreteLaplace):
        q = math.exp(-float(1 / law.scale))
        return 2 * q * (1 + 10 * q + q * q) / (1 - q) ** 4 - 3 * law.variance**2
    if law.sigma2 >= 4:
        return 0.0
    chances = probabilities(law)
    k = np.arange(len(chances)) - len(chances) // 2
    return float(chances @ k.astype(np.float64) ** 4) - 3 * law.variance**2


@lru_cache(maxsize=1024)
def _lattice(draws: Draws) -> Floats | None:
    """Return the probabilities of the sum of some draws before weighting; None where it is too wide."""
    one = probabilities(draws.law)
    length = (len(one) - 1) * draws.number + 1
    if length > _MOST_ATOMS:
        return None
    found = one
    if draws.number > 1:
        found = np.maximum(
            np.fft.irfft(np.fft.rfft(one, 2 * length) ** draws.number, 2 * length)[:length], 0.0
        )
    middle = len(found) // 2
    # The smallest symmetric part outside which nothing matters.
    beyond = np.cumsum(found[:middle])
    cut = int(np.searchsorted(beyond, _TAIL))
    return np.asarray(found[cut : len(found) - cut])


def noise_sum(
    weights: Sequence[Floats],
    laws: Sequence[NoiseLaw],
    variance: float,
    *,
    most: int = 24,
    numbers: Sequence[Ints] | None = None,
) -> NoiseSum:
    """Make the law of an estimate's error from the weights of some of its draws.

    - `weights` (k,): weights of the draws of each measured query group that are known.
    - `variance`: variance of the whole error. What the draws leave of it is a normal rest.
    - `most`: distinct weights that are kept; the smallest join the rest.
    - `numbers` (k,): how many draws have each weight; by default one.
    """
    found: list[Draws] = []
    each = [np.ones(len(w), dtype=np.int64) for w in weights] if numbers is None else numbers
    alone = variance - math.fsum(
        float((w * n) @ w) * law.variance for w, n, law in zip(weights, each, laws, strict=True)
    )
    # With a normal part beside the draws a digit of a weight is none of a probability; without one, steps
    # must stay where they are.
    digits = 12 if alone < 1e-6 * variance else 5
    for values, draws, law in zip(weights, each, laws, strict=True):
        size = np.abs(values)
        kept_rows = size * size * law.variance > 1e-6 * variance
        kinds, which = np.unique(np.round(size[kept_rows], digits), return_inverse=True)
        number = np.bincount(which.ravel(), draws[kept_rows], len(kinds))
        found += [Draws(law, float(kind), int(n)) for kind, n in zip(kinds, number, strict=True)]
    found.sort(key=lambda draws: -draws.variance / draws.number)
    kept = tuple(found[:most])
    rest = variance - math.fsum(draws.variance for draws in kept)
    return NoiseSum(kept, 0.0 if rest < _NEGLIGIBLE * variance else rest)
