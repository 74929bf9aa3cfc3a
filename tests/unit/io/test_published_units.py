"""Both histograms of DHC units in the Census Bureau's public layout: written, and read again."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.noisy_trees import MadeTree

from opendas.errors import ConfigError
from opendas.files.nmf.bureau_tree import BureauFile
from opendas.files.nmf.bureau_writing import write_bureau_file
from opendas.geography.frame import Frame, official_codes
from opendas.intervals.noisy_tree import NoisyTree
from opendas.schema.declarations import Invariant
from opendas.schema.dhc_units import dhc_units, dhc_units_tenvacgq
from opendas.schema.histogram import Histogram

CODES = np.array([b"440010301001001", b"440010301001002", b"440030302002001"])
FRAME = Frame(CODES, official_codes(CODES, "state"), "block", {})
TYPE = "sex * hisp * race * hhtenshort_3lev * DetailedCoupleTypeMultGenDetOwnChildSize"


class Answers:
    """Some numbers for every query group; an ``AnswerSource``."""

    def __init__(self, made: MadeTree, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.values = [
            [rng.integers(-99, 99, (len(level), query.size)) for query in level.queries]
            for level in made.levels
        ]

    def full(self, level: int, first: int, geounits: int) -> list[np.ndarray]:
        return [values[first : first + geounits] for values in self.values[level]]


def drawn(product, cells: list[int], shares: dict[str, Fraction], seed: int) -> NoisyTree:
    counts = Histogram.from_entries(
        np.arange(3), np.array(cells), np.array([40, 7, 90]), shape=(3, product.schema.size)
    )
    made = MadeTree(product, FRAME, counts, queries={"*": shares})
    return NoisyTree(product, FRAME, made.spine, made.levels, made.table, Answers(made, seed))


@pytest.fixture(scope="module")
def trees() -> tuple[NoisyTree, NoisyTree]:
    households = dhc_units()
    possible = np.flatnonzero(households.possible)[[5, 70_000, 900_000]]
    units = replace(dhc_units_tenvacgq(), tie=None, invariants=(Invariant("hhgq_vector", "block"),))
    return (
        drawn(households, possible.tolist(), {TYPE: Fraction(1, 2), "detailed": Fraction(1, 2)}, 3),
        drawn(units, [0, 5, 20], {"detailed": Fraction(1)}, 4),
    )


def test_both_histograms_come_back(trees: tuple[NoisyTree, NoisyTree], tmp_path: Path) -> None:
    written = write_bureau_file(trees[0], tmp_path / "US_DHCH_PROD", trees[1])
    file = BureauFile.open(tmp_path / "US_DHCH_PROD")
    assert file.product.name == "dhc-units"
    for own, read in zip(trees, (file.tree(), file.companion()), strict=True):
        assert read.spine.names == own.spine.names
        assert np.array_equal(read.frame.geocodes, own.frame.geocodes)
        for number, level in enumerate(own.levels):
            answers = read.full(number, 0, len(level))
            names = [query.name for query in read.levels[number].queries]
            for query, ours in zip(level.queries, own.full(number, 0, len(level)), strict=True):
                assert np.array_equal(answers[names.index(query.name)], ours)
            assert np.allclose(read.levels[number].variances.sum(), level.variances.sum(), rtol=1e-6)
    (block,) = [path for path in written if path.match("*Block.parquet/Constraint/*/*")]
    table = pq.read_table(block)
    (held,) = [level.invariants[0].answers for level in trees[1].constraints.levels[-1:]]
    assert table["query_name"].to_pylist() == ["gq_vect_con"] * 3
    assert np.array_equal(np.stack(table["value"].to_pylist()), held)
    assert {pq.read_schema(path).names[-4] for path in written} == {"tenvacgq"}


def test_units_tied_to_the_redistricting_release(trees: tuple[NoisyTree, NoisyTree], tmp_path: Path) -> None:
    """Vacant units are that release's, housing units the sum of its two numbers."""
    units = replace(dhc_units_tenvacgq(), tie=None, invariants=())
    free = drawn(units, [0, 5, 20], {"detailed": Fraction(1)}, 4)
    counts = Histogram.from_entries(
        np.array([0, 1, 2, 2]), np.array([0, 1, 1, 7]), np.array([2, 5, 9, 1]), shape=(3, 26)
    )
    occupancy = units.workload.group("occupancy")
    table = free.constraints.tied_to("pl94-units", occupancy, counts, free.spine)
    write_bureau_file(trees[0], tmp_path, replace(free, constraints=table))
    (path,) = (tmp_path / "Block.parquet" / "Constraint").rglob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    told = {(row["geocode"][-15:], row["query_name"]): row["value"] for row in rows}
    assert [v for (_, name), v in told.items() if name == "h1_toth1vacant_con"] == [[2], [0], [0]]
    found = np.array([v for (_, name), v in told.items() if name == "gq_vect_con"])
    assert found[:, 0].tolist() == [2, 5, 9]
    assert np.argwhere(found[:, 1:]).tolist() == [[2, 5]]


def test_one_histogram_alone_is_refused(trees: tuple[NoisyTree, NoisyTree], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="second histogram"):
        write_bureau_file(trees[0], tmp_path)
    with pytest.raises(ConfigError, match="no published layout"):
        write_bureau_file(trees[1], tmp_path)
    units = dhc_units_tenvacgq()
    other = drawn(replace(units, tie=None), [0, 5, 20], {"occupancy": Fraction(1)}, 4)
    with pytest.raises(ConfigError, match="'occupancy' has no name in the published layout"):
        write_bureau_file(trees[0], tmp_path, other)
    assert not list(tmp_path.iterdir())
