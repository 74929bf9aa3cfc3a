"""Run files to start from are run files that work."""

from __future__ import annotations

import re
import subprocess
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import opendas as od
from opendas.budget.resolve import resolve_budget
from opendas.cli.main import cli
from opendas.errors import ConfigError, DataError, EnvironmentFailure, FormatError
from opendas.runs.config.load import load_run_file
from opendas.runs.config.resolve import resolve
from opendas.runs.starting import table_files
from opendas.runs.starting.guess import Declared, TableGuess, guess_table

RECORDS = "id,region,hospital,ward,Age group,sex\n" + "".join(
    f"{i},R{i % 3},H{i % 3}{i % 6},W{i % 12:02d},{('0-9', '10-17', '18+')[i % 7 % 3]},{'fm'[i % 5 % 2]}\n"
    for i in range(600)
)
COUNTS = "zone,age,people\n" + "".join(
    f"{zone:05d},{age},{zone * 7 + len(age) + k}\n"
    for zone in range(10100, 10180)
    for k, age in enumerate(("young", "old"))
)


def init(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["init", *arguments], obj={})


@pytest.mark.parametrize(("state", "year"), [("RI", 2010), ("pr", 2020)])
@pytest.mark.parametrize("kind", ["persons", "units"])
def test_pl94_run_files_resolve(tmp_path: Path, state: str, year: int, kind: str) -> None:
    assert init("pl94", "--state", state, "--year", str(year), "--to", str(tmp_path)).exit_code == 0
    stem = f"{state.lower()}{year}"
    (tmp_path / f"{stem}.pl.zip").touch()
    run = resolve(load_run_file(tmp_path / f"{stem}-{kind}.toml"))
    assert run.reader.reader == f"pl94-{year}"
    budget = resolve_budget(run.budget, run.geolevels, run.product.workload.canonical)
    assert sum(budget.geolevels.values()) == 1


@pytest.mark.parametrize("product", ["pl94-persons", "pl94-units", "dhc-persons", "dhc-units"])
def test_run_files_for_census_records_resolve(tmp_path: Path, product: str) -> None:
    assert init("cef", "--to", str(tmp_path)).exit_code == 0
    for name in ("CEF20_PER_99.txt", "CEF20_UNIT_99.txt", "GRFC_99.txt"):
        (tmp_path / name).touch()
    path = tmp_path / f"{product}.toml"
    tied = tomllib.loads(path.read_text()).get("tie")
    assert tied == (None if "pl94" in product else {"release": product.replace("dhc", "pl94")})
    path.write_text(path.read_text().partition("[tie]")[0])  # to a release that is not there yet
    run = resolve(load_run_file(path))
    assert (run.product.name, run.reader.reader, run.levels[0]) == (product, "cef", "state")
    assert run.companion is None or run.companion.reader.reader == "cef"


def test_the_commented_lines_work_too(tmp_path: Path) -> None:
    init("pl94", "--state", "ri", "--year", "2010", "--to", str(tmp_path))
    (tmp_path / "ri2010.pl.zip").touch()
    path = tmp_path / "ri2010-persons.toml"
    text = path.read_text()
    for commented in ("# drop_invariants", "# rho"):
        assert commented in text
        text = text.replace(commented, commented[2:])
    path.write_text(text)
    run = resolve(load_run_file(path))
    assert run.budget.rho == 1
    assert run.product.invariants == ()


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    arguments = ("pl94", "--state", "ri", "--year", "2010", "--to", str(tmp_path))
    init(*arguments)
    (tmp_path / "ri2010-persons.toml").write_text("mine")
    again = init(*arguments)
    assert isinstance(again.exception, ConfigError)
    assert (tmp_path / "ri2010-persons.toml").read_text() == "mine"


@pytest.mark.parametrize(("state", "year"), [("rhode", "2010"), ("ri", "1990")])
def test_unknown_states_and_years_are_refused(tmp_path: Path, state: str, year: str) -> None:
    assert isinstance(
        init("pl94", "--state", state, "--year", year, "--to", str(tmp_path)).exception, ConfigError
    )
    assert not list(tmp_path.iterdir())


