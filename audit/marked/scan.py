"""Look for marks in files and folders, inside whatever they are packed in.

Unpacked are: zips (also behind a header), gzip, bzip2, xz, zstandard and LZ4 streams (wherever in a file they
start), deflated streams of PDFs, data within HTML; tables of Parquet and Arrow are read column by column.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from audit.marked.marks import Mark

__all__ = ["Found", "scan_bytes", "scan_folder"]

_DEEPEST = 5
_MOST = 1 << 28
_STARTS_AT_MOST = 2000


@dataclass(frozen=True)
class Found:
    """A mark in a file.

    Parameters
    ----------
    where : str
        File, and what within it.
    mark, form : str
    """

    where: str
    mark: str
    form: str


def scan_folder(
    folder: Path, marks: Sequence[Mark], *, skip: Callable[[Path], bool] = lambda path: False
) -> tuple[list[Found], int]:
    """Scan every file below a folder, and the names of all.

    Parameters
    ----------
    folder : Path
    marks : sequence of Mark
    skip : callable
        Takes a path relative to the folder; a folder that is skipped is not entered.

    Returns
    -------
    found : list of Found
    scanned : int
        Number of files.
    """
    found: list[Found] = []
    scanned = 0
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(skip(part) for part in (relative, *relative.parents)):
            continue
        found += [
            Found(f"name of {relative}", m.name, form) for m in marks for form in m.found(bytes(relative))
        ]
        if path.is_symlink():
            continue
        if path.is_file():
            scanned += 1
            found += scan_bytes(path.read_bytes(), marks, str(relative))
    return found, scanned


def scan_bytes(data: bytes, marks: Sequence[Mark], where: str, deep: int = 0) -> list[Found]:
    """Scan bytes, and what is packed in them."""
    found = [Found(where, mark.name, form) for mark in marks for form in mark.found(data)]
    for name, table in _tables(data):
        found += _scan_table(table, marks, f"{where} {name}")
    if deep < _DEEPEST:
        for name, inner in _unpacked(data):
            found += scan_bytes(inner, marks, f"{where} > {name}", deep + 1)
    return found


def _scan_table(table: pa.Table, marks: Sequence[Mark], where: str) -> Iterator[Found]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        for kind, values in _flat(column):
            for mark in marks:
                if kind == "number" and mark.number is not None:
                    if pc.any(pc.equal(values, pa.scalar(mark.number).cast(values.type, safe=False))).as_py():
                        yield Found(f"{where}, column {name}", mark.name, "number")
                elif kind == "text":
                    joined = b"\0".join(value for value in values.to_pylist() if value is not None)
                    yield from (Found(f"{where}, column {name}", mark.name, f) for f in mark.found(joined))


def _flat(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """Yield the numbers and texts of a column, out of lists and dictionaries."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield from _flat(array.dictionary)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _flat(array.flatten())
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _flat(part)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        wide = (pa.types.is_integer(kind) and kind.bit_width >= 32) or kind.bit_width == 64
        if wide and not pa.types.is_float16(kind):
            yield "number", array
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        yield "text", pc.unique(array.cast(pa.large_binary()))


def _tables(data: bytes) -> Iterator[tuple[str, pa.Table]]:
    buffer = pa.BufferReader(data)
    try:
        if data[:4] == b"PAR1" == data[-4:]:
            yield "as Parquet", pq.read_table(buffer, use_threads=False)
        elif data[:6] == b"ARROW1":
            yield "as Arrow", ipc.open_file(buffer).read_all()
        elif data[:4] == b"\xff\xff\xff\xff":
            yield "as Arrow stream", ipc.open_stream(buffer).read_all()
    except (pa.ArrowException, OSError):
        return  # torn: its bytes are scanned


def _unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield from _zips(data)
    yield from _streams(data)
    if data[:5] == b"%PDF-":
        yield from _within_pdf(data)
    for number, text in enumerate(re.findall(rb"base64,([A-Za-z0-9+/=]{16,})", data)):
        try:
            yield f"data {number}", base64.b64decode(text)
        except binascii.Error:
            continue


def _zips(data: bytes) -> Iterator[tuple[str, bytes]]:
    if b"PK\x05\x06" not in data:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, RuntimeError):
        return


def _within_pdf(data: bytes) -> Iterator[tuple[str, bytes]]:
    for number, found in enumerate(re.finditer(rb"stream\r?\n", data)):
        body = data[found.end() : data.find(b"endstream", found.end())]
        for name, decode in (
            ("plain", bytes),
            ("ascii85", lambda text: base64.a85decode(text.strip(), adobe=True)),
        ):
            try:
                text = b"<~" + body if name == "ascii85" and not body.startswith(b"<~") else body
                yield f"stream {number}", zlib.decompressobj().decompress(decode(text), _MOST)
            except (zlib.error, ValueError):
                continue


def _arrow_stream(codec: str) -> Callable[[bytes], bytes]:
    def decode(data: bytes) -> bytes:
        out = io.BytesIO()
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            try:
                while chunk := stream.read(1 << 20):
                    out.write(chunk)
            except OSError:  # what follows the stream is something else
                pass
        return out.getvalue()

    return decode


def _spark_blocks(data: bytes) -> bytes:
    """Return what is in blocks of LZ4 as Spark writes them: magic, method, two lengths, checksum, data."""
    out = io.BytesIO()
    while data.startswith(_LZ4_BLOCK) and len(data) > _LZ4_HEAD:
        packed, plain = struct.unpack("<ii", data[9:17])
        body = data[_LZ4_HEAD : _LZ4_HEAD + packed]
        is_packed = data[8] & 0xF0 == 0x20
        out.write(pa.decompress(body, plain, codec="lz4_raw", asbytes=True) if is_packed else body)
        data = data[_LZ4_HEAD + packed :]
    return out.getvalue()


_LZ4_BLOCK = b"LZ4Block"
_LZ4_HEAD = 21

_STREAMS: tuple[tuple[str, bytes, Callable[[bytes], bytes]], ...] = (
    ("gzip", b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data, _MOST)),
    ("bzip2", b"BZh", lambda data: bz2.BZ2Decompressor().decompress(data, _MOST)),
    ("xz", b"\xfd7zXZ\x00", lambda data: lzma.LZMADecompressor().decompress(data, _MOST)),
    ("zstandard", b"\x28\xb5\x2f\xfd", _arrow_stream("zstd")),
    ("LZ4", b"\x04\x22\x4d\x18", _arrow_stream("lz4")),
    ("LZ4 blocks", _LZ4_BLOCK, _spark_blocks),
)


def _streams(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what is compressed, wherever in `data` it starts."""
    for name, magic, decode in _STREAMS:
        for start in _starts(data, magic):
            try:
                inner = decode(data[start:])
            except (
                OSError,
                EOFError,
                zlib.error,
                lzma.LZMAError,
                ValueError,
                struct.error,
                pa.ArrowException,
            ):
                continue
            if inner:
                yield f"{name} at {start}", inner


def _starts(data: bytes, magic: bytes) -> Iterable[int]:
    start = data.find(magic)
    for _ in range(_STARTS_AT_MOST):
        if start < 0:
            return
        yield start
        start = data.find(magic, start + 1)
