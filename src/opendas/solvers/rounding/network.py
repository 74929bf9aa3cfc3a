# mypy: allow-untyped-defs, allow-untyped-calls
"""The flow network of one rounder pass: column -> cell -> smallest row -> ... -> widest row -> ground.

Axes: C children, n cells, t sets of the laminar forest, J joint totals. A column j supplies ``need[j]`` ones;
the flow through a row's arcs is the number of ones in it. The flow of children that share a joint total goes
to the ground by a node of that total. Costs have three ranks: bounds violated, distance to the targets, ties.
Without parent the columns disappear and the ground supplies every cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from opendas.arrays.kernels import inner, mix
from opendas.solvers.rounding.flow import MAX_POTENTIAL, Network, network_simplex
from opendas.solvers.rounding.snapping import BITS, ONE, TIE_SHIFT


class Family(NamedTuple):
    """One family, as compiled code sees it (arrays as in :func:`opendas.solvers.rounding.snapping.snap`)."""

    # base, part, int64 array, (C, n): integer parts and fractions.
    base: Any
    part: Any
    need: Any  # int64 array, (n,): ones of each column
    has_total: Any  # bool: whether there is a parent
    # bool array, (C, n): cells that can receive a one: allowed, and in a column that has ones to give.
    active: Any
    # lower, upper, int64 array, (C, K): bounds of the groups.
    lower: Any
    upper: Any
    # child_word, cell_word, uint64 array, (C,) and (n,): mixed tie keys.
    child_word: Any
    cell_word: Any
    joint: Any  # int64 array, (C,): joint total that each child has a part in, -1 for none
    joint_total: Any  # int64 array, (J,): joint totals


class Nodes(NamedTuple):
    """The sets of the forest and their part in one pass."""

    # up, size, owner, group_node, int32 array: as in :class:`opendas.solvers.rounding.laminar.Forest`.
    up: Any
    size: Any
    owner: Any
    group_node: Any
    weight: Any  # int64 array, (t,): how often the set is a row of this pass
    held: Any  # bool array, (t,): whether an earlier pass fixed its answer
    word: Any  # uint64 array, (t,): sum of its cells' mixed keys
    last: Any  # bool: whether ties are broken cell by cell (the last pass) or row by row


# Per set and child: allowed cells, fractions, ones so far, integer parts, bounds on the ones.
_COUNT, _TARGET, _NOW, _BASE, _LO, _HI = range(6)
# The rows of a child that need a node, in addition to the first three above.
_WEIGHT, _TIE, _ABOVE = 3, 6, 7


@inner
def sum_up(up, values):
    """Add every set's value to the sets that hold it.

    - `up`, int32 array, (t,): parents; a set comes after its parent.
    - `values`, array, (t,): values, summed in place.
    """
    for v in range(len(up) - 1, -1, -1):
        if up[v] >= 0:
            values[up[v]] += values[v]


@inner
def _sums(family, nodes, y, c, sums):
    """Fill ``sums`` (t, 6) for child c."""
    up, owner, base, part, active = nodes.up, nodes.owner, family.base, family.part, family.active
    sums[:] = 0
    for j in range(len(owner)):
        v = owner[j]
        if v >= 0:
            sums[v, _BASE] += base[c, j]
            if active[c, j]:
                sums[v, _COUNT] += 1
                sums[v, _TARGET] += part[c, j]
                sums[v, _NOW] += y[c, j]
    for v in range(len(up) - 1, -1, -1):
        u = up[v]
        if u >= 0:
            sums[u, _BASE] += sums[v, _BASE]
            sums[u, _COUNT] += sums[v, _COUNT]
            sums[u, _TARGET] += sums[v, _TARGET]
            sums[u, _NOW] += sums[v, _NOW]
    for v in range(len(up)):
        sums[v, _HI] = sums[v, _COUNT]
    for g in range(len(nodes.group_node)):
        v = nodes.group_node[g]
        if v >= 0:
            # Bounds may be any int64: subtract only where the result stays in range.
            if family.lower[c, g] > 0:
                sums[v, _LO] = max(sums[v, _LO], family.lower[c, g] - sums[v, _BASE])
            if family.upper[c, g] < sums[v, _BASE]:
                sums[v, _HI] = -1
            else:
                sums[v, _HI] = min(sums[v, _HI], family.upper[c, g] - sums[v, _BASE])
    for v in range(len(nodes.up)):
        if nodes.held[v]:
            sums[v, _LO] = sums[v, _NOW]
            sums[v, _HI] = sums[v, _NOW]


@inner
def _rows(family, nodes, sums, c, end, origin, net, rows):
    """Choose the sets of child c that need a network node: weighted or bounded, with two cells or more.

    A set with the same allowed cells as the one above shares its node; a single cell's set goes to its arc.
    ``end`` is the node after the widest sets: the ground, or the child's joint total. ``net`` receives the
    node of every set (its own, or the nearest above). Returns the number of nodes.
    """
    up, weight, word, last, child_word = nodes.up, nodes.weight, nodes.word, nodes.last, family.child_word
    used = 0
    for v in range(len(up)):
        above = net[up[v]] if up[v] >= 0 else end
        net[v] = above
        count = sums[v, _COUNT]
        free = sums[v, _LO] <= 0 and sums[v, _HI] >= count
        if count <= 1 or (weight[v] == 0 and free):
            continue
        tie = np.int64(0)
        if weight[v] > 0 and not last:
            tie = np.int64(mix(child_word[c] ^ word[v]) >> TIE_SHIFT)
        k = above - origin
        if k >= 0 and rows[k, _COUNT] == count:
            rows[k, _WEIGHT] += weight[v]
            rows[k, _LO] = max(rows[k, _LO], sums[v, _LO])
            rows[k, _HI] = min(rows[k, _HI], sums[v, _HI])
            rows[k, _TIE] += tie
            continue
        net[v] = origin + used
        rows[used, _COUNT] = count
        rows[used, _TARGET] = sums[v, _TARGET]
        rows[used, _NOW] = sums[v, _NOW]
        rows[used, _WEIGHT] = weight[v]
        rows[used, _LO] = sums[v, _LO]
        rows[used, _HI] = sums[v, _HI]
        rows[used, _TIE] = tie
        rows[used, _ABOVE] = above
        used += 1
    return used


@inner
def _segments(network, a, origin, rows):
    """Arcs of the rows: |target - k| interpolated at integers, and unit costs outside their bounds.

    The arc that carries the next unit joins the tree, so that flow can always still move to the ground.
    Returns the next free arc.
    """
    tail, head, capacity, costs, flow, parent, pred = network
    for k in range(len(rows)):
        node, above, now, weight = origin + k, rows[k, _ABOVE], rows[k, _NOW], rows[k, _WEIGHT]
        floor = rows[k, _TARGET] >> BITS
        rest = rows[k, _TARGET] & (ONE - 1)
        end = rows[k, _COUNT] + 1
        lo = min(rows[k, _LO], end - 1)
        hi = max(rows[k, _HI], lo)
        if hi >= end - 1:
            hi = end
        at = np.int64(0)
        while at < end:
            to = end
            if at < lo < to:
                to = lo
            if at < hi < to:
                to = hi
            slope = np.int64(0)
            if weight > 0:
                if at < floor < to:
                    to = floor
                if at < floor + 1 < to:
                    to = floor + 1
                slope = weight * ONE
                if at < floor:
                    slope = -slope
                elif at == floor:
                    slope -= 2 * weight * rest
            tail[a] = node
            head[a] = above
            capacity[a] = to - at
            costs[0, a] = (-1 if at < lo else 0) + (1 if at >= hi else 0)
            costs[1, a] = slope
            costs[2, a] = rows[k, _TIE]
            flow[a] = min(max(now - at, 0), to - at)
            if at <= now < to:
                parent[node] = above
                pred[node] = a
            a += 1
            at = to
    return a


@inner
def _cells(family, nodes, network, a, y, c, end, sums, net, column, spare):
    """Arcs from the columns to the cells' smallest rows. Returns the next free arc."""
    tail, head, capacity, costs, flow, parent, pred = network
    up, owner, row_weight, word, last = nodes.up, nodes.owner, nodes.weight, nodes.word, nodes.last
    active, part = family.active, family.part
    child_word, cell_word = family.child_word[c], family.cell_word
    for j in range(len(owner)):
        if not active[c, j]:
            continue
        weight = np.int64(0)
        must = 0
        tie = np.int64(mix(child_word ^ cell_word[j]) >> TIE_SHIFT) if last else np.int64(0)
        v = owner[j]
        while v >= 0 and sums[v, _COUNT] == 1:
            weight += row_weight[v]
            if sums[v, _LO] > 0:
                must = 1
            elif sums[v, _HI] < 1:
                must = -1
            if row_weight[v] > 0 and not last:
                tie += np.int64(mix(child_word ^ word[v]) >> TIE_SHIFT)
            v = up[v]
        tail[a] = column[j]
        head[a] = net[v] if v >= 0 else end
        capacity[a] = 1
        costs[0, a] = -must
        costs[1, a] = weight * (ONE - 2 * part[c, j])
        costs[2, a] = tie
        flow[a] = y[c, j]
        # A column's tree arc must have room: fractions below one sum to the ones, so some cell has none yet.
        if column[j] > 0 and y[c, j] == 0 and part[c, j] > spare[j]:
            spare[j] = part[c, j]
            parent[column[j]] = head[a]
            pred[column[j]] = a
        a += 1
    return a


