"""Figures made of counts: a share, a density, the answer of a SQL query or of any function.

Apart from the margins of replicates: a figure is made again of the counts of each replicate, so that its
margin takes no formula and no assumption on how counts err together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from opendas.arrays import Floats
from opendas.errors import ConfigError, EnvironmentFailure

FunctionOfCounts = Callable[[pa.Table], Any] | str | tuple[str, str]
"""A function that takes counts as an Arrow table (``geocode``, and a column for each cell) and returns a
frame; SQL for DuckDB over the table ``counts``; or two cells, of which the first is divided by the second."""

_WHOLE = "all"
"""Name of the only row of an answer that names none."""


class Figures:
    """Figures of one table of counts, to be made again of the counts of replicates.

    Columns of text name the rows of an answer, and columns of numbers are the figures. A row that a replicate
    lacks has no number there; one that only replicates have is left out.

    `counts` (areas, cells): the published ones.

    Raises `ConfigError` if the function fails, or its answer is no table with numbers, or names two rows
    alike; `EnvironmentFailure` if DuckDB is needed and missing.
    """

    def __init__(
        self, function: FunctionOfCounts, names: Sequence[str], cells: Sequence[str], counts: Floats
    ) -> None:
        self._function = _callable(function, cells)
        self._names, self._cells = pa.array(names, pa.string()), tuple(cells)
        answer = self._answer(counts)
        self.columns = tuple(name for name in answer.column_names if _is_number(answer.schema.field(name)))
        """Names of the figures."""
        self.names = _row_names(answer)
        """Names of the rows."""
        if not self.columns:
            raise ConfigError("the answer has no column of numbers: there is nothing to give a margin for.")
        self._counts = counts
        self._row = {name: row for row, name in enumerate(self.names)}
        if len(self._row) < len(self.names):
            twice = next(name for row, name in enumerate(self.names) if self._row[name] != row)
            raise ConfigError(
                f"two rows of the answer are named {twice!r}: columns of text name a row, and each row needs "
                "a name of its own."
            )
        self.published = self._numbers(answer)
        """float64 (rows, figures); NaN where there is no number."""

    def errors_of(self, differences: Floats) -> Floats:
        """Return how far the figures of other counts are from the published ones, float64 (rows, figures).

        `differences` (areas, cells): the other counts less the published ones.
        """
        return self._numbers(self._answer(self._counts + differences)) - self.published

    def _answer(self, counts: Floats) -> pa.Table:
        whole = bool(np.all(counts == np.rint(counts)))
        values = counts.astype(np.int64) if whole else counts
        columns = [pa.array(np.ascontiguousarray(column)) for column in values.T]
        answer = self._function(pa.Table.from_arrays([self._names, *columns], ["geocode", *self._cells]))
        try:
            return answer if isinstance(answer, pa.Table) else pa.table(answer)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise ConfigError(
                "a function of counts must return a table: pandas, polars, Arrow, or a dict of columns."
            ) from error

    def _numbers(self, answer: pa.Table) -> Floats:
        found = np.full((len(self.names), len(self.columns)), np.nan)
        if not {*self.columns} <= {*answer.column_names}:
            raise ConfigError(
                "the function gave other columns for other counts; it must always give the same ones."
            )
        rows = np.array([self._row.get(name, -1) for name in _row_names(answer)], dtype=np.int64)
        for place, column in enumerate(self.columns):
            values = answer.column(column).cast(pa.float64()).to_numpy()
            found[rows[rows >= 0], place] = values[rows >= 0]
        found[~np.isfinite(found)] = np.nan
        return found


def _callable(function: FunctionOfCounts, cells: Sequence[str]) -> Callable[[pa.Table], Any]:
    if isinstance(function, str):
        return _sql(function)
    if callable(function):
        return function
    unknown = [cell for cell in function if cell not in cells]
    if unknown:
        raise ConfigError(f"no cell {unknown[0]!r} to divide; there are {', '.join(cells[:20])}.")
    return _ratio(*function)


def _ratio(above: str, below: str) -> Callable[[pa.Table], pa.Table]:
    def ratio(counts: pa.Table) -> pa.Table:
        one, other = (counts.column(name).to_numpy().astype(np.float64) for name in (above, below))
        share = np.divide(one, other, out=np.full(len(one), np.nan), where=other != 0)
        return pa.table({"geocode": counts.column("geocode"), f"{above} / {below}": share})

    return ratio


def _sql(text: str) -> Callable[[pa.Table], pa.Table]:
    try:
        import duckdb
    except ImportError as error:
        raise EnvironmentFailure("SQL over counts needs DuckDB: pip install duckdb.") from error

    def ask(counts: pa.Table) -> pa.Table:
        with duckdb.connect() as connection:
            connection.register("counts", counts)
            try:
                return pa.table(connection.sql(text))
            except duckdb.Error as error:
                raise ConfigError(f"DuckDB refuses the SQL: {error}") from error
            except TypeError as error:
                raise ConfigError("the SQL returns no table.") from error

    return ask


def _is_number(field: pa.Field) -> bool:
    kind = field.type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _row_names(answer: pa.Table) -> list[str]:
    texts = [
        answer.column(field.name).cast(pa.string()).to_pylist()
        for field in answer.schema
        if not _is_number(field)
    ]
    if not texts:
        return [_WHOLE] * answer.num_rows
    return [" * ".join("" if part is None else part for part in row) for row in zip(*texts, strict=True)]
