"""The curve of a release whose neighbours differ in several ways: the worst of them, at every delta.

Which answers differ, and with what noise, depends on the pair of neighbours. Each *change* has its own exact
curve; the curve of the release is their largest, at each delta by itself. A change can be worst at one
delta and not at another, so all of them are looked at: roughly first, and more finely where it matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.composed import Bounds, ComposedLoss
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.grid import GRID_POINTS
from opendas.privacy.loss import IntegerNoise
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

__all__ = ["ChangedAnswers", "Spare", "WorstLoss"]

ChangedAnswers = Mapping[tuple[IntegerNoise, int], int]
"""(noise, difference) -> number of answers with this noise that differ by this integer."""

# A first look at every change costs an eighth of a full one.
_ROUGH_POINTS = GRID_POINTS >> 3
_FACTOR_DIGITS = 6
_SECANTS = 30
_RETREATS = 12


@dataclass(frozen=True, slots=True)
class Spare:
    """How much less noise would do.

    Parameters
    ----------
    factor : Fraction
        By how much the budget may be multiplied: ``1 / sigma2`` of every answer with discrete Gaussian noise,
        ``1 / scale`` with discrete Laplace noise. Rounded down to six digits.
    epsilon : Bounds
        Of the release with that noise, at the delta asked.
    """

    factor: Fraction
    epsilon: Bounds

    @property
    def saved(self) -> Fraction:
        """Part of every noise parameter that could go: of ``sigma2``, or of the scale of Laplace noise.

        Negative if the target needs more noise than there is.
        """
        return 1 - 1 / self.factor


class WorstLoss:
    """Largest of the exact curves of several changes.

    Parameters
    ----------
    changes : iterable of ChangedAnswers
        Every way in which neighbours can differ. Equal ones count once.
    points : int
        Points of the finest grid, a power of two.

    Examples
    --------
    >>> noise = DiscreteGaussian(Fraction(1, 2))
    >>> round(WorstLoss([{(noise, 1): 1}]).epsilon("1e-10").upper, 3)
    8.999
    """

    def __init__(self, changes: Iterable[ChangedAnswers], points: int = GRID_POINTS) -> None:
        distinct = {frozenset((key, n) for key, n in change.items() if n and key[1]) for change in changes}
        ordered = sorted(distinct, key=lambda c: (-_strength(dict(c)), sorted(map(_order, c))))
        self.changes: tuple[ChangedAnswers, ...] = tuple(dict(sorted(c, key=_order)) for c in ordered)
        self.points = points
        self._losses: dict[tuple[int, int], ComposedLoss] = {}
        self._epsilon = lru_cache(maxsize=256)(self._find_epsilon)

    def loss(self, change: int, points: int | None = None) -> ComposedLoss:
        """Return the composed loss of one change."""
        key = (change, points or self.points)
        if key not in self._losses:
            self._losses[key] = ComposedLoss.of(self.changes[change], key[1])
        return self._losses[key]

    def epsilon(self, delta: Fraction | int | str) -> Bounds:
        """Bound the least epsilon valid for every change at a delta; as :meth:`ComposedLoss.epsilon`."""
        return self._epsilon(parse_fraction(delta, "delta"))

    def _find_epsilon(self, delta: Fraction) -> Bounds:
        return self._largest(lambda loss: loss.epsilon(delta))

    def delta(self, epsilon: Fraction | int | str) -> Bounds:
        """Bound the largest delta at an epsilon, which may be negative; as :meth:`ComposedLoss.delta`."""
        return self.delta_at(float(parse_fraction(epsilon, "epsilon")))

    def delta_at(self, epsilon: float) -> Bounds:
        """Bound the largest delta at an epsilon given as a double."""
        return self._largest(lambda loss: loss.delta_at(epsilon))

    def scaled(self, factor: Fraction, points: int | None = None) -> WorstLoss:
        """Return the same release with its budget multiplied: less noise for a factor above one."""
        if factor <= 0:
            raise PrivacyError("a budget is multiplied by a positive factor.")
        return WorstLoss(
            ({(_less(noise, factor), d): n for (noise, d), n in change.items()} for change in self.changes),
            points or self.points,
        )

    def spare(self, epsilon: Fraction | int | str, delta: Fraction | int | str) -> Spare:
        """Find the largest factor on the budget that still meets a pair (epsilon, delta).

        Parameters
        ----------
        epsilon : Fraction, int or str, > 0
        delta : Fraction, int or str, in [1e-45, 1)

        Returns
        -------
        Spare
            ``factor`` below one means that the release does not meet the pair, and needs more noise.

        Raises
        ------
        ConfigError
            If epsilon is not positive, or nothing changes between neighbours.
        """
        target = parse_fraction(epsilon, "epsilon")
        if target <= 0:
            raise ConfigError(f"epsilon is {format_fraction(target)}; a target must be positive.")
        if not any(self.changes):
            raise ConfigError("no answer differs between neighbours: any noise meets any target.")
        return self._meeting(target, self._steered(float(target), delta), delta)

    def _steered(self, target: float, delta: Fraction | int | str) -> float:
        """Find the factor for the change that is worst as things are, by secants; it proves nothing."""
        worst = max(
            self.changes, key=lambda change: ComposedLoss.of(change, _ROUGH_POINTS).epsilon(delta).upper
        )
        alone = WorstLoss([worst], min(self.points, GRID_POINTS >> 2))

        def log_epsilon(log_factor: float) -> float:
            factor = Fraction(math.exp(log_factor)).limit_denominator(10**12)
            return math.log(max(1e-300, alone.scaled(factor).epsilon(delta).upper))

        aim, x = math.log(target), 0.0
        y, slope = log_epsilon(x), 0.5
        for _ in range(_SECANTS):
            step = max(-3.0, min(3.0, (aim - y) / slope))
            if abs(step) < 1e-7:
                break
            found = log_epsilon(x + step)
            slope = max(0.05, min(2.0, (found - y) / step))
            x, y = x + step, found
        return math.exp(x)

    def _meeting(self, target: Fraction, start: float, delta: Fraction | int | str) -> Spare:
        """Return the largest rounded factor at or a little below a start that meets the target."""
        below = 0.0
        for _ in range(_RETREATS):
            factor = _rounded_down(start * (1.0 - below))
            found = self.scaled(factor).epsilon(delta)
            if Fraction(found.upper) <= target:
                return Spare(factor, found)
            below = max(1e-6, 4.0 * below)
        raise ConfigError(
            f"no amount of noise was found that meets epsilon {format_fraction(target)} at this delta."
        )

    def _largest(self, measure: Callable[[ComposedLoss], Bounds]) -> Bounds:
        if len(self.changes) < 2:
            return measure(self.loss(0)) if self.changes else measure(ComposedLoss(()))
        rough = [measure(self.loss(k, min(_ROUGH_POINTS, self.points))) for k in range(len(self.changes))]
        lower = max(bounds.lower for bounds in rough)
        upper = 0.0
        # From the one that looks worst down; those that cannot be worst any more keep their rough bound.
        for k in sorted(range(len(rough)), key=lambda k: -rough[k].upper):
            if rough[k].upper <= upper or rough[k].upper < lower:
                break
            fine = measure(self.loss(k))
            lower, upper = max(lower, fine.lower), max(upper, min(fine.upper, rough[k].upper))
        return Bounds(min(lower, upper), upper)


def _rounded_down(value: float) -> Fraction:
    """Round a factor down to six significant digits."""
    exact = Fraction(value)
    rounded = Fraction(f"{value:.{_FACTOR_DIGITS - 1}e}")
    unit = Fraction(10) ** (math.floor(math.log10(value)) - _FACTOR_DIGITS + 1)
    return rounded if rounded <= exact else rounded - unit


def _less(noise: IntegerNoise, factor: Fraction) -> IntegerNoise:
    if isinstance(noise, DiscreteGaussian):
        return DiscreteGaussian(noise.sigma2 / factor)
    return DiscreteLaplace(noise.scale / factor)


def _strength(change: Mapping[tuple[IntegerNoise, int], int]) -> float:
    """Return a rough size of a change, to look at large ones first."""
    return sum(
        n * (d * d / (2.0 * float(noise.sigma2)) if isinstance(noise, DiscreteGaussian) else d / noise.scale)
        for (noise, d), n in change.items()
    )


def _order(item: tuple[tuple[IntegerNoise, int], int]) -> tuple[str, Fraction, int, int]:
    (noise, difference), count = item
    parameter = noise.sigma2 if isinstance(noise, DiscreteGaussian) else noise.scale
    return noise.name, parameter, difference, count
