"""The local engine: worker processes on this machine.

Workers are processes rather than threads because much of a small family's time is Python's own. loky starts
them without importing the caller's main module, so that scripts need no guard.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from enum import Enum, auto
from functools import partial
from importlib import import_module
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import loky
from loky.backend import get_context
from loky.backend.reduction import dumps
from loky.process_executor import TerminatedWorkerError

from opendas.custody.folders import held_folders, hold_again
from opendas.engines.checkpoint import TaskResult
from opendas.engines.tasks import Task, in_turn
from opendas.engines.work import Worker
from opendas.errors import EnvironmentFailure

SMALL_SPINE = 60_000
"""Below so many leaves a worker process takes longer to start than it saves: one process does all."""

LEAF_CELLS = 2016
"""A leaf of a product with more cells counts as several: the work of its families grows with their records'
different cells."""


_NEVER = "1e15"
"""Growth, in bytes, from which loky starts another worker in place of one: large families need memory."""


def default_workers() -> int:
    """Return the number of worker processes used by default: the machine's cores, at most two."""
    return min(2, cores())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(leaves: int, cells: int, asked: int | None = None) -> int:
    """Return how many worker processes a run has: those that were asked for, or what its size is worth."""
    if asked is not None:
        return asked
    return 1 if leaves * max(1, cells // LEAF_CELLS) < SMALL_SPINE else default_workers()


# What a worker process does first: it loads, while the process that started it reads and plans.
#
# Little is imported here, because everything else waits for its turn: workers that load all at once would
# take the cores from that process, which is the one that everybody waits for.


def loads_at_once(cores: int) -> int:
    """Return how many workers may load at a time: all cores but the one that reads and plans."""
    return max(1, cores - 1)


def load(
    parent: int,
    turns: AbstractContextManager[Any],
    modules: Sequence[str],
    held: Mapping[str, tuple[int, int]],
) -> None:
    """Import what a worker will need, and let it do a synthetic task.

    - `parent`: process number of who started it, as it says itself: it may be gone by now.
    - `turns`, context manager: a semaphore of the workers.
    - `modules`: what comes after the tasks.
    - `held`: the output folder of who started it.
    """
    hold_again(held)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    with turns:
        from opendas.engines.warm_up import warm_up

        with contextlib.suppress(Exception):  # it would fail in the first task, too, where errors are told
            warm_up()
        for module in modules:
            import_module(module)
        keep_modules()


def _follow(parent: int) -> None:
    """End this worker process soon after its parent: nobody else would, and it holds what is confidential."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


# Garbage collection in worker processes: what is loaded stays, and need not be searched.


_MANY_OBJECTS = 20_000
"""Objects that the garbage collector goes through in a few milliseconds."""


def keep_modules() -> None:
    """Take what is loaded out of the garbage collector's sight.

    Spark has a worker process collect garbage after every task, and loky once a second; with numerical
    packages loaded, that takes longer than many a task does.
    """
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.collect()
        gc.freeze()


Item = TypeVar("Item")
Answer = TypeVar("Answer")

_known: tuple[int, Callable[[Any], Any]] | None = None
_numbers = itertools.count()


class _Reply(Enum):
    """What a process answers instead of doing a task."""

    UNKNOWN = auto()
    """It has not met this worker yet."""


def _run(number: int, item: Any) -> Any:
    """Work on an item with what this process knows by a number."""
    if _known is None or _known[0] != number:
        return _Reply.UNKNOWN
    result = _known[1](item)
    keep_modules()  # compiled code is loaded with the first tasks
    return result


def _run_with(number: int, work: bytes, item: Any) -> Any:
    """Learn what works, and give it an item."""
    global _known  # one per worker process
    _known = number, pickle.loads(work)
    return _run(number, item)


def _ready() -> int:
    return os.getpid()


@contextlib.contextmanager
def _interrupts_for_us() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: this one hears it and ends them, and they say nothing."""
    resource_tracker.ensure_running()  # later, its start would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerPool:
    """Worker processes, started when this is made: they load while the caller still reads and plans.

    `modules`: what they will need besides: modules that these imports cannot name.
    """

    def __init__(self, workers: int, modules: Sequence[str] = ()) -> None:
        self.workers = workers
        self._sent: tuple[object, int, bytes] | None = None
        self._turns: Any = get_context("loky").Semaphore(loads_at_once(loky.cpu_count()))
        self._processes = loky.ProcessPoolExecutor(
            workers,
            initializer=load,
            initargs=(os.getpid(), self._turns, tuple(modules), held_folders()),
            timeout=None,
            env={"LOKY_MAX_MEMORY_LEAK_SIZE": _NEVER},
        )
        with _interrupts_for_us():
            for _ in range(workers):
                self._processes.submit(_ready)

    def close(self) -> None:
        """End the processes.

        Idle workers are killed rather than asked to end: had one of them just died with the queue's lock, the
        others would never hear it.
        """
        self._processes.shutdown(wait=True, kill_workers=True)

    def map(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
        """Yield each item with what `work` makes of it, in order of completion.

        What works may be large, and processes are not met in a known order: it goes to those that ask for it.
        """
        if self._sent is None or self._sent[0] is not work:
            self._sent = work, next(_numbers), bytes(dumps(work))
        _, number, whole = self._sent
        return self.spread(partial(_run, number), items, partial(_run_with, number, whole))

    def spread(
        self,
        function: Callable[[Item], Answer | _Reply],
        items: Iterable[Item],
        more: Callable[[Item], Answer | _Reply] | None = None,
    ) -> Iterator[tuple[Item, Answer]]:
        """Yield each item with the function's answer, in order of completion; two items a worker wait.

        - `function` (item).
        - `more` (item): tried instead with an item to which a process says that it lacks something.
        """
        waiting: dict[Future[Answer | _Reply], Item] = {}
        for _ in range(self.workers):
            self._turns.release()  # who only waits from here on needs no core

        def finished() -> Iterator[tuple[Item, Answer]]:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                item, answer = waiting.pop(future), future.result()
                if not isinstance(answer, _Reply):
                    yield item, answer
                elif more is not None:
                    waiting[self._processes.submit(more, item)] = item

        try:
            for item in items:
                waiting[self._processes.submit(function, item)] = item
                if len(waiting) >= 2 * self.workers:
                    yield from finished()
            while waiting:
                yield from finished()
        except TerminatedWorkerError as error:
            raise EnvironmentFailure(
                "A worker process ended before its work was done, often because memory ran out. Start the "
                "command again, with fewer --workers if memory is short. With --resume, a run continues from "
                "what it had finished."
            ) from error


class LocalEngine:
    """Runs tasks in this process (one worker) or in worker processes.

    `pool`: processes that run already, of which this engine takes over the end; by default it starts its own.
    """

    def __init__(self, worker: Worker, workers: int, pool: WorkerPool | None = None) -> None:
        self._worker = worker
        self._workers = workers
        self._pool = pool

    def __enter__(self) -> LocalEngine:
        if self._workers > 1 and self._pool is None:
            self._pool = WorkerPool(self._workers)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, TaskResult | None]]:
        """Yield each task with its result, in order of completion.

        At most two tasks a worker are in memory at a time. A single task, too, goes to the workers, who need
        the compiled code anyway: it is loaded there and not here.
        """
        if self._pool is None:
            return in_turn(self._worker, tasks)
        return self._pool.map(self._worker, tasks)

    def apply(
        self, function: Callable[[Item], Answer], items: Iterable[Item], count: int
    ) -> Iterator[tuple[Item, Answer]]:
        """Yield each item with the function's answer; see :class:`opendas.engines.tasks.Engine`."""
        if self._pool is None or count <= 1:
            return in_turn(function, items)
        return self._pool.spread(function, items)
