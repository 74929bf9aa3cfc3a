"""Driving an estimation: stages in order, tasks in any order, results in the spine's order.

The informed estimator goes over the stages twice: from the leaves up, to learn what lies below each cut, and
then, as the others, from the top down. Results stand in files, or in memory where there are none; what is
estimated of the leaves is handed out task by task and never needs to stand in memory at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opendas.constraints.table import ConstraintTable
from opendas.engines.checkpoint import Checkpoints, TaskResult
from opendas.engines.local import LocalEngine
from opendas.engines.subtree import PartResult
from opendas.engines.tasks import Engine, Stage, Task, cut_leaves, cut_spine, make_part
from opendas.engines.truth import ExactCounts, LeafCounts
from opendas.engines.upward import BelowPart, kept_at_a_cut, model_of
from opendas.engines.work import Worker
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.schema.histogram import Histogram
from opendas.topdown.model import WHOLE_TREE, FamilyRecord

Progress = Callable[[str, int, int], None]


class _InMemory:
    """Results of small runs."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int, bool], TaskResult] = {}

    def save(self, stage: int, number: int, result: TaskResult) -> None:
        self._results[stage, number, isinstance(result, BelowPart)] = result

    def holds(self, stage: int, number: int, *, up: bool = False) -> bool:
        return (stage, number, up) in self._results

    def load(self, stage: int, number: int, *, up: bool = False) -> TaskResult | None:
        return self._results.get((stage, number, up))


_Results = Checkpoints | _InMemory
"""Where results of tasks stand."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedTask:
    """Where the result of a task stands; picklable where results stand in files."""

    results: _Results
    stage: int
    number: int
    # first, geounits: of the geolevel in question, those that the task has done.
    first: int
    geounits: int

    def read(self) -> PartResult:
        """Return the result."""
        result = self.results.load(self.stage, self.number)
        if result is None or isinstance(result, BelowPart):
            raise RuntimeError(f"the result of task {self.number} of stage {self.stage} is gone")
        return result


class Estimation:
    """The estimate of a whole spine: formally private.

    `results`: of all tasks, on the way down.
    """

    def __init__(self, spine: Spine, stages: tuple[Stage, ...], results: _Results) -> None:
        self._spine = spine
        self._stages = stages
        self._results = results

    def tasks(self, stage: int, level: int | None = None) -> Iterator[FinishedTask]:
        """Yield where the results of a stage stand, in the spine's order.

        `level`: geolevel in question, of those that the stage estimates; by default the lowest.
        """
        cuts = self._stages[stage]
        level = cuts.bottom if level is None else level
        starts = self._spine.starts_at(cuts.top, level)[list(cuts.cuts)].tolist()
        for number, (first, stop) in enumerate(itertools.pairwise(starts)):
            yield FinishedTask(self._results, stage, number, first, stop - first)

    def tasks_at(self, level: int) -> tuple[FinishedTask, ...]:
        """Return where the results for a geolevel stand, in the spine's order."""
        return tuple(
            task
            for stage, cuts in enumerate(self._stages)
            if cuts.top < level <= cuts.bottom or (cuts.roots and level == cuts.top)
            for task in self.tasks(stage, level)
        )

    def finished(self) -> tuple[FinishedTask, ...]:
        """Return where the results of all tasks stand, stage by stage."""
        return tuple(task for stage in range(len(self._stages)) for task in self.tasks(stage))

    @property
    def leaves(self) -> Histogram:
        """All leaves in spine order, in memory."""
        return Histogram.concatenate([task.read().estimates for task in self.tasks(len(self._stages) - 1)])

    @property
    def records(self) -> tuple[FamilyRecord, ...]:
        """Records of all families, by level and place on the spine, in memory."""
        every = [record for task in self.finished() for record in task.read().records]
        return tuple(sorted(every, key=lambda record: self._spine.index(record.geolevel)))


def cut(
    spine: Spine, constraints: ConstraintTable, estimator: str, model: TreeModel | None = None
) -> tuple[Stage, ...]:
    """Cut a run into stages: the same whatever the engine and the number of workers.

    - `estimator`: one of :data:`opendas.topdown.model.OWN_ESTIMATORS`, or another package's.
    - `model`: needed by estimators of the whole tree.
    """
    if estimator == "block-by-block":
        return cut_leaves(spine, constraints.levels[-1].joint)
    if estimator not in WHOLE_TREE:
        return cut_spine(spine, constraints.levels[0].joint)
    if model is None:
        raise ValueError(f"the estimator {estimator} needs a model of the whole tree")
    kept, cells = kept_at_a_cut(model), model.domain.cells
    return cut_spine(spine, constraints.levels[0].joint, kept=kept, cells=cells)


