"""Exact counts of every table, level, region, population group and cell. Confidential.

A table is counted once, into a cube states x races x origins x cells; its levels are sums over axes of it.
Cubes add up over any partition of the households, so that an engine may count a nation in parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import Finding
from opendas.phsafe.codes import OUTSIDE, group_index
from opendas.phsafe.config import Config
from opendas.phsafe.findings import CSV_FILES, InputFiles, list_lines
from opendas.phsafe.linking import Linked
from opendas.phsafe.model import Geography, Iteration, Level
from opendas.phsafe.tables import IteratesBy, Joined, Kind, Table
from opendas.phsafe.truncation import Truncation, select

__all__ = [
    "check_cells",
    "count_cube",
    "counted_rows",
    "has_no_cell",
    "has_no_race",
    "level_counts",
]


_RACES = len(Iteration.RACE.codes) + 1
_ORIGINS = len(Iteration.ORIGIN.codes) + 1
_COLUMNS = ("rtype", "qage", "cenhisp", "cenrace", "relship")


def counted_rows(table: Table, linked: Linked, *, truth: bool = False) -> Joined:
    """Return the rows that a table counts, before truncation.

    Parameters
    ----------
    table : Table
    linked : Linked
    truth : bool
        With the further unit filter of the non-private mode.
    """
    persons, units = linked.persons, linked.units
    unit_filters = [table.unit_filter, table.truth_filter if truth else None]
    masks = [chosen(units) for chosen in unit_filters if chosen is not None]
    in_table = np.logical_and.reduce(masks) if masks else None
    if table.kind is Kind.UNITS:
        unit_rows = np.arange(len(units)) if in_table is None else np.flatnonzero(in_table)
        return Joined(persons, units, None, unit_rows)
    wanted = linked.home >= 0
    if table.person_filter is not None:
        wanted &= table.person_filter(persons)
    person_rows = np.flatnonzero(wanted)
    unit_rows = linked.home[person_rows]
    if in_table is not None:
        kept = in_table[unit_rows]
        person_rows, unit_rows = person_rows[kept], unit_rows[kept]
    return Joined(persons, units, person_rows, unit_rows)


def truncated(rows: Joined, tau: int, mode: Truncation, key: bytes | None) -> Joined:
    """Keep at most `tau` persons of each unit; only units above it are looked at.

    Parameters
    ----------
    rows : Joined
        Persons, after the filters of their table.
    tau : int
    mode : Truncation
    key : bytes or None
        For the keyed order.
    """
    if rows.person_rows is None or not len(rows):
        return rows
    large = np.bincount(rows.unit_rows, minlength=len(rows.units)) > tau
    if not large.any():
        return rows
    at = np.flatnonzero(large[rows.unit_rows])
    chosen = rows.person_rows[at]
    columns = {name: getattr(rows.persons, name)[chosen] for name in _COLUMNS}
    kept = np.ones(len(rows), dtype=np.bool_)
    kept[at] = select(rows.persons.mafid[chosen], columns, tau, mode=mode, key=key)
    return replace(rows, person_rows=rows.person_rows[kept], unit_rows=rows.unit_rows[kept])


def count_cube(table: Table, rows: Joined, state: npt.NDArray[np.int8], states: int) -> Ints:
    """Count rows by state, race, origin and cell.

    Parameters
    ----------
    table : Table
    rows : Joined
    state : int8 (u,)
        Position of each unit's state.
    states : int
        Number of states in the grid.

    Returns
    -------
    int64 (states, 8, 3, cells), or (states, 1, 1, cells) for a table without population groups
        The last race and the last origin hold rows of no group. Rows without a cell are in none.
    """
    races, origins = (_RACES, _ORIGINS) if table.has_groups else (1, 1)
    shape = (states, races, origins, len(table.cells))
    flat = _group_code(table, rows, state).astype(np.int64) * len(table.cells)
    cell = table.cell_index(rows)
    flat += cell
    weights = None if table.weight is None else rows.unit(table.weight)
    inside = cell != OUTSIDE
    if not inside.all():
        flat, weights = flat[inside], None if weights is None else weights[inside]
    counts = np.bincount(flat, weights=weights, minlength=int(np.prod(shape)))
    return np.rint(counts).astype(np.int64).reshape(shape) if weights is not None else counts.reshape(shape)


def _group_code(table: Table, rows: Joined, state: npt.NDArray[np.int8]) -> npt.NDArray[np.int16]:
    """Return (state * races + race) * origins + origin of each row."""
    if table.iterates_by is IteratesBy.HOUSEHOLDER:
        groups = _groups(rows.units.hhrace, rows.units.hhspan)
        return np.asarray((state.astype(np.int16) * (_RACES * _ORIGINS) + groups)[rows.unit_rows])
    where = state.astype(np.int16)[rows.unit_rows]
    if table.iterates_by is None:
        return where
    return np.asarray(where * (_RACES * _ORIGINS) + _groups(rows.person("cenrace"), rows.person("cenhisp")))


def _groups(race: npt.NDArray[Any], hispanic: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    races, origins = (
        group_index(Iteration.RACE, race, hispanic),
        group_index(Iteration.ORIGIN, race, hispanic),
    )
    races[races < 0] = _RACES - 1
    origins[origins < 0] = _ORIGINS - 1
    return races * np.int8(_ORIGINS) + origins


def level_counts(cube: Ints, level: Level) -> Ints:
    """Return the counts of a level from the cube of its table, int64 (regions, groups, cells)."""
    if level.iteration is Iteration.RACE:
        counts = cube.sum(axis=2)[:, : _RACES - 1]
    elif level.iteration is Iteration.ORIGIN:
        counts = cube.sum(axis=1)[:, : _ORIGINS - 1]
    else:
        counts = cube.sum(axis=(1, 2))[:, np.newaxis]
    return np.asarray(counts.sum(axis=0, keepdims=True) if level.geography is Geography.USA else counts)


def has_no_cell(table: Table, rows: Joined) -> npt.NDArray[np.bool_]:
    """Return which rows a table counts without having a cell for them, or with a position that is none."""
    position = table.cell_index(rows)
    return np.asarray((position < 0) | (position >= len(table.cells)))


def has_no_race(table: Table, rows: Joined) -> npt.NDArray[np.bool_]:
    """Return which rows have a race that is in none of the groups A to G."""
    if table.iterates_by is None:
        return np.zeros(len(rows), dtype=np.bool_)
    of = "unit" if table.iterates_by is IteratesBy.HOUSEHOLDER else "person"
    race = rows.unit("hhrace") if of == "unit" else rows.person("cenrace")
    return np.asarray(group_index(Iteration.RACE, race, race) == OUTSIDE)


def check_cells(
    linked: Linked,
    config: Config,
    files: InputFiles = CSV_FILES,
    *,
    every_table: bool = False,
    usable: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None = None,
) -> list[Finding]:
    """Find every person or unit that a table with a budget counts but that has no cell, or no race group.

    Before truncation, so that what is refused does not depend on who would have been kept.

    Parameters
    ----------
    linked : Linked
    config : Config
    files : InputFiles
    every_table : bool
        Also tables without a budget, for the non-private mode.
    usable : (bool (n,), bool (u,)), optional
        Persons and units whose codes are in their lists; by default all. Others are passed over here, for
        they are wrong whatever counts them.

    Returns
    -------
    list of Finding
        By table, then by line.
    """
    findings = []
    for table in config.tables:
        levels = table.levels if every_table else tuple(config.budgets.get(table.name, {}))
        if not levels:
            continue
        rows = counted_rows(table, linked)
        checks = [(table.cell_field, table.cell_rule, has_no_cell(table, rows))]
        if any(level.iteration is Iteration.RACE for level in levels):
            by_person = table.iterates_by is IteratesBy.PERSON
            field = "CENRACE" if by_person else "HHRACE"
            rule = f"{'the person' if by_person else 'the unit'} needs {field} 01 to 63"
            checks.append((field, rule, has_no_race(table, rows)))
        for field, rule, wrong in checks:
            if wrong.any():
                found = np.flatnonzero(wrong & _usable(rows, usable))
                findings += _without_cell(
                    rows, found, files, field, f"counted by {table.name}, without a cell: {rule}"
                )
    return findings


def _usable(
    rows: Joined, usable: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None
) -> npt.NDArray[np.bool_] | bool:
    if usable is None:
        return True
    persons, units = usable
    good = units[rows.unit_rows]
    return good if rows.person_rows is None else good & persons[rows.person_rows]


def _without_cell(
    rows: Joined, found: npt.NDArray[np.int64], files: InputFiles, field: str, rule: str
) -> list[Finding]:
    unit_lines = rows.unit("line")[found]
    if rows.person_rows is None:
        return list_lines(files.units, unit_lines, field, rule)

    def unit_of(position: int) -> str:
        name, line = files.units.place(int(unit_lines[position]))
        return f" (its unit: {name}, line {line})"

    return list_lines(files.persons, rows.person("line")[found], field, rule, unit_of)
