"""Readers ``pl94-2010`` and ``pl94-2020``: the official zip files of the redistricting data, one a state.

The frame of facilities is derived from confidential counts, so that a run with it is stamped DEMONSTRATION
FRAME. Axes: ``b`` blocks of a state in the header's order, ``l`` leaves of the run in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.custody.stamps import DEMONSTRATION_FRAME
from opendas.errors import ConfigError, DataError, Finding, FormatError, GeographyError
from opendas.files.official_areas import HEADER_FIELDS
from opendas.files.pl94_layout import KEY_FIELDS, cell_names
from opendas.files.summary_records import sums_of_blocks
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.readers.columns.findings import FindingLog
from opendas.readers.input.spec import (
    CensusKind,
    InputData,
    MemoryTable,
    Reader,
    ReaderSpec,
    Source,
    census_kind,
)
from opendas.readers.pl94.header import (
    Header,
    area_names,
    block_geocodes,
    entity_codes,
    functional_statuses,
    joined,
    parse_header_2010,
    parse_header_2020,
)
from opendas.readers.pl94.people import (
    Blocks,
    Entries,
    check_tables,
    entries_2010,
    entries_2020,
    facilities_2010,
    facilities_2020,
    people,
)
from opendas.readers.pl94.segments import Cells, Member, align, check_members, parse_segment, read_members
from opendas.schema.histogram import Histogram


def official_reader(path: Path) -> str:
    """Return the reader of an official zip file: that of 2020 where it has a third segment.

    Raises `FormatError` if it is not an official redistricting file, or not whole.
    """
    check_members(path, ("geo", "1", "2"))
    try:
        check_members(path, ("3",))
    except FormatError:
        return "pl94-2010"
    return "pl94-2020"


_KINDS = {
    b"040": "state", b"050": "county", b"060": "county subdivision", b"140": "tract", b"150": "block group",
    b"155": "part of a place", b"160": "place", b"280": "American Indian or Alaska Native area",
    b"500": "congressional district", b"610": "upper legislative district",
    b"620": "lower legislative district", b"700": "voting district", b"950": "elementary school district",
    b"960": "secondary school district", b"970": "unified school district",
}  # fmt: skip


def compare_summaries(header: Header, tables: dict[str, Cells]) -> list[Finding]:
    """Return a finding for every summary record that its blocks do not add up to.

    A summary record counts the blocks that agree with it in all geographic fields it fills in. Records of
    geographic components (GEOCOMP other than 00) are left out.

    - `tables`, table name -> (records, cells).
    - Returns: with line and first differing cell of the record; never a count.
    """
    blocks = header.is_block
    summaries = np.flatnonzero(~blocks & (header.fields["GEOCOMP"] == b"00"))
    if len(summaries) == 0:
        return []
    keys = [name for name in KEY_FIELDS if name in header.fields]
    # Codes become small integers; 0 is "not filled in".
    codes = np.stack([_numbered(header.fields[name]) for name in keys], axis=1)
    found = sums_of_blocks(codes[summaries], codes[blocks], [table[blocks] for table in tables.values()])
    wrong = found != np.concatenate([table[summaries] for table in tables.values()], axis=1)
    names = [name for table in tables for name in cell_names(table)]
    findings = []
    for row in np.flatnonzero(wrong.any(axis=1)):
        record = summaries[row]
        cells = np.flatnonzero(wrong[row])
        more = f" (so do {len(cells) - 1} more cells)" if len(cells) > 1 else ""
        area = _describe(header, record, keys)
        rule = f"{area}: the sum of the blocks differs from the published record{more}"
        findings.append(Finding(header.where, int(header.lines[record]), names[cells[0]], rule))
    return findings


def _numbered(column: Codes) -> Ints:
    values, index = np.unique(column, return_inverse=True)
    return np.asarray(index if values[0] == b"" else index + 1, dtype=np.int64)


def _describe(header: Header, record: int, keys: list[str]) -> str:
    level = header.fields["SUMLEV"][record]
    code = " ".join(value for key in keys if (value := header.fields[key][record].decode("latin-1")))
    return f"{_KINDS.get(level, f'summary level {level.decode()}')} {code}"


_CHUNK = 1 << 15  # blocks held dense at a time: 0.5 GB at most


@dataclass(frozen=True, slots=True)
class Vintage:
    """What differs between the files of two censuses."""

    # Parses the member with the geography, or records what is wrong and returns None.
    parse_header: Callable[[Member, FindingLog, Collection[str]], Header | None]
    delimiter: str  # between the fields of a data segment
    segments: Mapping[int, tuple[str, ...]]  # number -> table names
    # ``Blocks -> int64 (b, 7)``, number of group quarters of types 1 to 7.
    facilities: Callable[[Blocks], Ints]
    # ``(Blocks, slice, int64 (s, 4, 63), log) -> (block, cell, count)``: puts the people of a slice of the
    # blocks into cells of the persons product; blocks count from the start of the slice.
    entries: Callable[[Blocks, slice, Ints, FindingLog], Entries]

    def parse(self, path: Path, more: Collection[str] = ()) -> tuple[Header, dict[str, Cells]]:
        """Read one state's file: header and tables, aligned record by record. Confidential.

        Raises `DataError` with everything that is wrong in it.
        """
        log = FindingLog()
        members = read_members(path, ("geo", *map(str, self.segments)))
        header = self.parse_header(members.pop("geo"), log, more)
        tables: dict[str, Cells] = {}
        for number, names in self.segments.items():
            segment = parse_segment(members.pop(str(number)), number, names, self.delimiter, log)
            if segment is not None and header is not None:
                tables.update(align(segment, header.records, header.where, log) or {})
        log.raise_if_any(f"{path.name} cannot be read as redistricting data.")
        assert header is not None
        return header, tables


_SEGMENTS = {1: ("P1", "P2"), 2: ("P3", "P4", "H1")}

VINTAGES: Mapping[str, Vintage] = MappingProxyType(
    {
        "pl94-2010": Vintage(parse_header_2010, ",", _SEGMENTS, facilities_2010, entries_2010),
        "pl94-2020": Vintage(parse_header_2020, "|", _SEGMENTS | {3: ("P5",)}, facilities_2020, entries_2020),
    }
)
"""The formats by the name of their reader."""


def read_header(path: Source, reader: str, more: Collection[str] = ()) -> Header:
    """Read the geographic header alone of the file of a state, as :meth:`Vintage.parse` reads all of it."""
    assert isinstance(path, Path)
    log = FindingLog()
    header = VINTAGES[reader].parse_header(read_members(path, ("geo",))["geo"], log, more)
    log.raise_if_any(f"{path.name}: the geography is not usable.")
    assert header is not None
    return header


class Pl94Reader(Reader):
    """Reads redistricting files of the census that ``spec.reader`` names, into memory."""

    __slots__ = ()

    def _read(self, cache: Path | None, *, planning: bool) -> InputData:
        """Return frame and histogram; for planning without the comparison with summary records."""
        return _read_states(self.spec, with_counts=not planning)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _State:
    """One state, ready to be joined with others: leaves in the header's order."""

    geocodes: Codes
    units: dict[str, Ints]
    entities: dict[str, Codes]
    names: dict[str, dict[str, str]]
    functional_status: dict[str, dict[str, str]]
    entries: Entries


