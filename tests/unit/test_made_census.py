"""The synthetic census: exact in what the redistricting file says, possible in everything else."""

from __future__ import annotations

import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data import shared_data
from support.pl94_zip import Block, some_blocks, write_csv, write_zip
from support.seeds import examples

from opendas.cli.main import cli
from opendas.demo import make_census
from opendas.demo.homes import describe, keeps_edits
from opendas.demo.households import CODE, allowed_ages, synthetic_households
from opendas.demo.pums import read_microdata
from opendas.errors import ConfigError, DataError, FormatError
from opendas.readers import ReaderSpec, make_reader
from opendas.runs.context.run import load
from opendas.schema.dhc_persons import GQ_CODES
from opendas.schema.dhc_units import HOUSEHOLD_TYPES, dhc_units
from opendas.schema.pl94 import pl94_persons, pl94_units

pytestmark = pytest.mark.slow

UNITS = dhc_units()
HEADS = [CODE["householder_alone"], CODE["householder_not_alone"]]
PARTNERS = [code for label, code in CODE.items() if label.endswith(("_spouse", "_partner"))]
COUPLES = {
    "opposite_sex_spouse": "married_opposite_sex",
    "same_sex_spouse": "married_same_sex",
    "opposite_sex_partner": "cohabiting_opposite_sex",
    "same_sex_partner": "cohabiting_same_sex",
}
CHILDREN_WORDS = {
    (True, False): "under6",
    (False, True): "6to17",
    (True, True): "both",
    (False, False): "none",
}
STRANGERS = (
    "householder",
    "opposite_sex_partner",
    "same_sex_partner",
    "roommate",
    "foster_child",
    "other_nonrelative",
)
RELATED = [code for label, code in CODE.items() if not label.startswith(STRANGERS)]
CHILDREN = [CODE["biological_child"], CODE["adopted_child"], CODE["stepchild"]]


def read_as(reader: str, path: Path, kind: str) -> tuple[list[bytes], dict[tuple[int, int], int]]:
    """Return geocodes and counts by (block, cell) of the official reader."""
    product = pl94_persons() if kind == "persons" else pl94_units()
    data = make_reader(ReaderSpec(reader, (path,), product)).read()
    rows = np.repeat(np.arange(len(data.frame)), np.diff(data.histogram.indptr)).tolist()
    entries = zip(rows, data.histogram.cells.tolist(), data.histogram.counts.tolist(), strict=True)
    return data.frame.geocodes.tolist(), {(row, cell): count for row, cell, count in entries}


def read_made(run_file: Path) -> tuple[list[bytes], dict[tuple[int, int], int]]:
    """Return the same of a run of the synthetic records."""
    data = load(run_file).reader.read()
    rows = np.repeat(np.arange(len(data.frame)), np.diff(data.histogram.indptr)).tolist()
    entries = zip(rows, data.histogram.cells.tolist(), data.histogram.counts.tolist(), strict=True)
    return data.frame.geocodes.tolist(), {(row, cell): count for row, cell, count in entries}


def check_households(folder: Path) -> None:
    """Check every record and every household of a synthetic census, one by one."""
    allowed = allowed_ages()
    homes: dict[tuple[str, int], list[dict[str, int]]] = {}
    for person in pq.read_table(folder / "persons.parquet").to_pylist():
        assert allowed[person["relgq"], person["age"]]
        assert person["votingage"] == (person["age"] >= 18)
        assert (person["household"] > 0) == (person["relgq"] < len(CODE)) == (person["hhgq"] == 0)
        if person["household"]:
            homes.setdefault((person["GEOID"], person["household"]), []).append(person)
    for people in homes.values():
        relations = Counter(person["relgq"] for person in people)
        assert sum(relations[code] for code in HEADS) == 1
        assert sum(relations[code] for code in PARTNERS) <= 1
        assert (relations[HEADS[0]] == 1) == (len(people) == 1)
        (head,) = [person for person in people if person["relgq"] in HEADS]
        for person in people:
            if person["relgq"] == CODE["biological_child"]:
                assert head["age"] - person["age"] >= 12
            if person["relgq"] in PARTNERS:
                opposite = person["relgq"] in (CODE["opposite_sex_spouse"], CODE["opposite_sex_partner"])
                assert (person["sex"] != head["sex"]) == opposite
    units = pq.read_table(folder / "units.parquet").to_pylist()
    occupied = {(unit["GEOID"], unit["household"]) for unit in units if unit["occupancy"]}
    assert occupied == homes.keys()
    names = UNITS.schema.names
    for unit in units:
        assert (unit["tenvacgq"] < 4) == bool(unit["occupancy"])
        assert {unit[name] is None for name in names} == {not unit["occupancy"]}
        if unit["occupancy"]:
            check_unit(unit, homes[unit["GEOID"], unit["household"]])
    facilities = Counter(
        (unit["GEOID"], unit["tenvacgq"]) for unit in pq.read_table(folder / "quarters.parquet").to_pylist()
    )
    frame = pq.read_table(folder / "frame.parquet").to_pylist()
    expected = {
        (block["GEOID"], 11 + k): block[f"gq{code}"] for block in frame for k, code in enumerate(GQ_CODES)
    }
    assert facilities == Counter(expected)


