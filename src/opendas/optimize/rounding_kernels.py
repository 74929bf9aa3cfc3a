# mypy: allow-untyped-defs, allow-untyped-calls
"""Compiled parts of controlled rounding: snapping, the flow network of a pass, and the loop over passes.

Axes: C children, n cells, t sets of a laminar forest. Fractions are integers in units of 2**-20 (``ONE``).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.optimize.flow import network_simplex
from opendas.optimize.laminar import forest

__all__ = ["ONE", "SNAP", "mix", "round_passes", "snap"]

BITS = 20
ONE = 1 << BITS
SNAP = 1e-6
TIE_SHIFT = np.uint64(24)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)

DONE, COLUMN_OFF, CROSSING, TOO_LARGE = 0, 1, 2, 3
_LIMIT = 1 << 62


@njit(cache=True, nogil=True)
def mix(z):
    """Finaliser of splitmix64 after one step of its counter: a public bijection of 64-bit words."""
    z = z + _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@njit(cache=True, nogil=True)
def _share(scaled, mask, j, gap, order_key, child_word, cell_word):
    """Spread ``gap`` quanta over the fractional, else the positive, else the allowed cells of column j."""
    children = len(scaled)
    picked = np.empty(children, np.int64)
    while gap != 0:
        count = 0
        for c in range(children):
            if mask[c, j] and scaled[c, j] & (ONE - 1):
                picked[count] = c
                count += 1
        if count == 0:
            for c in range(children):
                if mask[c, j] and (scaled[c, j] > 0):
                    picked[count] = c
                    count += 1
        if count == 0:
            for c in range(children):
                if mask[c, j]:
                    picked[count] = c
                    count += 1
        if count == 0 or (gap < 0 and scaled[:, j].sum() + gap < 0):
            return False
        sign = 1 if gap > 0 else -1
        each, extra = divmod(abs(gap), count)
        for k in range(count):
            order_key[k] = mix(child_word[picked[k]] ^ cell_word[j])
        order = np.argsort(order_key[:count])
        for k in range(count):
            c = picked[order[k]]
            step = each + (1 if k < extra else 0)
            if sign < 0:
                step = min(step, scaled[c, j])
            scaled[c, j] += sign * step
            gap -= sign * step
    return True


@njit(cache=True, nogil=True)
def snap(x, total, has_total, mask, child_word, cell_word, base, part, need):
    """Split the estimate into integer parts and fractions that sum to the parent exactly.

    Parameters
    ----------
    x : float64 array, (C, n)
        Estimate.
    total : int64 array, (n,)
        Parent; ignored unless ``has_total``.
    mask : bool array, (C, n)
        Cells that may be non-zero.
    child_word, cell_word : uint64 array, (C,) and (n,)
        Mixed keys.
    base, part : int64 array, (C, n)
        Filled with the integer parts and the fractions in units of 2**-20.
    need : int64 array, (n,)
        Filled with the number of ones each column still needs.

    Returns
    -------
    int
        ``DONE``, or ``COLUMN_OFF`` where a column is too far from its parent to be the same estimate.
    """
    children, n = x.shape
    order_key = np.empty(children, np.uint64)
    for c in range(children):
        for j in range(n):
            if mask[c, j]:
                v = x[c, j]
                near = np.rint(v)
                if abs(v - near) <= SNAP:
                    base[c, j] = np.int64(near) << BITS
                else:
                    base[c, j] = np.int64(np.rint(v * ONE))
            else:
                base[c, j] = 0
    if has_total:
        for j in range(n):
            gap = total[j] << BITS
            for c in range(children):
                gap -= base[c, j]
            if gap != 0:
                allowed = 4.0 * children + 1e-4 * ONE * max(1.0, float(total[j]))
                if abs(gap) > allowed:
                    return COLUMN_OFF
                if not _share(base, mask, j, gap, order_key, child_word, cell_word):
                    return COLUMN_OFF
    for j in range(n):
        rest = np.int64(0)
        for c in range(children):
            part[c, j] = base[c, j] & (ONE - 1)
            base[c, j] >>= BITS
            rest += part[c, j]
        need[j] = rest >> BITS
    return DONE


@njit(cache=True, nogil=True)
def _first_guess(part, mask, need, has_total, y):
    """Give each column's ones to its largest fractions; without parent round to nearest."""
    children, n = part.shape
    if not has_total:
        for c in range(children):
            for j in range(n):
                y[c, j] = 1 if 2 * part[c, j] > ONE else 0
        return
    column = np.empty(children, np.int64)
    for j in range(n):
        if need[j] == 0:
            continue
        for c in range(children):
            column[c] = part[c, j] if mask[c, j] else -1
        order = np.argsort(column)
        for k in range(need[j]):
            y[order[children - 1 - k], j] = 1


