"""Folders entered one by one, by descriptor: what someone exchanges behind our back is never followed.

A path says where a name was when it was looked up; between two calls someone who may write into one of its
folders can put a link or another folder there. So a path is walked once, each folder opened from the one
before it, and what is done in the last one is done through its descriptor. Inside an output folder no link is
followed at all, every folder must be its owner's, and nothing is open to its group unless the output folder
is. Above it the path is its caller's: what it says is followed. Argument: docs/proofs/places.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

from opendas.errors import PrivacyError

LOCK_NAME: Final = ".opendas.lock"
"""File by which an output folder is known as one."""

PARTIAL_SUFFIX: Final = ".partial"
"""Ending of a temporary name, which also starts with a dot, so that readers of data sets skip it."""

_ENTER: Final = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERY: Final = 1 << 30

Identity = tuple[int, int]
_held: dict[str, tuple[Identity, int]] = {}


def writable(place: Path) -> bool:
    """Whether this process may write into a folder, or make it where it is not there."""
    existing = next((path for path in (place, *place.parents) if path.exists()), place)
    return existing.is_dir() and os.access(existing, os.W_OK)


def at_once(path: str, flags: int) -> int:
    """Open a file for :func:`open`; a pipe into which nobody writes is an empty file, and not waited for."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is open; made by :func:`open_folder`.

    Parameters
    ----------
    descriptor : int
        Names are looked up from here.
    output : os.stat_result or None
        Of the output folder that it lies in, None where it lies in none.
    """

    descriptor: int
    output: os.stat_result | None

    @property
    def shared(self) -> bool:
        """Whether the output folder is open to its group, which has to be asked for."""
        return self.output is not None and bool(self.output.st_mode & stat.S_IWGRP)

    @property
    def mode(self) -> int:
        """Mode of new folders, before the umask; for files without the bits of execution."""
        return 0o777 if self.output is None else 0o775 if self.shared else 0o755

    def new(self, name: str, mode: int | None = None) -> int:
        """Open a new file for writing: never one that is there, nor through a link."""
        wanted = self.mode & 0o666 if mode is None else mode
        descriptor = os.open(name, _NEW, wanted, dir_fd=self.descriptor)
        if self.shared and mode is None:
            os.fchmod(descriptor, wanted)
        return descriptor

    @contextlib.contextmanager
    def whole(self, name: str, mode: int | None = None) -> Iterator[BinaryIO]:
        """Open a file that gets its name when the block ends without an error, in one step, on disk.

        Raises
        ------
        PrivacyError
            If someone put something else in its place meanwhile.
        """
        temporary = f".{token_hex(12)}{PARTIAL_SUFFIX}"
        descriptor = self.new(temporary, mode)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
                written = os.fstat(file.fileno())
            there = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            # Another attempt of ours, on Spark, may have put the same content there meanwhile.
            ours = stat.S_ISREG(there.st_mode) and there.st_uid == written.st_uid and there.st_nlink == 1
            if _identity(there) != _identity(written) and not ours:
                raise PrivacyError(f"{name} was exchanged while it was written. {_EXCHANGED}")
            self.sync()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Flush the names in it to disk."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def enter(self, name: str, *, make: bool, path: str) -> int:
        """Open a folder in it, and make it if it is not there and shall be."""
        flags = _ENTER if self.output is None else _ENTER | os.O_NOFOLLOW
        try:
            return os.open(name, flags, dir_fd=self.descriptor)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if self.output is None or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise PrivacyError(f"{path} is a link, or no folder. {_EXCHANGED}") from None
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, self.mode, dir_fd=self.descriptor)
        self.sync()
        made = os.open(name, _ENTER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        if self.shared:
            within = Folder(made, self.output)
            within.set_mode(0o2775)
        return made

    def set_mode(self, mode: int) -> None:
        """Set its permission bits."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


