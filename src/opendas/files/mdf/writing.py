"""Microdata detail files: one row a record, written from an estimate."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Ints
from opendas.custody.folders import PARTIAL_SUFFIX, atomic_file, make_folder, remove_file
from opendas.errors import ConfigError, EnvironmentFailure, nearest
from opendas.files.mdf.layout import Column, Layout, mdf_layout, mdf_parts, record_counts, record_frame
from opendas.files.storage.parquet import ROW_GROUP, parquet_sink, text_column
from opendas.geography.frame import Frame
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

MDF_SUFFIX = {"parquet": ".parquet", "pipe": ".txt"}
"""Endings of part files by format."""

MDF_FORMATS = tuple(MDF_SUFFIX)
"""Known file formats of the microdata."""

Chunk = tuple[Ints, npt.NDArray[np.int32], Ints]
"""Of consecutive entries with at most :data:`ROW_GROUP` records in all: position of the leaf in the part,
kind, number of records."""

Rows = Callable[[Ints], Histogram]
"""Returns the estimates of leaves at some positions of the frame."""


@dataclass(frozen=True, slots=True, eq=False)
class PartFile:
    """One part file to write, with all that it takes: it can be written anywhere."""

    path: Path
    product: Product
    frame: Frame  # the leaves of the part
    counts: Histogram  # records of each kind, one row per leaf
    first: int  # number of the part's first record

    def write(self) -> None:
        """Write the file; its ending says in which format."""
        if self.path.suffix == MDF_SUFFIX["parquet"]:
            _write_parquet(self)
        else:
            _write_pipe(self)


class MdfFiles:
    """The part files of a run's microdata, one per county or top geounit, put together one by one.

    Records are sorted by part, then leaf, then cell; ``EPNUM`` counts them from 0 in this order. Every part
    has a file, records or not, and part files of an earlier attempt do not stay.

    - `folder`: for instance ``release/mdf/persons``.
    - `rows`: returns the estimates of leaves at some positions of the frame.
    - `companion`: estimate of the product's second histogram over the leaves of the frame, whose records
      stand in the same files.
    - `fmt`, "parquet" or "pipe": ``pipe``: text with ``|`` between fields, comment lines starting with ``#``,
      then a line of names.
    """

    def __init__(
        self,
        folder: Path,
        product: Product,
        frame: Frame,
        rows: Rows,
        fmt: str,
        companion: Histogram | None = None,
    ) -> None:
        if fmt not in MDF_FORMATS:
            raise ConfigError(f"unknown microdata format {fmt!r}; {nearest(fmt, MDF_FORMATS)}")
        self._product = product
        self._frame = record_frame(product, frame)
        self._rows = rows
        self._companion = companion
        self._parts = {folder / f"{p.name}{MDF_SUFFIX[fmt]}": p.leaves for p in mdf_parts(product, frame)}
        make_folder(folder)
        _remove_others(folder, {path.name for path in self._parts})
        self.records = 0
        """Records of the parts handed out so far; for ``units`` with the group quarters of the frame."""

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[PartFile]:
        self.records = 0
        for path, leaves in self._parts.items():
            frame = self._frame.take(leaves)
            companion = None if self._companion is None else self._companion.take(leaves)
            counts = record_counts(self._product, frame, self._rows(leaves), companion)
            yield PartFile(path, self._product, frame, counts, self.records)
            self.records += counts.total()


def _remove_others(folder: Path, keep: set[str]) -> None:
    try:
        for path in folder.iterdir():
            if path.suffix in (*MDF_SUFFIX.values(), PARTIAL_SUFFIX) and path.name not in keep:
                remove_file(path)
    except OSError as error:
        raise EnvironmentFailure(
            f"mdf/{folder.name}: an old part file cannot be removed ({error.strerror}). "
            "Check the permissions of the output folder."
        ) from error


def _chunks(counts: Histogram) -> Iterator[Chunk]:
    """Yield the entries of a part in pieces of at most ROW_GROUP records."""
    leaf = counts.row_of_entries()
    ends = np.cumsum(counts.counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, ROW_GROUP):
        stop = min(start + ROW_GROUP, total)
        low = int(np.searchsorted(ends, start, side="right"))
        high = int(np.searchsorted(ends, stop, side="left")) + 1
        bounds = np.clip(ends[low:high], start, stop)
        times = np.diff(bounds, prepend=start)
        yield leaf[low:high], counts.cells[low:high], times


def _arrow_type(column: Column) -> object:
    return pa.int64() if column.source == "number" else pa.dictionary(pa.int32(), pa.string())


def _arrow_column(
    column: Column, local: Mapping[str, tuple[npt.NDArray[np.integer], Any]], chunk: Chunk, first: int
) -> Any:
    leaf, kind, times = chunk
    records = int(times.sum())
    if column.source == "number":
        return pa.array(np.arange(first, first + records, dtype=np.int64))
    index, values = local[column.name]
    if column.source == "constant":
        return text_column(np.zeros(records, dtype=np.int32), values)
    return text_column(np.repeat(index[leaf if column.source == "leaf" else kind], times), values)


def _localise(column: Column) -> tuple[npt.NDArray[np.integer], object]:
    """Return a column's index and the values that the part uses: a part carries no other part's codes."""
    if column.source != "leaf":
        return column.index, pa.array(list(column.values), type=pa.string())
    used, index = np.unique(column.index, return_inverse=True)
    return index.astype(np.int32), pa.array([column.values[i] for i in used.tolist()], type=pa.string())


def mdf_schema(layout: Layout) -> Any:
    """Return the Arrow schema of a layout's Parquet files."""
    return pa.schema(
        [pa.field(column.name, _arrow_type(column), nullable=False) for column in layout.columns]
    )


