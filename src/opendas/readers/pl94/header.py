"""Geographic headers of the redistricting files: who the records are about, without any count.

Axes: ``r`` records of the header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from opendas.arrays import Bools, Codes, Ints
from opendas.errors import FormatError, GeographyError
from opendas.files.pl94_layout import DROPPED, GEO_2010, GEO_2010_WIDTH, GEO_2020, KEY_FIELDS
from opendas.geography.frame import ENTITY_CATEGORIES
from opendas.readers.columns.area_codes import AREA_FORMS, NO_AREA
from opendas.readers.columns.coding import is_repeated
from opendas.readers.columns.csv_parquet import csv_options
from opendas.readers.columns.findings import FindingLog
from opendas.readers.pl94.segments import Member

_BEFORE = {0: (), 2: ("STATE",), 5: ("COUNTY", "STATE")}
"""Fields that precede an area's own code, the last first, by their number of characters."""

_LEVELS = {
    b"040": ("state", ("STATE",)),
    b"050": ("county", ("STATE", "COUNTY")),
    b"140": ("tract", ("STATE", "COUNTY", "TRACT")),
    b"060": ("cousub", ("STATE", "COUNTY", "COUSUB")),
    b"160": ("place", ("STATE", "PLACE")),
    b"280": ("aianhh", ("AIANHH",)),
    b"500": ("cd", ("STATE", "CD")),
    b"610": ("sldu", ("STATE", "SLDU")),
    b"620": ("sldl", ("STATE", "SLDL")),
    b"700": ("vtd", ("STATE", "COUNTY", "VTD")),
    b"950": ("sdelm", ("STATE", "SDELM")),
    b"960": ("sdsec", ("STATE", "SDSEC")),
    b"970": ("sduni", ("STATE", "SDUNI")),
}
"""Summary levels whose records name an area."""

_BLOCKS = {
    b"150": ("block_group", ("STATE", "COUNTY", "TRACT", "BLKGRP")),
    b"750": ("block", ("STATE", "COUNTY", "TRACT", "BLOCK")),
}
"""Those below, whose names say nothing."""


def entity_codes(header: Header, rows: npt.NDArray[np.integer]) -> dict[str, Codes]:
    """Return the codes of the areas that the records `rows` lie in; the empty code means none.

    Codes are prefixed by state, or state and county, wherever they repeat between states or counties, so
    that they stay unique in a run of several states.
    """
    areas = {}
    for category in ENTITY_CATEGORIES:
        own = header.fields[category.upper()][rows]
        code = own
        for name in _BEFORE[AREA_FORMS[category][0]]:
            code = np.strings.add(header.fields[name][rows], code)
        areas[category] = np.where(np.isin(own, NO_AREA), b"", code)
    return areas


def area_records(
    header: Header, levels: Mapping[bytes, tuple[str, tuple[str, ...]]] = _LEVELS
) -> Iterator[tuple[str, Ints, Codes]]:
    """Yield (category, records, codes) of the areas that summary records name."""
    for level, (category, fields) in levels.items():
        rows = np.flatnonzero((header.fields["SUMLEV"] == level) & (header.fields["GEOCOMP"] == b"00"))
        own = header.fields[fields[-1]][rows]
        rows = rows[~np.isin(own, NO_AREA)]
        if len(rows) == 0:
            continue
        yield category, rows, reduce(np.strings.add, (header.fields[field][rows] for field in fields))


def official_records(header: Header) -> tuple[npt.NDArray[np.str_], Codes]:
    """Return geolevel or entity category and code of each record, (r,) both; empty where it is of none.

    Records of geographic components (GEOCOMP other than 00) are of none.
    """
    kinds = np.full(len(header.records), "", dtype="U16")
    found = np.full(len(header.records), b"", dtype="S32")
    for category, rows, codes in area_records(header, {**_LEVELS, **_BLOCKS}):
        kinds[rows], found[rows] = category, codes
    return kinds, found


def area_names(header: Header) -> dict[str, dict[str, str]]:
    """Return the names of states, counties, tracts and off-spine areas, by category and code."""
    names: dict[str, dict[str, str]] = {}
    for category, rows, codes in area_records(header):
        labels = header.fields["NAME"][rows]
        named = zip(codes.tolist(), labels.tolist(), strict=True)
        names[category] = {code.decode("latin-1"): header_text(label) for code, label in named if label}
    return names


