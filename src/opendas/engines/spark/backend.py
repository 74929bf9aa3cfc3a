"""Spark as the execution backend of a run: where its counts stand, and who does its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from opendas.constraints.table import ConstraintTable, bound_table, invariant_geolevels
from opendas.engines.backend import ExactInput
from opendas.engines.drive import cut
from opendas.engines.local import default_workers
from opendas.engines.outputs import Draw
from opendas.engines.protocol import Engine
from opendas.engines.spark.dealing import Cut, hand_out
from opendas.engines.spark.draw import SparkDraw
from opendas.engines.spark.engine import SparkEngine
from opendas.engines.spark.exact import SparkCounts
from opendas.engines.spark.executors import Executors, prepare_executors
from opendas.engines.spark.hadoop import Hadoop
from opendas.engines.spark.key_service import KeyService
from opendas.engines.spark.parts import write_here
from opendas.engines.spark.reading import CheckUnits, read_on_executors, unit_findings
from opendas.engines.spark.remote_input import copy_data, copy_public, list_data
from opendas.engines.spark.run_files import FileService, RunFiles, SharedFiles
from opendas.engines.spark.session import open_session, spark_failures
from opendas.engines.work import KeyedSource, Worker
from opendas.files.atomic import make_folder, name_attempt
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.measurement.plan import MeasurementPlan
from opendas.readers.base import InputData, ReaderSpec
from opendas.readers.counting.tally import FileRows
from opendas.readers.registry import make_reader
from opendas.schema.query_groups import QueryGroup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkBackend", "open_on_spark"]

_log = logging.getLogger(__name__)

_SETTINGS = {
    # A row is the counts of many leaves: few of them fill a batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    "spark.sql.inMemoryColumnarStorage.batchSize": "16",
    # Input that is not there any more is no input without it.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Each task has a partition of its own, which nobody may merge or split.
    "spark.sql.adaptive.enabled": "false",
}


@runtime_checkable
class _ReadsFiles(Protocol):
    """A reader whose rows may be counted file by file, by others."""

    def file_rows(self) -> FileRows | None:
        """Return what it takes; None where that cannot be."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SparkBackend:
    """A Spark session, looked over, and a service that gives keys to its executors.

    Parameters
    ----------
    session : SparkSession
    files : RunFiles
        How executors reach files of the run.
    keys : KeyService
    workers : int
        Processes of this machine for what stays here.
    """

    session: SparkSession
    files: RunFiles
    keys: KeyService
    workers: int
    _elsewhere: dict[int, tuple[FileRows, tuple[str, ...]]] = field(default_factory=dict)
    _counted: list[SparkCounts] = field(default_factory=list)

    def read(self, spec: ReaderSpec, cache: Path) -> InputData:
        """Return the frame; executors read the rows, if the reader has files of rows."""
        addresses: tuple[str, ...] = ()
        hadoop = Hadoop(self.session)
        if spec.remote:
            spec = copy_public(hadoop, spec, cache)
            spec, addresses = list_data(hadoop, spec)
        reader = make_reader(spec)
        found = reader.file_rows() if isinstance(reader, _ReadsFiles) else None
        if found is None:
            if addresses:
                reader = make_reader(copy_data(hadoop, spec, addresses, cache))
            return reader.read(cache)
        self._elsewhere[id(found.data)] = found, addresses
        return found.data

    def count(self, data: InputData, plan: MeasurementPlan, estimator: str, cache: Path) -> SparkCounts:
        """Deal the input out to the executors, and sum it up there."""
        spine = plan.spine
        at = _first_cut(plan, data.frame, estimator)
        size = plan.product.schema.size
        folder = _confidential_folder(cache / "sums")
        declared = _declared_below(plan, at.level)
        found, addresses = self._elsewhere.pop(id(data), (None, ()))
        if found is None:
            with spark_failures():
                rows = hand_out(self.session, data.histogram, spine, at)
            counts = self._keep(SparkCounts(rows, at, spine, size, folder, self.files, self.keys))
            counts.sum_up(declared)
            return counts
        rows, warnings = read_on_executors(self.session, found, spine, at, addresses)
        counts = self._keep(SparkCounts(rows, at, spine, size, folder, self.files, self.keys))
        told = counts.sum_up(declared, CheckUnits.of(found, spine))
        counts.findings = (*warnings, *unit_findings(found, told))
        return counts

    def _keep(self, counts: SparkCounts) -> SparkCounts:
        self._counted.append(counts)
        return counts

    def close(self) -> None:
        """Let the executors forget what they counted."""
        for counts in self._counted:
            with suppress(Exception):  # Spark may be gone already
                counts.close()

    def partition(
        self, counts: ExactInput, constraints: ConstraintTable, estimator: str, model: TreeModel | None
    ) -> None:
        """Deal the counts out again if the run is cut in another way than was expected."""
        if not isinstance(counts, SparkCounts):
            return
        if estimator == "informed" and model is None:  # nothing will be estimated now: any cut will do
            return
        counts.cut_again(Cut.of(counts.spine, cut(counts.spine, constraints, estimator, model)))

    def engine(
        self, worker: Worker, folder: Path, counts: ExactInput | None, spine: Spine
    ) -> AbstractContextManager[Engine]:
        """Return what does the tasks of a run."""
        known = counts if isinstance(counts, SparkCounts) else None
        last = len(spine.levels) - 1
        return SparkEngine(
            self.session, worker, self.files, folder, known, self.keys, last, self.workers, name_attempt
        )

    def draw(self, source: KeyedSource, counts: ExactInput, folder: Path, spine: Spine) -> Draw:
        """Draw where the counts are."""
        if not isinstance(counts, SparkCounts):
            raise AssertionError("the counts of a run on Spark are with its executors")
        return SparkDraw(source, counts, folder / "full", self.keys)

    @property
    def write(self) -> Callable[[Path, bytes], None]:
        """What writes a result file, also where two attempts at a task do so at the same time."""
        return write_here


