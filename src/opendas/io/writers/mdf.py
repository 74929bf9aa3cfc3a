"""Microdata detail files: one row a record, written from an estimate."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.geography.frame import Frame
from opendas.io.atomic import PARTIAL_SUFFIX, atomic_file, make_folder
from opendas.io.mdf_layout import Column, Layout, Part, mdf_layout, mdf_parts, record_counts
from opendas.io.parquet import ROW_GROUP, parquet_sink, text_column
from opendas.products.product import Product
from opendas.schema.histogram import Histogram

__all__ = ["MDF_FORMATS", "write_mdf"]

MDF_SUFFIX = {"parquet": ".parquet", "pipe": ".txt"}

MDF_FORMATS = tuple(MDF_SUFFIX)
"""Known file formats of the microdata."""

Chunk = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]
"""Of consecutive entries with at most :data:`ROW_GROUP` records in all: position of the leaf in the part,
kind, number of records."""


def write_mdf(
    folder: Path, product: Product, frame: Frame, estimate: Histogram, *, fmt: str = "parquet"
) -> int:
    """Write the records that an estimate describes, one part file per county or top geounit.

    Records are sorted by part, then leaf, then cell; ``EPNUM`` counts them from 0 in this order. Every
    part has a file, records or not, and part files of an earlier attempt do not stay.

    Parameters
    ----------
    folder : Path
        For instance ``release/mdf/persons``.
    product : Product
    frame : Frame
    estimate : Histogram
        Rows are the leaves of `frame`.
    fmt : ``"parquet"`` or ``"pipe"``
        ``pipe``: text with ``|`` between fields, comment lines starting with ``#``, then a line of names.

    Returns
    -------
    int
        Number of records; for ``units`` with the group quarters of the frame.

    Raises
    ------
    ConfigError
        If `fmt` is unknown, or estimate, frame and product do not fit.
    EnvironmentFailure
        If the disk is full.
    """
    if fmt not in MDF_FORMATS:
        raise ConfigError(f"unknown microdata format {fmt!r}; known are {', '.join(MDF_FORMATS)}.")
    if estimate.rows != len(frame) or estimate.size != product.schema.size:
        raise ConfigError(
            f"the estimate has {estimate.rows} geounits x {estimate.size} cells, expected "
            f"{len(frame)} x {product.schema.size}."
        )
    layout = mdf_layout(product, frame)
    counts = record_counts(product, frame, estimate)
    make_folder(folder)
    write = _write_parquet if fmt == "parquet" else _write_pipe
    parts = mdf_parts(product, frame)
    _remove_others(folder, {f"{part.name}{MDF_SUFFIX[fmt]}" for part in parts})
    first = 0
    for part in parts:
        first += write(folder, layout, part, counts, first)
    return first


def _remove_others(folder: Path, keep: set[str]) -> None:
    try:
        for path in folder.iterdir():
            if path.suffix in (*MDF_SUFFIX.values(), PARTIAL_SUFFIX) and path.name not in keep:
                path.unlink()
    except OSError as error:
        raise EnvironmentFailure(
            f"mdf/{folder.name}: an old part file cannot be removed ({error.strerror}). "
            "Check the permissions of the output folder."
        ) from error


def _chunks(counts: Histogram, part: Part) -> Iterator[Chunk]:
    """Yield the entries of a part in pieces of at most ROW_GROUP records."""
    starts = counts.indptr[part.leaves]
    lengths = counts.indptr[part.leaves + 1] - starts
    entries = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    leaf = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(counts.counts[entries])
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, ROW_GROUP):
        stop = min(start + ROW_GROUP, total)
        low = int(np.searchsorted(ends, start, side="right"))
        high = int(np.searchsorted(ends, stop, side="left")) + 1
        bounds = np.clip(ends[low:high], start, stop)
        times = np.diff(bounds, prepend=start)
        yield leaf[low:high], counts.cells[entries[low:high]], times


def _arrow_type(column: Column) -> object:
    return pa.int64() if column.source == "number" else pa.dictionary(pa.int32(), pa.string())


def _arrow_column(
    column: Column, local: dict[str, tuple[npt.NDArray[np.int32], object]], chunk: Chunk, first: int
) -> object:
    leaf, kind, times = chunk
    records = int(times.sum())
    if column.source == "number":
        return pa.array(np.arange(first, first + records, dtype=np.int64))
    index, values = local[column.name]
    if column.source == "constant":
        return text_column(np.zeros(records, dtype=np.int32), values)
    return text_column(np.repeat(index[leaf if column.source == "leaf" else kind], times), values)


def _localise(column: Column, part: Part) -> tuple[npt.NDArray[np.int32], object]:
    """Return a column's index and the values that the part uses: a part carries no other part's codes."""
    if column.source != "leaf":
        return column.index, pa.array(list(column.values), type=pa.string())
    used, index = np.unique(column.index[part.leaves], return_inverse=True)
    return index.astype(np.int32), pa.array([column.values[i] for i in used.tolist()], type=pa.string())


def _write_parquet(folder: Path, layout: Layout, part: Part, counts: Histogram, first: int) -> int:
    schema = pa.schema([(column.name, _arrow_type(column)) for column in layout.columns])
    local = {c.name: _localise(c, part) for c in layout.columns if c.source != "number"}
    numbers = [column.name for column in layout.columns if column.source == "number"]
    written = 0
    with parquet_sink(folder / f"{part.name}.parquet", schema, delta=numbers) as sink:
        for chunk in _chunks(counts, part):
            arrays = [_arrow_column(column, local, chunk, first + written) for column in layout.columns]
            sink.write(pa.Table.from_arrays(arrays, schema=schema))
            written += int(chunk[2].sum())
    return written


def _field(value: str) -> str:
    """Return one field of the pipe layout, quoted where its text needs it."""
    buffer = io.StringIO()
    csv.writer(buffer, delimiter="|", lineterminator="").writerow([value])
    text = buffer.getvalue()
    return f'"{text}"' if text.startswith("#") else text


def _write_pipe(folder: Path, layout: Layout, part: Part, counts: Histogram, first: int) -> int:
    texts = [[_field(value) for value in column.values] for column in layout.columns]
    if any("\n" in text or "\r" in text for values in texts for text in values):
        raise ConfigError("a label with a line break cannot be written in the pipe layout; use parquet.")
    numbered = next((i for i, column in enumerate(layout.columns) if column.source == "number"), None)
    written = 0
    with atomic_file(folder / f"{part.name}.txt") as file:
        head = [f"# Layout: {layout.name}", f"# Part: {part.name}", "|".join(map(_field, layout.names))]
        file.write(("\n".join(head) + "\n").encode("utf-8"))
        for leaf, kind, times in _chunks(counts, part):
            lines: list[str] = []
            for position, one_kind, copies in zip(leaf.tolist(), kind.tolist(), times.tolist(), strict=True):
                fields = _fields(layout, texts, int(part.leaves[position]), one_kind)
                if numbered is None:
                    lines.append(("|".join(fields) + "\n") * copies)
                else:
                    before = "|".join([*fields[:numbered], ""])
                    after = "|".join(["", *fields[numbered + 1 :]]) + "\n"
                    start = first + written
                    lines += [f"{before}{number}{after}" for number in range(start, start + copies)]
                written += copies
            file.write("".join(lines).encode("utf-8"))
    return written


def _fields(layout: Layout, texts: list[list[str]], leaf: int, kind: int) -> list[str]:
    """Return the fields of one record; empty where its number goes."""
    fields = []
    for column, values in zip(layout.columns, texts, strict=True):
        if column.source == "number":
            fields.append("")
        elif column.source == "constant":
            fields.append(values[0])
        else:
            fields.append(values[int(column.index[leaf if column.source == "leaf" else kind])])
    return fields
