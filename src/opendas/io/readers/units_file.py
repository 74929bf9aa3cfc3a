"""Public counts of housing units, group quarters and other units per leaf, from a file of their own.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from opendas.errors import ConfigError, FormatError, GeographyError
from opendas.geography.frame import Frame
from opendas.io.readers.base import ReaderSpec, UnitsSpec
from opendas.io.readers.coding import geocodes_of, whole_numbers
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.frame_file import leaf_positions, unit_names
from opendas.io.readers.tables import column_names, no_rows, read_batches

__all__ = ["read_units", "replace_units", "with_units"]

Codes = npt.NDArray[np.bytes_]
Counts = npt.NDArray[np.int64]


def read_units(spec: ReaderSpec, units: UnitsSpec, width: int | None) -> tuple[Codes, dict[str, Counts]]:
    """Read the file of public unit counts: its geocodes, each once, and one column per kind of unit.

    Kinds that neither the file nor ``columns`` knows are left out; the file has to know at least one.

    Raises
    ------
    ConfigError
        If ``columns`` names an unknown kind.
    DataError
        With everything that is wrong in the file.
    """
    known = column_names(units.path)
    names = unit_names(spec)
    given = {("hu" if kind == "housing" else kind): column for kind, column in units.columns.items()}
    unknown = [kind for kind in given if kind not in names]
    if unknown:
        raise ConfigError(f"[input] units: no kind of unit {unknown[0]!r}; there are {', '.join(names)}.")
    columns = {kind: given.get(kind, kind) for kind in names if kind in given or kind in known}
    log = FindingLog()
    if not columns:
        log.add(FormatError, units.path.name, None, None, f"expected a column {' or '.join(names)}")
        log.raise_if_any(f"{units.path.name} holds no units.")
    codes: list[Codes] = []
    counts: dict[str, list[Counts]] = {kind: [] for kind in columns}
    for batch in read_batches(units.path, [units.geocode, *columns.values()], log):
        codes.append(geocodes_of(batch, units.geocode, width, log))
        for kind, column in columns.items():
            counts[kind].append(whole_numbers(batch, column, log))
    log.raise_if_any(f"{units.path.name}: the units are not usable.")
    if not codes:
        raise no_rows(units.path)
    geocodes = np.concatenate(codes)
    repeated = np.ones(len(geocodes), dtype=bool)
    repeated[np.unique(geocodes, return_index=True)[1]] = False
    log.add_where(GeographyError, units.path.name, repeated, units.geocode, "expected each leaf once")
    log.raise_if_any(f"{units.path.name}: the units are not usable.")
    return geocodes, {kind: np.concatenate(parts) for kind, parts in counts.items()}


def with_units(frame: Frame, spec: ReaderSpec, units: UnitsSpec, width: int | None) -> Frame:
    """Return `frame` with the unit counts of a file; leaves that the file does not list have none.

    Raises
    ------
    GeographyError
        If the file lists a leaf that the frame does not hold and that has a unit.
    """
    geocodes, counts = read_units(spec, units, width)
    position = leaf_positions(frame, geocodes)
    occupied = np.sum(list(counts.values()), axis=0) > 0
    log = FindingLog()
    rule = "expected a leaf of the frame"
    log.add_where(GeographyError, units.path.name, (position < 0) & occupied, units.geocode, rule)
    log.raise_if_any(f"{units.path.name}: units lie outside the frame.")
    inside = position >= 0
    placed = {}
    for kind, count in counts.items():
        column = np.zeros(len(frame), dtype=np.int64)
        column[position[inside]] = count[inside]
        placed[kind] = column
    return replace_units(frame, placed)


def replace_units(frame: Frame, units: Mapping[str, Counts]) -> Frame:
    """Return `frame` with other unit columns."""
    return Frame(frame.geocodes, frame.levels, frame.leaf, dict(units), frame.entities, frame.names)
