"""Least squares over a whole tree, variances only: information up, information down.

All blocks of the cell space see the same tree, each with its own matrices, and geounits that see the same
are one class: all blocks with the same noise, all block groups with as many such blocks, and so on. So the
work grows with the number of classes, in the middle of the tree, not with the number of leaves.

Up the tree, a geounit's subtree knows its own measurements and the sum of its children. Down the tree, what
lies outside a geounit's subtree knows its parent's total less its siblings. Both are independent, and their
information adds up.

Axes: ``g`` geounits of a level, ``c`` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from opendas.arrays import Ints
from opendas.gls.extended import Extended

__all__ = ["Context", "Subtree", "TreeLevel", "contexts", "occurrences", "subtrees", "unique_rows"]


_MOST_COUNTED = 8_000_000
"""Entries of a table of counts up to which equal rows are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class TreeLevel:
    """One level of a tree, and what is measured there.

    Parameters
    ----------
    parent : int64 (g,)
        Index of each geounit's parent in the level above; zeros at the top.
    own : int64 (g,)
        Class of each geounit's own measurements.
    information : Extended
        Information of each such class; zero where nothing is measured, infinite where the answer is public.
    """

    parent: Ints
    own: Ints
    information: Extended

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True, slots=True, eq=False)
class Subtree:
    """What the subtrees of one level know about their own totals.

    Parameters
    ----------
    of_geounit : int64 (g,)
        Class of each geounit's subtree.
    own : int64 (c,)
        Class of its own measurements.
    information, covariance : Extended
        Information about the geounit's total, its own measurements included, and its inverse.
    children : Extended or None
        Covariance of the sum of the children's estimates; None at the leaves.
    """

    of_geounit: Ints
    own: Ints
    information: Extended
    covariance: Extended
    children: Extended | None


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What the whole tree knows about the geounits of one level.

    Parameters
    ----------
    of_geounit : int64 (g,)
        Class of each geounit with all that surrounds it.
    subtree : int64 (c,)
        Class of its subtree.
    above : Extended
        Covariance of its total given everything but its children's subtrees.
    covariance : Extended
        Covariance of its total given everything.
    """

    of_geounit: Ints
    subtree: Ints
    above: Extended
    covariance: Extended


def unique_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first place of each distinct row of some columns, and the number of each row's kind."""
    table = np.column_stack(columns) if len(columns) > 1 or columns[0].ndim > 1 else columns[0]
    _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), which.ravel().astype(np.int64)


def occurrences(row: Ints, column: Ints, shape: tuple[int, int]) -> sparse.csr_array:
    """Count how often each pair occurs, as a sparse table of floats."""
    counted = sparse.coo_array((np.ones(len(row)), (row, column)), shape=shape)
    return sparse.csr_array(counted.tocsr())


def alike(counts: sparse.csr_array, other: Ints) -> tuple[Ints, Ints]:
    """Find rows of counts that are equal, together with another label.

    Returns
    -------
    first : int64 (kinds,)
        One row of each kind.
    which : int64 (rows,)
        Kind of each row. Where the table is too large to look, each row is a kind of its own.
    """
    rows, columns = counts.shape
    if rows * columns > _MOST_COUNTED:
        every = np.arange(rows, dtype=np.int64)
        return every, every
    return unique_rows(other, np.asarray(counts.todense(), dtype=np.int64))


def subtrees(tree: Sequence[TreeLevel]) -> tuple[Subtree, ...]:
    """Pass information up a tree.

    Parameters
    ----------
    tree : sequence of TreeLevel
        Top first.

    Returns
    -------
    tuple of Subtree
        Top first.

    Notes
    -----
    The children's estimates are independent, so the variance of their sum is the sum of their variances;
    its information adds to that of the parent's own measurements. The measured form of ``(S'S)`` in
    equation 3.3 of the spines paper, eliminated from the leaves.
    """
    leaf = tree[-1]
    first, which = unique_rows(leaf.own)
    information = leaf.information.take(leaf.own[first])
    found = [Subtree(which, leaf.own[first], information, information.dual(), None)]
    for level, below in zip(reversed(tree[:-1]), reversed(tree[1:]), strict=True):
        last = found[-1]
        counts = occurrences(below.parent, last.of_geounit, (len(level), len(last.own)))
        first, which = alike(counts, level.own)
        children = last.covariance.summed(sparse.csr_array(counts[first]))
        information = children.dual() + level.information.take(level.own[first])
        found.append(Subtree(which, level.own[first], information, information.dual(), children))
    return tuple(reversed(found))


def contexts(tree: Sequence[TreeLevel], known: Sequence[Subtree], last: int) -> tuple[Context, ...]:
    """Pass information down a tree, from the top to level `last`.

    Parameters
    ----------
    tree : sequence of TreeLevel
    known : sequence of Subtree
        As :func:`subtrees` returns them.
    last : int
        Level at which to stop.

    Returns
    -------
    tuple of Context
        One per level, top first.
    """
    root = known[0]
    found = [
        Context(
            root.of_geounit,
            np.arange(len(root.own), dtype=np.int64),
            tree[0].information.take(root.own).dual(),
            root.covariance,
        )
    ]
    for level, below, above in zip(tree[1 : last + 1], known[1:], known, strict=False):
        parents = found[-1]
        first, which = unique_rows(parents.of_geounit[level.parent], below.of_geounit)
        parent, own = parents.of_geounit[level.parent[first]], below.of_geounit[first]
        if above.children is None:
            raise AssertionError("a level above the leaves has children")
        siblings = above.children.take(parents.subtree[parent]) - below.covariance.take(own)
        outside = (parents.above.take(parent) + siblings).dual()
        found.append(
            Context(
                which,
                own,
                (outside + level.information.take(below.own[own])).dual(),
                (outside + below.information.take(own)).dual(),
            )
        )
    return tuple(found)