@inner
def _joint_rows(family, y, rows):
    """Fill ``rows`` (J, 8) for the joint totals, which lead to the ground and cost nothing but violation."""
    rows[:] = 0
    for s in range(len(rows)):
        rows[s, _LO] = family.joint_total[s]
    for c in range(len(y)):
        s = family.joint[c]
        if s < 0:
            continue
        for j in range(y.shape[1]):
            rows[s, _LO] -= family.base[c, j]
            if family.active[c, j]:
                rows[s, _COUNT] += 1
                rows[s, _NOW] += y[c, j]
    for s in range(len(rows)):
        rows[s, _HI] = rows[s, _LO]


@inner
def _sizes(family, nodes, column):
    """Number the columns from 1; upper bounds on nodes and arcs."""
    used = np.int32(1)
    for j in range(len(column)):
        column[j] = 0
        if family.has_total and family.need[j] > 0:
            column[j] = used
            used += 1
    cells = np.int64(0)
    for row in family.active:
        for cell in row:
            cells += cell
    wide = 0
    for v in range(len(nodes.size)):
        if nodes.size[v] > 1:
            wide += 1
    return used, cells, wide


@njit(cache=True, nogil=True)
def _fits(costs, first_rank, arcs, nodes):
    """Whether no node potential can leave int64 (:data:`opendas.solvers.rounding.flow.MAX_POTENTIAL`)."""
    for rank in range(first_rank, len(costs)):
        largest = np.int64(0)
        for a in range(arcs):
            largest = max(largest, abs(costs[rank, a]))
        if float(largest) * nodes >= float(MAX_POTENTIAL):
            return False
    return True


