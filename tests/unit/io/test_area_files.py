"""Files of blocks that someone drew: every form, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import geopandas as gpd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shapely.geometry import box
from support.data import shared_data

from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.files.area_files import Blocks, area_weights, areas_of, read_area_file, read_plans
from opendas.files.official_areas import OfficialAreas
from opendas.geography.frame import Frame

CODES = ("010010201001000", "010010201001001", "010010201002000")
FRAME = Blocks(Frame(np.array(CODES, dtype="S15"), {}, "block"))


def write(folder: Path, text: str, name: str = "blocks.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"geocode\n{CODES[0]}\n{CODES[2]}\n",
        f"\ufeffBlockID\n{CODES[0][1:]}\n{CODES[2][1:]}\n",  # leading zeros lost, and a byte order mark
        f"anything\n{CODES[0]}\n{CODES[2]}\n",
    ],
)
def test_one_area(tmp_path: Path, text: str) -> None:
    found = read_area_file(write(tmp_path, text), FRAME)
    assert found.leaf.tolist() == [0, 2]
    assert found.which.tolist() == [0, 0]
    assert bool((found.weight == 1.0).all())


def test_lists_in_text_files(tmp_path: Path) -> None:
    for text in (f"{CODES[1]}\n\n{CODES[0]}\n", f"geocode\r\n{CODES[1]}\r\n{CODES[0]}"):
        assert read_area_file(write(tmp_path, text, "blocks.txt"), FRAME).leaf.tolist() == [1, 0]


def test_areas_and_weights(tmp_path: Path) -> None:
    rows = [f"{CODES[2]},South,1", f"{CODES[0]},North,0.25", f"{CODES[1]},South,1e-1"]
    found = read_area_file(write(tmp_path, "\n".join(["geocode,district,weight", *rows])), FRAME)
    assert found.names == ("South", "North")
    assert found.which.tolist() == [0, 1, 0]
    assert found.weight.tolist() == [1.0, 0.25, 0.1]
    table = pa.table({"GEOID": [int(CODES[0]), int(CODES[1])], "area": [7, 8], "weight": [1.0, 0.5]})
    pq.write_table(table, tmp_path / "blocks.parquet")
    found = read_area_file(tmp_path / "blocks.parquet", FRAME)
    assert found.names == ("7", "8")
    assert found.leaf.tolist() == [0, 1]


def test_places_of_a_table_of_ones_own_stand_in_a_column_of_their_name(tmp_path: Path) -> None:
    wards = Blocks(Frame(np.array([b"w1", b"w2"]), {"district": np.array([b"n", b"s"])}, "Ward"))
    found = read_area_file(write(tmp_path, "WARD,plan\nw2,east\n"), wards)
    assert (found.leaf.tolist(), found.names) == ([1], ("east",))
    # Its district is another than those of the plan.
    assert found.districts(wards.frame).geolevel == "district_of_plan"


def test_rows_without_an_area_are_in_none(tmp_path: Path) -> None:
    found = read_area_file(write(tmp_path, f"geocode,area\n{CODES[0]},\n{CODES[1]},x\n"), FRAME)
    assert found.names == ("x",)
    assert found.leaf.tolist() == [1]


def test_areas_may_overlap() -> None:
    found = area_weights(FRAME, [CODES[0], CODES[0]], ["a", "b"])
    assert found.leaf.tolist() == [0, 0]


def test_what_is_refused(tmp_path: Path) -> None:
    for text, kind, message in [
        ("geocode\n999\n", GeographyError, "no blocks of this release"),
        (f"geocode\n{CODES[0]}\n{CODES[0]}\n", GeographyError, "rows repeat a geocode"),
        (f"geocode,weight\n{CODES[0]},much\n", FormatError, "not a number"),
        (f"geocode,weight\n{CODES[0]},\n", FormatError, "without a weight"),
        (f"geocode,weight\n{CODES[0]},inf\n", FormatError, "not a finite number"),
        (f"a,b\n{CODES[0]},1\n", FormatError, "no column with geocodes"),
        (f"geocode,a,b\n{CODES[0]},1,2\n", FormatError, "a, b: which of these columns"),
        (f"geocode,district,population\n{CODES[0]},1,2\n", FormatError, "district, population: which"),
        ("geocode\n", FormatError, "names no block"),
        ("", FormatError, "is empty"),
        (f"geocode,area\n{CODES[0]}\n", FormatError, "line 2: 1 fields"),
        (f'geocode,area\n{CODES[0]},"a,b"\n{CODES[1]},c,d\n', FormatError, "line 3: 3 fields"),
        (f"geocode,area\n{CODES[0]},{'x' * 200_000}\n", FormatError, "more than 200 characters"),
        (f"geocode,weight\n{CODES[0]},1e200\n", FormatError, "weight beyond"),
        (f"geocode,weight\n{CODES[0]},nan\n", FormatError, "not a finite number"),
        (f"{CODES[0]}\n{CODES[1]}\n", FormatError, "first column looks like a geocode"),
        ("010010201009999\n" + CODES[1], FormatError, "first column looks like a geocode"),
    ]:
        with pytest.raises(kind, match=message) as caught:
            read_area_file(write(tmp_path, text), FRAME)
        assert caught.value.exit_code == 3


def test_unknown_blocks_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, f"geocode\n{CODES[0]}\n010010201009999\n")
    with pytest.raises(GeographyError, match="010010201009999"):
        read_area_file(path, FRAME)
    found = read_area_file(path, Blocks(FRAME.frame, skip_unknown=True))
    assert found.leaf.tolist() == [0]
    assert found.skipped == 1
    with pytest.raises(GeographyError, match="none of its geocodes"):
        read_area_file(write(tmp_path, "geocode\n1\n"), Blocks(FRAME.frame, skip_unknown=True))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_area_file(tmp_path / "none.csv", FRAME)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "blocks.csv").write_bytes(b"\xff\xfe\x00geocode")
    with pytest.raises(FormatError, match="not a text file"):
        read_area_file(tmp_path / "blocks.csv", FRAME)
    (tmp_path / "blocks.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="Parquet"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)


@pytest.mark.parametrize(
    "weight", [pa.array([[1.0]]), pa.array([1], pa.date32()), pa.array([None], pa.float64())]
)
def test_weights_that_are_no_numbers(tmp_path: Path, weight: pa.Array) -> None:
    pq.write_table(pa.table({"geocode": [CODES[0]], "weight": weight}), tmp_path / "blocks.parquet")
    with pytest.raises(FormatError, match="weight"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)


def test_parquet_without_columns_and_with_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "blocks.parquet")
    with pytest.raises(FormatError, match="no column"):
        read_area_file(tmp_path / "blocks.parquet", FRAME)
    pq.write_table(pa.table({"geocode": [CODES[1].encode()]}), tmp_path / "blocks.parquet")
    assert read_area_file(tmp_path / "blocks.parquet", FRAME).leaf.tolist() == [1]


EMPTY = "010010201001002"


def official(points: tuple[tuple[float, float], ...] = ()) -> Blocks:
    """Return the same leaves, and a block beside them that is none."""
    every = sorted((*CODES, EMPTY))
    at = list(points) or [(0.0, 0.0)] * 4
    table = pa.table(
        {
            "geolevel": ["block"] * 4,
            "geocode": every,
            "INTPTLON": [str(x) for x, _ in at],
            "INTPTLAT": [str(y) for _, y in at],
        }
    )
    return Blocks(FRAME.frame, OfficialAreas(2020, table))


@pytest.mark.parametrize(
    ("name", "header", "delimiter"),
    [
        ("NationalCD119.txt", "GEOID,CDFP", ","),
        ("01_AL_CD118.txt", "GEOID,CD118", ","),
        ("01_AL_SLDU22.txt", "GEOID,SLDUST", ","),
        ("BlockAssign_ST01_AL_CD.txt", "BLOCKID|DISTRICT", "|"),
        ("BlockAssign_ST01_AL_INCPLACE_CDP.txt", "BLOCKID|PLACEFP", "|"),
        ("dra.csv", "GEOID20,District", ","),
        ("semicolon.csv", "GEOID10;plan", ";"),
        ("tab.tsv", "block\tMyDistricts", "\t"),
    ],
)
def test_published_files_of_districts(tmp_path: Path, name: str, header: str, delimiter: str) -> None:
    """Each as it is published: every block, empty ones too; columns by the names that they have there."""
    lines = [delimiter.join(pair) for pair in zip((*CODES, EMPTY), ("01", "02", "01", "03"), strict=True)]
    found = read_area_file(write(tmp_path, "\n".join([header, *lines]) + "\n", name), official())
    assert found.names == ("01", "02", "03")
    assert found.which.tolist() == [0, 1, 0]
    assert found.leaf.tolist() == [0, 1, 2]


def test_what_official_files_say_beside_the_code(tmp_path: Path) -> None:
    text = f"BLOCKID|COUNTYFP|DISTRICT\n{CODES[0]}|001|ZZZZZZ\n{CODES[1]}|001|10\n{CODES[2]}|001|\n"
    found = read_area_file(write(tmp_path, text, "BlockAssign_ST01_AL_VTD.txt"), official())
    assert (found.names, found.leaf.tolist()) == (("00110",), [1])
    two = Blocks(Frame(np.array([CODES[0], "020010201001000"], dtype="S15"), {}, "block"))
    text = f"GEOID,CDFP\n{CODES[0]},01\n020010201001000,01\n440010201001000,01\n"
    found = read_area_file(write(tmp_path, text, "NationalCD119.txt"), two)
    assert found.names == ("0101", "0201")  # 44 is no state of the release
    with pytest.raises(GeographyError, match="440010201001000"):  # of a plan of one's own it is a mistake
        read_area_file(write(tmp_path, text.replace("CDFP", "plan"), "plan.csv"), two)


def test_misspelt_blocks_are_named_with_their_line(tmp_path: Path) -> None:
    text = f"GEOID20,District\n{EMPTY},1\n\n{CODES[0]},1\n010010201001003,1\n"
    with pytest.raises(GeographyError, match="1 of its geocodes") as caught:
        read_area_file(write(tmp_path, text), official())
    (finding,) = caught.value.findings
    assert (finding.line, finding.rule) == (5, "unknown 010010201001003")
    text = f"GEOID20,District\n{CODES[0]},1\n{CODES[0]},1\n"
    with pytest.raises(GeographyError, match="twice") as caught:
        read_area_file(write(tmp_path, text), official())
    assert [finding.line for finding in caught.value.findings] == [3]


def test_an_area_of_empty_blocks_is_an_area(tmp_path: Path) -> None:
    found = read_area_file(write(tmp_path, f"geocode,area\n{EMPTY},sea\n{CODES[1]},land\n"), official())
    assert (found.names, found.which.tolist()) == (("sea", "land"), [1])


def test_zip_files(tmp_path: Path) -> None:
    path = tmp_path / "BlockAssign_ST01_AL.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for kind, code in (("CD", "07"), ("SLDL", "101"), ("INCPLACE_CDP", "00100")):
            archive.writestr(f"BlockAssign_ST01_AL_{kind}.txt", f"BLOCKID|DISTRICT\n{CODES[0]}|{code}\n")
    assert read_area_file(Path(f"{path}:CD"), FRAME).names == ("07",)
    assert read_area_file(Path(f"{path}:SLDL"), FRAME).names == ("101",)
    with pytest.raises(FormatError, match="expected one text file, found 3"):
        read_area_file(path, FRAME)
    with pytest.raises(FormatError, match="whose name ends in VTD, found 0"):
        read_area_file(Path(f"{path}:VTD"), FRAME)
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("plan.csv", f"GEOID,d\n{CODES[0]},x\n")
    assert read_area_file(tmp_path / "one.zip", FRAME).names == ("x",)
    (tmp_path / "no.zip").write_bytes(b"PK")
    with pytest.raises(FormatError, match="no whole zip"):
        read_area_file(tmp_path / "no.zip", FRAME)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_CD.txt", f"BLOCKID|DISTRICT\n{CODES[0]}|07\n" * 99)
    damaged = bytearray(path.read_bytes())
    damaged[45:60] = bytes(15)
    path.write_bytes(damaged)
    for name in (path, f"{path}:CD"):
        with pytest.raises(FormatError, match="no whole zip"):
            read_area_file(Path(name), FRAME)


def test_tables_in_memory() -> None:
    frame = FRAME.frame
    found = areas_of({"geocode": CODES, "d": pa.array([1.0, float("nan"), 1.0])}, frame, False)
    assert (found.names, found.leaf.tolist()) == (("1.0",), [0, 2])  # what is no number names no area
    with pytest.raises(ConfigError, match="of one length"):
        areas_of({"geocode": CODES, "d": [1]}, frame, False)


def test_the_official_files_of_a_state() -> None:
    """Every kind of area of Rhode Island 2020: how many areas its file has, and blocks in them."""
    folder = shared_data("baf_2020_ri")
    codes = pq.read_table(folder / "ri_2020_block_assignment.parquet")["GEOID"].to_pylist()
    blocks = Blocks(Frame(np.array(sorted(codes), dtype="S15"), {}, "block"))
    expected = {
        "AIANNH": (1, 25), "CD": (2, 25649), "INCPLACE_CDP": (36, 14208), "MCD": (40, 25649),
        "SDELM": (5, 1392), "SDSEC": (1, 531), "SDUNI": (31, 24257),
        "SLDL": (75, 25649), "SLDU": (38, 25649), "VTD": (422, 25629),
    }  # fmt: skip
    for kind, sizes in expected.items():
        found = read_area_file(Path(f"{folder}/BlockAssign_ST44_RI.zip:{kind}"), blocks)
        assert (len(found.names), len(found.leaf)) == sizes, kind


@pytest.mark.parametrize("suffix", ["geojson", "gpkg", "shp", "parquet"])
def test_shapes_of_districts(tmp_path: Path, suffix: str) -> None:
    """A block lies where its representative point lies, whatever the coordinates of the file."""
    name = f"districts.{suffix}"
    blocks = official(((0.5, 40.5), (1.5, 40.5), (2.5, 40.5), (9.0, 40.5)))
    shapes = gpd.GeoDataFrame(
        {"district": ["west", "east"]}, geometry=[box(0, 40, 2, 41), box(2, 40, 3, 41)], crs="EPSG:4269"
    )
    shapes = shapes.to_crs("EPSG:3857") if name != "districts.geojson" else shapes
    if name.endswith("parquet"):
        shapes.to_parquet(tmp_path / name)
    else:
        shapes.to_file(tmp_path / name)
    found = read_area_file(tmp_path / name, blocks)
    assert [found.names[area] for area in found.which] == ["west", "west"]
    assert [CODES[leaf] for leaf in found.leaf] == [CODES[0], CODES[1]]
    with pytest.raises(ConfigError, match="has no such points"):
        read_area_file(tmp_path / name, FRAME)


def test_shapes_that_are_refused(tmp_path: Path) -> None:
    blocks = official(((0.5, 40.5), (1.5, 40.5), (2.5, 40.5), (9.0, 40.5)))
    shapes = gpd.GeoDataFrame(
        {"district": ["a", "b"]}, geometry=[box(0, 40, 2, 41), box(1, 40, 3, 41)], crs="EPSG:4269"
    )
    shapes.to_file(tmp_path / "overlap.gpkg")
    with pytest.raises(FormatError, match="1 blocks lie in more than one district"):
        read_area_file(tmp_path / "overlap.gpkg", blocks)
    shapes.rename(columns={"district": "x"}).assign(y=1).to_file(tmp_path / "which.gpkg")
    with pytest.raises(FormatError, match="which column names"):
        read_area_file(tmp_path / "which.gpkg", blocks)
    (tmp_path / "no.gpkg").write_text("no")
    with pytest.raises(FormatError, match="geopandas cannot read shapes"):
        read_area_file(tmp_path / "no.gpkg", blocks)


def test_many_plans(tmp_path: Path) -> None:
    lines = [f"{code},{n % 2},{n}" for n, code in enumerate((*CODES, EMPTY))]
    plans = dict(read_plans(write(tmp_path, "\n".join(["GEOID20,first,second", *lines])), official()))
    assert plans["first"].which.tolist() == [0, 1, 0]
    assert plans["second"].names == ("0", "1", "2", "3")
    folder = tmp_path / "plans"
    folder.mkdir()
    for number in range(2):
        write(folder, "GEOID,district\n" + "".join(f"{code},{number}\n" for code in CODES), f"p{number}.csv")
    found = list(read_plans(folder, official()))
    assert [(name, areas.names) for name, areas in found] == [("p0", ("0",)), ("p1", ("1",))]
    with pytest.raises(FormatError, match="no column beside"):
        list(read_plans(write(tmp_path, f"geocode\n{CODES[0]}\n"), official()))


RELATED = (
    "STATE_2010|COUNTY_2010|TRACT_2010|BLK_2010|BLKSF_2010|AREALAND_2010|AREAWATER_2010|BLOCK_PART_FLAG_O|"
    "STATE_2020|COUNTY_2020|TRACT_2020|BLK_2020|BLKSF_2020|AREALAND_2020|AREAWATER_2020|BLOCK_PART_FLAG_R|"
    "AREALAND_INT|AREAWATER_INT"
)
PARTS = (
    (CODES[0], "010010301001000", 30, 0),
    (CODES[0], "010010301001001", 70, 5),
    (CODES[0], "010010302002000", 0, 9),  # water of a block that has land
    (CODES[1], "010010301001002", 0, 40),
    (CODES[1], "010010302001000", 0, 120),
    (CODES[2], "010010302001001", 12, 0),
    ("010010201009999", "010010302001002", 5, 0),  # a block that nobody counts in the release
    ("", "010010302001003", 1, 0),
)


def related(folder: Path, *parts: tuple[str, str, object, object]) -> Path:
    def split(code: str) -> list[str]:
        return [code[:2], code[2:5], code[5:11], code[11:]]

    nothing = [""] * 4
    rows = [
        [*split(old), *nothing, *split(new), *nothing, str(land), str(water)]
        for old, new, land, water in parts
    ]
    return write(folder, "\n".join([RELATED, *map("|".join, rows)]) + "\n", "tab2010_tab2020.txt")


def test_areas_of_the_other_census_by_a_relationship_file(tmp_path: Path) -> None:
    """Shares by land, by water where a block has no land; a block is listed once for each area."""
    path = related(tmp_path, *PARTS)
    expected = {  # worked by hand
        "block": {
            (0, "010010301001000"): 0.3,
            (0, "010010301001001"): 0.7,
            (1, "010010301001002"): 0.25,
            (1, "010010302001000"): 0.75,
            (2, "010010302001001"): 1.0,
        },
        "tract": {
            (0, "01001030100"): 1.0,
            (1, "01001030100"): 0.25,
            (1, "01001030200"): 0.75,
            (2, "01001030200"): 1.0,
        },
        "county": {(0, "01001"): 1.0, (1, "01001"): 1.0, (2, "01001"): 1.0},
    }
    for level, shares in expected.items():
        found = read_area_file(Path(f"{path}:{level}:land"), FRAME)
        keys = zip(found.leaf.tolist(), [found.names[i] for i in found.which], strict=True)
        assert dict(zip(keys, found.weight.tolist(), strict=True)) == shares
    whole = read_area_file(Path(f"{path}:county"), FRAME)
    assert bool((whole.weight == 1.0).all())
    with pytest.raises(GeographyError, match="1 blocks of the release lie in several areas") as caught:
        read_area_file(Path(f"{path}:tract"), FRAME)
    assert [finding.line for finding in caught.value.findings] == [5, 6]
    with zipfile.ZipFile(tmp_path / "TAB2010_TAB2020_ST01.zip", "w") as archive:
        archive.write(path, path.name)
    zipped = read_area_file(Path(f"{tmp_path}/TAB2010_TAB2020_ST01.zip:tract:land"), FRAME)
    assert zipped.names == ("01001030100", "01001030200")


def test_the_same_file_leads_from_2020_to_2010(tmp_path: Path) -> None:
    path = related(tmp_path, *PARTS)
    new = sorted(code for _, code, *_ in PARTS)
    blocks = Blocks(Frame(np.array(new, dtype="S15"), {}, "block"))
    found = read_area_file(Path(f"{path}:tract"), blocks)
    assert found.names == ("01001020100",)
    assert len(found.leaf) == len(new) - 1  # one is in no block of 2010


def test_tracts_of_both_censuses(tmp_path: Path) -> None:
    rows = [
        "OID_TRACT_20|GEOID_TRACT_20|NAMELSAD_TRACT_20|GEOID_TRACT_10|AREALAND_PART|AREAWATER_PART",
        "1|01001020100|a|01001020100|75|0",
        "2|01001020200|b|01001020100|25|1",
        "3|01001020200|b|01001020300|9|0",
    ]
    path = write(tmp_path, "\n".join(rows), "tab20_tract20_tract10_st01.txt")
    leaves = Blocks(Frame(np.array(["01001020100", "01001020300"], dtype="S11"), {}, "tract"))
    found = read_area_file(Path(f"{path}:tract:land"), leaves)
    assert found.names == ("01001020100", "01001020200")
    assert found.weight.tolist() == [0.75, 0.25, 1.0]
    with pytest.raises(FormatError, match="it relates tracts"):
        read_area_file(Path(f"{path}:block"), leaves)


def test_relationship_files_that_are_refused(tmp_path: Path) -> None:
    path = related(tmp_path, *PARTS)
    with pytest.raises(FormatError, match=r"a relationship file\. Say which areas"):
        read_area_file(path, FRAME)
    with pytest.raises(FormatError, match="is not a relationship file"):
        read_area_file(Path(f"{write(tmp_path, CODES[0], 'list.txt')}:tract"), FRAME)
    for parts, message in [
        (PARTS[:-3], "it does not list 1 blocks"),
        ((*PARTS, PARTS[0]), "1 parts appear twice"),
        ((*PARTS, (CODES[0], "010010301001009", "x", 0)), "1 areas are not numbers"),
        ((*PARTS, (CODES[0][:-1], "010010301001009", 1, 0)), "1 codes have the wrong form"),
        ((*PARTS, ("01001020100", "010010301001009", 1, 0)), "a code is missing"),
        (tuple((code, code, 1, 1) for code in CODES), "are blocks of both censuses"),
    ]:
        with pytest.raises((FormatError, GeographyError), match=message) as caught:
            read_area_file(Path(f"{related(tmp_path, *parts)}:tract:land"), FRAME)
        assert all(finding.line == 10 for finding in caught.value.findings)
