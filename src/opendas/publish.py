"""What a run publishes beside microdata: measurement files, and the facts of its certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np

from opendas.budget.plan import plan_rows, within_rho
from opendas.engines.work import KeyedSource
from opendas.estimation.model import FamilyRecord
from opendas.geography.frame import Frame
from opendas.geography.spine import Shares
from opendas.geography.summary import summarise
from opendas.io.measurement_files import Answers, measurement_metadata
from opendas.io.writers.measurements import MeasurementWriter, used_answers
from opendas.measurement.family import UsedAnswers
from opendas.measurement.loss import attribute_losses
from opendas.measurement.noisy import NoisyMeasurements
from opendas.measurement.plan import MeasurementPlan
from opendas.random.noise import NoiseSource
from opendas.report.certificate import issue
from opendas.report.facts import NoiseRow, RunFacts
from opendas.run import Run
from opendas.schema.histogram import Histogram
from opendas.version import __version__, commit

__all__ = ["describe", "issue_certificate", "noise_rows", "write_full", "write_used"]

Progress = Callable[[str, int, int], None]

_VALUES_AT_ONCE = 1 << 22
"""Noisy answers drawn at a time when the full file is written."""


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
    rows = plan_rows(plan.budget, counts, sizes)  # type: ignore[arg-type]
    return tuple(
        NoiseRow(
            row.geolevel,
            row.query,
            row.geounits,
            row.cells,
            row.rho,
            row.epsilon,
            None if row.sigma2 is None else float(row.sigma2),
            None if row.scale is None else float(row.scale),
            row.variance,
            row.moe90,
        )
        for row in rows
    )


def describe(
    run: Run,
    plan: MeasurementPlan,
    frame: Frame,
    stamps: Sequence[str],
    declared: Sequence[str],
    measurements: str,
    records: Sequence[FamilyRecord] | None,
    released: int,
) -> RunFacts:
    """Collect what the certificate says about a run.

    Parameters
    ----------
    frame : Frame
        Leaves with their entity codes, for the description of the spine.
    records : sequence of FamilyRecord or None
        None where nothing was estimated yet.
    released : int
        Records in the microdata.
    """
    product, budget = run.product, plan.budget
    public = [f"bound {bound.name}: {bound.lower} to {bound.upper} a unit" for bound in product.bounds]
    public += [
        "structural zero: "
        + ", ".join(f"{name} in {'/'.join(labels)}" for name, labels in zero.levels.items())
        for zero in product.structural_zeros
    ]
    solved = records or ()
    return RunFacts(
        product=product.name,
        protected_unit=product.protected_unit,
        mechanism=budget.mechanism.value,
        neighbours=budget.neighbours.value,
        loss=budget.total,
        delta=budget.delta,
        stamps=tuple(stamps),
        estimator="none (measurements only)" if records is None else run.resolved.estimator,
        invariants=(*(invariant.name for invariant in product.invariants), *declared),
        dropped_invariants=tuple(invariant.name for invariant in run.resolved.dropped),
        declared=tuple(public),
        records=released,
        geounits={level.name: len(level) for level in plan.spine.levels},
        geolevel_shares=dict(budget.geolevels),
        query_shares={level: dict(budget.query_shares(level)) for level, s in budget.geolevels.items() if s},
        rows=noise_rows(plan),
        attributes=attribute_losses(plan),
        within=within_rho(budget),
        plan_digest=plan.digest(),
        spine_digest=plan.spine.digest(),
        families=len(solved),
        fallbacks=sum(record.fallback for record in solved),
        failsafe=tuple(asdict(record) for record in solved if record.failsafe),
        measurements=measurements,
        spine=summarise(plan.spine, frame),
        source=run.resolved.budget.source,
    )


def issue_certificate(release: Path, facts: RunFacts) -> None:
    """Issue certificate and report for what the release holds now."""
    issue(release, (facts,), version=__version__, commit=commit())


def _variances(plan: MeasurementPlan, level: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return the variance of each query group's noise in every geounit, 0 where it is not measured."""
    shares = plan.spine.shares[level] or Shares(
        (Fraction(1),), np.zeros(len(plan.spine.levels[level]), dtype=np.int64)
    )
    return {
        planned.query.name: np.array(
            [plan.distribution(level, planned, m).variance if m else 0.0 for m in shares.multiples]
        )[shares.which]
        for planned in plan.levels[level].queries
    }


def _with_budget(plan: MeasurementPlan, level: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which geounits are measured: a geounit whose share went to its parent is not in the file."""
    shares = plan.spine.shares[level]
    if shares is None:
        return np.ones(len(plan.spine.levels[level]), dtype=np.bool_)
    return np.array([multiple > 0 for multiple in shares.multiples])[shares.which]


def write_used(folder: Path, plan: MeasurementPlan, used: Sequence[UsedAnswers]) -> None:
    """Write the noisy answers that estimation read."""
    for number, level in enumerate(plan.levels):
        if not level.queries:
            continue
        metadata = measurement_metadata(plan, number, stored="used")
        answers = used_answers([u for u in used if u.level == number], 0, _variances(plan, number))
        keep = _with_budget(plan, number)
        with MeasurementWriter(folder / f"{level.geolevel}.parquet", metadata) as writer:
            writer.write(
                plan.spine.levels[number].geocodes[keep],
                {query: answer.select(keep) for query, answer in answers.items()},
            )


def write_full(
    folder: Path, plan: MeasurementPlan, source: KeyedSource, counts: Histogram, progress: Progress
) -> None:
    """Draw and write every noisy answer of the plan, geolevel by geolevel."""
    spine = plan.spine
    noise = NoiseSource(source.key)
    total = sum(len(level) for level in spine.levels)
    done = 0
    for number, level in enumerate(plan.levels):
        geocodes = spine.levels[number].geocodes
        done += len(geocodes)
        if not level.queries:
            continue
        table = counts.aggregate(spine.leaf_starts(number)) if number + 1 < len(spine.levels) else counts
        step = max(1, _VALUES_AT_ONCE // sum(q.query.size for q in level.queries))
        variances = _variances(plan, number)
        metadata = measurement_metadata(plan, number, stored="full")
        measured = NoisyMeasurements(source.levels, {number: table}, {number: 0}, noise)
        with MeasurementWriter(folder / f"{level.geolevel}.parquet", metadata) as writer:
            for start in range(0, len(geocodes), step):
                stop = min(start + step, len(geocodes))
                here = measured.has_budget(number, start, stop - start)
                answers = {
                    planned.query.name: Answers.full(
                        values[here], variances[planned.query.name][start:stop][here]
                    )
                    for planned, values in zip(
                        level.queries, measured.full(number, start, stop - start), strict=True
                    )
                }
                writer.write(geocodes[start:stop][here], answers)
                progress("measuring", done - len(geocodes) + stop, total)
