"""Who the people of a made household are to each other, and the types of household that follow.

Axes: ``u`` units, ``p`` persons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opendas.arrays import Bools, Ints
from support.made_households import Residents, Units

__all__ = ["Families", "relate_people"]


_HOUSEHOLDER = 20
_OPPOSITE_SPOUSE, _OPPOSITE_PARTNER, _SAME_SPOUSE, _SAME_PARTNER = 21, 22, 23, 24
_CHILDREN = (25, 26, 27)
_GRANDCHILD, _PARENT, _PARENT_IN_LAW = 30, 29, 31
_NOT_RELATED = (34, 35, 36)
_INSTITUTION, _OTHER_QUARTERS = 37, 38
_INSTITUTIONAL = 4  # types of group quarters up to this one are institutions
_ADULT, _GENERATION = 18, 15
_FEMALE = 2

_PARTNERED, _MARRIED = 0.62, 0.82
# Relationships of the others, by whether they are minors, a generation younger, older, or of one age.
_YOUNG_MINOR = ((25, 26, 27, 30, 33, 35, 36), (0.78, 0.02, 0.05, 0.08, 0.03, 0.02, 0.02))
_OTHER_MINOR = ((28, 33, 35, 36), (0.4, 0.3, 0.1, 0.2))
_YOUNG_ADULT = ((25, 27, 30, 32, 33, 34, 36), (0.55, 0.05, 0.05, 0.05, 0.1, 0.1, 0.1))
_OLD_ADULT = ((29, 31, 33, 34), (0.6, 0.2, 0.1, 0.1))
_OTHER_ADULT = ((28, 33, 34, 36), (0.3, 0.2, 0.3, 0.2))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Families:
    """Relationships, and what follows from them.

    Parameters
    ----------
    relship : int64 (p,)
        Relationship to the householder, 20 to 38.
    hht, hht2, cplt, upart, multg, paoc, pac : int64 (u,)
        Household type, detailed household type, type of couple, of unmarried partners, whether three
        generations live there, ages of own and of all children; 0 for vacant units and group quarters.
    """

    relship: Ints
    hht: Ints
    hht2: Ints
    cplt: Ints
    upart: Ints
    multg: Ints
    paoc: Ints
    pac: Ints


def relate_people(units: Units, residents: Residents, rng: np.random.Generator) -> Families:
    """Draw relationships that agree with ages and sexes, and derive the types of every household.

    The first person of a household is its householder, the second, if both are adults, often the partner.
    """
    relship = _relationships(units, residents, rng)
    unit, u = residents.unit, len(units)

    def has(chosen: Bools) -> Bools:
        found = np.zeros(u, dtype=np.bool_)
        found[unit[chosen]] = True
        return found

    household = (units.hhgq == 0) & units.occupied
    size = np.bincount(unit, minlength=u)
    female = has((residents.number == 1) & (residents.sex == _FEMALE))
    married = has(np.isin(relship, (_OPPOSITE_SPOUSE, _SAME_SPOUSE)))
    cohabiting = has(np.isin(relship, (_OPPOSITE_PARTNER, _SAME_PARTNER)))
    children = has(np.isin(relship, _CHILDREN) & (residents.age < _ADULT))
    family = has((relship >= _CHILDREN[0]) & (relship < _NOT_RELATED[0]))
    nonfamily = np.where(size == 1, np.where(female, 6, 4), np.where(female, 7, 5))
    hht = np.where(married, 1, np.where(family, np.where(female, 3, 2), nonfamily))
    single = np.where(size == 1, 0, np.where(children, 1, np.where(family, 2, 3)))
    couple = np.where(married, 1, 3) + ~children
    hht2 = np.where(married | cohabiting, couple, np.where(female, 5, 9) + single)
    cplt = np.full(u, 5)
    for kind, code in ((_OPPOSITE_SPOUSE, 1), (_SAME_SPOUSE, 2), (_OPPOSITE_PARTNER, 3), (_SAME_PARTNER, 4)):
        cplt[unit[relship == kind]] = code
    own = np.isin(relship, _CHILDREN)
    below = has(own)
    three = below & (has(np.isin(relship, (_PARENT, _PARENT_IN_LAW))) | has(relship == _GRANDCHILD))
    minors = (residents.age < _ADULT) & ~np.isin(relship, (_HOUSEHOLDER, *range(21, 25)))
    upart = np.select([cplt == 3, cplt == 4], [np.where(female, 4, 2), np.where(female, 3, 1)], 5)
    multg = np.where(size > 2, 1 + three, 0)
    found = (hht, hht2, cplt, upart, multg)
    ages = [_ages_of(residents, has, chosen) for chosen in (own & (residents.age < _ADULT), minors)]
    return Families(relship, *(np.where(household, codes, 0) for codes in (*found, *ages)))


def _ages_of(residents: Residents, has: Callable[[Bools], Bools], children: Bools) -> Ints:
    """Return 1 where all children are below 6, 2 where none is, 3 for both, and 4 where there are none."""
    young, old = has(children & (residents.age < 6)), has(children & (residents.age >= 6))
    return np.select([young & old, young, old], [3, 1, 2], 4)


def _relationships(units: Units, residents: Residents, rng: np.random.Generator) -> Ints:
    hhgq = units.hhgq[residents.unit]
    first = np.searchsorted(residents.unit, residents.unit)  # the householder of each person
    older = residents.age[first] - residents.age  # by how much the householder is older
    adult = residents.age >= _ADULT
    relship = np.where(hhgq <= _INSTITUTIONAL, _INSTITUTION, _OTHER_QUARTERS)
    at_home = hhgq == 0
    younger, elder = older >= _GENERATION, older <= -_GENERATION
    groups: tuple[tuple[Bools, Any], ...] = (
        (~adult & younger, _YOUNG_MINOR),
        (~adult & ~younger, _OTHER_MINOR),
        (adult & younger, _YOUNG_ADULT),
        (adult & elder, _OLD_ADULT),
        (adult & ~younger & ~elder, _OTHER_ADULT),
    )
    for chosen, (codes, chances) in groups:
        here = np.flatnonzero(at_home & chosen)
        relship[here] = rng.choice(codes, size=len(here), p=chances)
    relship[at_home & (residents.number == 1)] = _HOUSEHOLDER
    couple = at_home & (residents.number == 2) & adult & adult[first] & (np.abs(older) < 2 * _GENERATION)
    here = np.flatnonzero(couple & (rng.random(len(couple)) < _PARTNERED))
    same = residents.sex[here] == residents.sex[first[here]]
    # Most pairs of one sex that share a home are no couple.
    kept = ~same | (rng.random(len(here)) < 0.1)
    here, same = here[kept], same[kept]
    married = rng.random(len(here)) < _MARRIED
    relship[here] = np.where(
        married,
        np.where(same, _SAME_SPOUSE, _OPPOSITE_SPOUSE),
        np.where(same, _SAME_PARTNER, _OPPOSITE_PARTNER),
    )
    return relship
