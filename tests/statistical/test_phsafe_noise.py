"""The noise of the household tables: right law at every level, and no two levels share it.

Keys are fixed, so every p-value is a constant. With n residuals a scale 20 % off moves the chi-squared
statistic by about ``0.04 n`` or more; the smallest n below is 4,000, which puts it at 160 above a mean of at
most 80, whose standard deviation is below 13.
"""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.households import configuration
from support.noise import pmf

from opendas.arrays import Ints
from opendas.custody.run_key import RunKey
from opendas.phsafe.config import Mode, Plan, parse_config
from opendas.phsafe.measure import measure
from opendas.phsafe.output import OutputTable
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise

RUNS = 250
REJECT = 1e-4
TAG = "00" * 32
Residuals = dict[tuple[str, str], NDArray[np.int64]]


def plan_of(definition: str, without: tuple[str, ...] = ()) -> Plan:
    # Noise of a standard deviation of a few counts, so that bins hold single values.
    persons, units = (8.0, 0.25) if definition == "zcdp" else (8.0, 1.0)
    document = configuration(persons, 10, definition=definition, without=without)
    for name, levels in document["privacy_budget"].items():  # type: ignore[attr-defined]
        if name.endswith("denom"):
            levels.update(dict.fromkeys(levels, units))
    return Plan(parse_config(json.dumps(document), Mode.PRIVATE))


def nothing_counted(plan: Plan, keys: dict[str, bytes]) -> dict[str, Ints]:
    return {
        table.name: np.zeros((2, *((8, 3) if table.has_groups else (1, 1)), len(table.cells)), np.int64)
        for table in plan.config.tables
        if table.name in plan.config.budgets
    }


def noisy(plan: Plan, seed: int) -> tuple[OutputTable, ...]:
    return measure(plan, nothing_counted, RunKey.seeded(seed), TAG)


@pytest.fixture(scope="module", params=["zcdp", "puredp"])
def drawn(request: pytest.FixtureRequest) -> tuple[Plan, Residuals]:
    plan = plan_of(request.param)
    collected = defaultdict(list)
    for seed in range(RUNS):
        for table in noisy(plan, seed):
            for block in table.blocks:
                collected[table.name, block.level.name].append(block.counts.ravel())
    return plan, {name: np.stack(rows) for name, rows in collected.items()}


def p_value(values: NDArray[np.int64], law: Noise) -> float:
    """Chi-squared of values against a law, in bins that expect at least 5."""
    reach = next(m for m in range(10**4) if pmf(law, m) * len(values) < 5)
    inside = np.arange(-reach + 1, reach)
    seen = np.array([np.sum(values == k) for k in inside] + [np.sum(np.abs(values) >= reach)])
    chances = np.array([pmf(law, int(k)) for k in inside])
    chances = np.append(chances, 1 - chances.sum()) * len(values)
    return float(stats.chi2.sf(((seen - chances) ** 2 / chances).sum(), len(seen) - 1))


def wider(law: Noise) -> Noise:
    if isinstance(law, DiscreteGaussian):
        return DiscreteGaussian(law.sigma2 * Fraction(144, 100))
    return DiscreteLaplace(law.scale * Fraction(12, 10))


def test_every_level_follows_its_law(drawn: tuple[Plan, Residuals]) -> None:
    plan, residuals = drawn
    large = 0
    for noise in plan.noise:
        values = residuals[noise.table, noise.level].ravel()
        assert noise.law is not None
        assert p_value(values, noise.law) > REJECT, (noise.table, noise.level)
        if len(values) >= 4000:
            large += 1
            assert p_value(values, wider(noise.law)) < REJECT, (noise.table, noise.level)
    assert large == 11


def test_no_two_counts_share_noise(drawn: tuple[Plan, Residuals]) -> None:
    plan, residuals = drawn
    measured = [residuals[noise.table, noise.level] for noise in plan.noise]
    counts = np.concatenate(measured, axis=1)
    assert counts.shape[1] == sum(table.shape[1] for table in measured) > 600
    correlation = np.corrcoef(counts.T)
    np.fill_diagonal(correlation, 0)
    # Of 300,000 pairs the largest of independent ones is about 4.8 / sqrt(RUNS); a shared word gives 1.
    assert np.abs(correlation).max() < 6.5 / np.sqrt(RUNS)


def test_derived_tables_have_the_noise_of_their_source(drawn: tuple[Plan, Residuals]) -> None:
    _, residuals = drawn
    assert np.array_equal(residuals["PH5_num", "usa_A-G"], residuals["PH4", "usa_A-G"])
    people = residuals["PH7", "state_H,I"].reshape(RUNS, -1, 3)
    tenure = residuals["PH8_num", "state_H,I"].reshape(RUNS, -1, 2)
    assert np.array_equal(tenure[..., 0], people[..., 0] + people[..., 1])
    assert np.array_equal(tenure[..., 1], people[..., 2])


@pytest.mark.parametrize("change", ["key", "input", "plan"])
def test_noise_is_bound_to_key_input_and_plan(change: str) -> None:
    plan = plan_of("zcdp")
    first = noisy(plan, 1)
    if change == "key":
        second = noisy(plan, 2)
    elif change == "input":
        second = measure(plan, nothing_counted, RunKey.seeded(1), "01" + TAG[2:])
    else:
        second = noisy(plan_of("zcdp", without=("PH2",)), 1)
    tables = {table.name: table for table in second}
    same = [
        np.array_equal(block.counts, twin.counts)
        for table in first
        if table.name in tables
        for block, twin in zip(table.blocks, tables[table.name].blocks, strict=True)
    ]
    assert len(same) > 40
    assert sum(same) <= 3  # a level of one or two counts may agree by chance
