"""Families of many cells by their nested queries and fixed sums; apart, as a method of its own.

Letters: ``n`` cells, ``C`` children, ``R`` fixed rows, ``k`` terms of the chain, ``r`` rows of the others,
``d`` the weight of terms that distinguish all cells, plus sigma.

The alternating direction method of multipliers splits ``x >= 0`` from the rest: a step is one least squares
with equalities only, of ``K = H + sigma I``, and one cut at zero. The children have one H, each in its scale
s_c, and the multipliers of the parent reach a child divided by s_c: with ``t_c = (1 / s_c) / sum(1 / s)``
they leave with t_c times the sum of the right-hand sides, and what is left of a child beside t_c of the
parent separates from the others.

A chain of terms, each coarser than the one before, has an inverse of one pass per term. Let ``T_k`` be the
sum up to term k, of weight w, and ``g = T_{k-1}^-1 1``. On every row of the term, by Sherman and Morrison,

    T_k^-1 v = T_{k-1}^-1 v - g w / (1 + w 1'g) 1' T_{k-1}^-1 v,      T_k^-1 1 = g / (1 + w 1'g).

A fixed sum of a row is the limit of a large w; terms that the fixed rows determine are constants. The terms
that are neither are sparse columns U with weights W, and with P the inverse between fixed sums,
``P - P U (W^-1 + U' P U)^-1 U' P`` is the inverse of all (Woodbury). No array is larger than C x n or r x r.

Families of the DHC need it, and of tables of thousands of cells: the general ladder would write out matrices
of cells by cells, or of fixed rows by cells.

A root has one child and no parent: there the same inverse, without sigma and on the cells of a face, takes
the primal-dual active set to the answer itself.
The iteration of the others is accelerated by :mod:`opendas.solvers.least_squares.acceleration`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from opendas.arrays import Bools, Floats, Ints, refines
from opendas.arrays.kernels import inner, without_gaps
from opendas.solvers.least_squares.acceleration import accelerate, no_history
from opendas.solvers.least_squares.kernels import insert, symmetric_times
from opendas.solvers.problem.certificate import Multipliers, certify, gradients
from opendas.solvers.problem.problem import FamilyProblem, Solution, Status

RANK = 2_000
"""Most rows of the terms outside the chain."""
LIMIT = 6_000
"""Most iterations."""
ROUND = 5
"""Iterations between two looks at the residuals, and two combinations of points."""
CORRECTED = 25
"""Iterations between two looks at sigma."""
RELAXED = 1.6
"""Over-relaxation (Eckstein and Bertsekas 1992)."""
FINER = 1e-2
"""Residual that is aimed at, relative to the tolerance; what rounding errors leave above it is accepted."""
UNEVEN = 3.0
"""Ratio of primal and dual residuals from which sigma is corrected."""
FACES = 40
"""Most faces of a root."""
REFINED = 2
"""Corrections of the answer on a face by what is left of it: coarse rows may nearly depend on each other."""
SIGMA = (1e-2, 1e1)
"""Least and largest sigma, where the diagonal of H is 1. While only prices grow from step to step and no cell
moves, the residuals say nothing of it."""
CORRECTIONS = 20
"""Most corrections of sigma: the method converges for any sigma that stays."""


class Structure(NamedTuple):
    """H without what fixed rows determine, as compiled code takes it; weights sum to at most 1.

    Cells stand block by block, and within a block by the rows of the chain, coarsest first: every row of the
    chain is an interval of cells.
    """

    diagonal: float  # weight of the terms that distinguish all cells
    chain: NDArray[np.int32]  # (k, n), ascending, finest term first; the fixed rows last, where there are any
    weights: Floats  # (k,), infinite for fixed rows
    others: NDArray[np.int32]  # (t, n), numbered through from 0 in each block
    inverse: Floats  # (r,) one over the weight of each row of the others, block by block
    start: Ints  # (B + 1,) first cell of each block
    ranks: Ints  # (B + 1,) first row of the others of each block


class Layout(NamedTuple):
    """Where the cells of a structure lie in the problem."""

    structure: Structure
    cells: Ints  # (n,) cells that some child may use, as the structure orders them
    open_cells: Bools  # (C, all cells)
    held: Ints  # (rows,) fixed row of each last row of the chain, where there are fixed rows


class Factor(NamedTuple):
    """The inverse of K between fixed sums."""

    ones: Floats  # (k, n), g of each term of the chain
    shares: Floats  # (k, n), w / (1 + w 1'g) of each row of the chain
    core: Floats  # r x r of each block, one after the other: the inverse of W^-1 + U' P U
    first: Ints  # (B,), first entry of the core of each block


class Block(NamedTuple):
    """One block, while its inverse is made or used."""

    low: int  # its first cell
    high: int  # one past its last
    diagonal: float  # d, sigma of the block included
    core: Floats  # (r, r), its part of ``Factor.core``


class Split(NamedTuple):
    """What an iteration is given: a child's point is `share` and what is left of it beside the parent's."""

    linear: Floats  # (C, n), in counts
    fixed: Floats  # (C, R), sums of the last rows of the chain, less the child's share of the parent's
    share: Floats  # (C, n), t_c of the parent's counts
    parts: Floats  # (C,), t_c
    mask: Bools  # (C, n)


class State(NamedTuple):
    """Where the iteration stands."""

    w: Floats  # (C, n): ``z = max(0, w)`` is cut at zero, ``w - z`` are the scaled prices of cells at zero
    sigma: Floats  # (B,)
    # primal, dual (B,): residuals of the last iteration, in counts.
    primal: Floats
    dual: Floats


def find_structure(problem: FamilyProblem) -> Layout | None:
    """Return the structure of a family, or None: one Hessian, few rows outside a chain, no groups.

    There are no joint totals, either; other families are left to the general ladder.
    """
    if problem.hessians is not None or not problem.terms or len(problem.groups) or problem.joint is not None:
        return None
    open_cells = problem.mask.copy()
    if problem.parent is not None:
        open_cells &= problem.parent > 0.0
    if problem.fixed_rows is not None and problem.fixed is not None:
        open_cells &= (problem.fixed != 0.0)[:, problem.fixed_rows]
    layout = _layout(problem, open_cells)
    return layout if int(np.diff(layout.structure.ranks).max(initial=0)) <= RANK else None


def solve_structured(problem: FamilyProblem, tolerance: float, layout: Layout | None = None) -> Solution:
    """Solve a family that has the structure.

    - `tolerance`: largest relative Karush-Kuhn-Tucker residual of an answer that counts as optimal.
    - `layout`: what :func:`find_structure` returned for the family, if it was asked.
    - Returns: ``OPTIMAL`` with a certified residual, or ``FAILED`` with the point of least residual.
    """
    layout = find_structure(problem) if layout is None else layout
    if layout is None:
        raise ValueError("the family has no structure to be solved by")
    if problem.parent is None and layout.structure.diagonal > 0.0:
        answer = _by_faces(problem, layout, tolerance)
        if answer.status is Status.OPTIMAL:
            return answer
    C, n = problem.linear.shape
    structure, cells = layout.structure, layout.cells
    split = _split(problem, layout)
    mask = split.mask
    sizes = np.diff(structure.start)
    blocks = np.arange(len(sizes))
    corrections = np.zeros(len(sizes), np.int64)
    state = State(
        np.where(mask, split.share, 0.0), np.full(len(sizes), 0.1), np.zeros(len(sizes)), np.zeros(len(sizes))
    )
    w, sigma = state.w, state.sigma
    factor = _no_factor(structure)
    history = no_history(C, len(cells), len(sizes))
    best = Solution(np.zeros((C, n)), Status.FAILED, np.inf, 0, "structured")
    precision, before = FINER * tolerance, np.inf
    active = changed = blocks
    for iterations in range(ROUND, LIMIT + 1, ROUND):
        _factorise(structure, changed, sigma, factor)
        history.counts[changed] = -1
        earlier = w.copy()
        _iterate(structure, factor, active, split, state)
        z = np.where(mask, np.maximum(w, 0.0), 0.0)
        top = problem.magnitude(z)
        missed = np.maximum(state.primal, state.dual)
        active = np.flatnonzero(missed > precision * top)
        if not len(active) or iterations == LIMIT:
            x = np.zeros((C, n))
            x[:, cells] = z
            y = np.zeros((C, n))
            y[:, cells] = np.repeat(sigma, sizes) * (z - w)
            residual = certify(problem, x, *_multipliers(problem, layout, x, y))
            if residual < best.residual:
                best = replace(best, x=x, residual=residual, iterations=iterations)
            if residual <= FINER * tolerance or (residual <= tolerance and residual > 0.5 * before):
                return replace(best, status=Status.OPTIMAL)
            before = residual
            precision *= min(0.3, 0.5 * FINER * tolerance / residual)
            active = np.flatnonzero(missed > precision * top)
        changed = active[:0]
        if iterations % CORRECTED == 0:
            ratio = state.primal[active] / np.maximum(state.dual[active], 1e-6 * state.primal[active])
            uneven = ~((ratio >= 1.0 / UNEVEN) & (ratio <= UNEVEN)) & (corrections[active] < CORRECTIONS)
            changed = active[uneven]
            step = np.ones(len(sizes))
            step[changed] = np.clip(np.sqrt(ratio[uneven]), 0.1, 10.0)
            step = np.clip(sigma * step, *SIGMA) / sigma
            sigma *= step
            w[:] = z + (w - z) / np.repeat(step, sizes)
            corrections[changed] += 1
        accelerate(history, structure.start, np.setdiff1d(active, changed), earlier, w)
    return replace(
        best, iterations=LIMIT, status=Status.OPTIMAL if best.residual <= tolerance else best.status
    )


def _split(problem: FamilyProblem, layout: Layout) -> Split:
    """Take what each child has of the parent out of its sums."""
    cells, parts = layout.cells, _parts(problem)
    fixed = np.zeros((problem.children, 0))
    if problem.fixed is not None:
        fixed = np.ascontiguousarray(problem.fixed[:, layout.held])
    share = np.zeros((problem.children, len(cells)))
    if problem.parent is not None:
        share = parts[:, None] * problem.parent[cells]
        fixed = fixed - parts[:, None] * fixed.sum(axis=0)
    mask = np.ascontiguousarray(layout.open_cells[:, cells])
    return Split(problem.linear[:, cells] / problem.weight, fixed, share, parts, mask)


def _by_faces(problem: FamilyProblem, layout: Layout, tolerance: float) -> Solution:
    """Solve roots, which do not depend on each other, one after the other by :func:`_root`."""
    x, y, iterations = np.zeros(problem.linear.shape), np.zeros(problem.linear.shape), 0
    for c in range(problem.children):
        one = replace(
            problem,
            linear=problem.linear[c : c + 1],
            mask=problem.mask[c : c + 1],
            lower=problem.lower[c : c + 1],
            upper=problem.upper[c : c + 1],
            scale=problem.scale[c : c + 1],
            fixed=None if problem.fixed is None else problem.fixed[c : c + 1],
        )
        x[c], y[c], faces = _root(one, layout.open_cells[c : c + 1])
        iterations = max(iterations, faces)
    residual = certify(problem, x, *_multipliers(problem, layout, x, y))
    status = Status.OPTIMAL if residual <= tolerance else Status.FAILED
    return Solution(x, status, residual, iterations, "structured")


def _root(problem: FamilyProblem, open_cells: Bools) -> tuple[Floats, Floats, int]:
    """Return the counts and prices of a root's cells, and the number of faces.

    The primal-dual active set: least squares by equalities only on a face, the cells that were positive and
    those that had wrong prices on the face before; roots of a million cells take about ten.
    """
    free, faces = open_cells, 0
    while True:
        faces += 1
        face = _layout(problem, free)
        structure, cells = face.structure, face.cells
        factor, blocks = _no_factor(structure), np.arange(len(structure.start) - 1)
        _factorise(structure, blocks, np.zeros(len(blocks)), factor)
        v = problem.linear[0, cells] / problem.weight
        fixed = np.zeros(0) if problem.fixed is None else problem.fixed[0, face.held]
        _with_equalities(structure, factor, fixed, v)
        x = np.zeros((1, problem.cells))
        x[0, cells] = v
        for _ in range(REFINED):
            v = -gradients(problem, x)[0, cells] / problem.scale[0]
            _with_equalities(structure, factor, np.zeros(0), v)
            x[0, cells] += v
        price = gradients(problem, x)[0] / problem.scale[0]
        if problem.fixed_rows is not None and problem.fixed is not None:
            rows, R = problem.fixed_rows, problem.fixed.shape[1]
            count = np.maximum(1, np.bincount(rows[cells], minlength=R))
            price -= (np.bincount(rows[cells], price[cells], R) / count)[rows]
        after = open_cells & np.where(free, x > 0.0, price < 0.0)
        if faces >= FACES or np.array_equal(after, free):
            price[free[0]] = 0.0
            price = np.where(open_cells[0], np.maximum(price, 0.0), price)  # a closed cell may have any
            return np.maximum(x[0], 0.0), price, faces
        free = after


def _parts(problem: FamilyProblem) -> Floats:
    """Return what each child has of the parent's price, shape (C,): by one over its scale; zeros at roots."""
    inverse: Floats = 1.0 / problem.scale
    return np.asarray(inverse / inverse.sum() if problem.parent is not None else np.zeros(len(inverse)))


