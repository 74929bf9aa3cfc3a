"""The structure of H against its plain definition, and the root solver against the general active set."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.solvers.least_squares import direct
from opendas.solvers.least_squares.lowrank import low_rank
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem, Status

AXES = (3, 2, 2, 5)
N = int(np.prod(AXES))


def product_terms(kept):
    """Rows of marginal queries over a small product of attributes."""
    codes = np.unravel_index(np.arange(N), AXES)
    rows = []
    for axes in kept:
        key = np.zeros(N, dtype=np.int64)
        for axis in axes:
            key = key * AXES[axis] + codes[axis]
        rows.append(key)
    return np.array(rows, dtype=np.int32)


KEPT = [(), (3,), (0,), (2, 3), (1, 2), (1, 2, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_core_of_the_finest_terms_gives_h(ridge):
    rows = product_terms(KEPT)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, len(rows))
    structure = low_rank(rows, weights, ridge)
    assert structure.rank == 3 + 20  # the first attribute alone, and the product of the three others
    A = np.zeros((structure.rank, N))
    for row in structure.rows:
        A[row, np.arange(N)] += 1.0
    H = sum(w * (r[:, None] == r[None, :]) for w, r in zip(weights, rows, strict=True)) / weights.sum()
    H = H + ridge * np.eye(N)
    np.testing.assert_allclose(structure.diagonal * np.eye(N) + A.T @ structure.core @ A, H, atol=1e-12)
    cells = np.flatnonzero(np.random.default_rng(1).random(N) < 0.4)
    v = np.random.default_rng(2).normal(size=len(cells))
    solution = structure.factor(cells).solve(v)
    np.testing.assert_allclose(H[np.ix_(cells, cells)] @ solution, v, atol=1e-10)


def test_no_structure_without_a_term_that_separates_cells():
    assert low_rank(product_terms(KEPT[:-1]), np.ones(len(KEPT) - 1), 0.0) is None
    assert low_rank(product_terms(KEPT[:-1]), np.ones(len(KEPT) - 1), 1e-3).diagonal == 1e-3


@pytest.mark.parametrize("detailed", [True, False])
@pytest.mark.parametrize("children", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_root_solver_agrees_with_the_general_active_set(seed, children, detailed, monkeypatch):
    rng = np.random.default_rng(seed)
    kept = KEPT if detailed else [(0, 1), (1, 2), (2, 3), (0, 3)]
    rows = product_terms(kept)
    truth = rng.poisson(rng.lognormal(0.0, 1.5, (children, N)))
    linear = np.zeros((children, N))
    terms = []
    for row in rows:
        weight = float(rng.uniform(0.05, 1.0))
        answers = np.stack([np.bincount(row, t, row.max() + 1) for t in truth])
        linear += weight * (answers + rng.normal(0.0, 3.0, answers.shape))[:, row]
        terms.append((weight, row))
    groups = (
        np.stack([np.ones(N, bool), *(rows[KEPT.index((0,))] == k for k in (1, 2))]) if detailed else None
    )
    if groups is not None:
        sums = truth @ groups.T.astype(float)
        upper = np.concatenate([sums[:, :1], np.full((children, 2), np.inf)], axis=1)
        lower = np.concatenate([sums[:, :1], sums[:, 1:] + 5.0], axis=1)
    else:
        lower = upper = None
    problem = FamilyProblem(
        tuple(terms),
        linear,
        None,
        groups=groups,
        lower=lower,
        upper=upper,
        scale=rng.uniform(0.5, 2.0, children),
    )
    monkeypatch.setattr(direct, "LARGE", 10_000)
    slow = solve(problem)
    monkeypatch.setattr(direct, "LARGE", 1)
    fast = solve(problem)
    assert slow.status is fast.status is Status.OPTIMAL
    assert slow.method == fast.method == "pdas"
    for row in rows:
        for a, b in zip(slow.x, fast.x, strict=True):
            np.testing.assert_allclose(np.bincount(row, a), np.bincount(row, b), atol=1e-6)


def test_large_family_starts_from_the_structure(monkeypatch):
    rng = np.random.default_rng(5)
    rows = product_terms(KEPT)
    truth = rng.poisson(3.0, (6, N))
    linear = sum(np.stack([np.bincount(r, t)[r] for t in truth]) for r in rows) + rng.normal(0, 4, (6, N))
    problem = FamilyProblem(tuple((1.0, r) for r in rows), linear, truth.sum(0).astype(float))
    slow = solve(problem)
    monkeypatch.setattr(direct, "LARGE", 1)
    np.testing.assert_allclose(solve(problem).x, slow.x, atol=1e-9)
