"""The structured solver against the general ladder with the fixed rows as groups, and its own refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import seeds

from opendas.solvers.least_squares import structured
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.partition import as_groups
from opendas.solvers.problem.problem import FamilyProblem, Status


def nested_family(seed: int, has_parent: bool, has_fixed: bool) -> FamilyProblem:
    """A family with a chain of terms, two terms across it, and sums of a point that keeps all constraints."""
    rng = np.random.default_rng(seed)
    C, n = int(rng.integers(1 + has_parent, 5)), int(rng.integers(2, 30))
    cell = rng.permutation(n)
    fixed_rows = (cell // 6 if rng.integers(2) else rng.integers(0, 4, n)).astype(np.int32)
    rows = [cell, cell // 2, cell // 6, 0 * cell, rng.integers(0, 4, n), rng.integers(0, 3, n)]
    mask = rng.uniform(size=(C, n)) < 0.8
    truth = rng.poisson(2.0, (C, n)) * mask * (rng.uniform(size=n) < 0.8)
    linear = np.zeros((C, n))
    terms = []
    for row in rows[int(rng.integers(2)) * (seed % 5 == 0) :]:
        weight = float(rng.uniform(0.1, 1.0))
        terms.append((weight, row.astype(np.int32)))
        for c in range(C):
            linear[c] += weight * (np.bincount(row, truth[c]) + rng.normal(0, 3, int(row.max()) + 1))[row]
    R = int(fixed_rows.max()) + 2
    fixed = np.stack([np.bincount(fixed_rows, one, R) for one in truth])
    return FamilyProblem(
        tuple(terms), linear, truth.sum(axis=0) if has_parent else None, mask,
        scale=np.full(C, 1.7) if has_parent else rng.uniform(0.5, 2.0, C),
        fixed_rows=fixed_rows if has_fixed else None, fixed=fixed if has_fixed else None,
    )  # fmt: skip


def agree(problem: FamilyProblem) -> None:
    assert structured.find_structure(problem) is not None
    found = structured.solve_structured(problem, 1e-8)
    assert found.status is Status.OPTIMAL
    assert (found.x >= 0.0).all()
    assert not found.x[~problem.mask].any()
    other = solve(problem if problem.fixed is None else as_groups(problem)[0], tolerance=1e-9)
    assert other.method != "structured"
    top = max(1.0, float(other.x.max(initial=0.0)))
    mine, theirs = problem.objective(found.x), problem.objective(other.x)
    assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    if min(np.linalg.eigvalsh(problem.hessian())) > 1e-3:
        np.testing.assert_allclose(found.x, other.x, atol=1e-5 * top)


@pytest.mark.parametrize("has_fixed", [True, False])
@pytest.mark.parametrize("has_parent", [True, False])
@pytest.mark.parametrize("seed", seeds(25))
def test_structured_agrees_with_the_general_ladder(seed, has_parent, has_fixed):
    agree(nested_family(seed, has_parent, has_fixed))


@settings(max_examples=40, deadline=None)
@given(st.integers(1_000, 10**6), st.booleans(), st.booleans())
def test_structured_agrees_with_the_general_ladder_on_any_family(seed, has_parent, has_fixed):
    agree(nested_family(seed, has_parent, has_fixed))


@pytest.mark.parametrize("seed", seeds(10))
def test_same_bytes_again(seed):
    problem = nested_family(seed, True, True)
    one, other = (structured.solve_structured(problem, 1e-9) for _ in range(2))
    assert one.x.tobytes() == other.x.tobytes()


def test_other_families_are_left_to_the_ladder():
    problem = nested_family(3, True, True)
    C, n = problem.linear.shape
    assert structured.find_structure(replace(problem, scale=np.arange(1.0, C + 1.0))) is None
    groups = np.ones((1, n), bool)
    bounds = np.zeros((C, 1))
    assert (
        structured.find_structure(replace(problem, groups=groups, lower=bounds, upper=bounds + np.inf))
        is None
    )
    assert (
        structured.find_structure(replace(problem, joint=np.zeros(C, np.int32), joint_total=np.ones(1)))
        is None
    )


def test_sums_that_contradict_each_other_are_not_called_solved():
    # two rows across the parent's cells: the first child needs 3 of a cell that the parent has 2 of
    problem = FamilyProblem(
        ((1.0, np.arange(2, dtype=np.int32)),), np.ones((2, 2)), np.array([2.0, 2.0]),
        np.array([[True, False], [True, True]]),
        fixed_rows=np.zeros(2, np.int32), fixed=np.array([[3.0], [1.0]]),
    )  # fmt: skip
    found = structured.solve_structured(problem, 1e-7)
    assert found.status is Status.FAILED
    assert found.residual > 1e-2
    assert solve(problem).status is Status.INFEASIBLE


def test_solve_takes_the_structure_for_many_cells_with_fixed_rows():
    rng = np.random.default_rng(1)
    n, C = 240, 3
    rows = [np.arange(n), np.arange(n) // 4, np.arange(n) % 7]
    truth = rng.poisson(1.0, (C, n))
    fixed_rows = (np.arange(n) // 24).astype(np.int32)
    linear = sum(truth @ (r[:, None] == r) + rng.normal(0, 2, (C, r.max() + 1))[:, r] for r in rows)
    problem = FamilyProblem(
        tuple((1.0, r.astype(np.int32)) for r in rows), linear, truth.sum(axis=0),
        fixed_rows=fixed_rows, fixed=np.stack([np.bincount(fixed_rows, t) for t in truth]),
    )  # fmt: skip
    found = solve(problem)
    assert found.method == "structured"
    assert found.status is Status.OPTIMAL
    other = solve(as_groups(problem)[0])
    assert other.method == "pdas"
    np.testing.assert_allclose(found.x, other.x, atol=1e-5)
