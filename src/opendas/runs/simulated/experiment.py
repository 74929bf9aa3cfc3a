"""Experiments: one run, simulated under several losses, plans and estimators, and compared with its input.

Nothing is released. Noise comes from public seeds, so estimates stay in memory; what leaves is errors.
Errors are functions of the input without noise: they are confidential if the input is, like those of
``evaluate``, and the reading is entered into the account of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product as combinations
from pathlib import Path
from typing import Any

import numpy as np

from opendas.custody.account import EXPERIMENT
from opendas.engines.local import WorkerPool, default_workers
from opendas.engines.tasks import in_turn
from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.metrics.errors import level_errors, levels_of, project
from opendas.metrics.statistics import summary
from opendas.privacy.exact import format_fraction
from opendas.runs.account import note_reading, tagger_of
from opendas.runs.run import Run
from opendas.runs.simulated.finished import FinishedRuns, belongs_to
from opendas.runs.simulated.simulation import Simulation
from opendas.schema.histogram import Histogram
from opendas.topdown.family_data import Estimator

METRICS = ("mean_abs_error", "root_mean_squared_error", "q0.025", "q0.975")
"""Of each query group at each geolevel: the absolute error summed over the rows of the query group, averaged
over geounits; the root of the mean squared error of a single count; quantiles of the signed error of one."""

Row = tuple[str, str, str, int, float]
"""Geolevel, query group, metric, geounits, value."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A run of an experiment, and the words for it."""

    run: Run
    loss: str  # exact
    plan: str  # name of the plan; ``run`` for that of the run itself

    @property
    def estimator(self) -> str:
        """Name of the estimator."""
        return self.run.resolved.estimator

    @property
    def words(self) -> tuple[str, str, str]:
        """What it is found by in a table."""
        return self.loss, self.plan, self.estimator


@dataclass(frozen=True, slots=True, eq=False)
class _Errors:
    """Simulates a variant with a seed, and compares; it goes to other processes. Confidential."""

    simulation: Simulation
    truth: Histogram
    geolevels: tuple[str, ...]

    def __call__(self, seed: int) -> list[Row]:
        run = self.simulation.run
        estimate = self.simulation.estimate(seed, "experiment/" + run.product.name)
        rows: list[Row] = []
        for level in level_errors(self.truth, estimate, run.frame, self.geolevels):
            for group in run.product.workload.groups(run.product.query_names):
                errors = project(level.error, group)
                found = summary(errors)
                if found.mean_abs_error is None or found.quantiles is None:
                    continue
                square = float(np.square(errors.data.astype(np.float64)).sum())
                values = (
                    found.mean_abs_error,
                    (square / (found.geounits * group.size)) ** 0.5,
                    float(found.quantiles["0.025"]),
                    float(found.quantiles["0.975"]),
                )
                of = (level.units.geolevel, group.name)
                rows += [
                    (*of, name, found.geounits, each) for name, each in zip(METRICS, values, strict=True)
                ]
        return rows


def _row(geolevel: str, query: str, metric: str, geounits: int, value: float) -> Row:
    return geolevel, query, metric, geounits, value


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is varied."""

    # Rho, or epsilon where the mechanism has it; None for that of the run.
    losses: Sequence[str | int | Fraction] | None
    # As :meth:`opendas.runs.run.Run.with_` takes them; None for that of the run.
    plans: Mapping[str, str | Mapping[str, Any] | None]
    estimators: Sequence[str | Estimator] | None
    seeds: Sequence[int]

    def variants(self, run: Run) -> list[Variant]:
        """Return all combinations, checked before anything is read."""
        found = []
        name = run.resolved.mechanism.loss_name
        for label, plan in self.plans.items():
            for loss, estimator in combinations(self.losses or (None,), self.estimators or (None,)):
                given: dict[str, Any] = {} if loss is None else {name: loss}
                changed = run.with_(**given, plan=plan, estimator=estimator)
                found.append(Variant(changed, format_fraction(changed.budget.total), label))
        words = [each.words for each in found]
        for each in words:
            if words.count(each) > 1:
                raise ConfigError(f"the experiment has {name} {each[0]}, plan {each[1]}, {each[2]} twice.")
        return found


def run_experiment(
    run: Run,
    experiment: Experiment,
    *,
    entities: bool = False,
    ledger: Path | None = None,
    state: Path | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Simulate every variant with every seed; return one row for each error, in the order of the arguments.

    A seed gives all variants the same random numbers, cell by cell: differences between variants are measured
    more precisely than each of them.

    - `entities`: also at entity categories.
    - `ledger`: the book of the data; by default one that knows them.
    - `state`: file of finished simulations, with which a stopped experiment goes on.
    - `workers`: processes; by default two, where there are two cores.

    Raises `ConfigError` if a run file could not say what is varied, two variants are alike, or `state`
    belongs to another experiment.
    """
    variants = experiment.variants(run)
    seeds = list(dict.fromkeys(experiment.seeds))
    belongs = "" if state is None else belongs_to(run, f"entities {entities}")
    finished = FinishedRuns(lambda rows: [_row(*row) for row in rows], state, belongs)
    note_reading(EXPERIMENT, tagger_of(run), product=run.product.name, ledger=ledger)
    data = run.read()
    geolevels = levels_of(data.frame, entities=entities)
    workers = workers or default_workers()
    pool = WorkerPool(workers) if workers > 1 else None
    names: list[str] = []
    done, total = 0, len(variants) * len(seeds)
    try:
        for variant, simulation in _simulations(variants, data.histogram, data.frame):
            errors = _Errors(simulation, data.histogram, geolevels)
            name = simulation.run.estimation_digest()
            names.append(name)
            todo = [seed for seed in seeds if finished.get(name, seed) is None]
            done += len(seeds) - len(todo)
            drawn = in_turn(errors, todo) if pool is None else pool.map(errors, todo)
            for seed, rows in drawn:
                # Another class of the same name would be taken for this one.
                keep = variant.run.resolved.own_estimator is None
                finished.put(name, seed, rows, keep=keep)
                done += 1
                if progress is not None:
                    progress("simulations", done, total)
    finally:
        if pool is not None:
            pool.close()
    loss_name = run.resolved.mechanism.loss_name
    return [
        {
            loss_name: float(Fraction(variant.loss)),
            f"{loss_name}_exact": variant.loss,
            "plan": variant.plan,
            "estimator": variant.estimator,
            "seed": seed,
            "geolevel": geolevel,
            "query": query,
            "metric": metric,
            "geounits": geounits,
            "value": value,
        }
        for variant, name in zip(variants, names, strict=True)
        for seed in seeds
        for geolevel, query, metric, geounits, value in finished.get(name, seed) or ()
    ]


def _simulations(
    variants: Sequence[Variant], counts: Histogram, frame: Frame
) -> Iterator[tuple[Variant, Simulation]]:
    """Prepare variant by variant what all its seeds share; without the input, so that it can be sent."""
    known: Simulation | None = None
    for variant in variants:
        spec = replace(variant.run.resolved.reader, paths=(), units=None, frame=None)
        run = variant.run.changed(reader=spec, run_file=None)
        if known is None or run.resolved.recipe.bypass is not None:  # what is bypassed depends on the budget
            known = Simulation.of(run.on_frame(frame), counts)
        else:
            known = known.with_plan(run.on_frame(frame, known.run.spine))
        yield variant, known
