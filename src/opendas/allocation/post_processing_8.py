"""Consistent counts for a hierarchy of one attribute: hierarchical post-processing, equation (8).

From the top down, the noisy counts of the children of each geounit are moved to the nearest non-negative
counts that add up to their parent's (section 3.3 of the paper). A weighted leaf-heavy plan may do better from
the bottom up (appendix C): then the counts above are sums. Any level between may be the anchor. The cost is
that of sorting the leaves.

:mod:`opendas.topdown.family` is the estimator for tables of many cells with invariants and constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.errors import EstimationError
from opendas.geography.hierarchy import Hierarchy
from opendas.solvers.simplex import project, project_integers

Counts = npt.NDArray[Any]


def post_process(
    hierarchy: Hierarchy,
    noisy: Sequence[Counts],
    *,
    anchor: int = 0,
    clamp: bool = True,
    integers: bool | None = None,
    tie_keys: Sequence[npt.NDArray[np.uint64]] | None = None,
) -> tuple[Counts, ...]:
    """Make noisy counts of all levels non-negative and consistent.

    - `noisy`, int64 or float64 (g,): noisy count of each geounit, level by level, top first.
    - `anchor`: level whose own counts, negative ones set to zero, are kept. Below it each family is projected
      onto its parent's count, above it counts are added up. 0 is the paper's top-down projection, -1 or the
      last level the bottom-up one.
    - `clamp`: project counts with the negative ones set to zero, as the paper writes it. False projects the
      noisy counts as they are. Both agree where the clamped counts of a family come to at least the total.
    - `integers`: whole numbers out, by :func:`opendas.solvers.simplex.project_integers`; the anchor's reals
      are rounded, halves to even. By default where all of `noisy` are whole numbers.
    - `tie_keys` (g,): public keys of the geounits of each level, by default their positions; they decide
      between equal remainders.
    - Returns, int64 or float64 (g,): top first. Not negative; children add up to their parent, exactly for
      integers.

    Raises `EstimationError` if the levels do not fit the hierarchy, a count is not finite, or sums leave
    64-bit integers.

    Notes
    -----
    Ko et al. (2025), equation (8). What it leaves open is decided so that levels always add up. A geounit
    without a leaf below it counts zero, whatever was measured: by the public hierarchy it is empty. A family
    whose total is zero gets zeros. A family whose counts are all zero shares its total equally.

    Examples
    --------
    >>> tree = Hierarchy.of([[0], [0, 0], [0, 0, 1, 1]])
    >>> noisy = [np.array([10]), np.array([7, 5]), np.array([9, -3, 2, 1])]
    >>> [counts.tolist() for counts in post_process(tree, noisy)]
    [[10], [6, 4], [6, 0, 2, 2]]
    """
    levels = _checked(hierarchy, noisy)
    whole = all(counts.dtype.kind == "i" for counts in levels) if integers is None else integers
    start = range(len(levels))[anchor] if -len(levels) <= anchor < len(levels) else None
    if start is None:
        raise EstimationError(f"the anchor is level {anchor}, but there are {len(levels)} levels, from 0.")
    inhabited = hierarchy.inhabited()
    keys = _keys(tie_keys, hierarchy)
    own = np.where(inhabited[start], np.maximum(levels[start], 0), 0)
    found: list[Counts] = [np.rint(own).astype(np.int64) if whole else own.astype(np.float64)]
    for level in range(start + 1, len(levels)):
        z = np.maximum(levels[level], 0) if clamp else levels[level]
        inside = np.flatnonzero(inhabited[level])
        family = hierarchy.parents[level][inside]
        counts: Counts = np.zeros(len(z), dtype=found[-1].dtype)
        try:
            if whole:
                counts[inside] = project_integers(z[inside], family, found[-1], keys[level][inside])
            else:
                counts[inside] = project(z[inside].astype(np.float64), family, found[-1])
        except ValueError as error:
            raise EstimationError(f"level {level + 1} from the top: {error}.") from error
        found.append(counts)
    for level in range(start, 0, -1):
        above: Counts = np.zeros(hierarchy.sizes[level - 1], dtype=found[0].dtype)
        np.add.at(above, hierarchy.parents[level], found[0])
        found.insert(0, above)
    return tuple(found)


def _checked(hierarchy: Hierarchy, noisy: Sequence[Counts]) -> list[Counts]:
    sizes = tuple(np.shape(counts) for counts in noisy)
    if sizes != tuple((size,) for size in hierarchy.sizes):
        raise EstimationError(
            f"counts of the shapes {', '.join(map(str, sizes)) or 'none'} do not fit a hierarchy of "
            f"{', '.join(map(str, hierarchy.sizes))} geounits."
        )
    levels = []
    for number, counts in enumerate(noisy):
        array = np.asarray(counts)
        if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
            raise EstimationError(f"level {number + 1} from the top: a count is not a finite number.")
        levels.append(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    return levels


def _keys(
    given: Sequence[npt.NDArray[np.uint64]] | None, hierarchy: Hierarchy
) -> list[npt.NDArray[np.uint64]]:
    if given is None:
        return [np.arange(size, dtype=np.uint64) for size in hierarchy.sizes]
    if tuple(len(keys) for keys in given) != hierarchy.sizes:
        raise EstimationError("tie keys are given level by level, one for each geounit.")
    return [np.asarray(keys).astype(np.uint64) for keys in given]