def test_a_table_of_records_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("My patients.csv").write_text(RECORDS)
    result = init("table", "My patients.csv")
    assert result.exit_code == 0, result.exception
    run = resolve(load_run_file(tmp_path / "my-patients-run.toml"))
    assert run.reader.reader == "records"
    assert run.reader.geocode == "ward"
    assert run.geolevels == ("all", "region", "hospital", "ward")
    assert run.product.schema.names == ("age_group", "sex")
    assert run.product.schema.attribute("age_group").levels == ("0-9", "10-17", "18+")
    assert run.reader.columns == {"age_group": "Age group"}
    budget = resolve_budget(run.budget, run.geolevels, run.product.workload.canonical)
    assert budget.total == 1
    assert budget.query_shares("ward")["age_group"] == Fraction(1, 8)
    assert "CHECK" in Path("my-patients-run.toml").read_text()


def test_who_records_are_of_is_neither_place_nor_attribute_nor_count(tmp_path: Path) -> None:
    """In a table of visits: the identifier is what is protected, and its values stand in no file."""
    rows = [f"P{n // 2:03d},{n % 4},{'fm'[n // 3 % 2]},{'abc'[n % 3]}" for n in range(60)]
    (tmp_path / "visits.csv").write_text("\n".join(["patient,ward,sex,kind", *rows]) + "\n")
    result = init("table", str(tmp_path / "visits.csv"), "--to", str(tmp_path))
    assert result.exit_code == 0, result.exception
    run = resolve(load_run_file(tmp_path / "visits-run.toml"))
    assert run.product.schema.names == ("sex", "kind")
    assert run.reader.geocode == "ward"
    assert run.reader.contribution is not None
    assert run.reader.contribution.unit_id == run.product.protected_unit == "patient"
    for path in tmp_path.glob("*.toml"):
        assert "P001" not in path.read_text()
    # where every row is someone else's, an identifier is left out and nothing is said of units
    numbered = [f"{1000 + n},{row.split(',', 1)[1]}" for n, row in enumerate(rows)]
    (tmp_path / "persons.csv").write_text("\n".join(["person,ward,sex,kind", *numbered]) + "\n")
    guess = guess_table(tmp_path / "persons.csv")
    assert (guess.unit_id, guess.count, tuple(guess.left_out)) == (None, None, ("person",))


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("patient_id", "patient"), ("PatientNr", "patient"), ("voter", "voter"), ("home_key", "home"),
        ("caseID", "case"), ("housing-unit-no", "housing unit"), ("SERIALNO", "unit"), (None, "record"),
    ],
)  # fmt: skip
def test_the_protected_unit_is_named_in_plain_words(column: str | None, unit: str) -> None:
    guess = TableGuess("t.csv", "records", "ward", None, {}, {}, (), {}, unit_id=column)
    assert guess.protected_unit == unit


def test_a_table_of_counts_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "zones.csv").write_text(COUNTS)
    guess = guess_table(tmp_path / "zones.csv")
    assert (guess.reader, guess.geocode, guess.count) == ("histogram", "zone", "people")
    assert guess.attributes == {"age": ("old", "young")}
    assert guess.levels[0] == ("all", 0, None)
    assert guess.levels[-1] == ("zone", None, None)


def test_plan_is_told_how_many_records_there_are(tmp_path: Path) -> None:
    """Else it takes 45 a leaf, and calls tables sparse that are not."""
    people = sum(int(line.rpartition(",")[2]) for line in COUNTS.splitlines()[1:])
    for text, records in ((COUNTS, people), (RECORDS, 600)):
        (tmp_path / "t.csv").write_text(text)
        told = init("table", str(tmp_path / "t.csv"), "--to", str(tmp_path / str(records))).stderr
        assert told.endswith(f"t-run.toml --read-records --records {records}\n")


