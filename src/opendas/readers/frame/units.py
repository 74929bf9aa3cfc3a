"""Public counts of units per leaf: from a file, or from the records where there is none; and checks.

Axes: ``l`` leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Codes, Ints, positions_of
from opendas.errors import ConfigError, DataError, Finding, FormatError, GeographyError
from opendas.geography.frame import Frame
from opendas.readers.columns.coding import geocodes_of, is_repeated, whole_numbers
from opendas.readers.columns.csv_parquet import PUBLIC_ROWS, column_names, no_rows, read_batches
from opendas.readers.columns.findings import FindingLog, joined
from opendas.readers.frame.frame_file import (
    CENSUS_UNITS,
    Hierarchy,
    LeafColumns,
    LeafRows,
    arrange,
    unit_names,
)
from opendas.readers.input.spec import CensusKind, ReaderSpec, UnitsSpec
from opendas.schema.declarations import Bound
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product


def read_units(spec: ReaderSpec, units: UnitsSpec, levels: Hierarchy) -> LeafColumns:
    """Return the leaves that the file of public unit counts lists, with one column per kind of unit.

    Kinds that neither the file nor ``columns`` knows are left out; the file has to know at least one.
    """
    rows = LeafRows.read(units.path, units.geocode, levels.width, (), _columns(spec, units), _UNUSABLE)
    return arrange(rows.geocodes, levels, units.path.name, units=rows.counts, origins=rows.origins)


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


def add_units(leaves: LeafColumns, spec: ReaderSpec, units: UnitsSpec, width: int | None) -> None:
    """Give `leaves` the unit counts of a file, in place of what they have; unlisted leaves have none.

    Raises `DataError` with everything that is wrong in the file; a ``GeographyError`` if it lists a leaf that
    is not among `leaves` and that has a unit.
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
        position = positions_of(leaves.geocodes, geocodes)
        inside = np.flatnonzero(position >= 0)
        places = position[inside]
        again = inside[is_repeated(places) | listed[places]]
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
            batch.report(wrong, units.geocode, rule, outside, GeographyError)
        rows += batch.rows
    if rows == 0 and not len(log):
        raise no_rows(units.path)
    if strangers:
        twice = is_repeated(joined(strangers))
        log.add_rows(GeographyError, units.path.name, joined(lines)[twice], units.geocode, _ONCE)
    log.raise_if_any(_UNUSABLE.format(units.path.name))
    outside.raise_if_any(f"{units.path.name}: units lie outside the frame.")
    leaves.units = placed


_ROWS = 1 << 16  # looked at together, so that a mapped histogram stays on disk


def people_by_hhgq(histogram: Histogram, product: Product) -> Ints:
    """Return int64 (l, 8): people in households and in the seven types of group quarters."""
    people = np.zeros((histogram.rows, 8), dtype=np.int64)
    axis = product.schema.names.index("hhgq")
    for first, part in histogram.pieces(_ROWS):
        hhgq = product.schema.codes(part.cells)[axis]
        np.add.at(people, (first + part.row_of_entries(), hhgq), part.counts)
    return people


def derived_units(
    frame: Frame, histogram: Histogram, product: Product, kind: CensusKind, *, public_leaves: bool
) -> Frame:
    """Return `frame` with unit columns made from the records themselves.

    Persons: one facility of each type that houses someone; one housing unit in every leaf of a public
    frame, and otherwise where people live in households. Units: the number of housing units where it is
    invariant in every leaf, and one facility of type 7 in a leaf without any; otherwise one housing unit in
    every leaf, which says nothing about the records. The frame is published.
    """
    units = {name: np.zeros(len(frame), dtype=np.int64) for name in CENSUS_UNITS}
    one_each = np.ones(len(frame), dtype=np.int64)
    if kind == "units":
        held = _total_is_invariant(product, frame)
        units["hu"] = histogram.row_totals() if held else one_each
        if held and not public_leaves:
            units["gq7"] = (units["hu"] == 0).astype(np.int64)
    else:
        people = people_by_hhgq(histogram, product)
        units = {name: (people[:, k] > 0).astype(np.int64) for k, name in enumerate(CENSUS_UNITS)}
        if public_leaves:
            units["hu"] = one_each
    return replace(frame, units=units)


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
        report_units(log, frame, np.flatnonzero(whole), where, rule)
    return log.findings


