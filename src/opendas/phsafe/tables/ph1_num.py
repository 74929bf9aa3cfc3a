"""PH1_num: persons in households by age, the numerator of the average household size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.phsafe.tables.declaration import IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.filters import ADULT, in_housing_unit, occupied_housing_units

__all__ = ["TABLE"]


def cell_index(rows: Joined) -> npt.NDArray[np.int8]:
    """Cell 2 below 18, cell 3 from 18."""
    return (rows.person("qage") >= ADULT).astype(np.int8)


TABLE = Table(
    name="PH1_num",
    kind=Kind.PERSONS,
    cells=(2, 3),
    cell_index=cell_index,
    cell_rule="any age has a cell",
    cell_field="QAGE",
    iterates_by=IteratesBy.HOUSEHOLDER,
    person_filter=in_housing_unit,
    shell={1: (2, 3)},
    truth_filter=occupied_housing_units,
)
