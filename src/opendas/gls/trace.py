"""Total variance after least squares over a tree, and its derivative by every precision.

The variance of the least-squares estimate of each geounit's table is found by one pass up the tree and one
down, as in :mod:`opendas.gls.variances`; here every level's measurements are the same in all its geounits,
and both passes are run backwards as well, so that the derivatives of a weighted sum of all variances by all
precisions cost about as much as the sum itself.

With ``J`` the information of a subtree about its total, ``S`` its inverse, ``m`` the information that the
children's estimates have about their sum, and ``V`` the variance given everything,

    J = I + m,   m = (sum of children S)^-1                               (up)
    V = S - S m' S + S m' V' m' S                                         (down, ' for the parent)

Axes: ``q`` query groups, ``b`` blocks of one dimension ``d``, ``u`` kinds of subtrees, ``p`` kinds of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats
from opendas.gls.extended import summed, transposed
from opendas.gls.shape import Shape

__all__ = ["Trace", "TraceBlocks"]


@dataclass(frozen=True, slots=True, eq=False)
class TraceBlocks:
    """Blocks of one dimension on which the query groups act.

    Parameters
    ----------
    matrices : float64 (q, b, d, d)
        ``Q'Q`` of each query group on each block.
    wanted : float64 (q, b, d, d)
        What the sum of the variances of a query group's rows is of the covariance of each block: the sum
        over rows, and copies of the block, of the outer products of a row's coefficients.
    """

    matrices: Floats
    wanted: Floats

    @classmethod
    def counts(cls) -> TraceBlocks:
        """Return the one block of a hierarchy of single counts."""
        return cls(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The sum of variances as a function of precisions.

    Parameters
    ----------
    shape : Shape
    blocks : tuple of TraceBlocks
        One for each dimension.
    targets : float64 (levels, q)
        Weight of each query group's variances, summed over rows and geounits of the level.
    """

    shape: Shape
    blocks: tuple[TraceBlocks, ...]
    targets: Floats

    def value(self, precisions: Floats) -> float:
        """Return the weighted sum of variances for precisions, one over variance of noise, (levels, q)."""
        return sum(_passes(self.shape, one, precisions, self.targets, back=False)[0] for one in self.blocks)

    def value_and_gradient(self, precisions: Floats) -> tuple[float, Floats]:
        """Return the weighted sum of variances and its derivatives by the precisions, (levels, q)."""
        value, gradient = 0.0, np.zeros_like(precisions)
        for one in self.blocks:
            part, slope = _passes(self.shape, one, precisions, self.targets, back=True)
            value += part
            gradient += slope
        return value, gradient

    def parts(self, precisions: Floats) -> Floats:
        """Return the unweighted sum of variances of each query group at each level, (levels, q)."""
        found = np.zeros_like(self.targets)
        for one in self.blocks:
            up = _up(self.shape, one, precisions)
            for level, (variance, places) in enumerate(
                zip(_down(self.shape, up), self.shape.places, strict=True)
            ):
                total = np.tensordot(places.count, variance, axes=1)
                found[level] += np.einsum("qbij,bij->q", one.wanted, total)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Up:
    """Per level: S of each kind of subtree, and m where there are children."""

    subtree: list[Floats]
    children: list[Floats]


def _up(shape: Shape, blocks: TraceBlocks, precisions: Floats) -> _Up:
    own = np.tensordot(precisions, blocks.matrices, axes=(1, 0))
    subtree = [_inverse(own[-1][None])]
    children: list[Floats] = []
    for level in range(len(shape) - 2, -1, -1):
        children.append(_inverse(summed(shape.children[level], subtree[-1])))
        subtree.append(_inverse(own[level] + children[-1]))
    return _Up(subtree[::-1], children[::-1])


