"""Before the first draw: read, plan, check, find the key, and enter the act into the ledger.

Whatever can be refused is refused here, while nothing has been spent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex

from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.custody.ledger_entries import INFINITE, LedgerEntry
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import RunKey
from opendas.custody.stamps import NOT_FOR_RELEASE
from opendas.engines.backend import Backend, ExactInput
from opendas.engines.local import workers_for
from opendas.errors import ConfigError, DataError, PrivacyError
from opendas.files.atomic import write_atomic
from opendas.files.mdf.layout import check_mdf
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.plan import MeasurementPlan
from opendas.readers.base import InputData
from opendas.runs.progress.clock import Clock
from opendas.runs.progress.forecast import Forecast, check_room, forecast_run
from opendas.runs.run import Run, make_budget, make_model, make_rules, make_spine
from opendas.runs.workspace import RunState, Workspace, check_custody
from opendas.topdown.checks import check_roots
from opendas.topdown.rounding import check_rounder_passes
from opendas.version import __version__

__all__ = ["Expect", "Options", "Prepared", "Progress", "check_same", "find_known", "prepare"]

Progress = Callable[[str, int, int], None]
Expect = Callable[[Forecast, tuple[str, ...]], None]

MOST_RECORDS = 1 << 39
"""Records of a run: the rounder is exact below 2**40, noise included."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run; nothing here changes what is released but `seed`, `measurements` and `mdf_format`.

    Parameters
    ----------
    workers : int or None
        Processes; None means the machine's cores, at most two, and one for small spines.
    resume : bool
        Finish an interrupted run, or return a finished one.
    seed : int or None
        For tests and research: everything is stamped NOT FOR RELEASE.
    measurements : str
        ``used`` or ``full``.
    mdf_format : str
        ``parquet`` or ``pipe``.
    ledger : Path or None
        A ledger shared by several output folders.
    key_command : str or None
        External command that prints the run key.
    progress : callable(stage, done, total) or None
    passphrase : Passphrase or None
        Encrypts the key file of a new run, and opens that of a resumed one.
    engine : str
        ``local`` or ``spark``.
    master : str or None
        URL of a Spark master, for the engine ``spark``.
    expect : callable(forecast, warnings) or None
        Told what the run is expected to need, before anything is drawn.
    """

    workers: int | None = None
    resume: bool = False
    seed: int | None = None
    measurements: str = "used"
    mdf_format: str = "parquet"
    ledger: Path | None = None
    key_command: str | None = None
    progress: Progress | None = None
    passphrase: Passphrase | None = None
    engine: str = "local"
    master: str | None = None
    expect: Expect | None = None

    def __post_init__(self) -> None:
        if self.measurements not in ("used", "full"):
            raise ConfigError(f"measurements is 'used' or 'full', not {self.measurements!r}.")
        if self.mdf_format not in ("parquet", "pipe"):
            raise ConfigError(f"mdf_format is 'parquet' or 'pipe', not {self.mdf_format!r}.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError("workers is at least 1.")
        if self.engine not in ("local", "spark"):
            raise ConfigError(f"engine is 'local' or 'spark', not {self.engine!r}.")
        if self.master is not None and self.engine != "spark":
            raise ConfigError("a master goes with the engine spark.")
        check_custody(self.seed, self.key_command, self.passphrase)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, done, total)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A run whose key, ledger entry and constraints stand; confidential."""

    data: InputData
    counts: ExactInput | None
    frame: Frame
    spine: Spine
    plan: MeasurementPlan
    constraints: ConstraintTable
    state: RunState
    noise_key: bytes
    model: TreeModel | None = None


def find_known(space: Workspace, run: Run, options: Options) -> RunState | None:
    """Return the state of an earlier run of the product here; only a resuming run may find one."""
    known = space.load_state(run.product.name)
    if known is not None and not options.resume:
        raise ConfigError(
            f"{run.product.name} was run in {space.out} already; use --resume to finish it or to get its "
            "result, or choose another folder with --out."
        )
    return known


def check_same(known: RunState, now: RunState) -> None:
    """Refuse to resume a run that was started with anything else."""
    differing = known.differing(now)
    if differing:
        raise PrivacyError(
            f"the run of {known.product} in this folder was started with another "
            f"{' and another '.join(differing)}: it cannot be resumed with this one. "
            "A new run in a new folder is charged in full."
        )


