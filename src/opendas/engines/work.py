"""What a worker does with a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opendas.arrays import Ints
from opendas.arrays.blas import one_blas_thread
from opendas.engines.checkpoint import Checkpoints, TaskResult
from opendas.engines.measurement_source import FileSource
from opendas.engines.subtree import Part, estimate_part
from opendas.engines.tasks import Task
from opendas.engines.truth import ExactCounts
from opendas.engines.upward import information_of, upward_messages
from opendas.errors import PrivacyError
from opendas.geography.spine import Spine
from opendas.measurement.answered import AnsweredMeasurements, are_answered
from opendas.measurement.family import MeasurementSource
from opendas.measurement.noisy import MeasuredLevel, NoisyMeasurements
from opendas.sampling.noise import NoiseSource
from opendas.schema.histogram import Histogram
from opendas.topdown.family_data import LevelRules


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyedSource:
    """Measurements taken on the spot from confidential counts."""

    levels: tuple[MeasuredLevel, ...]
    key: bytes  # The derived noise key of the run. Confidential.

    def open(self, part: Part, table: Histogram | None) -> MeasurementSource:
        """Aggregate the part's counts up its levels and return its noisy measurements."""
        if table is None:
            raise PrivacyError("keyed measurements need the counts of the part.")
        tables = {part.levels[-1].level: table}
        for above in reversed(part.levels[:-1]):
            if above.child_starts is not None:
                table = table.aggregate(above.child_starts)
            tables[above.level] = table
        return self._taken(tables, {level.level: level.first for level in part.levels})

    def at(self, level: int, first: int, table: Histogram) -> MeasurementSource:
        """Return the noisy measurements of consecutive geounits of one geolevel."""
        return self._taken({level: table}, {level: first})

    def _taken(self, tables: dict[int, Histogram], first: dict[int, int]) -> MeasurementSource:
        kind = AnsweredMeasurements if are_answered(self.levels) else NoisyMeasurements
        return kind(self.levels, tables, first, NoiseSource(self.key))


SourceSpec = KeyedSource | FileSource
"""Where a worker's measurements come from; picklable."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Worker:
    """The work of a run: the same object in every process."""

    rules: tuple[LevelRules, ...]
    source: SourceSpec
    failsafe: bool
    keep_used: bool
    files: Checkpoints | None = None  # where results go; without, they are returned

    def __call__(self, task: Task) -> TaskResult | None:
        """Do one task; None where its result went to a file. BLAS runs on one thread: sums have one order."""
        result = self._do(task)
        if self.files is None:
            return result
        self.files.save(task.stage, task.number, result)
        return None

    def _do(self, task: Task) -> TaskResult:
        with one_blas_thread():
            source = self.source.open(task.part, task.table)
            if task.up:
                if task.model is None:
                    raise AssertionError("a task of the way up has a model of its part of the tree")
                return upward_messages(task.part, task.model, source, task.below)
            information = None
            if task.model is not None:
                information = information_of(task.part, task.model, source, task.below)
            return estimate_part(
                task.part,
                self.rules,
                source,
                failsafe=self.failsafe,
                keep_used=self.keep_used,
                information=information,
            )


def draw_here(
    source: KeyedSource, counts: ExactCounts, spine: Spine, level: int, step: int
) -> Iterator[tuple[int, int, list[Ints]]]:
    """Draw all noisy answers of a geolevel in this process; see :data:`opendas.engines.outputs.Draw`."""
    for start in range(0, len(spine.levels[level]), step):
        stop = min(start + step, len(spine.levels[level]))
        table = counts.slice(level, start, stop)
        if table is None:
            raise AssertionError("counts that this process draws from are here")
        yield start, stop, source.at(level, start, table).full(level, start, stop - start)
