"""What a run asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from opendas.engines.checkpoint import TaskResult
from opendas.engines.tasks import Task

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Engine(Protocol):
    """Does what is independent, in any order and in any process."""

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, TaskResult | None]]:
        """Yield each task with what its worker returned, in order of completion."""
        ...

    def apply(
        self, function: Callable[[Item], Answer], items: Iterable[Item], count: int
    ) -> Iterator[tuple[Item, Answer]]:
        """Yield each of `count` items with the function's answer, in order of completion.

        Function and items go to other processes. Nothing of them is confidential.
        """
        ...


def in_turn(function: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
    """Apply a function to one item after the other, here: what :meth:`Engine.apply` does anywhere."""
    for item in items:
        yield item, function(item)
