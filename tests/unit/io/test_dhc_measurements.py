"""Noisy measurement files of the DHC, in the published layout: read back, summed to margins, estimated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dense_intervals import DenseIntervals
from support.dhc_measurements import GEOCODES, LEVELS, MadeCounty

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.gls.blocks import LARGEST_BLOCK
from opendas.intervals.margins import Margin, levels_told_apart
from opendas.schema.dhc_units import dhc_units
from opendas.tables.cells import product_table, published_tables
from opendas.tables.interval_tables import open_measured

MADE = MadeCounty(1)
CELL = "hhgq8lev * votingage * hispanic * cenrace"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MADE.write(tmp_path_factory.mktemp("US_DHCP_PROD"))


def margin_of(query: str) -> Margin:
    kinds = product_table(MADE.product, query).class_of_cell
    return Margin(MADE.product, levels_told_apart(MADE.product, kinds))


def test_levels_product_and_noise_are_found(folder: Path) -> None:
    file = BureauFile.open(folder)
    assert file.product.name == "dhc-persons"
    assert file.spine.names == (
        "state", "county", "prim", "tract_subset_group", "tract_subset", "block_group", "block",
    )  # fmt: skip
    assert [code.decode() for code in file.frame.geocodes] == [
        "440010301001001", "440010301001002", "440010302002001",
    ]  # fmt: skip
    tree = file.tree(margin_of("sex * age_38_groups"))
    assert tree.constraints.levels[0].invariants[0].answers.tolist() == [[sum(MADE.people)]]
    place = [query.name for query in tree.levels[0].queries].index("gq_constr_groups * age_10_groups")
    assert tree.levels[0].variances[0, place] == pytest.approx(10_000 / 3996, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("question", ["sex * age_38_groups", "P12", CELL, "relgq", "total"])
def test_answers_are_the_sums_of_the_published_ones(folder: Path, question: str) -> None:
    """Against sums cell by cell of the answers that were written."""
    margin = margin_of(question)
    tree = BureauFile.open(folder).tree(margin)
    level = LEVELS.index("Tract_Subset")
    found = tree.full(level, 0, 2)
    for query, values in zip(tree.levels[level].queries, found, strict=True):
        # A published answer and a row of the margin belong together where a possible cell is in both.
        of_cell = MADE.product.workload.group(query.name).row_of_cell.astype(np.int64) * query.size
        of_cell += query.row_of_cell[margin.cells]
        published, rows = np.divmod(np.unique(of_cell[MADE.product.possible]), query.size)
        assert len(np.unique(published)) == len(published), "no answer is added twice"
        assert np.array_equal(query.draws, np.maximum(np.bincount(rows, minlength=query.size), 1))
        for i, code in enumerate(GEOCODES["Tract_Subset"]):
            answers, _ = MADE.answers("Tract_Subset", code, query.name)
            sums = np.zeros(query.size, dtype=np.int64)
            np.add.at(sums, rows, answers[published])
            assert np.array_equal(values[i], sums)


@pytest.mark.parametrize("question", ["sex * age_18_64_116", "sex * age_38_groups", "hhgq8lev * votingage"])
def test_estimates_against_dense_algebra(folder: Path, question: str) -> None:
    measured, name = open_measured(folder, question)
    dense, table = DenseIntervals(measured.tree), measured.table(name)
    for geolevel, blocks in (("county", [1, 1, 1]), ("tract", [1, 1, 0]), ("block", [0, 1, 0])):
        rows = measured.at(name, geolevel).to_pylist()
        estimate, variance = dense.answer(np.array(blocks, float), table.members)
        first = 0 if geolevel != "block" else len(estimate)
        own = rows[first : first + len(estimate)]
        assert np.allclose([row["estimate"] for row in own], estimate, atol=1e-6)
        assert np.allclose([row["variance"] for row in own], variance, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_the_command_answers_a_table_and_a_query(folder: Path, capsys) -> None:
    for query, rows in (("P12", 49), ("sex * age_38_groups", 76)):
        assert guarded(cli, ["interval", str(folder), "--query", query, "--geolevel", "tract", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["rows"]
        assert len(found) == 2 * rows
        assert {row["geocode"] for row in found} == {"44001030100", "44001030200"}
        assert all(row["lower"] <= row["upper"] <= sum(MADE.people) for row in found)


def test_totals_of_states_are_exact_and_nothing_else_of_the_release(folder: Path) -> None:
    measured, name = open_measured(folder, "total")
    (state,) = measured.at(name, "state").to_pylist()
    assert (state["estimate"], state["law"]) == (pytest.approx(sum(MADE.people)), "exact")
    tract = measured.at(name, "tract").to_pylist()[0]
    assert tract["variance"] > 1.0
    # The made release has other people in every tract than there are: only the state's total is held.
    assert all(not level.invariants and level.joint is None for level in measured.tree.constraints.levels[1:])


@pytest.mark.slow
def test_types_without_facility_are_closed(folder: Path) -> None:
    measured, name = open_measured(folder, "relgq")
    kinds = np.bincount(MADE.product.schema.codes(MADE.blocks[2])[0], minlength=42)
    for row, count in zip(measured.at(name, "block").to_pylist()[-42:], kinds, strict=True):
        if row["cell"].startswith("gq") and count == 0:
            assert (row["lower"], row["upper"], row["law"]) == (0, 0, "exact")


def rewritten(folder: Path, tmp_path: Path, where: str, change) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = next((copy / where).rglob("*.parquet"))
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    return copy


def ask_counties(path: Path) -> None:
    measured, name = open_measured(path, "sex")
    measured.at(name, "county")


@pytest.mark.slow
def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(FormatError) as caught:
            ask_counties(path)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return str(caught.value)

    def without(level: str) -> Path:
        shutil.copytree(folder, tmp_path / "copy", ignore=lambda _, names: [n for n in names if n == level])
        return tmp_path / "copy"

    assert "Tract_Subset is missing" in refused(without("Tract_Subset.parquet"))
    both = tmp_path / "copy"
    shutil.copytree(folder, both)
    shutil.copytree(both / "Tract_Subset.parquet", both / "Tract.parquet")
    assert "Tract.parquet is of another hierarchy than Prim.parquet" in refused(both)

    def cut(table: pa.Table) -> pa.Table:
        return table.take([i for i in range(len(table)) if i != 3])

    assert "has no answer" in refused(rewritten(folder, tmp_path, "Block.parquet/DPQuery", cut))

    def short(table: pa.Table) -> pa.Table:
        values = table.column("value").to_pylist()
        place = table.column("query_name").to_pylist().index("hispanic * sex_dpq")
        values[place] = values[place][:3]
        number = table.column_names.index("value")
        return table.set_column(number, "value", pa.array(values, pa.list_(pa.int32())))

    assert "values in query 'sex * hispanic': found 3, expected 4" in refused(
        rewritten(folder, tmp_path, "State.parquet/DPQuery", short)
    )


def test_a_margin_answers_no_finer_question(folder: Path) -> None:
    measured, _ = open_measured(folder, "sex")
    with pytest.raises(ConfigError, match="does not answer this"):
        measured.table("sex * age_38_groups")
    assert len(measured.table("total").columns) == 1


@pytest.fixture(scope="module")
def two_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few queries of the synthetic state, and beside it a state whose files are no Parquet files."""
    folder = MADE.write(tmp_path_factory.mktemp("two"), queries=("age_18_64_116 * sex", "detailed"))
    for path in list(folder.rglob("State=044")):
        shutil.copytree(path, path.with_name("State=145"))
    for path in folder.rglob("State=145/**/*.parquet"):
        path.write_bytes(b"no Parquet file")
    return folder


