"""The weighted error of a hierarchy as a function of one budget per level: separable, convex, decreasing.

Everything is evaluated for all levels at once, over their histograms laid end to end. Slopes come as
logarithms, which neither overflow nor underflow, and in which they are close to straight lines.

Axes: ``l`` levels, ``v`` distinct counts of all levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opendas.budget.optimal import integer_gaussian
from opendas.budget.optimal.clamped import clamped_moments, log_scale, scaled_slope
from opendas.budget.optimal.histogram import Level
from opendas.budget.optimal.kinds import NoiseKind, sensitivity_factor
from opendas.privacy.relations import Neighbours

__all__ = ["Separable"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Separable:
    """The objective of program (6) over levels that have a positive weight.

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
    _counts: Floats = field(init=False)
    _mult: Floats = field(init=False)
    _level: npt.NDArray[np.int64] = field(init=False)
    _starts: npt.NDArray[np.int64] = field(init=False)
    _factor: float = field(init=False)

    def __post_init__(self) -> None:
        sizes = [len(level.counts.values) for level in self.levels]
        arrays = {
            "_counts": np.concatenate([level.counts.values for level in self.levels]).astype(np.float64),
            "_mult": np.concatenate([level.counts.mult for level in self.levels]).astype(np.float64),
            "_level": np.repeat(np.arange(len(sizes)), sizes),
            "_starts": np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
            "_factor": float(sensitivity_factor(self.neighbours)),
        }
        for name, value in arrays.items():
            object.__setattr__(self, name, value)

    @property
    def nodes(self) -> Floats:
        """float64 (l,): number of nodes of each level."""
        return np.add.reduceat(self._mult, self._starts)

    def errors(self, budgets: Floats) -> Floats:
        """Return float64 (l, 3): squared bias, variance and mean squared error, summed over each level."""
        # A budget so small that the double is 0 has an error beyond all doubles; it is not asked for here.
        found = clamped_moments(self.kind, (budgets * self._factor)[self._level], self._counts)
        columns = (found.bias**2, found.variance, found.mse)
        return np.stack([np.add.reduceat(self._mult * each, self._starts) for each in columns], axis=1)

    def objective(self, budgets: Floats) -> float:
        """Return the weighted sum of mean squared errors."""
        return float(np.dot(self.weights, self.errors(budgets)[:, 2]))

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
        budgets = np.exp(log_budgets) * self._factor
        if self.kind is NoiseKind.DISCRETE_GAUSSIAN:
            scale, slope, curvature = self._integer_gaussian(budgets)
        else:
            by_node = scaled_slope(self.kind, budgets[self._level], self._counts)
            slope, curvature = (np.add.reduceat(self._mult * each, self._starts) for each in by_node)
            scale = log_scale(self.kind, budgets)
        # d F(f b) / d b = f F'(f b) for the sensitivity factor f
        return np.log(self.weights * self._factor) + scale + np.log(slope), -curvature / slope

    def _integer_gaussian(self, budgets: Floats) -> tuple[Floats, Floats, Floats]:
        scale, slope, curvature = np.empty((3, len(budgets)))
        for number, rho in enumerate(budgets):
            counts = self.levels[number].counts
            if rho > integer_gaussian.WIDE_RHO:
                found = integer_gaussian.level_sums(float(rho), counts.values, counts.mult.astype(np.float64))
                scale[number], slope[number], curvature[number] = found
            else:
                first, second = integer_gaussian.wide_slopes(
                    np.full(len(counts.values), rho), counts.values.astype(np.float64)
                )
                scale[number] = -2 * np.log(2 * rho)
                slope[number] = np.dot(counts.mult, first)
                curvature[number] = np.dot(counts.mult, second)
        return scale, slope, curvature
