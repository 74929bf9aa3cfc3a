"""The confidential counts on executors: one partition a task of the last stage, and sums for the driver.

Counts are shuffled once, by task, and stay with Spark, encrypted where they touch a disk. What the driver
needs of them, the counts of the few geounits above the last cut and declared invariants, comes through files
under ``confidential/``.

Axes: ``e`` entries, ``t`` tasks; leaves stand in the spine's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.arrays import Ints
from opendas.custody.input_tag import TagSum, tag_entries, tag_key, tag_of
from opendas.custody.run_key import RunKey
from opendas.custody.secret_files import private_folder
from opendas.engines.local import keep_modules
from opendas.engines.spark.partitions import (
    ANSWER_TYPES,
    Batches,
    EachPartition,
    answers,
    cache_by,
    partition_values,
    read_shared,
    write_shared,
)
from opendas.engines.spark.session import spark_failures
from opendas.engines.tasks import Stage
from opendas.errors import Finding, PrivacyError
from opendas.geography.spine import Spine
from opendas.measurement.invariants import exact_answers
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT_TYPES: Final = "slot int, task int, leaf binary, cell binary, count binary"
COUNT_SCHEMA: Final = pa.schema(
    [
        ("slot", pa.int32()),
        ("task", pa.int32()),
        ("leaf", pa.binary()),
        ("cell", pa.binary()),
        ("count", pa.binary()),
    ]
)
"""Counts of some leaves of a task, any number of rows a task; three arrays as their bytes. The slot is hashed
to the partition of the task, see :func:`opendas.engines.spark.partitions.partition_values`."""

_SENT_AT_ONCE: Final = 1 << 26
"""Bytes of counts that the driver hands to Spark at a time."""

Check = Callable[[int, int, Histogram], Any]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class LastCut:
    """How the leaves are split over tasks: the last stage of the spine."""

    level: int  # geolevel that the stage starts from
    starts: Ints  # (t + 1,): task ``i`` has the leaves ``starts[i]:starts[i + 1]``

    @classmethod
    def of(cls, spine: Spine, stages: Sequence[Stage]) -> LastCut:
        """Take the last of the stages of a run."""
        last = stages[-1]
        return cls(last.top, spine.leaf_starts(last.top)[list(last.cuts)])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LastCut):
            return NotImplemented
        return self.level == other.level and np.array_equal(self.starts, other.starts)

    __hash__ = None  # type: ignore[assignment]


# Counts as rows of Spark ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Entries:
    """Counts of leaves, as they travel. Confidential."""

    leaf: Integers  # (e,): position on the spine
    cell: Integers  # (e,)
    count: Integers  # (e,)

    @classmethod
    def of(cls, table: Histogram, first: int = 0) -> Entries:
        """Take the counts of consecutive leaves."""
        leaf = np.repeat(np.arange(first, first + table.rows), np.diff(table.indptr))
        return cls(leaf, table.cells, table.counts)


def split(entries: Entries, starts: Ints, slot: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, Entries]]:
    """Yield (slot, task, entries) for each task that some counts belong to."""
    task = np.searchsorted(starts, entries.leaf, side="right") - 1
    for number in np.unique(task).tolist():
        own = task == number
        yield int(slot[number]), number, Entries(entries.leaf[own], entries.cell[own], entries.count[own])


def pack_entries(parts: Iterable[tuple[int, int, Entries]]) -> pa.RecordBatch:
    """Return rows of (slot, task, entries)."""
    return pack_rows(
        (
            slot,
            task,
            entries.leaf.astype("<i4").tobytes(),
            entries.cell.astype("<i4").tobytes(),
            entries.count.astype("<i8").tobytes(),
        )
        for slot, task, entries in parts
    )


def pack_rows(rows: Iterable[tuple[int, int, bytes, bytes, bytes]]) -> pa.RecordBatch:
    """Return rows of :data:`COUNT_SCHEMA`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COUNT_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, COUNT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=COUNT_SCHEMA)


