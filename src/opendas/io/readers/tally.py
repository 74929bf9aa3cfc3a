"""Counts rows by leaf and cell, batch by batch; what records, histograms and microdata share.

Axes: ``r`` rows of a batch, ``l`` leaves, ``n`` cells of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from opendas.errors import DataError, Finding, GeographyError, SchemaError
from opendas.geography.frame import Frame
from opendas.io.readers.base import Source
from opendas.io.readers.coding import text_of
from opendas.io.readers.findings import FindingLog
from opendas.io.readers.frame_file import leaf_positions
from opendas.io.readers.tables import Batch, no_rows, read_batches
from opendas.products.product import Product
from opendas.schema.histogram import Histogram

__all__ = ["Layout", "collect", "tally"]

Codes = npt.NDArray[np.bytes_]
Counts = npt.NDArray[np.int64]

MAX_TOTAL = 1 << 62


class Layout(Protocol):
    """Where a file format keeps a row's leaf, cell and count."""

    @property
    def leaf_columns(self) -> Sequence[str]:
        """Columns that name the leaf."""
        ...

    @property
    def cell_columns(self) -> Sequence[str]:
        """Columns that hold the cell and the count."""
        ...

    @property
    def leaf_field(self) -> str:
        """The column that findings about the leaf name."""
        ...

    def leaves(self, batch: Batch, log: FindingLog) -> Codes:
        """Return the geocode of each row, (r,); empty where it is not usable."""
        ...

    def cells(self, batch: Batch, log: FindingLog) -> Counts:
        """Return the cell of each row, (r,); -1 where it is not usable, -2 where the row counts nothing."""
        ...

    def counts(self, batch: Batch, log: FindingLog) -> Counts | None:
        """Return the count of each row, (r,), or None where each row is one record."""
        ...


def collect(paths: Sequence[Source], columns: Sequence[str], layout: Layout) -> tuple[Codes, list[Codes]]:
    """Return the distinct leaves of the input, ascending, and further columns beside them.

    Parameters
    ----------
    columns : sequence of str
        Columns whose distinct combinations with the leaf are wanted: codes of higher levels.

    Returns
    -------
    (bytes array (k,), list of bytes arrays (k,))
        A leaf with two combinations is listed twice.
    """
    found: list[Codes] = []
    for path in paths:
        log = FindingLog()
        for batch in read_batches(path, [*layout.leaf_columns, *columns], log):
            joined = layout.leaves(batch, log)
            for name in columns:
                joined = np.strings.add(np.strings.add(joined, _BREAK), text_of(batch, name))
            found.append(np.unique(joined))
        log.raise_if_any(f"{path.name} cannot be read.")
    if not sum(map(len, found)):
        raise no_rows(paths[0])
    everything = np.unique(np.concatenate(found))
    if not columns:
        return everything, []
    pieces = [code.split(_BREAK) for code in everything.tolist()]
    return (
        np.array([piece[0] for piece in pieces], dtype=np.bytes_),
        [np.array([piece[k] for piece in pieces], dtype=np.bytes_) for k in range(1, len(columns) + 1)],
    )


_BREAK = b"\x1f"


def tally(
    paths: Sequence[Source], layout: Layout, product: Product, frame: Frame
) -> tuple[Histogram, tuple[Finding, ...]]:
    """Count the rows of all files.

    Returns
    -------
    (Histogram, tuple of Finding)
        One row per leaf of `frame`; warnings.

    Raises
    ------
    DataError
        With everything that is wrong in the first file that is not usable.
    """
    n = product.schema.size
    keys: list[Counts] = []
    sums: list[Counts] = []
    total = rows = 0
    warnings = FindingLog()
    for path in paths:
        log = FindingLog()
        for batch in read_batches(path, [*layout.leaf_columns, *layout.cell_columns], log):
            rows += batch.rows
            key, count = _rows(batch, layout, product, frame, log)
            distinct, summed = _combine(key, count)
            if count is not None and len(distinct) < len(key):
                rule = "some rows repeat leaf and cell; their counts were added"
                warnings.add_rows(DataError, path.name, [batch.first], None, rule)
            total += sum(summed.tolist()) if len(summed) and summed.max() > 1 << 40 else int(summed.sum())
            if total >= MAX_TOTAL:
                log.add(DataError, path.name, None, None, "expected counts whose sum stays below 2**62")
                break
            keys.append(distinct)
            sums.append(summed)
        log.raise_if_any(f"{path.name} cannot be read for product {product.name}.")
    if rows == 0:
        raise no_rows(paths[0])
    key, count = _combine(np.concatenate(keys), np.concatenate(sums))
    return Histogram.from_entries(key // n, key % n, count, shape=(len(frame), n)), warnings.findings


def _rows(
    batch: Batch, layout: Layout, product: Product, frame: Frame, log: FindingLog
) -> tuple[Counts, Counts | None]:
    """Return (leaf * n + cell, count) of the usable rows that count something."""
    geocodes = layout.leaves(batch, log)
    cells = layout.cells(batch, log)
    counts = layout.counts(batch, log)
    leaves = leaf_positions(frame, geocodes)
    counted = cells != -2
    if counts is not None:
        counted &= counts != 0
    rule = f"expected a {frame.leaf} that the frame holds"
    outside = (leaves < 0) & (geocodes != b"") & counted
    log.add_where(GeographyError, batch.where, outside, layout.leaf_field, rule, first=batch.first)
    impossible = (cells >= 0) & counted
    impossible[impossible] = ~product.possible[cells[impossible]]
    rule = f"this combination of levels is a structural zero of {product.name}"
    log.add_where(SchemaError, batch.where, impossible, None, rule, first=batch.first)
    usable = counted & (leaves >= 0) & (cells >= 0)
    if counts is not None:
        usable &= counts > 0
    key = leaves[usable] * product.schema.size + cells[usable]
    return key, None if counts is None else counts[usable]


def _combine(key: Counts, count: Counts | None) -> tuple[Counts, Counts]:
    """Return distinct keys, ascending, and their summed counts."""
    if count is None:
        distinct, number = np.unique(key, return_counts=True)
        return distinct, number.astype(np.int64)
    order = np.argsort(key, kind="stable")
    key, count = key[order], count[order]
    first = (
        np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.empty(0, np.int64)
    )
    summed = np.add.reduceat(count, first) if len(first) else np.empty(0, np.int64)
    return key[first], summed
