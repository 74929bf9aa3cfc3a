"""The tables of the S-DHC: nine measured, two derived, one module each.

An agency declares a table of its own as a :class:`Table` in a module of its own and passes it, with those
it keeps, wherever a function here takes `tables`.
"""

from __future__ import annotations

from opendas.phsafe.tables import (
    ph1_denom,
    ph1_num,
    ph2,
    ph3,
    ph4,
    ph5_denom,
    ph5_num,
    ph6,
    ph7,
    ph8_denom,
    ph8_num,
)
from opendas.phsafe.tables.declaration import Derived, IteratesBy, Joined, Kind, Table

__all__ = ["DERIVED", "OUTPUTS", "TABLES", "Derived", "IteratesBy", "Joined", "Kind", "Table", "find_table"]

TABLES: tuple[Table, ...] = (
    ph1_num.TABLE,
    ph1_denom.TABLE,
    ph2.TABLE,
    ph3.TABLE,
    ph4.TABLE,
    ph5_denom.TABLE,
    ph6.TABLE,
    ph7.TABLE,
    ph8_denom.TABLE,
)
"""The nine measured tables."""

DERIVED: tuple[Derived, ...] = (ph5_num.DERIVED, ph8_num.DERIVED)
"""The two tables computed from measured ones."""

OUTPUTS: tuple[str, ...] = (
    "PH1_num",
    "PH1_denom",
    "PH2",
    "PH3",
    "PH4",
    "PH5_num",
    "PH5_denom",
    "PH6",
    "PH7",
    "PH8_num",
    "PH8_denom",
)
"""The eleven folders of the published program, in order."""


def find_table(name: str, tables: tuple[Table, ...] = TABLES) -> Table | None:
    """Return the measured table with a name, None if there is none."""
    return next((table for table in tables if table.name == name), None)