@njit(cache=True, nogil=True)
def _sum_up(parent, values):
    """Add each set's value to the sets that hold it (sets come after their parents)."""
    for v in range(len(parent) - 1, -1, -1):
        if parent[v] >= 0:
            values[parent[v]] += values[v]


@njit(cache=True, nogil=True)
def _node_data(map_node, own, held_below, parent, owner, size, cell_word):
    """Weight of each set in this pass, whether an earlier pass holds it, and its key."""
    t = len(parent)
    n = len(owner)
    weight = np.zeros(t, np.int64)
    held = np.zeros(t, np.bool_)
    word = np.zeros(t, np.uint64)
    for q in range(len(map_node)):
        for j in range(n):
            v = map_node[q, j]
            if v >= 0:
                if own[q]:
                    weight[v] += 1
                elif held_below[q]:
                    held[v] = True
    for v in range(t):
        weight[v] //= size[v]
    for j in range(n):
        if owner[j] >= 0:
            word[owner[j]] += cell_word[j]
    for v in range(t - 1, -1, -1):
        if parent[v] >= 0:
            word[parent[v]] += word[v]
    return weight, held, word


@njit(cache=True, nogil=True)
def _segments(
    node, up, weight, target, lo, hi, count, now, tie, a, tail, head, capacity, costs, flow, parent, pred
):
    """Arcs of one row: |target - k| interpolated at integers, and unit costs outside [lo, hi]."""
    floor = target >> BITS
    rest = target & (ONE - 1)
    end = count + 1
    lo = min(lo, count)
    hi = max(hi, lo)
    if hi >= count:
        hi = end
    at = 0
    while at < end:
        nxt = end
        if at < lo < nxt:
            nxt = lo
        if at < hi < nxt:
            nxt = hi
        slope = 0
        if weight > 0:
            if at < floor < nxt:
                nxt = floor
            if at < floor + 1 < nxt:
                nxt = floor + 1
            if at < floor:
                slope = -weight * ONE
            elif at == floor:
                slope = weight * (ONE - 2 * rest)
            else:
                slope = weight * ONE
        tail[a] = node
        head[a] = up
        capacity[a] = nxt - at
        costs[0, a] = (-1 if at < lo else 0) + (1 if at >= hi else 0)
        costs[1, a] = slope
        costs[2, a] = tie
        flow[a] = min(max(now - at, 0), nxt - at)
        if at <= now < nxt:
            parent[node] = up
            pred[node] = a
        a += 1
        at = nxt
    return a


