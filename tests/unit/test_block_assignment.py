"""Block assignment files: areas of official files and of tables, and what is wrong with them."""

from __future__ import annotations

import errno
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data import shared_data
from support.made_cef_files import write_cef
from support.pl94_zip import some_blocks, write_csv, write_zip

from opendas.demo import write_demo
from opendas.errors import ConfigError, DataError, EnvironmentFailure, FormatError, GeographyError
from opendas.files.storage.zips import opened_zip
from opendas.geography.frame import Frame, LevelRule, official_codes
from opendas.readers import ReaderSpec, UnitsSpec, make_reader
from opendas.readers.columns.area_codes import AREA_FORMS, national_codes
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.frame.block_assignment import known_blocks, with_assignments
from opendas.runs.context.run import load
from opendas.schema.pl94 import pl94_persons, pl94_units

BLOCKS = [f"98001000100{group}00{number}" for group in (1, 2) for number in range(3)]


def frame_of(blocks: list[str]) -> Frame:
    codes = np.array(sorted(blocks), dtype="S15")
    return Frame(
        codes, official_codes(codes, "state"), "block", entities={"place": np.full(len(codes), b"x")}
    )


def official(folder: Path, kind: str, rows: list[str], header: str = "BLOCKID|DISTRICT") -> Path:
    path = folder / f"BlockAssign_ST98_FB_{kind}.txt"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def codes(frame: Frame, category: str) -> list[str]:
    return [code.decode() for code in frame.entities[category].tolist()]


# --- Rhode Island 2020 ---


@pytest.fixture(scope="module")
def rhode_island() -> tuple[Frame, Path]:
    folder = shared_data("baf_2020_ri")
    listed = pq.read_table(folder / "ri_2020_block_assignment.parquet").column("GEOID").to_pylist()
    return frame_of(listed), folder


def test_rhode_island_2020(rhode_island: tuple[Frame, Path]) -> None:
    frame, folder = rhode_island
    got, findings = with_assignments(frame, [folder / "BlockAssign_ST44_RI.zip"], known=frame.geocodes)
    assert findings == ()
    assert len(got) == 25_649
    sizes = {name: len(np.unique(code[code != b""])) for name, code in got.entities.items()}
    # The file of voting districts has 423 codes, one of which, ZZZZZZ, says "not defined"; that of unified
    # school districts 31, with 99997 for "none".
    assert sizes == {
        "cousub": 40, "place": 36, "aianhh": 1, "cd": 2, "sldu": 38, "sldl": 75, "vtd": 422,
        "sdelm": 5, "sdsec": 1, "sduni": 30,
    }  # fmt: skip
    assert np.count_nonzero(got.entities["aianhh"] == b"2415") == 25
    assert np.count_nonzero(got.entities["aianhh"] != b"") == 25
    assert np.count_nonzero(got.entities["vtd"] == b"") == 20
    for name, (before, width) in AREA_FORMS.items():
        assert got.entities[name].dtype.itemsize == before + width, name


def test_rhode_island_agrees_with_the_slow_way(rhode_island: tuple[Frame, Path]) -> None:
    frame, folder = rhode_island
    got, _ = with_assignments(frame, [folder / "BlockAssign_ST44_RI.zip"])
    with zipfile.ZipFile(folder / "BlockAssign_ST44_RI.zip") as archive:
        for kind, category, none in (("VTD", "vtd", "ZZZZZZ"), ("INCPLACE_CDP", "place", "")):
            slow = {}
            for line in archive.read(f"BlockAssign_ST44_RI_{kind}.txt").decode().splitlines()[1:]:
                block, *_, own = line.split("|")
                slow[block] = "" if own == none else block[: 5 if category == "vtd" else 2] + own
            assert codes(got, category) == [slow[code.decode()] for code in frame.geocodes.tolist()]


def test_the_joined_table_says_the_same_as_the_zip(rhode_island: tuple[Frame, Path]) -> None:
    frame, folder = rhode_island
    fromzip, _ = with_assignments(frame, [folder / "BlockAssign_ST44_RI.zip"])
    table, _ = with_assignments(frame, [folder / "ri_2020_block_assignment.parquet"])
    assert list(table.entities) == list(fromzip.entities)
    for name, code in fromzip.entities.items():
        assert np.array_equal(table.entities[name], code), name


