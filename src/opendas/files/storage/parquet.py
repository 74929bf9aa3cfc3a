"""Parquet files whose bytes are a function of their content.

Row groups, compression and encodings are fixed here; the Arrow schema is not embedded, so that text
written from dictionaries is read back as plain text everywhere. What remains is the version of the
Parquet library.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from opendas.arrays import Codes
from opendas.custody.folders import atomic_file
from opendas.errors import DataError, EnvironmentFailure, FormatError
from opendas.files.storage.addresses import RemotePath
from opendas.privacy.exact import canonical_json

P = ParamSpec("P")
T = TypeVar("T")

METADATA_KEY = b"opendas"
"""Key of the JSON object in the metadata of every Parquet file of a release."""

ROW_GROUP = 1 << 17
"""Rows a row group."""

_ZSTD_LEVEL = 3

_OF_OTHER_CONTENT = (
    pa.ArrowException, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What meets those who take a file at its word: columns and metadata are there, and of their types."""


class ParquetSink:
    """A Parquet file being written; made by :func:`parquet_sink`."""

    def __init__(self, writer: Any, schema: Any, row_group: int) -> None:
        self._writer = writer
        self._row_group = row_group
        self.schema = schema

    def write(self, table: Any) -> None:
        """Append a table; it starts a new row group."""
        self._writer.write_table(table, row_group_size=self._row_group)


@contextlib.contextmanager
def parquet_sink(
    path: Path,
    schema: Any,
    *,
    metadata: Mapping[str, object] | None = None,
    delta: Collection[str] = (),
    plain: Collection[str] = (),
    bounds: Collection[str] | None = None,
    row_group: int = ROW_GROUP,
) -> Iterator[ParquetSink]:
    """Open a Parquet file for writing; it appears whole when the block ends without an error.

    - `metadata`: JSON values, stored under the key ``opendas``.
    - `delta`: leaf columns of integers that are packed as differences; all others use a dictionary.
    - `plain`: leaf columns whose values stand one after the other. Some readers take dictionaries of lists
      for something else, without an error.
    - `bounds`: leaf columns whose least and greatest value each row group tells, so that readers may skip it;
      by default all. They cost as much as the values: name those that someone searches by.
    - `row_group`: most rows of a row group.
    """
    leaves = _leaf_paths(schema)
    with atomic_file(path) as file:
        writer = pq.ParquetWriter(
            file,
            schema,
            version="2.6",
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[leaf for leaf in leaves if leaf not in delta and leaf not in plain],
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED") or None,
            data_page_version="1.0",
            write_statistics=True if bounds is None else list(bounds),
            store_schema=False,
        )
        try:
            yield ParquetSink(writer, schema, row_group)
            if metadata is not None:
                writer.add_key_value_metadata({METADATA_KEY: canonical_json(dict(metadata))})
            writer.close()
        except BaseException:
            # The library would otherwise close the writer later, onto a file that is gone.
            with contextlib.suppress(Exception):
                writer.close()
            raise


def _leaf_paths(schema: Any) -> list[str]:
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in schema]


def write_parquet(
    path: Path, table: Any, *, metadata: Mapping[str, object] | None = None, delta: Collection[str] = ()
) -> None:
    """Write one table; see :func:`parquet_sink`."""
    write_batches(path, iter([table]), metadata=metadata, delta=delta)


def write_batches(path: Path, tables: Iterator[Any], **how: Any) -> bool:
    """Write tables of one schema; False, and no file, where there is none.

    - `how`: as for :func:`parquet_sink`.
    """
    first = next(tables, None)
    if first is None:
        return False
    with parquet_sink(path, first.schema, **how) as sink:
        for table in itertools.chain([first], tables):
            sink.write(table)
    return True


def open_parquet(path: Path, *, memory_map: bool = False, dictionaries: Collection[str] = ()) -> Any:
    """Open a Parquet file."""
    texts = list(dictionaries) or None
    if isinstance(path, RemotePath):  # parts that stand near each other are fetched together
        return _open_remote(path, texts)
    try:
        return pq.ParquetFile(path, memory_map=memory_map, read_dictionary=texts)
    except FileNotFoundError as error:
        raise FormatError(f"{path.name}: no such file.") from error
    except (pa.ArrowException, ValueError) as error:
        raise FormatError(f"{path.name}: not a whole Parquet file.") from error
    except OSError as error:
        if error.errno is None:
            # The library's own word for content that it cannot decode.
            raise FormatError(f"{path.name}: not a whole Parquet file.") from error
        raise EnvironmentFailure(f"{path.name} cannot be read: {error.strerror or 'read error'}.") from error