def _required_kind(spec: ReaderSpec) -> CensusKind:
    kind = census_kind(spec.product)
    if kind is None:
        raise ConfigError(
            f'reader "{spec.reader}" reads only for pl94-persons, pl94-units and products with the same '
            f'attributes, not for {spec.product.name!r}; try reader = "records" or "histogram".'
        )
    return kind


def _read_states(spec: ReaderSpec, *, with_counts: bool) -> InputData:
    kind = _required_kind(spec)
    wanted = kind if with_counts else None
    vintage = VINTAGES[spec.reader]
    states: list[_State] = []
    headers: list[Header] = []
    fields = HEADER_FIELDS[int(spec.reader.removeprefix("pl94-"))] if with_counts else ()
    warnings: list[Finding] = []
    seen: dict[bytes, str] = {}
    for path in spec.paths:
        if isinstance(path, MemoryTable):
            raise ConfigError(f"reader {spec.reader!r} reads official zips, not tables in memory.")
        parsed = vintage.parse(path, fields)
        if with_counts:
            warnings += compare_summaries(*parsed)
            headers.append(parsed[0])
        log = FindingLog()
        state = _read_state(*parsed, vintage, wanted, log)
        log.raise_if_any(f"{path.name}: the redistricting data are not consistent.")
        code = state.geocodes[0][:2]
        if code in seen:
            rule = f"state {code.decode()} has been read from {seen[code]} already"
            raise GeographyError(
                "two input files are of the same state.", [Finding(path.name, None, "STATE", rule)]
            )
        seen[code] = path.name
        states.append(state)
    if spec.strict and warnings:
        raise DataError("Blocks do not add up to the published summary records.", warnings)
    return replace(_join(states, spec, wanted), findings=tuple(warnings), headers=headers)


