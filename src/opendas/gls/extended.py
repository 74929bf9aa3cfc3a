"""Information and covariance in which some directions are exact and others unknown.

An information matrix may be infinite in some directions (published exactly), a covariance matrix likewise
(never measured). Both are kept as two positive semidefinite matrices: the finite part, and one whose range
is where it is infinite. Inverting turns one kind into the other: what has infinite information has no
variance, and what has no information has infinite variance.

Axes: ``c`` classes of geounits, ``b`` blocks of one dimension, ``d`` that dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Floats

__all__ = ["Extended", "transposed"]


_RANK = 1e-12
"""An eigenvalue below this part of their sum is zero. Weights of one block span some nine powers of ten."""

_INFINITE = 1e-6
"""Infinite parts are sums of projections: their eigenvalues are zero, or of the order of one."""

_CLEAN = 1e-9


def transposed(stack: Floats) -> Floats:
    """Transpose each matrix of a stack."""
    return np.swapaxes(stack, -1, -2)


def _cleaned(infinite: Floats) -> Floats:
    """Remove rounding errors, so that "infinite nowhere" is exactly zero."""
    infinite[np.abs(infinite) < _CLEAN] = 0.0
    return infinite


def _dual_numbers(finite: Floats, infinite: Floats) -> tuple[Floats, Floats]:
    exact = infinite > 0
    some = (finite > 0) & ~exact
    inverse = np.zeros_like(finite)
    np.divide(1.0, finite, out=inverse, where=some)
    return inverse, np.where(some | exact, 0.0, 1.0)


def _dual_matrices(finite: Floats, infinite: Floats) -> tuple[Floats, Floats]:
    shape = finite.shape
    matrices = finite.reshape(-1, *shape[-2:])
    scale = np.trace(matrices, axis1=1, axis2=2)[:, None]  # before directions are taken out
    exact = infinite.reshape(-1, *shape[-2:])
    touched = np.flatnonzero(exact.any(axis=(1, 2)))
    ranges = np.zeros((len(touched), *shape[-2:]))
    if len(touched):
        values, vectors = np.linalg.eigh(exact[touched])
        ranges = (vectors * (values > _INFINITE)[:, None, :]) @ transposed(vectors)
        keep = np.eye(shape[-1]) - ranges
        matrices = matrices.copy()
        matrices[touched] = keep @ matrices[touched] @ keep
    values, vectors = np.linalg.eigh(matrices)
    some = values > _RANK * np.maximum(scale, 0.0)
    inverse = np.zeros_like(values)
    np.divide(1.0, values, out=inverse, where=some)
    dual = (vectors * inverse[:, None, :]) @ transposed(vectors)
    unknown = np.zeros_like(dual)
    short = np.flatnonzero(~some.all(axis=1))
    unknown[short] = (vectors[short] * (~some[short])[:, None, :]) @ transposed(vectors[short])
    unknown[touched] -= ranges
    return dual.reshape(shape), _cleaned(unknown).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Extended:
    """Symmetric positive semidefinite matrices that may be infinite in some directions.

    Parameters
    ----------
    finite, infinite : tuple of float64 (c, b, d, d)
        One pair of stacks for each dimension of blocks. The finite part is zero where the other is not.
    """

    finite: tuple[Floats, ...]
    infinite: tuple[Floats, ...]

    @classmethod
    def of(cls, finite: Sequence[Floats]) -> Extended:
        """Return matrices that are infinite nowhere."""
        return cls(tuple(finite), tuple(np.zeros_like(stack) for stack in finite))

    def __len__(self) -> int:
        return len(self.finite[0])

    def __add__(self, other: Extended) -> Extended:
        """Add information of independent measurements, or covariances of independent terms."""
        return Extended(
            tuple(a + b for a, b in zip(self.finite, other.finite, strict=True)),
            tuple(a + b for a, b in zip(self.infinite, other.infinite, strict=True)),
        )

    def __sub__(self, other: Extended) -> Extended:
        """Take one term out of a sum."""
        return Extended(
            tuple(a - b for a, b in zip(self.finite, other.finite, strict=True)),
            tuple(_cleaned(a - b) for a, b in zip(self.infinite, other.infinite, strict=True)),
        )

    def take(self, chosen: npt.NDArray[np.int64]) -> Extended:
        """Return the matrices of some classes."""
        return Extended(
            tuple(stack[chosen] for stack in self.finite), tuple(stack[chosen] for stack in self.infinite)
        )

    def summed(self, counts: sparse.csr_array) -> Extended:
        """Return sums over classes; `counts` says how often each enters, (sums, c)."""
        return Extended(
            tuple(summed(counts, stack) for stack in self.finite),
            tuple(summed(counts, stack) for stack in self.infinite),
        )

    def dual(self) -> Extended:
        """Return the inverse: covariance from information, or information from covariance.

        On the directions where it is infinite the inverse is zero, on those where it is zero the inverse
        is infinite, and in between it is the inverse of the matrix restricted to what is left.
        """
        pairs = [
            (_dual_numbers if finite.shape[-1] == 1 else _dual_matrices)(finite, infinite)
            for finite, infinite in zip(self.finite, self.infinite, strict=True)
        ]
        return Extended(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


def summed(counts: sparse.csr_array, stack: Floats) -> Floats:
    """Return sums of the matrices of a stack, one for each row of `counts`."""
    if not stack.any():
        return np.zeros((counts.shape[0], *stack.shape[1:]))
    flat: Floats = counts @ stack.reshape(len(stack), -1)
    return flat.reshape(counts.shape[0], *stack.shape[1:])
