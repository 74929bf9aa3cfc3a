"""Check an output folder: the published output validation, and ``opendas verify`` of household tables.

The published checks apply to output of either program: folders, header and column order, the domain of every
field, states inside the filter, one row for each cell of the grid, and VARIANCE by its formula. Output of
this program is also checked against its certificate, which names states, tables, levels, budgets and tau.
From these the plan, the noise and the losses under every bound and relation are computed again. No check
opens the input, a key or a ledger.

Notes
-----
Sexton et al. (2024), sections 6.1 and 6.5.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from opendas.custody.account import AccountFacts
from opendas.custody.ledger_entries import INFINITE, Loss
from opendas.custody.signing_key import PublicKey
from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.errors import CheckFailed, ConfigError
from opendas.phsafe.certificate import FORMAT, household_certificate, run_stamps
from opendas.phsafe.config import Config, Mode, Plan, read_config
from opendas.phsafe.folder import stored_mode
from opendas.phsafe.inputs.levels import Level, NoiseDistribution, find_level, regions
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table, find_table
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity
from opendas.phsafe.truncation import Truncation
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.report.certificate import CERTIFICATE, SIGNATURE, ReleasedFile
from opendas.report.signature import check_signature
from opendas.verify.check import Check, differing, first_few, require, run_check
from opendas.verify.files import check_digests, check_found, read_certificate

_OURS = (CERTIFICATE, SIGNATURE, "ledger.jsonl", ".opendas.lock")
_ESTIMATES = re.compile(r"\w+/estimates/\w+_trunc_normal\.csv")
"""Files of statistical post-processing, which the certificate does not list."""

RELATIVE_TOLERANCE = 1e-6
"""Tolerance of a VARIANCE, as in the published validation."""

_COUNT = re.compile("-?[0-9]+")
_SHOWN = 5

Key = tuple[str, str, str]
"""REGION_ID, population group and cell code as written; group ``*`` if there is no such column."""


def holds_household_tables(out: Path) -> bool:
    """Whether a folder is output of ``opendas phsafe``."""
    if stored_mode(out) is not None:
        return True
    try:
        certificate = json.loads((out / CERTIFICATE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(certificate, dict) and certificate.get("format") == FORMAT


def verify_output(
    out: Path,
    *,
    allow_seeded: bool = False,
    signed_by: PublicKey | None = None,
    rederive: bool = False,
    workers: int | None = None,
    tables: tuple[Table, ...] = TABLES,
    derived: tuple[Derived, ...] = DERIVED,
) -> tuple[Check, ...]:
    """Check the output of a private run.

    - `allow_seeded`: accept a run that is stamped NOT FOR RELEASE.
    - `signed_by`: key whose signature is required.
    - `rederive`: compute the estimates of ``phsafe-post`` again. (Tables that sum others are always computed
      again.)
    - `workers`: threads for that.
    - `tables`, `derived`: the declared tables; an agency adds its own.
    - Returns: in a fixed order; the output passes if all are ok.
    """
    if stored_mode(out) is Mode.NON_PRIVATE:
        raise ConfigError(f"{out} holds exact counts (non-private mode): there is no release to verify.")
    first = run_check("certificate", lambda: _describe(_certificate(out)))
    if not first.ok:
        return (first,)
    certificate = _certificate(out)
    listed = certificate["files"]
    checks = [
        first,
        run_check("files", lambda: _check_listing(out, [str(entry["path"]) for entry in listed])),
        run_check("digests", lambda: check_digests(out, listed)),
        run_check("signature", lambda: check_signature(out, signed_by)),
        run_check("stamps", lambda: _check_stamps(certificate, allow_seeded)),
    ]
    try:
        plan = _plan(certificate["runs"][0], tables)
    except (ConfigError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return (
            *checks,
            Check(
                "plan",
                False,
                f"the certificate describes no run that this version can check ({type(error).__name__}).",
            ),
        )
    checks.append(run_check("plan", lambda: _check_plan(certificate, plan, derived)))
    checks += check_tables(out, plan.config, plan.sensitivity, derived)
    if rederive:
        checks.append(run_check("estimates made again", lambda: _estimates_again(out, workers or 2)))
    return tuple(checks)


def verify_published(out: Path, config: Path) -> tuple[Check, ...]:
    """Check the output of the published PHSafe program, or table folders without a certificate.

    Returns: as :func:`check_tables` returns, under the published sensitivity bound. The program omits states
    without records, so their rows are not required.
    """
    return check_tables(out, read_config(config, Mode.PRIVATE), whole_grid=False)


def _estimates_again(out: Path, workers: int) -> str:
    # Imported here: it imports all of the posterior, which is rarely needed.
    from opendas.phsafe.posterior.post_processing import check_estimates_again

    names = (path.relative_to(out).as_posix() for path in out.glob("*/estimates/*"))
    return check_estimates_again(out, sorted(names), workers)


def _certificate(out: Path) -> dict[str, Any]:
    certificate = read_certificate(out, FORMAT, ("version", "stamps", "runs", "totals", "account", "files"))
    require(len(certificate["runs"]) == 1, "the certificate must have exactly one run.")
    return certificate


def _describe(certificate: Mapping[str, Any]) -> str:
    run = certificate["runs"][0]
    return f"version {certificate['version']}, {run['sensitivity']} bound, truncation {run['truncation']}"


def _check_listing(out: Path, listed: list[str]) -> str:
    """Check that every file in a table's folder is listed, and that every listed file exists."""
    found = []
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if name.parts[0] == "confidential":
            continue
        require(not path.is_symlink(), f"a release must not contain links: {name.as_posix()}.")
        if not path.is_dir() and name.as_posix() not in _OURS and not _ESTIMATES.fullmatch(name.as_posix()):
            found.append(name.as_posix())
    check_found(found, listed)
    return f"{len(found)} files, all listed"


