"""Tables of errors: differences between two histograms, summed to geounits and to the rows of a query group.

Axes: ``l`` leaves of the frame, ``g`` geounits of one geolevel or entity category, ``n`` cells,
``m`` rows of a query group. Everything is integer and sparse; nothing of size ``l x n`` or ``g x m`` is made.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csr_array

from opendas.errors import DataError
from opendas.geography.frame import Frame, Grouping
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup


def summed(table: csr_array, units: Grouping) -> csr_array:
    """Sum an (l, n) table over the leaves of each geounit, giving (g, n)."""
    leaves = units.members
    ones = np.ones(len(leaves), dtype=np.int64)
    shape = (len(units), len(units.of_leaf))
    return csr_array(coo_array((ones, (units.of_leaf[leaves], leaves)), shape=shape).tocsr() @ table)


def as_sparse(histogram: Histogram) -> csr_array:
    """Return a histogram as an int64 (l, n) sparse array."""
    shape = (histogram.rows, histogram.size)
    return csr_array((histogram.counts, histogram.cells, histogram.indptr), shape=shape)


def check_same_frame(truth: Histogram, estimate: Histogram, frame: Frame) -> None:
    """Check that both histograms have the frame's leaves as rows and the same cells."""
    for name, histogram in (("truth", truth), ("estimate", estimate)):
        if histogram.rows != len(frame):
            raise DataError(
                f"the {name} has {histogram.rows} rows and the frame {len(frame)} leaves; both must "
                "come from the same frame. Evaluate against the run file that the release was made from."
            )
    if truth.size != estimate.size:
        raise DataError(
            f"the truth has {truth.size} cells and the estimate {estimate.size}; they are different products."
        )


def difference(truth: Histogram, estimate: Histogram) -> csr_array:
    """Return estimate minus truth, int64 (l, n), without stored zeros."""
    table = csr_array(as_sparse(estimate) - as_sparse(truth))
    table.eliminate_zeros()
    return table


def project(table: csr_array, group: QueryGroup) -> csr_array:
    """Sum the cells of a (g, n) table into the rows of a query group, giving (g, m) without stored zeros."""
    n = len(group.row_of_cell)
    ones = np.ones(n, dtype=np.int64)
    projection = csr_array((ones, group.row_of_cell, np.arange(n + 1)), shape=(n, group.size))
    answers = csr_array(table @ projection)
    answers.eliminate_zeros()
    return answers
