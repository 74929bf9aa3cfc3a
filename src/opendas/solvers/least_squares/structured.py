"""Families of many cells by their nested queries and fixed sums; apart, as a method of its own.

Letters: ``n`` cells, ``C`` children, ``R`` fixed rows, ``k`` terms of the chain, ``r`` rows of the others,
``d`` the weight of terms that tell all cells apart, plus sigma.

The alternating direction method of multipliers splits ``x >= 0`` from the rest: a step is one least squares
with equalities only, of ``K = H + sigma I``, and one cut at zero. Where the children agree in their Hessian,
what they have in common is known (the parent divided by C), and what they differ by separates: the
multipliers of the parent leave with the mean over children of the right-hand sides.

A chain of terms, each coarser than the one before, has an inverse of one pass per term. Let ``T_k`` be the
sum up to term k, of weight w, and ``g = T_{k-1}^-1 1``. On every row of the term, by Sherman and Morrison,

    T_k^-1 v = T_{k-1}^-1 v - g w / (1 + w 1'g) 1' T_{k-1}^-1 v,      T_k^-1 1 = g / (1 + w 1'g).

A fixed sum of a row is the limit of a large w; terms that the fixed rows determine are constants. The terms
that are neither are sparse columns U with weights W, and with P the inverse between fixed sums,
``P - P U (W^-1 + U' P U)^-1 U' P`` is the inverse of all (Woodbury). No array is larger than C x n or r x r.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from opendas.arrays import Bools, Floats, Ints, refines
from opendas.solvers.least_squares.kernels import cholesky, triangular_solve
from opendas.solvers.problem.certificate import Multipliers, certify, gradients
from opendas.solvers.problem.problem import FamilyProblem, Solution, Status
from opendas.solvers.rows import without_gaps

__all__ = ["RANK", "applies", "solve_structured"]

RANK = 2_000
"""Most rows of the terms outside the chain."""
LIMIT = 6_000
"""Most iterations."""
ROUND = 25
"""Iterations between two looks at the residuals."""
RELAXED = 1.6
"""Over-relaxation (Eckstein and Bertsekas 1992)."""
UNEVEN = 3.0
"""Ratio of primal and dual residuals from which sigma is corrected."""
CORRECTIONS = 20
"""Most corrections of sigma: the method converges for any sigma that stays."""


class Structure(NamedTuple):
    """H without what fixed rows determine, as compiled code takes it; weights sum to at most 1."""

    diagonal: float  # weight of the terms that tell all cells apart
    chain: NDArray[np.int32]  # (k, n), finest first; the fixed rows last, where there are any
    weights: Floats  # (k,), infinite for fixed rows
    others: NDArray[np.int32]  # (t, n), numbered through from 0 to r - 1
    inverse: Floats  # (r,) one over the weight of each row of the others


class Factor(NamedTuple):
    """The inverse of K between fixed sums."""

    diagonal: float
    ones: Floats  # (k, n), g of each term of the chain
    shares: Floats  # (k, n), w / (1 + w 1'g) of each row of the chain
    core: Floats  # (r, r), upper triangle of the Cholesky factor of W^-1 + U' P U


def applies(problem: FamilyProblem) -> bool:
    """Whether a family has the structure: one Hessian, few rows outside a chain, no groups or joint totals.

    Children of a parent have to agree in their scale, too; the others are left to the general ladder.
    """
    if problem.hessians is not None or not problem.terms or len(problem.groups) or problem.joint is not None:
        return False
    if problem.parent is not None and not (problem.scale == problem.scale[0]).all():
        return False
    return len(_structure(problem, np.arange(problem.cells)).inverse) <= RANK


def solve_structured(problem: FamilyProblem, tolerance: float) -> Solution:
    """Solve a family to which the method :func:`applies`.

    Parameters
    ----------
    problem : FamilyProblem
        The family.
    tolerance : float
        Largest relative Karush-Kuhn-Tucker residual of an answer that counts as optimal.

    Returns
    -------
    Solution
        ``OPTIMAL`` with a certified residual, or ``FAILED`` with the point of least residual.
    """
    C, n = problem.linear.shape
    open_cells = problem.mask.copy()
    if problem.parent is not None:
        open_cells &= problem.parent > 0.0
    if problem.fixed_rows is not None and problem.fixed is not None:
        open_cells &= (problem.fixed != 0.0)[:, problem.fixed_rows]
    cells = np.flatnonzero(open_cells.any(axis=0))
    best = Solution(np.zeros((C, n)), Status.FAILED, np.inf, 0, "structured")
    structure = _structure(problem, cells)
    R = 0 if problem.fixed is None else problem.fixed.shape[1]
    fixed = np.zeros((C, 0))
    if problem.fixed_rows is not None and problem.fixed is not None:
        held = np.unique(problem.fixed_rows[cells])
        fixed = np.ascontiguousarray(problem.fixed[:, held])
    share = np.zeros(len(cells))
    if problem.parent is not None:
        share = problem.parent[cells] / C
        fixed = fixed - fixed.mean(axis=0)
    linear = problem.linear[:, cells] / problem.weight
    mask = np.ascontiguousarray(open_cells[:, cells])
    z = np.where(mask, share, 0.0)
    u = np.zeros(z.shape)
    sigma, corrections = 0.1, 0
    orders = np.argsort(structure.chain, axis=1, kind="stable")
    factor = _factorise(structure, orders, sigma)
    for iterations in range(ROUND, LIMIT + 1, ROUND):
        primal, dual = _iterate(
            structure, factor, sigma, linear, fixed, share, problem.parent is not None, mask, z, u
        )
        x = np.zeros((C, n))
        x[:, cells] = z
        y = np.zeros((C, n))
        y[:, cells] = -sigma * u
        multipliers, nu = _multipliers(problem, open_cells, cells, x, y, R)
        residual = certify(problem, x, multipliers, nu)
        if residual < best.residual:
            best = replace(best, x=x, residual=residual, iterations=iterations)
        if residual <= tolerance:
            return replace(best, status=Status.OPTIMAL)
        ratio = primal / max(dual, 1e-300)
        if corrections < CORRECTIONS and not 1.0 / UNEVEN <= ratio <= UNEVEN:
            corrections += 1
            step = min(max(np.sqrt(ratio), 0.1), 10.0)
            sigma, u = sigma * step, u / step
            factor = _factorise(structure, orders, sigma)
    return replace(best, iterations=LIMIT)


def _structure(problem: FamilyProblem, cells: Ints) -> Structure:
    """Sort the terms, on some of the cells: apart, in the chain, determined by the fixed rows, or others."""
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
    return Structure(
        diagonal,
        np.array(chain, np.int32).reshape(len(chain), n),
        np.array(weights, np.float64),
        np.array(others, np.int32).reshape(len(others), n),
        np.concatenate([np.zeros(0), *inverse]),
    )


@njit(cache=True, nogil=True)
def _factorise(structure: Structure, orders: Ints, sigma: float) -> Factor:
    """Make the inverse of K: one pass over each term of the chain, and the core of the others."""
    apart, chain, weights, others, inverse = structure
    k, n = chain.shape
    r = len(inverse)
    diagonal = apart + sigma
    ones = np.empty((k, n))
    shares = np.zeros((k, n))
    core = np.zeros((r, r))
    for a in range(r):
        core[a, a] = inverse[a]
    for s in range(others.shape[0]):
        for t in range(others.shape[0]):
            for j in range(n):
                core[others[s, j], others[t, j]] += 1.0 / diagonal
    g = np.full(n, 1.0 / diagonal)
    sums = np.zeros(r)
    touched = np.empty(r, np.int64)
    for level in range(k):
        first = 0
        while first < n:
            row = chain[level, orders[level, first]]
            total = 0.0
            count = 0
            last = first
            while last < n and chain[level, orders[level, last]] == row:
                j = orders[level, last]
                total += g[j]
                for s in range(others.shape[0]):
                    a = others[s, j]
                    if sums[a] == 0.0:
                        touched[count] = a
                        count += 1
                    sums[a] += g[j]
                last += 1
            w = weights[level]
            share = 1.0 / total if np.isinf(w) else w / (1.0 + w * total)
            shares[level, row] = share
            for a in range(count):
                f = share * sums[touched[a]]
                for b in range(count):
                    core[touched[a], touched[b]] -= f * sums[touched[b]]
            for a in range(count):
                sums[touched[a]] = 0.0
            for i in range(first, last):
                j = orders[level, i]
                ones[level, j] = g[j]
                g[j] *= 0.0 if np.isinf(w) else 1.0 - share * total
            first = last
    lost = np.zeros(r, np.bool_)
    cholesky(core, inverse, lost)
    return Factor(diagonal, ones, shares, core)


@njit(cache=True, nogil=True)
def _by_chain(structure: Structure, factor: Factor, fixed: Floats, v: Floats, sums: Floats) -> None:
    """Set v to the answer of the chain alone, with the given sums of the fixed rows (none: sums of zero)."""
    chain, weights = structure.chain, structure.weights
    n = len(v)
    for j in range(n):
        v[j] /= factor.diagonal
    for level in range(len(weights)):
        ones, shares = factor.ones[level], factor.shares[level]
        rows = chain[level]
        for j in range(n):
            sums[rows[j]] = 0.0
        for j in range(n):
            sums[rows[j]] += v[j]
        if np.isinf(weights[level]):
            for row in range(len(fixed)):
                sums[row] -= fixed[row]
        for j in range(n):
            v[j] -= ones[j] * shares[rows[j]] * sums[rows[j]]


@njit(cache=True, nogil=True)
def _iterate(
    structure: Structure,
    factor: Factor,
    sigma: float,
    linear: Floats,
    fixed: Floats,
    share: Floats,
    has_parent: bool,
    mask: Bools,
    z: Floats,
    u: Floats,
) -> tuple[float, float]:
    """Move z and u by ROUND iterations; returns the primal and the dual residual of the last, in counts."""
    C, n = z.shape
    others = structure.others
    r = len(structure.inverse)
    nothing = np.zeros(fixed.shape[1])
    mean = np.zeros(n)
    v = np.empty(n)
    back = np.empty(n)
    sums = np.empty(n)
    margin = np.empty(r)
    primal = dual = 0.0
    for _ in range(ROUND):
        primal = dual = 0.0
        if has_parent:
            mean[:] = 0.0
            for c in range(C):
                for j in range(n):
                    mean[j] += linear[c, j] + sigma * (z[c, j] - u[c, j])
            for j in range(n):
                mean[j] /= C
        for c in range(C):
            for j in range(n):
                v[j] = linear[c, j] + sigma * (z[c, j] - u[c, j]) - mean[j]
            _by_chain(structure, factor, fixed[c], v, sums)
            if r:
                margin[:] = 0.0
                for t in range(others.shape[0]):
                    for j in range(n):
                        margin[others[t, j]] += v[j]
                triangular_solve(factor.core, margin)
                back[:] = 0.0
                for t in range(others.shape[0]):
                    for j in range(n):
                        back[j] += margin[others[t, j]]
                _by_chain(structure, factor, nothing, back, sums)
                for j in range(n):
                    v[j] -= back[j]
            for j in range(n):
                x = v[j] + share[j]
                old = z[c, j]
                moved = RELAXED * x + (1.0 - RELAXED) * old + u[c, j]
                new = max(moved, 0.0) if mask[c, j] else 0.0
                z[c, j] = new
                u[c, j] = moved - new
                primal = max(primal, abs(x - new))
                dual = max(dual, sigma * abs(new - old))
    return primal, dual


def _multipliers(
    problem: FamilyProblem, open_cells: Bools, cells: Ints, x: Floats, y: Floats, R: int
) -> tuple[Multipliers, Floats | None]:
    """Multipliers of parent and fixed rows, given the prices y >= 0 of the cells at zero.

    The gradient less the prices is a sum of both, up to the residual: their mean over children, and what is
    left on average in each fixed row. Rows and cells closed by a sum of zero may have any price that is not
    negative; theirs follow from that.
    """
    C, n = x.shape
    gradient = gradients(problem, x) / problem.scale[:, None]
    left = (y - gradient)[:, cells]
    mu = np.zeros(n)
    if problem.parent is not None:
        mu[cells] = left.mean(axis=0)
        left = left - mu[cells]
    nu = np.zeros((C, R))
    whole = gradient
    rows = problem.fixed_rows
    if rows is not None and problem.fixed is not None:
        count = np.maximum(1, np.bincount(rows[cells], minlength=R))
        inside = np.ones(n, np.bool_) if problem.parent is None else problem.parent > 0.0
        for c in range(C):
            nu[c] = np.bincount(rows[cells], left[c], R) / count
            closed = np.flatnonzero(inside & problem.mask[c] & (problem.fixed[c] == 0.0)[rows])
            np.maximum.at(nu[c], rows[closed], -(gradient[c] + mu)[closed])
        whole = gradient + nu[:, rows]
    if problem.parent is not None:
        nothing = np.flatnonzero(problem.parent == 0.0)
        needed = np.where(problem.mask, -whole, -np.inf)[:, nothing].max(axis=0, initial=-np.inf)
        mu[nothing] = np.where(np.isfinite(needed), needed, 0.0)
        mu *= problem.scale[0]
    nu *= problem.scale[:, None]
    multipliers = Multipliers(mu, np.zeros(problem.lower.shape))
    return multipliers, nu if rows is not None else None
