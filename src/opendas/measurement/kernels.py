"""Compiled sums of the measurement step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["add_drawn_rows", "compact_rows", "sum_rows"]


@njit(cache=True, nogil=True)
def compact_rows(
    row_of_cell: npt.NDArray[np.int32], support: npt.NDArray[np.int32], size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the rows a support touches.

    Parameters
    ----------
    row_of_cell : int32 (n,)
    support : int32 (s,)
        Cells.
    size : int
        Number of rows ``m`` of the query group.

    Returns
    -------
    rows : int32 (r,)
        Touched rows, ascending.
    compact : int32 (s,)
        Position in `rows` of the row of each support cell.
    position : int32 (m,)
        Position in `rows` of every row, -1 where untouched.
    """
    position = np.full(size, -1, dtype=np.int32)
    for j in range(support.shape[0]):
        position[row_of_cell[support[j]]] = 0
    count = 0
    for row in range(size):
        if position[row] == 0:
            count += 1
    rows = np.empty(count, dtype=np.int32)
    count = 0
    for row in range(size):
        if position[row] == 0:
            rows[count] = row
            position[row] = count
            count += 1
    compact = np.empty(support.shape[0], dtype=np.int32)
    for j in range(support.shape[0]):
        compact[j] = position[row_of_cell[support[j]]]
    return rows, compact, position


@njit(cache=True, nogil=True)
def sum_rows(
    indptr: npt.NDArray[np.int64],
    cells: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    first: int,
    row_of_cell: npt.NDArray[np.int32],
    position: npt.NDArray[np.int32],
    out: npt.NDArray[np.int64],
) -> None:
    """Add the exact answers of consecutive geounits to `out`, int64 (C, r).

    Every cell of a geounit counts, whether in the support or not: an answer restricted to the support,
    beside the full file with the same noise, would give exact counts off the support by subtraction.
    """
    for c in range(out.shape[0]):
        for entry in range(indptr[first + c], indptr[first + c + 1]):
            at = position[row_of_cell[cells[entry]]]
            if at >= 0:
                out[c, at] += counts[entry]


@njit(cache=True, nogil=True)
def add_drawn_rows(
    indptr: npt.NDArray[np.int64],
    cells: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    first: int,
    row_of_cell: npt.NDArray[np.int32],
    drawn: npt.NDArray[np.bool_],
    which: npt.NDArray[np.int64],
    group: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
) -> None:
    """Add the exact answers of consecutive geounits to the sums of their groups, int64 (G, m).

    Of each geounit only the rows ``drawn[which]``, bool (u, m): those whose noise is in the sum.
    """
    for c in range(which.shape[0]):
        mine, to = drawn[which[c]], out[group[c]]
        for entry in range(indptr[first + c], indptr[first + c + 1]):
            row = row_of_cell[cells[entry]]
            if mine[row]:
                to[row] += counts[entry]
