"""Estimates of tables of counts: cells one by one, totals as sums of independent cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.phsafe.model import Noise
from opendas.phsafe.posterior.files import Grid, Key
from opendas.phsafe.posterior.lattice import Lattice, count_posterior, fine_step, normal_posterior, sum_of
from opendas.phsafe.posterior.tables import CountTable, Model
from opendas.phsafe.posterior.truncated import truncated_mean, truncated_quantile

__all__ = ["LEVEL", "CountEstimates", "estimate_counts"]

LEVEL = (0.05, 0.95)
"""Ends of the 90 % credible interval."""


@dataclass(frozen=True, slots=True, eq=False)
class CountEstimates:
    """Estimates of one table for one type of region.

    Parameters
    ----------
    cells : tuple of int
        Totals first, then measured cells.
    estimate, low, high : int64 (k, m)
        One row a key of the grid, one column a cell. The estimate of a measured cell is its posterior mean,
        rounded; that of a total is the sum of its cells' estimates, so that the table adds up. `low` and
        `high` are the 5 % and 95 % quantiles, rounded outwards; a total's are those of the sum.
    """

    cells: tuple[int, ...]
    estimate: npt.NDArray[np.int64]
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]

    def merged(
        self, keys: Sequence[Key], others: CountEstimates, other_keys: Sequence[Key], order: Sequence[Key]
    ) -> CountEstimates:
        """Return the rows of two estimates of one table in the order of their keys."""
        where = {key: row for row, key in enumerate((*keys, *other_keys))}
        rows = [where[key] for key in order]
        return CountEstimates(
            self.cells,
            np.concatenate([self.estimate, others.estimate])[rows],
            np.concatenate([self.low, others.low])[rows],
            np.concatenate([self.high, others.high])[rows],
        )


def _integer_cells(
    counts: Sequence[int], variances: Sequence[float], noise: Noise
) -> tuple[list[Lattice], list[float], list[float], list[float]]:
    parts = [count_posterior(z, v, noise) for z, v in zip(counts, variances, strict=True)]
    ends = [[part.quantile(p) for part in parts] for p in LEVEL]
    return parts, [part.mean() for part in parts], ends[0], ends[1]


def _normal_cells(
    counts: Sequence[int], variances: Sequence[float], noise: Noise
) -> tuple[list[Lattice], list[float], list[float], list[float]]:
    step = fine_step(counts, variances)
    parts = [normal_posterior(z, v, step) for z, v in zip(counts, variances, strict=True)]
    ends = [truncated_quantile(counts, variances, p).tolist() for p in LEVEL]
    return parts, truncated_mean(counts, variances).tolist(), ends[0], ends[1]


def estimate_counts(table: CountTable, grid: Grid, model: Model) -> CountEstimates:
    """Estimate every cell and every total of a table of counts.

    Parameters
    ----------
    table : CountTable
    grid : Grid
    model : Model
        Joint: the exact posterior on the integers under the noise that was added. Published: a continuous
        normal one.

    Returns
    -------
    CountEstimates
    """
    fit = _integer_cells if model is Model.JOINT else _normal_cells
    cells = (*table.margins, *table.cells)
    totals = [[table.cells.index(cell) for cell in parts] for parts in table.margins.values()]
    estimate = np.empty((len(grid.keys), len(cells)), dtype=np.int64)
    low, high = np.empty_like(estimate), np.empty_like(estimate)
    for row, noise in enumerate(grid.noise):
        parts, means, lows, highs = fit(grid.counts[row].tolist(), grid.variances[row].tolist(), noise)
        rounded = np.rint(means).astype(np.int64)
        sums = [sum_of([parts[column] for column in of_total]) for of_total in totals]
        estimate[row] = [*(int(rounded[of_total].sum()) for of_total in totals), *rounded]
        low[row] = [math.floor(low) for low in (*(part.quantile(LEVEL[0]) for part in sums), *lows)]
        high[row] = [math.ceil(high) for high in (*(part.quantile(LEVEL[1]) for part in sums), *highs)]
    return CountEstimates(cells, estimate, low, high)
