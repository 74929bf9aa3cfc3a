"""Types of arrays, named once for all modules; places in lists and runs; partitions that refine others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bools",
    "Codes",
    "Floats",
    "Ints",
    "Lookup",
    "positions_of",
    "rank_in_run",
    "refines",
    "sum_by_key",
    "value_of_rows",
]

_Value = TypeVar("_Value", bound=np.generic)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.bytes_]
"""Geocodes or other fixed-width codes, as bytes."""


def rank_in_run(column: NDArray[Any]) -> Ints:
    """Return the place of each row in its run of equal values, from 0, int64 (b,)."""
    start = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    return np.arange(len(column)) - np.repeat(start, np.diff(np.append(start, len(column))))


def positions_of(ascending: NDArray[Any], wanted: NDArray[Any]) -> Ints:
    """Return the position of each wanted value in a list, int64 (rows,); -1 where it is not in it.

    - `ascending` (k,): each value once.
    - `wanted` (rows,): records of one household, and of one leaf, stand together: each run of equal values is
      looked up once.
    """
    if len(wanted) == 0 or len(ascending) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate([[True], wanted[1:] != wanted[:-1]]))
    heads = wanted[starts]
    found = np.minimum(np.searchsorted(ascending, heads), len(ascending) - 1)
    position = np.where(ascending[found] == heads, found, -1)
    return np.repeat(position, np.diff(starts, append=len(wanted)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lookup:
    """A list in which values are looked up many times."""

    ordered: NDArray[Any]  # (k,): ascending, at least one
    order: Ints  # (k,): position of each in the list

    @classmethod
    def of(cls, known: NDArray[Any]) -> Lookup:
        """Prepare a list of distinct values."""
        order = np.argsort(known, kind="stable")
        return cls(known[order], order)

    def positions(self, wanted: NDArray[Any]) -> Ints:
        """Return the position of each wanted value in the list, int64 (q,); -1 where it is not in it.

        `wanted` (q,): whole numbers are in the range of the list's type.
        """
        if wanted.dtype.kind == "i":  # the list is not copied to the wider type
            wanted = wanted.astype(self.ordered.dtype, copy=False)
        position = positions_of(self.ordered, wanted)
        return np.where(position < 0, -1, self.order[position])


def sum_by_key(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return distinct keys, ascending, and the sums of their counts; int64 (e,) both."""
    if len(keys) > 1 and not bool(np.all(keys[1:] > keys[:-1])):
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        if len(first) < len(keys):
            keys, counts = keys[first], np.add.reduceat(counts, first)
    return keys, counts


def refines(fine: NDArray[np.integer[Any]], coarse: NDArray[Any]) -> bool:
    """Whether the row of a cell in `fine` determines its value in `coarse`, as :func:`value_of_rows`."""
    return value_of_rows(fine, coarse) is not None


def value_of_rows(fine: NDArray[np.integer[Any]], coarse: NDArray[_Value]) -> NDArray[_Value] | None:
    """Return the value that the cells of each row have, (rows,); None where some row has several.

    Parameters
    ----------
    fine : ndarray of integers, shape (n,)
        Row of each cell, not negative.
    coarse : ndarray, shape (n,)
        Row of each cell in another partition, or any other value of each cell.
    """
    of_row = np.zeros(int(fine.max(initial=-1)) + 1, coarse.dtype)
    of_row[fine] = coarse
    return of_row if np.array_equal(of_row[fine], coarse) else None
