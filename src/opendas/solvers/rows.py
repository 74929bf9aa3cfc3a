"""Row numbers without gaps."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["without_gaps"]


@njit(cache=True, nogil=True)
def without_gaps(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number the different rows from 0, in their order: ``np.unique(rows, return_inverse=True)[1]``.

    Parameters
    ----------
    rows : ndarray of int32, shape (n,)
        Not negative.

    Returns
    -------
    ndarray of int32, shape (n,)
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
