"""Filters that several tables share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.model import Persons, Units

__all__ = ["ADULT", "families", "in_housing_unit", "minors_in_housing_unit", "occupied_housing_units"]

ADULT = 18
"""Age in years from which a person is no minor."""

_PERSON_IN_HOUSING_UNIT = 3
_HOUSING_UNIT = 2
_LAST_FAMILY = 3


def in_housing_unit(persons: Persons) -> npt.NDArray[np.bool_]:
    """Persons of type 3."""
    return np.asarray(persons.rtype == _PERSON_IN_HOUSING_UNIT)


def minors_in_housing_unit(persons: Persons) -> npt.NDArray[np.bool_]:
    """Persons of type 3 below 18."""
    return np.asarray((persons.rtype == _PERSON_IN_HOUSING_UNIT) & (persons.qage < ADULT))


def occupied_housing_units(units: Units) -> npt.NDArray[np.bool_]:
    """Units of type 2 with a household type."""
    return np.asarray((units.rtype == _HOUSING_UNIT) & (units.hht != 0))


def families(units: Units) -> npt.NDArray[np.bool_]:
    """Units whose household is a family (HHT 1, 2 or 3), whatever their type."""
    return np.asarray((units.hht >= 1) & (units.hht <= _LAST_FAMILY))
