"""The cell space for least squares with masks: dense categories times blocks of the other attributes.

Structural zeros and closed categories single out cells by some attributes only. Those attributes are kept as
they are (the dense ones); the others are split into the blocks on which query groups act
(:mod:`opendas.gls.blocks`). Every operator that least squares meets is then, for each kind of
block, one small symmetric matrix over dense categories times the block's dimension, and a mask on dense
categories is a mask on its rows. So the masks are exact, and a schema of 2,016 cells comes down to four
matrices of 16 x 16.

Axes: ``n`` cells, ``k`` dense categories, ``e`` cells (or coordinates) of the other attributes, ``d``
dimension of a block, ``b`` kinds of blocks of one dimension, ``q`` query groups, ``N`` vectors or geounits,
``U`` different matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import ConfigError
from opendas.gls.blocks import LARGEST_BLOCK, Algebra, AttributeBasis, BlockKinds, build_algebra
from opendas.gls.kernels import Transform, from_blocks, to_blocks
from opendas.gls.pairs import MOST_CELLS, Pairs
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup, Workload

__all__ = ["Domain"]


_NOTHING = Attribute("(nothing)", ("all",))
"""Stands for the other attributes where all are dense."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Cells of a product as dense categories times blocks. Made by :meth:`build`.

    Parameters
    ----------
    queries : tuple of QueryGroup
        In the order of every axis ``q``.
    possible : bool (k, e)
        Cells that are no structural zero; depends on the dense category alone.
    cell : int64 (k, e)
        Cell at each place.
    kinds : tuple of BlockKinds
        By dimension, the smallest first.
    transform : Transform
        Of cells of the other attributes into coordinates.
    algebra : Algebra
        Of the other attributes.
    others : Workload
        Query groups of the other attributes.
    """

    queries: tuple[QueryGroup, ...]
    possible: Bools
    cell: Ints
    kinds: tuple[BlockKinds, ...]
    transform: Transform
    algebra: Algebra
    others: Workload

    @classmethod
    def build(cls, product: Product, queries: Sequence[QueryGroup], closing: Bools) -> Domain:
        """Choose the dense attributes and find the blocks of the others.

        Parameters
        ----------
        queries : sequence of QueryGroup
            All that are measured or published exactly, at any geolevel.
        closing : bool (B, n)
            Cells of each bound that closes its cells in some leaf.

        Raises
        ------
        ConfigError
            If a matrix would have more than 1,000 rows.
        """
        schema = product.schema
        masks = np.vstack([product.possible[None], closing]).reshape(-1, *schema.shape)
        dense = tuple(
            axis
            for axis in range(len(schema.shape))
            if np.any(masks != masks.take([0], axis=axis + 1))  # the mask tells levels apart
        )
        rest = tuple(axis for axis in range(len(schema.shape)) if axis not in dense)
        k = int(np.prod([schema.shape[axis] for axis in dense], dtype=np.int64))
        cell = np.arange(schema.size).reshape(schema.shape).transpose(*dense, *rest).reshape(k, -1)
        others = Schema(tuple(schema.attributes[axis] for axis in rest) or (_NOTHING,))
        recodes = tuple(r for r in product.recodes if r.attribute in others.names)
        workload = Workload(others, recodes)
        positions = product.workload.positions
        parts = [
            workload.group(" * ".join(f for f in query.factors if positions[f] in rest) or "total")
            for query in queries
        ]
        distinct = {part.name: part for part in parts} or {"total": workload.group("total")}
        algebra = build_algebra(others, recodes, tuple(distinct.values()))
        codes = [_dense_codes(query, cell) for query in queries]
        which = [list(distinct).index(part.name) for part in parts]
        kinds, order = _kinds(algebra, codes, which, k)
        return cls(
            tuple(queries),
            product.possible[cell],
            cell,
            kinds,
            Transform(*_axes(others.shape, algebra.bases), order),
            algebra,
            workload,
        )

    @property
    def cells(self) -> int:
        """Number of cells ``n``."""
        return int(self.cell.size)

    @property
    def categories(self) -> int:
        """Number of dense categories ``k``."""
        return int(self.cell.shape[0])

    @cached_property
    def _in_order(self) -> bool:
        return bool(np.array_equal(self.cell.ravel(), np.arange(self.cells)))

    @cached_property
    def every(self) -> Bools:
        """Dense categories that are possible, bool (k,)."""
        return np.asarray(self.possible.any(axis=1))

    @cached_property
    def pairs(self) -> Pairs | None:
        """Operators as sums over places; None where they have no such form."""
        others = self.cell.shape[1]
        if others > MOST_CELLS:
            return None
        basis = self.from_blocks(np.eye(others)[:, None, :])[:, 0, :]
        return Pairs.build(self.cell, self.others.schema.shape, self.algebra.bases, self.kinds, basis)

    def categories_of(self, cells: Bools) -> Bools:
        """Return the dense categories, bool (..., k), of cells, bool (..., n), that depend on them alone."""
        found: Bools = cells[..., self.cell[:, 0]]
        return found

    def cells_of(self, allowed: Bools) -> Bools:
        """Return bool (..., n) from dense categories, bool (..., k)."""
        found = np.zeros((*allowed.shape[:-1], self.cells), dtype=bool)
        found[..., self.cell.ravel()] = np.repeat(allowed, self.cell.shape[1], axis=-1)
        return found

    def placed(self, x: Floats) -> Floats:
        """Return cell vectors, float64 (N, n), by dense category, as a new array (N, k, e)."""
        found = x.copy() if self._in_order else x[:, self.cell.ravel()]
        return found.reshape(len(x), *self.cell.shape)

    def unplaced(self, x: Floats) -> Floats:
        """Undo :meth:`placed`."""
        flat = x.reshape(len(x), self.cells)
        if self._in_order:
            return flat
        found = np.empty_like(flat)
        found[:, self.cell.ravel()] = flat
        return found

    def to_blocks(self, x: Floats, allowed: Bools | None = None) -> Floats:
        """Turn vectors by dense category, (N, k, e), into coordinates in block order; overwrites `x`.

        The coordinates are orthonormal. Categories not in `allowed`, bool (N, k), must be zero.
        """
        some = np.ones(x.shape[:2], dtype=bool) if allowed is None else allowed
        found = np.zeros_like(x)
        to_blocks(x, self.transform, some, found)
        return found

    def from_blocks(self, x: Floats, allowed: Bools | None = None) -> Floats:
        """Undo :meth:`to_blocks`; keeps `x`."""
        some = np.ones(x.shape[:2], dtype=bool) if allowed is None else allowed
        found = np.zeros_like(x)
        from_blocks(x, self.transform, some, found)
        return found

    def forward(self, x: Floats, allowed: Bools | None = None) -> Floats:
        """Return the coordinates, (N, k, e) in block order, of cell vectors, float64 (N, n).

        Categories not in `allowed`, bool (N, k), must be zero.
        """
        return self.to_blocks(self.placed(np.asarray(x, dtype=np.float64)), allowed)

    def backward(self, x: Floats, allowed: Bools | None = None) -> Floats:
        """Return the cell vectors, float64 (N, n), of coordinates (N, k, e); likewise."""
        return self.unplaced(self.from_blocks(x, allowed))

    def information(self, weights: Floats) -> tuple[Floats, ...]:
        """Return ``sum_q w_q Q_q'Q_q`` for rows of weights, float64 (U, q): stacks (U, b, k d, k d)."""
        return tuple(np.tensordot(weights, kind.matrices, axes=(1, 0)) for kind in self.kinds)