def test_files_of_another_census_are_refused(rhode_island: tuple[Frame, Path]) -> None:
    zip_2010 = shared_data("pl94_2010_ri/ri2010.pl.zip")
    spec = ReaderSpec(
        "pl94-2010",
        (zip_2010,),
        pl94_units(),
        block_assignment=(rhode_island[1] / "BlockAssign_ST44_RI.zip",),
    )
    with pytest.raises(GeographyError, match="another census"):
        make_reader(spec).frame()


# --- forms ---


def test_official_files_by_name(tmp_path: Path) -> None:
    frame = frame_of(BLOCKS)
    vtd = [f"{block}|001|{'A1' if block in BLOCKS[:2] else 'ZZZZZZ'}" for block in BLOCKS]
    paths = [
        official(tmp_path, "VTD", vtd, "BLOCKID|COUNTYFP|DISTRICT"),
        official(tmp_path, "INCPLACE_CDP", [f"{BLOCKS[2]}|00100", f"{BLOCKS[3]}|"], "BLOCKID|PLACEFP"),
        official(tmp_path, "AIANNH", [f"{BLOCKS[4]}|0010|T"], "BLOCKID|AIANNHCE|COMPTYP"),
        official(tmp_path, "ESTATE", ["x|y"], "BLOCKID|ESTATEFP"),  # a kind that is passed over
    ]
    got, findings = with_assignments(frame, paths)
    assert codes(got, "vtd") == ["98001A1", "98001A1", "", "", "", ""]
    assert codes(got, "place") == ["", "", "9800100", "", "", ""]
    assert codes(got, "aianhh") == ["", "", "", "", "0010", ""]
    assert list(got.entities) == ["place", "aianhh", "vtd"]  # in the usual order
    told = {finding.file: finding.rule for finding in findings}
    assert set(told) == {paths[1].name, paths[2].name}
    assert "4 of 6 leaves" in told[paths[1].name]
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for path in paths:
            archive.writestr(f"sub/{path.name}", path.read_text().replace("|", ",").replace("\n", "\r\n"))
        archive.writestr("readme.txt", "hello")
    zipped, _ = with_assignments(frame, [tmp_path / "z.zip"])
    assert {n: c.tolist() for n, c in zipped.entities.items()} == {
        n: c.tolist() for n, c in got.entities.items()
    }


def test_tables_take_codes_of_either_form(tmp_path: Path) -> None:
    rows = [["GEOID", "COUSUB", "vtd", "other"]]
    rows += [[block, "00100" if n % 2 else "9800100100", "V1", "?"] for n, block in enumerate(BLOCKS)]
    got, findings = with_assignments(frame_of(BLOCKS), [write_csv(tmp_path / "t.csv", rows)])
    assert codes(got, "cousub") == ["9800100100"] * 6
    assert codes(got, "vtd") == ["98001V1"] * 6
    assert codes(got, "place") == ["x"] * 6  # not spoken of, so kept
    assert findings == ()


@pytest.mark.parametrize(
    ("column", "category"), [("CDFP", "cd"), ("CD118", "cd"), ("SLDUST", "sldu"), ("SLDL22", "sldl")]
)
def test_equivalency_files_of_all_states(tmp_path: Path, column: str, category: str) -> None:
    """As published: commas, rows of every state, ZZ for none; two plans of one kind are one too many."""
    width = 2 if category == "cd" else 3
    path = tmp_path / "National.txt"
    rows = [(BLOCKS[0], "01"), (BLOCKS[1], "02"), (BLOCKS[2], "Z"), ("060010000001000", "01")]
    path.write_text(
        f"GEOID,{column}\n" + "".join(f"{b},{c.zfill(width) if c != 'Z' else 'Z' * width}\n" for b, c in rows)
    )
    found, warnings = with_assignments(frame_of(BLOCKS), [path])
    state = BLOCKS[0][:2]
    assert found.entities[category][:3].tolist() == [
        f"{state}{'01'.zfill(width)}".encode(), f"{state}{'02'.zfill(width)}".encode(), b"",
    ]  # fmt: skip
    assert len(warnings) == (len(BLOCKS) > 3)
    path.write_text("GEOID,CD116,CD118\n" + f"{BLOCKS[0]},01,02\n")
    with pytest.raises(FormatError, match="one column for each kind of district"):
        with_assignments(frame_of(BLOCKS), [path])


