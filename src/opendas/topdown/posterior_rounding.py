# mypy: allow-untyped-defs, allow-untyped-calls
"""Compiled choice of a table of given totals by its expected error, apart from the sampler of its draws.

Axes: ``C`` children, ``s`` cells, ``D`` depths of the tree of cells, ``V`` its nodes, ``k`` draws.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Ints
from opendas.arrays.kernels import inner

SWEEPS = 100
"""Most passes over all pairs of children."""
WORTH = 1e-9
"""What an exchange has to gain, in people, to be made."""


def least_error(table: Ints, totals: Ints, path: Ints, draws: Ints) -> Ints:
    """Return a table with given totals of classes whose expected absolute error is small.

    The error is that of all nodes below the classes together, expected over draws. It is convex in each
    count; single records are exchanged between two children until no exchange makes it less.

    - `table` (C, s): where to start; its columns keep their sums.
    - `totals` (C, G): of each class in each child. They add up to those of `table`.
    - `path` (D + 1, s): see :class:`opendas.topdown.posterior_kernels.Tree`.
    - `draws` (k, C, V).
    """
    found = table.copy()
    _exchange(found, totals, path, np.ascontiguousarray(np.sort(draws, axis=0).transpose(1, 2, 0)))
    return found


@inner
def _margin(draws, n):
    """Return what one more than `n` records adds to the expected absolute error, from sorted draws."""
    return 2.0 * np.searchsorted(draws, n, side="right") / len(draws) - 1.0


@inner
def _move(counts, up, down, draws, path, table, s, a, b):
    """Move a record of a cell from one child to another."""
    table[a, s] -= 1
    table[b, s] += 1
    for level in range(len(path)):
        v = path[level, s]
        counts[a, v] -= 1
        counts[b, v] += 1
        for c in (a, b):
            up[c, v] = _margin(draws[c, v], counts[c, v])
            down[c, v] = -_margin(draws[c, v], counts[c, v] - 1)


@njit(cache=True, nogil=True)
def _exchange(table, totals, path, draws):
    children, cells = table.shape
    nodes, levels = draws.shape[1], len(path)
    counts = np.zeros((children, nodes), np.int64)
    up, down = np.zeros((children, nodes)), np.zeros((children, nodes))
    for c in range(children):
        for s in range(cells):
            for level in range(levels):
                counts[c, path[level, s]] += table[c, s]
        for v in range(nodes):
            up[c, v] = _margin(draws[c, v], counts[c, v])
            down[c, v] = -_margin(draws[c, v], counts[c, v] - 1)
    # Totals first: a record that one child has too many goes where one is missing.
    while True:
        best, best_s, best_a, best_b = np.inf, -1, -1, -1
        for s in range(cells):
            g = path[0, s]
            for a in range(children):
                if table[a, s] == 0 or counts[a, g] <= totals[a, g]:
                    continue
                for b in range(children):
                    if counts[b, g] >= totals[b, g]:
                        continue
                    value = 0.0
                    for level in range(1, levels):
                        v = path[level, s]
                        value += down[a, v] + up[b, v]
                    if value < best:
                        best, best_s, best_a, best_b = value, s, a, b
        if best_s < 0:
            break
        _move(counts, up, down, draws, path, table, best_s, best_a, best_b)
    there, back = np.empty((cells, levels)), np.empty((cells, levels))
    for _ in range(SWEEPS):
        moved = False
        for a in range(children):
            for b in range(a):
                while _best_exchange(table, path, up, down, a, b, there, back, counts, draws):
                    moved = True
        if not moved:
            break


@inner
def _best_exchange(table, path, up, down, a, b, there, back, counts, draws):
    """Make the exchange of one record between two children that gains most; say whether one gains."""
    levels, cells = path.shape
    for s in range(cells):
        one = other = 0.0
        for level in range(levels - 1, 0, -1):
            v = path[level, s]
            one += down[a, v] + up[b, v]
            other += down[b, v] + up[a, v]
            there[s, level], back[s, level] = one, other
    best, best_s, best_t = -WORTH, -1, -1
    for s in range(cells):
        if table[a, s] == 0:
            continue
        for t in range(cells):
            if table[b, t] == 0 or path[0, t] != path[0, s]:
                continue
            level = 1
            while level < levels and path[level, t] == path[level, s]:
                level += 1
            if level < levels:
                value = there[s, level] + back[t, level]
                if value < best:
                    best, best_s, best_t = value, s, t
    if best_s < 0:
        return False
    _move(counts, up, down, draws, path, table, best_s, a, b)
    _move(counts, up, down, draws, path, table, best_t, b, a)
    return True
