"""One item of work a partition: how rows get to executors, and how answers come back, for every product.

A function is serialised with what it needs, a derived key included, and Spark carries it as it carries the
counts: encrypted and authenticated between machines, encrypted on disks (docs/proofs/keys.md). What is inside
is what the local engine calls. Nothing here imports Spark but to ask which partition this is.
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.custody.folders import open_folder
from opendas.custody.secret_files import forbid_core_files
from opendas.engines.local import keep_modules
from opendas.errors import EnvironmentFailure, OpendasError
from opendas.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWER_TYPES: Final = "number int, answer binary"
_ANSWER_SCHEMA: Final = pa.schema([("number", pa.int32()), ("answer", pa.binary())])

_PATIENCE_S = 120.0
_SEED = 42  # of HashPartitioning

Batches = Iterator[pa.RecordBatch]
Work = Callable[[int, Batches], Any]
"""Does the item of a number, from the rows of its partition."""


class VersionsDiffer(Exception):
    """The executor has another version than the driver."""


# Answers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one item: a value, or an error of ours, which no retry would mend."""

    value: Any = None
    # Class, message and fields of the error.
    error: tuple[type[OpendasError], str, dict[str, Any]] | None = None

    @classmethod
    def of(cls, error: OpendasError) -> Answer:
        """Take an error. Constructors of errors differ, so it is taken apart."""
        return cls(error=(type(error), str(error), dict(error.__dict__)))

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is None:
            return self.value
        kind, message, fields = self.error
        error = kind.__new__(kind)
        Exception.__init__(error, message)
        error.__dict__.update(fields)
        raise error


def pack(answer: Answer) -> bytes:
    """Return an answer as bytes."""
    return zlib.compress(pickle.dumps(answer), level=1)


def unpack(answer: bytes) -> Answer:
    """Return an answer; see :func:`pack`."""
    found: Answer = pickle.loads(zlib.decompress(answer))
    return found


def answers(rows: DataFrame) -> dict[int, Any]:
    """Return the value of every answer by its number, or raise the first error of ours.

    `rows`: of :data:`ANSWER_TYPES`.
    """
    return {row.number: unpack(bytes(row.answer)).get() for row in rows.collect()}


# Work -------------------------------------------------------------------------------------------------------


def partition_number() -> int:
    """Return the number of the partition that this executor works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise AssertionError("this function runs on executors")
    return int(context.partitionId())


@dataclass(frozen=True, slots=True, repr=False)
class EachPartition:
    """Does one item of work a partition, and answers with what came of it."""

    work: Work  # (number, batches): with all that it needs. What it keeps secret stands in no `repr` of it.
    # Partition -> its item, of partitions that have one; None: the item of the partition's own number.
    numbers: Mapping[int, int] | None = None
    markers: Path | None = None  # folder, seen by all, that says which items are done while others still run
    version: str = field(default=__version__)  # of the driver

    def __call__(self, batches: Batches) -> Batches:
        """Do the work of one partition."""
        forbid_core_files()
        if self.version != __version__:
            raise VersionsDiffer
        partition = partition_number()
        number = partition if self.numbers is None else self.numbers.get(partition)
        if number is not None:
            answer = pack(self._do(number, batches))
            if self.markers is not None:
                write_shared(marker_path(self.markers, number), answer)
            columns = [pa.array([number], pa.int32()), pa.array([answer], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=_ANSWER_SCHEMA)
        for _ in batches:  # a worker process that leaves rows behind is not used again
            pass
        keep_modules()

    def _do(self, number: int, batches: Batches) -> Answer:
        try:
            return Answer(self.work(number, batches))
        except OpendasError as error:
            return Answer.of(error)


# Rows -------------------------------------------------------------------------------------------------------


def cache_by(rows: DataFrame, partitions: int, column: str) -> DataFrame:
    """Shuffle rows by a column; they stay with Spark until they are unpersisted."""
    from pyspark import StorageLevel

    return rows.repartition(partitions, column).persist(StorageLevel.MEMORY_AND_DISK)


def partition_values(partitions: int) -> npt.NDArray[np.int32]:
    """Return, for each partition, a value that ``repartition(partitions, column)`` sends to it.

    Spark shuffles rows by a hash of a column. With these values in that column task ``t`` has partition ``t``
    to itself, in any version of Spark, and no sampling or sorting is needed.

    Returns (partitions,): non-negative.
    """
    found = np.full(partitions, -1, dtype=np.int64)
    first, count = 0, 4 * partitions
    while (found < 0).any():
        numbers = np.arange(first, first + count, dtype=np.uint32)
        partition = _hash(numbers).view(np.int32).astype(np.int64) % partitions  # never negative, as pmod
        where, index = np.unique(partition, return_index=True)
        new = found[where] < 0
        found[where[new]] = numbers[index[new]]
        first += count
    return found.astype(np.int32)


def _hash(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return Murmur3 of 32-bit integers, as Spark's function ``hash`` [Appleby, x86 32-bit variant]."""
    with np.errstate(over="ignore"):
        word = _rotated(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        mixed = _rotated(np.uint32(_SEED) ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        mixed ^= np.uint32(4)  # bytes
        mixed ^= mixed >> np.uint32(16)
        mixed *= np.uint32(0x85EBCA6B)
        mixed ^= mixed >> np.uint32(13)
        mixed *= np.uint32(0xC2B2AE35)
        mixed ^= mixed >> np.uint32(16)
    return np.asarray(mixed)


def _rotated(words: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return np.asarray((words << np.uint32(by)) | (words >> np.uint32(32 - by)))


# Files that driver and executors share ----------------------------------------------------------------------


def marker_path(folder: Path, number: int) -> Path:
    """Return the path of an executor's mark that an item is done; the driver need not wait for the others."""
    return folder / f"{number:06d}.done"


def read_marker(path: Path) -> Answer | None:
    """Return an executor's answer about an item; None while there is none."""
    try:
        return unpack(path.read_bytes())
    except FileNotFoundError:
        return None


def write_shared(path: Path, data: bytes) -> None:
    """Write a file in one step, also where another attempt at the same task writes it at the same time."""
    try:
        # One folder at most: who was given up makes none again.
        with open_folder(path.parent, make=1) as folder, folder.whole(path.name) as file:
            file.write(data)
    except OSError as error:
        raise EnvironmentFailure(
            f"an executor could not write {path.name} ({error.strerror or type(error).__name__}). Every "
            "executor must be able to write into the output folder. Check its free space and permissions."
        ) from error


def read_shared(path: Path) -> bytes:
    """Return what an executor wrote. A network file system may take a while to show it."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if time.monotonic() > until:
                raise EnvironmentFailure(
                    f"engine spark: {path.name}, which an executor wrote, cannot be read here "
                    f"({type(error).__name__}). Check that --out is on a file system that all machines share."
                ) from None
            with suppress(OSError):
                os.listdir(path.parent)  # has clients of network file systems look again
            time.sleep(0.5)
