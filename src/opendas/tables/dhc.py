"""The tables of DHC persons, declared by rule; apart from other tables because they are a list of their own.

A table is a list of rows, each a label and a box: positions of levels for each attribute, all levels where
none is named. Iterations repeat a table for people of one race or origin. Numbers and rows follow the 2010
and 2020 tabulations: sex by age (P12, PCT12, PCT13), races (P3 to P11), households (P16, H10), group quarters
(P43, PCT22, PCO1 to PCO10, PCO43A to PCO43I).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from opendas.schema.pl94 import race_combinations

Box = Mapping[str, tuple[int, ...]]
Rows = Iterator[tuple[str, Box]]

_OLDEST = 115
_HOUSEHOLDS = tuple(range(18))
_QUARTERS = tuple(range(18, 42))
MAJOR_QUARTERS = (
    ("Correctional facilities for adults", range(18, 24)),
    ("Juvenile facilities", range(24, 27)),
    ("Nursing facilities/Skilled-nursing facilities", range(27, 28)),
    ("Other institutional facilities", range(28, 33)),
    ("College/University student housing", range(33, 34)),
    ("Military quarters", range(34, 36)),
    ("Other noninstitutional facilities", range(36, 42)),
)
"""Major types of group quarters, and their levels of ``relgq``; the first four are institutional."""
_INSTITUTIONS = 4

_ONE_RACE = tuple((code,) for code in range(6))
_SEVERAL_RACES = tuple(range(6, len(race_combinations())))
RACE_LABELS = (
    "White alone",
    "Black or African American alone",
    "American Indian and Alaska Native alone",
    "Asian alone",
    "Native Hawaiian and Other Pacific Islander alone",
    "Some Other Race alone",
    "Two or More Races",
)
_RACES = (*_ONE_RACE, _SEVERAL_RACES)
"""Levels of ``cenrace`` of the seven groups."""


@dataclass(frozen=True, slots=True)
class DhcTable:
    """A table of the DHC."""

    universe: Box  # whom it counts
    body: Callable[[Box], Rows]  # returns the rows within a universe, from a box
    lowest: str  # the lowest official geolevel that it is published for
    # Rows that are sums of other rows, in place of their box: who stands in two of these counts twice.
    tallies: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def rows(self) -> Rows:
        """Yield label and box of each row, the total first."""
        yield "Total races tallied" if self.tallies else "Total", self.universe
        yield from self.body(self.universe)


def _ages(starts: tuple[int, ...], stop: int = _OLDEST + 1) -> list[tuple[str, tuple[int, ...]]]:
    """Return label and ages of the intervals that begin at `starts`, in years."""
    found = []
    for low, high in zip(starts, (*starts[1:], stop), strict=True):
        if high == _OLDEST + 1:
            label = f"{low} years and over"
        elif low == 0:
            label = "Under 1 year" if high == 1 else f"Under {high} years"
        elif high - low == 1:
            label = "1 year" if low == 1 else f"{low} years"
        else:
            label = f"{low} and {high - 1} years" if high - low == 2 else f"{low} to {high - 1} years"
        found.append((label, tuple(range(low, high))))
    return found


_P12_AGES = _ages((0, 5, 10, 15, 18, 20, 21, 22, *range(25, 60, 5), 60, 62, 65, 67, *range(70, 90, 5)))
_FIVE_YEARS = _ages(tuple(range(0, 90, 5)))
_SINGLE_YEARS = _ages((*range(100), 100, 105, 110))
_UNDER_20 = _ages(tuple(range(20)), 20)


def _by_sex(box: Box, rows: Callable[[Box], Rows]) -> Rows:
    for code, sex in enumerate(("Male", "Female")):
        of_sex = {**box, "sex": (code,)}
        yield sex, of_sex
        for label, inner in rows(of_sex):
            yield f"{sex}; {label}", inner


def _sex_by_age(ages: list[tuple[str, tuple[int, ...]]]) -> Callable[[Box], Rows]:
    return lambda box: _by_sex(box, lambda of_sex: ((label, {**of_sex, "age": a}) for label, a in ages))


def _race(box: Box) -> Rows:
    for label, codes in zip(RACE_LABELS, _RACES, strict=True):
        yield label, {**box, "cenrace": codes}


def _origin(box: Box) -> Rows:
    for label, code in (("Not Hispanic or Latino", 0), ("Hispanic or Latino", 1)):
        yield label, {**box, "hispanic": (code,)}


def _origin_by_race(box: Box) -> Rows:
    for label, of_origin in _origin(box):
        yield label, of_origin
        for race, inner in _race(of_origin):
            yield f"{label}; {race}", inner


def _races_tallied(box: Box) -> Rows:
    for code, label in enumerate(RACE_LABELS[: len(_ONE_RACE)]):
        held = tuple(
            k for k, races in enumerate(race_combinations()) if race_combinations()[code][0] in races
        )
        yield f"{label} or in combination with one or more other races", {**box, "cenrace": held}


def _origin_by_races_tallied(box: Box) -> Rows:
    for label, of_origin in _origin(box):
        yield f"Total races tallied; {label}", of_origin
        for race, inner in _races_tallied(of_origin):
            yield f"{label}; {race}", inner


NUMBERS = ("one race", "two races", "three races", "four races", "five races", "six races")


def _combinations(box: Box) -> Rows:
    """The 63 combinations of races, by how many they are."""
    by_number: list[list[int]] = [[] for _ in NUMBERS]
    for code, races in enumerate(race_combinations()):
        by_number[len(races) - 1].append(code)
    names = [label.removesuffix(" alone") for label in RACE_LABELS]
    positions = [races[0] for races in race_combinations()[: len(NUMBERS)]]
    several = "Population of two or more races"
    for number, codes in enumerate(by_number):
        label = f"Population of {NUMBERS[number]}"
        if number == 1:
            yield several, {**box, "cenrace": _SEVERAL_RACES}
        if number:
            label = f"{several}; {label}"
        yield label, {**box, "cenrace": tuple(codes)}
        for code in codes:
            words = " + ".join(names[positions.index(race)] for race in race_combinations()[code])
            yield f"{label}; {words}{' alone' * (number == 0)}", {**box, "cenrace": (code,)}


def _origin_by_combination(box: Box) -> Rows:
    (others, not_hispanic), hispanic = _origin(box)
    yield hispanic
    yield others, not_hispanic
    for label, inner in _combinations(not_hispanic):
        yield f"{others}; {label}", inner


def _voting_age(box: Box) -> Rows:
    for label, years in _ages((0, 18)):
        yield label, {**box, "age": years}


def _quarters(box: Box) -> Rows:
    for title, types in (
        ("Institutionalized population", MAJOR_QUARTERS[:_INSTITUTIONS]),
        ("Noninstitutionalized population", MAJOR_QUARTERS[_INSTITUTIONS:]),
    ):
        yield title, {**box, "relgq": tuple(code for _, codes in types for code in codes)}
        for label, codes in types:
            yield f"{title}; {label}", {**box, "relgq": tuple(codes)}


def _quarters_by_age(box: Box) -> Rows:
    for age, years in _ages((0, 18, 65)):
        yield age, {**box, "age": years}
        for label, inner in _quarters({**box, "age": years}):
            yield f"{age}; {label}", inner


_OF_BOTH = "persons and households are two histograms, which nothing joins; opendas phsafe makes such tables"
_IMPUTED = "no histogram says which answers were imputed"
_RACES_TALLIED = "it tallies races, and no histogram says which races a householder of several races has"

UNANSWERED: Mapping[str, str] = MappingProxyType(
    {
        "P2": "frames do not distinguish urban and rural blocks",
        "P13": "it is a median, no count; P12 and PCT12 have the ages",
        "P17": f"it is an average, of people by household: {_OF_BOTH}",
        "H2": "frames do not distinguish urban and rural blocks",
        "H8": _RACES_TALLIED,
        "H9": _RACES_TALLIED,
        "H11": f"it counts people by the tenure of their unit: {_OF_BOTH}",
        "H12": f"it is an average, of people by household: {_OF_BOTH}",
        "H20": _IMPUTED,
        "H21": _IMPUTED,
        "H22": _IMPUTED,
    }
)
"""Tables P1 to P20 and H1 to H22 that neither histogram of the DHC answers, and why."""


def _iterations(letters: str) -> Iterator[tuple[str, Box]]:
    """Yield letter and box: seven races A to G, Hispanic H, and the races of others, I to O."""
    boxes: list[Box] = [{"cenrace": codes} for codes in _RACES]
    boxes.append({"hispanic": (1,)})
    boxes += [{"cenrace": codes, "hispanic": (0,)} for codes in _RACES]
    yield from zip(letters, boxes, strict=False)


@cache
def dhc_tables() -> Mapping[str, DhcTable]:
    """Return the tables of DHC persons by name."""
    everybody: Box = {}
    quarters: Box = {"relgq": _QUARTERS}
    adults: Box = {"age": tuple(range(18, _OLDEST + 1))}
    tables = {
        "P1": DhcTable(everybody, lambda box: iter(()), "block"),
        "P3": DhcTable(everybody, _race, "block"),
        "P4": DhcTable(everybody, _origin, "block"),
        "P5": DhcTable(everybody, _origin_by_race, "block"),
        "P6": DhcTable(everybody, _races_tallied, "block", {0: tuple(range(1, 7))}),
        "P7": DhcTable(
            everybody,
            _origin_by_races_tallied,
            "block",
            {0: (*range(2, 8), *range(9, 15)), 1: tuple(range(2, 8)), 8: tuple(range(9, 15))},
        ),
        "P8": DhcTable(everybody, _combinations, "block"),
        "P9": DhcTable(everybody, _origin_by_combination, "block"),
        "P10": DhcTable(adults, _combinations, "block"),
        "P11": DhcTable(adults, _origin_by_combination, "block"),
        "P12": DhcTable(everybody, _sex_by_age(_P12_AGES), "block"),
        "P14": DhcTable({"age": tuple(range(20))}, _sex_by_age(_UNDER_20), "block"),
        "P16": DhcTable({"relgq": _HOUSEHOLDS}, _voting_age, "block"),
        "H10": DhcTable({"relgq": _HOUSEHOLDS}, lambda box: iter(()), "block"),
        "P43": DhcTable(quarters, lambda box: _by_sex(box, _quarters_by_age), "block"),
        "PCT12": DhcTable(everybody, _sex_by_age(_SINGLE_YEARS), "tract"),
        "PCT13": DhcTable({"relgq": _HOUSEHOLDS}, _sex_by_age(_P12_AGES), "tract"),
        "PCT22": DhcTable({**quarters, **adults}, lambda box: _by_sex(box, _quarters), "tract"),
    }
    for name, letters in (("P12", "ABCDEFGHI"), ("PCT12", "ABCDEFGHIJKLMNO"), ("PCT13", "ABCDEFGHI")):
        whole = tables[name]
        for letter, box in _iterations(letters):
            tables[f"{name}{letter}"] = DhcTable({**whole.universe, **box}, whole.body, whole.lowest)
    for letter, box in _iterations("ABCDEFGHI"):
        by_age = tables["P43"].body
        tables[f"PCO43{letter}"] = DhcTable({**quarters, **box}, by_age, "county")
    of_quarters = [("", quarters), *_quarters({})]
    for number, (_, box) in enumerate(of_quarters, start=1):
        tables[f"PCO{number}"] = DhcTable(box, _sex_by_age(_FIVE_YEARS), "county")
    return tables
