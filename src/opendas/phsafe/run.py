"""The three modes: private, non-private, validate.

A private run reads and checks everything, enters the act into the ledger, and only then draws. It takes
seconds, so that resuming it is running it again under the same key: the same draws, the same bytes, no
further loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from opendas.budget.changes import ADDRESS
from opendas.custody.ledger_entries import INFINITE, LedgerEntry, Loss
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError, Finding, PrivacyError
from opendas.files.atomic import write_atomic
from opendas.phsafe.certificate import issue_certificate, run_stamps
from opendas.phsafe.config import Config, Mode, Plan, read_config
from opendas.phsafe.folder import PRODUCT, HouseholdWorkspace, exact_folder, refuse_other
from opendas.phsafe.households import Households, LocalHouseholds
from opendas.phsafe.inputs.linking import sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.measure import measure, prepare_samplers
from opendas.phsafe.output import exact_declarations, lay_out, write_tables
from opendas.phsafe.sensitivity import Sensitivity
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table
from opendas.phsafe.truncation import Truncation
from opendas.phsafe.validate import Validation
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.remote import PASSWORD_RULE, holds_password
from opendas.runs.progress.clock import Clock
from opendas.runs.progress.log import RunLog, log_path
from opendas.runs.workspace import RunState, check_custody
from opendas.version import __version__, commit

__all__ = ["HouseholdOptions", "run_exact", "run_private", "validate_input"]


@dataclass(frozen=True, slots=True)
class HouseholdOptions:
    """How to run, beside the configuration.

    Parameters
    ----------
    sensitivity : Sensitivity
    truncation : Truncation
    seed : int or None
        For tests and research: the certificate is stamped NOT FOR RELEASE.
    resume : bool
        Finish an interrupted run, or return a finished one.
    ledger : Path or None
        A ledger shared by several output folders.
    key_command : str or None
        External command that prints the run key.
    progress : callable(stage, done, total) or None
    warn : callable(findings) or None
        Told what validation found odd but counts, once.
    engine : str
        Where it counts: ``local`` or ``spark``.
    master : str or None
        URL of a Spark master, for ``spark``.
    passphrase : Passphrase or None
        Encrypts the key file of a new run, and opens that of a resumed one.
    tables : tuple of Table
        The measured tables; an agency adds its own.
    derived : tuple of Derived
    """

    sensitivity: Sensitivity = Sensitivity.PAPER
    truncation: Truncation = Truncation.KEYED
    seed: int | None = None
    resume: bool = False
    ledger: Path | None = None
    key_command: str | None = None
    progress: Callable[[str, int, int], None] | None = None
    warn: Callable[[Sequence[Finding]], None] | None = None
    engine: str = "local"
    master: str | None = None
    passphrase: Passphrase | None = None
    tables: tuple[Table, ...] = TABLES
    derived: tuple[Derived, ...] = DERIVED

    def __post_init__(self) -> None:
        check_custody(self.seed, self.key_command, self.passphrase)
        if self.master is not None and self.engine != "spark":
            raise ConfigError("a master goes with the engine spark.")
        cells = {table.name: set(table.cells) for table in self.tables}
        for one in self.derived:
            parts = {part for summed in one.cells.values() for part in summed}
            if not parts <= cells.get(one.source, parts):
                raise ConfigError(f"table {one.name}: it sums cells that {one.source} does not have.")

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, done, total)


def run_private(config_path: Path, data: Path | str, out: Path, options: HouseholdOptions) -> dict[str, Any]:
    """Write the private tables of a data set into an output folder.

    Parameters
    ----------
    config_path : Path
    data : Path or str
        The folder (or, for other readers, the file) that the configured reader takes; the engine ``spark``
        takes URLs too.
    out : Path
    options : HouseholdOptions

    Returns
    -------
    dict
        ``out``, ``tables``, ``stamps``, ``rho`` or ``epsilon`` under both relations, and timing.

    Raises
    ------
    ConfigError, DataError, PrivacyError, EnvironmentFailure
        Before anything is drawn; nothing half-written stays.
    """
    clock = Clock()
    plan = Plan(
        read_config(config_path, Mode.PRIVATE, options.tables), options.sensitivity, options.truncation
    )
    refuse_other(out, Mode.PRIVATE)
    prepare_samplers(plan)
    with HouseholdWorkspace(out, options.ledger) as space, _logged(space, options, clock):
        known = _known(space, options)
        at_hand = space.key_at_hand(PRODUCT, options.passphrase)
        if known is not None and known.phase == "finished" and not at_hand:
            # The key was destroyed, is kept elsewhere or is encrypted; the plan can still be compared.
            _check_same(known, replace(_state(plan, options, known), input_tag=known.input_tag))
            return _answer(space, known)
        with _open(plan.config, data, options) as households:
            clock.lap("read")
            found = households.validate()
            found.refuse_errors(data)
            clock.lap("check")
            key = (
                space.new_key(PRODUCT, options.seed, options.key_command, options.passphrase)
                if known is None
                else space.known_key(known, options.key_command, options.passphrase)
            )
            now = replace(
                _state(plan, options, known),
                input_tag=key.tag(households.canonical_bytes()),
                key_commitment=key.commitment(),
            )
            if known is not None:
                _check_same(known, now)
                if known.phase == "finished":
                    return _answer(space, known)
                space.ledger.intend(_entry(plan, now, key))
            else:
                _refuse_second_act(space, options)
                space.begin(now, _entry(plan, now, key))
            tables = measure(plan, households.count, key, now.input_tag, options.derived)
        clock.lap("count and measure")
        options.tell("writing", 0, 1)
        if plan.config.is_infinite:
            out.chmod(0o700)  # exact counts, as in the non-private mode
        files = write_tables(out, tables, plan.config.state_filter)
        issue_certificate(
            out, plan, files, options.derived, seeded=key.is_seeded, version=__version__, commit=commit()
        )
        _save_warnings(space, found.warnings)
        clock.lap("write")
        state = replace(now, phase="finished", result=_result(plan, files, seeded=key.is_seeded))
        clock.save(space.confidential / "timings" / f"{PRODUCT}.json")
        space.save_state(state)
        space.ledger.finished(state.run_id)
        options.tell("writing", 1, 1)
        _warn(options, found)
        return _answer(space, state)


@contextmanager
def _logged(space: HouseholdWorkspace, options: HouseholdOptions, clock: Clock) -> Iterator[None]:
    """Keep the log of an attempt, as of other runs; an error that ends it is its last line."""
    with RunLog(log_path(space.confidential, PRODUCT)) as log:
        log.start(
            product=PRODUCT,
            command="phsafe",
            workers=None,
            engine=options.engine,
            resume=options.resume,
            seeded=options.seed is not None,
        )
        clock.on_lap = log.step
        yield


def run_exact(
    config_path: Path, data: Path | str, out: Path, options: HouseholdOptions
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Write the exact tables of a data set into a folder for its owner only.

    Returns
    -------
    answer : dict
        ``out`` and ``tables``.
    findings : tuple of Finding
        What a private run would refuse; here rows are counted where they have a cell.
    """
    config = read_config(config_path, Mode.NON_PRIVATE, options.tables)
    refuse_other(out, Mode.NON_PRIVATE)
    with exact_folder(out):
        declared = exact_declarations(config, options.derived)
        with _open(config, data, options) as households:
            found = households.validate(every_table=True)
            options.tell("counting", 0, 1)
            tables = lay_out(declared, households.count_exactly(declared))
        options.tell("counting", 1, 1)
        files = write_tables(out, tables, config.state_filter)
    _warn(options, found)
    return {"out": str(out), "mode": Mode.NON_PRIVATE.value, "tables": list(files)}, found.errors


