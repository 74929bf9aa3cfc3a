"""A table of a release, in the frame library that its reader uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opendas.errors import ConfigError, EnvironmentFailure

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd
    import polars as pl

SHOWN = 10
"""Rows of a table that a notebook shows."""


class Table:
    """A table of a release, in the frame library you use.

    Parameters
    ----------
    data : pyarrow.Table or pyarrow.dataset.Dataset
    shape : callable(pandas.DataFrame) -> geopandas.GeoDataFrame, optional
        Puts a shape to each row.
    """

    def __init__(self, data: Any, shape: Callable[[pd.DataFrame], gpd.GeoDataFrame] | None = None) -> None:
        self._data = data
        self._shape = shape

    def to_arrow(self) -> pa.Table:
        """Return a pyarrow table."""
        return self._data if isinstance(self._data, pa.Table) else self._data.to_table()

    def __len__(self) -> int:
        return int(self._data.num_rows if isinstance(self._data, pa.Table) else self._data.count_rows())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row by column name: what ``pandas.DataFrame(table)`` takes; `to_pandas` is faster."""
        for batch in self.to_arrow().to_batches(max_chunksize=1 << 14):
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows: {', '.join(self._data.schema.names)})"

    def _repr_html_(self) -> str:
        names = self._data.schema.names
        rows = self._data.slice(0, SHOWN) if isinstance(self._data, pa.Table) else self._data.head(SHOWN)
        caption = f"{len(self):,} rows" + (f", the first {SHOWN}" if len(self) > SHOWN else "")
        return html_table(caption, names, ([row[name] for name in names] for row in rows.to_pylist()))

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas frame."""
        return self.to_arrow().to_pandas()

    def to_geopandas(self) -> gpd.GeoDataFrame:
        """Return a geopandas frame.

        Raises
        ------
        ConfigError
            If the table was asked for without ``geometry``.
        """
        if self._shape is None:
            raise ConfigError("this table has no shapes: ask for it with geometry=True, or a file of shapes.")
        return self._shape(self.to_pandas())

    def to_polars(self) -> pl.DataFrame:
        """Return a polars frame, without copying where the types allow."""
        try:
            import polars
        except ImportError as error:
            raise missing("polars") from error
        frame = polars.from_arrow(self.to_arrow())
        return frame if isinstance(frame, polars.DataFrame) else frame.to_frame()

    def to_polars_lazy(self) -> pl.LazyFrame:
        """Return a polars lazy frame that reads the files when it is collected."""
        try:
            import polars
        except ImportError as error:
            raise missing("polars") from error
        if isinstance(self._data, pa.Table):
            return self.to_polars().lazy()
        return polars.scan_pyarrow_dataset(self._data)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the table to any library that speaks the Arrow stream interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


def missing(name: str) -> Exception:
    """Return the error of a frame library that is not installed."""
    return EnvironmentFailure(f"{name} is not installed; pip install 'opendas[frames]'.")


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for ``_repr_html_``.

    Parameters
    ----------
    caption : str
    header : sequence of str
    rows : iterable of sequence
        As many values as the header; numbers to six digits.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<table><caption>{escape(caption)}</caption>{parts}</table>"


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    align = ' style="text-align:right"' if number else ""
    return f"<td{align}>{escape(text)}</td>"
