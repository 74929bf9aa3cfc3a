"""Inconsistencies that the published program tabulates without a word: warnings, in every mode.

A household may contradict itself (no householder, a tenure on a vacant unit, a household type that its
members do not make) and still be counted. The counts are then what the records say, not what is true.

Axes: ``n`` persons, ``u`` units, both sorted by MAFID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools
from opendas.errors import Finding
from opendas.phsafe.codes import CHILDREN
from opendas.phsafe.findings import list_lines
from opendas.phsafe.linking import sort_inputs
from opendas.phsafe.model import Inputs, Persons, Units
from opendas.phsafe.tables.filters import ADULT

__all__ = ["find_inconsistencies"]


_HOUSEHOLDER = 20
_HOUSING_UNIT, _PERSON_IN_HOUSING_UNIT = 2, 3
_MARRIED, _MALE_ALONE, _FEMALE_ALONE = 1, 4, 6
_MARRIED_TYPES, _COHABITING_TYPES = (1, 2), (3, 4)
_FEMALE_ALONE_TYPE, _MALE_ALONE_TYPE = 5, 9
_WITH_CHILDREN = (1, 3, 6, 10)
_NO_COUPLE = 5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Homes:
    """Units beside what their persons say. Confidential."""

    persons: Persons
    units: Units
    home: npt.NDArray[np.int64]  # (n,) position of the unit, -1 where there is none

    def count(self, chosen: Bools) -> npt.NDArray[np.int64]:
        """Count chosen persons by unit, int64 (u,)."""
        return np.bincount(self.home[chosen & (self.home >= 0)], minlength=len(self.units))

    def of_householder(self, column: str) -> npt.NDArray[Any]:
        """Return a value of each unit's householder, -1 where there is none."""
        values = np.full(len(self.units), -1, dtype=np.int64)
        heads = (self.persons.relship == _HOUSEHOLDER) & (self.home >= 0)
        values[self.home[heads]] = getattr(self.persons, column)[heads]
        return values


def find_inconsistencies(inputs: Inputs) -> list[Finding]:
    """Find records that contradict each other.

    Parameters
    ----------
    inputs : Inputs
        Restricted to the state filter.

    Returns
    -------
    list of Finding
        By rule and line; the first lines of each rule, and the number of the others.
    """
    inputs = sort_inputs(inputs)
    homes = _Homes(inputs.persons, inputs.units, _positions(inputs.persons.mafid, inputs.units.mafid))
    persons, units, files = inputs.persons, inputs.units, inputs.files
    findings = []
    for field, rule, wrong in _person_rules(homes):
        findings += list_lines(files.persons, persons.line[wrong], field, rule)
    for field, rule, wrong in (*_unit_rules(units), *_member_rules(homes)):
        findings += list_lines(files.units, units.line[wrong], field, rule)
    place = _positions(units.mafid, inputs.places.mafid)
    if len(inputs.places):
        apart = (place >= 0) & (inputs.places.rtype[place] != units.rtype)
        rule = f"expected the type that {files.places.title} has for this unit"
        findings += list_lines(files.units, units.line[apart], "RTYPE", rule)
    return findings


def _person_rules(homes: _Homes) -> list[tuple[str, str, Bools]]:
    if not len(homes.units):
        return []
    in_unit = homes.persons.rtype == _PERSON_IN_HOUSING_UNIT
    apart = (homes.home >= 0) & (in_unit != (homes.units.rtype[homes.home] == _HOUSING_UNIT))
    return [("RTYPE", "expected 3 in a unit of type 2, and 5 in one of type 4", apart)]


def _unit_rules(units: Units) -> list[tuple[str, str, Bools]]:
    """Compare the codes of each unit with each other."""
    household = (units.rtype == _HOUSING_UNIT) & (units.hht != 0)
    married, cohabiting = (np.isin(units.hht2, types) for types in (_MARRIED_TYPES, _COHABITING_TYPES))
    same_family = (units.hht == _MARRIED) == married
    same_alone = ((units.hht == _MALE_ALONE) == (units.hht2 == _MALE_ALONE_TYPE)) & (
        (units.hht == _FEMALE_ALONE) == (units.hht2 == _FEMALE_ALONE_TYPE)
    )
    couple = np.where(
        married,
        np.isin(units.cplt, (1, 2)),
        np.where(cohabiting, np.isin(units.cplt, (3, 4)), units.cplt == _NO_COUPLE),
    )
    codes = ("hhrace", "hhspan", "ten", "hht2", "cplt")
    filled = np.logical_and.reduce([getattr(units, name) != 0 for name in codes])
    blank = np.logical_and.reduce([getattr(units, name) == 0 for name in codes])
    return [
        ("HHT", "expected an HHT2 of the same kind of household", household & ~(same_family & same_alone)),
        ("CPLT", "expected 1 or 2 with HHT2 01 or 02, 3 or 4 with 03 or 04, else 5", household & ~couple),
        ("HHT", "a household needs HHRACE, HHSPAN, TEN, HHT2 and CPLT in universe", household & ~filled),
        ("HHT", "where HHT is 0, HHRACE, HHSPAN, TEN, HHT2 and CPLT are 0 too", (units.hht == 0) & ~blank),
    ]


def _member_rules(homes: _Homes) -> list[tuple[str, str, Bools]]:
    """Compare units with their persons."""
    persons, units = homes.persons, homes.units
    household = (units.rtype == _HOUSING_UNIT) & (units.hht != 0)
    people = homes.count(np.ones(len(persons), dtype=np.bool_))
    heads = homes.count(persons.relship == _HOUSEHOLDER)
    child = np.zeros(128, dtype=np.bool_)
    child[list(CHILDREN)] = True
    minors = homes.count(child[persons.relship] & (persons.qage < ADULT))
    with_children = np.isin(units.hht2, _WITH_CHILDREN)
    one = household & (heads == 1)
    return [
        ("FINAL_POP", "expected the number of persons with this key", units.final_pop != people),
        ("HHT", "a household has exactly one person with RELSHIP 20", household & (heads != 1)),
        ("HHRACE", "expected the race of the householder", one & _differs(homes, "cenrace", units.hhrace)),
        ("HHSPAN", "expected the origin of the householder", one & _differs(homes, "cenhisp", units.hhspan)),
        (
            "HHT2",
            "expected 01, 03, 06 or 10 where an own child (RELSHIP 25 to 27) is below 18, and only there",
            household & (with_children != (minors > 0)),
        ),
    ]


def _differs(homes: _Homes, column: str, values: npt.NDArray[Any]) -> Bools:
    return np.asarray(homes.of_householder(column) != values)


def _positions(keys: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first position of each key in a sorted list, -1 where it is not in it."""
    if not len(among):
        return np.full(len(keys), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    return np.asarray(np.where(among[found] == keys, found, -1))
