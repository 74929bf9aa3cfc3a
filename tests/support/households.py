"""Random persons, units and places, as the text rows of the published files."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from opendas.phsafe.inputs.read_csv import KINDS

Row = dict[str, str]
World = tuple[list[Row], list[Row], list[Row]]
"""Persons, units, places."""

LEVELS = ("usa_A-G", "usa_H,I", "usa_*", "state_A-G", "state_H,I", "state_*")
NUMERATORS = ("PH1_num", "PH2", "PH3", "PH4", "PH6", "PH7")
TABLES = ("PH1_num", "PH1_denom", "PH2", "PH3", "PH4", "PH5_denom", "PH6", "PH7", "PH8_denom")


def random_world(
    seed: int, units: int = 60, states: Sequence[str] = ("06", "44"), *, any_codes: bool = False
) -> World:
    """Make a small world.

    With `any_codes`, every code is drawn from its whole list, however little it agrees with the others; else
    every counted row has a cell.
    """
    random_source = random.Random(seed)
    pick = random_source.choice
    people: list[Row] = []
    homes: list[Row] = []
    places: list[Row] = []
    for number in range(units):
        mafid = str(100000001 + 7 * number)
        quarters = random_source.random() < 0.1
        vacant = random_source.random() < 0.1
        size = 0 if vacant else random_source.randint(1, 9)
        unit = {
            "RTYPE": "4" if quarters else "2",
            "MAFID": mafid,
            "FINAL_POP": str(size),
            "NPF": "0",
            "HHSPAN": pick(["1", "2"]),
            "HHRACE": f"{random_source.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 11, 22, 63]):02d}",
            "TEN": pick(["1", "2", "3", "4"]),
            "HHT": pick(["1", "2", "3", "4", "5", "6", "7"]),
            "HHT2": f"{random_source.randint(1, 12):02d}",
            "CPLT": "5",
        }
        if any_codes:
            unit |= {
                "RTYPE": pick(["2", "2", "4"]),
                "HHSPAN": pick(["0", "1", "2"]),
                "HHRACE": f"{random_source.randint(0, 63):02d}",
                "TEN": pick("01234"),
                "HHT": pick("01234567"),
                "HHT2": f"{random_source.randint(0, 12):02d}",
                "CPLT": pick("012345"),
            }
        elif vacant or quarters:
            unit |= {"HHSPAN": "0", "HHRACE": "00", "TEN": "0", "HHT": "0", "HHT2": "00", "CPLT": "0"}
        elif unit["HHT2"] in ("01", "02"):
            unit["CPLT"] = pick(["1", "2"])
        elif unit["HHT2"] in ("03", "04"):
            unit["CPLT"] = pick(["3", "4"])
        homes.append(unit)
        places.append(
            {
                "RTYPE": pick(["2", "2", "2", "4"]) if any_codes else unit["RTYPE"],
                "MAFID": mafid,
                "TABBLKST": pick(list(states)),
                "TABBLKCOU": "001",
                "TABTRACTCE": "000100",
                "TABBLK": "1000",
                "TABBLKGRPCE": "1",
                "REGIONCE": "1",
                "DIVISIONCE": "1",
                "PLACEFP": "99999",
                "AIANNHCE": "9999",
            }
        )
        for place_in_home in range(size):
            relation = 20 if place_in_home == 0 else random_source.randint(21, 36)
            age = random_source.randint(0, 90) if place_in_home else random_source.randint(18, 90)
            if unit["HHT2"] not in ("01", "03", "06", "10") and relation in (25, 26, 27):
                age = random_source.randint(18, 60)
            if any_codes:
                relation, age = random_source.randint(20, 38), random_source.randint(0, 30)
            people.append(
                {
                    "RTYPE": pick(["3", "3", "5"]) if any_codes else ("5" if quarters else "3"),
                    "MAFID": mafid,
                    "QAGE": str(age),
                    "CENHISP": pick(["1", "2"]),
                    "CENRACE": f"{random_source.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 30, 63]):02d}",
                    "RELSHIP": str(37 if quarters and not any_codes else relation),
                }
            )
    for rows in (people, homes, places):
        random_source.shuffle(rows)
    return people, homes, places


def write_world(folder: Path, world: World) -> Path:
    """Write the three files of the csv reader."""
    folder.mkdir(parents=True, exist_ok=True)
    for (name, columns, _), rows in zip(KINDS, world, strict=True):
        lines = [",".join(columns), *(",".join(row[column] for column in columns) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def configuration(
    budget: object = 0.5,
    tau: int = 50,
    states: Sequence[str] = ("06", "44"),
    definition: str = "zcdp",
    without: Sequence[str] = (),
) -> dict[str, object]:
    """Return a configuration with one budget for all levels; tables `without` get 0."""
    budgets: dict[str, Mapping[str, object]] = {}
    for table in TABLES:
        levels = [name for name in LEVELS if table not in ("PH2", "PH6") or name.endswith("*")]
        budgets[table] = dict.fromkeys(levels, 0 if table in without else budget)
    return {
        "privacy_budget": budgets,
        "tau": dict.fromkeys(NUMERATORS, tau),
        "state_filter": list(states),
        "reader": "csv",
        "privacy_defn": definition,
    }
