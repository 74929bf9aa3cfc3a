"""Readers of records and histograms: values, frames, units and everything that can be wrong."""

from __future__ import annotations

import dataclasses
import gzip
import zipfile
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data import shared_data
from support.pl94_zip import write_csv

from opendas.errors import (
    ConfigError,
    DataError,
    EnvironmentFailure,
    FormatError,
    GeographyError,
    SchemaError,
)
from opendas.geography.frame import LevelRule
from opendas.readers import READERS, ReaderSpec, UnitsSpec, expand_paths, make_reader
from opendas.readers.input.spec import MemoryTable, Source
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.declarations import Bound, StructuralZero
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import PassPlan, Product

LEVELS = (LevelRule("country", 0), LevelRule("region", 1), LevelRule("ward", 3))
FRAME = ["a01", "a02", "b01", "b02", "b03"]


def product(**changes: Any) -> Product:
    one = (("total",), ("detailed",))
    plain = Product(
        name="ages",
        schema=Schema((Attribute("age", ("under18", "18plus")), Attribute("group", ("x", "y", "z")))),
        recodes=(),
        query_names=("total", "age", "detailed"),
        invariants=(),
        bounds=(),
        structural_zeros=(),
        protected_unit="person",
        layout="ages",
        passes=PassPlan(least_squares={"*": (("rest",),)}, rounder={"*": one}),
    )
    return dataclasses.replace(plain, **changes)


def frame_file(folder: Path, codes: list[str] = FRAME) -> Path:
    return write_csv(folder / "frame.csv", [["geocode", "note"], *([code, "kept out"] for code in codes)])


def spec(folder: Path, *paths: Source, reader: str = "records", **changes: Any) -> ReaderSpec:
    frame = folder / "frame.csv"
    plain = ReaderSpec(reader, paths, product(), levels=LEVELS, frame=frame if frame.exists() else None)
    return dataclasses.replace(plain, **changes)


RECORDS = [["a01", "under18", "x"], ["a01", "18plus", "z"], ["b03", "18plus", "z"], ["b03", "18plus", "z"]]
HEAD = ["geocode", "age", "group"]


def records_file(folder: Path, rows: list[list[object]] | None = None, name: str = "data.csv") -> Path:
    return write_csv(folder / name, [HEAD, *(RECORDS if rows is None else rows)])


def test_records_are_counted_in_the_order_of_the_frame(tmp_path: Path) -> None:
    frame_file(tmp_path, ["b03", "a02", "b01", "a01", "b02"])
    data = make_reader(spec(tmp_path, records_file(tmp_path))).read()
    assert data.frame.geocodes.tolist() == [code.encode() for code in FRAME]
    assert data.frame.geolevels == ("country", "region", "ward")
    assert data.frame.codes("country").tolist() == [b"1"] * 5
    assert data.frame.codes("region").tolist() == [b"a", b"a", b"b", b"b", b"b"]
    dense = np.array([data.histogram.dense(row) for row in range(5)])
    assert dense.tolist() == [[1, 0, 0, 0, 0, 1], [0] * 6, [0] * 6, [0] * 6, [0, 0, 0, 0, 0, 2]]
    assert (data.stamps, data.declared, data.findings) == ((), (), ())


def test_every_way_to_write_a_level_gives_the_same(tmp_path: Path) -> None:
    for kind in ["labels", "codes", "mixed", "parquet", "dictionary", "gzip", "bars", "tabs", "bom"]:
        frame_file(tmp_path)
        rows = [list(map(str, row)) for row in RECORDS]
        if kind in ("codes", "mixed"):
            rows = [
                [g, str(int(a == "18plus")), str("xyz".index(c)) if kind == "codes" else c]
                for g, a, c in rows
            ]
        path = records_file(tmp_path, rows)
        text = path.read_text()
        if kind == "parquet":
            table = {"geocode": [r[0] for r in rows], "age": [int(r[1] == "18plus") for r in rows]}
            path = tmp_path / "data.parquet"
            pq.write_table(pa.table(table | {"group": [r[2] for r in rows]}), path)
        elif kind == "dictionary":
            path = tmp_path / "data.parquet"
            columns = [pa.array(column).dictionary_encode() for column in zip(*rows, strict=True)]
            pq.write_table(pa.table(columns, names=HEAD), path)
        elif kind == "gzip":
            path = tmp_path / "data.csv.gz"
            path.write_bytes(gzip.compress(text.encode()))
        elif kind in ("bars", "tabs"):
            path.write_text("# made\n# by hand\n" + text.replace(",", "|" if kind == "bars" else "\t"))
        elif kind == "bom":
            path.write_text("\ufeff" + text)
        data = make_reader(spec(tmp_path, path)).read()
        assert data.histogram.cells.tolist() == [0, 5, 5]
        assert data.histogram.counts.tolist() == [1, 1, 2]


