"""Input files that executors read: a few files a task, with the readers of the local engine.

Counts go straight to the executors of their tasks. The driver hears, of each file, how much it holds and what
is wrong with it, and then whether leaves break their public units.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.custody.folders import make_folder, new_file
from opendas.custody.secret_files import forbid_core_files
from opendas.engines.checkpoint import narrow
from opendas.engines.local import keep_modules
from opendas.engines.spark.counts import (
    COUNT_TYPES,
    Entries,
    LastCut,
    pack_entries,
    pack_rows,
    split,
)
from opendas.engines.spark.partitions import (
    Answer,
    Batches,
    cache_by,
    pack,
    partition_number,
    partition_values,
    unpack,
)
from opendas.engines.spark.session import spark_failures
from opendas.errors import ConfigError, DataError, Finding, OpendasError
from opendas.files.storage.remote import RemoteFile, RemoteFolder, RemoteInput
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.readers.columns.csv_parquet import no_rows, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.tally import MAX_TOTAL, FileRows, Layout, exact_sum, refuse_too_many, tally_file
from opendas.readers.frame.units import broken_units, report_units, unit_rules
from opendas.readers.input.paths import is_data
from opendas.readers.input.spec import CensusKind, ReaderSpec
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


Location = Path | RemoteFile
"""Where executors find a file: on a file system that all share, or at an address."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _ReadFiles:
    """Reads the files of a partition, on an executor."""

    layout: Layout
    product: Product
    frame: Frame  # geocodes and the name of the leaves, nothing else
    position: npt.NDArray[np.integer]  # (leaves,): position on the spine of each leaf of the frame
    starts: Ints  # (t + 1,): first leaf of each task
    # (int, Path or RemoteFile): of each partition: number of a file, and the file.
    files: tuple[tuple[tuple[int, Location], ...], ...]

    def __call__(self, batches: Batches) -> Batches:
        """Yield counts by task, and a report at the end of each file; what is wrong stands there."""
        for _ in batches:
            pass
        forbid_core_files()
        slot = partition_values(len(self.starts))  # one more than there are tasks: reports have the last
        for number, file in self.files[partition_number()]:
            yield from self._read(number, file, slot)
        keep_modules()

    def _read(self, number: int, file: Location, slot: npt.NDArray[np.int32]) -> Batches:
        rows = total = 0
        warnings = FindingLog()
        try:
            with _opened(file) as path:
                for read, keys, counts in tally_file(path, self.layout, self.product, self.frame, warnings):
                    rows += read
                    total += exact_sum(counts)
                    leaf, cell = np.divmod(keys, self.product.schema.size)
                    entries = Entries(self.position[leaf], cell, counts)
                    yield pack_entries(split(entries, self.starts, slot))
            answer = Answer(_Report(number, rows, total, warnings.findings))
        except OpendasError as error:
            answer = Answer.of(error)
        # A report is a row of counts: what is read is one table, and is read once.
        yield pack_rows([(int(slot[-1]), _REPORT, number.to_bytes(8, "little"), pack(answer), b"")])


def _opened(file: Location) -> AbstractContextManager[Path]:
    if isinstance(file, Path):
        return nullcontext(file)
    return file.in_memory(shown_name(Path(file.address)))


