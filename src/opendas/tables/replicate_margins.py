"""Margins of published counts, from the replicates of a release: apart from the margins of measurements.

Axes: ``a`` areas, ``t`` columns of the table; a figure is one area and column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa

from opendas.arrays import Floats
from opendas.errors import ConfigError, FormatError
from opendas.files.area_files import AreaWeights
from opendas.files.parquet import text_column
from opendas.files.release_folder import ReleasedProduct
from opendas.files.replicate_files import REPLICATES, ReplicateFile, counts_digest
from opendas.geography.frame import Frame, Grouping
from opendas.schema.histogram import Histogram
from opendas.tables.cells import Table, check_geolevel, product_table
from opendas.tables.counting import count_areas, count_table

__all__ = [
    "MARGIN_SCHEMA",
    "Margins",
    "margins_of",
    "number_of_replicates",
    "spread_of",
    "table_margins",
]

MARGIN_SCHEMA = pa.schema(
    [
        ("geocode", pa.string()),
        ("cell", pa.string()),
        ("count", pa.float64()),
        ("margin", pa.float64()),
        ("bias", pa.float64()),
        ("standard_error", pa.float64()),
    ]
)
"""One row for each area and column; `margin`, `bias` and `standard_error` are in records."""


@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """How far published figures may lie from the truth, float64 (a, t) each.

    Parameters
    ----------
    margin : float64 (a, t)
        At the level asked: nearly all replicates err by no more.
    bias : float64 (a, t)
        Mean error of the replicates: above 0 where counts come out too large.
    standard_error : float64 (a, t)
        Standard deviation of the replicates.
    """

    margin: Floats
    bias: Floats
    standard_error: Floats


def spread_of(errors: Iterable[Floats], runs: int, level: Fraction) -> Margins:
    """Return the margins of figures from the errors of their replicates.

    Parameters
    ----------
    errors : iterable of R float64 (a, t)
        Replicate less published figure, taken one by one; those that are not 0 are kept.
    runs : int
        Their number R, at least 2.
    level : Fraction
        Strictly between 0 and 1.

    Raises
    ------
    ConfigError
        If there are too few replicates for the level.

    Notes
    -----
    The margin is the ``ceil(level (R + 1))``-th smallest absolute error. Were the error of the published
    figure exchangeable with those of its R replicates, it would lie within that margin with at least this
    probability (``docs/explanation/margins.md``, where it is measured how far it is).
    """
    rank = math.ceil(level * (runs + 1))
    if rank > runs:
        least = math.ceil(level / (1 - level))
        raise ConfigError(
            f"margins at level {float(level):g} take at least {least} replicates, and there are {runs}: "
            f"opendas replicates OUT --runs {least} draws more."
        )
    shape = (0, 0)
    figures, values = [], []
    for one in errors:
        shape = one.shape
        figures.append(np.flatnonzero(one))
        values.append(one.ravel()[figures[-1]])
    figure, error = np.concatenate(figures), np.concatenate(values)
    size = math.prod(shape)
    first = np.bincount(figure, error, size) / runs
    second = np.bincount(figure, error * error, size)
    variance = np.maximum(0.0, (second - runs * first * first) / (runs - 1))
    margin = np.zeros(size)
    order = np.lexsort((np.abs(error), figure))
    differing = np.bincount(figure, minlength=size)
    # Errors of 0 come first in order of size: what is left of the rank counts among the others.
    place = rank - 1 - (runs - differing)
    wanted = np.flatnonzero(place >= 0)
    margin[wanted] = np.abs(error)[order][(np.cumsum(differing) - differing + place)[wanted]]
    return Margins(margin.reshape(shape), first.reshape(shape), np.sqrt(variance).reshape(shape))


def number_of_replicates(released: ReleasedProduct) -> int:
    """Return how many replicates of a product a release holds, 0 for none."""
    path = _path(released)
    return ReplicateFile(path).about.runs if path.is_file() else 0


def table_margins(
    released: ReleasedProduct,
    table: Table,
    where: Grouping | AreaWeights,
    level: Fraction,
    runs: int | None = None,
) -> Margins:
    """Return the margins of the counts of a table.

    Parameters
    ----------
    released : ReleasedProduct
    table : Table
    where : Grouping or AreaWeights
        Of the same frame.
    level : Fraction
    runs : int, optional
        Take the first of them only: later ones were drawn after a table was made.

    Raises
    ------
    ConfigError
        If there are no replicates, or too few.
    FormatError
        If the replicates are of other counts than those of the release.
    """
    file = _replicates(released)
    runs = file.about.runs if runs is None else min(runs, file.about.runs)
    frame, size = released.frame, released.product.schema.size
    errors = (_counted(file.differences(k, frame, size), table, frame, where) for k in range(1, runs + 1))
    return spread_of(errors, runs, level)


def margins_of(released: ReleasedProduct, query: str, where: str | AreaWeights, level: Fraction) -> pa.Table:
    """Return published counts with their margins (:data:`MARGIN_SCHEMA`).

    Parameters
    ----------
    released : ReleasedProduct
    query : str
        A redistricting table or a query group.
    where : str or AreaWeights
        Geolevel or entity category; or areas that someone drew.
    level : Fraction

    Raises
    ------
    ConfigError, FormatError
        As :func:`table_margins`; and if the query or geolevel is unknown.
    """
    table, frame = product_table(released.product, query), released.frame
    areas: Grouping | AreaWeights
    if isinstance(where, str):
        check_geolevel(frame, where)
        areas = frame.grouping(where)
        names = [bytes(code).decode() for code in areas.geocodes]
    else:
        areas, names = where, list(where.names)
    found = table_margins(released, table, areas, level)
    counts = _counted(released.estimate, table, frame, areas)
    geocode = text_column(np.repeat(np.arange(len(names), dtype=np.int32), counts.shape[1]), names)
    cell = text_column(np.tile(np.arange(counts.shape[1], dtype=np.int32), len(names)), table.columns)
    figures = (counts, found.margin, found.bias, found.standard_error)
    arrays = [geocode.cast(pa.string()), cell.cast(pa.string()), *(pa.array(x.ravel()) for x in figures)]
    return pa.Table.from_arrays(arrays, schema=MARGIN_SCHEMA)


def _counted(counts: Histogram, table: Table, frame: Frame, where: Grouping | AreaWeights) -> Floats:
    if isinstance(where, Grouping):
        return count_table(counts, table, where).astype(np.float64)
    return count_areas(counts, table, frame, where)


def _path(released: ReleasedProduct) -> Path:
    return released.release / REPLICATES / f"{released.name}.parquet"


def _replicates(released: ReleasedProduct) -> ReplicateFile:
    """Open the replicates of a product, if they are of what the release holds now."""
    path = _path(released)
    if not path.is_file():
        raise ConfigError(
            f"this release holds no replicates of {released.name}: opendas replicates OUT draws them."
        )
    file = ReplicateFile(path)
    if (file.about.product, file.about.counts) != (released.name, counts_digest(released.estimate)):
        raise FormatError(f"{REPLICATES}/{path.name}: replicates of other counts than those of this release.")
    return file
