"""Bad input to ``opendas phsafe``: exit code, file and line, nobody's values, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.data import shared_data
from support.households import World, configuration, random_world, write_world
from support.made_cef_files import write_cef

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.readers.cef.records import UNITS

Capture = pytest.CaptureFixture[str]
Change = Callable[[World], object]


class Office:
    """A folder with data and configuration, and nothing else."""

    def __init__(self, folder: Path, world: World, document: dict[str, Any] | None = None) -> None:
        self.data = write_world(folder / "data", world)
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(document or configuration()))
        self.out = folder / "out"
        self.world = world
        self.folder = folder

    def refuses(self, capsys: Capture, code: int) -> str:
        """Run all that may refuse, and return what the private run said."""
        before = sorted(self.folder.rglob("*"))
        validate = ["phsafe", str(self.config), str(self.data), "--mode", "validate"]
        assert guarded(cli, validate) == code
        first = capsys.readouterr()
        assert guarded(cli, ["phsafe", str(self.config), str(self.data), str(self.out)]) == code
        second = capsys.readouterr()
        assert findings(first.err) == findings(second.err)
        assert first.out == second.out == ""
        assert sorted(self.folder.rglob("*")) == before
        keys = {row["MAFID"] for table in self.world for row in table}
        assert not any(key in second.err for key in keys)
        return second.err


def findings(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


def inside(world: World, state: str = "06") -> dict[str, str]:
    """Return an occupied housing unit of a state with at least two persons."""
    states = {place["MAFID"]: place["TABBLKST"] for place in world[2]}
    people = [person["MAFID"] for person in world[0]]
    return next(
        unit
        for unit in world[1]
        if unit["HHT"] != "0" and states[unit["MAFID"]] == state and people.count(unit["MAFID"]) > 1
    )


def person_of(world: World, unit: dict[str, str]) -> dict[str, str]:
    return next(person for person in world[0] if person["MAFID"] == unit["MAFID"])


CASES: dict[str, tuple[Change, str, str]] = {
    "duplicate unit": (lambda w: w[1].append(dict(inside(w))), "units.csv", "the key stands more than once"),
    "duplicate place": (
        lambda w: w[2].append(next(dict(p) for p in w[2] if p["MAFID"] == inside(w)["MAFID"])),
        "geo.csv",
        "the key stands more than once",
    ),
    "dangling persons": (
        lambda w: w[1].remove(inside(w)),
        "persons.csv",
        "field MAFID: the key is not in units.csv",
    ),
    "age": (
        lambda w: person_of(w, inside(w)).update(QAGE="116"),
        "persons.csv",
        "field QAGE: expected 0 to 115",
    ),
    "negative age": (lambda w: person_of(w, inside(w)).update(QAGE="-3"), "persons.csv", "field QAGE"),
    "relationship": (
        lambda w: person_of(w, inside(w)).update(RELSHIP="39"),
        "persons.csv",
        "field RELSHIP: expected 20 to 38",
    ),
    "race": (lambda w: person_of(w, inside(w)).update(CENRACE="64"), "persons.csv", "field CENRACE"),
    "race without its zero": (
        lambda w: person_of(w, inside(w)).update(CENRACE="1"),
        "persons.csv",
        "field CENRACE: expected 01 to 63",
    ),
    "origin": (lambda w: person_of(w, inside(w)).update(CENHISP="0"), "persons.csv", "field CENHISP"),
    "record type": (lambda w: person_of(w, inside(w)).update(RTYPE="4"), "persons.csv", "field RTYPE"),
    "family of one": (lambda w: inside(w).update(NPF="1"), "units.csv", "field NPF: expected 0, or 2 to 97"),
    "household type": (lambda w: inside(w).update(HHT2="13"), "units.csv", "field HHT2"),
    "tenure": (lambda w: inside(w).update(TEN="5"), "units.csv", "field TEN"),
    "no tenure": (lambda w: inside(w).update(TEN=""), "units.csv", "field TEN"),
    "population": (lambda w: inside(w).update(FINAL_POP="100000"), "units.csv", "field FINAL_POP"),
    "tenure of a household": (
        lambda w: inside(w).update(TEN="0"),
        "persons.csv",
        "counted by PH7, without a cell: the unit needs TEN 1 to 4 (its unit: units.csv, line",
    ),
    "couple": (
        lambda w: inside(w).update(HHT2="01", CPLT="5"),
        "persons.csv",
        "counted by PH2, without a cell",
    ),
    "race of the householder": (
        lambda w: inside(w).update(HHRACE="00"),
        "units.csv",
        "counted by PH8_denom, without a cell: the unit needs HHRACE 01 to 63",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_data_are_refused_with_file_and_line(name: str, tmp_path: Path, capsys: Capture) -> None:
    change, file, words = CASES[name]
    world = random_world(21, 60)
    change(world)
    lines = findings(Office(tmp_path, world).refuses(capsys, 3))
    assert any(line.startswith(f"{file}, line ") and words in line for line in lines), lines


@pytest.mark.parametrize("name", [name for name, (_, file, _) in CASES.items() if name != "duplicate place"])
def test_the_same_outside_the_state_filter_is_nobodys_business(name: str, tmp_path: Path) -> None:
    world = random_world(21, 60, ("06", "44"))
    CASES[name][0](world)
    office = Office(tmp_path, world, configuration(states=("44",)))
    assert guarded(cli, ["phsafe", str(office.config), str(office.data), str(office.out)]) == 0


def test_everything_wrong_comes_together(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(21, 60)
    unit = inside(world)
    unit["TEN"] = "0"
    person_of(world, unit)["QAGE"] = "117"
    other = inside((world[0], [row for row in world[1] if row is not unit], world[2]))
    world[2].append(dict(world[2][0], MAFID="899999999"))
    world[1].append(dict(other))
    office = Office(tmp_path, world)
    lines = findings(office.refuses(capsys, 3))
    words = " ".join(lines)
    for part in (
        "field QAGE",
        "counted by PH7",
        "counted by PH8_denom",
        "more than once",
        "not in units.csv",
    ):
        assert part in words
    assert {line.split(",")[0] for line in lines} == {"persons.csv", "units.csv", "geo.csv"}


def test_wrong_form_and_wrong_values_come_together(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(21, 60)
    inside(world)["TEN"] = "7"
    office = Office(tmp_path, world)
    people = office.data / "persons.csv"
    header, *rows = people.read_text().splitlines()
    names = header.split(",")
    people.write_text("\n".join([",".join([names[1], names[0], *names[2:]]), *rows]) + "\n")
    geo = office.data / "geo.csv"
    geo.write_text(geo.read_text() + "2,100000999,06\n")
    lines = findings(office.refuses(capsys, 3))
    assert lines[0].startswith("persons.csv, line 1: the columns stand in another order")
    assert any(line.startswith("units.csv, line ") and "field TEN" in line for line in lines)
    assert any(line.startswith("geo.csv, line 62: expected 11 fields") for line in lines)


@pytest.mark.parametrize("name", ["persons.csv", "units.csv", "geo.csv"])
def test_a_missing_file(name: str, tmp_path: Path, capsys: Capture) -> None:
    office = Office(tmp_path, random_world(21, 20))
    (office.data / name).unlink()
    assert findings(office.refuses(capsys, 3)) == [f"{name}: is missing"]


CONFIGURATIONS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "72 with others": (lambda d: d.update(state_filter=["72", "06"]), "Puerto Rico (72) is a run of its own"),
    "no such state": (lambda d: d.update(state_filter=["03"]), "no state has the code"),
    "tau zero": (lambda d: d["tau"].update(PH3=0), "tau.PH3: expected an integer from 1"),
    "tau true": (lambda d: d["tau"].update(PH3=True), "tau.PH3: expected an integer from 1"),
    "level": (lambda d: d["privacy_budget"]["PH2"].update({"usa_A-G": 1}), "privacy_budget.PH2.usa_A-G"),
    "table": (lambda d: d["privacy_budget"].update(PH9={}), "privacy_budget.PH9"),
    "reader": (lambda d: d.update(reader="parquet"), "reader: expected 'csv' or 'cef'"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_bad_configuration_is_exit_code_2(name: str, tmp_path: Path, capsys: Capture) -> None:
    document = configuration()
    CONFIGURATIONS[name][0](document)
    text = Office(tmp_path, random_world(21, 20), document).refuses(capsys, 2)
    assert CONFIGURATIONS[name][1] in text


def test_errors_of_a_configuration_come_together(tmp_path: Path, capsys: Capture) -> None:
    document = configuration()
    for change, _ in CONFIGURATIONS.values():
        change(document)
    text = Office(tmp_path, random_world(21, 20), document).refuses(capsys, 2)
    assert sum(words in text for _, words in CONFIGURATIONS.values()) >= 5


def test_the_answer_of_validation_in_json(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(21, 60)
    office = Office(tmp_path, world)
    words = ["phsafe", str(office.config), str(office.data), "--mode", "validate", "--json"]
    assert guarded(cli, words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["mode"], answer["ok"], answer["errors"]) == ("validate", True, [])
    assert {"file", "line", "field", "rule"} == set(answer["warnings"][0])
    inside(world)["TEN"] = "5"
    write_world(office.data, world)
    assert guarded(cli, words) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert [finding["field"] for finding in answer["errors"]] == ["TEN"]


def test_non_private_mode_warns_and_goes_on(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(21, 60)
    unit = inside(world)
    unit["TEN"] = "0"
    person_of(world, unit)["QAGE"] = "117"
    world[1].append(dict(inside(world, "44")))
    office = Office(tmp_path, world)
    assert (
        guarded(
            cli, ["phsafe", str(office.config), str(office.data), str(office.out), "--mode", "non-private"]
        )
        == 0
    )
    text = capsys.readouterr().err
    assert "a private run refuses this input" in text
    for part in ("field QAGE", "counted by PH7", "the key stands more than once"):
        assert part in text
    assert unit["MAFID"] not in text


@pytest.mark.parametrize("case", ["test1", "test2"])
@pytest.mark.parametrize("mode", ["private", "non-private", "validate"])
def test_the_odd_published_cases_run_in_every_mode(case: str, mode: str, tmp_path: Path) -> None:
    folder = shared_data("phsafe_e2e") / case
    out = [] if mode == "validate" else [str(tmp_path / "out")]
    assert guarded(cli, ["phsafe", str(folder / "config.json"), str(folder), *out, "--mode", mode]) == 0


def test_the_reader_cef_refuses_as_the_reader_csv(tmp_path: Path, capsys: Capture) -> None:
    write_cef(tmp_path / "data", blocks=60, seed=1, code="44")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration(states=("44",)) | {"reader": "cef"}))
    path = tmp_path / "data" / "CEF20_UNIT_44.txt"
    lines = path.read_text().splitlines()
    at, _ = UNITS.fields["HHT"]
    row = next(k for k, line in enumerate(lines) if line[at] not in " 0")
    lines[row] = f"{lines[row][:at]}9{lines[row][at + 1 :]}"
    path.write_text("\n".join([*lines, lines[0]]) + "\n")
    words = ["phsafe", str(config), str(tmp_path / "data" / "cef_config.ini"), str(tmp_path / "out")]
    assert guarded(cli, words) == 3
    text = capsys.readouterr().err
    assert f"CEF20_UNIT_44.txt, line {row + 1}, field HHT: expected 0 to 7" in text
    assert f"CEF20_UNIT_44.txt, line {len(lines) + 1}, field MAFID: the key stands more than once" in text
    assert not (tmp_path / "out").exists()
