"""Variances of sums over sets of leaves, which need not be geounits of the tree.

Given the total of a geounit, what is inside its subtree depends on nothing outside. So the sum over a set
is carried up the tree as a linear function of the geounit's total and a rest that is independent of it;
leaves that are not in the set, and siblings that hold none of it, enter through the sum of the children
alone. The work touches the leaves of the set and their ancestors.

Axes: ``p`` pairs of a set and a geounit that holds leaves of it; ``x`` classes of such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from opendas.arrays import Floats, Ints
from opendas.gls.extended import Extended, summed, transposed
from opendas.gls.variances import Context, Subtree, TreeLevel, alike, occurrences, unique_rows

__all__ = ["leaf_sets"]


@dataclass(frozen=True, slots=True, eq=False)
class _Carried:
    """Sums over parts of sets, as ``gain @ (total of the geounit) + rest``; the first class is the whole."""

    gain: tuple[Floats, ...]
    rest: Extended

    def take(self, chosen: Ints) -> _Carried:
        return _Carried(tuple(stack[chosen] for stack in self.gain), self.rest.take(chosen))


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of one level, sorted by set and then by geounit."""

    leaf_set: Ints
    geounit: Ints
    leaves: Ints
    carried: Ints


def leaf_sets(
    tree: Sequence[TreeLevel],
    known: Sequence[Subtree],
    top: Context,
    members: tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]],
    sets: int,
) -> Extended:
    """Return the covariance of the sum over each of some sets of leaves.

    Parameters
    ----------
    tree : sequence of TreeLevel
    known : sequence of Subtree
    top : Context
        Of the topmost level.
    members : tuple of int (p,), int (p,)
        Set and leaf of each membership, each pair once, in any order. Sets may overlap.
    sets : int
        Number of sets. One without members has variance zero.

    Returns
    -------
    Extended
        One class for each set.
    """
    order = np.lexsort((members[1], members[0]))
    leaf_set, leaf = (column[order].astype(np.int64) for column in members)
    ones = np.ones(len(leaf), dtype=np.int64)
    pairs = _Pairs(leaf_set, leaf, ones, np.zeros_like(leaf))
    carried = _whole(known[-1].covariance)
    leaves = np.ones(len(tree[-1]), dtype=np.int64)
    for number in range(len(tree) - 1, 0, -1):
        parent = tree[number].parent
        leaves = np.bincount(parent, leaves, minlength=len(tree[number - 1])).astype(np.int64)
        pairs, carried = _lifted(pairs, carried, parent, leaves, known[number], known[number - 1])
    return _at_top(pairs, carried, top, sets)


def _whole(like: Extended) -> _Carried:
    """Return the one class of a geounit that lies in its set as a whole."""
    shapes = [stack.shape[1:] for stack in like.finite]
    gain = tuple(np.broadcast_to(np.eye(shape[-1]), (1, *shape)) for shape in shapes)
    return _Carried(gain, Extended.of([np.zeros((1, *shape)) for shape in shapes]))


def _lifted(
    pairs: _Pairs, carried: _Carried, parent: Ints, leaves: Ints, below: Subtree, above: Subtree
) -> tuple[_Pairs, _Carried]:
    """Go one level up: gather the children of each pair of a set and a parent."""
    up = parent[pairs.geounit]
    new = (np.diff(pairs.leaf_set, prepend=-1) != 0) | (np.diff(up, prepend=-1) != 0)
    starts = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    leaf_set, geounit = pairs.leaf_set[starts], up[starts]
    held = np.add.reduceat(pairs.leaves, starts) if len(starts) else np.zeros(0, dtype=np.int64)
    partly = held < leaves[geounit]
    position = np.cumsum(partly) - 1
    inside = partly[group]
    first, kind = unique_rows(below.of_geounit[pairs.geounit[inside]], pairs.carried[inside])
    subtree = below.of_geounit[pairs.geounit[inside]][first]
    part = carried.take(pairs.carried[inside][first])
    counts = occurrences(position[group[inside]], kind, (int(partly.sum()), len(first)))
    chosen, which = alike(counts, above.of_geounit[geounit[partly]])
    lifted = _lifted_classes(
        part,
        below.covariance.take(subtree),
        sparse.csr_array(counts[chosen]),
        above,
        above.of_geounit[geounit[partly]][chosen],
    )
    classes = np.zeros(len(starts), dtype=np.int64)
    classes[partly] = which + 1
    whole = _whole(below.covariance)
    together = _Carried(
        tuple(np.concatenate(pair) for pair in zip(whole.gain, lifted.gain, strict=True)),
        Extended(
            tuple(np.concatenate(pair) for pair in zip(whole.rest.finite, lifted.rest.finite, strict=True)),
            tuple(
                np.concatenate(pair) for pair in zip(whole.rest.infinite, lifted.rest.infinite, strict=True)
            ),
        ),
    )
    return _Pairs(leaf_set, geounit, held, classes), together


def _lifted_classes(
    part: _Carried, child: Extended, counts: sparse.csr_array, above: Subtree, parent: Ints
) -> _Carried:
    if above.children is None:
        raise AssertionError("a level above the leaves has children")
    total = above.children.take(parent)
    information = total.dual()
    gains, finite, infinite = [], [], []
    for gain, rest, loose, v, u, s, unknown, j in zip(
        part.gain,
        part.rest.finite,
        part.rest.infinite,
        child.finite,
        child.infinite,
        total.finite,
        total.infinite,
        information.finite,
        strict=True,
    ):
        gv, gu = gain @ v, gain @ u
        cross = summed(counts, gv)
        square = summed(counts, gv @ transposed(gain) + rest)
        lost = summed(counts, gu @ transposed(gain) + loose)
        fixed = np.zeros_like(cross)
        if unknown.any():
            # Where children are unknown, the parent's total is all there is to know: all of them must carry
            # the same gain, or the sum has no finite variance.
            through = summed(counts, gu)
            fixed = through @ np.linalg.pinv(unknown, rcond=1e-9, hermitian=True)
            lost += fixed @ unknown @ transposed(fixed)
            lost -= through @ transposed(fixed) + fixed @ transposed(through)
            lost[np.abs(lost) < 1e-9] = 0.0
            square += fixed @ s @ transposed(fixed)
            square -= cross @ transposed(fixed) + fixed @ transposed(cross)
            cross = cross - fixed @ s
        regression = cross @ j
        gains.append(fixed + regression)
        finite.append(square - regression @ transposed(cross))
        infinite.append(lost)
    return _Carried(tuple(gains), Extended(tuple(finite), tuple(infinite)))


def _at_top(pairs: _Pairs, carried: _Carried, top: Context, sets: int) -> Extended:
    """Put in what is known of the roots; a set may have leaves below several."""
    first, which = unique_rows(top.of_geounit[pairs.geounit], pairs.carried)
    known = top.covariance.take(top.of_geounit[pairs.geounit][first])
    part = carried.take(pairs.carried[first])
    finite, infinite = (
        tuple(
            gain @ stack @ transposed(gain) + rest
            for gain, stack, rest in zip(part.gain, stacks, rests, strict=True)
        )
        for stacks, rests in ((known.finite, part.rest.finite), (known.infinite, part.rest.infinite))
    )
    return Extended(finite, infinite).summed(occurrences(pairs.leaf_set, which, (sets, len(first))))
