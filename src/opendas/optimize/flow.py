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

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from opendas.errors import EstimationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_POTENTIAL", "min_cost_flow", "network_simplex"]

MAX_POTENTIAL = 1 << 62
"""Nodes times the largest absolute cost must stay below this, so that no potential leaves int64."""

TREE, LOWER, UPPER = 0, 1, -1


@njit(cache=True, nogil=True)
def _children(parent, first, following, before):
    for v in range(len(parent)):
        first[v] = -1
        following[v] = -1
        before[v] = -1
    for v in range(len(parent)):
        u = parent[v]
        if u >= 0:
            following[v] = first[u]
            if first[u] >= 0:
                before[first[u]] = v
            first[u] = v


@njit(cache=True, nogil=True)
def _price_tree(root, tail, cost, parent, pred, first, following, depth, upward, potential):
    """Set depths and potentials from the root down, so that tree arcs have reduced cost zero."""
    depth[root] = 0
    potential[root] = 0
    v = first[root]
    while v >= 0 and v != root:
        u = parent[v]
        depth[v] = depth[u] + 1
        a = pred[v]
        upward[v] = tail[a] == v
        if tail[a] == v:
            potential[v] = potential[u] - cost[a]
        else:
            potential[v] = potential[u] + cost[a]
        if first[v] >= 0:
            v = first[v]
            continue
        while v != root and following[v] < 0:
            v = parent[v]
        if v != root:
            v = following[v]


@njit(cache=True, nogil=True)
def _entering(tail, head, cost, potential, state, candidates, start, block):
    """Block pricing: the most violating arc of the next block that has one; -1 when there is none at all."""
    n = len(candidates)
    best = np.int64(0)
    arc = -1
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
            if arc >= 0:
                return arc, k
            left = block
    return arc, k


@njit(cache=True, nogil=True)
def _move(
    entering, u_in, v_in, u_out, tail, cost, parent, pred, first, following, before, depth, upward, potential
):
    """Cut the subtree above ``u_out``, hang it from ``v_in`` at ``u_in``, and shift its potentials."""
    up = v_in
    arc = entering
    v = u_in
    while True:
        old_up = parent[v]
        old_arc = pred[v]
        if before[v] >= 0:
            following[before[v]] = following[v]
        else:
            first[old_up] = following[v]
        if following[v] >= 0:
            before[following[v]] = before[v]
        parent[v] = up
        pred[v] = arc
        upward[v] = tail[arc] == v
        before[v] = -1
        following[v] = first[up]
        if first[up] >= 0:
            before[first[up]] = v
        first[up] = v
        if v == u_out:
            break
        up = v
        arc = old_arc
        v = old_up
    if tail[entering] == u_in:
        shift = potential[v_in] - cost[entering] - potential[u_in]
    else:
        shift = potential[v_in] + cost[entering] - potential[u_in]
    v = u_in
    while True:
        potential[v] += shift
        depth[v] = depth[parent[v]] + 1
        if first[v] >= 0:
            v = first[v]
            continue
        while v != u_in and following[v] < 0:
            v = parent[v]
        if v == u_in:
            return
        v = following[v]


@njit(cache=True, nogil=True)
def _pivot(
    entering,
    tail,
    head,
    capacity,
    cost,
    flow,
    state,
    parent,
    pred,
    first,
    following,
    before,
    depth,
    upward,
    potential,
):
    if state[entering] == LOWER:
        source = tail[entering]
        target = head[entering]
        delta = capacity[entering] - flow[entering]
    else:
        source = head[entering]
        target = tail[entering]
        delta = flow[entering]
    # The cycle runs join -> source -> target -> join. The last blocking arc along it leaves: on the way up
    # from
    # ``source`` the first one met, on the way up from ``target`` the last, the entering arc in between.
    u = source
    v = target
    side = 0
    u_out = -1
    v_out = -1
    back = delta + 1
    while u != v:
        if depth[u] >= depth[v]:
            a = pred[u]
            room = flow[a] if upward[u] else capacity[a] - flow[a]
            if room < delta:
                delta = room
                u_out = u
                side = 1
            u = parent[u]
        else:
            a = pred[v]
            room = capacity[a] - flow[a] if upward[v] else flow[a]
            if room <= back:
                back = room
                v_out = v
            v = parent[v]
    if v_out >= 0 and back <= delta:
        delta = back
        u_out = v_out
        side = 2
    join = u
    if delta > 0:
        step = delta if state[entering] == LOWER else -delta
        flow[entering] += step
        u = source
        while u != join:
            a = pred[u]
            flow[a] += -delta if upward[u] else delta
            u = parent[u]
        u = target
        while u != join:
            a = pred[u]
            flow[a] += delta if upward[u] else -delta
            u = parent[u]
    if side == 0:
        state[entering] = -state[entering]
        return
    leaving = pred[u_out]
    state[leaving] = LOWER if flow[leaving] == 0 else UPPER
    state[entering] = TREE
    if side == 1:
        u_in, v_in = source, target
    else:
        u_in, v_in = target, source
    _move(
        entering,
        u_in,
        v_in,
        u_out,
        tail,
        cost,
        parent,
        pred,
        first,
        following,
        before,
        depth,
        upward,
        potential,
    )


