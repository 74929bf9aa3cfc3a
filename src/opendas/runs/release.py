"""The steps of a run: plan, charge, measure, estimate, write.

:func:`release` measures lazily: it draws what estimation needs, and the full file only when asked.
:func:`measure` writes the full file; :func:`estimate` then opens neither input nor key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

from opendas.arrays import Ints
from opendas.constraints.table import ConstraintTable
from opendas.custody.folders import make_folder, remove_partials, write_atomic
from opendas.custody.stamps import KeyCustody
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.drive import Estimation, estimate_on
from opendas.engines.local_backend import LocalBackend
from opendas.engines.measurement_source import FileSource, check_measurement_files
from opendas.engines.outputs import FamilyFile, Leaves, Solved, UsedFile, used_files, write_full
from opendas.engines.tasks import Engine
from opendas.engines.truth import ExactCounts
from opendas.engines.work import KeyedSource, SourceSpec, Worker
from opendas.errors import ConfigError, PrivacyError
from opendas.files.geography_files import (
    read_constraint_table,
    read_frame,
    read_spine,
    write_constraints,
    write_frame,
    write_spine,
)
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.mdf.writing import MdfFiles
from opendas.files.official_areas import OfficialAreas, official_areas_path, write_official_areas
from opendas.files.release_folder import ReleaseFolder
from opendas.gls.model import TreeModel
from opendas.measurement.noisy import measured_levels
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.exact import format_fraction
from opendas.readers.frame.official import official_areas
from opendas.readers.pl94.header import Header
from opendas.report.certificate import load_pages, read_runs
from opendas.report.facts import RunFacts
from opendas.runs.act import Act, Charged, left_out, open_act
from opendas.runs.config.released import released_toml
from opendas.runs.context.facts import estimated_facts, issue_certificate, measured_facts
from opendas.runs.context.run import Run
from opendas.runs.context.workspace import RunState, Workspace, refuse_foreign, remove_cache
from opendas.runs.options import RunOptions
from opendas.runs.prepare import (
    Backend,
    PlannedRun,
    charge_run,
    log_phase,
    plan_run,
    planned_act,
    tie_constraints,
)
from opendas.schema.histogram import Histogram
from opendas.schema.provenance import Domain


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """What a run is estimated from: noisy answers, invariants and public things, behind the privacy wall."""

    run: Run  # on its frame, with the spine and the plan that were measured
    constraints: ConstraintTable = field(repr=False)
    protection: ProtectionMap = field(repr=False)  # with the values of the invariants
    model: TreeModel | None = field(repr=False)
    state: RunState
    # Gives the noisy answers: from files, or drawn when they are asked for.
    source: SourceSpec = field(repr=False)
    # What answers are drawn from; None where they stand in files.
    counts: ExactCounts | None = field(repr=False)

    def facts(self, measurements: str) -> RunFacts:
        """Return what the certificate says of it."""
        stamps, declared = (self.state.known.get(name, ()) for name in ("stamps", "declared"))
        return measured_facts(self.run, self.protection, stamps, declared, self.domain, measurements)

    @property
    def domain(self) -> Domain:
        """Where the domain comes from, as the act was charged with it."""
        return Domain.from_dict(self.state.known.get("domain", {}))


def release(run: Run, out: Path, options: RunOptions) -> dict[str, Any]:
    """Run from input to finished release.

    Returns the answer of ``run --json``.
    """
    with _workspace(out, options) as space:
        return _in_turn(_release, space, run.reading_records(), options)


def measure(run: Run, out: Path, options: RunOptions) -> dict[str, Any]:
    """Take all measurements and write them; no estimate."""
    with _workspace(out, options) as space:
        return _in_turn(_measure, space, run.reading_records(), replace(options, measurements="full"))


def estimate(run: Run, out: Path, options: RunOptions) -> dict[str, Any]:
    """Estimate from the full measurement files of `out`; opens neither input nor key."""
    with _workspace(out, options) as space:
        return _in_turn(_estimated, space, run, replace(options, measurements="full", keep_key=True))


def _in_turn(
    do: Callable[[Workspace, Run, RunOptions], dict[str, Any]],
    space: Workspace,
    run: Run,
    options: RunOptions,
) -> dict[str, Any]:
    """Do the act of a product, after that of its companion if it has one, and tied to what that released.

    Before the companion's act costs anything, the product's own is planned on its input: what can be refused
    is refused while nothing has been spent.
    """
    companion = run.companion
    if companion is None:
        return do(space, run, options)
    if do is not _estimated and space.load_state(companion.product.name) is None:
        with _begin(space, run, "plan", options) as act, _backend(act, run, estimates=False) as backend:
            try:
                plan_run(act, run, backend, estimates=do is _release)
            finally:
                remove_cache(space.cache(act.product))
    first = do(space, companion, options)
    return {**do(space, run.tied_to(space.release), options), "companion": first}


def _release(space: Workspace, run: Run, options: RunOptions) -> dict[str, Any]:
    """Run one product from input to finished release."""
    with _begin(space, run, "run", options) as act:
        act.refuse_repetition()
        if act.is_finished:
            _check_wanted(act, run)
        if act.is_finished and not act.has_key:
            act.check_without_key(planned_act(run))
            return act.answer()
        with _backend(act, run) as backend, _input_put_aside(act):
            planned = plan_run(act, run, backend)
            charged = charge_run(act, planned)
            if act.is_finished:
                return act.answer()
            measured = _measured(planned, charged)
            with _engine(act, measured, backend) as (engine, files):
                stored = options.stored(planned.run.plan, run.resolved.estimator)
                public = partial(_write_public, act.space, measured, stored, planned.data.headers)
                estimation, facts = _estimate(act, measured, engine, files, public)
                if stored == "full":
                    _write_full(act, measured, backend)
                    answers: list[UsedFile] = []
                else:
                    folder = act.space.release / "measurements" / act.product
                    answers = used_files(folder, measured.run.plan, estimation)
                return _write(act, measured, estimation, facts, answers, engine)


def _measure(space: Workspace, run: Run, options: RunOptions) -> dict[str, Any]:
    """Take and write all measurements of one product."""
    with _begin(space, run, "measure", options) as act:
        act.refuse_repetition()
        done = act.earlier is not None and act.earlier.phase != "started"
        complete = done and act.known.get("measurements") == "full"
        if act.earlier is not None and done and not act.has_key:
            act.check_without_key(planned_act(run))
            if complete:
                return act.answer()
            raise PrivacyError(
                f"the key of {act.product} is not at hand, and the measurements that the run left out cannot "
                f"be drawn without it. {space.how_to_give_key(act.earlier)}"
            )
        with _backend(act, run, estimates=False) as backend, _input_put_aside(act):
            planned = plan_run(act, run, backend, estimates=False)
            charged = charge_run(act, planned)
            if complete:
                return act.answer()
            measured = _measured(planned, charged)
            facts = _write_public(act.space, measured, "full", planned.data.headers)
            _write_full(act, measured, backend)
        if act.is_finished:
            # The microdata stay; only more of the same measurement is shown beside them.
            estimated = next(r for r in read_runs(act.space.release) if r.product == facts.product)
            facts = replace(estimated, measurements="full")
        phase = "finished" if act.is_finished else "measured"
        result = _result(measured, {**act.known, "measurements": "full"})
        return act.finish(measured.state, result, facts.to_dict(), partial(_issue, act.space), phase)


def _estimated(space: Workspace, run: Run, options: RunOptions) -> dict[str, Any]:
    """Estimate one product from its measurement files."""
    with _begin(space, run, "estimate", options) as act:
        state, folder = act.earlier, act.space.release.absolute() / "measurements" / act.product
        if state is None or not (folder / "spine.parquet").is_file():
            raise ConfigError(
                f"{space.out} holds no measurements of {act.product}; run opendas measure first"
                f"{'' if state is None else ', with --resume'}."
            )
        if act.is_finished and not options.resume:
            raise ConfigError(
                f"{act.product} is estimated in {space.out} already; use --resume to get its result."
            )
        run = _run_of_files(act.space, run, state, folder)
        digest = run.estimation_digest()
        if act.is_finished and digest != state.estimation_digest:
            raise PrivacyError(
                f"{act.product} in {space.out} was estimated with other settings. Give those of that "
                "estimate (release/run shows them), or choose another output folder"
                f"{'' if state.is_borrowed else ', where a new run is charged in full'}."
            )
        if act.is_finished:
            return act.answer()
        state = replace(state, estimation_digest=digest)
        measured = _read_measured(run, state, folder)
        log_phase(act, measured.run, state)
        act.clock.lap("read measurements")
        with _backend(act, run) as backend, _engine(act, measured, backend) as (engine, files):
            known = partial(measured.facts, "full")  # what is public stands in `out` already
            if run.companion is not None:  # but for the tie to what was estimated since
                known = partial(_write_public, act.space, measured, "full", [])
            estimation, facts = _estimate(act, measured, engine, files, known)
            return _write(act, measured, estimation, facts, [], engine)


def _workspace(out: Path, options: RunOptions) -> Workspace:
    """Lock the output folder, named as executors name it too."""
    refuse_foreign(out)
    place = out if options.engine == "local" else out.resolve()
    return Workspace(place, options.ledger, group_writable=options.group_writable)


@contextmanager
def _begin(space: Workspace, run: Run, command: str, options: RunOptions) -> Iterator[Act[RunOptions]]:
    """Begin an attempt, and complete what a death at the end of an earlier one left undone."""
    if run.resolved.own_estimator is not None:
        raise ConfigError(
            f"estimator {run.resolved.estimator}: no release is made with an estimator object, because "
            "others do not have the object and could not derive the release again. Install it as a package "
            "with an entry point, or use od.experiment."
        )
    _ = run.parts  # those that cannot be loaded are refused before the input is read
    with open_act(space, run.product.name, command, options, options.workers) as act:
        act.finish_ending(partial(_issue, space))
        yield act


def _backend(act: Act[RunOptions], run: Run, *, estimates: bool = True) -> AbstractContextManager[Backend]:
    """Open the execution backend of a run."""
    options = act.options
    no_subtrees = run.resolved.estimator == "block-by-block" or len(run.resolved.levels) < 2
    if options.engine == "spark" and no_subtrees:
        raise ConfigError(
            "engine spark distributes subtrees, and a run with one geolevel or with the estimator "
            "block-by-block has none; leave out --engine."
        )
    if options.engine == "local":
        return LocalBackend(options.workers, warm=estimates and not act.is_finished)
    from opendas.engines.spark.backend import open_on_spark

    return open_on_spark(act.space.state / act.product, options.master, options.workers)


@contextmanager
def _input_put_aside(act: Act[RunOptions]) -> Iterator[None]:
    """Let a run put its input aside; one that is finished only sees whether it is the same."""
    try:
        yield
    finally:
        if act.is_finished:
            remove_cache(act.space.cache(act.product))


def _check_wanted(act: Act[RunOptions], run: Run) -> None:
    """Refuse to return a finished run as if it had the measurements or microdata that are asked for."""
    if act.options.measurements == "full" and act.known.get("measurements") != "full":
        rest = "" if act.earlier is None else left_out(act.space.out, act.earlier)
        raise ConfigError(
            f"{act.product} was finished with only the measurements that its estimate used. {rest}".rstrip()
        )
    folder = act.space.release / "mdf" / run.product.layout
    if act.options.mdf_format == "pipe" and any(folder.glob("*.parquet")):
        raise ConfigError(
            f"{act.product} was finished with microdata in Parquet; --resume does not change their format."
        )


def _measured(planned: PlannedRun, charged: Charged) -> MeasuredRun:
    """Return a charged run whose answers are drawn when they are asked for."""
    state = charged.state
    noise_key = charged.key.derive(
        "noise/" + state.product, bytes.fromhex(state.plan_digest), bytes.fromhex(state.input_tag)
    )
    source = KeyedSource(measured_levels(planned.run.plan), noise_key)
    return MeasuredRun(
        planned.run, planned.constraints, planned.protection, planned.model, state, source, planned.counts
    )


def _run_of_files(space: Workspace, run: Run, state: RunState, folder: Path) -> Run:
    """Return a run on the frame and spine of its measurement files; they must be of its plan."""
    frame = read_frame(space.release / "geography" / f"{state.product}.parquet")
    run = run.on_frame(frame, read_spine(folder / "spine.parquet", frame))
    if run.plan.digest() != state.plan_digest:
        raise PrivacyError(
            f"the measurements of {state.product} in {space.out} were taken with another plan; estimate with "
            "the run file they were measured with (release/run shows its plan)."
        )
    return run


def _read_measured(run: Run, state: RunState, folder: Path) -> MeasuredRun:
    """Return a run from its measurement files."""
    path = folder / "constraints.parquet"
    if run.companion is None:
        constraints = read_constraint_table(path, run.product, run.spine)
    else:
        untied = read_constraint_table(path, replace(run.product, tie=None), run.spine)
        constraints = tie_constraints(run, untied, seeded=state.seed is not None)
    _check_invariants(run, constraints)
    model = run.model(constraints)
    source = FileSource(measured_levels(run.plan), folder)
    check_measurement_files(source.levels, run.spine, folder)
    protection = ProtectionMap.of(run.plan, run.frame, constraints)
    return MeasuredRun(run, constraints, protection, model, state, source, None)


def _check_invariants(run: Run, constraints: ConstraintTable) -> None:
    """Refuse other invariants than those on file: the certificate names what is published exactly."""
    spine = run.spine
    wanted = {f"{query}@{spine.names[n]}" for query, n in run.product.invariant_levels(spine).items()}
    found = {held.name for level in constraints.levels for held in level.invariants}
    found |= {level.joint.name for level in constraints.levels if level.joint is not None}
    if found != wanted:
        raise PrivacyError(
            f"the measurements of {run.product.name} were taken with other invariants than this run file "
            f"holds ({', '.join(sorted(found ^ wanted))}): exact values that stand in the release cannot be "
            "given up afterwards, nor others added. Estimate with the run file they were measured with "
            "(release/run shows its plan)."
        )


@contextmanager
def _engine(
    act: Act[RunOptions], measured: MeasuredRun, backend: Backend
) -> Iterator[tuple[Engine, Checkpoints]]:
    """Start the workers of a run; they write what they find into files of the run's own."""
    run, folder = measured.run, act.space.state / act.product
    keep_used = act.options.stored(run.plan, run.resolved.estimator) == "used" and measured.counts is not None
    binding = measured.state.run_id + run.estimation_digest() + str(keep_used)
    seconds = act.space.cache(act.product) / "seconds"
    make_folder(seconds)
    files = Checkpoints(folder, binding, backend.write, seconds)
    rules = run.rules(measured.constraints)
    worker = Worker(rules, measured.source, run.resolved.failsafe, keep_used, files)
    with backend.engine(worker, folder, measured.counts, run.spine) as engine:
        yield engine, files


