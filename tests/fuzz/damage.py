"""What is done to a valid file: bytes, lines, fields, types, encodings, archives, one edit at a time."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath

from fuzz.archives import zip_edit
from fuzz.choices import Choices
from fuzz.columns import parquet_edit
from fuzz.documents import document_edit

__all__ = ["MOST_EDITS", "damaged"]

MOST_EDITS = 6
_LARGEST = 1 << 22
"""Edits that double a file stop here; a bomb is an edit of its own."""

Edit = Callable[[bytes, Choices], bytes]

TOKENS = (
    b"", b"0", b"-1", b"1", b"+1", b" 1", b"1 ", b"1.5", b"1e3", b"1e999", b"NaN", b"nan", b"inf", b"-0",
    b"00",
    b"0x10", b"1_000", b"9" * 9, b"2147483648", b"4611686018427387904", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"9" * 40, b"-9" * 30, b"9" * 5000, b"None", b"null",
    b"true", b"True", b"\x00", b"\x00\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80",
    b"\xe2\x80\xae", b"\xf4\x90\x80\x80", "\u0661\u0662".encode(), "\u00e9".encode(), "\U0001f600".encode(),
    b"\r", b"\n", b"\r\n", b"\n\n\n", b"\t", b",", b"|", b";", b",,,,", b'"', b'""', b"'", b"\\", b"\\u0000",
    b"#", b"# x\n", b"=", b"[", b"]", b"{", b"}", b"[[", b"%s", b"%", b"${x}", b"../../x", b"/dev/zero",
    b"a" * 300, b"x" * 70_000, b"*", b"/", b"1/3", b"1/0", b"-1/2", b"total", b"detailed", b"rest",
    b"\x1a", b"\x0c",
)  # fmt: skip

_SEPARATORS = (b",", b"|", b";", b"\t", b":", b"=", b" ")


def _replace(data: bytes, choices: Choices) -> bytes:
    """Put a token, or bytes of the fuzzer's own, over some bytes."""
    start = choices.below(len(data) + 1)
    length = choices.of((0, 0, 1, 2, 3, 5, 9, 20, 80, 400, 5000))
    token = choices.of(TOKENS) if choices.below(4) else choices.bytes(choices.below(12))
    return data[:start] + token + data[start + length :]


def _field(data: bytes, choices: Choices) -> bytes:
    """Change one field of one line: its value, its place, or whether it is there."""
    lines = data.split(b"\n")
    number = choices.below(len(lines))
    line = lines[number]
    separator = max(_SEPARATORS[:4], key=line.count)
    if not line.count(separator):
        separator = max(_SEPARATORS, key=line.count)
    fields = line.split(separator)
    at = choices.below(len(fields))
    kind = choices.below(5)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.insert(at, choices.of(TOKENS))
    elif kind == 2 and len(fields) > 1:
        fields[at], fields[at - 1] = fields[at - 1], fields[at]
    else:
        fields[at] = choices.of(TOKENS)
    lines[number] = separator.join(fields)
    return b"\n".join(lines)


def _lines(data: bytes, choices: Choices) -> bytes:
    """Remove, repeat, move or cut lines."""
    lines = data.split(b"\n")
    first = choices.below(len(lines))
    number = 1 + choices.of((0, 0, 0, 1, 4, 30))
    block = lines[first : first + number]
    kind = choices.below(7)
    if kind == 0:
        del lines[first : first + number]
    elif kind == 1:
        lines[first:first] = block
    elif kind == 2:
        at = choices.below(len(lines) + 1)
        lines[at:at] = block
    elif kind == 3:
        lines[first] = lines[first][: choices.below(len(lines[first]) + 1)]
    elif kind == 4:
        lines[first] += choices.of(TOKENS)
    elif kind == 5:
        lines[first : first + 2] = [b"".join(lines[first : first + 2])]
    elif len(data) * 40 < _LARGEST:
        lines[first:first] = block * 40
    return b"\n".join(lines)


def _number(data: bytes, choices: Choices) -> bytes:
    """Change a number in a text."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return _replace(data, choices)
    match = found[choices.below(len(found))]
    return data[: match.start()] + choices.of(TOKENS) + data[match.end() :]


def _span(data: bytes, choices: Choices) -> bytes:
    """Cut the end off, keep it alone, or copy a part elsewhere."""
    at = choices.below(len(data) + 1)
    kind = choices.below(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[at:]
    length = choices.of((1, 2, 8, 40, 300))
    to = choices.below(len(data) + 1)
    return data[:to] + data[at : at + length] + data[to + (length if kind == 3 else 0) :]


def _flip(data: bytes, choices: Choices) -> bytes:
    """Change single bytes."""
    changed = bytearray(data)
    for _ in range(1 + choices.below(4)):
        if changed:
            changed[choices.below(len(changed))] ^= 1 + choices.below(255)
    return bytes(changed)


def _encode(data: bytes, choices: Choices) -> bytes:
    """Write the whole text in another way."""
    text = data.decode("latin-1")
    kind = choices.below(12)
    if kind < 4:
        return text.encode(("utf-16", "utf-16-le", "utf-32", "utf-7")[kind])
    return (
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b"\r"),
        lambda: data.rstrip(b"\n"),
        lambda: gzip.compress(data, mtime=0),
        lambda: data.replace(b"\n", b" "),
        lambda: b"",
        lambda: data.replace(b",", b"\x00"),
    )[kind - 4]()


def _repacked(edit: Edit) -> Edit:
    def inner(data: bytes, choices: Choices) -> bytes:
        """Damage what a gzip file holds."""
        try:
            text = gzip.decompress(data)
        except (OSError, EOFError, ValueError):
            return edit(data, choices)
        if choices.below(40) == 0:
            return gzip.compress(text + b"0" * (1 << 25), mtime=0)
        return gzip.compress(edit(text, choices), mtime=0)

    return inner


_TEXT: tuple[Edit, ...] = (_replace, _field, _field, _lines, _number, _span, _flip, _encode)
_BY_SUFFIX: Mapping[str, tuple[Edit, ...]] = {
    ".toml": (*_TEXT, document_edit("toml"), document_edit("toml"), document_edit("toml")),
    ".json": (*_TEXT, document_edit("json"), document_edit("json"), document_edit("json")),
    ".jsonl": (*_TEXT, document_edit("jsonl"), document_edit("jsonl")),
    ".parquet": (parquet_edit, parquet_edit, parquet_edit, parquet_edit, _flip, _replace, _span),
    ".zip": (zip_edit(_TEXT), zip_edit(_TEXT), zip_edit(_TEXT), zip_edit(_TEXT), _flip, _replace, _span),
    ".gz": (*(_repacked(edit) for edit in _TEXT), _flip, _span, _replace),
    ".part": (_flip, _replace, _span),
}


def damaged(files: Mapping[str, bytes], data: bytes, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Return `files` with some of those named in `wanted` damaged, as `data` says.

    Parameters
    ----------
    files : mapping of relative path to content
    data : bytes
        What the fuzzer gives; the empty string damages nothing.
    wanted : tuple of str
        Files that may be changed.
    """
    choices = Choices(data)
    changed = dict(files)
    for _ in range(MOST_EDITS):
        if choices.done:
            break
        name = choices.of(wanted)
        edits = _BY_SUFFIX.get(PurePath(name).suffix, _TEXT)
        changed[name] = choices.of(edits)(changed[name], choices)
    return changed
