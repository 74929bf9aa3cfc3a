"""PHSafe's tables one row at a time, written from the published table shells with their text codes.

Nothing here is shared with the package: rows are dictionaries of texts, a region is a text, a count is a
dictionary entry. Slow on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

Row = dict[str, str]
Key = tuple[str, str, str, int]
"""Region, region type, iteration code, cell."""


class NoCell(Exception):
    """A counted row that the published program would crash on."""


def iterations(race: str, hispanic: str) -> list[str]:
    """Iteration codes of a row; a race of 00 has none of A to G."""
    found = ["*"]
    if race in ("01", "02", "03", "04", "05", "06"):
        found.append("ABCDEF"[int(race) - 1])
    elif "07" <= race <= "63":
        found.append("G")
    if hispanic == "2":
        found.append("H")
    elif race == "01" and hispanic == "1":
        found.append("I")
    return found


def ph2(unit: Row) -> int:
    hht2, cplt = unit["HHT2"], unit["CPLT"]
    if hht2 in ("01", "02") and cplt == "1":
        return 3
    if hht2 in ("01", "02") and cplt == "2":
        return 4
    if hht2 in ("03", "04") and cplt == "3":
        return 6
    if hht2 in ("03", "04") and cplt == "4":
        return 7
    if hht2 == "09":
        return 9
    if hht2 in ("10", "11", "12"):
        return 10
    if hht2 == "05":
        return 12
    if hht2 in ("06", "07", "08"):
        return 13
    raise NoCell


def ph3(person: Row, unit: Row) -> int:
    relation, hht2 = person["RELSHIP"], unit["HHT2"]
    if relation in ("20", "21", "22", "23", "24", "34", "35", "36"):
        return 2
    if relation in ("25", "26", "27"):
        if hht2 == "01":
            return 4
        if hht2 == "03":
            return 5
        if hht2 == "10":
            return 6
        if hht2 == "06":
            return 7
    if relation == "30":
        return 9
    if relation in ("28", "29", "31", "32", "33"):
        return 10
    raise NoCell


def ph6(person: Row, unit: Row) -> int:
    base = {"01": 3, "03": 8, "10": 13, "06": 18}.get(unit["HHT2"])
    if base is None:
        raise NoCell
    age = int(person["QAGE"])
    if age < 4:
        return base
    if age in (4, 5):
        return base + 1
    if 6 <= age <= 11:
        return base + 2
    return base + 3


def tenure(unit: Row, cells: dict[str, int]) -> int:
    if unit["TEN"] not in cells:
        raise NoCell
    return cells[unit["TEN"]]


def in_table(table: str, person: Row | None, unit: Row) -> bool:
    if table == "PH1_denom" or table == "PH8_denom":
        return unit["RTYPE"] == "2" and unit["HHT"] != "0"
    if table == "PH5_denom":
        return unit["HHT"] in ("1", "2", "3")
    assert person is not None
    child = person["RELSHIP"] in ("25", "26", "27")
    minor = int(person["QAGE"]) < 18
    if table in ("PH1_num", "PH2", "PH7"):
        return person["RTYPE"] == "3"
    if table == "PH3":
        return person["RTYPE"] == "3" and minor
    if table == "PH4":
        related = person["RELSHIP"] in ("20", "21", "23", "25", "26", "27", "28", "29") or (
            "30" <= person["RELSHIP"] <= "33"
        )
        return related and unit["HHT"] <= "3"
    assert table == "PH6"
    return minor and child


def cell(table: str, person: Row | None, unit: Row) -> int:
    if table in ("PH1_denom", "PH5_denom"):
        return 1
    if table == "PH8_denom":
        return tenure(unit, {"1": 2, "2": 2, "3": 3, "4": 3})
    if table == "PH2":
        return ph2(unit)
    if table == "PH7":
        return tenure(unit, {"1": 2, "2": 3, "3": 4, "4": 4})
    assert person is not None
    if table in ("PH1_num", "PH4"):
        return 2 if int(person["QAGE"]) < 18 else 3
    return ph3(person, unit) if table == "PH3" else ph6(person, unit)


def joined(
    table: str, persons: list[Row], units: list[Row], geo: list[Row], states: list[str]
) -> Iterator[tuple[Row | None, Row, str]]:
    """Every row of a table's universe with its state."""
    state_of = {
        row["MAFID"]: row["TABBLKST"]
        for row in geo
        if row["RTYPE"] not in ("4", "5") and row["TABBLKST"] in states
    }
    unit_of = {unit["MAFID"]: unit for unit in units}
    if table.endswith("denom"):
        rows: list[tuple[Row | None, Row]] = [(None, unit) for unit in units]
    else:
        rows = [(person, unit_of[person["MAFID"]]) for person in persons if person["MAFID"] in unit_of]
    for person, unit in rows:
        state = state_of.get(unit["MAFID"])
        if state is not None and in_table(table, person, unit):
            yield person, unit, state


def count(
    table: str, persons: list[Row], units: list[Row], geo: list[Row], states: list[str]
) -> Counter[Key]:
    """Counts of the measured cells without truncation; rows without a cell are passed over."""
    counts: Counter[Key] = Counter()
    for person, unit, state in joined(table, persons, units, geo, states):
        try:
            code = cell(table, person, unit)
        except NoCell:
            continue
        if table in ("PH2", "PH6"):
            groups = ["*"]
        elif table == "PH3":
            assert person is not None
            groups = iterations(person["CENRACE"], person["CENHISP"])
        else:
            groups = iterations(unit["HHRACE"], unit["HHSPAN"])
        for group in groups:
            counts[state, "STATE", group, code] += 1
            counts["1", "USA", group, code] += 1
    return counts


def without_cell(table: str, persons: list[Row], units: list[Row], geo: list[Row], states: list[str]) -> int:
    """Number of counted rows that have no cell."""
    wrong = 0
    for person, unit, _ in joined(table, persons, units, geo, states):
        try:
            cell(table, person, unit)
        except NoCell:
            wrong += 1
    return wrong
