"""PH5_denom: families, the denominator of the average family size."""

from __future__ import annotations

from opendas.phsafe.tables.declaration import IteratesBy, Kind, Table
from opendas.phsafe.tables.filters import families
from opendas.phsafe.tables.ph1_denom import only_cell

__all__ = ["TABLE"]

TABLE = Table(
    name="PH5_denom",
    kind=Kind.UNITS,
    cells=(1,),
    cell_index=only_cell,
    cell_rule="every unit has a cell",
    cell_field="HHT",
    iterates_by=IteratesBy.HOUSEHOLDER,
    unit_filter=families,
    shell={2: (1,), 3: (1,)},
)
