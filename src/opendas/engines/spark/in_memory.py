"""Files that stand in memory and have a path: for readers that open paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from opendas.errors import EnvironmentFailure

__all__ = ["file_in_memory"]


@contextmanager
def file_in_memory(name: str, content: memoryview) -> Iterator[Path]:
    """Return a path of a file whose bytes are on no disk; it is gone when the block ends.

    Parameters
    ----------
    name : str
        Its name, perhaps behind those of folders: what is on a disk is a link of this name.
    content : memoryview

    Raises
    ------
    EnvironmentFailure
        If the system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise EnvironmentFailure("input at an address is read by executors on Linux alone.")
    descriptor = os.memfd_create("opendas")
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        with TemporaryDirectory(prefix="opendas-") as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(f"/proc/self/fd/{descriptor}")
            yield path
    finally:
        os.close(descriptor)