def test_areas_of_a_grfc(tmp_path: Path) -> None:
    """The geographic reference file that goes with census records, for an input that has none."""
    head = "TABBLKST|TABBLKCOU|TABTRACTCE|TABBLKGRPCE|TABBLK|PLACEFP|CD116FP|CDCURFP|OIDTABBLK"
    lines = [
        "|".join(
            [b[:2], b[2:5], b[5:11], b[11], b[11:], f"{k:05d}" if k else "99999", "01", "02", str(900 + k)]
        )
        for k, b in enumerate(BLOCKS)
    ]
    path = tmp_path / "GRFC.txt"
    path.write_text("\n".join([head, *lines]) + "\n")
    found, _ = with_assignments(frame_of(BLOCKS), [path])
    state = BLOCKS[0][:2]
    assert found.entities["place"].tolist() == [
        b"",
        *(f"{state}{k:05d}".encode() for k in range(1, len(BLOCKS))),
    ]
    assert set(found.entities["cd"].tolist()) == {f"{state}02".encode()}


def test_a_grfc_is_a_frame(tmp_path: Path) -> None:
    """Counts of the synthetic state on its GRF-C are those on its frame file, units from that file."""
    write_cef(tmp_path / "cef", 60, 3)
    write_demo(tmp_path / "demo", 60, 3)
    demo = tmp_path / "demo"
    units = UnitsSpec(demo / "frame.parquet", "GEOID")
    found = []
    for frame, geocode in ((demo / "frame.parquet", "GEOID"), (tmp_path / "cef" / "GRFC_99.txt", "GEOID")):
        spec = ReaderSpec(
            "histogram",
            (demo / "persons.parquet",),
            pl94_persons(),
            frame=frame,
            geocode=geocode,
            units=units,
        )
        found.append(make_reader(spec).read().frame)
        assert (
            known_blocks(spec).tolist() == known_blocks(replace(spec, frame=demo / "frame.parquet")).tolist()
        )
    one, two = found
    assert one.geocodes.tolist() == two.geocodes.tolist()
    for name in one.entities:
        assert two.entities[name].tolist() == one.entities[name].tolist(), name


def test_parquet_with_geocodes_as_numbers(tmp_path: Path) -> None:
    blocks = ["0" + block[1:] for block in BLOCKS]
    table = pa.table({"block": [int(block) for block in blocks], "place": ["00100"] * 6})
    pq.write_table(table, tmp_path / "t.parquet")
    got, _ = with_assignments(frame_of(blocks), [tmp_path / "t.parquet"], geocode="block")
    assert codes(got, "place") == ["0800100"] * 6


def test_other_leaves_take_codes_as_they_are(tmp_path: Path) -> None:
    leaves = np.array(["w1", "w22"], dtype=np.bytes_)
    frame = Frame(leaves, {"city": np.array([b"c", b"c"])}, "ward")
    path = write_csv(tmp_path / "t.csv", [["WARD", "place"], ["w22", "old town"], ["w9", "moor"]])
    got, _ = with_assignments(frame, [path], geocode="WARD")
    assert codes(got, "place") == ["", "old town"]
    with pytest.raises(GeographyError, match="expected a block"):
        with_assignments(frame, [path], geocode="WARD", known=leaves)
    write_csv(path, [["WARD", "place"], ["x", "moor"]])
    with pytest.raises(GeographyError, match="these files have none of them"):
        with_assignments(frame, [path], geocode="WARD")


