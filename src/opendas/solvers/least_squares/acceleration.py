"""Anderson's acceleration of a fixed-point iteration, block by block; apart, as it knows no family.

Let T be the iteration, w_k its points and ``f_k = T(w_k) - w_k`` its steps. Near the end T is affine on the
face where the answer lies, and a combination of the last points is a far better one than the last alone: that
whose steps cancel, ``min over gamma of |f_k - sum_i gamma_i (f_(i+1) - f_i)|``, from which the next point is
``T(w_k) - sum_i gamma_i (T(w_(i+1)) - T(w_i))`` (Walker and Ni 2011, their second form).

A combination whose step is much larger than the one before is taken back, and the plain iteration goes on
from where it was. Letters: ``C`` rows and ``n`` columns of a point, ``B`` blocks of columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from opendas.arrays import Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.least_squares.kernels import cholesky, triangular_solve

MEMORY = 10
"""Differences of steps that are kept."""
GROWTH = 4.0
"""Squared ratio of two steps from which a combination is taken back."""
LEAP = 1e4
"""Squared way to a combination, relative to that of a step, from which it is not taken: steps far from the
answer may be as short as steps beside it, so that their length would not tell."""
RIDGE = 1e-10
"""Added to the squared lengths of the differences, relative to their sum."""


class History(NamedTuple):
    """The last points and steps of every block."""

    points: Floats  # (MEMORY, C, n), differences of T(w)
    steps: Floats  # (MEMORY, C, n), differences of f
    point: Floats  # (C, n), the last T(w)
    step: Floats  # (C, n), the last f
    products: Floats  # (B, MEMORY, MEMORY), of the differences of f with each other
    counts: Ints  # (B,), differences so far; -1 where there is no last point
    length: Floats  # (B,), squared, of the last f


def no_history(rows: int, columns: int, blocks: int) -> History:
    """Return the history before the first step."""
    return History(
        np.zeros((MEMORY, rows, columns)),
        np.zeros((MEMORY, rows, columns)),
        np.zeros((rows, columns)),
        np.zeros((rows, columns)),
        np.zeros((blocks, MEMORY, MEMORY)),
        np.full(blocks, -1),
        np.zeros(blocks),
    )


@njit(cache=True, nogil=True)
def accelerate(history: History, start: Ints, blocks: Ints, before: Floats, w: Floats) -> None:
    """Combine the last points of some blocks, and remember them.

    - `history`: with the iteration unchanged since its first entry; set ``counts`` to -1 where it has
      changed.
    - `start` (B + 1,): first column of each block.
    - `blocks`: those to combine.
    - `before`, `w` (C, n): the point before the iteration and after it; `w` becomes the next point.
    """
    for b in blocks:
        low, high = start[b], start[b + 1]
        step = w[:, low:high] - before[:, low:high]
        length = (step * step).sum()
        if history.counts[b] >= 0 and not length <= GROWTH * history.length[b]:
            w[:, low:high] = history.point[:, low:high]
            history.counts[b] = -1
            continue
        if history.counts[b] >= 0:
            _store_differences(history, b, low, high, step, w)
        history.counts[b] += 1
        history.length[b] = length
        history.step[:, low:high] = step
        history.point[:, low:high] = w[:, low:high]
        _combine(history, b, low, high, w)


@inner
def _store_differences(history: History, b: int, low: int, high: int, step: Floats, w: Floats) -> None:
    """Put the newest differences in place of the oldest."""
    steps = history.steps
    at = history.counts[b] % MEMORY
    for c in range(len(w)):
        for j in range(low, high):
            steps[at, c, j] = step[c, j - low] - history.step[c, j]
            history.points[at, c, j] = w[c, j] - history.point[c, j]
    for i in range(min(history.counts[b] + 1, MEMORY)):
        product = 0.0
        for c in range(len(w)):
            for j in range(low, high):
                product += steps[i, c, j] * steps[at, c, j]
        history.products[b, i, at] = history.products[b, at, i] = product


@inner
def _combine(history: History, b: int, low: int, high: int, w: Floats) -> None:
    """Move `w` to the combination whose steps cancel best."""
    k = min(history.counts[b], MEMORY)
    products = history.products[b, :k, :k].copy()
    squares = np.diag(products).copy()
    total = squares.sum()
    if total == 0.0:
        return
    gamma = np.zeros(k)
    for i in range(k):
        products[i, i] += RIDGE * total
        for c in range(len(w)):
            for j in range(low, high):
                gamma[i] += history.steps[i, c, j] * history.step[c, j]
    cholesky(products, squares, np.zeros(k, np.bool_))
    triangular_solve(products, gamma)
    leap = np.zeros((len(w), high - low))
    for c in range(len(w)):
        for i in range(k):
            for j in range(low, high):
                leap[c, j - low] += gamma[i] * history.points[i, c, j]
    if (leap * leap).sum() <= LEAP * history.length[b]:
        w[:, low:high] -= leap
