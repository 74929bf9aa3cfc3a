"""Sums of counts by leaf and cell, in memory while they are few and on disk beyond.

Entries may come in any order. On disk they stand as runs, each sorted and each with the places where pieces
of the histogram begin in it; the pieces, consecutive leaves, are then merged over all runs, one after the
other. Memory is bounded by a constant, whatever the input's order and size. The histogram is then three plain
arrays in a folder, read by memory mapping: scratch of one run, under ``confidential/``; it is not durable,
and a run that is resumed makes it again.

Axes: ``e`` entries; ``p`` pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints, sum_by_key
from opendas.custody.folders import PARTIAL_SUFFIX, make_folder, move_folder, new_file, remove_tree
from opendas.custody.secret_files import private_folder
from opendas.errors import EnvironmentFailure, FormatError
from opendas.readers.columns.findings import joined
from opendas.schema.histogram import Histogram

_KINDS: dict[str, np.dtype[Any]] = {
    "indptr": np.dtype("<i8"),
    "cells": np.dtype("<i4"),
    "counts": np.dtype("<i8"),
}


class HistogramWriter:
    """Appends rows to a histogram on disk; the folder appears whole, or not at all.

    Use it as a context manager. The folder has mode 0700.

    `folder`: final name; what stands there is replaced when the block ends.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._partial = folder.with_name(f".{folder.name}{PARTIAL_SUFFIX}")
        self._size = size
        self._entries = 0
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> Self:
        remove_tree(self._partial)
        make_folder(self._partial.parent)
        private_folder(self._partial)
        self._files = {name: new_file(self._partial / name, 0o600) for name in _KINDS}
        self._put("indptr", np.zeros(1, np.int64))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                with new_file(self._partial / "size", 0o600) as size:
                    size.write(str(self._size).encode("ascii"))
                move_folder(self._partial, self._folder)
        except OSError as failure:
            raise _failure(self._folder, failure) from failure
        finally:
            remove_tree(self._partial)

    def write(self, rows: Histogram) -> None:
        """Append rows."""
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
    """Map a histogram that :class:`HistogramWriter` wrote."""
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


IN_MEMORY = 1 << 21
"""Entries that are held in memory where there is a folder for more: 32 MiB, and thrice that to sort them."""

HISTOGRAM = "histogram"
_RUNS = ".entries.partial"
_PIECES = 1 << 14
_NOTHING = np.empty(0, np.int64)