@njit(cache=True, nogil=True)
def network_simplex(root, first_rank, tail, head, capacity, costs, flow, parent, pred):
    """Improve a feasible flow to a lexicographically least-cost one, from a strongly feasible tree.

    Parameters
    ----------
    root : int
        Root node of the tree.
    first_rank : int
        Rank to start at; the caller knows that earlier costs are all zero.
    tail, head : int32 array, (arcs,)
        End nodes of each arc.
    capacity : int64 array, (arcs,), >= 0
        Upper bounds; lower bounds are zero.
    costs : int64 array, (ranks, at least arcs)
        Unit costs, the most important first.
    flow : int64 array, (arcs,)
        A feasible flow; arcs outside the tree are at zero or at capacity. Overwritten by the optimal one.
    parent, pred : int32 array, (nodes,)
        The spanning tree: parent node (-1 at the root) and the arc to it. Strongly feasible: on every tree
        arc some
        flow can still move towards the root. Overwritten.

    Returns
    -------
    int
        Number of pivots.

    Notes
    -----
    The caller guarantees nodes * max |cost| < 2**62 (:data:`MAX_POTENTIAL`).
    """
    nodes = len(parent)
    arcs = len(tail)
    first = np.empty(nodes, np.int32)
    following = np.empty(nodes, np.int32)
    before = np.empty(nodes, np.int32)
    depth = np.empty(nodes, np.int32)
    upward = np.zeros(nodes, np.bool_)
    potential = np.empty(nodes, np.int64)
    state = np.empty(arcs, np.int8)
    for a in range(arcs):
        state[a] = LOWER if flow[a] == 0 else UPPER
    for v in range(nodes):
        if v != root:
            state[pred[v]] = TREE
    _children(parent, first, following, before)
    candidates = np.arange(arcs).astype(np.int32)
    pivots = 0
    for rank in range(first_rank, len(costs)):
        cost = costs[rank]
        _price_tree(root, tail, cost, parent, pred, first, following, depth, upward, potential)
        block = max(10, int(0.5 * np.sqrt(len(candidates))))
        start = np.int64(0)
        while len(candidates) > 0:
            a, start = _entering(tail, head, cost, potential, state, candidates, start, block)
            if a < 0:
                break
            _pivot(
                a,
                tail,
                head,
                capacity,
                cost,
                flow,
                state,
                parent,
                pred,
                first,
                following,
                before,
                depth,
                upward,
                potential,
            )
            pivots += 1
        if rank + 1 < len(costs):
            kept = 0
            for k in range(len(candidates)):
                a = candidates[k]
                if cost[a] + potential[tail[a]] == potential[head[a]]:
                    candidates[kept] = a
                    kept += 1
            candidates = candidates[:kept]
    return pivots


def min_cost_flow(
    tail: NDArray[np.int32],
    head: NDArray[np.int32],
    capacity: NDArray[np.int64],
    costs: NDArray[np.int64],
    supply: NDArray[np.int64],
) -> tuple[NDArray[np.int64], int]:
    """Minimum-cost flow from scratch, by an artificial root.

    Parameters
    ----------
    tail, head : int32 array, (arcs,)
        End nodes of each arc.
    capacity : int64 array, (arcs,), >= 0
        Upper bounds; lower bounds are zero.
    costs : int64 array, (ranks, arcs)
        Unit costs, the most important first.
    supply : int64 array, (nodes,)
        Supply, negative for demand; sums to zero.

    Returns
    -------
    flow : int64 array, (arcs,)
        A flow of least cost among those of least unmet supply.
    unmet : int
        Supply that cannot be sent: zero exactly where the problem is feasible.

    Raises
    ------
    EstimationError
        If the costs are so large that a potential could leave int64.

    Notes
    -----
    The rounder starts :func:`network_simplex` from its own tree; this is the general entry.
    """
    nodes, arcs = len(supply), len(tail)
    check_costs(nodes + 1, costs)
    out = supply >= 0
    each = np.arange(nodes, dtype=np.int32)
    root = np.full(nodes, nodes, np.int32)
    all_tail = np.concatenate([tail, np.where(out, each, root)]).astype(np.int32)
    all_head = np.concatenate([head, np.where(out, root, each)]).astype(np.int32)
    limit = np.int64(np.abs(supply).sum() + 1)
    all_capacity = np.concatenate([capacity, np.full(nodes, limit)]).astype(np.int64)
    all_costs = np.zeros((len(costs) + 1, arcs + nodes), np.int64)
    all_costs[0, arcs:] = 1
    all_costs[1:, :arcs] = costs
    flow = np.concatenate([np.zeros(arcs, np.int64), np.abs(supply)]).astype(np.int64)
    parent = np.append(root, -1).astype(np.int32)
    pred = np.append(arcs + each, -1).astype(np.int32)
    network_simplex(nodes, 0, all_tail, all_head, all_capacity, all_costs, flow, parent, pred)
    return flow[:arcs], int(flow[arcs:].sum()) // 2


def check_costs(nodes: int, costs: NDArray[np.int64]) -> None:
    """Refuse costs with which a node potential could leave int64.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    costs : int64 array, (ranks, arcs)
        Unit costs.

    Raises
    ------
    EstimationError
        If nodes * max |cost| reaches 2**62.
    """
    largest = int(np.abs(costs).max(initial=0))
    if nodes * largest >= MAX_POTENTIAL:
        raise EstimationError(
            f"a flow problem of {nodes} nodes with unit costs up to 2**{largest.bit_length()} does not fit "
            "64-bit integers. Split the family by a spine with smaller fan-out."
        )
