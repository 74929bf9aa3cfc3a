"""Where the records of a table are: the column of the leaf, those above it, and their geolevels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from opendas.errors import ConfigError
from opendas.runs.config.model import RESERVED_GEOLEVELS
from opendas.runs.starting.columns import Column, Role, nested

Level = tuple[str, int | None, str | None]
"""Name, and either the width of a prefix of the leaf's codes or a column; neither of the leaf."""


def leaf_column(path: Path, columns: Mapping[str, Column]) -> tuple[str, tuple[str, ...]]:
    """Choose the leaf by name, else by the form of codes; an identifier of rows or persons never is it.

    Returns the column, and what is not sure of it.
    """
    named = [
        column for column in columns.values() if column.role == Role.PLACE and column.named_place is not None
    ]
    if named:
        named = [column for column in named if column.can_be_place] or named
        best = min(named, key=lambda column: (column.named_place or 0, -len(column.values)))
        beside = [column.name for column in named if column is not best and not best.determines(column)]
        if not beside:
            return best.name, ()
        return best.name, (
            f"{best.name} was taken as the place of a record. {', '.join(beside)} could be places as well, "
            f"but one {best.name} lies in several of them. Name the columns of places with --geography.",
        )
    coded = [column for column in columns.values() if column.could_be_place]
    same = [column.name for column in columns.values() if column.is_one_place]
    if not coded and same:
        raise ConfigError(
            f"{path.name}: by its name, {same[0]} says where a record belongs, but all rows have the same "
            f"value. If all records belong there, give --geography {same[0]}; else name the columns of "
            "places with --geography TOP,...,LEAF."
        )
    if not coded:
        raise ConfigError(
            f"{path.name}: no column seems to say where a record belongs. Name the columns of places with "
            "--geography TOP,...,LEAF (for instance --geography hospital,ward), or answer the questions of "
            "--interactive."
        )
    best = max(coded, key=lambda column: len(column.values))
    others = [column.name for column in coded if column is not best]
    also = f" {', '.join(others)} could be places as well." if others else ""
    return best.name, (
        f"{best.name} was taken as the place of a record for its values alone, which look like codes of "
        f"places.{also} Name the columns of places with --geography.",
    )


def upper_columns(
    columns: Mapping[str, Column], geocode: str, attributes: Collection[str]
) -> tuple[str, ...]:
    """Return columns that the leaf determines, nested in each other, coarsest first."""
    leaf = columns[geocode]
    if leaf.tells_rows_apart:
        return ()
    return nested(
        column
        for name, column in columns.items()
        if name != geocode
        and name not in attributes
        and column.role in (Role.PLACE, Role.LABELS, Role.TEXT)
        and column.can_be_place
        and 1 < len(column.values) < len(leaf.values)
        and leaf.determines(column)
    )


def same_as(leaf: Column, columns: Iterable[Column]) -> set[str]:
    """Return the columns with one value for each leaf, such as the names of places beside their codes."""
    if leaf.tells_rows_apart:
        return set()
    return {
        column.name
        for column in columns
        if column is not leaf
        and column.role in (Role.PLACE, Role.LABELS, Role.TEXT)
        and len(column.values) == len(leaf.values)
        and leaf.determines(column)
    }


def refuse_no_codes(path: Path, places: Iterable[Column]) -> None:
    """Refuse columns of places whose values a run would not read as geocodes."""
    for column in places:
        if column.has_empty:
            raise ConfigError(
                f"{path.name}: {column.name} is empty in some rows, so they lie nowhere. Give them a code of "
                "their own, such as none, or name other columns of places with --geography."
            )
        if not column.can_be_place:
            raise ConfigError(
                f"{path.name}: {column.name} cannot be the place of a record: some values are not printable "
                "ASCII, or have spaces around them. Write codes for them, or name other columns of places "
                "with --geography."
            )


def levels_of(leaves: list[str], geocode: str, uppers: tuple[str, ...]) -> tuple[Level, ...]:
    """Guess the hierarchy: one root, then columns or code prefixes, then the leaf."""
    taken = {"all"}
    levels: list[Level] = [("all", 0, None)]
    levels += [(_geolevel_name(column, taken), None, column) for column in uppers]
    if not uppers and len({len(code) for code in leaves}) == 1:
        levels += [(_geolevel_name(f"first{width}", taken), width, None) for width in _prefixes(leaves)]
    return (*levels, (_geolevel_name(geocode, taken), None, None))


def _geolevel_name(column: str, taken: set[str]) -> str:
    """Return a column's name as one that a geolevel may have, and take it."""
    name = re.sub(r"[^\w .-]", "_", column.lower())[:60].strip(" ._-") or "unit"
    while name in taken or name in RESERVED_GEOLEVELS:
        name += "1"
    taken.add(name)
    return name


def _prefixes(leaves: list[str]) -> list[int]:
    """Return prefix widths at which the codes branch clearly: each at least doubles the groups above."""
    chosen = []
    above = 1
    for width in range(1, len(leaves[0])):
        groups = len({code[:width] for code in leaves})
        if groups >= 2 * above and 2 * groups <= len(leaves):
            chosen.append(width)
            above = groups
    return chosen[-3:]
