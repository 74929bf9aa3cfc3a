"""Noisy measurements in tidy form: one row for each geounit, a column for each cell by its name, no lists.

Axes: ``g`` geounits, ``m`` rows of a query group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes
from opendas.errors import ConfigError
from opendas.files.nmf.reading import Answers
from opendas.files.parquet import bytes_column, parquet_sink
from opendas.files.release_folder import ReleasedProduct
from opendas.schema.query_groups import QueryGroup

__all__ = ["MOST_COLUMNS", "write_tidy"]

MOST_COLUMNS = 10_000
"""Of a table; a query group with more cells is asked for by opendas interval."""

_VALUES_AT_ONCE = 1 << 22


def write_tidy(released: ReleasedProduct, folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write each query group at each geolevel of the spine as a table of its own.

    ``FOLDER/<geolevel>/<query>.parquet`` has ``geocode``, ``variance`` (of the noise in each value), and a
    column for each cell, called as in tables; null is an answer that no estimate needed: it was not drawn.

    Parameters
    ----------
    released : ReleasedProduct
    folder : Path

    Returns
    -------
    paths : tuple of Path
    left_out : tuple of str
        Query groups with more than :data:`MOST_COLUMNS` cells.

    Raises
    ------
    ConfigError
        If the release holds no measurements.
    """
    paths: list[Path] = []
    left_out: dict[str, None] = {}
    for geolevel in released.spine.names:
        file = released.measurement(geolevel)
        if file is None:
            continue
        for query, answers in file.read().items():
            group = released.product.workload.group(query)
            if group.size > MOST_COLUMNS:
                left_out[query] = None
                continue
            name = "+".join(quote(factor, safe="") for factor in query.split(" * "))
            path = folder / geolevel / f"{name}.parquet"
            batches = _batches(file.geocodes, answers, group)
            first = next(batches)
            metadata: dict[str, object] = {
                "format": "opendas tidy measurements 1",
                "geolevel": geolevel,
                "query": query,
                "stamps": list(released.stamps),
            }
            with parquet_sink(path, first.schema, metadata=metadata) as sink:
                sink.write(first)
                for batch in batches:
                    sink.write(batch)
            paths.append(path)
    if not paths and not left_out:
        raise ConfigError(f"{released.name}: this release holds no noisy measurements.")
    return tuple(paths), tuple(left_out)


def _batches(geocodes: Codes, answers: Answers, group: QueryGroup) -> Iterator[pa.Table]:
    """Yield the rows of a table, at least one batch, a bounded number of values at a time."""
    names = [group.row_label(row) for row in range(group.size)]
    if len({"geocode", "variance", *names}) < len(names) + 2:
        raise ConfigError(f"query group {group.name!r}: two columns would have one name.")
    step = max(1, _VALUES_AT_ONCE // group.size)
    for start in range(0, max(1, len(geocodes)), step):
        part = answers.slice(start, min(start + step, len(geocodes)))
        g = len(part)
        geounit = np.repeat(np.arange(g), np.diff(part.offsets))
        cells = part.listed_cells()
        values = np.zeros((g, group.size), dtype=np.int64)
        unknown = np.ones((g, group.size), dtype=np.bool_)
        values[geounit, cells] = part.values
        unknown[geounit, cells] = False
        columns = {"geocode": bytes_column(geocodes[start : start + g]), "variance": pa.array(part.variance)}
        for row, name in enumerate(names):
            one = np.ascontiguousarray(values[:, row])
            columns[name] = pa.array(one, mask=np.ascontiguousarray(unknown[:, row]))
        yield pa.table(columns)
