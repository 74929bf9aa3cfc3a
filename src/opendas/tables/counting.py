"""Counting an estimate into tables, at any official geolevel or entity category.

Axes: ``leaves`` of the frame, ``g`` geounits of the geolevel, ``t`` columns, ``b`` distinct sets of columns
that a cell of the schema counts in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Codes, Floats, Ints
from opendas.errors import DataError
from opendas.files.area_files import AreaWeights
from opendas.geography.frame import Frame
from opendas.schema.histogram import Histogram
from opendas.tables.cells import Table

__all__ = ["Grouping", "count_areas", "count_batches", "count_table", "group_leaves"]

VALUES_PER_BATCH = 1 << 22
_EXACT = 1 << 53


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """The geounits of a geolevel or entity category.

    Parameters
    ----------
    geocodes : bytes array (g,)
        Ascending.
    unit : int64 (leaves,)
        Geounit of each leaf, -1 for none.
    """

    geolevel: str
    geocodes: Codes
    unit: Ints

    def __len__(self) -> int:
        return len(self.geocodes)


def group_leaves(frame: Frame, geolevel: str) -> Grouping:
    """Group the leaves of a frame by their official code at a geolevel or entity category.

    Raises
    ------
    GeographyError
        If the frame has no such codes.
    """
    codes, unit = np.unique(frame.codes(geolevel), return_inverse=True)
    unit = unit.astype(np.int64)
    if len(codes) and codes[0] == b"":
        return Grouping(geolevel, codes[1:], unit - 1)
    return Grouping(geolevel, codes, unit)


def _columns_of_cells(table: Table) -> tuple[Ints, Floats]:
    """Return (class of each schema cell, -1 for none; columns of each class, (b, t))."""
    # One byte string a cell: sorting those is much faster than sorting rows of flags.
    packed = np.ascontiguousarray(np.packbits(table.members, axis=0).T)
    keys = packed.view(f"S{packed.shape[1]}").ravel()
    _, first, of_cell = np.unique(keys, return_index=True, return_inverse=True)
    classes = table.members[:, first].T
    counted = classes.any(axis=1)
    renumber = np.where(counted, np.cumsum(counted) - 1, -1)
    return renumber[of_cell].astype(np.int64), classes[counted].astype(np.float64)


def count_batches(estimate: Histogram, table: Table, grouping: Grouping) -> Iterator[tuple[int, Ints]]:
    """Yield (first geounit, counts (geounits, t)) for consecutive geounits; memory stays bounded.

    Raises
    ------
    DataError
        If the estimate counts 2**53 records or more.
    """
    if estimate.total() >= _EXACT:
        raise DataError("the estimate holds 2**53 records or more.")
    class_of_cell, columns = _columns_of_cells(table)
    order = np.argsort(grouping.unit, kind="stable")
    first_leaf = np.searchsorted(grouping.unit[order], np.arange(len(grouping) + 1))
    step = max(1, VALUES_PER_BATCH // max(columns.shape))
    for start in range(0, len(grouping), step):
        stop = min(start + step, len(grouping))
        leaves = order[first_leaf[start] : first_leaf[stop]]
        low = estimate.indptr[leaves]
        lengths = estimate.indptr[leaves + 1] - low
        entries = np.repeat(low - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        unit = np.repeat(grouping.unit[leaves] - start, lengths)
        group = class_of_cell[estimate.cells[entries]]
        keep = group >= 0
        # Sums of integers below 2**53 are exact in double precision, in whatever order.
        sums = np.bincount(
            unit[keep] * len(columns) + group[keep],
            weights=estimate.counts[entries][keep],
            minlength=(stop - start) * len(columns),
        )
        yield start, np.asarray((sums.reshape(stop - start, len(columns)) @ columns).astype(np.int64))


def count_table(estimate: Histogram, table: Table, grouping: Grouping) -> Ints:
    """Return the whole table, int64 (g, t)."""
    parts = [counts for _, counts in count_batches(estimate, table, grouping)]
    return np.concatenate([np.zeros((0, len(table.columns)), dtype=np.int64), *parts])


def count_areas(estimate: Histogram, table: Table, frame: Frame, areas: AreaWeights) -> Floats:
    """Return a table of areas that somebody drew, float64 (areas, t)."""
    used, leaf = np.unique(areas.leaf, return_inverse=True)
    alone = Grouping("leaf", frame.geocodes[used], np.arange(len(used), dtype=np.int64))
    counts = count_table(estimate.take(used), table, alone)
    found = np.zeros((len(areas.names), len(table.columns)))
    np.add.at(found, areas.which, areas.weight[:, None] * counts[leaf.ravel()])
    return found
