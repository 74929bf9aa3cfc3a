"""Areas without a leaf, their names and identifiers, in releases made from a redistricting file."""

from __future__ import annotations

import csv
import zipfile
from types import SimpleNamespace

import duckdb
import geopandas as gpd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from shapely.geometry import box
from support.data import shared_data
from support.pl94_zip import some_blocks, write_zip
from support.release_builder import add_product, issue_release

import opendas as od
from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.files.official_areas import (
    HEADER_FIELDS,
    official_areas_path,
    read_official_areas,
    write_official_areas,
)
from opendas.files.release_folder import ReleaseFolder
from opendas.readers.frame.official import official_areas
from opendas.readers.input.spec import ReaderSpec
from opendas.readers.registry import make_reader
from opendas.runs.context.facts import issue_certificate
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.tables import plans
from opendas.tables.counting import count_table
from opendas.tables.legacy import header_members
from opendas.tables.tabulate import LONG_SCHEMA, long_table, tabulate, write_tables
from opendas.verify.release import verify_release

pytestmark = pytest.mark.slow

EMPTY = "980010002001000"
LONG_COLUMNS = ["geocode", "name", "geolevel", "variable", "label", "value", "margin"]


def made_release(folder, year, stamps=("DEMONSTRATION FRAME",)):
    """Release a made redistricting file of six blocks, one of which is empty."""
    path = write_zip(folder / "fb.zip", some_blocks(), year)
    release, facts = folder / "out" / "release", []
    for product in (pl94_persons(), pl94_units()):
        spec = ReaderSpec(f"pl94-{year}", (path,), product)
        data = make_reader(spec).read()
        example = SimpleNamespace(product=product, frame=data.frame, estimate=data.histogram)
        facts.append(add_product(release, example, stamps=stamps))
        write_official_areas(official_areas_path(release, product.name), official_areas(spec, data.frame))
        plan = release / "run" / f"{product.name}.toml"
        plan.write_text(plan.read_text().replace('"histogram"', f'"pl94-{year}"'))
    issue_release(release, facts)
    return folder / "out"


@pytest.fixture(params=[2010, 2020])
def made(request, tmp_path):
    return made_release(tmp_path, request.param)


def test_every_block_is_listed_and_the_empty_one_has_zeros(made):
    table = tabulate(made, "P1", "block").to_pylist()
    assert [row["GEOID"] for row in table] == sorted(block.code for block in some_blocks())
    empty = next(row for row in table if row["GEOID"] == EMPTY)
    del empty["GEOID"]
    assert {value for value in empty.values() if value is not None} == {0}
    frame = ReleaseFolder(made)["pl94-persons"].frame
    assert EMPTY.encode() not in frame.geocodes
    assert [row["GEOID"] for row in tabulate(made, "H1", "tract").to_pylist()] == [
        "98001000100", "98001000200", "98003000100",
    ]  # fmt: skip


def test_intervals_of_an_empty_block_are_exactly_zero(made):
    rows = od.Release(made).intervals("votingage", geolevel="block").to_arrow().to_pylist()
    empty = [row for row in rows if row["geocode"] == EMPTY]
    assert len(empty) == 2
    for row in empty:
        assert (row["count"], row["estimate"], row["variance"], row["lower"], row["upper"]) == (0, 0, 0, 0, 0)


def test_verify_accepts_the_files_and_finds_what_is_not_there(made, tmp_path):
    write_tables(made, ["P1", "H1"], ["county", "block"], long=True)
    write_tables(made, ["P1"], ["block"], long=True, fmt="csv")
    write_tables(made, ["P2"], ["tract"], fmt="csv")
    issue_certificate(made / "release")
    failed = [check for check in verify_release(made) if not check.ok]
    assert failed == []
    path = official_areas_path(made / "release", "pl94-units")
    areas = read_official_areas(path)
    kept = np.flatnonzero(np.array(areas.field("geocode", np.arange(len(areas.table)))) != "980030001001005")
    areas.table = areas.table.take(kept)
    write_official_areas(path, areas)
    issue_certificate(made / "release")
    assert any(check.name == "columns" and not check.ok for check in verify_release(made))


