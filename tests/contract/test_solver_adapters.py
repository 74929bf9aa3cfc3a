"""Every solver, ours included, on the same problems; optima are judged by the independent certificate."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from support.certified import certify
from support.general import ADAPTERS, load

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.solvers.least_squares.clarabel import program
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem, Status

random_family = runpy.run_path(str(Path(__file__).parents[1] / "support" / "random_family.py"))[
    "random_family"
]

CORE = ("clarabel",)
PACKAGES = {"highs": "highspy"}
EXPECTED = {"structured": 1e-9, "clarabel": 1e-6, "highs": 1e-7, "piqp": 1e-4, "osqp": 1e-5}
"""Largest relative residual we ask of each; our own fast path is exact to rounding."""
CELLS = {n: (1.0, np.arange(n, dtype=np.int32)) for n in range(1, 6)}
TOTAL = {n: (0.5, np.zeros(n, dtype=np.int32)) for n in range(1, 6)}


def problems():
    """Small problems with optima that are known or easy to check by hand."""
    yield "two children", FamilyProblem((CELLS[1],), np.array([[8.0], [4.0]]), np.array([10.0]))
    yield "sign binds", FamilyProblem((CELLS[2],), np.array([[5.0, -4.0], [5.0, 4.0]]), np.array([10.0, 2.0]))
    mask = np.array([[True, True, False], [True, False, True], [True, False, False]])
    b = np.array([[3.0, 1.0, 4.0], [1.0, 5.0, 9.0], [2.0, 6.0, 5.0]])
    yield (
        "mask leaves one child",
        FamilyProblem((CELLS[3], TOTAL[3]), b, np.array([7.0, 2.0, 3.0]), mask=mask),
    )
    yield (
        "equalities and a redundant one",
        FamilyProblem(
            (CELLS[3],), b, np.array([9.0, 6.0, 6.0]), groups=np.ones((1, 3), bool),
            lower=[[6.0], [8.0], [7.0]], upper=[[6.0], [8.0], [7.0]],
        ),
    )  # fmt: skip
    yield (
        "even number of children in a band",
        FamilyProblem(
            (CELLS[2],), np.array([[9.0, 1.0], [1.0, 9.0], [8.0, 0.0], [0.0, 8.0]]), np.array([12.0, 12.0]),
            groups=np.ones((1, 2), bool), lower=np.full((4, 1), 5.9), upper=np.full((4, 1), 6.1),
        ),
    )  # fmt: skip
    yield (
        "root with a total and a bounded group",
        FamilyProblem(
            (CELLS[4], TOTAL[4]), np.array([[4.0, 3.0, 2.0, -6.0]]), None,
            groups=np.array([[True] * 4, [False, False, False, True]]),
            lower=[[10.0, 2.0]], upper=[[10.0, np.inf]],
        ),
    )  # fmt: skip
    scale = np.array([4.0, 1.0, 0.25])
    yield "scale", FamilyProblem((CELLS[3], TOTAL[3]), b, np.array([9.0, 6.0, 6.0]), scale=scale)
    yield "no detailed term", FamilyProblem((TOTAL[3],), b, np.array([3.0, 6.0, 9.0]))


PROBLEMS = dict(problems())
INFEASIBLE = FamilyProblem(
    (CELLS[2],), np.zeros((3, 2)), np.array([4.0, 1.0]), groups=np.array([[True, False]]),
    lower=np.full((3, 1), 2.0), upper=np.full((3, 1), np.inf),
)  # fmt: skip


def adapter(name):
    if name not in CORE:
        pytest.importorskip(PACKAGES.get(name, name))
    return load(name)


@pytest.mark.parametrize("name", ["structured", *ADAPTERS])
@pytest.mark.parametrize("case", PROBLEMS)
def test_reaches_a_certified_optimum(name, case):
    problem = PROBLEMS[case]
    answer = solve(problem) if name == "structured" else adapter(name).solve(problem)
    assert answer.status is Status.OPTIMAL
    assert certify(problem, answer.x) <= EXPECTED[name]
    assert (answer.x >= 0.0).all()
    assert not answer.x[~problem.mask].any()


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("form", ["lifted", "nested", "plain"])
@pytest.mark.parametrize("seed", [0, 3, 7])
def test_all_forms_state_the_same_problem(name, form, seed):
    problem = random_family(seed, style="detailed")
    answer = adapter(name).solve(problem, form=form)
    ours = solve(problem)
    assert problem.objective(answer.x) == pytest.approx(problem.objective(ours.x), rel=1e-5, abs=1e-4)


def test_nesting_leaves_the_margins_and_needs_fewer_entries():
    rows = [np.arange(24), np.arange(24) // 2, np.arange(24) // 8, np.zeros(24, int)]
    terms = tuple((1.0, r.astype(np.int32)) for r in rows)
    problem = FamilyProblem(terms, np.ones((2, 24)), np.full(24, 2.0))
    lifted, nested = program(problem, "lifted"), program(problem, "nested")
    assert nested.A.nnz < lifted.A.nnz
    cells = np.arange(48.0)
    margins = [np.concatenate([np.bincount(r, cells[c * 24 :][:24]) for c in range(2)]) for r in rows[1:]]
    for one in (lifted, nested):
        y = np.concatenate([cells, *margins])
        at = np.zeros(len(one.row_lower))
        at[-24:] = cells[:24] + cells[24:]  # the parent's rows, which these cells miss
        np.testing.assert_array_equal(one.A @ y, at)


@pytest.mark.parametrize("name", ["structured", *ADAPTERS])
def test_says_that_an_infeasible_problem_is_infeasible(name):
    answer = solve(INFEASIBLE) if name == "structured" else adapter(name).solve(INFEASIBLE)
    assert answer.status is Status.INFEASIBLE


@pytest.mark.parametrize("name", ADAPTERS)
def test_maps_every_status_to_one_of_ours(name):
    statuses = adapter(name).STATUS_MAP
    assert Status.OPTIMAL in statuses.values()
    assert Status.INFEASIBLE in statuses.values()
    assert set(statuses.values()) <= set(Status)


def test_unknown_solver_lists_the_known_ones():
    with pytest.raises(ConfigError, match="clarabel, highs, piqp, osqp"):
        load("gurobi")


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "piqp", None)
    with pytest.raises(EnvironmentFailure, match=r"opendas\[solvers\]"):
        load("piqp").solve(PROBLEMS["two children"])