def _estimate(
    act: Act[RunOptions],
    measured: MeasuredRun,
    engine: Engine,
    files: Checkpoints,
    beside: Callable[[], RunFacts],
) -> tuple[Estimation, RunFacts]:
    """Estimate, and do beside it what needs no estimate: most of the time this process only waits."""
    with ThreadPoolExecutor(1) as thread:
        facts = thread.submit(beside)
        pages = thread.submit(load_pages)
        estimation = estimate_on(
            engine,
            measured.run.spine,
            measured.constraints,
            counts=measured.counts,
            estimator=measured.run.resolved.estimator,
            model=measured.model,
            checkpoints=files,
            progress=act.tell,
        )
    act.clock.lap("estimate")
    pages.result()
    return estimation, facts.result()


def _write_full(act: Act[RunOptions], measured: MeasuredRun, backend: Backend) -> None:
    """Draw and write all noisy answers."""
    if measured.counts is None:
        raise AssertionError("measuring needs counts")
    source = cast("KeyedSource", measured.source)
    draw = backend.draw(source, measured.counts, act.space.state / act.product, measured.run.spine)
    write_full(act.space.release / "measurements" / act.product, measured.run.plan, draw, act.tell)
    act.clock.lap("measurement files")


def _write_public(
    space: Workspace, measured: MeasuredRun, measurements: str, headers: list[Header]
) -> RunFacts:
    """Write what is public of a run, its resolved plan, frame, spine and constraints; and describe it.

    The headers of redistricting files are taken out of their list, so that they do not stay in memory.
    """
    run = measured.run
    # without counts they stand there since the measuring
    areas = official_areas(run.resolved.reader, run.frame, headers) if measured.counts is not None else None
    headers.clear()
    write_public(space, run, measured.constraints, measured.domain, areas)
    return measured.facts(measurements)


