"""The tasks of a run, cut the same way whatever the engine or the number of workers; and what does them.

The spine is cut at a few geolevels. Between two cuts, runs of neighbouring subtrees are tasks; a stage
starts when the one above it is done, because its parents must be fixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.constraints.table import ConstraintTable, JointTotal
from opendas.engines.checkpoint import TaskResult
from opendas.engines.subtree import Part, PartLevel
from opendas.engines.upward import BelowPart
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.schema.histogram import Histogram

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MANY_SUBTREES = 32
"""A geolevel with so many geounits is where the last stage starts: enough tasks to share out evenly."""

TASKS_PER_STAGE = 64
LEAVES_PER_TASK = 1 << 14
"""Neighbouring subtrees are put together until there are about so many tasks, or more where each would have
more leaves than these."""

MOST_LEAVES = 1 << 17
"""Stages go further down while a subtree has more leaves: a task is what a worker has in memory."""

LEAST_GEOUNITS = 256
LEAST_LEAVES = 4096
"""Stages of the informed estimator are many, and some are small: a task has about so many geounits to
estimate above the leaves, or so many leaves."""

LEAST_CELLS = 1 << 20
"""Cells of geounits above the leaves that a task of the way up goes through: such tasks do little work."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Subtrees between two cuts."""

    # top, bottom: level numbers; the geounits of `top` are already estimated, unless they are roots.
    top: int
    bottom: int
    roots: bool  # the geounits of `top` have no parent and are estimated in this stage
    cuts: tuple[int, ...]  # task ``t`` holds the geounits ``cuts[t]:cuts[t + 1]`` of `top`
    up: tuple[int, ...] = ()  # the same of tasks on the way up


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One unit of work."""

    stage: int
    number: int
    part: Part  # public
    # Confidential counts of the part's bottom level; None where measurements come from files.
    table: Histogram | None
    up: bool = False  # tell what lies below the part's top, rather than estimate
    model: TreeModel | None = None  # Of the part's geounits; for the informed estimator. Public.
    # What lies below the part's bottom level; for the informed estimator, None above leaves.
    below: BelowPart | None = None


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


def _even_cuts(
    weights: Ints, group: npt.NDArray[np.int32] | None = None, most: int | None = None
) -> tuple[int, ...]:
    """Cut consecutive geounits into about `most` runs of similar weight, by default ``TASKS_PER_STAGE``.

    Geounits of one `group`, numbered in order, stay together: they are estimated together.
    """
    if group is not None:
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        whole = _even_cuts(np.add.reduceat(weights, starts), most=most)
        return tuple(int(np.append(starts, len(group))[cut]) for cut in whole)
    most = TASKS_PER_STAGE if most is None else most
    ends = np.cumsum(weights)
    goals = ends[-1] * np.arange(1, most) / most
    inner = np.searchsorted(ends, goals, side="left") + 1
    return tuple(int(cut) for cut in np.unique(np.concatenate([[0], inner, [len(weights)]])))


def _tasks(sizes: Sequence[int], leaves: bool) -> int:
    """Return how many tasks are worth while for geounits of several geolevels, the last perhaps leaves."""
    above = sizes[:-1] if leaves else sizes
    below = sizes[-1] if leaves else 0
    return min(TASKS_PER_STAGE, 1 + sum(above) // LEAST_GEOUNITS + below // LEAST_LEAVES)


def cut_spine(
    spine: Spine, joint: JointTotal | None = None, *, kept: int = 0, cells: int = 1
) -> tuple[Stage, ...]:
    """Cut a spine into stages for a top-down estimator.

    - `joint`: totals that roots hold together.
    - `kept`: cut at every geolevel with at most so many geounits: the informed estimator keeps what lies
      below a cut, and must read again what lies between two.
    - `cells`: of the product: the work of a geounit on the way up.
    """
    group = None if joint is None else joint.group
    last = len(spine.levels) - 1
    sizes = [len(level) for level in spine.levels]
    if last == 0:  # all leaves are roots
        return (Stage(0, 0, True, _even_cuts(np.ones(sizes[0], np.int64), group)),)
    cuts = [0]
    for level in range(1, last):
        small = (
            sizes[cuts[-1]] >= MANY_SUBTREES
            and int(np.diff(spine.leaf_starts(cuts[-1])).max()) <= MOST_LEAVES
        )
        if small and sizes[level] > kept:
            break
        # A cut pays where there is more to share out than at the last one, or to keep.
        if sizes[level] > (1 if kept else sizes[cuts[-1]]):
            cuts.append(level)
    cuts.append(last)
    stages = []
    for top, bottom in itertools.pairwise(cuts):
        weights = np.diff(spine.leaf_starts(top))
        most = _tasks(sizes[top + 1 : bottom + 1], bottom == last) if kept else TASKS_PER_STAGE
        if bottom == last:
            most = max(most, sizes[last] // LEAVES_PER_TASK)
        cut = _even_cuts(weights, group if top == 0 else None, most)
        few = 1 + sum(sizes[top + 1 : bottom + 1]) * cells // LEAST_CELLS
        # Who holds leaves holds those of one task, up and down.
        up = cut if bottom == last or not kept or few >= len(cut) - 1 else _even_cuts(weights, None, few)
        stages.append(Stage(top, bottom, top == 0, cut, up))
    return tuple(stages)


def cut_leaves(spine: Spine, joint: JointTotal | None = None) -> tuple[Stage, ...]:
    """Cut the leaves into one stage of roots, for the block-by-block estimator.

    `joint`: totals that leaves hold together.
    """
    last = len(spine.levels) - 1
    weights = np.ones(len(spine.leaf), np.int64)
    most = max(TASKS_PER_STAGE, len(weights) // LEAVES_PER_TASK)
    return (Stage(last, last, True, _even_cuts(weights, None if joint is None else joint.group, most)),)


def make_part(
    spine: Spine,
    child_starts: Sequence[Ints],
    constraints: ConstraintTable,
    stage: Stage,
    start: int,
    stop: int,
    parents: Histogram | None,
) -> tuple[Part, int, int]:
    """Return the part below geounits ``start:stop`` of a stage's top, and its range at the bottom.

    - `child_starts`: ``spine.child_starts(level)`` of every level but the leaves.
    - `parents`: estimates of all geounits of the stage's top.
    """
    levels = []
    low, high = start, stop
    for level in range(stage.top, stage.bottom + 1):
        starts = None
        held = constraints.levels[level]
        if level == stage.top and not stage.roots:  # estimated already, and perhaps cut between parts
            held = replace(held, joint=None)
        if level < stage.bottom:
            starts = child_starts[level][low : high + 1]
        levels.append(
            PartLevel(
                level,
                low,
                spine.levels[level].geocodes[low:high],
                None if starts is None else starts - starts[0],
                held.slice(low, high),
            )
        )
        if starts is not None:
            low, high = int(starts[0]), int(starts[-1])
    return Part(tuple(levels), None if parents is None else parents.slice(start, stop)), low, high
