"""The plan of a run, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opendas.budget.plan import invariant_shares, plan_rows, within_rho
from opendas.constraints.table import invariant_geolevels
from opendas.engines.local import workers_for
from opendas.engines.outputs import Solved
from opendas.geography.frame import Frame
from opendas.geography.summary import summarise
from opendas.gls.expected_error import ExpectedError, ExpectedRow, expected_rows
from opendas.gls.expected_topdown import GainRow, gain_rows
from opendas.measurement.loss import attribute_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism
from opendas.privacy.zcdp import Account
from opendas.report.certificate import issue
from opendas.report.facts import NoiseRow, RunFacts
from opendas.runs.progress.forecast import Forecast, forecast_run, measure_small_run
from opendas.runs.run import Run
from opendas.version import __version__, commit

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PlanTable",
    "describe",
    "describe_estimate",
    "issue_certificate",
    "make_plan",
    "noise_rows",
]

# What a run says of itself: the facts of its certificate.


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
) -> RunFacts:
    """Collect what the certificate says about a run that has measured.

    Parameters
    ----------
    frame : Frame
        Leaves with their entity codes, for the description of the spine.
    stamps, declared : sequence of str
    measurements : str
        ``used`` or ``full``.
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
        estimator="none (measurements only)",
        invariants=(*(invariant.name for invariant in product.invariants), *declared),
        dropped_invariants=tuple(invariant.name for invariant in run.resolved.dropped),
        declared=tuple(public),
        records=0,
        geounits={level.name: len(level) for level in plan.spine.levels},
        geolevel_shares=dict(budget.geolevels),
        query_shares={level: dict(budget.query_shares(level)) for level, s in budget.geolevels.items() if s},
        rows=noise_rows(plan),
        attributes=attribute_losses(plan),
        within=within_rho(budget),
        plan_digest=plan.digest(),
        spine_digest=plan.spine.digest(),
        families=0,
        fallbacks=0,
        failsafe=(),
        measurements=measurements,
        spine=summarise(plan.spine, frame),
        source=run.resolved.budget.source,
    )


def describe_estimate(facts: RunFacts, run: Run, solved: Solved, released: int) -> RunFacts:
    """Add to what is said of a run that it has estimated.

    Parameters
    ----------
    facts : RunFacts
    run : Run
    solved : Solved
    released : int
        Records in the microdata.
    """
    return replace(
        facts,
        estimator=run.resolved.estimator,
        records=released,
        families=solved.families,
        fallbacks=solved.fallbacks,
        failsafe=solved.failsafe,
    )


def issue_certificate(release: Path, facts: RunFacts) -> None:
    """Issue certificate and report for what the release holds now."""
    issue(release, (facts,), version=__version__, commit=commit())


@dataclass(frozen=True, slots=True)
class PlanTable:
    """What a run would measure, and how precisely.

    Parameters
    ----------
    plan : MeasurementPlan
    rows : tuple of NoiseRow
        One per distinct share.
    warnings : tuple of str
    stamps : tuple of str
        Stamps that the certificate would show.
    expected : tuple of ExpectedRow
        Expected error of the total at every official geolevel and entity category, by the noise alone.
    source : str or None
        Where the budget's shares come from, as the run file says.
    gains : tuple of GainRow
        Expected error by estimator, of every declared query group at the official geolevels of the spine.
    forecast : callable, optional
        Measures and returns what the run is expected to need, with the workers that it would have by itself.
    """

    plan: MeasurementPlan
    rows: tuple[NoiseRow, ...]
    warnings: tuple[str, ...]
    stamps: tuple[str, ...]
    expected: tuple[ExpectedRow, ...] = ()
    source: str | None = None
    gains: tuple[GainRow, ...] = ()
    forecast: Callable[[], Forecast] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas plan --json``."""
        budget = self.plan.budget
        gaussian = budget.mechanism is Mechanism.DISCRETE_GAUSSIAN
        epsilon: Any = format_fraction(budget.total)
        if gaussian:
            account = Account(budget.total, budget.delta)
            epsilon = {name: account.epsilon(name) for name in ("cks", "bun-steinke")}
        return {
            "rho": format_fraction(budget.total) if gaussian else None,
            "epsilon": epsilon,
            "delta": float(budget.delta),
            "neighbours": budget.neighbours.value,
            "source": self.source,
            "stamps": list(self.stamps),
            "warnings": list(self.warnings),
            "rows": [row.to_dict() for row in self.rows],
            "expected": [row.to_dict() for row in self.expected],
            "gains": [row.to_dict() for row in self.gains],
            "forecast": None if self.forecast is None else self.forecast().to_dict(),
        }

    def table(self) -> pd.DataFrame:
        """Return the rows as a pandas frame: geolevel, query, rho, variance, moe90, ..."""
        try:
            import pandas
        except ImportError as error:
            from opendas.errors import EnvironmentFailure

            raise EnvironmentFailure("pandas is not installed; pip install 'opendas[frames]'.") from error
        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def __iter__(self) -> Iterator[NoiseRow]:
        return iter(self.rows)


def make_plan(run: Run) -> PlanTable:
    """Plan a run from public things: the run file and the frame."""
    plan = run.plan
    error = ExpectedError.build(plan)
    expected = expected_rows(error, run.frame)
    stamps = run.reader.frame()[1]
    source = run.resolved.budget.source
    gains: tuple[GainRow, ...] = ()
    if run.resolved.estimator != "block-by-block":
        gains = gain_rows(error, run.product.query_names)
    workers = workers_for(len(plan.spine.leaf))
    warnings = tuple(_warnings(run, plan))

    def forecast() -> Forecast:
        seconds = measure_small_run(run)
        return forecast_run(plan, run.resolved.estimator, workers, geounit_seconds=seconds)

    return PlanTable(plan, noise_rows(plan), warnings, stamps, expected, source, gains, forecast)


def _warnings(run: Run, plan: MeasurementPlan) -> Iterator[str]:
    fixed = [
        (plan.spine.names[level], query)
        for query, declared in invariant_geolevels(run.product, plan.spine).items()
        # parts of a divided geounit hold its total together only: theirs are worth measuring
        for level in range(declared + (plan.spine.levels[declared].whole is None))
    ]
    for (geolevel, query), share in invariant_shares(plan.budget, fixed).items():
        yield (
            f"{float(share):.1%} of the budget measures {query!r} at geolevel {geolevel!r}, which is "
            "invariant: these measurements add nothing. Move that share, or take a preset for this spine."
        )
    for number, level in enumerate(plan.levels):
        known = level.share or run.resolved.estimator == "block-by-block"
        if run.resolved.estimator == "informed":  # which spreads a parent by what was measured below
            known = any(below.share for below in plan.levels[number:])
        if not known and number:
            yield (
                f"geolevel {level.geolevel!r} has no budget: each parent is spread evenly over its geounits, "
                "and what is measured below cannot mend that. Leave the geolevel out, or give it a share."
            )
        if level.share and number + 1 < len(plan.levels) and plan.levels[number + 1].share:
            size, below = len(plan.spine.levels[number]), len(plan.spine.levels[number + 1])
            shares = plan.spine.shares[number + 1]
            if size == below and (shares is None or shares.multiples[-1] > 0):
                yield (
                    f"every geounit of {level.geolevel!r} has one child: its measurements and those of "
                    f"{plan.levels[number + 1].geolevel!r} ask the same questions."
                )
    if run.resolved.failsafe:
        yield "the failsafe is on: an infeasible family relaxes its parent, and the report says so."
