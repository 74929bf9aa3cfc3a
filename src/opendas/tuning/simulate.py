"""Runs in memory on stand-in data, with any allocation: apart, as the one module of tuning that sees counts.

The noise of a seed is the same for every allocation, cell by cell: a run with a larger loss errs in the same
directions by less. Searches need few runs for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opendas.errors import ConfigError
from opendas.metrics.errors import level_errors
from opendas.runs.run import Run
from opendas.runs.simulated.simulation import Simulation
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan
from opendas.tuning.candidate import Candidate
from opendas.tuning.targets import Tally, Target


class Simulator:
    """Seeded runs of one run file's product, geography and estimator on its own input.

    `run`: its input is the stand-in data, and public.
    """

    def __init__(self, run: Run, targets: Sequence[Target], *, workers: int = 1) -> None:
        if run.resolved.estimator == "block-by-block":
            raise ConfigError("estimator block-by-block spends everything at the leaves: nothing to tune.")
        self.run = run
        self.targets = tuple(targets)
        self.workers = workers
        self.data = run.read()
        self._known: Simulation | None = None

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
        run, known = run.on_frame(self.data.frame), self._known
        if known is None or resolved.recipe.bypass is not None:  # what is bypassed depends on the budget
            known = Simulation.of(run, self.data.histogram)
        else:
            known = known.with_plan(run.on_frame(self.data.frame, known.run.spine))
        self._known = known
        return known.estimate(seed, "tuning/" + product.name, workers=self.workers)
