"""Estimates of tables of averages, and of the tables of counts that share their numerators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.phsafe.posterior.counts import rounded
from opendas.phsafe.posterior.files import AverageTable, CountTable, Grid, Model
from opendas.phsafe.posterior.ratio import Block, Estimate, Fit, fit_block, pair_average, pair_count


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for an average table in one region and group."""

    table: AverageTable
    # counts, variances: numerators by cell of the count table if there is one, else of the average table.
    counts: tuple[float, ...]
    variances: tuple[float, ...]
    # households, household_variances: denominators by measured cell.
    households: tuple[float, ...]
    household_variances: tuple[float, ...]

    def cell(self, cell: int) -> tuple[float, float, float, float]:
        """Return numerator, its variance, denominator and its variance of a cell of the estimates."""
        parts = self.parts(cell)
        below = (0,) if not self.table.by_cell else {1: (0, 1), 2: (0,), 3: (1,)}[cell]
        return (
            sum(self.counts[part] for part in parts),
            sum(self.variances[part] for part in parts),
            sum(self.households[part] for part in below),
            sum(self.household_variances[part] for part in below),
        )

    def parts(self, cell: int) -> tuple[int, ...]:
        """Return the positions of the numerators of a cell: the last one is cell 3, the others cell 2."""
        last = len(self.counts) - 1
        return {1: tuple(range(last + 1)), 2: tuple(range(last)), 3: (last,)}[cell]

    def fit(self, cell: int, most: float, *, summed: bool = False) -> Fit:
        """Fit the numerators of a cell, or their sum as one number, with their denominator."""
        count, variance, households, of_households = self.cell(cell)
        parts = self.parts(cell)
        counts = (count,) if summed else tuple(self.counts[part] for part in parts)
        variances = (variance,) if summed else tuple(self.variances[part] for part in parts)
        return fit_block(Block(counts, variances, households, of_households, float(self.table.least), most))


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """The estimate of one cell."""

    average: Estimate
    # numerator, denominator: posterior means.
    numerator: float
    denominator: float


@dataclass(frozen=True, slots=True)
class AverageEstimates:
    """Estimates of one region and group."""

    cells: tuple[CellEstimate, ...]  # cells 1, 2 and 3
    # Of the count table with the same numerators: all together, then each. Empty where not asked for.
    counts: tuple[Estimate, ...] = ()


def measured(table: AverageTable, numerator: Grid, denominator: Grid, counts: Grid | None) -> list[Measured]:
    """Bring numerators and denominators together, one a key of the numerator that has a denominator.

    Raises `DataError` if the numerators are not those of the count table.
    """
    source = counts if counts is not None else numerator
    _check_numerators(table, numerator, counts)
    have = set(denominator.keys)
    keys = [key for key in numerator.keys if key in have]
    above, below = source.rows(keys), denominator.rows(keys)
    cells = denominator.columns(table.denominator_cells)
    return [
        Measured(
            table,
            tuple(map(float, source.counts[i])),
            tuple(map(float, source.variances[i])),
            tuple(map(float, denominator.counts[j, cells])),
            tuple(map(float, denominator.variances[j, cells])),
        )
        for i, j in zip(above, below, strict=True)
    ]


def _check_numerators(table: AverageTable, numerator: Grid, counts: Grid | None) -> None:
    """Make sure that two tables are the same numbers."""
    if counts is None:
        return
    same = counts.keys == numerator.keys
    if same:
        head, last = counts.counts[:, :-1].sum(axis=1), counts.counts[:, -1]
        same = np.array_equal(numerator.counts, np.stack([head, last], axis=1))
    if not same:
        raise DataError(
            f"{table.numerator} is not the same measurement as {table.counts}: regions, groups or counts "
            "differ. Give the output of one run, or fit each table by itself with --published."
        )


def _exact(measured: Measured) -> AverageEstimates:
    """Return the numbers themselves where all are exact."""
    cells = []
    for cell in measured.table.cells:
        numerator, _, denominator, _ = measured.cell(cell)
        ratio = numerator / denominator if denominator else math.nan
        cells.append(CellEstimate(Estimate(ratio, ratio, ratio), numerator, denominator))
    counts = [sum(measured.counts), *measured.counts]
    return AverageEstimates(tuple(cells), tuple(Estimate(n, n, n) for n in counts))


def _shared(measured: Measured, most: float, with_counts: bool) -> AverageEstimates:
    """Fit two numerators and the denominator that they share (PH1; PH5 with PH4)."""
    fit = measured.fit(1, most)
    means, households = fit.mean_counts(), fit.mean_households()
    cells = (
        CellEstimate(fit.average(None), sum(means), households),
        *(CellEstimate(fit.average(part), means[part], households) for part in (0, 1)),
    )
    if not with_counts:
        return AverageEstimates(cells)
    return AverageEstimates(cells, (fit.count(None), *_with_means(fit, means)))


def _with_means(fit: Fit, means: Sequence[float]) -> list[Estimate]:
    """Return the numerators of a fit with means that another formula gives: shared numbers are one number."""
    return [fit.count(part)._replace(mean=mean) for part, mean in enumerate(means)]


def _by_tenure(measured: Measured, most: float, with_counts: bool) -> AverageEstimates:
    """Fit owners and renters, each with a denominator of its own, and both together (PH8 with PH7)."""
    fits = [measured.fit(cell, most) for cell in (2, 3)]
    means = [fit.mean_counts() for fit in fits]
    sizes = [fit.mean_households() for fit in fits]
    numerators = [sum(of_fit) for of_fit in means]
    cells = (
        CellEstimate(pair_average(fits[0], fits[1]), sum(numerators), sum(sizes)),
        *(CellEstimate(fits[side].average(None), numerators[side], sizes[side]) for side in (0, 1)),
    )
    if not with_counts:
        return AverageEstimates(cells)
    parts = [_with_means(fit, of_fit) for fit, of_fit in zip(fits, means, strict=True)]
    return AverageEstimates(cells, (pair_count(fits[0], fits[1]), *parts[0], *parts[1]))


def _fit_cells(measured: Measured, most: float) -> AverageEstimates:
    """Fit each cell by itself, as the published step does for PH8."""
    fits = [measured.fit(cell, most, summed=True) for cell in measured.table.cells]
    return AverageEstimates(
        tuple(CellEstimate(fit.average(None), fit.mean_counts()[0], fit.mean_households()) for fit in fits)
    )


def estimate_averages(
    rows: Sequence[Measured], model: Model, most: float, workers: int = 1
) -> list[AverageEstimates]:
    """Estimate averages, and the counts that share their numerators.

    - `most`: largest average that is possible: persons that a household counts with at most.
    - `workers`: threads; the results do not depend on it.
    """

    def fit(row: Measured) -> AverageEstimates:
        if not any(row.variances) and not any(row.household_variances):
            return _exact(row)
        with_counts = model is Model.JOINT and row.table.counts is not None
        if not row.table.by_cell:
            return _shared(row, most, with_counts)
        return _by_tenure(row, most, with_counts) if model is Model.JOINT else _fit_cells(row, most)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(fit, rows))


def counts_of(table: CountTable, row: AverageEstimates) -> Ints:
    """Return the estimates of a count table from those of the averages with its numerators.

    Returns (cells, 3): as :func:`opendas.phsafe.posterior.counts.rounded` gives them.
    """
    means, low, high = zip(*row.counts, strict=True)
    return rounded(means[1:], low, high, [range(len(table.cells))])
