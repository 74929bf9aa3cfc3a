"""From budgets found in binary numbers to exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from opendas.errors import BudgetError

__all__ = ["exact_split", "rounded_up"]

_PRECISION = 10**7
"""Fractions keep each budget to one part in this many; errors then change by one part in the square."""


def exact_split(budgets: Sequence[float], total: Fraction) -> tuple[Fraction, ...]:
    """Share out an exact total in the proportions of binary numbers.

    Parameters
    ----------
    budgets : sequence of float, >= 0
        At least one is positive.
    total : Fraction, > 0

    Returns
    -------
    tuple of Fraction
        Every share rounded down to a multiple of a power of ten, and what is left added to the largest, so
        that the sum is exactly `total`. A zero stays zero, and a positive budget positive.

    Raises
    ------
    BudgetError
        If no budget is positive.

    Examples
    --------
    >>> [str(x) for x in exact_split([1.0, 2.0], Fraction(3))]
    ['99999999/100000000', '200000001/100000000']
    """
    exact = [Fraction(float(budget)) for budget in budgets]
    whole = sum(exact, Fraction(0))
    positive = [share for share in exact if share > 0]
    if not positive:
        raise BudgetError("there is no positive budget to share out.")
    parts = _power_of_ten(min(positive) / whole)
    units = [share * parts // whole for share in exact]
    largest = max(range(len(units)), key=units.__getitem__)
    units[largest] += parts - sum(units)
    return tuple(Fraction(unit, parts) * total for unit in units)


def rounded_up(budgets: Sequence[float]) -> tuple[Fraction, ...]:
    """Round each budget up to a multiple of a power of ten, by less than one part in ten million.

    Parameters
    ----------
    budgets : sequence of float, >= 0

    Returns
    -------
    tuple of Fraction
        Each above the budget, also where the last digits of the binary number are not right.
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
