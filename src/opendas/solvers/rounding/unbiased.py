# mypy: allow-untyped-defs, allow-untyped-calls
"""Controlled rounding that is right on average, for every sum of cells; apart from rounding to the nearest.

Axes: ``C`` children, ``n`` cells.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Ints

__all__ = ["round_unbiased"]


def round_unbiased(parts: Ints, whole: int, seed: int) -> Ints:
    """Round a table of fractions at random, so that expectations are the fractions themselves.

    Parameters
    ----------
    parts : int64 (C, n)
        Numerators, not negative; columns add up to multiples of `whole`.
    whole : int
        Their common denominator.
    seed : int
        64 bits. Public.

    Returns
    -------
    int64 (C, n)
        Each cell, and the total of each child, is its fraction rounded up or down; columns keep their sums.

    Raises
    ------
    ValueError
        If a column does not add up to whole counts.

    Notes
    -----
    Cox (1987), section 3: along a closed path of cells that are not whole, alternately raised and lowered,
    the table goes one way or the other until a cell is whole, with the chances that leave its mean as it is.
    Arithmetic is in integers.

    Examples
    --------
    >>> round_unbiased(np.array([[1, 2], [1, 0]]), 2, seed=7).sum(axis=0)
    array([1, 1])
    """
    if np.any(parts.sum(axis=0) % whole) or np.any(parts < 0):
        raise ValueError("the columns of a table to be rounded add up to whole counts")
    slack = -parts.sum(axis=1) % whole  # makes every row whole, too
    below, left = np.divmod(np.concatenate([parts, slack[:, None]], axis=1), whole)
    up = _round(np.ascontiguousarray(left), int(whole), np.uint64(seed))
    rounded: Ints = (below + up)[:, :-1]
    return rounded


@njit(cache=True, nogil=True)
def next_word(random):
    """Return the next 64 bits of SplitMix64 (Steele, Lea and Flood, 2014); `random` is uint64 (1,).

    For choices that everybody may repeat from what is published: no noise of a release comes from it.
    """
    random[0] = random[0] + np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _round(left, whole, seed):
    """Round fractions whose rows and columns are whole; return zeros and ones."""
    rows, columns = left.shape
    random = np.zeros(1, np.uint64)
    random[0] = seed
    path_row = np.empty(columns + 1, np.int64)
    path_column = np.empty(columns + 1, np.int64)
    seen = np.empty(columns, np.int64)
    for first in range(rows * columns):
        while left[first // columns, first % columns] % whole:
            # Go along a row, then along a column, until a column is met again: in a row or a column with one
            # cell that is not whole there is another.
            seen[:] = -1
            row, column, length = first // columns, first % columns, 0
            while seen[column] < 0:
                seen[column] = length
                path_row[length], path_column[length] = row, column
                length += 1
                other = 0
                while other == column or left[row, other] % whole == 0:
                    other += 1
                column = other
                other = 0
                while other == row or left[other, column] % whole == 0:
                    other += 1
                row = other
            path_column[length] = column
            _turn(left, whole, path_row, path_column, seen[column], length, random)
    for row in range(rows):
        for column in range(columns):
            left[row, column] //= whole
    return left


@njit(cache=True, nogil=True)
def _turn(left, whole, path_row, path_column, start, stop, random):
    """Raise and lower the cells of a closed path until one is whole."""
    up = down = whole
    for i in range(start, stop):
        raised = left[path_row[i], path_column[i]]
        lowered = left[path_row[i], path_column[i + 1]]
        up = min(up, whole - raised, lowered)
        down = min(down, raised, whole - lowered)
    # 32 bits are enough: the bias of a chance is below 2**-32.
    chance = np.int64(((next_word(random) >> np.uint64(32)) * np.uint64(up + down)) >> np.uint64(32))
    step = up if chance < down else -down
    for i in range(start, stop):
        left[path_row[i], path_column[i]] += step
        left[path_row[i], path_column[i + 1]] -= step
