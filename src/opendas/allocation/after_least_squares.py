"""The allocation over levels that is optimal after least squares over the whole tree.

Programs (6) and (7) count the error of every level by itself. A consistent release uses all levels for every
count: measurements of the blocks carry information about their tract. This module minimises the weighted sum
of the variances of the least-squares estimates of all geounits, computed exactly for any tree by
:mod:`opendas.gls.collapsed`. Clamping plays no part: the estimates are linear in the measurements.

Under zCDP the precision of a measurement is ``2 rho``, linear in the budget, and the sum of variances is the
trace of an inverse: a convex A-optimal design, whose optimum is certified by a duality gap. Under pure
differential privacy the precision grows as the square of epsilon. Near zero a small budget buys nothing, so
that leaving out a level is always a local minimum, and the problem is not convex. There every set of levels
above the lowest is tried with a local search; the answer is the best local minimum found.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opendas.allocation.noise_kinds import NoiseKind, noise_kind, relation, sensitivity_factor
from opendas.allocation.shares import least_gap, minimise_shares
from opendas.allocation.solver import checked_total
from opendas.arrays import Floats
from opendas.errors import BudgetError
from opendas.geography.hierarchy import Hierarchy
from opendas.gls.collapsed import CollapsedTree, Trace
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian
from opendas.solvers.simplex import project_integers

SHARE_UNIT = Fraction(1, 10**6)
"""Shares found by a search are whole multiples of it: what is lost is of the order of its square."""

_LARGEST_EPSILON = 300
"""Of discrete Laplace noise: beyond it the noise is zero but for a chance that no double holds."""

_SMALLEST_VARIANCE = 1e-60

_MOST_LEVELS = 12
"""Of a pure plan: beyond it there are too many sets of levels to try."""


@dataclass(frozen=True, slots=True)
class LeastSquaresAllocation:
    """An allocation over levels, top first."""

    kind: NoiseKind
    neighbours: Neighbours
    total: Fraction  # epsilon or rho of all levels together
    shares: tuple[Fraction, ...]  # Of each level; they sum to exactly 1. A level may get nothing.
    weights: tuple[float, ...]
    objective: float  # weighted sum of the variances, in squared counts
    # Sum of the variances of the level's geounits after least squares; None where it is unbounded, because
    # neither the level nor any below it is measured.
    variances: tuple[float | None, ...]
    # The objective is at most this part of itself above the least possible one, for shares before they were
    # rounded and noise of variance ``1 / (2 rho)``. None under pure differential privacy, where nothing is
    # proved.
    gap: float | None
    supports: int  # sets of levels that were tried

    @property
    def budgets(self) -> tuple[Fraction, ...]:
        """Return epsilon or rho of each level; they sum to exactly the total."""
        return tuple(share * self.total for share in self.shares)


def allocate_after_least_squares(
    hierarchy: Hierarchy,
    total: Fraction | int | str,
    mechanism: str | Mechanism | NoiseKind = NoiseKind.DISCRETE_GAUSSIAN,
    *,
    weights: Sequence[float] | None = None,
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> LeastSquaresAllocation:
    """Share a budget over the levels of a hierarchy of single counts.

    - `hierarchy`: public. No count is used: variances after least squares depend on none.
    - `total`, > 0: epsilon for the Laplace kinds, rho for the Gaussian ones.
    - `weights`, >= 0: weight of the variances of each level, top first; 1 each by default.
    - `neighbours`: ``unbounded`` (add or remove) or ``bounded`` (replace).

    Raises `BudgetError` if the total is not positive or out of range, or above 300 for the discrete Laplace;
    weights are negative, not finite, all zero or not one a level; or a pure plan has more than 12 levels.

    Notes
    -----
    The discrete Gaussian is taken at variance ``1 / (2 rho)``, which its own undercuts by 1 per cent at rho
    1.22 and by less than 1e-6 below rho 0.54 (reported variances are those of the integer noise). The
    reference for pure budgets is the discrete Laplace variance itself.

    Examples
    --------
    >>> tree = Hierarchy.of([[0], [0] * 4, [k // 8 for k in range(32)]])
    >>> [round(float(share), 3) for share in allocate_after_least_squares(tree, 1).shares]
    [0.078, 0.184, 0.737]
    """
    kind, relation_ = noise_kind(mechanism), relation(neighbours)
    exact = checked_total(total, kind.loss_name)
    if kind is NoiseKind.DISCRETE_LAPLACE and exact > _LARGEST_EPSILON:
        raise BudgetError(f"epsilon is above {_LARGEST_EPSILON}: no noise would be left.")
    chosen = _weights(weights, len(hierarchy))
    # Below the lowest level that counts, budget serves the levels above worse than budget spent there.
    last = int(np.flatnonzero(chosen)[-1])
    trace = _trace(hierarchy, chosen, last + 1)
    budget = float(exact * sensitivity_factor(relation_))
    shares, gap, supports = _solve(trace, kind, budget)
    full = np.zeros(len(hierarchy))
    full[: last + 1] = shares
    rounded = whole_shares(full)
    variances = least_squares_variances(
        hierarchy, [share * exact for share in rounded], kind, neighbours=relation_
    )
    objective = sum(
        weight * value
        for weight, value in zip(chosen, variances, strict=True)
        if weight and value is not None
    )
    return LeastSquaresAllocation(
        kind, relation_, exact, rounded, tuple(chosen.tolist()), float(objective), variances, gap, supports
    )


def least_squares_variances(
    hierarchy: Hierarchy,
    budgets: Sequence[Fraction | float],
    mechanism: str | Mechanism | NoiseKind = NoiseKind.DISCRETE_GAUSSIAN,
    *,
    neighbours: str | Neighbours = Neighbours.UNBOUNDED,
) -> tuple[float | None, ...]:
    """Return, for each level, the sum over its geounits of the variances after least squares.

    - `budgets`, >= 0: epsilon or rho of each level, top first.
    - Returns: in squared counts, exact for the noise; None where it is unbounded.

    Raises `BudgetError` if there is not one budget a level, or one is negative or not finite.
    """
    kind, factor = noise_kind(mechanism), float(sensitivity_factor(relation(neighbours)))
    numbers = np.array([float(budget) for budget in budgets], dtype=np.float64)
    if len(numbers) != len(hierarchy) or not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
        raise BudgetError(f"budgets: give one for each of {len(hierarchy)} levels, none negative.")
    measured = np.flatnonzero(numbers)
    if not len(measured):
        return (None,) * len(hierarchy)
    last = int(measured[-1])
    trace = _trace(hierarchy, np.ones(len(hierarchy)), last + 1)
    precision = np.array([_exact_precision(kind, factor * budget) for budget in numbers[: last + 1]])
    parts = trace.parts(precision[:, None])[:, 0]
    return (*(float(part) for part in parts), *((None,) * (len(hierarchy) - last - 1)))


def whole_shares(shares: Floats, unit: Fraction = SHARE_UNIT) -> tuple[Fraction, ...]:
    """Round shares to multiples of a unit that sum to exactly one, by largest remainders.

    - `shares` (n,), >= 0: adding up to one, but for the accuracy of floats. Zeros stay zero.
    - `unit`: one over a whole number.
    """
    positive = np.flatnonzero(shares > 0)
    parts = np.zeros(len(shares), dtype=np.int64)
    scaled = shares[positive] * float(1 / unit)
    family = np.zeros(len(positive), dtype=np.int64)
    parts[positive] = project_integers(scaled, family, np.array([unit.denominator]))
    return tuple(int(part) * unit for part in parts)


def _weights(weights: Sequence[float] | None, levels: int) -> Floats:
    chosen = np.ones(levels) if weights is None else np.array([float(w) for w in weights], dtype=np.float64)
    if len(chosen) != levels or not np.all(np.isfinite(chosen)) or np.any(chosen < 0) or not chosen.any():
        raise BudgetError(
            f"weights: give one for each of {levels} levels, finite, none negative and not all zero."
        )
    return chosen


def _trace(hierarchy: Hierarchy, weights: Floats, levels: int) -> Trace:
    if not hierarchy.inhabited()[0].any():
        raise BudgetError("the hierarchy has no leaf: there is nothing to measure.")
    return Trace.counts(CollapsedTree.of_hierarchy(hierarchy, levels), weights[:levels, None])


def _precision(kind: NoiseKind, budgets: Floats) -> tuple[Floats, Floats]:
    """One over the variance of the noise, and its derivative; a discrete Gaussian counts as a Gaussian."""
    if kind.loss_name == "rho":
        return 2.0 * budgets, np.full_like(budgets, 2.0)
    if kind is NoiseKind.LAPLACE:
        return budgets**2 / 2, budgets
    return 2 * np.sinh(budgets / 2) ** 2, np.sinh(budgets)


def _exact_precision(kind: NoiseKind, budget: float) -> float:
    if kind is NoiseKind.DISCRETE_GAUSSIAN and budget > 0:
        return 1.0 / max(DiscreteGaussian(1 / (2 * Fraction(budget))).variance, _SMALLEST_VARIANCE)
    return float(_precision(kind, np.array([budget]))[0][0])


def _solve(trace: Trace, kind: NoiseKind, budget: float) -> tuple[Floats, float | None, int]:
    def objective(shares: Floats) -> tuple[float, Floats]:
        precision, slope = _precision(kind, budget * shares)
        value, gradient = trace.value_and_gradient(precision[:, None])
        return value, budget * slope * gradient[:, 0]

    # The count-only rule for a single measurement of each count is a good place to start.
    start = (np.array(trace.tree.sizes) * np.maximum(trace.targets[:, 0], 1e-3)) ** (1.0 / (kind.order + 1))
    if kind.loss_name == "rho":
        shares, value = minimise_shares(objective, start)
        return shares, least_gap(value, objective(shares)[1], shares), 1
    if len(start) > _MOST_LEVELS:
        raise BudgetError(
            f"an allocation under pure differential privacy takes at most {_MOST_LEVELS} levels, "
            f"not {len(start)}; leave levels out, or use a Gaussian mechanism."
        )
    upper = itertools.product((1.0, 0.0), repeat=len(start) - 1)
    found = [minimise_shares(objective, start * np.array([*kept, 1.0])) for kept in upper]
    shares, _ = min(found, key=lambda solution: solution[1])
    return shares, None, len(found)
