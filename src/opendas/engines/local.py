"""The local engine: worker processes on this machine.

Workers are processes rather than threads because much of a small family's time is Python's own. loky starts
them without importing the caller's main module, so that scripts need no guard.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import loky
from loky.process_executor import TerminatedWorkerError

from opendas.engines.tasks import Task
from opendas.engines.work import TaskResult
from opendas.errors import EnvironmentFailure

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)

_worker: Callable[[Task], TaskResult] | None = None


def _start(worker: Callable[[Task], TaskResult]) -> None:
    global _worker  # one per worker process, set once at its start
    _worker = worker


def _run(task: Task) -> TaskResult:
    if _worker is None:
        raise RuntimeError("worker process was not initialised")
    return _worker(task)


def _ready() -> int:
    return os.getpid()


class LocalEngine:
    """Runs tasks in this process (one worker) or in worker processes.

    Parameters
    ----------
    worker : callable
        What to do with a task.
    workers : int
        Number of processes at work.
    """

    def __init__(self, worker: Callable[[Task], TaskResult], workers: int) -> None:
        self._worker = worker
        self._workers = workers
        self._pool: Any = None

    def __enter__(self) -> LocalEngine:
        if self._workers > 1:
            self._pool = loky.ProcessPoolExecutor(
                self._workers, initializer=_start, initargs=(self._worker,), timeout=None
            )
            # Start the processes now: they load while the first stage runs here.
            for _ in range(self._workers):
                self._pool.submit(_ready)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=kind is not None)
            self._pool = None

    def map(self, tasks: Iterable[Task], count: int) -> Iterator[tuple[Task, TaskResult]]:
        """Yield each task with its result, in order of completion.

        At most two tasks a worker are in memory at a time. A single task runs in this process.
        """
        if self._pool is None or count <= 1:
            for task in tasks:
                yield task, self._worker(task)
            return
        waiting: dict[Future[TaskResult], Task] = {}
        try:
            for task in tasks:
                waiting[self._pool.submit(_run, task)] = task
                if len(waiting) >= 2 * self._workers:
                    yield from self._collect(waiting)
            while waiting:
                yield from self._collect(waiting)
        except TerminatedWorkerError as error:
            raise EnvironmentFailure(
                "A worker process was stopped from outside (out of memory?). What is finished is kept: "
                "start again with --resume, and with fewer --workers if memory is short."
            ) from error

    @staticmethod
    def _collect(waiting: dict[Future[TaskResult], Task]) -> Iterator[tuple[Task, TaskResult]]:
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield waiting.pop(future), future.result()
