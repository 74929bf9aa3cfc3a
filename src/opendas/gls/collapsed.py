"""Least squares over a tree whose equal subtrees are counted once: variances only, and their derivatives.

Where noise depends on the class of a geounit only, geounits with equal subtrees have the same upward message,
and geounits with equal subtrees and ancestors have the same final variance. A nation of eleven million leaves
has 200,000 classes of such contexts, most states a few thousand. Each variance is computed once per class,
and whatever does not depend on the budget is found once.

Up the tree, with ``V`` the covariance of a total from its subtree, ``S`` that of the sum of the children, and
``P`` the information of a geounit's own measurements,

    S = sum of V over children,   V = (P + S^-1)^-1,

and down, with ``Var`` the covariance from all measurements, ``Var_c = V + V (S^-1 Var S^-1 - S^-1) V``. These
are the steps that :mod:`opendas.gls.upward` and :mod:`opendas.gls.downward` take with answers, by the same
algebra (:mod:`opendas.gls.information`). Both passes also run in reverse, so that the derivatives of a
weighted sum of all variances by all precisions cost about as much as the sum itself.

Axes: ``g`` geounits of a level, ``u`` classes of subtrees, ``p`` classes of geounits with their context,
``q`` query groups, ``b`` blocks of one dimension ``d``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Floats, Ints
from opendas.arrays.kernels import mixed
from opendas.errors import GeographyError
from opendas.geography.hierarchy import Hierarchy
from opendas.gls.information import (
    Extended,
    Stacks,
    conditional,
    product,
    summed,
    transposed,
)


@dataclass(frozen=True, slots=True, eq=False)
class CollapsedLevel:
    """The classes of one level."""

    own: Ints  # (u,): class of the noise of each class of subtree
    # (u, u of the level below): how many children of each class a subtree has; None at the leaves.
    children: sparse.csr_array | None
    parent: Ints  # (p,): place, in the level above, of the parent; zeros at the top
    subtree: Ints  # (p,): class of the subtree
    geounits: Ints  # (p,): how many geounits stand at each context

    @property
    def tables(self) -> sparse.csr_array:
        """How many children of each class a subtree has, above the leaves."""
        if self.children is None:
            raise AssertionError("a level above the leaves has children")
        return self.children


@dataclass(frozen=True, eq=False)
class CollapsedTree:
    """A tree as classes of geounits, top first. Made by :meth:`of`, :meth:`of_hierarchy` or :meth:`even`."""

    levels: tuple[CollapsedLevel, ...]
    # parents, subtrees (g,): per level, parent and class of subtree of each geounit; empty where none is
    # named.
    parents: tuple[Ints, ...] = ()
    subtrees: tuple[Ints, ...] = ()

    @classmethod
    def of(cls, parents: Sequence[Ints], own: Sequence[Ints] | None = None) -> CollapsedTree:
        """Find equal subtrees.

        - `parents` (g,): per level, top first: parent of each geounit; zeros at the top. Every geounit has a
          leaf below.
        - `own` (g,): class of each geounit's noise; by default one for each level.
        """
        last = len(parents) - 1
        kind, noise = np.zeros(len(parents[last]), dtype=np.int64), np.zeros(1, dtype=np.int64)
        if own is not None:
            noise, kind = np.unique(own[last], return_inverse=True)
        found: list[tuple[Ints, sparse.csr_array | None]] = [(noise.astype(np.int64), None)]
        kinds = [kind.ravel()]
        for number in range(last - 1, -1, -1):
            classes = None if own is None else own[number]
            table, first, kind = families(
                parents[number + 1], kinds[-1], (len(parents[number]), len(found[-1][0])), classes
            )
            found.append((np.zeros(len(first), dtype=np.int64) if classes is None else classes[first], table))
            kinds.append(kind)
        roots = np.bincount(kinds[-1], minlength=len(found[-1][0])).astype(np.int64)
        return cls(_with_contexts(found[::-1], roots), tuple(parents), tuple(reversed(kinds)))

    @classmethod
    def of_hierarchy(cls, hierarchy: Hierarchy, levels: int | None = None) -> CollapsedTree:
        """Find equal subtrees of the highest levels of a hierarchy with the same noise at every geounit.

        Geounits without a leaf below them are left out: nothing is measured where nobody can be.
        """
        parents = []
        number = np.zeros(1, dtype=np.int64)
        for inside, parent in list(zip(hierarchy.inhabited(), hierarchy.parents, strict=True))[:levels]:
            parents.append(number[parent[inside]])
            number = np.cumsum(inside) - 1
        return cls.of(parents)

    @classmethod
    def even(cls, sizes: Sequence[int]) -> CollapsedTree:
        """Return a tree of which only the number of geounits at each level is known.

        Children are distributed as evenly as whole numbers allow, and all geounits of a level have the same
        noise.

        `sizes`, > 0: geounits of each level, top first; no level has fewer than the one above.

        Examples
        --------
        >>> [level.geounits.tolist() for level in CollapsedTree.even([1, 2, 5]).levels]
        [[1], [1, 1], [3, 2]]
        """
        if not sizes or sizes[0] < 1 or any(b < a for a, b in itertools.pairwise(sizes)):
            raise GeographyError("a level has at least as many geounits as the one above, and at least one.")
        runs = [(0, sizes[-1])]  # kind and length of stretches of geounits side by side
        found: list[tuple[Ints, sparse.csr_array | None]] = [(np.zeros(1, dtype=np.int64), None)]
        for parents, children in zip(reversed(sizes[:-1]), reversed(sizes[1:]), strict=True):
            families, runs = _distributed(runs, parents, children)
            table = np.zeros((len(families), len(found[-1][0])))
            for number, family in enumerate(families):
                for child, count in family:
                    table[number, child] = count
            found.append((np.zeros(len(families), dtype=np.int64), sparse.csr_array(table)))
        roots = np.zeros(len(found[-1][0]), dtype=np.int64)
        for kind, count in runs:
            roots[kind] += count
        return cls(_with_contexts(found[::-1], roots))

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of geounits of each level."""
        return tuple(int(level.geounits.sum()) for level in self.levels)

    @cached_property
    def counts(self) -> tuple[Floats, ...]:
        """Per level, number of geounits of each context, float64 (p,)."""
        return tuple(level.geounits.astype(np.float64) for level in self.levels)

    @cached_property
    def contexts(self) -> tuple[Ints, ...]:
        """Per level, the context of each geounit, int64 (g,)."""
        found = [np.searchsorted(self.levels[0].subtree, self.subtrees[0])]
        for level, parent, kind in zip(self.levels[1:], self.parents[1:], self.subtrees[1:], strict=True):
            many = len(level.own)
            found.append(
                np.searchsorted(level.parent * many + level.subtree, found[-1][parent] * many + kind)
            )
        return tuple(context.astype(np.int64) for context in found)


