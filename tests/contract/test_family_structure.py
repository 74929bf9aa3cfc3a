"""Families in the shape of the data: bounded groups, held totals, singular H, large C and n, determinism."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.certified import certify, find_multipliers
from support.general.clarabel import solve as solve_clarabel
from support.minimum_tolerance import minimum_tolerance
from support.random_family import random_family
from support.seeds import seeds

import opendas.solvers.least_squares.solve as solving
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.conflict import conflict
from opendas.solvers.problem.problem import FamilyProblem, Status

ROOT = Path(__file__).parents[2]
family = runpy.run_path(str(ROOT / "benchmarks" / "families.py"))["family"]


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("slack", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("level", "children", "cells", "population"),
    [("block", 14, 30, 1_200.0), ("block_group", 8, 140, 4_500.0), ("tract", 20, 120, 60_000.0)],
)
def test_made_families_end_in_the_first_method(level, children, cells, population, seed, slack, bounded):
    problem = family(
        level, children, cells, population, seed, slack=slack, group_quarters=bounded, held_total=slack > 0.0
    ).problem
    answer = solve(problem)
    if answer.status is Status.INFEASIBLE:  # a total held without regard to the masks may not exist
        assert conflict(problem)
        return
    assert answer.status is Status.OPTIMAL
    assert answer.method == "pdas"
    assert answer.residual <= 1e-9


@pytest.mark.parametrize("style", ["margins", "one", "total"])
@pytest.mark.parametrize("seed", seeds(12))
def test_singular_h_has_the_margins_of_a_general_solver(style, seed):
    problem = random_family(1000 + seed, style=style)
    ours, theirs = solve(problem), solve_clarabel(problem)
    assert ours.status is Status.OPTIMAL
    assert ours.residual <= 1e-8
    for _, rows in problem.terms:
        for a, b in zip(ours.x, theirs.x, strict=True):
            np.testing.assert_allclose(np.bincount(rows, a), np.bincount(rows, b), atol=1e-4)


@pytest.mark.parametrize("seed", seeds(20))
def test_merging_cells_does_not_change_the_objective(seed, monkeypatch):
    problem = random_family(seed, style="one")
    merged = solve(problem)
    jitter = problem.linear + 1e-9 * np.random.default_rng(seed).normal(size=problem.linear.shape)
    apart = solve(  # terms too different to merge
        FamilyProblem(
            problem.terms, jitter, problem.parent, problem.mask, problem.groups,
            problem.lower, problem.upper, problem.scale,
        )
    )  # fmt: skip
    assert problem.objective(merged.x) == pytest.approx(problem.objective(apart.x), rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_common_scale_changes_nothing(scale):
    problem = random_family(11, "mixed", "detailed", children=6, cells=15)
    scaled = FamilyProblem(
        problem.terms, problem.linear, problem.parent, problem.mask, problem.groups,
        problem.lower, problem.upper, scale * problem.scale,
    )  # fmt: skip
    np.testing.assert_allclose(solve(scaled).x, solve(problem).x, atol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_scale_equals_repeating_the_terms_with_other_weights(seed):
    # Children of the same scale s: multiplying scale by s or all weights and b by s is the same problem.
    problem = random_family(seed, "bounded", "detailed", children=5, cells=12)
    s = 3.7
    heavier = FamilyProblem(
        tuple((s * w, rows) for w, rows in problem.terms), s * problem.linear, problem.parent, problem.mask,
        problem.groups, problem.lower, problem.upper, problem.scale,
    )  # fmt: skip
    np.testing.assert_allclose(solve(heavier).x, solve(problem).x, atol=1e-8)


def test_children_without_a_parent_are_solved_apart():
    problem = random_family(4, "bounded", "detailed", children=4, cells=10)
    loose = FamilyProblem(
        problem.terms,
        problem.linear,
        None,
        problem.mask,
        problem.groups,
        problem.lower,
        problem.upper,
        problem.scale,
    )
    together = solve(loose)
    for c in range(4):
        alone = FamilyProblem(
            problem.terms, problem.linear[c : c + 1], None, problem.mask[c : c + 1], problem.groups,
            problem.lower[c : c + 1], problem.upper[c : c + 1],
        )  # fmt: skip
        np.testing.assert_allclose(solve(alone).x[0], together.x[c], atol=1e-9)


def test_the_ladder_goes_on_where_the_active_set_fails(monkeypatch):
    problem = random_family(8, "bounded", "detailed", children=6, cells=14)
    plain = solve(problem)
    monkeypatch.setattr(solving, "SHARED", ())
    last = solve(problem)
    assert (last.method, last.status) == ("clarabel", Status.OPTIMAL)
    np.testing.assert_allclose(last.x, plain.x, atol=1e-6)
    tight = solve(problem, tolerance=1e-18)
    assert tight.status is Status.FAILED
    assert tight.residual < 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_found_multipliers_certify_as_well_as_the_solvers(seed):
    problem = random_family(seed, "mixed", "detailed", children=5, cells=12)
    answer = solve(problem)
    assert certify(problem, answer.x, find_multipliers(problem, answer.x)) <= 1e-8


def test_minimum_tolerance_of_a_margin_that_can_be_held_is_zero():
    problem = random_family(2, "bounded", "detailed", children=4, cells=9)
    total = np.zeros(9, dtype=np.int32)
    values = solve(problem).x.sum(1, keepdims=True)
    tau, x = minimum_tolerance(problem, [(total, values)])
    assert tau <= 1e-9
    np.testing.assert_allclose(x.sum(0), problem.parent, atol=1e-9)


def test_minimum_tolerance_by_hand():
    # One cell is closed to the second child, which is to hold 3 of the 2 + 1 counts: it can get 1.
    problem = FamilyProblem(
        ((1.0, np.arange(2, dtype=np.int32)),), np.zeros((2, 2)), np.array([2.0, 1.0]),
        mask=np.array([[True, True], [False, True]]),
    )  # fmt: skip
    tau, _ = minimum_tolerance(problem, [(np.zeros(2, np.int32), np.array([[0.0], [3.0]]))])
    assert tau == pytest.approx(2.0)


def test_conflict_is_minimal():
    # Three children want at least 2 of a cell that holds 3; any two of them already conflict.
    problem = FamilyProblem(
        ((1.0, np.arange(2, dtype=np.int32)),), np.zeros((3, 2)), np.array([3.0, 9.0]),
        groups=np.array([[True, False]]), lower=np.full((3, 1), 2.0), upper=np.full((3, 1), np.inf),
    )  # fmt: skip
    rows = conflict(problem)
    assert sorted(row.kind for row in rows) == ["lower", "lower", "parent"]
    assert conflict(random_family(2, "bounded", "detailed")) == ()


@pytest.mark.parametrize("seed", seeds(20))
def test_weights_over_five_orders_of_magnitude(seed):
    # The active set alone loses digits where H is definite by little; the second try must not.
    base = random_family(seed)
    rng = np.random.default_rng(seed)
    terms, linear = [], np.zeros(base.linear.shape)
    for _, rows in base.terms:
        weight = 10.0 ** rng.uniform(-3.0, 2.0)
        answers = rng.poisson(20.0, (base.children, int(rows.max()) + 1)) + rng.normal(0.0, 2.0)
        terms.append((weight, rows))
        linear += weight * answers[:, rows]
    problem = FamilyProblem(
        tuple(terms), linear, base.parent, base.mask, base.groups, base.lower, base.upper, base.scale
    )
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-7


def test_values_in_the_hundreds_of_millions_are_certified():
    problem = family("state", 12, 60, 3e8, 0, slack=0.0).problem
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.method == "pdas"


def test_many_children_and_cells():
    problem = family("tract", 120, 450, 500_000.0, 1, slack=0.01).problem
    answer = solve(problem)
    assert (answer.status, answer.method) == (Status.OPTIMAL, "pdas")
    assert answer.residual <= 1e-8


def test_threads_that_solve_families_side_by_side_change_nothing():
    problems = [family("block", 14, 30, 1_200.0, seed).problem for seed in range(40)]
    alone = [solve(problem).x for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda problem: solve(problem).x, problems))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_number_of_blas_threads_changes_no_byte():
    script = (
        "import runpy, sys, hashlib\n"
        "import opendas.solvers.least_squares.solve as s\n"
        f"family = runpy.run_path({str(ROOT / 'benchmarks' / 'families.py')!r})['family']\n"
        "problems = [family('block', 14, 30, 1200.0, 0).problem, family('tract', 40, 450, 2e5, 0).problem]\n"
        "first = [s.solve(p).x for p in problems]\n"
        "s.SHARED = ()\n"
        "second = [s.solve(problems[0]).x]\n"
        "print(hashlib.sha256(b''.join(x.tobytes() for x in first + second)).hexdigest())\n"
    )
    seen = set()
    for threads in ("1", "2"):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout.strip())
    assert len(seen) == 1


def test_a_root_of_many_cells_does_not_write_its_matrix():
    """Sixty thousand cells, whose matrix would be 29 GB; the answer is certified without it."""
    rng = np.random.default_rng(0)
    a, b = 200, 300
    cells = np.arange(a * b, dtype=np.int32)
    maps = (np.zeros(a * b, np.int32), cells // b, cells % b, cells)
    truth = np.where(rng.random(a * b) < 0.01, rng.integers(1, 50, a * b), 0)
    linear = np.zeros((1, a * b))
    for rows in maps:
        answers = np.bincount(rows, truth) + rng.normal(0.0, 2.0, int(rows.max()) + 1)
        linear[0] += answers[rows]
    total = np.array([[float(truth.sum())]])
    problem = FamilyProblem(
        terms=tuple((1.0, rows) for rows in maps),
        linear=linear,
        parent=None,
        mask=np.ones((1, a * b), bool),
        groups=np.ones((1, a * b), bool),
        lower=total,
        upper=total,
        scale=np.ones(1),
    )
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.residual <= 1e-7
    assert answer.x.sum() == pytest.approx(total[0, 0])
