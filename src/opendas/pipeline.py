"""The steps of a run: read, measure, estimate, write.

:func:`release` measures lazily: it draws what estimation needs, and the full file only when asked.
:func:`measure` writes the full file; :func:`estimate` then opens neither input nor key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from opendas.config.released import released_toml
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.drive import Estimation, estimate_spine
from opendas.engines.work import KeyedSource, SourceSpec, Worker
from opendas.errors import ConfigError, DataError, PrivacyError
from opendas.estimation.rounding import check_rounder_passes
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.io.atomic import write_atomic
from opendas.io.geography_files import read_constraint_table, read_frame, read_spine
from opendas.io.mdf_layout import mdf_layout
from opendas.io.measurement_source import FileSource, check_measurement_files
from opendas.io.readers.base import InputData
from opendas.io.writers.geography import write_constraints, write_frame, write_spine
from opendas.io.writers.mdf import write_mdf
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.noisy import measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.entries import INFINITE, LedgerEntry
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism
from opendas.publish import describe, issue_certificate, write_full, write_used
from opendas.random.keys import RunKey
from opendas.report.certificate import read_runs
from opendas.run import Run, make_budget, make_rules, make_spine
from opendas.schema.histogram import Histogram
from opendas.stamps import NOT_FOR_RELEASE
from opendas.timing import Clock, default_workers
from opendas.version import __version__
from opendas.workspace import RunState, Workspace, refuse_foreign, remove_checkpoints

__all__ = ["Options", "Progress", "estimate", "measure", "release"]

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

MOST_RECORDS = 1 << 39
"""Records of a run: the rounder is exact below 2**40, noise included."""

SMALL_SPINE = 60_000
"""Below so many leaves a worker process takes longer to start than it saves: one process does all."""


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
    """

    workers: int | None = None
    resume: bool = False
    seed: int | None = None
    measurements: str = "used"
    mdf_format: str = "parquet"
    ledger: Path | None = None
    key_command: str | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.measurements not in ("used", "full"):
            raise ConfigError(f"measurements is 'used' or 'full', not {self.measurements!r}.")
        if self.mdf_format not in ("parquet", "pipe"):
            raise ConfigError(f"mdf_format is 'parquet' or 'pipe', not {self.mdf_format!r}.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError("workers is at least 1.")
        if self.seed is not None and self.key_command is not None:
            raise ConfigError("a seeded run takes no key command.")

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, done, total)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Prepared:
    """A run whose key, ledger entry and constraints stand; confidential."""

    data: InputData
    counts: Histogram
    frame: Frame
    spine: Spine
    plan: MeasurementPlan
    constraints: ConstraintTable
    state: RunState
    noise_key: bytes


