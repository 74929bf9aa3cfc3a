"""Add noise to truncated counts, giving the private tables: the only step with both key and truth.

Each table and level has its own noise key, bound to plan and input. Level, region, population group and cell
of the full grid, zeros included, address a draw.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opendas.arrays import Ints
from opendas.custody.run_key import RunKey
from opendas.phsafe.config import Plan
from opendas.phsafe.inputs.levels import LEVELS, Level, NoiseDistribution
from opendas.phsafe.output import Block, OutputTable, private_tables
from opendas.phsafe.tables import DERIVED, Derived, Table
from opendas.phsafe.truncation import KEY_PURPOSE, Truncation
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian, Noise
from opendas.sampling.noise import NoiseSource

CountTables = Callable[[Plan, dict[str, bytes]], dict[str, Ints]]
"""Counts the tables of a plan after truncation, under the keys of selections: the cube of each."""


def prepare_samplers(plan: Plan) -> None:
    """Build the exact sampling tables of every law, so that too wide a law is refused before any draw."""
    for noise in plan.noise:
        if noise.law is not None:
            SamplerTable.build(noise.law)


def truncation_keys(plan: Plan, key: RunKey) -> dict[str, bytes]:
    """Return the key of each table's selection; empty for the public order."""
    if plan.truncation is not Truncation.KEYED:
        return {}
    return {name: key.derive(KEY_PURPOSE, name.encode()) for name in plan.config.budgets}


def measure(
    plan: Plan,
    count: CountTables,
    key: RunKey,
    input_tag: str,
    derived: tuple[Derived, ...] = DERIVED,
) -> tuple[OutputTable, ...]:
    """Count, add noise, and lay out every table with a budget and the tables derived from them.

    - `input_tag`: keyed digest of the input, in hexadecimal.
    - Returns: private if the key stays secret and every budget is finite.

    Notes
    -----
    Sexton et al. (2024), Algorithm 1 and Algorithm 2.
    """
    cubes = count(plan, truncation_keys(plan, key))
    laws = {(noise.table, noise.level): noise.law for noise in plan.noise}
    bound = (bytes.fromhex(plan.digest()), bytes.fromhex(input_tag))

    def noisy(table: Table, level: Level, counts: Ints) -> Block:
        law = laws[table.name, level.name]
        if law is not None:
            noise_key = key.derive(f"noise/phsafe/{table.name}/{level.name}", *bound)
            counts = counts + _draw(noise_key, law, level, counts.shape)
        return Block(level, counts, NoiseDistribution.of(plan.mechanism), _variance(law))

    return private_tables(plan, cubes, derived, noisy)


def _draw(key: bytes, law: Noise, level: Level, shape: tuple[int, ...]) -> Ints:
    """Draw the noise of one level, int64 (regions, groups, cells): Sexton et al. (2024), Algorithm 5."""
    regions, groups, cells = shape
    table = SamplerTable.build(law)
    requests = [(table, np.arange(regions), group, np.arange(cells)) for group in range(groups)]
    drawn = NoiseSource(key).draw_many(LEVELS.index(level), requests)
    return np.stack(drawn, axis=1)


def _variance(law: Noise | None) -> float:
    """Return the published VARIANCE: sigma squared (Gaussian), the exact variance (geometric), or 0."""
    if law is None:
        return 0.0
    return float(law.sigma2) if isinstance(law, DiscreteGaussian) else law.variance
