"""Estimates of tables of counts: cells one by one, totals as sums of independent cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opendas.arrays import Ints
from opendas.phsafe.posterior.files import CountTable, Grid, Key, Model
from opendas.phsafe.posterior.lattice import count_posterior, fine_step, normal_posterior, sum_of
from opendas.phsafe.posterior.truncated import truncated_mean, truncated_quantile

LEVEL = (0.05, 0.95)
"""Ends of the 90 % credible interval."""


def estimate_counts(table: CountTable, grid: Grid, keys: Sequence[Key], model: Model) -> dict[Key, Ints]:
    """Estimate every cell and every total of a table of counts.

    - `keys`: regions and groups of the grid to estimate.
    - `model`: joint: the exact posterior on the integers under the noise that was added. Published: a
      continuous normal one.
    - Returns (cells, 3): as :func:`rounded` gives them.
    """
    totals = [[table.cells.index(cell) for cell in parts] for parts in table.margins.values()]
    estimates = {}
    for key, row in zip(keys, grid.rows(keys), strict=True):
        counts, variances = grid.counts[row].tolist(), grid.variances[row].tolist()
        if model is Model.JOINT:
            cells = [count_posterior(z, v, grid.noise[row]) for z, v in zip(counts, variances, strict=True)]
            means = [cell.mean() for cell in cells]
            ends = [[cell.quantile(p) for cell in cells] for p in LEVEL]
        else:
            step = fine_step(counts, variances)
            cells = [normal_posterior(z, v, step) for z, v in zip(counts, variances, strict=True)]
            means = truncated_mean(counts, variances).tolist()
            ends = [truncated_quantile(counts, variances, p).tolist() for p in LEVEL]
        sums = [sum_of([cells[column] for column in parts]) for parts in totals]
        low, high = ([total.quantile(p) for total in sums] + end for p, end in zip(LEVEL, ends, strict=True))
        estimates[key] = rounded(means, low, high, totals)
    return estimates


def rounded(
    means: Sequence[float], low: Sequence[float], high: Sequence[float], totals: Sequence[Sequence[int]]
) -> Ints:
    """Return estimates and intervals as whole numbers.

    - `means`: posterior means of the measured cells.
    - `low`, `high`: 5 % and 95 % quantiles: of the totals, then of the measured cells.
    - `totals`: positions of the measured cells that each total sums.
    - Returns (cells, 3): one row a cell, totals first: the estimate, and the ends of its interval, rounded
      outwards. The estimate of a measured cell is its mean, rounded; that of a total is the sum of its cells'
      estimates, so that the table adds up.
    """
    cells = np.rint(means).astype(np.int64)
    estimate = [*(cells[list(parts)].sum() for parts in totals), *cells]
    return np.stack([estimate, np.floor(low), np.ceil(high)], axis=1).astype(np.int64)