def validate_input(config_path: Path, data: Path | str, options: HouseholdOptions) -> dict[str, Any]:
    """Check configuration and data as a private run does, and draw nothing.

    Raises
    ------
    ConfigError, DataError
    """
    config = read_config(config_path, Mode.VALIDATE, options.tables)
    with _open(config, data, options) as households:
        found = households.validate()
    found.refuse_errors(data)
    _warn(options, found)
    return {"mode": Mode.VALIDATE.value, "ok": True, "states": list(config.state_filter)}


def _open(config: Config, data: Path | str, options: HouseholdOptions) -> AbstractContextManager[Households]:
    """Read the data with the reader of the configuration, where the engine counts."""
    if holds_password(str(data)):
        raise ConfigError(f"DATA: {PASSWORD_RULE}.")
    if options.engine == "spark":
        from opendas.phsafe.spark.households import open_on_spark

        return open_on_spark(data, config, options.master, options.tell)
    if config.reader == "cef":
        from opendas.phsafe.inputs.read_cef import read_cef

        inputs = read_cef(Path(data), config.state_filter, options.tell)
    else:
        inputs = read_csv(Path(data), config.state_filter, options.tell)
    inputs = sort_inputs(inputs)
    return nullcontext(LocalHouseholds(inputs, config, options.tell))


