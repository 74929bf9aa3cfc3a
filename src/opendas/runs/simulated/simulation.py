"""Runs in memory: apart, as the one place where counts meet the noise of a seed.

Tuning tries plans on stand-in data with it, replicates of a release are runs on its own microdata, and
experiments compare simulated runs with their input. What does not depend on the noise is made once. Anyone
who knows a seed can remove its noise: an estimate from confidential counts is as confidential as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from opendas.arrays.blas import one_blas_thread
from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, PublicCounts, bound_table
from opendas.custody.run_key import RunKey
from opendas.engines.drive import estimate_spine
from opendas.engines.subtree import estimate_part
from opendas.engines.tasks import Stage, make_part
from opendas.engines.work import KeyedSource, Worker
from opendas.errors import ConfigError
from opendas.gls.model import TreeModel
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.noisy import measured_levels
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.topdown.family_data import LevelRules


def check_repeatable(run: Run) -> None:
    """Refuse a tied product: repeated under one tie it would not vary with what it is tied to."""
    if run.product.tie is not None:
        raise ConfigError(
            f"{run.product.name} is tied to a release of {run.product.tie.product}. Simulated runs would "
            "lack the error of that release and look too accurate. A run without [tie] can be simulated."
        )


def _constraints(run: Run, counts: Histogram, tied: Histogram | None = None) -> ConstraintTable:
    """Return the bounds of a run's frame, the invariants of counts in the spine's order, and its tie."""
    spine, tie = run.spine, run.product.tie
    exact = declared_invariants(run.product, counts, spine)
    constraints = bound_table(run.product, run.frame, spine, exact)
    if tie is None or tied is None:
        return constraints
    query = run.product.workload.group(tie.query)
    return constraints.tied_to(tie.product, query, tied.take(spine.leaf_order), spine)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Simulation:
    """A run that can be repeated with other noise."""

    run: Run  # on its frame and spine
    counts: Histogram  # of the leaves, in the spine's order
    constraints: ConstraintTable  # bounds of the frame, and the invariants that `counts` have
    rules: tuple[LevelRules, ...] = field(repr=False)
    model: TreeModel | None = field(repr=False)

    @classmethod
    def of(cls, run: Run, histogram: Histogram, prior: PublicCounts | None = None) -> Self:
        """Prepare a run on counts.

        - `run`: on the frame of `histogram`.
        - `histogram`: one row per leaf of the frame, in its order.
        - `prior`: the table that a posterior starts from, in the spine's order.

        Raises `EstimationError` if no table satisfies the constraints; `ConfigError` for a tied run: repeated
        alone it would not vary with the release that it is tied to; and for one without its prior table.
        """
        check_repeatable(run)
        if run.product.prior is not None and prior is None:
            raise ConfigError(
                "simulated runs, and replicates of published microdata, do not start from a prior table: "
                "leave [prior] out."
            )
        counts = histogram.take(run.spine.leaf_order)
        constraints = _constraints(run, counts)
        if prior is not None:
            *above, leaves = constraints.levels
            constraints = replace(constraints, levels=(*above, replace(leaves, prior=prior)))
        check_feasible(run.product, run.spine, constraints)
        return cls(run, counts, constraints, run.rules(constraints), run.model(constraints))

    @classmethod
    def of_tied(cls, run: Run, histogram: Histogram, tied: Histogram) -> Self:
        """Prepare a tied run on counts; not to be repeated under the same tie (:func:`check_repeatable`).

        - `run`: on the frame of `histogram`.
        - `histogram`: one row per leaf of the frame, in its order.
        - `tied`: over the rows of the tie's query group, likewise: what the answer agrees with.
        """
        counts = histogram.take(run.spine.leaf_order)
        constraints = _constraints(run, counts, tied)
        return cls(run, counts, constraints, run.rules(constraints), run.model(constraints))

    def with_plan(self, run: Run) -> Self:
        """Return the same counts and constraints under another budget or other passes, on the same spine."""
        rules, model = run.rules(self.constraints), run.model(self.constraints)
        return type(self)(run, self.counts, self.constraints, rules, model)

    def with_counts(self, counts: Histogram) -> Self:
        """Return the same plan and constraints with other counts that satisfy them, in the spine's order."""
        return replace(self, counts=counts)

    def estimate(self, seed: int, purpose: str, *bound: bytes, workers: int = 1) -> Histogram:
        """Measure with the noise of a seed, and estimate.

        - `purpose`: what the noise is for; with `bound` it decides which noise the seed gives.
        - Returns: one row per leaf of the frame, in its order.
        """
        run, spine = self.run, self.run.spine
        source = self._measured(seed, purpose, *bound)
        estimation = estimate_spine(
            spine,
            self.constraints,
            Worker(self.rules, source, run.resolved.failsafe, keep_used=False),
            histogram=self.counts,
            estimator=run.resolved.estimator,
            workers=workers,
            model=self.model,
        )
        return estimation.leaves.take(spine.place_of_leaf)

    def top(self, seed: int, purpose: str) -> Histogram:
        """Measure and estimate the topmost geounits alone, as :meth:`estimate` does first, one row each.

        The run's estimator goes down from the top, and asks nothing of what lies below.
        """
        run, spine = self.run, self.run.spine
        stage, geounits = Stage(0, 0, True, ()), len(spine.levels[0])
        part, _, _ = make_part(spine, (), self.constraints, stage, 0, geounits, None)
        answers = self._measured(seed, purpose).open(part, self.counts.aggregate(spine.leaf_starts(0)))
        with one_blas_thread():
            return estimate_part(
                part, self.rules, answers, failsafe=run.resolved.failsafe, keep_used=False
            ).estimates

    def _measured(self, seed: int, purpose: str, *bound: bytes) -> KeyedSource:
        return KeyedSource(measured_levels(self.run.plan), RunKey.seeded(seed).derive(purpose, *bound))
