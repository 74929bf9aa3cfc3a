"""Allocate a budget over the levels of a hierarchy: programs (6) and (7), with exact answers.

Ko et al. (2025), programs (6) and (7), for four kinds of noise and both neighbour relations. An allocation
is a public number: it must not depend on the counts that are to be protected (docs/proofs/allocation.md).
Give counts that are public, or numbers of nodes (:func:`~opendas.allocation.histogram.unknown_counts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from opendas.allocation.histogram import Level
from opendas.allocation.noise_kinds import NoiseKind, noise_kind, relation
from opendas.allocation.separable import Separable
from opendas.allocation.solver import (
    Optimum,
    checked_total,
    exact_split,
    minimise_budget,
    minimise_error,
    rounded_up,
)
from opendas.arrays import Floats
from opendas.errors import BudgetError, ConfigError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

Number = Fraction | int | str

_WIDEST_WEIGHTS = 1e30


@dataclass(frozen=True, slots=True)
class LevelError:
    """Error of one level, summed over its nodes."""

    name: str
    # bias2, variance, mse: in squared counts; None where the level has no budget, so that the error has no
    # bound.
    bias2: float | None
    variance: float | None
    mse: float | None
    # False where the counts are unknown: then this is the error before clamping, which is an upper bound.
    known: bool = True

    @property
    def unbounded(self) -> bool:
        """Whether the level has no budget, and hence no bound on its error."""
        return self.mse is None

    def to_dict(self) -> dict[str, Any]:
        """Row of ``opendas allocate --json``."""
        row: dict[str, Any] = {
            "name": self.name,
            "bias2": self.bias2,
            "variance": self.variance,
            "mse": self.mse,
            "unbounded": self.unbounded,
        }
        if not self.known:
            row["before_clamping"] = True
        return row


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """An optimal allocation."""

    kind: NoiseKind
    neighbours: Neighbours
    weights: tuple[float, ...]
    # The optimum, one budget per level: epsilon or rho, at the sensitivities of the neighbour relation.
    budgets: tuple[float, ...]
    # Budgets that a run may use. Program (6): they sum to exactly the total. Program (7): each is at least
    # the optimum, so that the target is met.
    exact: tuple[Fraction, ...]
    objective: float  # weighted sum of mean squared errors over the levels of positive weight, at `budgets`
    multiplier: float  # by how much the objective falls per unit of budget, at the margin
    levels: tuple[LevelError, ...]
    # The same total, split evenly over all levels that are not published exactly.
    uniform_budgets: tuple[float, ...]
    uniform: tuple[LevelError, ...]
    uniform_objective: float

    @property
    def total(self) -> Fraction:
        """Exact sum of the budgets."""
        return sum(self.exact, Fraction(0))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas allocate --json``, but for its source."""
        return {
            "mechanism": self.kind.value,
            "neighbours": self.neighbours.value,
            "weights": list(self.weights),
            "allocation": list(self.budgets),
            "exact": [format_fraction(budget) for budget in self.exact],
            "total": format_fraction(self.total),
            "objective": self.objective,
            "multiplier": self.multiplier,
            "levels": [level.to_dict() for level in self.levels],
            "uniform": {
                "allocation": list(self.uniform_budgets),
                "objective": self.uniform_objective,
                "levels": [level.to_dict() for level in self.uniform],
            },
        }


