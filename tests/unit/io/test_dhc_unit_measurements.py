"""Noisy measurement files of DHC units: households on a margin, and all units beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.dense_intervals import DenseIntervals
from support.dhc_measurements import GEOCODES, LEVELS
from support.dhc_unit_measurements import UNIT_NAMES, MadeHouseholds

from opendas.errors import ConfigError
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.tables.interval_tables import open_measured

MADE = MadeHouseholds(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MADE.write(tmp_path_factory.mktemp("US_DHCH_PROD"), queries=UNIT_NAMES)


@pytest.mark.parametrize("question", ["hhtenshort_3lev", "hisp * race", "sex * hhtenshort_2lev", "total"])
def test_households_against_dense_algebra(folder: Path, question: str) -> None:
    measured, name = open_measured(folder, question)
    dense, table = DenseIntervals(measured.tree), measured.table(name)
    rows = measured.at(name, "tract").to_pylist()
    estimate, variance = dense.answer(np.array([1.0, 1.0, 0.0]), table.members)
    own = rows[: len(estimate)]
    assert np.allclose([row["estimate"] for row in own], estimate, atol=1e-6)
    assert np.allclose([row["variance"] for row in own], variance, rtol=1e-8)
    group = MADE.product.workload.group(question)
    truth = group.answers(MADE.counts(GEOCODES["Tract_Subset"][0]))
    assert np.all(np.abs(estimate - truth) < 6 * np.sqrt(variance))


def test_tenure_of_all_units_is_that_of_households(folder: Path) -> None:
    """Answers about the occupied units help: rented is the sum of two, and vacant units are no households."""
    measured, _ = open_measured(folder, "hhtenshort_3lev")
    level = LEVELS.index("County")
    place = [query.name for query in measured.tree.levels[level].queries].index("tenvacgq")
    query = measured.tree.levels[level].queries[place]
    answers, _ = MADE.answers("County", GEOCODES["County"][0], "tenvacgq")
    assert measured.tree.full(level, 0, 1)[place][0].tolist() == [
        answers[0],
        answers[1],
        answers[2] + answers[3],
    ]
    assert query.draws is not None
    assert query.draws.tolist() == [1, 1, 2]


def test_all_units(folder: Path) -> None:
    measured, name = open_measured(folder, "tenvacgq")
    rows = measured.at(name, "county").to_pylist()
    truth = MADE.units(GEOCODES["County"][0])
    assert len(rows) == 35
    estimate = np.array([row["estimate"] for row in rows])
    spread = np.sqrt([row["variance"] for row in rows])
    assert np.all(np.abs(estimate - truth) < 6 * spread)
    # Seven levels say something about the county: less variance than its own answer has.
    assert np.all(spread**2 < 5 + LEVELS.index("County"))
    dense = DenseIntervals(measured.tree)
    wanted, _ = dense.answer(np.ones(3), np.eye(35, dtype=bool))
    assert np.allclose(estimate, wanted, atol=1e-6)


def test_published_numbers_of_occupied_units_are_not_taken_for_true(folder: Path, caplog) -> None:
    tree = BureauFile.open(folder).companion()
    assert all(not level.invariants for level in tree.constraints.levels)


def test_questions_of_neither_histogram(folder: Path) -> None:
    with pytest.raises(ConfigError, match="neither attribute nor recode"):
        open_measured(folder, "sex * cenrace")
