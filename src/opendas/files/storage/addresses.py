"""Files at addresses as paths: what reads a folder of this machine reads one of a store or a web site.

Apart from :mod:`opendas.files.storage.remote`, which copies whole files: here only the parts are fetched that
are read. ``s3``, ``gs``, ``abfss``, ``hdfs`` and ``file`` are file systems of Arrow; ``http`` and ``https``
need a server that lists folders in a page of links, and that sends parts of files.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path, PosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.files.storage.remote import PASSWORD_RULE, failures_at, holds_password

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: one may be a drive
_OPTIONS = re.compile(r"\?[^/]*")
_LINK = re.compile(r'<a\s[^>]*href="([^/?#."][^/?#"]*/?)"', re.IGNORECASE)
"""To what lies in the page's own folder."""
_TIMEOUT = 60.0
_MOST_NESTED = 16  # folders in folders: a server that has a page for every address has no last one


def located(path: str | Path) -> Path:
    """Return a path; one that reads from an address, where it is one.

    Raises
    ------
    ConfigError
        If the address holds a password or another secret, or names nothing.
    """
    path = Path(path)
    if not path.parts or _SCHEME.fullmatch(path.parts[0]) is None:
        return path
    if len(path.parts) == 1:
        raise ConfigError(f"{path}//: behind it, expected the name of a host or bucket, or a path.")
    options = _OPTIONS.search(str(path))
    host, *below = path.parts[1:] or [""]
    rest = [_OPTIONS.sub("", part) for part in below]
    found = RemotePath(path.parts[0], host.partition("?")[0] + (options.group() if options else ""), *rest)
    if holds_password(found.address):
        raise ConfigError(PASSWORD_RULE)
    return found


@contextmanager
def copied(path: RemotePath) -> Iterator[Path]:
    """Copy a public file, or the files of a folder, for as long as the block lasts: what is read whole."""
    files = (path,) if path.is_file() else path.files()
    if not files:
        raise ConfigError(f"{path}: there is no such file or folder.")
    with TemporaryDirectory(prefix="opendas-") as folder:
        here = Path(folder, path.name)
        for file in files:
            place = here / str(file.relative_to(path)) if file != path else here
            place.parent.mkdir(parents=True, exist_ok=True)
            with file.open() as source, place.open("wb") as copy, failures_at(file.address):
                shutil.copyfileobj(source, copy, 1 << 20)
        yield here


