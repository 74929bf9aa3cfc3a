"""Synthetic households: what is written, that it agrees with itself, and that it is the same each time."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from support import made_phsafe as made
from support.made_phsafe import Made, production_config, write_made

from opendas.errors import ConfigError
from opendas.phsafe.config import Mode, parse_config, read_config
from opendas.phsafe.inputs import fields
from opendas.phsafe.inputs.levels import find_level
from opendas.phsafe.inputs.read_csv import KINDS
from opendas.phsafe.run import HouseholdOptions, validate_input
from opendas.readers.cef.records import MAFID_RANGE

FILES = {file.name: file.columns for file in KINDS}
WIDTHS = {
    "RTYPE": 1,
    "MAFID": 9,
    "CENHISP": 1,
    "CENRACE": 2,
    "RELSHIP": 2,
    "HHSPAN": 1,
    "HHRACE": 2,
    "TEN": 1,
}
WIDTHS |= {"HHT": 1, "HHT2": 2, "CPLT": 1, "TABBLKST": 2, "TABBLKCOU": 3, "TABTRACTCE": 6, "TABBLK": 4}
WIDTHS |= {"TABBLKGRPCE": 1, "REGIONCE": 1, "DIVISIONCE": 1, "PLACEFP": 5, "AIANNHCE": 4}
RELATIVES = {20, 21, 23, *range(25, 34)}

Rows = list[dict[str, str]]


def rows_of(folder: Path, name: str) -> Rows:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (*FILES, "config.json")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made")
    write_made(path, 3000, 5, ["06", "44", "48"])
    return path


@pytest.fixture(scope="module")
def homes(folder: Path) -> dict[str, tuple[dict[str, str], Rows]]:
    people: dict[str, Rows] = {}
    for person in rows_of(folder, "persons.csv"):
        people.setdefault(person["MAFID"], []).append(person)
    return {unit["MAFID"]: (unit, people.get(unit["MAFID"], [])) for unit in rows_of(folder, "units.csv")}


@pytest.mark.parametrize("name", FILES)
def test_files_have_the_published_columns_and_widths(folder: Path, name: str) -> None:
    assert (folder / name).read_text().splitlines()[0] == ",".join(FILES[name])
    for row in rows_of(folder, name):
        for column, text in row.items():
            assert text.isdigit()
            assert len(text) == WIDTHS.get(column, len(text)), column


def test_what_is_made_passes_validation(folder: Path) -> None:
    answer = validate_input(folder / "config.json", folder, HouseholdOptions())
    assert answer["states"] == ["06", "44", "48"]


def test_units_agree_with_their_persons(homes: dict[str, tuple[dict[str, str], Rows]]) -> None:
    for unit, people in homes.values():
        codes = [int(person["RELSHIP"]) for person in people]
        assert int(unit["FINAL_POP"]) == len(people)
        if unit["RTYPE"] == "4":
            assert people
            assert {person["RTYPE"] for person in people} == {"5"}
            assert set(codes) <= {37, 38}
            continue
        if not people:
            assert {unit[name] for name in ("HHSPAN", "HHT", "TEN", "CPLT")} == {"0"}
            continue
        head = people[codes.index(20)]
        assert codes.count(20) == 1
        assert (unit["HHRACE"], unit["HHSPAN"]) == (head["CENRACE"], head["CENHISP"])
        assert unit["TEN"] in "1234"
        family = sum(code in RELATIVES for code in codes)
        assert int(unit["NPF"]) == (family if family > 1 else 0)
        assert int(head["QAGE"]) >= 18


def test_types_of_household_follow_from_relationships(
    homes: dict[str, tuple[dict[str, str], Rows]],
) -> None:
    couples = {21: "1", 22: "3", 23: "2", 24: "4"}
    for unit, people in homes.values():
        if not people or unit["RTYPE"] == "4":
            continue
        codes = [int(person["RELSHIP"]) for person in people]
        partners = [code for code in codes if code in couples]
        minors = any(p["RELSHIP"] in ("25", "26", "27") and int(p["QAGE"]) < 18 for p in people)
        hht2, hht = int(unit["HHT2"]), int(unit["HHT"])
        assert unit["CPLT"] == (couples[partners[0]] if partners else "5")
        assert (hht2 in (1, 2)) == (unit["CPLT"] in "12")
        assert (hht2 in (3, 4)) == (unit["CPLT"] in "34")
        assert (hht2 in (1, 3, 6, 10)) == minors
        assert (hht2 in (5, 9)) == (len(people) == 1) == (hht in (4, 6))
        assert (hht == 1) == (hht2 in (1, 2))
        assert (hht in (2, 3)) <= (int(unit["NPF"]) > 1)


def test_there_are_households_above_every_threshold(homes: dict[str, tuple[dict[str, str], Rows]]) -> None:
    sizes = Counter(len(people) for unit, people in homes.values() if unit["RTYPE"] == "2")
    occupied = sum(count for size, count in sizes.items() if size)
    assert occupied == 3000
    assert sizes[0] == 300
    assert any(size > 10 for size in sizes)
    assert 2.3 < sum(size * count for size, count in sizes.items()) / occupied < 2.7


def test_one_seed_makes_one_set_of_files(folder: Path, tmp_path: Path) -> None:
    counts = write_made(tmp_path / "again", 3000, 5, ["48", "44", "06"])
    assert digests(tmp_path / "again") == digests(folder)
    assert counts == Made(len(rows_of(folder, "persons.csv")), 3000, 3308, 3308)
    write_made(tmp_path / "other", 3000, 6, ["06", "44", "48"])
    assert digests(tmp_path / "other")[:3] != digests(folder)[:3]


def test_pieces_continue_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "_PIECE", 50)
    counts = write_made(tmp_path, 140, 0)
    units, places = rows_of(tmp_path, "units.csv"), rows_of(tmp_path, "geo.csv")
    assert len({unit["MAFID"] for unit in units}) == counts.units == 140 + 14 + 3
    assert [unit["MAFID"] for unit in units] == [place["MAFID"] for place in places]
    assert all(100_000_001 <= int(unit["MAFID"]) <= 899_999_999 for unit in units)
    validate_input(tmp_path / "config.json", tmp_path, HouseholdOptions())


def test_the_configuration_is_the_production_run(folder: Path) -> None:
    config = read_config(folder / "config.json", Mode.PRIVATE)
    assert sum(Fraction(loss) for _, _, loss in config.measured) == Fraction("1.257281")
    assert len(config.measured) == 46
    islands = parse_config(production_config(["72"]), Mode.PRIVATE)
    assert all(level.name.startswith("state") for _, level, _ in islands.measured)
    assert sum(Fraction(loss) for _, _, loss in islands.measured) == Fraction("1.226649")
    level = find_level("state_A-G")
    assert level is not None
    assert config.budgets["PH3"][level] == Fraction("0.662976")


@pytest.mark.parametrize(
    ("households", "seed", "states"), [(0, 0, None), (5, -1, None), (5, 0, ["03"]), (5, 0, [])]
)
def test_what_cannot_be_made_is_refused(
    tmp_path: Path, households: int, seed: int, states: Sequence[str] | None
) -> None:
    with pytest.raises(ConfigError):
        write_made(tmp_path / "made", households, seed, states)
    assert not (tmp_path / "made").exists()


def test_keys_have_one_range_everywhere() -> None:
    assert fields._MAFIDS == MAFID_RANGE == (made._FIRST_MAFID, made._FIRST_MAFID + made._MAFIDS - 1)
