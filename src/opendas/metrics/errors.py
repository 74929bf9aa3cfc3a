"""Errors of every query group at every geolevel, over all geounits and by population.

They are differences between two histograms, summed to geounits and to the rows of a query group.

Axes: ``l`` leaves of the frame, ``g`` geounits of one geolevel or entity category, ``n`` cells, ``m`` rows of
a query group. Everything is integer and sparse; nothing of size ``l x n`` or ``g x m`` is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.sparse import coo_array, csr_array

from opendas.arrays import Ints
from opendas.errors import DataError
from opendas.geography.frame import Frame, Grouping
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

QUANTILES = ("0.005", "0.025", "0.25", "0.5", "0.75", "0.975", "0.995")
"""The probabilities of Tables 11 and 12 of the TopDown paper."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one query group over some geounits, in counts."""

    geounits: int  # number of geounits
    # Absolute error summed over the rows of the query group, averaged over geounits; None without geounits.
    mean_abs_error: float | None
    # Estimate minus truth, summed over the rows, averaged over geounits. A query group counts everybody once,
    # so this is the error of the total, whatever the group.
    mean_signed_error: float | None
    # probability -> int: of the signed errors of the single answers, pooled over geounits and rows of the
    # query group.
    quantiles: Mapping[str, int] | None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "geounits": self.geounits,
            "mean_abs_error": self.mean_abs_error,
            "mean_signed_error": self.mean_signed_error,
            "quantiles": None if self.quantiles is None else dict(self.quantiles),
        }


