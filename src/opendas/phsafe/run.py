"""Run the three modes: private, non-private, validate.

A private run reads and checks everything, enters the act into the ledger, and only then draws. It takes
seconds, so resuming repeats it under the same key: the same draws, the same bytes, no further loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from opendas.arrays import Ints
from opendas.custody.account import EXACT
from opendas.custody.folders import open_folder, write_atomic
from opendas.custody.protected_units import ADDRESS
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError, Finding
from opendas.files.storage.remote import PASSWORD_RULE, RemoteAddress, holds_password
from opendas.phsafe.certificate import issue_certificate, run_stamps
from opendas.phsafe.config import Config, Mode, Plan, read_config
from opendas.phsafe.counting import Progress, count_tables, exact_cubes
from opendas.phsafe.folder import PRODUCT, HouseholdWorkspace, exact_folder, refuse_other
from opendas.phsafe.inputs.linking import bucket_digests, canonical_bytes, link, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.measure import measure, prepare_samplers
from opendas.phsafe.output import exact_declarations, lay_out, write_tables
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table
from opendas.phsafe.tables.sensitivity import Sensitivity
from opendas.phsafe.truncation import Truncation
from opendas.phsafe.validate import Validation, validate
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Neighbours
from opendas.runs.act import Planned, open_act
from opendas.runs.context.account import InputTagger, note_reading
from opendas.runs.options import ActOptions

if TYPE_CHECKING:
    from opendas.phsafe.spark_households import SparkHouseholds


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseholdOptions(ActOptions):
    """Options of a run besides the configuration.

    - `sensitivity`, `truncation`: or their names.
    - `warn`, callable(findings) or None: called once with inconsistent records that are counted all the same.
    - `tables`: the measured tables; an agency adds its own.
    """

    sensitivity: Sensitivity = Sensitivity.PAPER
    truncation: Truncation = Truncation.KEYED
    warn: Callable[[Sequence[Finding]], None] | None = None
    tables: tuple[Table, ...] = TABLES
    derived: tuple[Derived, ...] = DERIVED

    def __post_init__(self) -> None:
        ActOptions.__post_init__(self)
        object.__setattr__(self, "sensitivity", Sensitivity(self.sensitivity))
        object.__setattr__(self, "truncation", Truncation(self.truncation))
        cells = {table.name: set(table.cells) for table in self.tables}
        for one in self.derived:
            if one.name in cells:
                raise ConfigError(f"table {one.name} is both measured and derived. Rename one of them.")
            parts = {part for summed in one.cells.values() for part in summed}
            if not parts <= cells.get(one.source, parts):
                raise ConfigError(f"table {one.name} sums cells that {one.source} does not have.")


def run_private(config_path: Path, data: Path | str, out: Path, options: HouseholdOptions) -> dict[str, Any]:
    """Write the private tables of a data set into an output folder.

    - `data`: the folder (or, for other readers, the file) that the configured reader takes; the engine
      ``spark`` takes URLs too.
    - Returns: ``out``, ``tables``, ``stamps``, ``rho`` or ``epsilon`` under both relations, and timing.

    Raises `ConfigError`, `DataError`, `PrivacyError`, `EnvironmentFailure` before any draw; no partial output
    remains.
    """
    plan = Plan(
        read_config(config_path, Mode.PRIVATE, options.tables), options.sensitivity, options.truncation
    )
    refuse_other(out, Mode.PRIVATE)
    prepare_samplers(plan)
    planned = _planned(plan, data)
    with (
        HouseholdWorkspace(out, options.ledger, group_writable=options.group_writable) as space,
        open_act(space, PRODUCT, "phsafe", options) as act,
    ):
        issue = partial(issue_certificate, out, plan, options.derived)
        if act.earlier is not None and act.earlier.plan_digest == planned.plan_digest:
            act.finish_ending(issue)
        act.refuse_repetition()
        if act.is_finished and not act.has_key:
            # The key was destroyed, is elsewhere or is encrypted; the plan can still be compared.
            act.check_without_key(planned)
            return act.answer()
        with _open(plan.config, data, options) as households:
            act.clock.lap("read")
            found = households.validate()
            found.refuse_errors(data)
            act.clock.lap("check")
            act.find_account(tagger(plan.config, data, households))
            identified = act.identify(planned, partial(_input_tag, households))
            if act.is_finished:
                return act.answer()
            charged = act.charge(identified)
            key, state = charged.key, charged.state
            tables = measure(plan, households.count, key, state.input_tag, options.derived)
        act.clock.lap("count and measure")
        options.tell("writing", 0, 1)
        if plan.config.is_infinite:
            with open_folder(out) as folder:
                folder.set_mode(0o700)  # true counts, as in the non-private mode
        files = write_tables(out, tables, plan.config.state_filter)
        _save_warnings(space, found.warnings)
        act.clock.lap("write")
        facts = {"tables": list(files), "seeded": key.is_seeded}
        answer = act.finish(state, _result(plan, files, seeded=key.is_seeded), facts, issue)
        options.tell("writing", 1, 1)
        _warn(options, found)
        return answer


def run_exact(
    config_path: Path, data: Path | str, out: Path, options: HouseholdOptions
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Write the exact tables of a data set into a folder that only its owner can read.

    A book of the data set records the act.

    - Returns `answer`: ``out`` and ``tables``.
    - Returns `findings`: errors that a private run refuses; here, rows that have a cell are counted.
    """
    config = read_config(config_path, Mode.NON_PRIVATE, options.tables)
    with exact_folder(out):
        declared = exact_declarations(config, options.derived)
        with _open(config, data, options) as households:
            found = households.validate(every_table=True)
            note_reading(EXACT, tagger(config, data, households), product=PRODUCT)
            options.tell("counting", 0, 1)
            tables = lay_out(declared, households.count_exactly(declared))
        options.tell("counting", 1, 1)
        files = write_tables(out, tables, config.state_filter)
    _warn(options, found)
    return {"out": str(out), "mode": Mode.NON_PRIVATE.value, "tables": list(files)}, found.errors


