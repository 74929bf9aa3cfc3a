"""Compiled sums and small products of the whole-tree least squares.

Every sum runs in a fixed order that depends on one geounit and its children only, so that results are the
same bytes however geounits are cut into chunks.

Axes: ``N`` vectors, ``k`` dense categories, ``e`` cells or coordinates of the other attributes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner


class Transform(NamedTuple):
    """Reflections that turn cells of the other attributes into coordinates in block order."""

    axes: Ints  # (r, 3): of each reflection, in order: cells before, size and cells after its attribute
    vectors: Floats  # (r, m): of length ``sqrt(2)``, or zero
    order: Ints  # (e,): coordinate that stands at each place in block order


class Placement(NamedTuple):
    """Where the blocks of one dimension stand in block order."""

    # offsets, copies (b,): coordinate ``delta`` of copy ``j`` of block ``b`` stands at ``offsets[b] + delta *
    # copies[b] + j``.
    offsets: Ints
    copies: Ints
    dimension: int


@inner
def _reflect(row: Floats, axis: Ints, v: Floats) -> None:
    """Apply ``I - v v'`` along one axis, in place; ``axis`` holds (cells before, size, cells after)."""
    before, size, after = axis[0], axis[1], axis[2]
    for b in range(before):
        here = row[b * size * after : (b + 1) * size * after]
        if after == 1:
            # Four sums side by side: in a fixed order, and no addition waits for the one before.
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            whole = size - size % 4
            for i in range(0, whole, 4):
                s0 += v[i] * here[i]
                s1 += v[i + 1] * here[i + 1]
                s2 += v[i + 2] * here[i + 2]
                s3 += v[i + 3] * here[i + 3]
            for i in range(whole, size):
                s0 += v[i] * here[i]
            total = (s0 + s1) + (s2 + s3)
            for i in range(size):
                here[i] -= v[i] * total
        elif size == 2:
            one, two = here[:after], here[after:]
            v0, v1 = v[0], v[1]
            for a in range(after):
                part = v0 * one[a] + v1 * two[a]
                one[a] -= v0 * part
                two[a] -= v1 * part
        else:
            for a in range(after):
                part = 0.0
                for i in range(size):
                    part += v[i] * here[i * after + a]
                for i in range(size):
                    here[i * after + a] -= v[i] * part


@inner
def _forward(row: Floats, transform: Transform, out: Floats) -> None:
    """Turn one row of cells into coordinates in block order; overwrites `row`."""
    for number in range(transform.axes.shape[0]):
        _reflect(row, transform.axes[number], transform.vectors[number])
    for p in range(transform.order.shape[0]):
        out[p] = row[transform.order[p]]


@inner
def _backward(row: Floats, transform: Transform, out: Floats) -> None:
    """Turn one row of coordinates in block order into cells."""
    for p in range(transform.order.shape[0]):
        out[transform.order[p]] = row[p]
    for number in range(transform.axes.shape[0] - 1, -1, -1):
        _reflect(out, transform.axes[number], transform.vectors[number])


@njit(cache=True, nogil=True)
def to_blocks(x: Floats, transform: Transform, allowed: Bools, out: Floats) -> None:
    """Turn cells into coordinates in block order; overwrites `x`.

    - `x`, `out` (N, k, e): `out` is zero on entry.
    - `allowed` (N, k): categories that are not allowed hold zeros and are left out.
    """
    for n in range(x.shape[0]):
        for g in range(x.shape[1]):
            if allowed[n, g]:
                _forward(x[n, g], transform, out[n, g])


@njit(cache=True, nogil=True)
def from_blocks(x: Floats, transform: Transform, allowed: Bools, out: Floats) -> None:
    """Undo :func:`to_blocks`; keeps `x`, sets the allowed rows of `out`."""
    for n in range(x.shape[0]):
        for g in range(x.shape[1]):
            if allowed[n, g]:
                _backward(x[n, g], transform, out[n, g])


