"""Counting an estimate into tables, at any official geolevel or entity category.

Axes: ``leaves`` of the frame, ``g`` geounits of the geolevel, ``t`` columns, ``b`` classes of cells
that count in the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.errors import DataError
from opendas.files.area_files import AreaWeights
from opendas.geography.frame import Frame, Grouping
from opendas.schema.histogram import Histogram
from opendas.tables.cells import Table

VALUES_PER_BATCH = 1 << 22
_EXACT = 1 << 53


def count_batches(estimate: Histogram, table: Table, grouping: Grouping) -> Iterator[tuple[int, Ints]]:
    """Yield (first geounit, counts (geounits, t)) for consecutive geounits; memory stays bounded."""
    if estimate.total() >= _EXACT:
        raise DataError("the estimate holds 2**53 records or more.")
    columns = table.classes.astype(np.float64)
    order = np.argsort(grouping.of_leaf, kind="stable")
    first_leaf = np.searchsorted(grouping.of_leaf[order], np.arange(len(grouping) + 1))
    step = max(1, VALUES_PER_BATCH // max(columns.shape))
    for start in range(0, len(grouping), step):
        stop = min(start + step, len(grouping))
        leaves = order[first_leaf[start] : first_leaf[stop]]
        low = estimate.indptr[leaves]
        lengths = estimate.indptr[leaves + 1] - low
        entries = np.repeat(low - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        unit = np.repeat(grouping.of_leaf[leaves] - start, lengths)
        group = table.class_of_cell[estimate.cells[entries]]
        # Sums of integers below 2**53 are exact in double precision, in whatever order.
        sums = np.bincount(
            unit * len(columns) + group,
            weights=estimate.counts[entries],
            minlength=(stop - start) * len(columns),
        )
        yield start, np.asarray((sums.reshape(stop - start, len(columns)) @ columns).astype(np.int64))


def count_table(estimate: Histogram, table: Table, grouping: Grouping) -> Ints:
    """Return the whole table, int64 (g, t)."""
    parts = [counts for _, counts in count_batches(estimate, table, grouping)]
    return np.concatenate([np.zeros((0, len(table.columns)), dtype=np.int64), *parts])


def count_areas(estimate: Histogram, table: Table, frame: Frame, areas: AreaWeights) -> Floats:
    """Return a table of areas that someone drew, float64 (areas, t)."""
    used, leaf = np.unique(areas.leaf, return_inverse=True)
    alone = Grouping("leaf", frame.geocodes[used], np.arange(len(used), dtype=np.int64))
    counts = count_table(estimate.take(used), table, alone)
    found = np.zeros((len(areas.names), len(table.columns)))
    np.add.at(found, areas.which, areas.weight[:, None] * counts[leaf.ravel()])
    return found
