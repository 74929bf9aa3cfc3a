"""Counts how often each key comes, over many chunks, without keeping the chunks.

Axes: ``k`` distinct keys.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Counter"]

Numbers = npt.NDArray[np.int64]

_LEAST_PENDING = 1 << 22


class Counter:
    """A growing count of int64 keys; memory follows the number of distinct ones."""

    def __init__(self) -> None:
        self._keys: list[Numbers] = [np.empty(0, np.int64)]
        self._counts: list[Numbers] = [np.empty(0, np.int64)]
        self._pending = 0
        self.total = 0

    def add(self, keys: Numbers) -> None:
        """Count every key once more."""
        distinct, counts = np.unique(keys, return_counts=True)
        self._keys.append(distinct)
        self._counts.append(counts.astype(np.int64))
        self._pending += len(distinct)
        self.total += len(keys)
        # What waits to be merged is never more than what is merged already, so the work stays linear
        # up to a logarithm.
        if self._pending > max(_LEAST_PENDING, len(self._keys[0])):
            self._merge()

    def result(self) -> tuple[Numbers, Numbers]:
        """Return distinct keys, ascending, and how often each came; int64 (k,) both."""
        self._merge()
        return self._keys[0], self._counts[0]

    def _merge(self) -> None:
        keys, counts = np.concatenate(self._keys), np.concatenate(self._counts)
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)) if len(keys) else np.empty(0, np.int64)
        summed = np.add.reduceat(counts, first) if len(first) else counts
        self._keys, self._counts, self._pending = [keys[first]], [summed], 0
