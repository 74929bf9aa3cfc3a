"""Least squares over a small noisy tree with every matrix written out, and the weight of every draw.

Nothing here knows about blocks, passes or classes: one unknown for each cell of each leaf, one row for each
noisy answer, exact answers by elimination.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import null_space

from opendas.intervals.noisy_tree import NoisyTree


class DenseIntervals:
    """The estimate of a noisy tree as a linear function of its answers."""

    def __init__(self, tree: NoisyTree) -> None:
        self.tree = tree
        n, leaves = tree.product.schema.size, len(tree.spine.leaf)
        closed = tree.constraints.levels[-1].upper == 0
        allowed = np.tile(tree.product.possible, (leaves, 1))
        for bound, cells in enumerate(tree.constraints.bound_cells):
            allowed &= ~(closed[:, bound, None] & cells)
        self.keep = np.flatnonzero(allowed.ravel())
        self.shape = (leaves, n)
        rows, answers, variances, self.laws = [], [], [], []
        exact, known = [], []
        for number, level in enumerate(tree.spine.levels):
            starts = tree.spine.leaf_starts(number)
            noisy = tree.levels[number]
            values = tree.full(number, 0, len(level))
            for i in range(len(level)):
                inside = np.zeros(leaves)
                inside[starts[i] : starts[i + 1]] = 1.0
                for k, query in enumerate(noisy.queries):
                    law = noisy.laws[int(noisy.which[i])][k]
                    if law is None:
                        continue
                    for row in range(query.size):
                        rows.append(np.kron(inside, query.row_of_cell == row)[self.keep])
                        answers.append(values[k][i, row])
                        draws = 1 if query.draws is None else int(query.draws[row])
                        variances.append(draws * law.variance)
                        self.laws.append(law)
            table = tree.constraints.levels[number]
            for held in table.invariants:
                for i in range(len(level)):
                    inside = np.zeros(leaves)
                    inside[starts[i] : starts[i + 1]] = 1.0
                    for row in range(held.query.size):
                        exact.append(np.kron(inside, held.query.row_of_cell == row)[self.keep])
                        known.append(held.answers[i, row])
            if table.joint is not None:
                for group, total in enumerate(table.joint.totals):
                    parts = np.flatnonzero(table.joint.group == group)
                    inside = np.zeros(leaves)
                    for i in parts:
                        inside[starts[i] : starts[i + 1]] = 1.0
                    exact.append(np.kron(inside, np.ones(n))[self.keep])
                    known.append(total)
        matrix, self.variances = np.array(rows), np.array(variances)
        start, free = np.zeros(len(self.keep)), np.eye(len(self.keep))
        if exact:
            start = np.linalg.lstsq(np.array(exact), np.array(known, float), rcond=None)[0]
            free = null_space(np.array(exact))
        reduced = matrix @ free
        scaled = reduced / np.sqrt(self.variances)[:, None]
        inverse = np.linalg.pinv(scaled, rcond=1e-10) / np.sqrt(self.variances)
        self.weights = free @ inverse  # (unknowns, answers)
        self.estimate = start + self.weights @ (np.array(answers, float) - matrix @ start)
        self.known = free @ (inverse @ reduced) @ np.linalg.pinv(free) if exact else inverse @ reduced

    def functional(self, weights: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Return sum over leaves, with weights, of the cells of each row: (t, unknowns)."""
        return np.stack([np.kron(weights, row.astype(float))[self.keep] for row in members])

    def answer(self, weights: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and variance of each row."""
        asked = self.functional(weights, members)
        draws = asked @ self.weights
        return asked @ self.estimate, (draws**2) @ self.variances

    def draws(self, weights: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Return the weight of every draw in the estimate of each row, (t, answers)."""
        return self.functional(weights, members) @ self.weights
