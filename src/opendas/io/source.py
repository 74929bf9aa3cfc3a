"""Measurements from files: what estimation reads when there is neither input nor key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.engines.subtree import Part
from opendas.errors import FormatError
from opendas.io.measurement_files import Answers, MeasurementFile
from opendas.measurement.family import FamilyMeasurement, MeasurementSource, QueryAnswers
from opendas.measurement.kernels import compact_rows
from opendas.schema.histogram import Histogram

__all__ = ["FileSource"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """The full measurement files of one product.

    Parameters
    ----------
    folder : Path
        ``release/measurements/<product>``.
    geolevels : tuple of str
        Of the spine, top first; a geolevel without budget has no file.
    """

    folder: Path
    geolevels: tuple[str, ...]

    def open(self, part: Part, table: Histogram | None) -> MeasurementSource:
        """Read the measurements of a part."""
        levels: dict[int, _FileLevel] = {}
        for level in part.levels:
            path = self.folder / f"{self.geolevels[level.level]}.parquet"
            if path.is_file():
                file = MeasurementFile(path)
                stop = level.first + len(level.geocodes)
                levels[level.level] = _FileLevel(level.first, file, file.read(level.first, stop))
        return _FileMeasurements(levels)


@dataclass(frozen=True, slots=True, eq=False)
class _FileLevel:
    first: int
    file: MeasurementFile
    answers: Mapping[str, Answers]


class _FileMeasurements:
    """Measurements of part of a spine, read from files."""

    def __init__(self, levels: Mapping[int, _FileLevel]) -> None:
        self._levels = levels
        self._dense = {
            number: {query: answers.dense() for query, answers in level.answers.items()}
            for number, level in levels.items()
        }
        self._rows = {
            number: {query: level.file.product.workload.group(query).row_of_cell for query in level.answers}
            for number, level in levels.items()
        }

    def family(
        self, level: int, first: int, children: int, support: npt.NDArray[np.int32]
    ) -> FamilyMeasurement:
        """Return the noisy answers that touch a support (see :class:`MeasurementSource`)."""
        if level not in self._levels:
            return FamilyMeasurement((), np.ones(children))
        here = self._levels[level]
        start = first - here.first
        queries = []
        for query, dense in self._dense[level].items():
            rows, compact, _ = compact_rows(self._rows[level][query], support, dense.shape[1])
            values = dense[start : start + children][:, rows]
            variance = float(here.answers[query].variance[0])
            queries.append(QueryAnswers(query, rows, compact, values, variance))
        variances = next(iter(here.answers.values())).variance[start : start + children]
        if not np.all(variances == variances[0]):
            raise FormatError(
                f"{here.file.path.name}: geounits with different budgets need the spine's own shares."
            )
        return FamilyMeasurement(tuple(queries), np.ones(children))
