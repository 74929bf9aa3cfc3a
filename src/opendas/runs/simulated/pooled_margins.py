"""Margins of counts in leaves from cells that came out alike; apart from margins of one cell's replicates.

A rare record stands in one leaf in the truth, in another in the release, and in a third in the counts that a
replicate starts from: the errors of the replicates in one cell say little of that cell. What they say of all
cells together is another matter: a cell published as 2 is one of those that came out as 2, and how far these
lie in the replicates from what they started from is known.

Axes: ``a`` leaves, ``t`` columns of the table, ``p`` pools.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa

from opendas.arrays import Floats, Ints
from opendas.errors import ConfigError
from opendas.geography.frame import Frame
from opendas.runs.simulated.published_replicates import MicrodataBase
from opendas.runs.simulated.replicates import Base, starting_counts
from opendas.tables.cells import product_table
from opendas.tables.counting import count_table
from opendas.tables.replicate_margins import MARGIN_SCHEMA, Replicated, margins_of

_COUNTS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 22, 33, 50, 75, 110, 160, 240, 360, 540, 1000)
_EXPECTED = (1e-9, 0.03, 0.1, 0.2, 0.35, 0.6, 1, 1.7, 3, 6, 12, 30, 80, 200, 500)
"""Upper ends of the classes; above the last is one more."""


def check_pooled(frame: Frame, geolevel: str | None, of: object) -> None:
    """Refuse to pool what is no count of a leaf."""
    if geolevel != frame.leaf or of is not None:
        raise ConfigError(
            f"pooled margins are of counts at geolevel {frame.leaf!r}, not of figures made of them."
        )


def pooled_margins(
    base: Base | MicrodataBase, replicated: Replicated, query: str, level: Fraction
) -> pa.Table:
    """Return counts of the leaves with the larger of two margins: their own, and that of cells alike.

    - `query`: a published table or a query group.
    - Returns: pyarrow.Table: as :func:`opendas.tables.replicate_margins.margins_of`; bias and standard error
      are those of the cell.

    Notes
    -----
    Cells are alike that have one column, one class of the count that came out, and one class of the count
    that the leaf would have if its parent's records of the cell were spread like its people. A pool has the
    absolute errors of such cells in all replicates, n of them; its margin is the ``ceil(level (n + 1))``-th
    smallest, or the largest.
    """
    frame = replicated.frame
    if len(frame.geolevels) < 2:
        raise ConfigError(f"pooled margins need a geolevel above {frame.leaf}, and the release has none.")
    table, leaves = product_table(replicated.product, query), replicated.grouping(frame.leaf)
    own = margins_of(replicated, query, frame.leaf, level)
    above = frame.grouping(frame.geolevels[-2])
    parent = np.full(len(leaves), len(above), dtype=np.int64)  # of areas without a leaf: one of nobody
    parent[leaves.of_leaf] = above.of_leaf
    published = count_table(replicated.counts, table, leaves)
    pools, pool_of = np.unique(_pools(published, parent), return_inverse=True)
    sizes, off, where = np.zeros(len(pools), dtype=np.int64), [], []
    file = replicated.file
    for number, start in enumerate(starting_counts(base, file), start=1):
        error = count_table(file.differences(number, frame, start.size), table, leaves)
        found = _pools(count_table(start, table, leaves) + error, parent)
        place = np.minimum(np.searchsorted(pools, found), len(pools) - 1)
        alike = pools[place] == found
        sizes += np.bincount(place[alike], minlength=len(pools))
        differs = alike & (error.ravel() != 0)
        off.append(np.abs(error.ravel()[differs]))
        where.append(place[differs])
    margin = _quantiles(sizes, np.concatenate(where), np.concatenate(off), level)[pool_of.ravel()]
    larger = np.maximum(margin, own.column("margin").to_numpy())
    column = MARGIN_SCHEMA.get_field_index("margin")
    return own.set_column(column, MARGIN_SCHEMA.field(column), pa.array(larger))


def _pools(counts: Ints, parent: Ints) -> Ints:
    """Return the pool of each cell of a table, int64 (a t,)."""
    columns = counts.shape[1]
    people = counts.sum(axis=1)
    above = np.zeros((int(parent.max(initial=0)) + 1, columns))
    np.add.at(above, parent, counts)
    share = people / np.maximum(1, np.bincount(parent, people, len(above))[parent])
    size = np.searchsorted(_COUNTS, counts)
    expected = np.searchsorted(_EXPECTED, above[parent] * share[:, None])
    kinds = (np.arange(columns) * (len(_COUNTS) + 1) + size) * (len(_EXPECTED) + 1) + expected
    return np.asarray(kinds.ravel(), dtype=np.int64)


def _quantiles(sizes: Ints, pool: Ints, off: Ints, level: Fraction) -> Floats:
    """Return the margin of each pool, float64 (p,), from the errors in it that are not 0."""
    order = np.lexsort((off, pool))
    differing = np.bincount(pool, minlength=len(sizes))
    rank = np.minimum(sizes, -(-level.numerator * (sizes + 1) // level.denominator))
    place = rank - 1 - (sizes - differing)  # errors of 0 come first
    margin = np.zeros(len(sizes))
    wanted = np.flatnonzero(place >= 0)
    margin[wanted] = off[order][(np.cumsum(differing) - differing + place)[wanted]]
    return margin