def allocate_total(
    levels: Sequence[Level],
    mechanism: str | Mechanism | NoiseKind,
    total: Number,
    weights: Sequence[float] | None = None,
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> Allocation:
    """Minimise the weighted mean squared error at a total budget: Ko et al. (2025), program (6).

    - `levels`: counts, or numbers of nodes; both public.
    - `mechanism`: ``laplace``, ``gaussian``, ``discrete-laplace`` or ``discrete-gaussian``.
    - `total`, > 0: epsilon (Laplace kinds) or rho (Gaussian kinds).
    - `weights`, >= 0: one per level; by default 1 each. They are not normalised. A level of weight zero gets
      nothing.
    - `neighbours`: ``unbounded``: a record is added or removed, sensitivity 1 per level. ``bounded``: a
      record is replaced, sensitivity 2 (L1) or the square root of 2 (L2) per level.

    Raises `BudgetError` if the total is not positive or out of range, or the weights do not fit;
    `ConfigError` if a name is unknown or appears twice, or the total is not an exact number.

    Examples
    --------
    >>> from opendas.allocation import CountHistogram, Level
    >>> levels = [Level(name, CountHistogram.of(counts)) for name, counts in (
    ...     ("state", [450]), ("tract", [300, 150]), ("block", [120, 80, 100, 90, 60]))]
    >>> [round(budget, 3) for budget in allocate_total(levels, "laplace", 1).budgets]
    [0.252, 0.317, 0.431]
    """
    kind, related = noise_kind(mechanism), relation(neighbours)
    whole = checked_total(total)
    values, problem, places = _problem(levels, kind, related, weights)
    optimum = minimise_error(problem, float(whole))
    budgets = _placed(optimum.budgets, places, len(levels))
    return _allocation(levels, kind, related, values, budgets, exact_split(budgets, whole), optimum)


def allocate_target(
    levels: Sequence[Level],
    mechanism: str | Mechanism | NoiseKind,
    target: Number,
    weights: Sequence[float] | None = None,
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> Allocation:
    """Minimise the total budget such that the weighted error meets a target: Ko et al. (2025), program (7).

    - `target`, > 0: upper bound of the weighted sum of mean squared errors, in squared counts.
    - Returns: ``exact`` is rounded up, by less than one part in ten million.

    All else is as for :func:`allocate_total`. Raises `BudgetError` if the target is not positive, or needs a
    budget out of range.
    """
    kind, related = noise_kind(mechanism), relation(neighbours)
    bound = parse_fraction(target, "mse")
    if bound <= 0:
        raise BudgetError(
            f"mse: the target {format_fraction(bound)} cannot be met: any noise has an error above 0."
        )
    values, problem, places = _problem(levels, kind, related, weights)
    # A target beyond all doubles is beyond all budgets too; the solver says so.
    optimum = minimise_budget(problem, float(min(bound, Fraction(10) ** 300)))
    budgets = _placed(optimum.budgets, places, len(levels))
    return _allocation(levels, kind, related, values, budgets, rounded_up(budgets), optimum)


def errors_at(
    levels: Sequence[Level],
    mechanism: str | Mechanism | NoiseKind,
    budgets: Sequence[float | Fraction],
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> tuple[LevelError, ...]:
    """Error of every level at given budgets.

    - `budgets`: one per level, epsilon or rho; 0 means that the level is not measured.
    - Returns: levels with fixed counts have no error.
    """
    kind, related = noise_kind(mechanism), relation(neighbours)
    if len(budgets) != len(levels):
        raise BudgetError(f"{len(budgets)} budgets were given for {len(levels)} levels.")
    measured = [k for k, budget in enumerate(budgets) if budget > 0 and not levels[k].fixed]
    rows = []
    for level in levels:
        error = 0.0 if level.fixed else None
        rows.append(LevelError(level.name, error, error, error, level.known))
    if measured:
        part = Separable([levels[k] for k in measured], kind, related, np.ones(len(measured)))
        table = part.errors(np.array([float(budgets[k]) for k in measured]))
        for k, (bias2, variance, mse) in zip(measured, table.tolist(), strict=True):
            rows[k] = LevelError(levels[k].name, bias2, variance, mse, levels[k].known)
    return tuple(rows)


def _problem(
    levels: Sequence[Level], kind: NoiseKind, neighbours: Neighbours, weights: Sequence[float] | None
) -> tuple[tuple[float, ...], Separable, list[int]]:
    """Check levels and weights; return weights, objective, and the places of the levels that it has."""
    if not levels:
        raise ConfigError("levels: there is none; give at least one.")
    names = [level.name for level in levels]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"levels: the name {repeated[0]!r} appears twice.")
    values = _weights(weights, len(levels))
    places = [k for k, level in enumerate(levels) if values[k] > 0 and not level.fixed]
    if not places:
        raise BudgetError(
            "weights: every level has weight 0 or is published exactly; give at least one a weight."
        )
    chosen = np.array([values[k] for k in places])
    if chosen.max() > _WIDEST_WEIGHTS * chosen.min():
        raise BudgetError("weights: they differ by more than 30 orders of magnitude; write 0 for the least.")
    return values, Separable([levels[k] for k in places], kind, neighbours, chosen), places


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * count
    if len(weights) != count:
        raise BudgetError(f"weights: {len(weights)} were given for {count} levels; give one for each.")
    values = tuple(float(weight) for weight in weights)
    for number, value in enumerate(values, start=1):
        if not (math.isfinite(value) and value >= 0):
            raise BudgetError(f"weights: number {number} is {value}; a weight is a number of at least 0.")
        if value and not 1e-100 < value < 1e100:
            raise BudgetError(f"weights: number {number} is {value}; give one between 1e-100 and 1e100.")
    return values


def _placed(budgets: Floats, places: list[int], count: int) -> tuple[float, ...]:
    whole = np.zeros(count)
    whole[places] = budgets
    return tuple(whole.tolist())


def _allocation(
    levels: Sequence[Level],
    kind: NoiseKind,
    neighbours: Neighbours,
    weights: tuple[float, ...],
    budgets: tuple[float, ...],
    exact: tuple[Fraction, ...],
    optimum: Optimum,
) -> Allocation:
    free = sum(not level.fixed for level in levels)
    share = math.fsum(budgets) / free
    shares = tuple(0.0 if level.fixed else share for level in levels)
    even = errors_at(levels, kind, shares, neighbours)
    found = errors_at(levels, kind, budgets, neighbours)
    return Allocation(
        kind=kind,
        neighbours=neighbours,
        weights=weights,
        budgets=budgets,
        exact=exact,
        objective=weighted(found, weights),
        multiplier=optimum.multiplier,
        levels=found,
        uniform_budgets=shares,
        uniform=even,
        uniform_objective=weighted(even, weights),
    )


def weighted(errors: Sequence[LevelError], weights: Sequence[float]) -> float:
    """Return the weighted sum of mean squared errors over the levels of positive weight."""
    terms = zip(errors, weights, strict=True)
    return math.fsum(weight * (row.mse or 0.0) for row, weight in terms if weight > 0)
