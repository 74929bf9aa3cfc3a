"""Noisy measurements in tidy form: one row for each geounit, a column for each cell by its name, no lists.

Axes: ``g`` geounits, ``m`` rows of a query group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from opendas.arrays import Codes, Floats, Ints
from opendas.errors import ConfigError
from opendas.files.nmf.bureau_answers import BureauAnswers
from opendas.files.nmf.reading import Answers
from opendas.files.release_folder import ReleasedProduct
from opendas.files.storage.parquet import bytes_column, write_batches
from opendas.intervals.noisy_tree import NoisyTree
from opendas.schema.query_groups import QueryGroup

MOST_COLUMNS = 10_000
"""Of a table; a query group with more cells is asked for by opendas interval."""

_VALUES_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class _Table:
    """Answers to one query group at one geolevel; `read(start, stop)` returns those of some geounits."""

    geolevel: str
    group: QueryGroup
    geocodes: Codes
    read: Callable[[int, int], Answers]


def write_tidy(source: ReleasedProduct | NoisyTree, folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write each query group at each geolevel of the spine as a table of its own.

    ``FOLDER/<geolevel>/<query>.parquet`` has ``geocode``, ``variance`` (of the noise in each value), and a
    column for each cell, called as in tables; null is an answer that no estimate needed, or that was not
    asked: it was not drawn.

    Parameters
    ----------
    source : ReleasedProduct or NoisyTree
        Measurements of a release, or of a file in the Census Bureau's layout.
    folder : Path

    Returns
    -------
    paths : tuple of Path
    left_out : tuple of str
        Query groups with more than :data:`MOST_COLUMNS` cells.

    Raises
    ------
    ConfigError
        If there are no measurements.
    """
    paths: list[Path] = []
    left_out: dict[str, None] = {}
    tables, stamps = (
        (_of_tree(source), ()) if isinstance(source, NoisyTree) else (_of_release(source), source.stamps)
    )
    for table in tables:
        query = table.group.name
        if table.group.size > MOST_COLUMNS:
            left_out[query] = None
            continue
        name = "+".join(quote(factor, safe="") for factor in query.split(" * "))
        path = folder / table.geolevel / f"{name}.parquet"
        metadata: dict[str, object] = {
            "format": "opendas tidy measurements 1",
            "geolevel": table.geolevel,
            "query": query,
            "stamps": list(stamps),
        }
        write_batches(path, _batches(table), metadata=metadata)
        paths.append(path)
    if not paths and not left_out:
        raise ConfigError(f"{source.product.name}: there are no noisy measurements.")
    return tuple(paths), tuple(left_out)


def _of_release(released: ReleasedProduct) -> Iterator[_Table]:
    for geolevel in released.spine.names:
        file = released.measurement(geolevel)
        if file is None:
            continue
        for query, answers in file.read().items():
            yield _Table(geolevel, released.product.workload.group(query), file.geocodes, answers.slice)


def _of_tree(tree: NoisyTree) -> Iterator[_Table]:
    """Yield what was asked; geounits that were not asked a query group are not among its rows."""
    answers = tree.answers
    if not isinstance(answers, BureauAnswers):
        raise TypeError("measurements of a release are read from its files")
    for number, noisy in enumerate(tree.levels):
        geocodes = _official_codes(tree, number)
        for column, group in enumerate(noisy.queries):
            variance = noisy.variances[noisy.which, column]
            asked = np.flatnonzero(np.isfinite(variance))
            read = partial(_read, answers, number, column, asked, variance[asked])
            yield _Table(noisy.geolevel, group, geocodes[asked], read)


def _official_codes(tree: NoisyTree, number: int) -> Codes:
    """Return the geocodes of a spine level: the official one where a geounit is an official area."""
    level = tree.spine.levels[number]
    if level.name not in tree.frame.geolevels:
        return level.geocodes
    areas = tree.frame.grouping(level.name)
    place = tree.spine.same_leaves(number, areas.of_leaf, len(areas))
    known = place >= 0
    codes = level.geocodes.astype(np.promote_types(level.geocodes.dtype, areas.geocodes.dtype))
    codes[place[known]] = areas.geocodes[known]
    return codes


def _read(
    answers: BureauAnswers, level: int, column: int, asked: Ints, variance: Floats, start: int, stop: int
) -> Answers:
    return Answers.full(answers.of_query(level, column, asked[start:stop]), variance[start:stop])


def _batches(table: _Table) -> Iterator[pa.Table]:
    """Yield the rows of a table, at least one batch, a bounded number of values at a time."""
    group, geocodes = table.group, table.geocodes
    names = [group.row_label(row) for row in range(group.size)]
    if len({"geocode", "variance", *names}) < len(names) + 2:
        raise ConfigError(f"query group {group.name!r}: two columns would have one name.")
    step = max(1, _VALUES_AT_ONCE // group.size)
    for start in range(0, max(1, len(geocodes)), step):
        part = table.read(start, min(start + step, len(geocodes)))
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
