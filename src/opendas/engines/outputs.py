"""The files of a run that grow with the nation: measurements, microdata, families; each written from parts.

What a file takes is put together here; that files are independent lets workers write them side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.engines.drive import Estimation, FinishedTask
from opendas.files.nmf.reading import Answers, measurement_metadata
from opendas.files.nmf.writing import MeasurementWriter
from opendas.files.storage.parquet import parquet_sink
from opendas.geography.spine import Spine
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.histogram import Histogram
from opendas.topdown.model import FamilyRecord

# How each family was solved, and how long it took: a Parquet file for questions, confidential.
#
# The records are functions of measurements and invariants; the seconds are not, since they depend on how full
# a geounit is. So the file stands under ``confidential/timings``.


FAMILY_FIELDS: dict[str, tuple[Any, str]] = {
    "geolevel": (pa.string(), "geolevel of the children"),
    "label": (pa.string(), "geocode of the parent, or of the root itself"),
    "children": (pa.int32(), "how many"),
    "cells": (pa.int32(), "cells that can be non-zero in the parent"),
    "passes": (pa.int32(), "least-squares passes"),
    "methods": (pa.string(), "method of each pass, comma between"),
    "residual": (pa.float64(), "largest relative Karush-Kuhn-Tucker residual: the certificate of optimality"),
    "tolerance": (pa.float64(), "how far the last pass is from the held margins of earlier ones"),
    "fallback": (pa.bool_(), "a general solver was needed"),
    "failsafe": (pa.string(), "empty, or what the failsafe relaxed"),
    "seconds": (pa.float32(), "wall time, measurement and rounding included; null where it was not taken"),
    "stage": (pa.int32(), "stage of the run"),
    "task": (pa.int32(), "task of the stage"),
}
"""Columns of the file: type and meaning."""

SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in FAMILY_FIELDS.items()])

_ROWS_AT_ONCE = 1 << 16


def family_batch(
    records: Sequence[FamilyRecord],
    seconds: npt.NDArray[np.floating] | Sequence[float] | None,
    *,
    stage: int,
    task: int,
) -> Any:
    """Return the records of a task as rows.

    `seconds`, float (len(records),) or None: wall time of each family, where it was taken.
    """
    count = len(records)
    if seconds is not None and len(seconds) != count:
        raise ValueError(f"{count} families, but {len(seconds)} times")
    taken = np.full(count, np.nan, np.float32) if seconds is None else np.asarray(seconds, dtype=np.float32)
    columns: dict[str, Any] = {
        name: [getattr(record, name) for record in records]
        for name in FAMILY_FIELDS.keys() & {field.name for field in fields(FamilyRecord)}
    }
    columns["passes"] = [len(record.methods) for record in records]
    columns["methods"] = [", ".join(record.methods) for record in records]
    columns["seconds"] = pa.array(taken, mask=np.isnan(taken))
    columns["stage"] = np.full(count, stage, np.int32)
    columns["task"] = np.full(count, task, np.int32)
    arrays = [
        columns[name] if isinstance(columns[name], pa.Array) else pa.array(columns[name], type=kind)
        for name, (kind, _) in FAMILY_FIELDS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def write_families(path: Path, batches: Iterable[Any]) -> int:
    """Write rows of :func:`family_batch`, a few at a time in memory; the file appears whole.

    - `path`: ``confidential/timings/<product>_families.parquet``.
    - Returns: number of rows.
    """
    kept: list[Any] = []
    waiting = rows = 0
    with parquet_sink(path, SCHEMA) as sink:
        for batch in batches:
            kept.append(batch)
            waiting += batch.num_rows
            if waiting >= _ROWS_AT_ONCE:
                sink.write(pa.Table.from_batches(kept, SCHEMA))
                rows += waiting
                kept, waiting = [], 0
        if waiting or not rows:
            sink.write(pa.Table.from_batches(kept, SCHEMA))
    return rows + waiting


Progress = Callable[[str, int, int], None]

Draw = Callable[[int, int], Iterator[tuple[int, int, list[npt.NDArray[np.int64]]]]]
"""Takes a geolevel and about how many geounits to draw at a time; yields first geounit, the one behind the
last, and all noisy answers of each measured query group, in the spine's order."""

_PARTS_KEPT = 8
"""Results of tasks that are kept: neighbours in the frame are mostly neighbours on the spine."""

_VALUES_AT_ONCE = 1 << 22
"""Noisy answers drawn at a time when the full file is written."""


@dataclass(frozen=True, slots=True, eq=False)
class _LevelNoise:
    """Variances of one geolevel's noise, geounit by geounit when asked."""

    queries: tuple[str, ...]
    # (c, q): per budget multiple and query group; infinite without budget.
    by_multiple: npt.NDArray[np.float64]
    which: npt.NDArray[np.int64]  # (g,): multiple of each geounit

    @classmethod
    def of(cls, plan: MeasurementPlan, level: int) -> _LevelNoise:
        return cls(
            tuple(planned.query.name for planned in plan.levels[level].queries), *plan.variances(level)
        )

    def measured(self, some: slice) -> npt.NDArray[np.bool_]:
        """Return which geounits are measured: one whose share went to its parent is not in the file."""
        return np.asarray(np.isfinite(self.by_multiple).all(axis=1))[self.which[some]]

    def variances(self, some: slice) -> dict[str, npt.NDArray[np.float64]]:
        """Return the variance of each query group's noise in some geounits, float64 (g,)."""
        found = self.by_multiple[self.which[some]]
        return {query: found[:, k] for k, query in enumerate(self.queries)}