def _no_factor(structure: Structure) -> Factor:
    """Return room for the inverse of every block."""
    shape, entries = structure.chain.shape, np.diff(structure.ranks) ** 2
    return Factor(
        np.zeros(shape), np.zeros(shape), np.zeros(int(entries.sum())), np.cumsum(entries) - entries
    )


def _layout(problem: FamilyProblem, open_cells: Bools) -> Layout:
    """Sort the terms, on the open cells: apart, in the chain, determined by the fixed rows, or others.

    Then the cells by blocks and rows of the chain.
    """
    cells = np.flatnonzero(open_cells.any(axis=0))
    n = len(cells)
    held = None if problem.fixed_rows is None else without_gaps(problem.fixed_rows[cells])
    diagonal, kept = 0.0, []
    for weight, rows in problem.terms:
        row = without_gaps(rows[cells])
        size = int(row.max(initial=-1)) + 1
        if size == n:
            diagonal += weight / problem.weight
        elif held is None or not refines(held, row):
            kept.append((size, weight / problem.weight, row))
    kept.sort(key=lambda term: -term[0])
    chain: list[NDArray[np.int32]] = []
    weights: list[float] = []
    others: list[NDArray[np.int32]] = []
    inverse: list[Floats] = []
    number = 0
    for size, weight, row in kept:
        if (held is None or refines(row, held)) and (not chain or refines(chain[-1], row)):
            chain.append(row)
            weights.append(weight)
        else:
            others.append((row + number).astype(np.int32))
            inverse.append(np.full(size, 1.0 / weight))
            number += size
    if held is not None:
        chain.append(held)
        weights.append(np.inf)
    block = independent_blocks(chain[-1] if chain else np.arange(n, dtype=np.int32), others, number)
    order = np.lexsort((*chain, block))
    cells, block = cells[order], block[order]
    B = int(block.max(initial=-1)) + 1
    of_row = np.zeros(number, np.int64)
    for row in others:
        of_row[row[order]] = block
    ranks = np.concatenate([[0], np.cumsum(np.bincount(of_row, minlength=B))])
    by_block = np.argsort(of_row, kind="stable")
    place = np.empty(number, np.int64)
    place[by_block] = np.arange(number)
    structure = Structure(
        diagonal,
        np.array([_intervals(row[order]) for row in chain], np.int32).reshape(len(chain), n),
        np.array(weights, np.float64),
        np.array([place[row[order]] - ranks[block] for row in others], np.int32).reshape(len(others), n),
        np.concatenate([np.zeros(0), *inverse])[by_block],
        np.concatenate([[0], np.cumsum(np.bincount(block, minlength=B))]),
        ranks,
    )
    held_rows = np.zeros(0, np.int64)
    if problem.fixed_rows is not None:
        last = structure.chain[-1]
        first = np.flatnonzero(np.diff(last, prepend=-1))
        held_rows = problem.fixed_rows[cells[first]].astype(np.int64)
    return Layout(structure, cells, open_cells, held_rows)


