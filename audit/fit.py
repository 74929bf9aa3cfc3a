"""Probe A: whether the residuals of every geolevel and query group follow the declared law.

A residual is a noisy answer less the exact one. With n residuals of variance v, the mean square has a
standard error of about ``v sqrt(2 / n)``. A noise scale 1 % off moves the variance by 2.01 %: at n = 10**6
that is 14.2 standard errors, at n = 10**5 it is 4.5. The limit below is 5, so that with 10**6 residuals a
scale 1 % off passes with probability below ``P(Z > 9)``, about 1e-19.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import stats

from audit.subject import Subject, declared_sigma2
from opendas.custody.run_key import RunKey

__all__ = ["LIMIT", "GroupFit", "fit_residuals"]

LIMIT = 5.0
_SMALLEST_P = 1e-7
_EDGE = 9  # standard deviations that are tallied one by one


@dataclass
class GroupFit:
    """Residuals of one query group at one geolevel, and what they say.

    Parameters
    ----------
    geolevel, query : str
    sigma2 : float
        As declared.
    """

    geolevel: str
    query: str
    sigma2: float
    tally: npt.NDArray[np.int64] = field(init=False)
    outside: int = 0

    def __post_init__(self) -> None:
        self.tally = np.zeros(2 * self.edge + 1, dtype=np.int64)

    @property
    def edge(self) -> int:
        """Largest magnitude tallied on its own."""
        return math.ceil(_EDGE * math.sqrt(self.sigma2)) + 2

    def add(self, residuals: npt.NDArray[np.int64]) -> None:
        """Tally residuals."""
        inside = np.abs(residuals) <= self.edge
        self.outside += int((~inside).sum())
        self.tally += np.bincount(residuals[inside] + self.edge, minlength=len(self.tally))

    @property
    def n(self) -> int:
        """Number of residuals."""
        return int(self.tally.sum()) + self.outside

    def _law(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        values = np.arange(-self.edge, self.edge + 1, dtype=np.float64)
        weights = np.exp(-(values**2) / (2 * self.sigma2))
        return values, weights / weights.sum()

    def mean_z(self) -> float:
        """Mean of the residuals, in standard errors."""
        values, law = self._law()
        return float((self.tally @ values) / self.n / math.sqrt(law @ values**2 / self.n))

    def variance_z(self) -> float:
        """Mean square less the declared variance, in standard errors."""
        values, law = self._law()
        squares = values**2
        variance = law @ squares
        error = math.sqrt((law @ squares**2 - variance**2) / self.n)
        return float(((self.tally @ squares) / self.n - variance) / error)

    def scale_bounds(self) -> tuple[float, float]:
        """Bounds on the noise scale in declared ones: confidence above 1 - 6e-7 for one, 1 - 4e-5 for 65.

        The mean square lies within 5 standard errors of its expectation.
        """
        values, law = self._law()
        variance = law @ values**2
        ratio = float((self.tally @ values**2) / self.n / variance)
        error = LIMIT * self._relative_error()
        return math.sqrt(max(ratio / (1 + error), 0)), math.sqrt(ratio / (1 - error))

    def power(self, off: float = 0.01) -> float:
        """Probability of seeing that the scale is larger by a fraction `off`, at this number of residuals."""
        shift = ((1 + off) ** 2 - 1) / self._relative_error()
        return float(stats.norm.sf((LIMIT - shift) / (1 + off) ** 2))

    def _relative_error(self) -> float:
        """Standard error of the mean square, in variances."""
        values, law = self._law()
        variance = law @ values**2
        return math.sqrt((law @ values**4 - variance**2) / self.n) / float(variance)

    def p_value(self) -> float:
        """Chi-squared test on runs of values that hold at least 50 expected residuals."""
        _, law = self._law()
        width = max(1, int(math.sqrt(self.sigma2) / 6))
        starts = np.arange(0, len(law), width)
        expected = np.add.reduceat(law, starts) * self.n
        found = np.add.reduceat(self.tally, starts)
        wide = np.flatnonzero(expected >= 50)
        low, high = int(wide[0]), int(wide[-1])
        merged = [_merge(x, low, high) for x in (found, expected)]
        return float(stats.chisquare(merged[0], merged[1], sum_check=False).pvalue)

    def problems(self) -> list[str]:
        """Say what does not fit; empty where everything does."""
        found = []
        if self.outside:
            found.append(f"{self.outside} residuals beyond {_EDGE} standard deviations")
        for name, z in (("mean", self.mean_z()), ("variance", self.variance_z())):
            if abs(z) > LIMIT:
                found.append(f"{name} off by {z:.1f} standard errors")
        if self.p_value() < _SMALLEST_P:
            found.append(f"chi-squared p = {self.p_value():.1e}")
        return found


def _merge(x: npt.NDArray[np.generic], low: int, high: int) -> npt.NDArray[np.float64]:
    y = np.asarray(x, dtype=np.float64)
    return np.concatenate([[y[: low + 1].sum()], y[low + 1 : high], [y[high:].sum()]])


def fit_residuals(subject: Subject, keys: Iterable[int], seed: int = 0) -> list[GroupFit]:
    """Tally residuals of every measured query group: one a chain and key.

    Every chain holds two records in random cells. Each key reads one random cell's row of each group, lazily,
    as estimation does; the cell differs from key to key.
    """
    rng = np.random.default_rng(seed)
    groups = [
        [GroupFit(level.geolevel, q.name, float(declared_sigma2(level.geolevel, q.name)))
         for q in level.queries]
        for level in subject.levels
    ]  # fmt: skip
    for number in keys:
        cell = int(rng.integers(subject.cells))
        held = rng.integers(subject.cells, size=(subject.chains, 2))
        held[::3, 0] = cell  # the row read is not empty everywhere
        counts = subject.counts(held)
        key = subject.noise_key(RunKey.seeded(number), counts)
        measured = subject.measure(key, counts)
        for level, fits in enumerate(groups):
            answers = measured.family(level, 0, subject.chains, np.array([cell], np.int32))
            for answer, group in zip(answers.queries, fits, strict=True):
                rows = subject.row_of_cell(answer.name)
                same = rows[held] == rows[cell]
                exact = same[:, 0].astype(np.int64) + same[:, 1]
                group.add(answer.values[:, 0] - exact)
    return [group for fits in groups for group in fits]