def _read_state(
    header: Header, whole: dict[str, Cells], vintage: Vintage, kind: CensusKind | None, log: FindingLog
) -> _State:
    codes = block_geocodes(header)
    rows = np.flatnonzero(header.is_block)
    # Taken out one by one, so that a large state is not held twice.
    tables = {name: whole.pop(name)[rows] for name in list(whole)}
    blocks = Blocks(header, rows, tables)
    facilities = vintage.facilities(blocks)
    housing = blocks.tables["H1"][:, 0].astype(np.int64)
    leaf = (housing > 0) | facilities.any(axis=1)
    row_of_block = np.cumsum(leaf) - 1
    units = {"hu": housing[leaf]} | {name: facilities[leaf, k] for k, name in enumerate(GQ_COLUMNS)}
    if kind == "units":
        entries = _unit_entries(blocks)
    elif kind == "persons":
        entries = _person_entries(blocks, vintage, log)
    else:
        entries = _no_entries()
    entries = (row_of_block[entries[0]], entries[1], entries[2])
    areas, names = entity_codes(header, rows[leaf]), area_names(header)
    return _State(codes[leaf], units, areas, names, functional_statuses(header), entries)


def _no_entries() -> Entries:
    return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)


def _unit_entries(blocks: Blocks) -> Entries:
    """Return (block, cell, count) of the units product: cell 0 vacant, 1 occupied."""
    counts = blocks.tables["H1"][:, [2, 1]].astype(np.int64)
    rows, cells = np.nonzero(counts)
    return rows.astype(np.int64), cells.astype(np.int32), counts[rows, cells]


def _person_entries(blocks: Blocks, vintage: Vintage, log: FindingLog) -> Entries:
    """Return (block, cell, count) of the persons product, a chunk of blocks at a time."""
    found = [_no_entries()]
    for start in range(0, len(blocks.rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        tables = {name: table[part] for name, table in blocks.tables.items()}
        implied = people(tables)
        lines = blocks.header.lines[blocks.rows[part]]
        before = len(log)
        check_tables(tables, implied, blocks.header.where, lines, log)
        if len(log) > before:
            continue
        rows, cells, counts = vintage.entries(blocks, part, implied, log)
        found.append((rows + start, cells, counts))
    rows, cells, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, cells, counts


def _join(states: list[_State], spec: ReaderSpec, kind: CensusKind | None) -> InputData:
    geocodes = np.concatenate([state.geocodes for state in states])
    order = np.argsort(geocodes, kind="stable")
    geocodes = geocodes[order]
    first = states[0]
    units = {name: np.concatenate([state.units[name] for state in states])[order] for name in first.units}
    areas = {
        name: np.concatenate([state.entities[name] for state in states])[order] for name in first.entities
    }
    names, statuses = (
        joined(getattr(state, said) for state in states) for said in ("names", "functional_status")
    )
    frame = Frame(geocodes, official_codes(geocodes, spec.root), "block", units, areas, names, statuses)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    offsets = np.cumsum([0, *(len(state.geocodes) for state in states)])
    rows = [position[state.entries[0] + offset] for state, offset in zip(states, offsets, strict=False)]
    cells = np.concatenate([state.entries[1] for state in states])
    counts = np.concatenate([state.entries[2] for state in states])
    size = spec.product.schema.size if kind else 1
    histogram = Histogram.from_entries(np.concatenate(rows), cells, counts, shape=(len(frame), size))
    return InputData(frame, histogram, (DEMONSTRATION_FRAME,))
