"""Least squares over a tree with the matrix written out: every leaf, every cell, every query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.schema.query_groups import QueryGroup

Floats = npt.NDArray[np.float64]


def query_matrix(query: QueryGroup) -> Floats:
    """Return the 0/1 matrix of a query group, (m, n)."""
    matrix = np.zeros((query.size, len(query.row_of_cell)))
    matrix[query.row_of_cell, np.arange(len(query.row_of_cell))] = 1.0
    return matrix


def leaf_indicators(parents: Sequence[npt.NDArray[np.int64]]) -> list[Floats]:
    """Return, per level, which leaves lie in each geounit, (g, leaves)."""
    found = [np.eye(len(parents[-1]))]
    for level, below in zip(reversed(parents[:-1]), reversed(parents[1:]), strict=True):
        gather = np.zeros((len(level), len(below)))
        gather[below, np.arange(len(below))] = 1.0
        found.append(gather @ found[-1])
    return found[::-1]


@dataclass
class Dense:
    """Covariance of all cells of all leaves, and which of their functions are known at all.

    `weights[l]` is (g, q): one over the variance, infinite where the answer is exact.
    """

    parents: Sequence[npt.NDArray[np.int64]]
    weights: Sequence[Floats]
    queries: Sequence[QueryGroup]

    def __post_init__(self) -> None:
        cells = len(self.queries[0].row_of_cell)
        size = len(self.parents[-1]) * cells
        information = np.zeros((size, size))
        exact = [np.zeros((0, size))]
        self.areas = leaf_indicators(self.parents)
        for areas, weights in zip(self.areas, self.weights, strict=True):
            for area, row in zip(areas, weights, strict=True):
                for query, weight in zip(self.queries, row, strict=True):
                    asked = np.kron(area, query_matrix(query))
                    if np.isinf(weight):
                        exact.append(asked)
                    else:
                        information += weight * asked.T @ asked
        held = np.vstack(exact)
        if len(held):
            _, lengths, right = np.linalg.svd(held)
            free = right[np.count_nonzero(lengths > 1e-9 * lengths[0]) :].T
        else:
            free = np.eye(size)
        values, vectors = np.linalg.eigh(free.T @ information @ free)
        known = values > 1e-11 * values[-1]
        self.root = free @ vectors[:, known] / np.sqrt(values[known])
        self.unknown = free @ vectors[:, ~known]

    def variance(self, leaves: Floats, query: QueryGroup) -> Floats:
        """Return the variance of each row of a query group, summed over leaves with these weights, (m,)."""
        asked = np.kron(leaves, query_matrix(query))
        found = ((asked @ self.root) ** 2).sum(axis=1)
        found[((asked @ self.unknown) ** 2).sum(axis=1) > 1e-9] = np.inf
        return np.asarray(found)
