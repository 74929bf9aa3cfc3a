"""Spark as the execution backend of a run: where its counts stand, and who does its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opendas.arrays import Ints
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.custody.folders import make_folder
from opendas.engines.drive import cut
from opendas.engines.local import default_workers
from opendas.engines.outputs import Draw
from opendas.engines.spark.counts import LastCut, SparkCounts, send_counts
from opendas.engines.spark.engine import SparkEngine, draw_on_executors
from opendas.engines.spark.partitions import write_shared
from opendas.engines.spark.reading import (
    CheckUnits,
    copy_data,
    copy_public,
    find_data,
    read_on_executors,
    unit_findings,
)
from opendas.engines.spark.session import open_session, prepare_executors, spark_failures
from opendas.engines.tasks import Engine
from opendas.engines.truth import ExactCounts
from opendas.engines.work import KeyedSource, Worker, draw_here
from opendas.files.storage.remote import RemoteFile
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.measurement.plan import MeasurementPlan
from opendas.readers.counting.tally import FileRows
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.readers.registry import make_reader
from opendas.readers.row_readers import RowReader
from opendas.schema.query_groups import QueryGroup
from opendas.topdown.model import WHOLE_TREE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # A row is the counts of many leaves: few of them fill a batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    "spark.sql.inMemoryColumnarStorage.batchSize": "16",
    # Each task has a partition of its own, which nobody may merge or split.
    "spark.sql.adaptive.enabled": "false",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _UnreadData(InputData):
    """The frame of an input whose rows executors will read."""

    rows: FileRows = field(kw_only=True)
    remote: tuple[RemoteFile, ...] = field(kw_only=True)  # the files, where they stand at addresses


@dataclass(frozen=True, slots=True, eq=False)
class SparkBackend:
    """A Spark session whose executors are ready."""

    session: SparkSession
    workers: int  # processes of this machine for what stays here
    _counted: list[SparkCounts] = field(default_factory=list)

    def read(self, spec: ReaderSpec, cache: Path) -> InputData:
        """Return the frame; executors read the rows, if the reader has files of rows."""
        spec, remote = find_data(copy_public(spec, cache))
        reader = make_reader(spec)
        rows = reader.file_rows() if isinstance(reader, RowReader) else None
        if rows is not None:
            return _UnreadData(
                rows.data.frame,
                rows.data.histogram,
                findings=rows.data.findings,
                rows=rows,
                remote=remote,
            )
        if remote:
            reader = make_reader(copy_data(spec, remote, cache))
        return reader.read(cache)

    def count(self, data: InputData, plan: MeasurementPlan, estimator: str, cache: Path) -> SparkCounts:
        """Split the input over the executors, and sum it up there."""
        spine = plan.spine
        at = _first_cut(plan, data.frame, estimator)
        folder = cache / "sums"
        make_folder(folder)
        folder.chmod(0o700)
        declared = _declared_below(plan, at.level)
        if isinstance(data, _UnreadData):
            rows, warnings = read_on_executors(self.session, data.rows, spine, at, data.remote)
        else:
            with spark_failures():
                rows, warnings = send_counts(self.session, data.histogram, spine, at), ()
        counts = SparkCounts(rows, at, spine, plan.product.schema.size, folder)
        self._counted.append(counts)
        if isinstance(data, _UnreadData):
            told = counts.sum_up(declared, CheckUnits.of(data.rows, spine))
            counts.findings = (*warnings, *unit_findings(data.rows, told))
        else:
            counts.sum_up(declared)
        return counts

    def close(self) -> None:
        """Let the executors forget what they counted."""
        for counts in self._counted:
            with suppress(Exception):  # Spark may be gone already
                counts.close()

    def partition(
        self, counts: ExactCounts, constraints: ConstraintTable, estimator: str, model: TreeModel | None
    ) -> None:
        """Split the counts again if the run is cut in another way than was expected."""
        if estimator in WHOLE_TREE and model is None:  # nothing will be estimated now: any cut will do
            return
        own = _counts_on_executors(counts)
        own.cut_again(LastCut.of(own.spine, cut(own.spine, constraints, estimator, model)))

    def engine(
        self, worker: Worker, folder: Path, counts: ExactCounts | None, spine: Spine
    ) -> AbstractContextManager[Engine]:
        """Return what does the tasks of a run."""
        known = None if counts is None else _counts_on_executors(counts)
        return SparkEngine(self.session, worker, folder, known, len(spine.levels) - 1, self.workers)

    def draw(self, source: KeyedSource, counts: ExactCounts, folder: Path, spine: Spine) -> Draw:
        """Draw where the counts are: above the last cut, where geounits are few, in this process."""
        own = _counts_on_executors(counts)

        def draw(level: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
            if level <= own.cut.level:
                return draw_here(source, own, spine, level, step)
            return draw_on_executors(source, own, folder / "full", level, step)

        return draw

    @property
    def write(self) -> Callable[[Path, bytes], None]:
        """What writes a result file, also where two attempts at a task do so at the same time."""
        return write_shared


def _counts_on_executors(counts: ExactCounts) -> SparkCounts:
    if not isinstance(counts, SparkCounts):
        raise AssertionError("the counts of a run on Spark are with its executors")
    return counts


@contextmanager
def open_on_spark(folder: Path, master: str | None, workers: int | None) -> Iterator[SparkBackend]:
    """Start or find Spark, and look at its executors.

    - `folder`: of the run, under ``state/`` of the output.
    - `workers`: threads of a local Spark, and processes beside the driver.

    Raises `EnvironmentFailure` if Spark cannot start, or an executor lacks something or does not see the
    folder.
    """
    chosen = workers or default_workers()
    with open_session(master, name="opendas", threads=chosen) as session:
        make_folder(folder)
        with spark_failures():
            for name, value in _SETTINGS.items():
                session.conf.set(name, value)
            prepare_executors(session, folder)
        backend = SparkBackend(session, chosen)
        try:
            yield backend
        finally:
            backend.close()


def _first_cut(plan: MeasurementPlan, frame: Frame, estimator: str) -> LastCut:
    """Return how the leaves are split before anything is counted."""
    product = replace(plan.product, invariants=())
    bounds = bound_table(product, frame, plan.spine, {})
    model = TreeModel.of_plan(plan, bounds) if estimator in WHOLE_TREE else None
    return LastCut.of(plan.spine, cut(plan.spine, bounds, estimator, model))


def _declared_below(plan: MeasurementPlan, level: int) -> Mapping[int, Sequence[QueryGroup]]:
    """Return the invariants below a geolevel."""
    found: dict[int, list[QueryGroup]] = {}
    for query, geolevel in plan.product.invariant_levels(plan.spine).items():
        if geolevel > level:
            found.setdefault(geolevel, []).append(plan.product.workload.group(query))
    return found
