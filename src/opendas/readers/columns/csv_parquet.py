"""CSV and Parquet files as batches of the columns that are wanted.

CSV may be compressed with gzip, separated by commas, bars, semicolons or tabs, and start with lines of
metadata that begin with ``#``. Columns of a partitioned data set may come from folders named
``column=value``. Every error is told in our own words: the library's messages quote the row.
"""

from __future__ import annotations

import csv as textcsv
import errno
import gzip
import io
import lzma
import os
import zipfile
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, TypeGuard, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from opendas.arrays import Bools
from opendas.errors import (
    PATH_ERRORS,
    DataError,
    EnvironmentFailure,
    Finding,
    FormatError,
    SchemaError,
    refuse_system_error,
)
from opendas.files.storage.zips import DAMAGED_ZIP, opened_member
from opendas.readers.columns.findings import FindingLog
from opendas.readers.input.spec import MemoryTable, Source, ZipMember

BATCH_ROWS = 1 << 20
PUBLIC_ROWS = 1 << 17
"""Rows of a batch where batches become large arrays: what the batch itself takes is small beside them."""

_BLOCK_BYTES = 1 << 24
_LEAST_ROWS = 1 << 16  # of a file whose columns are worth a thread each
_TEXT = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_DAMAGED = (
    "expected a whole CSV file in UTF-8, or a Parquet file whose name ends in .parquet or .pq; this one is "
    "damaged or of another kind"
)
_LIBRARY_ERRORS = (
    pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeDecodeError,
    textcsv.Error,
)  # fmt: skip
_PARQUET = (".parquet", ".pq")
_COMPARED = 1000
"""Column names that a missing one is compared with; a file of more is no table of ours."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """Consecutive rows of one file."""

    where: str  # file name, as findings name it
    first: int  # line of the first row: 1-based, the header of a CSV file being a line too
    columns: Mapping[str, Any]  # name -> Arrow array
    rows: int

    def report(
        self,
        wrong: Bools,
        field: str | None,
        rule: str,
        log: FindingLog,
        kind: type[DataError] = SchemaError,
    ) -> None:
        """Record every row where `wrong`, bool (rows,), is true."""
        log.add_where(kind, self.where, wrong, field, rule, first=self.first)


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How a CSV file is written."""

    skip: int  # lines before the header
    delimiter: str
    names: tuple[str, ...]


def column_names(path: Source | ZipMember) -> tuple[str, ...]:
    """Return the columns a file has, those from its folders included."""
    return (*_own_names(path), *_folder_columns(path))


def _own_names(path: Source | ZipMember) -> tuple[str, ...]:
    if isinstance(path, MemoryTable):
        return tuple(path.table.column_names)
    if is_parquet(path):
        with _OwnWords(path):
            return tuple(pq.read_schema(path).names)
    return csv_form(path).names


def is_parquet(path: Source | ZipMember) -> TypeGuard[Path]:
    """Return whether a source is a Parquet file, by its name."""
    return isinstance(path, Path) and path.name.lower().endswith(_PARQUET)


def _folder_columns(path: Source | ZipMember) -> dict[str, str]:
    if not isinstance(path, Path):
        return {}
    pairs = (part.split("=", 1) for part in path.parent.parts if "=" in part)
    return {name: unquote(value) for name, value in pairs}


def shown_name(path: Source | ZipMember) -> str:
    """Return how findings name a file: its own name, behind those of the folders of a partitioned data set.

    Examples
    --------
    >>> shown_name(Path("/data/persons/state=01/county=003/part-0.parquet"))
    'state=01/county=003/part-0.parquet'
    """
    if not isinstance(path, Path):
        return path.name
    folders = [part for part in path.parent.parts if "=" in part]
    return "/".join([*folders, path.name])


class _OwnWords:
    """Turns the library's errors into ours."""

    def __init__(self, source: Path | ZipMember) -> None:
        self.source = source
        self.path = source if isinstance(source, Path) else source.path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, FormatError | MemoryError):
            return
        if self.path.is_dir():
            raise EnvironmentFailure(f"{self.path}: {PATH_ERRORS[errno.EISDIR]}.") from None
        if isinstance(error, PermissionError | FileNotFoundError):
            raise EnvironmentFailure(f"{self.path}: {os.strerror(error.errno or errno.ENOENT)}.") from None
        refuse_system_error(self.path, error)
        if isinstance(error, _LIBRARY_ERRORS):
            raise _unreadable(self.source, None, _DAMAGED) from None


