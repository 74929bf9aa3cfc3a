"""How each family was solved, and how long it took: a Parquet file for questions, confidential.

The records are functions of measurements and invariants; the seconds are not, since they depend on how full
a geounit is. So the file stands under ``confidential/timings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opendas.files.parquet import ParquetSink, parquet_sink
from opendas.topdown.model import FamilyRecord

__all__ = ["FAMILY_FIELDS", "SCHEMA", "FamilyTable", "family_batch", "family_table"]

FAMILY_FIELDS: dict[str, tuple[Any, str]] = {
    "geolevel": (pa.string(), "geolevel of the children"),
    "label": (pa.string(), "geocode of the parent, or of the root itself"),
    "children": (pa.int32(), "how many"),
    "cells": (pa.int32(), "cells that can be non-zero in the parent"),
    "passes": (pa.int32(), "least-squares passes"),
    "methods": (pa.string(), "method of each pass, comma between"),
    "residual": (pa.float64(), "largest relative Karush-Kuhn-Tucker residual: the certificate of optimality"),
    "tolerance": (pa.float64(), "how far the last pass is from the held margins of earlier ones"),
    "fallback": (pa.bool_(), "a general solver was needed"),
    "failsafe": (pa.string(), "empty, or what the failsafe relaxed"),
    "seconds": (pa.float32(), "wall time, measurement and rounding included; null where it was not taken"),
    "stage": (pa.int32(), "stage of the run"),
    "task": (pa.int32(), "task of the stage"),
}
"""Columns of the file: type and meaning."""

SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in FAMILY_FIELDS.items()])

_ROWS_AT_ONCE = 1 << 16


def family_batch(
    records: Sequence[FamilyRecord],
    seconds: npt.NDArray[np.floating] | Sequence[float] | None,
    *,
    stage: int,
    task: int,
) -> Any:
    """Return the records of a task as rows.

    Parameters
    ----------
    records : sequence of FamilyRecord
    seconds : float (len(records),) or None
        Wall time of each family, where it was taken.
    stage, task : int

    Returns
    -------
    pyarrow.RecordBatch
    """
    count = len(records)
    if seconds is not None and len(seconds) != count:
        raise ValueError(f"{count} families, but {len(seconds)} times")
    taken = np.full(count, np.nan, np.float32) if seconds is None else np.asarray(seconds, dtype=np.float32)
    columns: dict[str, Any] = {
        name: [getattr(record, name) for record in records]
        for name in (
            "geolevel",
            "label",
            "children",
            "cells",
            "residual",
            "tolerance",
            "fallback",
            "failsafe",
        )
    }
    columns["passes"] = [len(record.methods) for record in records]
    columns["methods"] = [", ".join(record.methods) for record in records]
    columns["seconds"] = pa.array(taken, mask=np.isnan(taken))
    columns["stage"] = np.full(count, stage, np.int32)
    columns["task"] = np.full(count, task, np.int32)
    arrays = [
        columns[name] if isinstance(columns[name], pa.Array) else pa.array(columns[name], type=kind)
        for name, (kind, _) in FAMILY_FIELDS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class FamilyTable:
    """A file of families being written; made by :func:`family_table`."""

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink
        self._kept: list[Any] = []
        self.waiting = 0
        self.rows = 0

    def add(self, batch: Any) -> None:
        """Append rows, as of :func:`family_batch`."""
        self._kept.append(batch)
        self.waiting += batch.num_rows
        if self.waiting >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._sink.write(pa.Table.from_batches(self._kept, SCHEMA))
        self.rows += self.waiting
        self._kept, self.waiting = [], 0


@contextmanager
def family_table(path: Path) -> Iterator[FamilyTable]:
    """Open a file of families for writing; it appears whole when the block ends without an error.

    A few rows at a time are in memory.

    Parameters
    ----------
    path : Path
        ``confidential/timings/<product>_families.parquet``.

    Raises
    ------
    EnvironmentFailure
        If the disk is full, or a permission is missing.
    """
    with parquet_sink(path, SCHEMA) as sink:
        table = FamilyTable(sink)
        yield table
        if table.waiting or not table.rows:
            table.flush()
