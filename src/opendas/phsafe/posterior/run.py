"""Statistical post-processing of a PHSafe output: read, fit, check, write."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opendas.errors import ConfigError
from opendas.phsafe.model import PUERTO_RICO
from opendas.phsafe.posterior.averages import counts_of, estimate_averages, measured
from opendas.phsafe.posterior.checks import Check, check_averages, check_counts
from opendas.phsafe.posterior.counts import CountEstimates, estimate_counts
from opendas.phsafe.posterior.files import Grid, estimate_path, read_measurements, write_estimates
from opendas.phsafe.posterior.lattice import Noise
from opendas.phsafe.posterior.rows import COUNT_COLUMNS, average_columns, average_rows, count_rows
from opendas.phsafe.posterior.tables import AVERAGES, COUNTS, AverageTable, Model

__all__ = ["MOST", "PostProcessing", "post_process"]

_log = logging.getLogger(__name__)

MOST = 10.0
"""Largest average household or family, as published: the number of persons a household is truncated to."""

Rows = Sequence[tuple[object, ...]]
Tables = Mapping[str, Mapping[str, Grid]]


@dataclass(frozen=True, slots=True)
class PostProcessing:
    """What was written.

    Parameters
    ----------
    files : tuple of str
        Relative to the output folder.
    rows : int
        In all files.
    checks : tuple of Check
    notes : tuple of str
        What was left out or approximated, and why.
    """

    files: tuple[str, ...]
    rows: int
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class _File:
    """One file to write."""

    table: str
    region_type: str
    columns: tuple[str, ...]
    rows: Rows


def _cells() -> dict[str, tuple[int, ...]]:
    """Return the measured cells of each folder that is read."""
    cells = {table.name: table.cells for table in COUNTS.values()}
    for table in AVERAGES.values():
        cells[table.numerator] = (2, 3)
        cells[table.denominator] = table.denominator_cells
    return cells


def _averages(
    table: AverageTable, tables: Tables, model: Model, most: float, workers: int, notes: list[str]
) -> Iterator[tuple[_File, Grid | None, CountEstimates | None]]:
    """Fit a table of averages; with it, the table of counts that has its numerators."""
    numerators, denominators = tables.get(table.numerator, {}), tables.get(table.denominator, {})
    linked = table.counts if model is Model.JOINT else None
    for region_type, numerator in numerators.items():
        denominator = denominators.get(region_type)
        if denominator is None:
            notes.append(f"{table.name} {region_type}: {table.denominator} was not measured; no averages.")
            continue
        counts = tables.get(linked, {}).get(region_type) if linked is not None else None
        if linked is not None and counts is None:
            notes.append(f"{table.name} {region_type}: {linked} is not there; {table.name} is fitted alone.")
        if Noise.GEOMETRIC in (*numerator.noise, *denominator.noise):
            notes.append(
                f"{table.name} {region_type}: geometric noise is taken as normal with the same variance."
            )
        rows = measured(table, numerator, denominator, counts)
        have = set(denominator.keys)
        keys = [key for key in numerator.keys if key in have]
        if len(keys) < len(numerator.keys):
            notes.append(
                f"{table.name} {region_type}: {len(numerator.keys) - len(keys)} regions and groups have no "
                f"{table.denominator}; no averages for them."
            )
        if not keys:
            continue
        estimates = estimate_averages(rows, model, most, workers)
        lines = tuple(average_rows(table, region_type, keys, rows, estimates))
        file = _File(table.name, region_type, average_columns(table), lines)
        if counts is None or table.counts is None:
            yield file, None, None
        else:
            yield file, counts.subset(keys), counts_of(estimates, table.counts)


def post_process(
    out: Path, *, model: Model = Model.JOINT, most: float = MOST, workers: int = 1
) -> PostProcessing:
    """Estimate every table of a PHSafe output, and write the estimates beside it.

    Only measurements are read: the estimates are post-processing, and cost no privacy.

    Parameters
    ----------
    out : Path
        Output folder of ``opendas phsafe``, or of the published program.
    model : Model
    most : float
        Largest average that is possible.
    workers : int
        Threads; the files do not depend on it.

    Returns
    -------
    PostProcessing

    Raises
    ------
    ConfigError
        If the folder is no PHSafe output, or holds exact counts, or `most` is not above 2.
    DataError
        If a file is wrong, or linked tables are not one measurement.
    EnvironmentFailure
        If a file cannot be read or written.
    """
    if not 2 < most < math.inf:
        raise ConfigError(f"The largest average must be above 2, the least family; found {most:g}.")
    tables = read_measurements(out, _cells())
    notes: list[str] = []
    files: list[_File] = []
    linked: dict[tuple[str, str], tuple[Grid, CountEstimates]] = {}
    for average in AVERAGES.values():
        for file, grid, counts in _averages(average, tables, model, most, workers, notes):
            files.append(file)
            if average.counts is not None and grid is not None and counts is not None:
                linked[average.counts, file.region_type] = (grid, counts)
    for table in COUNTS.values():
        for region_type, grid in tables.get(table.name, {}).items():
            estimates = _count_estimates(table.name, grid, model, linked.get((table.name, region_type)))
            rows = tuple(count_rows(table, grid, estimates))
            files.append(_File(table.name, region_type, COUNT_COLUMNS, rows))
    return _write(out, files, tables, most, notes)


def _count_estimates(
    name: str, grid: Grid, model: Model, linked: tuple[Grid, CountEstimates] | None
) -> CountEstimates:
    """Return the estimates of a table of counts, from the averages for keys that those have."""
    if linked is None:
        return estimate_counts(COUNTS[name], grid, model)
    found, estimates = linked
    missing = [key for key in grid.keys if key not in set(found.keys)]
    if not missing:
        return estimates
    others = estimate_counts(COUNTS[name], grid.subset(missing), model)
    return estimates.merged(found.keys, others, missing, grid.keys)


def _write(
    out: Path, files: Sequence[_File], tables: Tables, most: float, notes: Sequence[str]
) -> PostProcessing:
    states = {key[0] for grids in tables.values() if "STATE" in grids for key in grids["STATE"].keys}
    paths, checks = [], []
    for file in sorted(files, key=lambda file: (file.table, file.region_type)):
        path = estimate_path(out, file.table, file.region_type, states == {PUERTO_RICO})
        name = path.relative_to(out).as_posix()
        if file.table in AVERAGES:
            checks += check_averages(name, file.rows, AVERAGES[file.table].least, most)
        else:
            checks += check_counts(name, file.rows)
        write_estimates(path, file.columns, file.rows)
        _log.info("wrote %s", name)
        paths.append(name)
    return PostProcessing(tuple(paths), sum(len(file.rows) for file in files), tuple(checks), tuple(notes))