def _check_stamps(certificate: Mapping[str, Any], allow_seeded: bool) -> str:
    stamps = certificate["stamps"]
    require(
        stamps == certificate["runs"][0]["stamps"],
        "the stamps of the run differ from those of the certificate.",
    )
    if NOT_FOR_RELEASE in stamps and not allow_seeded:
        raise CheckFailed(
            f"the tables are stamped {NOT_FOR_RELEASE}: their noise can be recomputed, or there is none. "
            "Pass --allow-seeded to check test output."
        )
    return first_few(stamps) or "none"


def _plan(run: Mapping[str, Any], tables: tuple[Table, ...]) -> Plan:
    """Rebuild the plan from the certificate."""
    budgets: dict[str, dict[Level, Loss]] = {}
    tau: dict[str, int] = {}
    for row in run["noise"]:
        level, table = find_level(row["level"]), find_table(row["table"], tables)
        if level is None or table is None or level not in table.levels:
            raise ConfigError("the certificate names a table or level that is not declared.")
        budget = row["budget"]
        budgets.setdefault(table.name, {})[level] = INFINITE if budget == INFINITE else Fraction(budget)
        if row["tau"] is not None:
            tau[table.name] = int(row["tau"])
    states = tuple(str(code) for code in run["state_filter"])
    config = Config(states, "csv", Mechanism(run["mechanism"]), budgets, tau, tables)
    return Plan(config, Sensitivity(run["sensitivity"]), Truncation(run["truncation"]))


def _check_plan(certificate: Mapping[str, Any], plan: Plan, derived: tuple[Derived, ...]) -> str:
    """Check noise, losses and guarantee against the plan."""
    run = certificate["runs"][0]
    require(run["plan_digest"] == plan.digest(), "the plan is not the certified one.")
    stamps = certificate["stamps"]
    seeded = NOT_FOR_RELEASE in stamps
    require(
        seeded or not run_stamps(plan, seeded=False), f"an infinite budget lacks the stamp {NOT_FOR_RELEASE}."
    )
    again = household_certificate(
        plan,
        [ReleasedFile(**entry) for entry in certificate["files"]],
        derived,
        AccountFacts.from_dict(certificate["account"]),
        seeded=seeded,
        key=str(run["key"]),
        version=certificate["version"],
        commit=str(certificate.get("commit")),
        issued=str(certificate.get("issued")),
    )
    wrong = list(differing(certificate, json.loads(json.dumps(again))))
    require(not wrong, f"entries that do not follow from plan and tables: {first_few(wrong)}.")
    charged = [row for row in certificate["totals"] if row["charged"]]
    return f"{len(run['noise'])} levels, {len(charged)} relations charged"


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """Required content of one table's folder."""

    name: str
    columns: tuple[str, ...]
    noise_name: str  # value of NOISE_DISTRIBUTION
    # Key -> (str, float): REGION_TYPE and VARIANCE of every row of the grid.
    rows: Mapping[Key, tuple[str, float]]


