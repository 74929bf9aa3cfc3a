"""What the readers of the 2010 and the 2020 redistricting files share.

Axes: ``b`` blocks of a state in the header's order, ``l`` leaves of the run in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.errors import ConfigError, DataError, Finding, FormatError, GeographyError
from opendas.geography.frame import Frame, official_codes
from opendas.io.readers.base import InputData, MemoryTable, ReaderSpec
from opendas.io.readers.census import CensusKind, census_kind
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.pl94_areas import area_names, entity_codes
from opendas.io.readers.pl94_header import Header, block_geocodes
from opendas.io.readers.pl94_people import check_tables, people
from opendas.io.readers.pl94_segments import Cells
from opendas.io.readers.pl94_summary import compare_summaries
from opendas.products.pl94 import GQ_COLUMNS
from opendas.schema.histogram import Histogram
from opendas.stamps import DEMONSTRATION_FRAME

__all__ = ["Blocks", "Entries", "Parsed", "Residence", "read_states"]

Counts = npt.NDArray[np.int64]
Entries = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Counts]
"""(block, cell, count) triples, one array each."""

_CHUNK = 1 << 15  # blocks held dense at a time: 0.5 GB at most


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Parsed:
    """One state's file: header and tables, aligned record by record. Confidential.

    Parameters
    ----------
    header : Header
    tables : mapping of table name to integers (records, cells)
    """

    header: Header
    tables: dict[str, Cells]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blocks:
    """Block records of one state. Confidential.

    Parameters
    ----------
    header : Header
    rows : int64 (b,)
        Positions of the blocks among the header's records.
    tables : mapping of table name to integers (b, cells)
    """

    header: Header
    rows: npt.NDArray[np.int64]
    tables: dict[str, Cells]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Residence:
    """Where a format's rule puts people: public facilities and confidential counts.

    Parameters
    ----------
    facilities : callable
        ``Blocks -> int64 (b, 7)``, number of group quarters of types 1 to 7.
    place : callable
        ``(Blocks, slice, int64 (s, 4, 63), log) -> (block, cell, count)``: puts the people of a slice of the
        blocks into cells of the persons product; blocks count from the start of the slice.
    """

    facilities: Callable[[Blocks], Counts]
    place: Callable[[Blocks, slice, Counts, FindingLog], Entries]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _State:
    """One state, ready to be joined with others: leaves in the header's order."""

    geocodes: npt.NDArray[np.bytes_]
    units: dict[str, Counts]
    entities: dict[str, npt.NDArray[np.bytes_]]
    names: dict[str, dict[str, str]]
    entries: Entries


def _required_kind(spec: ReaderSpec) -> CensusKind:
    kind = census_kind(spec.product)
    if kind is None:
        raise ConfigError(
            f'reader "{spec.reader}" reads for pl94-persons and pl94-units (or a product with the same '
            f'attributes), not for {spec.product.name!r}; try reader = "records" or "histogram".'
        )
    return kind


def read_states(
    spec: ReaderSpec,
    parse: Callable[[Path, FindingLog], Parsed | None],
    residence: Residence,
    *,
    with_counts: bool,
) -> InputData:
    """Read the files of one or several states.

    Parameters
    ----------
    spec : ReaderSpec
    parse : callable
        Reads one file, or records what is wrong with it.
    residence : Residence
        The format's group-quarters rule.
    with_counts : bool
        False leaves the histogram empty and skips the comparison with summary records.

    Raises
    ------
    ConfigError
        If the product is none of the census.
    DataError
        With everything wrong in a file; with ``spec.strict`` also for a summary record that differs.
    """
    kind = _required_kind(spec)
    wanted = kind if with_counts else None
    states: list[_State] = []
    warnings: list[Finding] = []
    seen: dict[bytes, str] = {}
    for path in spec.paths:
        if isinstance(path, MemoryTable):
            raise ConfigError(f"reader {spec.reader!r} reads official zips, not tables in memory.")
        log = FindingLog()
        parsed = parse(path, log)
        if parsed is None:
            log.raise_if_any(f"{path.name} cannot be read as redistricting data.")
            raise FormatError(f"{path.name} cannot be read as redistricting data.")
        if with_counts:
            warnings += compare_summaries(parsed.header, parsed.tables)
        state = _read_state(parsed, residence, wanted, log)
        log.raise_if_any(f"{path.name}: the redistricting data are not consistent.")
        code = state.geocodes[0][:2]
        if code in seen:
            rule = f"state {code.decode()} has been read from {seen[code]} already"
            raise GeographyError("each state is read once.", [Finding(path.name, None, "STATE", rule)])
        seen[code] = path.name
        states.append(state)
    if spec.strict and warnings:
        raise DataError("Blocks do not add up to the published summary records.", warnings)
    return _join(states, spec, wanted, tuple(warnings))


