"""Report the errors of repeated private tables against the truth. For test data only.

The published report compares with the exact tables of the non-private mode, so its errors include noise and
truncation. This report adds the errors from noise alone and the bias from truncation alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from opendas.arrays import Ints
from opendas.custody.account import EXPERIMENT
from opendas.custody.folders import make_folder, write_atomic
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError
from opendas.phsafe.config import Mode, Plan, read_config
from opendas.phsafe.counting import count_cube, count_tables, counted_rows
from opendas.phsafe.folder import PRODUCT, refuse_inside_release
from opendas.phsafe.inputs.levels import Level
from opendas.phsafe.inputs.linking import Linked
from opendas.phsafe.margins import cell_margins
from opendas.phsafe.measure import measure, prepare_samplers
from opendas.phsafe.output import PART_FILE, Block, OutputTable, exact_tables, private_tables
from opendas.phsafe.run import HouseholdOptions, LocalHouseholds, read_inputs, tagger
from opendas.phsafe.tables import DERIVED, Derived, Table
from opendas.phsafe.tables.sensitivity import LevelNoise
from opendas.privacy.relations import Neighbours
from opendas.runs.context.account import note_reading

_SHARE = 0.90
_Z = 1.64  # columns of the published report
_INPUT_TAG = "00" * 32


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Errors of one table, region type, population group and cell over regions and trials. Confidential."""

    table: str
    region_type: str
    iteration: str
    cell: int
    experimental_moe: float  # 90th percentile (linear interpolation) of |noisy - exact|, truncation included
    count: int  # number of errors
    expected_moe: float  # margin by the published formula, to one decimal
    exact_moe: int  # smallest m with P(|noise| <= m) >= 0.90
    noise_moe: float  # 90th percentile of |noisy - truncated|: noise alone
    truncation_bias: float  # mean of truncated - not truncated, in persons: never positive

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def run_accuracy(
    config_path: Path, data: Path, trials: int, options: HouseholdOptions
) -> tuple[AccuracyRow, ...]:
    """Compare private tables of a configuration and test data with the truth.

    A book that knows the data records it.

    - `trials`, >= 1.
    - `options`: its seed is the first trial's.
    """
    config = read_config(config_path, Mode.PRIVATE, options.tables)
    plan = Plan(config, options.sensitivity, options.truncation)
    households = LocalHouseholds(read_inputs(config, data, options.tell), config)
    households.validate().refuse_errors(data)
    note_reading(EXPERIMENT, tagger(config, data, households), product=PRODUCT)
    return accuracy_report(plan, households.linked, trials, options.seed or 0, options.tell, options.derived)


def accuracy_report(
    plan: Plan,
    linked: Linked,
    trials: int,
    seed: int,
    progress: Callable[[str, int, int], None] | None = None,
    derived: tuple[Derived, ...] = DERIVED,
) -> tuple[AccuracyRow, ...]:
    """Compute the private tables `trials` times in memory and compare them with the truth.

    No ledger is charged, so nothing of the report may be released, and data that need protection must not be
    used.

    - `trials`, >= 1.
    - `seed`: seed of the first trial; later trials count up from it.
    - `progress` (stage, done, total).
    - Returns: by table, level, population group and cell.
    """
    if trials < 1:
        raise ConfigError(f"an accuracy report needs at least one trial, not {trials}.")
    prepare_samplers(plan)
    tables = {table.name: table for table in plan.config.tables if table.name in plan.config.budgets}
    rows = {name: counted_rows(table, linked) for name, table in tables.items()}
    states = len(plan.config.state_filter)
    whole = {name: count_cube(tables[name], rows[name], linked.state, states) for name in tables}
    kept: dict[str, Ints] = {}

    def count(plan: Plan, keys: Mapping[str, bytes]) -> dict[str, Ints]:
        kept.update(count_tables(plan, linked, keys, before=rows))
        return kept

    def noiseless(cubes: Mapping[str, Ints]) -> dict[str, OutputTable]:
        found = private_tables(plan, cubes, derived, lambda _, level, counts: Block(level, counts))
        return {table.name: table for table in found}

    exact = {table.name: table for table in exact_tables(plan.config, linked, derived)}
    untruncated = noiseless(whole)
    errors: dict[tuple[str, Level], list[Ints]] = {}
    for trial in range(trials):
        noisy = measure(plan, count, RunKey.seeded(seed + trial), _INPUT_TAG, derived)
        truncated = noiseless(kept)
        for table in noisy:
            for block in table.blocks:
                truth, left, full = (
                    one[table.name].select(block.level, table.cells)
                    for one in (exact, truncated, untruncated)
                )
                three = [np.abs(block.counts - truth), np.abs(block.counts - left), left - full]
                errors.setdefault((table.name, block.level), []).append(np.stack(three))
        if progress is not None:
            progress("trials", trial + 1, trials)
    return tuple(
        row
        for (name, level), found in errors.items()
        for row in _rows(plan, name, level, np.stack(found, axis=1), derived)
    )