def _warn(options: HouseholdOptions, found: Validation) -> None:
    if options.warn is not None and found.warnings:
        options.warn(found.warnings)


def _save_warnings(space: HouseholdWorkspace, warnings: Sequence[Finding]) -> None:
    """Keep what validation found odd where only the owner reads it."""
    text = json.dumps([asdict(finding) for finding in warnings], indent=1)
    write_atomic(space.confidential / "validation" / "warnings.json", f"{text}\n".encode())


def _known(space: HouseholdWorkspace, options: HouseholdOptions) -> RunState | None:
    known = space.load_state(PRODUCT)
    if known is not None and not options.resume:
        raise ConfigError(
            f"{space.out} holds a run already; use --resume to finish it or to get its result, or choose "
            "another folder for OUT."
        )
    return known


def _state(plan: Plan, options: HouseholdOptions, known: RunState | None) -> RunState:
    return RunState(
        run_id=token_hex(16) if known is None else known.run_id,
        product=PRODUCT,
        version=__version__,
        plan_digest=plan.digest(),
        estimation_digest="-",
        input_tag="-",
        key_commitment="-",
        seed=options.seed,
    )


def _check_same(known: RunState, now: RunState) -> None:
    differing = known.differing(now)
    if differing:
        raise PrivacyError(
            f"the run in this folder was started with another {' and another '.join(differing)}: it cannot "
            "be resumed with this one. A new run in a new folder is charged in full."
        )


def _refuse_second_act(space: HouseholdWorkspace, options: HouseholdOptions) -> None:
    """Refuse a second run in a folder whose state of the first was removed: it may have been published."""
    if options.ledger is None and space.ledger.entries():
        raise PrivacyError(
            "the ledger of this folder holds a run already, and its state is gone; start a new run in a new "
            "folder, which is charged in full."
        )


def _entry(plan: Plan, state: RunState, key: RunKey) -> LedgerEntry:
    def charged(relation: Neighbours) -> Loss:
        return INFINITE if key.is_seeded else plan.loss(relation)

    return LedgerEntry(
        run_id=state.run_id,
        product=PRODUCT,
        key_commitment=state.key_commitment,
        input_tag=state.input_tag,
        plan_digest=state.plan_digest,
        mechanism=plan.mechanism,
        loss=charged(Neighbours.UNBOUNDED),
        relation=Neighbours.UNBOUNDED,
        protected_unit=ADDRESS,
        version=state.version,
        seeded=key.is_seeded,
        other_relations={Neighbours.BOUNDED: charged(Neighbours.BOUNDED)},
    )


def _result(plan: Plan, files: tuple[str, ...], *, seeded: bool) -> dict[str, Any]:
    def shown(relation: Neighbours) -> str | None:
        loss = plan.loss(relation)
        return None if isinstance(loss, str) else format_fraction(loss)

    losses = {relation.value: shown(relation) for relation in Neighbours}
    gaussian = plan.mechanism is Mechanism.DISCRETE_GAUSSIAN
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


def _answer(space: HouseholdWorkspace, state: RunState) -> dict[str, Any]:
    timing = Clock.read(space.confidential / "timings" / f"{PRODUCT}.json")
    return {"out": str(space.out), **(state.result or {}), **timing}
