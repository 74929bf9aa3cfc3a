"""Compiled sums of the measurement step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from opendas.arrays import Bools, Ints


@njit(cache=True, nogil=True)
def compact_rows(
    row_of_cell: npt.NDArray[np.int32], support: npt.NDArray[np.int32], size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the rows that a support touches.

    - `row_of_cell` (n,).
    - `support` (s,): support cells.
    - `size`: number of rows ``m`` of the query group.
    - Returns `rows` (r,): touched rows, ascending.
    - Returns `compact` (s,): position in `rows` of the row of each support cell.
    - Returns `position` (m,): position in `rows` of every row, -1 where untouched.
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
    indptr: Ints,
    cells: npt.NDArray[np.int32],
    counts: Ints,
    first: int,
    row_of_cell: npt.NDArray[np.int32],
    position: npt.NDArray[np.int32],
    out: Ints,
) -> None:
    """Add the exact answers of consecutive geounits to `out`, int64 (C, r).

    Every cell of a geounit counts, in the support or not. Otherwise, subtracting such an answer from the full
    file with the same noise would reveal exact counts outside the support.
    """
    for c in range(out.shape[0]):
        for entry in range(indptr[first + c], indptr[first + c + 1]):
            at = position[row_of_cell[cells[entry]]]
            if at >= 0:
                out[c, at] += counts[entry]


@njit(cache=True, nogil=True)
def add_drawn_rows(
    indptr: Ints,
    cells: npt.NDArray[np.int32],
    counts: Ints,
    first: int,
    row_of_cell: npt.NDArray[np.int32],
    drawn: Bools,
    which: Ints,
    group: Ints,
    out: Ints,
) -> None:
    """Add the exact answers of consecutive geounits to the sums of their groups, int64 (G, m).

    For each geounit, only the rows ``drawn[which]``, bool (u, m), whose noise is in the sum.
    """
    for c in range(which.shape[0]):
        mine, to = drawn[which[c]], out[group[c]]
        for entry in range(indptr[first + c], indptr[first + c + 1]):
            row = row_of_cell[cells[entry]]
            if mine[row]:
                to[row] += counts[entry]


@njit(cache=True, nogil=True)
def touched_pairs(
    row_of_cell: npt.NDArray[np.int32],
    size: int,
    support: npt.NDArray[np.int32],
    starts: Ints,
    first: Ints,
    children: Ints,
) -> tuple[npt.NDArray[np.int32], Ints, Ints, Ints]:
    """Return the rows that each of many families touches, and all pairs of its geounits and rows.

    - `row_of_cell` (n,).
    - `support` (s,): cells of all families, one after the other.
    - `starts` (f + 1,): start of each family's cells.
    - `first`, `children` (f,): geounits of each family.
    - Returns `rows` (r,): ascending within each family, family by family.
    - Returns `ends` (f,): end of each family's rows.
    - Returns `units`, `cells` (N,): of each pair, ordered by family, geounit and row.
    """
    families = first.shape[0]
    ends = np.empty(families, dtype=np.int64)
    touched = np.zeros(size, dtype=np.bool_)
    most = min(support.shape[0], families * size)
    rows = np.empty(most, dtype=np.int32)
    count, pairs = 0, 0
    for f in range(families):
        begin = count
        low, high = size, 0
        for j in range(starts[f], starts[f + 1]):
            row = row_of_cell[support[j]]
            touched[row] = True
            low, high = min(low, row), max(high, row + 1)
        for row in range(low, high):
            if touched[row]:
                rows[count] = row
                count += 1
                touched[row] = False
        ends[f] = count
        pairs += children[f] * (count - begin)
    units = np.empty(pairs, dtype=np.int64)
    cells = np.empty(pairs, dtype=np.int64)
    at, begin = 0, 0
    for f in range(families):
        for c in range(children[f]):
            for j in range(begin, ends[f]):
                units[at] = first[f] + c
                cells[at] = rows[j]
                at += 1
        begin = ends[f]
    return rows[:count].copy(), ends, units, cells


@njit(cache=True, nogil=True)
def sum_touched(
    indptr: Ints,
    cells: npt.NDArray[np.int32],
    counts: Ints,
    start: int,
    row_of_cell: npt.NDArray[np.int32],
    size: int,
    rows: npt.NDArray[np.int32],
    ends: Ints,
    first: Ints,
    children: Ints,
    asked: Bools,
    out: Ints,
) -> None:
    """Add the exact answers of many families to `out`, int64 (N,), in the order of :func:`touched_pairs`.

    As :func:`sum_rows` for one family, skipping geounits outside ``asked``, bool (g,). A geounit's row in the
    table and its position in `asked` are its number minus `start`.
    """
    position = np.full(size, -1, dtype=np.int32)
    at, begin = 0, 0
    for f in range(first.shape[0]):
        width = ends[f] - begin
        for j in range(begin, ends[f]):
            position[rows[j]] = j - begin
        for c in range(children[f]):
            row = first[f] + c - start
            if asked[row]:
                for entry in range(indptr[row], indptr[row + 1]):
                    place = position[row_of_cell[cells[entry]]]
                    if place >= 0:
                        out[at + place] += counts[entry]
            at += width
        for j in range(begin, ends[f]):
            position[rows[j]] = -1
        begin = ends[f]
