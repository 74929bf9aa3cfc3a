"""Fixed answers to a partition: against a general solver on groups by hand, and by their certificate."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.certified import find_multipliers
from support.general.clarabel import solve as solve_clarabel
from support.seeds import seeds

from opendas.errors import EstimationError
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem import partition
from opendas.solvers.problem.certificate import Multipliers, certify
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem, Status

random_family = runpy.run_path(str(Path(__file__).parents[1] / "support" / "random_family.py"))[
    "random_family"
]


def fixed_family(seed):
    """A family whose fixed sums are those of a point that keeps all else; and the same by hand."""
    plain = random_family(seed, "plain")
    rng = np.random.default_rng(seed)
    C, n = plain.linear.shape
    rows = rng.integers(0, max(1, n // 2), n).astype(np.int32)
    R = int(rows.max()) + 2  # the last without a cell
    point = np.zeros((C, n))
    for j in range(n):
        open_to = np.flatnonzero(plain.mask[:, j])
        if plain.parent is None:
            point[open_to, j] = rng.poisson(2.0, len(open_to)) * rng.integers(0, 2)
        elif len(open_to):
            point[open_to, j] = rng.multinomial(int(plain.parent[j]), np.full(len(open_to), 1 / len(open_to)))
    fixed = np.stack([np.bincount(rows, one, R) for one in point])
    by_hand = replace(
        plain, groups=rows[None, :] == np.arange(R - 1)[:, None], lower=fixed[:, :-1], upper=fixed[:, :-1]
    )
    return replace(plain, fixed_rows=rows, fixed=fixed), by_hand


@pytest.mark.parametrize("seed", seeds(60))
def test_fixed_rows_are_solved_as_well_as_groups_by_a_general_solver(seed):
    problem, by_hand = fixed_family(seed)
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    sums = np.stack([np.bincount(problem.fixed_rows, one, problem.fixed.shape[1]) for one in answer.x])
    np.testing.assert_allclose(sums, problem.fixed, atol=1e-7 * max(1.0, problem.fixed.max()))
    other = solve_clarabel(by_hand)
    mine, theirs = problem.objective(answer.x), problem.objective(other.x)
    assert mine <= theirs + 1e-7 * max(1.0, abs(theirs))


@pytest.mark.parametrize("seed", seeds(25))
def test_certificate_agrees_with_that_of_the_same_rows_as_groups(seed):
    problem, by_hand = fixed_family(seed)
    x = solve(problem).x
    mu, lam, tau = find_multipliers(by_hand, x)
    nu = np.concatenate([lam, np.zeros((len(lam), 1))], axis=1)
    none = np.zeros((len(lam), 0))
    right = certify(problem, x, Multipliers(mu, none, tau), nu)
    assert right <= 1e-6
    assert right == pytest.approx(certify(by_hand, x, Multipliers(mu, lam, tau)), abs=1e-12)
    top = problem.top if problem.parent is not None else max(1.0, x.max())
    for moved in (problem.fixed + 0.5, problem.fixed - 0.5):
        assert certify(replace(problem, fixed=moved), x, Multipliers(mu, none, tau), nu) >= 0.49 / top
    assert certify(problem, x * np.nan, Multipliers(mu, none, tau), nu) == np.inf


def test_certificate_by_hand():
    # minimise 1/2 (x0 - 5)^2 + 1/2 (x1 - 1)^2 subject to x0 + x1 = 4: x = (4, 0), nu = 1, z1 = 0
    problem = FamilyProblem(
        ((1.0, np.arange(2, dtype=np.int32)),), np.array([[5.0, 1.0]]),
        fixed_rows=np.zeros(2, np.int32), fixed=np.array([[4.0]]),
    )  # fmt: skip
    none = Multipliers(np.zeros(2), np.zeros((1, 0)))
    best = np.array([[4.0, 0.0]])
    assert certify(problem, best, none, np.array([[1.0]])) == 0.0
    assert certify(problem, best, none, np.array([[0.5]])) == pytest.approx(0.125)
    assert certify(problem, best, none) == pytest.approx(0.25)
    np.testing.assert_allclose(solve(problem).x, best, atol=1e-12)


def family(fixed, parent=(3.0, 2.0, 1.0), mask=None):
    terms = ((1.0, np.arange(3, dtype=np.int32)),)
    rows = np.array([0, 0, 1], np.int32)
    fixed = np.array(fixed, float)
    held = None if parent is None else np.array(parent)
    return FamilyProblem(terms, np.ones((len(fixed), 3)), held, mask=mask, fixed_rows=rows, fixed=fixed)


def test_children_that_miss_the_sum_of_the_parent_are_named():
    answer = solve(family([[3.0, 1.0], [1.0, 0.0]]))
    assert answer.status is Status.INFEASIBLE
    assert set(answer.conflict) == {
        ConstraintRow("fixed", 0, 0), ConstraintRow("fixed", 1, 0),
        ConstraintRow("parent", -1, 0), ConstraintRow("parent", -1, 1),
    }  # fmt: skip
    assert "fixed row 0 of child 1" in answer.constraints


@pytest.mark.parametrize("parent", [(3.0, 2.0, 1.0), None])
def test_a_row_without_an_open_cell_or_negative_is_named(parent):
    mask = np.ones((2, 3), bool)
    mask[1, 2] = False
    answer = solve(family([[3.0, 0.0], [2.0, 1.0]], parent, mask))
    assert (answer.status, answer.conflict) == (Status.INFEASIBLE, (ConstraintRow("fixed", 1, 1),))
    answer = solve(family([[-1.0, 0.0], [6.0, 1.0]], parent))
    assert (answer.status, answer.conflict) == (Status.INFEASIBLE, (ConstraintRow("fixed", 0, 0),))


def test_rows_that_contradict_through_masks_are_named():
    # The first child is open in cell 0 only, the second in both; neither bound by itself is broken: 3 = 3
    # asks for all of cell 0, but cell 0 belongs to a group that holds the first child to 1.
    problem = replace(
        family([[3.0, 1.0], [2.0, 0.0]], mask=np.array([[True, False, True], [True, True, True]])),
        groups=np.array([[True, False, False]]), lower=np.array([[0.0], [0.0]]),
        upper=np.array([[1.0], [9.0]]), group_names=("a group",),
    )  # fmt: skip
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    assert ConstraintRow("fixed", 0, 0) in answer.conflict
    assert ConstraintRow("upper", 0, 0, "a group") in answer.conflict


def test_an_only_child_is_its_parent_at_any_size(monkeypatch):
    monkeypatch.setattr(partition, "WRITTEN_GROUPS", 0)
    answer = solve(family([[5.0, 1.0]]))
    assert (answer.status, answer.method) == (Status.OPTIMAL, "parent")
    assert solve(family([[4.0, 2.0]])).status is Status.INFEASIBLE


def test_more_rows_than_can_be_written_out_are_refused_unless_all_queries_are_detailed(monkeypatch):
    monkeypatch.setattr(partition, "WRITTEN_GROUPS", 5)
    detailed = family([[3.0, 1.0], [2.0, 0.0]])
    assert solve(detailed).method == "transport"
    both = replace(detailed, terms=(*detailed.terms, (1.0, np.array([0, 1, 1], np.int32))))
    with pytest.raises(EstimationError, match="2 fixed rows of 3 cells are too many"):
        solve(both)


@pytest.mark.parametrize(
    ("rows", "fixed", "message"),
    [
        ([0, 1, 2], None, "need both"),
        (None, [[1.0]], "need both"),
        ([0, 1, 2], [1.0], "1 axes"),
        ([0, 1], [[1.0, 1.0]], "fixed_rows has shape"),
        ([0, 1, 2], [[1.0, 1.0]], "numbered from 0 to 2, there are 2"),
        ([0, -1, 0], [[1.0, 1.0]], "numbered from -1 to 0, there are 2"),
        ([0, 1, 1], [[1.0, np.inf]], "must be finite"),
        ([0, 1, 1], [[1.0, 1.0], [0.0, 0.0]], "fixed has shape"),
    ],
)
def test_fixed_rows_are_checked(rows, fixed, message):
    rows = None if rows is None else np.array(rows, np.int32)
    fixed = None if fixed is None else np.array(fixed)
    with pytest.raises(EstimationError, match=message):
        FamilyProblem(((1.0, np.arange(3, dtype=np.int32)),), np.ones((1, 3)), fixed_rows=rows, fixed=fixed)