def unpack_entries(batch: pa.RecordBatch) -> Iterator[Entries]:
    """Yield the entries of each row; see :func:`pack_entries`."""
    leaf, cell, count = (batch.column(batch.schema.get_field_index(n)) for n in ("leaf", "cell", "count"))
    for row in range(batch.num_rows):
        yield Entries(
            np.frombuffer(leaf[row].as_buffer(), "<i4"),
            np.frombuffer(cell[row].as_buffer(), "<i4"),
            np.frombuffer(count[row].as_buffer(), "<i8"),
        )


def merge_entries(batches: Batches, task: int, low: int, high: int, size: int) -> Histogram:
    """Return the counts of a task's leaves from all rows of its partition, whatever their order.

    - `batches`, RecordBatch: with :data:`COUNT_SCHEMA`.
    - `low`, `high`: positions of its leaves on the spine.
    """
    parts: list[Entries] = []
    for batch in batches:
        if any(number != task for number in batch.column(batch.schema.get_field_index("task")).to_pylist()):
            raise AssertionError("rows of a task are in a partition of their own")
        parts += unpack_entries(batch)
    none = np.zeros(0, np.int64)
    leaf, cell, count = (
        np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in ("leaf", "cell", "count")
    )
    return Histogram.from_entries(leaf - low, cell, count, shape=(high - low, size))


def send_counts(session: SparkSession, table: Histogram, spine: Spine, cut: LastCut) -> DataFrame:
    """Give counts that the driver has to executors, a piece at a time.

    `table`: one row per leaf of the frame, in its order; it may be memory mapped.
    """
    slot = partition_values(len(cut))
    pieces: list[DataFrame] = []
    held: list[pa.RecordBatch] = []
    for task in range(len(cut)):
        low, high = int(cut.starts[task]), int(cut.starts[task + 1])
        rows = table.take(spine.leaf_order[low:high])
        held.append(pack_entries([(int(slot[task]), task, Entries.of(rows, low))]))
        if task + 1 == len(cut) or sum(batch.nbytes for batch in held) >= _SENT_AT_ONCE:
            pieces.append(session.createDataFrame(pa.Table.from_batches(held), COUNT_TYPES))
            held.clear()
    return cache_by(reduce(lambda one, other: one.unionAll(other), pieces), len(cut), "slot")


@dataclass(frozen=True, slots=True, repr=False)
class SplitAgain:
    """Splits rows of counts by the tasks of another cut."""

    starts: Ints  # (t + 1,)

    def __call__(self, batches: Batches) -> Batches:
        """Split rows."""
        slot = partition_values(len(self.starts) - 1)
        for batch in batches:
            for entries in unpack_entries(batch):
                yield pack_entries(split(entries, self.starts, slot))
        keep_modules()


# What executors do with the counts of a task ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class TaskCounts:
    """Puts the counts of a task together, on its executor."""

    starts: Ints  # (t + 1,)
    size: int  # cells

    def __call__(self, task: int, batches: Batches) -> Histogram:
        """Return the counts of a task's leaves, in the spine's order."""
        return merge_entries(batches, task, *self.leaves(task), self.size)

    def leaves(self, task: int) -> tuple[int, int]:
        """Return the range of a task's leaves."""
        return int(self.starts[task]), int(self.starts[task + 1])


