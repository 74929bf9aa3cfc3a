"""The detailed stage: projection onto transportation polytopes, by the certificate and the general solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.least_squares.transport import project_transport
from opendas.solvers.problem.certificate import Multipliers, certify
from opendas.solvers.problem.partition import as_groups
from opendas.solvers.problem.problem import FamilyProblem, Status


@st.composite
def families(draw):
    """Answers around a sparse true table, whose margins are the parent (or none) and the fixed sums."""
    children, n = draw(st.integers(1, 6)), draw(st.integers(1, 15))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = rng.random((children, n)) < draw(st.sampled_from([0.6, 1.0]))
    truth = rng.poisson(rng.exponential(draw(st.sampled_from([0.3, 5.0, 1e3])), (children, n))) * mask
    answers = truth + rng.normal(0, draw(st.sampled_from([0.0, 1.0, 30.0])), truth.shape)
    fixed_rows = rng.integers(0, draw(st.integers(1, n)), n).astype(np.int32)
    fixed = (truth @ (fixed_rows[:, None] == np.arange(fixed_rows.max() + 1))).astype(float)
    parent = truth.sum(axis=0).astype(float) if draw(st.booleans()) else None
    return answers, rng.uniform(0.5, 2.0, children), parent, mask, fixed_rows, fixed


def stated(answers, scale, parent, mask, fixed_rows, fixed):
    cells = np.arange(answers.shape[1], dtype=np.int32)
    groups = np.arange(fixed.shape[1])[:, None] == fixed_rows
    return FamilyProblem(
        ((1.0, cells),), answers, parent, mask=mask, groups=groups, lower=fixed, upper=fixed, scale=scale
    )


def with_fixed_rows(answers, scale, parent, mask, fixed_rows, fixed, weight=1.0):
    cells = np.arange(answers.shape[1], dtype=np.int32)
    return FamilyProblem(
        ((weight, cells),), weight * answers, parent, mask=mask, scale=scale,
        fixed_rows=fixed_rows, fixed=fixed,
    )  # fmt: skip


@given(families())
@settings(max_examples=examples(200), deadline=None)
def test_the_independent_certificate_accepts_it(case):
    found = project_transport(with_fixed_rows(*case))
    assert certify(stated(*case), found.x, Multipliers(found.parent, found.fixed)) <= 1e-7
    assert found.missed.max() <= 1e-9
    moved = found.x.copy()
    moved[np.unravel_index(moved.argmax(), moved.shape)] += 0.01 * max(1.0, moved.max())
    assert certify(stated(*case), moved, Multipliers(found.parent, found.fixed)) > 1e-7


@given(families())
@settings(max_examples=examples(60), deadline=None)
def test_the_general_solver_finds_the_same(case):
    general = solve(stated(*case))
    x = project_transport(with_fixed_rows(*case)).x
    np.testing.assert_allclose(x, general.x, atol=1e-5 * max(1.0, x.max()))


@given(families(), st.sampled_from([1e-3, 1.0, 40.0]), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_the_ladder_answers_as_it_does_for_the_same_rows_as_groups(case, weight, contradicted):
    problem = with_fixed_rows(*case, weight=weight)
    if contradicted:  # a cell of the first child closes: often, but not always, nothing can keep the sums
        mask = problem.mask.copy()
        mask[0, problem.linear[0].argmax()] = False
        problem = replace(problem, mask=mask)
    answer, other = solve(problem), solve(as_groups(problem)[0])
    assert answer.status is other.status
    assert contradicted or answer.status is Status.OPTIMAL
    if answer.status is Status.OPTIMAL:
        assert answer.method == (
            "parent" if problem.parent is not None and len(answer.x) == 1 else "transport"
        )
        assert answer.residual <= 1e-7
        np.testing.assert_allclose(answer.x, other.x, atol=1e-5 * max(1.0, answer.x.max()))
    else:
        assert answer.conflict


def test_a_group_that_binds_is_left_to_the_general_solver():
    rng = np.random.default_rng(4)
    truth = rng.poisson(3.0, (3, 8)).astype(float)
    rows = np.arange(8, dtype=np.int32) // 4
    fixed = truth @ (rows[:, None] == np.arange(2))
    case = truth + rng.normal(0, 2.0, truth.shape), np.ones(3), truth.sum(axis=0), truth >= 0.0, rows, fixed
    free = solve(with_fixed_rows(*case))
    assert free.method == "transport"
    group = np.arange(8)[None, :] < 2
    held = free.x[:, :2].sum(axis=1, keepdims=True)
    slack = replace(with_fixed_rows(*case), groups=group, lower=held - 1.0, upper=held + 1.0)
    assert solve(slack).method == "transport"
    true = truth[:, :2].sum(axis=1, keepdims=True)
    binding = replace(slack, lower=true, upper=true)
    answer = solve(binding)
    assert (answer.status, answer.method) == (Status.OPTIMAL, "pdas")
    np.testing.assert_allclose(answer.x[:, :2].sum(axis=1, keepdims=True), true, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_cells_under_hundreds_of_rows(seed):
    rng = np.random.default_rng(seed)
    children, n, count = 8, 4_300, 300
    truth = rng.poisson(rng.exponential(2.0, (children, n))) * (rng.random((children, n)) < 0.3)
    rows = rng.integers(0, count, n).astype(np.int32)
    fixed = np.stack([np.bincount(rows, one, count) for one in truth])
    answers, scale = truth + rng.normal(0, 3.0, truth.shape), rng.uniform(0.5, 2.0, children)
    mask, parent = np.ones(truth.shape, bool), truth.sum(axis=0).astype(float)
    answer = solve(with_fixed_rows(answers, scale, parent, mask, rows, fixed))
    assert (answer.status, answer.method) == (Status.OPTIMAL, "transport")
    assert answer.residual <= 1e-8
    sums = np.stack([np.bincount(rows, one, count) for one in answer.x])
    np.testing.assert_allclose(sums, fixed, atol=1e-6)
    np.testing.assert_allclose(answer.x.sum(axis=0), parent, atol=1e-6)


def test_sums_that_contradict_the_parent_have_no_proof():
    rows, sums = np.array([0, 0, 1], np.int32), np.array([[2.0, 1.0], [1.0, 2.0]])
    arguments = np.ones((2, 3)), np.ones(2), np.array([1.0, 2.0, 9.0]), np.ones((2, 3), bool), rows, sums
    missed = project_transport(with_fixed_rows(*arguments)).missed
    assert missed[0] <= 1e-9
    assert missed[1] > 0.1


def test_children_that_need_the_same_counts_are_proved_infeasible_by_the_general_way():
    mask = np.array([[True, False, False], [True, False, False], [True, True, True]])
    sums = np.array([[1.0], [1.0], [4.0]])  # each can be kept by itself; the first two share one count
    parent, rows = np.array([1.0, 1.0, 4.0]), np.zeros(3, np.int32)
    answer = solve(with_fixed_rows(np.ones((3, 3)), np.ones(3), parent, mask, rows, sums))
    assert answer.status is Status.INFEASIBLE
    assert {("fixed", 0), ("fixed", 1)} <= {(row.kind, row.child) for row in answer.conflict}
