"""Families whose children share joint totals: the structured solver against general ones and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.certified import certify
from support.general import load
from support.general.clarabel import solve as solve_clarabel
from support.random_joint import random_joint
from support.seeds import seeds

from opendas.errors import EstimationError
from opendas.solvers.least_squares.clarabel import program
from opendas.solvers.least_squares.direct import solve_direct
from opendas.solvers.least_squares.solve import LIMIT, PRECISION, solve
from opendas.solvers.problem.certificate import Multipliers
from opendas.solvers.problem.conflict import conflict
from opendas.solvers.problem.problem import ConstraintRow, FamilyProblem, Status, independent_joint

ONE = (1.0, np.zeros(1, np.int32))
DETAILED = (1.0, np.arange(2, dtype=np.int32))


def violation(problem, x):
    """Largest violated constraint, in counts: the slow, plain definition."""
    sums = x @ problem.groups.T.astype(float)
    worst = [(-x).max(), np.abs(x[~problem.mask]).max(initial=0.0)]
    worst += [(problem.lower - sums).max(initial=0.0), (sums - problem.upper).max(initial=0.0)]
    if problem.parent is not None:
        worst.append(np.abs(x.sum(0) - problem.parent).max())
    for s, total in enumerate(problem.joint_total):
        worst.append(abs(x[problem.joint == s].sum() - total))
    return max(worst)


def margins(problem, x):
    return np.concatenate(
        [
            np.stack([np.bincount(rows, row, int(rows.max()) + 1) for row in x]).ravel()
            for _, rows in problem.terms
        ]
    )


@pytest.mark.parametrize("seed", seeds(200))
def test_random_family_is_solved_as_well_as_by_clarabel(seed):
    problem = random_joint(seed)
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL
    assert answer.method == "pdas"
    assert answer.residual <= 1e-7
    top = max(1.0, answer.x.max())
    assert violation(problem, answer.x) <= 2e-7 * top
    other = solve_clarabel(problem)
    assert other.status is Status.OPTIMAL
    mine, theirs = problem.objective(answer.x), problem.objective(other.x)
    assert mine <= theirs + 1e-8 * max(1.0, abs(theirs))
    np.testing.assert_allclose(margins(problem, answer.x), margins(problem, other.x), atol=3e-5 * top)


@pytest.mark.parametrize("name", ["highs", "piqp", "osqp"])
@pytest.mark.parametrize("seed", [3, 11, 24, 40])
def test_every_general_solver_gets_the_rows(name, seed):
    pytest.importorskip({"highs": "highspy"}.get(name, name))
    problem = random_joint(seed, held=False)
    answer, other = solve(problem), load(name).solve(problem)
    top = max(1.0, answer.x.max())
    assert violation(problem, other.x) <= 1e-4 * top
    np.testing.assert_allclose(margins(problem, answer.x), margins(problem, other.x), atol=1e-3 * top)


@pytest.mark.parametrize("seed", seeds(30))
def test_certificate_does_not_need_the_solvers_multipliers(seed):
    problem = random_joint(seed)
    assert certify(problem, solve(problem).x) <= 1e-7


@pytest.mark.parametrize("seed", seeds(30))
def test_multipliers_of_joint_totals_are_slopes_of_the_optimum(seed):
    """An independent meaning of tau: what one more record in a joint total costs."""
    problem = random_joint(seed, parent=False, held=False)
    found = solve_direct(problem, LIMIT, PRECISION)
    for s, total in enumerate(problem.joint_total):
        step = 1e-3
        values = []
        for shift in (-step, step):
            moved = problem.joint_total.copy()
            moved[s] += shift
            other = FamilyProblem(
                problem.terms, problem.linear, None, problem.mask, problem.groups, problem.lower,
                problem.upper, problem.scale, joint=problem.joint, joint_total=moved,
            )  # fmt: skip
            answer = solve(other)
            if answer.status is not Status.OPTIMAL:
                break
            values.append(other.objective(answer.x))
        if len(values) < 2 or total == 0.0:
            continue
        slope = (values[1] - values[0]) / (2 * step)
        # Between two kinks of the objective the slope differs by no more than the curvature allows.
        assert slope == pytest.approx(
            -found.multipliers.joint[s] * problem.weight, rel=1e-2, abs=0.05 * problem.weight
        )


def test_certificate_sees_a_missed_joint_total_and_a_wrong_multiplier():
    problem = FamilyProblem((DETAILED,), np.array([[3.0, 1.0], [1.0, 3.0]]), joint=[0, 0], joint_total=[12.0])
    best = np.array([[4.0, 2.0], [2.0, 4.0]])
    right = Multipliers(np.zeros(2), np.zeros((2, 0)), np.array([-1.0]))
    assert certify(problem, best, right) <= 1e-12
    assert certify(problem, best) <= 1e-12
    assert certify(problem, best + 1e-3, right) > 1e-4
    assert certify(problem, best, Multipliers(np.zeros(2), np.zeros((2, 0)), np.array([-0.9]))) > 1e-2
    moved = best + 1e-3 * np.array([[1.0, -1.0], [0.0, 0.0]])  # keeps the total, and is not optimal
    assert certify(problem, moved) > 1e-5


def test_two_roots_by_hand():
    # The excess of 4 over four positive cells is split evenly; the cell at 0 takes no part.
    problem = FamilyProblem(
        (DETAILED,), np.array([[8.0, -9.0], [4.0, 4.0]]), joint=[0, 0], joint_total=[13.0]
    )
    np.testing.assert_allclose(solve(problem).x, [[7.0, 0.0], [3.0, 3.0]], atol=1e-12)


def test_scale_moves_the_excess_to_the_less_certain_child():
    problem = FamilyProblem(
        (ONE,), np.array([[8.0], [4.0]]), scale=np.array([3.0, 1.0]), joint=[0, 0], joint_total=[16.0]
    )
    np.testing.assert_allclose(solve(problem).x, [[9.0], [7.0]], atol=1e-12)


def test_joint_totals_beside_a_parent_by_hand():
    # Without joint totals every child would lose 1; with them the first two lose 4 together, the third none.
    problem = FamilyProblem(
        (ONE,), np.array([[8.0], [4.0], [5.0]]), np.array([13.0]), joint=[0, 0, 1], joint_total=[8.0, 5.0]
    )
    np.testing.assert_allclose(solve(problem).x, [[6.0], [2.0], [5.0]], atol=1e-12)


def test_groups_of_one_child_are_fixed_totals():
    rng = np.random.default_rng(5)
    truth = rng.poisson(4.0, (4, 6))
    noisy = truth + rng.normal(0.0, 2.0, truth.shape)
    terms = ((1.0, np.arange(6, dtype=np.int32)), (0.5, np.array([0, 0, 1, 1, 2, 2], np.int32)))
    totals = truth.sum(1, dtype=float)
    parent = truth.sum(0, dtype=float)
    shared = FamilyProblem(terms, noisy, parent, joint=np.arange(4), joint_total=totals)
    fixed = FamilyProblem(
        terms, noisy, parent, groups=np.ones((1, 6), bool), lower=totals[:, None], upper=totals[:, None]
    )
    np.testing.assert_allclose(solve(shared).x, solve(fixed).x, atol=1e-9)


def test_a_joint_total_of_zero_closes_its_children():
    linear = np.array([[5.0, 3.0], [2.0, 2.0], [4.0, 4.0]])
    for parent in (None, np.array([4.0, 4.0])):
        problem = FamilyProblem((DETAILED,), linear, parent, joint=[0, 0, 1], joint_total=[0.0, 8.0])
        answer = solve(problem)
        assert answer.method == "pdas"
        assert not answer.x[:2].any()
        np.testing.assert_allclose(answer.x[2], [4.0, 4.0], atol=1e-12)


def test_held_totals_repeat_the_joint_total():
    rng = np.random.default_rng(2)
    truth = rng.poisson(50.0, (2, 30)).astype(float)
    terms = ((1.0, np.arange(30, dtype=np.int32)),)
    first = FamilyProblem(
        ((1.0, np.zeros(30, np.int32)),),
        np.repeat(truth.sum(1)[:, None] + [[40.0], [-10.0]], 30, axis=1),
        joint=[0, 0],
        joint_total=[truth.sum()],
    )
    held = solve(first).x.sum(1)[:, None]
    np.testing.assert_allclose(held[:, 0], truth.sum(1) + np.array([25.0, -25.0]), atol=1e-9)
    for slack in (0.0, 1e-3, 2.0):
        second = FamilyProblem(
            terms, truth + rng.normal(0, 3, truth.shape), groups=np.ones((1, 30), bool),
            lower=held - slack, upper=held + slack, joint=[0, 0], joint_total=[truth.sum()],
        )  # fmt: skip
        answer = solve(second)
        assert answer.method == "pdas"
        assert abs(answer.x.sum() - truth.sum()) <= 1e-8


def test_redundant_joint_totals_are_recognised_and_contradictions_are_kept():
    linear = np.zeros((3, 2))
    parent = np.array([6.0, 4.0])
    whole = np.ones((1, 2), bool)
    free = FamilyProblem((DETAILED,), linear, parent, joint=[0, 0, 1], joint_total=[7.0, 3.0])
    assert independent_joint(free).tolist() == [True, False]
    some = FamilyProblem((DETAILED,), linear, parent, joint=[0, 0, -1], joint_total=[7.0])
    assert independent_joint(some).tolist() == [True]
    roots = FamilyProblem((DETAILED,), linear, joint=[0, 0, 1], joint_total=[7.0, 3.0])
    assert independent_joint(roots).tolist() == [True, True]
    total = np.array([[4.0], [3.0], [-np.inf]])
    top = np.array([[4.0], [3.0], [np.inf]])
    held = FamilyProblem(
        (DETAILED,), linear, parent, None, whole, total, top, joint=[0, 0, 1], joint_total=[7.0, 3.0]
    )
    assert independent_joint(held).tolist() == [False, False]
    wrong = FamilyProblem(
        (DETAILED,), linear, None, None, whole, total, top, joint=[0, 0, 1], joint_total=[8.0, 3.0]
    )
    assert independent_joint(wrong).tolist() == [True, True]
    assert program(held).A.shape[0] + 2 == program(wrong).A.shape[0] + len(parent)


NAMES = {"joint_names": ("total of the first two", "total of the third")}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"joint_total": [8.0, 3.0]}, {"joint", "parent"}),  # 11 in a parent of 10
        ({"joint_total": [12.0, 3.0], "joint": [0, 0, -1], "joint_names": ()}, None),
        ({"mask": [[1, 0], [1, 0], [1, 1]], "joint_total": [7.0, 3.0]}, {"joint", "parent"}),
        (
            {
                "groups": np.ones((1, 2), bool),
                "lower": [[4.0], [4.0], [0.0]],
                "upper": np.full((3, 1), np.inf),
                "joint_total": [7.0, 3.0],
            },
            {"joint", "lower"},
        ),
        ({"parent": None, "mask": np.zeros((3, 2)), "joint_total": [7.0, 3.0]}, {"joint"}),
        (
            {
                "parent": None,
                "groups": np.array([[True, False]]),
                "lower": [[4.0], [4.0], [0.0]],
                "upper": np.full((3, 1), np.inf),
                "joint_total": [7.0, 3.0],
            },
            {"joint", "lower"},
        ),
    ],
)
def test_joint_totals_that_cannot_hold_are_named(change, kinds):
    values = {
        "terms": (DETAILED,), "linear": np.ones((3, 2)), "parent": np.array([6.0, 4.0]), "joint": [0, 0, 1],
        **NAMES, **change,
    }  # fmt: skip
    if "joint_total" in values and len(values["joint_total"]) == 2 and max(values["joint"]) == 0:
        values["joint_total"] = values["joint_total"][:1]
    problem = FamilyProblem(**values)
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    joint = [row for row in answer.conflict if row.kind == "joint"]
    assert joint
    if kinds is not None:
        assert {row.kind for row in answer.conflict} == kinds
        assert "total of the first two" in " ".join(answer.constraints)
    proof = conflict(problem)
    assert any(row.kind == "joint" for row in proof)


def test_names_of_joint_rows():
    assert str(ConstraintRow("joint", -1, 3)) == "joint total 3"
    assert str(ConstraintRow("joint", -1, 3, "invariant total@state")) == "invariant total@state"


@pytest.mark.parametrize(
    "change",
    [
        {"joint": [0, 2]},
        {"joint": [-2, 0]},
        {"joint": [0]},
        {"joint": None},
        {"joint_total": [np.nan, 1.0]},
        {"joint_names": ("a",)},
    ],
)
def test_malformed_joint_totals_are_refused(change):
    values = {"joint": [0, 1], "joint_total": [1.0, 1.0], **change}
    with pytest.raises(EstimationError):
        FamilyProblem((DETAILED,), np.zeros((2, 2)), **values)


def test_single_child_with_a_parent_must_have_the_joint_total():
    for total, status in ((3.0, Status.OPTIMAL), (4.0, Status.INFEASIBLE)):
        problem = FamilyProblem(
            (DETAILED,), np.zeros((1, 2)), np.array([1.0, 2.0]), joint=[0], joint_total=[total]
        )
        assert solve(problem).status is status


@pytest.mark.parametrize("seed", seeds(15))
def test_order_of_children_does_not_matter(seed):
    problem = random_joint(seed)
    order = np.random.default_rng(seed).permutation(problem.children)
    other = FamilyProblem(
        problem.terms, problem.linear[order], problem.parent, problem.mask[order], problem.groups,
        problem.lower[order], problem.upper[order], problem.scale[order], (), problem.joint[order],
        problem.joint_total,
    )  # fmt: skip
    one, two = solve(problem), solve(other)
    top = max(1.0, one.x.max())
    np.testing.assert_allclose(margins(other, one.x[order]), margins(other, two.x), atol=1e-5 * top)


SHAPE = (8, 2, 63, 2)
"""Cells as in the redistricting data: residence, voting age, race, ethnicity."""


def table_rows(*kept):
    """Row of every cell in the margin over the kept attributes."""
    index = np.unravel_index(np.arange(np.prod(SHAPE)), SHAPE)
    rows = np.zeros(np.prod(SHAPE), np.int64)
    for axis in kept:
        rows = rows * SHAPE[axis] + index[axis]
    return rows.astype(np.int32)


def made_family(seed, means, spread, cells):
    """Truth, terms and weighted answers of children with the given mean counts, on some of the cells."""
    rng = np.random.default_rng(seed)
    shape = rng.lognormal(0.0, 2.0, cells)
    truth = rng.poisson(np.outer(means, shape / shape.mean()))
    kept = [(), (0,), (1, 2), (0, 1, 3), (2, 3), (0, 1, 2, 3)]
    chosen = rng.choice(np.prod(SHAPE), cells, replace=False) if cells < np.prod(SHAPE) else slice(None)
    terms, linear = [], np.zeros(truth.shape)
    for axes in kept:
        weight = 0.02 * 10 ** rng.uniform(-spread / 2, spread / 2)
        rows = np.unique(table_rows(*axes)[chosen], return_inverse=True)[1].astype(np.int32)
        answers = np.stack([np.bincount(rows, row) for row in truth])
        answers = answers + np.rint(rng.normal(0.0, weight**-0.5, answers.shape))
        terms.append((weight, rows))
        linear += weight * answers[:, rows]
    return truth, tuple(terms), linear


@pytest.mark.parametrize("means", [(400.0, 10.0), (15_000.0, 0.05)])
def test_two_roots_of_full_size_share_a_total(means):
    truth, terms, linear = made_family(1, means, 1.0, 2016)
    sums = truth[:, table_rows(0) == 3].sum(1).astype(float)[:, None]
    problem = FamilyProblem(
        terms, linear, groups=(table_rows(0) == 3)[None, :], lower=sums + 5.0, upper=np.full((2, 1), np.inf),
        joint=[0, 0], joint_total=[float(truth.sum())],
    )  # fmt: skip
    answer = solve(problem)
    assert (answer.status, answer.method) == (Status.OPTIMAL, "pdas")
    assert abs(answer.x.sum() - truth.sum()) <= 1e-9 * truth.sum()
    other = solve_clarabel(problem)
    np.testing.assert_allclose(answer.x, other.x, atol=1e-4 * truth.max())


def test_thirty_pairs_below_a_parent():
    truth, terms, linear = made_family(2, np.geomspace(0.1, 30.0, 60), 1.0, 400)
    joint = np.repeat(np.arange(30), 2)
    problem = FamilyProblem(
        terms, linear, truth.sum(0).astype(float), joint=joint,
        joint_total=np.bincount(joint, truth.sum(1)).astype(float),
    )  # fmt: skip
    answer = solve(problem)
    assert (answer.status, answer.method) == (Status.OPTIMAL, "pdas")
    assert violation(problem, answer.x) <= 1e-7


@pytest.mark.parametrize(("seed", "method"), [(30, "clarabel"), (33, "clarabel twice")])
def test_an_interior_point_finds_digits_that_the_active_set_lacks(seed, method):
    """Weights over seven orders of magnitude: the last solve of the active set misses the tolerance."""
    truth, terms, linear = made_family(seed, (5000.0, 20.0), 7.0, 2016)
    problem = FamilyProblem(terms, linear, joint=[0, 0], joint_total=[float(truth.sum())])
    answer = solve(problem)
    assert (answer.status, answer.method) == (Status.OPTIMAL, method)
    assert answer.residual <= 1e-7
