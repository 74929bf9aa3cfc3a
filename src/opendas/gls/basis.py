"""One attribute's functions, in a basis in which its partitions are small matrices.

A partition of the levels (total, a recode, or the levels themselves) sees a function on the levels only
through its sums over groups. Functions orthogonal to the indicators of all coarse partitions are seen by the
levels themselves alone, and all alike: they form one space, of whatever dimension, that is never written out.

Axes: ``n`` levels of the attribute, ``k`` groups of a partition, ``r`` coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats

__all__ = ["AttributeBasis", "Partition", "attribute_basis"]


_ZERO = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A partition of an attribute's levels.

    Parameters
    ----------
    of_level : int64 (n,)
        Group of each level.
    groups : int
        Number of groups ``k``; some may have no level.
    """

    of_level: npt.NDArray[np.int64]
    groups: int

    @classmethod
    def total(cls, levels: int) -> Partition:
        """Return the partition into one group."""
        return cls(np.zeros(levels, dtype=np.int64), 1)

    @property
    def finest(self) -> bool:
        """Whether every level has a group of its own."""
        return len(np.unique(self.of_level)) == len(self.of_level)

    @property
    def indicators(self) -> Floats:
        """Which levels each group holds, float64 (k, n)."""
        return np.asarray(self.of_level[None, :] == np.arange(self.groups)[:, None], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class AttributeBasis:
    """An orthonormal basis of the functions that coarse partitions can tell apart.

    Parameters
    ----------
    vectors : float64 (n, r or r - 1)
        The constant first, then what each partition adds, from the coarsest.
    inside : int
        Dimension of the rest. If it is not zero, the rest counts as one more coordinate, the last.
    """

    vectors: Floats
    inside: int

    @property
    def coordinates(self) -> int:
        """Number of coordinates ``r``."""
        return int(self.vectors.shape[1]) + (1 if self.inside else 0)

    def coefficients(self, partition: Partition) -> Floats:
        """Return each group's indicator in coordinates, float64 (k, r).

        In the rest, where all directions are alike, only the length counts.
        """
        indicators = partition.indicators
        found: Floats = indicators @ self.vectors
        if self.inside:
            left = indicators.sum(axis=1) - (found**2).sum(axis=1)
            found = np.column_stack([found, np.sqrt(np.where(left > _ZERO, left, 0.0))])
        found[np.abs(found) < _ZERO] = 0.0
        return found

    def matrix(self, partition: Partition) -> Floats:
        """Return ``Q'Q`` of a partition's query group in coordinates, float64 (r, r).

        For the partitions that the basis was made for, and for the levels themselves.
        """
        if partition.finest:
            return np.eye(self.coordinates)
        found = self.coefficients(partition)
        product: Floats = found.T @ found
        product[np.abs(product) < _ZERO] = 0.0
        return product


def attribute_basis(levels: int, partitions: Iterable[Partition]) -> AttributeBasis:
    """Find a basis for the partitions in use.

    Parameters
    ----------
    levels : int
    partitions : iterable of int (n,)
        Total and levels themselves need not be among them.

    Notes
    -----
    Any orthonormal basis of the span of the indicators would do. This one follows the partitions from coarse
    to fine and, within what each adds, takes directions that are coupled with as few others as possible, so
    that blocks come out small: for one recode with equal groups all of them have dimension one.
    """
    coarse = sorted((p for p in partitions if not p.finest), key=lambda p: p.groups)
    matrices = [partition.indicators.T @ partition.indicators for partition in coarse]
    vectors = np.full((levels, 1), levels**-0.5)
    for partition in coarse:
        rest = partition.indicators.T
        for _ in range(2):  # twice, for orthogonality to the last digit
            rest = rest - vectors @ (vectors.T @ rest)
        left, lengths, _ = np.linalg.svd(rest, full_matrices=False)
        new = left[:, lengths > _ZERO * levels]
        if new.shape[1]:
            vectors = np.hstack([vectors, new @ _decoupled(new, vectors, matrices)])
    return AttributeBasis(vectors, levels - vectors.shape[1])


def _decoupled(new: Floats, old: Floats, matrices: list[Floats]) -> Floats:
    """Return a rotation of new directions: eigenvectors of what partitions do on them and through the old.

    The weights only have to be different from each other in no simple way.
    """
    operator = np.zeros((new.shape[1], new.shape[1]))
    weights = np.sqrt(2.0 + np.arange(len(matrices) * (1 + old.shape[1])))
    k = 0
    for matrix in matrices:
        image = matrix @ new
        operator += weights[k] * (new.T @ image)
        through = old.T @ image
        k += 1
        operator += (through.T * weights[k : k + len(through)]) @ through / len(matrix)
        k += len(through)
    rotation: Floats = np.linalg.eigh((operator + operator.T) / 2)[1]
    return rotation