def _rows(
    plan: Plan, name: str, level: Level, errors: Ints, derived: tuple[Derived, ...]
) -> Iterator[AccuracyRow]:
    """Yield the rows of a table at a level.

    `errors` (3, trials, regions, groups, cells): absolute errors from noise and truncation, absolute errors
    from noise alone, and errors from truncation.
    """
    every: tuple[Table | Derived, ...] = (*derived, *plan.config.tables)
    declared = next(one for one in every if one.name == name)
    source = declared.source if isinstance(declared, Derived) else name
    noise = next(one for one in plan.noise if (one.table, one.level) == (source, level.name))
    published = published_moe(noise, plan)
    exact = dict.fromkeys(declared.cells, 0) if noise.law is None else cell_margins(declared, noise.law)
    both, alone, truncation = errors
    experimental, by_noise = (
        np.quantile(part, _SHARE, axis=(0, 1), method="linear") for part in (both, alone)
    )
    bias = truncation.mean(axis=(0, 1))
    for group, code in enumerate(level.iteration.codes):
        for position, cell in enumerate(declared.cells):
            # The margin of a sum of k cells is sqrt(k) times that of one cell.
            parts = len(declared.cells[cell]) if isinstance(declared, Derived) else 1
            yield AccuracyRow(
                table=name,
                region_type=level.geography.region_type,
                iteration=code,
                cell=cell,
                experimental_moe=float(experimental[group, position]),
                count=int(np.prod(both.shape[:2])),
                expected_moe=published if parts == 1 else round(math.sqrt(parts) * published, 1),
                exact_moe=exact[cell],
                noise_moe=float(by_noise[group, position]),
                truncation_bias=float(bias[group, position]),
            )


def published_moe(noise: LevelNoise, plan: Plan) -> float:
    """Return EXPECTED_MOE of the published report: ``1.64 D / sqrt(2 rho)``, or ``b ln(20 / (1 + e^(1/b)))``.

    Returns: to one decimal, as published; 0 for an infinite budget. For wide two-sided geometric noise this
    is the margin of a continuous law.
    """
    if isinstance(noise.budget, str):
        return 0.0
    answers, bound, relation = noise.answers, plan.sensitivity, Neighbours.UNBOUNDED
    if plan.mechanism.is_zcdp:
        return round(_Z * math.sqrt(answers.l2_squared(bound, relation) / (2 * float(noise.budget))), 1)
    b = answers.l1(bound, relation) / float(noise.budget)
    # ln(1 + e^x) without overflow: x + ln(1 + e^-x).
    return round(b * (math.log(20) - 1 / b - math.log1p(math.exp(-1 / b))), 1)


def write_report(folder: Path, rows: Sequence[AccuracyRow]) -> Path:
    """Write a report in the published form, one ``|``-delimited file, with further columns at the end."""
    path = folder / PART_FILE
    refuse_inside_release(folder)
    if folder.exists() and (not folder.is_dir() or any(one != path for one in folder.iterdir())):
        raise ConfigError(f"{folder} holds other files; choose an empty or new folder for --out.")
    make_folder(folder)
    folder.chmod(0o700)
    published = {"iteration": "iteration_code", "cell": "data_cell"}
    names = [column.name for column in fields(AccuracyRow)]
    lines = [
        "|".join(published.get(name, name).upper() for name in names),
        *("|".join(str(getattr(row, name)) for name in names) for row in rows),
    ]
    write_atomic(path, ("\n".join(lines) + "\n").encode("ascii"))
    return path
