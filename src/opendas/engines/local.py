"""The local engine: worker processes on this machine.

Workers are processes rather than threads because much of a small family's time is Python's own. loky starts
them without importing the caller's main module, so that scripts need no guard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

import loky
from loky import process_executor
from loky.process_executor import TerminatedWorkerError

from opendas.engines.checkpoint import TaskResult
from opendas.engines.engine import in_turn
from opendas.engines.tasks import Task
from opendas.engines.work import Saved, Worker
from opendas.errors import EnvironmentFailure

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_worker: Worker | None = None


def _start(worker: Worker) -> None:
    global _worker  # one per worker process, set once at its start
    _worker = worker
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(parent: int) -> None:
    """End this worker process soon after its parent: nobody else would, and it holds what is confidential."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _kill(process: Any, use_psutil: bool = True) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join()


# Its own needs psutil or the command pgrep. Where there is neither, as in slim containers, a run that loses a
# worker would wait for the others for ever.
process_executor.kill_process_tree = _kill


def _run(task: Task) -> TaskResult | Saved:
    if _worker is None:
        raise RuntimeError("worker process was not initialised")
    return _worker(task)


def _ready() -> int:
    return os.getpid()


class LocalEngine:
    """Runs tasks in this process (one worker) or in worker processes.

    Parameters
    ----------
    worker : Worker
        What to do with a task.
    workers : int
        Number of processes at work.
    """

    def __init__(self, worker: Worker, workers: int) -> None:
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
            # Idle workers are killed rather than asked to end: had one of them just died with the queue's
            # lock, the others would never hear it.
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None

    def map(self, tasks: Iterable[Task], count: int) -> Iterator[tuple[Task, TaskResult | Saved]]:
        """Yield each task with its result, in order of completion.

        At most two tasks a worker are in memory at a time. A single task runs in this process.
        """
        if self._pool is None or count <= 1:
            return in_turn(self._worker, tasks, count)
        return self._spread(_run, tasks)

    def apply(
        self, function: Callable[[Item], Answer], items: Iterable[Item], count: int
    ) -> Iterator[tuple[Item, Answer]]:
        """Yield each item with the function's answer; see :class:`opendas.engines.engine.Engine`."""
        if self._pool is None or count <= 1:
            return in_turn(function, items, count)
        return self._spread(function, items)

    def _spread(
        self, function: Callable[[Item], Answer], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Answer]]:
        waiting: dict[Future[Answer], Item] = {}
        try:
            for item in items:
                waiting[self._pool.submit(function, item)] = item
                if len(waiting) >= 2 * self._workers:
                    yield from _collect(waiting)
            while waiting:
                yield from _collect(waiting)
        except TerminatedWorkerError as error:
            raise EnvironmentFailure(
                "A worker process was stopped from outside (out of memory?). What is finished is kept: "
                "start again with --resume, and with fewer --workers if memory is short."
            ) from error


def _collect(waiting: dict[Future[Answer], Item]) -> Iterator[tuple[Item, Answer]]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        yield waiting.pop(future), future.result()
