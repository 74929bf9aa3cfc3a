"""Types of arrays, named once for all modules; and the places of rows within their runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Codes", "Floats", "Ints", "rank_in_run"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.bytes_]
"""Geocodes or other fixed-width codes, as bytes."""


def rank_in_run(column: NDArray[Any]) -> Ints:
    """Return the place of each row in its run of equal values, from 0, int64 (b,)."""
    start = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    return np.arange(len(column)) - np.repeat(start, np.diff(np.append(start, len(column))))
