"""Input files that executors read: a few files a task, with the readers of the local engine.

Counts go straight to the executors of their tasks. The driver hears, of each file, how much it holds and what
is wrong with it, and then whether leaves break their public units.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.custody.secret_files import forbid_core_files
from opendas.engines.local import keep_modules
from opendas.engines.spark.dealing import Cut, deal, split
from opendas.engines.spark.in_memory import file_in_memory
from opendas.engines.spark.parts import (
    COUNT_SCHEMA,
    COUNT_TYPES,
    Answer,
    Batches,
    Counts,
    pack,
    pack_counts,
    unpack,
)
from opendas.engines.spark.session import spark_failures
from opendas.engines.spark.slots import slots
from opendas.errors import DataError, Finding, OpendasError
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.readers.base import CensusKind
from opendas.readers.columns.csv_parquet import no_rows, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.tally import MAX_TOTAL, FileRows, Layout, exact_sum, refuse_too_many, tally_file
from opendas.readers.frame.units import broken_units, report_units, unit_rules
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CheckUnits", "read_on_executors", "together", "unit_findings"]

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_REPORT: Final = -1
"""Task of rows that tell about a file."""

_LEAVES_TOLD: Final = 4

_BYTES_A_TASK: Final = 1 << 26
_TASKS_A_SLOT: Final = 4
"""Small files are read together: so many bytes a task, or so many tasks a slot where that is less."""

_OPENING: Final = 1 << 16
"""Bytes that are read in the time that it takes to open a file."""


@dataclass(frozen=True, slots=True, repr=False)
class _Report:
    """What the driver hears of a file."""

    file: int
    rows: int
    total: int
    warnings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Reading:
    """Reads a file, on an executor.

    Parameters
    ----------
    layout : Layout
    product : Product
    frame : Frame
        Geocodes and the name of the leaves, nothing else.
    place : int64 (leaves,)
        Place on the spine of each leaf of the frame.
    starts : int64 (t + 1,)
        First leaf of each task.
    """

    layout: Layout
    product: Product
    frame: Frame
    place: npt.NDArray[np.integer]
    starts: npt.NDArray[np.int64]

    def __call__(self, files: Iterable[tuple[int, AbstractContextManager[Path]]]) -> Batches:
        """Yield counts by task, and a report at the end of each file; what is wrong stands there."""
        forbid_core_files()
        slot = slots(len(self.starts))  # one more than there are tasks: reports have the last
        for number, file in files:
            with file as path:
                yield from self._read(number, path, slot)
        keep_modules()

    def _read(self, number: int, path: Path, slot: npt.NDArray[np.int32]) -> Batches:
        rows = total = 0
        warnings = FindingLog()
        try:
            for read, keys, counts in tally_file(path, self.layout, self.product, self.frame, warnings):
                rows += read
                total += exact_sum(counts)
                yield pack_counts(self._dealt(keys, counts, slot))
            answer = Answer(_Report(number, rows, total, warnings.findings))
        except OpendasError as error:
            answer = Answer.of(error)
        yield _told(int(slot[-1]), number, answer)

    def _dealt(
        self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], slot: npt.NDArray[np.int32]
    ) -> Iterator[tuple[int, int, Counts]]:
        leaf, cell = np.divmod(keys, self.product.schema.size)
        return split(Counts(self.place[leaf], cell, counts), self.starts, slot)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _ReadFiles:
    """Reads the files of a partition.

    Parameters
    ----------
    reading : _Reading
    files : tuple of tuples of (int, Path)
        Of each partition: number of a file, and the file.
    """

    reading: _Reading
    files: tuple[tuple[tuple[int, Path], ...], ...]

    def __call__(self, batches: Batches) -> Batches:
        """Yield counts and reports."""
        from pyspark import TaskContext

        for _ in batches:
            pass
        context = TaskContext.get()
        if context is None:
            raise AssertionError("this function runs on executors")
        return self.reading((number, nullcontext(path)) for number, path in self.files[context.partitionId()])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _ReadContents:
    """Reads files that Spark hands over: their addresses and their bytes.

    Parameters
    ----------
    reading : _Reading
    numbers : mapping of address to int
    """

    reading: _Reading
    numbers: Mapping[str, int]

    def __call__(self, batches: Batches) -> Batches:
        """Yield counts and reports."""
        return self.reading(self._files(batches))

    def _files(self, batches: Batches) -> Iterator[tuple[int, AbstractContextManager[Path]]]:
        for batch in batches:
            path, content = (batch.column(batch.schema.get_field_index(n)) for n in ("path", "content"))
            for row in range(batch.num_rows):
                address = path[row].as_py()
                file = file_in_memory(shown_name(Path(address)), memoryview(content[row].as_buffer()))
                yield self.numbers[address], file


def _told(slot: int, number: int, answer: Answer) -> pa.RecordBatch:
    """Return a report as a row of counts: what is read is one table, and is read once."""
    values = ([slot], [_REPORT], [number.to_bytes(8, "little")], [pack(answer)], [b""])
    arrays = [pa.array(value, field.type) for value, field in zip(values, COUNT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=COUNT_SCHEMA)


def together(sizes: Sequence[int], slots: int) -> list[list[int]]:
    """Return which files each task reads, the largest file first: each goes where least is to be read.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each file.
    slots : int
        Tasks at a time.
    """
    tasks = min(len(sizes), max(_TASKS_A_SLOT * slots, sum(sizes) // _BYTES_A_TASK))
    found: list[list[int]] = [[] for _ in range(tasks)]
    waiting = [(0, task) for task in range(tasks)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size, task = waiting[0]
        found[task].append(number)
        heapq.heapreplace(waiting, (size + sizes[number] + _OPENING, task))
    return found


def _files(session: SparkSession, reading: _Reading, found: FileRows) -> DataFrame:
    """Have executors open files of a file system that all share."""
    paths = [path.resolve() for path in found.spec.paths if isinstance(path, Path)]
    groups = together([path.stat().st_size for path in paths], session.sparkContext.defaultParallelism)
    read = _ReadFiles(reading, tuple(tuple((number, paths[number]) for number in group) for group in groups))
    return session.range(0, len(groups), 1, len(groups)).mapInArrow(read, COUNT_TYPES)


def _contents(session: SparkSession, reading: _Reading, addresses: Sequence[str]) -> DataFrame:
    """Have Spark hand files over."""
    found = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(list(addresses))
    read = _ReadContents(reading, {address: number for number, address in enumerate(addresses)})
    return found.select("path", "content").mapInArrow(read, COUNT_TYPES)


@contextmanager
def _one_file_a_batch(session: SparkSession) -> Iterator[None]:
    """Have a batch hold one row: it may be a large file."""
    before = session.conf.get(_BATCH_ROWS)
    session.conf.set(_BATCH_ROWS, "1")
    try:
        yield
    finally:
        session.conf.set(_BATCH_ROWS, before)


def read_on_executors(
    session: SparkSession, found: FileRows, spine: Spine, cut: Cut, addresses: Sequence[str] = ()
) -> tuple[DataFrame, tuple[Finding, ...]]:
    """Read the files of a run, and deal their counts out.

    Parameters
    ----------
    session : SparkSession
    found : FileRows
    spine : Spine
    cut : Cut
    addresses : sequence of str, optional
        Where the files are, if executors do not open them by their paths.

    Returns
    -------
    DataFrame
        Task ``t`` in partition ``t``; behind the last, a partition of reports.
    tuple of Finding
        Warnings.

    Raises
    ------
    DataError
        With everything that is wrong in the first file that is not usable.
    """
    frame = found.data.frame
    kind = np.int32 if len(frame) < 1 << 31 else np.int64
    reading = _Reading(
        found.layout,
        found.spec.product,
        Frame(frame.geocodes, {}, frame.leaf),
        spine.place_of_leaf.astype(kind),
        cut.starts,
    )
    with spark_failures(), _one_file_a_batch(session):
        read = _contents(session, reading, addresses) if addresses else _files(session, reading, found)
        rows = deal(read, len(cut) + 1)
        told = rows.where(f"task = {_REPORT}").select("leaf", "cell").collect()
    answers = {int.from_bytes(bytes(row.leaf), "little"): unpack(bytes(row.cell)) for row in told}
    reports: list[_Report] = []
    total = 0
    for number in range(len(found.spec.paths)):
        reports.append(answers[number].get())
        total += reports[-1].total
        if total >= MAX_TOTAL:
            raise refuse_too_many(found.spec.paths[number], found.spec.product)
    if not any(report.rows for report in reports):
        raise no_rows(found.spec.paths[0])
    return rows, tuple(warning for report in reports for warning in report.warnings)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CheckUnits:
    """Compares the counts of a task with the public units of its leaves.

    Parameters
    ----------
    product : Product
    kind : CensusKind or None
    units : mapping of column to integers (leaves,)
        In the spine's order.
    frame : int64 (leaves,)
        Place in the frame of each leaf.
    """

    product: Product
    kind: CensusKind | None
    units: Mapping[str, npt.NDArray[np.integer]]
    frame: npt.NDArray[np.int64]

    @classmethod
    def of(cls, found: FileRows, spine: Spine) -> CheckUnits:
        """Take the units of a frame."""
        order = spine.leaf_order
        units = {name: _narrow(counts)[order] for name, counts in found.data.frame.units.items()}
        return cls(found.spec.product, found.kind, units, order)

    def __call__(self, low: int, high: int, table: Histogram) -> list[npt.NDArray[np.int64]]:
        """Return, for each rule, the first leaves of the frame that break it."""
        units = {name: counts[low:high].astype(np.int64) for name, counts in self.units.items()}
        broken = broken_units(self.product, self.kind, units, table)
        return [np.sort(self.frame[low:high][wrong])[:_LEAVES_TOLD] for wrong in broken]


def _narrow(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.integer]:
    """Return the same counts in the fewest bytes that hold all: they go to every executor."""
    most = int(np.abs(counts).max(initial=0))
    kind = next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if most <= np.iinfo(kind).max)
    return counts.astype(kind)


def unit_findings(found: FileRows, told: Mapping[int, Any]) -> tuple[Finding, ...]:
    """Return what :class:`CheckUnits` said of all tasks.

    Raises
    ------
    DataError
        With ``strict``, if there is anything.
    """
    frame, where = found.data.frame, shown_name(found.spec.paths[0])
    log = FindingLog()
    for place, rule in enumerate(unit_rules(found.spec.product, found.kind, tuple(frame.units))):
        wrong = np.sort(np.concatenate([leaves[place] for leaves in told.values()]))
        report_units(log, frame, wrong, where, rule)
    if log.findings and found.spec.strict:
        raise DataError("Records and public units contradict each other.", log.findings)
    return log.findings
