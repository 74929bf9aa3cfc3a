"""Statistical post-processing of a PHSafe output: read, fit, check, write."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opendas.arrays import Ints
from opendas.errors import CheckFailed, ConfigError
from opendas.phsafe.inputs.levels import PUERTO_RICO, NoiseDistribution
from opendas.phsafe.posterior.averages import (
    AverageEstimates,
    Measured,
    counts_of,
    estimate_averages,
    measured,
)
from opendas.phsafe.posterior.counts import estimate_counts
from opendas.phsafe.posterior.files import (
    AVERAGES,
    COUNTS,
    AverageTable,
    CountTable,
    Grid,
    Key,
    Model,
    estimate_path,
    read_measurements,
    write_estimates,
)
from opendas.phsafe.posterior.truncated import Z95

_log = logging.getLogger(__name__)

MOST = 10.0
"""Largest average household or family, as published: the number of persons a household is truncated to."""

Rows = Sequence[tuple[object, ...]]
Tables = Mapping[str, Mapping[str, Grid]]


@dataclass(frozen=True, slots=True)
class PostProcessing:
    """What was written."""

    files: tuple[str, ...]  # relative to the output folder
    rows: int  # in all files
    checks: tuple[Check, ...]
    notes: tuple[str, ...]  # what was left out or approximated, and why

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
) -> Iterator[tuple[_File, dict[Key, Ints]]]:
    """Fit a table of averages; with it, by key, the table of counts that has its numerators."""
    numerators, denominators = tables.get(table.numerator, {}), tables.get(table.denominator, {})
    linked = table.counts if model is Model.JOINT else None
    for region_type, numerator in numerators.items():
        denominator = denominators.get(region_type)
        if denominator is None:
            notes.append(
                f"{table.name} {region_type}: {table.denominator} was not measured, so there are no averages."
            )
            continue
        counts = tables.get(linked, {}).get(region_type) if linked is not None else None
        if linked is not None and counts is None:
            notes.append(f"{table.name} {region_type}: {linked} is missing; {table.name} is fitted alone.")
        if NoiseDistribution.GEOMETRIC in (*numerator.noise, *denominator.noise):
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
        shared = zip(keys, estimates, strict=True) if counts is not None else ()
        yield file, {key: counts_of(COUNTS[counts.name], row) for key, row in shared if counts is not None}


def post_process(
    out: Path,
    *,
    model: Model = Model.JOINT,
    most: float = MOST,
    workers: int = 1,
    to: Path | None = None,
) -> PostProcessing:
    """Estimate every table of a PHSafe output, and write the estimates beside it.

    Only measurements are read: the estimates are post-processing, and cost no privacy.

    - `out`: output folder of ``opendas phsafe``, or of the published program.
    - `most`: largest average that is possible.
    - `workers`: threads; the files do not depend on it.
    - `to`: where the folders of estimates go; by default beside the tables.

    Raises `ConfigError` if the folder is no PHSafe output, or holds exact counts, or `most` is not above 2;
    `DataError` if a file is wrong, or linked tables are not one measurement; `EnvironmentFailure` if a file
    cannot be read or written.
    """
    if not 2 < most < math.inf:
        raise ConfigError(f"The largest average must be above 2, the least family; found {most:g}.")
    tables = read_measurements(out, _cells())
    notes: list[str] = []
    files: list[_File] = []
    linked: dict[tuple[str | None, str], dict[Key, Ints]] = {}
    for average in AVERAGES.values():
        for file, counts in _averages(average, tables, model, most, workers, notes):
            files.append(file)
            linked[average.counts, file.region_type] = counts
    for table in COUNTS.values():
        for region_type, grid in tables.get(table.name, {}).items():
            shared = linked.get((table.name, region_type), {})
            alone = [key for key in grid.keys if key not in shared]
            estimates = {**shared, **estimate_counts(table, grid, alone, model)}
            rows = tuple(count_rows(table, grid, estimates))
            files.append(_File(table.name, region_type, COUNT_COLUMNS, rows))
    return _write(to or out, files, tables, most, notes)


def check_estimates_again(out: Path, found: Sequence[str], workers: int = 1) -> str:
    """Every file of estimates is what the noisy counts give, by one of the models.

    `out`: output folder of ``opendas phsafe``.
    """
    if not found:
        return "none"
    for model in Model:
        with tempfile.TemporaryDirectory(prefix="opendas-") as folder:
            again = post_process(out, model=model, workers=workers, to=Path(folder))
            if sorted(again.files) == sorted(found) and all(
                _same_numbers(out / name, Path(folder) / name) for name in found
            ):
                return f"{len(found)} files, made again by the model {model}"
    raise CheckFailed(
        "no model gives these estimates from the noisy counts with a largest average of "
        f"{MOST:g}. They were changed, or made with other settings or counts. Make them again with opendas "
        "phsafe-post."
    )


def _same_numbers(one: Path, other: Path) -> bool:
    """Compare two files of estimates: text exactly, numbers but for the last digits of the machine."""
    left, right = (path.read_text("ascii").split("\n") for path in (one, other))
    return len(left) == len(right) and all(map(_same_line, left, right))


def _same_line(one: str, other: str) -> bool:
    left, right = one.split("|"), other.split("|")
    return one == other or (len(left) == len(right) and all(map(_same_field, left, right)))


def _same_field(one: str, other: str) -> bool:
    try:
        return one == other or math.isclose(float(one), float(other), rel_tol=1e-9)
    except ValueError:
        return False


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


def count_rows(table: CountTable, grid: Grid, estimates: Mapping[Key, Ints]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table of counts: total by total, then the measured cells region by region."""
    parts = {**table.margins, **{cell: (cell,) for cell in table.cells}}
    codes, totals = tuple(parts), range(len(table.margins))
    order = [(key, column) for column in totals for key in grid.keys]
    order += [(key, column) for key in grid.keys for column in range(len(totals), len(codes))]
    where = {key: row for row, key in enumerate(grid.keys)}
    for key, column in order:
        (region, group), row, columns = key, where[key], grid.columns(parts[codes[column]])
        variance = float(grid.variances[row, columns].sum())
        yield (
            *(region.zfill(2), grid.region_type, group, codes[column]),
            *(int(grid.counts[row, columns].sum()), variance, Z95 * float(np.sqrt(variance))),
            *estimates[key][column].tolist(),
        )


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


