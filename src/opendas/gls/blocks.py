"""The cell space divided into small blocks on which every query group of a plan acts.

``Q'Q`` of a query group is a Kronecker product with one factor per attribute. In the bases of the attributes
(:class:`AttributeBasis`) these products couple only few coordinates. Coordinates that no query group couples
form separate blocks, and blocks on which all query groups act alike are solved once. A schema of 2,016 cells
reduces to some fifteen numbers and one matrix of dimension three, exactly.

Axes: ``q`` query groups, ``b`` blocks of one dimension, ``d`` that dimension, ``k`` classes of rows; of one
attribute, ``n`` levels, ``k`` groups of a partition, ``r`` coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy import sparse

from opendas.arrays import Floats, Ints
from opendas.errors import ConfigError
from opendas.gls.information import Extended, Stacks
from opendas.gls.kernels import Placement
from opendas.schema.attributes import Recode, Schema
from opendas.schema.query_groups import QueryGroup

_ZERO = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A partition of an attribute's levels: total, a recode, or the levels themselves.

    It acts on a function of the levels only through the function's sums over groups. Functions orthogonal to
    the indicators of all coarse partitions matter to the levels themselves alone, and all of them alike: they
    form one space, of any dimension, that is never written out.
    """

    of_level: Ints  # (n,): group of each level
    groups: int  # number of groups ``k``; some may have no level

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
    """An orthonormal basis of the functions that coarse partitions distinguish."""

    vectors: Floats  # (n, r or r - 1): the constant first, then what each partition adds, from the coarsest
    inside: int  # Dimension of the rest. If it is not zero, the rest counts as one more coordinate, the last.

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

    `partitions` (n,): total and levels themselves need not be among them.

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
    """Return a rotation of new directions: eigenvectors of how partitions act on them and through old ones.

    The weights must only differ from each other without a simple pattern.
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


LARGEST_BLOCK = 1000
"""Beyond it, one matrix a geounit would not fit; a schema with so many crossing recodes is refused."""

_DIGITS = 9
_CHUNK = 20_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of one dimension."""

    matrices: Floats  # (q, b, d, d): ``Q'Q`` of each query group on each block
    # (copies, d): coordinates of every copy of every block, copies of one block side by side.
    coordinates: Ints
    starts: Ints  # (b,): first copy of each block


@dataclass(frozen=True, eq=False)
class BlockKinds:
    """The blocks of one dimension, over dense categories (:mod:`opendas.gls.cells`)."""

    dimension: int  # ``d``
    # offsets, copies (b,): coordinate ``delta`` of copy ``j`` stands at ``offsets + delta * copies + j`` in
    # block order.
    offsets: Ints
    copies: Ints
    matrices: Floats  # (q, b, k d, k d): ``Q'Q`` of each query group; row ``kappa * d + delta``

    @property
    def placement(self) -> Placement:
        """Where the blocks stand."""
        return Placement(self.offsets, self.copies, self.dimension)


