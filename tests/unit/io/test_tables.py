from __future__ import annotations

import csv
import dataclasses
import zipfile
from fractions import Fraction

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from support.data import shared_data
from support.release_builder import add_product

from opendas.errors import ConfigError
from opendas.files.pl94_layout import RACE_CELLS, cell_names
from opendas.files.release_folder import ReleaseFolder
from opendas.geography.frame import Frame, official_codes
from opendas.geography.spine import Spine, SpineLevel
from opendas.readers.input.spec import ReaderSpec
from opendas.readers.registry import make_reader
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.tables.cells import PL94_TABLES, pl94_cells, pl94_table, query_table
from opendas.tables.counting import count_batches, count_table
from opendas.tables.tabulate import tabulate, write_tables

SIZES = {"P1": 71, "P2": 73, "P3": 71, "P4": 73, "P5": 10, "H1": 3}


@pytest.fixture
def release(persons, units, tmp_path):
    folder = tmp_path / "out" / "release"
    add_product(folder, persons)
    add_product(folder, units)
    return folder.parent


def test_cells_have_the_published_names_and_number():
    for table, size in SIZES.items():
        names = [cell.name for cell in pl94_cells(table)]
        assert names == list(cell_names(table))
        assert len(names) == size
        assert len({cell.label for cell in pl94_cells(table)}) == size


def test_single_combinations_stand_where_the_reader_finds_them():
    product = pl94_persons()
    races = product.schema.attribute("cenrace").levels
    for table, cells in RACE_CELLS.items():
        found = [pl94_cells(table)[cell].levels["cenrace"] for cell in cells]
        assert found == [(race,) for race in races]


def brute_force(example, table, geolevel):
    """Count record by record, by the documented meaning of each cell."""
    schema = example.product.schema
    cells = pl94_cells(table)
    rows = {}
    for leaf, unit in enumerate(example.frame.codes(geolevel)):
        if unit == b"":
            continue
        row = rows.setdefault(unit.decode(), [0] * len(cells))
        for cell, count in enumerate(example.estimate.dense(leaf)):
            codes = np.unravel_index(cell, schema.shape)
            levels = {a.name: a.levels[int(c)] for a, c in zip(schema.attributes, codes, strict=True)}
            for k, column in enumerate(cells):
                if count and all(levels[name] in allowed for name, allowed in column.levels.items()):
                    row[k] += int(count)
    return dict(sorted(rows.items()))


@pytest.mark.parametrize("geolevel", ["state", "county", "block", "place"])
@pytest.mark.parametrize("table", PL94_TABLES)
def test_tables_equal_counting_by_hand(release, persons, units, table, geolevel):
    example = units if table == "H1" else persons
    found = tabulate(release, table, geolevel)
    columns = [cell.name for cell in pl94_cells(table)]
    counts = found.select(["GEOID", *columns]).to_pylist()
    wanted = [{"GEOID": unit, **dict(zip(columns, row, strict=True))}
              for unit, row in brute_force(example, table, geolevel).items()]  # fmt: skip
    assert counts == wanted


def test_small_batches_give_the_same_table(persons, monkeypatch):
    table = pl94_table(persons.product, "P2")
    grouping = persons.frame.grouping("block")
    whole = count_table(persons.estimate, table, grouping)
    monkeypatch.setattr("opendas.tables.counting.VALUES_PER_BATCH", 2 * len(table.columns))
    batches = list(count_batches(persons.estimate, table, grouping))
    assert len(batches) > 1
    assert np.array_equal(np.concatenate([counts for _, counts in batches]), whole)


def official(name, columns=None):
    return pq.read_table(shared_data("pl94_2010_ri") / name, columns=columns)


