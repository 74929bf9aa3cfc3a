"""PH7: persons in households by tenure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import lookup
from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import in_housing_unit

__all__ = ["TABLE"]

_BY_TENURE = lookup({1: 0, 2: 1, 3: 2, 4: 2}, 128)


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """Cell 2 owned with a mortgage, 3 owned free and clear, 4 rented or without payment of rent."""
    return np.asarray(_BY_TENURE[rows.unit("ten")])


TABLE = Table(
    name="PH7",
    kind=Kind.PERSONS,
    cells=(2, 3, 4),
    cell_index=cell_index,
    cell_rule="the unit needs TEN 1 to 4",
    cell_field="TEN",
    iterates_by=IteratesBy.HOUSEHOLDER,
    person_filter=in_housing_unit,
    shell={1: (2, 3, 4)},
)
