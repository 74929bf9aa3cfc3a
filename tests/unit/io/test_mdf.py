from __future__ import annotations

import csv
import dataclasses
import errno
import resource
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from support.dhc import GQ_CODES, dhc_persons_product
from support.mdf import write_mdf

from opendas.errors import ConfigError, EnvironmentFailure, FormatError, GeographyError, SchemaError
from opendas.files.mdf import layout as mdf_layout
from opendas.files.mdf import writing as mdf_writer
from opendas.files.mdf.reading import _undamaged, read_mdf, read_mdf_records
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

PERSON_COLUMNS = [
    "SCHEMA_TYPE_CODE", "SCHEMA_BUILD_ID", "TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK",
    "EPNUM", "RTYPE", "GQTYPE_PL", "VOTING_AGE", "CENHISP", "CENRACE",
]  # fmt: skip
DHC_PERSON_COLUMNS = [
    "SCHEMA_TYPE_CODE", "SCHEMA_BUILD_ID", "TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK",
    "EPNUM", "RTYPE", "GQTYPE", "RELSHIP", "QSEX", "QAGE", "CENHISP", "CENRACE", "LIVE_ALONE",
]  # fmt: skip


def expected_persons(example):
    """The obvious twin: one record at a time."""
    records = []
    for leaf, code in enumerate(example.frame.geocodes):
        geocode = code.decode()
        for cell, count in enumerate(example.estimate.dense(leaf)):
            hhgq, age, hispanic, race = np.unravel_index(cell, (8, 2, 2, 63))
            for _ in range(count):
                records.append(
                    ["MPD", "1.1.0", geocode[:2], geocode[2:5], geocode[5:11], geocode[11], geocode[11:],
                     len(records), "3" if hhgq == 0 else "5", str(hhgq), str(age + 1), str(hispanic + 1),
                     f"{race + 1:02d}"]
                )  # fmt: skip
    return records


def expected_dhc_persons(example):
    schema = example.product.schema
    records = []
    for leaf, code in enumerate(example.frame.geocodes):
        geocode = code.decode()
        row = example.estimate.dense(leaf)
        for cell in np.flatnonzero(row):
            relgq, sex, age, hispanic, race = np.unravel_index(cell, schema.shape)
            if relgq < 18:
                live = ["3", "000", "20" if relgq < 2 else str(19 + relgq), "1" if relgq == 0 else "2"]
            else:
                kind = GQ_CODES[relgq - 18]
                live = ["5", str(kind), "37" if kind < 500 else "38", "0"]
            for _ in range(row[cell]):
                records.append(
                    ["MPD", "1.1.0", geocode[:2], geocode[2:5], geocode[5:11], geocode[11], geocode[11:],
                     len(records), *live[:3], str(sex + 1), str(age), str(hispanic + 1), f"{race + 1:02d}",
                     live[3]]
                )  # fmt: skip
    return records


def expected_units(example):
    records = []
    for leaf, code in enumerate(example.frame.geocodes):
        geocode = code.decode()
        where = ["MUD", "1.1.0", geocode[:2], geocode[2:5], geocode[5:11], geocode[11], geocode[11:]]
        vacant, occupied = example.estimate.dense(leaf)
        facilities = sum(int(example.frame.units[column][leaf]) for column in GQ_COLUMNS)
        records += [[*where, "2", "1"]] * occupied + [[*where, "2", "2"]] * vacant
        records += [[*where, "4", "0"]] * facilities
    return records


def expected_wards(example):
    schema = example.product.schema
    records = []
    for leaf, code in enumerate(example.frame.geocodes):
        for cell, count in enumerate(example.estimate.dense(leaf)):
            codes = np.unravel_index(cell, schema.shape)
            labels = [a.levels[int(i)] for a, i in zip(schema.attributes, codes, strict=True)]
            records += [[code.decode(), *labels]] * count
    return records


EXPECTED = {
    "dhc_persons": expected_dhc_persons,
    "persons": expected_persons,
    "units": expected_units,
    "wards": expected_wards,
}


def same(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indptr", "cells", "counts", "size")
    )


@pytest.fixture(params=sorted(EXPECTED))
def example(request):
    return request.param, request.getfixturevalue(request.param)


@pytest.mark.parametrize("row_group", [3, 1 << 17])
def test_records_equal_a_record_by_record_writer(example, tmp_path, monkeypatch, row_group):
    name, ex = example
    monkeypatch.setattr(mdf_writer, "ROW_GROUP", row_group)
    wanted = EXPECTED[name](ex)
    assert write_mdf(tmp_path, ex.product, ex.frame, ex.estimate) == len(wanted)
    found = []
    for path in sorted(tmp_path.iterdir()):
        table = pq.read_table(path)
        found += [list(row.values()) for row in table.to_pylist()]
        assert all(
            pq.ParquetFile(path).metadata.row_group(i).num_rows <= row_group
            for i in range(pq.ParquetFile(path).num_row_groups)
        )
    assert found == wanted


