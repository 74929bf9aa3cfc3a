"""Runs in memory on public counts, with any allocation: apart, as the one module of tuning that sees counts.

The noise of a seed is the same for every allocation, cell by cell: a run with a larger loss errs in the same
directions by less. Searches need few runs for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opendas.errors import ConfigError
from opendas.geography.frame import Frame, Grouping
from opendas.geography.spine import Spine
from opendas.metrics.errors import LevelErrors, level_errors, project
from opendas.runs.context.run import Run
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.trial import Trial
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan
from opendas.tuning.candidate import Candidate
from opendas.tuning.populated import Populated
from opendas.tuning.targets import Tally, Target

NOT_TRIED = "has too many cells, or is tied: it is not tried on synthetic counts"


class Simulator:
    """Seeded runs of one run file's product, geography and estimator on public counts.

    - `run`: its input is the stand-in data, and public.
    - `made`: frame and counts to run on instead, as :func:`synthetic`; then no input is opened.
    """

    def __init__(
        self,
        run: Run,
        targets: Sequence[Target] = (),
        *,
        made: tuple[Frame, Histogram] | None = None,
        workers: int = 1,
    ) -> None:
        if run.resolved.estimator == "block-by-block":
            raise ConfigError("estimator block-by-block spends everything at the leaves: nothing to tune.")
        self.run = run
        self.targets = tuple(targets)
        self.workers = workers
        if made is None:
            data = run.read()
            made = data.frame, data.histogram
        self.frame, self.truth = made
        self._known: Simulation | None = None

    @property
    def levels(self) -> tuple[str, ...]:
        """Geolevels of the spine, top first."""
        return self.run.resolved.levels

    def trial(self, candidate: Candidate, seed: int) -> tuple[Tally, ...]:
        """Estimate with the noise of a seed, and count where each target holds."""
        names = list(dict.fromkeys(target.geolevel for target in self.targets))
        by_name = dict(zip(names, self._errors(candidate, seed, names), strict=True))
        return tuple(target.tally(by_name[target.geolevel], self.run.product) for target in self.targets)

    def absolute_errors(
        self, candidate: Candidate, seed: int, geolevels: Sequence[str | Grouping]
    ) -> tuple[int, ...]:
        """Estimate with the noise of a seed, and sum absolute errors over geounits and rows.

        Returns for each of the geolevels or entity categories, and each query group of the product.
        """
        groups = self.run.product.workload.groups(self.run.product.query_names)
        return tuple(
            int(abs(project(level.error, group)).sum())
            for level in self._errors(candidate, seed, geolevels)
            for group in groups
        )

    def populated(self, queries: Sequence[str], part_of: Spine | None = None) -> Populated:
        """Return the cells that have records in a part of the counts.

        `part_of`: the spine that they are a part of.
        """
        run = self.run.on_frame(self.frame)
        return Populated.of(
            self.truth,
            run.spine,
            run.product,
            queries,
            whole_tree=run.fits_whole_tree,
            part_of=part_of,
        )

    def _errors(
        self, candidate: Candidate, seed: int, geolevels: Sequence[str | Grouping]
    ) -> tuple[LevelErrors, ...]:
        return level_errors(self.truth, self._estimate(candidate, seed), self.frame, geolevels)

    def _estimate(self, candidate: Candidate, seed: int) -> Histogram:
        resolved, product = self.run.resolved, self.run.product
        if candidate.strategy.one_pass:
            product = replace(product, passes=PassPlan({"*": (("rest",),)}, product.passes.rounder))
        run = self.run.changed(product=product, budget=candidate.spec(resolved.budget))
        run, known = run.on_frame(self.frame), self._known
        if known is None or resolved.recipe.bypass is not None:  # what is bypassed depends on the budget
            known = Simulation.of(run, self.truth)
        else:
            known = known.with_plan(run.on_frame(self.frame, known.run.spine))
        self._known = known
        return known.estimate(seed, "tuning/" + product.name, workers=self.workers)


def synthetic(run: Run, records: float | None = None) -> tuple[Frame, Histogram]:
    """Return synthetic counts on a run's frame, drawn from public sizes alone; no input is opened.

    - `records`: about how many there are in all; as for :meth:`Trial.of`.
    - Returns: also the frame: fewer leaves than the run's where there are very many cells.

    Raises `ConfigError` where none can be made of the product.
    """
    trial = Trial.of(run, records, most=len(run.frame))
    if trial is None:
        raise ConfigError(f"{run.product.name} {NOT_TRIED}. Name public stand-in data with source.")
    return trial.simulation.run.frame, trial.counts
