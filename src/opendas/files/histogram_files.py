"""Histograms that are larger than memory: three plain arrays in a folder, read by memory mapping.

Such a folder is scratch of one run, under ``confidential/`` or ``state/`` according to what it holds; it is
not durable, and a run that is resumed makes it again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from opendas.errors import EnvironmentFailure, FormatError
from opendas.files.atomic import PARTIAL_SUFFIX, make_folder
from opendas.schema.histogram import Histogram

__all__ = ["HistogramWriter", "open_histogram"]

_KINDS: dict[str, np.dtype[Any]] = {
    "indptr": np.dtype("<i8"),
    "cells": np.dtype("<i4"),
    "counts": np.dtype("<i8"),
}


class HistogramWriter:
    """Appends rows to a histogram on disk; the folder appears whole, or not at all.

    Use it as a context manager. The folder has mode 0700.

    Parameters
    ----------
    folder : Path
        Final name; what stands there is replaced when the block ends.
    size : int
        Number of cells.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._partial = folder.with_name(f".{folder.name}{PARTIAL_SUFFIX}")
        self._size = size
        self._entries = 0
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> Self:
        shutil.rmtree(self._partial, ignore_errors=True)
        make_folder(self._partial)
        self._partial.chmod(0o700)
        self._files = {name: (self._partial / name).open("wb") for name in _KINDS}
        self._put("indptr", np.zeros(1, np.int64))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                (self._partial / "size").write_text(str(self._size), encoding="ascii")
                shutil.rmtree(self._folder, ignore_errors=True)
                self._partial.rename(self._folder)
        except OSError as failure:
            raise _failure(self._folder, failure) from failure
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def write(self, rows: Histogram) -> None:
        """Append rows.

        Raises
        ------
        ValueError
            If they have another number of cells.
        EnvironmentFailure
            If the disk is full.
        """
        if rows.size != self._size:
            raise ValueError(f"rows of {rows.size} cells given, expected {self._size}")
        self._put("indptr", rows.indptr[1:] + self._entries)
        self._put("cells", rows.cells)
        self._put("counts", rows.counts)
        self._entries += len(rows.cells)

    def _put(self, name: str, array: npt.NDArray[np.integer]) -> None:
        try:
            self._files[name].write(np.ascontiguousarray(array, dtype=_KINDS[name]).data)
        except OSError as failure:
            raise _failure(self._folder, failure) from failure


def _mapped(path: Path) -> npt.NDArray[Any]:
    if not path.stat().st_size:  # nothing cannot be mapped
        return np.zeros(0, _KINDS[path.name])
    return np.memmap(path, dtype=_KINDS[path.name], mode="r")


def _failure(folder: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"Could not write {folder.name}: {error.strerror or type(error).__name__}. Check free space and "
        "permissions of the output folder."
    )


def open_histogram(folder: Path) -> Histogram:
    """Map a histogram that :class:`HistogramWriter` wrote.

    Raises
    ------
    FormatError
        If the folder does not hold one.
    """
    try:
        size = int((folder / "size").read_text(encoding="ascii"))
        indptr, cells, counts = (_mapped(folder / name) for name in _KINDS)
        histogram = Histogram(indptr, cells, counts, size)
    except (OSError, ValueError) as error:
        raise FormatError(f"{folder.name}: no histogram can be read there.") from error
    entries = int(histogram.indptr[-1]) if len(histogram.indptr) else -1
    if entries != len(histogram.cells) or entries != len(histogram.counts):
        raise FormatError(f"{folder.name}: the arrays of the histogram do not fit each other.")
    return histogram