def test_columns_become_names_that_geolevels_may_have(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("geoid,A:B,sex,age\n11,n,f,a\n12,n,m,b\n13,s,m,a\n13,s,f,a\n")
    guess = guess_table(tmp_path / "odd.csv")
    assert guess.levels == (("all", 0, None), ("a_b", None, "A:B"), ("geoid", None, None))


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"geocode": ["01", "02"] * 4, "kind": ["a", "b", "b", "a"] * 2}), tmp_path / "t.parquet"
    )
    assert guess_table(tmp_path / "t.parquet").reader == "records"


def test_the_table_and_what_a_run_writes_stay_out_of_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "zones.csv").write_text(COUNTS)
    assert init("table", str(tmp_path / "zones.csv"), "--to", str(tmp_path)).exit_code == 0
    for out in ("zones-run/release", "out/state", "zones-out/release", "elsewhere/confidential/keys"):
        (tmp_path / out).mkdir(parents=True)
        (tmp_path / out / "some.key").touch()
        (tmp_path / out / "some.json").touch()
    seen = subprocess.run(
        ["git", "-C", tmp_path, "status", "--short"], check=True, capture_output=True, text=True
    )
    assert seen.stdout.split() == ["??", ".gitignore", "??", "zones-product.toml", "??", "zones-run.toml"]


