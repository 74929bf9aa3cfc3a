"""The detailed stage: projection onto transportation polytopes, by the certificate and the general solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.least_squares.transport import project_transport
from opendas.solvers.problem.certificate import Multipliers, certify
from opendas.solvers.problem.problem import FamilyProblem


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


@given(families())
@settings(max_examples=examples(200), deadline=None)
def test_the_independent_certificate_accepts_it(case):
    found = project_transport(*case)
    assert certify(stated(*case), found.x, Multipliers(found.parent, found.fixed)) <= 1e-7
    assert found.missed.max() <= 1e-9
    moved = found.x.copy()
    moved[np.unravel_index(moved.argmax(), moved.shape)] += 0.01 * max(1.0, moved.max())
    assert certify(stated(*case), moved, Multipliers(found.parent, found.fixed)) > 1e-7


@given(families())
@settings(max_examples=examples(60), deadline=None)
def test_the_general_solver_finds_the_same(case):
    general = solve(stated(*case))
    x = project_transport(*case).x
    np.testing.assert_allclose(x, general.x, atol=1e-5 * max(1.0, x.max()))


def test_sums_that_contradict_the_parent_have_no_proof():
    rows, sums = np.array([0, 0, 1], np.int32), np.array([[2.0, 1.0], [1.0, 2.0]])
    arguments = np.ones((2, 3)), np.ones(2), np.array([1.0, 2.0, 9.0]), np.ones((2, 3), bool), rows, sums
    missed = project_transport(*arguments).missed
    assert missed[0] <= 1e-9
    assert missed[1] > 0.1


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (1, np.ones(3), "do not fit"),
        (1, np.array([1.0, 0.0]), "positive"),
        (2, np.ones(2), "do not fit"),
        (4, np.array([0, 0, 2], np.int32), "every cell"),
        (5, np.ones((1, 2)), "do not fit"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(position, value, reason):
    rows, sums = np.array([0, 0, 1], np.int32), np.array([[2.0, 1.0], [1.0, 2.0]])
    arguments = [np.ones((2, 3)), np.ones(2), np.array([1.0, 2.0, 3.0]), np.ones((2, 3), bool), rows, sums]
    arguments[position] = value
    with pytest.raises(ValueError, match=reason):
        project_transport(*arguments)