@dataclass(frozen=True, slots=True, eq=False)
class RowClasses:
    """The rows of a query group, in classes of equal variance."""

    of_row: Ints  # (m,): class of each row. Rows of one class have the same variance in every geounit.
    # (k, b, d, d): for each dimension of blocks, the sum over copies of the outer product of a row's
    # coefficients.
    outer: tuple[Floats, ...]

    def __len__(self) -> int:
        return len(self.outer[0])

    def variances(self, covariance: Extended) -> Floats:
        """Return the variance of each class of rows, float64 (c, k); infinite where nothing is known."""
        found = np.maximum(self._of(covariance.finite), 0.0)
        if covariance.infinite is not None:
            unknown = self._of(covariance.infinite)
            largest = unknown.max(axis=1, initial=1.0)[:, None]  # of its own rows: areas differ in size
            found[unknown > 1e-6 * largest] = np.inf
        return found

    def standard_error(self, covariance: Extended, counts: Ints) -> tuple[float, float]:
        """Return the mean and the largest standard error over geounits and rows, in counts.

        `counts` (c,): geounits with each covariance.
        """
        errors = np.sqrt(self.variances(covariance))
        weights = np.bincount(self.of_row, minlength=len(self))
        answers = int(counts.sum()) * len(self.of_row)
        mean = float(counts @ errors @ weights) / answers if answers else 0.0
        return mean, float(errors.max(initial=0.0))

    def _of(self, stacks: Stacks) -> Floats:
        """Return ``r' A r`` of each class of rows, float64 (c, k)."""
        found = np.zeros((len(stacks[0]), len(self)))
        for outer, stack in zip(self.outer, stacks, strict=True):
            found += stack.reshape(len(stack), -1) @ outer.reshape(len(outer), -1).T
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Algebra:
    """Blocks of a schema under some query groups."""

    # For each attribute: factor of a query group -> the partition of levels that it stands for.
    partitions: tuple[Mapping[str, Partition], ...]
    bases: tuple[AttributeBasis, ...]
    queries: tuple[str, ...]  # query groups that the blocks were made for, in the order of the matrices
    blocks: tuple[Blocks, ...]  # by dimension, the smallest first

    def information(self, weights: Floats) -> Extended:
        """Return the information of measurements, one class for each row of weights.

        `weights` (c, q): per query group one over the variance of its noise; 0 where it is not measured,
        infinite where it is known exactly.
        """
        exact = np.isinf(weights)
        some = np.where(exact, 0.0, weights)
        finite = tuple(np.tensordot(some, blocks.matrices, axes=(1, 0)) for blocks in self.blocks)
        if not exact.any():
            return Extended(finite)
        unit = (_unit(blocks.matrices) for blocks in self.blocks)
        return Extended(finite, tuple(np.tensordot(exact * 1.0, matrices, axes=(1, 0)) for matrices in unit))

    def rows(self, query: QueryGroup) -> RowClasses:
        """Describe the rows of any query group of the schema, measured or not."""
        codes = np.zeros(1, dtype=np.int64)
        kinds: list[Floats] = []
        for names, basis in zip(self.partitions, self.bases, strict=True):
            factor = next((name for name in query.factors if name in names), None)
            whole = Partition.total(len(basis.vectors))
            coefficients = basis.coefficients(whole if factor is None else names[factor])
            rounded = np.round(coefficients, _DIGITS) + 0.0
            _, first, which = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
            kinds.append(coefficients[first])
            codes = (codes[:, None] * len(first) + which.reshape(1, -1)).ravel()
        return RowClasses(codes, tuple(_outer(kinds, blocks) for blocks in self.blocks))


def _unit(matrices: Floats) -> Floats:
    """Scale each query group's matrices so that their eigenvalues are of the order of one."""
    largest = np.abs(matrices).max(axis=(2, 3), keepdims=True)
    unit: Floats = np.divide(matrices, largest, out=np.zeros_like(matrices), where=largest > 0)
    return unit


