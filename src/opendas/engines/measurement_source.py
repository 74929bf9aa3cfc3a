"""Measurements for estimation, from files: neither input nor key is opened.

The answers equal, bit for bit, those of :class:`opendas.measurement.noisy.NoisyMeasurements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.engines.subtree import Part
from opendas.errors import FormatError
from opendas.files.nmf.reading import Answers, MeasurementFile
from opendas.geography.spine import Spine
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.measurement.kernels import compact_rows
from opendas.measurement.noisy import MeasuredLevel
from opendas.schema.histogram import Histogram


@dataclass(frozen=True, slots=True, eq=False)
class FileSource:
    """Where a worker's measurements come from: a folder of measurement files; picklable."""

    levels: tuple[MeasuredLevel, ...]  # from the plan of the run, which is public
    folder: Path  # ``measurements/<product>``

    def open(self, part: Part, table: Histogram | None) -> FileMeasurements:
        """Read the part's measurements; `table` is ignored."""
        blocks = {}
        for level in part.levels:
            measured = self.levels[level.level]
            if measured.queries:
                blocks[level.level] = _read(measured, self.folder, level.first, len(level.geocodes))
        return FileMeasurements(self.levels, blocks, {level.level: level.first for level in part.levels})


def _rows_in_file(measured: MeasuredLevel) -> Ints | None:
    """Return, for each geounit and the end, its row in the file; None where every geounit is measured."""
    if measured.which is None:
        return None
    return np.concatenate([[0], np.cumsum(measured.which >= 0)]).astype(np.int64)


def _read(
    measured: MeasuredLevel, folder: Path, first: int, geounits: int
) -> tuple[Mapping[str, Answers], Ints]:
    """Return the answers of a run of geounits, and the row of each of them in these answers (-1: none)."""
    file = MeasurementFile(folder / f"{measured.geolevel}.parquet")
    rows = _rows_in_file(measured)
    if rows is None:
        return file.read(first, first + geounits), np.arange(geounits, dtype=np.int64)
    here = rows[first : first + geounits + 1]
    place = np.where(np.diff(here) > 0, here[:-1] - here[0], -1)
    return file.read(int(here[0]), int(here[-1])), place


class FileMeasurements:
    """Measurements of part of a spine; a :class:`opendas.measurement.family.MeasurementSource`.

    - `blocks`, level number -> (answers, place of each geounit in them).
    - `first`, level number -> int: index, in the whole spine, of the first geounit of each block.
    """

    __slots__ = ("_blocks", "_first", "_levels")

    def __init__(
        self,
        levels: tuple[MeasuredLevel, ...],
        blocks: Mapping[int, tuple[Mapping[str, Answers], Ints]],
        first: Mapping[int, int],
    ) -> None:
        self._levels = levels
        self._blocks = blocks
        self._first = first

    def family(
        self, level: int, first: int, children: int, support: npt.NDArray[np.int32]
    ) -> FamilyMeasurement:
        """Return the noisy answers that touch a support.

        Raises `FormatError` if an answer is not in the files: they hold only what another estimate used.
        """
        measured = self._levels[level]
        start = first - self._first[level]
        answers = []
        for query in measured.queries:
            rows, compact, _ = compact_rows(query.row_of_cell, support, query.size)
            block, place = self._blocks[level]
            values = _row_answers(block[query.name], place[start : start + children], rows, query.name)
            answers.append(QueryAnswers(query.name, rows, compact, values, query.variance))
        return FamilyMeasurement(tuple(answers), measured.precision(first, children))

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers of consecutive geounits (see :class:`MeasurementSource`).

        Raises `FormatError` if the files hold only what another estimate used.
        """
        measured = self._levels[level]
        start = first - self._first[level]
        answers = []
        for query in measured.queries:
            block, place = self._blocks[level]
            every = np.arange(query.size, dtype=np.int32)
            answers.append(
                _row_answers(block[query.name], place[start : start + geounits], every, query.name)
            )
        return answers


def _row_answers(answers: Answers, place: Ints, rows: npt.NDArray[np.int32], query: str) -> Ints:
    out = np.zeros((len(place), len(rows)), dtype=np.int64)
    measured = place >= 0
    if answers.cells is None:
        if measured.any():
            here = answers.dense()[place[measured]]
            out[measured] = here if len(rows) == here.shape[1] else here[:, rows]
        return out
    out[measured] = _listed(answers, place[measured], rows, query)
    return out


def _listed(
    answers: Answers, place: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], query: str
) -> npt.NDArray[np.int64]:
    """Return answers of which only some are in the files, int64 (len(place), len(rows)).

    Mostly these are the answers of one family as another estimate used them: the same rows for each of
    consecutive geounits, and these are the ones that are wanted.
    """
    shape = (len(place), len(rows))
    if len(place) and int(place[-1]) - int(place[0]) == len(place) - 1 and bool(np.all(np.diff(place) == 1)):
        here = slice(int(answers.offsets[place[0]]), int(answers.offsets[place[-1] + 1]))
        lengths = np.diff(answers.offsets[place[0] : place[-1] + 2])
        if bool(np.all(lengths == len(rows))) and np.array_equal(
            answers.listed_cells()[here].reshape(shape), np.broadcast_to(rows, shape)
        ):
            return np.asarray(answers.values[here].reshape(shape))
    return _searched(answers, place, rows, query)


def _searched(
    answers: Answers, place: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], query: str
) -> npt.NDArray[np.int64]:
    """Return the same, looked up for each geounit by itself."""
    out = np.zeros((len(place), len(rows)), dtype=np.int64)
    listed = answers.listed_cells()
    for i, row in enumerate(place.tolist()):
        low, high = int(answers.offsets[row]), int(answers.offsets[row + 1])
        cells = listed[low:high]
        found = np.searchsorted(cells, rows)
        if len(rows) and (len(cells) == 0 or found.max() >= len(cells) or np.any(cells[found] != rows)):
            raise FormatError(
                f"query {query!r}: an answer that this estimate needs is not in the measurement files. They "
                "hold only the answers that another estimate used. opendas measure writes all answers."
            )
        out[i] = answers.values[low:high][found]
    return out


def check_measurement_files(levels: tuple[MeasuredLevel, ...], spine: Spine, folder: Path) -> None:
    """Check that the files of `folder` are those of a plan: geounits, queries and noise."""
    for measured, level in zip(levels, spine.levels, strict=True):
        if not measured.queries:
            continue
        file = MeasurementFile(folder / f"{measured.geolevel}.parquet")
        wanted = level.geocodes if measured.which is None else level.geocodes[measured.which >= 0]
        if not np.array_equal(file.geocodes, wanted):
            raise FormatError(f"{file.path.name}: its geounits are not those of the spine.")
        if file.queries != tuple(query.name for query in measured.queries):
            raise FormatError(f"{file.path.name}: its query groups are not those of the plan.")