@pytest.fixture(scope="module")
def rhode_island():
    """The official 2010 blocks as if they were an estimate: households everywhere, for P1 to P4 and H1."""
    blocks = official(
        "ri_2010_block_geo.parquet", ["GEOID", "STATE", "COUNTY", "COUSUB", "PLACE"]
    ).to_pandas()
    codes = np.array([code.encode() for code in blocks["GEOID"]])
    order = np.argsort(codes)
    blocks, codes = blocks.iloc[order], codes[order]
    cousub = np.array([code.encode() for code in blocks["STATE"] + blocks["COUNTY"] + blocks["COUSUB"]])
    place = np.array([b"" if code == "99999" else code.encode() for code in blocks["PLACE"]])
    frame = Frame(codes, official_codes(codes, "state"), "block", {}, {"cousub": cousub, "place": place})
    entries = official("ri_2010_block_hist.parquet").to_pandas()
    rows = np.searchsorted(codes, np.array([code.encode() for code in entries["GEOID"]]))
    product = pl94_persons()
    levels = [np.asarray(entries[name]) for name in ("votingage", "hispanic", "cenrace")]
    cells = product.schema.cells((np.zeros(len(rows), dtype=np.int64), *levels))
    counts = np.asarray(entries["count"])
    persons = Histogram.from_entries(rows, cells, counts, shape=(len(codes), product.schema.size))
    housing = official("ri_2010_block_pl_tables.parquet", ["GEOID", "H0010002", "H0010003"]).to_pandas()
    housing = housing.set_index("GEOID").loc[blocks["GEOID"]]
    leaf = np.arange(len(codes))
    units = Histogram.from_entries(
        np.concatenate([leaf, leaf]),
        np.repeat([1, 0], len(leaf)),
        np.concatenate([housing["H0010002"], housing["H0010003"]]),
        shape=(len(codes), 2),
    )
    return frame, {"P": (product, persons), "H": (pl94_units(), units)}


@pytest.mark.parametrize("table", ["P1", "P2", "P3", "P4", "H1"])
def test_block_tables_equal_the_official_ones(rhode_island, table):
    frame, products = rhode_island
    product, estimate = products[table[0]]
    cells = list(cell_names(table))
    published = official("ri_2010_block_pl_tables.parquet", ["GEOID", *cells]).to_pandas().set_index("GEOID")
    wanted = published.loc[[code.decode() for code in frame.geocodes]].to_numpy()
    found = count_table(estimate, pl94_table(product, table), frame.grouping("block"))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("geolevel", "sumlev", "fields"),
    [
        ("state", "040", ["STATE"]),
        ("county", "050", ["STATE", "COUNTY"]),
        ("cousub", "060", ["STATE", "COUNTY", "COUSUB"]),
        ("tract", "140", ["STATE", "COUNTY", "TRACT"]),
        ("block_group", "150", ["STATE", "COUNTY", "TRACT", "BLKGRP"]),
        ("place", "160", ["PLACE"]),
    ],
)
def test_higher_levels_equal_the_official_summary_records(rhode_island, geolevel, sumlev, fields):
    frame, products = rhode_island
    summary = official("ri_2010_summary_levels.parquet").to_pandas()
    summary = summary[(summary["SUMLEV"] == sumlev) & (summary["GEOCOMP"] == "00")]
    summary = summary.assign(CODE=summary[fields].agg("".join, axis=1)).set_index("CODE")
    grouping = frame.grouping(geolevel)
    codes = [code.decode() for code in grouping.geocodes]
    if geolevel in ("tract", "block_group"):
        # Tracts and block groups of water only have no record of their own.
        assert set(summary.index) <= set(codes)
    else:
        assert sorted(summary.index) == codes
    kept = [code for code in codes if code in summary.index]
    for table in ("P1", "P2", "P3", "P4", "H1"):
        product, estimate = products[table[0]]
        found = count_table(estimate, pl94_table(product, table), grouping)
        found = found[[codes.index(code) for code in kept]]
        assert np.array_equal(found, summary.loc[kept, list(cell_names(table))].to_numpy().astype(np.int64))


