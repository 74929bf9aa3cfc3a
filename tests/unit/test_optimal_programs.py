"""Programs (6) and (7): against a general optimiser, by their optimality conditions, and at bad input."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize
from support.clamped_slopes import clamped_curvature, clamped_slope
from support.each import each

from opendas.allocation import (
    Allocation,
    CountHistogram,
    Level,
    NoiseKind,
    allocate_target,
    allocate_total,
    clamped_moments,
    errors_at,
    power_rule,
    unknown_counts,
)
from opendas.allocation.integer_gaussian import WIDE_RHO
from opendas.allocation.programs_6_7 import weighted
from opendas.allocation.separable import Separable
from opendas.errors import BudgetError, ConfigError, DataError, FormatError
from opendas.privacy.relations import Neighbours

ALL = list(NoiseKind)
TREE = {"state": [900], "tract": [400, 300, 0, 200], "block": [0] * 9 + [1, 2, 3, 5, 8, 13] * 4 + [90, 190]}


def tree() -> list[Level]:
    return [Level(name, CountHistogram.of(counts)) for name, counts in TREE.items()]


def slow_slope(kind: NoiseKind, counts: list[int], budget: float, factor: float) -> float:
    """Return the sum over single nodes."""
    return math.fsum(factor * float(clamped_slope(kind, budget * factor, [count])[0]) for count in counts)


def scaled_gap(allocation: Allocation, factor: float) -> float:
    """Return the largest relative difference of weighted slopes, which are all equal at the optimum."""
    slopes = [
        weight * slow_slope(allocation.kind, counts, budget, factor)
        for counts, budget, weight in zip(TREE.values(), allocation.budgets, allocation.weights, strict=True)
        if weight > 0
    ]
    return max(abs(slope / -allocation.multiplier - 1) for slope in slopes)


@each("neighbours", ["unbounded", "bounded"])
@each("weights", [None, (3, 0.5, 1)])
@each("total", ["0.001", "1", "12"])
@each("kind", ALL)
def test_program_6_has_equal_slopes_and_spends_everything(
    kind: NoiseKind, total: str, weights: tuple[float, ...] | None, neighbours: str
) -> None:
    found = allocate_total(tree(), kind, total, weights, neighbours)
    assert scaled_gap(found, 0.5 if neighbours == "bounded" else 1.0) < 1e-11
    assert math.fsum(found.budgets) == pytest.approx(float(total), rel=1e-14)
    assert sum(found.exact) == Fraction(total)
    assert found.total == Fraction(total)
    for exact, budget in zip(found.exact, found.budgets, strict=True):
        assert float(exact) == pytest.approx(budget, rel=1e-6)


@each("budget", [1e-6, 3e-4, WIDE_RHO, 6e-4, 0.02, 0.9, 7.0, 400.0])
@each("kind", ALL)
def test_compiled_sums_over_levels_are_the_sums_over_nodes(kind: NoiseKind, budget: float) -> None:
    rng = np.random.default_rng(11)
    spread = 1 / budget if kind.loss_name == "epsilon" else 1 / math.sqrt(budget)
    near = (rng.exponential(3 * spread, 500)).astype(np.int64)
    levels = [Level("a", CountHistogram.of(near)), Level("b", CountHistogram.of([0, 0, 3, 10**12]))]
    problem = Separable(levels, kind, Neighbours.BOUNDED, np.array([0.3, 7.0]))
    budgets = np.array([budget, budget * 1.1])
    log_slopes, rates = problem.log_slopes(np.log(budgets))
    error = 0.0
    for number, level in enumerate(levels):
        half, values, mult = budgets[number] / 2, level.counts.values, level.counts.mult
        weight = float(problem.weights[number])
        slope = np.dot(mult, clamped_slope(kind, half, values))
        curvature = np.dot(mult, clamped_curvature(kind, half, values))
        assert math.exp(log_slopes[number]) == pytest.approx(-weight * slope / 2, rel=1e-11, abs=1e-300)
        if slope:
            assert rates[number] == pytest.approx(half * curvature / slope, rel=1e-10)
        error += weight * np.dot(mult, clamped_moments(kind, half, values).mse)
    assert problem.objective(budgets) == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("total", [0.05, 2.0])
def test_program_6_agrees_with_a_general_optimiser(kind: NoiseKind, total: float) -> None:
    levels, weights = tree(), (1.0, 2.0, 0.7)
    found = allocate_total(levels, kind, Fraction(total), weights)

    def objective(logs: np.ndarray) -> float:
        budgets = np.exp(logs)
        return math.log(weighted(errors_at(levels, kind, budgets.tolist()), weights) / found.objective)

    answer = minimize(
        objective,
        np.log(np.full(3, total / 3)),
        method="SLSQP",
        constraints={"type": "eq", "fun": lambda logs: np.exp(logs).sum() / total - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert answer.fun == pytest.approx(0.0, abs=1e-9)
    assert answer.fun > -1e-9
    np.testing.assert_allclose(np.exp(answer.x), found.budgets, rtol=1e-3)


@pytest.mark.parametrize("kind", [NoiseKind.LAPLACE, NoiseKind.DISCRETE_GAUSSIAN])
def test_program_7_agrees_with_a_general_optimiser(kind: NoiseKind) -> None:
    levels, target = tree(), 500.0
    found = allocate_target(levels, kind, "500")

    def error(logs: np.ndarray) -> float:
        return weighted(errors_at(levels, kind, np.exp(logs).tolist()), (1.0,) * 3)

    answer = minimize(
        lambda logs: float(np.exp(logs).sum() / sum(found.budgets)),
        np.log(found.budgets) + np.array([0.3, -0.2, 0.4]),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda logs: math.log(target / error(logs))},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert answer.fun == pytest.approx(1.0, abs=1e-8)


@each("total", ["0.00001", "0.5", "3", "60", "900"])
@each("kind", ALL)
def test_program_7_is_the_inverse_of_program_6(kind: NoiseKind, total: str) -> None:
    first = allocate_total(tree(), kind, total, (1, 2, 3))
    target = Fraction(first.objective)
    second = allocate_target(tree(), kind, target, (1, 2, 3))
    assert math.fsum(second.budgets) == pytest.approx(float(total), rel=1e-10)
    assert sum(second.exact) >= Fraction(math.fsum(second.budgets))
    exact = errors_at(tree(), kind, second.exact)
    assert weighted(exact, (1, 2, 3)) <= target
    assert second.total == pytest.approx(float(total), rel=1e-6)


@pytest.mark.parametrize("kind", [NoiseKind.DISCRETE_LAPLACE, NoiseKind.DISCRETE_GAUSSIAN])
def test_at_enormous_budgets_slopes_are_equal_though_no_double_holds_them(kind: NoiseKind) -> None:
    levels = [unknown_counts("a", 1), unknown_counts("b", 10**6), unknown_counts("c", 10**12)]
    budgets = allocate_total(levels, kind, "9000").budgets
    # V = 2 exp(-b) up to far smaller terms, so that n exp(-b) is the same for all
    assert budgets[1] - budgets[0] == pytest.approx(math.log(10**6), rel=1e-9)
    assert budgets[2] - budgets[1] == pytest.approx(math.log(10**6), rel=1e-9)


def test_errors_below_all_doubles_are_zero_and_not_unbounded() -> None:
    found = allocate_total(tree(), "discrete-laplace", "9000").to_dict()
    assert found["objective"] == 0
    assert found["uniform"]["allocation"] == pytest.approx([3000] * 3, rel=1e-12)
    assert [row["unbounded"] for row in found["levels"]] == [False] * 3


def test_a_level_with_weight_zero_gets_nothing_and_its_error_is_unbounded() -> None:
    found = allocate_total(tree(), "gaussian", "1", (0, 1, 1))
    assert found.budgets[0] == 0
    assert found.exact[0] == 0
    row = found.levels[0]
    assert row.unbounded
    assert row.to_dict() == {
        "name": "state",
        "bias2": None,
        "variance": None,
        "mse": None,
        "unbounded": True,
    }
    assert math.isfinite(found.objective)
    alone = allocate_total(tree()[1:], "gaussian", "1")
    assert found.budgets[1:] == alone.budgets


def test_a_level_that_is_published_exactly_gets_nothing_and_has_no_error() -> None:
    levels = tree()
    levels[0] = Level("state", levels[0].counts, fixed=True)
    found = allocate_total(levels, "discrete-gaussian", "1/2", neighbours="bounded")
    assert found.exact[0] == 0
    assert found.levels[0].mse == 0.0
    assert not found.levels[0].unbounded
    assert found.to_dict()["uniform"]["allocation"] == [0.0, 0.25, 0.25]


@pytest.mark.parametrize("kind", ALL)
def test_bounded_neighbours_need_twice_the_budget(kind: NoiseKind) -> None:
    one = allocate_total(tree(), kind, "1")
    two = allocate_total(tree(), kind, "2", neighbours="bounded")
    np.testing.assert_allclose(two.budgets, 2 * np.array(one.budgets), rtol=1e-12)
    assert two.objective == pytest.approx(one.objective, rel=1e-12)


@pytest.mark.parametrize("kind", [NoiseKind.LAPLACE, NoiseKind.GAUSSIAN])
def test_by_nodes_alone_continuous_noise_follows_the_power_rule(kind: NoiseKind) -> None:
    nodes = {"a": 1, "b": 244, "c": 25181}
    levels = [unknown_counts(name, number) for name, number in nodes.items()]
    found = allocate_total(levels, kind, "2", (1, 0.5, 2))
    np.testing.assert_allclose(
        found.budgets, power_rule(list(nodes.values()), kind, 2.0, (1, 0.5, 2)), rtol=1e-12
    )
    assert found.levels[2].to_dict()["before_clamping"] is True


@pytest.mark.parametrize(("kind", "total"), [("discrete-laplace", 20), ("discrete-gaussian", 10)])
def test_the_power_rule_fails_for_whole_number_noise_at_large_budgets(kind: str, total: int) -> None:
    nodes = [1, 244, 25181]
    levels = [unknown_counts(str(n), n) for n in nodes]
    best = allocate_total(levels, kind, total)
    rule = weighted(errors_at(levels, kind, power_rule(nodes, kind, total)), (1.0,) * 3)
    assert rule > 2 * best.objective


def test_the_power_rule_is_within_twice_the_optimum() -> None:
    for kind in ALL:
        best = allocate_total(tree(), kind, "0.7")
        nodes = [len(counts) for counts in TREE.values()]
        rule = weighted(errors_at(tree(), kind, power_rule(nodes, kind, 0.7)), (1.0,) * 3)
        assert best.objective * (1 - 1e-12) <= rule < 1.06 * best.objective


def test_errors_are_sums_over_nodes() -> None:
    rows = errors_at(tree(), "discrete-laplace", (0.2, 0.5, 1.1))
    for row, counts, budget in zip(rows, TREE.values(), (0.2, 0.5, 1.1), strict=True):
        each = [clamped_moments("discrete-laplace", budget, [count]) for count in counts]
        assert row.bias2 == pytest.approx(sum(m.bias[0] ** 2 for m in each), rel=1e-12)
        assert row.variance == pytest.approx(sum(m.variance[0] for m in each), rel=1e-12)
        assert row.mse == pytest.approx(sum(m.mse[0] for m in each), rel=1e-12)


def test_a_histogram_counts_nodes_in_any_order_and_form() -> None:
    counts = [5, 0, 3, 3, 10**9, 0, 7, 10**9]
    found = CountHistogram.of(counts)
    assert found.values.tolist() == [0, 3, 5, 7, 10**9]
    assert found.mult.tolist() == [2, 2, 1, 1, 2]
    merged = CountHistogram(np.array([3, 0, 3]), np.array([1, 2, 4]))
    assert merged.values.tolist() == [0, 3]
    assert merged.mult.tolist() == [2, 5]
    assert CountHistogram(np.array([1, 2]), np.array([0, 9])).nodes == 9
    assert CountHistogram.of(np.array([2.0, 2.0])).values.dtype == np.int64


@pytest.mark.parametrize("bad", [[-1], [1, 2.5], [math.nan], [math.inf], ["x"], [2**54], [None], [True]])
def test_a_count_is_a_whole_number(bad: list[object]) -> None:
    with pytest.raises(FormatError, match="counts"):
        CountHistogram.of(bad)  # type: ignore[arg-type]


def test_an_empty_level_is_refused() -> None:
    with pytest.raises(DataError, match="at least one node"):
        CountHistogram.of([])
    with pytest.raises(DataError, match="at least one node"):
        CountHistogram(np.array([4]), np.array([0]))
    with pytest.raises(FormatError, match="one length"):
        CountHistogram(np.array([4]), np.array([1, 2]))
    with pytest.raises(FormatError, match="positive whole number"):
        unknown_counts("a", 0)


@pytest.mark.parametrize("bad", ["0", "-1", "1e-13", "1e16"])
def test_a_total_is_positive_and_of_use(bad: str) -> None:
    with pytest.raises(BudgetError, match="total"):
        allocate_total(tree(), "laplace", bad)


@pytest.mark.parametrize("bad", ["0", "-3", "1e-40", "1e40", "1e999"])
def test_a_target_can_be_met(bad: str) -> None:
    with pytest.raises(BudgetError, match="mse"):
        allocate_target(tree(), "laplace", bad)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((1, 1), "2 were given for 3"),
        ((0, 0, 0), "every level has weight 0"),
        ((1, -1, 1), "number 2 is -1"),
        ((1, math.nan, 1), "number 2 is nan"),
        ((1, math.inf, 1), "number 2 is inf"),
        ((1, 1e-40, 1), "30 orders"),
        ((1, 1e-200, 1), "between 1e-100"),
    ],
)
def test_weights_fit(weights: tuple[float, ...], said: str) -> None:
    with pytest.raises(BudgetError, match=said):
        allocate_total(tree(), "laplace", "1", weights)


def test_names_are_known_and_there_once() -> None:
    twice = [tree()[0], tree()[0]]
    with pytest.raises(ConfigError, match="'state' appears twice"):
        allocate_total(twice, "laplace", "1")
    with pytest.raises(ConfigError, match="there is none"):
        allocate_total([], "laplace", "1")
    with pytest.raises(ConfigError, match="neighbours"):
        allocate_total(tree(), "laplace", "1", neighbours="next door")
    with pytest.raises(ConfigError, match="binary floating-point"):
        allocate_total(tree(), "laplace", 0.1)  # type: ignore[arg-type]


def test_an_array_that_is_no_counts_is_named() -> None:
    import opendas

    found = opendas.allocate({"a": [1, 2, 3], "b": 7}, "laplace", total="1")
    assert [row.known for row in found.levels] == [True, False]
    for bad in ([], [1.5], [-1]):
        with pytest.raises(DataError, match="level 'a'"):
            opendas.allocate({"a": bad}, "laplace", total=1)
    with pytest.raises(FormatError, match="level 'a'"):
        opendas.allocate({"a": -1}, "laplace", total=1)
    with pytest.raises(ConfigError, match="not both"):
        opendas.allocate({"a": 1}, "laplace")
