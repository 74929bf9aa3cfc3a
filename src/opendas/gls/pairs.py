"""Operators on cells as sums over places: the form in which families are solved fastest.

One of the attributes that no mask touches is taken as the place of a cell, all else that tells cells apart as
its kind (:mod:`opendas.solvers.least_squares.paired`). On the functions of that attribute that its recodes
cannot see, an
operator does the same in every direction, so between two different places it has one value, and in one place
another: two small matrices say all. Where an attribute of that sort is missing, or kinds are too many, there
is no such form, and :class:`~opendas.gls.operators.Supported` is what there is.

Axes: ``e`` cells of the other attributes, ``k`` dense categories, ``a`` kinds of those cells (what the other
attributes but one say, and the atom of that one's recodes), ``b`` kinds of blocks, ``d`` their dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from opendas.arrays import Floats, Ints
from opendas.gls.blocks import AttributeBasis, BlockKinds
from opendas.solvers.least_squares.paired import PairedCurvature
from opendas.solvers.rows import without_gaps

__all__ = ["Pairs"]

MOST_CELLS = 1_000
"""Cells of the other attributes beyond which the form is not looked for."""
MOST_OTHER_KINDS = 64
"""Likewise their kinds."""
MOST_KINDS = 200
"""Kinds in a family, dense categories included, beyond which it is not worth while."""
ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class Pairs:
    """How the entries of an operator follow from its blocks. Made by :meth:`build`.

    Parameters
    ----------
    kind, place : int64 (e,)
        Of each cell of the other attributes.
    across, within : tuple of float64 (b, d, d, a, a)
        Per dimension of blocks: what each of their entries adds between two places, and within one beside.
    column, category : int64 (n,)
        Cell of the other attributes, and dense category, of every cell of the domain.
    """

    kind: Ints
    place: Ints
    across: tuple[Floats, ...]
    within: tuple[Floats, ...]
    column: Ints
    category: Ints

    @classmethod
    def build(
        cls,
        cell: Ints,
        shape: tuple[int, ...],
        bases: Sequence[AttributeBasis],
        blocks: Sequence[BlockKinds],
        basis: Floats,
    ) -> Pairs | None:
        """Find the form with the fewest kinds; None where there is none.

        Parameters
        ----------
        cell : int64 (k, e)
            Cell at each place.
        shape : tuple of int
            Of the other attributes.
        bases : sequence of AttributeBasis
            Of each of them.
        basis : float64 (e, e)
            Each coordinate, in block order, as a function of the other cells.
        """
        candidates = sorted(_candidates(shape, bases), key=lambda pair: int(pair[0].max()))
        if not candidates or candidates[0][0].max() >= MOST_OTHER_KINDS:
            return None
        kind, place = candidates[0]
        entries = [_entries(block, basis) for block in blocks]
        split = [_split(of, kind, place) for of in entries]
        if not all(_has_form(of, *both, kind, place) for of, both in zip(entries, split, strict=True)):
            return None
        at = np.empty(cell.size, dtype=np.int64)
        at[cell.ravel()] = np.arange(cell.size)
        category, column = np.divmod(at, cell.shape[1])
        across, within = zip(*split, strict=True)
        return cls(kind, place, across, within, column, category)

    def curvature(
        self, stacks: Sequence[Floats], which: Ints, support: npt.NDArray[np.integer]
    ) -> PairedCurvature | None:
        """Return operators (:class:`~opendas.gls.operators.Operators`) on some cells, if kinds are few."""
        a = int(self.kind.max()) + 1
        column = self.column[support]
        full = self.category[support] * a + self.kind[column]
        kind = without_gaps(full.astype(np.int32))
        kinds = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
        if len(kinds) > MOST_KINDS:
            return None
        kinds[kind] = full
        category, other = np.divmod(kinds, a)
        alpha = np.zeros((len(which), len(kinds), len(kinds)))
        beta = np.zeros_like(alpha)
        for stack, across, within in zip(stacks, self.across, self.within, strict=True):
            _add(stack, which, category, other, across, within, alpha, beta)
        return PairedCurvature(alpha, beta, kind.astype(np.int64), self.place[column])


@njit(cache=True, nogil=True)
def _add(
    stack: Floats,
    which: Ints,
    category: Ints,
    other: Ints,
    across: Floats,
    within: Floats,
    alpha: Floats,
    beta: Floats,
) -> None:
    """Add the blocks of one dimension to alpha and beta of every child, for kinds (category, other)."""
    K, d = len(category), across.shape[1]
    far, near = np.empty((K, K)), np.empty((K, K))
    at = np.empty(K, np.int64)
    for b in range(stack.shape[1]):
        for i in range(d):
            for j in range(d):
                some = False
                for k in range(K):
                    at[k] = category[k] * d + j
                    for o in range(K):
                        far[k, o] = across[b, i, j, other[k], other[o]]
                        near[k, o] = within[b, i, j, other[k], other[o]]
                        some = some or far[k, o] != 0.0 or near[k, o] != 0.0
                if not some:
                    continue
                for c in range(len(which)):
                    matrix = stack[which[c], b]
                    for k in range(K):
                        row = matrix[category[k] * d + i]
                        for o in range(K):
                            value = row[at[o]]
                            alpha[c, k, o] += far[k, o] * value
                            beta[c, k, o] += near[k, o] * value


def _candidates(shape: tuple[int, ...], bases: Sequence[AttributeBasis]) -> list[tuple[Ints, Ints]]:
    """Kind and place of each of the other cells, int64 (e,), for every attribute that can be the place."""
    codes = np.array(np.unravel_index(np.arange(np.prod(shape)), shape))
    found = []
    for axis, basis in enumerate(bases):
        if not basis.inside:
            continue
        _, atoms = np.unique(np.round(basis.vectors, 9), axis=0, return_inverse=True)
        both = np.vstack([np.delete(codes, axis, axis=0), atoms.ravel()[codes[axis]][None]])
        _, kind = np.unique(both, axis=1, return_inverse=True)
        found.append((kind.ravel().astype(np.int64), codes[axis].astype(np.int64)))
    return found


def _entries(block: BlockKinds, basis: Floats) -> Floats:
    """What each entry of a block adds to the matrix over other cells: (b, d, d, e, e)."""
    d, e = block.dimension, len(basis)
    entries = np.zeros((len(block.offsets), d, d, e, e))
    for b, (offset, copies) in enumerate(zip(block.offsets, block.copies, strict=True)):
        rows = basis[offset : offset + d * copies].reshape(d, copies, e)
        # einsum, not BLAS: a fixed order of summation
        entries[b] = np.einsum("icp,jcq->ijpq", rows, rows)
    entries[np.abs(entries) < ROUNDING] = 0.0
    return entries


def _split(entries: Floats, kind: Ints, place: Ints) -> tuple[Floats, Floats]:
    """Values between two places, and what comes on top within one, for each pair of kinds."""
    a = int(kind.max()) + 1
    across = np.zeros((*entries.shape[:3], a, a))
    together = np.zeros_like(across)
    for k in range(a):
        for o in range(a):
            first, second = np.flatnonzero(kind == k), np.flatnonzero(kind == o)
            apart = place[first][:, None] != place[second][None, :]
            for target, pairs in ((across, apart), (together, ~apart)):
                if pairs.any():
                    i, j = np.argwhere(pairs)[0]
                    target[..., k, o] = entries[..., first[i], second[j]]
    met = [[bool(np.isin(place[kind == k], place[kind == o]).any()) for o in range(a)] for k in range(a)]
    return across, np.where(met, together - across, 0.0)


def _has_form(entries: Floats, across: Floats, within: Floats, kind: Ints, place: Ints) -> bool:
    """Whether every entry follows from the kinds, and whether the places are the same."""
    made = across[..., kind[:, None], kind[None, :]]
    same = place[:, None] == place[None, :]
    made = made + np.where(same, within[..., kind[:, None], kind[None, :]], 0.0)
    return bool(np.abs(made - entries).max(initial=0.0) <= 10.0 * ROUNDING)
