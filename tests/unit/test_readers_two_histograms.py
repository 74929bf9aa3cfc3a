"""Tables of units for both histograms of DHC units: which rows are households, and which contradict it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.assembled import same
from support.pl94_zip import some_blocks, write_zip

from opendas.demo import make_census
from opendas.errors import ConfigError, SchemaError
from opendas.geography.frame import CENSUS_PREFIX, LevelRule, official_geolevels
from opendas.readers import ReaderSpec, UnitsSpec, make_reader
from opendas.schema.dhc_units import dhc_units
from opendas.schema.histogram import Histogram

HOUSEHOLDS = dhc_units()
UNITS = HOUSEHOLDS.companion
assert UNITS is not None
NAMES = HOUSEHOLDS.schema.names


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("census")
    make_census(write_zip(folder / "fb.zip", some_blocks(), 2020), folder / "made")
    return folder / "made"


def spec(made: Path, paths: list[Path], product: Any = HOUSEHOLDS, **options: Any) -> ReaderSpec:
    units = UnitsSpec(made / "frame.parquet", "GEOID")
    levels = tuple(LevelRule(name, CENSUS_PREFIX[name]) for name in official_geolevels("state", "block"))
    return ReaderSpec(
        "records", tuple(paths), product, "state", levels, units.path, "GEOID", units=units, **options
    )


def both_files(made: Path) -> list[Path]:
    return [made / "units.parquet", made / "quarters.parquet"]


def counted(made: Path, names: tuple[str, ...], product: Any) -> Histogram:
    blocks = pq.read_table(made / "frame.parquet")["GEOID"].to_pylist()
    rows = [
        row
        for path in both_files(made)
        for row in pq.read_table(path).to_pylist()
        if row[names[0]] is not None
    ]
    leaf = np.array([blocks.index(row["GEOID"]) for row in rows])
    cells = product.schema.cells([np.array([row[name] for row in rows]) for name in names])
    return Histogram.from_entries(leaf, cells, cells * 0 + 1, shape=(len(blocks), product.schema.size))


def test_each_histogram_counts_its_rows(made: Path) -> None:
    households = make_reader(spec(made, both_files(made))).read().histogram
    assert same(households, counted(made, NAMES, HOUSEHOLDS))
    units = make_reader(spec(made, both_files(made), UNITS)).read()
    assert same(units.histogram, counted(made, ("tenvacgq",), UNITS))
    assert households.total() < units.histogram.total()
    # That every block of the frame has a unit is no sign of a frame made from the records.
    assert "block" not in {finding.field for finding in units.findings}


def test_columns_of_both_may_have_other_names(made: Path, tmp_path: Path) -> None:
    columns = {"tenvacgq": "STATUS", "race": "RACE"}
    paths = []
    for path in both_files(made):
        table = pq.read_table(path)
        there = {old: new for old, new in columns.items() if old in table.column_names}
        paths.append(tmp_path / path.name)
        pq.write_table(
            table.rename_columns([there.get(name, name) for name in table.column_names]), paths[-1]
        )
    read = make_reader(spec(made, paths, columns=columns)).read()
    assert same(read.histogram, counted(made, NAMES, HOUSEHOLDS))
    with pytest.raises(ConfigError, match="no attribute 'tenure'"):
        make_reader(spec(made, paths, columns={**columns, "tenure": "TEN"})).read()


def changed(made: Path, to: Path, row: int, **values: int | None) -> Path:
    table = pq.read_table(made / "units.parquet")
    for name, value in values.items():
        column = table[name].to_pylist()
        column[row] = value
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(column, table.schema.field(name).type))
    pq.write_table(table, to / "units.parquet")
    return to / "units.parquet"


def first(made: Path, **wanted: int) -> int:
    rows = pq.read_table(made / "units.parquet").to_pylist()
    return next(k for k, row in enumerate(rows) if all(row[name] == value for name, value in wanted.items()))


@pytest.mark.parametrize(
    ("occupied", "values", "field"),
    [
        (1, {"race": None}, "race"),
        (1, dict.fromkeys(NAMES), "hhtype_dhch"),
        (0, {"hhage": 3}, "hhage"),
        (1, {"tenvacgq": 5}, "sex"),
        (1, {"tenvacgq": 99}, "tenvacgq"),
    ],
)
def test_rows_that_are_half_a_household_are_told(
    made: Path, tmp_path: Path, occupied: int, values: dict[str, int | None], field: str
) -> None:
    row = first(made, occupancy=occupied)
    path = changed(made, tmp_path, row, **values)
    with pytest.raises(SchemaError) as error:
        make_reader(spec(made, [path])).read()
    assert field in {finding.field for finding in error.value.findings}
    assert {finding.line for finding in error.value.findings} == {row + 1}


def test_tenures_that_contradict_each_other_are_told(made: Path, tmp_path: Path) -> None:
    row = first(made, tenvacgq=2)
    path = changed(made, tmp_path, row, tenvacgq=0)
    with pytest.raises(SchemaError) as error:
        make_reader(spec(made, [path])).read()
    (finding,) = error.value.findings
    assert (finding.line, finding.field) == (row + 1, "tenvacgq")
    assert "agrees with hhtenshort_3lev" in finding.rule
    path = changed(made, tmp_path, row, tenvacgq=3)  # rented, no rent paid: the same tenure
    assert make_reader(spec(made, [path])).read().histogram.total() > 0
