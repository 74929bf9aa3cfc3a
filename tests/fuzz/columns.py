"""Edits of Parquet files: columns of other types, nested, missing, with gaps; metadata; rows; names."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.choices import Choices
from fuzz.documents import document_edit

__all__ = ["parquet_edit"]

_BAD = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, KeyError)
_JSON_EDIT = document_edit("json")
_TYPES = (
    pa.string(), pa.large_string(), pa.binary(), pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(),
    pa.float64(), pa.bool_(), pa.timestamp("us"), pa.date32(), pa.decimal128(30, 3), pa.null(),
    pa.dictionary(pa.int32(), pa.string()), pa.float16(), pa.list_(pa.int64()), pa.large_binary(),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 1.5, float("nan"), float("inf"), 2**31, 2**62, 2**63 - 1, -(2**63), "", "x", "\x00", "é",
    "9" * 40, b"\xff\xfe", b"", True, [], [1], [None], ["x"], {"a": 1}, [[1]], "a" * 5000, [2**62] * 3, [-1],
)  # fmt: skip


def _column(table: Any, choices: Choices, change: Callable[[list[Any]], Any]) -> Any:
    """Return the table with one column changed as a list of Python values."""
    at = choices.below(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    values = change(column.to_pylist())
    try:
        made = pa.array(values, type=column.type)
    except _BAD:
        made = pa.array(values)
    return table.set_column(at, name, made)


def _retyped(table: Any, choices: Choices) -> Any:
    at = choices.below(table.num_columns)
    return table.set_column(at, table.column_names[at], table.column(at).cast(choices.of(_TYPES), safe=False))


def _nested(table: Any, choices: Choices) -> Any:
    wraps: tuple[Callable[[Any], Any], ...] = (
        lambda v: [v],
        lambda v: {"a": v},
        lambda v: [v, v],
        lambda v: [],
    )
    wrap = choices.of(wraps)
    return _column(table, choices, lambda values: pa.array([wrap(value) for value in values]))


def _one_value(table: Any, choices: Choices) -> Any:
    def change(values: list[Any]) -> list[Any]:
        if values:
            values[choices.below(len(values))] = choices.of(_VALUES)
        return values

    return _column(table, choices, change)


def _every_value(table: Any, choices: Choices) -> Any:
    return _column(table, choices, lambda values: [choices.of(_VALUES)] * len(values))


def _rows(table: Any, choices: Choices) -> Any:
    kind = choices.below(5)
    at = choices.below(table.num_rows + 1)
    if kind == 0:
        return table.slice(0, 0)
    if kind == 1:
        return table.slice(0, at)
    if kind == 2:
        return pa.concat_tables([table, table.slice(at, 3)])
    if kind == 3:
        return pa.concat_tables([table.slice(at), table.slice(0, at)])
    return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])


def _names(table: Any, choices: Choices) -> Any:
    names = list(table.column_names)
    at = choices.below(len(names))
    kind = choices.below(4)
    if kind == 0:
        return table.remove_column(at)
    if kind == 1:
        names[at] = choices.of(("", "x", "é", "a" * 1000, "\x00", *names))
        return table.rename_columns(names)
    if kind == 2:
        return table.append_column(choices.of(("x", *names)), table.column(choices.below(len(names))))
    column = table.column(at)
    return pa.table(
        {**{n: table.column(n) for n in dict.fromkeys(names)}, **{f"c{i}": column for i in range(800)}}
    )


def _metadata(table: Any, choices: Choices) -> Any:
    stored = dict(table.schema.metadata or {})
    if not stored:
        return table
    key = choices.of(sorted(stored))
    if choices.below(8) == 0:
        del stored[key]
    else:
        stored[key] = _JSON_EDIT(stored[key], choices) if choices.below(4) else choices.bytes(9)
    return table.replace_schema_metadata(stored)


_EDITS = (_metadata, _retyped, _one_value, _one_value, _every_value, _nested, _rows, _names)


def parquet_edit(data: bytes, choices: Choices) -> bytes:
    """Change one thing in a Parquet file; what cannot be read any more is left as it is."""
    try:
        table = pq.read_table(io.BytesIO(data))
        metadata = pq.read_schema(io.BytesIO(data)).metadata
        changed = choices.of(_EDITS)(table.replace_schema_metadata(metadata), choices)
        sink = io.BytesIO()
        group = choices.of((None, None, 1, 7)) if changed.num_columns < 100 else None
        pq.write_table(changed, sink, compression="zstd", row_group_size=group, store_schema=False)
        return sink.getvalue()
    except _BAD:
        return data


def described(data: bytes) -> str:
    """Say what a Parquet file holds, for reports."""
    schema = pq.read_schema(io.BytesIO(data))
    return json.dumps({name: str(schema.field(i).type) for i, name in enumerate(schema.names)})
