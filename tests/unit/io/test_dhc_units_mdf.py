"""Records of DHC units: households, vacant units and group quarters in the production columns, one file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dhc import beside, both_histograms
from support.mdf import write_mdf
from support.seeds import examples

from opendas.errors import DataError, SchemaError
from opendas.files.geography_files import write_frame
from opendas.files.mdf.dhc_units import unit_estimate, unit_records, units_of_records
from opendas.files.mdf.reading import read_mdf, read_mdf_records
from opendas.files.mdf.writing import MdfFiles
from opendas.files.release_folder import ReleasedProduct
from opendas.geography.frame import Frame
from opendas.schema.dhc_persons import GQ_CODES
from opendas.schema.dhc_units import HOUSEHOLD_TYPES, HouseholdType, dhc_units
from opendas.schema.histogram import Histogram
from opendas.verify.check import CheckFailed
from opendas.verify.microdata import Microdata, check_quarters

from .conftest import block_frame

pytestmark = pytest.mark.slow

PRODUCT = dhc_units()
SHAPE = PRODUCT.schema.shape
COLUMNS = [
    "SCHEMA_TYPE_CODE", "SCHEMA_BUILD_ID", "TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLKGRPCE", "TABBLK",
    "RTYPE", "GQTYPE", "TEN", "VACS", "HHSIZE", "HHT", "HHT2", "CPLT", "UPART", "MULTG", "THHLDRAGE",
    "THHSPAN", "THHRACE", "PAOC", "TP18", "TP60", "TP65", "TP75", "PAC", "HHSEX",
]  # fmt: skip
NO_HOUSEHOLD = ["0", "0", "00", "0", "0", "0", "0", "0", "00", "0", "0", "0", "0", "0", "0", "0"]
COUPLES = {
    "married_opposite_sex": "1", "married_same_sex": "2", "cohabiting_opposite_sex": "3",
    "cohabiting_same_sex": "4", "no_couple": "5",
}  # fmt: skip
CHILDREN = {"under6": "1", "6to17": "2", "both": "3", "none": "4"}


def household_type(sex: int, kind: HouseholdType) -> tuple[str, str, str]:
    """HHT, HHT2 and UPART as the record layout words them."""
    man, own = sex == 0, kind.own_children != "none"
    if kind.couple.startswith("married"):
        return "1", "01" if own else "02", "5"
    if kind.relatives:
        family = "2" if man else "3"
    elif kind.size == 1:
        family = "4" if man else "6"
    else:
        family = "5" if man else "7"
    if kind.couple == "cohabiting_opposite_sex":
        return family, "03" if own else "04", "2" if man else "4"
    if kind.couple == "cohabiting_same_sex":
        return family, "03" if own else "04", "1" if man else "3"
    if kind.size == 1:
        return family, "09" if man else "05", "0"
    if own:
        return family, "10" if man else "06", "5"
    if kind.relatives:
        return family, "11" if man else "07", "5"
    return family, "12" if man else "08", "5"


def household(cell: int) -> list[str]:
    """The columns of one household from HHSIZE on."""
    sex, age, hispanic, race, elderly, _, number = (int(k) for k in np.unravel_index(cell, SHAPE))
    kind = HOUSEHOLD_TYPES[number]
    generations = "0" if kind.size <= 2 else "2" if kind.multigenerational else "1"
    family, detailed, partners = household_type(sex, kind)
    couple = "0" if kind.size == 1 else COUPLES[kind.couple]
    return [
        str(kind.size), family, detailed, couple, partners, generations, str(age + 1),
        str(hispanic + 1), f"{race + 1:02d}", CHILDREN[kind.own_children], str(int(kind.minor)),
        str(int(elderly >= 1)), str(int(elderly >= 2)), str(int(elderly == 3)), CHILDREN[kind.children],
        str(sex + 1),
    ]  # fmt: skip


def expected(frame: Frame, households: Histogram, units: Histogram) -> Counter[tuple[str, ...]]:
    """Records, but for whether those who rent pay: TEN 3 stands for 3 and 4."""
    records: Counter[tuple[str, ...]] = Counter()
    for leaf, code in enumerate(frame.geocodes):
        geocode = code.decode()
        where = ["MUD", "1.1.0", geocode[:2], geocode[2:5], geocode[5:11], geocode[11], geocode[11:]]
        row = households.dense(leaf)
        for cell in np.flatnonzero(row):
            tenure = str(np.unravel_index(cell, SHAPE)[5] + 1)
            records[*where, "2", "000", tenure, "0", *household(int(cell))] += int(row[cell])
        for level, count in enumerate(units.dense(leaf)[4:].tolist(), start=4):
            kind = (
                ["2", "000", "0", str(level - 3)] if level < 11 else ["4", [*GQ_CODES][level - 11], "0", "0"]
            )
            if count:
                records[*where, *kind, *NO_HOUSEHOLD] += count
    return records


def write(folder: Path, frame: Frame, households: Histogram, units: Histogram, fmt: str = "parquet") -> int:
    files = MdfFiles(folder, PRODUCT, frame, households.take, fmt, units)
    for file in files:
        file.write()
    return files.records


def same(a: Histogram, b: Histogram) -> bool:
    return a.size == b.size and a.rows == b.rows and not len(a.unlike(b))


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_records_equal_a_record_by_record_reading_of_both_histograms(tmp_path: Path, fmt: str) -> None:
    frame, households, units = both_histograms(block_frame(), np.random.default_rng(1))
    number = write(tmp_path, frame, households, units, fmt)
    if fmt == "parquet":
        found = [
            list(row.values())
            for path in sorted(tmp_path.iterdir())
            for row in pq.read_table(path).to_pylist()
        ]
    else:
        lines = [line for path in sorted(tmp_path.iterdir()) for line in path.read_text().splitlines()]
        found = [line.split("|") for line in lines if line[:3] == "MUD"]
    assert len(found) == number
    tenure = Counter((*row[2:7], row[9]) for row in found)
    for leaf, code in enumerate(frame.geocodes):
        geocode = code.decode()
        where = (geocode[:2], geocode[2:5], geocode[5:11], geocode[11], geocode[11:])
        counted = [tenure[*where, str(level + 1)] for level in range(4)]
        assert counted == units.dense(leaf)[:4].tolist()
    free = Counter(
        tuple("3" if k == 9 and text == "4" else text for k, text in enumerate(row)) for row in found
    )
    assert free == expected(frame, households, units)


@pytest.mark.parametrize("fmt", ["parquet", "pipe"])
def test_reading_back_gives_both_histograms(tmp_path: Path, fmt: str) -> None:
    frame, households, units = both_histograms(block_frame(), np.random.default_rng(2))
    number = write(tmp_path, frame, households, units, fmt)
    assert same(read_mdf(tmp_path, PRODUCT, frame), households)
    seen = read_mdf_records(tmp_path, PRODUCT, frame)
    assert (seen.records, seen.sorted_by_leaf) == (number, True)
    assert same(units_of_records(PRODUCT, seen.counts), units)


def test_every_cell_comes_back(tmp_path: Path) -> None:
    """One household in each of the 1,578,528 cells, possible or not: no two have the same columns."""
    frame, cells = block_frame(), np.arange(PRODUCT.schema.size)
    households = Histogram.from_entries(cells * 0 + 3, cells, cells * 0 + 1, shape=(len(frame), len(cells)))
    units = beside(np.random.default_rng(3), households)
    write(tmp_path, frame, households, units)
    assert same(read_mdf(tmp_path, PRODUCT, frame), households)


def test_pandas_polars_and_duckdb_read_the_same(tmp_path: Path) -> None:
    frame, households, units = both_histograms(block_frame(), np.random.default_rng(4))
    write(tmp_path, frame, households, units)
    pattern = str(tmp_path / "*.parquet")
    found = pd.read_parquet(tmp_path)
    assert list(found.columns) == COLUMNS
    from_pandas = Counter(found.itertuples(index=False, name=None))
    assert from_pandas == Counter(pl.read_parquet(pattern).rows())
    with duckdb.connect() as connection:
        rows = connection.execute("select * from read_parquet(?)", [pattern]).fetchall()
    assert from_pandas == Counter(rows)
    text = tmp_path / "pipe"
    write(text, frame, households, units, "pipe")
    read = [pd.read_csv(path, sep="|", comment="#", dtype=str) for path in sorted(text.iterdir())]
    assert Counter(pd.concat(read).itertuples(index=False, name=None)) == from_pandas


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("HHSIZE", "1"),
        ("HHT", "1"),
        ("TP60", "0"),
        ("VACS", "7"),
        ("GQTYPE", "101"),
        ("PAOC", "1"),
        ("HHT2", "13"),
    ],
)
def test_codes_that_contradict_each_other_are_refused(tmp_path: Path, column: str, value: str) -> None:
    """A man of 30 and someone of 65 who is not related to him, in a rented home."""
    frame = block_frame()
    number = next(
        k for k, kind in enumerate(HOUSEHOLD_TYPES)
        if (kind.couple, kind.relatives, kind.minor, kind.size) == ("no_couple", False, False, 2)
    )  # fmt: skip
    cell = PRODUCT.schema.cells([np.array([k]) for k in (0, 1, 0, 0, 2, 2, number)])
    households = Histogram.from_entries(np.array([0]), cell, np.array([1]), shape=(6, PRODUCT.schema.size))
    units = Histogram.from_entries(np.array([0]), np.array([2]), np.array([1]), shape=(6, 35))
    write(tmp_path, frame, households, units, "pipe")
    path = tmp_path / "44001.txt"
    *head, record = path.read_text().splitlines()
    fields = record.split("|")
    fields[COLUMNS.index(column)] = value
    path.write_text("\n".join([*head, "|".join(fields)]) + "\n")
    with pytest.raises(SchemaError, match=r"outside its list|do not go together"):
        read_mdf(tmp_path, PRODUCT, frame)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 80))
def test_no_rent_is_dealt_out_as_often_as_it_was_counted(seed: int, entries: int) -> None:
    _, households, units = both_histograms(block_frame(), np.random.default_rng(seed), entries)
    records = unit_records(PRODUCT, households, units)
    assert same(unit_estimate(PRODUCT, records), households)
    assert same(units_of_records(PRODUCT, records), units)


def test_no_rent_is_spread_along_a_block() -> None:
    """One of four households that rent pays no rent: in each run of eight of them one to three."""
    rented = np.flatnonzero(np.unravel_index(np.arange(PRODUCT.schema.size), SHAPE)[5] == 2)[: 4 * 50]
    households = Histogram.from_entries(rented * 0, rented, rented * 0 + 1, shape=(1, PRODUCT.schema.size))
    units = Histogram.from_entries(np.zeros(2), np.array([2, 3]), np.array([150, 50]), shape=(1, 35))
    records = unit_records(PRODUCT, households, units)
    free = np.isin(rented, unit_estimate(PRODUCT, Histogram.from_entries(
        records.cells[records.cells >= PRODUCT.schema.size] * 0,
        records.cells[records.cells >= PRODUCT.schema.size],
        records.counts[records.cells >= PRODUCT.schema.size],
        shape=(1, records.size),
    )).cells)  # fmt: skip
    assert {int(run.sum()) for run in free.reshape(-1, 8)} <= {1, 2, 3}


def test_histograms_that_disagree_in_tenure_make_no_records() -> None:
    _, households, units = both_histograms(block_frame(), np.random.default_rng(5))
    more = Histogram.from_entries(
        np.repeat(np.arange(units.rows), np.diff(units.indptr)),
        units.cells,
        units.counts + (units.cells == 2),
        shape=(units.rows, 35),
    )
    with pytest.raises(DataError, match="rent"):
        unit_records(PRODUCT, households, more)


def tampered(line: str, **fields: str) -> str:
    values = line.split("|")
    for name, value in fields.items():
        values[COLUMNS.index(name)] = value
    return "|".join(values)


@pytest.mark.parametrize(
    ("chosen", "fields"),
    [
        ({"TEN": "3"}, {"TEN": "4"}),
        ({"TEN": "0", "RTYPE": "2", "VACS": "1"}, {"VACS": "2"}),
        ({"RTYPE": "4", "GQTYPE": "301"}, {"GQTYPE": "501"}),
        ({"RTYPE": "4"}, {}),
    ],
)
def test_verify_compares_units_with_the_second_histogram(
    tmp_path: Path, chosen: dict[str, str], fields: dict[str, str]
) -> None:
    """A household that would rent, a vacant unit, a facility: each changed in one record, or taken out."""
    frame, households, units = both_histograms(block_frame(), np.random.default_rng(6), 3_000)
    companion = PRODUCT.companion
    assert companion is not None
    for product in (PRODUCT, companion):
        write_frame(tmp_path / f"geography/{product.name}.parquet", frame, product)
    write_mdf(tmp_path / "mdf/tenvacgq", companion, frame, units)
    write(tmp_path / "mdf/dhc-units", frame, households, units, "pipe")
    data = Microdata(ReleasedProduct(tmp_path, PRODUCT.name))
    assert check_quarters(data) == f"{units.total():,} units of every block, as in {companion.name}"
    path = tmp_path / "mdf/dhc-units/44001.txt"
    lines = path.read_text().splitlines()
    number = next(
        k for k, line in enumerate(lines)
        if line[:3] == "MUD" and chosen.items() <= dict(zip(COLUMNS, line.split("|"), strict=True)).items()
    )  # fmt: skip
    lines[number : number + 1] = [tampered(lines[number], **fields)] if fields else []
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CheckFailed, match=f"the units differ from those of {companion.name} in 44001"):
        check_quarters(Microdata(ReleasedProduct(tmp_path, PRODUCT.name)))
