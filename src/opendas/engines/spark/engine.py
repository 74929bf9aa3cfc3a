"""The engine on Spark: large tasks on executors, the few above them in worker processes beside the driver.

An item of work waits in a file under ``state/`` for the executor whose partition has its number; results
stand in files there, too. Executors that do not see that folder have the driver read and write in it. What
Spark itself carries is the confidential counts, encrypted where they touch a disk, and answers of a few
bytes.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from opendas.engines.checkpoint import TaskResult
from opendas.engines.local import LocalEngine
from opendas.engines.spark.exact import SparkCounts, TaskCounts
from opendas.engines.spark.key_service import KeyService, KeyTicket
from opendas.engines.spark.parts import (
    ANSWER_TYPES,
    Answer,
    Batches,
    EachPartition,
    Work,
    item_path,
    marker_path,
    read_marker,
    unpack,
)
from opendas.engines.spark.run_files import RunFiles, SharedFiles
from opendas.engines.spark.session import spark_failures
from opendas.engines.subtree import Part
from opendas.engines.tasks import Task
from opendas.engines.work import KeyedSource, Saved, Worker
from opendas.measurement.family import MeasurementSource
from opendas.measurement.noisy import MeasuredLevel
from opendas.schema.histogram import Histogram

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NOISE_KEY", "SparkEngine"]

NOISE_KEY = "noise"
_LOOK_S = 0.2
"""How often the driver looks for items that are done."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _ServedSource:
    """Measurements taken on executors: :class:`KeyedSource` whose key is asked for when it is needed.

    Parameters
    ----------
    levels : tuple of MeasuredLevel
    ticket : KeyTicket
    """

    levels: tuple[MeasuredLevel, ...]
    ticket: KeyTicket

    def open(self, part: Part, table: Histogram | None) -> MeasurementSource:
        """Return the noisy measurements of a part."""
        return KeyedSource(self.levels, self.ticket.fetch(NOISE_KEY)).open(part, table)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _DoTask:
    """Does the task that waits in a file, from the counts of its partition.

    Parameters
    ----------
    worker : Worker
    folder : Path
    files : RunFiles
    counts : TaskCounts or None
        None where measurements come from files.
    unchanged : callable(task, counts) or None
        Refuses counts that are no longer those that were tagged.
    """

    worker: Worker
    folder: Path
    files: RunFiles
    counts: TaskCounts | None
    unchanged: Callable[[int, Histogram], None] | None

    def __call__(self, number: int, batches: Batches) -> TaskResult | Saved:
        task: Task = pickle.loads(self.files.read(item_path(self.folder, number)))
        if self.counts is not None:
            bottom = task.part.levels[-1]
            if self.counts.leaves(number) != (bottom.first, bottom.first + len(bottom.geocodes)):
                raise AssertionError("counts and tasks are cut alike")
            table = self.counts(number, batches)
            if self.unchanged is not None:
                self.unchanged(number, table)
            task = replace(task, table=table)
        return self.worker(task)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Apply:
    """Applies a function to the item that waits in a file.

    Parameters
    ----------
    function : callable(item)
    folder : Path
    name_attempt : callable(str)
        Tells writers of files apart: an executor that was given up may still be at work on the same item.
    """

    function: Callable[[Any], Any]
    folder: Path
    name_attempt: Callable[[str], None]

    def __call__(self, number: int, batches: Batches) -> Any:
        self.name_attempt(f"{os.uname().nodename}-{os.getpid()}")
        return self.function(pickle.loads(item_path(self.folder, number).read_bytes()))


class SparkEngine:
    """Runs tasks on the executors of a Spark session.

    Parameters
    ----------
    session : SparkSession
    worker : Worker
        Its files are written with :func:`opendas.engines.spark.parts.write_here`: two attempts at a task may
        run at the same time.
    files : RunFiles
        How executors reach the folder.
    folder : Path
        Of the run, under ``state/``.
    counts : SparkCounts or None
        None where measurements come from files.
    keys : KeyService
        Running.
    last : int
        Number of the leaves' geolevel: tasks that reach it are done on executors.
    workers : int
        Processes of this machine for the tasks above.
    name_attempt : callable(str)
        Gives temporary files of a process a name of their own.
    """

    def __init__(
        self,
        session: SparkSession,
        worker: Worker,
        files: RunFiles,
        folder: Path,
        counts: SparkCounts | None,
        keys: KeyService,
        last: int,
        workers: int,
        name_attempt: Callable[[str], None],
    ) -> None:
        self._session, self._files, self._counts, self._last = session, files, counts, last
        self._folder, self._name_attempt = folder / "work", name_attempt
        self._alone = not isinstance(files, SharedFiles)
        self._local = LocalEngine(worker, workers)
        source = worker.source
        if isinstance(source, KeyedSource):
            keys.offer({NOISE_KEY: source.key})
            source = _ServedSource(source.levels, keys.ticket)
        results = None if worker.files is None else worker.files.written_with(files.write)
        self._worker = replace(worker, source=source, files=results)

    def __enter__(self) -> SparkEngine:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._local.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._local.__exit__(kind, *rest)
        shutil.rmtree(self._folder, ignore_errors=True)

    def map(self, tasks: Iterable[Task], count: int) -> Iterator[tuple[Task, TaskResult | Saved]]:
        """Yield each task with its result, in order of completion."""
        remaining = iter(tasks)
        first = next(remaining, None)
        if first is None:
            return iter(())
        every = chain([first], remaining)
        here = first.part.levels[-1].level < self._last or first.table is not None
        if here or (self._counts is None and self._alone):  # full measurements are large, and stand here
            return self._local.map(every, count)
        counts = None if self._counts is None else self._counts.counts
        unchanged = None if self._counts is None else self._counts.unchanged
        folder = self._new_folder()
        work = _DoTask(self._worker, folder, self._files, counts, unchanged)
        return self._spread(work, every, lambda task: task.number, folder, self._counts)

    def apply(
        self, function: Callable[[Item], Result], items: Iterable[Item], count: int
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with the function's answer; see :class:`opendas.engines.protocol.Engine`."""
        if self._alone:  # what they are made of is here, and here they belong
            return self._local.apply(function, items, count)
        numbers, folder = iter(range(count)), self._new_folder()
        work = _Apply(function, folder, self._name_attempt)
        return self._spread(work, items, lambda _: next(numbers), folder, None)

    def _new_folder(self) -> Path:
        """Return a folder for the items of a job: executors given up write nothing into that of the next."""
        folder = self._folder / token_hex(8)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def _spread(
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
            item_path(folder, waiting[-1]).write_bytes(pickle.dumps(item))
        if counts is None:
            rows = self._session.range(0, len(waiting), 1, max(1, len(waiting)))
            numbers = dict(enumerate(waiting))
        else:
            rows = counts.rows
            numbers = {number: number for number in waiting}
        job = _Job(self._session, rows, EachPartition(work, numbers, folder, self._files.write))
        for number, answer in job.answers(waiting, folder):
            path = item_path(folder, number)
            yield pickle.loads(path.read_bytes()), answer.get()
        shutil.rmtree(folder, ignore_errors=True)


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
