"""The experiment on allocations by numbers of nodes: its arithmetic on a small hierarchy."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from opendas.allocation import CountHistogram, Level, allocate_total

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_losses_are_relative_to_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    rules = importlib.import_module("allocation_rules")
    levels = [Level("a", CountHistogram.of([90])), Level("b", CountHistogram.of([0] * 40 + [3] * 30))]
    best = allocate_total(levels, "laplace", "2")
    assert rules.loss(levels, "laplace", best.budgets, best.objective) == pytest.approx(0, abs=1e-12)
    rows = rules.count_only(levels)
    assert {row["mechanism"] for row in rows} == set(rules.TOTALS)
    assert all(row["uniform"] >= row["exact"] - 1e-12 for row in rows)
    large = [row for row in rows if row["mechanism"] == "discrete-laplace" and row["total"] == "40"]
    assert large[0]["power"] > 10 * large[0]["exact"] >= 0