def csv_form(path: Path | ZipMember) -> CsvForm:
    """Look at the header of a CSV file, which may be compressed.

    Raises `FormatError` if it is none, or two columns have the same name.
    """
    skip = 0
    with _OwnWords(path), _opened(path) as file:
        line = file.readline(1 << 20).removeprefix(BOM_UTF8)
        while line.startswith(b"#"):
            skip += 1
            line = file.readline(1 << 20)
        text = line.decode("utf-8").rstrip("\r\n")
    delimiter = max(",|;\t", key=text.count)
    with _OwnWords(path):
        names = next(textcsv.reader([text], delimiter=delimiter), [])
    log = FindingLog()
    if not text.strip() or "\0" in text:
        end = "the end of the file" if skip else "an empty file"
        nothing = "a blank line" if line else end
        rule = _DAMAGED if text.strip() else f"expected a header with column names, found {nothing}"
        log.add(FormatError, shown_name(path), skip + 1, None, rule)
    if len(set(names)) < len(names):
        # Names are not quoted: without its header, the first line of a file is a record.
        times = Counter(names)
        again = [str(at) for at, name in enumerate(names, start=1) if times[name] > 1][:12]
        rule = f"expected a header with each column name once; the names of columns {', '.join(again)} repeat"
        log.add(FormatError, shown_name(path), skip + 1, None, rule)
    log.raise_if_any(f"{shown_name(path)} cannot be read.")
    return CsvForm(skip, delimiter, tuple(names))


def read_batches(
    path: Source | ZipMember,
    columns: Sequence[str],
    log: FindingLog,
    *,
    coded: bool = False,
    rows: int | None = None,
) -> Iterator[Batch]:
    """Yield the wanted columns of a file, batch by batch.

    Text comes as Arrow binary, numbers of Parquet files in their own type. Rows of CSV files with a wrong
    number of fields are recorded in `log` and left out.

    - `coded`: text of Parquet files comes as dictionaries, which is faster where values repeat.
    - `rows`: most rows of a batch, except of CSV files, which are cut by bytes.
    """
    file = None
    if is_parquet(path):
        with _OwnWords(path):
            file = pq.ParquetFile(path)
    own = _own_names(path) if file is None else tuple(file.schema_arrow.names)
    folders = _folder_columns(path)
    _check_columns(path, own, folders, columns)
    wanted = [name for name in columns if name in own]
    if isinstance(path, MemoryTable):
        yield from _memory_batches(path, wanted, rows or BATCH_ROWS)
        return
    with _OwnWords(path):
        if file is None:
            batches = _csv_batches(path, wanted, log)
        else:
            file = _with_dictionaries(path, file, wanted) if coded and is_parquet(path) else file
            batches = _parquet_batches(file, wanted, rows or BATCH_ROWS)
        for first, batch in batches:
            _check_types(path, batch.schema)
            arrays = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            for name in columns:
                if name not in own:
                    arrays[name] = pa.array([folders[name].encode()] * batch.num_rows, type=pa.binary())
            yield Batch(shown_name(path), first, arrays, batch.num_rows)


def _memory_batches(source: MemoryTable, wanted: list[str], rows: int) -> Iterator[Batch]:
    first = 1
    _check_types(source, source.table.select(wanted).schema)
    for batch in source.table.select(wanted).to_batches(max_chunksize=rows):
        arrays = {
            name: array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        }
        yield Batch(source.name, first, arrays, batch.num_rows)
        first += batch.num_rows


def no_rows(path: Source | ZipMember) -> FormatError:
    """Return the error of an input without any row; a part of a data set may be empty, the whole may not."""
    finding = Finding(shown_name(path), None, None, "expected rows, found none")
    return FormatError("the input is empty.", [finding])


def _unreadable(path: Source | ZipMember, line: int | None, rule: str) -> FormatError:
    finding = Finding(shown_name(path), line, None, rule)
    return FormatError(f"{shown_name(path)} cannot be read.", [finding])