def check_unit(unit: dict[str, int], people: list[dict[str, int]]) -> None:
    """Check the attributes of a unit against its people."""
    (head,) = [person for person in people if person["relgq"] in HEADS]
    assert unit["sex"] == head["sex"]
    assert unit["hisp"] == head["hispanic"]
    assert unit["race"] == min(head["cenrace"], 6)
    assert unit["hhage"] == sum(head["age"] >= years for years in (25, 35, 45, 55, 60, 65, 75, 85))
    assert unit["size"] == min(len(people), 7)
    oldest = max(person["age"] for person in people)
    assert unit["elderly"] == sum(oldest >= years for years in (60, 65, 75))
    minors = [person for person in people if person["age"] < 18]
    assert unit["p18"] == bool(minors)
    own = [person["age"] for person in minors if person["relgq"] in CHILDREN]
    other = [person["age"] for person in minors if person["relgq"] not in (*HEADS, *PARTNERS)]
    for column, ages in (("paoc", own), ("pac", other)):
        both = (any(age < 6 for age in ages), any(age >= 6 for age in ages))
        assert unit[column] == {(True, False): 1, (False, True): 2, (True, True): 3, (False, False): 4}[both]
    assert (unit["couple"] < 5) == any(person["relgq"] in PARTNERS for person in people)
    assert unit["hhtenshort_3lev"] == min(unit["tenvacgq"], 2)
    kind = HOUSEHOLD_TYPES[unit["hhtype_dhch"]]
    partners = {
        label for label, code in CODE.items() for person in people if person["relgq"] == code
    } & COUPLES.keys()
    assert kind.couple == (COUPLES[partners.pop()] if partners else "no_couple")
    assert (kind.size, kind.minor) == (unit["size"], bool(minors))
    assert kind.own_children == CHILDREN_WORDS[any(age < 6 for age in own), any(age >= 6 for age in own)]
    assert kind.children == CHILDREN_WORDS[any(age < 6 for age in other), any(age >= 6 for age in other)]
    assert kind.relatives == any(person["relgq"] in RELATED for person in people)
    assert kind.multigenerational == bool(unit["multig"])
    cell = UNITS.schema.cells([np.array([unit[name]]) for name in UNITS.schema.names])
    assert bool(UNITS.possible[cell[0]])


@pytest.mark.parametrize("year", [2010, 2020])
def test_margins_are_those_of_the_file_and_households_are_possible(tmp_path: Path, year: int) -> None:
    path = write_zip(tmp_path / "fb.zip", some_blocks(), year)
    made = make_census(path, tmp_path / "made")
    assert made.adjusted == 0
    for kind in ("persons", "units"):
        expected = read_as(f"pl94-{year}", path, kind)
        assert read_made(tmp_path / f"made/run-pl94-{kind}.toml") == expected
    check_households(tmp_path / "made")


def test_run_files_of_every_product_read_what_was_made(tmp_path: Path) -> None:
    made = make_census(write_zip(tmp_path / "fb.zip", some_blocks(), 2020), tmp_path / "made")
    people, units = made.people, made.housing_units
    quarters = pq.read_table(tmp_path / "made/quarters.parquet").num_rows
    expected = {
        "pl94-persons": people,
        "pl94-units": units,
        "dhc-persons": people,
        "dhc-units": made.households,
    }
    for path in made.runs:
        run = load(path)
        assert run.reader.read().histogram.total() == expected.pop(run.product.name)
        assert len(run.spine.leaf) == len(run.frame)  # of a state without any AIAN areas, too
        if run.companion is not None:
            assert run.companion.reader.read().histogram.total() == units + quarters
        if "dhc" in path.name:
            text = path.read_text().replace("# [tie]", "[tie]").replace("# release", "release")
            assert tomllib.loads(text)["tie"]["release"] == f"../{run.product.name.replace('dhc', 'pl94')}"
    assert not expected