def _dense_codes(query: QueryGroup, cell: Ints) -> Ints:
    """Return which dense categories a query group tells apart, int64 (k,)."""
    _, codes = np.unique(query.row_of_cell[cell[:, 0]], return_inverse=True)
    return codes.ravel().astype(np.int64)


def _kinds(
    algebra: Algebra, codes: Sequence[Ints], which: Sequence[int], k: int
) -> tuple[tuple[BlockKinds, ...], Ints]:
    """Multiply the blocks of the other attributes with the dense categories, and lay them out."""
    alike = [np.asarray(code[:, None] == code[None, :], dtype=np.float64) for code in codes]
    shape = tuple(basis.coordinates for basis in algebra.bases)
    kinds = []
    order: list[Ints] = []
    offset = 0
    for blocks in algebra.blocks:
        count, d = blocks.matrices.shape[1], blocks.matrices.shape[2]
        if k * d > LARGEST_BLOCK:
            raise ConfigError(
                f"structural zeros, bounds and recodes of this product hang together over {k} x {d} "
                f"categories; least squares over the whole tree is done for at most {LARGEST_BLOCK}. Use "
                "nested recodes, or bounds and structural zeros over fewer attributes."
            )
        matrices = np.zeros((len(codes), count, k * d, k * d))
        for q, (dense, part) in enumerate(zip(alike, which, strict=True)):
            for b in range(count):
                matrices[q, b] = np.kron(dense, blocks.matrices[part, b])
        ends = [*blocks.starts[1:].tolist(), len(blocks.coordinates)]
        offsets, copies = [], []
        for start, end in zip(blocks.starts.tolist(), ends, strict=True):
            real = np.concatenate(
                [_expanded(c, shape, algebra.bases) for c in blocks.coordinates[start:end]], axis=1
            )
            offsets.append(offset)
            copies.append(real.shape[1])
            order.append(real.ravel())
            offset += real.size
        kinds.append(BlockKinds(d, np.array(offsets), np.array(copies), matrices))
    return tuple(kinds), np.concatenate(order)


