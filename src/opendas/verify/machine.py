"""A release tells nothing about the machine that made it.

Looks at the uncompressed bytes of every file: text, the metadata of Parquet files, the frame of PDF files.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from opendas.verify.check import require, some

__all__ = ["check_machine", "machine_names"]

_PATH = re.compile(
    rb"(?<![A-Za-z0-9+/=.])/(?:home|Users|root|tmp|private|var|opt|mnt|srv|work|workspace|data)/[\w.-]{2,}"
    rb"|(?<![A-Za-z0-9])[A-Z]:\\\\?[\w.-]+\\"
)
_CLOCK = re.compile(rb"(?:19|20)\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d")
_STREAM = re.compile(rb"\bstream\r?\n.*?endstream", re.DOTALL)
_TEXT = (".json", ".html", ".toml", ".csv", ".txt")


def machine_names() -> tuple[str, ...]:
    """Return the names of this host and user, if they are no ordinary words."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0]}
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    telling = re.compile(r"[0-9._-]")
    return tuple(sorted(n for n in names if len(n) >= 8 or (len(n) >= 5 and telling.search(n))))


def _readable(suffix: str, data: bytes) -> bytes:
    """Return the part of a file that is no compressed data, in which chance writes a path now and then."""
    if suffix == ".pdf":
        return _STREAM.sub(b"", data)
    if suffix == ".parquet" and data[-4:] == b"PAR1":
        return data[-8 - int.from_bytes(data[-8:-4], "little") :]
    return data


def check_machine(release: Path, names: Iterable[str]) -> str:
    """No file holds an absolute path, a host or user name, or (text files) a clock reading."""
    words = [re.compile(rb"(?<![A-Za-z0-9])" + re.escape(n.encode()) + rb"(?![A-Za-z0-9])") for n in names]
    found = []
    for path in sorted(release.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        where = path.relative_to(release).as_posix()
        if _PATH.search(_readable(path.suffix, data)):
            found.append(f"{where} (a path)")
        if any(word.search(data) for word in words):
            found.append(f"{where} (a host or user name)")
        if path.suffix in _TEXT and _CLOCK.search(data):
            found.append(f"{where} (a time of day)")
    require(not found, f"something about the machine in {some(found)}.")
    return "no path, host, user or time of day"