def test_a_label_that_looks_like_a_code_is_a_label(tmp_path: Path) -> None:
    frame_file(tmp_path)
    schema = Schema((Attribute("age", ("2", "1")), Attribute("group", ("x", "y", "z"))))
    path = records_file(tmp_path, [["a01", "2", "x"], ["a01", "1", "x"]])
    data = make_reader(spec(tmp_path, path, product=product(schema=schema))).read()
    assert data.histogram.cells.tolist() == [0, 3]
    bad = records_file(tmp_path, [["a01", "0", "x"]])
    with pytest.raises(SchemaError, match=r"expected one of 2, 1$"):
        make_reader(spec(tmp_path, bad, product=product(schema=schema))).read()
    old = Schema((Attribute("age", ("50", "51", "52+")), Attribute("group", ("x", "y", "z"))))
    bad = records_file(tmp_path, [["a01", "1", "x"]])  # no age of the list, and not its second
    with pytest.raises(SchemaError, match=r"expected one of 50, 51, 52\+$"):
        make_reader(spec(tmp_path, bad, product=product(schema=old))).read()
    zeros = Schema((Attribute("age", ("0.0", "1.0")), Attribute("group", ("x", "y", "z"))))
    bad = records_file(tmp_path, [["a01", "2", "x"]])
    with pytest.raises(SchemaError, match=r"expected one of 0\.0, 1\.0$"):
        make_reader(spec(tmp_path, bad, product=product(schema=zeros))).read()
    bad = records_file(tmp_path, [["a01", "1", "w"]])
    with pytest.raises(SchemaError, match=r"expected one of x, y, z, or a code from 0 to 2$"):
        make_reader(spec(tmp_path, bad, product=product(schema=schema))).read()


def test_columns_and_constants(tmp_path: Path) -> None:
    frame_file(tmp_path)
    path = write_csv(tmp_path / "d.csv", [["WARD", "A2"], ["a01", "18plus"], ["b01", "0"]])
    given = spec(tmp_path, path, geocode="WARD", columns={"age": "A2"}, constants={"group": "y"})
    with pytest.raises(FormatError, match="WARD"):
        make_reader(given).read()  # the frame has another column name
    write_csv(tmp_path / "frame.csv", [["WARD"], *([code] for code in FRAME)])
    assert make_reader(given).read().histogram.cells.tolist() == [4, 1]


def test_histogram_rows_carry_counts_and_repeated_ones_add_up(tmp_path: Path) -> None:
    frame_file(tmp_path)
    rows = [["a01", "0", "x", "7"], ["a01", "0", "x", "5.0"], ["b01", "1", "z", "0"], ["b02", "1", "z", "1"]]
    path = write_csv(tmp_path / "h.csv", [[*HEAD, "count"], *rows])
    data = make_reader(spec(tmp_path, path, reader="histogram")).read()
    assert data.histogram.counts.tolist() == [12, 1]
    assert [f.rule for f in data.findings] == [
        "from here on, some rows repeat a leaf and cell; their counts were added"
    ]


def test_rows_without_count_do_not_need_a_leaf(tmp_path: Path) -> None:
    frame_file(tmp_path)
    path = write_csv(tmp_path / "h.csv", [[*HEAD, "count"], ["zzz", "0", "x", "0"], ["a01", "0", "x", "1"]])
    assert make_reader(spec(tmp_path, path, reader="histogram")).read().histogram.total() == 1


def test_several_files_and_partitions_are_one_data_set(tmp_path: Path) -> None:
    frame_file(tmp_path)
    for group in "xz":
        rows = [row[:2] for row in RECORDS if row[2] == group]
        (tmp_path / "set" / f"group={group}").mkdir(parents=True)
        write_csv(tmp_path / "set" / f"group={group}" / "part.csv", [HEAD[:2], *rows])
    paths = expand_paths("set", tmp_path)
    assert len(paths) == 2
    data = make_reader(spec(tmp_path, *paths)).read()
    assert data.histogram.cells.tolist() == [0, 5, 5]


