"""Replicates of a release: how far each of many repeated runs lies from its starting counts, sparse.

``release/replicates/<product>.parquet`` has a row for every replicate, leaf and cell where the two differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes, positions_of, sum_by_key
from opendas.errors import FormatError
from opendas.files.storage.parquet import (
    ParquetSink,
    bytes_column,
    one_array,
    open_parquet,
    parquet_sink,
    read_metadata,
    reading,
    text_column,
    to_bytes,
)
from opendas.geography.frame import Frame
from opendas.schema.histogram import Histogram

REPLICATES = "replicates"
"""Folder of the files in a release."""

REPLICATE_FORMAT = "opendas replicates 2"

_MOST_ROWS = 1 << 40
"""Of a row group: it holds one replicate, whole."""

REPLICATE_SCHEMA = pa.schema(
    [
        ("replicate", pa.int32()),
        ("geocode", pa.dictionary(pa.int32(), pa.string())),
        ("cell", pa.int32()),
        ("difference", pa.int64()),
    ]
)
"""Replicate less the count it started from, in cells of the product's schema; zeros are left out."""


@dataclass(frozen=True, slots=True)
class About:
    """What the replicates of a file are."""

    product: str
    runs: int  # number of replicates
    seed: int  # of their noise
    counts: str  # digest of the released counts that they are replicates of
    estimation: str  # digest of plan and estimation


def counts_digest(histogram: Histogram) -> str:
    """Return the SHA-256 of released counts, one row per leaf of the frame. Not for confidential ones."""
    digest = hashlib.sha256()
    for array in (histogram.indptr, histogram.cells, histogram.counts):
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    return digest.hexdigest()


def difference(one: Histogram, other: Histogram) -> Histogram:
    """Return ``one - other``, entries of zero left out; unlike counts of records, some are negative."""
    keys = [table.row_of_entries() * one.size + table.cells for table in (one, other)]
    unique, sums = sum_by_key(np.concatenate(keys), np.concatenate([one.counts, -other.counts]))
    unique, sums = unique[sums != 0], sums[sums != 0]
    indptr = np.searchsorted(unique, np.arange(one.rows + 1, dtype=np.int64) * one.size).astype(np.int64)
    return Histogram(indptr, (unique % one.size).astype(np.int32), sums, one.size)


def write_replicate(sink: ParquetSink, number: int, frame: Frame, differences: Histogram) -> None:
    """Append a replicate to a file of :data:`REPLICATE_SCHEMA`."""
    leaf = differences.row_of_entries()
    columns = [
        pa.array(np.full(len(leaf), number, dtype=np.int32)),
        text_column(leaf, bytes_column(frame.geocodes)),
        pa.array(differences.cells),
        pa.array(differences.counts),
    ]
    if len(leaf):
        sink.write(pa.Table.from_arrays(columns, schema=REPLICATE_SCHEMA))


@contextmanager
def replicate_sink(path: Path, about: About) -> Iterator[ParquetSink]:
    """Open a file of replicates for writing, a row group each."""
    said = {"format": REPLICATE_FORMAT, **asdict(about)}
    with parquet_sink(
        path,
        REPLICATE_SCHEMA,
        metadata=said,
        delta=("difference",),
        bounds=("replicate",),
        row_group=_MOST_ROWS,
    ) as sink:
        yield sink


class ReplicateFile:
    """A file of replicates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            said = read_metadata(path)
            if said["format"] != REPLICATE_FORMAT:
                raise FormatError(f"{path.name}: format {said['format']!r}, expected {REPLICATE_FORMAT!r}.")
            self.about = About(
                str(said["product"]),
                int(said["runs"]),
                int(said["seed"]),
                str(said["counts"]),
                str(said["estimation"]),
            )

    @cached_property
    def _file(self) -> pa.parquet.ParquetFile:
        return open_parquet(self.path, dictionaries=("geocode",))

    @cached_property
    def _group(self) -> dict[int, int]:
        """Row group of each replicate; one without differences has none."""
        groups = [self._file.metadata.row_group(k).column(0) for k in range(self._file.num_row_groups)]
        return {int(column.statistics.min): k for k, column in enumerate(groups)}

    def leaves(self) -> Codes:
        """Return the leaves where a replicate differs, ascending."""
        with reading(self.path):
            codes = one_array(self._file.read(columns=["geocode"]).column(0)).dictionary_decode()
            return np.unique(to_bytes(codes.unique()))

    def differences(self, number: int, frame: Frame, size: int) -> Histogram:
        """Return a replicate less the counts it started from, one row per leaf of the frame.

        - `number`: from 1 to the number of runs.
        - `size`: cells of the schema.
        """
        with reading(self.path):
            if number not in self._group:
                none = np.zeros(0, dtype=np.int64)
                return Histogram(np.zeros(len(frame) + 1, dtype=np.int64), none.astype(np.int32), none, size)
            table = self._file.read_row_group(self._group[number])
            column = one_array(table.column("geocode"))
            codes = to_bytes(column.dictionary)
            place = positions_of(frame.geocodes, codes)
            leaf = place[column.indices.to_numpy()]
            cells, counts = (table.column(name).to_numpy() for name in ("cell", "difference"))
            whole = bool(np.all(place >= 0)) and bool(np.all(counts != 0))
            whole = whole and bool(np.all(table.column("replicate").to_numpy() == number))
            whole = whole and bool(np.all((cells >= 0) & (cells < size)))
            if not whole or bool(np.any(np.diff(leaf * size + cells) <= 0)):
                raise FormatError(
                    f"{self.path.name}: replicate {number} has other leaves or cells than the product here, "
                    "or is damaged."
                )
            indptr = np.searchsorted(leaf, np.arange(len(frame) + 1)).astype(np.int64)
            return Histogram(indptr, cells.astype(np.int32), counts.astype(np.int64), size)
