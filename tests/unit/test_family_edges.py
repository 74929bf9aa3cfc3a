"""Families at the edge: nothing to share, nobody to share with, nothing measured."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem, Status

EACH = ((1.0, np.arange(3, dtype=np.int32)),)
TOTAL = ((1.0, np.zeros(3, dtype=np.int32)),)
ALL = np.ones((1, 3), bool)
NONE = np.zeros((1, 3), bool)

FEASIBLE = {
    "no child, empty parent": FamilyProblem((), np.zeros((0, 3)), np.zeros(3)),
    "no cell": FamilyProblem(
        (), np.zeros((3, 0)), np.zeros(0), groups=np.zeros((1, 0), bool), lower=[[0.0]] * 3, upper=[[2.0]] * 3
    ),
    "nothing measured": FamilyProblem((), np.zeros((3, 4)), np.array([1.0, 2.0, 3.0, 4.0])),
    "nothing measured in a root": FamilyProblem(
        (), np.zeros((1, 4)), None, groups=np.ones((1, 4), bool), lower=[[5.0]], upper=[[5.0]]
    ),
    "empty parent": FamilyProblem(EACH, np.ones((2, 3)), np.zeros(3)),
    "all cells closed in a root": FamilyProblem(EACH, np.ones((2, 3)), None, mask=np.zeros((2, 3), bool)),
    "empty group fixed at zero": FamilyProblem(
        EACH, np.ones((2, 3)), np.ones(3), groups=NONE, lower=[[0.0], [0.0]], upper=[[0.0], [0.0]]
    ),
    "child closed by its upper bound": FamilyProblem(
        TOTAL, np.ones((2, 3)), np.ones(3), groups=ALL, lower=[[0.0], [0.0]], upper=[[0.0], [9.0]]
    ),
    "row indices with gaps": FamilyProblem(
        ((1.0, np.array([5, 900, 5], dtype=np.int32)),), np.ones((2, 3)), np.ones(3)
    ),
    "almost nothing in a cell": FamilyProblem(EACH, np.ones((2, 3)), np.array([1e-12, 1.0, 2.0])),
}
INFEASIBLE = {
    "no child for the parent": FamilyProblem((), np.zeros((0, 3)), np.ones(3)),
    "a count from no cell": FamilyProblem(
        (), np.zeros((3, 0)), np.zeros(0), groups=np.zeros((1, 0), bool), lower=[[1.0]] * 3, upper=[[2.0]] * 3
    ),
    "a count from an empty parent": FamilyProblem(
        EACH, np.ones((2, 3)), np.zeros(3), groups=ALL, lower=[[0.0], [1.0]], upper=[[2.0], [2.0]]
    ),
    "an upper bound below zero": FamilyProblem(
        EACH, np.ones((2, 3)), np.ones(3), groups=ALL, lower=[[-3.0], [0.0]], upper=[[-1.0], [5.0]]
    ),
    "a root without open cells": FamilyProblem(
        EACH, np.ones((1, 3)), None, mask=NONE, groups=ALL, lower=[[1.0]], upper=[[5.0]]
    ),
    "an empty group in a merged family": FamilyProblem(
        TOTAL, np.ones((2, 3)), np.ones(3), groups=NONE, lower=[[1.0], [0.0]], upper=[[2.0], [0.0]]
    ),
    "bounds that cross": FamilyProblem(
        EACH, np.ones((2, 3)), np.ones(3), groups=ALL, lower=[[2.0], [0.0]], upper=[[1.0], [5.0]]
    ),
    "a negative parent": FamilyProblem(EACH, np.ones((2, 3)), np.array([1.0, -1.0, 1.0])),
}


@pytest.mark.parametrize("case", FEASIBLE)
def test_solved(case):
    problem = FEASIBLE[case]
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-9
    assert answer.x.shape == problem.linear.shape


@pytest.mark.parametrize("case", INFEASIBLE)
def test_proved_infeasible(case):
    answer = solve(INFEASIBLE[case])
    assert answer.status is Status.INFEASIBLE
    assert answer.conflict
