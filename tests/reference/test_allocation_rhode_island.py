"""Allocations of Rhode Island 2010 beside figures that were computed by other programs, from other code."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.data import shared_data

from opendas.allocation import Level, allocate_target, allocate_total

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> list[Level]:
    archive = shared_data("pl94_2010_ri/ri2010.pl.zip")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS))
        trees = importlib.import_module("allocation_trees")
        found = trees.rhode_islands(archive.parents[1], tmp_path_factory.mktemp("ri"))
    made: list[Level] = found["all"].levels
    assert [level.counts.nodes for level in made] == [1, 244, 25_181]
    return made


def test_program_6_at_epsilon_2(levels: list[Level]) -> None:
    found = allocate_total(levels, "laplace", 2)
    assert [round(budget, 3) for budget in found.budgets] == [0.057, 0.357, 1.586]
    assert round(found.objective) == 21_371


@pytest.mark.parametrize(("lowest", "total"), [(0.05, 27_182), (0.7, 24_626), (0.9, 35_964), (0.99, 114_651)])
def test_the_ablation_of_weights(levels: list[Level], lowest: float, total: int) -> None:
    """Weights that sum to one, the two upper levels alike; the error is the unweighted sum."""
    weights = ((1 - lowest) / 2, (1 - lowest) / 2, lowest)
    found = allocate_total(levels, "laplace", 2, weights)
    assert round(sum(row.mse or 0 for row in found.levels)) == total


def test_program_7_at_a_target_of_20000(levels: list[Level]) -> None:
    found = allocate_target(levels, "laplace", 20_000)
    assert float(found.total) == pytest.approx(2.068, abs=5e-4)


@pytest.mark.parametrize(
    ("kind", "total", "excess"),
    [("discrete-laplace", 8, 0.32), ("discrete-laplace", 20, 15), ("discrete-gaussian", 10, 1.3)],
)
def test_the_power_rule_at_large_budgets(levels: list[Level], kind: str, total: int, excess: float) -> None:
    from opendas.allocation import errors_at, power_rule

    best = allocate_total(levels, kind, total)
    rule = errors_at(levels, kind, power_rule([1, 244, 25_181], kind, total))
    assert sum(row.mse or 0 for row in rule) / best.objective - 1 == pytest.approx(excess, rel=0.05)
