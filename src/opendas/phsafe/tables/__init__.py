"""What a table is, and the tables of the S-DHC.

An agency declares a table of its own as a :class:`Table` in a module of its own and passes it, with those
it keeps, wherever a function here takes `tables`.
"""

from opendas.phsafe.tables.declaration import Derived, IteratesBy, Joined, Kind, Table
from opendas.phsafe.tables.sdhc import DERIVED, OUTPUTS, TABLES, find_table

__all__ = ["DERIVED", "OUTPUTS", "TABLES", "Derived", "IteratesBy", "Joined", "Kind", "Table", "find_table"]
