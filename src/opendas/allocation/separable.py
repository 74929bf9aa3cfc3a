"""The weighted error of a hierarchy as a function of one budget per level: separable, convex, decreasing.

Everything is evaluated for all levels at once, over their histograms laid end to end. Slopes come as
logarithms, which neither overflow nor underflow, and in which they are close to straight lines.

Axes: ``l`` levels, ``v`` distinct counts of all levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from opendas.allocation.clamped_error import clamped_moments
from opendas.allocation.histogram import Level
from opendas.allocation.level_kernels import KIND_CODES, level_errors, level_slopes
from opendas.allocation.noise_kinds import NoiseKind, sensitivity_factor
from opendas.arrays import Floats, Ints
from opendas.privacy.relations import Neighbours

__all__ = ["Separable"]


@dataclass(frozen=True, slots=True, eq=False)
class Separable:
    """The objective of program (6) over levels that have a positive weight: Ko et al. (2025), equation (5).

    Parameters
    ----------
    levels : sequence of Level
    kind : NoiseKind
    neighbours : Neighbours
    weights : float64 (l,), > 0
    """

    levels: Sequence[Level]
    kind: NoiseKind
    neighbours: Neighbours
    weights: Floats
    _counts: Ints = field(init=False)
    _mult: Floats = field(init=False)
    _starts: Ints = field(init=False)
    _factor: float = field(init=False)

    def __post_init__(self) -> None:
        sizes = [len(level.counts.values) for level in self.levels]
        arrays = {
            "_counts": np.concatenate([level.counts.values for level in self.levels]),
            "_mult": np.concatenate([level.counts.mult for level in self.levels]).astype(np.float64),
            "_starts": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            "_factor": float(sensitivity_factor(self.neighbours)),
        }
        for name, value in arrays.items():
            object.__setattr__(self, name, value)

    @property
    def nodes(self) -> Floats:
        """float64 (l,): number of nodes of each level."""
        return np.asarray(np.add.reduceat(self._mult, self._starts[:-1]), dtype=np.float64)

    def errors(self, budgets: Floats) -> Floats:
        """Return float64 (l, 3): squared bias, variance and mean squared error, summed over each level.

        Ko et al. (2025), equation (4), level by level.
        """
        table = np.empty((len(budgets), 3))
        for number, budget in enumerate(budgets * self._factor):
            counts = self.levels[number].counts
            found = clamped_moments(self.kind, budget, counts.values)
            for column, each in enumerate((found.bias**2, found.variance, found.mse)):
                table[number, column] = np.dot(counts.mult, each)
        return table

    def objective(self, budgets: Floats) -> float:
        """Return the weighted sum of mean squared errors."""
        errors = level_errors(self._code, budgets * self._factor, self._counts, self._mult, self._starts)
        return float(np.dot(self.weights, errors))

    @property
    def _code(self) -> int:
        return KIND_CODES[self.kind]

    def log_slopes(self, log_budgets: Floats) -> tuple[Floats, Floats]:
        """Logarithm of minus each level's weighted slope, and its derivative in the logarithm of the budget.

        Both are decreasing in the budget, by convexity; the derivative lies near -3 for epsilon and near -2
        for rho, and falls without bound where whole-number noise is mostly 0.

        Parameters
        ----------
        log_budgets : float64 (l,)

        Returns
        -------
        log_slope, derivative : float64 (l,)
        """
        scale, slope, curvature = level_slopes(
            self._code, np.exp(log_budgets) * self._factor, self._counts, self._mult, self._starts
        )
        # d F(f b) / d b = f F'(f b) for the sensitivity factor f
        return np.log(self.weights * self._factor) + scale + np.log(slope), -curvature / slope