def _open_remote(path: RemotePath, texts: list[str] | None) -> Any:
    """Open a file at an address; its footer is fetched once."""
    known = path.__dict__.get("footer")
    try:
        file = pq.ParquetFile(path.open_parts(), metadata=known, read_dictionary=texts, pre_buffer=True)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path.address} cannot be read, or is not a whole Parquet file.") from error
    path.__dict__["footer"] = file.metadata
    return file


def has_columns(path: Path, schema: Any) -> bool:
    """Return whether a file has the columns of a schema, as :func:`parquet_sink` stores them, and no others.

    Metadata under other keys than ``opendas`` are no part of a release either.
    """
    file = open_parquet(path)
    found = [(field.name, str(field.type), field.nullable) for field in file.schema_arrow]
    wanted = [(field.name, str(_stored(field.type)), field.nullable) for field in schema]
    return found == wanted and set(file.metadata.metadata or {}) <= {METADATA_KEY}


def _stored(kind: Any) -> Any:
    """Return an Arrow type as it is read back: the schema is not embedded."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return pa.list_(pa.field("element", kind.value_type)) if pa.types.is_list(kind) else kind


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Blame `path` for what goes wrong while it is understood: it was damaged, or written by others.

    Errors of OpenDAS go through, with the name of the file where they lack it, and memory that is not there
    is no fault of a file.
    """
    try:
        yield
    except MemoryError:
        raise
    except DataError as error:
        if path.name in str(error):
            raise
        named = type(error)(f"{path.name}: {error}")
        named.findings = error.findings
        raise named from error
    except OSError as error:
        if isinstance(path, RemotePath):
            raise EnvironmentFailure(
                f"{path.address} cannot be read, or is not a whole file: {error.strerror or 'read error'}."
            ) from error
        if error.errno is not None:
            raise EnvironmentFailure(
                f"{path.name} cannot be read: {error.strerror or 'read error'}."
            ) from error
        raise FormatError(f"{path.name}: not a whole Parquet file.") from error
    except _OF_OTHER_CONTENT as error:
        raise FormatError(
            f"{path.name}: damaged, or written by another program: a column, a type, a value or the metadata "
            "are not those of this kind of file."
        ) from error


def reads_file(function: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
    """Blame the file that a function takes first for what goes wrong in it; see :func:`reading`."""

    @functools.wraps(function)
    def read(path: Path, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with reading(path):
            return function(path, *args, **kwargs)

    return read


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the JSON object under the key ``opendas``."""
    stored = open_parquet(path).metadata.metadata or {}
    if METADATA_KEY not in stored:
        raise FormatError(
            f"{path.name}: no 'opendas' metadata, which opendas writes into every Parquet file of a release."
        )
    try:
        value = json.loads(stored[METADATA_KEY])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path.name}: the 'opendas' metadata are not JSON.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path.name}: the 'opendas' metadata are not a JSON object.")
    return value


def bytes_column(values: Codes) -> Any:
    """Return a bytes array as an Arrow string array."""
    width = values.dtype.itemsize
    data = np.ascontiguousarray(values)
    if len(data) and width and bool(np.all(np.char.str_len(data) == width)):
        offsets = np.arange(len(data) + 1, dtype=np.int64) * width
        if offsets[-1] < 1 << 31:
            return pa.StringArray.from_buffers(
                len(data), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data.tobytes())
            )
    return pa.array(values.tolist(), type=pa.binary()).cast(pa.string())


def text_column(indices: npt.NDArray[np.integer], values: Any) -> Any:
    """Return an Arrow string column given as positions into a list of values."""
    dictionary = values if isinstance(values, pa.Array) else pa.array(list(values), type=pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32, copy=False)), dictionary)


def one_array(column: Any) -> Any:
    """Return a column of a table as one Arrow array; its dictionaries are made one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    array = column.unify_dictionaries().combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def to_bytes(column: Any) -> Codes:
    """Return an Arrow string column, without nulls, as a bytes array."""
    array = one_array(column)
    if len(array) == 0:
        return np.zeros(0, dtype="S1")
    if array.null_count:
        raise FormatError("a column of geocodes with a gap in it.")
    if pa.types.is_string(array.type):
        stop = array.offset + len(array) + 1
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : stop]
        lengths = np.diff(offsets)
        width = int(lengths[0])
        if width and bool(np.all(lengths == width)):
            raw = np.frombuffer(array.buffers()[2], dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
            return raw.copy().view(f"S{width}")
    return np.array([value.encode("utf-8") for value in array.to_pylist()])