def test_long_form_equals_the_wide_tables(made, tmp_path):
    (path,) = write_tables(made, ["P1", "H1"], ["county", "block"], long=True, to=tmp_path / "t")
    assert path.name == "P1,H1_county,block_long.parquet"
    rows = pq.read_table(path).to_pylist()
    assert list(rows[0]) == LONG_COLUMNS == LONG_SCHEMA.names
    found = {(row["geolevel"], row["geocode"], row["variable"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    wanted = {}
    for geolevel in ("county", "block"):
        for name in ("P1", "H1"):
            for row in tabulate(made, name, geolevel).to_pylist():
                cells = {k: v for k, v in row.items() if k != "GEOID" and "NOISE" not in k}
                wanted |= {(geolevel, row["GEOID"], cell): value for cell, value in cells.items()}
    assert found == wanted
    assert {row["margin"] for row in rows} == {None}
    county = next(row for row in rows if row["geocode"] == "98001" and row["variable"] == "P0010003")
    assert (county["name"], county["label"]) == ("98001 Peña County, Fable", "White alone")
    block = next(row for row in rows if row["geocode"] == EMPTY)
    assert block["name"] == "Block 1000, 98001 Peña County, Fable"


def test_long_form_in_every_frame_library(made, tmp_path):
    (path,) = write_tables(made, ["votingage"], ["state", "county"], long=True, fmt="csv", to=tmp_path)
    wanted = long_table(made, ["votingage"], ["state", "county"]).to_pylist()
    assert [row["variable"] for row in wanted[:2]] == ["votingage: under18", "votingage: 18plus"]
    table = od.Release(made).table("votingage", geolevel=["state", "county"], long=True)
    assert table.to_polars().to_dicts() == table.to_arrow().to_pylist() == wanted
    assert list(table.to_pandas()["value"]) == [row["value"] for row in wanted]
    found = pd.read_csv(path)
    assert list(found.columns) == [*LONG_COLUMNS, "geo_id", "STAMP"]
    assert list(found["geo_id"])[-1] == "0500000US98003"
    assert set(found["STAMP"]) == {"DEMONSTRATION FRAME"}
    assert pl.read_csv(path)["geo_id"].to_list() == list(found["geo_id"])
    with duckdb.connect() as connection:
        rows = connection.execute("select geo_id, value from read_csv(?)", [str(path)]).fetchall()
    assert rows == list(zip(found["geo_id"], found["value"], strict=True))


def test_identifiers_keep_their_zeros_where_codes_lose_them(tmp_path):
    """pandas takes a code of Alabama for a number; the identifier beside it stays."""
    made = made_release(tmp_path, 2020)
    (path,) = write_tables(made, ["P1"], ["block"], fmt="csv", to=tmp_path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["GEO_ID", "NAME", "GEOID", "P0010001"]
    assert list(rows[0])[-1] == "STAMP"
    assert all(row["GEO_ID"] == f"1000000US{row['GEOID']}" for row in rows)
    assert pq.read_schema(write_tables(made, ["P1"], ["block"], to=tmp_path)[0]).names[0] == "GEOID"


def test_tables_of_what_the_input_lacks_are_refused(tmp_path):
    made = made_release(tmp_path, 2010)
    for name in ("P5", "hhgq", "detailed"):
        with pytest.raises(ConfigError, match="no table P5"):
            tabulate(made, f"pl94-persons:{name}", "state")
    assert tabulate(made, "P5", "state", allow_derived=True).column("P0050001").to_pylist() == [101]
    (path,) = write_tables(made, ["P5"], ["state"], allow_derived=True, to=tmp_path)
    assert b'"stamps":["DEMONSTRATION FRAME"]' in pq.read_metadata(path).metadata[b"opendas"]
    (tmp_path / "b").mkdir()
    assert tabulate(made_release(tmp_path / "b", 2020), "P5", "state").num_rows == 1


def test_a_plan_with_empty_blocks_is_tabulated_and_so_are_many(made, tmp_path, monkeypatch):
    district = {block.code: f"{number % 2}" for number, block in enumerate(some_blocks())}
    district[EMPTY] = "empty"
    plan = tmp_path / "plan.csv"
    plan.write_text("GEOID20,District\n" + "".join(f"{code},{d}\n" for code, d in district.items()))
    (path,) = od.tabulate(od.Release(made), ["P1", "H1"], blocks=plan, format="csv", to=tmp_path / "t")
    assert path.name == "plan.csv"
    found = pd.read_csv(path, dtype={"geocode": str}).set_index(["geocode", "variable"])["value"]
    for name, column in (("P1", "P0010003"), ("H1", "H0010001")):
        rows = tabulate(made, name, "block").to_pylist()
        for area in ("0", "1", "empty"):
            wanted = sum(row[column] for row in rows if district[row["GEOID"]] == area)
            assert found[area, column] == wanted
    intervals = od.Release(made).interval("votingage", blocks=plan).to_arrow().to_pylist()
    assert {(row["estimate"], row["upper"]) for row in intervals if row["geocode"] == "empty"} == {(0, 0)}
    wide = pd.DataFrame({"GEOID": list(district), "a": "x", "b": list(district.values())})
    wide.to_parquet(tmp_path / "plans.parquet")
    (path,) = od.tabulate(
        od.Release(made), ["P1"], blocks=tmp_path / "plans.parquet", plans=True, to=tmp_path / "t"
    )
    many = pd.read_parquet(path)
    assert list(many["plan"].unique()) == ["a", "b"]
    rng = np.random.default_rng(1)
    drawn = {f"p{k}": rng.choice(["north", "south"], len(district)) for k in range(1000)}
    pd.DataFrame({"GEOID": list(district), **drawn}).to_parquet(tmp_path / "ensemble.parquet")
    counted = []
    monkeypatch.setattr(plans, "count_table", lambda *given: counted.append(1) or count_table(*given))
    (path,) = od.tabulate(
        od.Release(made), ["P1"], blocks=tmp_path / "ensemble.parquet", plans=True, to=tmp_path / "t"
    )
    assert len(counted) == 1, "one pass, however many plans"
    ensemble = pd.read_parquet(path)
    people = ensemble[ensemble["variable"] == "P0010001"].set_index(["plan", "geocode"])["value"]
    of_block = {row["GEOID"]: row["P0010001"] for row in tabulate(made, "P1", "block").to_pylist()}
    for plan_name in ("p0", "p500", "p999"):
        for side in ("north", "south"):
            inside = [code for code, name in zip(district, drawn[plan_name], strict=True) if name == side]
            assert people[plan_name, side] == sum(of_block.get(code, 0) for code in inside)
    assert people.index.get_level_values("plan").nunique() == 1000
    totals = many[many["variable"] == "P0010001"].set_index(["plan", "geocode"])["value"]
    assert totals["a", "x"] == totals["b"].sum() == 127
    plan.write_text(plan.read_text().replace(EMPTY, "980010002001009"))
    with pytest.raises(GeographyError, match="1 of its geocodes"):
        od.tabulate(od.Release(made), ["P1"], blocks=plan, to=tmp_path / "t")
    for wrong in ({"geolevel": "state"}, {"to": None}, {"format": "pl94"}):
        with pytest.raises(ConfigError):
            od.tabulate(od.Release(made), ["P1"], **{"blocks": plan, "to": tmp_path / "t", **wrong})


def test_points_and_shapes(tmp_path):
    made = od.Release(made_release(tmp_path, 2020))
    shapes = gpd.GeoDataFrame(
        {"GEOID20": ["98001", "98003", "98005"]},
        geometry=[box(k, 0, k + 1, 1) for k in range(3)],
        crs="EPSG:4269",
    )
    for name in ("shapes.gpkg", "shapes.geojson", "shapes.shp"):
        shapes.to_file(tmp_path / name)
    for name in ("shapes.gpkg", "shapes.geojson", "shapes.shp"):
        found = made.table("P1", geolevel="county", geometry=tmp_path / name).to_geopandas()
        assert list(found.geometry.bounds["minx"]) == [0, 1]
        long = made.table(["P1", "H1"], geolevel="county", long=True, geometry=tmp_path / name)
        assert len(long.to_geopandas()) == 2 * 74
    shapes.rename(columns={"GEOID20": "code"}).to_file(tmp_path / "code.gpkg")
    shapes[1:].to_file(tmp_path / "less.gpkg")
    with pytest.raises(FormatError, match="no column"):
        made.table("P1", geolevel="county", geometry=tmp_path / "code.gpkg").to_geopandas()
    with pytest.raises(FormatError, match=r"no shape for 1 of 2 areas, the first 98001"):
        made.table("P1", geolevel="county", geometry=tmp_path / "less.gpkg").to_geopandas()
    with pytest.raises(ConfigError, match="no such file"):
        made.table("P1", geolevel="county", geometry=tmp_path / "none.gpkg").to_geopandas()
    with pytest.raises(ConfigError, match="ask for it with geometry"):
        made.table("P1", geolevel="county").to_geopandas()


@pytest.fixture(scope="module")
def rhode_island():
    spec = ReaderSpec("pl94-2010", (shared_data("pl94_2010_ri") / "ri2010.pl.zip",), pl94_persons())
    frame, _ = make_reader(spec).frame()
    return frame, official_areas(spec, frame)


def test_rhode_island_has_all_its_official_areas(rhode_island, tmp_path):
    frame, areas = rhode_island
    counts = {level: len(areas.rows(level)) for level in ("block", "block_group", "tract", "cousub", "place")}
    assert counts == {"block": 25181, "block_group": 815, "tract": 244, "cousub": 40, "place": 34}
    assert len(frame) == 17850
    blocks = pq.read_table(shared_data("pl94_2010_ri") / "ri_2010_block_geo.parquet").to_pandas()
    blocks = blocks.set_index("GEOID").sort_index()
    rows = areas.rows("block")
    for name in ("AREALAND", "AREAWATR", "CBSA", "NECTA", "COUSUB", "PLACE"):
        assert areas.field(name, rows) == list(blocks[name].astype(str))
    latitudes = [float(text) for text in areas.field("INTPTLAT", rows)]
    assert latitudes == list(blocks["INTPTLAT"].astype(float))
    assert not {"POP100", "HU100"} & set(areas.table.column_names)
    assert set(HEADER_FIELDS[2010]) < set(areas.table.column_names)
    points = areas.points("block")
    assert len(points) == 25181
    assert all(-72 < x < -71 and 41 < y < 42.1 for x, y in points.values())
    write_official_areas(tmp_path / "official.parquet", areas)
    again = read_official_areas(tmp_path / "official.parquet")
    assert again.table.equals(areas.table)
    assert (tmp_path / "official.parquet").stat().st_size < 1_000_000


def test_headers_that_were_read_with_the_counts_are_not_read_again(rhode_island, monkeypatch):
    _, areas = rhode_island
    spec = ReaderSpec("pl94-2010", (shared_data("pl94_2010_ri") / "ri2010.pl.zip",), pl94_persons())
    data = make_reader(spec).read()
    monkeypatch.setattr("opendas.readers.pl94.reader.read_members", None)
    assert official_areas(spec, data.frame, data.headers).table.equals(areas.table)


def test_the_legacy_file_of_the_true_counts_is_the_official_one(rhode_island):
    """All 30,769 records of every summary level, byte for byte: header, tables P1 to P4 and H1."""
    _, areas = rhode_island
    path = shared_data("pl94_2010_ri") / "ri2010.pl.zip"
    products = {}
    for layout, product in (("persons", pl94_persons()), ("units", pl94_units())):
        data = make_reader(ReaderSpec("pl94-2010", (path,), product)).read()
        products[layout] = SimpleNamespace(product=product, frame=data.frame, estimate=data.histogram)
    members = header_members(products, areas.state("44"), (), "")
    with zipfile.ZipFile(path) as archive:
        official = {name: archive.read(name) for name in archive.namelist() if name.endswith(".pl")}
    assert set(members) == set(official) == {"rigeo2010.pl", "ri000012010.pl", "ri000022010.pl"}
    for name, text in official.items():
        assert members[name].splitlines() == text.splitlines(), name


@pytest.mark.parametrize("year", [2010, 2020])
def test_the_legacy_file_of_a_state_has_every_record_and_is_read_back(tmp_path, year):
    made = made_release(tmp_path, year)
    (path,) = write_tables(made, ["P1"], [], fmt="pl94", to=tmp_path / "t")
    assert path == tmp_path / "t" / "pl94" / f"fb{year}.pl.zip"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "fb.zip") as source:
        encoding = "latin-1" if year == 2010 else "utf-8"
        found = {name: archive.read(name).decode(encoding) for name in archive.namelist()}
        assert found.pop(f"fb{year}.stamps.txt") == "DEMONSTRATION FRAME\n"
        assert set(found) == {name for name in source.namelist() if name.endswith(".pl")}
        for name, text in found.items():  # the counts are the input's own: the file is the input
            assert text == source.read(name).decode("latin-1")  # as the made file is, of either census
    (path,) = write_tables(made, ["P1"], ["county", "tract"], fmt="pl94", to=tmp_path / "t")
    assert path.parent.name == "pl94_county+tract"
    with zipfile.ZipFile(path) as archive:
        lines = archive.read(f"fbgeo{year}.pl").decode("latin-1").splitlines()
    levels = [line[8:11] if year == 2010 else line.split("|")[2] for line in lines]
    assert levels == ["040", "050", "050", "140", "140", "140"]
    for category, message in (("aianhh", "this release has no aianhh"), ("place", "no record of place")):
        with pytest.raises(ConfigError, match=message):
            write_tables(made, ["P1"], [category], fmt="pl94", to=tmp_path / "t")
    write_tables(made, ["P1"], [], fmt="pl94")
    write_tables(made, ["P1"], ["county"], fmt="pl94")
    issue_certificate(made / "release")
    assert [check for check in verify_release(made) if not check.ok] == []


def test_microdata_in_a_zip_file_are_read(tmp_path):
    """The published microdata come as a CSV file in a zip file."""
    made = made_release(tmp_path, 2020)
    paths = od.export_microdata(made, tmp_path / "published")
    person, unit = (next(path for path in paths if kind in path.name) for kind in ("person", "unit"))
    with zipfile.ZipFile(tmp_path / "person.zip", "w") as archive:
        archive.write(person, person.name)
        archive.writestr(f"__MACOSX/._{person.name}", "junk")
    specs = [
        ReaderSpec("ppmf", (path,), pl94_persons(), plan_from_records=True)
        for path in (person, tmp_path / "person.zip")
    ]
    plain, zipped = (make_reader(spec).read() for spec in specs)
    assert np.array_equal(plain.frame.geocodes, zipped.frame.geocodes)
    assert np.array_equal(plain.histogram.counts, zipped.histogram.counts)
    with zipfile.ZipFile(tmp_path / "person.zip", "a") as archive:
        archive.write(unit, unit.name)
    with pytest.raises(FormatError) as caught:
        make_reader(specs[1]).read()
    assert "this one holds 2" in caught.value.findings[0].rule
    (tmp_path / "person.zip").write_bytes(b"PK\x03\x04 no zip file")
    with pytest.raises(FormatError, match="cannot be read"):
        make_reader(specs[1]).read()


def test_microdata_are_named_by_their_census(made, tmp_path):
    year = ReleaseFolder(made)["pl94-persons"].official.census
    paths = od.export_microdata(made, tmp_path / "published")
    assert [path.name for path in paths] == [f"{year}_ppmf_person_98.csv", f"{year}_ppmf_unit_98.csv"]
    assert pd.read_csv(paths[0], dtype=str)["TABBLKST"].unique().tolist() == ["98"]


def test_tidy_measurements_are_those_of_the_release(tmp_path, monkeypatch):
    made = made_release(tmp_path, 2020)
    monkeypatch.setattr("opendas.files.tidy_measurements._VALUES_AT_ONCE", 8)  # two geounits at once
    paths, left_out = od.export_tidy(made, tmp_path / "tidy", product="pl94-persons")
    assert left_out == ()
    release = od.Release(made)
    for geolevel in ("county", "block"):
        found = pd.read_parquet(tmp_path / f"tidy/pl94-persons/{geolevel}/votingage+hispanic.parquet")
        asked = release.measurements(geolevel, "votingage * hispanic", product="persons").to_pandas()
        assert list(found["geocode"]) == list(asked["geocode"])
        assert found.drop(columns=["geocode", "variance"]).to_numpy().tolist() == [
            list(values) for values in asked["values"]
        ]
        assert list(found["variance"]) == list(asked["variance"])
        assert list(found.columns)[2:4] == ["under18 * not_hispanic", "under18 * hispanic"]
    assert not any("list" in str(kind) for path in paths for kind in pq.read_schema(path).types)
    monkeypatch.setattr("opendas.files.tidy_measurements.MOST_COLUMNS", 100)
    _, left_out = od.export_tidy(made, tmp_path / "less", product="pl94-persons")
    assert left_out == ("pl94-persons:detailed",)