def test_several_files_are_joined_and_may_repeat_each_other(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", [["GEOID", "place"], *[[b, "00001"] for b in BLOCKS[:3]]])
    second = write_csv(tmp_path / "b.csv", [["GEOID", "place"], *[[b, "00002"] for b in BLOCKS[3:]]])
    third = write_csv(tmp_path / "c.csv", [["GEOID", "place"], [BLOCKS[0], "00001"], [BLOCKS[1], ""]])
    got, findings = with_assignments(frame_of(BLOCKS), [third, second, first])
    assert codes(got, "place") == ["9800001"] * 3 + ["9800002"] * 3
    assert findings == ()


# --- what is wrong ---


def refused(frame: Frame, path: Path, known: list[str] | None = None) -> DataError:
    blocks = None if known is None else np.array(sorted(known), dtype="S15")
    with pytest.raises(DataError) as caught:
        with_assignments(frame, [path], known=blocks)
    assert caught.value.exit_code == 3
    return caught.value


def test_a_block_in_two_areas_is_told_by_file_and_line(tmp_path: Path) -> None:
    rows = [f"{BLOCKS[0]}|07", f"{BLOCKS[1]}|07", f"{BLOCKS[0]}|08"]
    error = refused(frame_of(BLOCKS), official(tmp_path, "CD", rows))
    name = "BlockAssign_ST98_FB_CD.txt"
    assert [(f.file, f.line, f.field) for f in error.findings] == [(name, 4, "DISTRICT")]
    first = write_csv(tmp_path / "a.csv", [["GEOID", "sldu"], [BLOCKS[0], "001"]])
    second = write_csv(tmp_path / "b.csv", [["GEOID", "sldu"], [BLOCKS[1], ""], [BLOCKS[0], "002"]])
    with pytest.raises(DataError) as caught:
        with_assignments(frame_of(BLOCKS), [first, second])
    assert [(f.file, f.line, f.field) for f in caught.value.findings] == [("b.csv", 3, "sldu")]
    second = write_csv(tmp_path / "b.csv", [["GEOID", "SLDU22"], [BLOCKS[0], "002"]])
    with pytest.raises(DataError) as caught:
        with_assignments(frame_of(BLOCKS), [first, second])
    assert [(f.file, f.line, f.field) for f in caught.value.findings] == [("b.csv", 2, "SLDU22")]


def test_wrong_rows_are_told_by_file_line_and_field(tmp_path: Path) -> None:
    for kind, header, row, field in [
        ("CD", "BLOCKID|DISTRICT", f"{BLOCKS[0]}|1", "DISTRICT"),
        ("VTD", "BLOCKID|COUNTYFP|DISTRICT", f"{BLOCKS[0]}|003|0001", "COUNTYFP"),
        ("VTD", "BLOCKID|COUNTYFP|DISTRICT", f"{BLOCKS[0]}|001|0000001", "DISTRICT"),
        ("MCD", "BLOCKID|COUNTYFP|COUSUBFP", f"{BLOCKS[0]}|001|97001001", "COUSUBFP"),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0]}|97001", "DISTRICT"),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0]}|\xe91", "DISTRICT"),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0][:14]}|001", "BLOCKID"),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0][:14]}x|001", "BLOCKID"),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0]}|001|2", None),
        ("SLDL", "BLOCKID|DISTRICT", f"{BLOCKS[0]}", None),
    ]:
        good = {2: f"{BLOCKS[1]}|01", 3: f"{BLOCKS[1]}|001|00100"}[header.count("|") + 1]
        good = good.replace("|01", "|001") if kind == "SLDL" else good
        path = official(tmp_path, kind, [good, row], header)
        assert [(f.file, f.line, f.field) for f in refused(frame_of(BLOCKS), path).findings] == [
            (path.name, 3, field)
        ]


def test_unknown_blocks_are_refused_and_known_ones_without_a_leaf_are_not(tmp_path: Path) -> None:
    leaves, empty, nowhere = BLOCKS[:3], BLOCKS[3], BLOCKS[4]
    path = official(tmp_path, "CD", [*(f"{block}|01" for block in leaves), f"{empty}|01", f"{nowhere}|"])
    got, _ = with_assignments(frame_of(leaves), [path], known=np.array(BLOCKS[:4], dtype="S15"))
    assert codes(got, "cd") == ["9801"] * 3
    error = refused(frame_of(leaves), path, known=leaves)
    assert [(f.line, f.field) for f in error.findings] == [(5, "DISTRICT")]  # "none" names no block
    with_assignments(frame_of(leaves), [path])  # the state is all that can be known
    path = official(tmp_path, "CD", [*(f"{block}|01" for block in leaves), f"97{empty[2:]}|01"])
    error = refused(frame_of(leaves), path)
    assert [(f.line, f.rule) for f in error.findings] == [(5, "expected a block in a state of the input")]