def _down(shape: Shape, up: _Up) -> list[Floats]:
    variance = [up.subtree[0][shape.places[0].subtree]]
    for level in range(1, len(shape)):
        places, above = shape.places[level], shape.places[level - 1]
        s = up.subtree[level][places.subtree]
        m = up.children[level - 1][above.subtree]
        # S - S (m - m V m) S: the middle is one matrix a parent.
        middle = (m - _product(_product(m, variance[-1]), m))[places.above]
        variance.append(s - _product(_product(s, middle), s))
    return variance


def _passes(
    shape: Shape, blocks: TraceBlocks, precisions: Floats, targets: Floats, *, back: bool
) -> tuple[float, Floats]:
    up = _up(shape, blocks, precisions)
    variance = _down(shape, up)
    wanted: Floats = np.tensordot(targets, blocks.wanted, axes=(1, 0))
    value = sum(
        float((np.tensordot(places.count, v, axes=1) * w).sum())
        for places, v, w in zip(shape.places, variance, wanted, strict=True)
    )
    if not back:
        return value, np.zeros_like(precisions)
    return value, _backwards(shape, blocks, up, variance, wanted)


def _backwards(shape: Shape, blocks: TraceBlocks, up: _Up, variance: list[Floats], wanted: Floats) -> Floats:
    """Run both passes in reverse: the derivative by each intermediate matrix, from last to first."""
    by_subtree = [np.zeros_like(stack) for stack in up.subtree]
    by_children = [np.zeros_like(stack) for stack in up.children]
    by_variance = _weighted(shape.places[-1].count, wanted[-1])
    for level in range(len(shape) - 1, 0, -1):
        places, above = shape.places[level], shape.places[level - 1]
        s = up.subtree[level][places.subtree]
        m = up.children[level - 1][above.subtree]
        v = variance[level - 1]
        middle = (m - _product(_product(m, v), m))[places.above]
        half = _product(_product(middle, s), by_variance)
        _gather(by_subtree[level], places.subtree, by_variance - half - transposed(half))
        through = _product(_product(s, by_variance), s)
        square = np.zeros_like(v)
        _gather(square, places.above, through)
        half = _product(_product(v, m), square)
        _gather(by_children[level - 1], above.subtree, half + transposed(half) - square)
        by_variance = _weighted(above.count, wanted[level - 1]) + _product(_product(m, square), m)
    _gather(by_subtree[0], shape.places[0].subtree, by_variance)
    gradient = np.empty((len(shape), len(blocks.matrices)))
    for level in range(len(shape)):
        s = up.subtree[level]
        by_information = -_product(_product(s, by_subtree[level]), s)
        gradient[level] = np.einsum("qbij,bij->q", blocks.matrices, by_information.sum(axis=0))
        if level + 1 < len(shape):
            m = up.children[level]
            by_sum = -_product(_product(m, by_children[level] + by_information), m)
            by_subtree[level + 1] += summed(shape.children[level].T.tocsr(), by_sum)
    return gradient


def _weighted(count: Floats, wanted: Floats) -> Floats:
    return np.asarray(count[:, None, None, None] * wanted, dtype=np.float64)


def _gather(into: Floats, index: npt.NDArray[np.int64], stack: Floats) -> None:
    """Add matrices to those at their index, which may repeat."""
    columns = stack.reshape(len(stack), -1)
    flat = into.reshape(len(into), -1)
    for column in range(columns.shape[1]):
        flat[:, column] += np.bincount(index, columns[:, column], minlength=len(flat))


def _product(a: Floats, b: Floats) -> Floats:
    product: Floats = a * b if a.shape[-1] == 1 else a @ b
    return product


def _inverse(stack: Floats) -> Floats:
    """Invert symmetric matrices; what is not known at all has infinite variance only as a number."""
    if stack.shape[-1] == 1:
        with np.errstate(divide="ignore"):
            numbers: Floats = 1.0 / stack
        return numbers
    found: Floats = np.asarray(np.linalg.inv(stack), dtype=np.float64)
    inverse: Floats = (found + transposed(found)) / 2
    return inverse