@inner
def _part(x: Floats, row: int, dimension: int, start: int, number: int) -> Floats:
    """Return the coordinates that row ``kappa * dimension + delta`` of a block's matrix works on."""
    low = start + (row % dimension) * number
    return x[row // dimension, low : low + number]


@inner
def _apply(
    x: Floats,
    stack: Floats,
    placement: Placement,
    rows: Ints,
    add: bool,
    out: Floats,
) -> None:
    """Set, or add to, the blocks of one dimension of ``A x`` for one geounit; `rows` is scratch (k d,)."""
    size, dimension = stack.shape[1], placement.dimension
    for b in range(stack.shape[0]):
        matrix = stack[b]
        start, number = placement.offsets[b], placement.copies[b]
        for i in range(size):
            low = start + (i % dimension) * number
            used = 0
            for j in range(size):
                if matrix[i, j] != 0.0:
                    rows[used] = j
                    used += 1
            # Slices, not sums of indices: the inner loops then run over whole registers.
            part = out[i // dimension, low : low + number]
            if not add:
                for p in range(number):
                    part[p] = 0.0
            whole = used - used % 4
            for t in range(0, whole, 4):
                j0, j1, j2, j3 = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
                f0, f1, f2, f3 = matrix[i, j0], matrix[i, j1], matrix[i, j2], matrix[i, j3]
                x0 = _part(x, j0, dimension, start, number)
                x1 = _part(x, j1, dimension, start, number)
                x2 = _part(x, j2, dimension, start, number)
                x3 = _part(x, j3, dimension, start, number)
                for p in range(number):
                    part[p] += (f0 * x0[p] + f1 * x1[p]) + (f2 * x2[p] + f3 * x3[p])
            for t in range(whole, used):
                factor = matrix[i, rows[t]]
                x0 = _part(x, rows[t], dimension, start, number)
                for p in range(number):
                    part[p] += factor * x0[p]


@njit(cache=True, nogil=True)
def apply_blocks(x: Floats, stack: Floats, which: Ints, placement: Placement, out: Floats) -> None:
    """Set the blocks of one dimension of ``out = A x``.

    - `x`, `out` (N, k, e): in block order.
    - `stack` (U, b, k d, k d).
    - `which` (N,): matrix of each vector.
    """
    rows = np.empty(stack.shape[2], dtype=np.int64)
    for n in range(x.shape[0]):
        _apply(x[n], stack[which[n]], placement, rows, False, out[n])


@njit(cache=True, nogil=True)
def add_applied(
    x: Floats,
    family: Ints,
    stack: Floats,
    which: Ints,
    placement: Placement,
    out: Floats,
) -> None:
    """Add ``A x`` with the `x`, float64 (families, k, e), of each geounit's family to `out` (N, k, e)."""
    # x_c = V_c b*_c + V_c S^-1 (x_v - y_v): the second term, with S^-1 (x_v - y_v) once for each family.
    rows = np.empty(stack.shape[2], dtype=np.int64)
    for n in range(out.shape[0]):
        _apply(x[family[n]], stack[which[n]], placement, rows, True, out[n])


@njit(cache=True, nogil=True)
def supported(
    x: Floats,
    category: Ints,
    column: Ints,
    transform: Transform,
    stack: Floats,
    which: Ints,
    placement: Placement,
    out: Floats,
) -> None:
    """Set ``out = A x`` over support cells, float64 (C, s), where all blocks have dimension one.

    `category`, `column` (s,): dense category (among those in `stack`) and place among the other attributes of
    each cell.
    """
    categories, size = stack.shape[2], transform.order.shape[0]
    cells, first, second = np.empty((3, categories, size))
    rows = np.empty(categories, dtype=np.int64)
    for c in range(x.shape[0]):
        cells[:] = 0.0
        for j in range(category.shape[0]):
            cells[category[j], column[j]] = x[c, j]
        for g in range(categories):
            _forward(cells[g], transform, first[g])
        _apply(first, stack[which[c]], placement, rows, False, second)
        for g in range(categories):
            _backward(second[g], transform, cells[g])
        for j in range(category.shape[0]):
            out[c, j] = cells[category[j], column[j]]


@njit(cache=True, nogil=True)
def invert(stack: Floats, rows: Bools, out: Floats) -> bool:
    """Set the inverses of positive definite matrices, symmetric to the last bit, by Cholesky's factors.

    Returns False where a matrix is not positive definite.

    - `stack`, `out` (U, b, s, s): `out` is zero on entry.
    - `rows` (U, s): rows and columns to invert; the others of `out` are left as they are.
    """
    # V = (P*)^-1 on the allowed rows: Cholesky's factor L, its inverse in place, and L^-T L^-1.
    size = stack.shape[2]
    at = np.empty(size, dtype=np.int64)
    low = np.empty((size, size))  # the factor, then its inverse
    for u in range(stack.shape[0]):
        count = 0
        for i in range(size):
            if rows[u, i]:
                at[count] = i
                count += 1
        for b in range(stack.shape[1]):
            matrix, to = stack[u, b], out[u, b]
            for i in range(count):
                for j in range(i + 1):
                    value = matrix[at[i], at[j]]
                    for k in range(j):
                        value -= low[i, k] * low[j, k]
                    if j < i:
                        low[i, j] = value * low[j, j]
                    elif value > 0.0:
                        low[i, i] = 1.0 / np.sqrt(value)  # one over the diagonal: that of the inverse
                    else:
                        return False
            for j in range(count):
                for i in range(j + 1, count):
                    value = 0.0
                    for k in range(j, i):
                        value -= low[i, k] * low[k, j]
                    low[i, j] = value * low[i, i]
            for i in range(count):
                for j in range(i + 1):
                    value = 0.0
                    for k in range(i, count):
                        value += low[k, i] * low[k, j]
                    to[at[i], at[j]] = value
                    to[at[j], at[i]] = value
    return True


@njit(cache=True, nogil=True)
def add_integers(values: Ints, group: Ints, out: Ints) -> None:
    """Add rows of answers, int64 (g, m), to the groups they belong to."""
    for i in range(values.shape[0]):
        to, row = out[group[i]], values[i]
        for j in range(values.shape[1]):
            to[j] += row[j]


@njit(cache=True, nogil=True)
def spread(
    answers: Ints,
    weights: Floats,
    shares: Floats,
    rows: npt.NDArray[np.int32],
    allowed: Bools,
    out: Floats,
) -> None:
    """Add ``w Q' m`` of one query group to the allowed cells of each geounit.

    - `answers` (N, m).
    - `weights` (N,).
    - `shares` (k,): part of the weight that rows of each dense category have.
    - `rows` (k, e): row of the query group that counts each cell.
    - `allowed` (N, k).
    - `out` (N, k, e).
    """
    # Cumings-Menon et al. (2024), equation (3.3), its right-hand side: b = sum over q of w_q Q_q' m_q.
    for n in range(answers.shape[0]):
        if weights[n] == 0.0:
            continue
        row = answers[n]
        for g in range(out.shape[1]):
            if allowed[n, g]:
                weight = weights[n] * shares[g]
                places, to = rows[g], out[n, g]
                for c in range(to.shape[0]):
                    to[c] += weight * row[places[c]]


@njit(cache=True, nogil=True)
def add_groups(x: Floats, family: Ints, allowed: Bools, out: Floats) -> None:
    """Add allowed rows of `x`, float64 (N, k, e), to the families they belong to, in their order."""
    for n in range(x.shape[0]):
        for g in range(x.shape[1]):
            if allowed[n, g]:
                to, row = out[family[n], g], x[n, g]
                for j in range(to.shape[0]):
                    to[j] += row[j]


@njit(cache=True, nogil=True)
def add_multiples(x: Floats, which: Ints, times: Floats, starts: Ints, out: Floats) -> None:
    """Add ``times[j] * x[which[j]]``, for ``j`` in ``starts[i]:starts[i + 1]``, in order, to row ``i``."""
    for i in range(out.shape[0]):
        to = out[i]
        for n in range(starts[i], starts[i + 1]):
            row, factor = x[which[n]], times[n]
            for j in range(to.shape[0]):
                to[j] += factor * row[j]


@njit(cache=True, nogil=True)
def margins(x: Floats, rows: npt.NDArray[np.int32], out: Floats) -> None:
    """Add the cells of each vector, float64 (N, n), to the rows that count them, float64 (N, m)."""
    for n in range(x.shape[0]):
        to, row = out[n], x[n]
        for j in range(row.shape[0]):
            to[rows[j]] += row[j]