@dataclass(frozen=True, slots=True, repr=False)
class _SumUp:
    """Sums up a task for the driver."""

    counts: TaskCounts
    tops: Ints  # (g + 1,): first leaf of each geounit that the last stage starts from
    # sequence of (QueryGroup, int64 (h + 1,) or None): query groups that are invariant below these, with the
    # first leaf of each geounit; None: leaves.
    declared: tuple[tuple[QueryGroup, Ints | None], ...]
    folder: Path
    check: Check | None  # (low, high, counts): what else is examined; its answer must be small

    def __call__(self, task: int, batches: Batches) -> tuple[int, Any]:
        """Return what the driver hears of a task, its records and what the check said. Confidential."""
        table = self.counts(task, batches)
        low, high = self.counts.leaves(task)
        buffer = BytesIO()
        np.savez(buffer, **self.of(task, table))  # type: ignore[arg-type]  # a mapping of arrays
        write_shared(_sums_path(self.folder, task), buffer.getvalue())
        return table.total(), None if self.check is None else self.check(low, high, table)

    def of(self, task: int, table: Histogram) -> dict[str, Integers]:
        """Return what the driver reads of the counts of a task."""
        low, high = self.counts.leaves(task)
        sums = table.aggregate(_relative_starts(self.tops, low, high))
        arrays: dict[str, Integers] = {"indptr": sums.indptr, "cells": sums.cells, "counts": sums.counts}
        for number, (group, starts) in enumerate(self.declared):
            rows = table if starts is None else table.aggregate(_relative_starts(starts, low, high))
            arrays[f"declared {number}"] = exact_answers(group, rows)
        return arrays


def _relative_starts(starts: Ints, low: int, high: int) -> Ints:
    """Return those of ``starts`` from leaf `low` to leaf `high`, both of them among these."""
    first, last = np.searchsorted(starts, [low, high])
    return np.asarray(starts[first : last + 1] - low)


def _sums_path(folder: Path, task: int) -> Path:
    return folder / f"sums-{task:06d}.npz"


def _read_sums(folder: Path, task: int) -> dict[str, Any]:
    with np.load(BytesIO(read_shared(_sums_path(folder, task))), allow_pickle=False) as arrays:
        return dict(arrays)


def _refuse_changed() -> NoReturn:
    raise PrivacyError(
        "the input changed while it was counted: its rows are no longer those that were checked. "
        "Nothing was drawn from them. Start again with files that nobody writes to."
    )


def tag_table(key: bytes, frame: Ints, table: Histogram) -> TagSum:
    """Return the sum of the tags of all entries of some leaves, whose positions in the frame are given."""
    return tag_entries(key, np.repeat(frame, np.diff(table.indptr)), table.cells, table.counts)


@dataclass(frozen=True, slots=True, repr=False)
class _Tag:
    """Tags the entries of a task.

    The driver draws from the sums of a task, and holds its invariants: they must be those of what is tagged.
    """

    sums: _SumUp  # what was summed up before
    key: bytes  # of :func:`opendas.custody.input_tag.tag_key`
    frame: Ints  # (leaves,): position in the frame of each leaf

    def __call__(self, task: int, batches: Batches) -> TagSum:
        """Return the sum of a task's tags.

        Raises `PrivacyError` if the counts are no longer those that were summed up.
        """
        low, high = self.sums.counts.leaves(task)
        table = self.sums.counts(task, batches)
        known = _read_sums(self.sums.folder, task)
        if any(not np.array_equal(known[name], now) for name, now in self.sums.of(task, table).items()):
            _refuse_changed()
        return tag_table(self.key, self.frame[low:high], table)


@dataclass(frozen=True, slots=True, repr=False)
class Unchanged:
    """Puts the counts of a task together, and compares them with those that were tagged.

    Counts that an executor lost are read again, and someone may have written to the input since the run was
    promised its noise.
    """

    counts: TaskCounts
    key: bytes
    frame: Ints  # (leaves,)
    sums: Mapping[int, TagSum]  # task -> TagSum

    def __call__(self, task: int, batches: Batches) -> Histogram:
        """Return the counts of a task's leaves.

        Raises `PrivacyError` if they are no longer those of the tag.
        """
        low, high = self.counts.leaves(task)
        table = self.counts(task, batches)
        if tag_table(self.key, self.frame[low:high], table) != self.sums[task]:
            _refuse_changed()
        return table


