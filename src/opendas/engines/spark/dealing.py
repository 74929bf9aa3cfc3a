"""Dealing counts out: every task's leaves into a partition of their own, in one shuffle.

Axes: ``t`` tasks; leaves stand in the spine's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.arrays import Ints
from opendas.engines.local import keep_modules
from opendas.engines.spark.parts import COUNT_TYPES, Batches, Counts, pack_counts, unpack_counts
from opendas.engines.spark.slots import slots
from opendas.engines.tasks import Stage
from opendas.geography.spine import Spine
from opendas.schema.histogram import Histogram

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Cut", "Redeal", "deal", "hand_out", "split"]

_SENT_AT_ONCE = 1 << 26
"""Bytes of counts that the driver hands to Spark at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How the leaves are dealt out: the last stage of the spine.

    Parameters
    ----------
    level : int
        Geolevel that the stage starts from.
    starts : int64 (t + 1,)
        Task ``i`` has the leaves ``starts[i]:starts[i + 1]``.
    """

    level: int
    starts: Ints

    @classmethod
    def of(cls, spine: Spine, stages: Sequence[Stage]) -> Cut:
        """Take the last of the stages of a run."""
        last = stages[-1]
        return cls(last.top, spine.leaf_starts(last.top)[list(last.cuts)])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Cut) and self.level == other.level and np.array_equal(self.starts, other.starts)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, repr=False)
class Redeal:
    """Splits rows of counts by the tasks of another cut.

    Parameters
    ----------
    starts : int64 (t + 1,)
    """

    starts: Ints

    def __call__(self, batches: Batches) -> Batches:
        """Split rows."""
        slot = slots(len(self.starts) - 1)
        for batch in batches:
            for counts in unpack_counts(batch):
                yield pack_counts(split(counts, self.starts, slot))
        keep_modules()


def split(counts: Counts, starts: Ints, slot: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, Counts]]:
    """Yield (slot, task, counts) for each task that some counts belong to."""
    task = np.searchsorted(starts, counts.leaf, side="right") - 1
    for number in np.unique(task).tolist():
        own = task == number
        yield int(slot[number]), number, Counts(counts.leaf[own], counts.cell[own], counts.count[own])


def deal(rows: DataFrame, tasks: int) -> DataFrame:
    """Shuffle counts: task ``t`` into partition ``t``. They stay with Spark until the run ends."""
    from pyspark import StorageLevel

    return rows.repartition(tasks, "slot").persist(StorageLevel.MEMORY_AND_DISK)


def hand_out(session: SparkSession, table: Histogram, spine: Spine, cut: Cut) -> DataFrame:
    """Give counts that the driver has to the executors, a piece at a time.

    Parameters
    ----------
    session : SparkSession
    table : Histogram
        One row per leaf of the frame, in its order; perhaps memory mapped.
    spine : Spine
    cut : Cut
    """
    slot = slots(len(cut))
    pieces: list[DataFrame] = []
    held: list[pa.RecordBatch] = []

    def send() -> None:
        if held:
            pieces.append(session.createDataFrame(pa.Table.from_batches(held), COUNT_TYPES))
            held.clear()

    for task in range(len(cut)):
        low, high = int(cut.starts[task]), int(cut.starts[task + 1])
        rows = table.take(spine.leaf_order[low:high])
        leaf = np.repeat(np.arange(low, high), np.diff(rows.indptr))
        held.append(pack_counts([(int(slot[task]), task, Counts(leaf, rows.cells, rows.counts))]))
        if sum(batch.nbytes for batch in held) >= _SENT_AT_ONCE:
            send()
    send()
    return deal(reduce(lambda one, other: one.unionAll(other), pieces), len(cut))