def _check_columns(
    path: Source | ZipMember, own: Sequence[str], folders: Mapping[str, str], wanted: Sequence[str]
) -> None:
    log = FindingLog()
    known = [*own, *folders]
    for name in dict.fromkeys(wanted):
        if name in known:
            if own.count(name) > 1:
                log.add(FormatError, shown_name(path), None, name, "expected one column of this name")
            continue
        near = get_close_matches(name, known[:_COMPARED], n=1)
        # Digits that a name does not have may be those of a record, run into the header.
        same = near and set(filter(str.isdigit, near[0])) <= set(name)
        hint = f'; did you mean "{near[0]}"?' if same else _shown_columns(path, own, folders)
        log.add(FormatError, shown_name(path), None, name, f"this column is missing{hint}")
    log.raise_if_any(f"{shown_name(path)} lacks columns, or has several of one name.")


def _shown_columns(path: Source | ZipMember, own: Sequence[str], folders: Mapping[str, str]) -> str:
    """Name the columns there are, but not those of a text file: without its header, they are a record."""
    if isinstance(path, MemoryTable) or is_parquet(path):
        known = [*own, *folders]
        return f"; there are {', '.join(known[:12])}{', ...' * (len(known) > 12)}"
    return f"; the line that was read as the header has {len(own)} columns. Does the file have a header?"


def _check_types(path: Source | ZipMember, schema: Any) -> None:
    """Refuse columns of lists, of records and of types that others define: a field is one text or number."""
    log = FindingLog()
    for name, kind in zip(schema.names, schema.types, strict=True):
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            rule = "expected text or numbers, found a nested or an extension type"
            log.add(FormatError, shown_name(path), None, name, rule)
    log.raise_if_any(f"{shown_name(path)} cannot be read.")


def _with_dictionaries(path: Path, file: Any, wanted: Sequence[str]) -> Any:
    """Open a file again, so that text comes as dictionaries; its own types are known only once it is open."""
    schema = file.schema_arrow
    texts = {name for name, kind in zip(schema.names, schema.types, strict=True) if kind in _TEXT}
    flat = {file.schema.column(i).path for i in range(len(file.schema))}
    coded = [name for name in wanted if name in texts & flat]
    return pq.ParquetFile(path, metadata=file.metadata, read_dictionary=coded) if coded else file


def _parquet_batches(file: Any, wanted: list[str], rows: int) -> Iterator[tuple[int, Any]]:
    first = 1
    threads = file.metadata.num_rows >= _LEAST_ROWS
    for batch in file.iter_batches(batch_size=rows, columns=wanted, use_threads=threads):
        _check_dictionaries(batch)
        yield first, batch
        first += batch.num_rows


def _check_dictionaries(batch: Any) -> None:
    """Refuse codes that point to nothing: the library takes them from a file as they are."""
    for array in batch.columns:
        if pa.types.is_dictionary(array.type):
            least, most = pc.min_max(array.indices).as_py().values()
            if most is not None and (least < 0 or most >= len(array.dictionary)):
                raise pa.ArrowInvalid("a code outside its dictionary")


def csv_options(
    names: Sequence[str],
    delimiter: str,
    *,
    wanted: Sequence[str] = (),
    types: Mapping[str, Any] | None = None,
    quotes: bool = True,
    skip: int = 0,
    block: int = 1 << 22,
) -> dict[str, Any]:
    """Return how the library parses text without a header: as bytes, but for `types`, and without any null.

    - `wanted`: columns to return; by default all.
    - `types`, name -> Arrow type.
    - `quotes`: whether fields may be quoted.
    - `block`: bytes that are parsed together.
    """
    return {
        "read_options": csv.ReadOptions(block_size=block, skip_rows=skip, column_names=list(names)),
        "parse_options": csv.ParseOptions(delimiter=delimiter, quote_char='"' if quotes else False),
        "convert_options": csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()) | dict(types or {}),
            include_columns=list(wanted),
            null_values=[],
            strings_can_be_null=False,
        ),
    }


