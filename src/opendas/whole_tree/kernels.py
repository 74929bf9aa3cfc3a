"""Compiled sums and small products of the whole-tree least squares.

Every sum runs in a fixed order that depends on one geounit and its children only, so that results are the
same bytes however geounits are cut into chunks.

Axes: ``N`` vectors, ``k`` dense categories, ``e`` coordinates of the other attributes, ``q`` query groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["add_integers", "add_segments", "apply_blocks", "reflect", "spread"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def reflect(x: Floats, vectors: Floats, allowed: Bools, backward: bool) -> None:
    """Apply ``I - v v'`` for each row ``v`` along one axis, in place.

    Parameters
    ----------
    x : float64 (N, k, before, m, after)
    vectors : float64 (r, m)
        Of length ``sqrt(2)``, or zero.
    allowed : bool (N, k)
        Categories that are not allowed hold zeros and are left out.
    backward : bool
        Last row first.
    """
    count, categories, before, size, after = x.shape
    sums = np.zeros(after)
    for n in range(count):
        for g in range(categories):
            if not allowed[n, g]:
                continue
            for b in range(before):
                for number in range(vectors.shape[0]):
                    v = vectors[vectors.shape[0] - 1 - number] if backward else vectors[number]
                    if after == 1:
                        part = 0.0
                        for i in range(size):
                            part += v[i] * x[n, g, b, i, 0]
                        for i in range(size):
                            x[n, g, b, i, 0] -= v[i] * part
                    else:
                        sums[:] = 0.0
                        for i in range(size):
                            for a in range(after):
                                sums[a] += v[i] * x[n, g, b, i, a]
                        for i in range(size):
                            for a in range(after):
                                x[n, g, b, i, a] -= v[i] * sums[a]


@njit(cache=True, nogil=True)
def apply_blocks(
    x: Floats, stack: Floats, which: Ints, offsets: Ints, copies: Ints, dimension: int, out: Floats
) -> None:
    """Set the blocks of one dimension of ``out = A x``.

    Parameters
    ----------
    x, out : float64 (N, k, e)
        In block order.
    stack : float64 (U, b, k d, k d)
    which : int64 (N,)
        Matrix of each vector.
    offsets, copies : int64 (b,)
        Coordinate ``delta`` of copy ``j`` of block ``b`` stands at ``offsets[b] + delta * copies[b] + j``.
    dimension : int
    """
    size = stack.shape[2]
    for n in range(x.shape[0]):
        for b in range(stack.shape[1]):
            matrix = stack[which[n], b]
            start, number = offsets[b], copies[b]
            for i in range(size):
                to = out[n, i // dimension]
                low = start + (i % dimension) * number
                for p in range(number):
                    to[low + p] = 0.0
                for j in range(size):
                    factor = matrix[i, j]
                    if factor != 0.0:
                        source = x[n, j // dimension]
                        at = start + (j % dimension) * number
                        for p in range(number):
                            to[low + p] += factor * source[at + p]


@njit(cache=True, nogil=True)
def add_integers(values: npt.NDArray[np.int64], group: Ints, out: npt.NDArray[np.int64], start: int) -> None:
    """Add rows of answers, int64 (g, m), to the groups they belong to, at columns from `start`."""
    for i in range(values.shape[0]):
        to = out[group[i]]
        for j in range(values.shape[1]):
            to[start + j] += values[i, j]


@njit(cache=True, nogil=True)
def spread(
    answers: npt.NDArray[np.int64],
    weights: Floats,
    own: Ints,
    columns: npt.NDArray[np.int32],
    used: Ints,
    allowed: Bools,
    out: Floats,
) -> None:
    """Add ``sum_q w_q Q_q' m_q`` to the allowed cells of each row.

    Parameters
    ----------
    answers : int64 (N, m)
        Answers of all query groups side by side.
    weights : float64 (c, q)
    own : int64 (N,)
        Row of weights of each row of answers.
    columns : int32 (q, k, e)
        Column of the answer that counts each cell, for the query groups in use.
    used : int64 (q,)
        Column of `weights` of each query group in use.
    allowed : bool (N, k)
    out : float64 (N, k, e)
    """
    for n in range(answers.shape[0]):
        row = answers[n]
        for q in range(columns.shape[0]):
            weight = weights[own[n], used[q]]
            if weight == 0.0:
                continue
            for g in range(out.shape[1]):
                if allowed[n, g]:
                    places = columns[q, g]
                    to = out[n, g]
                    for c in range(to.shape[0]):
                        to[c] += weight * row[places[c]]


@njit(cache=True, nogil=True)
def add_segments(x: Floats, which: Ints, starts: Ints, out: Floats) -> None:
    """Add rows ``x[which[starts[i]:starts[i + 1]]]``, float64 (U, m), to row ``i`` of `out`, in order."""
    for i in range(out.shape[0]):
        to = out[i]
        for n in range(starts[i], starts[i + 1]):
            row = x[which[n]]
            for j in range(to.shape[0]):
                to[j] += row[j]
