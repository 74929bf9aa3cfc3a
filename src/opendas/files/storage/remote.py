"""Files at addresses such as ``s3://bucket/path``, through the file systems of Arrow.

``file``, ``hdfs`` and ``viewfs`` (with the library libhdfs), ``s3``, ``gs`` and ``abfss``: what
:meth:`pyarrow.fs.FileSystem.from_uri` gives, with the credentials that it finds.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final
from urllib.error import HTTPError
from urllib.parse import unquote

from opendas.errors import ConfigError, EnvironmentFailure

PASSWORD_RULE: Final = (
    "an address with a password, or another secret in it, would stand in logs; give the address without it, "
    "and the secret to the file system: in the environment or the configuration file that it reads"
)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: one may be a drive
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
"""Host and port. Before a slash that a password holds, something else may stand."""
_SECRET = re.compile(
    r"sig|.*(signature|secret|token|passw|(access|account|shared|api)[_-]?key).*", re.IGNORECASE
)
"""Names of options that are secrets: of an Azure application, and of signed addresses of every store."""
_PIECE = 1 << 20


def holds_password(text: str) -> bool:
    """Return whether a text is an address with a password or another secret, or what may be a part of one."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return False
    options = re.split("[&;]", text.partition("?")[2])
    if any(_SECRET.fullmatch(unquote(option.partition("=")[0])) for option in options):
        return True
    user, _, host = text[scheme.end() :].partition("/")[0].rpartition("@")
    return ":" in user or _HOST.fullmatch(host.partition("?")[0]) is None


class RemoteAddress(str):
    """A text that begins with a scheme."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> RemoteAddress | None:
        """Return a text as an address; None where it is a path."""
        return cls(text) if _SCHEME.match(text) else None


@dataclass(frozen=True, slots=True)
class RemoteInput:
    """What of an input stands at addresses."""

    # Files, folders or patterns of the data; empty where these are files of this machine.
    paths: tuple[RemoteAddress, ...] = ()
    frame: RemoteAddress | None = None
    units: RemoteAddress | None = None

    def __bool__(self) -> bool:
        return bool(self.paths or self.frame or self.units)


class RemoteFolder:
    """A folder of a file system, and what is in and below it; files are named by their path in it.

    Raises `EnvironmentFailure` if its file system is not known or cannot be reached; so does every method if
    it refuses.
    """

    def __init__(self, address: str) -> None:
        from pyarrow.fs import FileSystem

        self.address = address.rstrip("/")
        with failures_at(address):
            system, root = FileSystem.from_uri(re.sub("^s3a://", "s3://", address))
        self._system: Any = system
        self._root: str = root.rstrip("/")

    def kind(self, name: str) -> int | None:
        """Return the size of a file, -1 for a folder, and None where there is nothing."""
        with failures_at(self.address):
            found = self._system.get_file_info(self._path(name))
        return None if found.type.name == "NotFound" else int(found.size) if found.is_file else -1

    def names(self, name: str = "") -> dict[str, int]:
        """Return the files in and below a folder, with their sizes; none if it is not there."""
        from pyarrow.fs import FileSelector

        kind = self.kind(name)
        if kind is None:
            return {}
        if kind >= 0:
            raise ConfigError(f"{self.address} is a file, not a folder.")
        with failures_at(self.address):
            below = self._system.get_file_info(FileSelector(self._path(name), recursive=True))
        return {
            found.path[len(self._root) :].lstrip("/"): int(found.size) for found in below if found.is_file
        }

    def fetch(self, name: str, here: BinaryIO) -> None:
        """Copy a file to one of this machine that is open for writing."""
        with failures_at(f"{self.address}/{name}"):
            shutil.copyfileobj(self._system.open_input_stream(self._path(name)), here, _PIECE)

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine; a file that is there is replaced."""
        there = self._path(name)
        with path.open("rb") as here, failures_at(f"{self.address}/{name}"):
            self._system.create_dir(there.rpartition("/")[0] or "/", recursive=True)
            with self._system.open_output_stream(there) as sink:
                shutil.copyfileobj(here, sink, _PIECE)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        with failures_at(f"{self.address}/{new}"):
            self._system.move(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with failures_at(f"{self.address}/{name}"):
            self._system.delete_file(self._path(name))

    def sha256(self, name: str) -> str:
        """Return the SHA-256 digest of a file, read back from where it is, in hexadecimal."""
        digest = sha256()
        with failures_at(f"{self.address}/{name}"), self._system.open_input_stream(self._path(name)) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        return digest.hexdigest()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root or "/"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at an address, named so that every machine can open it."""

    folder: str  # address of a folder
    name: str  # path of the file in it
    size: int

    @property
    def address(self) -> str:
        """Where it is, for messages and for the order of files."""
        return f"{self.folder.partition('?')[0].rstrip('/')}/{self.name}"

    @contextmanager
    def in_memory(self, name: str) -> Iterator[Path]:
        """Give the file a path here, for readers that open paths; its bytes are on no disk of this machine.

        `name`: what on a disk is a link of this name, perhaps behind those of folders; gone with the block.
        """
        if not hasattr(os, "memfd_create"):
            raise EnvironmentFailure("input at an address is read by executors on Linux alone.")
        descriptor = os.memfd_create("opendas")
        try:
            link = Path(f"/proc/self/fd/{descriptor}")
            with open(descriptor, "wb", closefd=False) as here:
                RemoteFolder(self.folder).fetch(self.name, here)
            with TemporaryDirectory(prefix="opendas-") as folder:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(link)
                yield path
        finally:
            os.close(descriptor)


@contextmanager
def failures_at(address: str) -> Iterator[None]:
    """Turn failures of a file system into ours: the kind of it, since the text may say more than is ours."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException, HTTPException, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        if isinstance(error, HTTPError):
            error.close()
            reason = f"the server answered {error.code}"
        raise EnvironmentFailure(
            f"{address} cannot be used ({reason}). Its file system must be one that Arrow has (file, hdfs, "
            "viewfs, s3, gs, abfss) or, to be read, a web site: check the address, credentials, permissions "
            "and free space, and for hdfs the library libhdfs and CLASSPATH."
        ) from None
