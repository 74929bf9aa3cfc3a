"""Types of arrays, named once for all modules; places of rows in runs, and partitions that refine others."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Codes", "Floats", "Ints", "rank_in_run", "refines", "sum_by_key", "value_of_rows"]

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
