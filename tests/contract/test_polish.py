"""Refining a root: a point that is nearly right becomes right; one that is wrong does not pass for right."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.solvers.least_squares.polish import polish_root
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.certificate import certify
from opendas.solvers.problem.problem import FamilyProblem


def root(seed: int, children: int = 2) -> FamilyProblem:
    """Roots with cells in the thousands, weights four orders of magnitude apart, a total and a bound."""
    rng = np.random.default_rng(seed)
    n = 40
    each = np.arange(n, dtype=np.int32)
    terms = ((1.0, np.zeros(n, np.int32)), (1e-2, each // 10), (1e-4, each))
    truth = rng.poisson(rng.lognormal(3.0, 2.0, (children, n))).astype(float)
    linear = np.zeros((children, n))
    for weight, rows in terms:
        answers = np.stack([np.bincount(rows, one) for one in truth])
        noisy = answers + rng.normal(0.0, weight**-0.5, answers.shape)
        linear += weight * noisy[:, rows]
    groups = np.stack([np.ones(n, bool), each < 10])
    sums = truth @ groups.T
    return FamilyProblem(
        terms=terms,
        linear=linear,
        groups=groups,
        lower=np.stack([sums[:, 0], sums[:, 1] + 3.0], axis=1),
        upper=np.stack([sums[:, 0], np.full(children, np.inf)], axis=1),
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_nearly_right_point_is_refined(seed: int) -> None:
    problem = root(seed)
    best = solve(problem).x
    rough = best * (1.0 + 1e-7 * np.random.default_rng(seed).standard_normal(best.shape))
    assert certify(problem, rough) > 1e-9
    refined, multipliers = polish_root(problem, rough)
    assert certify(problem, refined, multipliers) < 1e-9
    assert np.abs(refined - best).max() < 1e-5 * best.max()


def test_a_wrong_active_set_is_not_certified() -> None:
    problem = root(1)
    wrong = solve(problem).x.copy()
    wrong[:, ::3] = 0.0
    refined, multipliers = polish_root(problem, wrong)
    assert certify(problem, refined, multipliers) > 1e-6
