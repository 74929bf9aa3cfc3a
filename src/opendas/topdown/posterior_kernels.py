# mypy: allow-untyped-defs, allow-untyped-calls
"""Compiled Gibbs sampler of the tables of a family, apart from what sets its prior up.

Axes: ``C`` children, ``s`` cells, ``G`` classes of cells, ``V`` nodes of the tree of cells, ``D`` depths of
the tree, ``q`` query groups, ``m`` their rows together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from opendas.arrays import Bools, Floats, Ints
from opendas.arrays.kernels import inner
from opendas.solvers.rounding.unbiased import uniform

WINDOW, WIDEST = 24, 256
"""Splits of a pair that are weighed at once, a random window around the present one: so many and a sixteenth
of all, at most the second number."""
STEP = 0.5
"""Standard deviation of a proposed change of a concentration; of a shape of sizes it is twice that."""
EVERY, PROPOSALS = 8, 2
"""Hyperparameters are proposed after every so many sweeps, so many times."""
CONCENTRATION = (1.0, 0.6)
"""Mean and standard deviation of the logarithm of a concentration, where one record is expected."""
GROWTH = 0.4
"""A concentration grows with this power of the expected count (a power of two) of what is divided: members of
a household are alike, so that few records are less like the parent than many."""
SIZES = ((math.log(3.0), 1.0), (-1.0, 1.5), (-1.7, 1.5), (-4.0, 1.0))
"""The same of a class's shape for each unit, its squared coefficient of variation (both logarithms), and of
the weights of empty and of arbitrary children against ordinary ones (logits)."""
UNFILLED = np.inf
"""A log weight that has not been asked for yet."""
REMEMBERED = 1 << 22
"""Log weights of classes that are remembered for all children together, about."""
MOST_REMEMBERED = 1 << 12
"""Log weights of one node that are remembered: others are computed when asked for."""
NODES_REMEMBERED = 1 << 25
"""The same of all nodes below the classes together, in children of all kinds."""
IMPOSSIBLE = -1e300


class Tree(NamedTuple):
    """The prior of a family: sizes of classes of cells, and how a size is divided among the cells."""

    # (D + 1, s): nodes from a cell's class, which is its number, down to its leaf, ``V - s`` and its number.
    path: Ints
    # parent, depth (V,): -1 and 0 for classes.
    parent: Ints
    depth: Ints
    # (k, V): of the node above that a child of each kind is expected to have in this one; without a prior
    # table what the family's parent has.
    share: Floats
    total: Ints  # (V,): counts of the family's parent
    units: Floats  # (C, G): expected relative size of a class in a child; zero where it must be empty
    expected: Floats  # (C, G): counts of classes where the parent's are shared out by units
    # (C,): those that expect about the same; with a prior table, of which each child expects something else,
    # each child is a kind.
    kind: Ints
    scale: Floats  # (k, V): of concentrations, in children of each kind: see :data:`GROWTH`
    lower: Ints  # (C, G)
    upper: Ints  # (C, G)
    mask: Bools  # (C, s): cells that a child may use


class Likelihood(NamedTuple):
    """Noisy answers."""

    row: Ints  # (q, s): of each cell, numbered through all query groups
    answers: Floats  # (C, m)
    weight: Floats  # (C, q): inverse of the squared scale of the noise; zero for the prior alone


class State(NamedTuple):
    """Where a chain is; all of it changes in place."""

    counts: Ints  # (C, V): of every node; the last ``s`` are the cells
    residual: Floats  # (C, m): answers less counts
    concentration: Floats  # (D,): logarithm, of the children of nodes at each depth
    sizes: Floats  # (G, 4): see :data:`SIZES`
    # nodes, offsets (k, e), (V + 1,): log weights of the counts of nodes below the classes, from 0, in
    # children of each kind; filled where they have been asked for.
    nodes: Floats
    offsets: Ints
    roots: Floats  # (C, f): the same of classes, for each child
    starts: Ints  # (G + 1,): where each class's begin
    random: np.ndarray  # (1,)


class Moments(NamedTuple):
    """Sums over the kept sweeps of a chain, and tables of some of them."""

    # sizes, empty (C, G): of classes' counts, and of how often they were zero.
    sizes: Ints
    empty: Ints
    # totals, squares (C,): of each child's total and its square.
    totals: Floats
    squares: Floats
    draws: np.ndarray  # (k, C, V): counts of all nodes, at regular distances


@inner
def _normal(random):
    return math.sqrt(-2.0 * math.log(1.0 - uniform(random))) * math.cos(2.0 * math.pi * uniform(random))


@inner
def _rising(a, n):
    """Return the logarithm of ``a (a + 1) ... (a + n - 1)``."""
    return math.lgamma(a + n) - math.lgamma(a) if n else 0.0


@inner
def log_size(n, mean, units, shape, total):
    """Return the log probability that a class of a child has `n` records, before its bounds.

    - `shape`, float64 (4,): see :data:`SIZES`.
    - `total`, int: most records: those of the parent.
    """
    empty, anything = math.exp(shape[2]) / units, math.exp(shape[3])
    weight = 1.0 + empty + anything
    if n == 0:
        return math.log(empty / weight)
    r = 1.0 / (1.0 / (math.exp(shape[0]) * units) + math.exp(shape[1]))
    none = r * math.log(r / (r + mean))
    usual = _rising(r, n) - math.lgamma(n + 1.0) + none + n * math.log(mean / (r + mean))
    p = math.exp(usual) / -math.expm1(none)
    # Of any size, log-uniform: the harmonic number is that of the parent's total, to four digits.
    p += anything / (n * (math.log(total) + 0.5772156649 + 0.5 / total))
    return math.log(p / weight) if p > 0.0 else IMPOSSIBLE


@inner
def _concentration(tree, logarithm, c, v):
    """Return the concentration with which a node of a child is divided."""
    return math.exp(logarithm) * tree.scale[tree.kind[c], v]


@inner
def _root_weight(tree, state, c, g, n):
    """Return, and remember, the log weight of a class's count: of its size, and its part of the division."""
    at = state.starts[g] + n
    if n < tree.lower[c, g] or n > tree.upper[c, g]:
        value = IMPOSSIBLE
    elif tree.units[c, g] == 0.0:
        value = 0.0 if n == 0 else IMPOSSIBLE
    else:
        value = log_size(n, tree.expected[c, g], tree.units[c, g], state.sizes[g], tree.total[g])
        value += math.lgamma(n + 1.0) - _rising(_concentration(tree, state.concentration[0], c, g), n)
    if at < state.starts[g + 1]:
        state.roots[c, at] = value
    return value


