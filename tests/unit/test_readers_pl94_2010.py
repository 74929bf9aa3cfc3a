"""The 2010 redistricting reader, against the official Rhode Island file."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.data import shared_data

from opendas.readers import InputData, ReaderSpec, make_reader
from opendas.schema.pl94 import pl94_persons, pl94_units


@pytest.fixture(scope="module")
def persons() -> InputData:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    return make_reader(ReaderSpec("pl94-2010", (path,), pl94_persons(), strict=True)).read()


def test_rhode_island_has_its_official_totals(persons: InputData) -> None:
    assert persons.histogram.total() == 1_052_567
    assert int(persons.frame.units["hu"].sum()) == 463_388
    assert int(persons.frame.units["gq7"].sum()) == 57
    assert len(persons.frame) == 17_850
    assert persons.stamps == ("DEMONSTRATION FRAME",)


def test_blocks_add_up_to_every_summary_record(persons: InputData) -> None:
    assert persons.findings == ()  # strict, with 5,588 summary records of 291 cells


def test_histogram_is_the_one_that_the_tables_imply(persons: InputData) -> None:
    expected = pq.read_table(shared_data("pl94_2010_ri/ri_2010_block_hist.parquet"))
    geocode = np.array(expected["GEOID"].to_pylist(), dtype="S15")
    cell = (
        expected["votingage"].to_numpy().astype(np.int64) * 2 + expected["hispanic"].to_numpy()
    ) * 63 + expected["cenrace"].to_numpy()
    order = np.lexsort((cell, geocode))
    rows = np.repeat(np.arange(len(persons.frame)), np.diff(persons.histogram.indptr))
    cells = persons.histogram.cells % 252
    mine = np.lexsort((cells, persons.frame.geocodes[rows]))
    assert np.array_equal(persons.frame.geocodes[rows][mine], geocode[order])
    assert np.array_equal(cells[mine], cell[order])
    assert np.array_equal(persons.histogram.counts[mine], expected["count"].to_numpy()[order])


def test_only_blocks_without_occupied_unit_hold_group_quarters(persons: InputData) -> None:
    rows = np.repeat(np.arange(len(persons.frame)), np.diff(persons.histogram.indptr))
    hhgq = persons.histogram.cells // 252
    assert set(np.unique(hhgq)) == {0, 7}
    assert np.array_equal(np.unique(rows[hhgq == 7]), np.flatnonzero(persons.frame.units["gq7"]))


def test_units_are_the_housing_table() -> None:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    data = make_reader(ReaderSpec("pl94-2010", (path,), pl94_units(), strict=True)).read()
    assert data.histogram.total() == 463_388
    assert int(data.histogram.counts[data.histogram.cells == 1].sum()) == 413_600
    assert np.array_equal(data.histogram.row_totals(), data.frame.units["hu"])


def test_planning_sees_the_same_frame(persons: InputData) -> None:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    frame, stamps = make_reader(ReaderSpec("pl94-2010", (path,), pl94_persons())).frame()
    assert stamps == persons.stamps
    assert np.array_equal(frame.geocodes, persons.frame.geocodes)
    for name, counts in frame.units.items():
        assert np.array_equal(counts, persons.frame.units[name])
    for name, codes in frame.entities.items():
        assert np.array_equal(codes, persons.frame.entities[name])
    assert frame.names["county"]["44007"] == "Providence County"


LEVELS = {"county": "050", "cousub": "060", "tract": "140", "block_group": "150", "place": "160"}
FIELDS = {
    "county": ("STATE", "COUNTY"),
    "cousub": ("STATE", "COUNTY", "COUSUB"),
    "tract": ("STATE", "COUNTY", "TRACT"),
    "block_group": ("STATE", "COUNTY", "TRACT", "BLKGRP"),
    "place": ("STATE", "PLACE"),
}


@pytest.mark.parametrize("category", LEVELS)
def test_sums_over_the_frame_are_the_published_tables(persons: InputData, category: str) -> None:
    published = pq.read_table(shared_data("pl94_2010_ri/ri_2010_summary_levels.parquet"))
    published = published.filter(pc.equal(published["SUMLEV"], LEVELS[category]))
    with open(shared_data("pl94_2010_ri/cenrace_codes.csv"), newline="") as file:
        race_cells = list(csv.DictReader(file))
    keys = [
        "".join(parts) for parts in zip(*(published[f].to_pylist() for f in FIELDS[category]), strict=True)
    ]
    codes = persons.frame.codes(category)
    rows = np.repeat(np.arange(len(persons.frame)), np.diff(persons.histogram.indptr))
    seen = 0
    for number, key in enumerate(keys):
        inside = codes == key.encode()
        dense = np.zeros(2016, dtype=np.int64)
        entries = inside[rows]
        np.add.at(dense, persons.histogram.cells[entries], persons.histogram.counts[entries])
        people = dense.reshape(8, 2, 2, 63).sum(axis=0)
        sums = {"P1": people.sum(axis=(0, 1)), "P2": people[:, 0].sum(axis=0), "P3": people[1].sum(axis=0)}
        sums["P4"] = people[1, 0]
        record = published.slice(number, 1)
        for table, found in sums.items():
            expected = [record[cell[f"{table}_cell"]][0].as_py() for cell in race_cells]
            assert found.tolist() == expected, (key, table)
        assert int(persons.frame.units["hu"][inside].sum()) == record["H0010001"][0].as_py()
        assert int(people.sum()) == record["P0010001"][0].as_py() == record["POP100"][0].as_py()
        seen += 1
    assert seen == {"county": 5, "cousub": 40, "tract": 244, "block_group": 815, "place": 34}[category]
