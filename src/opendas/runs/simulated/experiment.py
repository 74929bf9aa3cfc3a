"""Experiments: one run, simulated under several losses, plans and estimators, and compared with its input.

Nothing is released. Noise comes from public seeds, so estimates stay in memory; what leaves is errors.
Errors are functions of the input without noise: they are confidential if the input is, like those of
``evaluate``, and the reading is entered into the account of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product as combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opendas.custody.account import EXPERIMENT
from opendas.engines.local import WorkerPool, default_workers
from opendas.engines.tasks import in_turn
from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.metrics.errors import level_errors, levels_of, project, summary
from opendas.privacy.exact import format_fraction
from opendas.runs.config.words import checked_line
from opendas.runs.context.account import note_reading, tagger_of
from opendas.runs.context.run import Run
from opendas.runs.simulated.finished import FinishedRuns, belongs_to
from opendas.runs.simulated.simulation import Simulation
from opendas.schema.histogram import Histogram
from opendas.tables.frames import missing
from opendas.topdown.family_data import Estimator

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("mean_abs_error", "root_mean_squared_error", "q0.025", "q0.975")
"""Of each query group at each geolevel: the absolute error summed over the rows of the query group, averaged
over geounits; the root of the mean squared error of a single count; quantiles of the signed error of one."""

Number = str | int | Fraction
Plan = str | Mapping[str, Any] | None
"""As :meth:`opendas.runs.context.run.Run.with_` takes it; None for that of the run."""

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


def _variants(
    run: Run,
    losses: Sequence[Number] | None,
    plans: Mapping[str, Plan],
    estimators: Sequence[str | Estimator] | None,
) -> list[Variant]:
    """Return all combinations, checked before anything is read."""
    found = []
    name = run.resolved.mechanism.loss_name
    for label, plan in plans.items():
        for loss, estimator in combinations(losses or (None,), estimators or (None,)):
            given: dict[str, Any] = {} if loss is None else {name: loss}
            changed = run.with_(**given, plan=plan, estimator=estimator)
            found.append(Variant(changed, format_fraction(changed.budget.total), label))
    words = [each.words for each in found]
    for each in words:
        if words.count(each) > 1:
            raise ConfigError(f"the experiment has {name} {each[0]}, plan {each[1]}, {each[2]} twice.")
    return found


def experiment(
    run: Run,
    *,
    rhos: Sequence[Number] | None = None,
    epsilons: Sequence[Number] | None = None,
    seeds: int | Sequence[int] = 20,
    estimators: Sequence[str | Estimator] | None = None,
    plans: Mapping[str, Plan] | Sequence[Plan] | None = None,
    entities: bool = False,
    source: str | None = None,
    ledger: str | Path | None = None,
    state: str | Path | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> pd.DataFrame:
    """Simulate a run under other losses, plans and estimators, and measure its errors. Nothing is released.

    If the input is confidential, so is the frame, as with :func:`evaluate`, and no budget covers it. The
    account of the data records the reading. `source` declares the input public or synthetic.

    Parameters
    ----------
    run : Run
        Its input is the truth of the simulations.
    rhos, epsilons : sequence of exact number, optional
        Losses; epsilons if the mechanism spends epsilon. By default, the run's.
    seeds : int or sequence of int
        Number of simulations of each kind, or their seeds. Simulations with one seed share its noise.
    estimators : sequence of str or Estimator, optional
        Names, or objects of your own class. By default, the run's.
    plans : mapping of name to plan, or sequence of preset, optional
        As :meth:`opendas.runs.context.run.Run.with_` takes them; None is the run's plan.
    entities : bool
        Also report errors at places, school districts and other entity categories.
    source : str, optional
        Name of the public or synthetic data.
    ledger : path, optional
        The book of the data; by default, the one that covers them.
    state : path, optional
        File of finished simulations, from which a stopped experiment resumes and to which one with more seeds
        or losses adds. It is as confidential as the frame.
    workers : int, optional
        Processes; by default two, if there are two cores. The frame does not depend on it.
    progress : callable(stage, done, total), optional

    Returns
    -------
    pandas.DataFrame
        A row for each ``rho`` (``epsilon``), ``plan``, ``estimator``, ``seed``, ``geolevel``, ``query`` and
        ``metric`` of :data:`METRICS`: the number of ``geounits``, and the
        ``value`` in counts. ``confidential`` says whether the input is.

    Examples
    --------
    >>> errors = od.experiment(run, rhos=["1/2", 1, 2], seeds=20)          # doctest: +SKIP
    >>> od.curves(errors[errors.geolevel.eq("block") & errors.metric.eq("mean_abs_error")])  # doctest: +SKIP
    """
    try:
        import pandas
    except ImportError as error:
        raise missing("pandas") from error
    mechanism = run.resolved.mechanism
    losses, others = (rhos, epsilons) if mechanism.is_zcdp else (epsilons, rhos)
    if others is not None:
        spends = mechanism.loss_name
        raise ConfigError(f"the mechanism {mechanism} spends {spends}: give {spends}s.")
    for word, several in (("losses", losses), ("estimators", estimators), ("plans", plans)):
        if isinstance(several, str):
            raise ConfigError(f"{word}: give a list, [{several!r}].")
    if plans is None:
        plans = {"run": None}
    elif not isinstance(plans, Mapping):
        named: dict[str, Plan] = {}
        for plan in plans:
            if isinstance(plan, Mapping):
                raise ConfigError('plans: shares need a name. Give a dictionary, {"even": shares}.')
            named["run" if plan is None else plan] = plan
        plans = named
    variants = _variants(run, losses, plans, estimators)
    given = range(seeds) if isinstance(seeds, int | np.integer) else seeds
    wanted = list(dict.fromkeys(int(seed) if isinstance(seed, np.integer) else seed for seed in given))
    if not wanted:
        raise ConfigError("seeds: give 1 or more.")
    belongs = "" if state is None else belongs_to(run, f"entities {entities}")
    path = None if state is None else Path(state)
    finished = FinishedRuns(lambda rows: [(a, b, c, n, value) for a, b, c, n, value in rows], path, belongs)
    note_reading(EXPERIMENT, tagger_of(run), product=run.product.name, ledger=ledger)
    names = _simulate(run, variants, wanted, finished, entities, workers or default_workers(), progress)
    found = pandas.DataFrame(_rows(mechanism.loss_name, variants, names, wanted, finished))
    found["confidential"] = source is None
    if source is not None:
        found.attrs["source"] = checked_line(source, "source")
    return found


def _simulate(
    run: Run,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    finished: FinishedRuns[list[Row]],
    entities: bool,
    workers: int,
    progress: Callable[[str, int, int], None] | None,
) -> list[str]:
    """Simulate every variant with every seed that is not finished; return the names of the variants' runs.

    A seed gives all variants the same random numbers, cell by cell: differences between variants are measured
    more precisely than each of them.
    """
    data = run.read()
    geolevels = levels_of(data.frame, entities=entities)
    names: list[str] = []
    done, total = 0, len(variants) * len(seeds)
    with closing(WorkerPool(workers)) if workers > 1 else nullcontext() as pool:
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
    return names


def _rows(
    loss_name: str,
    variants: Sequence[Variant],
    names: Sequence[str],
    seeds: Sequence[int],
    finished: FinishedRuns[list[Row]],
) -> list[dict[str, Any]]:
    """Return one row for each error, in the order of the arguments."""
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