def test_tables_of_several_kinds_in_one_folder_are_named(tmp_path: Path) -> None:
    """A part with more columns is named; one that lacks what is read is refused, with the folders of both."""
    frame_file(tmp_path)
    (tmp_path / "set" / "more").mkdir(parents=True)
    write_csv(tmp_path / "set" / "a.csv", [HEAD, *RECORDS])
    write_csv(tmp_path / "set" / "b.csv", [HEAD, *RECORDS])
    write_csv(tmp_path / "set" / "more" / "a.csv", [[*HEAD, "secret"], [*RECORDS[0], "7"]])
    found = make_reader(spec(tmp_path, *expand_paths("set", tmp_path))).read()
    assert [finding.file for finding in found.findings] == ["more/a.csv"]
    columns = len(HEAD)
    assert (
        found.findings[0].rule
        == f"this file has {columns + 1} columns; 2 files like set/a.csv have {columns}"
    )
    with pytest.raises(FormatError, match="several kinds"):
        make_reader(dataclasses.replace(spec(tmp_path, *expand_paths("set", tmp_path)), strict=True)).read()
    write_csv(tmp_path / "set" / "more" / "a.csv", [HEAD[:1], RECORDS[0][:1]])
    with pytest.raises(FormatError, match="several kinds") as caught:
        make_reader(spec(tmp_path, *expand_paths("set", tmp_path))).read()
    assert f"missing here: {', '.join(sorted(HEAD[1:]))}" in str(caught.value)
    assert "more/a.csv" in str(caught.value)


def test_columns_of_parquet_parts_are_named(tmp_path: Path) -> None:
    frame_file(tmp_path)
    (tmp_path / "set").mkdir()
    table = pa.table({name: [row[i] for row in RECORDS] for i, name in enumerate(HEAD)})
    pq.write_table(table, tmp_path / "set" / "a.parquet")
    pq.write_table(table.append_column("year", pa.array([2020] * len(table))), tmp_path / "set" / "b.parquet")
    found = make_reader(spec(tmp_path, *expand_paths("set", tmp_path))).read()
    assert "only here: year" in found.findings[0].rule


def test_frame_from_records_is_declared(tmp_path: Path) -> None:
    data = make_reader(spec(tmp_path, records_file(tmp_path), frame="from-records")).read()
    assert data.frame.geocodes.tolist() == [b"a01", b"b03"]
    assert data.declared == ("populated leaves",)
    assert data.histogram.row_totals().tolist() == [2, 2]


@pytest.mark.parametrize("frame", ["file", "from-records"])
def test_levels_by_column(tmp_path: Path, frame: str) -> None:
    regions = {"a01": "North", "a02": "North", "b01": "South", "b02": "South", "b03": "South"}
    write_csv(tmp_path / "frame.csv", [["geocode", "REG"], *regions.items()])
    path = write_csv(tmp_path / "d.csv", [[*HEAD, "REG"], *([*row, regions[str(row[0])]] for row in RECORDS)])
    levels = (LevelRule("region", column="REG"), LevelRule("ward"))
    given = spec(tmp_path, path, levels=levels)
    if frame == "from-records":
        given = dataclasses.replace(given, frame=frame)
    data = make_reader(given).read()
    assert data.frame.levels["region"].tolist() == [regions[c.decode()].encode() for c in data.frame.geocodes]


def test_a_frame_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frame") as caught:
        make_reader(spec(tmp_path, records_file(tmp_path))).frame()
    assert caught.value.exit_code == 2


def test_planning_needs_the_frame_only(tmp_path: Path) -> None:
    frame_file(tmp_path)
    frame, stamps = make_reader(spec(tmp_path, tmp_path / "absent.csv")).frame()
    assert (len(frame), stamps) == (5, ())


