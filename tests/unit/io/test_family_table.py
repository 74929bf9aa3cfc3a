"""The file of families: what was written is what DuckDB, polars and pandas read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import opendas.engines.outputs as module
from opendas.engines.outputs import FAMILY_FIELDS, SCHEMA, family_batch, write_families
from opendas.topdown.model import FamilyRecord


def record(number: int) -> FamilyRecord:
    return FamilyRecord(
        "block" if number % 2 else "tract",
        f"4400{number:05d}",
        1 + number % 7,
        2 + number % 5,
        ("direct",) if number % 3 else ("direct", "clarabel"),
        1e-12 * number,
        number % 3 == 0,
        0.5 * number,
        "relaxed" if number == 4 else "",
    )


def batches(tasks: int, size: int) -> Iterator[object]:
    for task in range(tasks):
        records = [record(task * size + i) for i in range(size)]
        yield family_batch(records, 1e-3 * np.arange(size), stage=1, task=task)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mini_families.parquet"
    assert write_families(path, batches(3, 4)) == 12
    return path


def expected() -> list[tuple[object, ...]]:
    rows = []
    for task in range(3):
        for i in range(4):
            r = record(task * 4 + i)
            rows.append((r.geolevel, r.label, r.children, r.cells, ", ".join(r.methods), r.fallback, task))
    return rows


COLUMNS = ["geolevel", "label", "children", "cells", "methods", "fallback", "task"]


def test_duckdb_reads_it(table: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql(f"select {', '.join(COLUMNS)} from '{table}'").fetchall()
    assert rows == expected()
    query = f"select geolevel, count(*) filter (fallback) from '{table}' group by geolevel order by geolevel"
    assert duckdb.sql(query).fetchall() == [("block", 2), ("tract", 2)]


def test_polars_reads_it(table: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(table)
    assert frame.select(COLUMNS).rows() == expected()
    assert frame["seconds"].to_list() == pytest.approx([0.0, 1e-3, 2e-3, 3e-3] * 3)


def test_pandas_reads_it(table: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(table)
    assert list(frame[COLUMNS].itertuples(index=False, name=None)) == expected()
    assert frame["residual"].tolist() == [1e-12 * i for i in range(12)]
    assert frame["passes"].tolist() == [1 if i % 3 else 2 for i in range(12)]


def test_rows_are_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 10)
    path = tmp_path / "table.parquet"
    assert write_families(path, batches(7, 4)) == 28
    found = pq.ParquetFile(path)
    assert [found.metadata.row_group(i).num_rows for i in range(found.num_row_groups)] == [12, 12, 4]
    assert found.read().column("label").to_pylist() == [record(i).label for i in range(28)]


def test_no_family_and_no_times_are_possible(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    assert write_families(path, iter(())) == 0
    assert pq.read_table(path).column_names == list(FAMILY_FIELDS)
    assert write_families(path, [family_batch([record(1)], None, stage=0, task=0)]) == 1
    assert pq.read_table(path).column("seconds").to_pylist() == [None]
    with pytest.raises(ValueError, match="2 times"):
        family_batch([record(1)], [1.0, 2.0], stage=0, task=0)


def test_a_stream_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[object]:
        yield from batches(1, 4)
        raise RuntimeError("stopped")

    path = tmp_path / "table.parquet"
    with pytest.raises(RuntimeError):
        write_families(path, failing())
    assert list(tmp_path.iterdir()) == []
    assert len(SCHEMA) == len(FAMILY_FIELDS)