def write_public(
    space: Workspace,
    run: Run,
    constraints: ConstraintTable,
    domain: Domain,
    areas: OfficialAreas | None,
) -> None:
    """Write what is public of a run that has measured: resolved plan, frame, spine, constraints and areas."""
    name = run.product.name
    folder = space.release / "measurements" / name
    frame = run.frame if run.resolved.recipe.by_governments else replace(run.frame, functional_status={})
    write_frame(space.release / "geography" / f"{name}.parquet", frame, run.product)
    if areas is not None:
        write_official_areas(official_areas_path(space.release, name), areas)
    write_spine(folder / "spine.parquet", run.spine)
    write_constraints(folder / "constraints.parquet", run.product, run.spine, constraints)
    text = released_toml(run.resolved, run.budget, domain)
    write_atomic(space.release / "run" / f"{name}.toml", text.encode())


def _write(
    act: Act[RunOptions],
    measured: MeasuredRun,
    estimation: Estimation,
    facts: RunFacts,
    answers: Sequence[UsedFile],
    engine: Engine,
) -> dict[str, Any]:
    """Write files and certificate, and finish the act."""
    space, run, product = act.space, measured.run, measured.run.product
    leaves: Callable[[Ints], Histogram] = Leaves(estimation, run.spine)
    if (types := UnitTypes.of(product, run.frame)) is not None:
        leaves = types.on(leaves)
    folder = space.release / "mdf" / product.layout
    second = product.companion  # which has part of the same microdata
    companion = None if second is None else ReleaseFolder(space.release)[second.name].estimate
    microdata = MdfFiles(folder, product, run.frame, leaves, act.options.mdf_format, companion)
    timed = space.confidential / "timings" / f"{product.name}_families.parquet"
    families = FamilyFile(timed, run.spine.names, estimation.finished())
    count = len(answers) + 1 + len(microdata)
    act.tell("writing", 0, count)
    every = engine.apply(methodcaller("write"), itertools.chain(answers, [families], microdata), count)
    solved = None
    for done, (_, answer) in enumerate(every, start=1):
        solved = answer if isinstance(answer, Solved) else solved
        act.tell("writing", done, count)
    if solved is None:
        raise AssertionError("the file of families tells how they were solved")
    remove_partials(space.release)  # of executors that were given up
    records = microdata.records
    act.clock.lap("write")
    facts = estimated_facts(facts, run, solved, records, leaves)
    if types is not None:
        facts = replace(facts, moved=sum(types.moved.values()))
    more = {
        "records": records,
        "families": solved.families,
        "fallbacks": solved.fallbacks,
        "measurements": act.options.stored(run.plan, run.resolved.estimator),
    }
    return act.finish(measured.state, _result(measured, more), facts.to_dict(), partial(_issue, space))


def _issue(space: Workspace, facts: Mapping[str, Any], custody: KeyCustody) -> None:
    """Issue the certificate of a run whose files are complete."""
    issue_certificate(space.release, replace(RunFacts.from_dict(facts), key=custody.value))


def _result(measured: MeasuredRun, more: Mapping[str, Any]) -> dict[str, Any]:
    budget, known = measured.run.budget, measured.state.known
    gaussian = budget.mechanism.is_zcdp
    return {
        "product": measured.state.product,
        "rho": format_fraction(budget.total) if gaussian else None,
        "epsilon": None if gaussian else format_fraction(budget.total),
        "stamps": list(known.get("stamps", ())),
        "declared": list(known.get("declared", ())),
        "domain": measured.domain.to_dict(),
        **more,
    }