def lacks_column(path: Path) -> None:
    path.write_text("BLOCKID|OTHER\n1|2\n")


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def header_only(path: Path) -> None:
    path.write_text("BLOCKID|DISTRICT\n")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 3)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name in ["BlockAssign_ST98_FB_CD.txt", "areas.csv", "areas.txt"]:
        for damage in [lacks_column, empty_file, header_only, binary]:
            damage(tmp_path / name)
            assert refused(frame_of(BLOCKS), tmp_path / name).findings


def test_zips_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(b"PK\x03\x04 not a zip")
    assert isinstance(refused(frame_of(BLOCKS), path), FormatError)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "members called" in str(refused(frame_of(BLOCKS), path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("BlockAssign_ST98_FB_CD.txt", f"BLOCKID|DISTRICT\n{BLOCKS[0]}|01\n")
    damaged = path.read_bytes().replace(b"DISTRICT", b"DISTRIKT")
    path.write_bytes(damaged)
    assert isinstance(refused(frame_of(BLOCKS), path), FormatError)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("BlockAssign_ST98_FB_ESTATE.txt", "BLOCKID|ESTATEFP\n")
    assert "no block assignment" in str(refused(frame_of(BLOCKS), path))


def test_a_disk_that_fails_is_no_damaged_zip(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(EnvironmentFailure, match="the disk reports an error"), opened_zip(path):
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(FormatError), opened_zip(path):
        raise OSError("not of the system")
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(EnvironmentFailure, match="a folder, not a file"):
        column_names(tmp_path / "folder.zip")


def test_national_codes_like_the_slow_way() -> None:
    own = np.array([b"", b"01", b"9801", b"9701", b"ZZ", b"1", b"0 1", b"001"])
    blocks = np.full(len(own), BLOCKS[0].encode(), dtype="S15")
    got, wrong = national_codes("cd", own, blocks)
    assert got.tolist() == [b"", b"9801", b"9801", b"", b"", b"", b"", b""]
    assert wrong.tolist() == [False, False, False, True, False, True, True, True]
    got, wrong = national_codes("vtd", np.array([b"1 A", b"1\tA", b"98001000001", b"0000001"]), blocks[:4])
    assert got.tolist() == [b"980011 A", b"", b"98001000001", b""]
    assert wrong.tolist() == [False, True, False, True]


# --- every reader ---


def areas_of(folder: Path, blocks: list[str]) -> Path:
    return write_csv(folder / "areas.csv", [["GEOID", "place"], *[[block, "00777"] for block in blocks]])


@pytest.mark.parametrize("year", [2010, 2020])
def test_redistricting_files(tmp_path: Path, year: int) -> None:
    made = some_blocks()
    path = write_zip(tmp_path / "fb.zip", made, year)
    every = [block.code for block in made]
    areas = areas_of(tmp_path, every)
    spec = ReaderSpec(f"pl94-{year}", (path,), pl94_persons(), block_assignment=(areas,))
    blocks = known_blocks(spec)
    assert blocks is not None
    assert blocks.tolist() == [code.encode() for code in sorted(every)]
    data = make_reader(spec).read()
    frame, stamps = make_reader(spec).frame()
    assert set(codes(data.frame, "place")) == {"9800777"}
    assert np.array_equal(frame.entities["place"], data.frame.entities["place"])
    assert stamps == data.stamps
    assert "9800110000" in codes(data.frame, "cousub")  # what the header says is kept elsewhere
    areas_of(tmp_path, [*every, "980019999991000"])
    with pytest.raises(GeographyError) as caught:
        make_reader(spec).read()
    assert [(f.file, f.line) for f in caught.value.findings] == [("areas.csv", len(every) + 2)]


def test_census_records_and_histograms(tmp_path: Path) -> None:
    write_cef(tmp_path / "cef", 60, 3)
    write_demo(tmp_path / "demo", 60, 3)
    frame_file = tmp_path / "demo" / "frame.parquet"
    every = pq.read_table(frame_file).column("GEOID").to_pylist()
    areas = areas_of(tmp_path, every)
    cef = ReaderSpec(
        "cef",
        (tmp_path / "cef" / "CEF20_PER_99.txt",),
        pl94_persons(),
        unit_records=(tmp_path / "cef" / "CEF20_UNIT_99.txt",),
        block_files=(tmp_path / "cef" / "GRFC_99.txt",),
        block_assignment=(areas,),
    )
    histogram = ReaderSpec(
        "histogram",
        (tmp_path / "demo" / "persons.parquet",),
        pl94_persons(),
        geocode="GEOID",
        frame=frame_file,
        units=UnitsSpec(frame_file, "GEOID"),
        block_assignment=(areas,),
    )
    for spec in (cef, histogram):
        blocks = known_blocks(spec)
        assert blocks is not None
        assert [code.decode() for code in blocks.tolist()] == every
        assert set(codes(make_reader(spec).read().frame, "place")) == {"9900777"}


def test_microdata_know_their_leaves_only(tmp_path: Path) -> None:
    rows = [["TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK", "RTYPE", "HH_STATUS"]]
    rows += [[b[:2], b[2:5], b[5:11], b[11], b[11:], "2", "1"] for b in BLOCKS[:2]]
    path = write_csv(tmp_path / "m.csv", rows)
    spec = ReaderSpec("mdf", (path,), pl94_units(), block_assignment=(areas_of(tmp_path, BLOCKS),))
    assert known_blocks(spec) is None
    assert codes(make_reader(spec).read().frame, "place") == ["9800777"] * 2


def test_leaves_that_are_not_listed_are_a_warning_and_an_error_when_strict(tmp_path: Path) -> None:
    made = some_blocks()
    path = write_zip(tmp_path / "fb.zip", made, 2020)
    rows = [f"{block.code}|01" for block in made[1:]]
    areas = official(tmp_path, "CD", rows)
    spec = ReaderSpec("pl94-2020", (path,), pl94_units(), block_assignment=(areas,))
    findings = make_reader(spec).read().findings
    assert [f.file for f in findings] == [areas.name]
    strict = ReaderSpec("pl94-2020", (path,), pl94_units(), block_assignment=(areas,), strict=True)
    with pytest.raises(GeographyError, match="1 of 5 leaves"):
        make_reader(strict).read()


def test_the_run_file_names_it(tmp_path: Path) -> None:
    runs = write_cef(tmp_path, 60, 3)
    text = runs[0].read_text()
    every = [row.split("|") for row in (tmp_path / "GRFC_99.txt").read_text().splitlines()]
    areas_of(tmp_path, ["".join(row[:4]) for row in every[1:]])
    for value in ('"areas.csv"', '["areas.csv"]', '"ar*.csv"'):
        runs[0].write_text(text.replace("[geography]", f"[geography]\nblock_assignment = {value}"))
        assert set(codes(load(runs[0], read_records=True).frame, "place")) == {"9900777"}
    runs[0].write_text(text.replace("[geography]", '[geography]\nblock_assignment = "none.zip"'))
    with pytest.raises(ConfigError, match="block_assignment: nothing found"):
        load(runs[0])


def test_levels_of_ones_own(tmp_path: Path) -> None:
    frame = write_csv(tmp_path / "f.csv", [["G", "hu"], ["a1", "1"], ["a2", "1"]])
    data = write_csv(tmp_path / "d.csv", [["G", "occupancy"], ["a1", "vacant"], ["a2", "occupied"]])
    areas = write_csv(tmp_path / "areas.csv", [["G", "place"], ["a1", "north"]])
    spec = ReaderSpec(
        "records",
        (data,),
        pl94_units(),
        levels=(LevelRule("region", 1), LevelRule("ward", 2)),
        frame=frame,
        geocode="G",
        block_assignment=(areas,),
    )
    assert codes(make_reader(spec).read().frame, "place") == ["north", ""]
    write_csv(areas, [["G", "place"], ["b1", "north"]])
    with pytest.raises(GeographyError):
        make_reader(spec).read()
