"""Margins of published counts, and of what is computed from them, from the replicates of a release.

Axes: ``a`` areas, ``t`` columns of the table; a figure is one area and column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from opendas.arrays import Floats
from opendas.errors import ConfigError, FormatError
from opendas.files.area_files import AreaWeights
from opendas.files.official_areas import OfficialAreas
from opendas.files.release_folder import ReleasedProduct
from opendas.files.replicate_files import REPLICATES, ReplicateFile, counts_digest
from opendas.files.storage.parquet import text_column
from opendas.geography.frame import Frame, Grouping
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.tables.cells import Table, check_geolevel, product_table
from opendas.tables.counting import count_areas, count_table
from opendas.tables.figures import Figures, FunctionOfCounts

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
"""One row for each area and column. A figure that is no number, as a share of none, is null, and so is its
margin where too many replicates have no number."""


@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """How far published figures may lie from the truth, float64 (a, t) each."""

    margin: Floats  # float64 (a, t). At the level asked: nearly all replicates err by no more.
    bias: Floats  # float64 (a, t). Mean error of the replicates: above 0 where counts come out too large.
    standard_error: Floats  # float64 (a, t). Standard deviation of the replicates.


def spread_of(errors: Iterable[Floats], runs: int, level: Fraction) -> Margins:
    """Return the margins of figures from the errors of their replicates.

    - `errors`, iterable of R float64 (a, t): replicate less published figure, taken one by one; those that
      are not 0 are kept. An error that is no number counts as the largest of all.
    - `runs`: their number R, at least 2.
    - `level`: strictly between 0 and 1.

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
    known = np.where(np.isfinite(error), error, np.nan)
    first = np.bincount(figure, known, size) / runs
    second = np.bincount(figure, known * known, size)
    variance = np.maximum(0.0, (second - runs * first * first) / (runs - 1))
    error[np.isnan(known)] = np.inf
    margin = np.zeros(size)
    order = np.lexsort((np.abs(error), figure))
    differing = np.bincount(figure, minlength=size)
    # Errors of 0 come first in order of size: what is left of the rank counts among the others.
    place = rank - 1 - (runs - differing)
    wanted = np.flatnonzero(place >= 0)
    margin[wanted] = np.abs(error)[order][(np.cumsum(differing) - differing + place)[wanted]]
    return Margins(margin.reshape(shape), first.reshape(shape), np.sqrt(variance).reshape(shape))


@dataclass(frozen=True, slots=True, eq=False)
class Replicated:
    """Published counts, and the file of their replicates."""

    product: Product
    frame: Frame
    counts: Histogram  # one row per leaf of the frame
    path: Path  # of the replicates; perhaps there are none yet
    # Those without a leaf too, where the counts come with a list of them.
    official: OfficialAreas | None = None

    @classmethod
    def of(cls, released: ReleasedProduct) -> Self:
        """Return the counts of a release; their replicates are part of it."""
        path = released.release / REPLICATES / f"{released.name}.parquet"
        return cls(released.product, released.frame, released.estimate, path, released.official)

    def grouping(self, geolevel: str) -> Grouping:
        """Return the leaves by geounit or area, with the official ones that have no leaf beside them."""
        own = self.frame.grouping(geolevel)
        return own if self.official is None else own.with_areas(self.official.geocodes(geolevel))

    @property
    def file(self) -> ReplicateFile:
        """The replicates."""
        name = self.product.name
        if not self.path.is_file():
            tied = "" if self.product.tied is None else " --tied EARLIER, the release that it is tied to,"
            raise ConfigError(f"there are no replicates of {name}: opendas replicates OUT{tied} draws them.")
        file = ReplicateFile(self.path)
        if (file.about.product, file.about.counts) != (name, counts_digest(self.counts)):
            raise FormatError(
                f"{REPLICATES}/{self.path.name}: these are replicates of other counts than the published "
                "ones."
            )
        return file


def number_of_replicates(released: ReleasedProduct) -> int:
    """Return how many replicates of a product a release holds, 0 for none."""
    path = released.release / REPLICATES / f"{released.name}.parquet"
    return ReplicateFile(path).about.runs if path.is_file() else 0


def replicated_counts(
    base: Replicated, table: Table, where: Grouping | AreaWeights, runs: int | None = None
) -> Iterator[Floats]:
    """Yield a table of the published counts, then that of each replicate less the published one, (a, t) each.

    - `where`: of the same frame.
    - `runs`: the first of them only.
    """
    file = base.file
    yield _counted(base.counts, table, base.frame, where)
    for number in range(1, min(runs or file.about.runs, file.about.runs) + 1):
        yield _counted(file.differences(number, base.frame, base.counts.size), table, base.frame, where)


def table_margins(
    base: Replicated,
    table: Table,
    where: Grouping | AreaWeights,
    level: Fraction,
    runs: int | None = None,
) -> Margins:
    """Return the margins of the counts of a table.

    - `where`: of the same frame.
    - `runs`: take the first of them only: later ones were drawn after a table was made.

    Raises `ConfigError` if there are no replicates, or too few; `FormatError` if the replicates are of other
    counts.
    """
    errors = replicated_counts(base, table, where, runs)
    next(errors)
    drawn = base.file.about.runs
    return spread_of(errors, drawn if runs is None else min(runs, drawn), level)


def margins_of(
    base: Replicated,
    query: str,
    where: str | AreaWeights,
    level: Fraction,
    of: FunctionOfCounts | None = None,
) -> pa.Table:
    """Return published counts, or figures made of them, with their margins (:data:`MARGIN_SCHEMA`).

    - `query`: a published table or a query group.
    - `where`: geolevel or entity category; or areas that someone drew.
    - `of`, callable, str or pair of str: figures to make of the counts; see :mod:`opendas.tables.figures`.

    Raises `ConfigError, FormatError` as :func:`table_margins`; and if the query or geolevel is unknown.
    """
    table, frame = product_table(base.product, query), base.frame
    areas: Grouping | AreaWeights
    if isinstance(where, str):
        check_geolevel(frame, where)
        areas = base.grouping(where)
        names = [bytes(code).decode() for code in areas.geocodes]
    else:
        areas, names = where, list(where.names)
    replicates = replicated_counts(base, table, areas)
    counts = next(replicates)
    columns: Sequence[str] = table.columns
    if of is not None:
        figures = Figures(of, names, columns, counts)
        replicates = (figures.errors_of(one) for one in replicates)
        names, columns, counts = figures.names, figures.columns, figures.published
    found = spread_of(replicates, base.file.about.runs, level)
    geocode = text_column(np.repeat(np.arange(len(names), dtype=np.int32), counts.shape[1]), names)
    cell = text_column(np.tile(np.arange(counts.shape[1], dtype=np.int32), len(names)), columns)
    values = (counts, found.margin, found.bias, found.standard_error)
    arrays = [pa.array(x.ravel(), mask=~np.isfinite(x.ravel())) for x in values]
    texts = [geocode.cast(pa.string()), cell.cast(pa.string())]
    return pa.Table.from_arrays([*texts, *arrays], schema=MARGIN_SCHEMA)


def _counted(counts: Histogram, table: Table, frame: Frame, where: Grouping | AreaWeights) -> Floats:
    if isinstance(where, Grouping):
        return count_table(counts, table, where).astype(np.float64)
    return count_areas(counts, table, frame, where)
