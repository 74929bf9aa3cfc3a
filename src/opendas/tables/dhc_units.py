"""The tables of DHC units, declared by rule; apart from other tables because they are a list of their own.

Rows are boxes as in :mod:`opendas.tables.dhc`. Numbers and rows follow the 2010 and 2020 tabulations: kinds
of households (P18 to P28), families by own children (P38), generations and couples (PCT14, PCT15), housing
units (H1 to H19). Those of all units are of the second histogram, all others of the households.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from opendas.schema.dhc_units import (
    COUPLES,
    FIRST_QUARTERS,
    FIRST_VACANT,
    HOUSEHOLD_TYPES,
    LARGEST,
    HouseholdType,
)
from opendas.tables.dhc import RACE_LABELS, Box, DhcTable, Rows

Fulfils = Callable[[HouseholdType], bool]

_AGES = (
    "15 to 24", "25 to 34", "35 to 44", "45 to 54", "55 to 59", "60 to 64", "65 to 74", "75 to 84",
    "85 years and over",
)  # fmt: skip
_UNDER_65 = tuple(range(6))
_OVER_65 = tuple(range(6, 9))


def _with_types(box: Box, fulfils: Fulfils) -> Box:
    """Return the households of a box whose type fulfils something."""
    inside = box.get("hhtype_dhch", tuple(range(len(HOUSEHOLD_TYPES))))
    return {**box, "hhtype_dhch": tuple(code for code in inside if fulfils(HOUSEHOLD_TYPES[code]))}


def _below(label: str, box: Box, rows: Callable[[Box], Rows]) -> Rows:
    """Yield a row, and rows within it, named after it."""
    yield label, box
    for inner, within in rows(box):
        yield f"{label}; {inner}", within


def _no_rows(box: Box) -> Rows:
    yield from ()


def _by_sex(box: Box, rows: Callable[[Box], Rows] = _no_rows, without: str = "") -> Rows:
    for code, sex in enumerate(("Male", "Female")):
        yield from _below(f"{sex} householder{without}", {**box, "sex": (code,)}, rows)


def _families(box: Box, rows: Callable[[Box], Rows] = _no_rows) -> Rows:
    """Married couples and other families, these by the householder's sex; `rows` within each."""
    yield from _below("Married couple family", _with_types(box, lambda kind: kind.married), rows)
    others = _with_types(box, lambda kind: kind.relatives and not kind.married)
    yield from _below("Other family", others, lambda box: _by_sex(box, rows, ", no spouse present"))


def _family_or_not(box: Box, families: Callable[[Box], Rows], others: Callable[[Box], Rows]) -> Rows:
    yield from _below("Family households", _with_types(box, lambda kind: kind.relatives), families)
    yield from _below("Nonfamily households", _with_types(box, lambda kind: not kind.relatives), others)


def _alone_or_not(box: Box) -> Rows:
    yield "Householder living alone", _with_types(box, lambda kind: kind.size == 1)
    yield "Householder not living alone", _with_types(box, lambda kind: kind.size > 1)


def _types(box: Box) -> Rows:
    yield from _family_or_not(box, _families, _alone_or_not)


def _own_or_not(box: Box) -> Rows:
    yield "With own children under 18 years", _with_types(box, lambda kind: kind.own_children != "none")
    yield "No own children under 18 years", _with_types(box, lambda kind: kind.own_children == "none")


def _by_size_and_own_children(box: Box) -> Rows:
    yield from _below("1-person household", _with_types(box, lambda kind: kind.size == 1), _by_sex)
    yield from _below(
        "2-or-more-person household",
        _with_types(box, lambda kind: kind.size > 1),
        lambda box: _family_or_not(box, lambda box: _families(box, _own_or_not), _by_sex),
    )


_UNDER_18 = (
    ("under6", "Under 6 years only"),
    ("both", "Under 6 years and 6 to 17 years"),
    ("6to17", "6 to 17 years only"),
)


def _ages_under_18(box: Box, ages_of: Callable[[HouseholdType], str]) -> Rows:
    for words, label in _UNDER_18:
        yield label, _with_types(box, lambda kind, words=words: ages_of(kind) == words)  # type: ignore[misc]


def _by_minors(box: Box) -> Rows:
    """People under 18 but householder, spouse and partner: their ages are known."""

    def ages(box: Box) -> Rows:
        return _ages_under_18(box, lambda kind: kind.children)

    yield from _below(
        "Households with one or more people under 18 years",
        _with_types(box, lambda kind: kind.children != "none"),
        lambda box: _family_or_not(box, lambda box: _families(box, ages), lambda box: _by_sex(box, ages)),
    )
    yield from _below(
        "Households with no people under 18 years",
        _with_types(box, lambda kind: kind.children == "none"),
        lambda box: _family_or_not(box, _families, _by_sex),
    )


