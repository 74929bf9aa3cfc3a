"""Public counts of housing units, group quarters and other units per leaf, from a file of their own.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.geography.frame import Frame
from opendas.readers.base import ReaderSpec, UnitsSpec
from opendas.readers.columns.coding import geocodes_of, whole_numbers
from opendas.readers.columns.csv_parquet import PUBLIC_ROWS, column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog, Lines, joined
from opendas.readers.frame.frame_file import LeafColumns, leaf_positions, unit_names

__all__ = ["add_units", "read_units", "replace_units"]


def read_units(spec: ReaderSpec, units: UnitsSpec, width: int | None) -> tuple[Codes, dict[str, Ints]]:
    """Read the file of public unit counts: its geocodes, each once, and one column per kind of unit.

    Kinds that neither the file nor ``columns`` knows are left out; the file has to know at least one.

    Raises
    ------
    ConfigError
        If ``columns`` names an unknown kind.
    DataError
        With everything that is wrong in the file.
    """
    columns = _columns(spec, units)
    log, lines = FindingLog(), Lines()
    codes: list[Codes] = []
    counts: dict[str, list[Ints]] = {kind: [] for kind in columns}
    for batch in read_batches(units.path, [units.geocode, *columns.values()], log, rows=PUBLIC_ROWS):
        codes.append(geocodes_of(batch, units.geocode, width, log))
        for kind, column in columns.items():
            counts[kind].append(whole_numbers(batch, column, log))
        lines.add(batch.first, batch.rows)
    log.raise_if_any(_UNUSABLE.format(units.path.name))
    if not codes:
        raise no_rows(units.path)
    geocodes = joined(codes)
    _tell_repeats(geocodes, units, lines, log)
    log.raise_if_any(_UNUSABLE.format(units.path.name))
    return geocodes, {kind: joined(parts) for kind, parts in counts.items()}


_UNUSABLE = "{}: the units are not usable."
_ONCE = "expected each leaf once"


def _columns(spec: ReaderSpec, units: UnitsSpec) -> dict[str, str]:
    """Return the column of each kind of unit that the file has."""
    known = column_names(units.path)
    names = unit_names(spec)
    given = {("hu" if kind == "housing" else kind): column for kind, column in units.columns.items()}
    unknown = [kind for kind in given if kind not in names]
    if unknown:
        raise ConfigError(f"[input] units: no kind of unit {unknown[0]!r}; there are {', '.join(names)}.")
    columns = {kind: given.get(kind, kind) for kind in names if kind in given or kind in known}
    if not columns:
        log = FindingLog()
        log.add(FormatError, units.path.name, None, None, f"expected a column {' or '.join(names)}")
        log.raise_if_any(f"{units.path.name} holds no units.")
    return columns


def _tell_repeats(geocodes: Codes, units: UnitsSpec, lines: Ints | Lines, log: FindingLog) -> None:
    repeated = np.ones(len(geocodes), dtype=bool)
    repeated[np.unique(geocodes, return_index=True)[1]] = False
    log.add_where(GeographyError, units.path.name, repeated, units.geocode, _ONCE, lines=lines)


def add_units(leaves: LeafColumns, spec: ReaderSpec, units: UnitsSpec, width: int | None) -> None:
    """Give `leaves` the unit counts of a file, in place of what they have; unlisted leaves have none.

    Raises
    ------
    ConfigError
        If ``columns`` names an unknown kind.
    DataError
        With everything that is wrong in the file; a ``GeographyError`` if it lists a leaf that is not among
        `leaves` and that has a unit.
    """
    columns = _columns(spec, units)
    placed = {kind: np.zeros(len(leaves), dtype=np.int64) for kind in columns}
    listed = np.zeros(len(leaves), dtype=np.bool_)
    log, outside = FindingLog(), FindingLog()
    strangers: list[Codes] = []
    lines: list[Ints] = []
    rows = 0
    for batch in read_batches(units.path, [units.geocode, *columns.values()], log, rows=PUBLIC_ROWS):
        geocodes = geocodes_of(batch, units.geocode, width, log)
        position = leaf_positions(leaves.geocodes, geocodes)
        inside = np.flatnonzero(position >= 0)
        places = position[inside]
        repeated = np.ones(len(places), dtype=np.bool_)
        repeated[np.unique(places, return_index=True)[1]] = False
        again = inside[repeated | listed[places]]
        log.add_rows(GeographyError, batch.where, batch.first + again, units.geocode, _ONCE)
        listed[places] = True
        occupied = np.zeros(batch.rows, dtype=np.bool_)
        for kind, column in columns.items():
            count = whole_numbers(batch, column, log)
            occupied |= count > 0
            placed[kind][places] = count[inside]
        stranger = position < 0
        if stranger.any():
            usable = stranger & (geocodes != b"")
            strangers.append(geocodes[usable])
            lines.append(batch.first + np.flatnonzero(usable))
            rule = "expected a leaf of the frame"
            wrong = usable & occupied
            outside.add_where(GeographyError, batch.where, wrong, units.geocode, rule, first=batch.first)
        rows += batch.rows
    if rows == 0 and not len(log):
        raise no_rows(units.path)
    if strangers:
        _tell_repeats(joined(strangers), units, joined(lines), log)
    log.raise_if_any(_UNUSABLE.format(units.path.name))
    outside.raise_if_any(f"{units.path.name}: units lie outside the frame.")
    leaves.units = placed


def replace_units(frame: Frame, units: Mapping[str, Ints]) -> Frame:
    """Return `frame` with other unit columns."""
    return Frame(frame.geocodes, frame.levels, frame.leaf, dict(units), frame.entities, frame.names)