def test_a_bad_row_is_told_by_line_and_field(tmp_path: Path) -> None:
    for rows, kind, field, line in [
        ([["a01", "under18", "q"]], SchemaError, "group", 2),
        ([["a01", "under18", "3"]], SchemaError, "group", 2),
        ([["a01", "under18", "-1"]], SchemaError, "group", 2),
        ([["a01", "", "x"]], SchemaError, "age", 2),
        ([["c01", "under18", "x"]], GeographyError, "geocode", 2),
        ([["a01", "under18", "x"], ["a1", "under18", "x"]], GeographyError, "geocode", 3),
        ([["", "under18", "x"]], GeographyError, "geocode", 2),
        ([["a01 ", "under18", "x"]], GeographyError, "geocode", 2),
        ([["é01", "under18", "x"]], GeographyError, "geocode", 2),
        ([["a01", "under18"]], FormatError, None, 2),
        ([["a01", "under18", "x", "y"]], FormatError, None, 2),
        ([], FormatError, None, None),
    ]:
        frame_file(tmp_path)
        with pytest.raises(kind) as caught:
            make_reader(spec(tmp_path, records_file(tmp_path, rows))).read()
        assert caught.value.exit_code == 3
        assert (field, line) in [(f.field, f.line) for f in caught.value.findings]
        assert {f.file for f in caught.value.findings} == {"data.csv"}


def test_a_bad_count_is_told_and_never_shown(tmp_path: Path) -> None:
    for count in [
        "-31415",
        "31415.5",
        "",
        "many31415",
        "nan",
        "inf",
        "0x31415",
        "31415926535897932384",
        "1e3",
        "+31415",
    ]:
        frame_file(tmp_path)
        path = write_csv(
            tmp_path / "h.csv", [[*HEAD, "count"], ["a01", "0", "x", "1"], ["a01", "0", "y", count]]
        )
        with pytest.raises(FormatError, match="whole number") as caught:
            make_reader(spec(tmp_path, path, reader="histogram")).read()
        assert [(f.line, f.field) for f in caught.value.findings] == [(3, "count")]
        assert "31415" not in str(caught.value)


@pytest.mark.parametrize(
    "column", [pa.array([1, -31415]), pa.array([1.0, 31415.5]), pa.array([1, None]), pa.array([1, 1 << 62])]
)
def test_a_bad_count_in_parquet_is_told(tmp_path: Path, column: pa.Array) -> None:
    frame_file(tmp_path)
    table = pa.table({"geocode": ["a01", "a02"], "age": [0, 1], "group": ["x", "y"], "count": column})
    pq.write_table(table, tmp_path / "h.parquet")
    with pytest.raises(FormatError) as caught:
        make_reader(spec(tmp_path, tmp_path / "h.parquet", reader="histogram")).read()
    assert [(f.line, f.field) for f in caught.value.findings] == [(2, "count")]


def test_whole_floats_and_unsigned_counts_are_counts(tmp_path: Path) -> None:
    frame_file(tmp_path)
    for column in (pa.array([2.0, 3.0]), pa.array([2, 3], pa.uint64()), pa.array([2, 3], pa.int8())):
        table = pa.table({"geocode": ["a01", "a02"], "age": [0, 1], "group": ["x", "y"], "count": column})
        pq.write_table(table, tmp_path / "h.parquet")
        data = make_reader(spec(tmp_path, tmp_path / "h.parquet", reader="histogram")).read()
        assert data.histogram.counts.tolist() == [2, 3]


def test_counts_whose_sum_is_too_large_are_refused(tmp_path: Path) -> None:
    frame_file(tmp_path)
    rows = [["a01", "0", "x", str((1 << 62) - 1)], ["a02", "0", "x", str((1 << 62) - 1)]]
    path = write_csv(tmp_path / "h.csv", [[*HEAD, "count"], *rows])
    with pytest.raises(DataError, match=r"2\*\*62"):
        make_reader(spec(tmp_path, path, reader="histogram")).read()
    path = write_csv(tmp_path / "h.csv", [[*HEAD, "count"], rows[0]])
    assert make_reader(spec(tmp_path, path, reader="histogram")).read().histogram.total() == (1 << 62) - 1


def test_all_errors_of_one_file_come_together_and_long_lists_are_cut(tmp_path: Path) -> None:
    frame_file(tmp_path)
    rows: list[list[object]] = [["zzz", "old", "q"] for _ in range(50)]
    with pytest.raises(DataError) as caught:
        make_reader(spec(tmp_path, records_file(tmp_path, rows))).read()
    fields = [f.field for f in caught.value.findings]
    assert {"geocode", "age", "group"} == set(fields)
    assert len(fields) == 3 * 21
    assert sum("30 more lines" in f.rule for f in caught.value.findings) == 3


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    frame_file(tmp_path)
    path = write_csv(tmp_path / "d.csv", [["geocode", "agee", "group"], *RECORDS])
    with pytest.raises(FormatError, match='did you mean "agee"'):
        make_reader(spec(tmp_path, path)).read()


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    for content in [b"", b"\n", b"PAR1garbagePAR1", b"\x1f\x8b\x08broken", bytes(range(256)) * 9]:
        for name in ["data.csv", "data.csv.gz", "data.parquet"]:
            frame_file(tmp_path)
            (tmp_path / name).write_bytes(content)
            with pytest.raises(DataError) as caught:
                make_reader(spec(tmp_path, tmp_path / name)).read()
            assert name in str(caught.value)


