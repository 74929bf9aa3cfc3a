"""Readers with a folder for large histograms: the same data and the same findings as in memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opendas.demo import write_nation
from opendas.errors import DataError
from opendas.io.readers import ReaderSpec, entries, make_reader, tables
from opendas.io.readers.base import InputData
from opendas.products.pl94 import pl94_units
from opendas.run import load


@pytest.fixture(scope="module")
def nation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nation")
    write_nation(folder, 600, 4, 2, people=8.0)
    return folder


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold little in memory, and read few rows at a time."""
    monkeypatch.setattr(entries, "IN_MEMORY", 100)
    monkeypatch.setattr(tables, "BATCH_ROWS", 256)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 12)


def same(left: InputData, right: InputData) -> bool:
    arrays = ("indptr", "cells", "counts")
    return (
        left.frame.geocodes.tolist() == right.frame.geocodes.tolist()
        and all(
            np.array_equal(getattr(left.histogram, name), getattr(right.histogram, name)) for name in arrays
        )
        and (left.stamps, left.declared, left.findings) == (right.stamps, right.declared, right.findings)
    )


def read(run_file: Path, cache: Path | None = None) -> InputData:
    return load(run_file).read(cache)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("product", ["persons", "units"])
def test_a_partitioned_data_set_reads_the_same_from_disk(nation: Path, tmp_path: Path, product: str) -> None:
    expected = read(nation / f"{product}.toml")
    data = read(nation / f"{product}.toml", tmp_path / "cache")
    assert isinstance(data.histogram.cells, np.memmap)
    assert not isinstance(expected.histogram.cells, np.memmap)
    assert same(data, expected)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["histogram"]


def rows_of(nation: Path, product: str) -> list[dict[str, Any]]:
    files = sorted((nation / product).rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(rows[0])
    if path.suffix == ".csv":
        lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("shape", ["files", "folder", "glob", "hive", "csv", "records", "records.csv"])
def test_files_in_any_order_of_leaves_read_the_same(nation: Path, tmp_path: Path, shape: str) -> None:
    expected = read(nation / "persons.toml")
    rows = rows_of(nation, "persons")
    shuffle = random.Random(3)
    shuffle.shuffle(rows)
    text = (nation / "persons.toml").read_text().replace('"frame.parquet"', f'"{nation}/frame.parquet"')
    if shape.startswith("records"):
        rows = [
            {name: value for name, value in row.items() if name != "count"}
            for row in rows
            for _ in range(row["count"])
        ]
        shuffle.shuffle(rows)
        text = text.replace('reader = "histogram"', 'reader = "records"').replace('count = "count"', "")
    ending = "csv" if "csv" in shape else "parquet"
    parts = [rows[k::3] for k in range(3)]
    if shape == "hive":
        by_sex: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_sex.setdefault(str(row.pop("hispanic")), []).append(row)
        for value, part in by_sex.items():
            write_rows(tmp_path / "in" / f"hispanic={value}" / f"a.{ending}", part)
    else:
        for k, part in enumerate(parts):
            write_rows(tmp_path / "in" / f"part{k}.{ending}", part)
    named = {
        "files": '["in/part2.parquet", "in/part0.parquet", "in/part1.parquet"]',
        "glob": '"in/*.parquet"',
    }
    path = named.get(shape, '"in"')
    run_file = tmp_path / "run.toml"
    run_file.write_text(text.replace('path = "persons"', f"path = {path}"))
    data = read(run_file, tmp_path / "cache")
    assert isinstance(data.histogram.cells, np.memmap)
    assert all(
        np.array_equal(getattr(data.histogram, name), getattr(expected.histogram, name))
        for name in ("indptr", "cells", "counts")
    )
    assert same(data, read(run_file))


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_findings_name_file_and_line_in_a_late_batch(nation: Path, tmp_path: Path, ending: str) -> None:
    rows = rows_of(nation, "persons")
    rows[700]["GEOID"] = "990010001001000"
    rows[900]["cenrace"] = 99
    rows[1000]["count"] = -4
    rows[1001]["count"] = -4
    write_rows(tmp_path / f"a.{ending}", rows[:300])
    write_rows(tmp_path / f"b.{ending}", rows)
    text = (nation / "persons.toml").read_text().replace('"frame.parquet"', f'"{nation}/frame.parquet"')
    (tmp_path / "run.toml").write_text(text.replace('path = "persons"', f'path = "*.{ending}"'))
    told = []
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(DataError) as caught:
            read(tmp_path / "run.toml", cache)
        told.append(sorted((f.file, f.line or 0, f.field or "") for f in caught.value.findings))
    header = 2 if ending == "csv" else 1
    assert (
        told[0]
        == told[1]
        == [
            (f"b.{ending}", 700 + header, "GEOID"),
            (f"b.{ending}", 900 + header, "cenrace"),
            (f"b.{ending}", 1000 + header, "count"),
            (f"b.{ending}", 1001 + header, "count"),
        ]
    )
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_codes_that_a_dictionary_lists_and_no_row_has_are_no_leaves(tmp_path: Path) -> None:
    codes = pa.array([f"0100100010010{k:02d}" for k in range(4)])
    table = {"GEOID": pa.DictionaryArray.from_arrays(pa.array([0, 2, 2], pa.int32()), codes)}
    table |= {"occupancy": pa.array([0, 0, 1]), "count": pa.array([3, 4, 5])}
    pq.write_table(pa.table(table), tmp_path / "units.parquet", store_schema=False)
    spec = ReaderSpec(
        "histogram", (tmp_path / "units.parquet",), pl94_units(), frame="from-records", geocode="GEOID"
    )
    data = make_reader(spec).read()
    assert data.frame.geocodes.tolist() == [codes[0].as_py().encode(), codes[2].as_py().encode()]
    assert data.histogram.row_totals().tolist() == [3, 9]
