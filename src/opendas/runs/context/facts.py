"""What a run says of itself: the facts of its certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opendas.arrays import Ints
from opendas.budget.noise import NoiseRow, plan_rows
from opendas.custody.stamps import UNPROVEN_PART
from opendas.files.mdf.layout import mdf_parts
from opendas.files.mdf.unit_types import UnitTypes
from opendas.geography.summary import summarise
from opendas.measurement.loss import attribute_losses, record_loss, within_losses
from opendas.measurement.official_losses import official_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protected import protection_of
from opendas.measurement.protection import ProtectionMap
from opendas.parts import Origin
from opendas.report.certificate import issue, read_account, read_runs
from opendas.report.facts import RunFacts
from opendas.report.pyramids import pyramids
from opendas.runs.context.account import account_facts
from opendas.runs.context.run import Run
from opendas.schema.attributes import label_runs
from opendas.schema.declarations import MAX_PEOPLE_PER_UNIT
from opendas.schema.histogram import Histogram
from opendas.schema.provenance import Domain
from opendas.version import __version__, commit

if TYPE_CHECKING:
    from opendas.engines.outputs import Solved


def _share_counts(plan: MeasurementPlan, level: int) -> dict[object, int]:
    share = plan.levels[level].share
    shares = plan.spine.shares[level]
    if shares is None:
        return {share: len(plan.spine.levels[level])}
    counts = np.bincount(shares.which, minlength=len(shares.multiples)).tolist()
    return {share * multiple: count for multiple, count in zip(shares.multiples, counts, strict=True)}


def noise_rows(plan: MeasurementPlan) -> tuple[NoiseRow, ...]:
    """Return one row per distinct noise of a plan."""
    sizes = {name: plan.product.workload.group(name).size for name in plan.product.query_names}
    counts = {level.geolevel: _share_counts(plan, number) for number, level in enumerate(plan.levels)}
    return plan_rows(plan.budget, counts, sizes)  # type: ignore[arg-type]


def measured_facts(
    run: Run,
    held: ProtectionMap,
    stamps: Sequence[str],
    declared: Sequence[str],
    domain: Domain,
    measurements: str,
) -> RunFacts:
    """Collect what the certificate says about a run that has measured.

    - `run`: on the frame, with leaves and entity codes, that it was measured on.
    - `held`: with the values of the invariants.
    - `domain`: where its parts come from, as charged.
    - `measurements`: ``used`` or ``full``.
    """
    product, budget, plan = run.product, run.budget, run.plan
    public = [f"bound {bound.name}: {bound.lower} to {bound.upper} a unit" for bound in product.bounds]
    public += [f"linear constraint {one}" for one in product.linear]
    public += [
        "structural zero: "
        + ", ".join(
            f"{name} in {'/'.join(label_runs(labels, product.schema.attribute(name).levels))}"
            for name, labels in zero.levels.items()
        )
        for zero in product.structural_zeros
    ]
    if (prior := product.prior) is not None:
        public.append(
            f"prior: {prior.query} of each {plan.spine.leaf.name} in {prior.name}, sha256 {prior.sha256}; "
            "public, as the run file declares"
        )
    if (tie := product.tied) is not None:
        public.append(
            f"tie: {tie.query} as in the release of {tie.product}, microdata {tie.microdata}; the loss of "
            "that release is not in the loss of this run, and is in the totals"
        )
        public += [f"tie: {row} as {column} of the frame" for row, column in tie.columns.items()]
        if UnitTypes.of(product, run.frame) is not None:
            public += [
                f"tie: {level} by {column} of the frame: 1 to {MAX_PEOPLE_PER_UNIT} a unit"
                for level, column in tie.units.items()
            ]
    within = within_losses(plan, held)
    return RunFacts(
        product=product.name,
        protected_unit=product.protected_unit,
        mechanism=budget.mechanism.value,
        neighbours=budget.neighbours.value,
        loss=budget.total,
        delta=budget.delta,
        stamps=_stamped(stamps, run.measuring_parts),
        parts=run.measuring_parts,
        estimator="none (measurements only)",
        invariants=(*(invariant.name for invariant in product.invariants), *declared),
        dropped_invariants=tuple(invariant.name for invariant in run.resolved.dropped),
        declared=tuple(public),
        records=0,
        geounits={level.name: len(level) for level in plan.spine.levels},
        geolevel_shares=dict(budget.geolevels),
        query_shares={level: dict(budget.query_shares(level)) for level, s in budget.geolevels.items() if s},
        rows=noise_rows(plan),
        attributes=attribute_losses(plan, held),
        within=within,
        plan_digest=plan.digest(),
        spine_digest=plan.spine.digest(),
        families=0,
        fallbacks=0,
        failsafe=(),
        measurements=measurements,
        spine=summarise(plan.spine, run.frame),
        source=run.resolved.budget.source,
        within_official=official_losses(plan, run.frame, held, within),
        protection=protection_of(held, declared),
        domain=domain,
        contribution=budget.contribution.bound,
        record_loss=None if budget.contribution.bound is None else record_loss(plan),
        tied=() if product.tie is None else product.tie.acts,
        companion=None if product.companion is None else product.companion.name,
        published=run.resolved.published,
    )


def _stamped(stamps: Sequence[str], parts: Sequence[Origin]) -> tuple[str, ...]:
    unproven = (UNPROVEN_PART,) if any(not part.proof for part in parts) else ()
    return tuple(dict.fromkeys((*stamps, *unproven)))


def estimated_facts(
    facts: RunFacts, run: Run, solved: Solved, released: int, leaves: Callable[[Ints], Histogram]
) -> RunFacts:
    """Add to what is said of a run that it has estimated.

    `leaves`: returns the released counts of leaves at some positions of the frame.
    """
    parts = ((part.leaves, leaves(part.leaves)) for part in mdf_parts(run.product, run.frame))
    return replace(
        facts,
        estimator=run.resolved.estimator,
        parts=run.parts,
        stamps=_stamped(facts.stamps, run.parts),
        records=released,
        families=solved.families,
        fallbacks=solved.fallbacks,
        failsafe=solved.failsafe,
        pyramids=pyramids(run.product, run.frame, parts),
    )


def issue_certificate(release: Path, *facts: RunFacts) -> None:
    """Issue certificate and report for what the release holds now; `facts` are of a run that is new in it."""
    issue(release, facts, account_facts(release.parent), version=__version__, commit=commit())


def refresh_certificate(out: Path, release: Path, stamp: str | None = None) -> bool:
    """Issue the certificate again if the account says something else now, or a stamp is new.

    `out`, `release`: an output folder and its ``release/``.
    """
    runs = read_runs(release)
    new = () if stamp is None else (stamp,)
    stamped = tuple(replace(run, stamps=tuple(dict.fromkeys((*run.stamps, *new)))) for run in runs)
    account = account_facts(out)
    if not runs or (stamped == runs and (account is None or account == read_account(release))):
        return False
    issue(release, stamped, account, version=__version__, commit=commit())
    return True
