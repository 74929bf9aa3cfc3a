"""Our measurements in the Census Bureau's public layout: column by column, and as others' tools read them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from support.dhc_measurements import MadeCounty
from support.release_builder import add_product

import opendas
import opendas.errors
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.demo import write_demo
from opendas.files.mdf.reading import read_mdf_records
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import bureau_geocodes
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree

LISTS = pa.list_(pa.int32())
AXES = {"pl94-persons": ["hhgq", "votingage", "hispanic", "cenrace"], "pl94-units": ["h1"]}


@pytest.fixture
def release(tmp_path: Path, persons, units) -> Path:
    for example in (persons, units):
        add_product(tmp_path / "release", example)
    return tmp_path / "release"


@pytest.fixture
def published(release: Path, tmp_path: Path, capsys) -> Path:
    """Both products, exported by the command."""
    to = tmp_path / "published"
    assert guarded(cli, ["export", str(release), "--format", "nmf", "--to", str(to)]) == 0
    assert "part-00000.parquet" in capsys.readouterr().out
    return to


def parts(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet/**/*.parquet"))


@pytest.mark.parametrize("name", sorted(AXES))
def test_the_same_measurements_come_back(release: Path, published: Path, name: str) -> None:
    own, read = noisy_tree(ReleaseFolder(release)[name]), BureauFile.open(published / name).tree()
    assert read.spine.names == own.spine.names
    assert np.array_equal(read.frame.geocodes, own.frame.geocodes)
    assert np.array_equal(read.spine.leaf_order, own.spine.leaf_order)
    for number in range(len(own.levels)):
        size = len(own.levels[number])
        names = [query.name for query in read.levels[number].queries]
        answers = read.full(number, 0, size)
        for column, query in enumerate(own.levels[number].queries):
            there = names.index(query.name)
            assert np.array_equal(answers[there], own.full(number, 0, size)[column])
            variance, published_one = (
                tree.levels[number].variances[tree.levels[number].which, place]
                for tree, place in ((own, column), (read, there))
            )
            assert np.allclose(published_one, variance, rtol=1e-6)
        held, ours = read.constraints.levels[number], own.constraints.levels[number]
        assert [i.answers.tolist() for i in held.invariants] == [i.answers.tolist() for i in ours.invariants]
        assert np.array_equal(held.lower, ours.lower)
        assert np.array_equal(held.upper == 0, ours.upper == 0)


@pytest.mark.parametrize("name", sorted(AXES))
def test_columns_are_those_of_the_published_files(published: Path, name: str) -> None:
    axes = AXES[name]
    for path in parts(published / name):
        sign = ["sign"] if "Constraint" in path.parts else []
        schema = pq.read_schema(path)
        assert schema.names == ["geocode", "query_name", *sign, *axes, "query_shape", "value", "variance"]
        assert {schema.field(c).type.value_type for c in ("query_shape", "value")} == {pa.int32()}
        assert schema.field("variance").type == pa.float32()
        assert len(list(path.parent.iterdir())) == 1, "one file a folder"
        assert path.parent.name == "State=044"
    table = pd.read_parquet(published / name / "Block.parquet" / "DPQuery" / "State=044")
    detailed = table[table["query_name"] == "detailed_dpq"]
    assert (detailed[axes] == "detailed").all(axis=None)
    if name == "pl94-persons":
        both = table[table["query_name"] == "votingage * hispanic_dpq"].iloc[0]
        assert list(both[axes]) == ["*", "votingage", "hispanic", "*"]
        assert list(both["query_shape"]) == [1, 2, 2, 1]
        held = pd.read_parquet(published / name / "Block.parquet" / "Constraint" / "State=044")
        nurses = held[held["query_name"] == "nurse_nva_0_con"].iloc[0]
        assert list(nurses[["sign", *axes]]) == ["=", "gqNursingTotal", "nonvoting", "*", "*"]
        bound = held[held["query_name"] == "hhgq_total_ub_con"].iloc[0]
        assert list(bound[["sign", *axes]]) == ["<=", "hhgq", "*", "*", "*"]
        assert list(bound["query_shape"]) == [8, 1, 1, 1]


def test_lists_have_no_dictionary(published: Path) -> None:
    """Others' readers stop at dictionaries of lists; texts keep theirs."""
    for path in parts(published):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        for name in ("value", "query_shape"):
            assert set(columns[f"{name}.list.element"].encodings) == {"PLAIN", "RLE"}
            assert columns[f"{name}.list.element"].dictionary_page_offset is None
        assert columns["query_name"].dictionary_page_offset is not None


