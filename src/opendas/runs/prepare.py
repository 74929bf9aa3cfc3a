"""Before the first draw: read, plan and check, then charge.

Whatever can be refused is refused here, while nothing has been spent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opendas.budget.allocation import Budget
from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.custody.folders import sha256_file, write_atomic
from opendas.custody.ledger_entries import Loss
from opendas.custody.stamps import DEMONSTRATION_FRAME, NOT_FOR_RELEASE, POPULATED_LEAVES
from opendas.engines.local import workers_for
from opendas.engines.truth import ExactCounts
from opendas.errors import ConfigError, DataError, PrivacyError
from opendas.files.mdf.layout import check_mdf
from opendas.files.mdf.unit_types import UnitTypes
from opendas.files.release_folder import tied_counts
from opendas.gls.model import TreeModel
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.relations import Neighbours
from opendas.readers.input.spec import InputData, ReaderSpec, SelectionKeys
from opendas.readers.prior_table import read_prior_table
from opendas.runs.act import Act, Charged, Planned
from opendas.runs.context.account import tagger_of
from opendas.runs.context.machine import check_cells
from opendas.runs.context.run import Run
from opendas.runs.context.workspace import RunState
from opendas.runs.options import RunOptions
from opendas.runs.simulated.forecast import check_families, check_room, forecast_run
from opendas.runs.simulated.sparse import sparse_warning
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.provenance import Domain, Provenance
from opendas.topdown.checks import check_roots
from opendas.topdown.rounding import check_rounder_passes
from opendas.topdown.stages import check_stages

if TYPE_CHECKING:
    from opendas.engines.local_backend import LocalBackend
    from opendas.engines.spark.backend import SparkBackend

Backend: TypeAlias = "LocalBackend | SparkBackend"
"""Where a run's counts stand, and who does its tasks. The release is the same."""

TRUNCATION_PURPOSE = "topdown/truncation"
"""Purpose of the keys under which the records of a unit are chosen."""

