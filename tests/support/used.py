"""Noisy answers that families used, one family and query group after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opendas.engines.subtree import UsedColumns
from opendas.measurement.family import UsedAnswers


def used_answers(columns: UsedColumns) -> Iterator[UsedAnswers]:
    """Yield what was collected, as it was collected."""
    row = value = 0
    for level, first, children, name, count in columns.numbers.tolist():
        rows = columns.rows[row : row + count].astype(np.int32)
        values = columns.values[value : value + children * count].astype(np.int64)
        yield UsedAnswers(level, first, children, columns.names[name], rows, values.reshape(children, count))
        row += count
        value += children * count