@njit(cache=True, nogil=True)
def _solve_pass(
    tree,
    map_node,
    group_node,
    own,
    earlier,
    last,
    has_total,
    base,
    part,
    need,
    mask,
    lower,
    upper,
    child_word,
    cell_word,
    y,
):
    """Round one pass: build the network around the current ``y``, solve it, write ``y``."""
    up, size, owner = tree
    children, n = part.shape
    t = len(up)
    weight, held, word = _node_data(map_node, own, earlier, up, owner, size, cell_word)
    column = np.full(n, np.int32(0))
    nodes = 1
    if has_total:
        for j in range(n):
            if need[j] > 0:
                column[j] = nodes
                nodes += 1
    cell_arcs = 0
    for c in range(children):
        for j in range(n):
            if mask[c, j] and (not has_total or need[j] > 0):
                cell_arcs += 1
    wide = 0
    for v in range(t):
        if size[v] > 1:
            wide += 1
    most_nodes = nodes + children * wide
    most_arcs = cell_arcs + 5 * children * wide
    tail = np.empty(most_arcs, np.int32)
    head = np.empty(most_arcs, np.int32)
    capacity = np.empty(most_arcs, np.int64)
    flow = np.empty(most_arcs, np.int64)
    costs = np.empty((3, most_arcs), np.int64)
    parent = np.empty(most_nodes, np.int32)
    pred = np.empty(most_nodes, np.int32)
    parent[0] = -1
    pred[0] = -1
    spare = np.full(n, np.int64(-1))
    count = np.empty(t, np.int64)
    target = np.empty(t, np.int64)
    now = np.empty(t, np.int64)
    below = np.empty(t, np.int64)
    lo = np.empty(t, np.int64)
    hi = np.empty(t, np.int64)
    net = np.empty(t, np.int32)
    # Rows of the child that became network nodes, in order.
    row_count = np.empty(wide, np.int64)
    row_target = np.empty(wide, np.int64)
    row_now = np.empty(wide, np.int64)
    row_weight = np.empty(wide, np.int64)
    row_lo = np.empty(wide, np.int64)
    row_hi = np.empty(wide, np.int64)
    row_tie = np.empty(wide, np.int64)
    row_up = np.empty(wide, np.int32)
    a = 0
    b = cell_arcs
    for c in range(children):
        for v in range(t):
            count[v] = 0
            target[v] = 0
            now[v] = 0
            below[v] = 0
        for j in range(n):
            v = owner[j]
            if v >= 0:
                below[v] += base[c, j]
                if mask[c, j] and (not has_total or need[j] > 0):
                    count[v] += 1
                    target[v] += part[c, j]
                    now[v] += y[c, j]
        _sum_up(up, count)
        _sum_up(up, target)
        _sum_up(up, now)
        _sum_up(up, below)
        for v in range(t):
            lo[v] = 0
            hi[v] = count[v]
        for g in range(len(group_node)):
            v = group_node[g]
            if v >= 0:
                lo[v] = max(lo[v], lower[c, g] - below[v])
                hi[v] = min(hi[v], upper[c, g] - below[v])
        origin = nodes
        for v in range(t):
            above = net[up[v]] if up[v] >= 0 else np.int32(0)
            if held[v]:
                lo[v] = now[v]
                hi[v] = now[v]
            net[v] = above
            if count[v] <= 1 or (weight[v] == 0 and lo[v] <= 0 and hi[v] >= count[v]):
                continue
            tie = np.int64(0)
            if not last and weight[v] > 0:
                tie = np.int64(mix(child_word[c] ^ word[v]) >> TIE_SHIFT)
            k = above - origin
            if above >= origin and row_count[k] == count[v]:
                row_weight[k] += weight[v]
                row_lo[k] = max(row_lo[k], lo[v])
                row_hi[k] = min(row_hi[k], hi[v])
                row_tie[k] += tie
                continue
            k = nodes - origin
            net[v] = nodes
            nodes += 1
            row_count[k] = count[v]
            row_target[k] = target[v]
            row_now[k] = now[v]
            row_weight[k] = weight[v]
            row_lo[k] = max(lo[v], 0)
            row_hi[k] = hi[v]
            row_tie[k] = tie
            row_up[k] = above
        for k in range(nodes - origin):
            b = _segments(
                origin + k, row_up[k], row_weight[k], row_target[k], row_lo[k], row_hi[k], row_count[k],
                row_now[k],
                row_tie[k], b, tail, head, capacity, costs, flow, parent, pred,
            )  # fmt: skip
        for j in range(n):
            if not (mask[c, j] and (not has_total or need[j] > 0)):
                continue
            v = owner[j]
            w = np.int64(0)
            must = 0
            tie = np.int64(mix(child_word[c] ^ cell_word[j]) >> TIE_SHIFT) if last else np.int64(0)
            while v >= 0 and count[v] == 1:
                w += weight[v]
                if lo[v] > 0:
                    must = 1
                elif hi[v] < 1:
                    must = -1
                if not last and weight[v] > 0:
                    tie += np.int64(mix(child_word[c] ^ word[v]) >> TIE_SHIFT)
                v = up[v]
            tail[a] = column[j]
            head[a] = net[v] if v >= 0 else np.int32(0)
            capacity[a] = 1
            flow[a] = y[c, j]
            costs[0, a] = -must
            costs[1, a] = w * (ONE - 2 * part[c, j])
            costs[2, a] = tie
            if has_total and y[c, j] == 0 and (spare[j] < 0 or part[c, j] > spare[j]):
                spare[j] = part[c, j]
                parent[column[j]] = head[a]
                pred[column[j]] = a
            a += 1
    first_rank = 1
    for k in range(b):
        if costs[0, k] != 0:
            first_rank = 0
            break
    for rank in range(3):
        largest = np.int64(0)
        for k in range(b):
            largest = max(largest, abs(costs[rank, k]))
        if float(largest) * nodes >= _LIMIT:
            return TOO_LARGE
    network_simplex(
        0, first_rank, tail[:b], head[:b], capacity[:b], costs, flow[:b], parent[:nodes], pred[:nodes]
    )
    a = 0
    for c in range(children):
        for j in range(n):
            if mask[c, j] and (not has_total or need[j] > 0):
                y[c, j] = flow[a]
                a += 1
    return DONE


