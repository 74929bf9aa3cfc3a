"""A hierarchy as arrays: the parent of each geounit, level by level, and nothing else.

For statistics that need the shape of a tree and no codes. Parents may have no child, and the children of one
parent may lie anywhere in their level. A :class:`~opendas.geography.spine.Spine` is one of these with codes
and an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints
from opendas.errors import GeographyError
from opendas.geography.spine import Spine


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Levels of a hierarchy, top first.

    Examples
    --------
    The three levels of a state with two tracts of three and two blocks:

    >>> tree = Hierarchy.of([[0], [0, 0], [0, 0, 0, 1, 1]])
    >>> tree.sizes
    (1, 2, 5)
    >>> tree.totals(np.array([120, 80, 100, 90, 60]))[1].tolist()
    [300, 150]
    """

    # (g,): for each level the index of each geounit's parent in the level above; zeros at the top, which may
    # have several geounits.
    parents: tuple[Ints, ...]

    def __post_init__(self) -> None:
        if not self.parents:
            raise GeographyError("a hierarchy has at least one level.")
        above = 1
        for number, parent in enumerate(self.parents):
            inside = not len(parent) or 0 <= int(parent.min()) <= int(parent.max()) < above
            if parent.ndim != 1 or not inside:
                raise GeographyError(
                    f"hierarchy, level {number + 1} from the top: expected a list of parents from 0 on, each "
                    f"below {above}, the number of geounits of the level above (at the top, zeros)."
                )
            above = len(parent)

    @classmethod
    def of(cls, parents: Sequence[npt.ArrayLike]) -> Hierarchy:
        """Return a hierarchy from anything that reads as arrays of whole numbers."""
        return cls(tuple(_integers(parent, number) for number, parent in enumerate(parents)))

    @classmethod
    def of_spine(cls, spine: Spine) -> Hierarchy:
        """Return the shape of a spine."""
        return cls(tuple(level.parent for level in spine.levels))

    @classmethod
    def of_codes(cls, *codes: npt.NDArray[Any]) -> Hierarchy:
        """Return the hierarchy of leaves that carry a code at every level.

        `*codes`, array (leaves,): code of each leaf at each level, top first, the leaf's own last. Geounits
        are numbered in the order of their codes.
        """
        above = np.zeros(len(codes[0]), dtype=np.int64)
        parents = []
        for number, column in enumerate(codes):
            _, first, which = np.unique(column, return_index=True, return_inverse=True)
            if number + 1 == len(codes) and len(first) < len(column):
                raise GeographyError("hierarchy: a leaf occurs twice in the list of codes.")
            parent = above[first] if number else np.zeros(len(first), dtype=np.int64)
            if number and np.any(parent[which] != above):
                raise GeographyError(
                    f"hierarchy, level {number + 1} from the top: one code lies in two geounits of the level "
                    "above."
                )
            parents.append(parent)
            above = which.ravel().astype(np.int64)
        return cls(tuple(parents))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of geounits of each level."""
        return tuple(len(parent) for parent in self.parents)

    def __len__(self) -> int:
        return len(self.parents)

    def children(self, level: int) -> Ints:
        """Return how many children each geounit of a level has, int64 (g,)."""
        if level + 1 == len(self):
            return np.zeros(self.sizes[level], dtype=np.int64)
        return np.bincount(self.parents[level + 1], minlength=self.sizes[level]).astype(np.int64)

    def inhabited(self) -> tuple[Bools, ...]:
        """Return for each level which geounits have a leaf of the lowest level below them."""
        found = [np.ones(self.sizes[-1], dtype=np.bool_)]
        for level in range(len(self) - 1, 0, -1):
            above = np.zeros(self.sizes[level - 1], dtype=np.bool_)
            above[self.parents[level][found[-1]]] = True
            found.append(above)
        return tuple(reversed(found))

    def totals(self, leaves: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """Add up counts of the lowest level, level by level.

        - `leaves` (leaves,).
        - Returns: top first, `leaves` itself last.
        """
        found = [leaves]
        for level in range(len(self) - 1, 0, -1):
            above = np.zeros(self.sizes[level - 1], dtype=leaves.dtype)
            np.add.at(above, self.parents[level], found[-1])
            found.append(above)
        return tuple(reversed(found))


def _integers(parent: npt.ArrayLike, number: int) -> Ints:
    array = np.asarray(parent)
    if array.size and array.dtype.kind not in "iu":
        raise GeographyError(f"hierarchy, level {number + 1} from the top: a parent is a whole number.")
    return array.astype(np.int64)
