"""Prior tables read: public counts of leaves, such as those of an earlier census."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opendas.arrays import Codes, Ints, positions_of
from opendas.errors import FormatError, GeographyError
from opendas.readers.columns.coding import codes_of, geocodes_of, whole_numbers
from opendas.readers.columns.csv_parquet import read_batches
from opendas.readers.columns.findings import FindingLog
from opendas.schema.histogram import Histogram
from opendas.schema.query_groups import QueryGroup


def read_prior_table(path: Path, query: QueryGroup, leaves: Codes, geocode: str, count: str) -> Histogram:
    """Read a public table of counts.

    - `path`: CSV or Parquet: a column of leaves, one of labels for each factor of the query group, under the
      factor's name, and one of counts. Rows of a leaf and the same labels are added up.
    - `leaves`: geocodes of the frame, ascending. Those that the table does not have, count nobody.
    - Returns: over the rows of the query group, one row for each leaf.
    """
    log, width = FindingLog(), leaves.dtype.itemsize
    found: list[tuple[Ints, Ints, Ints]] = []
    for batch in read_batches(path, (geocode, *query.factors, count), log):
        places = positions_of(leaves, geocodes_of(batch, geocode, width, log))
        rule = "expected a leaf of this run's frame; convert counts of other leaves to these first"
        batch.report(places < 0, geocode, rule, log, GeographyError)
        row = np.zeros(batch.rows, np.int64)
        for factor, labels in zip(query.factors, query.labels, strict=True):
            keys = {label: code for code, label in enumerate(labels)}
            rule = f"expected a label of {factor}: {', '.join(labels[:6])}{', ...' * (len(labels) > 6)}"
            row = row * len(labels) + codes_of(batch, factor, keys, rule, log)
        found.append((places, row, whole_numbers(batch, count, log)))
    log.raise_if_any(f"[prior] {path.name} cannot be read.")
    if not found:
        raise FormatError(f"[prior] {path.name} has no rows.")
    places, row, counts = (np.concatenate(several) for several in zip(*found, strict=True))
    kept = counts > 0
    return Histogram.from_entries(places[kept], row[kept], counts[kept], shape=(len(leaves), query.size))
