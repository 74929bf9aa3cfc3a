"""PH4: persons in families by age."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import RELATIVES
from opendas.phsafe.model import Persons, Units
from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import ADULT

__all__ = ["TABLE", "related", "up_to_family"]

_RELATED = np.isin(np.arange(128), RELATIVES)
_LAST_FAMILY = 3


def related(persons: Persons) -> npt.NDArray[np.bool_]:
    """The householder and relatives, whatever the type of their record."""
    return np.asarray(_RELATED[persons.relship])


def up_to_family(units: Units) -> npt.NDArray[np.bool_]:
    """HHT up to 3. The published filter compares texts, and so lets 0 (not in universe) through."""
    return np.asarray((units.hht >= 0) & (units.hht <= _LAST_FAMILY))


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """Cell 2 below 18, cell 3 from 18."""
    return (rows.person("qage") >= ADULT).astype(np.int8)


TABLE = Table(
    name="PH4",
    kind=Kind.PERSONS,
    cells=(2, 3),
    cell_index=cell_index,
    cell_rule="any age has a cell",
    cell_field="QAGE",
    iterates_by=IteratesBy.HOUSEHOLDER,
    person_filter=related,
    unit_filter=up_to_family,
    shell={1: (2, 3)},
)