@inner
def _node_weight(tree, state, c, v, n):
    """Return, and remember, the log weight of the count of a node below a class."""
    at = state.offsets[v] + n
    depth = tree.depth[v]
    value = _rising(
        _concentration(tree, state.concentration[depth - 1], c, tree.parent[v]) * tree.share[tree.kind[c], v],
        n,
    )
    if depth == len(state.concentration):
        value -= math.lgamma(n + 1.0)
    else:
        value -= _rising(_concentration(tree, state.concentration[depth], c, v), n)
    if at < state.offsets[v + 1]:
        state.nodes[tree.kind[c], at] = value
    return value


@njit(cache=True, nogil=True)
def state_of(tree, likelihood, table, seed):
    """Return a chain at a table, int64 (C, s), with hyperparameters at the middle of their priors."""
    children, cells = table.shape
    classes, nodes, depths = tree.units.shape[1], len(tree.parent), len(tree.path) - 1
    counts = np.zeros((children, nodes), np.int64)
    residual = likelihood.answers.copy()
    for c in range(children):
        for s in range(cells):
            for level in range(depths + 1):
                counts[c, tree.path[level, s]] += table[c, s]
            for q in range(len(likelihood.row)):
                residual[c, likelihood.row[q, s]] -= table[c, s]
    most = NODES_REMEMBERED // (len(tree.scale) * nodes)
    offsets = np.zeros(nodes + 1, np.int64)
    for v in range(classes, nodes):
        offsets[v + 1] = offsets[v] + min(tree.total[v] + 1, MOST_REMEMBERED, most)
    starts = np.zeros(classes + 1, np.int64)
    for g in range(classes):
        starts[g + 1] = starts[g] + min(tree.total[g] + 1, REMEMBERED // (children * classes))
    sizes = np.zeros((classes, 4))
    for g in range(classes):
        for h in range(4):
            sizes[g, h] = SIZES[h][0]
    random = np.zeros(1, np.uint64)
    random[0] = seed
    return State(
        counts,
        residual,
        np.full(depths, CONCENTRATION[0]),
        sizes,
        np.full((len(tree.scale), offsets[nodes]), UNFILLED),
        offsets,
        np.full((children, starts[classes]), UNFILLED),
        starts,
        random,
    )


@inner
def _split(tree, likelihood, state, s, a, b, weights):
    """Deal what two children have of a cell out again, by its full conditional."""
    counts, residual, row = state.counts, state.residual, likelihood.row
    depths, cells = len(tree.path) - 1, tree.path.shape[1]
    leaf = len(tree.parent) - cells + s
    here = counts[a, leaf]
    low, high = 0, here + counts[b, leaf]
    if high == 0:
        return
    window = min(WIDEST, WINDOW + high // 16)
    if high >= window:  # every split in a window is as likely to have been given this window
        start = here - int(uniform(state.random) * window)
        low, high = max(0, start), min(high, start + window - 1)
    linear = curvature = 0.0
    for q in range(len(row)):
        wa, wb = likelihood.weight[a, q], likelihood.weight[b, q]
        linear += wa * residual[a, row[q, s]] - wb * residual[b, row[q, s]]
        curvature += wa + wb
    roots, nodes, starts, offsets, path = state.roots, state.nodes, state.starts, state.offsets, tree.path
    kind_a, kind_b = tree.kind[a], tree.kind[b]
    best = -np.inf
    g = path[0, s]
    first, last = starts[g], starts[g + 1]
    for there in range(low, high + 1):
        d = there - here
        value = d * (linear - 0.5 * curvature * d)
        for c, n in ((a, counts[a, g] + d), (b, counts[b, g] - d)):
            known = roots[c, first + n] if first + n < last else UNFILLED
            value += known if known != UNFILLED else _root_weight(tree, state, c, g, n)
        for level in range(1, depths + 1):
            v = path[level, s]
            for c, k, n in ((a, kind_a, counts[a, v] + d), (b, kind_b, counts[b, v] - d)):
                at = offsets[v] + n
                known = nodes[k, at] if at < offsets[v + 1] else UNFILLED
                value += known if known != UNFILLED else _node_weight(tree, state, c, v, n)
        weights[there - low] = value
        best = max(best, value)
    total = 0.0
    for k in range(high - low + 1):
        weights[k] = math.exp(weights[k] - best)
        total += weights[k]
    left = uniform(state.random) * total
    d = low - here
    for k in range(high - low + 1):
        if weights[k] > 0.0:
            d = low + k - here
        left -= weights[k]
        if left < 0.0:
            break
    if d:
        for level in range(depths + 1):
            v = tree.path[level, s]
            counts[a, v] += d
            counts[b, v] -= d
        for q in range(len(row)):
            residual[a, row[q, s]] -= d
            residual[b, row[q, s]] += d


@inner
def _sweep(tree, likelihood, state, order, weights):
    """Pair the children at random for every cell, and deal each pair's counts out again."""
    children, cells = tree.mask.shape
    first = len(tree.parent) - cells
    for s in range(cells):
        if tree.total[first + s] == 0:
            continue
        open_ = 0
        for c in range(children):
            if tree.mask[c, s]:
                order[open_] = c
                open_ += 1
        for i in range(open_ - 1, 0, -1):
            j = int(uniform(state.random) * (i + 1))
            order[i], order[j] = order[j], order[i]
        for pair in range(open_ // 2):
            _split(tree, likelihood, state, s, order[2 * pair], order[2 * pair + 1], weights)


@inner
def _division(tree, state, depth, log_concentration):
    """Return the log probability of how nodes at a depth divide among their children."""
    value = 0.0
    cells, depths = tree.path.shape[1], len(state.concentration)
    for v in range(len(tree.parent)):
        if tree.depth[v] == depth + 1:
            for c in range(len(state.counts)):
                if state.counts[c, v]:
                    a = _concentration(tree, log_concentration, c, tree.parent[v])
                    value += _rising(a * tree.share[tree.kind[c], v], state.counts[c, v])
        elif tree.depth[v] == depth and (depth < depths and v < len(tree.parent) - cells):
            for c in range(len(state.counts)):
                if state.counts[c, v]:
                    value -= _rising(_concentration(tree, log_concentration, c, v), state.counts[c, v])
    return value


@inner
def _all_sizes(tree, state, g, shape):
    value = 0.0
    for c in range(len(state.counts)):
        units = tree.units[c, g]
        if units > 0.0:
            value += log_size(state.counts[c, g], tree.expected[c, g], units, shape, tree.total[g])
    return value


@inner
def _accept(state, change):
    return math.log(1.0 - uniform(state.random)) < change


@inner
def _hyperparameters(tree, state):
    """Propose a change of each hyperparameter."""
    changed = False
    for depth in range(len(state.concentration)):
        before = state.concentration[depth]
        after = before + STEP * _normal(state.random)
        mean, spread = CONCENTRATION
        change = ((before - mean) ** 2 - (after - mean) ** 2) / (2.0 * spread * spread)
        change += _division(tree, state, depth, after) - _division(tree, state, depth, before)
        if _accept(state, change):
            state.concentration[depth] = after
            changed = True
    if changed:
        state.nodes[:] = UNFILLED
    for g in range(tree.units.shape[1]):
        if tree.total[g] == 0:
            continue
        value = _all_sizes(tree, state, g, state.sizes[g])
        shape = state.sizes[g].copy()
        for h in range(4):
            mean, spread = SIZES[h]
            before = shape[h]
            shape[h] = before + 2.0 * STEP * _normal(state.random)
            change = ((before - mean) ** 2 - (shape[h] - mean) ** 2) / (2.0 * spread * spread)
            proposed = _all_sizes(tree, state, g, shape)
            if _accept(state, change + proposed - value):
                value = proposed
                state.sizes[g, h] = shape[h]
                changed = True
            else:
                shape[h] = before
    if changed:
        state.roots[:] = UNFILLED


@njit(cache=True, nogil=True)
def run_chain(tree, likelihood, state, sweeps, kept, tables, learn):
    """Go on from a state for some sweeps; return sums over the last `kept` of them.

    - `tables`, int: how many of their tables are returned; `kept` is a multiple.
    - `learn`, bool: sample the hyperparameters, too.
    """
    (children, classes), nodes = tree.units.shape, len(tree.parent)
    order, weights = np.empty(children, np.int64), np.empty(WIDEST)
    sums = Moments(
        np.zeros((children, classes), np.int64),
        np.zeros((children, classes), np.int64),
        np.zeros(children),
        np.zeros(children),
        np.empty((tables, children, nodes), np.int32),
    )
    for sweep in range(sweeps):
        _sweep(tree, likelihood, state, order, weights)
        if learn and sweep % EVERY == 0:
            for _ in range(PROPOSALS):
                _hyperparameters(tree, state)
        since = sweep - (sweeps - kept)
        if since < 0:
            continue
        for c in range(children):
            total = 0
            for g in range(classes):
                n = state.counts[c, g]
                sums.sizes[c, g] += n
                sums.empty[c, g] += n == 0
                total += n
            sums.totals[c] += total
            sums.squares[c] += float(total) * total
        if tables and (since + 1) % (kept // tables) == 0:
            sums.draws[since // (kept // tables)] = state.counts
    return sums
