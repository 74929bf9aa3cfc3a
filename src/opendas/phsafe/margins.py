"""Compute exact margins of error, and solve for the budget, tau or margin given the others.

The margin of an answer is the smallest integer m with ``P(|X| <= m) >= 0.90`` under the noise law. The
published formula ``z sigma`` serves for comparison. It is a continuous approximation, and the paper uses z =
1.64 in its text and z = 1.645 in its Table 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isqrt
from types import MappingProxyType
from typing import Final

from opendas.errors import ConfigError
from opendas.phsafe.inputs.levels import Geography, Iteration, Level
from opendas.phsafe.tables import Derived, Kind, Table
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity, noise_for
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, Noise
from opendas.sampling.sums import margin_of_sum

NINETY: Final = Fraction(9, 10)
"""Confidence level of published margins."""

PRODUCTION_TAU: Final = MappingProxyType({"PH1_num": 10, "PH2": 10, "PH3": 6, "PH4": 10, "PH6": 6, "PH7": 10})
"""Truncation thresholds of the 2020 production run."""

PUBLISHED_Z: Final[Mapping[str, Fraction]] = MappingProxyType(
    {"table": Fraction("1.645"), "text": Fraction("1.64")}
)
"""Constants z of the formula: that of Table 10, and that of the paper's text."""

_MOST_DIGITS: Final = 12
_LARGEST_TAU: Final = 1 << 20


def margin(law: Noise, confidence: Fraction = NINETY) -> int:
    """Return the smallest ``m`` with ``P(|X| <= m) >= confidence``, decided exactly.

    `confidence`, in [0, 1).

    Examples
    --------
    >>> margin(DiscreteGaussian(Fraction(484) / (2 * Fraction("0.141622"))))
    68
    """
    return law.margin(confidence)


def cell_margins(table: Table | Derived, law: Noise, confidence: Fraction = NINETY) -> dict[int, int]:
    """Return the margin of every cell of a table, including totals.

    - `table`: a total is the sum of the measured cells that its declaration lists.
    - `law`: noise of each measured cell.
    - `confidence`, in [0, 1).
    - Returns: cell code to margin, in counts.
    """
    return {code: margin_of_sum([law] * len(parts), confidence) for code, parts in table.published.items()}


def formula_margin(law: DiscreteGaussian, z: Fraction = PUBLISHED_Z["text"]) -> int:
    """Return ``floor(z sigma)``, the paper's margin.

    The paper states a confidence of at least 90 %. With z = 1.64, below the normal quantile 1.64485, this can
    fail: ``sigma2 = 92401.68`` gives 498, and the exact margin is 500.

    Notes
    -----
    Sexton et al. (2024), section 7.1.
    """
    return isqrt(int(z**2 * law.sigma2))


def formula_budget(
    target: int, l2_squared: int, z: Fraction = PUBLISHED_Z["table"], digits: int = 6
) -> Fraction:
    """Return ``z^2 D2^2 / (2 target^2)``, the paper's budget for a margin, rounded to decimals.

    `z`: one of :data:`PUBLISHED_Z`, or any.

    Notes
    -----
    Sexton et al. (2024), Corollary 2.

    Examples
    --------
    >>> formula_budget(68, 484)
    Fraction(70811, 500000)
    """
    _check_positive("target", target)
    return Fraction(round(z**2 * l2_squared / (2 * Fraction(target) ** 2), digits))


