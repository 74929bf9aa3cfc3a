"""The plan and the spine of a run, described before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from opendas.budget.allocation import Budget
from opendas.budget.noise import NoiseRow, invariant_shares
from opendas.budget.presets import preset
from opendas.custody.stamps import DOMAIN_FROM_RECORDS
from opendas.demo.synthetic_counts import RECORDS
from opendas.engines.local import workers_for
from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.geography.summary import SpineSummary, summarise
from opendas.gls.expected_error import ExpectedRow, expected_rows
from opendas.gls.expected_topdown import GainRow, gain_rows
from opendas.intervals.expected_margins import (
    MOST_CELLS,
    MOST_ROWS,
    expected_total,
    margin_megabytes,
    margin_rows,
)
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protected import Protection, protection_of
from opendas.privacy.exact import format_fraction
from opendas.privacy.zcdp import Account
from opendas.readers.row_readers import RowReader
from opendas.report.views import plural
from opendas.runs.context.facts import noise_rows
from opendas.runs.context.run import Run
from opendas.runs.options import RunOptions
from opendas.runs.prepare import MOST_RECORDS, check_without_records
from opendas.runs.progress.processes import available_memory_mb
from opendas.runs.simulated.forecast import Forecast, forecast_run, measure_small_run
from opendas.runs.simulated.sparse import sparse_warning
from opendas.runs.simulated.trial import (
    ONE_DRAW,
    OtherEstimator,
    Trial,
    Tried,
    UsualRow,
    estimator_beside,
    other_estimator,
)
from opendas.topdown.model import WHOLE_TREE

if TYPE_CHECKING:
    import pandas as pd

SKIPPED = (
    "no other estimator was tried: the table is too sparse at this budget, as a warning says, and a trial "
    "on so many cells can take minutes. Change the plan first"
)
"""What is said in place of what another estimator gives."""

_WHOLE = 0.9
"""Geounits with so large a share of their leaves in the trial are as in the run."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """What a run would measure, and how precisely."""

    run: Run
    rows: tuple[NoiseRow, ...]  # one per distinct share
    warnings: tuple[str, ...]
    stamps: tuple[str, ...]  # that the certificate would show
    # Of the total at every official geolevel and entity category, by the noise alone; of products of more
    # than :data:`~opendas.intervals.expected_margins.MOST_CELLS` cells also of small query groups at official
    # geolevels.
    expected: tuple[ExpectedRow, ...]
    source: str | None  # where the budget's shares come from, as the run file says
    # By estimator, of every declared query group at official geolevels of the spine; none for many cells.
    gains: tuple[GainRow, ...]
    protection: Protection  # what the exact facts leave protected
    records: float | None = None  # about how many there are
    companion: PlanTable | None = None  # of the product's second histogram, which the same run measures first

    @property
    def plan(self) -> MeasurementPlan:
        """What would be asked, with what noise."""
        return self.run.plan

    def forecast(self) -> Forecast:
        """Measure what the run is expected to need, with the workers that it would have by itself."""
        plan, estimator = self.plan, self.run.resolved.estimator
        return forecast_run(
            plan,
            estimator,
            workers_for(len(plan.spine.leaf), plan.product.schema.size),
            full=RunOptions().stored(plan, estimator) == "full",
            geounit_seconds=measure_small_run(self.run, self.records),
            records=self.records,
        )

    def tried(self) -> Tried:
        """Try the run on synthetic counts of a part of its frame: how far off released counts were."""
        trial = Trial.of(self.run, self.records)
        return Tried((), ()) if trial is None else trial.tried()

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas plan --json``."""
        budget = self.plan.budget
        bound = budget.contribution.bound
        both: dict[str, Any] = {}
        if self.companion is not None:
            together = budget.total + self.companion.plan.budget.total
            both = {
                "product": self.plan.product.name,
                "companion": {"product": self.companion.plan.product.name, **self.companion.to_dict()},
                "together": _loss(budget, together),
            }
        tried = self.tried()
        records = RECORDS * len(self.run.frame) if self.records is None else self.records
        sparse = sparse_warning(self.run, records)
        # A table of many cells that is too sparse needs another plan first: a trial may take minutes.
        has_other = estimator_beside(self.run) is not None
        skipped = has_other and sparse is not None and self.run.product.schema.size > ONE_DRAW
        other = SKIPPED if skipped else other_estimator(self.run, self.records)
        return {
            **_loss(budget, budget.total),
            "product": self.plan.product.name,
            "protected_unit": self.plan.product.protected_unit,
            "neighbours": budget.neighbours.value,
            "contribution": None if bound is None else bound.to_dict(),
            "source": self.source,
            "stamps": list(self.stamps),
            "warnings": [*self.warnings, *([] if sparse is None else [sparse])],
            "usual": [asdict(row) for row in tried.usual],
            "misplaced_at_most": _in_part(self.run.frame, tried.usual),
            "other_estimator": asdict(other) if isinstance(other, OtherEstimator) else None,
            "other_not_tried": other if isinstance(other, str) else None,
            "rows": [row.to_dict() for row in self.rows],
            "expected": [row.to_dict() for row in self.expected],
            "gains": [row.to_dict() for row in self.gains],
            "protection": self.protection.to_dict(),
            "tried": [asdict(row) for row in tried.rows],
            "forecast": self.forecast().to_dict(),
            **both,
        }

    def table(self) -> pd.DataFrame:
        """Return the rows as a pandas frame: geolevel, query, rho, variance, moe90, ..."""
        from opendas.tables.frames import missing

        try:
            import pandas
        except ImportError as error:
            raise missing("pandas") from error
        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def __iter__(self) -> Iterator[NoiseRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"PlanTable({self.plan.product.name}: {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        from opendas.tables.frames import html_table

        names = ("geolevel", "query", "geounits", "cells", "rho", "epsilon", "variance", "moe90")
        rows = ([row.to_dict()[name] for name in names] for row in self.rows)
        return html_table(f"Noise of {self.plan.product.name}", names, rows)


def _in_part(frame: Frame, usual: Sequence[UsualRow]) -> list[str]:
    """Return the geolevels whose geounits have fewer leaves, and so records, in the trial than in the run.

    Fewer of the run's records than of the trial's are misplaced there.
    """
    return [
        row.geolevel
        for row in usual
        if usual[-1].geounits / row.geounits < _WHOLE * len(frame) / len(frame.grouping(row.geolevel))
    ]


def _loss(budget: Budget, total: Fraction) -> dict[str, Any]:
    """Return a loss under the mechanism of a budget, as JSON values."""
    gaussian = budget.mechanism.is_zcdp
    epsilon: Any = format_fraction(total)
    if gaussian:
        account = Account(total, budget.delta)
        epsilon = {name: account.epsilon(name) for name in ("cks", "bun-steinke")}
    return {
        "rho": format_fraction(total) if gaussian else None,
        "epsilon": epsilon,
        "delta": float(budget.delta),
    }


def make_plan(run: Run, records: float | None = None) -> PlanTable:
    """Plan a run from public things: the run file and the frame.

    `records`: about how many records there are, for trials; by default 45 a leaf, or 2.3 people a home.

    Raises what the run would raise before a draw, whatever its records are; `ConfigError` if `records` are
    none, or more than a run may have; `PrivacyError` if exact facts leave nothing to protect.
    """
    if records is not None and not 0 < records < MOST_RECORDS:
        raise ConfigError(f"records: expected a number above 0 and below {MOST_RECORDS:,}.")
    plan, protection = run.plan, protection_of(run.protection)
    check_without_records(run)
    error, large = expected_total(plan), run.product.schema.size > MOST_CELLS
    warnings = list(_warnings(run, plan))
    expected = expected_rows(error, run.frame)
    if large:
        groups, room = run.product.workload.groups(run.product.query_names), available_memory_mb() / 2
        small = [query for query in groups if 1 < query.size <= MOST_ROWS]
        fit = [query.name for query in small if margin_megabytes(error, query.size) <= room]
        expected += margin_rows(plan, run.frame, fit)
        if len(fit) < len(small):
            without = ", ".join(query.name for query in small if query.name not in fit)
            warnings.append(
                f"expected errors of {without} are not computed: they take more than half of the free memory "
                "of this machine on so many kinds of geounits."
            )
    gains: tuple[GainRow, ...] = ()
    if run.resolved.estimator != "block-by-block" and not large:
        gains = gain_rows(error, run.product.query_names)
    return PlanTable(
        run,
        noise_rows(plan),
        tuple(warnings),
        (*run.reader.frame()[1], *run.domain_stamps),
        expected,
        run.resolved.budget.source,
        gains,
        protection,
        records,
        None if run.companion is None else make_plan(run.companion),
    )


def _warnings(run: Run, plan: MeasurementPlan) -> Iterator[str]:
    if run.resolved.reader.plan_from_records and isinstance(run.reader, RowReader):
        yield from map(str, run.reader.identifiers())
    named = run.resolved.budget.preset
    made_for = None if named is None else preset(named).estimator
    fits = {made_for, *WHOLE_TREE} if made_for in WHOLE_TREE else {made_for}
    if made_for is not None and run.resolved.estimator not in fits:
        yield (
            f"the shares of preset {named!r} were derived for the estimator {made_for!r}; this run has "
            f"{run.resolved.estimator!r}: see docs/explanation/choosing-a-budget.md."
        )
    if plan.product.schema.size > MOST_CELLS and run.resolved.estimator != "block-by-block":
        yield (
            f"expected errors by estimator are computed for at most {MOST_CELLS:,} cells, and this product "
            f"has {plan.product.schema.size:,}. The plan gives expected errors of least squares instead, "
            f"for the total and for query groups of at most {MOST_ROWS} rows."
        )
    fixed = [
        (plan.spine.names[level], query)
        for query, declared in run.product.invariant_levels(plan.spine).items()
        # parts of a divided geounit hold its total together only: theirs are worth measuring
        for level in range(declared + (plan.spine.levels[declared].whole is None))
    ]
    for (geolevel, query), share in invariant_shares(plan.budget, fixed).items():
        yield (
            f"{float(share) * 100:.1f} % of the budget measures {query!r} at geolevel {geolevel!r}, which is "
            "invariant: these measurements add nothing. Move that share, or take a preset for this spine."
        )
    for number, level in enumerate(plan.levels):
        known = level.share or run.resolved.estimator == "block-by-block"
        if run.fits_whole_tree:  # which spreads a parent by what was measured below
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
    domain = run.resolved.domain
    if domain.from_records:
        yield (
            f"read from the records, and hence published exactly: {', '.join(domain.from_records)}. The "
            f"release is stamped {DOMAIN_FROM_RECORDS}, and opendas verify fails it without "
            "--allow-domain-from-records. Give a code book and a public list, or find them with opendas init "
            "table --rho."
        )
    for found in domain.discoveries:
        rho = format_fraction(found.loss(plan.budget.neighbours))
        yield (
            f"the domain was found privately: rho = {rho} and delta = {float(found.delta):g} are added to "
            "the totals of the certificate."
        )
    tied = plan.product.tied
    if tied is not None and any(act.loss is None for act in tied.acts):
        yield (
            f"the release of {tied.product} that this run is tied to was made with a seed: a run with a "
            "secret key refuses the tie."
        )
    if run.resolved.failsafe:
        yield (
            "the failsafe is on: a family whose constraints contradict each other need not add up to its "
            "parent, and the report names it."
        )


@dataclass(frozen=True, slots=True)
class SpineTable:
    """What ``opendas spine`` says."""

    spine: Spine
    summary: SpineSummary
    # Standard errors of the least-squares estimate of the total, by noise alone, in counts: those of
    # :func:`opendas.gls.expected_error.expected_rows`, and ``standard_mean_sd`` for the standard spine.
    expected: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(level)} {level.name}" for level in self.spine.levels)
        return f"SpineTable({sizes}; {len(self.warnings)} warnings)"

    def _repr_html_(self) -> str:
        from opendas.tables.frames import html_table

        names = tuple(dict.fromkeys(name for row in self.expected for name in row))
        rows = ([row.get(name) for name in names] for row in self.expected)
        return html_table("Expected error of the total, by noise alone", names, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas spine --json``."""
        return {
            **self.summary.to_dict(),
            "expected": [dict(row) for row in self.expected],
            "warnings": list(self.warnings),
        }


def describe_spine(run: Run) -> SpineTable:
    """Describe the spine of a run from public things: the run file and the frame."""
    summary = summarise(run.spine, run.frame)
    expected = tuple(_spine_errors(run))
    return SpineTable(run.spine, summary, expected, tuple(_spine_warnings(run, summary)))


def _spine_errors(run: Run) -> Iterator[dict[str, Any]]:
    """Give the expected error of the total, and that of the standard spine where it has the same levels."""
    rows = expected_rows(expected_total(run.plan), run.frame)
    beside: dict[tuple[str, str], float] = {}
    if run.resolved.recipe.steps and run.spine.names == run.frame.geolevels:
        standard = MeasurementPlan(run.product, standard_spine(run.frame), run.budget)
        found = expected_rows(expected_total(standard), run.frame)
        beside = {(row.kind, row.name): row.mean_sd for row in found}
    for row in rows:
        yield {**row.to_dict(), "standard_mean_sd": beside.get((row.kind, row.name))}


def _spine_warnings(run: Run, summary: SpineSummary) -> Iterator[str]:
    """Say what an expert would look at twice."""
    for level in summary.levels[:-1]:
        if level.single_child_parents and run.resolved.recipe.bypass is None:
            parents = plural("geounit", level.single_child_parents)
            yield (
                f"{parents} of {level.geolevel!r} with one child: both are asked the same questions. "
                'The step { step = "bypass" } gives the child\'s share to its parent.'
            )
    chosen = run.resolved.recipe.entities or ()
    found = {entity.category for entity in summary.entities}
    for category in chosen:
        if category not in found:
            yield (
                f"no leaf of the frame lies in an area of {category!r}: the spine is not built around any. "
                "Block assignment files bring areas: [geography] block_assignment."
            )
    for entity in summary.entities:
        if entity.category in chosen and entity.mean_distance > entity.standard_mean:
            yield (
                f"{entity.category!r} is farther from this spine than from the official levels: mean "
                f"distance {entity.mean_distance:.1f} instead of {entity.standard_mean:.1f}."
            )
