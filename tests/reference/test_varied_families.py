"""Synthetic census families whose children have Hessians of their own, against general solvers."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.certified import certify
from support.dense_curvature import DenseCurvature
from support.general import load
from support.random_varied import SORTS, own, random_varied

from opendas.solvers.least_squares.clarabel import program
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem, Status

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from families import family, varied
from support.seeds import examples
from varied import lifted

FAMILIES = (
    ("block_group", "block", 6, 60, 1_500.0, (3, 15)),
    ("block_group", "block", 3, 120, 4_000.0, (6, 20)),
    ("tract", "block_group", 10, 50, 20_000.0, (2, 8)),
    ("county", "tract", 4, 90, 200_000.0, (5, 40)),
)


def made(which: int, seed: int):
    level, below, C, n, population, grandchildren = FAMILIES[which]
    return varied(level, below, C, n, population, seed, grandchildren=grandchildren)


@pytest.mark.parametrize("name", ["clarabel", "piqp"])
@pytest.mark.parametrize("which", range(len(FAMILIES)))
def test_a_general_solver_finds_the_same_point(which, name):
    pytest.importorskip(name)
    one = made(which, 11 + which)
    answer = solve(one.stated)
    assert answer.status is Status.OPTIMAL
    assert answer.method == "pdas"
    assert certify(one.stated, answer.x) <= 1e-7
    solver = load(name)
    for qp in (program(one.stated, "plain"), lifted(one)):
        other = solver.solve_program(qp, one.linear.shape, 1e-11 if name == "clarabel" else 1e-9)
        top = one.problem.parent.max()
        np.testing.assert_allclose(other.x, answer.x, atol=2e-5 * top)


def test_families_of_one_shared_hessian_come_out_as_in_plain_topdown():
    stated = family("block_group", 6, 80, 2_000.0, 4, held_total=False, group_quarters=True).problem
    matrices = np.repeat(stated.hessian()[None], stated.children, axis=0)
    answer = solve(own(stated, stated.linear, DenseCurvature(matrices)))
    np.testing.assert_allclose(answer.x, solve(stated).x, atol=1e-8)


def test_roots_and_joint_totals():
    one = varied("state", "county", 2, 300, 50_000.0, 2, grandchildren=(4, 12))
    stated = one.problem
    total = one.truth.sum(axis=1).astype(float)
    groups = np.vstack([stated.groups, np.ones((1, stated.cells), bool)])
    roots = FamilyProblem(
        stated.terms, stated.linear, None, stated.mask, groups,
        np.hstack([stated.lower, total[:, None]]), np.hstack([stated.upper, total[:, None]]),
    )  # fmt: skip
    parts = FamilyProblem(
        stated.terms, stated.linear, None, stated.mask, stated.groups, stated.lower, stated.upper,
        joint=np.zeros(2, np.int32), joint_total=[total.sum()],
    )  # fmt: skip
    for problem in (roots, parts):
        answer = solve(own(problem, one.linear, one.curvature))
        assert answer.status is Status.OPTIMAL
        assert answer.method == "pdas"
        assert answer.x.sum() == pytest.approx(total.sum(), rel=1e-12)
        assert certify(own(problem, one.linear, one.curvature), answer.x) <= 1e-7


def test_same_bytes_again_and_beside_other_threads():
    some = [made(which, 3) for which in range(len(FAMILIES))]

    def run(one):
        return solve(one.stated).x.tobytes()

    alone = [run(one) for one in some]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, some * 3)) == alone * 3


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(SORTS))
def test_every_answer_is_certified_or_no_answer(seed, sort):
    problem, linear, matrices = random_varied(seed, sort)
    curvature = DenseCurvature(matrices)
    answer = solve(own(problem, linear, curvature))
    assert answer.status is Status.OPTIMAL  # feasible by construction
    assert certify(own(problem, linear, curvature), answer.x) <= 1e-6
    assert answer.x.min(initial=0.0) >= 0.0
    assert not answer.x[~problem.mask].any()
