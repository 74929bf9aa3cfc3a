"""The exact curve against a peer library's composition of the same discrete Gaussians, and by quadrature."""

from __future__ import annotations

import csv
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from opendas.budget import BudgetSpec, resolve_budget
from opendas.privacy.composed import ComposedLoss
from opendas.sampling.laws import DiscreteGaussian

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


def quadrature(changes: dict[tuple[DiscreteGaussian, int], int], epsilon: float, tilt: float) -> float:
    """Delta as an integral of the moment generating function along a vertical line; no grid of losses.

    ``(1 / 2 pi) int M(t + iu) exp(-(t + iu) epsilon) / ((t + iu)(t + iu + 1)) du`` by the trapezoidal rule.
    With many spacings the integrand has died out long before the end of the range.
    """
    step, end = 0.06, 48.0
    z = tilt + 1j * np.arange(0.0, end, step)
    log_moment = np.zeros(len(z), dtype=np.complex128)
    for (noise, _), count in changes.items():
        sigma2 = float(noise.sigma2)
        x = np.arange(-math.ceil(13 * math.sqrt(sigma2)) - 1, math.ceil(13 * math.sqrt(sigma2)) + 2)
        weight = np.exp(-(x**2) / (2 * sigma2))
        weight /= weight.sum()
        log_moment += count * np.log(np.exp(np.outer(z, (1 - 2 * x) / (2 * sigma2))) @ weight)
    integrand = (np.exp(log_moment - z * epsilon) / (z * (z + 1))).real
    assert abs(integrand[-200:]).max() < 1e-9 * integrand[0]
    return float((integrand[0] / 2 + integrand[1:].sum()) * step / math.pi)


@pytest.mark.parametrize(("epsilon", "tilt"), [(2.0, 0.8), (16.465, 3.0)])
def test_the_production_plan_by_quadrature(epsilon: float, tilt: float) -> None:
    changes = answers(max(CASES, key=len))
    exact = quadrature(changes, epsilon, tilt)
    bounds = ComposedLoss.of(changes).delta_at(epsilon)  # type: ignore[arg-type]
    assert bounds.lower <= exact * (1 + 1e-9)
    assert exact <= bounds.upper * (1 + 1e-9)
    assert bounds.gap < 3e-4 * exact