def test_text_as_other_programs_write_it(tmp_path: Path) -> None:
    frame_file(tmp_path)
    plain = records_file(tmp_path).read_bytes()
    (tmp_path / "marked.csv").write_bytes(BOM_UTF8 + b"# made by a program\n" + plain)
    (tmp_path / "DATA.CSV.GZ").write_bytes(gzip.compress(plain))
    for name in ("marked.csv", "DATA.CSV.GZ"):
        assert make_reader(spec(tmp_path, tmp_path / name)).read().histogram.total() == len(RECORDS), name
    for content, said in (
        (plain.decode().encode("utf-16"), "in UTF-8"),
        (b"geocode,age,group,regi\xf3n\na01,0,x,1\n", "in UTF-8"),
        (b"# notes\n\n" + plain, "line 2: expected a header with column names, found a blank line"),
    ):
        (tmp_path / "d.csv").write_bytes(content)
        with pytest.raises(FormatError, match=said):
            make_reader(spec(tmp_path, tmp_path / "d.csv")).read()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for name in ("frame.csv", "frame.parquet"):
        (tmp_path / name).mkdir()
        with pytest.raises(EnvironmentFailure, match="a folder, not a file"):
            make_reader(spec(tmp_path, records_file(tmp_path), frame=tmp_path / name)).frame()


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    frame_file(tmp_path)
    columns = [pa.array(["a01"]), pa.array(["under18"]), pa.array(["x"]), pa.array([1]), pa.array([5])]
    table = pa.Table.from_arrays(columns, [*HEAD, "count", "count"])
    pq.write_table(table, tmp_path / "d.parquet")
    for source in (tmp_path / "d.parquet", MemoryTable("d", table)):
        with pytest.raises(FormatError, match="count: expected one column of this name"):
            make_reader(spec(tmp_path, source, reader="histogram")).read()
        assert make_reader(spec(tmp_path, source)).read().histogram.total() == 1


def test_a_column_that_is_not_read_may_hold_anything(tmp_path: Path) -> None:
    frame_file(tmp_path)
    table = pa.table({"geocode": ["a01"], "age": ["0"], "group": ["x"], "patient_id": [[1, 2]]})
    assert make_reader(spec(tmp_path, MemoryTable("d", table))).read().histogram.total() == 1


def test_codes_that_are_no_text_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "frame.csv").write_bytes(b"geocode,place\na01,Pe\xf1a\na02,\n")
    with pytest.raises(FormatError) as caught:
        make_reader(spec(tmp_path, records_file(tmp_path))).frame()
    assert [(f.line, f.field) for f in caught.value.findings] == [(2, "place")]
    write_csv(tmp_path / "frame.csv", [["geocode", "REG"], ["a01", "Perú"]])
    (tmp_path / "d.csv").write_bytes(b"geocode,age,group,REG\na01,0,x,Per\xfa\n")
    levels = (LevelRule("region", column="REG"), LevelRule("ward"))
    given = spec(tmp_path, tmp_path / "d.csv", levels=levels)
    (said,) = (f for f in make_reader(given).read().findings if f.field == "REG")  # which the frame tells
    assert (said.line, said.rule) == (2, "expected text in UTF-8, or a whole number")
    with pytest.raises(FormatError, match="REG: expected text in UTF-8"):
        make_reader(dataclasses.replace(given, strict=True)).read()


def test_lines_that_are_no_rows_are_told_beside_wrong_rows(tmp_path: Path) -> None:
    frame_file(tmp_path)
    for text in ("a01,0,x,\n\n\na01,9,x,\n", 'a01,0,x,"one\ntwo"\na01,9,x,\n'):
        (tmp_path / "d.csv").write_text(f"geocode,age,group,note\n{text}")
        with pytest.raises(SchemaError, match="line numbers leave out blank lines") as caught:
            make_reader(spec(tmp_path, tmp_path / "d.csv")).read()
        assert [f.line for f in caught.value.findings] == [3, None]


