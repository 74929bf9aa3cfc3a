"""Finds numbers in a long list, again and again.

Axes: ``k`` known numbers, ``q`` numbers looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Lookup"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lookup:
    """Known numbers in ascending order, and where each stands in the list.

    Parameters
    ----------
    ordered : integer (k,)
        Ascending, at least one.
    order : int64 (k,)
        Position of each in the list.
    """

    ordered: npt.NDArray[np.integer]
    order: npt.NDArray[np.int64]

    @classmethod
    def of(cls, known: npt.NDArray[np.integer]) -> Lookup:
        """Prepare a list of distinct numbers."""
        order = np.argsort(known, kind="stable")
        return cls(known[order], order)

    def positions(self, wanted: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the position of each wanted number in the list, int64 (q,); -1 where it is not in it."""
        if len(wanted) == 0:
            return np.empty(0, dtype=np.int64)
        # Records of one household stand together: each run of equal numbers is looked up once.
        starts = np.flatnonzero(np.concatenate([[True], wanted[1:] != wanted[:-1]]))
        heads = wanted[starts].astype(self.ordered.dtype)
        found = np.minimum(np.searchsorted(self.ordered, heads), len(self.ordered) - 1)
        position = np.where(self.ordered[found] == heads, self.order[found], -1)
        return np.repeat(position, np.diff(starts, append=len(wanted)))
