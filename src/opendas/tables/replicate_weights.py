"""Counts with replicate weights, as software for surveys reads them: a row for each geounit and combination.

Apart from margins: such software makes its own figures, and its own errors, from weights.

Axes: ``r`` rows that are not 0 everywhere, ``k`` replicates.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from opendas.arrays import Ints, sum_by_key
from opendas.errors import ConfigError
from opendas.files.storage.parquet import text_column
from opendas.geography.frame import Grouping
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup
from opendas.tables.cells import check_geolevel, published_tables
from opendas.tables.replicate_margins import Replicated

_MOST = np.iinfo(np.int32).max


def replicate_weights(base: Replicated, query: str, geolevel: str) -> pa.Table:
    """Return counts of a query group with their replicates.

    Memory follows the rows that are not 0 everywhere, times the replicates, in four bytes each.

    - `query`: a query group. Its rows count every record once.
    - `geolevel`: geolevel or entity category.
    - Returns: pyarrow.Table: ``geocode``; a column for each attribute or recode of the query group, with
      labels; ``weight``, the published count; ``rep1``, ``rep2`` ..., that of each replicate. Combinations
      that are 0 in all of them are left out.

    Notes
    -----
    ``svrepdesign(weights = ~weight, repweights = "^rep[0-9]+$", data = counts, type = "other",
    combined.weights = TRUE, scale = 1 / K, rscales = rep(1, K), mse = TRUE)`` of R's package ``survey``, with
    K replicates, gives a figure the root mean square of its replicates' distances from the published one.
    """
    if query in published_tables(base.product.layout):
        raise ConfigError(
            f"{query} is a published table, and weights are of cells that count each record once; give a "
            f"query group such as {base.product.query_names[-1]!r}."
        )
    group, frame = base.product.workload.group(query), base.frame
    check_geolevel(frame, geolevel)
    grouping, file = frame.grouping(geolevel), base.file
    runs = range(1, file.about.runs + 1)
    published = _sums(base.counts, group, grouping)
    drawn = [_sums(file.differences(k, frame, base.counts.size), group, grouping) for k in runs]
    rows = np.unique(np.concatenate([keys for keys, _ in (published, *drawn)]))
    weight = _sums_at_rows(rows, *published)
    geounit, row = np.divmod(rows, group.size)
    names = ["geocode", *group.factors]
    columns = [text_column(geounit, [bytes(code).decode() for code in grouping.geocodes])]
    if group.factors:
        codes = np.unravel_index(row, group.shape)
        columns += [text_column(code, labels) for code, labels in zip(codes, group.labels, strict=True)]
    columns += [_column(weight), *(_column(weight + _sums_at_rows(rows, *one)) for one in drawn)]
    return pa.table(columns, [*names, "weight", *(f"rep{k}" for k in runs)])


def _sums(counts: Histogram, group: QueryGroup, grouping: Grouping) -> tuple[Ints, Ints]:
    """Return the rows of a query group that are not 0, as keys (geounit, row) in order, and their sums."""
    leaf = counts.row_of_entries()
    inside = grouping.of_leaf[leaf] >= 0
    keys = (grouping.of_leaf[leaf] * group.size + group.row_of_cell[counts.cells])[inside]
    found, sums = sum_by_key(keys, counts.counts[inside])
    return found[sums != 0], sums[sums != 0]


def _sums_at_rows(rows: Ints, keys: Ints, sums: Ints) -> Ints:
    """Return the sums in a longer list of rows, 0 where there is none."""
    found = np.zeros(len(rows), dtype=np.int64)
    found[np.searchsorted(rows, keys)] = sums
    return found


def _column(weights: Ints) -> pa.Array:
    return pa.array(weights, pa.int32() if weights.max(initial=0) <= _MOST else pa.int64())