def functional_statuses(header: Header) -> dict[str, dict[str, str]]:
    """Return the functional status of county subdivisions and places, by category and code."""
    levels = {level: _LEVELS[level] for level in (b"060", b"160")}
    found: dict[str, dict[str, str]] = {category: {} for category, _ in levels.values()}
    for category, rows, codes in area_records(header, levels):
        statuses = zip(codes.tolist(), header.fields["FUNCSTAT"][rows].tolist(), strict=True)
        found[category] = {header_text(code): header_text(status) for code, status in statuses if status}
    return found


def joined(parts: Iterable[Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Return what several states say of their areas, by category and code, as one."""
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        for category, known in part.items():
            found.setdefault(category, {}).update(known)
    return found


def header_text(label: bytes) -> str:
    """Return a field as text: those of 2010 are Latin-1, those of 2020 UTF-8."""
    try:
        return label.decode("utf-8")
    except UnicodeDecodeError:
        return label.decode("latin-1")


BLOCK = b"750"
"""Summary level of blocks."""

_WANTED = ("FILEID", "STUSAB", "SUMLEV", "GEOCOMP", "LOGRECNO", *KEY_FIELDS, "BLOCK", "NAME", "FUNCSTAT")
_VINTAGED = {
    "CD": ("CD116", "CD118", "CD119", "CD120", "CD121"),
    "SLDU": ("SLDU18", "SLDU22", "SLDU24", "SLDU26", "SLDU28"),
    "SLDL": ("SLDL18", "SLDL22", "SLDL24", "SLDL26", "SLDL28"),
}
"""Districts of 2020 come with one field a plan; the first that is filled in counts."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Header:
    """A parsed header."""

    where: str  # ``archive!member``
    records: Ints  # (r,): logical record numbers
    # field name -> (r,): geography only, stripped of blanks. Published counts are not among them.
    fields: Mapping[str, Codes]
    lines: Ints  # (r,): 1-based line of each record

    @property
    def is_block(self) -> Bools:
        """Bool (r,): the records of blocks."""
        return np.asarray(self.fields["SUMLEV"] == BLOCK)


def parse_header_2010(member: Member, log: FindingLog, more: Collection[str] = ()) -> Header | None:
    """Parse the fixed-width header of 2010, or record what is wrong with it and return None.

    `more`: further fields than those that a run reads.
    """
    lines = _fixed_width_lines(member, log)
    if lines is None:
        return None
    layout = np.dtype([(name, f"S{width}") for name, width in GEO_2010])
    records = lines.view(layout)[:, 0]
    read = {*_WANTED, *more} - DROPPED
    fields = {name: np.strings.strip(records[name]) for name in layout.names or () if name in read}
    return _header(member.where, fields, log)


def _fixed_width_lines(member: Member, log: FindingLog) -> npt.NDArray[np.uint8] | None:
    """Return the characters of the records, uint8 (r, 500)."""
    data = member.data if member.data.endswith(b"\n") else member.data + b"\n"
    end = 2 if data.endswith(b"\r\n") else 1
    width = GEO_2010_WIDTH + end
    flat = np.frombuffer(data, dtype=np.uint8)
    if len(flat) % width == 0:
        lines = flat.reshape(-1, width)
        newline = np.uint8(ord("\n"))
        if np.all(lines[:, -1] == newline) and np.count_nonzero(flat == newline) == len(lines):
            return lines[:, :GEO_2010_WIDTH]
    rows = data.splitlines()
    if rows[0].count(b"|") > 50:
        rule = 'expected the fixed-width header of 2010, found a pipe-delimited one: use reader = "pl94-2020"'
        log.add(FormatError, member.where, 1, None, rule)
        return None
    wrong = [number for number, row in enumerate(rows, start=1) if len(row) != GEO_2010_WIDTH]
    log.add_rows(FormatError, member.where, wrong, None, f"expected {GEO_2010_WIDTH} characters")
    if wrong:
        return None
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, GEO_2010_WIDTH)


def parse_header_2020(member: Member, log: FindingLog, more: Collection[str] = ()) -> Header | None:
    """Parse the pipe-delimited header of 2020, as :func:`parse_header_2010` that of 2010."""
    vintaged = [name for names in _VINTAGED.values() for name in names]
    read = {*_WANTED, *more} - DROPPED
    wanted = [name for name in GEO_2020 if name in read or name in vintaged]
    try:
        options = csv_options(GEO_2020, "|", wanted=wanted, quotes=False)
        table = csv.read_csv(pa.BufferReader(member.data), **options)
    except pa.ArrowInvalid:
        rows = member.data.splitlines()
        if b"|" not in rows[0] and len(rows[0]) == GEO_2010_WIDTH:
            rule = 'expected the header of 2020 with "|", found fixed width: use reader = "pl94-2010"'
            log.add(FormatError, member.where, 1, None, rule)
            return None
        wrong = [n for n, row in enumerate(rows, start=1) if row and row.count(b"|") != len(GEO_2020) - 1]
        log.add_rows(FormatError, member.where, wrong, None, f"expected {len(GEO_2020)} fields")
        if not wrong:
            log.add(FormatError, member.where, None, None, "expected pipe-delimited text")
        return None
    columns: dict[str, Codes] = {}
    for name, column in zip(wanted, table.columns, strict=True):
        values: Codes = np.asarray(column.to_numpy(), dtype=np.bytes_)
        columns[name] = np.strings.strip(values)
    fields = {name: codes for name, codes in columns.items() if name in read}
    for name, plans in _VINTAGED.items():
        filled = [plan for plan in plans if np.any(columns[plan] != b"")]
        fields[name] = columns[filled[0] if filled else plans[0]]
    return _header(member.where, fields, log)


def _header(where: str, fields: dict[str, Codes], log: FindingLog) -> Header | None:
    numbers = fields["LOGRECNO"]
    before = len(log)
    digits = np.strings.isdigit(numbers) & (np.strings.str_len(numbers) < 18)
    log.add_where(FormatError, where, ~digits, "LOGRECNO", "expected a record number")
    log.add_where(FormatError, where, fields["FILEID"] != b"PLST", "FILEID", "expected PLST")
    levels = fields["SUMLEV"]
    wrong = (np.strings.str_len(levels) != 3) | ~np.strings.isdigit(levels)
    log.add_where(FormatError, where, wrong, "SUMLEV", "expected three digits")
    if len(log) > before:
        return None
    records = numbers.astype(np.int64)
    log.add_where(FormatError, where, is_repeated(records), "LOGRECNO", "expected each record number once")
    if len(log) > before:
        return None
    lines = np.arange(1, len(records) + 1, dtype=np.int64)
    return Header(where, records, fields, lines)


_PARTS = (("STATE", 2), ("COUNTY", 3), ("TRACT", 6), ("BLOCK", 4))


def block_geocodes(header: Header) -> Codes:
    """Return the 15-character geocodes of the block records, in the header's order.

    Returns (blocks,).

    Raises `GeographyError` if a code has the wrong form, a block lies in another block group than its number
    says, or a block is listed twice.
    """
    blocks = header.is_block
    lines = header.lines[blocks]
    log, message = FindingLog(), f"{header.where}: the geography is not usable."
    if len(lines) == 0:
        log.add(GeographyError, header.where, None, "SUMLEV", "expected block records (summary level 750)")
        log.raise_if_any(message)
    codes = np.zeros(len(lines), dtype="S1")
    for name, width in _PARTS:
        part = header.fields[name][blocks]
        wrong = (np.strings.str_len(part) != width) | ~np.strings.isdigit(part)
        log.add_where(GeographyError, header.where, wrong, name, f"expected {width} digits", lines=lines)
        codes = part if name == "STATE" else np.strings.add(codes, part)
    group = header.fields["BLKGRP"][blocks]
    first = header.fields["BLOCK"][blocks].astype("S1")
    rule = "expected the first digit of the block: a block is a child of its block group"
    log.add_where(GeographyError, header.where, group != first, "BLKGRP", rule, lines=lines)
    log.raise_if_any(message)
    codes = codes.astype("S15")
    repeated = is_repeated(codes)
    log.add_where(GeographyError, header.where, repeated, "BLOCK", "expected each block once", lines=lines)
    state = header.fields["STATE"]
    log.add_where(
        GeographyError, header.where, state != codes[0][:2], "STATE", "expected one state in one file"
    )
    log.raise_if_any(message)
    return codes