_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """A property that the rows of a file were checked for, after the Bureau's own validation."""

    file: str
    name: str
    rows: int  # rows looked at
    failures: int  # rows without the property

    @property
    def ok(self) -> bool:
        """Whether every row has it."""
        return self.failures == 0


def _checked(file: str, name: str, holds: Iterable[bool]) -> Check:
    found = list(holds)
    return Check(file, name, len(found), found.count(False))


def check_counts(file: str, rows: Sequence[Sequence[object]]) -> list[Check]:
    """Check the rows of a table of counts: whole numbers of zero or more, inside their intervals."""
    ends = [(row[-3], row[-2], row[-1]) for row in rows]
    return [
        _checked(
            file,
            "estimates are whole numbers, 0 or more",
            (isinstance(estimate, int) and estimate >= 0 for estimate, _, _ in ends),
        ),
        _checked(
            file,
            "intervals are in order, from 0 or more",
            (isinstance(low, int) and isinstance(high, int) and 0 <= low <= high for _, low, high in ends),
        ),
    ]


def check_averages(file: str, rows: Sequence[Sequence[object]], least: float, most: float) -> list[Check]:
    """Check the rows of a table of averages: within bounds, inside their intervals.

    The lower bound is that of the published validation: `least` where every cell has a denominator of its
    own; elsewhere it holds for cell 1, and 0 for its parts.
    """
    averages = []
    for row in rows:
        mean, low, high = (float(str(row[k])) for k in (-3 if len(row) == 14 else -5, -2, -1))
        floor = least if row[3] == 1 or len(row) == 14 else 0.0
        if not math.isnan(mean):
            averages.append((mean, low, high, floor))
    return [
        _checked(
            file,
            f"averages are within bounds, at most {most:g}",
            (floor - _TOLERANCE <= low and high <= most + _TOLERANCE for _, low, high, floor in averages),
        ),
        _checked(
            file,
            "estimates are inside their intervals",
            (low - _TOLERANCE <= mean <= high + _TOLERANCE for mean, low, high, _ in averages),
        ),
    ]
