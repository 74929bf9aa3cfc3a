"""Estimates as rows of the published files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from opendas.phsafe.posterior.averages import AverageEstimates, Measured
from opendas.phsafe.posterior.counts import CountEstimates
from opendas.phsafe.posterior.files import Grid, Key
from opendas.phsafe.posterior.tables import AverageTable, CountTable
from opendas.phsafe.posterior.truncated import Z95

__all__ = ["COUNT_COLUMNS", "average_columns", "average_rows", "count_rows"]


_HEAD = ("GEOID", "REGION_TYPE", "ITERATION_CODE", "DATA_CELL")
COUNT_COLUMNS = (*_HEAD, "COUNT_NOISY", "VARIANCE", "MOE_NOISY", "PRED", "PRED_LO", "PRED_HI")
"""Header of the tables of counts."""
_NUMERATOR = ("COUNT_NOISY_NUM", "VARIANCE_NUM", "MOE_NOISY_NUM")
_DENOMINATOR = ("COUNT_NOISY_DENOM", "VARIANCE_DENOM", "MOE_NOISY_DENOM")
_ENDS = ("RATIO_PRED_LO", "RATIO_PRED_HI")


def average_columns(table: AverageTable) -> tuple[str, ...]:
    """Return the header of a table of averages."""
    if table.by_cell:
        return (*_HEAD, *_DENOMINATOR, *_NUMERATOR, "RATIO_NOISY", "RATIO_PRED", *_ENDS)
    return (*_HEAD, *_NUMERATOR, *_DENOMINATOR, "RATIO_NOISY", "RATIO_PRED", "PRED_NUM", "PRED_DENOM", *_ENDS)


def count_rows(table: CountTable, grid: Grid, estimates: CountEstimates) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table of counts: total by total, then the measured cells region by region."""
    parts = {**table.margins, **{cell: (cell,) for cell in table.cells}}

    def row_of(row: int, column: int) -> tuple[object, ...]:
        (region, group), cell = grid.keys[row], estimates.cells[column]
        columns = grid.columns(parts[cell])
        variance = float(grid.variances[row, columns].sum())
        return (
            *(region.zfill(2), grid.region_type, group, cell),
            *(int(grid.counts[row, columns].sum()), variance, Z95 * float(np.sqrt(variance))),
            *(int(values[row, column]) for values in (estimates.estimate, estimates.low, estimates.high)),
        )

    totals = len(table.margins)
    for column in range(totals):
        for row in range(len(grid.keys)):
            yield row_of(row, column)
    for row in range(len(grid.keys)):
        for column in range(totals, len(estimates.cells)):
            yield row_of(row, column)


def average_rows(
    table: AverageTable,
    region_type: str,
    keys: Sequence[Key],
    measured: Sequence[Measured],
    estimates: Sequence[AverageEstimates],
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table of averages: the two cells region by region, then the totals.

    PH8 has its denominator before its numerator, and no columns PRED_NUM and PRED_DENOM, as published.
    """
    for cells in ((2, 3), (1,)):
        for (region, group), row, found in zip(keys, measured, estimates, strict=True):
            for cell in cells:
                n, n_variance, d, d_variance = row.cell(cell)
                numerator = (int(n), n_variance, Z95 * math.sqrt(n_variance))
                denominator = (int(d), d_variance, Z95 * math.sqrt(d_variance))
                noisy = n / d if d else (math.nan if n == 0 else math.copysign(math.inf, n))
                estimate = found.cells[cell - 1]
                head = (region.zfill(2), region_type, group, cell)
                ends = (estimate.average.low, estimate.average.high)
                if table.by_cell:
                    yield (*head, *denominator, *numerator, noisy, estimate.average.mean, *ends)
                else:
                    means = (estimate.average.mean, estimate.numerator, estimate.denominator)
                    yield (*head, *numerator, *denominator, noisy, *means, *ends)