def quantiles(nonzero: Ints, count: int) -> dict[str, int]:
    """Quantiles of a sample given by its non-zero values and its size.

    - `nonzero`, ascending: the values that are not zero.
    - `count`, >= len(nonzero), >= 1: size of the sample; the rest is zero.
    - Returns: for each probability ``p`` the least value whose empirical distribution function reaches ``p``.

    Notes
    -----
    The inverse of the empirical distribution function, not an interpolation: with 39 counties the paper's
    Table 11 has q(0.005) = q(0.025) and q(0.975) = q(0.995) in all four runs, as this definition forces.

    Examples
    --------
    >>> quantiles(np.array([-4, 2, 7]), 5)["0.5"]
    0
    """
    negative = int(np.searchsorted(nonzero, 0))
    zeros = count - len(nonzero)
    out = {}
    for probability in QUANTILES:
        exact = Fraction(probability) * count
        position = max(-(-exact.numerator // exact.denominator), 1) - 1
        if position < negative:
            out[probability] = int(nonzero[position])
        elif position < negative + zeros:
            out[probability] = 0
        else:
            out[probability] = int(nonzero[position - zeros])
    return out


def _summarise(values: Ints, geounits: int, rows: int) -> ErrorSummary:
    if geounits == 0:
        return ErrorSummary(0, None, None, None)
    return ErrorSummary(
        geounits,
        int(np.abs(values).sum()) / geounits,
        int(values.sum()) / geounits,
        quantiles(values, geounits * rows),
    )


def summary(errors: csr_array) -> ErrorSummary:
    """Summarise a (g, m) table of signed errors over all geounits."""
    geounits, rows = errors.shape
    return _summarise(np.sort(errors.data), geounits, rows)


def summaries(errors: csr_array, group_of_unit: Ints, groups: int) -> Iterator[ErrorSummary]:
    """Summarise a (g, m) table of signed errors within groups of geounits.

    `group_of_unit` (g,): group of each geounit, from 0; -1 is left out.
    """
    group_of_entry = np.repeat(group_of_unit, np.diff(errors.indptr))
    order = np.lexsort((errors.data, group_of_entry))
    values, group_of_entry = errors.data[order], group_of_entry[order]
    bounds = np.searchsorted(group_of_entry, np.arange(groups + 1))
    sizes = np.bincount(group_of_unit[group_of_unit >= 0], minlength=groups)
    for group in range(groups):
        yield _summarise(values[bounds[group] : bounds[group + 1]], int(sizes[group]), errors.shape[1])


@dataclass(frozen=True, slots=True)
class PopulationBins:
    """Classes of geounits by their true population."""

    labels: tuple[str, ...]
    upper: tuple[int, ...]  # largest population of each class but the last, which is open

    def of(self, population: Ints) -> Ints:
        """Return the class of each population, from 0."""
        return np.searchsorted(np.array(self.upper), population, side="left").astype(np.int64)


COUNTY_BINS = PopulationBins(
    ("0 to 1,000", "1,001 to 9,999", "10k to 99,999", "100k to 999,999", "1,000k+"),
    (1_000, 9_999, 99_999, 999_999),
)
"""TopDown paper, Table 11."""

BLOCK_BINS = PopulationBins(("0", "1 to 9", "10 to 99", "100 to 999", "1,000+"), (0, 9, 99, 999))
"""TopDown paper, Table 12."""

DECADE_BINS = PopulationBins(
    (
        "0",
        "1 to 9",
        "10 to 99",
        "100 to 999",
        "1,000 to 9,999",
        "10k to 99,999",
        "100k to 999,999",
        "1,000k+",
    ),
    (0, 9, 99, 999, 9_999, 99_999, 999_999),
)
"""For every other geolevel."""


def population_bins(geolevel: str) -> PopulationBins:
    """Return the classes used at a geolevel or entity category."""
    return {"county": COUNTY_BINS, "block": BLOCK_BINS}.get(geolevel, DECADE_BINS)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors of one query group at one geolevel."""

    geolevel: str
    query: str
    errors: ErrorSummary
    population: str | None = None  # class of true population of the geounits; None for all of them

    def to_dict(self) -> dict[str, object]:
        """One row of ``evaluate --json``."""
        which = {} if self.population is None else {"population": self.population}
        return {"geolevel": self.geolevel, "query": self.query, **which, **self.errors.to_dict()}


@dataclass(frozen=True, slots=True, eq=False)
class LevelErrors:
    """Truth and error of one geolevel, summed to its geounits."""

    units: Grouping
    # truth, error (g, n): error is estimate minus truth.
    truth: csr_array
    error: csr_array

    @property
    def population(self) -> Ints:
        """True count of each geounit, int64 (g,)."""
        return np.asarray(self.truth.sum(axis=1), dtype=np.int64)

    @property
    def total_error(self) -> Ints:
        """Signed error of each geounit's total, int64 (g,)."""
        return np.asarray(self.error.sum(axis=1), dtype=np.int64)


def levels_of(frame: Frame, *, entities: bool = False) -> tuple[str, ...]:
    """Return the official geolevels, top first, and on request the entity categories with any area."""
    return (*frame.geolevels, *(frame.categories if entities else ()))


def level_errors(
    truth: Histogram, estimate: Histogram, frame: Frame, geolevels: Sequence[str | Grouping]
) -> tuple[LevelErrors, ...]:
    """Sum truth and error to the geounits of several geolevels, or other areas of the frame."""
    check_same_frame(truth, estimate, frame)
    error, counts = difference(truth, estimate), as_sparse(truth)
    return tuple(
        LevelErrors(units, summed(counts, units), summed(error, units))
        for units in (each if isinstance(each, Grouping) else frame.grouping(each) for each in geolevels)
    )


def query_rows(levels: Iterable[LevelErrors], product: Product) -> tuple[ErrorRow, ...]:
    """Errors of every declared query group at the given levels. Confidential, like the truth.

    Notes
    -----
    TopDown paper, section 9, Tables 9 and 10: the absolute error of a query group is the sum over its rows,
    averaged over geounits. For the census products leaves are blocks with a housing unit or an occupied
    group quarters, and geounits those that contain one.
    """
    return tuple(
        ErrorRow(level.units.geolevel, group.name, summary(project(level.error, group)))
        for level in levels
        for group in product.workload.groups(product.query_names)
    )


def population_rows(levels: Iterable[LevelErrors], product: Product) -> tuple[ErrorRow, ...]:
    """Errors as in :func:`query_rows`, by class of true population.

    Counties and blocks have the classes of Tables 11 and 12 of the TopDown paper, others powers of ten.
    """
    rows: list[ErrorRow] = []
    for level in levels:
        bins = population_bins(level.units.geolevel)
        class_of_unit = bins.of(level.population)
        for group in product.workload.groups(product.query_names):
            found = summaries(project(level.error, group), class_of_unit, len(bins.labels))
            rows += [
                ErrorRow(level.units.geolevel, group.name, errors, label)
                for label, errors in zip(bins.labels, found, strict=True)
            ]
    return tuple(rows)


def summed(table: csr_array, units: Grouping) -> csr_array:
    """Sum an (l, n) table over the leaves of each geounit, giving (g, n)."""
    leaves = units.members
    ones = np.ones(len(leaves), dtype=np.int64)
    shape = (len(units), len(units.of_leaf))
    return csr_array(coo_array((ones, (units.of_leaf[leaves], leaves)), shape=shape).tocsr() @ table)


def as_sparse(histogram: Histogram) -> csr_array:
    """Return a histogram as an int64 (l, n) sparse array."""
    shape = (histogram.rows, histogram.size)
    return csr_array((histogram.counts, histogram.cells, histogram.indptr), shape=shape)


def check_same_frame(truth: Histogram, estimate: Histogram, frame: Frame) -> None:
    """Check that both histograms have the frame's leaves as rows and the same cells."""
    for name, histogram in (("truth", truth), ("estimate", estimate)):
        if histogram.rows != len(frame):
            raise DataError(
                f"the {name} has {histogram.rows} rows and the frame {len(frame)} leaves; both must "
                "come from the same frame. Evaluate against the run file that the release was made from."
            )
    if truth.size != estimate.size:
        raise DataError(
            f"the truth has {truth.size} cells and the estimate {estimate.size}. Both must be of the same "
            "product."
        )


def difference(truth: Histogram, estimate: Histogram) -> csr_array:
    """Return estimate minus truth, int64 (l, n), without stored zeros."""
    table = csr_array(as_sparse(estimate) - as_sparse(truth))
    table.eliminate_zeros()
    return table


def project(table: csr_array, group: QueryGroup) -> csr_array:
    """Sum the cells of a (g, n) table into the rows of a query group, giving (g, m) without stored zeros."""
    n = len(group.row_of_cell)
    ones = np.ones(n, dtype=np.int64)
    projection = csr_array((ones, group.row_of_cell, np.arange(n + 1)), shape=(n, group.size))
    answers = csr_array(table @ projection)
    answers.eliminate_zeros()
    return answers