def test_a_damaged_zip_is_told(tmp_path: Path) -> None:
    frame_file(tmp_path)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "d.zip", "w", method) as archive:
            archive.write(records_file(tmp_path, RECORDS * 5000), "d.csv")
        data = bytearray((tmp_path / "d.zip").read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "d.zip").write_bytes(data)
        with pytest.raises(DataError, match="of another kind"):
            make_reader(spec(tmp_path, tmp_path / "d.zip")).read()


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    frame_file(tmp_path)
    whole = gzip.compress(records_file(tmp_path, RECORDS * 5000).read_bytes())
    (tmp_path / "d.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="damaged"):
        make_reader(spec(tmp_path, tmp_path / "d.csv.gz")).read()


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (["a01", "a02", "a01"], "each leaf once"),
        (["a01", "a2"], "3 characters"),
        (["a01", ""], "geocode"),
        ([], "found none"),
    ],
)
def test_a_bad_frame_is_told(tmp_path: Path, codes: list[str], match: str) -> None:
    write_csv(tmp_path / "frame.csv", [["geocode", "x"], *([code, "1"] for code in codes)])
    with pytest.raises(DataError, match=match) as caught:
        make_reader(spec(tmp_path, records_file(tmp_path))).frame()
    assert {f.file for f in caught.value.findings} == {"frame.csv"}


def test_a_geounit_in_two_parents_is_told(tmp_path: Path) -> None:
    rows = [["a01", "North", "t1"], ["a02", "North", "t1"], ["b01", "South", "t1"]]
    write_csv(tmp_path / "frame.csv", [["geocode", "REG", "TOWN"], *rows])
    levels = (LevelRule("region", column="REG"), LevelRule("town", column="TOWN"), LevelRule("ward"))
    with pytest.raises(GeographyError, match="child of one parent") as caught:
        make_reader(spec(tmp_path, records_file(tmp_path), levels=levels)).frame()
    assert [(f.line, f.field) for f in caught.value.findings] == [(4, "town")]
    rows = [["b01", "0", "x", "South", "t1"], ["a01", "0", "x", "North", "t1"]]
    path = write_csv(tmp_path / "d.csv", [[*HEAD, "REG", "TOWN"], *rows])
    with pytest.raises(GeographyError, match="child of one parent") as caught:
        make_reader(spec(tmp_path, path, levels=levels, frame="from-records")).read()
    assert [(f.line, f.field) for f in caught.value.findings] == [
        (None, "town")
    ]  # of many rows, none is at fault


def test_levels_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    for levels in [
        (),
        (LevelRule("region"), LevelRule("ward")),
        (LevelRule("region", 3), LevelRule("ward", 1)),
        (LevelRule("ward", 1), LevelRule("ward", 3)),
        (LevelRule("region", 1), LevelRule("ward", column="other")),
    ]:
        frame_file(tmp_path)
        with pytest.raises(ConfigError, match="levels"):
            make_reader(spec(tmp_path, records_file(tmp_path), levels=levels)).frame()


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": {"aeg": "A2"}},
        {"constants": {"aeg": "x"}},
        {"constants": {"group": "w"}},
        {"columns": {"group": "G"}, "constants": {"group": "x"}},
    ],
)
def test_columns_and_constants_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    frame_file(tmp_path)
    with pytest.raises(ConfigError):
        make_reader(spec(tmp_path, records_file(tmp_path), **changes)).read()


def test_structural_zeros_are_told(tmp_path: Path) -> None:
    frame_file(tmp_path)
    zeros = (StructuralZero({"age": ("18plus",), "group": ("z",)}),)
    with pytest.raises(SchemaError, match="structural zero") as caught:
        make_reader(spec(tmp_path, records_file(tmp_path), product=product(structural_zeros=zeros))).read()
    assert [f.line for f in caught.value.findings] == [3, 4, 5]