class SparkCounts:
    """Exact counts of all leaves on executors; see :class:`opendas.engines.truth.ExactCounts`.

    - `rows`: columns of :data:`COUNT_TYPES`, task ``t`` in partition ``t``, persisted; further partitions are
      nobody's.
    - `size`: cells.
    - `folder`: under ``confidential/``, of mode 0700, and seen by all executors.
    """

    def __init__(self, rows: DataFrame, cut: LastCut, spine: Spine, size: int, folder: Path) -> None:
        self.findings: tuple[Finding, ...] = ()
        self.rows, self.cut, self.spine = rows, cut, spine
        self._folder = self._sums_folder = folder
        self._counts = TaskCounts(cut.starts, size)
        self._declared: dict[tuple[int, str], int] = {}
        self._declared_groups: dict[int, Sequence[QueryGroup]] = {}
        self._sums: dict[int, Histogram] = {}
        self._total = 0
        self._summed: _SumUp | None = None
        self._unchanged: Unchanged | None = None

    def run(self, work: Callable[[int, Batches], Any]) -> dict[int, Any]:
        """Return the answer of a function for every task; answers must be small."""
        each = EachPartition(work, {task: task for task in range(len(self.cut))})
        with spark_failures():
            return answers(self.rows.mapInArrow(each, ANSWER_TYPES))

    def sum_up(
        self, declared: Mapping[int, Sequence[QueryGroup]], check: Check | None = None
    ) -> dict[int, Any]:
        """Take what the driver may ask later; this is when the counts are read and shuffled.

        - `declared`, level number -> query groups: invariants below the last cut.
        - `check` (low, high, counts): looks at each task's counts, on its executor.
        """
        last = len(self.spine.levels) - 1
        self._declared_groups = dict(declared)
        groups: list[tuple[QueryGroup, Ints | None]] = []
        for level, query_groups in declared.items():
            starts = None if level == last else self.spine.leaf_starts(level)
            for group in query_groups:
                self._declared[level, group.name] = len(groups)
                groups.append((group, starts))
        tops = self.spine.leaf_starts(self.cut.level)
        self._sums_folder = self._folder / token_hex(8)  # executors given up write nothing into that of now
        private_folder(self._sums_folder)
        self._summed = _SumUp(self._counts, tops, tuple(groups), self._sums_folder, None)
        sums: dict[int, tuple[int, Any]] = self.run(replace(self._summed, check=check))
        self._total = sum(total for total, _ in sums.values())
        return {task: checked for task, (_, checked) in sums.items()}

    def total(self) -> int:
        """Return the number of records."""
        return self._total

    def tag(self, key: RunKey) -> str:
        """Return the keyed tag of the input: that of the table in the frame's order."""
        if self._summed is None:
            raise AssertionError("counts are summed up before they are tagged")
        secret, frame = tag_key(key), self.spine.leaf_order
        sums: dict[int, TagSum] = self.run(_Tag(self._summed, secret, frame))
        self._unchanged = Unchanged(self._counts, secret, frame, sums)
        return tag_of(key, sum(sums.values(), TagSum()), (len(frame), self._counts.size))

    @property
    def unchanged(self) -> Unchanged:
        """What puts the tagged counts of a task together, and refuses others; for executors."""
        if self._unchanged is None:
            raise AssertionError("counts are tagged before noise is drawn")
        return self._unchanged

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

    def cut_again(self, wanted: LastCut) -> None:
        """Split the counts in another way than before, if it is another; before they are tagged."""
        if wanted == self.cut:
            return
        before, self.cut = self.rows, wanted
        self._counts = TaskCounts(wanted.starts, self._counts.size)
        self.rows = cache_by(
            before.where("task >= 0").mapInArrow(SplitAgain(wanted.starts), COUNT_TYPES), len(wanted), "slot"
        )
        self._declared, self._sums, self._unchanged = {}, {}, None
        self.sum_up(self._declared_groups)
        before.unpersist()

    def close(self) -> None:
        """Let the executors forget the counts."""
        self.rows.unpersist()

    def _stored(self, task: int) -> Histogram:
        arrays = self._load(task)
        return Histogram(arrays["indptr"], arrays["cells"], arrays["counts"], self._counts.size)

    def _load(self, task: int) -> dict[str, Any]:
        return _read_sums(self._sums_folder, task)