_Family = tuple[tuple[int, int], ...]
"""Classes of children, and how many of each."""


def _distributed(
    runs: Sequence[tuple[int, int]], parents: int, children: int
) -> tuple[list[_Family], list[tuple[int, int]]]:
    """Give each parent its children in turn, the first parents one more; returns classes and stretches."""
    families: dict[_Family, int] = {}
    made: list[tuple[int, int]] = []
    waiting = list(reversed(runs))
    share, more = divmod(children, parents)
    for size, number in ((share + 1, more), (share, parents - more)):
        while number:
            kind, length = waiting.pop()
            whole = min(length // size, number)
            filled, left = {kind: size}, length - whole * size
            if not whole:  # the stretch is too short for one parent: fill it up from the next
                whole, filled, left = 1, {kind: length}, 0
                while (lacking := size - sum(filled.values())) > 0:
                    kind, length = waiting.pop()
                    filled[kind] = filled.get(kind, 0) + min(length, lacking)
                    left = length - min(length, lacking)
            if left:
                waiting.append((kind, left))
            made.append((families.setdefault(tuple(sorted(filled.items())), len(families)), whole))
            number -= whole
    return list(families), made


def _hashed(codes: Ints) -> npt.NDArray[np.uint64]:
    return np.asarray(mixed(codes.astype(np.uint64)))


def families(
    parent: Ints, kind: Ints, shape: tuple[int, int], own: Ints | None = None
) -> tuple[sparse.csr_array, Ints, Ints]:
    """Find parents whose children are of the same classes.

    - `parent`, `kind` (g,): of each child.
    - `shape`: number of parents, and of classes of children.
    - `own` (parents,): something else that distinguishes parents.
    - Returns `counts` (u, kinds): how many children of each class the different parents have.
    - Returns `first` (u,): one of each.
    - Returns `which` (parents,).

    Notes
    -----
    Parents are recognised by the sum, modulo 2**64, of a hash of the classes of their children. Two different
    ones agree with a chance of about (number of classes)**2 / 2**65: 1e-9 for a nation.
    """
    if shape[1] == 1:
        sums = np.bincount(parent, minlength=shape[0]).astype(np.uint64)
    else:
        sums = np.zeros(shape[0], dtype=np.uint64)
        np.add.at(sums, parent, _hashed(np.arange(shape[1]))[kind])
    if own is not None:
        sums = sums + _hashed(own - (1 << 40))
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    chosen = np.full(shape[0], -1, dtype=np.int64)
    chosen[first] = np.arange(len(first))
    row = chosen[parent]
    seen = row >= 0
    ones = np.ones(int(np.count_nonzero(seen)))
    counts = sparse.coo_array((ones, (row[seen], kind[seen])), shape=(len(first), shape[1]))
    return sparse.csr_array(counts.tocsr()), first.astype(np.int64), which.ravel().astype(np.int64)


def _with_contexts(
    found: Sequence[tuple[Ints, sparse.csr_array | None]], roots: Ints
) -> tuple[CollapsedLevel, ...]:
    """Add the contexts of geounits: the parent's context and the class of the subtree, in this order."""
    subtree = np.flatnonzero(roots).astype(np.int64)
    levels = [CollapsedLevel(*found[0], np.zeros(len(subtree), dtype=np.int64), subtree, roots[subtree])]
    for own, children in found[1:]:
        above = levels[-1]
        rows = sparse.csr_array(above.tables[above.subtree])
        rows.sort_indices()
        parent = np.repeat(np.arange(len(above.subtree), dtype=np.int64), np.diff(rows.indptr))
        geounits = above.geounits[parent] * rows.data.astype(np.int64)
        levels.append(CollapsedLevel(own, children, parent, rows.indices.astype(np.int64), geounits))
    return tuple(levels)


@dataclass(frozen=True, slots=True, eq=False)
class UpwardMessage:
    """Upward message of one level: the estimates of totals from their subtrees, by class of subtree."""

    covariance: Extended  # ``V`` of the geounit's total
    # children, below: ``S`` of the sum of the children's estimates, and its inverse; None at the leaves.
    children: Extended | None = None
    below: Extended | None = None

    @property
    def sums(self) -> tuple[Extended, Extended]:
        """``S`` and its inverse, above the leaves."""
        if self.children is None or self.below is None:
            raise AssertionError("a level above the leaves has children")
        return self.children, self.below


def upward(
    tree: CollapsedTree, information: Sequence[Extended], *, plain: bool = False
) -> tuple[UpwardMessage, ...]:
    """Pass information up a tree.

    - `information`: per level, of each class of noise.
    - `plain`: the leaves' own measurements determine everything, and nothing is exact.
    - Returns: top first.

    Notes
    -----
    Cumings-Menon et al. (2024), equation (3.3), eliminated from the leaves: the children's estimates are
    independent, so the variance of their sum is the sum of their variances.
    """
    found = [UpwardMessage(information[-1].take(tree.levels[-1].own).dual(plain=plain))]
    for level, own in zip(reversed(tree.levels[:-1]), reversed(information[:-1]), strict=True):
        children = found[-1].covariance.summed(level.tables)
        below = children.dual(plain=plain)
        found.append(UpwardMessage((below + own.take(level.own)).dual(plain=plain), children, below))
    return tuple(reversed(found))


def downward(
    tree: CollapsedTree, known: Sequence[UpwardMessage], *, plain: bool = False
) -> tuple[Extended, ...]:
    """Return the covariance of each context's total from all measurements, per level, top first.

    Notes
    -----
    Cumings-Menon et al. (2024), equation (3.4): the conditional covariance given the parent, and the
    parent's own.
    """
    found = [known[0].covariance.take(tree.levels[0].subtree)]
    for number, level in enumerate(tree.levels[1:], start=1):
        above = tree.levels[number - 1]
        step = _plain_step if plain else _step
        found.append(step(known[number].covariance, known[number - 1], level, above.subtree, found[-1]))
    return tuple(found)


def _plain_step(
    own: Extended, upper: UpwardMessage, level: CollapsedLevel, family: Ints, given: Extended
) -> Extended:
    """Return ``V + V (S^-1 Var S^-1 - S^-1) V``; `family`, `given`: the parents' classes and ``Var``."""
    finite = []
    for stack, below, var in zip(own.finite, upper.sums[1].finite, given.finite, strict=True):
        v, j = stack[level.subtree], below[family]
        middle = product(product(j, var), j) - j  # one matrix a parent
        finite.append(v + product(product(v, middle[level.parent]), v))
    return Extended(tuple(finite))


def _step(
    own: Extended, upper: UpwardMessage, level: CollapsedLevel, family: Ints, given: Extended
) -> Extended:
    """Return the same where directions may be exact or unknown."""
    total, below = (one.take(family[level.parent]) for one in upper.sums)
    return conditional(own.take(level.subtree), total, below, given.take(level.parent))[1]


def covariances(tree: CollapsedTree, information: Sequence[Extended]) -> tuple[Extended, ...]:
    """Return the covariance of the least-squares estimate at each context, per level, top first.

    `information`: per level, of each class of noise.
    """
    return downward(tree, upward(tree, information))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A weighted sum of the variances of all estimates, as a function of precisions, and its derivatives.

    Every level's measurements are the same in all its geounits, and those of the leaves determine everything.
    """

    tree: CollapsedTree
    matrices: Stacks  # (q, b, d, d): for each dimension, ``Q'Q`` of each query group on each block
    # (q, b, d, d): what the sum of the variances of a query group's rows is of the covariance of each block:
    # the sum over rows, and copies of the block, of the outer products of a row's coefficients.
    wanted: Stacks
    # (levels, q): weight of each query group's variances, summed over rows and geounits of the level.
    targets: Floats

    @classmethod
    def counts(cls, tree: CollapsedTree, targets: Floats) -> Trace:
        """Return the trace of a tree of single counts; `targets` are float64 (levels, 1)."""
        one = np.ones((1, 1, 1, 1))
        return cls(tree, (one,), (one,), targets)

    def _passes(self, precisions: Floats) -> tuple[tuple[UpwardMessage, ...], tuple[Extended, ...]]:
        information = [
            Extended(tuple(np.tensordot(row[None], stack, axes=(1, 0)) for stack in self.matrices))
            for row in precisions
        ]
        known = upward(self.tree, information, plain=True)
        return known, downward(self.tree, known, plain=True)

    def value_and_gradient(self, precisions: Floats) -> tuple[float, Floats]:
        """Return the weighted sum of variances and its derivatives by the precisions, (levels, q).

        A precision is one over the variance of the noise.
        """
        known, variance = self._passes(precisions)
        gradient = np.zeros_like(precisions)
        for number, matrices in enumerate(self.matrices):
            gradient += self._backwards(number, matrices, known, [one.finite[number] for one in variance])
        return float((self.targets * self._sums(variance)).sum()), gradient

    def parts(self, precisions: Floats) -> Floats:
        """Return the unweighted sum of variances of each query group at each level, (levels, q)."""
        return self._sums(self._passes(precisions)[1])

    def _sums(self, variance: Sequence[Extended]) -> Floats:
        found = np.zeros_like(self.targets)
        for row, counts, covariance in zip(found, self.tree.counts, variance, strict=True):
            for wanted, stack in zip(self.wanted, covariance.finite, strict=True):
                row += np.einsum("qbij,bij->q", wanted, np.tensordot(counts, stack, axes=1))
        return found

    def _backwards(
        self, number: int, matrices: Floats, known: Sequence[UpwardMessage], variance: Sequence[Floats]
    ) -> Floats:
        """Run both passes in reverse for one dimension: derivatives by each matrix, from last to first."""
        levels = self.tree.levels
        subtrees = [up.covariance.finite[number] for up in known]
        below = [up.sums[1].finite[number] for up in known[:-1]]
        wanted: Floats = np.tensordot(self.targets, self.wanted[number], axes=(1, 0))
        by_subtree = [np.zeros_like(stack) for stack in subtrees]
        by_below = [np.zeros_like(stack) for stack in below]
        by_variance = _weighted(self.tree.counts[-1], wanted[-1])
        for at in range(len(levels) - 1, 0, -1):
            level, above = levels[at], levels[at - 1]
            v, j = subtrees[at][level.subtree], below[at - 1][above.subtree]
            middle = (j - product(product(j, variance[at - 1]), j))[level.parent]
            half = product(product(middle, v), by_variance)
            _gather(by_subtree[at], level.subtree, by_variance - half - transposed(half))
            square = np.zeros_like(variance[at - 1])
            _gather(square, level.parent, product(product(v, by_variance), v))
            half = product(product(variance[at - 1], j), square)
            _gather(by_below[at - 1], above.subtree, half + transposed(half) - square)
            by_variance = _weighted(self.tree.counts[at - 1], wanted[at - 1]) + product(product(j, square), j)
        _gather(by_subtree[0], levels[0].subtree, by_variance)
        gradient = np.empty((len(levels), len(matrices)))
        for at, v in enumerate(subtrees):
            by_information = -product(product(v, by_subtree[at]), v)
            gradient[at] = np.einsum("qbij,bij->q", matrices, by_information.sum(axis=0))
            if at + 1 < len(levels):
                j = below[at]
                by_sum = -product(product(j, by_below[at] + by_information), j)
                by_subtree[at + 1] += summed(levels[at].tables.T.tocsr(), by_sum)
        return gradient


def _weighted(count: Floats, wanted: Floats) -> Floats:
    return np.asarray(count[:, None, None, None] * wanted, dtype=np.float64)


def _gather(into: Floats, index: Ints, stack: Floats) -> None:
    """Add matrices to those at their index, which may repeat."""
    columns = stack.reshape(len(stack), -1)
    flat = into.reshape(len(into), -1)
    for column in range(columns.shape[1]):
        flat[:, column] += np.bincount(index, columns[:, column], minlength=len(flat))
