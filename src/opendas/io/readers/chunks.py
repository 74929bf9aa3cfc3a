"""Arrays that come batch by batch, and the lines that their rows stood in.

Axes: ``r`` rows, over all batches.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Lines", "joined"]

Element = TypeVar("Element", bound=np.generic)
Numbers = npt.NDArray[np.int64]


def joined(parts: list[npt.NDArray[Element]]) -> npt.NDArray[Element]:
    """Return the parts as one array, and empty the list: they do not stay in memory beside it."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole


class Lines:
    """The line of each row in its file, without a number for every row."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._first: list[int] = []
        self._rows = 0

    def add(self, first: int, rows: int) -> None:
        """Append consecutive rows, of which the first stands in line `first`."""
        self._starts.append(self._rows)
        self._first.append(first)
        self._rows += rows

    def __getitem__(self, rows: npt.NDArray[np.integer]) -> Numbers:
        """Return the lines of rows, int64."""
        batch = np.searchsorted(self._starts, rows, side="right") - 1
        return np.asarray(np.array(self._first)[batch] + rows - np.array(self._starts)[batch])