def estimate_on(
    engine: Engine,
    spine: Spine,
    constraints: ConstraintTable,
    *,
    counts: ExactCounts | None,
    estimator: str,
    model: TreeModel | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> Estimation:
    """Estimate all leaves of a spine.

    - `engine`: its worker writes into `checkpoints`, where there are any.
    - `counts`: confidential counts, handed to the worker's measurement source in slices; None where
      measurements come from files.
    - `estimator`: one of :data:`opendas.topdown.model.OWN_ESTIMATORS`, or another package's.
    - `model`: of the whole spine; needed by estimators of the whole tree.
    - `checkpoints`: files for results; in memory without them.
    - `progress` (stage name, done, total): in leaves, or geounits of the cut that the stage ends at.
    """
    stages = cut(spine, constraints, estimator, model)
    results: _Results = checkpoints or _InMemory()
    sweep = _Sweep(spine, constraints, stages, counts, model, engine, results, progress)
    below: list[BelowPart | None] = [None] * len(stages)  # of the bottom of each stage
    if model is not None:
        for number in reversed(range(1, len(stages))):
            below[number - 1] = sweep.upward(number, below[number])
    sweep.downward(below)
    return Estimation(spine, stages, results)


def estimate_spine(
    spine: Spine,
    constraints: ConstraintTable,
    worker: Worker,
    *,
    histogram: Histogram | None,
    estimator: str,
    workers: int,
    model: TreeModel | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> Estimation:
    """Estimate all leaves of a spine on this machine, from counts in memory; see :func:`estimate_on`.

    `histogram`: confidential counts of the leaves in spine order.
    """
    counts = None if histogram is None else LeafCounts.on(spine, histogram)
    with LocalEngine(replace(worker, files=checkpoints), workers) as engine:
        return estimate_on(
            engine,
            spine,
            constraints,
            counts=counts,
            estimator=estimator,
            model=model,
            checkpoints=checkpoints,
            progress=progress,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sweep:
    """A run over the stages of a spine."""

    spine: Spine
    constraints: ConstraintTable
    stages: tuple[Stage, ...]
    counts: ExactCounts | None
    model: TreeModel | None
    engine: Engine
    results: _Results
    progress: Progress | None

    def upward(self, number: int, below: BelowPart | None) -> BelowPart:
        """Return what lies below each geounit of the top of a stage."""
        name = f"reading below {self.spine.names[self.stages[number].top]}"
        self._run(number, name, True, None, below)
        parts = [self.results.load(number, task, up=True) for task in range(len(self.stages[number].up) - 1)]
        return BelowPart.joined([part for part in parts if isinstance(part, BelowPart)])

    def downward(self, below: Sequence[BelowPart | None]) -> None:
        """Estimate from the top to the leaves."""
        parents: Histogram | None = None
        for number, stage in enumerate(self.stages):
            name = f"estimating {self.spine.names[stage.bottom]}"
            self._run(number, name, False, parents, below[number])
            if number + 1 < len(self.stages):
                done = Estimation(self.spine, self.stages, self.results)
                parents = Histogram.concatenate([task.read().estimates for task in done.tasks(number)])

    def _run(
        self, number: int, name: str, up: bool, parents: Histogram | None, below: BelowPart | None
    ) -> None:
        """Do the tasks of a stage that have no result yet."""
        stage = self.stages[number]
        cuts = stage.up if up else stage.cuts
        todo = [task for task in range(len(cuts) - 1) if not self.results.holds(number, task, up=up)]
        sizes = np.diff(self.spine.starts_at(stage.top, stage.bottom)[list(cuts)])
        todo.sort(key=lambda task: -int(sizes[task]))  # a large one at the end would be waited for
        total = int(sizes.sum())
        done = total - int(sizes[todo].sum())
        self._tell(name, done, total)
        for finished, result in self.engine.map(self._tasks(number, todo, up, parents, below)):
            if result is not None:
                self.results.save(number, finished.number, result)
            done += int(sizes[finished.number])
            self._tell(name, done, total)

    def _tell(self, name: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(name, done, total)

    def _tasks(
        self, number: int, todo: Sequence[int], up: bool, parents: Histogram | None, below: BelowPart | None
    ) -> Iterator[Task]:
        spine, stage = self.spine, self.stages[number]
        child_starts = [spine.child_starts(level) for level in range(len(spine.levels) - 1)]
        for task in todo:
            start, stop = (stage.up if up else stage.cuts)[task : task + 2]
            part, low, high = make_part(spine, child_starts, self.constraints, stage, start, stop, parents)
            levels = part.levels if stage.roots else part.levels[1:]  # those that are not estimated yet
            yield Task(
                number,
                task,
                part,
                None if self.counts is None else self.counts.slice(stage.bottom, low, high),
                up,
                None if self.model is None else model_of(self.model, levels),
                None if below is None else below.slice(low, high),
            )