def prepare(
    space: Workspace,
    run: Run,
    options: Options,
    known: RunState | None,
    clock: Clock,
    backend: Backend,
    *,
    estimates: bool = True,
) -> Prepared:
    """Read, plan, make or find the key, and enter the act into the ledger: all before the first draw."""
    options.tell("reading", 0, 1)
    product = run.product
    estimates = estimates and (known is None or known.phase != "finished")
    if estimates:
        backend.warm_up()
    data = backend.read(run.resolved.reader, space.cache(product.name))
    clock.lap("read")
    spine = make_spine(run.resolved, data.frame)
    plan = MeasurementPlan(product, spine, make_budget(run.resolved))
    clock.lap("plan")
    if estimates:
        backend.warm_up(len(spine.leaf))
    counts = backend.count(data, plan, run.resolved.estimator, space.cache(product.name))
    if counts.total() >= MOST_RECORDS:
        raise DataError(
            f"the input holds more than {MOST_RECORDS:,} records, which is more than this version rounds "
            "exactly. Check the column of counts."
        )
    options.tell("reading", 1, 1)
    clock.lap("read")
    constraints = bound_table(product, data.frame, spine, declared_invariants(product, counts, spine))
    check_feasible(product, spine, constraints)
    every_rule = make_rules(run.resolved, plan, constraints)
    for rules, level in zip(every_rule, constraints.levels, strict=True):
        check_rounder_passes(rules, level)
    roots = -1 if run.resolved.estimator == "block-by-block" else 0
    check_roots(product.workload, every_rule[roots], together=constraints.levels[roots].joint is not None)
    model = make_model(run.resolved, plan, constraints)
    backend.partition(counts, constraints, run.resolved.estimator, model)
    check_mdf(product, data.frame)  # leaves that the microdata cannot show: better now than when it is spent
    _expect(space, run, plan, options, known, estimates=estimates)
    if known is None:
        _refuse_second_act(space, product.name, options)
    key = (
        space.new_key(product.name, options.seed, options.key_command, options.passphrase)
        if known is None
        else space.known_key(known, options.key_command, options.passphrase)
    )
    now = RunState(
        run_id=token_hex(16) if known is None else known.run_id,
        product=product.name,
        version=__version__,
        plan_digest=plan.digest(),
        estimation_digest=run.estimation_digest(plan),
        input_tag=counts.tag(key),
        key_commitment=key.commitment(),
        seed=options.seed,
    )
    if known is not None:
        check_same(known, now)
        now = known
    findings = (*data.findings, *counts.findings)
    if findings:
        text = "\n".join(str(finding) for finding in findings) + "\n"
        write_atomic(space.confidential / "findings" / f"{product.name}.txt", text.encode())
    if known is None:
        stamps = (*((NOT_FOR_RELEASE,) if key.is_seeded else ()), *data.stamps)
        now = replace(now, result={"stamps": list(stamps), "declared": list(data.declared)})
        space.begin(now, _entry(run, plan, now, key))
    else:
        space.ledger.intend(_entry(run, plan, now, key))
    noise_key = key.derive(
        "noise/" + product.name, bytes.fromhex(now.plan_digest), bytes.fromhex(now.input_tag)
    )
    clock.lap("plan")
    return Prepared(data, counts, data.frame, spine, plan, constraints, now, noise_key, model)


def _expect(
    space: Workspace,
    run: Run,
    plan: MeasurementPlan,
    options: Options,
    known: RunState | None,
    *,
    estimates: bool,
) -> None:
    """Tell what the run will need, and refuse one whose outputs the disk certainly cannot hold."""
    if options.engine != "local" or (known is not None and known.phase == "finished"):
        return
    workers = workers_for(len(plan.spine.leaf), options.workers)
    full = options.measurements == "full"
    forecast = forecast_run(plan, run.resolved.estimator, workers, full=full, estimates=estimates)
    # Part of what a resumed run needs is there already: how much is not worth finding out.
    warnings = check_room(forecast, space.out) if known is None else ()
    if options.expect is not None:
        options.expect(forecast, warnings)


def _refuse_second_act(space: Workspace, product: str, options: Options) -> None:
    """Refuse to run a product again in a folder whose state of the first run was removed.

    The certificate would speak of the second act only, while the first may have been published.
    """
    if options.ledger is None and any(entry.product == product for entry in space.ledger.entries()):
        raise PrivacyError(
            f"the ledger of this folder holds a run of {product} already, and its state is gone; "
            "start a new run in a new folder, which is charged in full."
        )


def _entry(run: Run, plan: MeasurementPlan, state: RunState, key: RunKey) -> LedgerEntry:
    return LedgerEntry(
        run_id=state.run_id,
        product=state.product,
        key_commitment=state.key_commitment,
        input_tag=state.input_tag,
        plan_digest=state.plan_digest,
        mechanism=plan.budget.mechanism,
        loss=INFINITE if key.is_seeded else plan.budget.total,
        relation=plan.budget.neighbours,
        protected_unit=run.product.protected_unit,
        version=state.version,
        seeded=key.is_seeded,
    )