def test_geocodes_begin_with_their_parents(release: Path) -> None:
    tree = noisy_tree(ReleaseFolder(release)["pl94-persons"])
    codes = bureau_geocodes(tree)
    for number in range(1, len(codes)):
        above = codes[number - 1][tree.spine.levels[number].parent]
        assert {len(code) for code in codes[number].tolist()} == {codes[number].dtype.itemsize}
        assert np.array_equal(codes[number].astype(above.dtype), above)
        assert len(np.unique(codes[number])) == len(codes[number])
    county, block = codes[1][0].decode(), codes[-1][0].decode()
    official = tree.frame.geocodes[tree.spine.leaf_order[0]].decode()
    assert (county[1:3], county[5:8]) == (official[:2], official[2:5])
    assert block[-16:] == official[:11] + official[11] + official[11:]


@pytest.mark.parametrize("level", ["State", "County", "Tract", "Block_Group", "Block"])
def test_others_tools_read_every_level_as_one_table(published: Path, level: str) -> None:
    """Polars refuses parts with unlike schemas; DuckDB and pandas read folders as columns."""
    base = published / "pl94-persons" / f"{level}.parquet" / "DPQuery"
    lazy = pl.scan_parquet(base / "**" / "*.parquet", hive_partitioning=True)
    by_polars = lazy.select("State", "geocode", "query_name", pl.col("value").list.sum()).collect()
    found = duckdb.sql(
        f"select State, geocode, query_name, list_sum(value)::bigint as value from "
        f"read_parquet('{base}/**/*.parquet', hive_partitioning = true, hive_types_autocast = false)"
    ).pl()
    by_pandas = pd.read_parquet(base)
    assert (
        by_polars.select("geocode", "query_name", "value")
        .sort("geocode", "query_name")
        .equals(found.select("geocode", "query_name", "value").sort("geocode", "query_name"))
    )
    assert sorted(by_pandas["geocode"] + by_pandas["query_name"]) == sorted(
        by_polars["geocode"] + by_polars["query_name"]
    )
    assert by_pandas["value"].map(np.sum).sum() == by_polars["value"].sum()


def test_intervals_from_the_export_are_those_of_the_release(release: Path, published: Path) -> None:
    ours = opendas.NoisyFile(release / "measurements" / "pl94-persons")
    theirs = opendas.NoisyFile(published / "pl94-persons")
    for query, geolevel in (("votingage", "tract"), ("P1", "county"), ("hhgq", "block")):
        one, two = (f.intervals(query, geolevel=geolevel).to_pandas() for f in (ours, theirs))
        assert list(one["geocode"]) == list(two["geocode"])
        # Variances are published in single precision.
        assert np.allclose(one["estimate"], two["estimate"], rtol=1e-5, atol=1e-4)
        assert np.allclose(one["variance"], two["variance"], rtol=1e-5)


