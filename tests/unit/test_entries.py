"""Sums of counts that outgrow memory: on disk as in memory, in any order and with any limit."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.arrays import sum_by_key
from opendas.errors import EnvironmentFailure
from opendas.readers.counting.entries import Entries
from opendas.schema.histogram import Histogram


def fill(entries: Entries, batches: list[list[tuple[int, int]]]) -> Histogram:
    for batch in batches:
        keys = np.array([key for key, _ in batch], dtype=np.int64)
        counts = np.array([count for _, count in batch], dtype=np.int64)
        entries.add(*sum_by_key(keys, counts))
    return entries.histogram()


def obvious(batches: list[list[tuple[int, int]]], leaves: int, size: int) -> list[list[int]]:
    dense = np.zeros((leaves, size), dtype=np.int64)
    for batch in batches:
        for key, count in batch:
            dense[key // size, key % size] += count
    return dense.tolist()


def dense(histogram: Histogram) -> list[list[int]]:
    return [histogram.dense(row).tolist() for row in range(histogram.rows)]


@st.composite
def inputs(draw: st.DrawFn) -> tuple[int, int, list[list[tuple[int, int]]]]:
    leaves, size = draw(st.integers(1, 30)), draw(st.integers(1, 12))
    entry = st.tuples(st.integers(0, leaves * size - 1), st.integers(1, 2**40))
    return leaves, size, draw(st.lists(st.lists(entry, max_size=25), max_size=12))


@settings(max_examples=examples(60), deadline=None)
@given(inputs(), st.integers(1, 60))
def test_disk_and_memory_give_the_obvious_sums(
    tmp_path_factory: pytest.TempPathFactory,
    given_input: tuple[int, int, list[list[tuple[int, int]]]],
    limit: int,
) -> None:
    leaves, size, batches = given_input
    expected = obvious(batches, leaves, size)
    cache = tmp_path_factory.mktemp("cache")
    with Entries(leaves, size, cache, limit) as entries:
        on_disk = fill(entries, batches)
    with Entries(leaves, size, None, limit) as entries:
        in_memory = fill(entries, batches)
    assert dense(in_memory) == expected
    assert dense(on_disk) == expected
    for name in ("indptr", "cells", "counts"):
        np.testing.assert_array_equal(getattr(on_disk, name), getattr(in_memory, name))
    assert {path.name for path in cache.iterdir()} <= {"histogram"}


def test_few_entries_leave_nothing_on_disk(tmp_path: Path) -> None:
    with Entries(3, 4, tmp_path) as entries:
        histogram = fill(entries, [[(5, 2)], [(5, 1), (0, 1)]])
    assert dense(histogram) == [[1, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0]]
    assert not isinstance(histogram.cells, np.memmap)
    assert not list(tmp_path.iterdir())


def test_many_entries_are_mapped_from_a_folder_of_their_owner(tmp_path: Path) -> None:
    batches = [[(key, 1)] for key in (11, 3, 7, 3, 0, 11)]
    with Entries(3, 4, tmp_path / "cache", limit=2) as entries:
        histogram = fill(entries, batches)
        folders = [tmp_path / "cache", *(path for path in (tmp_path / "cache").iterdir() if path.is_dir())]
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
        assert len(folders) == 3
    assert isinstance(histogram.cells, np.memmap)
    assert dense(histogram) == obvious(batches, 3, 4)


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def stopped() -> None:
        with Entries(3, 4, tmp_path, limit=1) as entries:
            entries.add(np.array([1, 2, 3]), np.array([1, 1, 1]))
            assert list(tmp_path.iterdir())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFailure), Entries(3, 4, tmp_path / "file", limit=1) as entries:
        entries.add(np.array([1, 2, 3]), np.array([1, 1, 1]))


def test_a_single_leaf_may_hold_more_than_the_limit(tmp_path: Path) -> None:
    batches = [[(key, 1) for key in range(start, 50, 3)] for start in (2, 0, 1, 2)]
    with Entries(1, 50, tmp_path, limit=4) as entries:
        histogram = fill(entries, batches)
    assert dense(histogram) == obvious(batches, 1, 50)
