"""Driving an estimation: stages in order, tasks in any order, results in the spine's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.constraints.table import ConstraintTable
from opendas.engines.checkpoint import Checkpoints
from opendas.engines.local import LocalEngine
from opendas.engines.subtree import PartResult
from opendas.engines.tasks import Stage, Task, bottom_starts, cut_leaves, cut_spine, make_part
from opendas.engines.work import Worker
from opendas.estimation.model import FamilyRecord
from opendas.geography.spine import Spine
from opendas.measurement.family import UsedAnswers
from opendas.schema.histogram import Histogram

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


def _tables(
    histogram: Histogram | None, spine: Spine, stages: Sequence[Stage]
) -> dict[int, Histogram | None]:
    """Return the counts of each stage's bottom level."""
    tables: dict[int, Histogram | None] = {}
    for stage in stages:
        if histogram is None:
            tables[stage.bottom] = None
        elif stage.bottom == len(spine.levels) - 1:
            tables[stage.bottom] = histogram
        else:
            tables[stage.bottom] = histogram.aggregate(spine.leaf_starts(stage.bottom))
    return tables


def estimate_spine(
    spine: Spine,
    constraints: ConstraintTable,
    worker: Worker,
    *,
    histogram: Histogram | None,
    estimator: str,
    workers: int,
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
        ``topdown`` or ``block-by-block``.
    workers : int
    checkpoints : Checkpoints, optional
    progress : callable(stage name, done, total), optional
        In leaves.
    """
    if estimator == "block-by-block":
        stages = cut_leaves(spine, constraints.levels[-1].joint)
    else:
        stages = cut_spine(spine, constraints.levels[0].joint)
    child_starts = [spine.child_starts(level) for level in range(len(spine.levels) - 1)]
    tables = _tables(histogram, spine, stages)
    parents: Histogram | None = None
    used: list[UsedAnswers] = []
    records: list[tuple[int, int, int, FamilyRecord]] = []
    with LocalEngine(worker, workers) as engine:
        for number, stage in enumerate(stages):
            starts = bottom_starts(spine, stage.top, stage.bottom)
            results: dict[int, PartResult] = {}
            todo: list[int] = []
            for task in range(len(stage.cuts) - 1):
                found = checkpoints.load(number, task) if checkpoints is not None else None
                if found is None:
                    todo.append(task)
                else:
                    results[task] = found
            name = f"estimating {spine.names[stage.bottom]}"
            total, done = int(starts[-1]), _size(stage, starts, results)
            if progress is not None:
                progress(name, done, total)
            tasks = _tasks(
                spine, child_starts, constraints, stage, number, todo, parents, tables[stage.bottom]
            )
            for finished, result in engine.map(tasks, len(todo)):
                if checkpoints is not None:
                    checkpoints.save(number, finished.number, result)
                results[finished.number] = result
                done += result.estimates.rows
                if progress is not None:
                    progress(name, done, total)
            ordered = [results[task] for task in range(len(stage.cuts) - 1)]
            parents = Histogram.concatenate([result.estimates for result in ordered])
            for result in ordered:
                used.extend(result.used)
                records.extend(
                    (spine.index(record.geolevel), number, len(records), record) for record in result.records
                )
    if parents is None:
        raise RuntimeError("a spine has at least one stage")
    used.sort(key=lambda u: (u.level, u.first))
    records.sort(key=lambda r: r[:1])
    return Estimation(parents, tuple(used), tuple(record for *_, record in records))


def _size(stage: Stage, starts: npt.NDArray[np.int64], results: dict[int, PartResult]) -> int:
    return sum(int(starts[stage.cuts[t + 1]] - starts[stage.cuts[t]]) for t in results)


def _tasks(
    spine: Spine,
    child_starts: Sequence[npt.NDArray[np.int64]],
    constraints: ConstraintTable,
    stage: Stage,
    number: int,
    todo: Sequence[int],
    parents: Histogram | None,
    table: Histogram | None,
) -> Iterator[Task]:
    for task in todo:
        start, stop = stage.cuts[task], stage.cuts[task + 1]
        part, low, high = make_part(spine, child_starts, constraints, stage, start, stop, parents)
        yield Task(number, task, part, None if table is None else table.slice(low, high))
