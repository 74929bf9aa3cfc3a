"""Hessians of the children of a family.

In plain TopDown all children share one Hessian, a sum over query groups. In least squares over a whole tree
every child comes with the precision of all that is known below it, and no two children are alike. What a
solver needs of such Hessians is stated here; how they are stored is left to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Floats
from opendas.errors import EstimationError

Terms = tuple[tuple[float, NDArray[np.int32]], ...]
"""Weight, and row of each cell, of every query group."""


class Curvature(Protocol):
    """One symmetric, positive semi-definite Hessian per child, on the cells of a family."""

    def apply(self, x: Floats) -> Floats:
        """``A_c x_c`` of every child, shape (C, n), given x of shape (C, n)."""
        ...

    def diagonal(self) -> Floats:
        """Diagonal of every A_c, shape (C, n)."""
        ...


@runtime_checkable
class Entries(Protocol):
    """A curvature whose entries are at hand, without products with unit vectors."""

    def blocks(self, cells: NDArray[np.intp]) -> Floats:
        """``A_c[cells, cells]`` of every child, a new array of shape (C, m, m)."""
        ...


@dataclass(frozen=True, slots=True)
class SharedCurvature:
    """One Hessian up to a multiple of each child, ``A_c = scale_c sum_q weight_q [row_q(i) == row_q(j)]``."""

    terms: Terms  # tuple of (float, int32 (n,)): weight and row of each cell, of every query group
    scale: Floats  # (C,)

    def apply(self, x: Floats) -> Floats:
        """See :class:`Curvature`."""
        result = np.zeros(x.shape)
        for weight, rows in self.terms:
            for c in range(len(x)):
                result[c] += weight * np.bincount(rows, x[c])[rows]
        return result * self.scale[:, None]

    def diagonal(self) -> Floats:
        """See :class:`Curvature`."""
        cells = len(self.terms[0][1]) if self.terms else 0
        weight = sum(weight for weight, _ in self.terms)
        return np.repeat(self.scale[:, None] * weight, cells, axis=1)


def blocks(curvature: Curvature, cells: NDArray[np.intp], shape: tuple[int, int]) -> Floats:
    """``A_c[cells, cells]`` of every child, shape (C, m, m), symmetric to the last bit.

    - `curvature`: one product for each cell, where it is not :class:`Entries` too.
    - `shape`: C and n.
    """
    if isinstance(curvature, Entries):
        found = curvature.blocks(cells)
    else:
        found = np.empty((shape[0], len(cells), len(cells)))
        unit = np.zeros(shape)
        for a, j in enumerate(cells):
            unit[:, j] = 1.0
            found[:, a, :] = curvature.apply(unit)[:, cells]
            unit[:, j] = 0.0
    if not np.isfinite(found).all():
        raise EstimationError("an entry of a Hessian is not finite")
    return np.asarray(0.5 * (found + found.transpose(0, 2, 1)))