def _expanded(coordinates: Ints, shape: tuple[int, ...], bases: Sequence[AttributeBasis]) -> Ints:
    """Return int64 (d, copies): one block's coordinates, with each attribute's rest written out.

    Query groups do the same on all of the rest, so that coordinates of one block have it in the same
    attributes, and each direction of it makes a copy.
    """
    sizes = [len(basis.vectors) for basis in bases]
    places = np.unravel_index(coordinates, shape)
    choices = []
    for place, basis in zip(places, bases, strict=True):
        explicit = basis.vectors.shape[1]
        choices.append(np.arange(basis.inside) if place[0] == explicit else np.zeros(1, dtype=np.int64))
    grids = [grid.ravel() for grid in np.meshgrid(*choices, indexing="ij")]
    index = tuple(place[:, None] + grid[None, :] for place, grid in zip(places, grids, strict=True))
    found: Ints = np.ravel_multi_index(index, sizes).astype(np.int64)
    return found


def _axes(shape: tuple[int, ...], bases: Sequence[AttributeBasis]) -> tuple[Ints, Floats]:
    """Return place and vector of each reflection, one attribute after the other."""
    places: list[tuple[int, int, int]] = []
    rows: list[Floats] = []
    for position, (size, basis) in enumerate(zip(shape, bases, strict=True)):
        before = int(np.prod(shape[:position], dtype=np.int64))
        after = int(np.prod(shape[position + 1 :], dtype=np.int64))
        for vector in _reflections(basis.vectors):
            places.append((before, size, after))
            rows.append(vector)
    vectors = np.zeros((len(rows), max(shape)))
    for i, row in enumerate(rows):
        vectors[i, : len(row)] = row
    return np.array(places, dtype=np.int64).reshape(-1, 3), vectors


def _reflections(vectors: Floats) -> Floats:
    """Return reflections, float64 (r, n), that take orthonormal columns, (n, r), to the first unit vectors.

    What is orthogonal to all of them goes to the other coordinates: an orthonormal basis of the rest that
    is never written out.
    """
    left = vectors.copy()
    found = np.zeros((vectors.shape[1], len(vectors)))
    for j in range(vectors.shape[1]):
        v = left[:, j].copy()
        v[j] -= 1.0
        length = float(np.sqrt(v @ v))
        if length > 0.0:
            v *= np.sqrt(2.0) / length
            left -= np.outer(v, v @ left)
        found[j] = v
    return found[np.any(found != 0.0, axis=1)]
