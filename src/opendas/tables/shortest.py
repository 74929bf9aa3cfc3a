"""One figure with an interval for each true count: apart from margins and from intervals, made of both."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opendas.arrays import Floats
from opendas.errors import FormatError

SHORTEST_SCHEMA = pa.schema(
    [
        ("geocode", pa.string()),
        ("cell", pa.string()),
        ("figure", pa.float64()),
        ("lower", pa.float64()),
        ("upper", pa.float64()),
        ("source", pa.string()),
    ]
)
"""One row for each area and cell; `source` is ``published`` or ``least squares``."""

WIDENED = 1.25
"""By how much the margin of a published count is widened here: replicates start from counts that are only
like the truth, and districts, sums of many leaves, err by more than theirs (docs/explanation/margins.md)."""


def shortest_of(margins: pa.Table, intervals: pa.Table) -> pa.Table:
    """Return, for each cell, the kind of interval that is shorter on average over the areas.

    The choice looks at widths alone, of all areas together: a choice area by area would favour margins that
    came out too small.

    - `margins`, pyarrow.Table: published counts (:data:`~opendas.tables.replicate_margins.MARGIN_SCHEMA`).
    - `intervals`, pyarrow.Table: of the least-squares estimates of the same areas and cells, in the same
      order (:data:`~opendas.tables.interval_tables.INTERVAL_SCHEMA`).
    - Returns: pyarrow.Table: :data:`SHORTEST_SCHEMA`. The interval of a published count is the count plus or
      minus its margin, widened by :data:`WIDENED`, rounded up, and cut off at 0.
    """
    for name in ("geocode", "cell"):
        if not margins.column(name).equals(intervals.column(name)):
            raise FormatError("margins and intervals are of different areas or cells.")
    count, margin = (_numbers(margins, name, np.nan) for name in ("count", "margin"))
    lower, upper = _numbers(intervals, "lower", -np.inf), _numbers(intervals, "upper", np.inf)
    wide = np.ceil(WIDENED * margin)
    least, most = np.maximum(count - wide, 0.0), count + wide
    cells = pc.dictionary_encode(margins.column("cell")).combine_chunks().indices.to_numpy()
    number = int(cells.max(initial=-1)) + 1
    width = [np.bincount(cells, high - low, number) for low, high in ((least, most), (lower, upper))]
    published = (width[0] <= width[1])[cells]
    figure = np.where(published, count, _numbers(intervals, "estimate", np.nan))
    found = [np.where(published, one, other) for one, other in ((least, lower), (most, upper))]
    source = np.where(published, "published", "least squares")
    arrays = [margins.column("geocode"), margins.column("cell")]
    arrays += [pa.array(x, mask=~np.isfinite(x)) for x in (figure, *found)]
    return pa.Table.from_arrays([*arrays, pa.array(source, pa.string())], schema=SHORTEST_SCHEMA)


def _numbers(table: pa.Table, name: str, missing: float) -> Floats:
    """Return a column of numbers, float64."""
    return np.asarray(pc.fill_null(table.column(name), missing).to_numpy(), dtype=np.float64)