class RemotePath(PosixPath):
    """The path of a file or folder at an address; every method raises EnvironmentFailure if it is refused."""

    def __str__(self) -> str:
        is_relative = not self.parts or _SCHEME.fullmatch(self.parts[0]) is None
        return "/".join(self.parts) if is_relative else self.address

    @property
    def address(self) -> str:
        """Where it is. A path has lost the second slash, and has options behind the host, or the bucket."""
        scheme, host, *rest = (*self.parts, "")
        host, _, options = host.partition("?")
        begin = "///" if scheme == "file:" else "//"
        return scheme + begin + "/".join([host, *filter(None, rest)]) + (f"?{options}" if options else "")

    @cached_property
    def _store(self) -> tuple[Any, str]:
        """What holds it, and its name there."""
        scheme = self.parts[0].lower()
        if scheme in ("http:", "https:"):
            return _WebSite(), self.address
        first = 1 if scheme == "file:" else 2  # a store is opened once: all of a bucket
        with failures_at(self.address):
            system, root = _arrow_system("file:///" if first == 1 else f"{scheme}//{self.parts[1]}")
        return system, "/".join([root.rstrip("/"), *self.parts[first:]]) or "/"

    @cached_property
    def _size(self) -> int | None:
        """Size of a file, -1 of a folder, None where there is nothing."""
        system, name = self._store
        with failures_at(self.address):
            found = system.get_file_info(name)
        return None if found.type.name == "NotFound" else int(found.size) if found.is_file else -1

    def is_dir(self, **_: Any) -> bool:
        """Return whether it is a folder."""
        return self._size == -1

    def is_file(self, **_: Any) -> bool:
        """Return whether it is a file."""
        return (self._size or -1) >= 0 or self._size == 0

    def exists(self, **_: Any) -> bool:
        """Return whether anything is there."""
        return self._size is not None

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return it: an address is absolute."""
        return self

    def absolute(self) -> RemotePath:
        """Return it."""
        return self

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """Yield what lies in it."""
        first = {file.relative_to(self).parts[0] for file in self.files()}
        yield from (self / name for name in sorted(first))

    def files(self) -> tuple[RemotePath, ...]:
        """Return the files in and below it, ascending; each has a name that stays below it."""
        from pyarrow.fs import FileSelector

        system, name = self._store
        with failures_at(self.address):
            below = system.get_file_info(FileSelector(name, recursive=True, allow_not_found=True))
        found = []
        for each in below:
            if each.is_file:
                below_it = each.path[len(name.partition("?")[0]) :].lstrip("/")
                if not _stays_below(below_it):
                    raise EnvironmentFailure(
                        f"{self.address} lists files that do not lie below it, or have impossible names. "
                        "Copy the files that you want to this machine."
                    )
                file = self / below_it
                file.__dict__["_size"] = int(each.size)  # told already
                found.append(file)
        return tuple(sorted(found))

    def stamp(self) -> tuple[int, int]:
        """Return what stands for its version: such files are taken not to change while they are read."""
        return 0, self._size or 0

    def open_parts(self) -> Any:
        """Open a file of which parts are read, for Arrow."""
        system, name = self._store
        with failures_at(self.address):
            return system.open_input_file(name)

    def open(self, *_: Any, **__: Any) -> Any:
        """Open a file to read its bytes from the first on."""
        return self.open_parts()


@lru_cache(maxsize=16)
def _arrow_system(address: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    found: tuple[Any, str] = FileSystem.from_uri(re.sub("^s3a://", "s3://", address))
    return found


class _WebSite:
    """A web site with the few methods of a file system of Arrow that paths ask for."""

    def get_file_info(self, wanted: Any) -> Any:
        """Return what is at an address, or the files in and below it."""
        from urllib.request import Request, urlopen

        from pyarrow.fs import FileInfo, FileType

        if not isinstance(wanted, str):
            return list(self._below(wanted.base_dir))
        try:
            with urlopen(Request(_quoted(wanted), method="HEAD"), timeout=_TIMEOUT) as answer:
                if not answer.url.endswith("/"):  # where a folder is, its page
                    size = answer.headers["Content-Length"] or ""
                    if not (size.isascii() and size.isdigit()):
                        raise EnvironmentFailure(
                            f"{wanted} cannot be read: the server does not say how long it is. Copy the "
                            "files to this machine."
                        )
                    return FileInfo(wanted, FileType.File, size=int(size))
        except HTTPError as error:
            error.close()
            if error.code not in (403, 404):
                raise
        found = FileType.NotFound if self._listed(wanted) is None else FileType.Directory
        return FileInfo(wanted, found)

    def _below(self, folder: str, depth: int = 0) -> Iterator[Any]:
        if depth > _MOST_NESTED:
            raise EnvironmentFailure(f"{folder}: more than {_MOST_NESTED} folders in folders at this server.")
        for name in self._listed(folder) or ():
            place = folder.rstrip("/") + "/" + unquote(name).rstrip("/")
            if not _stays_below(unquote(name)):
                continue
            if name.endswith("/"):
                yield from self._below(place, depth + 1)
            else:
                yield self.get_file_info(place)

    def _listed(self, folder: str) -> list[str] | None:
        """Return what a page of links lists; None where the address is no folder."""
        from urllib.request import urlopen

        try:
            with urlopen(_quoted(folder).rstrip("/") + "/", timeout=_TIMEOUT) as answer:
                if answer.headers.get_content_type() != "text/html":
                    return None
                return _LINK.findall(answer.read().decode("utf-8", "replace"))
        except HTTPError as error:
            error.close()
            if error.code not in (403, 404):
                raise
            return None

    def open_input_file(self, address: str) -> Any:
        """Open a file of which parts are fetched."""
        import pyarrow as pa

        return pa.PythonFile(_WebFile(address, self.get_file_info(address).size), mode="r")


class _WebFile(io.RawIOBase):
    """A file at a web site; each read is a request for a part of it."""

    def __init__(self, address: str, size: int) -> None:
        super().__init__()
        self._address, self._size, self._place = address, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Fetch the next bytes."""
        from urllib.request import Request, urlopen

        stop = self._size if size is None or size < 0 else min(self._place + size, self._size)
        if stop <= self._place:
            return b""
        part = {"Range": f"bytes={self._place}-{stop - 1}"}
        request = Request(_quoted(self._address), headers=part)
        with failures_at(self._address), urlopen(request, timeout=_TIMEOUT) as answer:
            found: bytes = answer.read() if answer.status == 206 else b""
        if len(found) != stop - self._place:
            raise EnvironmentFailure(
                f"{self._address} cannot be read: the server sends no parts of files, or broke off. Copy the "
                "files to this machine."
            )
        self._place = stop
        return found


def _stays_below(name: str) -> bool:
    """Return whether a name that a server gives is one of a file in or below its folder."""
    return ".." not in name.split("/") and "\0" not in name


def _quoted(address: str) -> str:
    return quote(address, safe=":/?=&%@[]")