def test_margin_columns_stand_where_one_measurement_answers(release):
    names = tabulate(release, "P1", "county").column_names
    assert "P0010001_NOISE90" in names  # the total was measured
    assert "P0010003_NOISE90" in names  # white alone is a row of cenrace
    assert "P0010002_NOISE90" not in names  # one race is a sum of six
    assert names[:3] == ["GEOID", "P0010001", "P0010001_NOISE90"]
    names = tabulate(release, "P4", "county").column_names
    assert "P0040001_NOISE90" not in names  # 18 and over is a sum of two measured answers
    assert "P0040002_NOISE90" in names  # 18 and over and Hispanic is a row of votingage * hispanic


def test_margins_are_those_of_the_plan(release):
    plan_share = Fraction(2, 15) * Fraction(1, 8) * Fraction(5, 2)  # county share * cenrace share * rho
    for confidence, name in ((Fraction(9, 10), "NOISE90"), (Fraction(99, 100), "NOISE99")):
        table = tabulate(release, "P1", "county", confidence=confidence)
        wanted = DiscreteGaussian(1 / plan_share).margin(confidence)
        assert table.column(f"P0010003_{name}").to_pylist() == [wanted, wanted]
    # The state total is an invariant, housing units per block are too.
    assert tabulate(release, "P1", "state").column("P0010001_NOISE90").to_pylist() == [0]
    assert tabulate(release, "H1", "place").column_names == ["GEOID", "H0010001", "H0010002", "H0010003"]
    units = tabulate(release, "H1", "block")
    assert set(units.column("H0010001_NOISE90").to_pylist()) == {0}
    assert min(units.column("H0010002_NOISE90").to_pylist()) > 0


@pytest.mark.parametrize("geolevel", ["block", "block_group", "tract", "county"])
def test_cells_that_public_counts_fix_have_the_margin_0(release, persons, geolevel):
    """Where a geounit has no facility of a type, nobody lives in one, whatever the noise of the answer."""
    table = tabulate(release, "P5", geolevel)
    codes, of_leaf = np.unique(persons.frame.codes(geolevel).astype(str), return_inverse=True)
    assert table["GEOID"].to_pylist() == codes.tolist()
    each = [np.bincount(of_leaf, persons.frame.units[f"gq{number}"]) for number in range(1, 8)]
    columns = ("P0050003", "P0050004", "P0050005", "P0050006", "P0050008", "P0050009", "P0050010")
    for column, facilities in zip(columns, each, strict=True):
        assert [m == 0 for m in table[f"{column}_NOISE90"].to_pylist()] == (facilities == 0).tolist()
    assert 0 < sum((facilities == 0).sum() for facilities in each) < len(codes) * len(each)
    # No sum of types was measured: the institutional ones have a margin only where there is none of them.
    wanted = [0 if facilities == 0 else None for facilities in sum(each[:4])]
    found = table["P0050002_NOISE90"].to_pylist() if 0 in wanted else wanted
    assert found == wanted


def test_regrouped_geounits_have_no_margin_unless_their_leaves_are_the_same(persons, tmp_path):
    """On a spine with block groups of its own, official block groups are measured only by coincidence."""
    codes = persons.frame.geocodes
    spine = Spine(
        (
            SpineLevel("state", np.array([b"44"]), np.zeros(1, np.int64)),
            SpineLevel("block_group", np.array([b"a", b"b"]), np.zeros(2, np.int64)),
            SpineLevel("block", codes, np.array([0, 0, 0, 0, 0, 1])),
        ),
        np.arange(6),
        (None, None, None),
    )
    add_product(tmp_path / "release", persons, spine=spine)
    table = tabulate(tmp_path, "P1", "block_group")
    assert table.column("GEOID").to_pylist()[-1] == "440030202001"
    known = [value is not None for value in table.column("P0010001_NOISE90").to_pylist()]
    assert known == [False] * (len(known) - 1) + [True]
    assert not any(name.endswith("NOISE90") for name in tabulate(tmp_path, "P1", "county").column_names)