def _householder_ages(box: Box) -> Rows:
    for code, label in enumerate(_AGES):
        yield f"Householder {label}{' years' if code < 8 else ''}", {**box, "hhage": (code,)}


def _by_age_of_householder(box: Box) -> Rows:
    yield from _family_or_not(box, _householder_ages, _householder_ages)


def _elderly(years: int, rows: Callable[[Box], Rows]) -> Callable[[Box], Rows]:
    """Households with and without someone of 60, 65 or 75 years and more; `rows` within each."""
    least = {60: 1, 65: 2, 75: 3}[years]

    def rows_of(box: Box) -> Rows:
        for number, codes in (("one or more", range(least, 4)), ("no", range(least))):
            label = f"Households with {number} people {years} years and over"
            yield from _below(label, {**box, "elderly": tuple(codes)}, rows)

    return rows_of


def _families_and_others(box: Box) -> Rows:
    yield from _family_or_not(box, _families, _no_rows)


def _size_and_family(box: Box) -> Rows:
    yield "1-person household", _with_types(box, lambda kind: kind.size == 1)
    larger = _with_types(box, lambda kind: kind.size > 1)
    yield from _below(
        "2-or-more-person household", larger, lambda box: _family_or_not(box, _no_rows, _no_rows)
    )


def _sizes(box: Box, least: int = 1) -> Rows:
    for size in range(least, LARGEST + 1):
        label = f"{size}-{'or-more-' if size == LARGEST else ''}person household"
        yield label, _with_types(box, lambda kind, size=size: kind.size == size)  # type: ignore[misc]


def _types_by_size(box: Box) -> Rows:
    yield from _family_or_not(box, lambda box: _sizes(box, 2), _sizes)


def _own_children(box: Box) -> Rows:
    with_own, without = _own_or_not(box)
    yield from _below(*with_own, lambda box: _ages_under_18(box, lambda kind: kind.own_children))
    yield without


def _generations(box: Box) -> Rows:
    yield "Household has three or more generations", _with_types(box, lambda kind: kind.multigenerational)
    yield (
        "Household does not have three or more generations",
        _with_types(box, lambda kind: not kind.multigenerational),
    )


def _couples(box: Box) -> Rows:
    def one_sex(couples: tuple[str, ...], words: str) -> Callable[[Box], Rows]:
        def rows_of(box: Box) -> Rows:
            yield f"Opposite-sex {words}", _with_types(box, lambda kind: kind.couple == couples[0])
            same = _with_types(box, lambda kind: kind.couple == couples[1])
            yield from _below(f"Same-sex {words}", same, _by_sex)

        return rows_of

    def kinds(box: Box) -> Rows:
        for couples, label, words in (
            (COUPLES[:2], "Married couple household", "married couple"),
            (COUPLES[2:4], "Cohabiting couple household", "unmarried partners"),
        ):
            of_couples = _with_types(box, lambda kind, couples=couples: kind.couple in couples)  # type: ignore[misc]
            yield from _below(label, of_couples, one_sex(couples, words))

    yield from _below("Coupled households", _with_types(box, lambda kind: kind.couple in COUPLES[:4]), kinds)
    yield "All other households", _with_types(box, lambda kind: kind.couple not in COUPLES[:4])


def _nonfamilies(box: Box) -> Rows:
    def ages(box: Box) -> Rows:
        yield "Householder 15 to 64 years", {**box, "hhage": _UNDER_65}
        yield "Householder 65 years and over", {**box, "hhage": _OVER_65}

    def alone_or_not(box: Box) -> Rows:
        for label, within in _alone_or_not(box):
            yield from _below(label, within, ages)

    yield from _by_sex(box, alone_or_not)


def _three_ages(box: Box) -> Rows:
    for label, codes in (("15 to 34", (0, 1)), ("35 to 64", (2, 3, 4, 5)), ("65", _OVER_65)):
        yield f"Householder {label} years{' and over' * (label == '65')}", {**box, "hhage": codes}


def _types_by_age(box: Box) -> Rows:
    def alone_or_not(box: Box) -> Rows:
        for label, within in _alone_or_not(box):
            yield from _below(label, within, _three_ages)

    yield from _family_or_not(
        box, lambda box: _families(box, _three_ages), lambda box: _by_sex(box, alone_or_not)
    )


def _with_minors(box: Box) -> Rows:
    """People under 18 but householder, spouse and partner."""
    yield "With people under 18 years", _with_types(box, lambda kind: kind.children != "none")
    yield "No people under 18 years", _with_types(box, lambda kind: kind.children == "none")


def _races(box: Box) -> Rows:
    for code, label in enumerate(RACE_LABELS):
        yield label, {**box, "race": (code,)}


