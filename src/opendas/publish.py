"""What a run publishes beside microdata: measurement files, and the facts of its certificate."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from opendas.budget.plan import plan_rows, within_rho
from opendas.engines.drive import Estimation
from opendas.engines.truth import LeafCounts
from opendas.engines.work import KeyedSource
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.geography.summary import summarise
from opendas.io.histogram_files import HistogramWriter, open_histogram
from opendas.io.measurement_files import Answers, measurement_metadata
from opendas.io.writers.measurements import MeasurementWriter
from opendas.measurement.loss import attribute_losses
from opendas.measurement.noisy import NoisyMeasurements
from opendas.measurement.plan import MeasurementPlan
from opendas.random.noise import NoiseSource
from opendas.report.certificate import issue
from opendas.report.facts import NoiseRow, RunFacts
from opendas.run import Run
from opendas.schema.histogram import Histogram
from opendas.version import __version__, commit

__all__ = ["Leaves", "Solved", "describe", "issue_certificate", "noise_rows", "write_full", "write_used"]

Progress = Callable[[str, int, int], None]

LEAVES_IN_MEMORY = 1 << 18
"""Estimates of so many leaves are put into memory at once."""

_VALUES_AT_ONCE = 1 << 22
"""Noisy answers drawn at a time when the full file is written."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What the certificate says of families.

    Parameters
    ----------
    families, fallbacks : int
    failsafe : tuple of mappings
        Records of families that the failsafe relaxed, by level and place on the spine.
    """

    families: int
    fallbacks: int
    failsafe: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, estimation: Estimation, spine: Spine) -> Solved:
        """Go through the records of all families."""
        families = fallbacks = 0
        relaxed = []
        for _, _, result in estimation.families():
            families += len(result.records)
            fallbacks += sum(record.fallback for record in result.records)
            relaxed += [record for record in result.records if record.failsafe]
        relaxed.sort(key=lambda record: spine.index(record.geolevel))
        return cls(families, fallbacks, tuple(asdict(record) for record in relaxed))


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
    solved: Solved | None,
    released: int,
) -> RunFacts:
    """Collect what the certificate says about a run.

    Parameters
    ----------
    frame : Frame
        Leaves with their entity codes, for the description of the spine.
    solved : Solved or None
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
    return RunFacts(
        product=product.name,
        protected_unit=product.protected_unit,
        mechanism=budget.mechanism.value,
        neighbours=budget.neighbours.value,
        loss=budget.total,
        delta=budget.delta,
        stamps=tuple(stamps),
        estimator="none (measurements only)" if solved is None else run.resolved.estimator,
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
        families=0 if solved is None else solved.families,
        fallbacks=0 if solved is None else solved.fallbacks,
        failsafe=() if solved is None else solved.failsafe,
        measurements=measurements,
        spine=summarise(plan.spine, frame),
        source=run.resolved.budget.source,
    )


def issue_certificate(release: Path, facts: RunFacts) -> None:
    """Issue certificate and report for what the release holds now."""
    issue(release, (facts,), version=__version__, commit=commit())


def write_used(folder: Path, plan: MeasurementPlan, estimation: Estimation, progress: Progress) -> None:
    """Write the noisy answers that estimation read, geolevel by geolevel, a task's at a time."""
    total = sum(len(plan.spine.levels[n]) for n, level in enumerate(plan.levels) if level.queries)
    done = 0
    for number, level in enumerate(plan.levels):
        if not level.queries:
            continue
        metadata = measurement_metadata(plan, number, stored="used")
        noise = _LevelNoise(plan, number)
        with MeasurementWriter(folder / f"{level.geolevel}.parquet", metadata) as writer:
            for first, geounits, used in estimation.used_at(number):
                here = slice(first, first + geounits)
                keep = noise.measured[here]
                answers = {}
                for query, variance in noise.variances(here).items():
                    offsets, rows, values = used.of_query(number, query, first, geounits)
                    answers[query] = Answers(values, offsets, rows, variance).select(keep)
                writer.write(plan.spine.levels[number].geocodes[here][keep], answers)
                done += geounits
                progress("writing measurements", done, total)


class _LevelNoise:
    """Variances of one geolevel's noise, geounit by geounit when asked."""

    def __init__(self, plan: MeasurementPlan, level: int) -> None:
        self._by_multiple, self._which = plan.variances(level)
        self._queries = tuple(planned.query.name for planned in plan.levels[level].queries)

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Which geounits are measured: one whose share went to its parent is not in the file, bool (g,)."""
        return np.asarray(np.isfinite(self._by_multiple).all(axis=1))[self._which]

    def variances(self, some: slice) -> dict[str, npt.NDArray[np.float64]]:
        """Return the variance of each query group's noise in some geounits, float64 (g,)."""
        found = self._by_multiple[self._which[some]]
        return {query: found[:, k] for k, query in enumerate(self._queries)}


def write_full(
    folder: Path, plan: MeasurementPlan, source: KeyedSource, counts: LeafCounts, progress: Progress
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
        step = max(1, _VALUES_AT_ONCE // sum(q.query.size for q in level.queries))
        law = _LevelNoise(plan, number)
        metadata = measurement_metadata(plan, number, stored="full")
        with MeasurementWriter(folder / f"{level.geolevel}.parquet", metadata) as writer:
            for start in range(0, len(geocodes), step):
                stop = min(start + step, len(geocodes))
                table = counts.some(number, start, stop)
                measured = NoisyMeasurements(source.levels, {number: table}, {number: start}, noise)
                here = measured.has_budget(number, start, stop - start)
                variances = law.variances(slice(start, stop))
                answers = {
                    planned.query.name: Answers.full(values[here], variances[planned.query.name][here])
                    for planned, values in zip(
                        level.queries, measured.full(number, start, stop - start), strict=True
                    )
                }
                writer.write(geocodes[start:stop][here], answers)
                progress("measuring", done - len(geocodes) + stop, total)


class Leaves:
    """Estimates of all leaves at positions of the frame: in memory where they are few, else on disk.

    Use it as a context manager: what stands on disk is scratch, made again by a run that is resumed.

    Parameters
    ----------
    estimation : Estimation
    spine : Spine
    folder : Path
        Where scratch goes; formally private.
    """

    def __init__(self, estimation: Estimation, spine: Spine, folder: Path) -> None:
        self._place = spine.place_of_leaf
        self._folder = folder
        self._table: Histogram | None = None
        if len(spine.leaf) <= LEAVES_IN_MEMORY:
            self._table = estimation.leaves
            return
        pieces = estimation.leaf_pieces()
        first = next(pieces)
        with HistogramWriter(folder, first.size) as writer:
            for piece in itertools.chain([first], pieces):
                writer.write(piece)

    def __enter__(self) -> Self:
        if self._table is None:
            self._table = open_histogram(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._table = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self, leaves: npt.NDArray[np.int64]) -> Histogram:
        """Return the estimates of leaves of the frame."""
        if self._table is None:
            raise RuntimeError("estimates of leaves are read within the context")
        return self._table.take(self._place[leaves])
