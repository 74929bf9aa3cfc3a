"""Information and covariance matrices with exact and unknown directions, and their algebra.

An information matrix may be infinite in some directions (published exactly), a covariance matrix likewise
(never measured). Both are stored as two positive semidefinite matrices: the finite part, and one whose range
is the infinite directions. Inversion exchanges the two: infinite information means zero variance, and zero
information means infinite variance.

Axes: ``c`` classes of geounits, ``b`` blocks of one dimension, ``d`` that dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from opendas.arrays import Floats, Ints

Stacks = tuple[Floats, ...]
"""One stack of matrices, float64 (c, b, d, d), for each dimension of blocks."""

_RANK = 1e-12
"""An eigenvalue below this part of their sum is zero. Weights of one block span some nine powers of ten."""

_INFINITE = 1e-6
"""Infinite parts are sums of projections: their eigenvalues are zero, or of the order of one."""

_CLEAN = 1e-9

_ROUNDING = 1e-13
"""A conditional covariance below this part of the unconditional one is zero but for rounding."""


def transposed(stack: Floats) -> Floats:
    """Transpose each matrix of a stack."""
    return np.swapaxes(stack, -1, -2)


def product(a: Floats, b: Floats) -> Floats:
    """Multiply the matrices of two stacks."""
    found: Floats = a * b if a.shape[-1] == 1 else a @ b
    return found


def symmetric(stack: Floats) -> Floats:
    """Remove rounding errors from matrices that are symmetric."""
    return (stack + transposed(stack)) * 0.5


def _cleaned(infinite: Floats) -> Floats:
    """Remove rounding errors, so that "infinite nowhere" is exactly zero."""
    infinite[np.abs(infinite) < _CLEAN] = 0.0
    return infinite


def without_rounding(rest: Floats, square: Floats) -> Floats:
    """Remove rounding errors from what is left of the covariances `square`: zero becomes exactly zero."""
    rest = symmetric(rest)
    largest = np.abs(square).max(axis=(-1, -2), keepdims=True)
    return np.where(np.abs(rest) <= _ROUNDING * largest, 0.0, rest)


def _inverse(stack: Floats) -> Floats:
    """Invert positive definite matrices."""
    if stack.shape[-1] == 1:
        with np.errstate(divide="ignore"):
            numbers: Floats = 1.0 / stack
        return numbers
    return symmetric(np.asarray(np.linalg.inv(stack), dtype=np.float64))


def _dual_numbers(finite: Floats, infinite: Floats | None) -> tuple[Floats, Floats]:
    exact = np.zeros(finite.shape, dtype=bool) if infinite is None else infinite > 0
    some = (finite > 0) & ~exact
    inverse = np.zeros_like(finite)
    np.divide(1.0, finite, out=inverse, where=some)
    return inverse, np.where(some | exact, 0.0, 1.0)


def _dual_matrices(finite: Floats, infinite: Floats | None) -> tuple[Floats, Floats]:
    shape = finite.shape
    matrices = finite.reshape(-1, *shape[-2:])
    scale = np.trace(matrices, axis1=1, axis2=2)[:, None]  # before directions are taken out
    exact = np.zeros((0, *shape[-2:])) if infinite is None else infinite.reshape(-1, *shape[-2:])
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
    """Symmetric positive semidefinite matrices that may be infinite in some directions."""

    # (c, b, d, d): one stack for each dimension of blocks; zero in the directions of `infinite`.
    finite: Stacks
    # (c, b, d, d): positive in the directions where a matrix is infinite; None for nowhere.
    infinite: Stacks | None = None

    def __len__(self) -> int:
        return len(self.finite[0])

    def __add__(self, other: Extended) -> Extended:
        """Add information of independent measurements, or covariances of independent terms."""
        finite = tuple(a + b for a, b in zip(self.finite, other.finite, strict=True))
        if self.infinite is None or other.infinite is None:
            return Extended(finite, other.infinite if self.infinite is None else self.infinite)
        return Extended(finite, tuple(a + b for a, b in zip(self.infinite, other.infinite, strict=True)))

    @classmethod
    def of(cls, finite: Sequence[Floats], infinite: Sequence[Floats]) -> Extended:
        """Return matrices whose infinite parts may be zero everywhere."""
        return cls(tuple(finite), tuple(infinite) if any(stack.any() for stack in infinite) else None)

    @classmethod
    def joined(cls, parts: Sequence[Extended]) -> Extended:
        """Return the matrices of several runs of classes, one after the other."""
        finite = tuple(np.concatenate(stacks) for stacks in zip(*(p.finite for p in parts), strict=True))
        if all(part.infinite is None for part in parts):
            return cls(finite)
        infinite = (part.infinite or tuple(np.zeros_like(stack) for stack in part.finite) for part in parts)
        return cls(finite, tuple(np.concatenate(stacks) for stacks in zip(*infinite, strict=True)))

    def each(self, act: Callable[[Floats], Floats]) -> Extended:
        """Return what a linear function makes of every stack."""
        infinite = None if self.infinite is None else tuple(act(stack) for stack in self.infinite)
        return Extended(tuple(act(stack) for stack in self.finite), infinite)

    def take(self, chosen: Ints) -> Extended:
        """Return the matrices of some classes."""
        return self.each(lambda stack: stack[chosen])

    def summed(self, counts: sparse.csr_array) -> Extended:
        """Return sums over classes; `counts` says how often each enters, (sums, c)."""
        return self.each(lambda stack: summed(counts, stack))

    def parts(self) -> Iterator[tuple[Floats, Floats | None]]:
        """Yield the finite and the infinite part of each dimension of blocks."""
        yield from zip(self.finite, self.infinite or itertools.repeat(None), strict=False)

    def dual(self, *, plain: bool = False) -> Extended:
        """Return the inverse: covariance from information, or information from covariance.

        On the directions where it is infinite the inverse is zero, on those where it is zero the inverse
        is infinite, and in between it is the inverse of the matrix restricted to what is left.

        `plain`: every matrix is positive definite, and infinite nowhere.
        """
        if plain:
            return Extended(tuple(_inverse(stack) for stack in self.finite))
        pairs = (
            (_dual_numbers if finite.shape[-1] == 1 else _dual_matrices)(finite, infinite)
            for finite, infinite in self.parts()
        )
        return Extended.of(*zip(*pairs, strict=True))


def summed(counts: sparse.csr_array, stack: Floats) -> Floats:
    """Return sums of the matrices of a stack, one for each row of `counts`."""
    if not stack.any():
        return np.zeros((counts.shape[0], *stack.shape[1:]))
    flat: Floats = counts @ stack.reshape(len(stack), -1)
    return flat.reshape(counts.shape[0], *stack.shape[1:])


class Regression(NamedTuple):
    """A sum below geounits as ``gain @ total + rest``, the rest independent of the geounit's total."""

    gain: Floats  # (c, b, r, d)
    # rest, loose (c, b, r, r): covariance of the rest, and the directions in which it is unknown.
    rest: Floats
    loose: Floats | None


