"""Hessians in the form of pairs: every kernel against plain matrices, and the solver against itself."""

from __future__ import annotations

import numpy as np
import pytest
from support.dense_curvature import DenseCurvature
from support.entry import entry
from support.general.clarabel import solve as solve_clarabel
from support.random_family import random_family
from support.random_joint import random_joint
from support.random_varied import own
from support.seeds import seeds

from opendas.errors import EstimationError
from opendas.solvers.least_squares.active_set import PAIRED
from opendas.solvers.least_squares.paired import (
    PairedCurvature,
    Pairs,
    paired_guess,
    paired_inverse,
    paired_times,
    place_bounds,
)
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import Status


def psd(rng, K, rank):
    rows = rng.normal(size=(rank, K))
    return rows.T @ rows / max(1, K)


def random_pairs(seed, children, cells):
    """Kinds and places drawn without repetition; alpha of any rank, kinds that nothing measures."""
    rng = np.random.default_rng([seed, 3])
    K = int(rng.integers(1, cells + 1))
    places = int(np.ceil(cells / K)) + int(rng.integers(0, 3))
    chosen = rng.choice(K * places, cells, replace=False)
    alpha, beta = np.empty((children, K, K)), np.empty((children, K, K))
    for c in range(children):
        alpha[c] = psd(rng, K, int(rng.integers(0, K + 1))) * rng.choice([0.1, 1.0, 10.0])
        beta[c] = psd(rng, K, K) + 0.2 * np.eye(K)
        if rng.random() < 0.2:
            out = rng.random(K) < 0.3
            for matrix in (alpha[c], beta[c]):
                matrix[out] = 0.0
                matrix[:, out] = 0.0
    return PairedCurvature(alpha, beta, chosen // places, chosen % places)


def matrices_of(curvature):
    """The definition, entry by entry."""
    n = len(curvature.kind)
    A = np.empty((len(curvature.alpha), n, n))
    for c in range(len(A)):
        for i in range(n):
            for j in range(n):
                k, o = curvature.kind[i], curvature.kind[j]
                A[c, i, j] = curvature.alpha[c, k, o]
                if curvature.place[i] == curvature.place[j]:
                    A[c, i, j] += curvature.beta[c, k, o]
    return A


@pytest.mark.parametrize("seed", seeds(20))
def test_kernels_are_those_of_the_matrices(seed):
    rng = np.random.default_rng(seed)
    C, n = 3, int(rng.integers(1, 60))
    curvature = random_pairs(seed, C, n)
    order = np.argsort(curvature.place, kind="stable")
    curvature = PairedCurvature(
        curvature.alpha, curvature.beta, curvature.kind[order], curvature.place[order]
    )
    A = matrices_of(curvature)
    x = rng.normal(size=(C, n))
    np.testing.assert_allclose(curvature.apply(x), np.einsum("cij,cj->ci", A, x), atol=1e-12)
    np.testing.assert_allclose(curvature.diagonal(), np.einsum("cii->ci", A))
    cells = rng.permutation(n)[: n // 2 + 1]
    np.testing.assert_allclose(curvature.blocks(cells), A[:, cells[:, None], cells[None, :]])
    pairs = Pairs(curvature.alpha, curvature.beta, curvature.kind, *place_bounds(curvature.place))
    for c in range(C):
        solvable = curvature.diagonal()[c] > 0.0
        free = solvable & (rng.random(n) < 0.7)
        cells, P = np.zeros(n, np.int64), np.full((n, n), np.nan)
        m, fine = entry(paired_inverse)(pairs, c, free, cells, P)
        assert fine
        assert m == free.sum()
        F = cells[:m]
        np.testing.assert_array_equal(np.sort(F), np.flatnonzero(free))
        np.testing.assert_allclose(P[:m, :m] @ A[c][np.ix_(F, F)], np.eye(m), atol=1e-8)
        z, y = np.zeros(n), np.zeros(n)
        y[F] = rng.normal(size=m)
        entry(paired_times)(pairs, c, cells, m, y, z)
        np.testing.assert_allclose(z, A[c] @ y, atol=1e-12)
        one = pairs._replace(alpha=pairs.alpha[c : c + 1], beta=pairs.beta[c : c + 1])
        Z = paired_guess(one, free[None], x[c : c + 1])
        wanted = np.linalg.solve(A[c][np.ix_(F, F)], x[c, F])
        np.testing.assert_allclose(Z[0, F], wanted, rtol=1e-7, atol=1e-9)


def problem_of(seed, **size):
    problem = random_joint(seed) if seed % 4 == 0 else random_family(seed, **size)
    curvature = random_pairs(seed, problem.children, problem.cells)
    rng = np.random.default_rng([seed, 11])
    answers = rng.poisson(2.0, problem.linear.shape) + rng.normal(0.0, 2.0, problem.linear.shape)
    if problem.parent is not None:
        answers += problem.parent / max(1, problem.children)
    return problem, curvature.apply(answers), curvature


@pytest.mark.parametrize("seed", seeds(120))
def test_pairs_give_the_answer_of_the_matrices(seed):
    size = {"children": 5, "cells": 4 * PAIRED} if seed % 5 == 1 else {}  # some with inverses made at once
    problem, linear, curvature = problem_of(seed, **size)
    answer = solve(own(problem, linear, curvature))
    matrices = matrices_of(curvature)
    plain = solve(own(problem, linear, DenseCurvature(matrices)))
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-7
    assert plain.status is Status.OPTIMAL
    top = max(1.0, plain.x.max(initial=0.0))
    for A, x, y in zip(matrices, answer.x, plain.x, strict=True):
        assert (x - y) @ A @ (x - y) <= (1e-5 * top) ** 2
    if seed < 40 and not size:
        other = solve_clarabel(own(problem, linear, DenseCurvature(matrices)))
        for A, x, y in zip(matrices, answer.x, other.x, strict=True):
            assert (x - y) @ A @ (x - y) <= (1e-4 * top) ** 2


@pytest.mark.parametrize(
    ("alpha", "beta", "kind", "place"),
    [
        (np.eye(2)[None], np.eye(3)[None], [0, 1], [0, 0]),
        (np.eye(2)[None], np.eye(2)[None], [0, 2], [0, 0]),
        (np.eye(2)[None], np.eye(2)[None], [0, 1], [0, -1]),
        (np.eye(2)[None], np.eye(2)[None], [0, 0], [1, 1]),
        (np.eye(2)[None], np.eye(2)[None], [0, 1], [1]),
    ],
)
def test_malformed_pairs_are_refused(alpha, beta, kind, place):
    with pytest.raises(EstimationError):
        PairedCurvature(alpha, beta, np.array(kind), np.array(place))
