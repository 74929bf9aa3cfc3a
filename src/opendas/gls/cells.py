"""The cell space for least squares with masks: dense categories times blocks of the other attributes.

Structural zeros and closed categories depend on some attributes only. Those attributes are kept as they are
(the dense ones); the others are divided into the blocks on which query groups act
(:mod:`opendas.gls.blocks`). For each kind of block, every operator of least squares is then one small
symmetric matrix over dense categories times the block's dimension, and a mask on dense categories is a mask
on its rows. So the masks are exact, and a schema of 2,016 cells reduces to four matrices of 16 x 16.

Axes: ``n`` cells, ``k`` dense categories, ``e`` cells (or coordinates) of the other attributes, ``d``
dimension of a block, ``b`` kinds of blocks of one dimension, ``q`` query groups, ``N`` vectors or geounits,
``U`` different matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numba import njit

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import without_gaps
from opendas.errors import ConfigError
from opendas.gls.blocks import LARGEST_BLOCK, Algebra, AttributeBasis, BlockKinds, build_algebra
from opendas.gls.kernels import Transform, from_blocks, to_blocks
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup, Workload
from opendas.solvers.least_squares.paired import PairedCurvature

# Operators on cells as sums over places: the form in which families are solved fastest.
#
# One of the attributes that no mask touches is taken as the place of a cell, all else that tells cells apart
# as its kind (see the module `paired` of the solvers). On the functions of that attribute that its recodes
# cannot see, an operator does the same in every direction, so between two different places it has one value,
# and in one place another: two small matrices say all. Where an attribute of that sort is missing, or kinds
# are too many, there is no such form, and `Supported` (see `operators`) is what there is.
#
# Axes: ``a`` kinds of the cells of the other attributes (what these but one say, and the atom of that one's
# recodes), ``b`` kinds of blocks, ``d`` their dimension.

MOST_CELLS = 1_000
"""Cells of the other attributes beyond which the form is not looked for."""
MOST_OTHER_KINDS = 64
"""Likewise their kinds."""
MOST_KINDS = 200
"""Kinds in a family, dense categories included, beyond which it is not worth while."""
ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class Pairs:
    """How the entries of an operator follow from its blocks. Made by :meth:`build`."""

    # kind, place (e,): of each cell of the other attributes.
    kind: Ints
    place: Ints
    # across, within (b, d, d, a, a): per dimension of blocks: what each of their entries adds between two
    # places, and within one beside.
    across: tuple[Floats, ...]
    within: tuple[Floats, ...]
    # column, category (n,): cell of the other attributes, and dense category, of every cell of the domain.
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

        - `cell` (k, e): cell at each place.
        - `shape`: of the other attributes.
        - `bases`: of each of them.
        - `basis` (e, e): each coordinate, in block order, as a function of the other cells.
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


_NOTHING = Attribute("(nothing)", ("all",))
"""Stands for the other attributes where all are dense."""


def dense_axes(
    product: Product, queries: Sequence[QueryGroup] = (), closing: Bools | None = None
) -> tuple[int, ...]:
    """Return the attributes whose levels are told apart by structural zeros, `closing` (B, n) or draws."""
    masks: list[Ints | Bools] = [product.possible[None], *([] if closing is None else [closing])]
    masks += [query.draws[query.row_of_cell][None] for query in queries if query.draws is not None]
    told = np.vstack(masks).reshape(-1, *product.schema.shape)
    return tuple(axis for axis in range(told.ndim - 1) if np.any(told != told.take([0], axis=axis + 1)))


@dataclass(frozen=True, eq=False)
class Domain:
    """Cells of a product as dense categories times blocks. Made by :meth:`build`."""

    queries: tuple[QueryGroup, ...]  # in the order of every axis ``q``
    possible: Bools  # (k, e): cells that are no structural zero; depends on the dense category alone
    cell: Ints  # (k, e): cell at each place
    kinds: tuple[BlockKinds, ...]  # by dimension, the smallest first
    transform: Transform  # of cells of the other attributes into coordinates
    algebra: Algebra  # of the other attributes
    others: Workload  # query groups of the other attributes
    # (k,): per query group, one over the number of draws in the answer of each dense category's rows.
    shares: tuple[Floats, ...]

    @classmethod
    def build(cls, product: Product, queries: Sequence[QueryGroup], closing: Bools) -> Domain:
        """Choose the dense attributes and find the blocks of the others.

        - `queries`: all that are measured or published exactly, at any geolevel.
        - `closing` (B, n): cells of each bound that closes its cells in some leaf.

        Raises `ConfigError` if a matrix would have more than 1,000 rows.
        """
        schema, dense = product.schema, dense_axes(product, queries, closing)
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
        shares = tuple(_shares(query, cell) for query in queries)
        kinds, order = _kinds(algebra, codes, shares, which, k)
        return cls(
            tuple(queries),
            product.possible[cell],
            cell,
            kinds,
            Transform(*_axes(others.shape, algebra.bases), order),
            algebra,
            workload,
            shares,
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
    """Return which dense categories a query group distinguishes, int64 (k,)."""
    _, codes = np.unique(query.row_of_cell[cell[:, 0]], return_inverse=True)
    return codes.ravel().astype(np.int64)


def _shares(query: QueryGroup, cell: Ints) -> Floats:
    """Return one over the draws in the rows of each dense category, float64 (k,)."""
    if query.draws is None:
        return np.ones(len(cell))
    return np.asarray(1.0 / query.draws[query.row_of_cell[cell[:, 0]]])


def _kinds(
    algebra: Algebra, codes: Sequence[Ints], shares: Sequence[Floats], which: Sequence[int], k: int
) -> tuple[tuple[BlockKinds, ...], Ints]:
    """Multiply the blocks of the other attributes with the dense categories, and lay them out."""
    alike = [
        np.where(code[:, None] == code[None, :], share, 0.0)
        for code, share in zip(codes, shares, strict=True)
    ]
    shape = tuple(basis.coordinates for basis in algebra.bases)
    kinds = []
    order: list[Ints] = []
    offset = 0
    for blocks in algebra.blocks:
        count, d = blocks.matrices.shape[1], blocks.matrices.shape[2]
        if k * d > LARGEST_BLOCK:
            raise ConfigError(
                f"structural zeros, bounds and recodes of this product are coupled over {k} x {d} "
                f"categories; least squares over the whole tree takes at most {LARGEST_BLOCK}. Use "
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