def release(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Run from input to finished release.

    Returns
    -------
    dict
        The answer of ``run --json``.
    """
    refuse_foreign(out)
    clock = Clock()
    with Workspace(out, options.ledger) as space:
        known = _known(space, run, options)
        if known is not None and known.phase == "finished" and not space.key_path(run.product.name).exists():
            return _finished_without_key(space, run, known, options)
        prepared = _prepare(space, run, options, known, clock)
        if prepared.state.phase == "finished":
            return _answer(space, prepared.state)
        workers = _workers(options, prepared.spine)
        source = KeyedSource(measured_levels(prepared.plan), prepared.noise_key)
        estimation = _estimate(space, run, prepared, source, prepared.counts, workers, options, clock)
        _write_public(space, run, prepared.frame, prepared.spine, prepared.plan, prepared.constraints)
        folder = space.release / "measurements" / run.product.name
        if options.measurements == "full":
            write_full(folder, prepared.plan, source, prepared.counts, options.tell)
        else:
            write_used(folder, prepared.plan, estimation.used)
        clock.lap("measurement files")
        return _finish(space, run, prepared, estimation, options, clock)


def measure(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Take all measurements and write them; no estimate."""
    refuse_foreign(out)
    clock = Clock()
    with Workspace(out, options.ledger) as space:
        known = _known(space, run, options)
        if known is not None and known.phase in ("measured", "finished"):
            if known.result is not None and known.result.get("measurements") == "full":
                return _answer(space, known)
            if not space.key_path(run.product.name).exists():
                raise PrivacyError(
                    f"the key of {run.product.name} was destroyed: no further measurements can be drawn. "
                    "A new run in a new folder is charged in full."
                )
        prepared = _prepare(space, run, options, known, clock)
        _write_public(space, run, prepared.frame, prepared.spine, prepared.plan, prepared.constraints)
        source = KeyedSource(measured_levels(prepared.plan), prepared.noise_key)
        folder = space.release / "measurements" / run.product.name
        write_full(folder, prepared.plan, source, prepared.counts, options.tell)
        clock.lap("measurement files")
        facts = describe(run, prepared.plan, _stamps(prepared), prepared.data.declared, "full", None, 0)
        phase, more = "measured", {}
        if prepared.state.phase == "finished":
            # The microdata stay; only more of the same measurement is shown beside them.
            estimated = next(r for r in read_runs(space.release) if r.product == facts.product)
            facts = replace(estimated, measurements="full")
            phase, more = "finished", dict(prepared.state.result or {})
        issue_certificate(space.release, facts)
        result = _result(prepared, {**more, "measurements": "full"})
        state = replace(prepared.state, phase=phase, result=result)
        space.save_state(state)
        clock.save(space.confidential / "timings" / f"{run.product.name}.json")
        return _answer(space, state)


def estimate(run: Run, out: Path, options: Options) -> dict[str, Any]:
    """Estimate from the full measurement files of `out`; opens neither input nor key."""
    refuse_foreign(out)
    clock = Clock()
    with Workspace(out, options.ledger) as space:
        name = run.product.name
        state = space.load_state(name)
        folder = space.release / "measurements" / name
        if state is None or not (folder / "spine.parquet").is_file():
            raise ConfigError(f"{out} holds no measurements of {name}; run opendas measure first.")
        if state.phase == "finished" and options.resume:
            return _answer(space, state)
        if state.phase == "finished":
            raise ConfigError(f"{name} is estimated in {out} already; use --resume to get its result.")
        frame = read_frame(space.release / "geography" / f"{name}.parquet")
        spine = read_spine(folder / "spine.parquet", frame)
        plan = MeasurementPlan(run.product, spine, make_budget(run.resolved, spine))
        if plan.digest() != state.plan_digest:
            raise PrivacyError(
                f"the measurements of {name} in {out} were taken with another plan; estimate with the run "
                "file they were measured with (release/run holds it)."
            )
        constraints = read_constraint_table(folder / "constraints.parquet", run.product, spine)
        # Only public fields are used below: there is no input and no key in this phase.
        empty = Histogram.from_entries([], [], [], shape=(0, run.product.schema.size))  # type: ignore[arg-type]
        stamps = tuple(state.result.get("stamps", ())) if state.result else ()
        declared = tuple(state.result.get("declared", ())) if state.result else ()
        data = InputData(frame, empty, stamps, declared)
        prepared = _Prepared(data, empty, frame, spine, plan, constraints, state, b"")
        source = FileSource(measured_levels(plan), folder)
        check_measurement_files(source.levels, spine, folder)
        workers = _workers(options, spine)
        clock.lap("read measurements")
        estimation = _estimate(space, run, prepared, source, None, workers, options, clock)
        options = replace(options, measurements="full")
        return _finish(space, run, prepared, estimation, options, clock)


def _known(space: Workspace, run: Run, options: Options) -> RunState | None:
    known = space.load_state(run.product.name)
    if known is not None and not options.resume:
        raise ConfigError(
            f"{run.product.name} was run in {space.out} already; use --resume to finish it or to get its "
            "result, or choose another folder with --out."
        )
    return known


def _check_same(known: RunState, now: RunState) -> None:
    differing = known.differing(now)
    if differing:
        raise PrivacyError(
            f"the run of {known.product} in this folder was started with another "
            f"{' and another '.join(differing)}: it cannot be resumed with this one. "
            "A new run in a new folder is charged in full."
        )


def _finished_without_key(space: Workspace, run: Run, known: RunState, options: Options) -> dict[str, Any]:
    plan = run.plan
    now = replace(
        known,
        version=__version__,
        plan_digest=plan.digest(),
        estimation_digest=run.estimation_digest(plan),
        seed=options.seed,
    )
    _check_same(known, now)
    return _answer(space, known)


def _prepare(space: Workspace, run: Run, options: Options, known: RunState | None, clock: Clock) -> _Prepared:
    """Read, plan, make or find the key, and enter the act into the ledger: all before the first draw."""
    options.tell("reading", 0, 1)
    product = run.product
    data = run.read()
    if float(data.histogram.counts.sum(dtype=float)) >= MOST_RECORDS:
        raise DataError(
            f"the input holds more than {MOST_RECORDS:,} records, which is more than this version rounds "
            "exactly. Check the column of counts."
        )
    options.tell("reading", 1, 1)
    clock.lap("read")
    spine = make_spine(run.resolved, data.frame)
    plan = MeasurementPlan(product, spine, make_budget(run.resolved, spine))
    counts = data.histogram.take(spine.leaf_order)
    constraints = bound_table(product, data.frame, spine, declared_invariants(product, counts, spine))
    for rules, level in zip(make_rules(run.resolved, plan, constraints), constraints.levels, strict=True):
        check_rounder_passes(rules, level)
    mdf_layout(product, data.frame)  # leaves that the microdata cannot show: better now than when it is spent
    if known is None:
        _refuse_second_act(space, product.name, options)
    key = (
        space.new_key(product.name, options.seed, options.key_command)
        if known is None
        else space.known_key(known, options.key_command)
    )
    now = RunState(
        run_id=token_hex(16) if known is None else known.run_id,
        product=product.name,
        version=__version__,
        plan_digest=plan.digest(),
        estimation_digest=run.estimation_digest(plan),
        input_tag=key.tag(data.histogram.canonical_bytes()),
        key_commitment=key.commitment(),
        seed=options.seed,
    )
    if known is not None:
        _check_same(known, now)
        now = known
    if data.findings:
        text = "\n".join(str(finding) for finding in data.findings) + "\n"
        write_atomic(space.confidential / "findings" / f"{product.name}.txt", text.encode())
    if known is None:
        stamps = (*((NOT_FOR_RELEASE,) if key.is_seeded else ()), *data.stamps)
        now = replace(now, result={"stamps": list(stamps), "declared": list(data.declared)})
        space.save_state(now)
    space.ledger.intend(_entry(run, plan, now, key))
    noise_key = key.derive(
        "noise/" + product.name, bytes.fromhex(now.plan_digest), bytes.fromhex(now.input_tag)
    )
    clock.lap("plan")
    return _Prepared(data, counts, data.frame, spine, plan, constraints, now, noise_key)


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


def _stamps(prepared: _Prepared) -> tuple[str, ...]:
    result: Mapping[str, Any] = prepared.state.result or {}
    return tuple(result.get("stamps", ()))


def _workers(options: Options, spine: Spine) -> int:
    if options.workers is not None:
        return options.workers
    return 1 if len(spine.leaf) < SMALL_SPINE else default_workers()


def _estimate(
    space: Workspace,
    run: Run,
    prepared: _Prepared,
    source: SourceSpec,
    counts: Histogram | None,
    workers: int,
    options: Options,
    clock: Clock,
) -> Estimation:
    rules = make_rules(run.resolved, prepared.plan, prepared.constraints)
    worker = Worker(
        rules, source, run.resolved.failsafe, options.measurements == "used" and counts is not None
    )
    binding = prepared.state.run_id + run.estimation_digest(prepared.plan) + str(worker.keep_used)
    estimation = estimate_spine(
        prepared.spine,
        prepared.constraints,
        worker,
        histogram=counts,
        estimator=run.resolved.estimator,
        workers=workers,
        checkpoints=Checkpoints(space.state / run.product.name, binding, write_atomic),
        progress=options.tell,
    )
    clock.lap("estimate")
    return estimation


def _write_public(
    space: Workspace,
    run: Run,
    frame: Frame,
    spine: Spine,
    plan: MeasurementPlan,
    constraints: ConstraintTable,
) -> None:
    """Write what is public of a run: its resolved plan, frame, spine and constraints."""
    name = run.product.name
    folder = space.release / "measurements" / name
    write_frame(space.release / "geography" / f"{name}.parquet", frame, run.product)
    write_spine(folder / "spine.parquet", spine)
    write_constraints(folder / "constraints.parquet", run.product, spine, constraints)
    text = released_toml(run.resolved, plan.budget)
    write_atomic(space.release / "run" / f"{name}.toml", text.encode())


def _finish(
    space: Workspace, run: Run, prepared: _Prepared, estimation: Estimation, options: Options, clock: Clock
) -> dict[str, Any]:
    """Write microdata and certificate, close the ledger entry, and drop the checkpoints."""
    product = run.product
    options.tell("writing", 0, 1)
    in_frame_order = estimation.leaves.take(_inverse(prepared.spine))
    records = write_mdf(
        space.release / "mdf" / product.layout,
        product,
        prepared.frame,
        in_frame_order,
        fmt=options.mdf_format,
    )
    clock.lap("microdata")
    facts = describe(
        run,
        prepared.plan,
        _stamps(prepared),
        prepared.data.declared,
        options.measurements,
        estimation.records,
        records,
    )
    issue_certificate(space.release, facts)
    clock.lap("certificate and report")
    result = _result(
        prepared,
        {
            "records": records,
            "families": len(estimation.records),
            "fallbacks": sum(record.fallback for record in estimation.records),
            "measurements": options.measurements,
        },
    )
    state = replace(prepared.state, phase="finished", result=result)
    clock.save(space.confidential / "timings" / f"{product.name}.json")
    space.save_state(state)
    space.ledger.finished(state.run_id)
    remove_checkpoints(space.state / product.name)
    options.tell("writing", 1, 1)
    return _answer(space, state)


def _result(prepared: _Prepared, more: Mapping[str, Any]) -> dict[str, Any]:
    budget = prepared.plan.budget
    gaussian = budget.mechanism is Mechanism.DISCRETE_GAUSSIAN
    return {
        "product": prepared.state.product,
        "rho": format_fraction(budget.total) if gaussian else None,
        "epsilon": None if gaussian else format_fraction(budget.total),
        "stamps": list(_stamps(prepared)),
        "declared": list(prepared.data.declared),
        **more,
    }


def _inverse(spine: Spine) -> Any:
    inverse = spine.leaf_order.copy()
    inverse[spine.leaf_order] = range(len(inverse))
    return inverse


def _answer(space: Workspace, state: RunState) -> dict[str, Any]:
    timing = Clock.read(space.confidential / "timings" / f"{state.product}.json")
    return {"out": str(space.out), **(state.result or {}), **timing}
