"""Compute the (epsilon, delta) curve of independent integer answers from the law of their noise.

An answer differs between two neighbours by an integer ``d``; its *privacy loss* is ``ln P(y)/Q(y)`` for ``y``
drawn from ``P``. The library dp-accounting (the extra ``account``) composes the losses of all answers that
differ: with ``S`` their sum, ``delta(epsilon) = E max(0, 1 - exp(epsilon - S))``. This module supplies the
noise laws, a rounding to a grid that can only raise delta, a tilt ``exp(t * loss)`` that keeps deltas of
1e-40 accurate, and the maximum over the ways in which neighbours can differ. Proofs:
``docs/proofs/exact-accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from opendas.arrays import Floats
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError
from opendas.privacy.exact import parse_fraction
from opendas.privacy.zcdp import checked_delta
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
from opendas.sampling.mechanisms import AnyNoise, StatedNoise

ChangedAnswers = Mapping[tuple[AnyNoise, int], int]
"""(noise, difference) -> number of answers with this noise that differ by this integer, either sign."""

GRID_POINTS = 1 << 15
"""Points of the grid of losses; more points give tighter bounds."""

_SMALLEST_DELTA = Fraction(1, 10**45)
_MISSING = 1e-60  # probability of noise omitted from one answer
_LEAST_MASS = 1e-70  # losses of less probability are omitted
_WIDEST_NOISE = 1 << 24  # most noise values listed
_DEVIATIONS = 20.0  # width of the grid in standard deviations of the tilted sum
_WIDEST_LOSS = 1300.0  # nats; beyond, exponentials leave the range of doubles, and only moments give bounds
_TRUNCATION = 1e-15  # tilted probability that the library may move to the ends, per composition
_ROUNDING = 1e-10  # bound of all rounding and truncation, per loss, as tilted probability
_TILTS_PER_DOUBLING = 4  # nearby deltas share one composition, whose tilt need only be nearly optimal


class Bounds(NamedTuple):
    """Lower and upper bounds of a number, as doubles."""

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower


class LossCurve(NamedTuple):
    """Upper bounds of one composed loss along a grid."""

    epsilon: Floats  # (points,): ascending
    delta: Floats  # (points,): upper bound of delta at each epsilon
    # (points,): upper bound of the probability under ``P`` that the loss, rounded to the grid, exceeds
    # epsilon.
    tail: Floats
    slack: float  # rounding lowers the loss by more than this with probability below 1e-14


class _Loss(NamedTuple):
    """Law of the loss of equal answers: ``start + k * step`` nats with probability ``mass[k]``."""

    start: float
    step: float
    mass: Floats
    answers: int

    @property
    def width(self) -> float:
        return self.step * (len(self.mass) - 1)

    def tilted(self, tilt: float) -> tuple[float, float, float]:
        """Return ``ln E exp(tilt (L - start))``, and the tilted mean and variance of ``L - start``."""
        values = self.step * np.arange(len(self.mass))
        exponent = np.log(self.mass) + tilt * values
        weight = np.exp(exponent - exponent.max())
        total = float(weight.sum())
        mean = float(weight @ values) / total
        variance = float(weight @ (values - mean) ** 2) / total
        return float(exponent.max()) + math.log(total), mean, variance


def _loss(noise: AnyNoise, distance: int, answers: int) -> _Loss:
    """Return the law of an answer's loss, which is the same for ``(Q, P)`` and for ``-d``.

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Corollary 17: a discrete Gaussian is sub-Gaussian with its own sigma2.
    """
    if isinstance(noise, StatedNoise):
        raise PrivacyError(
            f"{noise.mechanism} states a rho, and no law of its noise: epsilon follows from rho by a formula."
        )
    if isinstance(noise, DiscreteGaussian):
        # L = (d^2 - 2 d x) / (2 sigma2) for the noise x; P(|x| > reach) <= 2 exp(-reach^2 / (2 sigma2))
        reach = math.ceil(math.sqrt(2.0 * float(noise.sigma2) * math.log(4.0 / _MISSING))) + 1
        if 2 * reach + 1 > _WIDEST_NOISE:
            raise PrivacyError(
                f"noise of variance {float(noise.sigma2):.3g} is too wide to list its values; its privacy "
                "loss is bounded by its rho instead."
            )
        x = np.arange(-reach, reach + 1, dtype=np.float64)
        mass = np.exp(-x * x / (2.0 * float(noise.sigma2)))
        start = float(Fraction(distance * (distance - 2 * reach)) / (2 * noise.sigma2))
        step = float(distance / noise.sigma2)
    else:
        # L = (|x - d| - |x|) / scale: noise outside 0 to d has one of the two extreme losses
        ratio = math.exp(-1.0 / float(noise.scale))
        mass = ratio ** np.arange(distance, -1, -1, dtype=np.float64)
        mass[1:-1] *= -math.expm1(-1.0 / float(noise.scale))
        start, step = float(-distance / noise.scale), float(2 / noise.scale)
    mass /= mass.sum()
    kept = np.flatnonzero(mass > _LEAST_MASS)
    return _Loss(start + step * float(kept[0]), step, mass[kept[0] : kept[-1] + 1], answers)


def _library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as missing:
        raise EnvironmentFailure(
            "the exact account needs the package dp-accounting; pip install 'opendas[account]' brings it."
        ) from missing
    return privacy_loss_distribution


class _TiltedSum:
    """Law of the tilted sum of losses, each rounded to a common grid.

    A loss is split between its two grid neighbours so that the mean of ``exp(-loss)`` is kept.

    Notes
    -----
    Doroshenko et al. (2022), Algorithm 1 (Connect the Dots).
    """

    def __init__(self, losses: Sequence[_Loss], tilt: float, points: int) -> None:
        library = _library()
        moments = [loss.tilted(tilt) for loss in losses]
        deviation = math.sqrt(sum(loss.answers * m[2] for loss, m in zip(losses, moments, strict=True)))
        whole = sum(loss.answers * loss.width for loss in losses)
        step = max(min(whole, _DEVIATIONS * deviation), *(loss.width for loss in losses)) / points or 1.0
        self.tilt, self.step, self.rounded = tilt, step, sum(loss.answers for loss in losses)
        self.log_moment, self.centre, low, high = 0.0, 0.0, 0, 0
        composed = library.identity(step)
        for loss, (_, mean, _) in zip(losses, moments, strict=True):
            # The grid's origin is near the tilted mean, where exponentials are moderate.
            middle = round(mean / step)
            place = loss.step / step * np.arange(len(loss.mass))
            index = np.floor(place)
            up = np.expm1((index - place) * step) / math.expm1(-step)
            weight = np.concatenate([loss.mass * (1.0 - up), loss.mass * up])
            position = np.concatenate([index, index + 1.0])[weight > 0.0].astype(np.int64) - middle
            exponent = np.log(weight[weight > 0.0]) + tilt * step * position
            first, top = int(position.min()), float(exponent.max())
            dense = np.bincount(position - first, weights=np.exp(exponent - top))
            total = float(dense.sum())
            law = {first + k: float(dense[k]) / total for k in np.flatnonzero(dense).tolist()}
            one = library.PrivacyLossDistribution.create_from_rounded_probability(law, 0.0, step)
            composed = composed.compose(one.self_compose(loss.answers, _TRUNCATION), _TRUNCATION)
            self.log_moment += loss.answers * (top + math.log(total))
            self.centre += loss.answers * (loss.start + middle * step)
            low, high = low + loss.answers * first, high + loss.answers * (first + len(dense) - 1)
        low, high = max(low - 2, -points), min(high + 2, points)
        if (high - low) * step > _WIDEST_LOSS:
            low, high = 0, 1
        self.grid = step * np.arange(low, high + 1, dtype=np.float64)
        self.curve = np.asarray(composed.get_delta_for_epsilon(self.grid), dtype=np.float64)
        # P(S' > g) for the rounded sum S' and all g except the last; higher values lie outside the grid.
        self.tail = (self.curve[:-1] - math.exp(-step) * self.curve[1:]) / -math.expm1(-step)
        self.mass = np.concatenate([[0.0], -np.diff(self.tail), [0.0]])
        from scipy.signal import lfilter

        # sums of the masses from each g up, times exp(-t (S' - g)) and times exp(-(1 + t) (S' - g))
        self.above = [
            lfilter([1.0], [1.0, -math.exp(-rate * step)], self.mass[::-1])[::-1]
            for rate in (tilt, 1.0 + tilt)
        ]
        self.slack = _ROUNDING * (1 + self.rounded)

    def delta(self, epsilon: float) -> Bounds:
        """Bound ``E max(0, 1 - exp(epsilon - S))``; (0, 1) if the tilt is far from epsilon.

        Notes
        -----
        ``docs/proofs/exact-accounting.md``, (2) and (3).
        """
        at = epsilon - self.centre
        exponent = self.log_moment - self.tilt * at
        if exponent > 300.0:
            return Bounds(0.0, 1.0)
        shift = 64.0 * 2.0**-53 * (abs(epsilon) + abs(self.centre) + _WIDEST_LOSS)
        upper = self._excess(at - shift) + max(0.0, float(self.tail[-1])) + self.slack
        upper += 1.0 if at < self.grid[0] else 0.0
        lower = self._excess(at + shift) - self.slack - self._raised(at)
        return Bounds(max(0.0, math.exp(exponent) * lower), min(1.0, math.exp(exponent) * upper))

    def _excess(self, at: float) -> float:
        first = int(np.searchsorted(self.grid, at, side="right"))
        if first == len(self.grid):
            return 0.0
        gap = float(self.grid[first]) - at
        slow, fast = (float(above[first]) for above in self.above)
        return math.exp(-self.tilt * gap) * (slow - math.exp(-gap) * fast)

    def _raised(self, at: float) -> float:
        """Bound the increase of the tilted delta by rounding to the grid."""
        deviation = 0.5 * self.step * math.sqrt(self.rounded)
        drift = 0.5 * deviation**2
        near = 2.0 * drift + deviation * math.sqrt(2.0 * math.log(4.0))
        reach = near + _DEVIATIONS * deviation  # beyond, the bound is below 1e-80
        window = slice(*np.searchsorted(self.grid, [at - reach, at + reach]))
        far = np.maximum(0.0, np.abs(self.grid[window] - at) - near) / deviation
        weight = np.exp(np.minimum(300.0, self.tilt * (at - self.grid[window]) - 0.5 * far**2))
        return (
            2.0 * (drift + deviation * math.sqrt(math.pi / 2.0)) * float(weight @ np.abs(self.mass[window]))
        )


class ComposedLoss:
    """Sum of the independent privacy losses of the answers that differ.

    Examples
    --------
    >>> loss = ComposedLoss({(DiscreteGaussian(Fraction(1, 2)), 1): 1})
    >>> round(loss.epsilon("1e-10").upper, 2)
    9.0
    """

    def __init__(self, changes: ChangedAnswers, points: int = GRID_POINTS) -> None:
        merged: dict[tuple[AnyNoise, int], int] = {}
        for (noise, shift), count in changes.items():
            if shift and count:
                merged[noise, abs(shift)] = merged.get((noise, abs(shift)), 0) + count
        self.losses = tuple(_loss(*key, merged[key]) for key in sorted(merged, key=_order))
        self.points, answers = points, sum(merged.values())
        self._missing = _MISSING * answers
        self._sums: dict[int | None, _TiltedSum] = {}
        # A tilt that changes weights within one grid step gives no resolution.
        deviation = math.sqrt(sum(one.answers * one.tilted(0.0)[2] for one in self.losses))
        width = max(1e-9, min(sum(one.answers * one.width for one in self.losses), _DEVIATIONS * deviation))
        self._log_tilts = math.log(1e-6), math.log(max(1.0, points / (2.0 * math.sqrt(answers or 1) * width)))

    def epsilon(self, delta: Fraction | int | str) -> Bounds:
        """Bound the least epsilon with at most the given delta.

        - `delta`, in [1e-45, 1).
        - Returns: ``upper`` is a valid epsilon. At any epsilon below ``lower``, delta is larger.
        """
        value = _resolved_delta(delta)
        if not self.losses:
            return Bounds(0.0, 0.0)
        allowed = math.log(1.0 / max(value - self._missing, 0.5 * value))
        moments, tilt = self._least(lambda t: (self._exponent(t) + allowed) / t)
        # No loss exceeds the largest, so delta there is the omitted probability.
        largest = sum(one.answers * (one.start + one.width) for one in self.losses)
        highest = max(0.0, min(moments * (1.0 + 1e-6) + 1e-9, largest * (1.0 + 1e-12)))
        law = self._sum(tilt)

        def meets(epsilon: float) -> bool:
            return law.delta(epsilon).upper + self._missing <= value

        if highest == 0.0 or meets(0.0):
            return Bounds(0.0, 0.0)
        upper = _bisect(meets, 0.0, highest)[1]
        width = 1e-9 * (1.0 + upper)
        while width < upper and law.delta(upper - width).lower <= value:
            width *= 2.0
        if width >= upper:
            return Bounds(0.0, upper)
        return Bounds(_bisect(lambda e: law.delta(e).lower <= value, upper - width, upper)[0], upper)

    def delta(self, epsilon: float) -> Bounds:
        """Bound delta at an epsilon, which may be negative."""
        if epsilon < 0.0:
            # Exchanging P and Q keeps the law of the loss, so this is the same test with roles exchanged.
            there = self.delta(-epsilon)
            offset, factor = -math.expm1(epsilon), math.exp(epsilon)
            return Bounds(
                max(0.0, (offset + factor * there.lower) * (1.0 - 1e-14)),
                min(1.0, (offset + factor * there.upper) * (1.0 + 1e-14)),
            )
        if not self.losses:
            return Bounds(0.0, 0.0)
        moments, tilt = self._least(lambda t: self._exponent(t) - t * epsilon)
        found = self._sum(tilt).delta(epsilon)
        upper = min(1.0, found.upper, math.exp(min(0.0, moments)) * (1.0 + 1e-6))
        return Bounds(min(found.lower, upper), min(1.0, upper + self._missing))

    def curve(self) -> LossCurve:
        """Return upper bounds along the whole grid, accurate to about 1e-7, so not for tiny probabilities."""
        law = self._sum(None)
        added = law.slack + self._missing
        return LossCurve(
            law.centre + law.grid,
            np.clip(law.curve + added, 0.0, 1.0),
            np.clip(np.append(law.tail, law.tail[-1]) + added, 0.0, 1.0),
            law.step * math.sqrt(0.5 * law.rounded * math.log(1e14)) + 1e-9,
        )

    def _exponent(self, tilt: float) -> float:
        """Bound ``ln delta(0)`` by one moment; at epsilon it is ``tilt * epsilon`` less.

        Notes
        -----
        Canonne, Kamath and Steinke (2020), Corollary 13, with the moments of the noise in place of rho.
        """
        log_moment = sum(one.answers * (one.tilted(tilt)[0] + tilt * one.start) for one in self.losses)
        return log_moment + tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt)

    def _least(self, function: Callable[[float], float]) -> tuple[float, float]:
        """Return an approximate minimum over the tilt and its tilt; every tilt is valid."""
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(
            lambda x: function(math.exp(x)), bounds=self._log_tilts, method="bounded", options={"xatol": 1e-4}
        )
        return float(found.fun), math.exp(float(found.x))

    def _sum(self, tilt: float | None) -> _TiltedSum:
        step = None if tilt is None else round(_TILTS_PER_DOUBLING * math.log2(tilt))
        if step not in self._sums:
            near = 0.0 if step is None else 2.0 ** (step / _TILTS_PER_DOUBLING)
            self._sums[step] = _TiltedSum(self.losses, near, self.points)
        return self._sums[step]


class WorstLoss:
    """Largest of the loss curves of several changes, one for each way in which neighbours differ.

    The worst change can depend on delta, so all are bounded: roughly first, then more finely where it
    matters.

    - `changes`: every way in which neighbours can differ; duplicates are dropped.
    - `points`: points of the finest grid.

    Examples
    --------
    >>> noise = DiscreteGaussian(Fraction(1, 2))
    >>> round(WorstLoss([{(noise, 1): 1}]).epsilon("1e-10").upper, 2)
    9.0
    """

    def __init__(self, changes: Iterable[ChangedAnswers], points: int = GRID_POINTS) -> None:
        distinct = {frozenset((key, n) for key, n in change.items() if n and key[1]) for change in changes}
        listed = [dict(sorted(change, key=lambda item: _order(item[0]))) for change in distinct]
        self.changes: tuple[ChangedAnswers, ...] = tuple(
            sorted(listed, key=lambda change: [(*_order(key), n) for key, n in change.items()])
        )
        self.points = points
        self._losses: dict[tuple[int, int], ComposedLoss] = {}
        self._epsilon = lru_cache(maxsize=256)(self._find_epsilon)

    def loss(self, change: int, points: int | None = None) -> ComposedLoss:
        """Return the composed loss of one change, computed once."""
        key = (change, points or self.points)
        if key not in self._losses:
            self._losses[key] = ComposedLoss(self.changes[change], key[1])
        return self._losses[key]

    def epsilon(self, delta: Fraction | int | str) -> Bounds:
        """Bound the least epsilon valid for every change at a delta; as :meth:`ComposedLoss.epsilon`."""
        return self._epsilon(parse_fraction(delta, "delta"))

    def _find_epsilon(self, delta: Fraction) -> Bounds:
        return self._largest(lambda loss: loss.epsilon(delta))

    def delta(self, epsilon: float) -> Bounds:
        """Bound the largest delta at an epsilon, which may be negative."""
        return self._largest(lambda loss: loss.delta(epsilon))

    def scaled(self, factor: Fraction) -> WorstLoss:
        """Return the loss of the same release with its budget multiplied by a factor."""
        if factor <= 0:
            raise PrivacyError("the factor on a budget must be positive.")

        def less(noise: AnyNoise) -> AnyNoise:
            if isinstance(noise, DiscreteLaplace):
                return DiscreteLaplace(noise.scale / factor)
            return replace(noise, sigma2=noise.sigma2 / factor)

        return WorstLoss(
            ({(less(noise), d): n for (noise, d), n in change.items()} for change in self.changes),
            self.points,
        )

    def _largest(self, measure: Callable[[ComposedLoss], Bounds]) -> Bounds:
        if len(self.changes) < 2:
            return measure(self.loss(0)) if self.changes else measure(ComposedLoss({}))
        rough = [measure(self.loss(k, self.points >> 3)) for k in range(len(self.changes))]
        lower = max(bounds.lower for bounds in rough)
        upper = 0.0
        # From the largest rough bound down; changes that cannot be the worst keep their rough bound.
        for k in sorted(range(len(rough)), key=lambda k: -rough[k].upper):
            if rough[k].upper <= upper or rough[k].upper < lower:
                break
            fine = measure(self.loss(k))
            lower, upper = max(lower, fine.lower), max(upper, min(fine.upper, rough[k].upper))
        return Bounds(min(lower, upper), upper)


def _order(key: tuple[AnyNoise, int]) -> tuple[str, Fraction, int]:
    noise, difference = key
    return noise.name, noise.parameter, difference


def _resolved_delta(delta: Fraction | int | str) -> float:
    exact = checked_delta(delta)
    if exact < _SMALLEST_DELTA:
        raise ConfigError("delta is below 1e-45, where the exact curve is not computed; use the conversions.")
    value = float(exact)
    return math.nextafter(value, 0.0) if Fraction(value) > exact else value


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Narrow ``low < high``, given that `holds` is false at low and assumed true at high."""
    while high - low > 1e-9 * (1.0 + high):
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