def least_budget(
    target: int,
    answers: Answers,
    sensitivity: Sensitivity,
    *,
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN,
    confidence: Fraction = NINETY,
    summed: int = 1,
    digits: int = 8,
) -> Fraction:
    """Return the least budget with a margin at most the target.

    - `mechanism`: decides whether the budget is rho or epsilon.
    - `confidence`, in [0, 1).
    - `summed`, >= 1: number of independent answers in the sum: 1 for a cell, more for a total.
    - `digits`: the budget is a multiple of ``10**-digits``; every multiple below it has a larger margin.
    - Returns: unbounded loss under `sensitivity`.

    Notes
    -----
    The margin falls as the budget grows, because the laws have monotone likelihood ratios in ``|x|``. The
    search is a bisection, and each step is decided exactly.

    Examples
    --------
    >>> float(least_budget(20, Answers(6, 7), Sensitivity.PAPER, digits=6))
    0.63058
    """
    _check_positive("target", target)
    _check_positive("summed", summed)
    if isinstance(digits, bool) or not isinstance(digits, int) or not 0 <= digits <= _MOST_DIGITS:
        raise ConfigError(f"digits: expected a number of decimals from 0 to {_MOST_DIGITS}.")
    unit = Fraction(1, 10**digits)

    def enough(count: int) -> bool:
        law = noise_for(answers, count * unit, mechanism, sensitivity)
        return margin_of_sum([law] * summed, confidence) <= target

    return _least(enough, max(1, int(_guess(target, answers, sensitivity, mechanism, summed) / unit))) * unit


def largest_tau(
    target: int,
    budget: Fraction,
    sensitivity: Sensitivity,
    *,
    cells: int = 2,
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN,
    confidence: Fraction = NINETY,
    summed: int = 1,
) -> int | None:
    """Return the largest tau with a margin at most the target under a budget.

    - `target`, `budget`, `sensitivity`, `mechanism`, `confidence`, `summed`: as for :func:`least_budget`.
    - `cells`, >= 1: counts of one region; all values above 1 give the same result.
    - Returns: None if even tau = 1 misses the target.
    """
    _check_positive("target", target)

    def missed(tau: int) -> bool:
        law = noise_for(Answers(tau, cells), budget, mechanism, sensitivity)
        return tau > _LARGEST_TAU or margin_of_sum([law] * summed, confidence) > target

    first = _least(missed, 1)
    return first - 1 if first > 1 else None


def _guess(
    target: int, answers: Answers, sensitivity: Sensitivity, mechanism: Mechanism, summed: int
) -> Fraction:
    """Return an initial value of the least budget: the continuous formula with half-integer correction."""
    if mechanism.is_zcdp:
        sensitive = answers.l2_squared(sensitivity, Neighbours.UNBOUNDED)
        return Fraction(27055, 10**4) * summed * sensitive / (2 * (target + Fraction(1, 2)) ** 2)
    sensitive = answers.l1(sensitivity, Neighbours.UNBOUNDED)
    return Fraction(23, 10) * isqrt(summed) * sensitive / (target + Fraction(1, 2))


def _least(holds: Callable[[int], bool], guess: int) -> int:
    """Return the least positive integer with a property that all larger integers have."""
    step = 1
    if holds(guess):
        high, low = guess, guess - 1
        while low > 0 and holds(low):
            high, low, step = low, max(0, low - 2 * step), 2 * step
    else:
        low, high = guess, guess + 1
        while not holds(high):
            low, high, step = high, high + 2 * step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        shown = format_fraction(value) if isinstance(value, Fraction) else repr(value)
        raise ConfigError(f"{name}: expected a positive integer, found {shown}.")


# Table 10: production parameters by tau (None: units) for nation, state, state by race.
_TARGETS: Final = {10: (500, 200, 68), 6: (500, 200, 20), None: (500, 200, 68)}
_PUBLISHED: Final = {
    10: ("0.002619", "0.016371", "0.141622"),
    6: ("0.001061", "0.006630", "0.662976"),
    None: ("0.000022", "0.000135", "0.001170"),
}


def published_row(table: Table, level: Level) -> tuple[int, Fraction]:
    """Return the margin target and the unbounded loss of a table at a level in the 2020 production run.

    Notes
    -----
    Sexton et al. (2024), Table 10.
    """
    tau = None if table.kind is Kind.UNITS else PRODUCTION_TAU[table.name]
    column = 0 if level.geography is Geography.USA else 1 + (level.iteration is Iteration.RACE)
    return _TARGETS[tau][column], Fraction(_PUBLISHED[tau][column])
