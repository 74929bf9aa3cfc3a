"""Histograms on disk are those that were written, however they were cut."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from opendas.errors import EnvironmentFailure, FormatError
from opendas.readers.counting.entries import HistogramWriter, open_histogram
from opendas.schema.histogram import Histogram


def made(rows: int, size: int = 7) -> Histogram:
    rng = np.random.default_rng(rows)
    entries = 4 * rows
    return Histogram.from_entries(
        rng.integers(0, max(rows, 1), entries),
        rng.integers(0, size, entries),
        rng.integers(0, 9, entries),
        shape=(rows, size),
    )


@pytest.mark.parametrize("cuts", [(0, 50), (0, 1, 1, 30, 50)])
def test_rows_come_back(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    whole = made(50)
    with HistogramWriter(tmp_path / "h", 7) as writer:
        for start, stop in itertools.pairwise(cuts):
            writer.write(whole.slice(start, stop))
    found = open_histogram(tmp_path / "h")
    assert isinstance(found.cells, np.memmap)
    assert (found.rows, found.size) == (50, 7)
    for one, other in zip(
        (found.indptr, found.cells, found.counts), (whole.indptr, whole.cells, whole.counts), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    part = found.take(np.array([49, 0, 7]))
    np.testing.assert_array_equal(part.dense(1), whole.dense(0))
    assert (tmp_path / "h").stat().st_mode & 0o777 == 0o700


def test_a_histogram_without_entries_can_be_read(tmp_path: Path) -> None:
    with HistogramWriter(tmp_path / "h", 3) as writer:
        writer.write(made(0, 3))
    assert open_histogram(tmp_path / "h").rows == 0


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    def interrupted() -> None:
        with HistogramWriter(tmp_path / "h", 7) as writer:
            writer.write(made(5))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 7"), HistogramWriter(tmp_path / "h", 7) as writer:
        writer.write(made(5, 8))


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HistogramWriter(tmp_path / "h", 7) as writer:

        class Full:
            def __init__(self, file: BinaryIO) -> None:
                self.close = file.close

            def write(self, _: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setitem(writer._files, "cells", Full(writer._files["cells"]))
        with pytest.raises(EnvironmentFailure, match="No space left"):
            writer.write(made(5))


@pytest.mark.parametrize("damage", ["absent", "short", "size"])
def test_damage_is_told(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "h"
    with HistogramWriter(folder, 7) as writer:
        writer.write(made(20))
    if damage == "absent":
        (folder / "counts").unlink()
    elif damage == "short":
        with (folder / "cells").open("r+b") as file:
            file.truncate(8)
    else:
        (folder / "size").write_text("many")
    with pytest.raises(FormatError, match="h"):
        open_histogram(folder)
