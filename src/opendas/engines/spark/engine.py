"""The engine on Spark: large tasks on executors, the few above them in worker processes beside the driver.

An item of work waits in a file under ``state/``, which all machines see, for the executor whose partition has
its number; results stand in files there, too. What Spark itself carries is the confidential counts, the work
with its derived key, and answers of a few bytes.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opendas.arrays import Ints
from opendas.custody.folders import make_folder, new_file, remove_tree
from opendas.engines.checkpoint import TaskResult, narrow
from opendas.engines.local import LocalEngine
from opendas.engines.spark.counts import SparkCounts, Unchanged
from opendas.engines.spark.partitions import (
    ANSWER_TYPES,
    Answer,
    Batches,
    EachPartition,
    Work,
    marker_path,
    read_marker,
    read_shared,
    unpack,
    write_shared,
)
from opendas.engines.spark.session import spark_failures
from opendas.engines.tasks import Task
from opendas.engines.work import KeyedSource, Worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_S = 0.2
"""How often the driver looks for items that are done."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def _item_path(folder: Path, number: int) -> Path:
    """Return where an item waits for its executor."""
    return folder / f"{number:06d}.item"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _DoTask:
    """Does the task that waits in a file, from the counts of its partition."""

    worker: Worker  # with the noise key of the run, where it measures
    folder: Path
    counts: Unchanged | None  # None where measurements come from files

    def __call__(self, number: int, batches: Batches) -> TaskResult | None:
        task: Task = pickle.loads(_item_path(self.folder, number).read_bytes())
        if self.counts is not None:
            bottom = task.part.levels[-1]
            if self.counts.counts.leaves(number) != (bottom.first, bottom.first + len(bottom.geocodes)):
                raise AssertionError("counts and tasks are cut alike")
            task = replace(task, table=self.counts(number, batches))
        return self.worker(task)


def _apply(function: Callable[[Any], Any], folder: Path, number: int, batches: Batches) -> Any:
    """Apply a function to the item that waits in a file."""
    return function(pickle.loads(_item_path(folder, number).read_bytes()))


class SparkEngine:
    """Runs tasks on the executors of a Spark session.

    - `worker`: its files are written with :func:`opendas.engines.spark.partitions.write_shared`: two attempts
      at a task may run at the same time.
    - `folder`: of the run, under ``state/``.
    - `counts`: None where measurements come from files.
    - `last`: number of the leaves' geolevel: tasks that reach it are done on executors.
    - `workers`: processes of this machine for the tasks above.
    """

    def __init__(
        self,
        session: SparkSession,
        worker: Worker,
        folder: Path,
        counts: SparkCounts | None,
        last: int,
        workers: int,
    ) -> None:
        self._session, self._worker, self._counts, self._last = session, worker, counts, last
        self._folder = folder / "work"
        self._local = LocalEngine(worker, workers)

    def __enter__(self) -> SparkEngine:
        remove_tree(self._folder)
        self._local.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._local.__exit__(kind, *rest)
        remove_tree(self._folder)

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, TaskResult | None]]:
        """Yield each task with its result, in order of completion."""
        remaining = iter(tasks)
        first = next(remaining, None)
        if first is None:
            return iter(())
        every = chain([first], remaining)
        if first.part.levels[-1].level < self._last or first.table is not None:
            return self._local.map(every)
        folder = self._new_folder()
        work = _DoTask(self._worker, folder, None if self._counts is None else self._counts.unchanged)
        return self._on_executors(work, every, lambda task: task.number, folder, self._counts)

    def apply(
        self, function: Callable[[Item], Result], items: Iterable[Item], count: int
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with the function's answer; see :class:`opendas.engines.tasks.Engine`."""
        numbers, folder = iter(range(count)), self._new_folder()
        work = partial(_apply, function, folder)
        return self._on_executors(work, items, lambda _: next(numbers), folder, None)

    def _new_folder(self) -> Path:
        """Return a folder for the items of a job: executors given up write nothing into that of the next."""
        folder = self._folder / token_hex(8)
        make_folder(folder)
        return folder

    def _on_executors(
        self,
        work: Work,
        items: Iterable[Item],
        number_of: Callable[[Item], int],
        folder: Path,
        counts: SparkCounts | None,
    ) -> Iterator[tuple[Item, Any]]:
        """Do items on executors.

        With counts, item ``n`` goes to the partition of task ``n``; without, each has one of its own.
        """
        waiting: list[int] = []
        for item in items:
            waiting.append(number_of(item))
            with new_file(_item_path(folder, waiting[-1])) as file:
                file.write(pickle.dumps(item))
        if counts is None:
            rows = self._session.range(0, len(waiting), 1, max(1, len(waiting)))
            numbers = dict(enumerate(waiting))
        else:
            rows = counts.rows
            numbers = {number: number for number in waiting}
        job = _Job(self._session, rows, EachPartition(work, numbers, folder))
        for number, answer in job.answers(waiting, folder):
            path = _item_path(folder, number)
            yield pickle.loads(path.read_bytes()), answer.get()
        remove_tree(folder)


class _Job:
    """One Spark job, run beside the caller, whose items are heard of as they are done."""

    def __init__(self, session: SparkSession, rows: DataFrame, each: EachPartition) -> None:
        self._context = session.sparkContext
        self._rows, self._each = rows, each
        self._group = f"opendas-{token_hex(8)}"
        self._answers: dict[int, Answer] = {}
        self._failure: BaseException | None = None

    def answers(self, numbers: Iterable[int], folder: Path) -> Iterator[tuple[int, Answer]]:
        """Yield the answer to each item when it is there."""
        from pyspark import InheritableThread

        waiting = set(numbers)
        thread = InheritableThread(target=self._run, daemon=True)
        thread.start()
        try:
            while waiting and thread.is_alive():
                there = set(os.listdir(folder))
                for number in sorted(waiting):
                    path = marker_path(folder, number)
                    answer = read_marker(path) if path.name in there else None
                    if answer is not None:
                        waiting.discard(number)
                        yield number, answer
                thread.join(_LOOK_S)
            thread.join()
            if self._failure is not None:
                with spark_failures():
                    raise self._failure
            for number in sorted(waiting):
                yield number, self._answers[number]
        finally:
            if thread.is_alive():
                self._context.cancelJobGroup(self._group)
                thread.join()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "opendas", interruptOnCancel=False)
            for row in self._rows.mapInArrow(self._each, ANSWER_TYPES).collect():
                self._answers[row.number] = unpack(bytes(row.answer))
        except BaseException as error:
            self._failure = error


