"""Read declared invariants from the confidential table.

Exact counts pass the privacy wall only here, and only for query groups that the product declares invariant
and the run does not drop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opendas.arrays import Ints
from opendas.geography.spine import Spine
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

ExactAnswers = Callable[[QueryGroup, int], Ints]
"""Function that returns a query group's exact answers at a geolevel, int64 (g, m). Confidential."""


def exact_answers(group: QueryGroup, table: Histogram) -> Ints:
    """Return the exact answers of a query group, int64 (g, m), from the counts of g geounits."""
    sums = np.zeros(table.rows * group.size, dtype=np.int64)
    np.add.at(sums, table.row_of_entries() * group.size + group.row_of_cell[table.cells], table.counts)
    return sums.reshape(-1, group.size)


def declared_invariants(product: Product, counts: Histogram | ExactAnswers, spine: Spine) -> dict[str, Ints]:
    """Return the exact answers of each declared invariant at its geolevel.

    - `product`: with its dropped invariants already removed.
    - `counts` (group, level): confidential; a histogram has the leaves in spine order as rows.
    - Returns (g, m): for official geounits; if the spine divides them, each answer is the sum over all parts.
    """
    answers = {}
    for query, level in product.invariant_levels(spine).items():
        group = product.workload.group(query)
        if isinstance(counts, Histogram):
            exact = exact_answers(group, counts.aggregate(spine.leaf_starts(level)))
        else:
            exact = counts(group, level)
        whole = spine.levels[level].whole
        if whole is not None:  # a part's answer is not declared, so only the sum leaves this function
            exact = np.add.reduceat(exact, np.flatnonzero(np.diff(whole, prepend=-1)), axis=0)
        answers[query] = exact
    return answers
