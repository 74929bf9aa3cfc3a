"""Estimates of leaves out of the results of tasks: the same as from one table of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from opendas.engines import outputs as large_files
from opendas.engines.drive import Estimation
from opendas.engines.outputs import Leaves
from opendas.geography.spine import Spine
from opendas.schema.histogram import Histogram

LEAVES, CELLS = 60, 5


@dataclass
class Results:
    """Results of tasks that are cut at some leaves; counts how often one is read."""

    table: Histogram
    cuts: list[int]
    reads: list[int] = field(default_factory=list)

    def tasks_at(self, level: int) -> list[Part]:
        assert level == 2
        return [Part(self, number) for number in range(len(self.cuts) - 1)]


@dataclass
class Part:
    results: Results
    number: int

    @property
    def first(self) -> int:
        return self.results.cuts[self.number]

    def read(self) -> Part:
        self.results.reads.append(self.number)
        return self

    @property
    def estimates(self) -> Histogram:
        return self.results.table.slice(self.first, self.results.cuts[self.number + 1])


@dataclass
class Order:
    """What is asked of a spine."""

    place_of_leaf: npt.NDArray[np.int64]
    levels: tuple[int, ...] = (0, 1, 2)


def made(seed: int, cuts: list[int]) -> tuple[Leaves, Histogram, Results]:
    """Return leaves, the table of all in the frame's order, and the results behind them."""
    generator = np.random.default_rng(seed)
    dense = generator.integers(0, 3, (LEAVES, CELLS))
    row, cell = np.nonzero(dense)
    table = Histogram.from_entries(row, cell, dense[row, cell], shape=(LEAVES, CELLS))
    place = generator.permutation(LEAVES) if seed else np.arange(LEAVES)
    results = Results(table, cuts)
    leaves = Leaves(cast("Estimation", results), cast("Spine", Order(place)))
    return leaves, table.take(place), results


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cuts", [[0, LEAVES], [0, 7, 8, 30, LEAVES], list(range(LEAVES + 1))])
def test_leaves_are_those_of_one_table_whatever_is_asked(seed: int, cuts: list[int]) -> None:
    leaves, table, _ = made(seed, cuts)
    generator = np.random.default_rng(100 + seed)
    asked = [np.arange(LEAVES), np.array([3]), np.array([9, 2, 2, 50]), np.arange(20, 40)]
    asked += [generator.choice(LEAVES, 25, replace=False) for _ in range(5)]
    for some in asked:
        found, expected = leaves(some), table.take(some)
        for name in ("indptr", "cells", "counts"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_results_are_read_once_where_neighbours_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "_PARTS_KEPT", 2)
    leaves, _, results = made(0, [0, 10, 20, 30, 40, 50, LEAVES])
    for start in range(0, LEAVES, 4):
        leaves(np.arange(start, start + 4))
    assert results.reads == [0, 1, 2, 3, 4, 5]
    leaves(np.array([55, 1]))
    assert results.reads == [0, 1, 2, 3, 4, 5, 0]
