"""PH6: own children below 18 by household type and age."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import CHILDREN, OUTSIDE, lookup
from opendas.phsafe.model import Persons
from opendas.phsafe.tables.declaration import Joined, Kind, Table
from opendas.phsafe.tables.filters import ADULT

__all__ = ["TABLE", "own_minors"]

_BANDS = 4
_CELLS = tuple(range(3, 7)) + tuple(range(8, 12)) + tuple(range(13, 17)) + tuple(range(18, 22))
_OWN_CHILD = np.isin(np.arange(128), CHILDREN)
# HHT2 -> position of the first cell: married couple, cohabiting couple, male, female householder.
_FIRST = lookup({1: 0, 3: _BANDS, 10: 2 * _BANDS, 6: 3 * _BANDS}, 128)
_LAST_AGES = (3, 5, 11)
"""Last age of all bands but the last: under 4; 4 and 5; 6 to 11; 12 to 17."""


def own_minors(persons: Persons) -> npt.NDArray[np.bool_]:
    """Own children below 18, whatever the type of their record."""
    return np.asarray((persons.qage < ADULT) & _OWN_CHILD[persons.relship])


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """By HHT2, then by age."""
    first = _FIRST[rows.unit("hht2")]
    band = np.searchsorted(_LAST_AGES, rows.person("qage"), side="left")
    return np.where(first == OUTSIDE, OUTSIDE, first + band).astype(np.int8)


TABLE = Table(
    name="PH6",
    kind=Kind.PERSONS,
    cells=_CELLS,
    cell_index=cell_index,
    cell_rule="an own child below 18 needs a unit with HHT2 01, 03, 06 or 10",
    cell_field="RELSHIP",
    person_filter=own_minors,
    shell={
        1: _CELLS,
        2: (3, 4, 5, 6),
        7: (8, 9, 10, 11),
        12: (13, 14, 15, 16),
        17: (18, 19, 20, 21),
    },
)
