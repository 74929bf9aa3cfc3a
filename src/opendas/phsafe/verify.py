"""``opendas verify`` of household tables: the folder against its own certificate.

The certificate says which states, tables, levels, budgets and tau a run had. The plan is made again from
that, and with it the noise, the losses under every bound and relation, and every row of the grid. Neither
input nor key nor ledger is opened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from opendas.custody.ledger_entries import INFINITE, Loss
from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.errors import CheckFailed, ConfigError
from opendas.phsafe.certificate import FORMAT, household_certificate, run_stamps
from opendas.phsafe.config import Config, Mode
from opendas.phsafe.folder import stored_mode
from opendas.phsafe.model import Level, find_level
from opendas.phsafe.plan import Plan
from opendas.phsafe.sensitivity import Sensitivity
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table, find_table
from opendas.phsafe.truncation import Truncation
from opendas.privacy.relations import Mechanism
from opendas.report.certificate import CERTIFICATE
from opendas.verify.check import Check, first_few, require, run_check
from opendas.verify.files import check_digests

__all__ = ["holds_household_tables", "verify_output"]

_OURS = (CERTIFICATE, "ledger.jsonl", ".opendas.lock")
_TOLERANCE = 1e-9
_ESTIMATES = re.compile(r"\w+/estimates/\w+_trunc_normal\.csv")
"""Files of the statistical post-processing, which the certificate does not list."""


def holds_household_tables(out: Path) -> bool:
    """Return whether a folder is the output of ``opendas phsafe``."""
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
    tables: tuple[Table, ...] = TABLES,
    derived: tuple[Derived, ...] = DERIVED,
) -> tuple[Check, ...]:
    """Check the output of a private run.

    Parameters
    ----------
    out : Path
    allow_seeded : bool
        Accept a run that is stamped NOT FOR RELEASE.
    tables, derived : tuple
        The declared tables; an agency adds its own.

    Returns
    -------
    tuple of Check
        In a fixed order; the output passes if all are ok.

    Raises
    ------
    ConfigError
        If the folder holds exact counts, which are not for release.
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
        run_check("stamps", lambda: _check_stamps(certificate, allow_seeded)),
    ]
    try:
        plan = _plan(certificate["runs"][0], tables)
    except (ConfigError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return (*checks, Check("plan", False, f"the certificate describes no run ({type(error).__name__})."))
    checks.append(run_check("plan", lambda: _check_plan(certificate, plan, derived)))
    # Imported here: it brings in the drawing of noise, which whoever only asks what a folder holds can spare.
    from opendas.phsafe.check_output import check_tables

    return (*checks, *check_tables(out, plan.config, plan.sensitivity, derived))


def _certificate(out: Path) -> dict[str, Any]:
    path = out / CERTIFICATE
    require(path.is_file() and not path.is_symlink(), f"{CERTIFICATE} is missing.")
    try:
        certificate = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CheckFailed(f"{CERTIFICATE} is no JSON.") from None
    require(isinstance(certificate, dict) and certificate.get("format") == FORMAT, f"expected {FORMAT!r}.")
    runs = certificate.get("runs")
    require(isinstance(runs, list) and len(runs) == 1, "the certificate needs one run.")
    missing = [key for key in ("version", "stamps", "totals", "files") if key not in certificate]
    require(not missing, f"{CERTIFICATE} lacks {first_few(missing)}.")
    found: dict[str, Any] = certificate
    return found


def _describe(certificate: Mapping[str, Any]) -> str:
    run = certificate["runs"][0]
    return f"version {certificate['version']}, {run['sensitivity']} bound, truncation {run['truncation']}"


def _check_listing(out: Path, listed: list[str]) -> str:
    """Every file in a table's folder is listed, and every listed file is there."""
    found = []
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if name.parts[0] == "confidential":
            continue
        require(not path.is_symlink(), f"links are no part of a release: {name.as_posix()}.")
        if not path.is_dir() and name.as_posix() not in _OURS and not _ESTIMATES.fullmatch(name.as_posix()):
            found.append(name.as_posix())
    unlisted, missing = sorted(set(found) - set(listed)), sorted(set(listed) - set(found))
    require(not unlisted, f"not listed in the certificate: {first_few(unlisted)}.")
    require(not missing, f"listed in the certificate but missing: {first_few(missing)}.")
    return f"{len(found)} files, all listed"


def _check_stamps(certificate: Mapping[str, Any], allow_seeded: bool) -> str:
    stamps = certificate["stamps"]
    require(stamps == certificate["runs"][0]["stamps"], "the stamps of the run are not those on top.")
    if NOT_FOR_RELEASE in stamps and not allow_seeded:
        raise CheckFailed(
            f"the tables are stamped {NOT_FOR_RELEASE}: their noise can be recomputed, or there is none. "
            "Pass --allow-seeded to check test output."
        )
    return first_few(stamps) or "none"


def _plan(run: Mapping[str, Any], tables: tuple[Table, ...]) -> Plan:
    """Make the plan again from what the certificate says of it."""
    budgets: dict[str, dict[Level, Loss]] = {}
    tau: dict[str, int] = {}
    for row in run["noise"]:
        level, table = find_level(row["level"]), find_table(row["table"], tables)
        if level is None or table is None or level not in table.levels:
            raise ConfigError("a table or level that is not declared.")
        budget = row["budget"]
        budgets.setdefault(table.name, {})[level] = INFINITE if budget == INFINITE else Fraction(budget)
        if row["tau"] is not None:
            tau[table.name] = int(row["tau"])
    states = tuple(str(code) for code in run["state_filter"])
    config = Config(states, "csv", Mechanism(run["mechanism"]), budgets, tau, tables)
    return Plan(config, Sensitivity(run["sensitivity"]), Truncation(run["truncation"]))


def _check_plan(certificate: Mapping[str, Any], plan: Plan, derived: tuple[Derived, ...]) -> str:
    """Noise, losses and guarantee are those of the plan."""
    run = certificate["runs"][0]
    require(run["plan_digest"] == plan.digest(), "the plan is not the certified one.")
    stamps = certificate["stamps"]
    seeded = NOT_FOR_RELEASE in stamps
    require(seeded or not run_stamps(plan, seeded=False), f"an infinite budget without {NOT_FOR_RELEASE}.")
    again = household_certificate(
        plan,
        (),
        derived,
        seeded=seeded,
        version=certificate["version"],
        commit=str(certificate.get("commit")),
        issued=str(certificate.get("issued")),
    )
    again = json.loads(json.dumps(again))
    for part in ("noise", "derived"):
        require(_same(run[part], again["runs"][0][part]), f"{part}: other values than the plan gives.")
    require(_same(certificate["totals"], again["totals"]), "totals: other losses than the plan gives.")
    require(run["guarantee"] == again["runs"][0]["guarantee"], "another guarantee than the plan gives.")
    charged = [row for row in certificate["totals"] if row["charged"]]
    return f"{len(run['noise'])} levels, {len(charged)} relations charged"


def _same(one: Any, other: Any) -> bool:
    """Compare plain data; floats may differ in the last digits, as between machines."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)
