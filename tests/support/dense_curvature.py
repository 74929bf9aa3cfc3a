"""Hessians written out: the slow twin of every other form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opendas.arrays import Floats


@dataclass(frozen=True, slots=True)
class DenseCurvature:
    """Every Hessian written out.

    Parameters
    ----------
    matrices : ndarray, shape (C, n, n)
        Symmetric.
    """

    matrices: Floats

    def apply(self, x: Floats) -> Floats:
        """See :class:`opendas.solvers.problem.curvature.Curvature`."""
        # einsum, not BLAS: a fixed order of summation
        return np.asarray(np.einsum("cij,cj->ci", self.matrices, x))

    def diagonal(self) -> Floats:
        """See :class:`opendas.solvers.problem.curvature.Curvature`."""
        return np.array(np.einsum("cii->ci", self.matrices))

    def blocks(self, cells: NDArray[np.intp]) -> Floats:
        """See :class:`opendas.solvers.problem.curvature.Entries`."""
        return np.ascontiguousarray(self.matrices[:, cells[:, None], cells[None, :]])
