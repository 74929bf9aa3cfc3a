"""PH2: persons in households by type of household and of couple."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import OUTSIDE
from opendas.phsafe.tables.declaration import Joined, Kind, Table
from opendas.phsafe.tables.filters import in_housing_unit

__all__ = ["TABLE"]

_CELLS = (3, 4, 6, 7, 9, 10, 12, 13)

# HHT2 -> cell, where the type of couple does not matter.
_WITHOUT_PARTNER = {9: 9, 10: 10, 11: 10, 12: 10, 5: 12, 6: 13, 7: 13, 8: 13}
# (HHT2, CPLT) -> cell
_COUPLES = {
    **{(hht2, cplt): cell for hht2 in (1, 2) for cplt, cell in ((1, 3), (2, 4))},
    **{(hht2, cplt): cell for hht2 in (3, 4) for cplt, cell in ((3, 6), (4, 7))},
}
_SIDE = 128


def _table() -> npt.NDArray[np.int8]:
    table = np.full((_SIDE, _SIDE), OUTSIDE, dtype=np.int8)
    for hht2, cell in _WITHOUT_PARTNER.items():
        table[hht2] = _CELLS.index(cell)
    for (hht2, cplt), cell in _COUPLES.items():
        table[hht2, cplt] = _CELLS.index(cell)
    return table


_INDEX = _table()


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """By HHT2, and by CPLT for couples."""
    return np.asarray(_INDEX[rows.unit("hht2"), rows.unit("cplt")])


TABLE = Table(
    name="PH2",
    kind=Kind.PERSONS,
    cells=_CELLS,
    cell_index=cell_index,
    cell_rule=(
        "the unit needs HHT2 01 or 02 with CPLT 1 or 2, HHT2 03 or 04 with CPLT 3 or 4, or HHT2 05 to 12"
    ),
    cell_field="HHT2",
    person_filter=in_housing_unit,
    shell={
        1: _CELLS,
        2: (3, 4),
        5: (6, 7),
        8: (9, 10),
        11: (12, 13),
    },
)
