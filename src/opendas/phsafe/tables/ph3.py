"""PH3: persons below 18 in households by relationship and household type, by the person's own group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import CHILDREN, OUTSIDE
from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import minors_in_housing_unit

__all__ = ["TABLE"]

_CELLS = (2, 4, 5, 6, 7, 9, 10)
_SIDE = 128

# RELSHIP -> cell, whatever the household type.
_BY_RELATION = {
    **dict.fromkeys((20, 21, 22, 23, 24, 34, 35, 36), 2),
    30: 9,
    **dict.fromkeys((28, 29, 31, 32, 33), 10),
}
# HHT2 -> cell of an own child.
_OWN_CHILD = {1: 4, 3: 5, 10: 6, 6: 7}


def _table() -> npt.NDArray[np.int8]:
    table = np.full((_SIDE, _SIDE), OUTSIDE, dtype=np.int8)
    for relation, cell in _BY_RELATION.items():
        table[relation] = _CELLS.index(cell)
    for relation in CHILDREN:
        for hht2, cell in _OWN_CHILD.items():
            table[relation, hht2] = _CELLS.index(cell)
    return table


_INDEX = _table()


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """By RELSHIP, and by HHT2 for own children."""
    return np.asarray(_INDEX[rows.person("relship"), rows.unit("hht2")])


TABLE = Table(
    name="PH3",
    kind=Kind.PERSONS,
    cells=_CELLS,
    cell_index=cell_index,
    cell_rule=(
        "a person below 18 needs RELSHIP 20 to 36, and an own child (RELSHIP 25 to 27) a unit with "
        "HHT2 01, 03, 06 or 10"
    ),
    cell_field="RELSHIP",
    iterates_by=IteratesBy.PERSON,
    person_filter=minors_in_housing_unit,
    shell={1: _CELLS, 3: (4, 5, 6, 7), 8: (9, 10)},
)
