"""Compiled kernels against numpy, one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.entry import entry
from support.seeds import seeds

from opendas.solvers.least_squares.direct import project_column, unconstrained
from opendas.solvers.least_squares.kernels import (
    SINGULAR,
    cholesky,
    insert,
    null_vector,
    remove,
    symmetric_times,
    triangular_solve,
)
from opendas.solvers.least_squares.reduce import merge_cells, simpler_bounds
from opendas.solvers.problem.problem import Constraints, Objective


def definite(rng, n):
    A = rng.normal(size=(n, n))
    return A @ A.T / n + np.eye(n)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 13])
def test_inverse_follows_the_cells_that_enter_and_leave(n):
    rng = np.random.default_rng(n)
    H = definite(rng, n)
    P, work, order = np.zeros((n, n)), np.empty(n), []
    for _ in range(6 * n):
        outside = [j for j in range(n) if j not in order]
        if outside and (not order or rng.random() < 0.6):
            j = int(rng.choice(outside))
            assert insert(P, len(order), H[j, order], H[j, j], work, SINGULAR)
            order.append(j)
        else:
            k = int(rng.integers(len(order)))
            entry(remove)(P, len(order), k, work)
            order[k] = order[-1]
            order.pop()
        m = len(order)
        np.testing.assert_allclose(P[:m, :m] @ H[np.ix_(order, order)], np.eye(m), atol=1e-9)
        v = rng.normal(size=m)
        entry(symmetric_times)(P, m, v, work)
        np.testing.assert_allclose(work[:m], P[:m, :m] @ v, atol=1e-12)


def test_dependent_row_is_refused_and_leaves_the_inverse_alone():
    H = np.array([[1.0, 1.0], [1.0, 1.0]])
    P, work = np.zeros((2, 2)), np.empty(2)
    assert insert(P, 0, H[0, :0], 1.0, work, SINGULAR)
    before = P.copy()
    assert not insert(P, 1, H[1, :1], 1.0, work, SINGULAR)
    np.testing.assert_array_equal(P[:1, :1], before[:1, :1])


@pytest.mark.parametrize("n", [1, 3, 4, 7, 16, 33])
def test_cholesky_solves(n):
    rng = np.random.default_rng(n)
    A = definite(rng, n)
    b = rng.normal(size=n)
    U, x, lost = A.copy(), b.copy(), np.zeros(n, bool)
    assert cholesky(U, A.diagonal().copy(), lost) == 0
    triangular_solve(U, x)
    np.testing.assert_allclose(A @ x, b, atol=1e-11)


def in_the_stated_order(A):
    """The upper factor of A, entry by entry, with the sums in the order that `cholesky` promises."""
    U, n = np.triu(A), len(A)
    for k in range(0, n, 8):
        for i in range(k, min(k + 8, n)):
            for r in range(k, i):
                for j in range(i, n):
                    U[i, j] -= U[r, i] * U[r, j]
            U[i, i:] *= 1.0 / np.sqrt(U[i, i])
        for i in range(k + 8, n):
            for j in range(i, n):
                f = [U[k + r, i] * U[k + r, j] for r in range(8)]
                U[i, j] -= ((f[0] + f[1]) + (f[2] + f[3])) + ((f[4] + f[5]) + (f[6] + f[7]))
    return U


@pytest.mark.parametrize("n", [3, 8, 21, 40])
def test_vectors_keep_the_order_of_the_sums(n):
    A = definite(np.random.default_rng(n), n)
    U = A.copy()
    cholesky(U, A.diagonal().copy(), np.zeros(n, bool))
    np.testing.assert_array_equal(np.triu(U), in_the_stated_order(A))


@pytest.mark.parametrize(("C", "n"), [(1, 12), (3, 40), (8, 90), (9, 91), (5, 7)])
def test_unconstrained_optimum_of_all_children_at_once(C, n):
    rng = np.random.default_rng(n)
    H, B = definite(rng, n), rng.normal(size=(C, n))
    np.testing.assert_allclose(unconstrained(H, B), np.linalg.solve(H, B.T).T, atol=1e-11)


@pytest.mark.parametrize("n", [2, 5, 9, 14])
def test_singular_system_is_solved_if_consistent_and_names_its_null_vector(n):
    rng = np.random.default_rng(n)
    kernel = rng.normal(size=n)
    basis = np.linalg.qr(np.column_stack([kernel, rng.normal(size=(n, n - 1))]))[0][:, 1:]
    A = basis @ np.diag(rng.uniform(0.5, 2.0, n - 1)) @ basis.T
    b = A @ rng.normal(size=n)
    U, x, lost = A.copy(), b.copy(), np.zeros(n, bool)
    assert cholesky(U, A.diagonal().copy(), lost) == 1
    triangular_solve(U, x)
    np.testing.assert_allclose(A @ x, b, atol=1e-9)
    y = np.empty(n)
    entry(null_vector)(U, int(lost.argmax()), y)
    assert np.abs(y).max() == 1.0
    np.testing.assert_allclose(A @ y, 0.0, atol=1e-9)


@pytest.mark.parametrize("seed", seeds(30))
def test_projection_of_a_column_is_the_best_over_all_active_sets(seed):
    rng = np.random.default_rng(seed)
    C = int(rng.integers(1, 5))
    z, scale = rng.normal(3.0, 4.0, C), rng.uniform(0.3, 3.0, C)
    lower = rng.integers(0, 3, C).astype(float)
    upper = lower + rng.choice([0.0, 1.0, 5.0, np.inf], C)
    total = float(rng.uniform(lower.sum(), min(upper.sum(), lower.sum() + 20.0)))
    best, value = None, np.inf
    for sides in itertools.product((-1, 0, 1), repeat=C):  # every choice of bounds
        x = np.where(np.array(sides) < 0, lower, upper)
        inner = np.array(sides) == 0
        if inner.any():
            x[inner] = 0.0
            theta = (z[inner].sum() + x.sum() - total) / (1.0 / scale[inner]).sum()
            x[inner] = z[inner] - theta / scale[inner]
        feasible = np.isfinite(x).all() and abs(x.sum() - total) < 1e-9
        if feasible and (x >= lower - 1e-9).all() and (x <= upper + 1e-9).all():
            cost = float((scale * (x - z) ** 2).sum())
            if cost < value - 1e-12:
                best, value = x, cost
    x = np.empty(C)
    _, fine = entry(project_column)(z, scale, total, lower, upper, x)
    assert fine
    np.testing.assert_allclose(x, best, atol=1e-8)


def test_projection_says_when_the_bounds_allow_nothing():
    x = np.empty(2)
    one = np.ones(2)
    assert not entry(project_column)(one, one, 5.0, np.zeros(2), one, x)[1]
    assert not entry(project_column)(one, one, 1.0, one, 2 * one, x)[1]


def frozen(array):
    array.flags.writeable = False
    return array


def constraints(parent, mask, groups, lower=None, upper=None):
    empty = np.zeros((len(mask), len(groups)))
    return Constraints(
        parent, mask, groups, empty if lower is None else lower, empty if upper is None else upper,
        np.zeros(0, np.int64), np.zeros(0),
    )  # fmt: skip


def test_cells_merge_only_where_nothing_tells_them_apart():
    rows = np.array([[0, 0, 0, 0, 0, 1]], dtype=np.int32)
    linear = np.tile([2.0, 2.0, 2.0, 2.0, 3.0, 2.0], (2, 1))
    mask = np.ones((2, 6), bool)
    mask[1, 2] = False
    groups = np.array([[False, False, False, True, False, False]])
    parent = np.array([1.0, 4.0, 1.0, 1.0, 1.0, 1.0])
    label, first, definite_ = merge_cells(
        Objective(rows, np.ones(1), frozen(linear)), constraints(frozen(parent), mask, frozen(groups))
    )  # mask, group, linear term and row keep cells 2 to 5 apart
    np.testing.assert_array_equal(label, [0, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(first, [0, 2, 3, 4, 5])
    assert not definite_


def test_bounds_that_say_nothing_are_dropped():
    groups = frozen(np.array([[True, True, False], [False, False, True]]))
    mask = frozen(np.ones((2, 3), bool))
    lower = frozen(np.array([[0.0, 1.0], [-3.0, 2.0]]))
    upper = frozen(np.array([[5.0, 1.0], [0.0, 2.0]]))
    mask1, lower1, upper1 = simpler_bounds(
        constraints(frozen(np.array([2.0, 3.0, 3.0])), mask, groups, lower, upper)
    )
    np.testing.assert_array_equal(lower1, [[-np.inf, 1.0], [-np.inf, 2.0]])
    np.testing.assert_array_equal(upper1, [[np.inf, 1.0], [np.inf, 2.0]])
    np.testing.assert_array_equal(mask1, [[True, True, True], [False, False, True]])
