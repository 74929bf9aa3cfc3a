"""Linear constraints with coefficients against slow twins: all tables, a general program, small inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from support.seeds import seeds

from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import LevelConstraints, LinearSums, bound_table
from opendas.errors import InfeasibleFamily
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.declarations import Invariant, LinearConstraint
from opendas.schema.product import PassPlan, Product
from opendas.solvers.inequalities import solve_under
from opendas.solvers.least_squares.solve import solve
from opendas.solvers.problem.problem import FamilyProblem, Status
from opendas.solvers.rounding.rounding import round_family
from opendas.topdown.failsafe import relax_parent
from opendas.topdown.family import estimate_family
from opendas.topdown.family_data import LevelRules
from opendas.topdown.model import Family

CELLS = 3
TOTAL, EACH = np.zeros(CELLS, np.int32), np.arange(CELLS, dtype=np.int32)


def tables(parent, children):
    """Every table of whole numbers with these column sums, int64 (tables, children, cells)."""
    columns = [
        [row for row in itertools.product(range(int(p) + 1), repeat=children) if sum(row) == p]
        for p in parent
    ]
    return np.array(list(itertools.product(*columns))).transpose(0, 2, 1)


def family(draw_seed, children=2):
    """A parent that keeps a constraint, and an estimate of its children."""
    rng = np.random.default_rng(draw_seed)
    coefficients = rng.integers(-4, 5, (int(rng.integers(1, 3)), CELLS))
    parent = rng.integers(0, 5, CELLS)
    at_most = rng.integers(-2, 5, (children, len(coefficients)))
    at_most[-1] = np.maximum(at_most[-1], coefficients @ parent - at_most[:-1].sum(axis=0))
    share = rng.dirichlet(np.ones(children), CELLS).T
    return coefficients, parent, at_most, share * parent


@given(st.integers(0, 2**32), st.sampled_from([2, 3]))
def test_the_nearest_table_that_keeps_the_constraints(seed, children):
    coefficients, parent, at_most, estimate = family(seed, children)
    every = tables(parent, children)
    kept = every[(every @ coefficients.T <= at_most).all(axis=(1, 2))]
    keys = np.arange(children, dtype=np.uint64)

    def rounded():
        mask = np.ones(estimate.shape, bool)
        passes = ((TOTAL,), (EACH,))
        return round_family(
            estimate, parent, mask, passes, None, None, None, keys, linear=(coefficients, at_most)
        )

    if not len(kept):
        with pytest.raises(InfeasibleFamily):
            rounded()
        return
    result = rounded()
    assert (result.values @ coefficients.T <= at_most).all()
    assert np.array_equal(result.values.sum(axis=0), parent)
    base = np.floor(np.where(np.abs(estimate - np.rint(estimate)) < 1e-6, np.rint(estimate), estimate))
    near = kept[((kept - base >= 0) & (kept - base <= 1)).all(axis=(1, 2))]
    candidates = near if len(near) else kept
    assert result.method.endswith("estimate") == (not len(near))
    totals = np.abs(candidates.sum(axis=2) - estimate.sum(axis=1)).sum(axis=1)
    assert result.objective[0] == pytest.approx(totals.min(), abs=1e-4)
    best = candidates[totals < totals.min() + 1e-4]
    cells = np.abs(best - estimate).sum(axis=(1, 2))
    assert np.abs(result.values - estimate).sum() <= cells.max() + 1e-4
    same_totals = best[(best.sum(axis=2) == result.values.sum(axis=1)).all(axis=1)]
    least = np.abs(same_totals - estimate).sum(axis=(1, 2)).min()
    assert result.objective[1] == pytest.approx(least, abs=1e-4)


def test_whole_numbers_farther_off_where_none_beside_the_estimate_keep_it():
    estimate = np.array([[1.5, 1.0], [1.5, 1.0]])
    coefficients, at_most = np.array([[2, -3]]), np.zeros((2, 1), np.int64)
    parent, mask, keys = np.array([3, 2]), np.ones((2, 2), bool), np.arange(2, dtype=np.uint64)
    passes = ((np.arange(2, dtype=np.int32),),)
    plain = round_family(estimate, parent, mask, passes, None, None, None, keys)
    assert (plain.values @ coefficients.T > at_most).any()
    result = round_family(
        estimate, parent, mask, passes, None, None, None, keys, linear=(coefficients, at_most)
    )
    assert sorted(map(tuple, result.values.tolist())) == [(0, 0), (3, 2)]
    assert result.method == "milp, not next to the estimate"


@pytest.mark.parametrize("seed", seeds(40))
def test_least_squares_are_those_of_a_general_solver(seed):
    coefficients, parent, at_most, estimate = family(seed, 3)
    rng = np.random.default_rng(seed)
    target = estimate + rng.normal(0, 3, estimate.shape)
    totals = target.sum(axis=1) + rng.normal(0, 2, 3)
    linear = target + 0.5 * totals[:, None]
    scale = rng.uniform(0.5, 2, 3)
    problem = FamilyProblem(((1.0, EACH), (0.5, TOTAL)), linear, parent=parent.astype(float), scale=scale)
    found = solve_under(problem, coefficients, at_most, ("a", "b")[: len(coefficients)])
    shape = target.shape

    def objective(x):
        return problem.objective(x.reshape(shape))

    rules = [
        {"type": "eq", "fun": lambda x: x.reshape(shape).sum(axis=0) - parent},
        {"type": "ineq", "fun": lambda x: (at_most - x.reshape(shape) @ coefficients.T).ravel()},
    ]
    best = min(
        (
            minimize(objective, start.ravel(), bounds=[(0, None)] * target.size, constraints=rules, tol=1e-12)
            for start in (estimate, np.broadcast_to(parent / 3, shape))
        ),
        key=lambda answer: (not answer.success, answer.fun),
    )
    if found.status is Status.INFEASIBLE:
        assert not best.success
        return
    assert found.status is Status.OPTIMAL
    assert (found.x @ coefficients.T <= at_most + 1e-5).all()
    if best.success:
        assert objective(found.x) == pytest.approx(best.fun, rel=1e-5, abs=1e-5)


class Own:
    """A dense Hessian for each child."""

    def __init__(self, dense):
        self.dense = dense

    def apply(self, x):
        return np.einsum("cij,cj->ci", self.dense, x)

    def diagonal(self):
        return np.einsum("cii->ci", self.dense).copy()

    def blocks(self, cells):
        return self.dense[:, cells][:, :, cells]


def family_of_many_cells(seed):
    """Cells in three dimensions, half of them empty; the parent may keep its constraint just so."""
    rng = np.random.default_rng(seed)
    C, sides = int(rng.integers(2, 12)), rng.integers(2, 6, 3)
    n = int(sides.prod())
    at = np.array(np.unravel_index(np.arange(n), sides), np.int32)
    each, row, pair, one = np.arange(n, dtype=np.int32), at[0], at[1] * np.int32(sides[2]) + at[2], 0 * at[0]
    weights = float(rng.choice([0.01, 1.0, 30.0])), float(rng.choice([0.1, 5.0])), 1.0, 2.0
    terms = tuple(zip(weights, (each, row, pair, one), strict=True))
    truth = rng.poisson(rng.gamma(0.5, rng.choice([1, 10, 300]), (C, n)) * (rng.random((C, n)) < 0.5))
    coefficients = np.zeros((int(rng.integers(1, 3)), n), np.int64)
    for k in range(len(coefficients)):
        axis = int(rng.integers(0, 3))
        coefficients[k] = np.r_[1, rng.integers(-4, 4, sides[axis])[1:]][at[axis]]
    at_most = np.zeros((C, len(coefficients)), np.int64)
    linear = np.zeros((C, n))
    for weight, rows in terms:
        sums = np.stack([np.bincount(rows, counts) for counts in truth])
        linear += weight * (sums + rng.normal(0, weight**-0.5, sums.shape))[:, rows]
    parent = truth.sum(axis=0) + rng.random(n) * (rng.random() < 0.5)
    at_most[-1] = np.maximum(0, np.ceil(coefficients @ parent))
    size, hessians = rng.uniform(0.2, 5, C), None
    if rng.random() < 0.5:
        dense = sum(weight * (rows[:, None] == rows) for weight, rows in terms)
        hessians, linear = Own(size[:, None, None] * dense), size[:, None] * linear
    return FamilyProblem(terms, linear, parent=parent, hessians=hessians), coefficients, at_most


def test_cells_whose_counts_and_multipliers_are_nearly_zero_do_not_end_a_run():
    # The interior point leaves the last digits of these open: one such family in forty is like them.
    for seed in (13, 110, 127, 167, 183):
        problem, coefficients, at_most = family_of_many_cells(seed)
        found = solve_under(problem, coefficients, at_most, ("a", "b")[: len(coefficients)])
        assert found.status is Status.OPTIMAL, (seed, found.residual)


def test_a_family_that_keeps_them_anyway_has_the_bytes_of_the_ladder():
    _, parent, _, estimate = family(7, 3)
    problem = FamilyProblem(((1.0, EACH),), estimate + 0.3, parent=parent.astype(float))
    loose = np.full((3, 1), 1_000)
    found = solve_under(problem, np.array([[3, -2, 1]]), loose, ("loose",))
    assert found.method == solve(problem).method
    assert found.x.tobytes() == solve(problem).x.tobytes()


def made_family(at_most, *, lower=None, parent=(8, 2)):
    """Two children with people and households; seven people to a household."""
    children = len(at_most)
    linear = LinearSums(("seven",), np.array([[1, -7]]), np.array(at_most, dtype=np.int64)[:, None])
    low = np.zeros((children, 1), np.int64) if lower is None else np.array(lower)[:, None]
    constraints = LevelConstraints(low, low + 100, (), linear=linear)
    support = np.arange(2, dtype=np.int32)
    keys = np.arange(children, dtype=np.uint64)
    return Family("1", support, np.array(parent), constraints, keys, np.array([b"11", b"12"], "S2"))


RULES = LevelRules(
    "ward",
    ("people",),
    np.array([[True, False]]),
    np.ones(2, bool),
    (("detailed",),),
    ((("detailed", np.arange(2, dtype=np.int32)),),),
)


def measured(values):
    rows = np.arange(2, dtype=np.int32)
    answers = QueryAnswers("detailed", rows, rows, np.array(values, dtype=np.int64), 1.0)
    return FamilyMeasurement((answers,), np.ones(2))


def test_noise_that_breaks_the_constraint_is_brought_to_its_bound():
    found = estimate_family(made_family([0, 0]), RULES, measured([[8, 0], [0, 2]]))
    assert (found.counts @ np.array([1, -7]) <= 0).all()
    assert found.counts.sum(axis=0).tolist() == [8, 2]
    free = estimate_family(made_family([99, 99]), RULES, measured([[8, 0], [0, 2]]))
    assert free.counts.tolist() == [[8, 0], [0, 2]]
    assert free.record.methods == ("pdas",)


def test_people_that_cannot_be_housed_in_whole_households_are_named():
    # Seven people in all fit one household; four here and three there do not.
    family = made_family([0, 0], lower=[4, 3], parent=(7, 1))
    with pytest.raises(InfeasibleFamily) as error:
        estimate_family(family, RULES, measured([[4, 0], [3, 1]]))
    assert "ward 11: linear constraint seven <= 0" in str(error.value)
    relaxed, note = relax_parent(family, RULES, error.value)
    assert "relaxed by" in note
    again = estimate_family(relaxed, RULES, measured([[4, 0], [3, 1]]))
    assert (again.counts @ np.array([1, -7]) <= 0).all()


def small_world(seed):
    """Three leaves in two towns, a total that is exact, and two linear constraints."""
    rng = np.random.default_rng(seed)
    query = ("x", "detailed")[int(rng.integers(2))]
    labels = ("x0", "x1") if query == "x" else ("x0 * y0", "x0 * y1", "x1 * y0", "x1 * y1")
    linear = tuple(
        LinearConstraint(
            f"c{k}",
            query,
            {label: int(rng.integers(-3, 4)) for label in labels} | {labels[0]: int(rng.integers(1, 4))},
            int(rng.integers(-3, 3)),
            "rooms" if rng.random() < 0.5 else "",
        )
        for k in range(2)
    )
    level = ("region", "town", "block")[int(rng.integers(3))]
    product = Product(
        name="made",
        schema=Schema((Attribute("x", ("x0", "x1")), Attribute("y", ("y0", "y1")))),
        recodes=(),
        query_names=("total", "x", "detailed"),
        invariants=(Invariant("total", level),),
        bounds=(),
        structural_zeros=(),
        protected_unit="record",
        layout="made",
        passes=PassPlan({}, {}),
        linear=linear,
    )
    codes = np.array(["aab", "aac", "adb"], dtype="S3")
    units = {"rooms": rng.integers(0, 3, 3)}
    frame = Frame(codes, {"region": codes.astype("S1"), "town": codes.astype("S2")}, "block", units, {})
    size = {"region": 1, "town": 2, "block": 3}[level]
    return product, frame, {"total": rng.integers(0, 3, (size, 1))}


@pytest.mark.parametrize("seed", seeds(60))
def test_the_look_before_the_draw_is_that_of_every_input(seed):
    product, frame, answers = small_world(seed)
    spine = standard_spine(frame)
    table = bound_table(product, frame, spine, answers)
    leaf = table.levels[-1].linear
    most = int(answers["total"].sum())
    rows = np.array([row for row in itertools.product(range(most + 1), repeat=4) if sum(row) <= most])
    ways = [
        set(rows[(rows @ leaf.coefficients.T <= leaf.at_most[i]).all(axis=1)].sum(axis=1).tolist())
        for i in range(3)
    ]
    group = {1: (0, 0, 0), 2: (0, 0, 1), 3: (0, 1, 2)}[len(answers["total"])]
    wanted = answers["total"][:, 0].tolist()
    possible = any(
        [sum(n for n, g in zip(totals, group, strict=True) if g == k) for k in range(len(wanted))] == wanted
        for totals in itertools.product(*ways)
    )
    if possible:
        check_feasible(product, spine, table)
        return
    with pytest.raises(InfeasibleFamily, match="before anything is drawn"):
        check_feasible(product, spine, table)