def test_pipe_layout_holds_the_same_records(example, tmp_path):
    name, ex = example
    write_mdf(tmp_path, ex.product, ex.frame, ex.estimate, fmt="pipe")
    found = []
    for path in sorted(tmp_path.iterdir()):
        lines = path.read_text().splitlines(keepends=True)
        body = [line for line in lines if not line.startswith("#")]
        assert lines[0].startswith("# Layout")
        found += list(csv.reader(body[1:], delimiter="|"))
    assert found == [[str(value) for value in record] for record in EXPECTED[name](ex)]


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_reading_back_gives_the_estimate(example, tmp_path, fmt):
    _, ex = example
    records = write_mdf(tmp_path, ex.product, ex.frame, ex.estimate, fmt=fmt)
    assert same(read_mdf(tmp_path, ex.product, ex.frame), ex.estimate)
    seen = read_mdf_records(tmp_path, ex.product, ex.frame)
    assert (seen.records, seen.sorted_by_leaf, seen.numbered) == (records, True, True)


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_every_cell_of_the_dhc_schema_comes_back(dhc_persons, tmp_path, fmt):
    """One person in each of the 1,227,744 cells, possible or not."""
    product, frame = dhc_persons.product, dhc_persons.frame
    cells = np.arange(product.schema.size)
    estimate = Histogram.from_entries(cells * 0 + 3, cells, cells * 0 + 1, shape=(len(frame), len(cells)))
    assert write_mdf(tmp_path, product, frame, estimate, fmt=fmt) == 1_227_744
    assert same(read_mdf(tmp_path, product, frame), estimate)


def test_dhc_codes_that_contradict_each_other_are_refused(dhc_persons, tmp_path):
    """A householder alone who is not; someone in quarters with a relationship; a top age that is none."""
    product, frame, estimate = dhc_persons.product, dhc_persons.frame, dhc_persons.estimate
    for old, new in [
        ("|3|000|20|1|115|1|01|1\n", "|3|000|20|1|115|1|01|0\n"),
        ("|3|000|20|1|115|", "|5|101|20|1|115|"),
        ("|3|000|20|1|115|", "|3|000|20|1|116|"),
    ]:
        write_mdf(tmp_path, product, frame, estimate, fmt="pipe")
        replace_text(tmp_path, old, new)
        with pytest.raises(SchemaError, match=r"outside its list|do not go together"):
            read_mdf(tmp_path, product, frame)


def test_the_dhc_layout_asks_for_its_attributes(dhc_persons):
    product = dataclasses.replace(dhc_persons_product(), schema=pl94_persons().schema)
    with pytest.raises(ConfigError, match="relgq, sex, age, hispanic, cenrace"):
        mdf_layout.check_mdf(product, dhc_persons.frame)


def test_same_bytes_twice(example, tmp_path):
    _, ex = example
    for fmt in ("parquet", "pipe"):
        for run in ("a", "b"):
            write_mdf(tmp_path / run, ex.product, ex.frame, ex.estimate, fmt=fmt)
        first = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        assert first == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}


@pytest.mark.parametrize(
    ("name", "columns"), [("persons", PERSON_COLUMNS), ("dhc_persons", DHC_PERSON_COLUMNS)]
)
def test_pandas_polars_and_duckdb_read_the_same(request, tmp_path, name, columns):
    example = request.getfixturevalue(name)
    write_mdf(tmp_path, example.product, example.frame, example.estimate)
    wanted = [tuple(record) for record in EXPECTED[name](example)]
    pattern = str(tmp_path / "*.parquet")
    from_pandas = pd.read_parquet(tmp_path)
    assert list(from_pandas.columns) == columns
    assert sorted(from_pandas.itertuples(index=False, name=None), key=lambda row: row[7]) == wanted
    assert pl.read_parquet(pattern).sort("EPNUM").rows() == wanted
    with duckdb.connect() as connection:
        query = "select * from read_parquet(?) order by EPNUM"
        assert connection.execute(query, [pattern]).fetchall() == wanted


def test_parts_are_named_by_county_and_the_level_below_the_root(persons, wards, tmp_path):
    write_mdf(tmp_path / "p", persons.product, persons.frame, persons.estimate)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["44001.parquet", "44003.parquet"]
    write_mdf(tmp_path / "w", wards.product, wards.frame, wards.estimate)
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["A.parquet", "B.parquet"]