def test_persons_and_units_are_asked_together(published: Path, capsys) -> None:
    """One set of measurements of one census: a question goes to the file that knows of it."""
    both = [str(published / name) for name in ("pl94-units", "pl94-persons")]
    for query, name in (("H1", "pl94-units"), ("votingage", "pl94-persons"), ("P2", "pl94-persons")):
        answers = []
        for paths in (both, [str(published / name)]):
            command = ["interval", *paths, "--query", query, "--geolevel", "tract", "--json"]
            assert guarded(cli, command) == 0
            answers.append(json.loads(capsys.readouterr().out))
        assert answers[0] == answers[1]
    assert guarded(cli, ["interval", *both, "--query", "total", "--geolevel", "tract"]) == 2
    assert "pl94-units:total, pl94-persons:total" in capsys.readouterr().err
    assert guarded(cli, ["interval", *both, "--query", "pl94-units:total", "--geolevel", "tract"]) == 0
    capsys.readouterr()
    part = next((published / "pl94-units" / "Block.parquet" / "DPQuery").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    assert guarded(cli, ["interval", *both, "--query", "H1", "--geolevel", "tract"]) == 3
    assert "Block.parquet/DPQuery/State=044: part-00000.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["interval", "nmf"])
def test_long_reads_say_how_far_they_are(published: Path, capsys, monkeypatch, command: str) -> None:
    path = str(published / "pl94-persons")
    asked = ["--query", "votingage", "--geolevel", "tract"] if command == "interval" else []
    assert guarded(cli, [command, path, *asked]) == 0
    assert "reading" not in capsys.readouterr().err  # it takes no three seconds
    monkeypatch.setattr("opendas.cli.release._SHORT_SECONDS", -1.0)
    assert guarded(cli, [command, path, *asked, "--json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "reading queries and constraints: 10 of 10 (100 %)" in err
    assert ("reading answers of Block: " in err) == (command == "interval")


def of_state(code: str, state: str) -> str:
    """Return the code of the same geounit in a state with another number."""
    return f"0{state}{code[3:-16]}{state}{code[-14:]}" if len(code) > 20 else f"0{state}{code[3:]}"


@pytest.fixture
def two_states(published: Path, tmp_path: Path) -> Path:
    """A second state in the same parts, with other answers, and no folders of states."""
    root = tmp_path / "together"
    for path in parts(published / "pl94-persons"):
        table = pq.read_table(path, partitioning=None)
        codes = pa.array([of_state(code, "45") for code in table.column("geocode").to_pylist()])
        values = pa.array([[v + 1 for v in row] for row in table.column("value").to_pylist()], LISTS)
        other = table.set_column(0, "geocode", codes)
        if "DPQuery" in path.parts:
            other = other.set_column(other.column_names.index("value"), "value", values)
        both = pa.concat_tables([table, other])
        folder = root / path.relative_to(published / "pl94-persons").parent.parent
        folder.mkdir(parents=True)
        pq.write_table(both, folder / "part-7.parquet", row_group_size=len(table))
    return root


def test_one_state_of_parts_that_hold_several(two_states: Path, published: Path, monkeypatch) -> None:
    """Row groups without a row of the state are not read, and answers are those of its rows."""
    read: list[int] = []
    one, many = pq.ParquetFile.read_row_group, pq.ParquetFile.read_row_groups

    def noting_one(self, group, *more, **named):
        read.append(group)
        return one(self, group, *more, **named)

    def noting_many(self, groups, *more, **named):
        read.extend(groups)
        return many(self, groups, *more, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting_one)
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noting_many)
    alone = opendas.NoisyFile(published / "pl94-persons").intervals("votingage", geolevel="tract")
    for state, wanted in (("44", {0}), ("45", {1})):
        read.clear()
        found = opendas.NoisyFile(two_states, state=state).intervals("votingage", geolevel="tract")
        assert set(read) == wanted
        table, first = found.to_pandas(), alone.to_pandas()
        assert set(table["geocode"].str[:2]) == {state}
        assert np.allclose(table["variance"], first["variance"])
        if state == "44":
            assert np.allclose(table["estimate"], first["estimate"])
    with pytest.raises(
        opendas.errors.FormatError, match="no row of state 46, neither in folders State=046 and State=146"
    ):
        opendas.NoisyFile(two_states, state="46").intervals("votingage", geolevel="tract")


def test_a_missing_part_is_named(published: Path, capsys, caplog) -> None:
    """Without the answers of some block groups, what is below them looks bypassed: the budget tells."""
    path = next((published / "pl94-persons" / "Block_Group.parquet" / "DPQuery").rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    code = table.column("geocode")[0]
    pq.write_table(table.filter(pa.compute.not_equal(table.column("geocode"), code)), path)
    asked = ["interval", str(published / "pl94-persons"), "--query", "votingage", "--geolevel", "county"]
    assert guarded(cli, [*asked, "--json"]) == 0
    assert "a part of Block_Group.parquet/DPQuery is missing" in caplog.text
    capsys.readouterr()
    assert guarded(cli, ["nmf", str(published / "pl94-persons")]) == 1
    assert "They differ most at block_group" in capsys.readouterr().out


def test_file_sets_as_they_lie(published: Path, tmp_path: Path, capsys, caplog) -> None:
    """Divided by state and county into parts with long names, with what programs and copies leave there."""
    file, asked = published / "pl94-persons", ["--query", "votingage", "--geolevel", "tract", "--json"]
    assert guarded(cli, ["interval", str(file), *asked]) == 0
    told = json.loads(capsys.readouterr().out)["rows"]
    for part in parts(file):
        table = pq.read_table(part, partitioning=None)
        for number in range(len(table)):
            to = part.parent / f"County={number % 2}" / f"part-{number:05d}-c000.snappy.parquet"
            to.parent.mkdir(exist_ok=True)
            pq.write_table(table.slice(number, 1), to)
        pq.write_table(table.slice(0, 0), part)
        (part.parent / "_SUCCESS").touch()
        pq.write_metadata(table.schema, part.parent / "_metadata")
        for name in (".part-00000.parquet.crc", "._part-00000.parquet", ".hidden/part.parquet"):
            (part.parent / name).parent.mkdir(exist_ok=True)
            (part.parent / name).write_bytes(b"no Parquet")
        (part.parent / "more.parquet").mkdir()
    for state in ([], ["--state", "RI"]):
        assert guarded(cli, ["interval", str(file), *asked, *state]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["geocode"] + row["cell"] for row in rows] == [
            row["geocode"] + row["cell"] for row in told
        ]
        for name in ("estimate", "variance", "lower", "upper"):
            assert [row[name] for row in rows] == pytest.approx([row[name] for row in told], abs=1e-9)
    assert not caplog.records
    (file / "Block.parquet" / "DPQuery" / "part-1.parq").write_bytes(b"")
    assert guarded(cli, ["interval", str(file), *asked]) == 0
    assert "Block.parquet/DPQuery: part-1.parq does not end in .parquet and is not read" in caplog.text
    shutil.rmtree(file / "Block.parquet" / "DPQuery")
    capsys.readouterr()
    assert guarded(cli, ["interval", str(file), *asked]) == 0
    assert "block: the file has no answers of pl94-persons" in caplog.text
    assert guarded(cli, ["nmf", str(file)]) == 0
    assert "or their measurements are missing" in capsys.readouterr().out
    (file / "Tract.parquet" / "DPQuery" / "part-2.parquet").symlink_to(tmp_path / "nowhere")
    assert guarded(cli, ["nmf", str(file)]) == 3
    assert "Tract.parquet/DPQuery: part-2.parquet: no such file" in capsys.readouterr().err


def test_export_refuses(release: Path, published: Path, tmp_path: Path, capsys) -> None:
    command = ["export", str(release), "--format", "nmf", "--to"]
    assert guarded(cli, [*command, str(published)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert guarded(cli, [*command, str(tmp_path / "x"), "--product", "dhc-persons"]) == 2
    assert not (tmp_path / "x").exists()


def test_what_is_in_a_file_in_words(release: Path, published: Path, capsys) -> None:
    for path, layout in ((published, "census-bureau"), (release / "measurements", "opendas")):
        assert guarded(cli, ["nmf", str(path / "pl94-persons"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["product"], found["layout"], found["states"]) == ("pl94-persons", layout, ["44"])
        assert found["contradictions"] == []
        assert found["rho"] == pytest.approx(found["least_rho"], rel=1e-6)
        tree = noisy_tree(ReleaseFolder(release)["pl94-persons"])
        assert found["rho"] == pytest.approx(
            sum(1 / float(law.sigma2) for level in tree.levels for law in level.laws[0]), rel=1e-6
        )
        block = found["levels"][-1]
        assert block["geolevel"] == "block"
        assert block["geounits"] == block["measured"] == len(tree.spine.leaf)
        assert {q["query"]: q["rows"] for q in block["queries"]} == {
            query.name: query.size for query in tree.levels[-1].queries
        }
        assert "P1" in found["tables"]
        assert guarded(cli, ["nmf", str(path / "pl94-persons")]) == 0
        said = capsys.readouterr().out
        assert "Noisy measurements of pl94-persons" in said
        assert "votingage (2)" in said


def test_what_is_missing_and_what_contradicts(published: Path, tmp_path: Path, capsys) -> None:
    path = next((published / "pl94-units" / "County.parquet" / "DPQuery").rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    place = table.column_names.index("variance")
    values = table.column("variance").to_numpy().copy()
    values[0] *= 2
    pq.write_table(table.set_column(place, "variance", pa.array(values, pa.float32())), path)
    assert guarded(cli, ["nmf", str(published / "pl94-units"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "one budget gives all the same. They differ most at county" in found["contradictions"][0]
    dhc = MadeCounty(1).write(tmp_path / "dhc", queries=("hispanic * sex", "detailed"))
    os.rename(dhc, tmp_path / "US_DHCP_PROD")
    assert guarded(cli, ["nmf", str(tmp_path / "US_DHCP_PROD"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["product"] == "dhc-persons"
    assert [level["geolevel"] for level in found["levels"]][2] == "prim"
    assert found["rho"] == pytest.approx(2 * (999 + 310 + 478 + 478 + 868 + 430 + 11) / 10_000, rel=1e-4)
    assert found["levels"][0]["exact"] == ["hhgq_total_lb", "hhgq_total_ub", "pl94", "relgq0_lt15"]
    assert "P12" in found["tables"]
    assert guarded(cli, ["nmf", str(tmp_path)]) == 2
    assert "one folder lower" in capsys.readouterr().err


def rewritten(folder: Path, change) -> None:
    """Rewrite every part below a folder."""
    for path in sorted(folder.rglob("*.parquet")):
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def put(table: pa.Table, column: str, values: list) -> pa.Table:
    place = table.column_names.index(column)
    return table.set_column(
        place, table.schema.field(column), pa.array(values, table.schema.field(column).type)
    )


def test_parts_with_unlike_columns_are_named(two_states: Path, published: Path, capsys) -> None:
    """One state of two lost a column that nobody needs, and has wider integers: it is read, and named."""
    folder = published / "pl94-persons" / "Tract.parquet" / "DPQuery"
    part = next((two_states / "Tract.parquet" / "DPQuery").glob("*.parquet"))
    table = pq.read_table(part).drop_columns(["hhgq"])
    place = table.column_names.index("value")
    wide = table.set_column(place, "value", table.column("value").cast(pa.list_(pa.int64())))
    other = wide.filter(pa.compute.starts_with(wide.column("geocode"), "045"))
    for level in ("State", "County", "Tract", "Block_Group", "Block"):
        for kind in ("DPQuery", "Constraint"):
            source = next((two_states / f"{level}.parquet" / kind).glob("*.parquet"))
            whole = pq.read_table(source)
            there = published / "pl94-persons" / f"{level}.parquet" / kind / "State=045"
            there.mkdir()
            rows = whole.filter(pa.compute.starts_with(whole.column("geocode"), "045"))
            pq.write_table(other if (level, kind) == ("Tract", "DPQuery") else rows, there / "part-0.parquet")
    assert guarded(cli, ["nmf", str(published / "pl94-persons"), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["unlike_parts"]
    assert said.startswith(
        "Tract.parquet/DPQuery: State=045/part-0.parquet with value (list<element: int64>)"
    )
    assert "without hhgq (string), value (list<element: int32>), unlike State=044/" in said
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert guarded(cli, ["nmf", str(published / "pl94-persons")]) == 0
    assert "Unlike columns: Tract.parquet/DPQuery" in capsys.readouterr().out


def refused(folder: Path, capsys, *more: str, command: str = "interval") -> str:
    """Return what is said of a file that is refused as wrong input."""
    asked = ["--query", "votingage", "--geolevel", "tract"] if command == "interval" else []
    assert guarded(cli, [command, str(folder), *asked, *more]) == 3
    return capsys.readouterr().err


def test_tracts_of_another_census_contradict_what_is_around_them(published: Path, capsys) -> None:
    """The same codes, queries and noise, of other people: said by how many standard deviations."""
    folder = published / "pl94-persons"

    def other(table: pa.Table) -> pa.Table:
        return put(
            table, "value", [[v + 4000 // len(row) for v in row] for row in table["value"].to_pylist()]
        )

    assert guarded(cli, ["interval", str(folder), "--query", "votingage", "--geolevel", "tract"]) == 0
    capsys.readouterr()
    rewritten(folder / "Tract.parquet" / "DPQuery", other)
    said = refused(folder, capsys)
    assert "pl94-persons: what was measured of tract" in said
    assert "what was measured below it (level block_group) differ about its total by" in said
    assert "standard deviations, more than chance" in said


def test_an_exact_total_of_another_census(published: Path, capsys) -> None:
    folder = published / "pl94-persons"

    def other(table: pa.Table) -> pa.Table:
        names = table["query_name"].to_pylist()
        values = table["value"].to_pylist()
        return put(
            table, "value", [[9000] if n == "total_con" else v for n, v in zip(names, values, strict=True)]
        )

    rewritten(folder / "State.parquet" / "Constraint", other)
    said = refused(folder, capsys)
    assert "what was measured of state 044 and its exact total differ about its total by" in said


def test_a_hierarchy_that_is_not_the_files_is_refused(published: Path, release: Path, capsys) -> None:
    """Blocks below other block groups than they were measured in: no parent, or one without a child."""
    folder = published / "pl94-persons"

    def moved(table: pa.Table) -> pa.Table:
        return put(table, "geocode", [f"{c[:-17]}9{c[-16:]}" for c in table["geocode"].to_pylist()])

    rewritten(folder / "Block.parquet", moved)
    assert "is below no geounit of Block_Group.parquet" in refused(folder, capsys)
    assert "is below no geounit of Block_Group.parquet" in refused(folder, capsys, command="nmf")


def test_a_county_of_another_state_is_refused(published: Path, capsys) -> None:
    """The state is the only one of its folder, and what is below it must begin with its code all the same."""
    folder = published / "pl94-persons"

    def moved(table: pa.Table) -> pa.Table:
        return put(table, "geocode", ["045" + code[3:] for code in table["geocode"].to_pylist()])

    for level in ("County", "Tract_Group", "Tract", "Block_Group", "Block"):
        if (folder / f"{level}.parquet").is_dir():
            rewritten(folder / f"{level}.parquet", moved)
    assert "County.parquet: geocode 045" in refused(folder, capsys)
    assert "is below no geounit of State.parquet" in refused(folder, capsys)


def test_a_block_that_is_there_twice(published: Path, capsys) -> None:
    """Under two codes: in two block groups of the hierarchy."""
    folder = published / "pl94-persons"
    codes = sorted(set(pq.read_table(folder / "Block.parquet" / "DPQuery")["geocode"].to_pylist()))
    other = next(code for code in codes if code[:-16] != codes[0][:-16])

    def twice(table: pa.Table) -> pa.Table:
        same = [other[:-16] + codes[0][-16:] if c == other else c for c in table["geocode"].to_pylist()]
        return put(table, "geocode", same)

    rewritten(folder / "Block.parquet", twice)
    assert "two geocodes are of block" in refused(folder, capsys)
    assert "two geocodes are of block" in refused(folder, capsys, command="nmf")


def test_a_query_that_is_cut_off(published: Path, capsys) -> None:
    """Its last values, the rows of one geounit, or all of a part: each is named with its folder."""
    folder = published / "pl94-persons"
    path = next((folder / "Tract.parquet" / "DPQuery").rglob("*.parquet"))
    good = pq.read_table(path, partitioning=None)
    values = good["value"].to_pylist()
    pq.write_table(put(good, "value", [*values[:-1], values[-1][:-1]]), path)
    said = refused(folder, capsys)
    assert "Tract.parquet" in said
    assert f"found {len(values[-1]) - 1}, expected {len(values[-1])}" in said
    pq.write_table(good.slice(0, len(good) - 1), path)
    for command in ("interval", "nmf"):
        assert "a part of the file is missing" in refused(folder, capsys, command=command)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for command in ("interval", "nmf"):
        assert "Tract.parquet/DPQuery/State=044: part-00000.parquet: not a whole" in refused(
            folder, capsys, command=command
        )


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def shortened(table: pa.Table) -> pa.Table:
    values = table["value"].to_pylist()
    return put(table, "value", [*values[:-1], values[-1][:-1]])


def elsewhere(table: pa.Table) -> pa.Table:
    return put(table, "geocode", [f"{c[:-17]}9{c[-16:]}" for c in table["geocode"].to_pylist()])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (doubled, "appears twice"),
        (shortened, "values in query"),
        (elsewhere, "is below no geounit of Block_Group.parquet"),
    ],
)
def test_no_tables_of_a_damaged_file(published: Path, tmp_path: Path, capsys, change, said: str) -> None:
    folder = published / "pl94-units"
    rewritten(folder / "Block.parquet" / "DPQuery", change)
    command = ["export", str(folder), "--format", "long", "--to", str(tmp_path / "tidy")]
    assert guarded(cli, command) == 3
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "tidy").exists()


def test_files_of_two_budgets_in_one_folder(two_states: Path, capsys, caplog) -> None:
    """Of two censuses in one folder, the budgets tell: one state has other variances than the other."""

    def other(table: pa.Table) -> pa.Table:
        twice = [
            2 * v if c.startswith("045") else v
            for c, v in zip(table["geocode"].to_pylist(), table["variance"].to_pylist(), strict=True)
        ]
        return put(table, "variance", twice)

    for level in ("State", "County", "Tract", "Block_Group", "Block"):
        rewritten(two_states / f"{level}.parquet" / "DPQuery", other)
    assert guarded(cli, ["nmf", str(two_states)]) == 1
    assert "one budget gives all the same" in capsys.readouterr().out
    assert guarded(cli, ["interval", str(two_states), "--query", "total", "--geolevel", "county"]) == 0
    assert "cannot come from one budget" in caplog.text


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_microdata_as_the_published_files_of_states(tmp_path: Path, persons, units, fmt: str) -> None:
    """pandas, polars and DuckDB read one comma CSV a state, and every record is there."""
    for example in (persons, units):
        add_product(tmp_path / "release", example, fmt=fmt)
    to = tmp_path / "ppmf"
    written = opendas.export_microdata(tmp_path / "release", to)
    assert [path.relative_to(to).as_posix() for path in written] == [
        "2020_ppmf_bystate/2020_ppmf_person_44.csv",
        "2020_ppmf_bystate/2020_ppmf_unit_44.csv",
    ]
    for path, name in zip(written, ("pl94-persons", "pl94-units"), strict=True):
        found = pd.read_csv(path, dtype=str, keep_default_na=False)
        released = ReleaseFolder(tmp_path / "release")[name]
        counts = read_mdf_records(released.mdf, released.product, released.frame).counts.row_totals()
        geoid = found["TABBLKST"] + found["TABBLKCOU"] + found["TABTRACTCE"] + found["TABBLK"]
        codes = [code.decode() for code in released.frame.geocodes]
        wanted = {code: n for code, n in zip(codes, counts.tolist(), strict=True) if n}
        assert geoid.value_counts().to_dict() == wanted != {}
        assert pl.read_csv(path, infer_schema=False).shape == found.shape
        assert duckdb.sql(f"select count(*) from read_csv('{path}')").fetchall() == [(len(found),)]
        assert not path.read_text().startswith("#")
    first = pd.read_csv(written[0], dtype=str)
    assert set(first["VOTING_AGE"]) <= {"1", "2"}
    assert first["CENRACE"].str.len().eq(2).all()
    assert guarded(cli, ["export", str(tmp_path / "release"), "--format", "ppmf", "--to", str(to)]) == 2


def test_bypassed_geounits_and_parts_of_states(tmp_path: Path) -> None:
    """On a spine with American Indian areas apart, bypassed tracts have no answers; the rest agrees."""
    path, _ = write_demo(tmp_path, 60)
    path.write_text(path.read_text().replace('spine = "standard"', 'spine = "aian"'))
    opendas.measure(opendas.load(path), tmp_path / "out", seed=1)
    opendas.export_measurements(tmp_path / "out", tmp_path / "published")
    folder = tmp_path / "published" / "pl94-persons"
    assert not (folder / "Tract.parquet" / "DPQuery").exists()
    assert (folder / "Tract.parquet" / "Constraint" / "State=099").is_dir()
    found = opendas.describe_measurements(folder)
    assert found["contradictions"] == []
    assert "pr2020-persons" in found["budget_of"]
    assert any("tract: 2 of 2 geounits were not asked" in missing for missing in found["missing"])
    own = opendas.describe_measurements(tmp_path / "out" / "release" / "measurements" / "pl94-persons")
    assert "total of parts together" in own["levels"][0]["exact"]
    assert not any("totals of states" in missing for missing in own["missing"])
    for query, geolevel in (("votingage", "tract"), ("total", "state")):
        one, two = (
            opendas.NoisyFile(place).intervals(query, geolevel=geolevel).to_pandas()
            for place in (tmp_path / "out", folder)
        )
        assert np.allclose(one["estimate"], two["estimate"], atol=1e-3)
        assert np.allclose(one["variance"], two["variance"], rtol=1e-4, atol=1e-9)


def test_noise_too_little_for_a_variance_in_single_precision_is_not_published_as_exact(
    tmp_path: Path, capsys
) -> None:
    """A variance of zero would say that an answer is exact, and no reader takes it for a measurement."""
    path, _ = write_demo(tmp_path, 60)
    path.write_text(path.read_text().replace("[budget]\n", '[budget]\nrho = "60000"\n'))
    opendas.measure(opendas.load(path), tmp_path / "out", seed=1)
    to = tmp_path / "published"
    assert guarded(cli, ["export", str(tmp_path / "out"), "--format", "nmf", "--to", str(to)]) == 2
    assert "variances in single precision" in capsys.readouterr().err
    assert not to.exists()
    assert guarded(cli, ["export", str(tmp_path / "out"), "--format", "long", "--to", str(to)]) == 0


def test_a_folder_too_high_is_told(published: Path, capsys) -> None:
    assert guarded(cli, ["interval", str(published), "--query", "total", "--geolevel", "county"]) == 2
    assert "one folder lower, in pl94-persons, pl94-units" in capsys.readouterr().err


@pytest.mark.parametrize("there", [False, True])
def test_an_export_that_fails_leaves_its_folder_as_it_was(release: Path, tmp_path: Path, there: bool) -> None:
    """Persons are written before the fault of the units is found."""
    to = tmp_path / "to"
    if there:
        to.mkdir()
    part = min((release / "mdf" / "units").glob("*.parquet"))
    measured = release / "measurements" / "pl94-units" / "block.parquet"
    for file_format, path in (("ppmf", part), ("nmf", measured)):
        path.write_bytes(path.read_bytes()[:-9])
        command = ["export", str(release), "--format", file_format, "--to", str(to)]
        assert guarded(cli, command) == 3
        assert to.is_dir() == there
        assert not there or not list(to.iterdir())


def test_nothing_is_exported_into_a_release(release: Path, capsys) -> None:
    before = sorted(release.rglob("*"))
    for file_format in ("nmf", "ppmf", "long"):
        command = ["export", str(release), "--format", file_format, "--to", str(release / "here")]
        assert guarded(cli, command) == 2
        assert "a release holds what is certified" in capsys.readouterr().err
    assert sorted(release.rglob("*")) == before
