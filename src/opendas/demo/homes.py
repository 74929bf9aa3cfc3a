"""What a housing unit is, from the people in it: apart from how these people came together.

Axes: ``h`` households, in the order of their people; ``p`` people in households, each household's householder
first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.demo.households import ADULT, CODE
from opendas.schema.dhc_units import (
    COUPLES,
    FIRST_VACANT,
    HOUSEHOLDER_AGES,
    LARGEST,
    dhc_units,
    household_type_codes,
)
from opendas.schema.pl94 import RACES

_PARTNERS = ("opposite_sex_spouse", "same_sex_spouse", "opposite_sex_partner", "same_sex_partner")
"""Who lives with the householder, by code 1 to 4 of couples; 5 is nobody."""

_OWN = ("biological_child", "adopted_child", "stepchild")
_RELATIVES = (
    "opposite_sex_spouse", "same_sex_spouse", *_OWN, "sibling", "parent", "grandchild", "parent_in_law",
    "child_in_law", "other_relative",
)  # fmt: skip
_BELOW_SCHOOL = 6


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Households:
    """Attributes of households, int64 (h,) each.

    Parameters
    ----------
    sex, hhage, hisp, race : householder's sex (0 male), age in nine groups, Hispanic origin, and race (six
        alone, 6 two or more)
    size : number of people, 7 for seven and more
    couple : 1 married opposite-sex, 2 married same-sex, 3 and 4 the same of unmarried partners, 5 none
    relatives : 1 if someone is related to the householder
    multig : 1 if three generations or more live here
    paoc, pac : own children under 18; people under 18 other than householder, spouse and partner: 1 under 6
        only, 2 from 6 only, 3 both, 4 none
    p18 : 1 if anybody is under 18
    elderly : 0 nobody of 60 or more, 1 someone but nobody of 65, 2 someone but nobody of 75, 3 someone
    """

    sex: Ints
    hhage: Ints
    hisp: Ints
    race: Ints
    size: Ints
    couple: Ints
    relatives: Ints
    multig: Ints
    paoc: Ints
    pac: Ints
    p18: Ints
    elderly: Ints


def describe(relgq: Ints, sex: Ints, age: Ints, hispanic: Ints, cenrace: Ints) -> Households:
    """Derive the attributes of households from their people, int64 (p,) each."""
    is_head = np.isin(relgq, [CODE["householder_alone"], CODE["householder_not_alone"]])
    first = np.flatnonzero(is_head)
    household = np.cumsum(is_head) - 1
    h = len(first)

    def has(who: Bools) -> Bools:
        return np.bincount(household[who], minlength=h) > 0

    def is_a(*relationships: str) -> Bools:
        return np.isin(relgq, [CODE[word] for word in relationships])

    def children(who: Bools) -> Ints:
        young, older = has(who & (age < _BELOW_SCHOOL)), has(who & (age >= _BELOW_SCHOOL) & (age < ADULT))
        return np.where(young & older, 3, np.where(older, 2, np.where(young, 1, 4)))

    couple = np.full(h, len(COUPLES), dtype=np.int64)
    for code, word in enumerate(_PARTNERS, start=1):
        couple[has(is_a(word))] = code
    above = has(is_a("parent", "parent_in_law"))
    below = has(is_a(*_OWN) | (is_a("child_in_law") & (age >= ADULT)))
    generations = above.astype(np.int64) + below + has(is_a("grandchild"))
    return Households(
        sex[first],
        np.searchsorted(HOUSEHOLDER_AGES[1:], age[first], side="right").astype(np.int64),
        hispanic[first],
        np.minimum(cenrace[first], len(RACES)),
        np.minimum(np.bincount(household, minlength=h), LARGEST),
        couple,
        has(is_a(*_RELATIVES)).astype(np.int64),
        (generations >= 2).astype(np.int64),
        children(is_a(*_OWN)),
        children(~is_head & ~is_a(*_PARTNERS)),
        has(age < ADULT).astype(np.int64),
        np.maximum.reduce([level * has(age >= years) for level, years in ((1, 60), (2, 65), (3, 75))]),
    )


def household_types(households: Households) -> Ints:
    """Return the level of ``hhtype_dhch`` of each household, int64 (h,); -1 where there is no such type."""
    parts = ("size", "couple", "multig", "paoc", "pac", "p18", "relatives")
    codes = household_type_codes()[tuple(getattr(households, part) for part in parts)]
    return np.asarray(codes, dtype=np.int64)


def keeps_edits(households: Households) -> Bools:
    """Return which households have one of the production's types and break none of its edits, bool (h,)."""
    product = dhc_units()
    types = household_types(households)
    nothing = np.zeros_like(types)
    codes = {"sex": households.sex, "hhage": households.hhage, "elderly": households.elderly}
    codes["hhtype_dhch"] = np.maximum(types, 0)
    cells = product.schema.cells([codes.get(name, nothing) for name in product.schema.names])
    return np.asarray((types >= 0) & product.possible[cells])


def household_codes(households: Households, tenvacgq: Ints) -> dict[str, Ints]:
    """Return the level of each attribute of the household histogram, int64 (h,) each."""
    return {
        "sex": households.sex,
        "hhage": households.hhage,
        "hisp": households.hisp,
        "race": households.race,
        "elderly": households.elderly,
        "hhtenshort_3lev": np.minimum(tenvacgq, 2),
        "hhtype_dhch": household_types(households),
    }


# By the householder's age: share of owners, and of owners with a mortgage; then shares of vacant units.
# Invented, and about as in the United States.
_OWNERS = np.array([0.12, 0.34, 0.55, 0.65, 0.70, 0.74, 0.77, 0.75, 0.65])
_MORTGAGES = np.array([0.92, 0.92, 0.89, 0.82, 0.70, 0.60, 0.42, 0.25, 0.15])
_OF_COUPLES, _OF_OTHERS = 0.17, -0.10
_NO_RENT = 0.03
_VACANT = np.array([0.33, 0.03, 0.12, 0.05, 0.26, 0.01, 0.20])


def draw_tenure(households: Households, uniform: Floats) -> Ints:
    """Draw the tenure of households, levels of ``tenvacgq``, from numbers in [0, 1), float64 (h,)."""
    owners = _OWNERS[households.hhage] + np.where(households.couple < len(COUPLES), _OF_COUPLES, _OF_OTHERS)
    owners = np.clip(owners, 0.02, 0.95)
    mortgage = owners * _MORTGAGES[households.hhage]
    ends = np.stack([mortgage, owners, 1.0 - (1.0 - owners) * _NO_RENT])
    return np.asarray((uniform >= ends).sum(axis=0), dtype=np.int64)


def draw_vacancy(uniform: Floats) -> Ints:
    """Draw the status of vacant units, levels of ``tenvacgq``, from numbers in [0, 1)."""
    return FIRST_VACANT + np.searchsorted(np.cumsum(_VACANT)[:-1], uniform, side="right").astype(np.int64)
