"""What a plan of household tables buys and costs: margins per table and level, and every derived loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from opendas.explore.household_drafts import Planned
from opendas.explore.quick import epsilon_quick, margin, margin_of_total, variance
from opendas.phsafe.margins import formula_margin
from opendas.phsafe.sensitivity import LevelNoise, Sensitivity, plan_noise
from opendas.phsafe.tables import DERIVED, TABLES, Derived, Table
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.privacy.zcdp import FORMULAS
from opendas.sampling.laws import DiscreteGaussian

__all__ = ["HouseholdAnswers", "HouseholdRow", "LossSums", "answer_households"]

Bound = tuple[Sensitivity, Neighbours]
RELATIONS = (Neighbours.UNBOUNDED, Neighbours.BOUNDED)
BOUNDS: tuple[Bound, ...] = tuple((kind, relation) for kind in Sensitivity for relation in RELATIONS)
"""Every bound and relation, in the order of Table 10 of the PHSafe paper."""


@dataclass(frozen=True, slots=True)
class HouseholdRow:
    """One table at one population group level.

    Parameters
    ----------
    noise : LevelNoise
    margin : int
        Exact 90 % margin of a measured cell, in counts.
    formula : int or None
        ``floor(1.64 sigma)`` of the paper; None for the discrete Laplace.
    widest : int
        Exact margin of the cell of the published table that sums most measured cells.
    summed : int
        How many that are.
    sd : float
        Standard deviation of the noise.
    target : int or None
    """

    noise: LevelNoise
    margin: int
    formula: int | None
    widest: int
    summed: int
    sd: float
    target: int | None

    @property
    def misses(self) -> bool:
        """Whether the exact margin is above the target."""
        return self.target is not None and self.margin > self.target


@dataclass(frozen=True, slots=True)
class LossSums:
    """Losses of a table, or of all, under both bounds and relations."""

    name: str
    losses: Mapping[Bound, Fraction]


@dataclass(frozen=True, slots=True)
class HouseholdAnswers:
    """Everything that is shown of one plan.

    Parameters
    ----------
    planned : Planned
    rows : tuple of HouseholdRow
        In the order of the published program.
    derived : tuple of (name, source, summed)
        Tables computed from measured ones at no loss.
    sums : tuple of LossSums
        Per table, and ``all`` last.
    epsilon : mapping of formula to mapping of bound to float
        Of all; empty for the discrete Laplace, whose losses are epsilons.
    """

    planned: Planned
    rows: tuple[HouseholdRow, ...]
    derived: tuple[tuple[str, str, int], ...]
    sums: tuple[LossSums, ...]
    epsilon: Mapping[str, Mapping[Bound, float]]

    @property
    def is_gaussian(self) -> bool:
        """Whether losses are rho."""
        return self.planned.config.mechanism is Mechanism.DISCRETE_GAUSSIAN

    @property
    def spent(self) -> Mapping[Bound, Fraction]:
        """Losses of the whole plan."""
        return self.sums[-1].losses


def answer_households(planned: Planned) -> HouseholdAnswers:
    """Work out what a plan of household tables buys and costs."""
    config = planned.config
    assert config.mechanism is not None
    noise = plan_noise(config.measured, config.tau, config.mechanism, planned.sensitivity)
    rows = tuple(
        _row(table, found, planned) for (table, _, _), found in zip(config.measured, noise, strict=True)
    )
    sums = _sums(noise)
    measured = {row.noise.table for row in rows}
    return HouseholdAnswers(
        planned,
        rows,
        tuple((one.name, one.source, _most_summed(one)) for one in DERIVED if one.source in measured),
        sums,
        _epsilon(sums[-1], planned),
    )


def _row(table: Table, noise: LevelNoise, planned: Planned) -> HouseholdRow:
    law = noise.law
    assert law is not None
    summed = _most_summed(table)
    return HouseholdRow(
        noise,
        margin(law),
        formula_margin(law) if isinstance(law, DiscreteGaussian) else None,
        margin_of_total(law, summed),
        summed,
        variance(law) ** 0.5,
        planned.targets.get((noise.table, noise.level)),
    )


def _most_summed(table: Table | Derived) -> int:
    parts = table.cells.values() if isinstance(table, Derived) else table.shell.values()
    return max((len(part) for part in parts), default=1)


def _sums(noise: tuple[LevelNoise, ...]) -> tuple[LossSums, ...]:
    found: dict[str, dict[Bound, Fraction]] = {}
    for one in noise:
        for name in (one.table, "all"):
            sums = found.setdefault(name, dict.fromkeys(BOUNDS, Fraction(0)))
            for bound in BOUNDS:
                loss = one.losses[bound]
                assert isinstance(loss, Fraction)
                sums[bound] += loss
    order = [table.name for table in TABLES if table.name in found] + ["all"]
    return tuple(LossSums(name, found[name]) for name in order)


def _epsilon(total: LossSums, planned: Planned) -> dict[str, dict[Bound, float]]:
    if planned.config.mechanism is Mechanism.DISCRETE_LAPLACE:
        return {}
    delta = float(planned.delta)
    return {
        formula: {bound: epsilon_quick(float(loss), delta, formula) for bound, loss in total.losses.items()}
        for formula in FORMULAS
    }
