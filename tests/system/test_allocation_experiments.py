"""The experiments on allocations: their estimators, the downstream task, and a short run of the script."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.data import shared_data

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Return a function that imports an experiment by name."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.fixture
def tree(script):
    """A state with two tracts of three and four blocks; one block is empty."""
    trees = script("allocation_trees")
    blocks = np.array(["1A1", "1A2", "1A3", "1B1", "1B2", "1B3", "1B4"])
    codes = [blocks.astype("U1"), blocks.astype("U2"), blocks]
    return trees.Tree.of("made", ("state", "tract", "block"), codes, np.array([5, 0, 30, 8, 2, 1, 60]))


def test_counts_follow_the_order_of_codes(script) -> None:
    trees = script("allocation_trees")
    blocks = np.array(["1B1", "1A2", "1A1"])
    made = trees.Tree.of(
        "m", ("a", "b", "c"), [blocks.astype("U1"), blocks.astype("U2"), blocks], np.array([9, 2, 1])
    )
    assert [counts.tolist() for counts in made.counts] == [[12], [3, 9], [1, 2, 9]]
    assert made.below(0).counts[1].tolist() == [1, 2]
    assert made.sizes == "1 a / 2 b / 3 c"


def test_squared_bias_is_estimated_without_its_own_noise(script) -> None:
    """Errors with a known bias and variance: the corrected estimate is right, the naive one is not."""
    carlo = script("allocation_monte_carlo")
    rng = np.random.default_rng(1)
    errors = carlo.Errors(2000)
    for batch in range(carlo.BATCHES):
        errors.add(batch, 0.05 + rng.normal(0.0, 3.0, (10, 2000)))
    assert abs(errors.bias2().value - 2000 * 0.05**2) < 4 * errors.bias2().error
    assert errors.bias2().error < 15
    assert errors.naive_bias2() == pytest.approx(2000 * (0.05**2 + 9 / 200), rel=0.05)
    assert abs(errors.variance().value - 18_000) < 4 * errors.variance().error
    assert errors.mse().value == pytest.approx(18_005, rel=0.02)


def test_squared_bias_by_hand(script) -> None:
    """Over all pairs of different runs, the mean product of their errors."""
    carlo = script("allocation_monte_carlo")
    values = np.random.default_rng(2).normal(1.0, 1.0, (40, 3))
    errors = carlo.Errors(3)
    for run, row in enumerate(values):
        errors.add(run % carlo.BATCHES, row)
    pairs = [values[i] @ values[j] for i in range(40) for j in range(40) if i != j]
    assert errors.bias2().value == pytest.approx(np.mean(pairs))
    assert errors.variance().value == pytest.approx(values.var(axis=0, ddof=1).sum())
    assert errors.mse(slice(0, 1)).value == pytest.approx((values[:, 0] ** 2).mean())


def test_simulation_meets_the_closed_forms(script, tree) -> None:
    from opendas.allocation import errors_at

    carlo = script("allocation_monte_carlo")
    budgets = (0.2, 0.3, 0.5)
    found = carlo.simulate(tree, budgets, 4000, 3, ("top-down", "bottom-up"))
    for row, part in zip(errors_at(tree.levels, "laplace", budgets), found.levels, strict=True):
        for name in ("bias2", "variance", "mse"):
            estimate = getattr(found.errors["none"], name)(part)
            assert abs(estimate.value - getattr(row, name)) < 5 * estimate.error + 1e-9
    top, none = found.errors["top-down"], found.errors["none"]
    assert top.mse(found.levels[0]).value == none.mse(found.levels[0]).value
    bottom = found.errors["bottom-up"]
    assert bottom.mse(found.levels[2]).value == none.mse(found.levels[2]).value
    cases = script("allocation_cases")
    exact = cases.bottom_up_mse(tree, budgets)
    assert abs(bottom.mse().value - exact) < 5 * bottom.mse().error


def test_money_is_shared_out(script) -> None:
    carlo = script("allocation_monte_carlo")
    counts = np.array([[30.0, 10.0, 0.0], [0.0, 0.0, 0.0]])
    for name, weight in carlo.WEIGHTS.items():
        found = carlo.allocated(counts, weight)
        np.testing.assert_allclose(found.sum(axis=1), 100)
        np.testing.assert_allclose(found[1], 100 / 3)
        if name == "linear":
            np.testing.assert_allclose(found[0], [75, 25, 0])
        if name == "quadratic":
            np.testing.assert_allclose(found[0], [90, 10, 0])


def test_downstream_runs_are_those_of_the_tree(script, tree) -> None:
    """Many runs at once, as families of one projection, against one run at a time."""
    carlo = script("allocation_monte_carlo")
    budgets = (0.5, 0.5, 1.0)
    fast = carlo.downstream(tree, 1, budgets, 4000, 5)["linear"]
    slow = carlo.Errors(4)
    noisy = carlo.simulate(tree, budgets, 1, 0, ())  # the tree has the order of blocks that is meant
    assert list(noisy.levels)[2] == slice(3, 10)
    rng = np.random.default_rng(6)
    exact = carlo.allocated(tree.counts[2][None, 3:].astype(float), carlo.WEIGHTS["linear"])
    for run in range(2000):
        parts = [c + rng.laplace(0, 1 / b, len(c)) for c, b in zip(tree.counts, budgets, strict=True)]
        blocks = carlo.post_process(tree.hierarchy, parts)[2][None, 3:]
        slow.add(run % carlo.BATCHES, carlo.allocated(blocks, carlo.WEIGHTS["linear"]) - exact)
    for name in ("bias2", "variance"):
        one, other = getattr(fast, name)(), getattr(slow, name)()
        assert abs(one.value - other.value) < 5 * np.hypot(one.error, other.error)


def test_estimates_are_written_with_the_digits_they_have(script) -> None:
    estimate = script("allocation_monte_carlo").Estimate
    assert str(estimate(1234.567, 12.3)) == "1,235 ± 12"
    assert str(estimate(0.012345, 0.00123)) == "0.0123 ± 0.0012"
    cases = script("allocation_cases")
    assert cases.ratio(estimate(4.0, 0.1), estimate(2.0, 0.1)) == "2.00 ± 0.11"
    assert cases.ratio(estimate(4.0, 0.1), estimate(0.2, 0.1)) == "–"


def test_theorem_4_holds_for_bias_and_not_for_error(script) -> None:
    cases = script("allocation_cases")
    for regions in (2, 3):
        bias, mse = cases.skew(regions, "bias"), cases.skew(regions, "mse")
        even, *others = bias.values()
        assert all(np.all(np.array(other) >= even) for other in others)
        even, *_, extreme = mse.values()
        assert extreme[-1] < even[-1]
        assert extreme[0] > even[0]


def test_a_short_run_on_real_data(script, tmp_path) -> None:
    """The reference: all blocks of Rhode Island, epsilon 2, the optimum and the uniform allocation."""
    data = shared_data("pl94_2010_ri/ri2010.pl.zip").parents[1]
    trees, cases = script("allocation_trees"), script("allocation_cases")
    island = trees.rhode_islands(data, tmp_path)
    assert [one.hierarchy.sizes for one in island.values()] == [
        (1, 244, 25_181), (1, 241, 17_850), (1, 241, 17_644),
    ]  # fmt: skip
    assert {int(one.counts[0][0]) for one in island.values()} == {1_052_567}
    compared = cases.Comparison(island["all"], (2.0,), 20, 1)
    assert sum(compared.closed["optimal"][0]) == pytest.approx(21_371, rel=1e-4)
    assert compared.closed["uniform"][0][1] / compared.closed["optimal"][0][1] == pytest.approx(
        4.456, rel=1e-3
    )
    plain = json.dumps(compared.plain(), allow_nan=False)
    assert "Rhode Island" in plain
    assert compared.table().count("\n") == 3
    assert compared.ratios().count("\n") == 2
    assert [round(sum(row), 3) for row in cases.targets(island["all"])][3] == 2.068
