"""How often each value of a column occurs, apart from any schema: the counts of private domain discovery.

All of it is confidential, the values as much as their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.readers.columns.coding import distinct_texts, whole_numbers
from opendas.readers.columns.csv_parquet import Batch, no_rows, read_batches, shown_name
from opendas.readers.columns.findings import FindingLog
from opendas.readers.counting.tally import MAX_TOTAL, exact_sum
from opendas.readers.input.spec import Source

Value = tuple[str, ...]


def count_values(
    path: Source,
    groups: Sequence[tuple[str, ...]],
    usable: Callable[[Value], bool],
    count: str | None = None,
) -> list[dict[Value, int]]:
    """Count the records of each combination of values of some columns.

    - `path`: CSV or Parquet, one record a row, or `count` of them.
    - `groups`: columns whose combinations are counted together, a histogram each.
    - `usable`: whether a combination may be counted at all: a rule about the values themselves. Others are
      left out, so that a record counts in at most one bin of each histogram.
    - Returns: of each group, its combinations with at least one record, in their own order.
    """
    found: list[Counter[Value]] = [Counter() for _ in groups]
    columns = list(
        dict.fromkeys([*(name for group in groups for name in group), *([count] if count else [])])
    )
    log = FindingLog()
    total = rows = 0
    for batch in read_batches(path, columns, log, coded=True):
        rows += batch.rows
        records = np.ones(batch.rows, dtype=np.int64)
        if count is not None:
            records = np.maximum(whole_numbers(batch, count, log), 0)
        total += exact_sum(records)
        if total >= MAX_TOTAL:
            rule = "expected counts whose sum stays below 2**62"
            log.add(DataError, shown_name(path), None, count, rule)
            break
        for histogram, group in zip(found, groups, strict=True):
            _add(histogram, batch, group, records)
    log.raise_if_any(f"{shown_name(path)} cannot be read.")
    if rows == 0:
        raise no_rows(path)
    return [
        {value: number for value, number in sorted(each.items()) if number > 0 and usable(value)}
        for each in found
    ]


def _add(histogram: Counter[Value], batch: Batch, group: Sequence[str], records: Ints) -> None:
    """Add the records of a batch to their bins."""
    columns = [distinct_texts(batch, name) for name in group]
    codes = np.stack([index for index, _ in columns])
    distinct, place = np.unique(codes, axis=1, return_inverse=True)
    sums = np.zeros(distinct.shape[1], dtype=np.int64)
    np.add.at(sums, place.ravel(), records)
    for code, number in zip(distinct.T.tolist(), sums.tolist(), strict=True):
        histogram[tuple(texts[k] for k, (_, texts) in zip(code, columns, strict=True))] += number
