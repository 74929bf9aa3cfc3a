"""Workers of one machine as the execution backend of a run, whose counts stand in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from opendas.constraints.table import ConstraintTable
from opendas.custody.folders import write_atomic
from opendas.engines.local import LocalEngine, WorkerPool, workers_for
from opendas.engines.outputs import Draw, UsedFile
from opendas.engines.tasks import Engine
from opendas.engines.truth import ExactCounts, LeafCounts
from opendas.engines.work import KeyedSource, Worker, draw_here
from opendas.files.mdf.writing import PartFile
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.measurement.plan import MeasurementPlan
from opendas.readers.input.spec import InputData, ReaderSpec
from opendas.readers.registry import make_reader


class LocalBackend:
    """The machine that the run was started on; use it as a context manager.

    - `workers`: processes; None: the machine's cores, at most two, and one for a small spine.
    - `warm`: worker processes start once their number is known, and load while this one reads and plans.
    """

    def __init__(self, workers: int | None, *, warm: bool = True) -> None:
        self._workers = workers
        self._warm = warm
        self._pool: WorkerPool | None = None

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    @property
    def write(self) -> Callable[[Path, bytes], None]:
        """What writes a result file in one step."""
        return write_atomic

    def read(self, spec: ReaderSpec, cache: Path) -> InputData:
        """Read the input; what is too large for memory is mapped from a folder."""
        self._start_workers(self._workers)
        return make_reader(spec).read(cache)

    def _start_workers(self, workers: int | None) -> None:
        if self._warm and workers is not None and workers > 1 and self._pool is None:
            self._pool = WorkerPool(workers, [UsedFile.__module__, PartFile.__module__])

    def count(self, data: InputData, plan: MeasurementPlan, estimator: str, cache: Path) -> LeafCounts:
        """Return the counts."""
        cells = plan.product.schema.size
        self._start_workers(workers_for(len(plan.spine.leaf), cells, self._workers))
        return LeafCounts(data.histogram, plan.spine)

    def partition(
        self, counts: ExactCounts, constraints: ConstraintTable, estimator: str, model: TreeModel | None
    ) -> None:
        """Nothing is partitioned beforehand here: the counts stand in this process."""

    @contextmanager
    def engine(
        self, worker: Worker, folder: Path, counts: ExactCounts | None, spine: Spine
    ) -> Iterator[Engine]:
        """Put worker processes to work."""
        workers = workers_for(len(spine.leaf), len(worker.rules[0].possible), self._workers)
        with LocalEngine(worker, workers, self._pool) as engine:
            self._pool = None  # the engine ends it
            yield engine

    def draw(self, source: KeyedSource, counts: ExactCounts, folder: Path, spine: Spine) -> Draw:
        """Draw in this process."""
        return partial(draw_here, source, counts, spine)