_EXCHANGED: Final = (
    "Something in the output folder was put there by someone else, or exchanged. Nothing was written "
    "through it: find out who can write there, remove it, and run the command again."
)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _names(path: Path) -> list[str]:
    full = os.path.join(os.getcwd(), os.fspath(path))
    return [name for name in full.split("/") if name not in ("", ".")]


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool | int = False) -> Iterator[Folder]:
    """Walk to a folder and open it.

    Parameters
    ----------
    path : Path
    make : bool or int
        Make it if it is not there, with the folders above it; or as many of the last ones at most.

    Raises
    ------
    PrivacyError
        If inside an output folder there is a link on the way, or a folder of someone else; or if the output
        folder is another one than was held.
    OSError
        If it is not there, or cannot be opened.
    """
    names = _names(path)
    most = _EVERY if make is True else int(make)
    here = Folder(os.open("/", _ENTER), None)
    try:
        for number, name in enumerate(names, start=1):
            prefix = "/" + "/".join(names[:number])
            there = here.enter(name, make=number > len(names) - most, path=prefix)
            os.close(here.descriptor)
            here = Folder(there, here.output)
            here = Folder(there, _judged(prefix, there, here.output))
        yield here
    finally:
        os.close(here.descriptor)


def _judged(prefix: str, descriptor: int, output: os.stat_result | None) -> os.stat_result | None:
    """Return the output folder that a folder on the way lies in, or is; refuse it if it is not ours."""
    status = os.fstat(descriptor)
    if prefix in _held and _held[prefix][0] != _identity(status):
        raise PrivacyError(f"{prefix} is another folder than when the command began. {_EXCHANGED}")
    if output is None:
        return status if prefix in _held or _is_output(descriptor) else None
    shared = output.st_mode & stat.S_IWGRP
    if not shared and status.st_uid not in (output.st_uid, os.geteuid()):
        raise PrivacyError(f"{prefix} belongs to another user. {_EXCHANGED}")
    return output


def _is_output(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(LOCK_NAME, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def hold(path: Path) -> None:
    """Take a folder for an output folder: from here on it is the same one, or what it is asked for fails."""
    prefix = "/" + "/".join(_names(path))
    with open_folder(path) as folder:
        identity = _identity(os.fstat(folder.descriptor))
    times = _held[prefix][1] if prefix in _held else 0
    _held[prefix] = identity, times + 1


def let_go(path: Path) -> None:
    """Undo :func:`hold`."""
    prefix = "/" + "/".join(_names(path))
    if prefix in _held:
        identity, times = _held.pop(prefix)
        if times > 1:
            _held[prefix] = identity, times - 1


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold an output folder for a while."""
    hold(path)
    try:
        yield
    finally:
        let_go(path)


def held_folders() -> dict[str, Identity]:
    """Return what is held, for another process of this machine."""
    return {prefix: identity for prefix, (identity, _) in _held.items()}


def hold_again(held: Mapping[str, Identity]) -> None:
    """Hold what another process of this machine holds."""
    _held.update({prefix: (identity, 1) for prefix, identity in held.items()})


def new_file(path: Path, mode: int | None = None) -> BinaryIO:
    """Open a new file for writing, in a folder that is there; not flushed to disk, nor renamed."""
    with open_folder(path.parent) as folder:
        return open(folder.new(path.name, mode), "wb")


def remove_file(path: Path) -> None:
    """Remove a file or link, if it is there."""
    with contextlib.suppress(FileNotFoundError), open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder.descriptor)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, as far as that is possible; no link in it is followed."""
    with contextlib.suppress(OSError), open_folder(path.parent) as folder:
        shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder.descriptor)


def move_folder(source: Path, target: Path) -> None:
    """Put a folder in place of another one, which goes."""
    with open_folder(source.parent) as here, open_folder(target.parent) as there:
        shutil.rmtree(target.name, ignore_errors=True, dir_fd=there.descriptor)
        os.rename(source.name, target.name, src_dir_fd=here.descriptor, dst_dir_fd=there.descriptor)
