"""Data segments of the redistricting files: numbers keyed by logical record number.

Axes: ``r`` records, ``c`` cells of the segment.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from opendas.arrays import Ints
from opendas.errors import Finding, FormatError, refuse_system_error
from opendas.files.pl94_layout import SEGMENT_KEYS, TABLE_SIZES, cell_names
from opendas.files.storage.zips import DAMAGED_ZIP, opened_zip, unpacked
from opendas.readers.columns.csv_parquet import csv_options
from opendas.readers.columns.findings import FindingLog

_GEO = re.compile(r"(?:^|/)([a-z]{2})geo\d{4}[^/]*\.pl$", re.IGNORECASE)
_SEGMENT = re.compile(r"(?:^|/)([a-z]{2})0000(\d)\d{4}[^/]*\.pl$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class Member:
    """One file of an archive."""

    where: str  # ``archive!member``, as findings name it
    data: bytes


def _role(name: str) -> str | None:
    if _GEO.search(name):
        return "geo"
    match = _SEGMENT.search(name)
    return match.group(2) if match else None


def read_members(path: Path, roles: Iterable[str]) -> dict[str, Member]:
    """Read the geographic header and the data segments of an official zip file.

    `roles`: ``"geo"`` and the segment numbers wanted: ``"1"``, ``"2"``, ``"3"``.
    """
    with opened_zip(path, _UNPACKED, _WHOLE) as archive:
        found = _select(path, archive.namelist(), tuple(roles))
        return {role: _extract(archive, path, name) for role, name in found.items()}


def check_members(path: Path, roles: Iterable[str]) -> None:
    """Check that a zip file is whole and holds the members wanted; see :func:`read_members`."""
    with opened_zip(path, _UNPACKED, _WHOLE) as archive:
        for name in _select(path, archive.namelist(), tuple(roles)).values():
            _extract(archive, path, name)


_UNPACKED = "The redistricting file cannot be unpacked."
_WHOLE = "expected the official zip file, whole; delete this one and download it again"


def _extract(archive: zipfile.ZipFile, path: Path, name: str) -> Member:
    where = f"{path.name}!{name}"
    try:
        data = unpacked(archive, name)
    except DAMAGED_ZIP as error:
        refuse_system_error(path, error)
        rule = "this member is damaged or encrypted, or no text"
        raise FormatError(_UNPACKED, [Finding(where, None, None, rule)]) from None
    if not data or data.isspace():
        rule = "expected records, found an empty file"
        raise FormatError("The redistricting file holds an empty member.", [Finding(where, None, None, rule)])
    return Member(where, data)


def _select(path: Path, names: Iterable[str], roles: tuple[str, ...]) -> dict[str, str]:
    by_role: dict[str, list[str]] = {}
    for name in names:
        role = _role(name)
        if role is not None:
            by_role.setdefault(role, []).append(name)
    findings = []
    for role in roles:
        what = f"data segment {role} (..0000{role}20??.pl)"
        if role == "geo":
            what = "geographic header (..geo20??.pl)"
        count = len(by_role.get(role, []))
        if count != 1:
            rule = f"expected one {what}, found {count or 'none'}"
            findings.append(Finding(path.name, None, None, rule))
    if findings:
        raise FormatError("The archive is not an official redistricting file of one state.", findings)
    return {role: by_role[role][0] for role in roles}


Cells = npt.NDArray[np.int32 | np.int64]

MAX_COUNT = 1 << 62
_ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Segment:
    """One parsed segment."""

    where: str  # ``archive!member``
    records: Ints  # (r,): logical record numbers
    tables: dict[str, Cells]  # table name -> (r, c): the narrower type where all counts fit


def parse_segment(
    member: Member, number: int, tables: tuple[str, ...], delimiter: str, log: FindingLog
) -> Segment | None:
    """Parse a segment, or record in `log` what is wrong with it and return None.

    - `number`: segment number, which every row repeats as CIFSN.
    - `tables`: names of the tables of this segment, in order.
    """
    cells = [name for table in tables for name in cell_names(table)]
    columns = [*SEGMENT_KEYS, *cells]
    if b"0x" in member.data or b"0X" in member.data or b'"' in member.data:
        # Arrow reads hexadecimal numbers and quoted fields; the layout knows neither.
        _diagnose(member, number, columns, delimiter, log)
        return None
    types = dict.fromkeys(columns[3:], pa.int64())
    try:
        options = csv_options(columns, delimiter, types=types, quotes=False)
        table = csv.read_csv(pa.BufferReader(member.data), **options)
    except pa.ArrowInvalid:  # its message quotes the row: say it in our own words
        _diagnose(member, number, columns, delimiter, log)
        return None
    arrays = [column.combine_chunks().to_numpy() for column in table.columns[3:]]
    most = max(int(array.max()) for array in arrays[2:])
    if min(int(array.min()) for array in arrays[2:]) < 0 or most >= MAX_COUNT or np.any(arrays[0] != number):
        _diagnose(member, number, columns, delimiter, log)
        return None
    kind = np.int32 if most < 1 << 31 else np.int64  # a large state fits half the memory
    counts = np.empty((len(arrays[0]), len(cells)), dtype=kind)
    for start in range(0, len(counts), _ROWS_AT_ONCE):  # by rows too: a transposition that stays in the cache
        rows = slice(start, start + _ROWS_AT_ONCE)
        for position, array in enumerate(arrays[2:]):
            counts[rows, position] = array[rows]
    parts: dict[str, Cells] = {}
    start = 0
    for name in tables:
        parts[name] = counts[:, start : start + TABLE_SIZES[name]]
        start += TABLE_SIZES[name]
    return Segment(member.where, arrays[1], parts)


def align(segment: Segment, records: Ints, header: str, log: FindingLog) -> dict[str, Cells] | None:
    """Return the segment's tables in the order of the header's records, joined on record number."""
    if np.array_equal(segment.records, records):
        return segment.tables
    order = np.argsort(segment.records, kind="stable")
    numbers = segment.records[order]
    repeated = np.zeros(len(numbers), dtype=bool)
    repeated[order[1:]] = numbers[1:] == numbers[:-1]
    before = len(log)
    log.add_where(FormatError, segment.where, repeated, "LOGRECNO", "expected each record number once")
    known = np.isin(segment.records, records)
    rule = f"expected a record number that {header} lists"
    log.add_where(FormatError, segment.where, ~known, "LOGRECNO", rule)
    found = np.isin(records, segment.records)
    rule = f"this record has no counts in {segment.where}; is that member whole?"
    log.add_where(FormatError, header, ~found, "LOGRECNO", rule)
    if len(log) > before:
        return None
    position = order[np.searchsorted(numbers, records)]
    return {name: table[position] for name, table in segment.tables.items()}


def _diagnose(
    member: Member, number: int, columns: list[str], delimiter: str, log: FindingLog, limit: int = 50
) -> None:
    """Find the wrong rows one by one, once something is known to be wrong."""
    before = len(log)
    expected = f"expected {len(columns)} columns"
    rows = (line.split(delimiter) if line else [] for line in member.data.decode("latin-1").splitlines())
    for line, row in enumerate(rows, start=1):
        if not row:
            continue
        if len(log) - before >= limit:
            log.add(FormatError, member.where, None, None, f"the lines from {line} on were not checked")
            return
        if len(row) != len(columns):
            log.add(FormatError, member.where, line, None, expected)
            if line == 1:
                rule = f"expected data segment {number}; are the members of the archive swapped?"
                log.add(FormatError, member.where, None, None, rule)
                return
            continue
        if row[3].strip() not in (str(number), f"{number:02d}"):
            log.add(FormatError, member.where, line, "CIFSN", f"expected segment number {number:02d}")
        for name, value in zip(columns[4:], row[4:], strict=True):
            if not (value.isascii() and value.isdigit()):
                log.add(FormatError, member.where, line, name, "expected a whole number, not negative")
            elif int(value) >= MAX_COUNT:
                log.add(FormatError, member.where, line, name, "expected a number below 2**62")
    if len(log) == before:
        log.add(FormatError, member.where, None, None, "expected rows of plain numbers")