def validate_input(config_path: Path, data: Path | str, options: HouseholdOptions) -> dict[str, Any]:
    """Check configuration and data as a private run does, without drawing."""
    config = read_config(config_path, Mode.VALIDATE, options.tables)
    with _open(config, data, options) as households:
        found = households.validate()
    found.refuse_errors(data)
    _warn(options, found)
    return {"mode": Mode.VALIDATE.value, "ok": True, "states": list(config.state_filter)}


class LocalHouseholds:
    """Households with all rows in this process.

    `progress` (stage, done, total).
    """

    def __init__(self, inputs: Inputs, config: Config, progress: Progress | None = None) -> None:
        self._inputs = inputs
        self._config = config
        self.linked = link(inputs, config.state_filter)
        self._progress = progress

    def validate(self, *, every_table: bool = False) -> Validation:
        """Validate the input."""
        return validate(self._inputs, self.linked, self._config, every_table=every_table)

    def canonical_bytes(self) -> bytes:
        """Return the bytes that the input tag digests; see :mod:`opendas.phsafe.inputs.linking`."""
        return canonical_bytes(bucket_digests(self._inputs))

    def count(self, plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
        """Return the cube of each table with a budget, after truncation; `keys` are the selection keys."""
        return count_tables(plan, self.linked, keys, self._progress)

    def count_exactly(self, tables: dict[str, Table]) -> dict[str, Ints]:
        """Return the cube of each table as the non-private mode counts it."""
        return exact_cubes(tables, self.linked, len(self._config.state_filter))


Households: TypeAlias = "LocalHouseholds | SparkHouseholds"
"""The persons, units and places of a run. Confidential."""


def read_inputs(config: Config, data: Path, progress: Progress) -> Inputs:
    """Read the data with the configured reader, sorted. Confidential."""
    if config.reader == "cef":
        from opendas.phsafe.inputs.read_cef import read_cef

        return sort_inputs(read_cef(data, config.state_filter, progress))
    return sort_inputs(read_csv(data, config.state_filter, progress))


def _open(config: Config, data: Path | str, options: HouseholdOptions) -> AbstractContextManager[Households]:
    """Open the households for the engine that counts them."""
    if holds_password(str(data)):
        raise ConfigError(f"DATA: {PASSWORD_RULE}.")
    if options.engine == "spark":
        from opendas.phsafe.spark_households import open_on_spark

        return open_on_spark(data, config, options.master, options.tell)
    inputs = read_inputs(config, Path(data), options.tell)
    return nullcontext(LocalHouseholds(inputs, config, options.tell))


def _warn(options: HouseholdOptions, found: Validation) -> None:
    if options.warn is not None and found.warnings:
        options.warn(found.warnings)


def _save_warnings(space: HouseholdWorkspace, warnings: Sequence[Finding]) -> None:
    """Save validation warnings in a file that only the owner can read."""
    text = json.dumps([asdict(finding) for finding in warnings], indent=1)
    write_atomic(space.confidential / "validation" / "warnings.json", f"{text}\n".encode())


def _input_tag(households: Households, key: RunKey) -> str:
    return key.tag(households.canonical_bytes())


def tagger(config: Config, data: Path | str, households: Households) -> InputTagger:
    """Return the function that tags the input under a book's key."""
    return InputTagger(_record_files(config, data), partial(_input_tag, households))


def _record_files(config: Config, data: Path | str) -> tuple[Path, ...]:
    """Return the files of persons and units; files of places are public and shared by data sets.

    Folders of parts, which the engine spark reads, are left out: parts without rows are alike in many data
    sets. The tag of the rows finds those.
    """
    if RemoteAddress.of(str(data)):
        return ()
    if config.reader == "cef":
        from opendas.phsafe.inputs.read_cef import find_files

        persons, units, _ = find_files(Path(data), config.state_filter)
        return (*persons, *units)
    return tuple(path for path in (Path(data) / "persons.csv", Path(data) / "units.csv") if path.is_file())


def _planned(plan: Plan, data: Path | str) -> Planned:
    """Return what the draws depend on, and the loss under both relations."""
    inputs = str(data) if RemoteAddress.of(str(data)) else Path(data)
    relations = (Neighbours.UNBOUNDED, Neighbours.BOUNDED)
    losses = {relation: plan.loss(relation) for relation in relations}
    return Planned(plan.digest(), "-", plan.mechanism, losses, ADDRESS, (inputs,))


def _result(plan: Plan, files: tuple[str, ...], *, seeded: bool) -> dict[str, Any]:
    def shown(relation: Neighbours) -> str | None:
        loss = plan.loss(relation)
        return None if isinstance(loss, str) else format_fraction(loss)

    losses = {relation.value: shown(relation) for relation in Neighbours}
    gaussian = plan.mechanism.is_zcdp
    return {
        "mode": Mode.PRIVATE.value,
        "sensitivity": plan.sensitivity.value,
        "truncation": plan.truncation.value,
        "rho": losses if gaussian else None,
        "epsilon": None if gaussian else losses,
        "unbounded": plan.config.is_infinite,
        "stamps": list(run_stamps(plan, seeded=seeded)),
        "tables": list(files),
    }
