"""The informed estimator written out: matrices over every leaf of a subtree, a general solver, no structure.

For a geounit ``v`` the unknowns are the cells of all leaves below it. What has been measured strictly below
``v``, and what is exact there, leaves a quadratic function of the cells of ``v`` itself when everything else
is minimised out; its own measurements are added. Nothing is passed from level to level.
"""

from __future__ import annotations

import itertools

import clarabel
import numpy as np
import scipy.linalg
import scipy.sparse as sp

from opendas.topdown.constraint_groups import Groups
from opendas.topdown.model import Family
from opendas.topdown.rounding import round_estimate

TINY = 1e-9


def null_space(rows: np.ndarray, size: int) -> np.ndarray:
    """Orthonormal basis of the vectors that every row sends to zero, (size, k)."""
    return scipy.linalg.null_space(rows, rcond=TINY) if len(rows) else np.eye(size)


def pseudo_inverse(matrix: np.ndarray, scale: float) -> np.ndarray:
    """Pseudo-inverse of a symmetric matrix; eigenvalues are zero below a part of `scale`."""
    if not matrix.size:
        return matrix
    values, vectors = np.linalg.eigh(matrix)
    some = values > TINY * scale
    return (vectors[:, some] / values[some]) @ vectors[:, some].T


def query_matrix(row_of_cell: np.ndarray, size: int) -> np.ndarray:
    """0/1 matrix of a query group, (m, n)."""
    matrix = np.zeros((size, len(row_of_cell)))
    matrix[row_of_cell, np.arange(len(row_of_cell))] = 1.0
    return matrix