@contextmanager
def open_on_spark(
    folder: Path, cache: Path, master: str | None, workers: int | None
) -> Iterator[SparkBackend]:
    """Start or find Spark, and look at its executors.

    Parameters
    ----------
    folder, cache : Path
        Of the run, under ``state/`` and ``confidential/`` of the output.
    master : str or None
    workers : int or None
        Threads of a local Spark, and processes beside the driver.

    Raises
    ------
    EnvironmentFailure
        If Spark cannot start, or an executor lacks something.
    """
    chosen = workers or default_workers()
    with open_session(master, name="opendas", threads=chosen) as session:
        make_folder(folder)
        with spark_failures():
            for name, value in _SETTINGS.items():
                session.conf.set(name, value)
            executors = prepare_executors(session, folder)
        _log.info("Spark: %d tasks at a time on %s", executors.slots, ", ".join(executors.hosts))
        host, bind = _driver_host(session), _driver_bind(session)
        with _run_files(executors, folder, cache, host, bind) as files, KeyService(host, bind) as keys:
            backend = SparkBackend(session, files, keys, chosen)
            try:
                yield backend
            finally:
                backend.close()


@contextmanager
def _run_files(
    executors: Executors, folder: Path, cache: Path, host: str, bind: str | None
) -> Iterator[RunFiles]:
    """Say how executors reach files of the run: in folders that all see, or through the driver."""
    if not executors.blind:
        yield SharedFiles()
        return
    _log.warning(
        "the executors on %s do not see the output folder: the driver takes what they find, and writes the "
        "release by itself. An output folder that all of them see and may write into spares that.",
        ", ".join(executors.blind),
    )
    work = folder / "work"
    results = {folder: ".part", work: ".done", folder / "full": ".npz"}
    confidential = {cache / "sums": ".npz", cache / "seconds": ".seconds"}
    with FileService({work: ".item"}, {**results, **confidential}, host, bind) as service:
        yield service.files


def _driver_host(session: SparkSession) -> str:
    return str(session.sparkContext.getConf().get("spark.driver.host"))


def _driver_bind(session: SparkSession) -> str | None:
    chosen: str | None = session.sparkContext.getConf().get("spark.driver.bindAddress")
    return chosen


def _first_cut(plan: MeasurementPlan, frame: Frame, estimator: str) -> Cut:
    """Return how the leaves are dealt out before anything is counted."""
    product = replace(plan.product, invariants=())
    bounds = bound_table(product, frame, plan.spine, {})
    model = TreeModel.of_plan(plan, bounds) if estimator == "informed" else None
    return Cut.of(plan.spine, cut(plan.spine, bounds, estimator, model))


def _confidential_folder(folder: Path) -> Path:
    make_folder(folder)
    folder.chmod(0o700)
    return folder


def _declared_below(plan: MeasurementPlan, level: int) -> Mapping[int, Sequence[QueryGroup]]:
    """Return the invariants below a geolevel."""
    found: dict[int, list[QueryGroup]] = {}
    for query, place in invariant_geolevels(plan.product, plan.spine).items():
        if place > level:
            found.setdefault(place, []).append(plan.product.workload.group(query))
    return found
