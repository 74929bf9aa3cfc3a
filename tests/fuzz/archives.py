"""Edits of zip files: members damaged, renamed, doubled, left out, locked, or larger than they look."""

from __future__ import annotations

import io
import lzma
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence

from fuzz.choices import Choices

__all__ = ["zip_edit"]

_NAMES = (
    "../../x.pl", "/x.pl", "x/", "a" * 300, "", "fbgeo2010.pl", "fb000012010.pl", "FBGEO2020.PL",
    "fb000032020.pl",
    "BlockAssign_ST98_FB_CD.txt", "BlockAssign_ST98_FB_../CD.txt", "é.pl", "x\\y.pl",
)  # fmt: skip
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_BOMB = 96 << 20

_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, LookupError,
    RuntimeError,
    ValueError, NotImplementedError,
)  # fmt: skip

Members = list[tuple[str, bytes]]


def _packed(members: Members, method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name are meant
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name or "."), data, compress_type=method)
    return buffer.getvalue()


def _flagged(data: bytes, flag: int) -> bytes:
    """Set a bit of the general flags in every entry of the directory, and in every local header."""
    changed = bytearray(data)
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.find(mark)
        while at >= 0 and at + offset < len(changed):
            changed[at + offset] |= flag
            at = data.find(mark, at + 1)
    return bytes(changed)


def _members(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [
            (info.filename, archive.read(info)) for info in archive.infolist() if info.file_size < 1 << 23
        ]


def zip_edit(edits: Sequence[Callable[[bytes, Choices], bytes]]) -> Callable[[bytes, Choices], bytes]:
    """Return an edit of an archive; `edits` are those of its members' text."""

    def edit(data: bytes, choices: Choices) -> bytes:
        try:
            members = _members(data)
        except _UNREADABLE:
            return data
        if not members:
            return data
        at = choices.below(len(members))
        name, text = members[at]
        kind = choices.below(16)
        if kind == 0:
            del members[at]
        elif kind == 1:
            members[at] = (choices.of(_NAMES), text)
        elif kind == 2:
            members.append((choices.of((name, name.upper(), f"x/{name}", *_NAMES)), text))
        elif kind == 3:
            return _flagged(_packed(members, zipfile.ZIP_DEFLATED), 1)
        elif kind == 4:
            members[at] = (name, members[choices.below(len(members))][1])
        elif kind == 5 and choices.below(64) == 7:
            members[at] = (name, b"0" * _BOMB)
            return _packed(members, zipfile.ZIP_DEFLATED)
        else:
            members[at] = (name, choices.of(edits)(text, choices))
        return _packed(members, choices.of(_METHODS))

    return edit