class DenseTree:
    """Measurements and constraints of an assembled run, as matrices."""

    def __init__(self, run, source) -> None:
        self.run = run
        self.spine = run.spine
        self.last = len(self.spine.levels) - 1
        self.n = run.product.schema.size
        self.starts = [self.spine.leaf_starts(level) for level in range(self.last + 1)]
        self.own = []
        for number, level in enumerate(self.spine.levels):
            answers = source.full(number, 0, len(level))
            shares = self.spine.shares[number]
            each = []
            for g in range(len(level)):
                P, b = np.zeros((self.n, self.n)), np.zeros(self.n)
                multiple = 1 if shares is None else shares.multiples[int(shares.which[g])]
                for planned, values in zip(run.plan.levels[number].queries, answers, strict=True):
                    if multiple == 0:
                        continue
                    Q = query_matrix(planned.query.row_of_cell, planned.query.size)
                    weight = 1.0 / run.plan.distribution(number, planned, multiple).variance
                    P += weight * Q.T @ Q
                    b += weight * Q.T @ values[g]
                each.append((P, b))
            self.own.append(each)

    def allowed(self, leaf: int) -> np.ndarray:
        """Cells that a leaf may use, bool (n,)."""
        table = self.run.constraints
        closed = table.levels[-1].upper[leaf] == 0
        return table.possible & ~table.bound_cells[closed].any(axis=0)

    def exact(self, level: int, geounits: range, leaves: range) -> tuple[list, list]:
        """Rows over the cells of `leaves`, and what they equal: invariants of geounits, joint totals."""
        held = self.run.constraints.levels[level]
        rows, values = [], []

        def add(area: range, asked: np.ndarray, value: float) -> None:
            row = np.zeros((len(leaves), self.n))
            row[area.start - leaves.start : area.stop - leaves.start] = asked
            rows.append(row.ravel())
            values.append(value)

        for g in geounits:
            area = range(int(self.starts[level][g]), int(self.starts[level][g + 1]))
            for invariant in held.invariants:
                Q = query_matrix(invariant.query.row_of_cell, invariant.query.size)
                for asked, value in zip(Q, invariant.answers[g], strict=True):
                    add(area, asked, float(value))
        if held.joint is not None:
            for number in np.unique(held.joint.group[geounits.start : geounits.stop]):
                parts = np.flatnonzero(held.joint.group == number)
                area = range(int(self.starts[level][parts[0]]), int(self.starts[level][parts[-1] + 1]))
                add(area, np.ones(self.n), float(held.joint.totals[number]))
        return rows, values

    def below(self, level: int, geounit: int) -> tuple[np.ndarray, np.ndarray]:
        """Quadratic and linear term, of the cells of a geounit, of all that is known strictly below it."""
        leaves = range(int(self.starts[level][geounit]), int(self.starts[level][geounit + 1]))
        keep = np.concatenate([self.allowed(leaf) for leaf in leaves])
        size = len(leaves) * self.n
        P, b = np.zeros((size, size)), np.zeros(size)
        rows, values = [], []
        first, stop = geounit, geounit + 1
        for below in range(level + 1, self.last + 1):
            starts = self.spine.child_starts(below - 1)
            first, stop = int(starts[first]), int(starts[stop])
            for g in range(first, stop):
                low, high = self.starts[below][g] - leaves.start, self.starts[below][g + 1] - leaves.start
                G = np.zeros((self.n, size))
                for leaf in range(int(low), int(high)):
                    G[:, leaf * self.n : (leaf + 1) * self.n] = np.eye(self.n)
                own, linear = self.own[below][g]
                P += G.T @ own @ G
                b += G.T @ linear
            more = self.exact(below, range(first, stop), leaves)
            rows += more[0]
            values += more[1]
        P, b = P[np.ix_(keep, keep)], b[keep]
        G = np.tile(np.eye(self.n), len(leaves))[:, keep]
        E = np.array(rows).reshape(len(rows), size)[:, keep]
        start = np.linalg.pinv(E) @ np.array(values) if len(rows) else np.zeros(keep.sum())
        N = null_space(E, int(keep.sum()))
        M, c = N.T @ P @ N, N.T @ (b - P @ start)
        R = G @ N
        back = np.linalg.pinv(R, rcond=TINY)
        K = null_space(R, R.shape[1])
        out = M @ K @ pseudo_inverse(K.T @ M @ K, np.abs(M).max(initial=0.0)) @ K.T
        H = back.T @ (M - out @ M) @ back
        linear = back.T @ (c - out @ c)
        return (H + H.T) / 2, linear + H @ G @ start

    def information(self, level: int, geounit: int) -> tuple[np.ndarray, np.ndarray]:
        """P* and b* of a geounit; those of a leaf are its own."""
        P, b = self.own[level][geounit]
        if level == self.last:
            return P, b
        more, linear = self.below(level, geounit)
        return P + more, b + linear

    def family(self, level: int, family: Family, first: int) -> np.ndarray:
        """Estimate one family before rounding, (C, s)."""
        rules = self.run.rules[level]
        groups = Groups.build(family.support, family.parent, family.constraints, rules, family.label)
        known = [self.information(level, first + c) for c in range(len(groups.mask))]
        if not any(P.any() for P, _ in known):  # nothing was measured: the feasible point of least norm
            known = [(np.eye(self.n), np.zeros(self.n)) for _ in known]
        cells = np.ix_(family.support, family.support)
        return general(
            [P[cells] for P, _ in known],
            np.array([b[family.support] for _, b in known]),
            family.parent,
            groups,
        )

    def release(self) -> np.ndarray:
        """Estimate every leaf in integers, (leaves, n)."""
        spine, run = self.spine, self.run
        joint = run.constraints.levels[0].joint
        group = np.arange(len(spine.levels[0])) if joint is None else joint.group
        cuts = [*np.flatnonzero(np.diff(group, prepend=-1)).tolist(), len(group)]
        top = run.constraints.levels[0]
        found = []
        for start, stop in itertools.pairwise(cuts):
            held = top.slice(start, stop)
            closed = np.all([run.constraints.bound_cells[u == 0].any(axis=0) for u in held.upper], axis=0)
            support = np.flatnonzero(run.constraints.possible & ~closed).astype(np.int32)
            found.append(self._rounded(0, support, None, held, start, stop))
        counts = np.concatenate(found)
        for level in range(1, self.last + 1):
            starts = spine.child_starts(level - 1)
            below = []
            for g, parent in enumerate(counts):
                start, stop = int(starts[g]), int(starts[g + 1])
                support = np.flatnonzero(parent).astype(np.int32)
                held = run.constraints.levels[level].slice(start, stop)
                if stop - start == 1 or len(support) == 0:  # nothing to estimate
                    below.append(np.repeat(parent[None], stop - start, axis=0))
                    continue
                below.append(self._rounded(level, support, parent[support], held, start, stop))
            counts = np.concatenate(below)
        return counts

    def _rounded(self, level, support, parent, held, start, stop) -> np.ndarray:
        from opendas.engines.subtree import tie_keys

        keys = tie_keys(self.spine.levels[level].geocodes[start:stop])
        family = Family("twin", support, parent, held, keys)
        rules = self.run.rules[level]
        groups = Groups.build(support, parent, held, rules, "twin")
        if len(support) == 0:
            return np.zeros((stop - start, self.n), dtype=np.int64)
        rounded = round_estimate(family, rules, groups, self.family(level, family, start))
        full = np.zeros((stop - start, self.n), dtype=np.int64)
        full[:, support] = rounded
        return full


