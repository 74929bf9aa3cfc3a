"""The exact curve against a peer library's composition of the same discrete Gaussians."""

from __future__ import annotations

import csv
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from opendas.budget import BudgetSpec, resolve_budget
from opendas.privacy.composed import ComposedLoss
from opendas.random.distributions import DiscreteGaussian

with Path(__file__).with_name("exact_loss_dp_accounting.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))
CASES = sorted({row["answers"] for row in ROWS})


def answers(text: str) -> dict[tuple[DiscreteGaussian, int], int]:
    found = {}
    for part in text.split():
        count, _, sigma2 = part.partition("x")
        found[DiscreteGaussian(Fraction(sigma2)), 1] = int(count)
    return found


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_peer_agrees(case: str) -> None:
    """It rounds every loss up to a grid of step 5e-5: it lies above, by half a step an answer or so."""
    loss = ComposedLoss.of(answers(case), 1 << 17)  # type: ignore[arg-type]
    rows = [row for row in ROWS if row["answers"] == case]
    assert len(rows) == 3
    for row in rows:
        bounds = loss.epsilon(row["delta"])
        peer, step = float(row["epsilon"]), float(row["step"])
        assert bounds.gap < 3e-4
        assert bounds.lower < peer + 1e-9
        assert peer < bounds.upper + step * (1 + sum(answers(case).values()))


def test_the_long_case_is_the_production_plan() -> None:
    levels = ["us", "state", "county", "tract", "block_group", "block"]
    budget = resolve_budget(BudgetSpec(preset="us2020-persons"), levels)
    noise = Counter(
        budget.distribution(level, query) for level in levels for query in budget.queries.get(level, {})
    )
    longest = max(CASES, key=len)
    assert answers(longest) == {(law, 1): 2 * count for law, count in noise.items()}
