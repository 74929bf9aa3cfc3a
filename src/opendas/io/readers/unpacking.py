"""Members of zip files, and those that unpack to far more than a text would."""

from __future__ import annotations

import zipfile

__all__ = ["MOST_RATIO", "SMALL", "unpacked"]

SMALL = 1 << 24
"""Bytes that any member may have."""

MOST_RATIO = 250
"""Larger members are at most so many times their packed size; the official files are 8 to 17 times theirs."""


def unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member.

    The size that an archive states is a limit: the library unpacks no more, and checks the sum.

    Raises
    ------
    zipfile.BadZipFile
        If the member is damaged, or would unpack to so much that it can be no table.
    """
    member = archive.getinfo(name)
    if member.file_size > max(SMALL, MOST_RATIO * member.compress_size):
        raise zipfile.BadZipFile(f"{name} unpacks to {member.file_size} bytes")
    return archive.read(member)