def test_any_query_makes_a_table(wards, tmp_path):
    add_product(tmp_path / "release", wards)
    table = tabulate(tmp_path, "broad*age", "region")
    labels = ["under|18 * ab", "under|18 * rest of them", '"18"+ * ab', '"18"+ * rest of them']
    assert [name for name in table.column_names if not name.endswith("_NOISE90")] == ["GEOID", *labels]
    dense = np.stack([wards.estimate.dense(leaf) for leaf in range(4)]).reshape(2, 2, 2, 3).sum(axis=1)
    wanted = np.stack([dense[:, :, :2].sum(axis=2), dense[:, :, 2]], axis=2).reshape(2, 4)
    assert np.array_equal(np.stack([table.column(label) for label in labels], axis=1), wanted)
    paths = write_tables(tmp_path, ["broad*age", "total"], ["region"], fmt="csv", to=tmp_path / "t")
    assert [path.name for path in paths] == ["age+broad_region.csv", "total_region.csv"]


def test_a_table_whose_file_no_folder_takes_is_refused_and_can_be_read(wards, tmp_path):
    name = "x" * 250
    (broad,) = wards.product.recodes
    product = dataclasses.replace(wards.product, recodes=(broad, dataclasses.replace(broad, name=name)))
    add_product(tmp_path / "release", dataclasses.replace(wards, product=product))
    with pytest.raises(ConfigError, match="names have at most 255"):
        write_tables(tmp_path, ["total", name], ["region"], to=tmp_path / "t")
    assert not (tmp_path / "t").exists()
    assert len(tabulate(tmp_path, name, "region")) == 2


def test_a_query_of_two_products_must_name_one(release):
    with pytest.raises(ConfigError, match="pl94-units:total"):
        tabulate(release, "total", "state")
    assert tabulate(release, "pl94-units:total", "state").column("total").to_pylist() == [10]
    assert tabulate(release, "hhgq", "state").column("nursing").to_pylist() == [3]


def test_missing_products_and_names_are_refused_before_anything_is_written(persons, tmp_path):
    add_product(tmp_path / "release", persons)
    with pytest.raises(ConfigError, match="run pl94-units"):
        write_tables(tmp_path, ["P1", "H1"], ["block"])
    with pytest.raises(ConfigError, match=r"no table or query group|neither attribute nor recode"):
        write_tables(tmp_path, ["P1", "P99"], ["block"])
    with pytest.raises(ConfigError, match="no geolevel"):
        write_tables(tmp_path, ["P1"], ["zip"])
    with pytest.raises(ConfigError, match="unknown table format"):
        write_tables(tmp_path, ["P1"], ["block"], fmt="xls")
    with pytest.raises(ConfigError, match="run pl94-units"):
        write_tables(tmp_path, ["P1"], ["block"], fmt="pl94")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        write_tables(tmp_path, ["P1"], ["block"], confidence=Fraction(1))
    assert not (tmp_path / "release" / "tables").exists()


