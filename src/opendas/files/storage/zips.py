"""Zip files of others: unpacked within limits, and refused in our own words where they are damaged."""

from __future__ import annotations

import contextlib
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from opendas.errors import EnvironmentFailure, Finding, FormatError, refuse_system_error

SMALL = 1 << 24
"""Bytes that any member may have."""

MOST_RATIO = 250
"""Larger members are at most so many times their packed size; the official files are 8 to 17 times theirs."""

DAMAGED_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, LookupError,
    RuntimeError, ValueError, OverflowError,
)  # fmt: skip
"""What the zip library raises on damaged archives; encryption is a RuntimeError.

An OSError may be the system's: see :func:`opendas.errors.refuse_system_error`."""


@contextlib.contextmanager
def opened_zip(
    path: Path,
    message: str = "{} cannot be unpacked.",
    rule: str = "expected a zip file, whole and not encrypted",
) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; refuse another or a damaged file with `message` and `rule`."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        refuse_system_error(path, error)
        raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None
    with stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield archive
        except DAMAGED_ZIP as error:
            refuse_system_error(path, error)
            raise FormatError(message.format(path.name), [Finding(path.name, None, None, rule)]) from None


def unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member.

    Raises `zipfile.BadZipFile` if it is damaged, or would unpack to so much that it can be no table.
    """
    with opened_member(archive, name) as member:
        return member.read()


def opened_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open a member, as :func:`unpacked`.

    The size that an archive states is a limit: the library unpacks no more, and checks the sum.
    """
    member = archive.getinfo(name)
    if member.file_size > max(SMALL, MOST_RATIO * member.compress_size):
        raise zipfile.BadZipFile(f"{name} unpacks to {member.file_size} bytes")
    return archive.open(member)