MOST_RECORDS = 1 << 39
"""Records of a run: the rounder is exact below 2**40, noise included."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRun:
    """A run that is read, planned and checked: nothing is spent. Confidential, for it has the counts."""

    run: Run  # on the frame that was read
    data: InputData = field(repr=False)
    counts: ExactCounts = field(repr=False)
    constraints: ConstraintTable = field(repr=False)
    protection: ProtectionMap = field(repr=False)  # with the values of the invariants
    model: TreeModel | None = field(repr=False)  # of the whole tree, where the estimator needs one


def planned_act(run: Run) -> Planned:
    """Return what a run is a function of, beside input and key, and what it costs."""
    budget = run.budget
    return Planned(
        plan_digest=run.plan.digest(),
        estimation_digest=run.estimation_digest(),
        mechanism=budget.mechanism,
        losses=_losses(budget, fixed=bool(run.product.invariants) or run.companion is not None),
        protected_unit=run.product.protected_unit,
        inputs=run.input_files,
        frame_digest=run.spine.digest(),
    )


def _losses(budget: Budget, *, fixed: bool) -> dict[Neighbours, Loss]:
    """Return the loss under the relation of the plan, and under the other one where it speaks of anything.

    A replaced record changes two rows of a query group where an added one changes one: its loss is twice as
    large (docs/proofs/composition.md, section 2). Where something is `fixed`, no record can be added.
    """
    other = Neighbours.BOUNDED if budget.neighbours is Neighbours.UNBOUNDED else Neighbours.UNBOUNDED
    losses: dict[Neighbours, Loss] = {budget.neighbours: budget.total}
    if other is Neighbours.BOUNDED:
        losses[other] = 2 * budget.total
    elif not fixed:
        losses[other] = budget.total / 2
    return losses


def published_exactly(product: Product) -> tuple[str, ...]:
    """Name what a product publishes exactly: its invariants, and bounds that pin a count."""
    pinned = (f"bound {bound.name}" for bound in product.bounds if bound.lower == bound.upper)
    return (*(invariant.name for invariant in product.invariants), *pinned)


def plan_run(act: Act[RunOptions], run: Run, backend: Backend, *, estimates: bool = True) -> PlannedRun:
    """Read the input, plan the run on its frame, and check all that can be checked before a draw.

    `estimates`: False where measurements are all that is wanted.
    """
    check_cells(run.product)
    act.tell("reading", 0, 1)
    resolved, product, cache = run.resolved, run.product, act.space.cache(run.product.name)
    data = backend.read(_chosen_by_key(act, resolved.reader), cache)
    act.clock.lap("read")
    run = run.on_frame(data.frame)
    spine, plan = run.spine, run.plan
    act.clock.lap("plan")
    counts = backend.count(data, plan, resolved.estimator, cache)
    if counts.total() >= MOST_RECORDS:
        raise DataError(
            f"the input holds more than {MOST_RECORDS:,} records, which is more than this version rounds "
            "exactly. Check the column of counts."
        )
    act.tell("reading", 1, 1)
    act.clock.lap("read")
    constraints = bound_table(product, data.frame, spine, declared_invariants(product, counts.answers, spine))
    seeded = act.options.seed is not None or (act.earlier is not None and act.earlier.seed is not None)
    constraints = tie_constraints(run, constraints, seeded=seeded)
    constraints = with_prior_table(run, constraints)
    check_feasible(product, spine, constraints)
    protection = ProtectionMap.of(plan, data.frame, constraints)
    protection.check()
    check_rules(run, constraints)
    model = run.model(constraints)
    backend.partition(counts, constraints, resolved.estimator, model)
    check_mdf(product, data.frame)  # leaves that the microdata cannot show: better now than when it is spent
    if not act.is_finished:
        _check_room(act, run, _shared_number(run, counts), estimates=estimates)
    return PlannedRun(run, data, counts, constraints, protection, model)


def check_rules(run: Run, constraints: ConstraintTable) -> None:
    """Refuse stages, rounder passes and a root that cannot be solved under what is exact.

    Raises `ConfigError` with what to do.
    """
    workload, every_rule = run.product.workload, run.rules(constraints)
    looked_at = set()
    for rules, level in zip(every_rule, constraints.levels, strict=True):
        form = (rules.query_names, *(invariant.name for invariant in level.invariants))
        if (
            form not in looked_at
        ):  # the same of every geolevel with the same passes: seconds, of a million cells
            check_stages(rules, level, workload)
            check_rounder_passes(rules, level)
        looked_at.add(form)
    roots = -1 if run.resolved.estimator == "block-by-block" else 0
    check_roots(workload, every_rule[roots], constraints.levels[roots])


def check_without_records(run: Run) -> None:
    """Refuse what a run refuses whatever its records are, without reading any.

    The public counts are those of the frame and of the release that the run is tied to. Of what is exact in
    the records the form decides, not the counts: those of an input without records stand for it.
    """
    product, spine = run.product, run.spine
    public = replace(product, invariants=())
    known = tie_constraints(run, bound_table(public, run.frame, spine, {}), seeded=True)
    check_feasible(public, spine, with_prior_table(run, known))
    none = np.zeros(0, dtype=np.int64)
    empty = Histogram.from_entries(none, none, none, shape=(len(spine.leaf), product.schema.size))
    constraints = bound_table(product, run.frame, spine, declared_invariants(product, empty, spine))
    # The companion is measured first, and this product is tied to what comes of it.
    tie = product.tied if product.companion is None else product.tie
    if tie is not None:
        query = product.workload.group(tie.query)
        sums = empty.recoded(query.row_of_cell, query.size)
        constraints = constraints.tied_to(tie.product, query, sums, spine)
    check_rules(run, constraints)
    check_mdf(product, run.frame)


def tie_constraints(run: Run, constraints: ConstraintTable, *, seeded: bool) -> ConstraintTable:
    """Return constraints with the counts of the release that a run is tied to; as they are without a tie.

    Raises `ConfigError, DataError` if it is another release than the tie needs, or contradicts an invariant;
    `PrivacyError` if its noise came from a seed, and that of this run does not.
    """
    tie, release, spine = run.product.tied, run.resolved.tied, run.spine
    if tie is None or release is None:
        return constraints
    if not seeded and any(act.loss is None for act in tie.acts):
        else_seed = "" if run.resolved.published is not None else ", or give this run a seed, too"
        raise PrivacyError(
            f"[tie]: the release of {tie.product} is stamped {NOT_FOR_RELEASE}: its noise can be computed by "
            "others, so that this release would show what it hides. Tie to a release that was made with a "
            f"secret key{else_seed}."
        )
    counts = tied_counts(release, run.product, run.frame)
    if (types := UnitTypes.of(run.product, run.frame)) is not None:
        types.check(counts)
    tied = counts.take(spine.leaf_order)
    return constraints.tied_to(tie.product, run.product.workload.group(tie.query), tied, spine)


def with_prior_table(run: Run, constraints: ConstraintTable) -> ConstraintTable:
    """Return constraints with the public table that the posterior starts from; as they are without one.

    Raises
    ------
    ConfigError, FormatError, SchemaError
        If the table was changed since the run file was read, or is not of the query group or the frame.
    """
    prior, written = run.product.prior, run.resolved.run_file
    if prior is None or written is None or written.prior is None:
        return constraints
    query, spine = run.product.workload.group(prior.query), run.spine
    counts = read_prior_table(
        written.prior.path, query, run.frame.geocodes, written.prior.geocode, written.prior.count
    )
    if sha256_file(written.prior.path) != prior.sha256:
        raise ConfigError(
            f"[prior] path: {written.prior.path} was changed after the run file was loaded. Start again."
        )
    return constraints.with_prior(prior.name, query, counts.take(spine.leaf_order))


def _chosen_by_key(act: Act[RunOptions], spec: ReaderSpec) -> ReaderSpec:
    """Return what the reader is asked, with the keys that choose the records of a unit, where that is needed.

    They are bound to the product and to nothing else: under a key that depended on all records, one unit
    would decide which records of another are counted (docs/proofs/units.md).
    """
    if spec.contribution is None:
        return spec
    key, product = act.key(), spec.product.name.encode()
    units, records = (key.derive(TRUNCATION_PURPOSE, product, part) for part in (b"units", b"records"))
    return replace(spec, selection=SelectionKeys(units, records))


def _shared_number(run: Run, counts: ExactCounts) -> int | None:
    """Return the number of records where all neighbours have it; None where it is protected.

    A unit that a companion counts may have no record here, so that their number is no fact.
    """
    bounded = run.budget.neighbours is Neighbours.BOUNDED and run.product.companion is None
    return counts.total() if bounded and run.resolved.reader.contribution is None else None


def _check_room(act: Act[RunOptions], run: Run, records: int | None, *, estimates: bool) -> None:
    """Say what the run will need; refuse one that disk or memory certainly cannot hold.

    Anyone who watches is also told where the table is too sparse for its budget: now, before it is charged.
    """
    options = act.options
    if options.engine != "local":
        return
    workers = workers_for(len(run.spine.leaf), run.product.schema.size, options.workers)
    full = options.stored(run.plan, run.resolved.estimator) == "full"
    forecast = forecast_run(
        run.plan, run.resolved.estimator, workers, full=full, estimates=estimates, records=records
    )
    if estimates and records is not None and run.resolved.estimator != "block-by-block":
        check_families(run.plan, records)
    # Part of what a resumed run needs is there already: how much is not worth finding out.
    warnings = check_room(forecast, act.space.out) if act.earlier is None else ()
    act.log.write(
        "forecast",
        peak_rss_mb=round(forecast.peak_rss_mb, 1),
        memory_mb=round(forecast.memory_mb, 1),
        disk_mb=round(forecast.output_mb + forecast.scratch_mb, 1),
    )
    for warning in warnings:
        act.log.write("note", message=warning)
    if options.expect is not None:
        asked = records is not None and act.earlier is None
        sparse = sparse_warning(run, records, with_plans=False) if asked and records is not None else None
        options.expect(forecast, (*warnings, *([] if sparse is None else [sparse])))


def charge_run(act: Act[RunOptions], planned: PlannedRun) -> Charged:
    """Enter a planned run into the ledger: from here on noise may be drawn."""
    run, data, counts = planned.run, planned.data, planned.counts
    planned_with = replace(planned_act(run), exact=(*published_exactly(run.product), *data.declared))
    # What is counted of units of several records depends on the key: a book knows an input by all its rows.
    counted = counts.tag if run.resolved.reader.contribution is None else None
    act.find_account(tagger_of(run, counted))
    identified = act.identify(planned_with, counts.tag)
    findings = (*data.findings, *counts.findings)
    if findings:
        text = "\n".join(str(finding) for finding in findings) + "\n"
        write_atomic(act.space.confidential / "findings" / f"{act.product}.txt", text.encode())
    domain = _found_domain(run, data)
    seeded = (NOT_FOR_RELEASE,) if identified.key.is_seeded else ()
    stamps = (*seeded, *data.stamps, *run.domain_stamps)
    said = {"stamps": list(stamps), "declared": list(data.declared), "domain": domain.to_dict()}
    charged = act.charge(identified, said)
    act.clock.lap("plan")
    log_phase(act, run, charged.state)
    return charged


def _found_domain(run: Run, data: InputData) -> Domain:
    """Return where the domain comes from: as declared, and with what the reader derived from the records."""
    domain, reader = run.resolved.domain, run.resolved.reader.reader
    derived = DEMONSTRATION_FRAME in data.stamps or reader == "cef"
    units = Provenance.FROM_RECORDS if derived else domain.units
    taken = POPULATED_LEAVES in data.declared or (derived and reader.startswith("pl94"))
    frame = Provenance.FROM_RECORDS if taken else domain.frame
    return replace(domain, frame=frame, units=units)


def log_phase(act: Act[RunOptions], run: Run, state: RunState) -> None:
    """Log which phase a run begins with, and what it will do."""
    spine, options = run.spine, act.options
    act.log.write(
        "phase",
        phase=state.phase,
        run_id=state.run_id,
        plan_digest=state.plan_digest,
        spine_digest=spine.digest(),
        leaves=len(spine.leaf),
        geounits={name: len(level) for name, level in zip(spine.names, spine.levels, strict=True)},
        workers=workers_for(len(spine.leaf), run.product.schema.size, options.workers)
        if options.engine == "local"
        else options.workers,
    )
