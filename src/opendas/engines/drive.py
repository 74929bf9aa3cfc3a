"""Driving an estimation: stages in order, tasks in any order, results in the spine's order.

The informed estimator goes over the stages twice: from the leaves up, to learn what lies below each cut, and
then, as the others, from the top down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opendas.constraints.table import ConstraintTable
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.local import LocalEngine
from opendas.engines.subtree import PartResult
from opendas.engines.tasks import Stage, Task, bottom_starts, cut_leaves, cut_spine, make_part
from opendas.engines.upward import BelowPart, kept_at_a_cut, model_of
from opendas.engines.work import TaskResult, Worker
from opendas.estimation.model import FamilyRecord
from opendas.geography.spine import Spine
from opendas.measurement.family import UsedAnswers
from opendas.schema.histogram import Histogram
from opendas.whole_tree.model import TreeModel

__all__ = ["Estimation", "estimate_spine"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Estimation:
    """The estimate of a whole spine: formally private.

    Parameters
    ----------
    leaves : Histogram
        One row per leaf, in spine order.
    used : tuple of UsedAnswers
        Noisy answers that were read, by level and geounit.
    records : tuple of FamilyRecord
        By level and place on the spine.
    """

    leaves: Histogram
    used: tuple[UsedAnswers, ...]
    records: tuple[FamilyRecord, ...]


def _counts_at(histogram: Histogram | None, spine: Spine, level: int) -> Histogram | None:
    """Return the counts of a geolevel; the leaves' own where it is theirs."""
    if histogram is None or level == len(spine.levels) - 1:
        return histogram
    return histogram.aggregate(spine.leaf_starts(level))


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
    """Estimate all leaves of a spine.

    Parameters
    ----------
    spine : Spine
    constraints : ConstraintTable
    worker : Worker
    histogram : Histogram or None
        Confidential counts of the leaves in spine order, handed to the worker's measurement source in
        slices; None where measurements come from files.
    estimator : str
        ``topdown``, ``informed`` or ``block-by-block``.
    workers : int
    model : TreeModel, optional
        Of the whole spine; needed by the estimator ``informed``.
    checkpoints : Checkpoints, optional
    progress : callable(stage name, done, total), optional
        In leaves, or geounits of the cut that the stage ends at.
    """
    if estimator == "block-by-block":
        stages = cut_leaves(spine, constraints.levels[-1].joint)
    elif estimator == "informed":
        if model is None:
            raise ValueError("the informed estimator needs a model of the whole tree")
        stages = cut_spine(spine, constraints.levels[0].joint, kept=kept_at_a_cut(model))
    else:
        stages = cut_spine(spine, constraints.levels[0].joint)
    with LocalEngine(worker, workers) as engine:
        sweep = _Sweep(spine, constraints, stages, histogram, model, engine, checkpoints, progress)
        below: list[BelowPart | None] = [None] * len(stages)  # of the bottom of each stage
        if model is not None:
            for number in reversed(range(1, len(stages))):
                below[number - 1] = sweep.upward(number, below[number])
        return sweep.downward(below)


@dataclass(frozen=True, slots=True, eq=False)
class _Sweep:
    """A run over the stages of a spine."""

    spine: Spine
    constraints: ConstraintTable
    stages: tuple[Stage, ...]
    histogram: Histogram | None
    model: TreeModel | None
    engine: LocalEngine
    checkpoints: Checkpoints | None
    progress: Progress | None

    def upward(self, number: int, below: BelowPart | None) -> BelowPart:
        """Return what lies below each geounit of the top of a stage."""
        name = f"reading below {self.spine.names[self.stages[number].top]}"
        results = self._run(number, name, True, None, below)
        return BelowPart.joined([result for result in results if isinstance(result, BelowPart)])

    def downward(self, below: Sequence[BelowPart | None]) -> Estimation:
        """Estimate from the top to the leaves."""
        parents: Histogram | None = None
        used: list[UsedAnswers] = []
        records: list[tuple[int, FamilyRecord]] = []
        for number, stage in enumerate(self.stages):
            name = f"estimating {self.spine.names[stage.bottom]}"
            results = [
                result
                for result in self._run(number, name, False, parents, below[number])
                if isinstance(result, PartResult)
            ]
            parents = Histogram.concatenate([result.estimates for result in results])
            for result in results:
                used.extend(result.used)
                records.extend((self.spine.index(record.geolevel), record) for record in result.records)
        if parents is None:
            raise RuntimeError("a spine has at least one stage")
        used.sort(key=lambda u: (u.level, u.first))
        records.sort(key=lambda r: r[0])
        return Estimation(parents, tuple(used), tuple(record for _, record in records))

    def _run(
        self, number: int, name: str, up: bool, parents: Histogram | None, below: BelowPart | None
    ) -> list[TaskResult]:
        """Do the tasks of a stage that no checkpoint holds; results in the order of the spine."""
        stage = self.stages[number]
        starts = bottom_starts(self.spine, stage.top, stage.bottom)
        results: dict[int, TaskResult] = {}
        todo: list[int] = []
        for task in range(len(stage.cuts) - 1):
            found = self.checkpoints.load(number, task, up=up) if self.checkpoints is not None else None
            if found is None:
                todo.append(task)
            else:
                results[task] = found
        sizes = np.diff(starts[list(stage.cuts)])
        total, done = int(starts[-1]), int(sizes[list(results)].sum())
        self._tell(name, done, total)
        for finished, result in self.engine.map(self._tasks(number, todo, up, parents, below), len(todo)):
            if self.checkpoints is not None:
                self.checkpoints.save(number, finished.number, result)
            results[finished.number] = result
            done += int(sizes[finished.number])
            self._tell(name, done, total)
        return [results[task] for task in range(len(stage.cuts) - 1)]

    def _tell(self, name: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(name, done, total)

    def _tasks(
        self, number: int, todo: Sequence[int], up: bool, parents: Histogram | None, below: BelowPart | None
    ) -> Iterator[Task]:
        spine, stage = self.spine, self.stages[number]
        child_starts = [spine.child_starts(level) for level in range(len(spine.levels) - 1)]
        table = _counts_at(self.histogram, spine, stage.bottom)
        for task in todo:
            start, stop = stage.cuts[task], stage.cuts[task + 1]
            part, low, high = make_part(spine, child_starts, self.constraints, stage, start, stop, parents)
            levels = part.levels if stage.roots else part.levels[1:]  # those that are not estimated yet
            yield Task(
                number,
                task,
                part,
                None if table is None else table.slice(low, high),
                up,
                None if self.model is None else model_of(self.model, levels),
                None if below is None else below.slice(low, high),
            )
