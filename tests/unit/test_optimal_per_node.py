"""Budgets per node: exact on every way through the tree, optimal, and refused where records are replaced."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from opendas.allocation.per_node import NodeAllocation, allocate_per_node
from opendas.errors import BudgetError, ConfigError, GeographyError, PrivacyError

TREE = [[0], [0, 0, 0], [0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 3, 4, 4, 4, 5]]


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    levels = [[0] * draw(st.integers(1, 2))]
    for _ in range(draw(st.integers(0, 3))):
        children = draw(st.lists(st.integers(1, 4), min_size=len(levels[-1]), max_size=len(levels[-1])))
        levels.append([node for node, count in enumerate(children) for _ in range(count)])
    return levels


def ways(tree: list[list[int]]) -> list[list[int]]:
    """Return the nodes on the way to each leaf, top first."""
    found = []
    for leaf in range(len(tree[-1])):
        way = [leaf]
        for level in range(len(tree) - 1, 0, -1):
            way.insert(0, tree[level][way[0]])
        found.append(way)
    return found


@settings(deadline=None)
@given(trees(), st.sampled_from(["laplace", "discrete-gaussian"]), st.sampled_from(["1/3", "2"]))
def test_every_way_from_root_to_leaf_spends_exactly_the_total(
    tree: list[list[int]], kind: str, total: str
) -> None:
    found = allocate_per_node(tree, kind, total, neighbours="unbounded")
    for way in ways(tree):
        assert sum(found.exact(level, node) for level, node in enumerate(way)) == Fraction(total)
    assert found.objective <= found.per_level * (1 + 1e-12)
    assert min(int(units.min()) for units in found.units) > 0


def error(found: NodeAllocation, costs: list[np.ndarray]) -> float:
    order, scale = (2, 2.0) if found.kind.loss_name == "epsilon" else (1, 0.5)
    return scale * sum(
        float(np.sum(cost / found.budgets(level) ** order)) for level, cost in enumerate(costs)
    )


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_no_other_budgets_are_better(kind: str) -> None:
    rng = np.random.default_rng(3)
    costs = [rng.uniform(0.2, 3, len(level)) for level in TREE]
    found = allocate_per_node(TREE, kind, "1.5", neighbours="unbounded", costs=costs)
    assert error(found, costs) == pytest.approx(found.objective, rel=1e-9)
    flat = np.concatenate(costs)
    offsets = np.cumsum([0, *(len(level) for level in TREE)])
    rows = np.zeros((len(TREE[-1]), len(flat)))
    for row, way in zip(rows, ways(TREE), strict=True):
        row[[offsets[level] + node for level, node in enumerate(way)]] = 1
    order, scale = (2, 2.0) if kind == "laplace" else (1, 0.5)
    answer = minimize(
        lambda logs: np.log(scale * np.sum(flat / np.exp(logs) ** order)),
        np.log(np.full(len(flat), 1.5 / 4)),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda logs: 1.5 - rows @ np.exp(logs)},
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    assert np.exp(answer.fun) == pytest.approx(found.objective, rel=1e-7)


def test_a_regular_tree_gains_nothing_over_budgets_per_level() -> None:
    found = allocate_per_node([[0], [0, 0], [0, 0, 1, 1]], "laplace", 1, neighbours="unbounded")
    assert found.objective == pytest.approx(found.per_level, rel=1e-12)
    np.testing.assert_allclose(found.budgets(1)[0], found.budgets(1)[1], rtol=1e-12)


def test_a_node_without_cost_hands_everything_down() -> None:
    costs = [np.ones(1), np.array([0.0, 1, 1]), np.ones(6), np.ones(9)]
    found = allocate_per_node(TREE, "gaussian", 1, neighbours="unbounded", costs=costs)
    assert found.exact(1, 0) == 0
    assert found.exact(1, 1) > 0


def test_replaced_records_are_refused() -> None:
    with pytest.raises(PrivacyError, match="unbounded neighbours") as caught:
        allocate_per_node(TREE, "laplace", 1, neighbours="bounded")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([], "at least one level"),
        ([[0], []], "list of node numbers"),
        ([[0], [0.5]], "list of node numbers"),
        ([[0], [1]], "not a node of the level above"),
        ([[0], [-1]], "not a node of the level above"),
        ([[0, 0], [0, 0]], "has no child"),
    ],
)
def test_what_is_no_tree_is_refused(tree: list[list[int]], said: str) -> None:
    with pytest.raises(GeographyError, match=said):
        allocate_per_node(tree, "laplace", 1, neighbours="unbounded")


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ([[1]], "1 levels were given for 2"),
        ([[1], [1]], "2 nodes and 1 costs"),
        ([[1], [1, -1]], "negative or not finite"),
        ([[1], [1, np.nan]], "negative or not finite"),
        ([[1], [1, 0]], "every leaf"),
    ],
)
def test_costs_fit(costs: list[list[float]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        allocate_per_node([[0], [0, 0]], "laplace", 1, neighbours="unbounded", costs=costs)


def test_a_total_is_positive() -> None:
    with pytest.raises(BudgetError, match="not positive"):
        allocate_per_node([[0]], "laplace", 0, neighbours="unbounded")
