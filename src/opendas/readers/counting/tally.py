"""Counts rows by leaf and cell, batch by batch; what records, histograms and microdata share.

Axes: ``r`` rows of a batch, ``l`` leaves, ``n`` cells of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from opendas.arrays import Codes, Ints
from opendas.errors import DataError, Finding, GeographyError, SchemaError
from opendas.geography.frame import Frame
from opendas.readers.base import Source
from opendas.readers.columns.coding import Geocodes, text_of
from opendas.readers.columns.csv_parquet import Batch, no_rows, read_batches, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.entries import Entries, summed
from opendas.readers.frame.frame_file import leaf_positions
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

__all__ = ["MAX_TOTAL", "Layout", "collect", "exact_sum", "refuse_too_many", "tally", "tally_file"]


MAX_TOTAL = 1 << 62
_TOO_MANY = "expected counts whose sum stays below 2**62"


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

    def leaves(self, batch: Batch, log: FindingLog) -> Geocodes:
        """Return the geocode of each row; empty where it is not usable."""
        ...

    def cells(self, batch: Batch, log: FindingLog) -> Ints:
        """Return the cell of each row, (r,); -1 where it is not usable, -2 where the row counts nothing."""
        ...

    def counts(self, batch: Batch, log: FindingLog) -> Ints | None:
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
        for batch in read_batches(path, [*layout.leaf_columns, *columns], log, coded=True):
            leaves = layout.leaves(batch, log)
            joined = leaves.rows() if columns else leaves.used()
            for name in columns:
                joined = np.strings.add(np.strings.add(joined, _BREAK), text_of(batch, name))
            found.append(np.unique(joined))
        log.raise_if_any(f"{shown_name(path)} cannot be read.")
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
    paths: Sequence[Source], layout: Layout, product: Product, frame: Frame, cache: Path | None = None
) -> tuple[Histogram, tuple[Finding, ...]]:
    """Count the rows of all files, batch by batch.

    Parameters
    ----------
    cache : Path, optional
        Folder for what is too large for memory; see :class:`opendas.readers.counting.entries.Entries`. With
        it memory is bounded by a constant beyond `frame`.

    Returns
    -------
    (Histogram, tuple of Finding)
        One row per leaf of `frame`; warnings.

    Raises
    ------
    DataError
        With everything that is wrong in the first file that is not usable.
    EnvironmentFailure
        If the disk is full.
    """
    total = rows = 0
    warnings = FindingLog()
    with Entries(len(frame), product.schema.size, cache) as entries:
        for path in paths:
            for read, keys, counts in tally_file(path, layout, product, frame, warnings, total):
                rows += read
                total += exact_sum(counts)
                entries.add(keys, counts)
        if rows == 0:
            raise no_rows(paths[0])
        return entries.histogram(), warnings.findings


def tally_file(
    path: Source, layout: Layout, product: Product, frame: Frame, warnings: FindingLog, total: int = 0
) -> Iterator[tuple[int, Ints, Ints]]:
    """Count the rows of one file, batch by batch.

    Parameters
    ----------
    path : Source
    layout : Layout
    product : Product
    frame : Frame
        Of its leaves, geocodes and name are used.
    warnings : FindingLog
        Takes what is no error.
    total : int
        Records of the files before.

    Yields
    ------
    rows : int
        Rows of the batch.
    keys, counts : int64 (e,)
        ``leaf * n + cell``, ascending, and how many there are.

    Raises
    ------
    DataError
        At its end, with everything that is wrong in the file.
    """
    log = FindingLog()
    columns = [*layout.leaf_columns, *layout.cell_columns]
    for batch in read_batches(path, columns, log, coded=True):
        keys, counts = _rows(batch, layout, product, frame, log)
        distinct, sums = _combine(keys, counts)
        if counts is not None and len(distinct) < len(keys):
            rule = "some rows repeat leaf and cell; their counts were added"
            warnings.add_rows(DataError, shown_name(path), [batch.first], None, rule)
        total += len(keys) if counts is None else exact_sum(counts)  # sums may have wrapped around already
        if total >= MAX_TOTAL:
            log.add(DataError, shown_name(path), None, None, _TOO_MANY)
            break
        yield batch.rows, distinct, sums
    log.raise_if_any(f"{shown_name(path)} cannot be read for product {product.name}.")


def exact_sum(counts: Ints) -> int:
    """Return a sum that may not fit 64 bits."""
    return sum(counts.tolist()) if len(counts) and counts.max() > 1 << 40 else int(counts.sum())


def refuse_too_many(path: Source, product: Product) -> DataError:
    """Return the error of files that hold too much together."""
    log = FindingLog()
    log.add(DataError, shown_name(path), None, None, _TOO_MANY)
    return DataError(f"{shown_name(path)} cannot be read for product {product.name}.", log.findings)


def _rows(
    batch: Batch, layout: Layout, product: Product, frame: Frame, log: FindingLog
) -> tuple[Ints, Ints | None]:
    """Return (leaf * n + cell, count) of the usable rows that count something."""
    geocodes = layout.leaves(batch, log)
    cells = layout.cells(batch, log)
    counts = layout.counts(batch, log)
    # Codes that are not usable are told already; they are no leaves, and lie outside nothing.
    places = leaf_positions(frame.geocodes, geocodes.values)
    outside = (places < 0) & (geocodes.values != b"")
    leaves = geocodes.spread(places)
    usable = (leaves >= 0) & (cells >= 0)
    if counts is not None:
        usable &= counts > 0
    if not usable.all():
        counted = cells != -2
        if counts is not None:
            counted &= counts != 0
        rule = f"expected a {frame.leaf} that the frame holds"
        wrong = geocodes.spread(outside) & counted
        log.add_where(GeographyError, batch.where, wrong, layout.leaf_field, rule, first=batch.first)
    impossible = ~product.possible[cells]
    if impossible.any():
        impossible &= cells >= 0
        if counts is not None:
            impossible &= counts != 0
        rule = f"this combination of levels is a structural zero of {product.name}"
        log.add_where(SchemaError, batch.where, impossible, None, rule, first=batch.first)
    if not usable.all():
        leaves, cells = leaves[usable], cells[usable]
        counts = None if counts is None else counts[usable]
    return leaves * product.schema.size + cells, counts


def _combine(keys: Ints, counts: Ints | None) -> tuple[Ints, Ints]:
    """Return distinct keys, ascending, and their summed counts."""
    if counts is not None:
        return summed(keys, counts)
    distinct, number = np.unique(keys, return_counts=True)
    return distinct, number.astype(np.int64)
