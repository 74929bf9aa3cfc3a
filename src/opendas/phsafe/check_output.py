"""Output validation: the published checks, on our output or on the published program's.

Folders, header and column order, the domain of every field, states inside the filter, one row for each cell
of the grid, and VARIANCE as its formula gives it. For a folder of ours,
:mod:`opendas.phsafe.verify` checks the certificate against it too. Neither opens the input or the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from opendas.errors import CheckFailed
from opendas.phsafe.config import Config
from opendas.phsafe.measure import NOISE_NAMES
from opendas.phsafe.model import Level, regions
from opendas.phsafe.sensitivity import Answers, Sensitivity
from opendas.phsafe.tables import DERIVED, Derived, Table
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.verify.check import Check, first_few, require, run_check

__all__ = ["ExpectedTable", "check_tables", "expected_tables", "expected_variance", "read_rows"]

RELATIVE_TOLERANCE = 1e-6
"""Of a VARIANCE, as in the published validation."""

_COUNT = re.compile("-?[0-9]+")
_SHOWN = 5

Key = tuple[str, str, str]
"""REGION_ID, population group, cell code, as written; the group is ``*`` where there is no such column."""


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """What one output folder has to hold.

    Parameters
    ----------
    name : str
    columns : tuple of str
    noise_name : str
        What NOISE_DISTRIBUTION says.
    rows : mapping of Key to (str, float)
        REGION_TYPE and VARIANCE of every row of the grid.
    """

    name: str
    columns: tuple[str, ...]
    noise_name: str
    rows: Mapping[Key, tuple[str, float]]


def expected_variance(answers: Answers, budget: Fraction, mechanism: Mechanism, bound: Sensitivity) -> float:
    """Return the VARIANCE of a cell by the published formula.

    Parameters
    ----------
    answers : Answers
    budget : Fraction
        rho or epsilon of the level, an unbounded loss.
    mechanism : Mechanism
    bound : Sensitivity

    Returns
    -------
    float
        ``D^2 / (2 rho)``, or ``2 exp(-1/b) / (1 - exp(-1/b))^2`` with ``b = D / epsilon``.
    """
    if mechanism is Mechanism.DISCRETE_GAUSSIAN:
        return answers.l2_squared(bound, Neighbours.UNBOUNDED) / (2 * float(budget))
    step = float(budget) / answers.l1(bound, Neighbours.UNBOUNDED)
    return 2 * math.exp(-step) / math.expm1(-step) ** 2


def expected_tables(
    config: Config, bound: Sensitivity, derived: Sequence[Derived] = DERIVED
) -> tuple[ExpectedTable, ...]:
    """Return what a private run of a configuration writes, table by table."""
    found = []
    for table in config.tables:
        if table.name not in config.budgets:
            continue
        single = {code: (code,) for code in table.cells}
        found.append(_expected(table.name, table, single, config, bound))
        found += [
            _expected(one.name, table, one.cells, config, bound)
            for one in derived
            if one.source == table.name
        ]
    return tuple(found)


def _expected(
    name: str, table: Table, cells: Mapping[int, Sequence[int]], config: Config, bound: Sensitivity
) -> ExpectedTable:
    rows: dict[Key, tuple[str, float]] = {}
    for level in config.budgets[table.name]:
        variance = _variance(table, level, config, bound)
        for region in regions(level.geography, config.state_filter):
            for group in level.iteration.codes:
                for code, parts in cells.items():
                    rows[region.code, group, str(code)] = (level.geography.region_type, len(parts) * variance)
    groups = ("ITERATION_CODE",) if table.has_groups else ()
    columns = ("REGION_ID", "REGION_TYPE", *groups, f"{name.upper()}_DATA_CELL")
    assert config.mechanism is not None
    noise_name = NOISE_NAMES[config.mechanism]
    return ExpectedTable(name, (*columns, "COUNT", "NOISE_DISTRIBUTION", "VARIANCE"), noise_name, rows)


def _variance(table: Table, level: Level, config: Config, bound: Sensitivity) -> float:
    budget = config.budgets[table.name][level]
    if isinstance(budget, str):
        return 0.0
    assert config.mechanism is not None
    answers = Answers.of(table, level, config.tau.get(table.name))
    return expected_variance(answers, budget, config.mechanism, bound)


def check_tables(
    out: Path,
    config: Config,
    bound: Sensitivity = Sensitivity.PAPER,
    derived: Sequence[Derived] = DERIVED,
    *,
    whole_grid: bool = True,
) -> tuple[Check, ...]:
    """Check the table folders of a private run, written by this program or by the published one.

    Parameters
    ----------
    out : Path
    config : Config
        Of the run.
    bound : Sensitivity
        That the noise was made for; the published program knows ``paper`` only.
    derived : sequence of Derived
    whole_grid : bool
        Every row of the region grid has to be there. The published program leaves out states without
        records: pass False for its output.

    Returns
    -------
    tuple of Check
        Folders, one check a table, and the tables computed from others.
    """
    expected = expected_tables(config, bound, derived)
    names = [table.name for table in expected]
    known = {table.name for table in config.tables} | {one.name for one in derived}
    checks = [run_check("folders", lambda: _check_folders(out, names, known))]
    checks += [
        run_check(table.name, partial(_check_table, out, table, whole_grid=whole_grid)) for table in expected
    ]
    checks += [
        run_check(f"{one.name} from {one.source}", partial(_check_derived, out, one, config))
        for one in derived
        if one.source in config.budgets
    ]
    return tuple(checks)


def _check_folders(out: Path, wanted: Sequence[str], known: set[str]) -> str:
    there = [name for name in sorted(known) if (out / name).is_dir()]
    missing = [name for name in wanted if name not in there]
    require(not missing, f"missing folders: {first_few(missing)}.")
    further = [name for name in there if name not in wanted]
    require(not further, f"folders of tables without a budget: {first_few(further)}.")
    return f"{len(wanted)} tables"


def read_rows(out: Path, name: str) -> tuple[tuple[str, ...], list[tuple[int, dict[str, str]]]]:
    """Read the file of a table.

    Returns
    -------
    columns : tuple of str
    rows : list of (line, column to text)

    Raises
    ------
    CheckFailed
        If there is not exactly one file, or rows have another number of fields.
    """
    files = sorted((out / name).glob("part-*.csv"))
    require(len(files) == 1, f"expected one file part-*.csv in {name}, found {len(files)}.")
    require(not files[0].is_symlink(), f"{name}: a link is no table.")
    header, *lines = files[0].read_text(encoding="utf-8").splitlines() or [""]
    columns = tuple(header.split("|"))
    rows = []
    for number, line in enumerate(lines, start=2):
        values = line.split("|")
        require(len(values) == len(columns), f"line {number}: expected {len(columns)} fields.")
        rows.append((number, dict(zip(columns, values, strict=True))))
    return columns, rows


def _check_table(out: Path, expected: ExpectedTable, *, whole_grid: bool) -> str:
    columns, rows = read_rows(out, expected.name)
    require(columns == expected.columns, f"expected the columns {'|'.join(expected.columns)}.")
    wrong = list(_wrong_rows(rows, expected))
    seen = {_key(row, expected.name) for _, row in rows}
    if whole_grid and not wrong and len(seen) < len(expected.rows):
        missing = [" ".join(key) for key in expected.rows if key not in seen]
        wrong.append(f"rows missing: {len(missing)} ({first_few(missing)})")
    require(not wrong, "; ".join(wrong[:_SHOWN]) + ("" if len(wrong) <= _SHOWN else "; and others") + ".")
    return f"{len(rows)} rows"


def _wrong_rows(rows: Sequence[tuple[int, Mapping[str, str]]], expected: ExpectedTable) -> Iterator[str]:
    seen = set()
    for line, row in rows:
        key = _key(row, expected.name)
        known = expected.rows.get(key)
        if known is None:
            yield f"line {line}: region, group and cell are not in the grid of the configuration"
            continue
        if key in seen:
            yield f"line {line}: the row stands twice"
        seen.add(key)
        region_type, variance = known
        if row["REGION_TYPE"] != region_type:
            yield f"line {line}: expected REGION_TYPE {region_type}"
        if not _COUNT.fullmatch(row["COUNT"]):
            yield f"line {line}: COUNT is no integer"
        if row["NOISE_DISTRIBUTION"] != expected.noise_name:
            yield f"line {line}: expected NOISE_DISTRIBUTION {expected.noise_name}"
        if not _close(row["VARIANCE"], variance):
            yield f"line {line}: expected VARIANCE {variance!r}"


def _key(row: Mapping[str, str], name: str) -> Key:
    return row["REGION_ID"], row.get("ITERATION_CODE", "*"), row[f"{name.upper()}_DATA_CELL"]


def _close(text: str, variance: float) -> bool:
    try:
        return math.isclose(float(text), variance, rel_tol=RELATIVE_TOLERANCE)
    except ValueError:
        return False


def _check_derived(out: Path, derived: Derived, config: Config) -> str:
    """A derived count is the sum of the counts it is made of: the same noise."""
    counts = {name: _counts(out, name) for name in (derived.name, derived.source)}
    for (region, group, cell), count in counts[derived.name].items():
        parts = derived.cells.get(int(cell), ())
        total = sum(counts[derived.source].get((region, group, str(part)), 0) for part in parts)
        require(count == total, f"region {region}, group {group}, cell {cell} is not the sum of its cells.")
    return f"{len(counts[derived.name])} sums"


def _counts(out: Path, name: str) -> dict[Key, int]:
    try:
        return {_key(row, name): int(row["COUNT"]) for _, row in read_rows(out, name)[1]}
    except (KeyError, ValueError):
        raise CheckFailed(f"{name} cannot be read as a table.") from None
