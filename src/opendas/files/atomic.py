"""Files appear whole or not at all.

A file is written under a temporary name in its own folder, flushed to disk and then renamed. The name is
random, so that nobody can put anything there beforehand, and its folder is held open meanwhile
(:mod:`opendas.custody.folders`). What a process that was killed leaves, the next run in the folder removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from opendas.custody.folders import PARTIAL_SUFFIX, open_folder, remove_file, remove_tree
from opendas.errors import EnvironmentFailure

__all__ = [
    "PARTIAL_SUFFIX",
    "atomic_file",
    "flush_tree",
    "fsync_folder",
    "make_folder",
    "nothing_half_written",
    "remove_partials",
    "sha256_file",
    "write_atomic",
]

_CHUNK = 1 << 20


def _failure(action: str, path: Path, error: OSError) -> EnvironmentFailure:
    reason = error.strerror or type(error).__name__
    return EnvironmentFailure(
        f"Could not {action} {path.name}: {reason}. Check free space and permissions of its folder; "
        "nothing half-written was left behind."
    )


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

    Raises
    ------
    EnvironmentFailure
        If the file system refuses.
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

    Raises
    ------
    EnvironmentFailure
        If the file system refuses.
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

    Parameters
    ----------
    path : Path
        Final name. Its folder is created. An existing file is replaced in one step.

    Yields
    ------
    BinaryIO
        The temporary file.

    Raises
    ------
    EnvironmentFailure
        If the disk is full, or a permission is missing; the temporary file is removed and an existing
        `path` is left as it was.
    """
    try:
        with open_folder(path.parent, make=True) as folder, folder.whole(path.name) as file:
            yield file
    except OSError as error:
        raise _failure("write", path, error) from error


@contextlib.contextmanager
def nothing_half_written(folder: Path) -> Iterator[None]:
    """Remove a folder that was not there before, if writing its files fails."""
    new = not folder.exists()
    try:
        yield
    except BaseException:
        if new:
            remove_tree(folder)
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


def sha256_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