# Full measurements ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _DrawTask:
    """Draws all noisy answers of one geolevel within a task."""

    source: KeyedSource
    counts: Unchanged
    level: int
    starts: Ints | None  # (g + 1,): first leaf of each geounit of the level; None: leaves
    cuts: Ints  # (t + 1,): first geounit of each task
    step: int  # geounits drawn at a time
    folder: Path

    def __call__(self, task: int, batches: Batches) -> None:
        table = self.counts(task, batches)
        first, stop = int(self.cuts[task]), int(self.cuts[task + 1])
        if self.starts is not None:
            own = self.starts[first : stop + 1]
            table = table.aggregate(own - own[0])
        measured = self.source.at(self.level, first, table)
        for number, start in enumerate(range(first, stop, self.step)):
            drawn = measured.full(self.level, start, min(self.step, stop - start))
            buffer = BytesIO()
            np.savez(buffer, *map(narrow, drawn))
            write_shared(_drawn_path(self.folder, task, number), buffer.getvalue())


def draw_on_executors(
    source: KeyedSource, counts: SparkCounts, folder: Path, level: int, step: int
) -> Iterator[tuple[int, int, list[Ints]]]:
    """Draw all noisy answers of a geolevel below the last cut where its counts are.

    Executors write them, noisy, into files, which are put together in the spine's order.

    - `folder`: under ``state/``; removed in the end.
    - `step`: geounits drawn at a time.
    - Returns (g, m): first geounit, the one behind the last, and all noisy answers of each query group.
    """
    leaves = counts.spine.leaf_starts(level)
    cuts = np.searchsorted(leaves, counts.cut.starts)
    starts = None if level + 1 == len(counts.spine.levels) else leaves
    remove_tree(folder)
    drawn_in = folder / token_hex(8)  # executors given up write nothing into that of another level
    make_folder(drawn_in)
    try:
        counts.run(_DrawTask(source, counts.unchanged, level, starts, cuts, step, drawn_in))
        for task in range(len(counts.cut)):
            first, stop = int(cuts[task]), int(cuts[task + 1])
            for number, start in enumerate(range(first, stop, step)):
                path = _drawn_path(drawn_in, task, number)
                with np.load(BytesIO(read_shared(path)), allow_pickle=False) as arrays:
                    drawn = [arrays[f"arr_{k}"].astype(np.int64) for k in range(len(arrays.files))]
                yield start, min(start + step, stop), drawn
                path.unlink()
    finally:
        remove_tree(folder)


def _drawn_path(folder: Path, task: int, number: int) -> Path:
    return folder / f"task{task:06d}-{number:06d}.npz"
