"""Units and group quarters of a run where no public file gives them; and checks against those it gives.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError, Finding
from opendas.geography.frame import Frame
from opendas.io.readers.census import CensusKind
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.frame_file import CENSUS_UNITS
from opendas.io.readers.units_file import replace_units
from opendas.products.product import Product
from opendas.schema.histogram import Histogram

__all__ = ["check_units", "derived_units", "people_by_hhgq"]

Counts = npt.NDArray[np.int64]

_ROWS = 1 << 16


def people_by_hhgq(histogram: Histogram, product: Product) -> Counts:
    """Return int64 (l, 8): people in households and in the seven types of group quarters."""
    people = np.zeros((histogram.rows, 8), dtype=np.int64)
    place = product.schema.names.index("hhgq")
    for first, part in _pieces(histogram):
        hhgq = product.schema.codes(part.cells)[place]
        np.add.at(people, (first + _row_of_entry(part), hhgq), part.counts)
    return people


def _pieces(histogram: Histogram) -> Iterator[tuple[int, Histogram]]:
    """Yield runs of rows with the position of the first, so that a mapped histogram stays on disk."""
    for first in range(0, histogram.rows, _ROWS):
        yield first, histogram.slice(first, min(first + _ROWS, histogram.rows))


def _row_of_entry(part: Histogram) -> Counts:
    return np.repeat(np.arange(part.rows), np.diff(part.indptr))


def derived_units(
    frame: Frame, histogram: Histogram, product: Product, kind: CensusKind, *, public_leaves: bool
) -> Frame:
    """Return `frame` with unit columns made from the records themselves.

    Persons: one facility of each type that houses somebody; one housing unit in every leaf of a public
    frame, and otherwise where people live in households. Units: the number of housing units where it is
    invariant in every leaf, and one facility of type 7 in a leaf without any; otherwise one housing unit in
    every leaf, which says nothing about the records. The frame is published.
    """
    units = {name: np.zeros(len(frame), dtype=np.int64) for name in CENSUS_UNITS}
    if kind == "units" and not _total_is_invariant(product, frame):
        units["hu"] = np.ones(len(frame), dtype=np.int64)
        return replace_units(frame, units)
    if kind == "units":
        units["hu"] = histogram.row_totals()
        if not public_leaves:
            units["gq7"] = (units["hu"] == 0).astype(np.int64)
        return replace_units(frame, units)
    people = people_by_hhgq(histogram, product)
    for k, name in enumerate(CENSUS_UNITS):
        units[name] = (people[:, k] > 0).astype(np.int64)
    if public_leaves:
        units["hu"] = np.ones(len(frame), dtype=np.int64)
    return replace_units(frame, units)


def _total_is_invariant(product: Product, frame: Frame) -> bool:
    """Whether the number of records in every leaf is published exactly anyway."""
    leaf = ("leaf", frame.leaf)
    return any(held.query == "total" and held.geolevel in leaf for held in product.invariants)


def check_units(
    frame: Frame, histogram: Histogram, product: Product, kind: CensusKind | None, where: str
) -> tuple[Finding, ...]:
    """Return a finding for every kind of unit that contradicts the records.

    Bounds follow from public units; records outside them, such as people in group quarters where the frame
    has none, cannot be released as they are. Housing units themselves are counted twice: in the frame and in
    the units product.
    """
    log = FindingLog()
    bounds = [bound for bound in product.bounds if bound.column in frame.units]
    inside = {b.name: product.workload.group(b.query).row_of_cell == product.bound_row(b) for b in bounds}
    broken = {bound.name: np.zeros(histogram.rows, dtype=np.bool_) for bound in bounds}
    other = np.zeros(histogram.rows, dtype=np.bool_)
    for first, part in _pieces(histogram):
        rows = slice(first, first + part.rows)
        if kind == "units":
            other[rows] = frame.units["hu"][rows] != part.row_totals()
        row = _row_of_entry(part)
        for bound in bounds:
            counted = np.flatnonzero(inside[bound.name][part.cells])
            answer = np.zeros(part.rows, dtype=np.int64)
            np.add.at(answer, row[counted], part.counts[counted])
            units = frame.units[bound.column][rows]
            broken[bound.name][rows] = (answer < bound.lower * units) | (answer > bound.upper * units)
    rule = "the frame has another number of housing units than the input"
    _tell(log, frame, other, where, "hu", rule)
    for bound in bounds:
        _tell(log, frame, broken[bound.name], where, bound.column, f"records break the bound {bound.name}")
    return log.findings


def _tell(
    log: FindingLog, frame: Frame, wrong: npt.NDArray[np.bool_], where: str, field: str, rule: str
) -> None:
    if not wrong.any():
        return
    codes = ", ".join(code.decode() for code in frame.geocodes[wrong][:3])
    more = " and others" if int(wrong.sum()) > 3 else ""
    log.add(DataError, where, None, field, f"{rule} in {frame.leaf} {codes}{more}")
