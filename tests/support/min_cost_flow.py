"""Minimum-cost flow from scratch, by the network simplex of the rounder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opendas.errors import EstimationError
from opendas.solvers.rounding.flow import MAX_POTENTIAL, Network, network_simplex
from support.entry import entry


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
    network = Network(all_tail, all_head, all_capacity, all_costs, flow, parent, pred)
    entry(network_simplex)(network, nodes, 0)
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
