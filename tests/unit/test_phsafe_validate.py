"""Input validation: each rule found by file and line, against a twin that looks at one row at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.households import World, configuration, random_world, write_world
from support.seeds import seeds

from opendas.errors import DataError, Finding
from opendas.phsafe.config import Mode, parse_config
from opendas.phsafe.inputs.findings import MOST_LINES, InputFiles, Source, list_lines
from opendas.phsafe.inputs.linking import link, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.inputs.records import Inputs
from opendas.phsafe.validate import Validation, validate

STATES = ["06", "44"]
FILES = ("persons.csv", "units.csv", "geo.csv")

LISTS: dict[str, dict[str, set[str]]] = {
    "persons.csv": {
        "RTYPE": {"3", "5"},
        "QAGE": {str(age) for age in range(116)},
        "CENHISP": {"1", "2"},
        "CENRACE": {f"{race:02d}" for race in range(1, 64)},
        "RELSHIP": {str(code) for code in range(20, 39)},
    },
    "units.csv": {
        "RTYPE": {"2", "4"},
        "FINAL_POP": {str(people) for people in range(100_000)},
        "NPF": {"0", *map(str, range(2, 98))},
        "HHSPAN": {"0", "1", "2"},
        "HHRACE": {f"{race:02d}" for race in range(64)},
        "TEN": set("01234"),
        "HHT": set("01234567"),
        "HHT2": {f"{kind:02d}" for kind in range(13)},
        "CPLT": set("012345"),
    },
    "geo.csv": {"RTYPE": {"2", "4"}},
}
BAD = ("", "x", "-1", "1.5", "00", "1", "3", "9", "64", "98", "116", "127", "200", "100000", "9" * 20)
INTEGERS = {"QAGE", "CENHISP", "FINAL_POP", "NPF", "HHSPAN"}


def check(folder: Path, world: World, *, everything: bool = False, **options: object) -> Validation:
    inputs = sort_inputs(read_csv(write_world(folder, world), STATES))
    config = parse_config(json.dumps(configuration(**options)), Mode.VALIDATE)  # type: ignore[arg-type]
    return validate(inputs, link(inputs, STATES), config, every_table=everything)


def spots(found: tuple[Finding, ...]) -> set[tuple[str, int | None, str | None]]:
    return {(finding.file, finding.line, finding.field) for finding in found}


def test_a_sound_world_has_no_errors(tmp_path: Path) -> None:
    assert check(tmp_path, random_world(4, 150)).errors == ()


@pytest.mark.parametrize("seed", seeds(12))
def test_every_value_outside_its_list_is_found_and_no_other(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    world = random_world(seed, 25)
    wanted = set()
    for _ in range(12):
        table = source.randrange(3)
        file = FILES[table]
        row = source.randrange(len(world[table]))
        field = source.choice(list(LISTS[file]))
        value = source.choice(BAD)
        world[table][row][field] = value
        meant = str(int(value)) if field in INTEGERS and value.isdigit() else value
        if meant not in LISTS[file][field]:
            wanted.add((file, row + 2, field))
        else:
            wanted.discard((file, row + 2, field))
    found = check(tmp_path, world, without=ALL_TABLES_BUT_ONE).errors
    values = {_spot(finding) for finding in found if "counted by" not in finding.rule}
    assert values == wanted
    assert not any(value in finding.rule for finding in found for value in ("1.5", "99999999999999999999"))


ALL_TABLES_BUT_ONE = ("PH1_denom", "PH2", "PH3", "PH4", "PH5_denom", "PH6", "PH7", "PH8_denom")


ALL_TABLES = ("PH1_num", *ALL_TABLES_BUT_ONE)


def _spot(finding: Finding) -> tuple[str, int | None, str | None]:
    return finding.file, finding.line, finding.field


def test_a_row_with_a_wrong_value_is_not_reported_again_for_its_cell(tmp_path: Path) -> None:
    world = random_world(5, 60)
    unit = next(u for u in world[1] if u["HHT"] != "0")
    unit["HHT2"] = "13"
    found = check(tmp_path, world).errors
    assert spots(found) == {("units.csv", world[1].index(unit) + 2, "HHT2")}


def _household(world: World) -> tuple[int, list[int]]:
    """Return an occupied housing unit with a minor who is no own child, and its persons, by position."""
    for number, unit in enumerate(world[1]):
        people = [k for k, person in enumerate(world[0]) if person["MAFID"] == unit["MAFID"]]
        if unit["RTYPE"] == "2" and unit["HHT"] in "123" and len(people) > 2:
            return number, people
    raise AssertionError


CELLS: list[tuple[Callable[[World, int, list[int]], None], set[str]]] = [
    (lambda w, u, p: w[1][u].update(TEN="0"), {"PH7", "PH8_denom"}),
    (lambda w, u, p: w[1][u].update(HHT2="01", CPLT="5"), {"PH2"}),
    (lambda w, u, p: w[1][u].update(HHT2="04", CPLT="1"), {"PH2"}),
    (lambda w, u, p: w[1][u].update(HHT2="00", CPLT="0"), {"PH2"}),
    (
        lambda w, u, p: w[1][u].update(HHRACE="00"),
        {"PH1_num", "PH1_denom", "PH4", "PH5_denom", "PH7", "PH8_denom"},
    ),
    *(
        (
            lambda w, u, p, kind=kind: (
                w[1][u].update(HHT2=kind, CPLT={"02": "1", "04": "3"}.get(kind, "5")),
                [w[0][k].update(QAGE="40") for k in p],
                w[0][p[0]].update(QAGE="17", RELSHIP="26"),
            ),
            {"PH3", "PH6"},
        )
        for kind in ("02", "04", "05", "07", "08", "09", "11", "12")
    ),
    (lambda w, u, p: w[0][p[0]].update(QAGE="17", RELSHIP="38"), {"PH3"}),
    (lambda w, u, p: w[0][p[0]].update(QAGE="18", RELSHIP="38"), set()),
]


@pytest.mark.parametrize(("change", "tables"), CELLS)
def test_the_impossible_combinations(
    change: Callable[[World, int, list[int]], object], tables: set[str], tmp_path: Path
) -> None:
    world = random_world(11, 60)
    unit, people = _household(world)
    if tables != {"PH3", "PH6"}:
        for k in people:
            world[0][k]["QAGE"] = "40"
    change(world, unit, people)
    found = check(tmp_path / "a", world).errors
    named = {finding.rule.split("counted by ")[1].split(",")[0] for finding in found}
    assert named == tables
    lines = {"units.csv": {unit + 2}, "persons.csv": {k + 2 for k in people}}
    for finding in found:
        assert finding.line in lines[finding.file]
        assert finding.file == "units.csv" or finding.rule.endswith(f"(its unit: units.csv, line {unit + 2})")
    if tables:
        # Without a budget for these tables nothing is wrong; the non-private mode would warn all the same.
        assert check(tmp_path / "b", world, without=tuple(tables)).errors == ()
        assert check(tmp_path / "c", world, without=tuple(tables), everything=True).errors == found


def test_group_quarters_are_in_no_table_whatever_their_codes(tmp_path: Path) -> None:
    world = random_world(12, 60)
    place = next(k for k, row in enumerate(world[2]) if row["RTYPE"] == "4")
    unit = next(row for row in world[1] if row["MAFID"] == world[2][place]["MAFID"])
    unit.update(RTYPE="2", HHT="1", HHT2="00", TEN="0", HHRACE="00")
    found = check(tmp_path, world)
    assert found.errors == ()
    assert ("units.csv", world[1].index(unit) + 2, "RTYPE") in spots(found.warnings)


def test_keys_and_values_and_cells_come_together(tmp_path: Path) -> None:
    world = random_world(13, 80)
    unit, people = _household(world)
    world[1][unit]["TEN"] = "0"
    world[0][people[0]]["QAGE"] = "116"
    other = next(k for k in range(len(world[1])) if k != unit)
    world[1].append(dict(world[1][other]))
    gone = next(k for k in range(len(world[1])) if k not in (unit, other) and world[1][k]["HHT"] != "0")
    mafid = world[1].pop(gone)["MAFID"]
    found = check(tmp_path, world).errors
    at = spots(found)
    unit -= gone < unit
    assert ("persons.csv", people[0] + 2, "QAGE") in at
    assert ("units.csv", unit + 2, "TEN") in at
    assert ("units.csv", len(world[1]) + 1, "MAFID") in at
    dangling = {k + 2 for k, person in enumerate(world[0]) if person["MAFID"] == mafid}
    assert {line for file, line, field in at if (file, field) == ("persons.csv", "MAFID")} >= dangling
    assert mafid not in " ".join(map(str, found))


def test_what_lies_outside_the_state_filter_is_not_looked_at(tmp_path: Path) -> None:
    world = random_world(14, 60)
    outside = {row["MAFID"] for row in world[2] if row["TABBLKST"] == "44"}
    for table in world[:2]:
        for row in table:
            if row["MAFID"] in outside:
                row.update(RTYPE="9")
    world[1].append(dict(next(row for row in world[1] if row["MAFID"] in outside)))
    inputs = read_csv(write_world(tmp_path, world), ["06"])
    config = parse_config(json.dumps(configuration(states=["06"])), Mode.VALIDATE)
    assert validate(inputs, link(inputs, ["06"]), config).errors == ()
    both = read_csv(tmp_path, STATES)
    config = parse_config(json.dumps(configuration()), Mode.VALIDATE)
    assert validate(both, link(both, STATES), config).errors != ()


def test_the_first_lines_of_a_kind_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    world = random_world(15, 60)
    for row in world[0]:
        row["CENHISP"] = "3"
    found = check(tmp_path, world).errors
    assert [finding.line for finding in found] == [*range(2, MOST_LINES + 2), None]
    assert f"({len(world[0]) - MOST_LINES} further lines)" in found[-1].rule
    with pytest.raises(DataError) as caught:
        Validation(found, ()).refuse_errors(tmp_path)
    assert len(str(caught.value).splitlines()) == len(found) + 1


WARNINGS = {
    "FINAL_POP": {"FINAL_POP": "77"},
    "HHRACE": {"HHRACE": "55"},
    "HHT": {"HHT": "4"},
    "CPLT": {"CPLT": "4", "HHT2": "10"},
    "RTYPE": {"RTYPE": "4"},
}


@pytest.mark.parametrize("field", WARNINGS)
def test_inconsistencies_are_warnings(field: str, tmp_path: Path) -> None:
    world = random_world(16, 60)
    unit, people = _household(world)
    head = next(k for k in people if world[0][k]["RELSHIP"] == "20")
    for k in people:
        world[0][k]["QAGE"] = "40"
        if k != head:
            world[0][k]["RELSHIP"] = "36"
    sound = {"HHT": "1", "HHT2": "02", "CPLT": "1", "TEN": "1", "FINAL_POP": str(len(people))}
    sound |= {"HHRACE": world[0][head]["CENRACE"], "HHSPAN": world[0][head]["CENHISP"]}
    world[1][unit].update(sound)
    before = check(tmp_path / "a", world)
    assert unit + 2 not in {finding.line for finding in before.warnings if finding.file == "units.csv"}
    world[1][unit].update(WARNINGS[field])
    after = check(tmp_path / "b", world)
    assert after.errors == ()
    assert ("units.csv", unit + 2, field) in spots(after.warnings)


def test_a_householder_too_many_is_a_warning(tmp_path: Path) -> None:
    world = random_world(17, 60)
    unit, people = _household(world)
    world[0][next(k for k in people if world[0][k]["RELSHIP"] != "20")].update(RELSHIP="20", QAGE="50")
    found = check(tmp_path, world)
    rule = "a household has exactly one person with RELSHIP 20"
    assert [one.line for one in found.warnings if one.rule == rule] == [unit + 2]
    assert found.errors == ()


EDGES = {
    "QAGE": (0, 115),
    "CENHISP": (1, 2),
    "CENRACE": (1, 63),
    "RELSHIP": (20, 38),
    "FINAL_POP": (0, 99_999),
    "NPF": (2, 97),
    "HHSPAN": (0, 2),
    "HHRACE": (0, 63),
    "TEN": (0, 4),
    "HHT": (0, 7),
    "HHT2": (0, 12),
    "CPLT": (0, 5),
}


@pytest.mark.parametrize("field", EDGES)
def test_the_edges_of_every_list(field: str, tmp_path: Path) -> None:
    low, high = EDGES[field]
    table = 0 if field in LISTS["persons.csv"] else 1
    width = 2 if field in ("CENRACE", "RELSHIP", "HHRACE", "HHT2") else 1
    for number, sound in ((low - 1, False), (low, True), (high, True), (high + 1, False)):
        world = random_world(19, 12)
        world[table][0][field] = f"{number:0{width}d}"
        found = check(tmp_path / str(number), world, without=ALL_TABLES).errors
        assert spots(found) == (set() if sound else {(FILES[table], 2, field)}), number


def test_lines_of_several_files_are_told_by_file() -> None:
    import numpy as np

    source = Source(("a.txt", "b.txt", "c.txt"), (10, 15))
    places = [source.locate(line) for line in (1, 10, 11, 15, 16, 99)]
    assert places == [("a.txt", 1), ("a.txt", 10), ("b.txt", 1), ("b.txt", 5), ("c.txt", 1), ("c.txt", 84)]
    found = list_lines(source, np.array([16, 11, 11, 3]), "QAGE", "rule")
    assert [str(one) for one in found] == [
        "a.txt, line 3, field QAGE: rule",
        "b.txt, line 1, field QAGE: rule",
        "c.txt, line 1, field QAGE: rule",
    ]
    assert source.title == "a.txt to c.txt"
    assert "secret" not in repr(InputFiles(source, source, source))


def test_findings_hold_places_and_no_values(tmp_path: Path) -> None:
    world = random_world(18, 30)
    for row in world[0]:
        row["QAGE"] = "119"
    found = check(tmp_path, world).errors
    assert found
    assert "119" not in " ".join(finding.rule for finding in found)


def test_an_input_of_nothing_is_sound(tmp_path: Path) -> None:
    found = check(tmp_path, ([], [], []))
    assert (found.errors, found.warnings) == ((), ())
    assert isinstance(read_csv(tmp_path, STATES), Inputs)