def together(sizes: Sequence[int], slots: int) -> list[list[int]]:
    """Return which files each task reads, the largest file first: each goes where least is to be read.

    - `sizes`: bytes of each file.
    - `slots`: tasks at a time.
    """
    tasks = min(len(sizes), max(_TASKS_A_SLOT * slots, sum(sizes) // _BYTES_A_TASK))
    found: list[list[int]] = [[] for _ in range(tasks)]
    waiting = [(0, task) for task in range(tasks)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size, task = waiting[0]
        found[task].append(number)
        heapq.heapreplace(waiting, (size + sizes[number] + _OPENING, task))
    return found


def read_on_executors(
    session: SparkSession, found: FileRows, spine: Spine, cut: LastCut, remote: Sequence[RemoteFile] = ()
) -> tuple[DataFrame, tuple[Finding, ...]]:
    """Read the files of a run, and deal their counts out.

    - `remote`: where the files are, if executors do not open them by their paths.
    - Returns: task ``t`` in partition ``t``; behind the last, a partition of reports.
    - Returns: warnings.

    Raises `DataError` with everything that is wrong in the first file that is not usable.
    """
    frame = found.data.frame
    kind = np.int32 if len(frame) < 1 << 31 else np.int64
    files: list[Location] = list(remote) or [
        path.resolve() for path in found.spec.paths if isinstance(path, Path)
    ]
    sizes = [file.stat().st_size if isinstance(file, Path) else file.size for file in files]
    groups = together(sizes, session.sparkContext.defaultParallelism)
    read = _ReadFiles(
        found.layout,
        found.spec.product,
        Frame(frame.geocodes, {}, frame.leaf),
        spine.place_of_leaf.astype(kind),
        cut.starts,
        tuple(tuple((number, files[number]) for number in group) for group in groups),
    )
    with spark_failures():
        rows = session.range(0, len(groups), 1, len(groups)).mapInArrow(read, COUNT_TYPES)
        rows = cache_by(rows, len(cut) + 1, "slot")
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
    """Compares the counts of a task with the public units of its leaves."""

    product: Product
    kind: CensusKind | None
    units: Mapping[str, npt.NDArray[np.integer]]  # column -> (leaves,): in the spine's order
    frame: Ints  # (leaves,): place in the frame of each leaf

    @classmethod
    def of(cls, found: FileRows, spine: Spine) -> CheckUnits:
        """Take the units of a frame."""
        order = spine.leaf_order
        units = {name: narrow(counts)[order] for name, counts in found.data.frame.units.items()}
        return cls(found.spec.product, found.kind, units, order)

    def __call__(self, low: int, high: int, table: Histogram) -> list[Ints]:
        """Return, for each rule, the first leaves of the frame that break it."""
        units = {name: counts[low:high].astype(np.int64) for name, counts in self.units.items()}
        broken = broken_units(self.product, self.kind, units, table)
        return [np.sort(self.frame[low:high][wrong])[:_LEAVES_TOLD] for wrong in broken]


def unit_findings(found: FileRows, told: Mapping[int, Any]) -> tuple[Finding, ...]:
    """Return what :class:`CheckUnits` said of all tasks."""
    frame, where = found.data.frame, shown_name(found.spec.paths[0])
    log = FindingLog()
    for place, rule in enumerate(unit_rules(found.spec.product, found.kind, tuple(frame.units))):
        wrong = np.sort(np.concatenate([leaves[place] for leaves in told.values()]))
        report_units(log, frame, wrong, where, rule)
    if log.findings and found.spec.strict:
        raise DataError(
            "The records contradict public unit counts or constraints of the product.", log.findings
        )
    return log.findings


# Input at addresses: what is public and small is copied, and the data are listed.
#
# Executors read the data where they are. Readers that only the driver has take copies of them, in a folder
# that is removed when the run ends.


def copy_public(spec: ReaderSpec, cache: Path) -> ReaderSpec:
    """Copy the files of frame and units to this machine.

    `cache`: folder under ``confidential/``, which the caller removes when the run is finished.
    """
    remote = spec.remote
    if remote.frame is not None:
        spec = replace(spec, frame=_copy(_single_file(remote.frame), cache / "remote" / "frame"))
    if remote.units is not None and spec.units is not None:
        path = _copy(_single_file(remote.units), cache / "remote" / "units")
        spec = replace(spec, units=replace(spec.units, path=path))
    return replace(spec, remote=RemoteInput(remote.paths))


def find_data(spec: ReaderSpec) -> tuple[ReaderSpec, tuple[RemoteFile, ...]]:
    """Find the files of the data.

    - Returns: its paths are names, which nobody opens.
    - Returns: in the same order; empty where the data are files of this machine.

    Raises `ConfigError` if an address stands for no file.
    """
    files = {file.address: file for wanted in spec.remote.paths for file in _found(wanted)}
    if not files:
        return spec, ()
    addresses = sorted(files, key=PurePosixPath)
    return (
        replace(spec, paths=tuple(map(Path, addresses)), remote=RemoteInput()),
        tuple(files[address] for address in addresses),
    )


def copy_data(spec: ReaderSpec, files: Sequence[RemoteFile], cache: Path) -> ReaderSpec:
    """Copy the data to this machine, for a reader that executors do not have."""
    folder = cache / "remote" / "data"
    paths = [
        _copy(file, folder / f"{number:06d}" / Path(shown_name(Path(file.address))).parent)
        for number, file in enumerate(files)
    ]
    return replace(spec, paths=tuple(paths))


def _single_file(address: str) -> RemoteFile:
    found = _found(address)
    if len(found) != 1:
        raise ConfigError(f"{address} stands for {len(found)} files. Give the address of one file.")
    return found[0]


def _found(address: str) -> list[RemoteFile]:
    """Return the files that an address stands for: a file, those of a folder, or those of a pattern.

    A pattern has ``*`` or ``[...]`` in parts of its path; what stands before the first such part is listed.
    """
    path, mark, query = address.partition("?")
    scheme, _, rest = path.partition("://")
    host, _, inside = rest.partition("/")
    parts = inside.strip("/").split("/") if inside.strip("/") else []
    fixed = next((number for number, part in enumerate(parts) if set("*[") & set(part)), len(parts) - 1)
    above, wanted = (
        "".join(f"{part}/" for part in parts[: max(0, fixed)]),
        [unquote(part) for part in parts[max(0, fixed) :]],
    )
    root = f"{scheme}://{host}/{above}{mark}{query}"
    folder, name = RemoteFolder(root), "/".join(wanted)
    kind = folder.kind(name)
    if kind is not None:  # it is there under this very name
        wanted = [escape(part) for part in wanted]
    sizes = {name: kind} if kind is not None and kind >= 0 else folder.names(name if kind == -1 else "")
    found = [RemoteFile(root, inside, size) for inside, size in sizes.items() if _is_wanted(inside, wanted)]
    if not found:
        raise ConfigError(f"nothing found at {address}.")
    return found


def _is_wanted(name: str, pattern: Sequence[str]) -> bool:
    """Return whether a file matches a pattern, or holds data of a folder that does."""
    parts = name.split("/")
    if len(parts) < len(pattern) or not all(map(fnmatchcase, parts, pattern)):
        return False
    return len(parts) == len(pattern) or is_data(PurePosixPath(*parts[len(pattern) :]))


def _copy(file: RemoteFile, folder: Path) -> Path:
    make_folder(folder)
    path = folder / PurePosixPath(file.name).name
    with new_file(path, 0o600) as here:
        RemoteFolder(file.folder).fetch(file.name, here)
    return path
