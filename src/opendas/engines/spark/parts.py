"""What runs on the executors: one partition, which is one item of work, at a time.

Each function takes the rows of a partition and returns one row with a small, pickled answer. What is inside
is what the local engine calls. Nothing here imports Spark but to ask which partition and attempt this is.
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas import errors
from opendas.custody.secret_files import forbid_core_files
from opendas.engines.local import keep_modules
from opendas.errors import EnvironmentFailure, OpendasError
from opendas.schema.histogram import Histogram
from opendas.version import __version__

__all__ = [
    "ANSWER_TYPES",
    "COUNT_SCHEMA",
    "COUNT_TYPES",
    "Answer",
    "Counts",
    "EachPartition",
    "VersionsDiffer",
    "item_path",
    "marker_path",
    "merge_counts",
    "pack",
    "pack_counts",
    "read_here",
    "read_marker",
    "unpack",
    "unpack_counts",
    "write_here",
]

ANSWER_TYPES: Final = "number int, answer binary"
_ANSWER_SCHEMA: Final = pa.schema([("number", pa.int32()), ("answer", pa.binary())])

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
"""Counts of some leaves of a task, any number of rows a task; three arrays as their bytes."""

_PATIENCE_S = 120.0

Batches = Iterator[pa.RecordBatch]
Integers = npt.NDArray[np.integer]


class VersionsDiffer(Exception):
    """The executor has another version than the driver."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one item: a value, or an error of ours, which no retry would mend.

    Parameters
    ----------
    value : object
    error : tuple or None
        Class, message and fields of the error.
    """

    value: Any = None
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


def unpack(answer: bytes) -> Any:
    """Return what a partition answered."""
    return pickle.loads(zlib.decompress(answer))


def pack(answer: object) -> bytes:
    """Return an answer as bytes; see :func:`unpack`."""
    return zlib.compress(pickle.dumps(answer), level=1)


def item_path(folder: Path, number: int) -> Path:
    """Return where an item waits for its executor."""
    return folder / f"{number:06d}.item"


def marker_path(folder: Path, number: int) -> Path:
    """Return where an executor says that an item is done, so that the driver need not wait for the others."""
    return folder / f"{number:06d}.done"


def write_here(path: Path, data: bytes) -> None:
    """Write a file in one step, also where another attempt at the same task writes it at the same time.

    Raises
    ------
    EnvironmentFailure
        If the file system refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        try:
            path.parent.mkdir(exist_ok=True)  # not more: who was given up makes no folder again
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"an executor could not write {path.name} ({error.strerror or type(error).__name__}): every "
            "executor must be able to write into the output folder. Check free space and permissions."
        ) from error


def read_here(path: Path) -> bytes:
    """Return what an executor wrote. A network file system may take a while to show it.

    Raises
    ------
    EnvironmentFailure
        If it does not appear within two minutes.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if time.monotonic() > until:
                raise EnvironmentFailure(
                    f"engine spark: {path.name}, which an executor wrote, cannot be read here "
                    f"({type(error).__name__}): --out must be on a file system that all machines share."
                ) from None
            with suppress(OSError):
                os.listdir(path.parent)  # has clients of network file systems look again
            time.sleep(0.5)


_SAID: Final = frozenset(
    {
        ("opendas.engines.spark.parts", "Answer"),
        ("opendas.engines.work", "Saved"),
        ("opendas.engines.outputs", "Solved"),
        *(("opendas.errors", name) for name in errors.__all__),
    }
)
"""What a marker may be made of, beside numbers, strings and collections of them. Nothing of it can be called
to any effect."""


class _MarkerReader(pickle.Unpickler):
    """Reads what whoever has a ticket may have written: the driver runs no code for that."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of a few classes."""
        if (module, name) not in _SAID:
            raise pickle.UnpicklingError("a marker holds something else than answers")
        return super().find_class(module, name)


def read_marker(path: Path) -> Answer | None:
    """Return what an executor says of an item, None where it says nothing yet.

    A marker with something else in it than answers says nothing: the answer comes with Spark's own, later.
    """
    try:
        answer = _MarkerReader(BytesIO(zlib.decompress(path.read_bytes()))).load()
    except (FileNotFoundError, pickle.UnpicklingError):
        return None
    return answer if isinstance(answer, Answer) else None


