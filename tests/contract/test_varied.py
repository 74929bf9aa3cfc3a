"""Families whose children have different Hessians: against Clarabel, the shared-metric solver, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.certified import certify
from support.dense_curvature import DenseCurvature
from support.general.clarabel import solve as solve_clarabel
from support.random_family import random_family
from support.random_joint import random_joint
from support.random_varied import SORTS, hessians, own, random_varied
from support.seeds import seeds

import opendas.solvers.least_squares.solve as solving
from opendas.errors import EstimationError
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.curvature import SharedCurvature, blocks
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem, Status

DETAILED = (1.0, np.arange(2, dtype=np.int32))


class Products:
    """A curvature of which nothing is known but its products."""

    def __init__(self, matrices, times=1.0):
        self.dense = DenseCurvature(matrices)
        self.diagonal = self.dense.diagonal
        self.times = times

    def apply(self, x):
        return self.times * self.dense.apply(x)


def violation(problem, x):
    """Largest violated constraint, in counts: the slow, plain definition."""
    sums = x @ problem.groups.T.astype(float)
    worst = [(-x).max(), np.abs(x[~problem.mask]).max(initial=0.0)]
    worst += [(problem.lower - sums).max(initial=0.0), (sums - problem.upper).max(initial=0.0)]
    if problem.parent is not None:
        worst.append(np.abs(x.sum(0) - problem.parent).max())
    for s, total in enumerate(problem.joint_rows[1]):
        worst.append(abs(x[problem.joint == s].sum() - total))
    return max(worst)


def objective(linear, matrices, x):
    return 0.5 * np.einsum("ci,cij,cj->", x, matrices, x) - np.einsum("ci,ci->", linear, x)


def agree(problem, linear, matrices, answer):
    """The answer against Clarabel's: feasible, no worse, and the same where the objective is not flat."""
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-7
    top = max(1.0, answer.x.max(initial=0.0))
    if problem.parent is not None:
        top = max(top, problem.parent.max(initial=0.0))
    assert violation(problem, answer.x) <= 2e-7 * top
    other = solve_clarabel(own(problem, linear, DenseCurvature(matrices)))
    assert other.status is Status.OPTIMAL
    mine, theirs = objective(linear, matrices, answer.x), objective(linear, matrices, other.x)
    size = max(1.0, abs(theirs))
    assert mine <= theirs + 1e-7 * size
    for A, x, y in zip(matrices, answer.x, other.x, strict=True):
        unit = max(np.trace(A) / len(A), 1e-12) if len(A) else 1.0
        assert (x - y) @ A @ (x - y) / unit <= (1e-4 * top) ** 2


@pytest.mark.parametrize("seed", seeds(160))
def test_random_family_is_solved_as_well_as_by_clarabel(seed):
    problem, linear, matrices = random_varied(seed)
    agree(problem, linear, matrices, solve(own(problem, linear, Products(matrices))))


@pytest.mark.parametrize("seed", seeds(40))
def test_equal_hessians_give_the_answer_of_the_shared_solver(seed):
    problem = random_family(seed, style="detailed") if seed % 2 else random_joint(seed)
    answer = solve(
        own(problem, problem.scale[:, None] * problem.linear, SharedCurvature(problem.terms, problem.scale))
    )
    plain = solve(problem)
    assert answer.status is Status.OPTIMAL
    top = max(1.0, plain.x.max(initial=0.0))
    assert problem.objective(answer.x) == pytest.approx(problem.objective(plain.x), rel=1e-7, abs=1e-7)
    if seed % 2:  # some term tells all cells apart: the answer is unique
        np.testing.assert_allclose(answer.x, plain.x, atol=1e-6 * top)


@pytest.mark.parametrize("seed", seeds(25))
def test_certificate_does_not_need_the_solvers_multipliers(seed):
    problem, linear, matrices = random_varied(seed)
    curvature = DenseCurvature(matrices)
    assert certify(own(problem, linear, curvature), solve(own(problem, linear, curvature)).x) <= 1e-7


