"""Programs (6) and (7) as a search for one number: the marginal value of budget.

The objective is separable and convex, so that at the optimum every level has the same weighted slope, ``-w
F'(b) = exp(t)``. Given t, each level's budget is the root of a decreasing function of one variable, and both
the sum of the budgets and the objective are decreasing in t. All searches run in logarithms, where these
functions are close to straight lines, by Newton's method within brackets, which converges in a few steps.

Ko et al. (2025), programs (6) and (7), who use an interior-point solver.

Axes: ``l`` levels, all with a positive weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opendas.allocation.noise_kinds import NoiseKind, noise_kind
from opendas.allocation.separable import Separable
from opendas.arrays import Floats
from opendas.errors import BudgetError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism

SMALLEST_BUDGET, LARGEST_BUDGET = 1e-12, 1e15
"""Totals outside are refused: one buys nothing, the other protects no record."""


def checked_total(total: Fraction | int | str, what: str = "total") -> Fraction:
    """Read a total budget within the range that can be allocated."""
    exact = parse_fraction(total, what)
    if exact <= 0:
        raise BudgetError(f"{what}: {format_fraction(exact)} is not positive. A budget must be positive.")
    if not SMALLEST_BUDGET <= exact <= LARGEST_BUDGET:
        raise BudgetError(
            f"{what}: expected a number from {SMALLEST_BUDGET:.0e} to {LARGEST_BUDGET:.0e}. A smaller "
            "budget gives no useful answers, and a larger one protects nobody."
        )
    return exact


_CLOSE = 2e-14
_STEPS = 200
_LONGEST = 4.0  # of one step, in the logarithm


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """The budgets at which all slopes are equal."""

    budgets: Floats  # (l,)
    # By how much the objective falls per unit of budget, at the margin; 0 below the smallest double.
    multiplier: float


def minimise_error(problem: Separable, total: float) -> Optimum:
    """Find the least weighted error at a total budget: Ko et al. (2025), program (6).

    - `total`, > 0.
    - Returns: budgets sum to the total to the last digits.
    """

    def spent(t: float, log_budgets: Floats, rates: Floats) -> tuple[float, float]:
        budgets = np.exp(log_budgets)
        whole = budgets.sum()
        return float(np.log(whole / total)), float(np.dot(budgets, rates) / whole)

    log_budgets, t = _search(problem, np.log(_power_rule(problem, total)), spent)
    budgets = np.exp(log_budgets)
    return Optimum(budgets * (total / budgets.sum()), _exp(t))


def minimise_budget(problem: Separable, target: float) -> Optimum:
    """Find the least total budget for a weighted error: Ko et al. (2025), program (7)."""
    reach = [problem.objective(_power_rule(problem, total)) for total in (SMALLEST_BUDGET, LARGEST_BUDGET)]
    if target <= reach[1]:  # the rule is no optimum, above all for whole-number noise
        reach[1] = problem.objective(minimise_error(problem, LARGEST_BUDGET).budgets)
    if not reach[1] < target < reach[0]:
        which = "large" if target >= reach[0] else "small"
        raise BudgetError(
            f"mse: the target {target:.6g} is too {which}: total budgets from {SMALLEST_BUDGET:.0e} to "
            f"{LARGEST_BUDGET:.0e} give errors from about {reach[0]:.3g} down to {reach[1]:.3g}."
        )

    def excess(t: float, log_budgets: Floats, rates: Floats) -> tuple[float, float]:
        budgets = np.exp(log_budgets)
        error = problem.objective(budgets)
        if error == 0:  # below all doubles: too much budget, by an unknown amount
            return -np.inf, 1.0
        # d error = -exp(t) d budget, and d budget = budget * rate * d t
        gain = -np.sum(np.exp(t + log_budgets - np.log(error)) * rates)
        return float(np.log(error / target)), float(gain)

    start = np.log(_power_rule(problem, _guess(problem, target)))
    log_budgets, t = _search(problem, start, excess)
    return Optimum(np.exp(log_budgets), _exp(t))


def power_rule(
    nodes: Sequence[float] | Floats,
    mechanism: str | Mechanism | NoiseKind,
    total: float = 1.0,
    weights: Sequence[float] | None = None,
) -> Floats:
    """Share a budget out in proportion to a power of the weighted numbers of nodes.

    The optimum of ``sum w n V(b)``, the error before clamping, where ``V = c / b**q``: the cube root of the
    number of nodes for epsilon, the square root for rho. Never worse than twice the optimum of program (6)
    (docs/proofs/allocation.md), but for noise on the integers at large budgets, whose V falls exponentially.

    - `nodes`, >= 0: released counts of each level.
    - Returns (l,): they sum to the total. The neighbour relation makes no difference.

    Examples
    --------
    >>> power_rule([1, 8, 27], "laplace", total=6).round(9).tolist()
    [1.0, 2.0, 3.0]
    """
    products = np.asarray(nodes, dtype=np.float64) * (1.0 if weights is None else np.asarray(weights))
    shares = products ** (1 / (noise_kind(mechanism).order + 1))
    return np.asarray(total * shares / shares.sum(), dtype=np.float64)


def _power_rule(problem: Separable, total: float) -> Floats:
    """Budgets that are nearly optimal at small totals."""
    return power_rule(problem.weights * problem.nodes, problem.kind, total)


def _guess(problem: Separable, target: float) -> float:
    """Return a total whose error is within a factor of the target, by bisection along the power rule."""
    low, high = np.log(SMALLEST_BUDGET), np.log(LARGEST_BUDGET)
    for _ in range(12):
        middle = 0.5 * (low + high)
        if problem.objective(_power_rule(problem, float(np.exp(middle)))) > target:
            low = middle
        else:
            high = middle
    return float(np.exp(low))


def _search(
    problem: Separable, start: Floats, condition: Callable[[float, Floats, Floats], tuple[float, float]]
) -> tuple[Floats, float]:
    """Find t where a monotone condition on the budgets is 0; return the logarithms of the budgets, and t."""
    slopes, _ = problem.log_slopes(start)
    t = float(np.dot(np.exp(start - start.max()), slopes) / np.exp(start - start.max()).sum())
    log_budgets, low, high = start, -np.inf, np.inf
    for _ in range(_STEPS):
        log_budgets, rates = _level_budgets(problem, t, log_budgets)
        value, slope = condition(t, log_budgets, rates)
        if abs(value) <= _CLOSE * max(1.0, abs(t * slope)):  # the rounding of t is in the value
            break
        # The value falls or rises with t throughout; `slope` has the sign.
        if (value > 0) == (slope < 0):
            low = t
        else:
            high = t
        longest = 4 * _LONGEST + 0.5 * abs(t)
        step = -value / slope if np.isfinite(value) else longest
        following = _inside_or_middle(t + float(np.clip(step, -longest, longest)), low, high)
        if following == t:
            break
        # Start the next inner search where the straight lines lead.
        log_budgets = log_budgets + _step((following - t) * rates, 1 / rates, problem.kind.order)
        t = following
    return log_budgets, t


def _level_budgets(problem: Separable, t: float, start: Floats) -> tuple[Floats, Floats]:
    """Find the budget of each level at which its log slope is t.

    Returns `log_budgets`, `rates` (l,): logarithm of the budget, and its derivative in t.
    """
    u = start
    low, high = np.full(len(u), -np.inf), np.full(len(u), np.inf)
    for _ in range(_STEPS):
        slopes, derivative = problem.log_slopes(u)
        excess = slopes - t
        low, high = np.where(excess > 0, u, low), np.where(excess < 0, u, high)
        # Of whole-number noise, the slope has the budget itself as a term, and its rounding.
        scale = np.maximum(1.0, np.maximum(np.abs(slopes), np.abs(derivative)))
        if bool(np.all(np.abs(excess) <= _CLOSE * scale)):
            break
        following = u + _step(-excess / derivative, derivative, problem.kind.order)
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isfinite(low + high), 0.5 * (low + high), following)
        following = np.where((following > low) & (following < high), following, middle)
        if bool(np.all(following == u)):
            break
        u = following
    return u, 1 / derivative


def _step(change: Floats, derivative: Floats, order: int) -> Floats:
    """Return Newton's step in the logarithm of each budget.

    Where the noise is whole numbers and mostly 0, slopes fall exponentially: there they are straight in the
    budget itself, not in its logarithm.
    """
    steep = (derivative < -2.0 * (order + 1)) & (change > -0.9)
    straight = np.log1p(np.where(steep, change, 0.0))
    return np.clip(np.where(steep, straight, change), -_LONGEST, _LONGEST)


def _inside_or_middle(value: float, low: float, high: float) -> float:
    if low < value < high:
        return value
    return 0.5 * (low + high) if np.isfinite(low + high) else value


def _exp(t: float) -> float:
    return float(np.exp(min(t, 700.0)))


# From budgets found in binary numbers to exact fractions.


_PRECISION = 10**7
"""Fractions keep each budget to one part in this many; errors then change by one part in the square."""


def exact_split(budgets: Sequence[float], total: Fraction) -> tuple[Fraction, ...]:
    """Share out an exact total in the proportions of binary numbers.

    - `budgets`, >= 0: at least one is positive.
    - `total`, > 0.
    - Returns: every share rounded down to a multiple of a power of ten, and what is left added to the
      largest, so that the sum is exactly `total`. A zero stays zero, and a positive budget positive.

    Examples
    --------
    >>> [str(x) for x in exact_split([1.0, 2.0], Fraction(3))]
    ['99999999/100000000', '200000001/100000000']
    """
    exact = [Fraction(float(budget)) for budget in budgets]
    whole = sum(exact, Fraction(0))
    positive = [share for share in exact if share > 0]
    if not positive:
        raise BudgetError("there is no positive budget to allocate.")
    parts = _power_of_ten(min(positive) / whole)
    units = [share * parts // whole for share in exact]
    largest = max(range(len(units)), key=units.__getitem__)
    units[largest] += parts - sum(units)
    return tuple(Fraction(unit, parts) * total for unit in units)


def rounded_up(budgets: Sequence[float]) -> tuple[Fraction, ...]:
    """Round each budget up to a multiple of a power of ten, by less than one part in ten million.

    - `budgets`, >= 0.
    - Returns: each above the budget, also where the last digits of the binary number are not right.
    """
    exact = [Fraction(float(budget)) for budget in budgets]
    positive = [budget for budget in exact if budget > 0]
    if not positive:
        return tuple(exact)
    parts = _power_of_ten(min(positive))
    return tuple(
        Fraction(-(-budget * parts // 1) + 1, parts) if budget > 0 else Fraction(0) for budget in exact
    )


def _power_of_ten(smallest: Fraction) -> int:
    """Return the power of ten whose inverse is at most the smallest number over the precision."""
    parts = _PRECISION
    while smallest * parts < _PRECISION:
        parts *= 10
    return parts
