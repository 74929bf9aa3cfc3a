"""The structured solver against an independent certificate, a general solver, and cases done by hand."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from support.certified import certify
from support.general.clarabel import solve as solve_clarabel
from support.seeds import seeds

from opendas.errors import EstimationError
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem, Status

random_family = runpy.run_path(str(Path(__file__).parents[1] / "support" / "random_family.py"))[
    "random_family"
]
DETAILED = (1.0, np.arange(2, dtype=np.int32))


def violation(problem, x):
    """Largest violated constraint, in counts: the slow, plain definition."""
    sums = x @ problem.groups.T.astype(float)
    worst = [(-x).max(), np.abs(x[~problem.mask]).max(initial=0.0)]
    worst += [(problem.lower - sums).max(initial=0.0), (sums - problem.upper).max(initial=0.0)]
    if problem.parent is not None:
        worst.append(np.abs(x.sum(0) - problem.parent).max())
    return max(worst)


def margins(problem, x):
    return np.concatenate(
        [
            np.stack([np.bincount(rows, row, int(rows.max()) + 1) for row in x]).ravel()
            for _, rows in problem.terms
        ]
    )


@pytest.mark.parametrize("seed", seeds(150))
def test_random_family_is_solved_as_well_as_by_a_general_solver(seed):
    problem = random_family(seed)
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-7
    top = 1.0 if problem.parent is None else max(1.0, problem.parent.max())
    assert violation(problem, answer.x) <= 1e-7 * top
    other = solve_clarabel(problem)
    assert other.status is Status.OPTIMAL
    mine, theirs = problem.objective(answer.x), problem.objective(other.x)
    assert mine <= theirs + 1e-8 * max(1.0, abs(theirs))
    np.testing.assert_allclose(margins(problem, answer.x), margins(problem, other.x), atol=3e-5 * top)


@pytest.mark.parametrize("seed", seeds(40))
def test_certificate_does_not_need_the_solvers_multipliers(seed):
    problem = random_family(seed)
    assert certify(problem, solve(problem).x) <= 1e-7


def test_certificate_rejects_a_point_that_is_not_optimal():
    problem = FamilyProblem((DETAILED,), np.array([[3.0, 1.0], [1.0, 3.0]]), np.array([4.0, 4.0]))
    best = np.array([[3.0, 1.0], [1.0, 3.0]])
    assert certify(problem, best) <= 1e-12
    assert certify(problem, best + 1e-3 * np.array([[1.0, 0.0], [-1.0, 0.0]])) > 1e-5  # feasible, not optimal
    assert certify(problem, best + 1e-3) > 1e-5  # not feasible
    assert certify(problem, best * np.nan) == np.inf


def test_certificate_rejects_a_multiplier_of_the_wrong_sign():
    problem = FamilyProblem(
        (DETAILED,), np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([2.0, 2.0]),
        groups=np.ones((1, 2), bool), lower=[[-np.inf], [-np.inf]], upper=[[3.0], [3.0]],
    )  # fmt: skip
    x = np.array([[1.5, 1.5], [0.5, 0.5]])  # optimal only if the first child were pushed up
    wrong = Multipliers(np.array([-0.5, -0.5]), np.array([[-1.0], [0.0]]))
    assert certify(problem, x, wrong) > 1e-2
    assert certify(problem, x) > 1e-2


def test_two_children_by_hand():
    # One cell, parent 10, answers 8 and 4: the excess of 2 is split evenly.
    problem = FamilyProblem(((1.0, np.zeros(1, np.int32)),), np.array([[8.0], [4.0]]), np.array([10.0]))
    np.testing.assert_allclose(solve(problem).x, [[7.0], [3.0]], atol=1e-12)


def test_scale_moves_the_excess_to_the_less_certain_child():
    problem = FamilyProblem(
        ((1.0, np.zeros(1, np.int32)),),
        np.array([[8.0], [4.0]]),
        np.array([10.0]),
        scale=np.array([3.0, 1.0]),
    )
    np.testing.assert_allclose(solve(problem).x, [[7.5], [2.5]], atol=1e-12)


def test_non_negativity_binds():
    problem = FamilyProblem((DETAILED,), np.array([[5.0, -4.0], [5.0, 4.0]]), np.array([10.0, 2.0]))
    np.testing.assert_allclose(solve(problem).x, [[5.0, 0.0], [5.0, 2.0]], atol=1e-12)


def test_bounds_far_above_the_counts_of_a_root_do_not_blur_its_signs():
    # 99,999 people in every unit: cells at -0.002 were taken for rounding, as if the others were millions.
    cells = np.arange(240, dtype=np.int32)
    maps = ((1.0, np.zeros(240, np.int32)), (1.0, cells // 60), (0.5, cells))
    for seed in (16, 17, 18):  # 16 had no certified solution
        rng = np.random.default_rng(seed)
        truth = np.where(rng.random(240) < 0.6, 0.0, rng.geometric(0.02, 240))
        truth[:3] = 7000.0, 2000.0, 1500.0
        linear = np.zeros(240)
        for weight, rows in maps:
            answers = np.bincount(rows, truth)
            linear += weight * (answers + rng.normal(0.0, 3.0, len(answers)))[rows]
        every = np.ones((1, 240), dtype=bool)
        problem = FamilyProblem(
            maps, linear[None], None, every, every, np.zeros((1, 1)), np.full((1, 1), 6e8)
        )
        answer = solve(problem)
        assert answer.status is Status.OPTIMAL
        assert certify(problem, answer.x) <= 1e-7


def test_a_root_of_millions_that_nothing_says_the_size_of_is_solved():
    # Signs were looked at as if its cells held one record each: no certified solution without detailed cells.
    cells = np.arange(225, dtype=np.int32)
    maps = ((1.0, np.zeros(225, np.int32)), (1.0, cells // 15), (1.0, cells % 15))
    rng = np.random.default_rng(0)
    truth = np.where(rng.random(225) < 0.7, 0.0, rng.geometric(0.02, 225)) * 1e5
    linear = np.zeros((1, 225))
    for weight, rows in maps:
        answers = np.bincount(rows, truth)
        linear += weight * (answers + rng.normal(0.0, 1.0, len(answers)))[rows]
    few, none = np.arange(225)[None] < 3, np.zeros((0, 225), dtype=bool)
    for groups, low, high in (  # nothing; far too few everywhere; a few cells exactly, or at most
        (none, [[]], [[]]),
        (np.ones((1, 225), dtype=bool), [[50.0]], [[np.inf]]),
        (few, [[5.0]], [[5.0]]),
        (few, [[-np.inf]], [[5.0]]),
    ):
        answer = solve(FamilyProblem(maps, linear, None, groups=groups, lower=low, upper=high))
        assert (answer.status, answer.method) == (Status.OPTIMAL, "pdas"), (low, high)


def test_a_child_without_cells_is_refused_whatever_bound_there_is_beside():
    cells = np.arange(2, dtype=np.int32)
    for high in (np.inf, 60.0, 6e8):  # as large as that, 50 records too few were rounding
        problem = FamilyProblem(
            ((1.0, cells),),
            np.zeros((1, 2)),
            mask=np.zeros((1, 2), dtype=bool),
            groups=np.ones((1, 2), dtype=bool),
            lower=[[50.0]],
            upper=[[high]],
        )
        assert [row.kind for row in solve(problem).conflict] == ["lower"]


def test_total_only_is_spread_in_proportion_to_the_parent():
    total = ((0.2, np.zeros(3, np.int32)),)
    answers = np.array([30.0, 12.0])
    problem = FamilyProblem(total, 0.2 * np.repeat(answers[:, None], 3, 1), np.array([20.0, 10.0, 10.0]))
    answer = solve(problem)
    np.testing.assert_allclose(answer.x.sum(1), [29.0, 11.0], atol=1e-12)
    np.testing.assert_allclose(answer.x[0], 29.0 / 40.0 * problem.parent, atol=1e-12)


def test_single_child_is_its_parent():
    problem = FamilyProblem((DETAILED,), np.array([[5.0, -4.0]]), np.array([3.0, 2.0]))
    answer = solve(problem)
    np.testing.assert_array_equal(answer.x, [[3.0, 2.0]])
    assert answer.residual == 0.0


@pytest.mark.parametrize("parent", [np.zeros(0), None])
def test_empty_support(parent):
    problem = FamilyProblem((), np.zeros((3, 0)), parent)
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.x.shape == (3, 0)


def test_equality_in_every_child_repeats_the_parent_row():
    rng = np.random.default_rng(3)
    truth = rng.poisson(4.0, (5, 7))
    totals = truth.sum(1, dtype=float)[:, None]
    problem = FamilyProblem(
        ((1.0, np.arange(7, dtype=np.int32)),),
        truth + rng.normal(0, 3, truth.shape),
        truth.sum(0, dtype=float),
        groups=np.ones((1, 7), bool), lower=totals, upper=totals,
    )  # fmt: skip
    answer = solve(problem)
    assert answer.method == "pdas"
    np.testing.assert_allclose(answer.x.sum(1), totals[:, 0], atol=1e-9)


def test_bounds_that_cannot_be_met_name_the_rows():
    problem = FamilyProblem(
        (DETAILED,), np.zeros((3, 2)), np.array([4.0, 1.0]),
        groups=np.array([[True, False]]), lower=[[2.0], [2.0], [2.0]], upper=np.full((3, 1), np.inf),
        group_names=("gq",),
    )  # fmt: skip
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    assert {row.kind for row in answer.conflict} == {"lower", "parent"}
    assert ConstraintRow("lower", 1, 0, "gq") in answer.conflict
    assert "lower bound of gq in child 1" in answer.constraints


def test_infeasibility_that_needs_a_linear_program():
    # Two overlapping groups: each fits alone, both do not.
    groups = np.array([[True, True, False], [False, True, True]])
    problem = FamilyProblem(
        ((1.0, np.arange(3, dtype=np.int32)),), np.zeros((2, 3)), np.array([1.0, 5.0, 1.0]),
        groups=groups, lower=[[6.0, -np.inf], [-np.inf, 2.0]], upper=np.full((2, 2), np.inf),
    )  # fmt: skip
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    assert {(row.kind, row.child, row.index) for row in answer.conflict} == {
        ("lower", 0, 0), ("lower", 1, 1), ("parent", -1, 0), ("parent", -1, 1), ("parent", -1, 2),
    }  # fmt: skip


def test_cell_of_the_parent_that_no_child_may_hold():
    mask = np.array([[True, False], [True, False]])
    answer = solve(FamilyProblem((DETAILED,), np.zeros((2, 2)), np.array([1.0, 1.0]), mask=mask))
    assert answer.status is Status.INFEASIBLE
    assert answer.conflict == (ConstraintRow("parent", -1, 1),)


def test_single_child_that_breaks_a_bound():
    problem = FamilyProblem(
        (DETAILED,),
        np.zeros((1, 2)),
        np.array([1.0, 2.0]),
        groups=np.ones((1, 2), bool),
        lower=[[4.0]],
        upper=[[9.0]],
    )
    assert solve(problem).status is Status.INFEASIBLE


@pytest.mark.parametrize(
    "change",
    [
        {"linear": np.zeros(2)},
        {"linear": np.full((1, 2), np.nan)},
        {"parent": np.zeros(3)},
        {"terms": ((0.0, np.arange(2, dtype=np.int32)),)},
        {"terms": ((1.0, np.array([0, -1], dtype=np.int32)),)},
        {"scale": np.zeros(1)},
        {"mask": np.ones((2, 2), bool)},
        {"groups": np.ones((1, 2), bool), "lower": [[np.nan]], "upper": [[1.0]]},
    ],
)
def test_malformed_problem_is_refused(change):
    values = {"terms": (DETAILED,), "linear": np.zeros((1, 2)), "parent": np.ones(2), **change}
    with pytest.raises(EstimationError):
        FamilyProblem(**values)