def _csv_batches(path: Path | ZipMember, wanted: list[str], log: FindingLog) -> Iterator[tuple[int, Any]]:
    dialect = csv_form(path)
    first = dialect.skip + 2
    options = csv_options(
        dialect.names, dialect.delimiter, wanted=wanted, skip=dialect.skip + 1, block=_BLOCK_BYTES
    )
    try:
        if isinstance(path, ZipMember) or path.suffix.lower() == ".zip":
            stream: Any = _opened(path)
        else:
            stream = pa.input_stream(str(path), "gzip" if path.suffix.lower() == ".gz" else None)
        for batch in csv.open_csv(stream, **options):
            yield first, batch
            first += batch.num_rows
        _check_quotes(path, dialect, first - dialect.skip - 2, log)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error) and not _ragged_rows(path, dialect, log):
            raise


def _opened(path: Path | ZipMember) -> IO[bytes]:
    """Open a text file, which may be compressed with gzip, or stand alone in a zip file."""
    if isinstance(path, Path) and path.name.lower().endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if isinstance(path, Path) and not path.name.lower().endswith(".zip"):
        return open(path, "rb")
    rule = "expected a zip file, whole and not encrypted, with one table in it"
    try:
        archive = zipfile.ZipFile(path if isinstance(path, Path) else path.path)
        if isinstance(path, ZipMember):
            return opened_member(archive, path.member)
        tables = tables_in(archive)
        if len(tables) == 1:
            return archive.open(tables[0])
    except DAMAGED_ZIP as error:
        refuse_system_error(path if isinstance(path, Path) else path.path, error)
        raise _unreadable(path, None, rule) from error
    if tables:
        names = ", ".join(tables[:4]) + ", ..." * (len(tables) > 4)
        rule = (
            f"expected a zip file with one table in it; this one holds {len(tables)} ({names}). Unpack it, "
            "and give the tables of one kind"
        )
    raise _unreadable(path, None, rule)


def tables_in(archive: zipfile.ZipFile) -> list[str]:
    """Return the members of an archive that are tables of text, by their names."""
    names = [name for name in archive.namelist() if name.lower().endswith((".csv", ".txt", ".psv"))]
    return [name for name in names if Path(name).name[0] not in "._"]


def _rows_of(path: Path | ZipMember, dialect: CsvForm, *, strict: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the line and the number of fields of each row behind the header, slowly.

    A line that fills a block is none of a table, and might never end.
    """

    def lines(file: IO[str]) -> Iterator[str]:
        number = 0
        while line := file.readline(_BLOCK_BYTES):
            number += 1
            if len(line) == _BLOCK_BYTES:
                raise _unreadable(path, number, "expected lines of less than 16 MiB")
            if number > dialect.skip + 1:
                yield line

    with io.TextIOWrapper(_opened(path), encoding="latin-1", newline="") as file:
        rows = textcsv.reader(lines(file), delimiter=dialect.delimiter, strict=strict)
        for row in rows:
            yield rows.line_num + dialect.skip + 1, len(row)


def _check_quotes(path: Path | ZipMember, dialect: CsvForm, rows: int, log: FindingLog) -> None:
    """Record a quotation mark that does not close: all rows up to the next one were taken for its field.

    Only a file with fewer rows than lines, or an odd number of marks, is read again, slowly.
    """
    lines, marks, last = 0, 0, b"\n"
    with _opened(path) as file:
        while chunk := file.read(_BLOCK_BYTES):
            lines += chunk.count(b"\n")
            marks += chunk.count(b'"')
            last = chunk[-1:]
    if lines + (last != b"\n") == rows + dialect.skip + 1 and marks % 2 == 0:
        return
    line, count = dialect.skip + 1, 0
    try:
        for at, fields in _rows_of(path, dialect, strict=True):
            line, count = at, count + bool(fields)
    except textcsv.Error:
        count = -1
    if count == rows:
        log.note(
            shown_name(path),
            "line numbers leave out blank lines and line breaks inside quotation marks",
        )
    else:
        rule = "expected a closing quotation mark at the end of each field that begins with one"
        log.add(FormatError, shown_name(path), line + 1, None, rule)


def _ragged_rows(path: Path | ZipMember, dialect: CsvForm, log: FindingLog) -> bool:
    """Record the rows with a wrong number of fields; return whether there is one."""
    before, expected = len(log), len(dialect.names)
    wrong = (line for line, fields in _rows_of(path, dialect) if fields not in (0, expected))
    log.add_rows(FormatError, shown_name(path), wrong, None, f"expected {expected} fields")
    return len(log) > before
