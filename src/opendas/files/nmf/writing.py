"""Writing noisy measurement files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from opendas.arrays import Bools, Codes, Ints
from opendas.errors import FormatError
from opendas.files.nmf.reading import Answers
from opendas.files.storage.parquet import ParquetSink, bytes_column, parquet_sink, text_column

VALUES_PER_GROUP = 1 << 20
"""About so many values a row group, if the answers are full: what a task reads too much stays small."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
MEASUREMENT_SCHEMA = pa.schema(
    [
        ("geolevel", _TEXT),
        ("geocode", pa.string()),
        ("query", _TEXT),
        ("values", pa.list_(pa.int64())),
        ("cells", pa.list_(pa.int64())),
        ("variance", pa.float64()),
    ]
)


class MeasurementWriter:
    """Writes one geolevel's measurements; row groups do not depend on how the geounits are batched.

    Use it as a context manager: the file appears when the block ends without an error.

    `metadata`: of :func:`opendas.files.nmf.reading.measurement_metadata`.

    Examples
    --------
    ``with MeasurementWriter(path, metadata) as writer: writer.write(geocodes, {"total": answers})``
    """

    def __init__(self, path: Path, metadata: Mapping[str, object]) -> None:
        order = metadata["order"]
        queries = metadata["queries"]
        if not isinstance(order, Sequence) or not isinstance(queries, Mapping) or not order:
            raise FormatError("measurement metadata need the measured query groups in order.")
        self._geolevel = str(metadata["geolevel"])
        self._queries = tuple(str(query) for query in order)
        self._sizes = tuple(int(queries[query]["rows"]) for query in self._queries)
        self._per_group = max(1, VALUES_PER_GROUP // sum(self._sizes))
        self._pending: list[tuple[Codes, dict[str, Answers]]] = []
        self._waiting = 0
        self._path = path
        self._metadata = metadata
        self._stack = contextlib.ExitStack()
        self._sink: ParquetSink | None = None

    def __enter__(self) -> Self:
        self._sink = self._stack.enter_context(
            parquet_sink(
                self._path,
                MEASUREMENT_SCHEMA,
                metadata=self._metadata,
                bounds=("geocode", "query"),
                row_group=self._rows_per_group,
            )
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush(everything=True)
        except BaseException as late:
            self._stack.__exit__(type(late), late, late.__traceback__)
            raise
        self._stack.__exit__(kind, error, trace)

    @property
    def _rows_per_group(self) -> int:
        return self._per_group * len(self._queries)

    def write(self, geocodes: Codes, answers: Mapping[str, Answers]) -> None:
        """Append geounits in spine order.

        - `geocodes` (g,).
        - `answers`, query name -> Answers: every measured query group; in a partial file a group of which
          nothing was used has no values.
        """
        if set(answers) != set(self._queries):
            raise FormatError(f"answers of {', '.join(answers)} given, expected {', '.join(self._queries)}.")
        for query, size in zip(self._queries, self._sizes, strict=True):
            given = answers[query]
            lengths = np.diff(given.offsets)
            if len(given) != len(geocodes):
                raise FormatError(f"query {query!r}: {len(given)} geounits given, expected {len(geocodes)}.")
            if given.cells is None and bool(np.any(lengths != size)):
                raise FormatError(f"query {query!r}: full answers have {size} values a geounit.")
        self._pending.append((geocodes, {query: answers[query] for query in self._queries}))
        self._waiting += len(geocodes)
        if self._waiting >= self._per_group:
            self._flush(everything=False)

    def _flush(self, *, everything: bool) -> None:
        if not self._pending:
            return
        geocodes = np.concatenate([codes for codes, _ in self._pending])
        columns = {
            query: Answers.concatenate([answers[query] for _, answers in self._pending])
            for query in self._queries
        }
        done = 0
        while done < len(geocodes) and (everything or len(geocodes) - done >= self._per_group):
            stop = min(done + self._per_group, len(geocodes))
            piece = {query: column.slice(done, stop) for query, column in columns.items()}
            self._write_group(geocodes[done:stop], piece)
            done = stop
        self._waiting = len(geocodes) - done
        self._pending = []
        if self._waiting:
            rest = {query: column.slice(done, len(geocodes)) for query, column in columns.items()}
            self._pending = [(geocodes[done:], rest)]

    def _write_group(self, geocodes: Codes, columns: Mapping[str, Answers]) -> None:
        g, width = len(geocodes), len(self._queries)
        ordered = [columns[query] for query in self._queries]
        values, offsets = _interleave(
            [column.values for column in ordered], [column.offsets for column in ordered]
        )
        partial = np.tile([column.cells is not None for column in ordered], g)
        cell_lengths = np.where(partial, np.diff(offsets), 0)
        if bool(partial.all()):
            cells, _ = _interleave(
                [column.listed_cells() for column in ordered], [column.offsets for column in ordered]
            )
        elif not bool(partial.any()):
            cells = np.zeros(0, dtype=np.int64)
        else:
            empty = np.zeros(g + 1, dtype=np.int64)
            cells, _ = _interleave(
                [column.cells if column.cells is not None else empty[:0] for column in ordered],
                [column.offsets if column.cells is not None else empty for column in ordered],
            )
        table = pa.Table.from_arrays(
            [
                text_column(np.zeros(g * width, dtype=np.int32), [self._geolevel]),
                bytes_column(np.repeat(geocodes, width)),
                text_column(np.tile(np.arange(width, dtype=np.int32), g), self._queries),
                _lists(values, offsets, None),
                _lists(cells, np.concatenate([[0], np.cumsum(cell_lengths)]), ~partial),
                pa.array(np.stack([column.variance for column in ordered], axis=1).ravel()),
            ],
            schema=MEASUREMENT_SCHEMA,
        )
        if self._sink is None:
            raise FormatError("use a measurement writer as a context manager.")
        self._sink.write(table)


def _lists(values: Ints, offsets: Ints, null: Bools | None) -> object:
    mask = None if null is None else pa.array(null)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(values), type=pa.list_(pa.int64()), mask=mask
    )


def _interleave(values: Sequence[Ints], offsets: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Put the lists of several queries geounit by geounit: (flat values, offsets (g * Q + 1))."""
    lengths = np.stack([np.diff(o) for o in offsets], axis=1)
    out_offsets = np.concatenate([[0], np.cumsum(lengths.ravel())]).astype(np.int64)
    if bool(np.all(lengths == lengths[:1])):
        g = len(lengths)
        blocks = [v.reshape(g, -1) for v in values] if g else values
        return np.concatenate(blocks, axis=1 if g else 0).ravel(), out_offsets
    flat = np.empty(int(out_offsets[-1]), dtype=np.int64)
    width = len(values)
    for k, (value, own) in enumerate(zip(values, offsets, strict=True)):
        shift = np.repeat(out_offsets[:-1][k::width] - own[:-1], lengths[:, k])
        flat[shift + np.arange(len(value))] = value
    return flat, out_offsets