_COUNTS = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 62)), st.integers(1, 12), max_size=5
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(_COUNTS, st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=4))
def test_any_counts_can_be_settled(
    tmp_path_factory: pytest.TempPathFactory, counts: list[tuple[dict[tuple[int, int, int], int], int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    blocks = [
        Block(f"9800100010010{k:02d}", people, occupied, vacant)
        for k, (people, occupied, vacant) in enumerate(counts)
    ]
    blocks.append(Block("980010002001000", {(1, 0, 0): 1}, 1))
    path = write_zip(folder / "fb.zip", blocks, 2010)
    made = make_census(path, folder / "made", seed=len(counts))
    fewer = [sum(block.people.values()) < block.occupied for block in blocks]
    assert made.adjusted == sum(fewer)
    assert read_made(folder / "made/run-pl94-persons.toml") == read_as("pl94-2010", path, "persons")
    units = read_made(folder / "made/run-pl94-units.toml")
    if not any(fewer):
        assert units == read_as("pl94-2010", path, "units")
    assert sum(units[1].values()) == made.housing_units == sum(b.occupied + b.vacant for b in blocks)
    check_households(folder / "made")


def test_a_block_gets_the_same_whatever_is_beside_it(tmp_path: Path) -> None:
    blocks = some_blocks()
    make_census(write_zip(tmp_path / "all.zip", blocks, 2020), tmp_path / "all")
    make_census(write_zip(tmp_path / "two.zip", blocks[1:5:3], 2020), tmp_path / "two")
    make_census(tmp_path / "all.zip", tmp_path / "again")
    make_census(tmp_path / "all.zip", tmp_path / "other", seed=3)
    every, some, again, other = (
        pq.read_table(tmp_path / name / "persons.parquet").to_pylist()
        for name in ("all", "two", "again", "other")
    )
    wanted = {block.code for block in blocks[1:5:3]}
    assert [person for person in every if person["GEOID"] in wanted] == some
    assert every == again
    assert every != other


def test_the_invented_population_has_the_shape_of_a_real_one() -> None:
    pool = synthetic_households()
    assert 0.47 < (pool.sex == 0).mean() < 0.50
    years = np.bincount(pool.age, minlength=100)[:90].astype(float)
    smooth = np.convolve(years, np.ones(9) / 9, mode="valid")
    assert np.abs(years[4:-4] / smooth - 1).max() < 0.2
    assert 2.3 < len(pool.age) / len(pool.adults) < 2.8
    assert 0.18 < (pool.age < 18).mean() < 0.28


MICRODATA = [
    ["SERIALNO", "SPORDER", "PWGTP", "AGEP", "SEX", "RELP"],
    ["1", 1, 10, 40, 2, 0],
    ["1", 2, 10, 41, 1, 1],
    ["1", 3, 9, 8, 1, 2],
    ["2", 1, 20, 70, 2, 0],
    ["3", 1, 5, 20, 2, 16],
    ["4", 1, 7, 30, 1, 0],
    ["4", 2, 7, 31, 1, 13],
]


def test_households_of_microdata_are_drawn(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "fb.zip", [Block("980010001001000", {(1, 0, 0): 2}, 1)] * 1, 2010)
    pums = write_csv(tmp_path / "psam_p98.csv", MICRODATA)
    found = set()
    for seed in range(30):
        make_census(path, tmp_path / str(seed), pums=[pums], seed=seed)
        people = pq.read_table(tmp_path / str(seed) / "persons.parquet").to_pylist()
        assert {abs(person["age"] - 30) <= 3 for person in people} == {True}
        found |= {person["relgq"] for person in people}
    assert found == {CODE["householder_not_alone"], CODE["same_sex_partner"]}


FORBIDDEN = {
    "a woman of 75 with a child": [(75, 2, 0), (17, 1, 3)],
    "a woman of 73, two years from it": [(73, 2, 0), (10, 1, 3)],
    "a man of 75 with a child under 6": [(75, 1, 0), (30, 2, 1), (5, 1, 3)],
    "a householder of 24 and a spouse of 75": [(24, 2, 0), (75, 1, 1)],
    "a householder of 26 and a spouse of 77, two years from it": [(26, 2, 0), (77, 1, 1)],
}


@pytest.mark.parametrize("people", FORBIDDEN.values(), ids=FORBIDDEN)
def test_households_that_break_an_edit_are_not_drawn(
    tmp_path: Path, people: list[tuple[int, int, int]]
) -> None:
    rows = [["9", number, 10, *person] for number, person in enumerate(people, start=1)]
    oldest = [["7", 1, 5, 98, 2, 16], ["8", 1, 5, 99, 2, 16]]  # so that no age is a top code
    pool = read_microdata(
        [write_csv(tmp_path / "psam_p98.csv", [MICRODATA[0], MICRODATA[4], *rows, *oldest])]
    )
    assert pool.age.tolist() == [70]


def test_made_households_break_no_edit() -> None:
    pool = synthetic_households()
    nothing = np.zeros_like(pool.age)
    for shift in (-2, 0, 2):
        age = (pool.age + shift).clip(0, 115)
        age[(age >= 18) != (pool.age >= 18)] = pool.age[(age >= 18) != (pool.age >= 18)]
        assert bool(keeps_edits(describe(pool.relgq, pool.sex, age, nothing, nothing)).all())


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "fb.zip", some_blocks(), 2010)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").touch()
    with pytest.raises(ConfigError, match="not empty"):
        make_census(path, full)
    lacking = write_csv(tmp_path / "lacking.csv", [row[:3] for row in MICRODATA])
    with pytest.raises(FormatError) as error:
        make_census(path, tmp_path / "new", pums=[lacking])
    assert {finding.field for finding in error.value.findings} == {"AGEP", "SEX", "RELSHIPP or RELP"}
    empty = write_csv(tmp_path / "empty.csv", [MICRODATA[0], MICRODATA[5]])
    with pytest.raises(DataError, match="cannot be used"):
        make_census(path, tmp_path / "new", pums=[empty])
    for column, value in (("AGEP", 116), ("AGEP", ""), ("SEX", 3), ("PWGTP", "1.5"), ("RELP", 18)):
        row = [value if name == column else old for name, old in zip(*MICRODATA[:2], strict=True)]
        wrong = write_csv(tmp_path / "wrong.csv", [*MICRODATA, row])
        with pytest.raises(DataError, match="The microdata cannot be used") as error:
            read_microdata([wrong])
        found = [(finding.file, finding.line, finding.field) for finding in error.value.findings]
        assert found == [("wrong.csv", len(MICRODATA) + 1, column)]
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for name, start in (("psam_pusa.csv", 1), ("psam_pusb.csv", 4), ("__MACOSX/._psam_pusa.csv", 7)):
            part = [MICRODATA[0], *MICRODATA[start : start + 3]]
            archive.write(write_csv(tmp_path / "part.csv", part), name)
    whole = read_microdata([write_csv(tmp_path / "whole.csv", MICRODATA[:7])])
    assert read_microdata([tmp_path / "both.zip"]).age.tolist() == whole.age.tolist()
    twice = write_csv(tmp_path / "twice.csv", [[*row, row[3]] for row in MICRODATA])
    with pytest.raises(FormatError, match="each column name once"):
        read_microdata([twice])
    with pytest.raises(FormatError):
        make_census(lacking, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    result = CliRunner().invoke(cli, ["make-census", str(lacking), "--to", str(tmp_path / "new")])
    assert result.exit_code == 4 or isinstance(result.exception, FormatError)


@pytest.mark.parametrize("pums", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rhode_island_is_tied_exactly(tmp_path: Path, pums: bool) -> None:
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    files = [shared_data("pums_2018/csv_pri.zip")] if pums else []
    made = make_census(path, tmp_path / "made", pums=files)
    assert (made.people, made.households, made.housing_units) == (1_052_567, 413_600, 463_388)
    assert made.adjusted == 0
    for kind in ("persons", "units"):
        assert read_made(tmp_path / f"made/run-pl94-{kind}.toml") == read_as("pl94-2010", path, kind)
    units = pq.read_table(tmp_path / "made/units.parquet", columns=[*UNITS.schema.names]).drop_null()
    cells = UNITS.schema.cells([units[name].to_numpy() for name in UNITS.schema.names])
    assert len(cells) == made.households
    assert bool(UNITS.possible[cells].all())
    people = pq.read_table(tmp_path / "made/persons.parquet", columns=["relgq", "age", "sex", "household"])
    relgq, age = people["relgq"].to_numpy(), people["age"].to_numpy()
    assert bool(allowed_ages()[relgq, age].all())
    assert int(np.isin(relgq, HEADS).sum()) == 413_600
    assert 0.47 < (people["sex"].to_numpy() == 0).mean() < 0.50