@pytest.mark.slow
def test_one_state_is_read_without_the_others(two_states: Path, capsys) -> None:
    question = ["interval", str(two_states), "--query", "sex", "--geolevel", "county"]
    assert guarded(cli, question) == 3
    said = capsys.readouterr().err
    assert "DPQuery/State=145" in said, "files of all states are called alike"
    assert "part-00000-made.snappy.parquet" in said
    assert guarded(cli, [*question, "--state", "ri", "--std-dev"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "geocode|query|estimate|std_dev|query_description"
    (male, female) = (row.split("|") for row in rows)
    assert (male[0], male[1], female[1], male[4]) == ("44001", "male", "female", "male")
    measured, name = open_measured(two_states, "sex", None, "44")
    wanted = measured.at(name, "county").to_pylist()
    assert [float(row[2]) for row in (male, female)] == [row["estimate"] for row in wanted]
    assert [float(row[3]) for row in (male, female)] == [row["variance"] ** 0.5 for row in wanted]


@pytest.mark.slow
def test_a_state_that_is_not_there_or_not_apart(two_states: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no row of state 46, neither in folders State=046"):
        BureauFile.open(two_states, "46")
    copy = tmp_path / "copy"
    shutil.copytree(two_states, copy, ignore=lambda _, names: [n for n in names if n == "State=145"])
    for folder in list((copy / "State.parquet").rglob("State=044")):
        for path in folder.iterdir():
            path.rename(folder.parent / path.name)
    with pytest.raises(FormatError, match="no row of state 45"):
        BureauFile.open(copy, "45")


@pytest.mark.slow
def test_every_published_table_has_a_margin_that_least_squares_can_take() -> None:
    for product in (MADE.product, dhc_units()):
        for name in published_tables(product.layout):
            kinds = product_table(product, name).class_of_cell
            margin = Margin(product, levels_told_apart(product, kinds))
            assert margin.product.schema.size <= LARGEST_BLOCK, name
