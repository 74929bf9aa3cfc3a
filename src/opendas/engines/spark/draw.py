"""Full measurements, drawn where the counts are.

Above the last cut the driver draws: these geounits are few. Below it an executor draws those of its task and
writes them, noisy, into files under ``state/``, which the driver puts together in the spine's order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from secrets import token_hex

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.engines.spark.engine import NOISE_KEY
from opendas.engines.spark.exact import SparkCounts, TaskCounts
from opendas.engines.spark.key_service import KeyService, KeyTicket
from opendas.engines.spark.parts import Batches, read_here
from opendas.engines.spark.run_files import RunFiles
from opendas.engines.work import KeyedSource
from opendas.measurement.noisy import MeasuredLevel
from opendas.schema.histogram import Histogram

__all__ = ["SparkDraw"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _DrawTask:
    """Draws all noisy answers of one geolevel within a task.

    Parameters
    ----------
    levels : tuple of MeasuredLevel
    ticket : KeyTicket
    counts : TaskCounts
    unchanged : callable(task, counts)
        Refuses counts that are no longer those that were tagged.
    level : int
    starts : int64 (g + 1,) or None
        First leaf of each geounit of the level; None: leaves.
    cuts : int64 (t + 1,)
        First geounit of each task.
    step : int
        Geounits drawn at a time.
    folder : Path
    files : RunFiles
    """

    levels: tuple[MeasuredLevel, ...]
    ticket: KeyTicket
    counts: TaskCounts
    unchanged: Callable[[int, Histogram], None]
    level: int
    starts: Ints | None
    cuts: Ints
    step: int
    folder: Path
    files: RunFiles

    def __call__(self, task: int, batches: Batches) -> int:
        table = self.counts(task, batches)
        self.unchanged(task, table)
        first, stop = int(self.cuts[task]), int(self.cuts[task + 1])
        if self.starts is not None:
            own = self.starts[first : stop + 1]
            table = table.aggregate(own - own[0])
        measured = KeyedSource(self.levels, self.ticket.fetch(NOISE_KEY)).at(self.level, first, table)
        for number, start in enumerate(range(first, stop, self.step)):
            drawn = measured.full(self.level, start, min(self.step, stop - start))
            buffer = BytesIO()
            np.savez(buffer, *(_narrow(values) for values in drawn))
            self.files.write(_path(self.folder, task, number), buffer.getvalue())
        return 0


class SparkDraw:
    """Draws full measurements of a run.

    Parameters
    ----------
    source : KeyedSource
    counts : SparkCounts
    folder : Path
        For noisy answers on their way, under ``state/``.
    keys : KeyService
        Running.
    """

    def __init__(self, source: KeyedSource, counts: SparkCounts, folder: Path, keys: KeyService) -> None:
        self._source, self._counts, self._folder = source, counts, folder
        keys.offer({NOISE_KEY: source.key})
        self._ticket = keys.ticket

    def __call__(self, level: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
        """Yield first geounit, the one behind the last, and all noisy answers of each query group."""
        return self._here(level, step) if level <= self._counts.cut.level else self._there(level, step)

    def _here(self, level: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
        geounits = len(self._counts.spine.levels[level])
        table = self._counts.at(level)
        for start in range(0, geounits, step):
            stop = min(start + step, geounits)
            measured = self._source.at(level, start, table.slice(start, stop))
            yield start, stop, measured.full(level, start, stop - start)

    def _there(self, level: int, step: int) -> Iterator[tuple[int, int, list[Ints]]]:
        counts, spine = self._counts, self._counts.spine
        leaves = spine.leaf_starts(level)
        cuts = np.searchsorted(leaves, counts.cut.starts)
        starts = None if level + 1 == len(spine.levels) else leaves
        shutil.rmtree(self._folder, ignore_errors=True)
        folder = self._folder / token_hex(8)  # executors given up write nothing into that of another level
        folder.mkdir(mode=0o700, parents=True)
        try:
            counts.run(
                _DrawTask(
                    self._source.levels,
                    self._ticket,
                    counts.counts,
                    counts.unchanged,
                    level,
                    starts,
                    cuts,
                    step,
                    folder,
                    counts.files,
                )
            )
            for task in range(len(counts.cut)):
                first, stop = int(cuts[task]), int(cuts[task + 1])
                for number, start in enumerate(range(first, stop, step)):
                    path = _path(folder, task, number)
                    with np.load(BytesIO(read_here(path)), allow_pickle=False) as arrays:
                        drawn = [arrays[f"arr_{k}"].astype(np.int64) for k in range(len(arrays.files))]
                    yield start, min(start + step, stop), drawn
                    path.unlink()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _path(folder: Path, task: int, number: int) -> Path:
    return folder / f"task{task:06d}-{number:06d}.npz"


def _narrow(values: Ints) -> npt.NDArray[np.integer]:
    """Return the same integers in the fewest bytes that hold all."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
