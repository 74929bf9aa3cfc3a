"""Data segments of the redistricting files: numbers keyed by logical record number.

Axes: ``r`` records, ``c`` cells of the segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from opendas.errors import FormatError
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.pl94_archive import Member
from opendas.io.readers.pl94_layout import SEGMENT_KEYS, TABLE_SIZES, cell_names

__all__ = ["Cells", "Segment", "align", "parse_segment"]

Cells = npt.NDArray[np.int32 | np.int64]

MAX_COUNT = 1 << 62
_ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Segment:
    """One parsed segment.

    Parameters
    ----------
    where : str
        ``archive!member``.
    records : int64 (r,)
        Logical record numbers.
    tables : mapping of table name to int32 or int64 (r, c)
        The narrower type where all counts fit.
    """

    where: str
    records: npt.NDArray[np.int64]
    tables: dict[str, Cells]


def parse_segment(
    member: Member, number: int, tables: tuple[str, ...], delimiter: str, log: FindingLog
) -> Segment | None:
    """Parse a segment, or record in `log` what is wrong with it and return None.

    Parameters
    ----------
    member : Member
    number : int
        Segment number, which every row repeats as CIFSN.
    tables : tuple of str
        Names of the tables of this segment, in order.
    delimiter : str
    log : FindingLog
    """
    cells = [name for table in tables for name in cell_names(table)]
    columns = [*SEGMENT_KEYS, *cells]
    if b"0x" in member.data or b"0X" in member.data or b'"' in member.data:
        # Arrow reads hexadecimal numbers and quoted fields; the layout knows neither.
        _diagnose(member, number, columns, delimiter, log)
        return None
    types = {name: pa.int64() for name in columns[3:]} | {name: pa.binary() for name in columns[:3]}
    try:
        table = csv.read_csv(
            pa.BufferReader(member.data),
            read_options=csv.ReadOptions(column_names=columns, block_size=1 << 22),
            parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
        )
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


def align(
    segment: Segment, records: npt.NDArray[np.int64], header: str, log: FindingLog
) -> dict[str, Cells] | None:
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
    """Find the wrong rows one by one: the slow way, taken only once something is known to be wrong."""
    before = len(log)
    expected = f"expected {len(columns)} columns"
    rows = (line.split(delimiter) if line else [] for line in member.data.decode("latin-1").splitlines())
    for line, row in enumerate(rows, start=1):
        if not row:
            continue
        if len(log) - before >= limit:
            log.add(FormatError, member.where, None, None, f"stopped after {limit} wrong fields")
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