def test_a_level_of_too_many_geounits_leaves_the_parts_to_the_one_above(wards, monkeypatch):
    product, frame = wards.product, wards.frame
    monkeypatch.setattr(mdf_layout, "MOST_PARTS", 1)
    roots = mdf_layout.mdf_parts(product, frame)
    assert len(roots) == len(np.unique(frame.codes(frame.geolevels[0])))
    monkeypatch.setattr(mdf_layout, "MOST_PARTS", 0)
    assert [part.name for part in mdf_layout.mdf_parts(product, frame)] == ["all"]
    assert np.array_equal(mdf_layout.mdf_parts(product, frame)[0].leaves, np.arange(len(frame)))


@pytest.mark.parametrize("code", ["x" * 400, "/" * 100, "x" * 200])
def test_a_long_geocode_gets_a_name_that_file_systems_take(tmp_path, code):
    name = mdf_layout.part_name(code)
    assert len(name) <= mdf_layout.LONGEST_NAME
    assert name != mdf_layout.part_name(code[:-1])
    (tmp_path / f".{name}.parquet.partial").touch()


def test_another_format_replaces_the_first(persons, tmp_path):
    write_mdf(tmp_path, persons.product, persons.frame, persons.estimate)
    write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt="pipe")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["44001.txt", "44003.txt"]


def test_an_unknown_format_is_refused(persons, tmp_path):
    with pytest.raises(ConfigError, match="unknown microdata format"):
        write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt="xml")


def test_full_disk_leaves_no_half_part(persons, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("opendas.custody.folders.os.fsync", full)
    for fmt in ("parquet", "pipe"):
        with pytest.raises(EnvironmentFailure):
            write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt=fmt)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_a_write_that_stops_half_way_leaves_no_part(persons, tmp_path, fmt):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(EnvironmentFailure, match="44001"):
            write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt=fmt)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def replace_text(folder, old, new):
    path = folder / "44001.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_illegal_codes_are_named_by_file_and_field(persons, tmp_path) -> None:
    for old, new, error in [
        ("|030100|1|1000|0|", "|030100|1|1009|0|", GeographyError),
        ("|0|3|0|", "|0|3|8|", SchemaError),
        ("|0|3|0|", "|0|5|0|", SchemaError),
        ("|0|3|0|", "|0||0|", SchemaError),
        ("|0|3|0|", "|zero|3|0|", FormatError),
        ("CENHISP", "HISPANIC", FormatError),
        ("MPD", "MUD", SchemaError),
    ]:
        write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt="pipe")
        replace_text(tmp_path, old, new)
        with pytest.raises(error, match="44001"):
            read_mdf(tmp_path, persons.product, persons.frame)


def test_missing_number_and_wrong_order_are_seen(persons, tmp_path):
    write_mdf(tmp_path, persons.product, persons.frame, persons.estimate, fmt="pipe")
    path = tmp_path / "44001.txt"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], *lines[5:]]))
    seen = read_mdf_records(tmp_path, persons.product, persons.frame)
    assert not seen.numbered
    assert seen.sorted_by_leaf
    path.write_text("".join([*lines[:3], lines[-1], *lines[4:-1], lines[3]]))
    assert not read_mdf_records(tmp_path, persons.product, persons.frame).sorted_by_leaf


def tracts(example):
    """The same people by tract: leaves above the block."""
    codes = np.unique(example.frame.geocodes.astype("S11"))
    starts = np.searchsorted(example.frame.geocodes.astype("S11"), [*codes, b"99"])
    units = {name: np.add.reduceat(count, starts[:-1]) for name, count in example.frame.units.items()}
    frame = Frame(codes, official_codes(codes, "us", "tract"), "tract", units)
    return dataclasses.replace(example, frame=frame, estimate=example.estimate.aggregate(starts))


@pytest.mark.parametrize("layout", ["persons", "units"])
def test_leaves_above_the_block_have_the_columns_down_to_their_own(tmp_path, request, layout):
    example = tracts(request.getfixturevalue(layout))
    write_mdf(tmp_path, example.product, example.frame, example.estimate)
    columns = pq.read_table(sorted(tmp_path.glob("*.parquet"))[0]).column_names
    assert [name for name in columns if name.startswith("TAB")] == ["TABBLKST", "TABBLKCOU", "TABTRACTCE"]
    assert same(read_mdf(tmp_path, example.product, example.frame), example.estimate)


def test_leaves_that_are_no_census_geounits_are_refused(tmp_path, persons):
    frame = dataclasses.replace(persons.frame, leaf="ward")
    with pytest.raises(GeographyError, match="blocks as leaves"):
        write_mdf(tmp_path, persons.product, frame, persons.estimate)


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, EnvironmentFailure), (errno.EINVAL, FormatError)])
def test_a_disk_that_fails_is_no_damage(code, kind):
    def batches():
        yield 1
        raise OSError(code, "failed")

    with pytest.raises(kind):
        list(_undamaged(Path("a.parquet"), batches()))