def _origins(box: Box) -> Rows:
    for label, code in (("Not Hispanic or Latino", 0), ("Hispanic or Latino", 1)):
        yield label, {**box, "hisp": (code,)}


def _origins_by_race(box: Box) -> Rows:
    for label, of_origin in _origins(box):
        yield from _below(label, of_origin, _races)


def _tenures(box: Box) -> Rows:
    for code, label in enumerate(
        ("Owned with a mortgage or a loan", "Owned free and clear", "Renter occupied")
    ):
        yield label, {**box, "hhtenshort_3lev": (code,)}


def _by_tenure(rows: Callable[[Box], Rows]) -> Callable[[Box], Rows]:
    def rows_of(box: Box) -> Rows:
        for label, codes in (("Owner occupied", (0, 1)), ("Renter occupied", (2,))):
            yield from _below(label, {**box, "hhtenshort_3lev": codes}, rows)

    return rows_of


def _iterations() -> Iterator[tuple[str, Box]]:
    """Yield letter and box: seven races A to G, Hispanic H, White and not Hispanic I."""
    boxes: list[Box] = [{"race": (code,)} for code in range(len(RACE_LABELS))]
    yield from zip("ABCDEFGHI", [*boxes, {"hisp": (1,)}, {"race": (0,), "hisp": (0,)}], strict=True)


@cache
def household_tables() -> Mapping[str, DhcTable]:
    """Return the tables of the household histogram by name."""
    every: Box = {}
    families = _with_types(every, lambda kind: kind.relatives)
    nonfamilies = _with_types(every, lambda kind: not kind.relatives)
    tables = {
        "P15": DhcTable(every, _origins_by_race, "block"),
        "P18": DhcTable(every, _types, "block"),
        "P19": DhcTable(every, _by_size_and_own_children, "block"),
        "P20": DhcTable(every, _by_minors, "block"),
        "P22": DhcTable(every, _by_age_of_householder, "block"),
        "P23": DhcTable(every, _elderly(60, _families_and_others), "block"),
        "P24": DhcTable(every, _elderly(60, _size_and_family), "block"),
        "P25": DhcTable(every, _elderly(65, _size_and_family), "block"),
        "P26": DhcTable(every, _elderly(75, _size_and_family), "block"),
        "P28": DhcTable(every, _types_by_size, "block"),
        "P38": DhcTable(families, lambda box: _families(box, _own_children), "block"),
        "PCT14": DhcTable(every, _generations, "tract"),
        "PCT15": DhcTable(every, _couples, "tract"),
        "PCT18": DhcTable(nonfamilies, _nonfamilies, "tract"),
        "H4": DhcTable(every, _tenures, "block"),
        "H6": DhcTable(every, _races, "block"),
        "H7": DhcTable(every, _origins_by_race, "block"),
        "H13": DhcTable(every, _sizes, "block"),
        "H14": DhcTable(every, _by_tenure(_races), "block"),
        "H15": DhcTable(every, _by_tenure(_origins), "block"),
        "H16": DhcTable(every, _by_tenure(_sizes), "block"),
        "H17": DhcTable(every, _by_tenure(_householder_ages), "block"),
        "H18": DhcTable(every, _by_tenure(_types_by_age), "block"),
        "H19": DhcTable(every, _by_tenure(_with_minors), "block"),
    }
    for name in ("P18", "P28", "P38", "PCT14", "H13", "H16", "H17"):
        whole = tables[name]
        for letter, box in _iterations():
            tables[f"{name}{letter}"] = DhcTable({**whole.universe, **box}, whole.body, whole.lowest)
    return tables


_VACANCY_LABELS = (
    "For rent", "Rented, not occupied", "For sale only", "Sold, not occupied",
    "For seasonal, recreational, or occasional use", "For migrant workers", "Other vacant",
)  # fmt: skip
_OCCUPIED = tuple(range(FIRST_VACANT))
_VACANT = tuple(range(FIRST_VACANT, FIRST_QUARTERS))


def _occupancy(box: Box) -> Rows:
    yield "Occupied", {**box, "tenvacgq": _OCCUPIED}
    yield "Vacant", {**box, "tenvacgq": _VACANT}


def _vacancy(box: Box) -> Rows:
    for code, label in zip(_VACANT, _VACANCY_LABELS, strict=True):
        yield label, {**box, "tenvacgq": (code,)}


@cache
def unit_tables() -> Mapping[str, DhcTable]:
    """Return the tables of all housing units by name, of the second histogram."""
    housing: Box = {"tenvacgq": _OCCUPIED + _VACANT}
    return {
        "H1": DhcTable(housing, _no_rows, "block"),
        "H3": DhcTable(housing, _occupancy, "block"),
        "H5": DhcTable({"tenvacgq": _VACANT}, _vacancy, "block"),
    }
