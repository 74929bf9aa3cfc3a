"""Runs in memory on stand-in data, with any allocation: apart, as the one module of tuning that sees counts.

The noise of a seed is the same for every allocation, cell by cell: a run with a larger loss errs in the same
directions by less. Searches need few runs for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.custody.run_key import RunKey
from opendas.engines.drive import estimate_spine
from opendas.engines.work import KeyedSource, Worker
from opendas.errors import ConfigError
from opendas.geography.spine import Spine
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.noisy import measured_levels
from opendas.metrics.errors import level_errors
from opendas.readers.base import InputData
from opendas.runs.run import Run
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan
from opendas.tuning.candidate import Candidate
from opendas.tuning.targets import Tally, Target

__all__ = ["Simulator"]


class Simulator:
    """Seeded runs of one run file's product, geography and estimator on its own input.

    Parameters
    ----------
    run : Run
        Its input is the stand-in data, and public.

    Raises
    ------
    ConfigError
        For block-by-block, which has one geolevel to give a budget to.
    """

    def __init__(self, run: Run, targets: Sequence[Target], *, workers: int = 1) -> None:
        if run.resolved.estimator == "block-by-block":
            raise ConfigError("estimator block-by-block spends everything at the leaves: nothing to tune.")
        self.run = run
        self.targets = tuple(targets)
        self.workers = workers
        self.data = run.read()
        self._prepared: _Prepared | None = None

    @property
    def levels(self) -> tuple[str, ...]:
        """Geolevels of the spine, top first."""
        return self.run.resolved.levels

    def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        """Estimate with the noise of a seed, and count where each target holds."""
        estimate = self._estimate(candidate, seed)
        names = list(dict.fromkeys(target.geolevel for target in self.targets))
        found = level_errors(self.data.histogram, estimate, self.data.frame, names)
        by_name = dict(zip(names, found, strict=True))
        return tuple(target.tally(by_name[target.geolevel], self.run.product) for target in self.targets)

    def _estimate(self, candidate: Candidate, seed: int) -> Histogram:
        resolved, product = self.run.resolved, self.run.product
        if candidate.strategy.one_pass:
            product = replace(product, passes=PassPlan({"*": (("rest",),)}, product.passes.rounder))
        run = self.run.changed(product=product, budget=candidate.spec(resolved.budget))
        run = run.on_frame(self.data.frame)
        prepared = self._prepared
        if prepared is None or resolved.recipe.bypass is not None:  # what is bypassed depends on the budget
            prepared = self._prepared = _prepared(run, self.data)
        spine, counts, constraints = prepared
        run = run.on_frame(self.data.frame, spine)
        key = RunKey.seeded(seed).derive("tuning/" + product.name)
        source = KeyedSource(measured_levels(run.plan), key)
        estimation = estimate_spine(
            spine,
            constraints,
            Worker(run.rules(constraints), source, resolved.failsafe, keep_used=False),
            histogram=counts,
            estimator=resolved.estimator,
            workers=self.workers,
            model=run.model(constraints),
        )
        return estimation.leaves.take(spine.place_of_leaf)


_Prepared = tuple[Spine, Histogram, ConstraintTable]


def _prepared(run: Run, data: InputData) -> _Prepared:
    """Return the spine, the counts of its leaves, and what holds on it."""
    spine = run.spine
    counts = data.histogram.take(spine.leaf_order)
    constraints = bound_table(run.product, data.frame, spine, declared_invariants(run.product, counts, spine))
    check_feasible(run.product, spine, constraints)
    return spine, counts, constraints
