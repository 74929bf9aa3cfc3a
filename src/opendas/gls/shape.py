"""The shape of a hierarchy with equal subtrees counted once.

Where noise depends on the level only, geounits with equal subtrees know the same, and geounits in equal
surroundings end up with the same variance. A nation of eleven million leaves has some 200,000 kinds of
surroundings, most states a few thousand; everything that least squares does to variances is done once a kind.

Axes: ``g`` geounits of a level, ``u`` kinds of subtrees, ``p`` kinds of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Ints
from opendas.geography.hierarchy import Hierarchy
from opendas.solvers.rounding.snapping import mix

__all__ = ["Places", "Shape"]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Kinds of geounits of one level, told apart by their subtree and by all that surrounds it.

    Parameters
    ----------
    above : int64 (p,)
        Kind of place of the parent; zeros at the top.
    subtree : int64 (p,)
        Kind of subtree.
    count : float64 (p,)
        Number of geounits.
    """

    above: Ints
    subtree: Ints
    count: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Kinds of subtrees and places of every level, top first. Made by :meth:`of`.

    Parameters
    ----------
    sizes : tuple of int
        Number of geounits of each level that have a leaf below them.
    children : tuple of sparse float64 (u, u of the level below)
        For each level but the last, how many children of each kind a kind of subtree has.
    places : tuple of Places
    """

    sizes: tuple[int, ...]
    children: tuple[sparse.csr_array, ...]
    places: tuple[Places, ...]

    @classmethod
    def of(cls, hierarchy: Hierarchy) -> Shape:
        """Find equal subtrees.

        Geounits without a leaf below them are left out: nothing is measured where nobody can be.

        Notes
        -----
        A subtree is recognised by the sum, modulo 2**64, of a hash of the kinds of its children. Two
        different ones agree with a chance of about (number of kinds)**2 / 2**65: 1e-9 for a nation.
        """
        inhabited = hierarchy.inhabited()
        kind = np.zeros(hierarchy.sizes[-1], dtype=np.int64)
        kinds = 1
        children: list[sparse.csr_array] = []
        for level in range(len(hierarchy) - 1, 0, -1):
            inside = inhabited[level]
            parent, below = hierarchy.parents[level][inside], kind[inside]
            sums = _hash_sums(parent, below, kinds, hierarchy.sizes[level - 1])
            used = np.flatnonzero(inhabited[level - 1])
            _, first, which = np.unique(sums[used], return_index=True, return_inverse=True)
            kind = np.zeros(hierarchy.sizes[level - 1], dtype=np.int64)
            kind[used] = which.ravel()
            chosen = np.full(hierarchy.sizes[level - 1], -1, dtype=np.int64)
            chosen[used[first]] = np.arange(len(first))
            row = chosen[parent]
            seen = row >= 0
            table = sparse.coo_array(
                (np.ones(int(seen.sum())), (row[seen], below[seen])), shape=(len(first), kinds)
            )
            children.append(sparse.csr_array(table.tocsr()))
            kinds = len(first)
        children.reverse()
        roots = np.bincount(kind[inhabited[0]], minlength=kinds).astype(np.float64)
        sizes = tuple(int(inside.sum()) for inside in inhabited)
        return cls(sizes, tuple(children), _places(roots, children))

    def __len__(self) -> int:
        return len(self.places)


def _hash_sums(parent: Ints, kind: Ints, kinds: int, parents: int) -> npt.NDArray[np.uint64]:
    if kinds == 1:
        return np.bincount(parent, minlength=parents).astype(np.uint64)
    hashed = np.asarray(mix(np.arange(kinds, dtype=np.uint64)))
    sums = np.zeros(parents, dtype=np.uint64)
    np.add.at(sums, parent, hashed[kind])
    return sums


def _places(roots: npt.NDArray[np.float64], children: list[sparse.csr_array]) -> tuple[Places, ...]:
    top = np.arange(len(roots), dtype=np.int64)
    found = [Places(np.zeros_like(top), top, roots)]
    for table in children:
        last = found[-1]
        rows = sparse.csr_array(table[last.subtree])
        lengths = np.diff(rows.indptr)
        above = np.repeat(np.arange(len(last.subtree), dtype=np.int64), lengths)
        found.append(Places(above, rows.indices.astype(np.int64), rows.data * last.count[above]))
    return tuple(found)