def _write_parquet(part: PartFile) -> None:
    layout = mdf_layout(part.product, part.frame)
    schema = mdf_schema(layout)
    local = {c.name: _localise(c) for c in layout.columns if c.source != "number"}
    numbers = [column.name for column in layout.columns if column.source == "number"]
    searched = [column.name for column in layout.columns if column.source in ("leaf", "number")]
    first = part.first
    with parquet_sink(part.path, schema, delta=numbers, bounds=searched) as sink:
        for chunk in _chunks(part.counts):
            arrays = [_arrow_column(column, local, chunk, first) for column in layout.columns]
            sink.write(pa.Table.from_arrays(arrays, schema=schema))
            first += int(chunk[2].sum())


def _field(value: str) -> str:
    """Return one field of the pipe layout, quoted where its text needs it."""
    buffer = io.StringIO()
    csv.writer(buffer, delimiter="|", lineterminator="").writerow([value])
    text = buffer.getvalue()
    return f'"{text}"' if text.startswith("#") else text


def _write_pipe(part: PartFile) -> None:
    layout = mdf_layout(part.product, part.frame)
    if any("\n" in text or "\r" in text for column in layout.columns for text in column.values):
        raise ConfigError("a label with a line break cannot be written in the pipe layout; use parquet.")
    local = {
        column.name: (column.index, pa.array(map(_field, column.values), type=pa.large_string()))
        for column in layout.columns
    }
    first = part.first
    with atomic_file(part.path) as file:
        head = [f"# Layout: {layout.name}", f"# Part: {part.path.stem}", "|".join(map(_field, layout.names))]
        file.write(("\n".join(head) + "\n").encode("utf-8"))
        for chunk in _chunks(part.counts):
            fields = [_arrow_column(column, local, chunk, first) for column in layout.columns]
            file.write(_lines([field.cast(pa.large_string()) for field in fields]))
            first += int(chunk[2].sum())


def _lines(fields: list[Any]) -> memoryview:
    """Return the lines of records as the bytes of one text."""
    bar, nothing, end = (pa.scalar(text, pa.large_string()) for text in ("|", "", "\n"))
    lines = pc.binary_join_element_wise(pc.binary_join_element_wise(*fields, bar), nothing, end)
    _, ends, text = lines.buffers()
    return memoryview(text)[: int(np.frombuffer(ends, dtype=np.int64)[len(lines)])]