def test_units_of_a_product_come_from_their_file(tmp_path: Path) -> None:
    frame_file(tmp_path)
    bounded = product(bounds=(Bound("group", "z", "beds", lower=1, upper=2),))
    given = spec(tmp_path, records_file(tmp_path), product=bounded)
    with pytest.raises(ConfigError, match="beds"):
        make_reader(given).read()
    write_csv(tmp_path / "units.csv", [["W", "B"], ["a01", "1"], ["b03", "3"]])
    given = dataclasses.replace(given, units=UnitsSpec(tmp_path / "units.csv", "W", {"beds": "B"}))
    data = make_reader(given).read()
    assert data.frame.units["beds"].tolist() == [1, 0, 0, 0, 3]
    assert [f.field for f in data.findings] == ["beds"]  # two records in b03, at least three by the bound
    with pytest.raises(DataError, match="b03"):
        make_reader(dataclasses.replace(given, strict=True)).read()


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([["a01", "1"], ["a01", "1"]], "each leaf once"),
        ([["a01", "-1"]], "whole number"),
        ([["zzz", "1"]], "leaf of the frame"),
    ],
)
def test_bad_units_are_told(tmp_path: Path, rows: list[list[object]], match: str) -> None:
    frame_file(tmp_path)
    bounded = product(bounds=(Bound("group", "z", "beds"),))
    write_csv(tmp_path / "units.csv", [["geocode", "beds"], *rows])
    given = spec(tmp_path, records_file(tmp_path), product=bounded, units=UnitsSpec(tmp_path / "units.csv"))
    with pytest.raises(DataError, match=match):
        make_reader(given).frame()


BLOCKS = ["980010001001000", "980010001001001", "980010001002000"]


def test_census_products_use_the_official_levels_and_leaves(tmp_path: Path) -> None:
    rows = [[BLOCKS[0], 3, 0, 5], [BLOCKS[1], 0, 1, 6], [BLOCKS[2], 0, 0, 7]]
    write_csv(tmp_path / "frame.csv", [["geocode", "hu", "gq3", "place"], *rows])
    path = write_csv(
        tmp_path / "d.csv",
        [
            ["geocode", "hhgq", "votingage", "hispanic", "cenrace"],
            [BLOCKS[0], "household", "under18", "not_hispanic", "white"],
            [BLOCKS[1], 3, "18plus", 1, "white+black+aian+asian+nhpi+sor"],
        ],
    )
    given = ReaderSpec("records", (path,), pl94_persons(), frame=tmp_path / "frame.csv")
    data = make_reader(given).read()
    assert data.frame.geocodes.tolist() == [BLOCKS[0].encode(), BLOCKS[1].encode()]
    assert data.frame.geolevels == ("state", "county", "tract", "block_group", "block")
    assert data.frame.entities["place"].tolist() == [b"5", b"6"]
    assert data.histogram.cells.tolist() == [0, ((3 * 2 + 1) * 2 + 1) * 63 + 62]
    assert data.stamps == ()
    prefixes = {"us": 0, "state": 2, "county": 5, "tract": 11, "block_group": 12, "block": 15}
    spelled = tuple(LevelRule(name, width) for name, width in prefixes.items())
    same = make_reader(dataclasses.replace(given, levels=spelled)).read()
    assert same.frame.geolevels == tuple(prefixes)
    assert same.frame.codes("us").tolist() == [b"1", b"1"]
    assert len(same.frame) == 2


def test_census_records_without_units_stamp_the_run(tmp_path: Path) -> None:
    write_csv(tmp_path / "frame.csv", [["geocode", "x"], *([code, ""] for code in BLOCKS)])
    head = ["geocode", "hhgq", "votingage", "hispanic", "cenrace"]
    path = write_csv(tmp_path / "d.csv", [head, [BLOCKS[0], 0, 0, 0, 0], [BLOCKS[1], 3, 1, 0, 0]])
    given = ReaderSpec("records", (path,), pl94_persons(), frame=tmp_path / "frame.csv")
    data = make_reader(given).read()
    assert data.stamps == ("DEMONSTRATION FRAME",)
    assert make_reader(given).frame()[1] == data.stamps
    assert data.frame.units["gq3"].tolist() == [0, 1, 0]
    assert data.frame.units["hu"].tolist() == [1, 1, 1]
    nursed = write_csv(tmp_path / "d.csv", [head, [BLOCKS[1], 3, 0, 0, 0]])
    with pytest.raises(SchemaError, match="structural zero"):
        make_reader(dataclasses.replace(given, paths=(nursed,))).read()