@njit(cache=True, nogil=True)
def _objective(tree, map_node, own, part, y):
    """Sum over children and rows of the pass of |Q(f - y)|, in quanta."""
    up, size, owner = tree
    children, n = part.shape
    t = len(up)
    weight = np.zeros(t, np.int64)
    for q in range(len(map_node)):
        if own[q]:
            for j in range(n):
                if map_node[q, j] >= 0:
                    weight[map_node[q, j]] += 1
    difference = np.empty(t, np.int64)
    result = np.int64(0)
    for c in range(children):
        difference[:] = 0
        for j in range(n):
            if owner[j] >= 0:
                difference[owner[j]] += part[c, j] - (y[c, j] << BITS)
        _sum_up(up, difference)
        for v in range(t):
            result += (weight[v] // size[v]) * abs(difference[v])
    return result


@njit(cache=True, nogil=True)
def round_passes(
    x, total, has_total, mask, maps, map_pass, passes, groups, lower, upper, child_key, cell_key
):
    """Round a family pass by pass.

    Parameters
    ----------
    x, mask, lower, upper : arrays
        As in :func:`opendas.optimize.rounding.round_family`.
    total : int64 array, (n,)
        Parent, ignored unless ``has_total``.
    maps : int32 array, (maps, n)
        Row maps of all passes, earlier passes first.
    map_pass : int64 array, (maps,)
        Pass of each map, rising.
    passes : int
        Number of passes.
    groups : bool array, (groups, n)
        Constraint groups.
    child_key, cell_key : uint64 array, (C,) and (n,)
        Tie keys.

    Returns
    -------
    status : int
        ``DONE``, ``COLUMN_OFF``, ``CROSSING`` or ``TOO_LARGE``.
    where : int
        Pass in which a status other than ``DONE`` arose.
    values : int64 array, (C, n)
        Rounded estimate.
    objective : int64 array, (passes,)
        Objective of each pass in units of 2**-20.
    """
    children, n = x.shape
    base = np.empty((children, n), np.int64)
    part = np.empty((children, n), np.int64)
    need = np.empty(n, np.int64)
    y = np.zeros((children, n), np.int64)
    objective = np.zeros(passes, np.int64)
    child_word = np.empty(children, np.uint64)
    cell_word = np.empty(n, np.uint64)
    for c in range(children):
        child_word[c] = mix(child_key[c])
    for j in range(n):
        cell_word[j] = mix(cell_key[j])
    status = snap(x, total, has_total, mask, child_word, cell_word, base, part, need)
    if status != DONE:
        return status, 0, base, objective
    _first_guess(part, mask, need, has_total, y)
    used = 0
    for k in range(passes):
        while used < len(maps) and map_pass[used] <= k:
            used += 1
        crossing, up, size, owner, map_node, group_node = forest(maps[:used], groups)
        if crossing[0] >= 0:
            return CROSSING, k, base, objective
        own = map_pass[:used] == k
        tree = (up, size, owner)
        status = _solve_pass(
            tree, map_node, group_node, own, ~own, k == passes - 1, has_total, base, part, need, mask,
            lower, upper,
            child_word, cell_word, y,
        )  # fmt: skip
        if status != DONE:
            return status, k, base, objective
        objective[k] = _objective(tree, map_node, own, part, y)
    return DONE, 0, base + y, objective