def regression(
    cross: Floats,
    square: Floats,
    total: Floats,
    information: Floats,
    unknown: tuple[Floats, Floats, Floats] | None = None,
) -> Regression:
    """Regress sums over parts of geounits on the geounits' totals.

    Given the total of a geounit, its subtree is independent of everything outside. The pass down, and sums
    over leaves that are not a geounit, need nothing else.

    - `cross` (c, b, d, d): ``C``: covariance of the sum with the sum of all children, from their subtrees.
    - `square` (c, b, d, d): covariance of the sum.
    - `total`, `information` (c, b, d, d): covariance ``S`` of the sum of all children, and its inverse.
    - `unknown` (through, lost, total): the unknown directions of cross, square and total, if there are any.

    Notes
    -----
    ``gain = C S^-1``, ``rest = square - C S^-1 C'``. Where children are unknown, the parent's total is all
    there is to know: all of them must carry the same gain, or the sum has no finite variance.
    """
    if unknown is None:
        gain = product(cross, information)
        return Regression(gain, without_rounding(square - product(gain, transposed(cross)), square), None)
    through, lost, loose = unknown
    shares: Floats = np.asarray(np.linalg.pinv(loose, rcond=_CLEAN, hermitian=True), dtype=np.float64)
    fixed = product(through, shares)
    back = transposed(fixed)
    lost = lost + product(product(fixed, loose), back)
    lost -= product(through, back) + product(fixed, transposed(through))
    square = square + product(product(fixed, total), back)
    square -= product(cross, back) + product(fixed, transposed(cross))
    cross = cross - product(fixed, total)
    slope = product(cross, information)
    return Regression(
        fixed + slope, without_rounding(square - product(slope, transposed(cross)), square), _cleaned(lost)
    )


def conditional(
    own: Extended, total: Extended, information: Extended, given: Extended
) -> tuple[Stacks, Extended]:
    """Take one step down a tree: from the estimates of parents from all measurements to those of children.

    - `own`, `total`, `information`, `given`: ``V`` of each child from its subtree, ``S`` of the sum of its
      family and the inverse, ``Var`` of its parent.
    - Returns `gain`, `covariance`: ``V S^-1``, and ``Var`` of each child: ``V + V (S^-1 Var S^-1 - S^-1) V``,
      where nothing is unknown.
    """
    gains, finite, infinite = [], [], []
    for (v, mine), (s, sums), j, (var, above) in zip(
        own.parts(), total.parts(), information.finite, given.parts(), strict=True
    ):
        step = regression(v, v, s, j, None if mine is None or sums is None else (mine, mine, sums))
        back = transposed(step.gain)
        lost = np.zeros_like(v) if step.loose is None else step.loose
        if above is not None:
            lost = lost + product(product(step.gain, above), back)
        gains.append(step.gain)
        finite.append(without_rounding(product(product(step.gain, var), back) + step.rest, v))
        infinite.append(lost)
    return tuple(gains), Extended.of(finite, infinite)