@dataclass(frozen=True, slots=True, eq=False)
class UsedFile:
    """The file of the noisy answers of one geolevel that estimation read, with all that it takes."""

    path: Path
    level: int
    metadata: Mapping[str, object]
    geocodes: npt.NDArray[np.bytes_]  # (g,)
    noise: _LevelNoise
    parts: tuple[FinishedTask, ...]  # results of tasks, in the spine's order

    def write(self) -> None:
        """Write the file, a task's part at a time."""
        with MeasurementWriter(self.path, self.metadata) as writer:
            for part in self.parts:
                here = slice(part.first, part.first + part.geounits)
                keep = self.noise.measured(here)
                used = part.read().used
                answers = {}
                for query, variance in self.noise.variances(here).items():
                    offsets, rows, values = used.of_query(self.level, query, part.first, part.geounits)
                    answers[query] = Answers(values, offsets, rows, variance).select(keep)
                writer.write(self.geocodes[here][keep], answers)


@dataclass(frozen=True, slots=True)
class Solved:
    """The certificate's facts about families."""

    families: int
    fallbacks: int
    # Records of families that the failsafe relaxed, by level and place on the spine.
    failsafe: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FamilyFile:
    """The file of how families were solved and how long they took, with all that it takes."""

    path: Path  # under ``confidential/timings``
    geolevels: tuple[str, ...]  # from the top
    tasks: tuple[FinishedTask, ...]

    def write(self) -> Solved:
        """Write the file, a task at a time."""
        fallbacks = 0
        relaxed: list[FamilyRecord] = []

        def batches() -> Iterator[Any]:
            nonlocal fallbacks
            for task in self.tasks:
                result = task.read()
                fallbacks += sum(record.fallback for record in result.records)
                relaxed.extend(record for record in result.records if record.failsafe)
                yield family_batch(result.records, result.seconds, stage=task.stage, task=task.number)

        families = write_families(self.path, batches())
        relaxed.sort(key=lambda record: self.geolevels.index(record.geolevel))
        return Solved(families, fallbacks, tuple(asdict(record) for record in relaxed))


def used_files(folder: Path, plan: MeasurementPlan, estimation: Estimation) -> list[UsedFile]:
    """Return the measurement files of a run that measured lazily, the largest first."""
    files = [
        UsedFile(
            folder / f"{level.geolevel}.parquet",
            number,
            measurement_metadata(plan, number, stored="used"),
            plan.spine.levels[number].geocodes,
            _LevelNoise.of(plan, number),
            estimation.tasks_at(number),
        )
        for number, level in enumerate(plan.levels)
        if level.queries
    ]
    return files[::-1]


def write_full(folder: Path, plan: MeasurementPlan, draw: Draw, progress: Progress) -> None:
    """Draw and write every noisy answer of the plan, geolevel by geolevel."""
    spine = plan.spine
    total = sum(len(level) for level in spine.levels)
    done = 0
    for number, level in enumerate(plan.levels):
        geocodes = spine.levels[number].geocodes
        done += len(geocodes)
        if not level.queries:
            continue
        step = max(1, _VALUES_AT_ONCE // sum(q.query.size for q in level.queries))
        law = _LevelNoise.of(plan, number)
        metadata = measurement_metadata(plan, number, stored="full")
        with MeasurementWriter(folder / f"{level.geolevel}.parquet", metadata) as writer:
            for start, stop, drawn in draw(number, step):
                here = law.measured(slice(start, stop))
                variances = law.variances(slice(start, stop))
                answers = {
                    planned.query.name: Answers.full(values[here], variances[planned.query.name][here])
                    for planned, values in zip(level.queries, drawn, strict=True)
                }
                writer.write(geocodes[start:stop][here], answers)
                progress("writing noisy answers", done - len(geocodes) + stop, total)


class Leaves:
    """Estimates of leaves at positions of the frame, read from the results of tasks as they are asked for."""

    def __init__(self, estimation: Estimation, spine: Spine) -> None:
        self._place = spine.place_of_leaf
        self._parts = estimation.tasks_at(len(spine.levels) - 1)
        self._firsts = np.array([part.first for part in self._parts], dtype=np.int64)
        self._kept: dict[int, Histogram] = {}

    def __call__(self, leaves: npt.NDArray[np.int64]) -> Histogram:
        """Return the estimates of leaves of the frame, one or more, in the order given."""
        places = self._place[leaves]
        parts = np.searchsorted(self._firsts, places, side="right") - 1
        tables = [
            self._part(part).take(places[parts == part] - self._firsts[part])
            for part in np.unique(parts).tolist()
        ]
        order = np.argsort(parts, kind="stable")  # that of the tables; its inverse leads back
        return Histogram.concatenate(tables).take(np.argsort(order))

    def _part(self, number: int) -> Histogram:
        """Return the estimates of a part; the one that was asked for longest ago makes room."""
        table = self._kept.pop(number, None)
        if table is None:
            table = self._parts[number].read().estimates
        self._kept[number] = table
        if len(self._kept) > _PARTS_KEPT:
            del self._kept[next(iter(self._kept))]
        return table
