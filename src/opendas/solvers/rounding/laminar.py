# mypy: allow-untyped-defs, allow-untyped-calls
"""A laminar family of row groups over the cells of a histogram, as a tree.

Two sets of cells cross where they overlap and neither holds the other. A family without a crossing pair is
laminar and is a forest: the parent of a set is the smallest set that holds it. The rounder is a flow along
that forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from opendas.arrays import Bools, refines
from opendas.arrays.kernels import inner
from opendas.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Rows(NamedTuple):
    """Row maps and constraint groups over the same n cells, stacked for compiled code."""

    # (maps, n): row of each cell in each map, numbered from 0; -1 where a cell lies in no row.
    maps: NDArray[np.int32]
    groups: Bools  # (groups, n): cells of each constraint group


class Forest(NamedTuple):
    """The distinct sets of a laminar family; a set comes after every set that holds it."""

    # A crossing pair of sets, or (-1, -1). Sets are numbered map by map, then group by group.
    crossing: tuple[int, int]
    parent: NDArray[np.int32]  # (sets,): smallest set that strictly holds this one, -1 where there is none
    size: NDArray[np.int32]  # (sets,): number of cells
    owner: NDArray[np.int32]  # (n,): smallest set that holds the cell, -1 where there is none
    map_node: NDArray[np.int32]  # (maps, n): set that a cell's row became, -1 where it lies in none
    group_node: NDArray[np.int32]  # (groups,): set that a group became, -1 for an empty group


@inner
def _members(maps, groups):
    """Offsets and cells of every set (compressed rows), and the first set of every map."""
    n_maps, n = maps.shape
    n_groups = len(groups)
    base = np.zeros(n_maps + 1, np.int64)
    for q in range(n_maps):
        top = -1
        for j in range(n):
            top = max(top, maps[q, j])
        base[q + 1] = base[q] + top + 1
    n_sets = base[n_maps] + n_groups
    start = np.zeros(n_sets + 1, np.int64)
    for q in range(n_maps):
        for j in range(n):
            if maps[q, j] >= 0:
                start[base[q] + maps[q, j] + 1] += 1
    for g in range(n_groups):
        for j in range(n):
            if groups[g, j]:
                start[base[n_maps] + g + 1] += 1
    for s in range(n_sets):
        start[s + 1] += start[s]
    place = start[:-1].copy()
    cells = np.empty(start[n_sets], np.int32)
    for q in range(n_maps):
        for j in range(n):
            if maps[q, j] >= 0:
                s = base[q] + maps[q, j]
                cells[place[s]] = j
                place[s] += 1
    for g in range(n_groups):
        s = base[n_maps] + g
        for j in range(n):
            if groups[g, j]:
                cells[place[s]] = j
                place[s] += 1
    return base, start, cells


@inner
def _largest_first(start, n):
    """Non-empty sets by falling size (counting sort, stable)."""
    n_sets = len(start) - 1
    rank = np.zeros(n + 2, np.int64)
    for s in range(n_sets):
        rank[n - (start[s + 1] - start[s]) + 1] += 1
    for k in range(n + 1):
        rank[k + 1] += rank[k]
    used = rank[n]
    order = np.empty(n_sets, np.int64)
    for s in range(n_sets):
        k = n - (start[s + 1] - start[s])
        order[rank[k]] = s
        rank[k] += 1
    return order[:used]


@njit(cache=True, nogil=True)
def forest(maps, groups):
    """Build the forest of a family of sets, or find a crossing pair.

    - `maps`, int32 array, (maps, n): row of each cell, -1 for none.
    - `groups`, bool array, (groups, n): constraint groups.
    - Returns, Forest: after a crossing pair only ``crossing`` means anything.

    Notes
    -----
    Sets are placed by falling size. All cells of a set must then lie in the same smallest set so far; where
    two of them do not, the smaller of their two owners is at least as large as the set, holds one of the two
    cells and lacks the other, so it crosses the set. Time is linear in the number of memberships.
    """
    n_maps, n = maps.shape
    base, start, cells = _members(maps, groups)
    order = _largest_first(start, n)
    node_of = np.full(len(start) - 1, np.int32(-1))
    parent = np.empty(len(order), np.int32)
    size = np.empty(len(order), np.int32)
    named = np.empty(len(order), np.int64)
    owner = np.full(n, np.int32(-1))
    crossing = (-1, -1)
    used = 0
    for s in order:
        up = owner[cells[start[s]]]
        for k in range(start[s] + 1, start[s + 1]):
            other = owner[cells[k]]
            if other != up:
                # Nodes are numbered by falling size, so the larger number is the smaller set.
                crossing = (int(named[max(up, other)]), int(s))
                break
        if crossing[0] >= 0:
            break
        count = start[s + 1] - start[s]
        if up >= 0 and size[up] == count:
            node_of[s] = up
            continue
        parent[used] = up
        size[used] = count
        named[used] = s
        node_of[s] = used
        for k in range(start[s], start[s + 1]):
            owner[cells[k]] = used
        used += 1
    map_node = np.full((n_maps, n), np.int32(-1))
    for q in range(n_maps):
        for j in range(n):
            if maps[q, j] >= 0:
                map_node[q, j] = node_of[base[q] + maps[q, j]]
    return Forest(crossing, parent[:used], size[:used], owner, map_node, node_of[base[n_maps] :])


def _surely_laminar(rows: Rows) -> bool:
    """Whether maps refine each other, and groups hold rows, or lie in one, and do not cross.

    Without compiled code: the main process of a run has no other use for it, and some tenths of a second go
    into loading any.
    """
    left = sorted(rows.maps, key=lambda row: -int(row.max(initial=-1)))
    while left:
        fine = left.pop(0)
        inside = fine >= 0
        if not all(refines(fine[inside], other[inside]) for other in left):
            return False
        if not all(_all_equal(fine[group]) or refines(fine[inside], group[inside]) for group in rows.groups):
            return False
    owner = np.full(rows.groups.shape[1], -1)
    for k in np.argsort(-rows.groups.sum(axis=1), kind="stable").tolist():
        if not _all_equal(owner[rows.groups[k]]):
            return False
        owner[rows.groups[k]] = k
    return True


def _all_equal(values: NDArray[Any]) -> bool:
    return not len(values) or bool((values == values[0]).all())


def check_laminar(rows: Rows, map_names: Sequence[str] = (), group_names: Sequence[str] = ()) -> None:
    """Refuse a family of sets in which two cross."""
    if _surely_laminar(rows):
        return
    found = forest(rows.maps, rows.groups).crossing
    if found[0] >= 0:
        one, two = (_set_name(rows, number, map_names, group_names) for number in found)
        raise ConfigError(
            f"the rounder needs row groups of which any two are nested or disjoint, but {one} and {two} "
            "cross. Leave one of them out (a query group in [passes], a constraint in the product), or set "
            "milp = true in [passes], which is exact but slower."
        )


def _set_name(rows: Rows, number: int, map_names: Sequence[str], group_names: Sequence[str]) -> str:
    for q, row in enumerate(rows.maps):
        count = int(row.max(initial=-1)) + 1
        if number < count:
            name = map_names[q] if q < len(map_names) else f"map {q}"
            return f"query '{name}', row {number}"
        number -= count
    name = group_names[number] if number < len(group_names) else str(number)
    return f"constraint '{name}'"
