"""Compares sums of block records with the published summary records of the same file.

Axes: ``b`` blocks, ``p`` parts (distinct combinations of areas), ``s`` summary records, ``c`` cells.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.errors import Finding
from opendas.io.readers.pl94_header import Header
from opendas.io.readers.pl94_layout import KEY_FIELDS, cell_names
from opendas.io.readers.pl94_segments import Cells

__all__ = ["compare_summaries"]

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

    Parameters
    ----------
    header : Header
    tables : mapping of table name to integers (records, cells)

    Returns
    -------
    list of Finding
        With line and first differing cell of the record; never a count.
    """
    blocks = header.is_block
    summaries = np.flatnonzero(~blocks & (header.fields["GEOCOMP"] == b"00"))
    if len(summaries) == 0:
        return []
    keys = [name for name in KEY_FIELDS if name in header.fields]
    # Codes become small integers; 0 is "not filled in".
    codes = np.stack([_numbered(header.fields[name]) for name in keys], axis=1)
    first, part_of_block = _groups(codes[blocks])
    parts = codes[blocks][first]
    counts = np.concatenate(
        [_sums(table[blocks], part_of_block, len(parts)) for table in tables.values()], axis=1
    )
    published = np.concatenate([table[summaries] for table in tables.values()], axis=1)
    names = [name for table in tables for name in cell_names(table)]
    wrong = _differences(codes[summaries], parts, counts, published)
    findings = []
    for row in np.flatnonzero(wrong.any(axis=1)):
        record = summaries[row]
        cells = np.flatnonzero(wrong[row])
        more = f" (so do {len(cells) - 1} more cells)" if len(cells) > 1 else ""
        area = _describe(header, record, keys)
        rule = f"{area}: the sum of the blocks differs from the published record{more}"
        findings.append(Finding(header.where, int(header.lines[record]), names[cells[0]], rule))
    return findings


def _numbered(column: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
    values, index = np.unique(column, return_inverse=True)
    return np.asarray(index if values[0] == b"" else index + 1, dtype=np.int64)


def _groups(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number the distinct rows of `codes`; return (a row of each number, the number of each row)."""
    key = np.zeros(len(codes), dtype=np.int64)
    first = np.zeros(min(1, len(codes)), dtype=np.int64)
    for column in codes.T:
        # Numbers stay below rows * codes: no overflow, and no slow sort of whole rows.
        combined = key * (int(column.max(initial=0)) + 1) + column
        _, first, key = np.unique(combined, return_index=True, return_inverse=True)
    return first.astype(np.int64), key.astype(np.int64)


def _sums(counts: Cells, group: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Add up the rows of each group: int64 (groups, c)."""
    ones = np.ones(len(group), dtype=np.int64)
    indicator = sparse.csr_array((ones, (group, np.arange(len(group)))), shape=(groups, len(group)))
    return np.asarray(indicator @ np.ascontiguousarray(counts, dtype=np.int64), dtype=np.int64)


def _differences(
    wanted: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    published: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return bool (s, c): the cells of each summary record that its parts do not add up to."""
    wrong = np.zeros(published.shape, dtype=bool)
    filled = wanted > 0
    first, pattern_of = _groups(filled.astype(np.int64))
    for number, pattern in enumerate(filled[first]):
        records = np.flatnonzero(pattern_of == number)
        areas, index = _groups(np.concatenate([wanted[records][:, pattern], parts[:, pattern]]))
        sums = _sums(counts, index[len(records) :], len(areas))
        wrong[records] = sums[index[: len(records)]] != published[records]
    return wrong


def _describe(header: Header, record: int, keys: list[str]) -> str:
    level = header.fields["SUMLEV"][record]
    code = " ".join(value for key in keys if (value := header.fields[key][record].decode("latin-1")))
    return f"{_KINDS.get(level, f'summary level {level.decode()}')} {code}"