def test_a_table_elsewhere_is_named_as_seen_from_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "zones.csv").write_text(COUNTS)
    assert init("table", str(tmp_path / "data" / "zones.csv"), "--to", str(tmp_path / "runs")).exit_code == 0
    resolve(load_run_file(tmp_path / "runs" / "zones-run.toml"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FormatError),
        ("a,b\n", FormatError),
        ("a,b\n1,2\n3\n", FormatError),
        ("x,y\n1,2\n3,4\n", ConfigError),
        ("geocode,y\n1,2\n1,2\n", ConfigError),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(error):
        guess_table(tmp_path / "t.csv")


def guessed(folder: Path, text: str, **declared: Any) -> TableGuess:
    path = folder / "table.csv"
    path.write_text(text)
    return guess_table(path, Declared(**declared) if declared else None)


def survey(rows: int = 400) -> str:
    """Person records of a survey: serial numbers of households, weights, ages, dates, incomes, blanks."""
    lines = ["SERIALNO,PUMA,PWGTP,PWGTP1,AGEP,SEX,SCHL,PINCP,interviewed,RT"]
    lines += [
        f"2018HU{n // 2:07d},{100 + n % 7:05d},{n % 90 + 1},{n % 80},{n * 7 % 96},{n % 2 + 1}.0,"
        f"{'' if n % 5 == 0 else f'{n % 24 + 1}.0'},{n * n % 99000},2018-{n % 12 + 1:02d}-11,P"
        for n in range(rows)
    ]
    return "\n".join(lines) + "\n"


def test_a_survey_is_recognised(tmp_path: Path) -> None:
    guess = guessed(tmp_path, survey())
    assert (guess.reader, guess.geocode, guess.unit_id) == ("records", "PUMA", "SERIALNO")
    assert guess.attributes["sex"] == ("1", "2")  # written 1.0 and 2.0
    assert guess.attributes["agep"][:3] == ("0-4", "5-17", "18-24")
    assert guess.bins["agep"][:3] == (0, 5, 18)
    assert guess.attributes["schl"][-1] == guess.other["schl"] == "not given"
    assert set(guess.columns.values()) == {"AGEP", "SEX", "SCHL", "PINCP"}
    assert set(guess.left_out) == {"SERIALNO", "PWGTP", "PWGTP1", "interviewed", "RT"}
    assert "weight" in guess.left_out["PWGTP1"]
    assert "dates" in guess.left_out["interviewed"]


def test_a_guess_of_a_survey_is_released_as_it_was_read(tmp_path: Path) -> None:
    """Numbers in classes, codes with a decimal zero and empty fields reach the release as labels."""
    (tmp_path / "survey.csv").write_text(survey().replace("SERIALNO", "household"))
    result = init(
        "table", str(tmp_path / "survey.csv"), "--to", str(tmp_path), "--attributes", "AGEP,SEX,SCHL"
    )
    assert result.exit_code == 0, result.exception
    run_file = tmp_path / "survey-run.toml"
    text = run_file.read_text().replace("at_most = 3", "at_most = 2").replace('rho = "1"', 'rho = "1000000"')
    run_file.write_text(text)
    run = od.load(run_file, read_records=True)
    release = od.release(run, out=tmp_path / "out", workers=1)
    found = release.table("agep", geolevel="all").to_pandas()
    ages = [n * 7 % 96 for n in range(400)]
    assert found["0-4"].sum() == sum(age < 5 for age in ages)
    assert found["85+"].sum() == sum(age >= 85 for age in ages)
    schooling = release.table("schl", geolevel="all").to_pandas()
    assert schooling["not given"].sum() == 80
    assert release.table("sex", geolevel="all").to_pandas()["1"].sum() == 200


def test_an_identifier_never_becomes_the_geography(tmp_path: Path) -> None:
    rows = "".join(f"2018HU{n // 3:07d},{n % 2},{n % 5}\n" for n in range(300))
    for column in ("SERIALNO", "serial_number_of_home"):
        with pytest.raises(ConfigError, match="no column seems to say where"):
            guessed(tmp_path, f"{column},sex,size\n{rows}")


def test_columns_are_declared_or_asked_for(tmp_path: Path) -> None:
    rows = "".join(f"x{n % 40:02d},{n % 3},{n % 4}\n" for n in range(800))
    guess = guessed(tmp_path, f"place,sex,kind\n{rows}")
    assert (guess.geocode, guess.unsure != ()) == ("place", True)
    guess = guessed(tmp_path, f"place,sex,kind\n{rows}", geography=("place",), attributes=("kind",))
    assert (tuple(guess.attributes), guess.unsure) == (("kind",), ())
    arguments = ["init", "table", str(tmp_path / "table.csv"), "--to", str(tmp_path), "--interactive"]
    answers = "nowhere\nsex\n-\nplace\nsex,kind\n-\npatient\n"
    result = CliRunner().invoke(cli, arguments, obj={}, input=answers)
    assert result.exit_code == 0, result.exception
    assert "has no column 'nowhere'" in result.stderr
    run = resolve(load_run_file(tmp_path / "table-run.toml"))
    assert (run.product.schema.names, run.product.protected_unit) == (("sex", "kind"), "patient")


def test_households_are_no_geography_whatever_their_column_is_called(tmp_path: Path) -> None:
    """Seven rows each, as in a large household: neither places nor a count."""
    rows = "".join(
        f"{10_000 + n // 7},{('GE', 'VD', 'ZH')[n // 7 % 3]},{'fm'[n % 2]}\n" for n in range(4_000)
    )
    guess = guessed(tmp_path, f"hh,kanton,sex\n{rows}")
    assert (guess.geocode, guess.unit_id, tuple(guess.attributes)) == ("kanton", "hh", ("sex",))
    guess = guessed(tmp_path, f"nummer,kanton,sex\n{rows}")
    assert (guess.geocode, guess.count) == ("kanton", None)
    assert "number households" in guess.unsure[0]


def test_ages_are_neither_counts_nor_codes_of_groups(tmp_path: Path) -> None:
    """Where incomes tell the rows apart, an age is no count; groups of ages and ages of pupils are labels."""
    rows = [(f"C{n % 3}", n * 37.5 + 0.25, n * 7 % 96, n * 7 % 18, n * 11 % 15 + 4) for n in range(900)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    guess = guessed(tmp_path, f"county,income,age,age_group,pupil_age\n{text}\n")
    assert (guess.reader, guess.count, set(guess.bins)) == ("records", None, {"income", "age"})
    assert guess.attributes["age_group"] == tuple(map(str, range(18)))
    assert guess.attributes["pupil_age"] == tuple(map(str, range(4, 19)))


def test_numbers_taken_as_labels_may_be_incomplete(tmp_path: Path) -> None:
    def stays(numbers: list[int]) -> tuple[str, ...]:
        rows = "".join(f"W{n % 3},{number}\n" for n, number in enumerate(numbers * 30))
        guess = guessed(tmp_path, f"ward,stay\n{rows}")
        assert len(guess.attributes["stay"]) == len(numbers)
        return guess.unsure

    (said,) = stays([number for number in range(1, 41) if number != 31])
    assert "stay has 39 different whole numbers, taken as labels" in said
    assert "1 number does not occur" in said
    assert "2 numbers do not occur" in stays([*range(20), 22])[0]
    assert "refuses it" in said
    empty = "".join(f"W{n % 3},{n % 13 * 2 or ''}\n" for n in range(390)) + "W1,1\n"
    assert "counts it as 'not given'" in guessed(tmp_path, f"ward,stay\n{empty}").unsure[0]
    assert stays([*range(1, 41)]) == stays([*range(11), 20]) == ()


def test_one_row_or_one_place_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has one row"):
        guessed(tmp_path, "region,sex\nR1,f\n")
    with pytest.raises(ConfigError, match=r"region says where .* --geography region;"):
        guessed(tmp_path, "region,sex\nR1,f\nR1,m\n")


def test_votes_are_counted_at_the_polling_station(tmp_path: Path) -> None:
    rows = "".join(
        f"K{n // 10},K{n // 10}-{n % 10},{party},{n % 30 + 9}\n"
        for n in range(50)
        for party in ("Red", "Blue")
    )
    guess = guessed(tmp_path, f"constituency,polling_station,party,votes\n{rows}")
    assert (guess.geocode, guess.upper_columns, guess.count) == (
        "polling_station",
        ("constituency",),
        "votes",
    )
    assert (tuple(guess.attributes), guess.unsure) == (("party",), ())


def test_places_of_two_kinds_are_not_taken_for_sure(tmp_path: Path) -> None:
    rows = "".join(f"{n % 7},{n % 5},Name {n % 7},{'fm'[n % 2]},2020{n % 12 + 1:02d}01\n" for n in range(700))
    guess = guessed(tmp_path, f"home_district,work_district,district_name,sex,seen\n{rows}")
    assert (guess.geocode, "work_district" in guess.unsure[0]) == ("home_district", True)
    assert tuple(guess.attributes) == ("work_district", "sex")
    assert "the same as home_district" in guess.left_out["district_name"]
    assert "dates" in guess.left_out["seen"]


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_tables_are_read_as_runs_read_them(tmp_path: Path, between: str) -> None:
    """Other signs between fields, and notes above the header; another encoding is named with its remedy."""
    text = "# a note\nregion,Straße\n" + "".join(f"R{n % 3},{'äö'[n % 2]}\n" for n in range(90))
    guess = guessed(tmp_path, text.replace(",", between))
    assert (guess.geocode, guess.columns) == ("region", {"stra_e": "Straße"})
    for encoding in ("latin-1", "utf-16"):
        (tmp_path / "table.csv").write_text(text, encoding=encoding)
        with pytest.raises(FormatError, match="not in UTF-8"):
            guess_table(tmp_path / "table.csv")


def test_places_that_no_run_reads_are_not_proposed(tmp_path: Path) -> None:
    """A column of codes is taken before one of names; without it, the table is refused."""
    rows = [(f"{n % 4:04d}", ("Zürich", "Köniz", "Bern", "Genf")[n % 4], "fm"[n // 4 % 2]) for n in range(99)]
    text = "\n".join(map(",".join, rows))
    guess = guessed(tmp_path, f"area_no,gemeinde,sex\n{text}\n")
    assert (guess.geocode, tuple(guess.attributes)) == ("area_no", ("sex",))
    for said, values in (("not printable", rows), ("is empty", [*rows, ("", "", "f")])):
        table = "\n".join(f"{name},{sex}" for _, name, sex in values)
        with pytest.raises(ConfigError, match=f"gemeinde .*{said}|gemeinde {said}"):
            guessed(tmp_path, f"gemeinde,sex\n{table}\n")


def test_places_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{n % 3},{n % 4},{n % 2}\n" for n in range(60))
    with pytest.raises(ConfigError, match="one ward lies in two of hospital"):
        guessed(tmp_path, f"hospital,ward,sex\n{rows}", geography=("hospital", "ward"))


def test_what_cannot_be_counted_is_refused_with_choices_that_can(tmp_path: Path) -> None:
    names = [f"q{k}" for k in range(40)]
    rows = "".join(
        f"{n % 5:05d}," + ",".join(str((n * (k + 1)) % 7) for k in range(40)) + f",{n % 2}\n"
        for n in range(99)
    )
    with pytest.raises(ConfigError, match=r"36 attributes make 7\.6e\+29 cells") as caught:
        guessed(tmp_path, ",".join(["tract", *names, "sex"]) + "\n" + rows)
    proposed = re.findall(r"--attributes (\S+) +\(([0-9,]+) cells\)", str(caught.value))
    assert len(proposed) == 3
    for columns, cells in proposed:
        text = (tmp_path / "table.csv").read_text()
        guess = guessed(tmp_path, text, attributes=columns.split(","))
        assert guess.cells == int(cells.replace(",", "")) <= 20_000
        assert "sex" in guess.attributes


WIDE = "tract,county,all,men,young_men,old_men,women,none\n" + "".join(
    f"{n:05d},{n // 10},{4 * n + 9},{2 * n + 3},{n},{n + 3},{2 * n + 6},0\n" for n in range(30)
)


def test_a_wide_table_is_offered_the_melt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--melt all"):
        guessed(tmp_path, WIDE)
    result = init("table", str(tmp_path / "table.csv"), "--to", str(tmp_path / "to"), "--melt", "all")
    assert result.exit_code == 0, result.exception
    assert "all, men" in result.stderr  # told that they were taken as sums
    run = od.load(tmp_path / "to" / "table-run.toml", read_records=True)
    levels = run.product.schema.attributes[0].levels
    assert set(levels) == {"young_men", "old_men", "women", "none"}
    text = (tmp_path / "to" / "table-run.toml").read_text().replace('rho = "1"', 'rho = "1000000"')
    (tmp_path / "to" / "table-run.toml").write_text(text)
    release = od.release(od.load(tmp_path / "to" / "table-run.toml", read_records=True), out=tmp_path / "out")
    table = release.table("category", geolevel="all").to_pandas()
    assert table["women"].sum() == sum(2 * n + 6 for n in range(30))
    assert (tmp_path / "to" / "table-long.csv").stat().st_mode & 0o077 == 0


def test_names_of_several_lines_stand_in_comments_of_one(tmp_path: Path) -> None:
    """As headers of spreadsheets have them."""
    columns = {
        "ward": [f"W{i % 10:02d}" for i in range(300)],
        "age\r\ngroup": ["abc"[i % 3] for i in range(300)],
        "notes\n(free)": [f"note {i}" for i in range(300)],
        "patient\nid": [f"p{i // 3}" for i in range(300)],
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    declared = ("--rho", "1", "--geography", "ward", "--attributes", "age\r\ngroup")
    for more in ((), declared):
        to = tmp_path / str(len(more))
        assert init("table", str(tmp_path / "table.parquet"), "--to", str(to), *more).exit_code == 0
        assert "#   notes (free): " in (to / "table-run.toml").read_text()
        run = od.load(to / "table-run.toml", read_records=True)
        assert run.read().histogram.total() == 300


def test_a_melt_that_makes_no_files_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One column alone is no attribute; a column of places may bear the name of one of the long table."""
    (tmp_path / "table.csv").write_text(WIDE)
    (tmp_path / "named.csv").write_text(WIDE.replace("tract", "category"))
    to = tmp_path / "to"
    for name, wanted, said in (("table", "women", "cannot be an attribute"), ("named", "all", "'category'")):
        result = init("table", str(tmp_path / f"{name}.csv"), "--to", str(to), "--melt", wanted)
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)
        assert list(to.iterdir()) == []
    write = table_files.write_atomic

    def only_one(path: Path, data: bytes) -> None:
        if path.name.endswith("run.toml"):
            raise EnvironmentFailure("the disk is full")
        write(path, data)

    monkeypatch.setattr(table_files, "write_atomic", only_one)
    result = init("table", str(tmp_path / "table.csv"), "--to", str(to), "--melt", "all")
    assert isinstance(result.exception, EnvironmentFailure)
    assert list(to.iterdir()) == []


def test_several_breakdowns_are_not_counted_together(tmp_path: Path) -> None:
    lines = ["geoid,all,men,women,all2,tall,short"]
    lines += [f"{n:05d},{n * 5 + 3},{n * 2},{n * 3 + 3},{n * 5 + 3},{n + 1},{n * 4 + 2}" for n in range(30)]
    with pytest.raises(ConfigError, match=r"several breakdowns.*--melt men\.\.women"):
        guessed(tmp_path, "\n".join(lines) + "\n")
    arguments = ["table", str(tmp_path / "table.csv"), "--to", str(tmp_path / "to"), "--melt"]
    assert isinstance(init(*arguments, "all").exception, ConfigError)
    assert init(*arguments, "tall..short").exit_code == 0
    guess = guess_table(tmp_path / "to" / "table-long.csv")
    assert guess.attributes == {"category": ("short", "tall")}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_codes_with_a_decimal_zero_mean_what_they_say(tmp_path: Path, suffix: str) -> None:
    """Level labels 1.0 and 2.0, as a table of floats has them: 1.0 is the first, and no 0-based code."""
    product = tmp_path / "p.toml"
    product.write_text('[product]\nname = "p"\nprovenance = "public"\n[attributes]\nsex = ["1.0", "2.0"]\n')
    table = pa.table({"geocode": ["01"] * 3 + ["02"] * 2, "sex": [1.0, 1.0, 2.0, 1.0, 2.0]})
    path = tmp_path / f"t.{suffix}"
    pq.write_table(table, path) if suffix == "parquet" else pacsv.write_csv(table, path)
    (tmp_path / "r.toml").write_text(
        f'[run]\nproduct = "p.toml"\n[input]\nreader = "records"\npath = "t.{suffix}"\n[geography]\n'
        'levels = [{ name = "all", prefix = 0 }, { name = "spot" }]\nframe = "from-records"\n'
        '[budget]\nrho = "1000000"\ngeolevels = { all = "1/2", spot = "1/2" }\n'
        '[budget.queries]\n"*" = { detailed = "1" }\n'
    )
    release = od.release(od.load(tmp_path / "r.toml", read_records=True), out=tmp_path / "out", workers=1)
    table = release.table("sex", geolevel="all").to_pandas()
    assert (table["1.0"].sum(), table["2.0"].sum()) == (3, 2)


@pytest.mark.parametrize(
    ("bins", "said"),
    [("[0, 18]", "2 levels and 2"), ("[0, 18, 65]", "3 numbers"), ("[18, 0]", "ascend"), ('["0"]', "bins")],
)
def test_bins_fit_the_levels(tmp_path: Path, bins: str, said: str) -> None:
    (tmp_path / "p.toml").write_text(
        '[product]\nname = "p"\nprovenance = "public"\n[attributes]\nage = ["young", "old"]\n'
    )
    (tmp_path / "t.csv").write_text("geocode,age\n01,5\n01,18\n01,17.9\n02,99\n02,-1\n02,old\n02,\n")
    (tmp_path / "r.toml").write_text(
        '[run]\nproduct = "p.toml"\n[input]\nreader = "records"\npath = "t.csv"\n'
        f"bins = {{ age = {bins} }}\n"
        '[geography]\nlevels = [{ name = "all", prefix = 0 }, { name = "spot" }]\nframe = "from-records"\n'
        '[budget]\nrho = "1"\ngeolevels = { all = "1/2", spot = "1/2" }\n'
        '[budget.queries]\n"*" = { detailed = "1" }\n'
    )
    with pytest.raises((ConfigError, DataError)) as caught:
        od.release(od.load(tmp_path / "r.toml", read_records=True), out=tmp_path / "out", workers=1)
    if said == "2 levels and 2":  # which fit: the records do not
        assert "expected a number, 0 or more" in str(caught.value)
        assert all(f"t.csv, line {line}, field age" in str(caught.value) for line in (6, 7, 8))
    else:
        assert said in str(caught.value)
