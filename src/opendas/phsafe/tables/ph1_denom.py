"""PH1_denom: households, the denominator of the average household size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import occupied_housing_units

__all__ = ["TABLE", "only_cell"]


def only_cell(rows: Joined) -> npt.NDArray[np.int8]:
    """Everything in the one cell there is."""
    return np.zeros(len(rows), dtype=np.int8)


TABLE = Table(
    name="PH1_denom",
    kind=Kind.UNITS,
    cells=(1,),
    cell_index=only_cell,
    cell_rule="every unit has a cell",
    cell_field="HHT",
    iterates_by=IteratesBy.HOUSEHOLDER,
    unit_filter=occupied_housing_units,
    shell={2: (1,), 3: (1,)},
)
