"""Count every table, level, region, population group and cell exactly. Confidential.

Each table is counted once, into a cube states x races x origins x cells, and its levels are sums over axes.
Cubes add up over any partition of the households, so an engine may count a nation in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.phsafe.config import Plan
from opendas.phsafe.inputs.codes import OUTSIDE, group_index
from opendas.phsafe.inputs.levels import Geography, Iteration, Level
from opendas.phsafe.inputs.linking import Linked
from opendas.phsafe.tables import IteratesBy, Joined, Kind, Table
from opendas.phsafe.truncation import Truncation, select

_RACES = len(Iteration.RACE.codes) + 1
_ORIGINS = len(Iteration.ORIGIN.codes) + 1
Progress = Callable[[str, int, int], None]

_COLUMNS = ("rtype", "qage", "cenhisp", "cenrace", "relship")


def counted_rows(table: Table, linked: Linked, *, truth: bool = False) -> Joined:
    """Return the rows that a table counts, before truncation.

    `truth`: apply the further unit filter of the non-private mode.
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
    """Keep at most `tau` persons of each unit; smaller units are not sorted.

    `rows`: Persons, after the filters of their table.
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

    - `state` (u,): position of each unit's state.
    - Returns (states, 8, 3, cells), or (states, 1, 1, cells) for a table without population groups: the last
      race and the last origin count rows outside every group. Rows without a cell are not counted.

    Notes
    -----
    Sexton et al. (2024), Algorithm 4, for all population groups at once.
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
    return np.rint(counts).astype(np.int64).reshape(shape)


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


def count_tables(
    plan: Plan,
    linked: Linked,
    keys: Mapping[str, bytes],
    progress: Progress | None = None,
    *,
    before: Mapping[str, Joined] | None = None,
) -> dict[str, Ints]:
    """Count every table with a budget, after truncation.

    - `keys`: keys of the keyed selections, by table.
    - `before`: rows of each table before truncation, if the caller has them.
    - Returns (states, races, origins, cells): the cube of each table. Confidential.

    Notes
    -----
    Sexton et al. (2024), Algorithm 1 and Algorithm 2, without the noise.
    """
    tables = [table for table in plan.config.tables if table.name in plan.config.budgets]
    cubes = {}
    for done, table in enumerate(tables, start=1):
        rows = counted_rows(table, linked) if before is None else before[table.name]
        if table.has_tau:
            rows = truncated(rows, plan.config.tau[table.name], plan.truncation, keys.get(table.name))
        cubes[table.name] = count_cube(table, rows, linked.state, len(plan.config.state_filter))
        if progress is not None:
            progress("counting", done, len(tables))
    return cubes


def exact_cubes(tables: Mapping[str, Table], linked: Linked, states: int) -> dict[str, Ints]:
    """Return the cube of each table as the non-private mode counts it, by output name."""
    return {
        name: count_cube(table, counted_rows(table, linked, truth=True), linked.state, states)
        for name, table in tables.items()
    }
