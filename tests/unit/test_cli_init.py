"""Run files to start from are run files that work."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from opendas.budget.resolve import resolve_budget
from opendas.cli.main import cli
from opendas.errors import ConfigError, FormatError
from opendas.runs.config.load import load_run_file
from opendas.runs.config.resolve import resolve
from opendas.runs.starting.guess import guess_table

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
    assert (guess.unit_id, guess.count, guess.ignored) == (None, None, ("person",))


def test_a_table_of_counts_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "zones.csv").write_text(COUNTS)
    guess = guess_table(tmp_path / "zones.csv")
    assert (guess.reader, guess.geocode, guess.count) == ("histogram", "zone", "people")
    assert guess.attributes == {"age": ("old", "young")}
    assert guess.levels[0] == ("all", 0, None)
    assert guess.levels[-1] == ("zone", None, None)


def test_columns_become_names_that_geolevels_may_have(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("geoid,A:B,sex,age\n11,n,f,a\n12,n,m,b\n13,s,m,a\n13,s,f,a\n")
    guess = guess_table(tmp_path / "odd.csv")
    assert guess.levels == (("all", 0, None), ("a_b", None, "A:B"), ("geoid", None, None))


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"geocode": ["01", "02"] * 4, "kind": ["a", "b", "b", "a"] * 2}), tmp_path / "t.parquet"
    )
    assert guess_table(tmp_path / "t.parquet").reader == "records"


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