class Entries:
    """A histogram that grows; a context manager, which removes what it put on disk but for the result.

    - `leaves`, `size`: shape of the histogram.
    - `cache`: folder for what is more than `limit` entries; without one everything stays in memory.
    - `limit`: entries held in memory; by default :data:`IN_MEMORY`.
    """

    def __init__(self, leaves: int, size: int, cache: Path | None, limit: int | None = None) -> None:
        limit = IN_MEMORY if limit is None else limit
        self._leaves, self._size, self._limit = leaves, size, limit
        self._cache = cache
        self._pending = _Pending(limit)
        # Pieces have no more cells than entries may be in memory, unless that made too many of them.
        self._piece = max(1, limit // size, leaves // _PIECES)
        self._runs: SortedRuns | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runs is not None:
            self._runs.remove()

    def add(self, keys: Ints, counts: Ints) -> None:
        """Add counts, positive ones, by ``leaf * size + cell``; distinct keys, ascending.

        Raises
        ------
        EnvironmentFailure
            If the disk is full.
        """
        self._pending.add(keys, counts)
        if self._cache is not None and self._pending.waiting > self._limit:
            self._flush(self._cache)

    def histogram(self) -> Histogram:
        """Return the histogram; memory mapped if it did not stay in memory.

        Raises
        ------
        EnvironmentFailure
            If the disk is full.
        """
        if self._cache is None or self._runs is None:
            return self._rows(0, self._leaves, *self._pending.result())
        self._flush(self._cache)
        with HistogramWriter(self._cache / HISTOGRAM, self._size) as writer:
            for first, last, runs in self._runs.pieces(self._limit):
                merged = _Pending(self._limit)
                for keys, counts in runs:
                    merged.add(keys, counts)
                end = min(last * self._piece, self._leaves)
                writer.write(self._rows(first * self._piece, end, *merged.result()))
        return open_histogram(self._cache / HISTOGRAM)

    def _rows(self, first: int, end: int, keys: Ints, counts: Ints) -> Histogram:
        """Return the leaves ``first:end`` as a histogram of their own, from their entries."""
        starts = np.arange(first, end + 1, dtype=np.int64) * self._size
        indptr = np.searchsorted(keys, starts).astype(np.int64)
        return Histogram(indptr, (keys % self._size).astype(np.int32), counts, self._size)

    def _flush(self, cache: Path) -> None:
        """Append what is in memory to the runs on disk."""
        keys, counts = self._pending.result()
        self._pending = _Pending(self._limit)
        ends = np.arange(self._piece, self._leaves, self._piece, dtype=np.int64) * self._size
        if self._runs is None:
            self._runs = SortedRuns(cache / _RUNS, ("keys", "counts"))
        self._runs.append(np.searchsorted(keys, ends), (keys, counts))


class SortedRuns:
    """Arrays on disk, in runs that are each sorted into the same pieces; given back piece by piece.

    - `folder`: under ``confidential/``; made with mode 0700.
    - `names`: of the arrays of 64-bit integers that make up a run.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = tuple(names)
        self._starts: list[Ints] = []
        self._files: list[BinaryIO] = []

    def append(self, cuts: Ints, arrays: Sequence[npt.NDArray[np.integer]]) -> None:
        """Append a run.

        - `cuts` (p - 1,): where each piece but the first begins in the run.
        - `arrays`, sequence of 64-bit integers (e,).
        """
        start = self._starts[-1][-1] if self._starts else 0
        self._starts.append(start + np.concatenate([[0], cuts, [len(arrays[0])]]).astype(np.int64))
        try:
            if not self._files:
                remove_tree(self._folder)
                make_folder(self._folder.parent)
                private_folder(self._folder.parent)
                private_folder(self._folder)
                self._files = [new_file(self._folder / name, 0o600) for name in self._names]
            for file, array in zip(self._files, arrays, strict=True):
                file.write(np.ascontiguousarray(array).data)
                file.flush()
        except OSError as error:
            raise _failure(self._folder.parent, error) from error

    def pieces(self, limit: int) -> Iterator[tuple[int, int, Iterator[tuple[npt.NDArray[Any], ...]]]]:
        """Yield (first piece, piece behind the last, what each run has of them), all pieces, in order.

        Neighbouring pieces come together as long as they hold no more than `limit` entries. What is given is
        signed, whatever was appended.
        """
        lengths = np.sum([np.diff(starts) for starts in self._starts], axis=0)
        files = [np.memmap(self._folder / name, dtype="<i8", mode="r") for name in self._names]
        first = 0
        while first < len(lengths):
            many = np.cumsum(lengths[first:])
            last = first + max(1, int(np.searchsorted(many, limit, side="right")))
            bounds = [(int(starts[first]), int(starts[last])) for starts in self._starts]
            yield (
                first,
                last,
                (tuple(np.array(file[low:high]) for file in files) for low, high in bounds if high > low),
            )
            first = last

    def remove(self) -> None:
        """Remove what stands on disk."""
        for file in self._files:
            file.close()
        self._files = []
        remove_tree(self._folder)


class _Pending:
    """Sums in memory: sorted parts, merged now and then."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: list[Ints] = []
        self._counts: list[Ints] = []
        self._merged = 0
        self.waiting = 0
        """Entries held."""

    def add(self, keys: Ints, counts: Ints) -> None:
        """Take distinct keys, ascending, and their counts."""
        if len(keys) == 0:
            return
        self._keys.append(keys)
        self._counts.append(counts)
        self.waiting += len(keys)
        # What waits to be merged is never much more than what is merged already, so that the work stays
        # linear up to a logarithm.
        if self.waiting > max(self._limit, 2 * self._merged):
            self.result()

    def result(self) -> tuple[Ints, Ints]:
        """Return distinct keys, ascending, and their sums."""
        keys, counts = sum_by_key(joined(self._keys or [_NOTHING]), joined(self._counts or [_NOTHING]))
        self._keys, self._counts = [keys], [counts]
        self._merged = self.waiting = len(keys)
        return keys, counts
