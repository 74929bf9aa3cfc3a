"""Slices and sums of the confidential table equal those of the table in memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from support.assembled import assemble, same
from support.mini import mini_frame, mini_histogram, mini_product
from support.used import used_answers

import opendas.engines.truth as truth
from opendas.engines.subtree import UsedColumns
from opendas.engines.truth import LeafCounts
from opendas.measurement.family import UsedAnswers
from opendas.readers.counting.entries import HistogramWriter, open_histogram


@pytest.mark.parametrize("at_once", [1, 5, 1 << 16])
@pytest.mark.parametrize("mapped", [False, True])
def test_sums_are_those_of_all_leaves(
    at_once: int, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth, "LEAVES_AT_ONCE", at_once)
    frame = mini_frame(regions=3, towns=3, blocks=4)
    table = mini_histogram(frame)
    run = assemble(mini_product(), frame, table)
    if mapped:
        with HistogramWriter(tmp_path / "h", table.size) as writer:
            writer.write(table)
        table = open_histogram(tmp_path / "h")
    last = len(run.spine.levels) - 1
    for levels in (range(last + 1), reversed(range(last + 1))):
        counts = LeafCounts(table, run.spine)
        for level in levels:
            expected = run.counts.aggregate(run.spine.leaf_starts(level))
            size = expected.rows
            for start, stop in ((0, size), (0, 1), (size // 2, size)):
                assert same(counts.slice(level, start, stop), expected.slice(start, stop))
            assert same(counts.at(level), expected)


def test_counts_in_spine_order_are_put_back() -> None:
    frame = mini_frame()
    run = assemble(mini_product(), frame, mini_histogram(frame))
    assert same(LeafCounts.on(run.spine, run.counts).rows(0, len(frame)), run.counts)


def slow(used: list[UsedAnswers], query: str, first: int, geounits: int) -> list[list[tuple[int, int]]]:
    """What was used of each geounit: (row, value)."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(geounits)]
    for each in used:
        if each.query == query:
            for child in range(each.children):
                pairs = zip(each.rows.tolist(), each.values[child].tolist(), strict=True)
                found[each.first - first + child] += list(pairs)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_used_answers_by_query_equal_those_of_the_families(seed: int) -> None:
    rng = np.random.default_rng(seed)
    used: list[UsedAnswers] = []
    for level, first in ((2, 10), (3, 40)):
        for _ in range(6):
            children = int(rng.integers(1, 4))
            for query, size in (("a", 3), ("b", 8)):
                rows = np.flatnonzero(rng.random(size) < 0.6).astype(np.int32)
                if rng.random() < 0.8:
                    values = rng.integers(-9, 99, (children, len(rows)))
                    used.append(UsedAnswers(level, first, children, query, rows, values))
            first += children + int(rng.random() < 0.3)
    columns = UsedColumns.of(used)
    for level, first in ((2, 10), (3, 40)):
        here = [each for each in used if each.level == level]
        for query in ("a", "b", "c"):
            offsets, rows, values = columns.of_query(level, query, first, 25)
            pairs = list(zip(rows.tolist(), values.tolist(), strict=True))
            got = [pairs[start:stop] for start, stop in itertools.pairwise(offsets)]
            assert got == slow(here, query, first, 25)
    again = list(used_answers(columns))
    assert [(u.level, u.first, u.query, u.values.tolist()) for u in again] == [
        (u.level, u.first, u.query, u.values.tolist()) for u in used
    ]
    assert UsedColumns.of([]).of_query(1, "a", 0, 2)[0].tolist() == [0, 0, 0]
