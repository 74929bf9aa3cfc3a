"""Intervals of our own releases of products with a million cells: on the margin that a question needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dense_intervals import DenseIntervals
from support.dhc_measurements import MadeCounty

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.tables.interval_tables import open_measured

MADE = MadeCounty(3)
BLOCKS = ("440010301001001", "440010301001002", "440010302002001")
RUN = """
[run]
product = "dhc-persons"
[input]
reader = "records"
path = "people.parquet"
[geography]
frame = "frame.csv"
levels = [
    { name = "state", prefix = 2 }, { name = "county", prefix = 5 }, { name = "tract", prefix = 11 },
    { name = "block", prefix = 15 },
]
[budget]
rho = "5"
geolevels = { state = "1/4", county = "1/4", tract = "1/4", block = "1/4" }
[budget.queries]
"*" = { "sex * age_38_groups" = "1/5", popSehsdTargetsRelship = "1/5", detailed = "3/5" }
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All answers of seven geounits, 1.2 million each; nothing is estimated."""
    folder = tmp_path_factory.mktemp("small-county")
    codes = [MADE.product.schema.codes(cells) for cells in MADE.blocks]
    names = MADE.product.schema.names
    columns = {name: np.concatenate([each[k] for each in codes]) for k, name in enumerate(names)}
    geocodes = np.repeat(BLOCKS, [len(cells) for cells in MADE.blocks])
    pq.write_table(pa.table({"geocode": geocodes, **columns}), folder / "people.parquet")
    (folder / "frame.csv").write_text("geocode\n" + "\n".join(BLOCKS) + "\n")
    (folder / "run.toml").write_text(RUN)
    words = ["measure", str(folder / "run.toml"), "--out", str(folder / "out"), "--seed", "7"]
    assert guarded(cli, words) == 0
    return folder / "out"


@pytest.mark.parametrize("question", ["sex * age_18_64_116", "P16", "popSehsdTargetsRelship"])
def test_estimates_equal_dense_algebra_on_sums_of_the_answers(out: Path, question: str) -> None:
    measured, name = open_measured(out, question)
    whole = noisy_tree(ReleaseFolder(out)["dhc-persons"])
    margin, tree = measured.margin, measured.tree
    assert margin is not None
    assert tree.product.schema.size < 200
    for level in range(len(tree.levels)):
        for answers, sums, query in zip(
            whole.full(level, 0, 1), tree.full(level, 0, 1), tree.levels[level].queries, strict=True
        ):
            # an answer belongs to the row of the margin in which its cells are counted
            row_of = np.full(answers.shape[1], -1)
            cells = np.flatnonzero(whole.product.possible)
            row_of[whole.product.workload.group(query.name).row_of_cell[cells]] = query.row_of_cell[
                margin.cells[cells]
            ]
            wanted = np.zeros(query.size, dtype=np.int64)
            np.add.at(wanted, row_of[row_of >= 0], answers[0][row_of >= 0])
            assert np.array_equal(sums[0], wanted)
    dense, table = DenseIntervals(tree), measured.table(name)
    for geolevel, inside in (("county", [1, 1, 1]), ("tract", [1, 1, 0]), ("block", [1, 0, 0])):
        found = measured.at(name, geolevel).to_pylist()
        estimate, variance = dense.answer(np.array(inside, float), table.members)
        assert np.allclose([row["estimate"] for row in found[: len(estimate)]], estimate, atol=1e-6)
        assert np.allclose([row["variance"] for row in found[: len(variance)]], variance, rtol=1e-8)


def test_the_command_holds_the_total_of_the_state(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = sum(MADE.people)
    words = ["interval", str(out), "--query", "sex", "--geolevel", "state", "--json"]
    assert guarded(cli, words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row["estimate"] for row in rows) == pytest.approx(people, abs=1e-6)
    assert all(0 <= row["lower"] <= row["upper"] <= people for row in rows)
