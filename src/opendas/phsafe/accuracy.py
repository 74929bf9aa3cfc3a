"""The accuracy report: private tables made again and again, beside the truth. For test data only.

Noise and truncation are told apart. The published report compares with the exact tables of the non-private
mode, so that its errors hold both; beside that stand here the errors by noise alone, and the bias by
truncation alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Ints
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError
from opendas.files.atomic import make_folder, write_atomic
from opendas.phsafe.config import Mode, Plan, read_config
from opendas.phsafe.counting import count_cube, counted_rows, level_counts, truncated
from opendas.phsafe.folder import refuse_inside_release
from opendas.phsafe.inputs.linking import Linked, link, sort_inputs
from opendas.phsafe.inputs.read_cef import read_cef
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.margins import cell_margins
from opendas.phsafe.measure import CountTables, measure, prepare_samplers
from opendas.phsafe.model import Level
from opendas.phsafe.output import PART_FILE, Block, OutputTable, derive, exact_tables
from opendas.phsafe.run import HouseholdOptions
from opendas.phsafe.sensitivity import LevelNoise
from opendas.phsafe.tables import DERIVED, Derived, Joined, Table
from opendas.phsafe.validate import validate
from opendas.privacy.relations import Mechanism, Neighbours

__all__ = ["AccuracyRow", "accuracy_report", "published_moe", "run_accuracy", "write_report"]


_SHARE = 0.90
_Z = 1.64  # of the published report
_INPUT_TAG = "00" * 32

Spot = tuple[str, Level, int, int]
"""Table, level, position of the population group, cell."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Errors of one table, region type, population group and cell, over regions and trials. Confidential.

    Parameters
    ----------
    table, region_type, iteration : str
    cell : int
    experimental_moe : float
        90th percentile (linear interpolation) of |noisy - exact|, with what truncation leaves out.
    count : int
        Number of errors.
    expected_moe : float
        By the published formula, to one decimal.
    exact_moe : int
        Smallest m with P(|noise| <= m) >= 0.90.
    noise_moe : float
        90th percentile of |noisy - truncated|: the noise alone.
    truncation_bias : float
        Mean of truncated - not truncated, in persons: never positive.
    """

    table: str
    region_type: str
    iteration: str
    cell: int
    experimental_moe: float
    count: int
    expected_moe: float
    exact_moe: int
    noise_moe: float
    truncation_bias: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def run_accuracy(
    config_path: Path, data: Path, trials: int, options: HouseholdOptions
) -> tuple[AccuracyRow, ...]:
    """Read a configuration and test data, and compare private tables with the truth.

    Parameters
    ----------
    config_path, data : Path
        As for a private run.
    trials : int, >= 1
    options : HouseholdOptions
        Its seed is that of the first trial.

    Raises
    ------
    ConfigError, DataError, EnvironmentFailure
        As for a private run.
    """
    config = read_config(config_path, Mode.PRIVATE, options.tables)
    plan = Plan(config, options.sensitivity, options.truncation)
    read = {"csv": read_csv, "cef": read_cef}[config.reader]
    inputs = sort_inputs(read(data, config.state_filter, options.tell))
    linked = link(inputs, config.state_filter)
    validate(inputs, linked, config).refuse_errors(data)
    return accuracy_report(plan, linked, trials, options.seed or 0, options.tell, options.derived)


def accuracy_report(
    plan: Plan,
    linked: Linked,
    trials: int,
    seed: int,
    tell: Callable[[str, int, int], None] | None = None,
    derived: tuple[Derived, ...] = DERIVED,
) -> tuple[AccuracyRow, ...]:
    """Make the private tables `trials` times in memory and compare them with the truth.

    Nothing is charged to a ledger, so that nothing of it may be released, and no data that need protection
    may be used.

    Parameters
    ----------
    plan : Plan
    linked : Linked
    trials : int, >= 1
    seed : int
        The first trial's; the others follow.
    tell : callable(stage, done, total), optional
    derived : tuple of Derived

    Returns
    -------
    tuple of AccuracyRow
        By table, level, population group and cell.
    """
    if trials < 1:
        raise ConfigError(f"an accuracy report needs at least one trial, not {trials}.")
    prepare_samplers(plan)
    counter = _Counter(plan, linked)
    exact = {table.name: table for table in exact_tables(plan.config, linked, derived)}
    whole = _laid_out(plan, counter.whole(), derived)
    errors: dict[Spot, list[Ints]] = {}
    noise: dict[Spot, list[Ints]] = {}
    bias: dict[Spot, list[Ints]] = {}
    for trial in range(trials):
        key = RunKey.seeded(seed + trial)
        noisy = measure(plan, counter.count, key, _INPUT_TAG, derived)
        kept = _laid_out(plan, counter.last, derived)
        for table in noisy:
            for spot, counts in _spots(table):
                errors.setdefault(spot, []).append(np.abs(counts - _find(exact[table.name], spot)))
                truncated_counts = _find(kept[table.name], spot)
                noise.setdefault(spot, []).append(np.abs(counts - truncated_counts))
                bias.setdefault(spot, []).append(truncated_counts - _find(whole[table.name], spot))
        if tell is not None:
            tell("trials", trial + 1, trials)
    moes = _Moes(plan, derived)
    return tuple(
        AccuracyRow(
            table=table,
            region_type=level.geography.region_type,
            iteration=level.iteration.codes[group],
            cell=cell,
            experimental_moe=_percentile(found),
            count=sum(map(len, found)),
            expected_moe=moes.published(table, level, cell),
            exact_moe=moes.exact(table, level, cell),
            noise_moe=_percentile(noise[table, level, group, cell]),
            truncation_bias=float(np.concatenate(bias[table, level, group, cell]).mean()),
        )
        for (table, level, group, cell), found in errors.items()
    )


def published_moe(noise: LevelNoise, plan: Plan) -> float:
    """Return EXPECTED_MOE of the published report: ``1.64 D / sqrt(2 rho)``, or ``b ln(20 / (1 + e^(1/b)))``.

    Returns
    -------
    float
        To one decimal, as published; 0 for an infinite budget. For wide two-sided geometric noise this is
        the margin of a continuous law.
    """
    if isinstance(noise.budget, str):
        return 0.0
    answers, bound, relation = noise.answers, plan.sensitivity, Neighbours.UNBOUNDED
    if plan.mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return round(_Z * math.sqrt(answers.l2_squared(bound, relation) / (2 * float(noise.budget))), 1)
    b = answers.l1(bound, relation) / float(noise.budget)
    # ln(1 + e^x) without overflow: x + ln(1 + e^-x).
    return round(b * (math.log(20) - 1 / b - math.log1p(math.exp(-1 / b))), 1)


def write_report(folder: Path, rows: Sequence[AccuracyRow]) -> Path:
    """Write a report as the published one: one ``|``-delimited file, further columns at the end.

    Parameters
    ----------
    folder : Path
        New, empty, or that of an earlier report. It becomes readable for its owner only.

    Raises
    ------
    ConfigError
        If the folder holds something else, or lies in a release.
    """
    path = folder / PART_FILE
    refuse_inside_release(folder)
    if folder.exists() and (not folder.is_dir() or any(one != path for one in folder.iterdir())):
        raise ConfigError(f"{folder} holds other things; choose an empty or new folder for --out.")
    make_folder(folder)
    folder.chmod(0o700)
    columns = {
        "TABLE": "table",
        "REGION_TYPE": "region_type",
        "ITERATION_CODE": "iteration",
        "DATA_CELL": "cell",
        "EXPERIMENTAL_MOE": "experimental_moe",
        "COUNT": "count",
        "EXPECTED_MOE": "expected_moe",
        "EXACT_MOE": "exact_moe",
        "NOISE_MOE": "noise_moe",
        "TRUNCATION_BIAS": "truncation_bias",
    }
    lines = [
        "|".join(columns),
        *("|".join(str(getattr(row, name)) for name in columns.values()) for row in rows),
    ]
    write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))
    return path


class _Counter:
    """Counts tables for each key, and remembers the last counts; rows are filtered and joined once."""

    def __init__(self, plan: Plan, linked: Linked) -> None:
        self._plan = plan
        self._state = linked.state
        self._tables = [table for table in plan.config.tables if table.name in plan.config.budgets]
        self._rows = {table.name: counted_rows(table, linked) for table in self._tables}
        self.last: dict[str, Ints] = {}
        self.count: CountTables = self._count

    def whole(self) -> dict[str, Ints]:
        """Count without truncation."""
        return {table.name: self._cube(table, self._rows[table.name]) for table in self._tables}

    def _count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        self.last = {}
        for table in self._tables:
            rows = self._rows[table.name]
            if table.has_tau:
                tau = plan.config.tau[table.name]
                rows = truncated(rows, tau, plan.truncation, keys.get(table.name))
            self.last[table.name] = self._cube(table, rows)
        return self.last

    def _cube(self, table: Table, rows: Joined) -> Ints:
        return count_cube(table, rows, self._state, len(self._plan.config.state_filter))


def _laid_out(plan: Plan, cubes: Mapping[str, Ints], derived: tuple[Derived, ...]) -> dict[str, OutputTable]:
    """Lay counts out as the private tables are, without noise."""
    tables = {}
    for table in plan.config.tables:
        if table.name in cubes:
            levels = plan.config.budgets[table.name]
            blocks = tuple(Block(level, level_counts(cubes[table.name], level)) for level in levels)
            tables[table.name] = OutputTable(table.name, table.has_groups, table.cells, blocks)
    return tables | {one.name: derive(one, tables[one.source]) for one in derived if one.source in tables}


def _spots(table: OutputTable) -> list[tuple[Spot, Ints]]:
    """Return the counts of each level, group and cell, one a region."""
    return [
        ((table.name, block.level, group, cell), block.counts[:, group, position])
        for block in table.blocks
        for group in range(block.counts.shape[1])
        for position, cell in enumerate(table.cells)
    ]


def _find(table: OutputTable, spot: Spot) -> Ints:
    _, level, group, cell = spot
    block = next(block for block in table.blocks if block.level == level)
    return np.asarray(block.counts[:, group, table.cells.index(cell)])


def _percentile(errors: Sequence[Ints]) -> float:
    return float(np.quantile(np.concatenate(errors), _SHARE, method="linear"))


class _Moes:
    """Expected margins, by table, level and cell."""

    def __init__(self, plan: Plan, derived: tuple[Derived, ...]) -> None:
        self._plan = plan
        self._noise = {(noise.table, noise.level): noise for noise in plan.noise}
        self._derived = {one.name: one for one in derived}
        self._exact: dict[tuple[str, str], dict[int, int]] = {}

    def _source(self, table: str, level: Level) -> LevelNoise:
        source = self._derived[table].source if table in self._derived else table
        return self._noise[source, level.name]

    def published(self, table: str, level: Level, cell: int) -> float:
        """Return the published margin; a sum of k cells has sqrt(k) times the margin of one."""
        moe = published_moe(self._source(table, level), self._plan)
        parts = len(self._derived[table].cells[cell]) if table in self._derived else 1
        return moe if parts == 1 else round(math.sqrt(parts) * moe, 1)

    def exact(self, table: str, level: Level, cell: int) -> int:
        """Return the exact margin."""
        law = self._source(table, level).law
        if law is None:
            return 0
        if (table, level.name) not in self._exact:
            declared = self._derived.get(table) or next(
                one for one in self._plan.config.tables if one.name == table
            )
            self._exact[table, level.name] = cell_margins(declared, law)
        return self._exact[table, level.name][cell]
