"""Slow, obvious twins of the rounder: enumeration, literal L1 programs, and snapping in exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

ONE = 2**20
WORD = 2**64 - 1


def mix(key: int) -> int:
    """One step and output of splitmix64."""
    z = (key + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def tie(child_key: int, cell_keys) -> int:
    """Public tie-breaking cost of a set of cells in a child."""
    return mix(mix(int(child_key)) ^ (sum(mix(int(k)) for k in cell_keys) & WORD)) >> 24


def snap(x, parent, mask, child_keys, cell_keys):
    """Integer parts and fractions (quanta of 2**-20) of the estimate, columns summing to the parent."""
    children, n = x.shape
    quanta = [[0] * n for _ in range(children)]
    for c in range(children):
        for j in range(n):
            if mask[c, j]:
                exact = Fraction(float(x[c, j]))
                near = round(exact)
                quanta[c][j] = near * ONE if abs(exact - near) <= Fraction(1e-6) else round(exact * ONE)
    if parent is not None:
        for j in range(n):
            gap = int(parent[j]) * ONE - sum(row[j] for row in quanta)
            while gap:
                picked = [c for c in range(children) if quanta[c][j] % ONE]
                picked = picked or [c for c in range(children) if quanta[c][j] > 0]
                picked = picked or [c for c in range(children) if mask[c, j]]
                picked.sort(key=lambda c: mix(mix(int(child_keys[c])) ^ mix(int(cell_keys[j]))))
                each, extra = divmod(abs(gap), len(picked))
                for k, c in enumerate(picked):
                    step = each + (k < extra)
                    if gap < 0:
                        step = min(step, quanta[c][j])
                    quanta[c][j] += step if gap > 0 else -step
                gap = int(parent[j]) * ONE - sum(row[j] for row in quanta)
    base = np.array([[q // ONE for q in row] for row in quanta], dtype=np.int64).reshape(x.shape)
    part = np.array([[q % ONE for q in row] for row in quanta], dtype=np.int64).reshape(x.shape)
    return base, part


def row_sets(maps):
    """Cells of every row of every map, as frozensets, with repetition."""
    return [
        frozenset(np.flatnonzero(rows == row).tolist())
        for rows in maps
        for row in np.unique(rows)
        if row >= 0
    ]


def answers(sets, table):
    return [[sum(int(row[j]) for j in s) for s in sets] for row in table]


def objective(sets, part, y) -> int:
    """Sum of |Q(f - y)| in quanta."""
    difference = part - ONE * y
    return sum(abs(a) for row in answers(sets, difference) for a in row)


def feasible(y, base, parent, groups, lower, upper, joint=None) -> bool:
    values = base + y
    for children, total in joint or ():
        if values[children].sum() != total:
            return False
    if parent is not None and (values.sum(axis=0) != parent).any():
        return False
    sums = values @ groups.T.astype(np.int64)
    return bool(((sums >= lower) & (sums <= upper)).all())


def enumerate_rounding(x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys, joint=None):
    """Every y in turn, pass by pass: least objective, then least tie cost, held for the next pass.

    `joint`: pairs of a list of children and the total that they hold together.
    """
    base, part = snap(x, parent, mask, child_keys, cell_keys)
    allowed = np.argwhere(mask)
    options = []
    for ones in itertools.product((0, 1), repeat=len(allowed)):
        y = np.zeros(x.shape, np.int64)
        y[tuple(allowed.T)] = ones
        if feasible(y, base, parent, groups, lower, upper, joint):
            options.append(y)
    objectives = []
    for k, maps in enumerate(passes):
        sets = row_sets(maps)
        if not options:
            return None, ()
        best = min(objective(sets, part, y) for y in options)
        options = [y for y in options if objective(sets, part, y) == best]
        last = k == len(passes) - 1
        costly = [frozenset([j]) for j in range(x.shape[1])] if last else sorted(set(sets), key=sorted)
        cost = [[tie(key, [cell_keys[j] for j in s]) for s in costly] for key in child_keys]

        def total(y, costly=costly, cost=cost):
            return sum(
                a * b
                for row, weights in zip(answers(costly, y), cost, strict=True)
                for a, b in zip(row, weights, strict=True)
            )

        least = min(total(y) for y in options)
        options = [y for y in options if total(y) == least]
        objectives.append(best)
    return base + options[0], tuple(objectives)


def _program(part, base, parent, mask, sets, groups, lower, upper, held):
    """Shared pieces of the literal program: rows over y (child by child), equality and bound constraints."""
    children, n = part.shape
    query = sp.csr_matrix([[1.0 if j in s else 0.0 for j in range(n)] for s in sets]).reshape(len(sets), n)
    constraints = []
    if parent is not None:
        need = (parent - base.sum(axis=0)).astype(float)
        constraints.append((sp.hstack([sp.eye(n)] * children), need, need))
    if len(groups):
        rows = sp.block_diag([sp.csr_matrix(groups.astype(float))] * children)
        shift = (base @ groups.T.astype(np.int64)).ravel()
        # A bound of 2**61 for "none" costs the solver its digits: it then returns wrong optima.
        above = np.minimum(upper.ravel() - shift, n + 1).astype(float)
        constraints.append((rows, (lower.ravel() - shift).astype(float), above))
    for sets_held, y in held:
        rows = sp.csr_matrix([[1.0 if j in s else 0.0 for j in range(n)] for s in sets_held])
        value = np.array(answers(sets_held, y), dtype=float).ravel()
        constraints.append((sp.block_diag([rows] * children), value, value))
    return query, constraints


def solve_milp(x, parent, mask, passes, groups, lower, upper, child_keys, cell_keys, joint=None):
    """Equation (7.7) literally, fractional targets and absolute values, by scipy's mixed-integer solver."""
    base, part = snap(x, parent, mask, child_keys, cell_keys)
    children, n = x.shape
    held, objectives, y = [], [], None
    for maps in passes:
        sets = row_sets(maps)
        query, constraints = _program(part, base, parent, mask, sets, groups, lower, upper, held)
        for inside, total in joint or ():
            row = np.zeros((children, n))
            row[inside] = 1.0
            left = np.array([float(total - base[inside].sum())])
            constraints.append((sp.csr_matrix(row.reshape(1, -1)), left, left))
        m = len(sets)
        everywhere = sp.block_diag([query] * children)
        target = np.array(answers(sets, part), dtype=float).ravel() / ONE
        size = children * n
        slack = sp.eye(children * m)
        rows = [LinearConstraint(sp.hstack([everywhere, -slack, slack]).tocsc(), target, target)]
        for matrix, lo, hi in constraints:
            rows.append(
                LinearConstraint(
                    sp.hstack([matrix, sp.csr_matrix((matrix.shape[0], 2 * children * m))]).tocsc(), lo, hi
                )
            )
        cost = np.r_[np.zeros(size), np.ones(2 * children * m)]
        top = np.r_[mask.ravel().astype(float), np.full(2 * children * m, np.inf)]
        integrality = np.r_[np.ones(size), np.zeros(2 * children * m)]
        found = milp(
            cost,
            constraints=rows,
            bounds=Bounds(0, top),
            integrality=integrality,
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            return None, ()
        y = np.rint(found.x[:size]).astype(np.int64).reshape(children, n)
        objectives.append(objective(sets, part, y))
        held.append((sets, y))
    return base + y, tuple(objectives)


def solve_interpolated_lp(x, parent, mask, maps, groups, lower, upper, child_keys, cell_keys):
    """Objective of one pass, interpolated at integers, as a linear program without integrality."""
    base, part = snap(x, parent, mask, child_keys, cell_keys)
    children, n = x.shape
    sets = row_sets(maps)
    query, constraints = _program(part, base, parent, mask, sets, groups, lower, upper, [])
    m = len(sets)
    size = children * n
    everywhere = sp.block_diag([query] * children)
    slope, offset = [], []
    target = np.array(answers(sets, part), dtype=float).ravel() / ONE
    # v >= each line through two neighbouring integer points of |target - k|; three lines suffice.
    floor = np.floor(target)
    rest = target - floor
    for a, b in (
        (-np.ones_like(target), target),
        (1 - 2 * rest, rest - (1 - 2 * rest) * floor),
        (np.ones_like(target), -target),
    ):
        slope.append(sp.hstack([sp.diags(a) @ everywhere, -sp.eye(children * m)]))
        offset.append(-b)
    upper_rows, upper_side, equal_rows, equal_side = list(slope), list(offset), [], []
    pad = sp.csr_matrix((1, children * m))
    for matrix, lo, hi in constraints:
        wide = sp.hstack([matrix, sp.vstack([pad] * matrix.shape[0])]).tocsr()
        same = lo == hi
        equal_rows.append(wide[same])
        equal_side.append(lo[same])
        upper_rows += [wide[~same], -wide[~same]]
        upper_side += [hi[~same], -lo[~same]]
    found = linprog(
        np.r_[np.zeros(size), np.ones(children * m)],
        A_ub=sp.vstack(upper_rows).tocsc(), b_ub=np.concatenate(upper_side),
        A_eq=sp.vstack(equal_rows).tocsc() if equal_rows else None, b_eq=np.concatenate(equal_side) if
        equal_rows else None,
        bounds=np.c_[np.zeros(size + children * m), np.r_[mask.ravel().astype(float), np.full(children * m,
        np.inf)]],
    )  # fmt: skip
    return found.fun if found.status == 0 else None
