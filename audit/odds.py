"""Probe C: what the best possible test learns about one moved person.

An adversary who knows every other record, and the plan, compares two inputs: the person in the first block,
or moved to the second. The Neyman-Pearson test looks at the log likelihood ratio of the coordinates that
differ. With noise n at a coordinate of parameter sigma2, its part of the ratio is ``(1 + 2 n) / (2
sigma2)``: exact, because the normalising constants cancel. Its law under the plan is the convolution of
these parts, computed here on a grid with a stated error. Observed rates must agree with it, in both
directions: above it, the run protects less than the plan says; below it, the test is not the best one and
the audit is blind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.fft import irfft, rfft

from audit.moved import Moved, moved_person
from audit.subject import Subject
from opendas.custody.run_key import RunKey

__all__ = ["LossLaw", "Rate", "exact_loss", "observed_losses", "rates"]

FALSE_POSITIVE_RATES = (1e-3, 1e-2, 0.05, 0.2, 0.5)
_CONFIDENCE = 1 - 1e-6


@dataclass(frozen=True)
class LossLaw:
    """Law of the log likelihood ratio when the first input is true.

    Parameters
    ----------
    start, step : float
        Grid of values.
    above : float64 (n,)
        Probability of exceeding each grid value.
    error : float
        Each value is off by at most this much, because every part was rounded to the grid.
    """

    start: float
    step: float
    above: npt.NDArray[np.float64]
    error: float

    def exceeds(self, threshold: float) -> tuple[float, float]:
        """Return bounds on the probability that the loss exceeds a threshold."""
        return self._at(threshold + self.error, 1), self._at(threshold - self.error, -1)

    def _at(self, threshold: float, side: int) -> float:
        index = int(np.floor((threshold - self.start) / self.step)) + side
        return float(np.clip(self.above[min(max(index, 0), len(self.above) - 1)], 0, 1))

    def threshold(self, rate: float) -> float:
        """Return the threshold that the other input exceeds with probability `rate`.

        Under the second input the ratio has the law of minus the ratio under the first.
        """
        index = int(np.searchsorted(-self.above, -(1 - rate)))
        return -(self.start + index * self.step)


def exact_loss(sigma2: Sequence[float], bits: int = 20) -> LossLaw:
    """Convolve the parts of the loss over the coordinates of a moved person.

    Parameters
    ----------
    sigma2 : sequence of float
        Variance parameter of each coordinate.
    bits : int
        The grid has ``2**bits`` points over 100 nats, so that nothing wraps around.
    """
    size = 1 << bits
    step = 100 / size
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for value, times in Counter(sigma2).items():
        edge = int(10 * np.sqrt(value)) + 10
        noise = np.arange(-edge, edge + 1)
        weights = np.exp(-(noise**2) / (2 * value))
        place = np.rint((1 + 2 * noise) / (2 * value) / step).astype(np.int64)
        mass = np.bincount(place % size, weights=weights / weights.sum(), minlength=size)
        spectrum *= rfft(mass) ** times
    mass = np.roll(irfft(spectrum, size), size // 2)
    above = 1.0 - np.cumsum(np.asarray(mass, dtype=np.float64))
    return LossLaw(-(size // 2) * step, step, above, len(sigma2) * step / 2)


def observed_losses(
    subject: Subject, moved: Moved, keys: range, *, is_moved: bool
) -> npt.NDArray[np.float64]:
    """Return the log likelihood ratio, first input against second, of every pair of chains and key.

    Parameters
    ----------
    is_moved : bool
        Whether the second input is the true one.
    """
    sign = np.where(np.arange(len(moved.names)) % 2 == 0, 1.0, -1.0)  # left: less likely after the move
    losses = []
    for number in keys:
        residual = moved.residuals(subject, RunKey.seeded(number), is_moved)
        present = (sign < 0) if is_moved else (sign > 0)
        answers = residual + present  # what the adversary sees, less what everybody else contributes
        losses.append((sign * (2 * answers - 1) / (2 * moved.sigma2)).sum(axis=1))
    return np.concatenate(losses)


@dataclass(frozen=True)
class Rate:
    """A point of the test's operating curve.

    Parameters
    ----------
    false_positive : float
        Intended rate.
    observed : tuple of float
        Observed false-positive and true-positive rate.
    low, high : tuple of float
        Clopper-Pearson bounds on them.
    exact_low, exact_high : tuple of float
        Bounds on the rates under the plan.
    """

    false_positive: float
    observed: tuple[float, float]
    low: tuple[float, float]
    high: tuple[float, float]
    exact_low: tuple[float, float]
    exact_high: tuple[float, float]

    def problems(self) -> list[str]:
        """Say which rate the plan does not explain."""
        return [
            f"{name} rate at {self.false_positive:g}: {self.observed[i]:.5f} observed, "
            f"{self.exact_low[i]:.5f} to {self.exact_high[i]:.5f} under the plan"
            for i, name in enumerate(("false-positive", "true-positive"))
            if self.low[i] > self.exact_high[i] or self.high[i] < self.exact_low[i]
        ]


def _interval(count: int, n: int) -> tuple[float, float]:
    tail = (1 - _CONFIDENCE) / 2
    low = stats.beta.ppf(tail, count, n - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - tail, count + 1, n - count) if count < n else 1.0
    return float(low), float(high)


def rates(subject: Subject, keys: range, law: LossLaw | None = None) -> list[Rate]:
    """Run the best test on both inputs and compare its rates with the plan's."""
    moved = moved_person(subject)
    law = law or exact_loss(moved.sigma2.tolist())
    first = observed_losses(subject, moved, keys, is_moved=False)
    second = observed_losses(subject, moved, range(keys.stop, keys.stop + len(keys)), is_moved=True)
    found = []
    for rate in FALSE_POSITIVE_RATES:
        threshold = law.threshold(rate)
        counts = [int((losses > threshold).sum()) for losses in (second, first)]
        bounds = [_interval(count, len(first)) for count in counts]
        not_below = law.exceeds(-threshold)
        exact = [(1 - not_below[1], 1 - not_below[0]), law.exceeds(threshold)]
        found.append(
            Rate(
                rate,
                (counts[0] / len(second), counts[1] / len(first)),
                (bounds[0][0], bounds[1][0]),
                (bounds[0][1], bounds[1][1]),
                (exact[0][0], exact[1][0]),
                (exact[0][1], exact[1][1]),
            )
        )
    return found