def test_housing_units_that_the_frame_counts_otherwise_are_told(tmp_path: Path) -> None:
    write_csv(tmp_path / "frame.csv", [["geocode", "hu"], [BLOCKS[0], 2], [BLOCKS[1], 1]])
    rows = [["geocode", "occupancy", "count"], [BLOCKS[0], "occupied", 2], [BLOCKS[1], "vacant", 2]]
    path = write_csv(tmp_path / "d.csv", rows)
    given = ReaderSpec("histogram", (path,), pl94_units(), frame=tmp_path / "frame.csv")
    data = make_reader(given).read()
    assert data.histogram.row_totals().tolist() == [2, 2]
    assert [(f.field, BLOCKS[1] in f.rule) for f in data.findings] == [("hu", True)]


def test_integer_geocodes_of_parquet_get_their_zeros_back(tmp_path: Path) -> None:
    code = "010010001001000"
    write_csv(tmp_path / "frame.csv", [["geocode", "hu"], [code, 2]])
    table = pa.table({"geocode": [int(code)], "occupancy": ["vacant"], "count": [2]})
    pq.write_table(table, tmp_path / "d.parquet")
    given = ReaderSpec("histogram", (tmp_path / "d.parquet",), pl94_units(), frame=tmp_path / "frame.csv")
    assert make_reader(given).read().histogram.total() == 2
    lost = write_csv(tmp_path / "d.csv", [["geocode", "occupancy", "count"], [int(code), "vacant", 2]])
    with pytest.raises(GeographyError, match="15 characters"):
        make_reader(dataclasses.replace(given, paths=(lost,))).read()


def test_tracts_of_thirteen_states_add_up() -> None:
    folder = shared_data("pl94_2020_tracts")
    prefixes = {"us": 0, "state": 2, "county": 5, "tract": 11}
    given = ReaderSpec(
        "histogram",
        (folder / "pl94_2020_tracts_hist.parquet",),
        pl94_persons(),
        levels=tuple(LevelRule(name, width) for name, width in prefixes.items()),
        frame=folder / "pl94_2020_tracts.parquet",
        geocode="GEOID",
        constants={"hhgq": "household"},
    )
    data = make_reader(given).read()
    published = pq.read_table(folder / "pl94_2020_tracts.parquet", columns=["GEOID", "P0010001"])
    expected = dict(zip(published["GEOID"].to_pylist(), published["P0010001"].to_pylist(), strict=True))
    assert data.histogram.total() == 17_948_181
    assert len(data.frame) == 4866
    assert data.stamps == ()
    codes = [code.decode() for code in data.frame.geocodes.tolist()]
    assert dict(zip(codes, data.histogram.row_totals().tolist(), strict=True)) == expected


def test_chile_reads_as_a_product_of_its_own() -> None:
    path = shared_data("second_domain/chile_2017_communes.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        bands = list(dict.fromkeys(line.split(",")[1].strip('"') for line in list(file)[1:]))
    schema = Schema((Attribute("edad", tuple(bands)), Attribute("sexo", ("hombres", "mujeres"))))
    given = ReaderSpec(
        "histogram",
        (path,),
        product(schema=schema, name="chile"),
        levels=(
            LevelRule("country", 0),
            LevelRule("region", 2),
            LevelRule("province", 3),
            LevelRule("commune", 5),
        ),
        frame="from-records",
        geocode="codigo_comuna",
        count="poblacion",
    )
    data = make_reader(given).read()
    assert data.histogram.total() == 17_574_003
    assert [len(np.unique(data.frame.codes(name))) for name in data.frame.geolevels] == [1, 16, 56, 346]


def test_paths_expand_to_sorted_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.parquet", "sub/c.csv.gz", "_SUCCESS", ".hidden.csv", "notes.md", "_tmp/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.name for path in expand_paths(".", tmp_path)]
    assert names == ["a.parquet", "b.csv", "c.csv.gz"]
    assert expand_paths("*.csv", tmp_path) == (tmp_path / "b.csv",)
    assert expand_paths(["b.csv", "*.csv", tmp_path / "b.csv"], tmp_path) == (tmp_path / "b.csv",)
    assert expand_paths("_SUCCESS", tmp_path) == (tmp_path / "_SUCCESS",)
    for nothing in ("absent.csv", "*.zip", [], ["b.csv", "absent"], "~no-user-of-this-name/b.csv"):
        with pytest.raises(ConfigError):
            expand_paths(nothing, tmp_path)


def test_an_unknown_reader_is_refused() -> None:
    with pytest.raises(ConfigError, match="pl94-2010"):
        make_reader(ReaderSpec("pl94-2000", (), pl94_persons()))
    assert set(READERS) >= {"pl94-2010", "pl94-2020", "ppmf", "mdf", "records", "histogram"}
