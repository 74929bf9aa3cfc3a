# mypy: allow-untyped-defs, allow-untyped-calls
"""Integer min-cost flow: a primal network simplex with several costs in order of rank.

The costs are lexicographic: among the flows of least first cost, the second is minimised, and so on. Each
rank is solved over the arcs that earlier ranks leave free (reduced cost zero), so ranks are never mixed
into one number: a tie-breaking cost, however large, cannot outweigh one unit of the cost above it.

The basis is kept strongly feasible (Cunningham 1976; Ahuja, Magnanti & Orlin, *Network Flows*, section 11.6):
every node can send a positive amount to the root inside the tree. With the leaving rule used here this
excludes cycling, so the method always ends. Everything is integer and sequential: same input, same output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opendas.arrays.kernels import inner

MAX_POTENTIAL = 1 << 62
"""Nodes times the largest absolute cost must stay below this, so that no potential leaves int64."""

BLOCK, WIDE_BLOCK, MANY_NODES = 0.5, 4.0, 8_192
"""Arcs whose reduced costs are looked at together, in square roots of their number. Where nodes are many, a
pivot that moves half of them costs more than looking further for a better one."""

TREE, LOWER, UPPER = 0, 1, -1
# Nodes and arcs are unsigned inside: compiled indexing then needs no test for negative ones (30 % faster).
NONE = np.uint32(0xFFFFFFFF)


class Network(NamedTuple):
    """A flow problem with its start."""

    # tail, head, int32 array, (arcs,): end nodes of each arc.
    tail: Any
    head: Any
    capacity: Any  # int64 array, (arcs,), >= 0: upper bounds; lower bounds are zero
    costs: Any  # int64 array, (ranks, at least arcs): unit costs, the most important first
    flow: Any  # int64 array, (arcs,): a feasible flow; arcs outside the tree are at zero or at capacity
    # parent, pred, int32 array, (nodes,): the spanning tree: parent node (-1 at the root) and the arc to it.
    # Strongly feasible: on every tree arc some flow can still move towards the root.
    parent: Any
    pred: Any


class _Arcs(NamedTuple):
    """The arcs in one rank of costs: fields as in :class:`Network`, and whether each is in the tree."""

    tail: Any
    head: Any
    capacity: Any
    cost: Any
    flow: Any
    state: Any


class _Tree(NamedTuple):
    """A rooted spanning tree: per node what is above (node, arc, whether the arc points there) and below.

    The children of a node are a doubly linked list; ``size`` counts the nodes of a subtree.
    """

    above: Any
    arc: Any
    outward: Any
    child: Any
    following: Any
    before: Any
    size: Any
    potential: Any


@inner
def _link_tree(parent, pred, tail):
    """Link the tree of the given parents and arcs; potentials are set by :func:`_set_potentials`."""
    nodes = len(parent)
    outward = np.zeros(nodes, np.bool_)
    child = np.full(nodes, NONE)
    following = np.full(nodes, NONE)
    before = np.full(nodes, NONE)
    size = np.ones(nodes, np.int32)
    for v in range(nodes):
        u = parent[v]
        if u >= 0:
            outward[v] = tail[pred[v]] == v
            following[v] = child[u]
            if child[u] != NONE:
                before[child[u]] = v
            child[u] = v
            while u >= 0:
                size[u] += 1
                u = parent[u]
    return _Tree(
        parent.copy().view(np.uint32),
        pred.copy().view(np.uint32),
        outward,
        child,
        following,
        before,
        size,
        np.empty(nodes, np.int64),
    )


@inner
def _set_potentials(tree, root, cost):
    """Set potentials from the root down, so that tree arcs have reduced cost zero."""
    above, arc, outward, child, following, _, _, potential = tree
    potential[root] = 0
    v = child[root]
    while v != NONE and v != root:
        c = cost[arc[v]]
        potential[v] = potential[above[v]] - c if outward[v] else potential[above[v]] + c
        if child[v] != NONE:
            v = child[v]
            continue
        while v != root and following[v] == NONE:
            v = above[v]
        if v != root:
            v = following[v]


@inner
def _entering(arcs, potential, candidates, start, block):
    """Block pricing: the most violating arc of the next block that has one; NONE if no arc is."""
    tail, head, _, cost, _, state = arcs
    n = len(candidates)
    best = np.int64(0)
    arc = NONE
    k = start
    left = block
    for _ in range(n):
        a = candidates[k]
        k += 1
        if k == n:
            k = 0
        violation = state[a] * (cost[a] + potential[tail[a]] - potential[head[a]])
        if violation < best:
            best = violation
            arc = a
        left -= 1
        if left == 0:
            if arc != NONE:
                return arc, k
            left = block
    return arc, k


@inner
def _rehang(tree, entering, u_in, v_in, u_out, join, tail):
    """Cut the subtree above ``u_out``, turn it over to ``u_in`` and hang it from ``v_in``."""
    above, arc, outward, child, following, before, size, _ = tree
    moved = size[u_out]
    v = above[u_out]
    while v != join:
        size[v] -= moved
        v = above[v]
    v = v_in
    while v != join:
        size[v] += moved
        v = above[v]
    u, a, rest = v_in, entering, moved
    v = u_in
    while True:
        old_above, old_arc, old_size = above[v], arc[v], size[v]
        if before[v] != NONE:
            following[before[v]] = following[v]
        else:
            child[old_above] = following[v]
        if following[v] != NONE:
            before[following[v]] = before[v]
        above[v] = u
        arc[v] = a
        outward[v] = tail[a] == v
        size[v] = rest
        before[v] = NONE
        following[v] = child[u]
        if child[u] != NONE:
            before[child[u]] = v
        child[u] = v
        if v == u_out:
            return
        u, a, rest = v, old_arc, moved - old_size
        v = old_above


@inner
def _shift(tree, root, top, shift):
    """Add ``shift`` to the potentials of the subtree of ``top``, relative to all others.

    Only differences of potentials matter, so that the smaller part of the tree moves: a column of a large
    family has most children below it.
    """
    above, _, _, child, following, _, size, potential = tree
    first = top
    avoid = NONE
    if 2 * size[top] > size[root]:
        first = root
        avoid = top
        shift = -shift
    v = first
    while True:
        if v != avoid:
            potential[v] += shift
            if child[v] != NONE:
                v = child[v]
                continue
        while v != first and following[v] == NONE:
            v = above[v]
        if v == first:
            return
        v = following[v]


@inner
def _pivot(tree, root, entering, arcs):
    """Push flow around the cycle that ``entering`` closes and exchange it for the last blocking arc."""
    tail, head, capacity, cost, flow, state = arcs
    above, arc, outward, _, _, _, size, potential = tree
    if state[entering] == LOWER:
        source = tail[entering]
        target = head[entering]
        delta = capacity[entering] - flow[entering]
    else:
        source = head[entering]
        target = tail[entering]
        delta = flow[entering]
    # The cycle runs join -> source -> target -> join. The last blocking arc along it leaves: on the way up
    # from ``source`` the first one met, on the way up from ``target`` the last, the entering arc in between.
    u = source
    v = target
    side = 0
    u_out = NONE
    v_out = NONE
    back = delta + 1
    while u != v:
        if size[u] < size[v]:
            a = arc[u]
            room = flow[a] if outward[u] else capacity[a] - flow[a]
            if room < delta:
                delta = room
                u_out = u
                side = 1
            u = above[u]
        else:
            a = arc[v]
            room = capacity[a] - flow[a] if outward[v] else flow[a]
            if room <= back:
                back = room
                v_out = v
            v = above[v]
    join = u
    if v_out != NONE and back <= delta:
        delta = back
        u_out = v_out
        side = 2
    if delta > 0:
        flow[entering] += delta if state[entering] == LOWER else -delta
        u = source
        while u != join:
            flow[arc[u]] += -delta if outward[u] else delta
            u = above[u]
        u = target
        while u != join:
            flow[arc[u]] += delta if outward[u] else -delta
            u = above[u]
    if side == 0:
        state[entering] = -state[entering]
        return
    leaving = arc[u_out]
    state[leaving] = LOWER if flow[leaving] == 0 else UPPER
    state[entering] = TREE
    reduced = cost[entering] + potential[tail[entering]] - potential[head[entering]]
    u_in, v_in = (source, target) if side == 1 else (target, source)
    _rehang(tree, entering, u_in, v_in, u_out, join, tail)
    _shift(tree, root, u_in, -reduced if outward[u_in] else reduced)


@inner
def network_simplex(network, root, first_rank):
    """Improve a feasible flow to a lexicographically least-cost one, from a strongly feasible tree.

    - `network`, Network: its flow is overwritten by the optimal one.
    - `root`, int: root node of the tree.
    - `first_rank`, int: rank to start at; the caller knows that earlier costs are all zero.
    - Returns: number of pivots.

    Notes
    -----
    The caller guarantees nodes * max |cost| < 2**62 (:data:`MAX_POTENTIAL`).
    """
    flow, parent, pred, ranks = network.flow, network.parent, network.pred, len(network.costs)
    tree = _link_tree(parent, pred, network.tail)
    potential = tree.potential
    state = np.empty(len(flow), np.int8)
    for a in range(len(flow)):
        state[a] = LOWER if flow[a] == 0 else UPPER
    for v in range(len(parent)):
        if v != root:
            state[pred[v]] = TREE
    tail, head = network.tail.view(np.uint32), network.head.view(np.uint32)
    candidates = np.arange(len(flow)).astype(np.uint32)
    pivots = 0
    for rank in range(first_rank, ranks):
        cost = network.costs[rank]
        arcs = _Arcs(tail, head, network.capacity, cost, flow, state)
        _set_potentials(tree, root, cost)
        wide = WIDE_BLOCK if len(parent) >= MANY_NODES else BLOCK
        block = max(10, int(wide * np.sqrt(len(candidates))))
        start = np.int64(0)
        while len(candidates) > 0:
            a, start = _entering(arcs, potential, candidates, start, block)
            if a == NONE:
                break
            _pivot(tree, root, a, arcs)
            pivots += 1
        if rank + 1 < ranks:
            kept = 0
            for k in range(len(candidates)):
                a = candidates[k]
                if cost[a] + potential[tail[a]] == potential[head[a]]:
                    candidates[kept] = a
                    kept += 1
            candidates = candidates[:kept]
    return pivots