def test_certificate_looks_at_the_hessians_and_not_at_the_metric():
    problem = FamilyProblem((DETAILED,), np.zeros((2, 2)), np.array([4.0, 4.0]))
    matrices = np.array([np.diag([1.0, 1.0]), np.diag([3.0, 3.0])])
    linear = np.array([[4.0, 1.0], [3.0, 9.0]])  # optima apart: (4, 1) and (1, 3)
    best = np.array([[3.25, 1.0], [0.75, 3.0]])
    curvature = DenseCurvature(matrices)
    right = Multipliers(np.array([0.75, 0.0]), np.zeros((2, 0)))
    assert certify(own(problem, linear, curvature), best, right) <= 1e-15
    assert certify(own(problem, linear, curvature), best) <= 1e-12
    assert certify(own(problem, linear, DenseCurvature(matrices[::-1])), best) > 1e-2
    moved = best + 1e-3 * np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert certify(own(problem, linear, curvature), moved) > 1e-5
    assert certify(own(problem, linear, curvature), best * np.nan) == np.inf
    assert certify(own(problem, linear, Products(matrices, np.nan)), best, right) == np.inf
    np.testing.assert_allclose(solve(own(problem, linear, curvature)).x, best, atol=1e-12)


def test_a_cell_that_nothing_measures_takes_what_others_leave():
    problem = FamilyProblem((DETAILED,), np.zeros((2, 2)), np.array([4.0, 4.0]))
    matrices = np.array([np.diag([1.0, 0.0]), np.diag([1.0, 1.0])])
    answer = solve(own(problem, np.array([[3.0, 0.0], [3.0, 1.0]]), DenseCurvature(matrices)))
    assert answer.status is Status.OPTIMAL
    np.testing.assert_allclose(answer.x, [[2.0, 3.0], [2.0, 1.0]], atol=1e-6)


def test_single_child_is_its_parent():
    problem = FamilyProblem((DETAILED,), np.zeros((1, 2)), np.array([3.0, 2.0]))
    answer = solve(
        own(problem, np.array([[9.0, -4.0]]), DenseCurvature(np.array([[[2.0, 1.0], [1.0, 1.0]]])))
    )
    np.testing.assert_array_equal(answer.x, [[3.0, 2.0]])
    assert answer.residual == 0.0
    held = FamilyProblem(
        (DETAILED,), np.zeros((1, 2)), np.array([3.0, 2.0]),
        groups=np.ones((1, 2), bool), lower=[[6.0]], upper=[[9.0]],
    )  # fmt: skip
    assert solve(own(held, np.zeros((1, 2)), DenseCurvature(np.eye(2)[None]))).status is Status.INFEASIBLE


@pytest.mark.parametrize("parent", [np.zeros(0), None])
def test_empty_support(parent):
    problem = FamilyProblem((), np.zeros((3, 0)), parent)
    answer = solve(own(problem, np.zeros((3, 0)), DenseCurvature(np.zeros((3, 0, 0)))))
    assert answer.status is Status.OPTIMAL
    assert answer.x.shape == (3, 0)


def test_bounds_that_cannot_be_met_name_the_rows():
    problem = FamilyProblem(
        (DETAILED,), np.zeros((3, 2)), np.array([4.0, 1.0]),
        groups=np.array([[True, False]]), lower=[[2.0], [2.0], [2.0]], upper=np.full((3, 1), np.inf),
        group_names=("gq",),
    )  # fmt: skip
    answer = solve(own(problem, np.zeros((3, 2)), DenseCurvature(np.stack([np.eye(2)] * 3))))
    assert answer.status is Status.INFEASIBLE
    assert ConstraintRow("lower", 1, 0, "gq") in answer.conflict


