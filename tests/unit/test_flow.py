"""The network simplex against linear programs, and its costs in order of rank."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from support.entry import entry
from support.min_cost_flow import check_costs, min_cost_flow
from support.seeds import seeds

from opendas.errors import EstimationError
from opendas.solvers.rounding import flow as module


def network(seed, nodes, arcs):
    rng = np.random.default_rng(seed)
    tail = rng.integers(0, nodes, arcs).astype(np.int32)
    head = ((tail + rng.integers(1, nodes, arcs)) % nodes).astype(np.int32)
    capacity = rng.integers(0, 6, arcs)
    cost = rng.integers(-4, 9, arcs)
    supply = rng.integers(-3, 4, nodes)
    supply[-1] -= supply.sum()
    return tail, head, capacity, cost, supply


def incidence(tail, head, nodes):
    matrix = np.zeros((nodes, len(tail)))
    matrix[tail, np.arange(len(tail))] += 1
    matrix[head, np.arange(len(tail))] -= 1
    return matrix


def balance(tail, head, flow, nodes):
    return np.bincount(tail, flow, nodes) - np.bincount(head, flow, nodes)


@pytest.mark.parametrize("seed", seeds(60))
def test_optimum_is_that_of_the_linear_program(seed):
    nodes = 4 + seed % 7
    tail, head, capacity, cost, supply = network(seed, nodes, 6 * nodes)
    flow, unmet = min_cost_flow(tail, head, capacity, cost[None, :], supply)
    found = linprog(
        cost, A_eq=incidence(tail, head, nodes), b_eq=supply, bounds=np.c_[0 * capacity, capacity]
    )
    assert (found.status == 0) == (unmet == 0)
    assert (flow >= 0).all()
    assert (flow <= capacity).all()
    if unmet == 0:
        np.testing.assert_array_equal(balance(tail, head, flow, nodes), supply)
        assert cost @ flow == pytest.approx(found.fun)


@pytest.mark.parametrize("seed", seeds(40))
def test_second_cost_decides_only_among_optima_of_the_first(seed):
    nodes = 5
    tail, head, capacity, cost, supply = network(100 + seed, nodes, 30)
    first = cost // 4
    second = cost * 7919 % 1000 - 500
    capacity[:nodes] = 50
    tail[:nodes], head[:nodes] = np.arange(nodes), (np.arange(nodes) + 1) % nodes  # a ring: always feasible
    flow, unmet = min_cost_flow(tail, head, capacity, np.array([first, second]), supply)
    assert unmet == 0
    matrix, bounds = incidence(tail, head, nodes), np.c_[0 * capacity, capacity]
    best = linprog(first, A_eq=matrix, b_eq=supply, bounds=bounds).fun
    least = linprog(second, A_eq=np.vstack([matrix, first]), b_eq=np.append(supply, best), bounds=bounds).fun
    assert first @ flow == pytest.approx(best)
    assert second @ flow == pytest.approx(least)


def test_unmet_supply_is_counted():
    flow, unmet = min_cost_flow(
        np.array([0], np.int32), np.array([1], np.int32), np.array([2]), np.array([[3]]), np.array([5, -5])
    )
    assert flow.tolist() == [2]
    assert unmet == 3


def test_negative_cycles_are_filled():
    """Costs may be negative: a cycle of total cost -1 carries all it can."""
    tail, head = np.array([0, 1, 2], np.int32), np.array([1, 2, 0], np.int32)
    flow, unmet = min_cost_flow(
        tail, head, np.array([4, 3, 9]), np.array([[-2, 1, 0]]), np.zeros(3, np.int64)
    )
    assert flow.tolist() == [3, 3, 3]
    assert unmet == 0


def test_many_ties_end():
    """A fully degenerate assignment problem: strong feasibility excludes cycling."""
    size = 30
    tail = np.repeat(np.arange(size), size).astype(np.int32)
    head = (size + np.tile(np.arange(size), size)).astype(np.int32)
    supply = np.r_[np.ones(size, np.int64), -np.ones(size, np.int64)]
    cost = ((tail + head) % 2)[None, :].astype(np.int64)
    flow, unmet = min_cost_flow(tail, head, np.ones(size * size, np.int64), cost, supply)
    assert unmet == 0
    assert cost[0] @ flow == 0


def test_costs_that_could_overflow_are_refused():
    costs = np.array([[1, -(2**50)]])
    check_costs(2**12 - 1, costs)
    with pytest.raises(EstimationError, match="64-bit"):
        check_costs(2**12, costs)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_tree_stays_strongly_feasible(seed):
    """The invariant that excludes cycling, after every single pivot of a degenerate problem."""
    rng = np.random.default_rng(seed)
    size = 8
    tail = np.repeat(np.arange(size), size).astype(np.uint32)
    head = (size + np.tile(np.arange(size), size)).astype(np.uint32)
    root, nodes, real = 2 * size, 2 * size + 1, size * size
    each = np.arange(size, dtype=np.uint32)
    tail = np.r_[tail, each, np.full(size, root, np.uint32)]
    head = np.r_[head, np.full(size, root, np.uint32), size + each]
    capacity = np.r_[np.ones(real, np.int64), np.full(2 * size, 99)]
    cost = np.r_[rng.integers(0, 3, real), np.full(2 * size, 1000)]
    flow = np.r_[np.zeros(real, np.int64), np.ones(2 * size, np.int64)]
    parent = np.r_[np.full(2 * size, root), -1].astype(np.int32)
    pred = np.r_[real + np.arange(2 * size), -1].astype(np.int32)
    state = np.r_[np.full(real, module.LOWER), np.full(2 * size, module.TREE)].astype(np.int8)
    tree = entry(module._link_tree)(parent, pred, tail)
    entry(module._set_potentials)(tree, root, cost)
    arcs = module._Arcs(tail, head, capacity, cost, flow, state)
    candidates = np.arange(len(tail), dtype=np.uint32)
    start, degenerate = np.int64(0), 0
    for _ in range(10_000):
        a, start = entry(module._entering)(arcs, tree.potential, candidates, start, 10)
        if a == module.NONE:
            break
        before = flow.copy()
        entry(module._pivot)(tree, root, a, arcs)
        degenerate += int((flow == before).all())
        inner = np.arange(nodes - 1)
        carried, room = flow[tree.arc[inner]], capacity[tree.arc[inner]]
        assert (np.where(tree.outward[inner], room - carried, carried) > 0).all()
        reduced = cost + tree.potential[tail] - tree.potential[head]
        assert not reduced[tree.arc[inner]].any()
    assert a == module.NONE
    assert degenerate > 0
    assert flow[real:].sum() == 0
