# mypy: allow-untyped-defs, allow-untyped-calls
"""Compiled driver of controlled rounding: snap, round pass by pass, check.

Axes: C children, n cells, K groups, t sets of the laminar forest.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays.kernels import inner, mix
from opendas.solvers.rounding.laminar import forest
from opendas.solvers.rounding.network import Family, Nodes, solve_pass, sum_up
from opendas.solvers.rounding.snapping import BITS, DONE, ONE, heap_order, snap

CROSSING, TOO_LARGE, VIOLATED, BROKEN = 3, 4, 5, 6


@inner
def _mix_all(keys):
    """Mix every key of a uint64 array."""
    words = np.empty(len(keys), np.uint64)
    for k in range(len(keys)):
        words[k] = mix(keys[k])
    return words


@inner
def first_guess(family, y):
    """Give each column's ones to its largest fractions; without parent round to nearest.

    `y`, int64 array, (C, n): zeros; filled.
    """
    part, need = family.part, family.need
    children, n = part.shape
    if not family.has_total:
        for c in range(children):
            for j in range(n):
                y[c, j] = 1 if 2 * part[c, j] > ONE else 0
        return
    column = np.empty(children, np.int64)
    for j in range(n):
        if need[j] > 0:
            for c in range(children):
                column[c] = part[c, j]
            order = heap_order(column)
            for k in range(need[j]):
                y[order[children - 1 - k], j] = 1


@inner
def _set_keys(up, owner, cell_word):
    """Sum (modulo 2**64) of the mixed keys of each set's cells."""
    word = np.zeros(len(up), np.uint64)
    for j in range(len(owner)):
        if owner[j] >= 0:
            word[owner[j]] += cell_word[j]
    sum_up(up, word)
    return word


@inner
def weights(map_node, map_pass, k, size):
    """How often each set is a row of pass k, and whether it is a row of an earlier one.

    - `map_node`, int32 array, (maps, n): set of each cell's row in each map.
    - `map_pass`, int64 array, (maps,): pass of each map.
    - `k`, int: pass.
    - `size`, int32 array, (t,): sizes of the sets.
    - Returns `weight` (t,): rows of pass k.
    - Returns `held` (t,): rows of earlier passes.
    """
    weight = np.zeros(len(size), np.int64)
    held = np.zeros(len(size), np.bool_)
    for q in range(len(map_node)):
        for v in map_node[q]:
            if v >= 0 and map_pass[q] == k:
                weight[v] += 1
            elif v >= 0 and map_pass[q] < k:
                held[v] = True
    for v in range(len(size)):
        weight[v] //= size[v]
    return weight, held


@inner
def _objective(family, nodes, y):
    """Sum over children and rows of the pass of |Q(f - y)|, in units of 2**-20."""
    up, owner, weight, part = nodes.up, nodes.owner, nodes.weight, family.part
    difference = np.empty(len(up), np.int64)
    result = np.int64(0)
    for c in range(len(y)):
        difference[:] = 0
        for j in range(len(owner)):
            if owner[j] >= 0:
                difference[owner[j]] += part[c, j] - (y[c, j] << BITS)
        sum_up(up, difference)
        for v in range(len(up)):
            result += weight[v] * abs(difference[v])
    return result


@njit(cache=True, nogil=True)
def broken_groups(values, groups, lower, upper):
    """Mark the groups whose bounds some child breaks.

    - `values`, int64 array, (C, n): rounded table.
    - `groups`, bool array, (K, n): cells of each group.
    - `lower`, `upper`, int64 array, (C, K): bounds.
    - Returns (K,): True where a bound is broken.
    """
    broken = np.zeros(len(groups), np.bool_)
    for g in range(len(groups)):
        for c in range(len(values)):
            total = np.int64(0)
            for j in range(values.shape[1]):
                if groups[g, j]:
                    total += values[c, j]
            if total < lower[c, g] or total > upper[c, g]:
                broken[g] = True
    return broken


@njit(cache=True, nogil=True)
def broken_joint(values, joint, joint_total):
    """Mark the joint totals that the table misses.

    - `values`, int64 array, (C, n): rounded table.
    - `joint`, int64 array, (C,): joint total of each child, -1 for none.
    - `joint_total`, int64 array, (J,): joint totals.
    - Returns (J,): True where the sum of the children is not the total.
    """
    missing = joint_total.copy()
    for c in range(len(values)):
        if joint[c] >= 0:
            for j in range(values.shape[1]):
                missing[joint[c]] -= values[c, j]
    return missing != 0


@inner
def _keeps_columns(values, total, has_total, mask):
    """Whether the table is non-negative, inside its mask, and adds up to the parent."""
    for j in range(values.shape[1]):
        column = np.int64(0)
        for c in range(len(values)):
            if values[c, j] < 0 or (values[c, j] != 0 and not mask[c, j]):
                return False
            column += values[c, j]
        if has_total and column != total[j]:
            return False
    return True


@njit(cache=True, nogil=True)
def round_passes(problem):
    """Round a family pass by pass, and check the result against every constraint in integers.

    - Returns `status`: ``DONE``, a status of :func:`opendas.solvers.rounding.snapping.snap`, ``CROSSING``,
      ``TOO_LARGE``, ``VIOLATED`` (the groups and joint totals allow no rounding) or ``BROKEN`` (a defect of
      this module).
    - Returns `values` (C, n): rounded estimate.
    - Returns `objective` (passes,): objective of each pass in units of 2**-20.
    """
    total, has_total, mask = problem.total, problem.has_total, problem.mask
    lower, upper, joint, joint_total = problem.lower, problem.upper, problem.joint, problem.joint_total
    # Integer parts and fractions, in units of 2**-20.
    child_word = _mix_all(problem.child_keys)
    cell_word = _mix_all(problem.cell_keys)
    objective = np.zeros(problem.passes, np.int64)
    status, base, part, need = snap(problem.x, total, has_total, mask, child_word, cell_word)
    if status != DONE:
        return status, base, objective
    # The forest of all rows, which the flow goes along.
    sets = forest(problem.maps, problem.groups)
    if sets.crossing[0] >= 0:
        return CROSSING, base, objective
    active = mask & (need > 0) if has_total else mask.copy()
    family = Family(
        base, part, need, has_total, active, lower, upper, child_word, cell_word, joint, joint_total
    )
    up, size, owner = sets.parent, sets.size, sets.owner
    word = _set_keys(up, owner, cell_word)
    y = np.zeros(part.shape, np.int64)
    first_guess(family, y)
    # (7.7), pass by pass: rows of earlier passes are held.
    for k in range(problem.passes):
        weight, held = weights(sets.map_node, problem.map_pass, k, size)
        last = k == problem.passes - 1
        nodes = Nodes(up, size, owner, sets.group_node, weight, held, word, last)
        if not solve_pass(family, nodes, y):
            return TOO_LARGE, base, objective
        objective[k] = _objective(family, nodes, y)
    # Every constraint, in integers.
    values = base + y
    if not _keeps_columns(values, total, has_total, mask):
        return BROKEN, values, objective
    if np.any(broken_groups(values, problem.groups, lower, upper)):
        return VIOLATED, values, objective
    if np.any(broken_joint(values, joint, joint_total)):
        return VIOLATED, values, objective
    return DONE, values, objective
