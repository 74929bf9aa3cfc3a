"""The non-private mode: exact counts, as the published program tabulates them. Confidential."""

from __future__ import annotations

from opendas.phsafe.config import Config
from opendas.phsafe.counting import count_cube, counted_rows, level_counts
from opendas.phsafe.linking import Linked
from opendas.phsafe.output import OutputTable, exact_table
from opendas.phsafe.tables import DERIVED, Derived, Table

__all__ = ["exact_tables"]


def exact_tables(
    config: Config, linked: Linked, derived: tuple[Derived, ...] = DERIVED
) -> tuple[OutputTable, ...]:
    """Count every table without truncation and without noise.

    Parameters
    ----------
    config : Config
    linked : Linked
    derived : tuple of Derived
        Further tables; they have a count of their own here where the published mode has one.

    Returns
    -------
    tuple of OutputTable
        With the totals of the published tables, and without rows that count nothing.
    """
    by_name = {table.name: table for table in config.tables}
    counted = [(table.name, table) for table in config.tables]
    counted += [(more.name, more.truth or by_name[more.source]) for more in derived if more.source in by_name]
    return tuple(_exact(name, table, config, linked) for name, table in counted)


def _exact(name: str, table: Table, config: Config, linked: Linked) -> OutputTable:
    rows = counted_rows(table, linked, truth=True)
    cube = count_cube(table, rows, linked.state, len(config.state_filter))
    return exact_table(table, name, [(level, level_counts(cube, level)) for level in table.levels])
