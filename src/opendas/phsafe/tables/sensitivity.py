"""Compute the sensitivity of table counts, and the privacy loss of noise on them.

Squared L2 and L1 sensitivities are integers; losses are exact fractions. There are two bounds: ``paper``, the
published ``2 tau + 2`` (2 for tables of units), and ``tight``, which follows from assumption N1: neighbours
differ in the persons and the unit of one address (unbounded) or of two (bounded). Each relation is derived
directly, never from the other. Proofs: ``docs/proofs/phsafe.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from opendas.custody.ledger_entries import INFINITE, Loss
from opendas.errors import BudgetError, ConfigError
from opendas.phsafe.inputs.levels import Level
from opendas.phsafe.tables import Kind, Table
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace, Noise


class Sensitivity(StrEnum):
    """Sensitivity bound that calibrates the noise."""

    PAPER = "paper"
    TIGHT = "tight"


@dataclass(frozen=True, slots=True)
class Answers:
    """Properties of a table's counts at one level that determine their sensitivity.

    Examples
    --------
    >>> persons = Answers(10, 2)
    >>> persons.l2_squared(Sensitivity.PAPER, Neighbours.UNBOUNDED)
    484
    >>> persons.l2_squared(Sensitivity.TIGHT, Neighbours.UNBOUNDED)
    200
    """

    rows: int  # >= 1: largest number of rows counted of one address: tau, or 1 for a table of units
    cells: int  # >= 1: counts of one region: cells times population groups
    is_joined: bool = True  # True for persons joined to their unit, False for units

    def __post_init__(self) -> None:
        for name in ("rows", "cells"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"Sensitivity: {name} must be a positive integer.")
        if not self.is_joined and self.rows != 1:
            raise ConfigError("Sensitivity: an address has one unit, so rows must be 1 for a table of units.")

    @classmethod
    def of(cls, table: Table, level: Level, tau: int | None) -> Answers:
        """Return the answers of a table at a level.

        `tau`: tau of a table of persons; ignored for units.
        """
        cells = len(table.cells) * len(level.iteration.codes)
        if table.kind is Kind.UNITS:
            return cls(1, cells, is_joined=False)
        if tau is None:
            raise ConfigError(f"tau: {table.name} counts persons, so it needs a tau.")
        return cls(tau, cells)

    def l2_squared(self, sensitivity: Sensitivity, relation: Neighbours) -> int:
        """Return the squared L2 sensitivity.

        Returns: in squared counts.

        Notes
        -----
        ``paper``: Sexton et al. (2024), Lemma 6 and Theorems 1, 2, 3 and 4. ``tight``: propositions 1 to 3 of
        ``docs/proofs/phsafe.md``.
        """
        bounded = relation is Neighbours.BOUNDED
        if sensitivity is Sensitivity.PAPER:
            stability = self._stability()
            return 2 * stability**2 if bounded else stability**2
        if self.cells == 1:  # a region's only count cannot lose and gain a row at once
            return (2 * self.rows) ** 2 if bounded else self.rows**2
        return 2 * (2 * self.rows) ** 2 if bounded else 2 * self.rows**2

    def l1(self, sensitivity: Sensitivity, relation: Neighbours) -> int:
        """Return the L1 sensitivity, in counts; arguments as for :meth:`l2_squared`."""
        bounded = relation is Neighbours.BOUNDED
        if sensitivity is Sensitivity.PAPER:
            return 2 * self._stability() if bounded else self._stability()
        changed = self.rows if self.cells == 1 else 2 * self.rows
        return 2 * changed if bounded else changed

    def loss(self, law: Noise, sensitivity: Sensitivity, relation: Neighbours) -> Fraction:
        """Return the privacy loss of given noise on these counts.

        Returns: rho = D2^2 / (2 sigma2) for the discrete Gaussian, epsilon = D1 / scale for the discrete
        Laplace.
        """
        if isinstance(law, DiscreteGaussian):
            return Fraction(self.l2_squared(sensitivity, relation)) / (2 * law.sigma2)
        return Fraction(self.l1(sensitivity, relation)) / law.scale

    def _stability(self) -> int:
        # Lemma 6: tau rows change with each of the two changed units; truncation changes two rows.
        return 2 * self.rows + 2 if self.is_joined else 2


def noise_for(
    answers: Answers,
    budget: Fraction,
    mechanism: Mechanism,
    sensitivity: Sensitivity,
    relation: Neighbours = Neighbours.UNBOUNDED,
) -> Noise:
    """Return the noise that spends a budget.

    - `budget`, > 0: rho for the discrete Gaussian, epsilon for the discrete Laplace.
    - `relation`: relation of the budget; a configuration's budgets are unbounded losses.
    - Returns: ``sigma2 = D2^2 / (2 rho)``, ``scale = D1 / epsilon``.

    Notes
    -----
    Sexton et al. (2024), Algorithm 5.

    Examples
    --------
    >>> noise_for(Answers(10, 2), Fraction(2), Mechanism.DISCRETE_GAUSSIAN, Sensitivity.PAPER).sigma2
    Fraction(121, 1)
    """
    if budget <= 0:
        raise BudgetError(
            f"A level has the budget {format_fraction(budget)}; budgets of measured levels must be positive."
        )
    if mechanism.is_zcdp:
        return DiscreteGaussian(Fraction(answers.l2_squared(sensitivity, relation)) / (2 * budget))
    return DiscreteLaplace(Fraction(answers.l1(sensitivity, relation)) / budget)


@dataclass(frozen=True, slots=True)
class LevelNoise:
    """Noise of one table at one level, and its loss under every bound and relation."""

    table: str
    level: str
    answers: Answers
    budget: Loss  # Fraction or "infinity": as configured
    law: Noise | None  # None for an infinite budget: no noise, and no guarantee
    losses: Mapping[tuple[Sensitivity, Neighbours], Loss]  # (Fraction or "infinity")

    @property
    def tau(self) -> int | None:
        """Tau of a table of persons; None for units."""
        return self.answers.rows if self.answers.is_joined else None

    @property
    def sigma2(self) -> Fraction | None:
        """Variance parameter of the discrete Gaussian; None for other noise."""
        return self.law.sigma2 if isinstance(self.law, DiscreteGaussian) else None

    def as_json(self) -> dict[str, object]:
        """Return plain data for the certificate: numbers as exact text."""
        scale = self.law.scale if isinstance(self.law, DiscreteLaplace) else None
        return {
            "table": self.table,
            "level": self.level,
            "tau": self.tau,
            "budget": str(self.budget),
            "sigma2": None if self.sigma2 is None else format_fraction(self.sigma2),
            "scale": None if scale is None else format_fraction(scale),
            "loss": {
                sensitivity.value: {
                    relation.value: str(self.losses[sensitivity, relation]) for relation in Neighbours
                }
                for sensitivity in Sensitivity
            },
        }


def spent(answers: Answers, law: Noise | None) -> dict[tuple[Sensitivity, Neighbours], Loss]:
    """Return the loss of noise under every bound and relation; infinite if `law` is None."""
    return {
        (sensitivity, relation): INFINITE if law is None else answers.loss(law, sensitivity, relation)
        for sensitivity in Sensitivity
        for relation in Neighbours
    }


def plan_noise(
    measured: Iterable[tuple[Table, Level, Loss]],
    tau: Mapping[str, int],
    mechanism: Mechanism,
    sensitivity: Sensitivity,
) -> tuple[LevelNoise, ...]:
    """Return the noise of every table and level of a configuration.

    - `measured` (Table, Level, budget): as in :attr:`opendas.phsafe.config.Config.measured`.
    - `tau`: by table name.
    - `sensitivity`: calibrates the noise. Budgets are unbounded losses under this bound.

    Raises `ConfigError` if a table of persons has no tau, or a budget is not positive.
    """
    planned = []
    for table, level, budget in measured:
        answers = Answers.of(table, level, tau.get(table.name))
        law = None if isinstance(budget, str) else noise_for(answers, budget, mechanism, sensitivity)
        losses = spent(answers, law)
        planned.append(LevelNoise(table.name, level.name, answers, budget, law, losses))
    return tuple(planned)


def total_loss(
    noise: Iterable[LevelNoise], sensitivity: Sensitivity, relation: Neighbours, table: str | None = None
) -> Loss:
    """Return the summed loss of tables and levels under one bound and one relation.

    - `table`: restrict the sum to one table.
    - Returns: zero if nothing is measured. An upper bound, because it adds the worst pair of every level.

    Notes
    -----
    Sexton et al. (2024), Lemma 4: sequential composition.
    """
    total = Fraction(0)
    for one in noise:
        if table is not None and one.table != table:
            continue
        loss = one.losses[sensitivity, relation]
        if isinstance(loss, str):
            return INFINITE
        total += loss
    return total
