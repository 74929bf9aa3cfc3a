"""Covariances of an estimate with the geounits below the one that it is about.

Given the total of a geounit, its children depend on nothing else: ``Cov(x_c, f) = V_c S^-1 Cov(x_v, f)``,
with the quantities of :mod:`opendas.whole_tree.up`, and so on down to the leaves.

Axes: ``r`` functions, ``n`` cells.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from opendas.whole_tree.up import Sweep

__all__ = ["descend", "subtree_sizes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
