"""Least squares over the same tree under many budgets: what does not change is found once.

Which geounits see the same depends on the tree and on which of them share a class of noise, not on how wide
the noise is. An outline holds these classes and how many geounits each stands for; :func:`covariances` then
costs numbers per class only. :mod:`opendas.gls.variances` does the same for one plan, geounit by geounit.

Axes: ``g`` geounits of a level, ``c`` classes of subtrees, ``k`` classes of geounits with their surroundings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from opendas.arrays import Ints
from opendas.errors import GeographyError
from opendas.gls.extended import Extended
from opendas.gls.variances import TreeLevel, alike, occurrences, unique_rows

__all__ = ["Outline", "OutlineLevel", "covariances", "even_outline", "outline_of"]


@dataclass(frozen=True, slots=True, eq=False)
class OutlineLevel:
    """The classes of one level.

    Parameters
    ----------
    own : int64 (c,)
        Class of the noise of each class of subtrees.
    children : sparse (c, c of the level below) or None
        How many children of each class a subtree has; None at the leaves.
    parent : int64 (k,)
        Class, in the level above, of the parent of each class of geounits; zeros at the top.
    subtree : int64 (k,)
        Class of its subtree.
    geounits : int64 (k,)
        How many geounits it stands for.
    """

    own: Ints
    children: sparse.csr_array | None
    parent: Ints
    subtree: Ints
    geounits: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """A tree as classes of geounits, top first."""

    levels: tuple[OutlineLevel, ...]


def outline_of(tree: Sequence[TreeLevel]) -> Outline:
    """Find the classes of a tree.

    Parameters
    ----------
    tree : sequence of TreeLevel
        Top first. The information of its levels is not looked at.
    """
    first, which = unique_rows(tree[-1].own)
    found: list[tuple[Ints, sparse.csr_array | None]] = [(tree[-1].own[first], None)]
    for level, below in zip(reversed(tree[:-1]), reversed(tree[1:]), strict=True):
        counts = occurrences(below.parent, which, (len(level), len(found[-1][0])))
        first, which = alike(counts, level.own)
        found.append((level.own[first], sparse.csr_array(counts[first])))
    return _with_paths(tuple(reversed(found)), np.bincount(which).astype(np.int64))


def even_outline(sizes: Sequence[int]) -> Outline:
    """Return a tree of which only the number of geounits at each level is known.

    Children are dealt out as evenly as whole numbers allow, and all geounits of a level have the same noise.

    Parameters
    ----------
    sizes : sequence of int, > 0
        Geounits of each level, top first; no level has fewer than the one above.

    Raises
    ------
    GeographyError
        If the numbers shrink on the way down.

    Examples
    --------
    >>> [level.geounits.tolist() for level in even_outline([1, 2, 5]).levels]
    [[1], [1, 1], [3, 2]]
    """
    if not sizes or sizes[0] < 1 or any(b < a for a, b in itertools.pairwise(sizes)):
        raise GeographyError("a level has at least as many geounits as the one above, and at least one.")
    runs = [(0, sizes[-1])]  # class and length of stretches of geounits side by side
    found: list[tuple[Ints, sparse.csr_array | None]] = [(np.zeros(1, dtype=np.int64), None)]
    for parents, children in zip(reversed(sizes[:-1]), reversed(sizes[1:]), strict=True):
        kinds, runs = _dealt(runs, parents, children)
        table = np.zeros((len(kinds), len(found[-1][0])))
        for number, family in enumerate(kinds):
            for child, count in family:
                table[number, child] = count
        found.append((np.zeros(len(kinds), dtype=np.int64), sparse.csr_array(table)))
    roots = np.zeros(len(found[-1][0]), dtype=np.int64)
    for kind, count in runs:
        roots[kind] += count
    return _with_paths(tuple(reversed(found)), roots)


_Kind = tuple[tuple[int, int], ...]


def _dealt(
    runs: Sequence[tuple[int, int]], parents: int, children: int
) -> tuple[list[_Kind], list[tuple[int, int]]]:
    """Give each parent its children in turn, the first parents one more; returns kinds and stretches."""
    kinds: dict[_Kind, int] = {}
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
            made.append((kinds.setdefault(tuple(sorted(filled.items())), len(kinds)), whole))
            number -= whole
    return list(kinds), made


def _with_paths(found: Sequence[tuple[Ints, sparse.csr_array | None]], roots: Ints) -> Outline:
    """Add the classes of geounits: a parent's class and the class of the subtree."""
    subtree = np.flatnonzero(roots).astype(np.int64)
    levels = [OutlineLevel(*found[0], np.zeros(len(subtree), dtype=np.int64), subtree, roots[subtree])]
    for own, children in found[1:]:
        above = levels[-1]
        if above.children is None:
            raise AssertionError("a level above the leaves has children")
        pairs = sparse.coo_array(above.children[above.subtree])
        parent, subtree = (index.astype(np.int64) for index in pairs.coords)
        geounits = above.geounits[parent] * pairs.data.astype(np.int64)
        levels.append(OutlineLevel(own, children, parent, subtree, geounits))
    return Outline(tuple(levels))


def covariances(outline: Outline, information: Sequence[Extended]) -> tuple[Extended, ...]:
    """Return the covariance of the least-squares estimate of each class of geounits, per level.

    Parameters
    ----------
    outline : Outline
    information : sequence of Extended
        Per level, of each class of noise, as in :class:`~opendas.gls.variances.TreeLevel`.

    Returns
    -------
    tuple of Extended
        Top first; one matrix stack per class, in the order of :attr:`OutlineLevel.geounits`.

    Notes
    -----
    Equations 3.3 and 3.4 of the spines paper, as :func:`~opendas.gls.variances.subtrees` and
    :func:`~opendas.gls.variances.contexts` eliminate them.
    """
    levels = outline.levels
    own = [given.take(level.own) for level, given in zip(levels, information, strict=True)]
    known = [own[-1]]
    inverse = [own[-1].dual()]
    sums: list[Extended | None] = [None]
    for level, measured in zip(reversed(levels[:-1]), reversed(own[:-1]), strict=True):
        assert level.children is not None
        children = inverse[-1].summed(level.children)
        sums.append(children)
        known.append(children.dual() + measured)
        inverse.append(known[-1].dual())
    known, inverse, sums = known[::-1], inverse[::-1], sums[::-1]
    above = own[0].take(levels[0].subtree).dual()
    found = [inverse[0].take(levels[0].subtree)]
    for number, level in enumerate(levels[1:], start=1):
        family = sums[number - 1]
        assert family is not None
        siblings = family.take(levels[number - 1].subtree[level.parent]) - inverse[number].take(level.subtree)
        outside = (above.take(level.parent) + siblings).dual()
        above = (outside + own[number].take(level.subtree)).dual()
        found.append((outside + known[number].take(level.subtree)).dual())
    return tuple(found)