Work = Callable[[int, Batches], Any]
"""Does the item of a number, from the rows of its partition."""


@dataclass(frozen=True, slots=True, repr=False)
class EachPartition:
    """Does one item of work a partition, and answers with what came of it.

    Parameters
    ----------
    work : callable(number, batches)
    numbers : mapping of int to int, or None
        The item of each partition that has one; None: that of the partition's own number.
    markers : Path or None
        Folder that says which items are done, while others still run.
    write : callable(Path, bytes)
        What writes there.
    version : str
        Of the driver.
    """

    work: Work
    numbers: dict[int, int] | None = None
    markers: Path | None = None
    write: Callable[[Path, bytes], None] = write_here
    version: str = field(default=__version__)

    def __call__(self, batches: Batches) -> Batches:
        """Do the work of one partition."""
        from pyspark import TaskContext

        forbid_core_files()
        if self.version != __version__:
            raise VersionsDiffer
        context = TaskContext.get()
        if context is None:
            raise AssertionError("this function runs on executors")
        partition = context.partitionId()
        number = partition if self.numbers is None else self.numbers.get(partition)
        if number is not None:
            answer = pack(self._do(number, batches))
            if self.markers is not None:
                self.write(marker_path(self.markers, number), answer)
            columns = [pa.array([number], pa.int32()), pa.array([answer], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=_ANSWER_SCHEMA)
        for _ in batches:  # a worker that leaves rows behind is not used again
            pass
        keep_modules()

    def _do(self, number: int, batches: Batches) -> Answer:
        try:
            return Answer(self.work(number, batches))
        except OpendasError as error:
            return Answer.of(error)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Counts:
    """Counts of leaves, as they travel. Confidential.

    Parameters
    ----------
    leaf : int32 (e,)
        Place on the spine.
    cell : int32 (e,)
    count : int64 (e,)
    """

    leaf: Integers
    cell: Integers
    count: Integers


def pack_counts(parts: Iterable[tuple[int, int, Counts]]) -> pa.RecordBatch:
    """Return rows of (slot, task, counts)."""
    slot, task, leaf, cell, count = [], [], [], [], []
    for where, number, counts in parts:
        slot.append(where)
        task.append(number)
        leaf.append(counts.leaf.astype("<i4").tobytes())
        cell.append(counts.cell.astype("<i4").tobytes())
        count.append(counts.count.astype("<i8").tobytes())
    arrays = [
        pa.array(values, field.type)
        for values, field in zip((slot, task, leaf, cell, count), COUNT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COUNT_SCHEMA)


def unpack_counts(batch: pa.RecordBatch) -> Iterator[Counts]:
    """Yield the counts of each row; see :func:`pack_counts`."""
    leaf, cell, count = (batch.column(batch.schema.get_field_index(n)) for n in ("leaf", "cell", "count"))
    for row in range(batch.num_rows):
        yield Counts(
            np.frombuffer(leaf[row].as_buffer(), "<i4"),
            np.frombuffer(cell[row].as_buffer(), "<i4"),
            np.frombuffer(count[row].as_buffer(), "<i8"),
        )


def merge_counts(batches: Batches, task: int, low: int, high: int, size: int) -> Histogram:
    """Return the counts of a task's leaves from all rows of its partition, whatever their order.

    Parameters
    ----------
    batches : iterator of RecordBatch
        With :data:`COUNT_SCHEMA`.
    task : int
    low, high : int
        Places of its leaves on the spine.
    size : int
        Cells.
    """
    parts: list[Counts] = []
    for batch in batches:
        if any(number != task for number in batch.column(batch.schema.get_field_index("task")).to_pylist()):
            raise AssertionError("rows of a task are in a partition of their own")
        parts += unpack_counts(batch)
    none = np.zeros(0, np.int64)
    leaf = np.concatenate([none, *(part.leaf for part in parts)])
    cell = np.concatenate([none, *(part.cell for part in parts)])
    count = np.concatenate([none, *(part.count for part in parts)])
    return Histogram.from_entries(leaf - low, cell, count, shape=(high - low, size))