def expected_variance(answers: Answers, budget: Fraction, mechanism: Mechanism, bound: Sensitivity) -> float:
    """Return the VARIANCE of a cell by the published formula.

    - `budget`: rho or epsilon of the level, an unbounded loss.
    - Returns: ``D^2 / (2 rho)``, or ``2 exp(-1/b) / (1 - exp(-1/b))^2`` with ``b = D / epsilon``.
    """
    if mechanism.is_zcdp:
        return answers.l2_squared(bound, Neighbours.UNBOUNDED) / (2 * float(budget))
    step = float(budget) / answers.l1(bound, Neighbours.UNBOUNDED)
    return 2 * math.exp(-step) / math.expm1(-step) ** 2


def expected_tables(
    config: Config, bound: Sensitivity, derived: Sequence[Derived] = DERIVED
) -> tuple[ExpectedTable, ...]:
    """Return the tables that a private run of a configuration writes."""
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
    assert config.mechanism is not None
    for level, budget in config.budgets[table.name].items():
        variance = 0.0
        if not isinstance(budget, str):
            answers = Answers.of(table, level, config.tau.get(table.name))
            variance = expected_variance(answers, budget, config.mechanism, bound)
        for region in regions(level.geography, config.state_filter):
            for group in level.iteration.codes:
                for code, parts in cells.items():
                    rows[region, group, str(code)] = (level.geography.region_type, len(parts) * variance)
    groups = ("ITERATION_CODE",) if table.has_groups else ()
    columns = ("REGION_ID", "REGION_TYPE", *groups, f"{name.upper()}_DATA_CELL")
    noise_name = NoiseDistribution.of(config.mechanism)
    return ExpectedTable(name, (*columns, "COUNT", "NOISE_DISTRIBUTION", "VARIANCE"), noise_name, rows)


def check_tables(
    out: Path,
    config: Config,
    bound: Sensitivity = Sensitivity.PAPER,
    derived: Sequence[Derived] = DERIVED,
    *,
    whole_grid: bool = True,
) -> tuple[Check, ...]:
    """Check the table folders of a private run, written by this program or by the published one.

    - `bound`: bound that calibrated the noise; the published program has ``paper`` only.
    - `whole_grid`: require every row of the region grid. The published program omits states without records:
      pass False for its output.
    - Returns: folders, one check for each table, and tables computed from others.
    """
    expected = expected_tables(config, bound, derived)
    names = [table.name for table in expected]
    known = {table.name for table in config.tables} | {one.name for one in derived}
    checks = [run_check("folders", lambda: _check_folders(out, names, known))]
    checks += [
        run_check(table.name, partial(_check_table, out, table, whole_grid=whole_grid)) for table in expected
    ]
    checks += [
        run_check(f"{one.name} from {one.source}", partial(_check_derived, out, one))
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

    - Returns `columns`.
    - Returns `rows` (line, column to text).

    Raises `CheckFailed` if there is not exactly one file, or a row has another number of fields.
    """
    files = sorted((out / name).glob("part-*.csv"))
    require(len(files) == 1, f"expected one file part-*.csv in {name}, found {len(files)}.")
    require(not files[0].is_symlink(), f"{name}: the table must not be a link.")
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
            yield f"line {line}: the row appears twice"
        seen.add(key)
        region_type, variance = known
        if row["REGION_TYPE"] != region_type:
            yield f"line {line}: expected REGION_TYPE {region_type}"
        if not _COUNT.fullmatch(row["COUNT"]):
            yield f"line {line}: COUNT is not an integer"
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


def _check_derived(out: Path, derived: Derived) -> str:
    """Check that each derived count is the sum of counts of its source, with the same noise."""
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
