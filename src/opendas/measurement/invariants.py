"""Reading declared invariants from the confidential table.

This is the only place where exact counts pass the privacy wall, and only for query groups that the product
declares invariant and the run does not drop.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opendas.constraints.table import invariant_geolevels
from opendas.geography.spine import Spine
from opendas.products.product import Product
from opendas.schema.histogram import Histogram

__all__ = ["declared_invariants"]


def declared_invariants(
    product: Product, histogram: Histogram, spine: Spine
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the exact answers of each declared invariant at its geolevel.

    Parameters
    ----------
    product : Product
        With its dropped invariants already removed.
    histogram : Histogram
        Confidential, rows = leaves in spine order.
    spine : Spine

    Returns
    -------
    dict of query name to int64 (g, m)
        Of official geounits: where the spine divides those of the invariant's geolevel, sums of all parts.
    """
    answers = {}
    row_of_entry = np.repeat(np.arange(histogram.rows), np.diff(histogram.indptr))
    for query, level in invariant_geolevels(product, spine).items():
        group = product.workload.group(query)
        geounit = np.searchsorted(spine.leaf_starts(level), row_of_entry, side="right") - 1
        key = geounit * group.size + group.row_of_cell[histogram.cells]
        sums = np.zeros(len(spine.levels[level]) * group.size, dtype=np.int64)
        np.add.at(sums, key, histogram.counts)
        table = sums.reshape(-1, group.size)
        whole = spine.levels[level].whole
        if whole is not None:  # what a part holds is not declared: only the sum leaves this function
            table = np.add.reduceat(table, np.flatnonzero(np.diff(whole, prepend=-1)), axis=0)
        answers[query] = table
    return answers