def test_infeasibility_that_needs_a_linear_program():
    groups = np.array([[True, True, False], [False, True, True]])
    problem = FamilyProblem(
        ((1.0, np.arange(3, dtype=np.int32)),), np.zeros((2, 3)), np.array([1.0, 5.0, 1.0]),
        groups=groups, lower=[[6.0, -np.inf], [-np.inf, 2.0]], upper=np.full((2, 2), np.inf),
    )  # fmt: skip
    linear, matrices = hessians(problem, np.random.default_rng(1), "near")
    answer = solve(own(problem, linear, DenseCurvature(matrices)))
    assert answer.status is Status.INFEASIBLE
    assert ("lower", 0, 0) in {(row.kind, row.child, row.index) for row in answer.conflict}


@pytest.mark.parametrize(
    ("linear", "matrices"),
    [
        (np.zeros((2, 3)), np.stack([np.eye(2)] * 2)),
        (np.full((2, 2), np.nan), np.stack([np.eye(2)] * 2)),
        (np.zeros((2, 2)), np.stack([np.eye(3)] * 2)),
        (np.zeros((2, 2)), np.stack([np.full((2, 2), np.inf)] * 2)),
        (np.zeros((2, 2)), np.stack([np.array([[1.0, np.nan], [np.nan, 1.0]])] * 2)),
    ],
)
def test_malformed_input_is_refused(linear, matrices):
    problem = FamilyProblem((DETAILED,), np.zeros((2, 2)), np.array([4.0, 1.0]))
    with pytest.raises(EstimationError):
        solve(own(problem, linear, DenseCurvature(matrices)))


@pytest.mark.parametrize("sort", SORTS)
def test_blocks_by_products_are_the_entries(sort):
    problem, _, matrices = random_varied(4, sort)
    cells = np.arange(0, problem.cells, 2)
    np.testing.assert_allclose(
        blocks(Products(matrices), cells, problem.linear.shape),
        blocks(DenseCurvature(matrices), cells, problem.linear.shape),
        atol=1e-12,
    )


@pytest.mark.parametrize("seed", seeds(40))
def test_steps_by_products_reach_the_answer_of_the_active_set(seed, monkeypatch):
    """Where Hessians are too large to be written out."""
    problem, linear, matrices = random_varied(seed, "near" if seed % 2 == 0 else None, joint=False)
    plain = solve(own(problem, linear, DenseCurvature(matrices)))
    monkeypatch.setattr(solving, "WRITTEN", 0)
    answer = solve(own(problem, linear, Products(matrices)))
    assert answer.method == ("parent" if plain.method == "parent" else "steps")
    agree(problem, linear, matrices, answer)
    top = max(1.0, plain.x.max(initial=0.0))
    assert objective(linear, matrices, answer.x) == pytest.approx(
        objective(linear, matrices, plain.x), rel=1e-6, abs=1e-6 * top
    )


def test_steps_find_no_point_where_there_is_none(monkeypatch):
    monkeypatch.setattr(solving, "WRITTEN", 0)
    problem = FamilyProblem(
        (DETAILED,), np.zeros((3, 2)), np.array([4.0, 1.0]),
        groups=np.array([[True, False]]), lower=[[2.0], [2.0], [2.0]], upper=np.full((3, 1), np.inf),
    )  # fmt: skip
    answer = solve(own(problem, np.zeros((3, 2)), Products(np.stack([np.eye(2)] * 3))))
    assert answer.status is Status.INFEASIBLE
    assert answer.conflict


def test_a_family_that_nothing_solves_is_not_called_solved(monkeypatch):
    problem, linear, matrices = random_varied(3, "near")
    monkeypatch.setattr(solving, "APART", ())
    monkeypatch.setattr(solving, "GENERAL", 0)
    answer = solve(own(problem, linear, Products(matrices)))
    assert answer.status is Status.FAILED
    assert answer.residual == np.inf
    monkeypatch.setattr(solving, "GENERAL", 10**6)
    answer = solve(own(problem, linear, Products(matrices)))
    assert answer.method == "clarabel"
    agree(problem, linear, matrices, answer)
