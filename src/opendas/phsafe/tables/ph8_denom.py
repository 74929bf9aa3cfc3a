"""PH8_denom: households by tenure, the denominator of the average household size by tenure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.codes import lookup
from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import occupied_housing_units

__all__ = ["TABLE", "owned_or_rented"]

_BY_TENURE = lookup({1: 0, 2: 0, 3: 1, 4: 1}, 128)


def owned_or_rented(rows: Joined) -> npt.NDArray[np.int8]:
    """Cell 2 owned, cell 3 rented or without payment of rent."""
    return np.asarray(_BY_TENURE[rows.unit("ten")])


TABLE = Table(
    name="PH8_denom",
    kind=Kind.UNITS,
    cells=(2, 3),
    cell_index=owned_or_rented,
    cell_rule="an occupied housing unit needs TEN 1 to 4",
    cell_field="TEN",
    iterates_by=IteratesBy.HOUSEHOLDER,
    unit_filter=occupied_housing_units,
    shell={1: (2, 3)},
)
