"""Controlled rounding on synthetic families: ours, scipy's MILP, and OR-tools where installed.

    OMP_NUM_THREADS=1 python benchmarks/rounding.py [--sizes block,tract,...] [--repeat 5] [--json FILE]

Families are seeded: Poisson counts over the cells of a 2,016-cell histogram (group quarters 8 x voting age 2
x Hispanic 2 x race 63), noise added, each column projected onto the non-negative counts that sum to the
parent. Times are process CPU milliseconds of one call on one core, median over families, without compilation:
opendas = round_family, everything included (two passes, ties, checks); milp = scipy.optimize.milp on the
same two passes, literal absolute values; simplex_only = our flow solver on the network of the last pass,
without ties; or_tools = SimpleMinCostFlow on the very same arcs, from numpy arrays.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numba import njit
from scipy.optimize import Bounds, LinearConstraint, milp

from opendas.solvers.rounding import kernels, snapping
from opendas.solvers.rounding.flow import network_simplex
from opendas.solvers.rounding.laminar import forest
from opendas.solvers.rounding.network import Family, Nodes, build_network, solve_pass
from opendas.solvers.rounding.rounding import UNBOUNDED, round_family

simplex = njit(network_simplex.py_func)  # only compiled functions call the solver itself
LEVELS = (8, 2, 2, 63)
# name: (children, cells, people, noise sd, seeds)
SIZES = {
    "block": (14, 30, 800, 3.2, 12),
    "block_group": (8, 140, 4_500, 6.0, 8),
    "tract": (60, 300, 250_000, 9.0, 4),
    "county": (100, 1_200, 4_000_000, 9.0, 1),
    "state": (88, 2_016, 330_000_000, 7.0, 1),
}
TARGET_MS = {"block": 0.3, "block_group": 1.5, "tract": 20.0, "county": 500.0, "state": 1000.0}


def project_columns(noisy, totals):
    """Project every column onto {x >= 0, sum = total} (Held, Wolfe & Crowder 1974)."""
    falling = -np.sort(-noisy, axis=0)
    excess = np.cumsum(falling, axis=0) - totals
    rank = np.arange(1, len(noisy) + 1)[:, None]
    last = (falling - excess / rank > 0).sum(axis=0) - 1
    shift = excess[last, np.arange(noisy.shape[1])] / (last + 1)
    return np.maximum(noisy - shift, 0.0)


def family(children, n, people, sd, seed):
    """Make one family: arguments of round_family, with group-quarters masks and lower bounds."""
    rng = np.random.default_rng(seed)
    gq, age, hispanic, race = (a.ravel() for a in np.meshgrid(*map(np.arange, LEVELS), indexing="ij"))
    popular = (
        np.array([1.0, 0.004, 0.001, 0.005, 0.001, 0.01, 0.001, 0.006])[gq]
        * np.array([0.23, 0.77])[age]
        * np.array([0.84, 0.16])[hispanic]
        * (1.0 + race) ** -1.9
    )
    cells = np.sort(np.argsort(-(np.log(popular) + rng.gumbel(0, 0.7, popular.size)))[:n])
    gq, age, hispanic, race, popular = (a[cells] for a in (gq, age, hispanic, race, popular))
    size = rng.lognormal(0, 0.9, (children, 1))
    rate = size * popular * rng.lognormal(0, 0.6, (children, n))
    home = rng.random((children, 8)) < (0.25 if children < 50 else 0.9)
    home[:, 0] = True
    home[rng.integers(0, children, 8), np.arange(8)] = True
    mask = home[:, gq]
    rate *= mask
    truth = rng.poisson(rate * people / rate.sum())
    truth[mask.argmax(axis=0), np.arange(n)] += truth.sum(axis=0) == 0
    noisy = np.where(mask, truth + rng.normal(0, sd, truth.shape), -1e12)
    x = project_columns(noisy, truth.sum(axis=0)) * mask
    groups = np.array([gq == k for k in range(8)])
    groups = groups[groups.any(axis=1)]
    lower = np.minimum(home[:, np.unique(gq)], np.floor(x @ groups.T + 1e-9)).astype(np.int64)
    upper = np.full(lower.shape, UNBOUNDED)

    def rows(*keys):
        code = np.zeros(n, np.int64)
        for key in keys:
            code = code * 64 + key
        return np.unique(code, return_inverse=True)[1].astype(np.int32)

    detailed = rows(gq, age, hispanic, race)
    passes = (
        (rows(),),
        (rows(gq), rows(gq, hispanic), rows(gq, hispanic, race), detailed, detailed),
    )
    keys = rng.integers(0, 2**63, children).astype(np.uint64)
    return x, truth.sum(axis=0), mask, passes, groups, lower, upper, keys


def scipy_milp(args):
    """All passes of (7.7) literally, by scipy.optimize.milp; the objective of the last pass, in counts."""
    x, parent, mask, passes, groups, lower, upper, _ = args
    children, n = x.shape
    base = np.floor(x + 1e-6)
    f = np.clip(x - base, 0, 1)
    c, j = np.nonzero(mask)
    k = np.arange(len(c))
    pick = sp.csr_matrix((np.ones(len(c)), (j, k)), shape=(n, len(c)))
    fixed = [(pick, parent - base.sum(axis=0), parent - base.sum(axis=0))]
    cell_of = sp.csr_matrix((np.ones(len(c)), (c * n + j, k)), shape=(children * n, len(c)))
    bound = sp.kron(sp.eye(children), sp.csr_matrix(groups.astype(float))) @ cell_of
    shift = (base @ groups.T).ravel()
    fixed.append((bound, lower.ravel() - shift, np.where(upper >= UNBOUNDED, np.inf, upper).ravel() - shift))
    for maps in passes:
        query = sp.vstack(
            [sp.csr_matrix((np.ones(n), (rows, np.arange(n))), shape=(rows.max() + 1, n)) for rows in maps]
        )
        query = sp.kron(sp.eye(children), query) @ cell_of
        target = query @ f[c, j]
        m = len(target)
        slack = sp.eye(m)
        rows = [LinearConstraint(sp.hstack([query, -slack, slack]).tocsc(), target, target)]
        for matrix, lo, hi in fixed:
            wide = sp.hstack([matrix, sp.csr_matrix((matrix.shape[0], 2 * m))]).tocsc()
            rows.append(LinearConstraint(wide, lo, hi))
        found = milp(
            np.r_[np.zeros(len(c)), np.ones(2 * m)],
            constraints=rows,
            bounds=Bounds(0, np.r_[np.ones(len(c)), np.full(2 * m, np.inf)]),
            integrality=np.r_[np.ones(len(c)), np.zeros(2 * m)],
            options={"mip_rel_gap": 0.0},
        )
        y = np.rint(found.x[: len(c)])
        answer = query @ y
        fixed.append((query, answer, answer))
    return float(np.abs(answer - target).sum())


def last_network(args):
    """The network of the last pass, as our solver gets it, and its supplies."""
    x, parent, mask, passes, groups, lower, upper, keys = args
    children, cells = kernels.mix_all(keys), kernels.mix_all(np.arange(x.shape[1], dtype=np.uint64))
    _, base, part, need = snapping.snap(x, parent, True, mask, children, cells)
    maps = np.array([rows for one in passes for rows in one])
    of = np.repeat(np.arange(len(passes)), [len(one) for one in passes])
    _, up, size, owner, map_node, group_node = forest(maps, groups)
    none = np.full(len(x), -1), np.zeros(0, np.int64)
    made = Family(base, part, need, True, mask & (need > 0), lower, upper, children, cells, *none)
    word = np.zeros(len(up), np.uint64)
    y = np.zeros(x.shape, np.int64)
    kernels.first_guess(made, y)
    for k in range(len(passes)):
        weight, held = kernels.weights(map_node, of, k, size)
        nodes = Nodes(up, size, owner, group_node, weight, held, word, False)
        if k == len(passes) - 1:
            network = build_network(made, nodes, y)
        else:
            solve_pass(made, nodes, y)
    supply = np.zeros(len(network.parent), np.int64)
    supply[1 : 1 + (need > 0).sum()] = need[need > 0]
    supply[0] = -supply.sum()
    arcs = len(network.tail)
    cost = network.costs[0, :arcs] * 2**36 + network.costs[1, :arcs]
    return network, supply, cost


def or_tools(network, supply, cost, solver):
    """SimpleMinCostFlow on the same arcs; the optimal cost."""
    problem = solver.SimpleMinCostFlow()
    problem.add_arcs_with_capacity_and_unit_cost(network.tail, network.head, network.capacity, cost)
    problem.set_nodes_supplies(np.arange(len(supply), dtype=np.int32), supply)
    if problem.solve() != problem.OPTIMAL:
        raise RuntimeError("OR-tools found no optimum")
    return problem.optimal_cost()


def ours_alone(network):
    """Our simplex on a copy of the same arcs, primary costs only; the flow."""
    flow, parent, pred = network.flow.copy(), network.parent.copy(), network.pred.copy()
    started = network._replace(costs=network.costs[:2], flow=flow, parent=parent, pred=pred)
    simplex(started, 0, 0)
    return flow


def timed(call, repeat):
    """Median CPU seconds, and the last value."""
    best = []
    for _ in range(repeat):
        start = time.process_time()
        value = call()
        best.append(time.process_time() - start)
    return float(np.median(best)), value


def measure(name, options, solver):
    """All seeds of one size: medians in milliseconds."""
    children, n, people, sd, seeds = SIZES[name]
    times = {"opendas": [], "milp": [], "simplex_only": [], "or_tools": []}
    fractional = []
    for seed in range(seeds):
        args = family(children, n, people, sd, seed)
        fractional.append(int((np.abs(args[0] - np.rint(args[0])) > 1e-6).sum()))
        seconds, result = timed(lambda args=args: round_family(*args), options.repeat)
        times["opendas"].append(seconds)
        if name in options.milp.split(","):
            seconds, value = timed(lambda args=args: scipy_milp(args), 1)
            times["milp"].append(seconds)
            if abs(value - result.objective[-1]) > 1e-3:
                print(f"{name} seed {seed}: objective {result.objective[-1]:.6f}, milp {value:.6f}")
        if solver is not None:
            network, supply, cost = last_network(args)
            seconds, flow = timed(lambda network=network: ours_alone(network), options.repeat)
            times["simplex_only"].append(seconds)
            seconds, value = timed(lambda a=(network, supply, cost): or_tools(*a, solver), options.repeat)
            times["or_tools"].append(seconds)
            if value != int(cost @ flow):
                print(f"{name} seed {seed}: OR-tools reaches {value}, ours {int(cost @ flow)}")
    row = {"children": children, "cells": n, "families": seeds, "fractional": float(np.median(fractional))}
    row |= {f"{key}_ms": 1e3 * float(np.median(found)) if found else None for key, found in times.items()}
    row["target_ms"] = TARGET_MS[name]
    row["milp_ratio"] = row["milp_ms"] / row["opendas_ms"] if row["milp_ms"] else None
    row["or_tools_ratio"] = row["or_tools_ms"] / row["simplex_only_ms"] if row["or_tools_ms"] else None
    return row


def main():
    """Run the sizes asked for and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--milp", default="block", help="sizes on which scipy.optimize.milp runs too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        from ortools.graph.python import min_cost_flow as solver
    except ImportError:
        solver = None
    round_family(*family(3, 5, 40, 2.0, 0))
    if solver is not None:
        ours_alone(last_network(family(3, 5, 40, 2.0, 0))[0])
    report = {"machine": platform.machine(), "python": platform.python_version(), "sizes": {}}
    for name in options.sizes.split(","):
        row = report["sizes"][name] = measure(name, options, solver)
        shown = (f"{key} {value:.6g}" for key, value in row.items() if value is not None)
        print(f"{name:12s} {', '.join(shown)}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