def test_files_are_the_same_every_time_and_every_library_reads_them(release, tmp_path):
    for folder in ("a", "b"):
        for fmt in ("parquet", "csv", "pl94"):
            write_tables(release, ["P1", "H1"], ["block"], fmt=fmt, to=tmp_path / folder)
    first = {
        p.relative_to(tmp_path / "a"): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()
    }
    second = {
        p.relative_to(tmp_path / "b"): p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()
    }
    assert first == second
    assert len(first) == 5
    path = tmp_path / "a" / "P1_block.parquet"
    wanted = tabulate(release, "P1", "block").to_pylist()
    assert pl.read_parquet(path).to_dicts() == wanted
    assert list(pd.read_parquet(path)["GEOID"]) == [row["GEOID"] for row in wanted]
    with duckdb.connect() as connection:
        found = connection.execute("select GEOID, P0010003 from read_parquet(?)", [str(path)]).fetchall()
    assert found == [(row["GEOID"], row["P0010003"]) for row in wanted]
    with open(tmp_path / "a" / "P1_block.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row.pop("GEO_ID") for row in rows] == [f"1000000US{row['GEOID']}" for row in wanted]
    assert rows == [{k: "" if v is None else str(v) for k, v in row.items()} for row in wanted]


def test_default_folder_is_that_of_the_release(release):
    paths = write_tables(release, ["P5"], ["county"])
    assert paths == (release / "release" / "tables" / "P5_county.parquet",)


def test_query_columns_must_not_collide(wards):
    with pytest.raises(ConfigError, match="neither attribute nor recode"):
        query_table(wards.product, "nonsense")


def test_legacy_file_has_the_official_layout(release, tmp_path):
    (path,) = write_tables(release, ["P1"], ["block"], fmt="pl94", to=tmp_path)
    assert path.name == "ri2020.pl.zip"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert sorted(members) == ["ri000012020.pl", "ri000022020.pl", "ri000032020.pl", "rigeo2020.pl"]
    widths = {name: {line.count("|") + 1 for line in lines} for name, lines in members.items()}
    assert widths == {
        "rigeo2020.pl": {97},
        "ri000012020.pl": {149},
        "ri000022020.pl": {152},
        "ri000032020.pl": {15},
    }
    header = [line.split("|") for line in members["rigeo2020.pl"]]
    assert [row[2] for row in header] == ["040", "050", "050"] + ["140"] * 3 + ["150"] * 4 + ["750"] * 6
    assert header[0][8:10] == ["0400000US44", "44"]
    assert header[-1][32:35] == ["020200", "1", "1000"]
    totals = [line.split("|")[4:6] for line in members["ri000012020.pl"]]
    assert totals[0] == ["0000001", "18"]
    assert [row[7] for row in header] == [row[0] for row in totals]
    housing = [line.split("|")[-3:] for line in members["ri000022020.pl"]]
    assert housing[0] == ["10", "7", "3"]


def test_the_reader_takes_the_legacy_file_back(release, persons, units, tmp_path):
    (path,) = write_tables(release, ["P1"], ["block"], fmt="pl94", to=tmp_path)
    found = make_reader(ReaderSpec("pl94-2020", (path,), persons.product)).read()
    assert found.findings == ()
    assert np.array_equal(found.frame.geocodes, persons.frame.geocodes)
    assert np.array_equal(found.frame.units["hu"], persons.frame.units["hu"])
    # The tables do not say in which quarters whom of which age lives; everything else comes back.
    for query in ("hhgq", "votingage * hispanic * cenrace"):
        group = persons.product.workload.group(query)
        for leaf in range(len(persons.frame)):
            wanted = group.answers(persons.estimate.dense(leaf))
            assert np.array_equal(group.answers(found.histogram.dense(leaf)), wanted)
    again = make_reader(ReaderSpec("pl94-2020", (path,), units.product)).read()
    assert np.array_equal(again.histogram.counts, units.estimate.counts)
    assert np.array_equal(again.histogram.cells, units.estimate.cells)


def test_legacy_file_of_an_entity_category(release, tmp_path):
    (path,) = write_tables(release, ["P1"], ["place"], fmt="pl94", to=tmp_path)
    assert path.parent.name == "pl94_place"
    with zipfile.ZipFile(path) as archive:
        header = [line.split("|") for line in archive.read("rigeo2020.pl").decode().splitlines()]
    assert [(row[2], row[29], row[87]) for row in header] == [("160", "00100", "Arden"), ("160", "00200", "")]
    with pytest.raises(ConfigError):
        write_tables(release, ["P1"], ["cousub"], fmt="pl94", to=tmp_path)


def test_release_folder_says_what_is_there(release, tmp_path):
    folder = ReleaseFolder(release)
    assert folder.names == ("pl94-persons", "pl94-units")
    assert ReleaseFolder(release / "release").names == folder.names
    with pytest.raises(ConfigError, match="holds pl94-persons, pl94-units, not pl94-x"):
        folder["pl94-x"]
    with pytest.raises(ConfigError, match="holds no release"):
        ReleaseFolder(tmp_path / "nothing")
