"""Distributions as weights on an even lattice: the exact posterior of one count, and sums of several.

A noisy count is ``z = y + noise``, with the noise of the mechanism itself on the integers, and every count
``y = 0, 1, 2, ...`` as likely as another beforehand. The posterior weight of y is then the probability of the
noise ``z - y``, cut to ``y >= 0``: a finite sum, and nothing is drawn. Sums of independent counts are
convolutions.

The published step replaces the noise by a continuous normal. That posterior fits the same form, with weights
by the trapezoid rule on a lattice much finer than its scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

from opendas.arrays import Floats
from opendas.errors import ConfigError
from opendas.phsafe.inputs.levels import NoiseDistribution

_DROP = 40.0
"""Weights below exp(-40) of the largest are left out."""
_COARSE_FROM = 2048.0
"""Standard deviation from which a lattice point stands for several integers."""
_POINTS_A_SCALE = 64
_MOST_POINTS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """A distribution on ``origin + step * k``, k = 0, 1, ..."""

    origin: float
    step: float
    weights: Floats  # (n,): they sum to 1
    # True: all mass is at the points. False: each point stands for the interval of length `step` around it.
    discrete: bool

    def __post_init__(self) -> None:
        if len(self.weights) == 0 or not self.step > 0:
            raise ConfigError("A lattice needs points and a step above 0.")
        self.weights.flags.writeable = False

    @property
    def points(self) -> Floats:
        """Where the weights are."""
        return np.asarray(self.origin + self.step * np.arange(len(self.weights)), dtype=np.float64)

    def mean(self) -> float:
        """Return the mean."""
        return self.origin + self.step * float(self.weights @ np.arange(len(self.weights)))

    def quantile(self, p: float) -> float:
        """Return the smallest y with ``P(Y <= y) >= p``; interpolated between points unless discrete."""
        total = np.cumsum(self.weights)
        target = p * total[-1]
        k = int(np.searchsorted(total, target))
        if self.discrete:
            return self.origin + self.step * k
        before = total[k] - self.weights[k]
        return self.origin + self.step * (k - 0.5 + float((target - before) / self.weights[k]))


def point(value: float) -> Lattice:
    """Return the distribution of a number known exactly."""
    return Lattice(value, 1.0, np.ones(1), True)


def geometric_ratio(variance: float) -> float:
    """Return the ratio r of two-sided geometric noise, ``P(k) ~ r**abs(k)``, from ``2 r / (1 - r)**2``."""
    return variance / (variance + 1 + math.sqrt(2 * variance + 1))


def count_posterior(z: int, variance: float, noise: NoiseDistribution) -> Lattice:
    """Return the exact posterior of a count, given its noisy value.

    - `variance`: discrete Gaussian: its parameter sigma2. Two-sided geometric: its variance. 0: z is exact.
    - Returns: on the integers from 0. Beyond a standard deviation of 2048, a point stands for as many
      integers as keeps 1024 of them in a standard deviation; what this changes is below 1e-7 of it.

    Examples
    --------
    >>> count_posterior(0, 1.0, NoiseDistribution.GAUSSIAN).weights[:3].round(4).tolist()
    [0.5703, 0.3459, 0.0772]
    """
    if variance == 0:
        return point(float(max(z, 0)))
    s = math.sqrt(variance)
    group = 1 if s < _COARSE_FROM else int(s / 1024)
    if noise is NoiseDistribution.GAUSSIAN:
        reach = math.sqrt(2 * _DROP * variance)
        last = z + math.sqrt(min(z, 0) ** 2 + reach**2)
        rate = 0.0
    else:
        rate = -math.log(geometric_ratio(variance))
        reach = _DROP / rate
        last = max(z, 0) + reach
    first = max(0, math.floor((z - reach) / group))
    y = (np.arange(first, math.ceil(last / group) + 1) + (1 - 1 / group) / 2) * group
    peak = max(z, 0)
    logs = -np.abs(y - z) * rate if rate else -(y - peak) * (y + peak - 2 * z) / (2 * variance)
    weights = np.exp(logs - logs.max())
    return Lattice(float(y[0]), float(group), weights / weights.sum(), group == 1)


def fine_step(z: npt.ArrayLike, variance: npt.ArrayLike) -> float:
    """Return a lattice step small beside the scale of each truncated normal; 1 where all are exact."""
    z, variance = np.asarray(z, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    noisy = variance > 0
    if not noisy.any():
        return 1.0
    s = np.sqrt(variance[noisy])
    scales = s / (1 + np.maximum(-z[noisy] / s, 0))
    most = float((18 * s + np.maximum(z[noisy], 0).clip(max=9 * s)).sum())
    return max(float(scales.min()) / _POINTS_A_SCALE, most / _MOST_POINTS)


def normal_posterior(z: float, variance: float, step: float) -> Lattice:
    """Return Normal(z, variance) cut to ``y >= 0``, by the trapezoid rule; a point for variance 0."""
    if variance == 0:
        return point(max(z, 0.0))
    reach = math.sqrt(2 * _DROP * variance)
    peak, low, high = max(z, 0.0), max(0.0, z - reach), z + math.sqrt(min(z, 0.0) ** 2 + reach**2)
    y = np.asarray(low + step * np.arange(max(2, math.ceil((high - low) / step) + 1)), dtype=np.float64)
    logs = -(y - peak) * (y + peak - 2 * z) / (2 * variance)
    weights = np.exp(logs - logs.max())
    weights[0] /= 2
    return Lattice(low, step, weights / weights.sum(), False)


def sum_of(parts: Sequence[Lattice]) -> Lattice:
    """Return the distribution of the sum of independent parts with one step; points may have any.

    Notes
    -----
    Convolution by Fourier transforms: the absolute error of a weight is about 1e-16.
    """
    shift = sum(part.origin for part in parts)
    spread = [part for part in parts if len(part.weights) > 1]
    if not spread:
        return point(shift)
    if len({part.step for part in spread}) > 1:
        raise ConfigError("Lattices of different steps have no sum on a lattice.")
    size = sum(len(part.weights) - 1 for part in spread) + 1
    length = fft.next_fast_len(size, real=True)
    product = fft.rfft(spread[0].weights, length)
    for part in spread[1:]:
        product *= fft.rfft(part.weights, length)
    weights = np.maximum(fft.irfft(product, length)[:size], 0.0)
    return Lattice(shift, spread[0].step, weights / weights.sum(), all(part.discrete for part in spread))