def _read_state(parsed: Parsed, residence: Residence, kind: CensusKind | None, log: FindingLog) -> _State:
    header = parsed.header
    codes = block_geocodes(header, log)
    rows = np.flatnonzero(header.is_block)
    # Taken out one by one, so that a large state is not held twice.
    tables = {name: parsed.tables.pop(name)[rows] for name in list(parsed.tables)}
    blocks = Blocks(header, rows, tables)
    log.raise_if_any(f"{header.where}: the geography is not usable.")
    assert codes is not None
    facilities = residence.facilities(blocks)
    housing = blocks.tables["H1"][:, 0].astype(np.int64)
    leaf = (housing > 0) | facilities.any(axis=1)
    row_of_block = np.cumsum(leaf) - 1
    units = {"hu": housing[leaf]} | {name: facilities[leaf, k] for k, name in enumerate(GQ_COLUMNS)}
    if kind == "units":
        entries = _unit_entries(blocks)
    elif kind == "persons":
        entries = _person_entries(blocks, residence, log)
    else:
        entries = _no_entries()
    entries = (row_of_block[entries[0]], entries[1], entries[2])
    return _State(codes[leaf], units, entity_codes(header, rows[leaf]), area_names(header), entries)


def _no_entries() -> Entries:
    return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)


def _unit_entries(blocks: Blocks) -> Entries:
    """Return (block, cell, count) of the units product: cell 0 vacant, 1 occupied."""
    counts = blocks.tables["H1"][:, [2, 1]].astype(np.int64)
    rows, cells = np.nonzero(counts)
    return rows.astype(np.int64), cells.astype(np.int32), counts[rows, cells]


def _person_entries(blocks: Blocks, residence: Residence, log: FindingLog) -> Entries:
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
        rows, cells, counts = residence.place(blocks, part, implied, log)
        found.append((rows + start, cells, counts))
    return (
        np.concatenate([rows for rows, _, _ in found]),
        np.concatenate([cells for _, cells, _ in found]),
        np.concatenate([counts for _, _, counts in found]),
    )


def _join(
    states: list[_State], spec: ReaderSpec, kind: CensusKind | None, warnings: tuple[Finding, ...]
) -> InputData:
    geocodes = np.concatenate([state.geocodes for state in states])
    order = np.argsort(geocodes, kind="stable")
    geocodes = geocodes[order]
    names: dict[str, dict[str, str]] = {}
    for state in states:
        for category, known in state.names.items():
            names.setdefault(category, {}).update(known)
    frame = Frame(
        geocodes,
        official_codes(geocodes, spec.root),
        "block",
        {name: np.concatenate([state.units[name] for state in states])[order] for name in states[0].units},
        {
            name: np.concatenate([state.entities[name] for state in states])[order]
            for name in states[0].entities
        },
        names,
    )
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    offsets = np.cumsum([0, *(len(state.geocodes) for state in states)])
    rows = np.concatenate(
        [position[state.entries[0] + offset] for state, offset in zip(states, offsets, strict=False)]
    )
    cells = np.concatenate([state.entries[1] for state in states])
    counts = np.concatenate([state.entries[2] for state in states])
    size = spec.product.schema.size if kind else 1
    histogram = Histogram.from_entries(rows, cells, counts, shape=(len(frame), size))
    return InputData(frame, histogram, (DEMONSTRATION_FRAME,), (), warnings)
