"""Covariances of an estimate with the geounits whose answers it rests on most.

Given the total of a geounit, its children depend on nothing else: ``Cov(x_c, f) = V_c S^-1 Cov(x_v, f)``,
with the quantities of :mod:`opendas.gls.upward`, and so on down to the leaves.

Axes: ``r`` functions, ``n`` cells.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.gls.operators import Operators
from opendas.gls.upward import Sweep

__all__ = ["area_covariances", "descend", "subtree_sizes", "touched"]


def subtree_sizes(sweep: Sweep, level: int) -> Ints:
    """Return how many geounits lie below each geounit of a level, int64 (g,)."""
    levels = sweep.model.levels
    sizes = np.zeros(len(levels[-1]), dtype=np.int64)
    for number in range(len(levels) - 1, level, -1):
        sizes = np.bincount(levels[number].parent, sizes + 1.0, minlength=len(levels[number - 1])).astype(
            np.int64
        )
    return sizes


def descend(sweep: Sweep, level: int, geounit: int, covariance: Floats) -> Iterator[tuple[int, int, Floats]]:
    """Yield (level, geounit, covariance) of everything below a geounit.

    Parameters
    ----------
    sweep : Sweep
        Of the whole tree; below the geounit nothing may be exact or unknown.
    level, geounit : int
    covariance : float64 (r, n)
        Of the geounit's cells with each function.
    """
    model = sweep.model
    if level == len(model.levels) - 1:
        return
    below, children = sweep.below[level], sweep.statistics[level + 1]
    own = np.array([geounit])
    pulled = (
        below.covariance.take(own - below.first)
        .inverse(model.levels[level].allowed(geounit, geounit + 1))
        .take(np.zeros(len(covariance), dtype=np.int64))
        .apply(covariance)
    )
    first, stop = model.child_starts(level, geounit, geounit + 1).tolist()
    here = slice(first - children.first, stop - children.first)
    known = children.precision.take(here).inverse(model.levels[level + 1].allowed(first, stop))
    for child in range(first, stop):
        found = known.take(np.full(len(pulled), child - first)).apply(pulled)
        yield level + 1, child, found
        yield from descend(sweep, level + 1, child, found)


def touched(sweep: Sweep, leaves: Ints) -> list[Ints]:
    """Return per level, top first, the geounits that hold some of the leaves, ascending."""
    levels = sweep.model.levels
    found = [np.unique(leaves)]
    for number in range(len(levels) - 1, 0, -1):
        found.append(np.unique(levels[number].parent[found[-1]]))
    return found[::-1]


def area_covariances(
    sweep: Sweep, roots: Operators, leaves: Ints, weights: Floats, rows: Floats
) -> Iterator[tuple[int, int, Floats]]:
    """Yield (level, geounit, covariance) of the geounits that hold leaves of an area.

    Parameters
    ----------
    sweep : Sweep
        Of the whole tree; below the top nothing may be exact or unknown, and the top must be no leaf.
    roots : Operators
        Covariances of the top's geounits given everything.
    leaves : int64 (p,)
        Ascending.
    weights : float64 (p,)
    rows : float64 (r, n)
        Functions of the cells; the area's are their weighted sums over the leaves.

    Notes
    -----
    Least squares itself: with ``b`` for the sum ``f`` in the place of answers, the estimate is ``Var b``,
    which is the covariance of all cells with ``f``.
    """
    model = sweep.model
    places = touched(sweep, leaves)
    last = len(model.levels) - 1
    own: dict[int, Floats] = {}  # V b of each touched geounit, (g, r, n)
    below: dict[int, Floats] = {}  # their sum over the children
    linear = weights[:, None, None] * rows
    for number in range(last, 0, -1):
        own[number] = _each(_known(sweep, number, places[number]), linear)
        parent = model.levels[number].parent[places[number]]
        below[number - 1] = np.add.reduceat(own[number], np.flatnonzero(np.diff(parent, prepend=-1)), axis=0)
        linear = _each(_information(sweep, number - 1, places[number - 1]), below[number - 1])
    found = _each(roots.take(places[0]), linear)
    for number in range(last + 1):
        if number:
            pulled = _each(_information(sweep, number - 1, places[number - 1]), found - below[number - 1])
            up = np.searchsorted(places[number - 1], model.levels[number].parent[places[number]])
            found = own[number] + _each(_known(sweep, number, places[number]), pulled[up])
        for geounit, vectors in zip(places[number].tolist(), found, strict=True):
            yield number, geounit, vectors


def _known(sweep: Sweep, level: int, geounits: Ints) -> Operators:
    """Return ``V`` of some geounits."""
    statistics, here = sweep.statistics[level], sweep.model.levels[level]
    allowed = here.patterns[here.pattern[geounits - here.first]]
    return statistics.precision.take(geounits - statistics.first).inverse(allowed)


def _information(sweep: Sweep, level: int, geounits: Ints) -> Operators:
    """Return ``S^-1`` of some geounits."""
    below, here = sweep.below[level], sweep.model.levels[level]
    allowed = here.patterns[here.pattern[geounits - here.first]]
    return below.covariance.take(geounits - below.first).inverse(allowed)


def _each(operators: Operators, vectors: Floats) -> Floats:
    """Apply each geounit's operator to its vectors, float64 (g, r, n)."""
    count, rows, cells = vectors.shape
    several = operators.take(np.repeat(np.arange(count), rows))
    return several.apply(vectors.reshape(-1, cells)).reshape(vectors.shape)
