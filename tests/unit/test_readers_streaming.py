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
from opendas.errors import DataError, GeographyError
from opendas.readers import ReaderSpec, UnitsSpec, make_reader
from opendas.readers.columns import csv_parquet
from opendas.readers.columns.findings import FindingLog, Origin, joined, report_rows
from opendas.readers.counting import entries
from opendas.readers.frame import frame_file, units
from opendas.readers.input.spec import InputData
from opendas.runs.context.run import load
from opendas.schema.pl94 import pl94_persons, pl94_units


@pytest.fixture(scope="module")
def nation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nation")
    write_nation(folder, 600, 4, 2, people=8.0)
    return folder


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold little in memory, and read few rows at a time."""
    monkeypatch.setattr(entries, "IN_MEMORY", 100)
    monkeypatch.setattr(csv_parquet, "BATCH_ROWS", 256)
    monkeypatch.setattr(csv_parquet, "_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(units, "_ROWS", 7)
    monkeypatch.setattr(frame_file, "PUBLIC_ROWS", 50)
    monkeypatch.setattr(units, "PUBLIC_ROWS", 33)


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


def test_rows_are_recorded_by_their_own_lines() -> None:
    log = FindingLog()
    origins = [Origin("a.csv", first, rows) for first, rows in ((2, 3), (5, 0), (9, 2), (20, 1))]
    report_rows(np.ones(6, dtype=bool), origins, "x", "expected another", log, GeographyError)
    assert [finding.line for finding in log.findings] == [2, 3, 4, 9, 10, 20]


def test_joined_parts_are_given_up() -> None:
    parts = [np.array([b"a"]), np.array([b"bcd", b""])]
    assert joined(parts).tolist() == [b"a", b"bcd", b""]
    assert parts == []


def shuffled_frame(nation: Path, path: Path) -> pa.Table:
    table = pq.read_table(nation / "frame.parquet")
    table = table.take(np.random.default_rng(1).permutation(table.num_rows))
    pq.write_table(table, path)
    return table


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("product", ["persons", "units"])
@pytest.mark.parametrize("derive", [False, True])
def test_a_frame_in_any_order_and_small_batches_is_the_same(
    nation: Path, tmp_path: Path, product: str, derive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled_frame(nation, tmp_path / "frame.parquet")
    if derive:  # units come from the records where the frame has none
        for name, folder in (("plain", nation), ("frame", tmp_path)):
            table = pq.read_table(folder / "frame.parquet")
            table = table.select([c for c in table.column_names if c != "hu" and not c.startswith("gq")])
            pq.write_table(table, tmp_path / f"{name}.parquet")

    def data_of(frame: Path) -> InputData:
        units = None if derive else UnitsSpec(frame, "GEOID")
        files = tuple(sorted((nation / product).rglob("*.parquet")))
        about = pl94_persons() if product == "persons" else pl94_units()
        spec = ReaderSpec("histogram", files, about, "us", frame=frame, units=units, geocode="GEOID")
        return make_reader(spec).read()

    small = data_of(tmp_path / "frame.parquet")
    monkeypatch.undo()
    large = data_of(tmp_path / "plain.parquet" if derive else nation / "frame.parquet")
    assert same(small, large)
    for left, right in (
        (small.frame.levels, large.frame.levels),
        (small.frame.units, large.frame.units),
        (small.frame.entities, large.frame.entities),
    ):
        assert {name: values.tolist() for name, values in left.items()} == {
            name: values.tolist() for name, values in right.items()
        }
    assert small.frame.geolevels == ("us", "state", "county", "tract", "block_group", "block")


@pytest.mark.usefixtures("little")
def test_leaves_listed_twice_are_told_across_batches(nation: Path, tmp_path: Path) -> None:
    table = pq.read_table(nation / "frame.parquet")
    again = pa.concat_tables([table, table.slice(3, 2)])
    pq.write_table(again, tmp_path / "frame.parquet")
    spec = ReaderSpec("histogram", (), pl94_units(), "us", frame=tmp_path / "frame.parquet", geocode="GEOID")
    with pytest.raises(GeographyError) as caught:
        make_reader(spec).frame()
    assert [(f.file, f.line) for f in caught.value.findings] == [
        ("frame.parquet", 601),
        ("frame.parquet", 602),
    ]


@pytest.mark.usefixtures("little")
def test_units_of_unknown_and_repeated_leaves_are_told_by_line(nation: Path, tmp_path: Path) -> None:
    table = pq.read_table(nation / "frame.parquet")
    part = table.slice(100, 400)
    pq.write_table(part, tmp_path / "frame.parquet")

    def told(units: pa.Table) -> list[tuple[int | None, str]]:
        pq.write_table(units, tmp_path / "units.parquet")
        units_spec = UnitsSpec(tmp_path / "units.parquet", "GEOID")
        spec = ReaderSpec(
            "histogram", (), pl94_units(), "us",
            frame=tmp_path / "frame.parquet", geocode="GEOID", units=units_spec,
        )  # fmt: skip
        with pytest.raises(GeographyError) as caught:
            make_reader(spec).frame()
        return [(f.line, f.rule) for f in caught.value.findings if f.line is not None]

    lived = (np.array(table["hu"]) > 0) | np.any([np.array(table[f"gq{k}"]) > 0 for k in range(1, 8)], axis=0)
    strangers = [k + 1 for k in range(600) if lived[k] and not 100 <= k < 500]
    assert told(table) == [(line, "expected a leaf of the frame") for line in strangers[:20]]
    repeated = pa.concat_tables([part, part.slice(7, 1), part.slice(390, 2)])
    assert told(repeated) == [(line, "expected each leaf once") for line in (401, 402, 403)]
    outside = table.slice(0, 40)
    assert told(pa.concat_tables([outside, part, outside.slice(5, 1)])) == [(441, "expected each leaf once")]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("product", ["persons", "units"])
def test_broken_bounds_are_found_piece_by_piece(
    nation: Path, tmp_path: Path, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pq.read_table(nation / "frame.parquet")
    place = table.column_names.index("gq3" if product == "persons" else "hu")
    fewer = np.where(np.array(table["hu"]) > 0, 0, np.array(table.column(place)))  # leaves remain leaves
    table = table.set_column(place, table.column_names[place], pa.array(fewer))
    pq.write_table(table, tmp_path / "frame.parquet")
    text = (
        (nation / f"{product}.toml")
        .read_text()
        .replace(f'path = "{product}"', f'path = "{nation}/{product}"')
    )
    (tmp_path / "run.toml").write_text(text)
    if product == "units":
        with pytest.raises(DataError) as caught:  # a block without homes is no leaf, and has records
            read(tmp_path / "run.toml")
        assert caught.value.findings[0].file == "state=01/county=001/part-0.parquet"
        more = np.array(pq.read_table(nation / "frame.parquet")["hu"]) + (np.arange(600) % 50 == 0)
        table = table.set_column(place, "hu", pa.array(more))
        pq.write_table(table, tmp_path / "frame.parquet")
    small = read(tmp_path / "run.toml", tmp_path / "cache").findings
    monkeypatch.undo()
    assert small == read(tmp_path / "run.toml").findings
    assert {finding.field for finding in small} == {"gq3" if product == "persons" else "hu"}
