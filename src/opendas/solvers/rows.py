"""Row numbers without gaps, and cells in the order of their rows."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def without_gaps(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number the different rows from 0, in their order: ``np.unique(rows, return_inverse=True)[1]``.

    `rows` (n,): not negative.
    """
    top = 0
    for j in range(len(rows)):
        top = max(top, rows[j])
    number = np.zeros(top + 1, np.int32)
    for j in range(len(rows)):
        number[rows[j]] = 1
    count = 0
    for r in range(top + 1):
        if number[r]:
            number[r] = count
            count += 1
    out = np.empty(len(rows), np.int32)
    for j in range(len(rows)):
        out[j] = number[rows[j]]
    return out


@njit(cache=True, nogil=True)
def cells_by_row(rows: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort cells by their row: ``np.argsort(rows, kind="stable")`` in linear time, and where each row begins.

    - `rows` (n,): from 0 to count - 1.
    - Returns `start` (count + 1,).
    - Returns `cells` (n,).
    """
    start = np.zeros(count + 1, np.int64)
    for r in rows:
        start[r + 1] += 1
    for r in range(count):
        start[r + 1] += start[r]
    following = start[:-1].copy()
    cells = np.empty(len(rows), np.int64)
    for j in range(len(rows)):
        cells[following[rows[j]]] = j
        following[rows[j]] += 1
    return start, cells