def general(hessians, linear: np.ndarray, parent, groups: Groups) -> np.ndarray:
    """Minimise sum_c 1/2 x'A_c x - b_c'x under the constraints of a family, by a general solver, polished."""
    children, s = linear.shape
    size = children * s
    equal, equal_to, less, less_than = [], [], [], []
    for j in range(s if parent is not None else 0):
        row = np.zeros((children, s))
        row[:, j] = 1
        equal.append(row.ravel())
        equal_to.append(float(parent[j]))
    for c, j in np.argwhere(~groups.mask):
        row = np.zeros((children, s))
        row[c, j] = 1
        equal.append(row.ravel())
        equal_to.append(0.0)
    for k, inside in enumerate(groups.cells):
        for c in range(children):
            row = np.zeros((children, s))
            row[c, inside] = 1
            low, high = groups.lower[c, k], groups.upper[c, k]
            if low == high:
                equal.append(row.ravel())
                equal_to.append(low)
                continue
            less.append(-row.ravel())
            less_than.append(-low)
            if np.isfinite(high):
                less.append(row.ravel())
                less_than.append(high)
    if groups.joint is not None:
        for number, total in enumerate(groups.joint.totals):
            row = np.zeros((children, s))
            row[groups.joint.group == number] = 1
            equal.append(row.ravel())
            equal_to.append(float(total))
    less += list(-np.eye(size))
    less_than += [0.0] * size
    H = scipy.linalg.block_diag(*hessians)
    E, e = np.array(equal).reshape(-1, size), np.array(equal_to)
    L, f = np.array(less), np.array(less_than)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solution = clarabel.DefaultSolver(
        sp.csc_matrix(np.triu(H)),
        -linear.ravel(),
        sp.csc_matrix(np.vstack([E, L])),
        np.concatenate([e, f]),
        [clarabel.ZeroConeT(len(E)), clarabel.NonnegativeConeT(len(L))],
        settings,
    ).solve()
    x, dual = np.array(solution.x), np.array(solution.z)[len(E) :]
    tight = dual > (f - L @ x)
    A, a = np.vstack([E, L[tight]]), np.concatenate([e, f[tight]])
    start = np.linalg.pinv(A, rcond=TINY) @ a
    N = null_space(A, size)
    z = np.linalg.lstsq(N.T @ H @ N, N.T @ (linear.ravel() - H @ start), rcond=TINY)[0]
    polished = start + N @ z
    if (L @ polished - f).max(initial=0.0) < 1e-7 and np.abs(E @ polished - e).max(initial=0.0) < 1e-7:
        x = polished
    return np.maximum(x, 0.0).reshape(children, s)
