"""The confidential counts on the executors: one partition a task of the last stage, and sums for the driver.

Counts are shuffled once, by task, and stay with Spark, encrypted where they touch a disk. What the driver
needs of them, the counts of the few geounits above the last cut and declared invariants, comes through files
under ``confidential/``.

Axes: ``e`` entries; leaves stand in the spine's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from opendas.arrays import Ints
from opendas.custody.input_tag import TagSum, tag_entries, tag_key, tag_of
from opendas.custody.run_key import RunKey
from opendas.engines.spark.dealing import Cut, Redeal, deal
from opendas.engines.spark.key_service import KeyService, KeyTicket
from opendas.engines.spark.parts import (
    ANSWER_TYPES,
    COUNT_TYPES,
    Batches,
    EachPartition,
    merge_counts,
    read_here,
    unpack,
)
from opendas.engines.spark.run_files import RunFiles
from opendas.engines.spark.session import spark_failures
from opendas.errors import Finding, PrivacyError
from opendas.geography.spine import Spine
from opendas.measurement.invariants import exact_answers
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkCounts", "TaskCounts"]

_TAG_KEY = "input tag"
Check = Callable[[int, int, Histogram], Any]


@dataclass(frozen=True, slots=True, repr=False)
class TaskCounts:
    """Puts the counts of a task together, on its executor.

    Parameters
    ----------
    starts : int64 (t + 1,)
    size : int
        Cells.
    """

    starts: Ints
    size: int

    def __call__(self, task: int, batches: Batches) -> Histogram:
        """Return the counts of a task's leaves, in the spine's order."""
        return merge_counts(batches, task, *self.leaves(task), self.size)

    def leaves(self, task: int) -> tuple[int, int]:
        """Return the range of a task's leaves."""
        return int(self.starts[task]), int(self.starts[task + 1])


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the driver hears of a task. Confidential."""

    entries: int
    total: int
    checked: Any


@dataclass(frozen=True, slots=True, repr=False)
class _SumUp:
    """Sums up a task for the driver.

    Parameters
    ----------
    counts : TaskCounts
    tops : int64 (g + 1,)
        First leaf of each geounit that the last stage starts from.
    declared : sequence of (QueryGroup, int64 (h + 1,) or None)
        Query groups that are invariant below these, with the first leaf of each geounit; None: leaves.
    folder : Path
    files : RunFiles
    check : callable(low, high, counts), optional
        What else is looked at; its answer must be small.
    """

    counts: TaskCounts
    tops: Ints
    declared: tuple[tuple[QueryGroup, Ints | None], ...]
    folder: Path
    files: RunFiles
    check: Check | None

    def __call__(self, task: int, batches: Batches) -> _Sums:
        table = self.counts(task, batches)
        low, high = self.counts.leaves(task)
        sums = table.aggregate(_within(self.tops, low, high))
        arrays = {"indptr": sums.indptr, "cells": sums.cells, "counts": sums.counts}
        for number, (group, starts) in enumerate(self.declared):
            rows = table if starts is None else table.aggregate(_within(starts, low, high))
            arrays[f"declared {number}"] = exact_answers(group, rows)
        buffer = BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # a mapping of arrays
        self.files.write(_sums_path(self.folder, task), buffer.getvalue())
        checked = None if self.check is None else self.check(low, high, table)
        return _Sums(len(table.cells), table.total(), checked)


@dataclass(frozen=True, slots=True, repr=False)
class _Tag:
    """Tags the entries of a task.

    Parameters
    ----------
    counts : TaskCounts
    ticket : KeyTicket
    frame : int64 (leaves,)
        Place in the frame of each leaf.
    """

    counts: TaskCounts
    ticket: KeyTicket
    frame: Ints

    def __call__(self, task: int, batches: Batches) -> TagSum:
        low, high = self.counts.leaves(task)
        return tag_counts(self.ticket.fetch(_TAG_KEY), self.frame[low:high], self.counts(task, batches))


def tag_counts(key: bytes, frame: Ints, table: Histogram) -> TagSum:
    """Return the sum of the tags of all entries of some leaves."""
    leaf = np.repeat(frame, np.diff(table.indptr))
    return tag_entries(key, leaf, table.cells, table.counts)


@dataclass(frozen=True, slots=True, repr=False)
class _Unchanged:
    """Compares the counts of a task with those that were tagged when the run was promised its noise.

    Counts that an executor lost are read again, and somebody may have written to the input since. What they
    are compared with is served as keys are: it is written down nowhere.
    """

    ticket: KeyTicket
    frame: Ints
    starts: Ints

    def __call__(self, task: int, table: Histogram) -> None:
        low, high = int(self.starts[task]), int(self.starts[task + 1])
        found = tag_counts(self.ticket.fetch(_TAG_KEY), self.frame[low:high], table)
        if _as_key(found) != self.ticket.fetch(_sum_name(task)):
            raise PrivacyError(
                "the input changed while it was counted: its rows are no longer those that were checked. "
                "Nothing was drawn from them. Start again with files that nobody writes to."
            )


def _sum_name(task: int) -> str:
    return f"sum of task {task}"


def _as_key(total: TagSum) -> bytes:
    return total.blocks.to_bytes(16, "little") + total.entries.to_bytes(16, "little")


def _within(starts: Ints, low: int, high: int) -> Ints:
    """Return those of ``starts`` from leaf `low` to leaf `high`, both of them among these."""
    first, last = np.searchsorted(starts, [low, high])
    return np.asarray(starts[first : last + 1] - low)


def _sums_path(folder: Path, task: int) -> Path:
    return folder / f"sums-{task:06d}.npz"


class SparkCounts:
    """Exact counts of all leaves on executors. Confidential.

    Parameters
    ----------
    rows : DataFrame
        Columns of :data:`opendas.engines.spark.parts.COUNT_TYPES`, task ``t`` in partition ``t``, persisted;
        further partitions are nobody's.
    cut : Cut
    spine : Spine
    size : int
        Cells.
    folder : Path
        Under ``confidential/``, of mode 0700.
    files : RunFiles
        How executors reach it.
    keys : KeyService
    findings : tuple of Finding
    """

    def __init__(
        self,
        rows: DataFrame,
        cut: Cut,
        spine: Spine,
        size: int,
        folder: Path,
        files: RunFiles,
        keys: KeyService,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        self.findings = findings
        self.rows, self.cut, self.spine = rows, cut, spine
        self._folder = self._sums_folder = folder
        self._keys = keys
        self.files = files
        self.counts = TaskCounts(cut.starts, size)
        self._declared: dict[tuple[int, str], int] = {}
        self._declared_groups: dict[int, Sequence[QueryGroup]] = {}
        self._sums: dict[int, Histogram] = {}
        self._seen: dict[int, _Sums] = {}

    def run(self, work: Callable[[int, Batches], Any]) -> dict[int, Any]:
        """Return what a function says of every task: something small."""
        each = EachPartition(work, {task: task for task in range(len(self.cut))})
        with spark_failures():
            answers = self.rows.mapInArrow(each, ANSWER_TYPES).collect()
        return {row.number: unpack(bytes(row.answer)).get() for row in answers}

    def sum_up(
        self, declared: Mapping[int, Sequence[QueryGroup]], check: Check | None = None
    ) -> dict[int, Any]:
        """Take what the driver may ask later; this is when the counts are read and shuffled.

        Parameters
        ----------
        declared : mapping of level number to query groups
            Invariants below the last cut.
        check : callable(low, high, counts), optional
            Looks at each task's counts, on its executor.

        Returns
        -------
        dict of task to what the check said
        """
        last = len(self.spine.levels) - 1
        self._declared_groups = dict(declared)
        groups: list[tuple[QueryGroup, Ints | None]] = []
        for level, some in declared.items():
            starts = None if level == last else self.spine.leaf_starts(level)
            for group in some:
                self._declared[level, group.name] = len(groups)
                groups.append((group, starts))
        tops = self.spine.leaf_starts(self.cut.level)
        self._sums_folder = self._folder / token_hex(8)  # executors given up write nothing into that of now
        self._sums_folder.mkdir(mode=0o700)
        self._seen = self.run(_SumUp(self.counts, tops, tuple(groups), self._sums_folder, self.files, check))
        return {task: sums.checked for task, sums in self._seen.items()}

    def total(self) -> int:
        """Return the number of records."""
        return sum(sums.total for sums in self._seen.values())

    def tag(self, key: RunKey) -> str:
        """Return the keyed tag of the input: that of the table in the frame's order."""
        self._keys.offer({_TAG_KEY: tag_key(key)})
        sums: dict[int, TagSum] = self.run(_Tag(self.counts, self._keys.ticket, self.spine.leaf_order))
        self._keys.offer({_sum_name(task): _as_key(total) for task, total in sums.items()})
        shape = (len(self.spine.leaf), self.counts.size)
        return tag_of(key, sum(sums.values(), TagSum()), shape)

    @property
    def unchanged(self) -> Callable[[int, Histogram], None]:
        """What refuses counts that are no longer those of :meth:`tag`; for executors."""
        return _Unchanged(self._keys.ticket, self.spine.leaf_order, self.cut.starts)

    def at(self, level: int) -> Histogram:
        """Return the counts of all geounits of a geolevel, the last cut or above it."""
        if level > self.cut.level:
            raise PrivacyError("counts below the last cut stay on the executors.")
        if level not in self._sums:
            if level == self.cut.level:
                self._sums[level] = Histogram.concatenate(
                    [self._stored(task) for task in range(len(self.cut))]
                )
            else:
                self._sums[level] = self.at(level + 1).aggregate(self.spine.child_starts(level))
        return self._sums[level]

    def slice(self, level: int, start: int, stop: int) -> Histogram | None:
        """Return the counts of geounits ``start:stop`` of a geolevel; None where executors have them."""
        return self.at(level).slice(start, stop) if level <= self.cut.level else None

    def answers(self, group: QueryGroup, level: int) -> Ints:
        """Return the exact answers of a query group at a geolevel, int64 (g, m): of declared ones alone."""
        if level <= self.cut.level:
            return exact_answers(group, self.at(level))
        number = self._declared[level, group.name]
        return np.concatenate([self._load(task)[f"declared {number}"] for task in range(len(self.cut))])

    def cut_again(self, wanted: Cut) -> None:
        """Deal the counts out in another way than before, if it is another."""
        if wanted == self.cut:
            return
        before, self.cut = self.rows, wanted
        self.counts = TaskCounts(wanted.starts, self.counts.size)
        self.rows = deal(
            before.where("task >= 0").mapInArrow(Redeal(wanted.starts), COUNT_TYPES), len(wanted)
        )
        declared = self._declared_groups
        self._declared, self._sums = {}, {}
        self.sum_up(declared)
        before.unpersist()

    def close(self) -> None:
        """Let the executors forget the counts."""
        self.rows.unpersist()

    def _stored(self, task: int) -> Histogram:
        arrays = self._load(task)
        return Histogram(arrays["indptr"], arrays["cells"], arrays["counts"], self.counts.size)

    def _load(self, task: int) -> dict[str, Any]:
        data = BytesIO(read_here(_sums_path(self._sums_folder, task)))
        with np.load(data, allow_pickle=False) as arrays:
            return dict(arrays)
