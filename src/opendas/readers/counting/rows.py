"""From files of rows to a frame and a histogram: the steps that records, histograms and microdata share.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from opendas.custody.stamps import DEMONSTRATION_FRAME, POPULATED_LEAVES
from opendas.errors import ConfigError, DataError, GeographyError
from opendas.geography.frame import Frame
from opendas.readers.base import InputData, ReaderSpec
from opendas.readers.census import CensusKind, census_kind
from opendas.readers.columns.csv_parquet import shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.tally import Layout, collect, tally
from opendas.readers.frame.frame_file import (
    CENSUS_UNITS,
    Hierarchy,
    LeafColumns,
    arrange,
    frame_path,
    read_frame_file,
)
from opendas.readers.frame.residence import check_units, derived_units
from opendas.readers.frame.units_file import add_units, read_units
from opendas.schema.histogram import Histogram

__all__ = ["FileRows", "Leaves", "file_rows", "read_rows"]


Leaves = Literal["frame", "units", "records"]
"""Where the leaves come from: a frame file, a file of units, or the records themselves."""


def read_rows(
    spec: ReaderSpec,
    layout: Layout,
    levels: Hierarchy,
    leaves: Leaves,
    cache: Path | None,
    *,
    planning: bool,
    residence_is_declared: bool = False,
) -> InputData:
    """Read frame and histogram of one run.

    Parameters
    ----------
    spec : ReaderSpec
    layout : Layout
        Of the rows in ``spec.paths``.
    levels : Hierarchy
    leaves : ``"frame"``, ``"units"`` or ``"records"``
    cache : Path or None
        Folder for a histogram that is too large for memory.
    planning : bool
        The histogram is not wanted; it is counted only where the frame depends on it.
    residence_is_declared : bool
        Everybody lives in households by declaration, so that units derived from the records of a public
        frame say nothing about them.

    Raises
    ------
    ConfigError
        If unit counts that the product's bounds need are missing.
    DataError
        With everything that is wrong in a file; with ``spec.strict`` also where records break bounds.
    """
    kind = census_kind(spec.product)
    columns = _columns(spec, layout, levels, leaves)
    derive = kind is not None and not set(CENSUS_UNITS) & set(columns.units)
    if not derive:
        _complete_units(columns, spec, kind, blocks=levels.root is not None)
    frame = columns.frame()
    del columns
    declared = (POPULATED_LEAVES,) if leaves == "records" else ()
    if planning and not derive:
        return InputData(frame, _empty(frame, spec), (), declared)
    histogram, warnings = tally(spec.paths, layout, spec.product, frame, cache)
    stamps: tuple[str, ...] = ()
    if derive:
        assert kind is not None
        public = leaves != "records"
        frame = derived_units(frame, histogram, spec.product, kind, public_leaves=public)
        stamps = () if public and (residence_is_declared or kind == "units") else (DEMONSTRATION_FRAME,)
    else:
        broken = check_units(frame, histogram, spec.product, kind, shown_name(spec.paths[0]))
        if broken and spec.strict:
            raise DataError("Records and public units contradict each other.", broken)
        warnings += broken
    return InputData(frame, histogram, stamps, declared, warnings)


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """Rows that other machines may count, file by file, because nothing public depends on them.

    Parameters
    ----------
    data : InputData
        With the frame, and an empty histogram.
    spec : ReaderSpec
    layout : Layout
    """

    data: InputData
    spec: ReaderSpec
    layout: Layout

    @property
    def kind(self) -> CensusKind | None:
        """Which product of the census it is, if any."""
        return census_kind(self.spec.product)


def file_rows(spec: ReaderSpec, layout: Layout, levels: Hierarchy, leaves: Leaves) -> FileRows | None:
    """Return what it takes to count elsewhere; None where the frame depends on the rows, or is no file.

    Raises
    ------
    ConfigError, DataError
        As :func:`read_rows`, for the frame.
    """
    if leaves == "records" or not all(isinstance(path, Path) for path in spec.paths):
        return None
    kind = census_kind(spec.product)
    columns = _columns(spec, layout, levels, leaves)
    if kind is not None and not set(CENSUS_UNITS) & set(columns.units):
        return None
    _complete_units(columns, spec, kind, blocks=levels.root is not None)
    frame = columns.frame()
    return FileRows(InputData(frame, _empty(frame, spec)), spec, layout)


def _columns(spec: ReaderSpec, layout: Layout, levels: Hierarchy, leaves: Leaves) -> LeafColumns:
    """Return the leaves, with the unit columns that a file gives."""
    if leaves == "units":
        assert spec.units is not None
        geocodes, units = read_units(spec, spec.units, levels.width)
        return arrange(geocodes, levels, spec.units.path.name, FindingLog(), units=units)
    if leaves == "frame":
        path = frame_path(spec)
        assert path is not None
        columns = read_frame_file(path, spec, levels)
    else:
        geocodes, codes = collect(spec.paths, levels.columns, layout)
        above = dict(zip(levels.columns, codes, strict=True))
        columns = arrange(geocodes, levels, spec.paths[0].name, FindingLog(), columns=above)
    if spec.units is not None:
        add_units(columns, spec, spec.units, levels.width)
    return columns


def _complete_units(columns: LeafColumns, spec: ReaderSpec, kind: CensusKind | None, *, blocks: bool) -> None:
    """Give the leaves all the columns that the product's bounds need.

    Of the official blocks those without any unit are no leaves of the census products.
    """
    missing = [column for column in spec.product.unit_columns if column not in columns.units]
    if kind is None:
        if missing:
            raise ConfigError(
                f"product {spec.product.name!r} has bounds by the units {', '.join(missing)}: "
                "give [input] units with these columns."
            )
        return
    if blocks:
        inhabitable = np.zeros(len(columns), dtype=np.bool_)
        for column in set(CENSUS_UNITS) & set(columns.units):
            inhabitable |= columns.units[column] > 0
        if not inhabitable.any():
            raise GeographyError("no leaf of the frame has a housing unit or group quarters.")
        if not inhabitable.all():
            columns.take(inhabitable)
    absent = np.zeros(len(columns), dtype=np.int64)
    columns.units = {name: columns.units.get(name, absent) for name in (*CENSUS_UNITS, *columns.units)}


def _empty(frame: Frame, spec: ReaderSpec) -> Histogram:
    nothing = np.empty(0, dtype=np.int64)
    return Histogram.from_entries(nothing, nothing, nothing, shape=(len(frame), spec.product.schema.size))