@inner
def build_network(family, nodes, y):
    """Write a pass as a flow problem with a feasible flow and a strongly feasible tree.

    - `nodes`, Nodes: sets, weights and held answers of the pass.
    - `y`, int64 array, (C, n): a rounding that keeps the columns and the held answers.
    - Returns, Network, with costs of violation, distance in units of 2**-20, and ties. Nodes: the ground, the
      columns with ones to give, the joint totals, the rows of each child. Arcs: the active cells in the order
      of ``y``, then the segments of the joint totals and of the rows.
    """
    children, n = family.part.shape
    joint = len(family.joint_total)
    t = len(nodes.up)
    column = np.empty(n, np.int32)
    used, cells, wide = _sizes(family, nodes, column)
    most_nodes = used + joint + children * wide
    most_arcs = cells + 5 * (joint + children * wide)
    network = Network(
        np.empty(most_arcs, np.int32), np.empty(most_arcs, np.int32), np.empty(most_arcs, np.int64),
        np.empty((3, most_arcs), np.int64), np.empty(most_arcs, np.int64),
        np.full(most_nodes, np.int32(-1)), np.full(most_nodes, np.int32(-1)),
    )  # fmt: skip
    spare = np.full(n, np.int64(-1))
    sums = np.empty((t, 6), np.int64)
    net = np.empty(t, np.int32)
    rows = np.empty((wide, 8), np.int64)
    a = np.int64(0)
    b = cells
    first_joint = used
    if joint:
        together = np.empty((joint, 8), np.int64)
        _joint_rows(family, y, together)
        b = _segments(network, b, used, together)
        used += np.int32(joint)
    for c in range(children):
        end = np.int32(0)
        if joint and family.joint[c] >= 0:
            end = np.int32(first_joint + family.joint[c])
        _sums(family, nodes, y, c, sums)
        count = _rows(family, nodes, sums, c, end, used, net, rows)
        b = _segments(network, b, used, rows[:count])
        used += count
        a = _cells(family, nodes, network, a, y, c, end, sums, net, column, spare)
    return Network(
        network.tail[:b], network.head[:b], network.capacity[:b], network.costs, network.flow[:b],
        network.parent[:used], network.pred[:used],
    )  # fmt: skip


@inner
def solve_pass(family, nodes, y):
    """Round one pass.

    - `nodes`, Nodes: sets, weights and held answers of the pass.
    - `y`, int64 array, (C, n): a rounding that keeps the columns and the held answers; overwritten by the
      best one.
    - Returns: False where the costs do not fit 64-bit integers.
    """
    network = build_network(family, nodes, y)
    arcs, flow = len(network.flow), network.flow
    first_rank = 1
    for a in range(arcs):
        if network.costs[0, a] != 0:
            first_rank = 0
            break
    if not _fits(network.costs, first_rank, arcs, len(network.parent)):
        return False
    network_simplex(network, 0, first_rank)
    active = family.active
    a = 0
    for c in range(len(active)):
        for j in range(active.shape[1]):
            if active[c, j]:
                y[c, j] = flow[a]
                a += 1
    return True
