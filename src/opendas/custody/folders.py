"""Walk paths folder by folder through descriptors, so that no replaced link or folder is followed.

Between two system calls on a path, anyone who may write into one of its folders can put a link or another
folder there. So a path is walked once, each folder is opened from the one before it, and all work in the last
one goes through its descriptor. Inside an output folder, no link is followed, every folder must belong to its
owner, and nothing is open to its group unless the output folder is. Above it, the caller's path is followed
as given. Argument: docs/proofs/places.md.

Files appear whole or not at all: each is written under a temporary name in its own folder, flushed to disk
and then renamed. The name is random, so that nobody can put anything there beforehand, and the folder is held
open meanwhile. What a process that was killed leaves, the next run in the folder removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

from opendas.errors import EnvironmentFailure, PrivacyError

LOCK_NAME: Final = ".opendas.lock"
"""File that marks an output folder."""

PARTIAL_SUFFIX: Final = ".partial"
"""Suffix of temporary names, which also start with a dot so that readers of data sets skip them."""

_ENTER: Final = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERY: Final = 1 << 30
_CHUNK: Final = 1 << 20

Identity = tuple[int, int]
_held: dict[str, tuple[Identity, int]] = {}


def writable(place: Path) -> bool:
    """Whether this process may write into a folder, or create it if missing."""
    existing = next((path for path in (place, *place.parents) if path.exists()), place)
    return existing.is_dir() and os.access(existing, os.W_OK)


def at_once(path: str, flags: int) -> int:
    """Open a file for :func:`open`; a pipe without a writer reads as empty instead of blocking."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder; see :func:`open_folder`.

    - `descriptor`: names are looked up relative to it.
    - `output`: status of the output folder around it; None outside output folders.
    """

    descriptor: int
    output: os.stat_result | None

    @property
    def shared(self) -> bool:
        """Whether the output folder is open to its group, as its owner requested."""
        return self.output is not None and bool(self.output.st_mode & stat.S_IWGRP)

    @property
    def mode(self) -> int:
        """Mode of new folders, before the umask; files lack the execute bits."""
        return 0o777 if self.output is None else 0o775 if self.shared else 0o755

    def new(self, name: str, mode: int | None = None) -> int:
        """Open a new file for writing, never an existing one and never through a link."""
        wanted = self.mode & 0o666 if mode is None else mode
        descriptor = os.open(name, _NEW, wanted, dir_fd=self.descriptor)
        if self.shared and mode is None:
            os.fchmod(descriptor, wanted)
        return descriptor

    @contextlib.contextmanager
    def whole(self, name: str, mode: int | None = None) -> Iterator[BinaryIO]:
        """Open a temporary file that is flushed and renamed atomically if the block ends without an error.

        Raises `PrivacyError` if someone replaced it in the meantime.
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
            # A repeated Spark task may have written the same content in the meantime.
            ours = stat.S_ISREG(there.st_mode) and there.st_uid == written.st_uid and there.st_nlink == 1
            if _identity(there) != _identity(written) and not ours:
                raise PrivacyError(
                    f"Another program or user replaced {name} while OpenDAS wrote it. Find out who can write "
                    "in the output folder, and run the command again."
                )
            self.sync()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Flush the folder's entries to disk."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def enter(self, name: str, *, make: bool, path: str) -> int:
        """Open a folder inside it, creating it if requested."""
        flags = _ENTER if self.output is None else _ENTER | os.O_NOFOLLOW
        try:
            return os.open(name, flags, dir_fd=self.descriptor)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if self.output is None or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise PrivacyError(
                f"{path} is a link or not a folder. OpenDAS follows no link inside an output folder, and "
                "nothing was written through this one. If you did not put it there, find out who can write "
                "in the output folder. Put a folder in its place, and run the command again."
            ) from None
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, self.mode, dir_fd=self.descriptor)
        self.sync()
        made = os.open(name, _ENTER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        if self.shared:
            within = Folder(made, self.output)
            within.set_mode(0o2775)
        return made

    def set_mode(self, mode: int) -> None:
        """Set the permission bits."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _names(path: Path) -> list[str]:
    full = os.path.join(os.getcwd(), os.fspath(path))
    return [name for name in full.split("/") if name not in ("", ".")]


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool | int = False) -> Iterator[Folder]:
    """Walk to a folder and return it open.

    `make`: create it if missing, with the folders above it; or at most so many of the last ones.

    Raises `PrivacyError` if the path meets a link or another user's folder inside an output folder, or if the
    output folder is not the held one; `OSError` if it does not exist or cannot be opened.
    """
    names = _names(path)
    most = _EVERY if make is True else int(make)
    here = Folder(os.open("/", _ENTER), None)
    try:
        for number, name in enumerate(names, start=1):
            prefix = "/" + "/".join(names[:number])
            there = here.enter(name, make=number > len(names) - most, path=prefix)
            above, here = here, Folder(there, here.output)
            os.close(above.descriptor)  # after `here` is another: an interrupt between would close it twice
            here = Folder(there, _judged(prefix, there, here.output))
        yield here
    finally:
        os.close(here.descriptor)


def _judged(prefix: str, descriptor: int, output: os.stat_result | None) -> os.stat_result | None:
    """Return the output folder that contains or is a folder on the path; refuse another user's."""
    status = os.fstat(descriptor)
    if prefix in _held and _held[prefix][0] != _identity(status):
        raise PrivacyError(
            f"{prefix} is not the folder that it was when the command began: it was moved, replaced or "
            "mounted again. Nothing was written to the folder that is there now. Find out what changed it, "
            "and run the command again."
        )
    if output is None:
        return status if prefix in _held or _is_output(descriptor) else None
    shared = output.st_mode & stat.S_IWGRP
    if not shared and status.st_uid not in (output.st_uid, os.geteuid()):
        raise PrivacyError(
            f"{prefix} belongs to another user than the output folder around it. Nothing was written to it. "
            "Find out who put it there. If it is yours, give it the owner of the output folder (chown); "
            "otherwise remove it. Then run the command again."
        )
    return output


def _is_output(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(LOCK_NAME, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def hold(path: Path) -> None:
    """Hold a folder as an output folder: from now on, access fails if it is replaced."""
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
    """Hold an output folder within a block."""
    hold(path)
    try:
        yield
    finally:
        let_go(path)


def held_folders() -> dict[str, Identity]:
    """Return the held folders, for another process on this machine."""
    return {prefix: identity for prefix, (identity, _) in _held.items()}


def hold_again(held: Mapping[str, Identity]) -> None:
    """Hold the folders that another process on this machine holds."""
    _held.update({prefix: (identity, 1) for prefix, identity in held.items()})


def new_file(path: Path, mode: int | None = None) -> BinaryIO:
    """Open a new file for writing in an existing folder, without flush or rename."""
    with open_folder(path.parent) as folder:
        return open(folder.new(path.name, mode), "wb")


def remove_file(path: Path) -> None:
    """Remove a file or link if it exists."""
    with contextlib.suppress(FileNotFoundError), open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder.descriptor)


def remove_tree(path: Path) -> None:
    """Remove a folder and its content as far as possible, without following links."""
    with contextlib.suppress(OSError), open_folder(path.parent) as folder:
        shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder.descriptor)


def move_folder(source: Path, target: Path) -> None:
    """Replace a folder by another one."""
    with open_folder(source.parent) as here, open_folder(target.parent) as there:
        shutil.rmtree(target.name, ignore_errors=True, dir_fd=there.descriptor)
        os.rename(source.name, target.name, src_dir_fd=here.descriptor, dst_dir_fd=there.descriptor)


def _failure(action: str, path: Path, error: OSError) -> EnvironmentFailure:
    reason = error.strerror or type(error).__name__
    room = " Check the free space of its folder." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    closed = (errno.EACCES, errno.EPERM, errno.EROFS)
    advice = " Check the permissions of its folder." if error.errno in closed else room
    whole = " No half-written file has this name." if action == "write" else ""
    return EnvironmentFailure(f"Could not {action} {path.name}: {reason}.{advice}{whole}")


def fsync_folder(folder: Path) -> None:
    """Flush the entries of `folder`, so that a rename in it survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, and wait until their names are on disk.

    A file is durable only if every folder above it is: flushing a file, or its own folder, promises nothing
    about the names further up.

    Raises `EnvironmentFailure` if the file system refuses.
    """
    try:
        with open_folder(folder, make=True):
            pass
    except OSError as error:
        raise _failure("create", folder, error) from error


def flush_tree(folder: Path) -> None:
    """Flush the names of `folder` and of everything below it.

    A process that was killed may have created or removed names without having flushed them; who goes on
    from what it finds makes it durable first.

    Raises `EnvironmentFailure` if the file system refuses.
    """
    try:
        fsync_folder(folder.parent)
        for place, _, _ in os.walk(folder):
            fsync_folder(Path(place))
    except OSError as error:
        raise _failure("flush", folder, error) from error


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears when the block ends without an error.

    - `path`: final name. Its folder is created. An existing file is replaced in one step.
    - Yields: the temporary file.

    Raises `EnvironmentFailure` if the disk is full, or a permission is missing; the temporary file is removed
    and an existing `path` is left as it was.
    """
    try:
        with open_folder(path.parent, make=True) as folder, folder.whole(path.name) as file:
            yield file
    except OSError as error:
        raise _failure("write", path, error) from error


@contextlib.contextmanager
def nothing_half_written(folder: Path) -> Iterator[None]:
    """Leave a folder as it was if writing its files fails: not there, or empty; what was in another stays."""
    new = not folder.exists()
    empty = not new and not any(folder.iterdir())
    try:
        yield
    except BaseException:
        if new:
            remove_tree(folder)
        for path in folder.iterdir() if empty else ():
            remove_tree(path)
        raise


def remove_partials(folder: Path) -> None:
    """Remove the temporary files that attempts left in `folder` and below."""
    for path in folder.rglob(f".*{PARTIAL_SUFFIX}"):
        if path.is_file() or path.is_symlink():
            remove_file(path)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step; see :func:`atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def keep_from_git(folder: Path) -> None:
    """Keep git from taking up anything in `folder`, whatever the folders around it say."""
    path = folder / ".gitignore"
    if not path.exists():
        write_atomic(path, b"*\n")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
