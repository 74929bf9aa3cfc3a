"""The non-private mode: exact counts, as the published program tabulates them. Confidential."""

from __future__ import annotations

from opendas.arrays import Ints
from opendas.phsafe.config import Config
from opendas.phsafe.counting import count_cube, counted_rows, level_counts
from opendas.phsafe.linking import Linked
from opendas.phsafe.output import OutputTable, exact_table
from opendas.phsafe.tables import DERIVED, Derived, Table

__all__ = ["exact_cubes", "exact_declarations", "exact_tables", "lay_out"]


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
    tables = exact_declarations(config, derived)
    return lay_out(tables, exact_cubes(tables, linked, len(config.state_filter)))


def exact_declarations(config: Config, derived: tuple[Derived, ...] = DERIVED) -> dict[str, Table]:
    """Return what the non-private mode counts, by the name of the output."""
    counted = {table.name: table for table in config.tables}
    more = {one.name: one.truth or counted[one.source] for one in derived if one.source in counted}
    return {**counted, **more}


def exact_cubes(tables: dict[str, Table], linked: Linked, states: int) -> dict[str, Ints]:
    """Return the cube of each table, by the name of the output; cubes of parts of the households add up."""
    return {
        name: count_cube(table, counted_rows(table, linked, truth=True), linked.state, states)
        for name, table in tables.items()
    }


def lay_out(tables: dict[str, Table], cubes: dict[str, Ints]) -> tuple[OutputTable, ...]:
    """Return the tables as they are written."""
    return tuple(
        exact_table(table, name, [(level, level_counts(cubes[name], level)) for level in table.levels])
        for name, table in tables.items()
    )
