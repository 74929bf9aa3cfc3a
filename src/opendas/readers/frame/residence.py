"""Units and group quarters of a run where no public file gives them; and checks against those it gives.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from opendas.arrays import Ints
from opendas.errors import DataError, Finding
from opendas.geography.frame import Frame
from opendas.readers.census import CensusKind
from opendas.readers.columns.findings import FindingLog
from opendas.readers.frame.frame_file import CENSUS_UNITS
from opendas.readers.frame.units_file import replace_units
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

__all__ = ["broken_units", "check_units", "derived_units", "people_by_hhgq", "tell_units", "unit_rules"]


_ROWS = 1 << 16  # looked at together, so that a mapped histogram stays on disk


def people_by_hhgq(histogram: Histogram, product: Product) -> Ints:
    """Return int64 (l, 8): people in households and in the seven types of group quarters."""
    people = np.zeros((histogram.rows, 8), dtype=np.int64)
    place = product.schema.names.index("hhgq")
    for first, part in histogram.pieces(_ROWS):
        hhgq = product.schema.codes(part.cells)[place]
        np.add.at(people, (first + _row_of_entry(part), hhgq), part.counts)
    return people


def _row_of_entry(part: Histogram) -> Ints:
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
    rules = unit_rules(product, kind, tuple(frame.units))
    broken = [np.zeros(histogram.rows, dtype=np.bool_) for _ in rules]
    for first, part in histogram.pieces(_ROWS):
        rows = slice(first, first + part.rows)
        units = {name: counts[rows] for name, counts in frame.units.items()}
        for whole, wrong in zip(broken, broken_units(product, kind, units, part), strict=True):
            whole[rows] = wrong
    log = FindingLog()
    for rule, whole in zip(rules, broken, strict=True):
        tell_units(log, frame, np.flatnonzero(whole), where, rule)
    return log.findings


def unit_rules(product: Product, kind: CensusKind | None, columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return what units are checked for: column, and what is said where it is otherwise."""
    rules = (
        [("hu", "the frame has another number of housing units than the input")] if kind == "units" else []
    )
    return rules + [
        (bound.column, f"records break the bound {bound.name}")
        for bound in product.bounds
        if bound.column in columns
    ]


def broken_units(
    product: Product, kind: CensusKind | None, units: Mapping[str, Ints], part: Histogram
) -> list[npt.NDArray[np.bool_]]:
    """Return, for each of :func:`unit_rules`, the leaves that break it, bool (l,).

    Parameters
    ----------
    units : mapping of column to int64 (l,)
    part : Histogram
        Counts of the same leaves.
    """
    broken = [np.asarray(units["hu"] != part.row_totals())] if kind == "units" else []
    row = _row_of_entry(part)
    for bound in product.bounds:
        if bound.column not in units:
            continue
        inside = product.workload.group(bound.query).row_of_cell == product.bound_row(bound)
        counted = np.flatnonzero(inside[part.cells])
        answer = np.zeros(part.rows, dtype=np.int64)
        np.add.at(answer, row[counted], part.counts[counted])
        here = units[bound.column]
        broken.append(np.asarray((answer < bound.lower * here) | (answer > bound.upper * here)))
    return broken


def tell_units(
    log: FindingLog, frame: Frame, wrong: npt.NDArray[np.integer], where: str, rule: tuple[str, str]
) -> None:
    """Record leaves that break a rule of units.

    Parameters
    ----------
    wrong : int64
        Positions of the first of them in the frame, ascending; of more than three only that there are more
        is told.
    rule : (str, str)
        One of :func:`unit_rules`.
    """
    if not len(wrong):
        return
    codes = ", ".join(code.decode() for code in frame.geocodes[wrong[:3]])
    more = " and others" if len(wrong) > 3 else ""
    log.add(DataError, where, None, rule[0], f"{rule[1]} in {frame.leaf} {codes}{more}")