def independent_blocks(
    coarsest: NDArray[np.int32], others: list[NDArray[np.int32]], number: int
) -> NDArray[np.int32]:
    """Return the block of each cell, int32 (n,): rows that share a cell lie in one block, and no others.

    - `coarsest` (n,): row of each cell in a partition, without gaps.
    - `others` (n,): row of each cell in further partitions, their rows numbered through from 0 to `number` -
      1.
    """
    from scipy.sparse import csgraph  # a twentieth of all imports, and few families need it

    parts = int(coarsest.max(initial=-1)) + 1
    links = [np.zeros(0, np.int32), *(row + np.int32(parts) for row in others)]
    ends = (np.tile(coarsest, len(others)), np.concatenate(links))
    graph = sparse.coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(parts + number,) * 2)
    return np.asarray(csgraph.connected_components(graph, directed=False)[1][coarsest], np.int32)


def _intervals(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number rows whose cells stand side by side from 0, in their order."""
    return np.cumsum(np.diff(rows, prepend=rows[:1]) != 0, dtype=np.int32)


@inner
def _block(structure: Structure, factor: Factor, b: int, sigma: float) -> Block:
    """One block, with its sigma."""
    r = structure.ranks[b + 1] - structure.ranks[b]
    first = factor.first[b]
    core = factor.core[first : first + r * r].reshape(r, r)
    return Block(structure.start[b], structure.start[b + 1], structure.diagonal + sigma, core)


@njit(cache=True, nogil=True)
def _factorise(structure: Structure, blocks: Ints, sigma: Floats, factor: Factor) -> None:
    """Make the inverse of K in some blocks."""
    for b in blocks:
        inverse = structure.inverse[structure.ranks[b] : structure.ranks[b + 1]]
        _factorise_block(structure, factor, inverse, _block(structure, factor, b, sigma[b]))


@inner
def _factorise_block(structure: Structure, factor: Factor, inverse: Floats, block: Block) -> None:
    """One pass over each term of the chain, and the core of the others."""
    low, high, diagonal, core = block
    chain, weights, others = structure.chain, structure.weights, structure.others
    r = len(inverse)
    core[:] = 0.0
    for a in range(r):
        core[a, a] = inverse[a]
    for s in range(others.shape[0]):
        for t in range(others.shape[0]):
            for j in range(low, high):
                core[others[s, j], others[t, j]] += 1.0 / diagonal
    g = np.full(high - low, 1.0 / diagonal)
    sums = np.zeros(r)
    touched = np.empty(r, np.int64)
    for level in range(len(weights)):
        rows = chain[level]
        w = weights[level]
        first = low
        while first < high:
            row = rows[first]
            total = 0.0
            count = 0
            last = first
            while last < high and rows[last] == row:
                total += g[last - low]
                for s in range(others.shape[0]):
                    a = others[s, last]
                    if sums[a] == 0.0:
                        touched[count] = a
                        count += 1
                    sums[a] += g[last - low]
                last += 1
            share = 1.0 / total if np.isinf(w) else w / (1.0 + w * total)
            factor.shares[level, row] = share
            for a in range(count):
                f = share * sums[touched[a]]
                for b in range(count):
                    core[touched[a], touched[b]] -= f * sums[touched[b]]
            for a in range(count):
                sums[touched[a]] = 0.0
            for j in range(first, last):
                factor.ones[level, j] = g[j - low]
                g[j - low] *= 0.0 if np.isinf(w) else 1.0 - share * total
            first = last
    stated = core.copy()
    work = np.empty(r)
    for m in range(r):
        insert(core, m, stated[m, :m], stated[m, m], work, 0.0)


@inner
def _by_chain(structure: Structure, factor: Factor, block: Block, fixed: Floats, v: Floats) -> None:
    """Set v, in the block, to the answer of the chain alone, with the given sums of the fixed rows.

    Sums of zero where `fixed` is empty.
    """
    weights, high = structure.weights, block.high
    for j in range(block.low, high):
        v[j] /= block.diagonal
    for level in range(len(weights)):
        rows, ones, shares = structure.chain[level], factor.ones[level], factor.shares[level]
        given = np.isinf(weights[level]) and len(fixed) > 0
        first = block.low
        while first < high:
            row = rows[first]
            last = first
            total = -fixed[row] if given else 0.0
            while last < high and rows[last] == row:
                total += v[last]
                last += 1
            total *= shares[row]
            for j in range(first, last):
                v[j] -= ones[j] * total
            first = last


@inner
def _by_inverse(
    structure: Structure, factor: Factor, block: Block, fixed: Floats, v: Floats, back: Floats
) -> None:
    """Set v, in the block, to the answer with the given sums of the fixed rows; `back` is room."""
    low, high, _, core = block
    others, r = structure.others, len(core)
    _by_chain(structure, factor, block, fixed, v)
    if r == 0:
        return
    # P - P U (W^-1 + U' P U)^-1 U' P, with P the chain's inverse.
    margin, solved = np.zeros(r), np.empty(r)
    for t in range(others.shape[0]):
        for j in range(low, high):
            margin[others[t, j]] += v[j]
    symmetric_times(core, r, margin, solved)
    back[low:high] = 0.0
    for t in range(others.shape[0]):
        for j in range(low, high):
            back[j] += solved[others[t, j]]
    _by_chain(structure, factor, block, np.zeros(0), back)
    for j in range(low, high):
        v[j] -= back[j]


@njit(cache=True, nogil=True)
def _with_equalities(structure: Structure, factor: Factor, fixed: Floats, v: Floats) -> None:
    """Set v to the answer of every block, with the given sums of the fixed rows and without a sigma."""
    back = np.empty(len(v))
    for b in range(len(structure.start) - 1):
        _by_inverse(structure, factor, _block(structure, factor, b, 0.0), fixed, v, back)


@njit(cache=True, nogil=True)
def _iterate(structure: Structure, factor: Factor, blocks: Ints, split: Split, state: State) -> None:
    """Move w of some blocks by ROUND iterations."""
    linear, fixed, share, parts, mask = split
    w, sigma, primal, dual = state
    C, n = w.shape
    total = np.zeros(n)
    v = np.empty(n)
    z = np.empty((C, n))
    back = np.empty(n)
    for b in blocks:
        s = sigma[b]
        block = _block(structure, factor, b, s)
        low, high = block.low, block.high
        for c in range(C):
            for j in range(low, high):
                z[c, j] = max(w[c, j], 0.0) if mask[c, j] else 0.0
        for _ in range(ROUND):
            primal[b] = dual[b] = 0.0
            # Least squares with equalities: the right-hand side, less t_c of all children's.
            total[low:high] = 0.0
            for c in range(C):
                for j in range(low, high):
                    total[j] += linear[c, j] + s * (2.0 * z[c, j] - w[c, j])
            for c in range(C):
                for j in range(low, high):
                    v[j] = linear[c, j] + s * (2.0 * z[c, j] - w[c, j]) - parts[c] * total[j]
                _by_inverse(structure, factor, block, fixed[c], v, back)
                # Over-relaxed, and cut at zero.
                for j in range(low, high):
                    x = v[j] + share[c, j]
                    old = z[c, j]
                    w[c, j] += RELAXED * (x - old)
                    new = max(w[c, j], 0.0) if mask[c, j] else 0.0
                    z[c, j] = new
                    primal[b] = max(primal[b], abs(x - new))
                    dual[b] = max(dual[b], s * abs(new - old))


def _multipliers(
    problem: FamilyProblem, layout: Layout, x: Floats, y: Floats
) -> tuple[Multipliers, Floats | None]:
    """Multipliers of parent and fixed rows, given the prices y >= 0 of the cells at zero.

    The gradient less the prices is a sum of both, up to the residual: their mean over children, and what is
    left on average in each fixed row. Rows and cells closed by a sum of zero may have any price that is not
    negative; theirs follow from that.
    """
    C, n = x.shape
    cells = layout.cells
    R = 0 if problem.fixed is None else problem.fixed.shape[1]
    gradient = gradients(problem, x) / problem.scale[:, None]
    left = (y - gradient)[:, cells]
    mu, parts = np.zeros(n), _parts(problem)
    mu[cells] = left.sum(axis=0)
    left = left - parts[:, None] * mu[cells]
    nu = np.zeros((C, R))
    whole = gradient
    rows = problem.fixed_rows
    if rows is not None and problem.fixed is not None:
        count = np.maximum(1, np.bincount(rows[cells], minlength=R))
        inside = np.ones(n, np.bool_) if problem.parent is None else problem.parent > 0.0
        for c in range(C):
            nu[c] = np.bincount(rows[cells], left[c], R) / count
            closed = np.flatnonzero(inside & problem.mask[c] & (problem.fixed[c] == 0.0)[rows])
            np.maximum.at(nu[c], rows[closed], -(gradient[c] + parts[c] * mu)[closed])
        whole = gradient + nu[:, rows]
    if problem.parent is not None:
        nothing = np.flatnonzero(problem.parent == 0.0)
        mu /= (1.0 / problem.scale).sum()
        needed = np.where(problem.mask, -whole * problem.scale[:, None], -np.inf)
        needed = needed[:, nothing].max(axis=0, initial=-np.inf)
        mu[nothing] = np.where(np.isfinite(needed), needed, 0.0)
    else:
        mu[:] = 0.0
    nu *= problem.scale[:, None]
    multipliers = Multipliers(mu, np.zeros(problem.lower.shape))
    return multipliers, nu if rows is not None else None
