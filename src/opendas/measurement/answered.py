"""Measurements by another package's mechanism; apart from the fast path, which needs a noise law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.measurement.kernels import compact_rows
from opendas.measurement.noisy import MeasuredLevel, MeasuredQuery
from opendas.sampling.mechanisms import StatedNoise
from opendas.sampling.noise import NoiseSource
from opendas.schema.histogram import Histogram


def are_answered(levels: Sequence[MeasuredLevel]) -> bool:
    """Whether another package's mechanism draws the answers."""
    return any(isinstance(query.noise[0], StatedNoise) for level in levels for query in level.queries)


class AnsweredMeasurements:
    """Noisy answers of part of a spine, drawn for a whole query group of a geounit at once.

    Takes the arguments of :class:`~opendas.measurement.noisy.NoisyMeasurements`. The mechanism receives the
    true answers of one query group at one geounit and random bits of that address alone, so its answers do
    not depend on process or order. Estimation sees only its answers.
    """

    __slots__ = ("_first", "_levels", "_noise", "_tables")

    def __init__(
        self,
        levels: Sequence[MeasuredLevel],
        tables: Mapping[int, Histogram],
        first: Mapping[int, int],
        noise: NoiseSource,
    ) -> None:
        self._levels = levels
        self._tables = tables
        self._first = first
        self._noise = noise

    def _answers(self, level: int, unit: int, query: MeasuredQuery) -> Ints:
        """Return the noisy answers of a query group at a geounit, int64 (m,); zeros without budget."""
        measured, table = self._levels[level], self._tables[level]
        budget = int(measured.budgets(unit, 1)[0])
        exact = np.zeros(query.size, dtype=np.int64)
        if budget < 0:
            return exact
        row = unit - self._first[level]
        entries = slice(table.indptr[row], table.indptr[row + 1])
        np.add.at(exact, query.row_of_cell[table.cells[entries]], table.counts[entries])
        law = query.noise[budget]
        assert isinstance(law, StatedNoise)
        words = self._noise.words_at(measured.level, unit, query.address)
        return law.answers(exact, words)

    def family(
        self, level: int, first: int, children: int, support: npt.NDArray[np.int32]
    ) -> FamilyMeasurement:
        """Return the noisy answers that touch a support (see :class:`MeasurementSource`)."""
        measured, answers = self._levels[level], []
        for query in measured.queries:
            rows, compact, _ = compact_rows(query.row_of_cell, support, query.size)
            values = np.empty((children, len(rows)), dtype=np.int64)
            for child in range(children):
                values[child] = self._answers(level, first + child, query)[rows]
            answers.append(QueryAnswers(query.name, rows, compact, values, query.variance))
        return FamilyMeasurement(tuple(answers), measured.precision(first, children))

    def full(self, level: int, first: int, geounits: int) -> list[Ints]:
        """Return all noisy answers, int64 (geounits, m), of each measured query group of `level`."""
        return [
            np.array([self._answers(level, first + unit, query) for unit in range(geounits)]).reshape(
                geounits, query.size
            )
            for query in self._levels[level].queries
        ]
