"""Summaries of signed errors: means, and quantiles that include the zeros of a sparse table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.sparse import csr_array

from opendas.arrays import Ints

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


def _one(values: Ints, geounits: int, rows: int) -> ErrorSummary:
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
    return _one(np.sort(errors.data), geounits, rows)


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
        yield _one(values[bounds[group] : bounds[group + 1]], int(sizes[group]), errors.shape[1])