def unit_rules(product: Product, kind: CensusKind | None, columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return what units are checked for: column, and what is said where it is otherwise."""
    rules = (
        [("hu", "the frame and the input differ in the number of housing units")] if kind == "units" else []
    )
    return (
        rules
        + [
            (bound.column, f"records break the bound {bound.name}")
            for bound in product.bounds
            if bound.column in columns
        ]
        + [
            (one.column or one.query, f"records break the linear constraint {one.name}")
            for one in product.linear
            if not one.column or one.column in columns
        ]
    )


def broken_units(
    product: Product, kind: CensusKind | None, units: Mapping[str, Ints], part: Histogram
) -> list[Bools]:
    """Return, for each of :func:`unit_rules`, the leaves that break it, bool (l,).

    - `units`, column -> (l,).
    - `part`: counts of the same leaves.
    """
    broken = [np.asarray(units["hu"] != part.row_totals())] if kind == "units" else []
    row = part.row_of_entries()
    for bound in product.bounds:
        if bound.column not in units:
            continue
        answer, count = _answer(product, bound, part, row), units[bound.column]
        broken.append(np.asarray((answer < bound.lower * count) | (answer > bound.upper * count)))
    for one in product.linear:
        if one.column and one.column not in units:
            continue
        most = one.at_most * (units[one.column] if one.column else np.ones(part.rows, dtype=np.int64))
        sums = np.zeros(part.rows, dtype=np.int64)
        np.add.at(sums, row, product.coefficients(one)[part.cells] * part.counts)
        broken.append(np.asarray(sums > most))
    return broken


def _answer(product: Product, bound: Bound, part: Histogram, row: Ints) -> Ints:
    """Return the number of records in the cell of a bound, int64 (l,); `row` is that of every entry."""
    inside = product.workload.group(bound.query).row_of_cell == product.bound_row(bound)
    counted = np.flatnonzero(inside[part.cells])
    answer = np.zeros(part.rows, dtype=np.int64)
    np.add.at(answer, row[counted], part.counts[counted])
    return answer


def frame_findings(
    frame: Frame, histogram: Histogram, product: Product, kind: CensusKind | None
) -> tuple[Finding, ...]:
    """Return a finding for each sign that a frame which is declared public was made from the records.

    That every leaf holds a record is such a sign, and that unit counts are the counts of the records. It is
    no proof; and the findings are confidential, for they say something of the counts. Of housing units, and
    of all units of the DHC, none is looked for: leaves are where they are, and the frame counts them as the
    records do.
    """
    if kind == "units" or product.layout == "tenvacgq":
        return ()
    totals = histogram.row_totals()
    signs: dict[str, str] = {}
    if len(frame) > 1 and bool((totals > 0).all()):
        signs[frame.leaf] = "every leaf holds a record"
    for name, units in frame.units.items():
        if units.any() and np.array_equal(units, totals):
            signs[name] = "each leaf has as many units as records"
    for bound in product.bounds if kind is None else ():
        units = frame.units[bound.column]
        if units.any() and np.array_equal(units, _whole_answer(product, bound, histogram)):
            signs[bound.column] = f"each leaf has as many units as records in {bound.name}"
    log = FindingLog()
    for field, sign in signs.items():
        rule = (
            f"{sign}, as in a frame made from the records. Give the public list, empty leaves included; or "
            'declare provenance = "from-records", which stamps the release'
        )
        log.add(DataError, "frame", None, field, rule)
    return log.findings


def _whole_answer(product: Product, bound: Bound, histogram: Histogram) -> Ints:
    parts = [part for _, part in histogram.pieces(_ROWS)]
    return np.concatenate([_answer(product, bound, part, part.row_of_entries()) for part in parts])


def report_units(
    log: FindingLog, frame: Frame, wrong: npt.NDArray[np.integer], where: str, rule: tuple[str, str]
) -> None:
    """Record leaves that break a rule of units.

    - `wrong`: positions of the first of them in the frame, ascending; of more than three only that there are
      more is told.
    - `rule`: one of :func:`unit_rules`.
    """
    if not len(wrong):
        return
    codes = ", ".join(code.decode() for code in frame.geocodes[wrong[:3]])
    more = " and others" if len(wrong) > 3 else ""
    log.add(DataError, where, None, rule[0], f"{rule[1]} in {frame.leaf} {codes}{more}")
