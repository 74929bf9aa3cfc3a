"""Households that nobody here made, as the text rows of the published files.

Two sources: the person files of the American Community Survey of 2018 for two states (unweighted), and a
simulated census of 2020. Both say who lives with whom and how they are related; household types, couples and
relationships of the 2020 census follow from that. Neither has all that the files hold. What is missing is
made by fixed rules:

- tenure, by the age of the householder;
- a vacant unit after every tenth household;
- in the simulated census, the state of a household (in turn one of two) and the race of Latino people (some
  other race) and of people of several or other races (White and Black), which it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow.parquet as pq

from support.data import shared_data
from support.households import Row, World

SURVEY_STATES = {"44": "ri", "56": "wy"}
SIMULATED_STATES = ("06", "44")

_FIRST_MAFID, _STRIDE = 100_000_001, 7
_VACANT_PER = 10
_HOUSEHOLDER = 20
_SPOUSES, _PARTNERS = (21, 23), (22, 24)
_CHILDREN = (25, 26, 27)
_RELATIVES = range(25, 34)
_COUPLES = {21: 1, 23: 2, 22: 3, 24: 4}
_QUARTERS = (37, 38)

# RELP of the survey to RELSHIP; the codes of couples as if of opposite sex.
_RELP = (20, 21, 25, 26, 27, 28, 29, 30, 31, 32, 33, 36, 34, 22, 35, 36, 37, 38)
_OF_ONE_SEX = {21: 23, 22: 24}
_WORDS = {
    "Reference person": 20,
    "Opposite-sex spouse": 21,
    "Opposite-sex unmarried partner": 22,
    "Same-sex spouse": 23,
    "Same-sex unmarried partner": 24,
    "Biological child": 25,
    "Adopted child": 26,
    "Stepchild": 27,
    "Sibling": 28,
    "Parent": 29,
    "Grandchild": 30,
    "Parent-in-law": 31,
    "Child-in-law": 32,
    "Other relative": 33,
    "Roommate or housemate": 34,
    "Foster child": 35,
    "Other nonrelative": 36,
    "Institutionalized group quarters population": 37,
    "Noninstitutionalized group quarters population": 38,
}
_RACES = {
    "White": 1,
    "Black": 2,
    "AIAN": 3,
    "Asian": 4,
    "NHOPI": 5,
    "Latino": 6,
    "Multiracial or Other": 7,
}


@dataclass(frozen=True, slots=True)
class Person:
    """A person in the codes of the 2020 census; `state` and `home` together are the key of the unit."""

    state: str
    home: str
    relship: int
    age: int
    female: bool
    hispanic: bool
    race: int


@dataclass(frozen=True, slots=True)
class Source:
    """A source of households, and what is counted in it without the published layout.

    Parameters
    ----------
    world : World
        Persons, units, places.
    states : tuple of str
    household_persons, households : int
        Persons outside group quarters, and reference persons, in the words of the source itself.
    """

    world: World
    states: tuple[str, ...]
    household_persons: int
    households: int


def survey() -> Source:
    """Read the survey of 2018, or skip the test where it is absent."""
    records = []
    for name in SURVEY_STATES.values():
        path = shared_data(f"pums_2018/{name}_2018_pums_persons.parquet")
        columns = ["ST", "SERIALNO", "SPORDER", "RELP", "AGEP", "SEX", "hispanic", "cenrace"]
        records += pq.read_table(path, columns=columns).to_pylist()
    head_is_female = {record["SERIALNO"]: record["SEX"] == 2 for record in records if record["RELP"] == 0}

    def relship(record: Mapping[str, Any]) -> int:
        code = _RELP[record["RELP"]]
        if code in _OF_ONE_SEX and (record["SEX"] == 2) == head_is_female[record["SERIALNO"]]:
            return _OF_ONE_SEX[code]
        return code

    people = (
        Person(
            state=record["ST"],
            home=record["SERIALNO"],
            relship=relship(record),
            age=record["AGEP"],
            female=record["SEX"] == 2,
            hispanic=record["hispanic"] == 1,
            race=record["cenrace"] + 1,
        )
        for record in records
    )
    at_home = sum(record["RELP"] < 16 for record in records)
    return Source(make_world(people), tuple(SURVEY_STATES), at_home, len(head_is_female))


def simulated() -> Source:
    """Read the simulated census of 2020, or skip the test where it is absent."""
    path = shared_data("pseudopeople/simulated_census_2020_persons.parquet")
    records = pq.read_table(path).to_pylist()
    homes = sorted({record["household_id"] for record in records})
    state = {home: SIMULATED_STATES[number % len(SIMULATED_STATES)] for number, home in enumerate(homes)}
    relation = "relationship_to_reference_person"
    people = (
        Person(
            state=state[record["household_id"]],
            home=record["household_id"],
            relship=_WORDS[record[relation]],
            age=record["age"],
            female=record["sex"] == "Female",
            hispanic=record["race_ethnicity"] == "Latino",
            race=_RACES[record["race_ethnicity"]],
        )
        for record in records
    )
    at_home = sum(record["housing_type"] == "Household" for record in records)
    heads = sum(record[relation] == "Reference person" for record in records)
    return Source(make_world(people), SIMULATED_STATES, at_home, heads)


SOURCES: dict[str, Callable[[], Source]] = {"survey": survey, "simulated": simulated}


def make_world(people: Iterable[Person]) -> World:
    """Give every home a unit and a place; homes of people in group quarters become units of type 4."""
    persons: list[Row] = []
    units: list[Row] = []
    places: list[Row] = []

    def add(unit: Row, state: str, quarters: bool) -> str:
        mafid = str(_FIRST_MAFID + _STRIDE * len(units))
        kind = {"RTYPE": "4" if quarters else "2", "MAFID": mafid}
        units.append(kind | unit)
        places.append(kind | _place(state))
        return mafid

    ordered = sorted(people, key=lambda person: (person.state, person.home))
    homes = groupby(ordered, key=lambda person: (person.state, person.home))
    for number, ((state, _), members) in enumerate(homes):
        residents = list(members)
        quarters = residents[0].relship in _QUARTERS
        mafid = add(_empty(len(residents)) if quarters else _household(residents), state, quarters)
        persons += [_person(resident, mafid, quarters) for resident in residents]
        if number % _VACANT_PER == 0:
            add(_empty(0), state, quarters=False)
    return persons, units, places


def _person(person: Person, mafid: str, quarters: bool) -> Row:
    return {
        "RTYPE": "5" if quarters else "3",
        "MAFID": mafid,
        "QAGE": str(person.age),
        "CENHISP": "2" if person.hispanic else "1",
        "CENRACE": f"{person.race:02d}",
        "RELSHIP": str(person.relship),
    }


def _household(members: list[Person]) -> Row:
    """Derive the codes of a household from its members."""
    (head,) = (person for person in members if person.relship == _HOUSEHOLDER)
    codes = {person.relship for person in members}
    couple = next((code for code in (*_SPOUSES, *_PARTNERS) if code in codes), None)
    has_child = any(person.relship in _CHILDREN and person.age < 18 for person in members)
    relatives = sum(person.relship in _RELATIVES or person.relship in _SPOUSES for person in members)
    alone = len(members) == 1
    if couple in _SPOUSES:
        hht = 1
    elif relatives:
        hht = 3 if head.female else 2
    else:
        hht = (6 if head.female else 4) + (not alone)
    if couple is not None:
        hht2 = (1 if couple in _SPOUSES else 3) + (not has_child)
    else:
        hht2 = (5 if head.female else 9) + (0 if alone else 1 if has_child else 2 if relatives else 3)
    return {
        "FINAL_POP": str(len(members)),
        "NPF": str(relatives + 1 if relatives else 0),
        "HHSPAN": "2" if head.hispanic else "1",
        "HHRACE": f"{head.race:02d}",
        "TEN": str(_tenure(head.age)),
        "HHT": str(hht),
        "HHT2": f"{hht2:02d}",
        "CPLT": str(5 if couple is None else _COUPLES[couple]),
    }


def _tenure(age: int) -> int:
    """Return a tenure: every age ends in one of the four, with more owners among the old."""
    if age % 10 == 9:
        return 4
    return 3 if age < 35 or age % 10 == 8 else 1 if age < 65 else 2


def _empty(people: int) -> Row:
    """Return the codes of a vacant unit or of group quarters."""
    nothing = {"HHSPAN": "0", "HHRACE": "00", "TEN": "0", "HHT": "0", "HHT2": "00", "CPLT": "0"}
    return {"FINAL_POP": str(people), "NPF": "0", **nothing}


def _place(state: str) -> Row:
    return {
        "TABBLKST": state,
        "TABBLKCOU": "001",
        "TABTRACTCE": "000100",
        "TABBLK": "1000",
        "TABBLKGRPCE": "1",
        "REGIONCE": "1",
        "DIVISIONCE": "1",
        "PLACEFP": "99999",
        "AIANNHCE": "9999",
    }