def _outer(kinds: Sequence[Floats], blocks: Blocks) -> Floats:
    """Return float64 (k, b, d, d): sums of outer products of coefficients, for all combinations of kinds."""
    shape = tuple(kind.shape[1] for kind in kinds)
    places = np.unravel_index(blocks.coordinates, shape)
    combinations = np.indices([len(kind) for kind in kinds]).reshape(len(kinds), -1)
    copies, dimension = blocks.coordinates.shape
    step = max(1, _CHUNK // (copies * dimension * dimension))
    found = np.empty((combinations.shape[1], len(blocks.starts), dimension, dimension))
    for start in range(0, combinations.shape[1], step):
        part = combinations[:, start : start + step]
        value = np.ones((part.shape[1], copies, dimension))
        for kind, codes, place in zip(kinds, part, places, strict=True):
            value *= kind[codes][:, place]
        products = value[:, :, :, None] * value[:, :, None, :]
        found[start : start + step] = np.add.reduceat(products, blocks.starts, axis=1)
    return found


def _partitions(schema: Schema, recodes: Sequence[Recode]) -> tuple[dict[str, Partition], ...]:
    """Per attribute: the partition of its levels that each factor name stands for."""
    found: list[dict[str, Partition]] = []
    for attribute in schema.attributes:
        levels = np.arange(len(attribute), dtype=np.int64)
        names = {attribute.name: Partition(levels, len(attribute))}
        for recode in recodes:
            if recode.attribute == attribute.name:
                of_level = recode.group_of_level(attribute).astype(np.int64)
                names[recode.name] = Partition(of_level, len(recode.groups))
        found.append(names)
    return tuple(found)


def build_algebra(schema: Schema, recodes: Sequence[Recode], queries: Sequence[QueryGroup]) -> Algebra:
    """Split the cell space into blocks for the query groups that are measured or published exactly.

    `recodes`: those that the query groups, or those asked for later, use.

    Raises `ConfigError` if recodes cross so much that a block is too large for one matrix per geounit.
    """
    partitions = _partitions(schema, recodes)
    factors = [
        [next((name for name in query.factors if name in names), None) for names in partitions]
        for query in queries
    ]
    bases = tuple(
        attribute_basis(
            len(attribute),
            [names[name] for name in dict.fromkeys(used[place] for used in factors) if name is not None],
        )
        for place, (attribute, names) in enumerate(zip(schema.attributes, partitions, strict=True))
    )
    matrices = [_matrix(used, partitions, bases) for used in factors]
    blocks = _blocks(matrices, int(np.prod([basis.coordinates for basis in bases])), bases)
    return Algebra(partitions, bases, tuple(query.name for query in queries), blocks)


def _matrix(
    factors: Sequence[str | None],
    partitions: Sequence[Mapping[str, Partition]],
    bases: Sequence[AttributeBasis],
) -> sparse.csr_array:
    """Return ``Q'Q`` of one query group in the product of the attributes' coordinates."""
    small = []
    for factor, names, basis in zip(factors, partitions, bases, strict=True):
        partition = Partition.total(len(basis.vectors)) if factor is None else names[factor]
        small.append(sparse.csr_array(basis.matrix(partition)))
    product: sparse.csr_array = reduce(lambda a, b: sparse.csr_array(sparse.kron(a, b)), small)
    product.eliminate_zeros()
    return product


def _blocks(
    matrices: Sequence[sparse.csr_array], size: int, bases: Sequence[AttributeBasis]
) -> tuple[Blocks, ...]:
    """Find which coordinates are coupled, and merge blocks on which all query groups act alike."""
    pattern = sum((abs(matrix) for matrix in matrices), start=sparse.csr_array((size, size)))
    _, component = sparse.csgraph.connected_components(pattern, directed=False)
    order = np.argsort(component, kind="stable").astype(np.int64)
    starts = np.flatnonzero(np.diff(component[order], prepend=-1))
    sizes = np.diff(np.append(starts, size))
    if sizes.max() > LARGEST_BLOCK:
        raise ConfigError(
            f"the recodes of this product cross so much that {sizes.max()} kinds of functions of the cells "
            f"are coupled; expected error is computed for at most {LARGEST_BLOCK}. Use nested recodes, or "
            "measure fewer of them."
        )
    found = []
    for dimension in np.unique(sizes):
        chosen = starts[sizes == dimension]
        coordinates = order[chosen[:, None] + np.arange(dimension)]
        stack = np.stack([_dense(matrix, coordinates) for matrix in matrices])
        found.append(_merged(stack, coordinates))
    return tuple(found)


def _dense(matrix: sparse.csr_array, coordinates: Ints) -> Floats:
    """Return the matrix on each set of coordinates, float64 (b, d, d)."""
    count, dimension = coordinates.shape
    row = np.repeat(coordinates, dimension, axis=1).ravel()
    column = np.tile(coordinates, (1, dimension)).ravel()
    entries = np.asarray(matrix[row, column]) if len(row) else np.zeros(0)
    return entries.reshape(count, dimension, dimension)


def _merged(stack: Floats, coordinates: Ints) -> Blocks:
    """Merge equal blocks; `stack` is (q, b, d, d)."""
    scale = np.maximum(np.abs(stack).max(axis=(1, 2, 3)), 1.0)
    rounded = np.round(np.swapaxes(stack / scale[:, None, None, None], 0, 1), _DIGITS) + 0.0
    flat = rounded.reshape(len(coordinates), -1)
    _, first, which = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    starts = np.searchsorted(which.ravel()[order], np.arange(len(first))).astype(np.int64)
    return Blocks(np.ascontiguousarray(stack[:, first]), coordinates[order], starts)
