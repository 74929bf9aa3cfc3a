"""What a budget buys and costs, as the page shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from opendas.budget.allocation import Budget
from opendas.budget.plan import invariant_shares, within_rho
from opendas.explore.quick import epsilon_quick, margin, variance
from opendas.explore.subjects import Ground, Subject
from opendas.gls.collapsed import covariances
from opendas.privacy.attacker import pure_power_bound, zcdp_power_bound
from opendas.privacy.relations import Mechanism
from opendas.privacy.zcdp import FORMULAS

__all__ = ["Answers", "Cell", "Loss", "answer"]

CURVE_EXPONENTS = range(1, 17)
FALSE_ALARMS = (0.001, 0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Cell:
    """One query group at one geolevel.

    Parameters
    ----------
    least, most : int or None
        Exact 90 % margin of one measured answer, in counts; two where geounits have different shares. None
        where nothing is measured.
    sd : float or None
        Standard deviation of the noise at the least share.
    expected : float
        Mean standard error after least squares over the tree; infinite where nothing is known.
    is_exact : bool
        Published exactly.
    """

    least: int | None
    most: int | None
    sd: float | None
    expected: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, and the epsilons that it implies.

    Parameters
    ----------
    name : str
    loss : Fraction
        rho, or epsilon for the discrete Laplace.
    epsilon : mapping of str to float
        By formula, at the plan's delta; empty for the discrete Laplace.
    """

    name: str
    loss: Fraction
    epsilon: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that is shown of one plan.

    Parameters
    ----------
    budget : Budget
    cells : mapping of (geolevel, query) to Cell
    whole : Loss
        The whole plan.
    attributes : tuple of Loss
        One attribute of a record changes.
    within : tuple of Loss
        A record moves within one geounit of a geolevel.
    curve : tuple of (exponent, cks, bun-steinke)
        At ``delta = 10**-exponent``; empty for the discrete Laplace.
    warnings : tuple of str
    power : tuple of (rate of false alarms, bound)
        How often a true claim about a record is recognised at most, however it is tested.
    """

    budget: Budget
    cells: Mapping[tuple[str, str], Cell]
    whole: Loss
    attributes: tuple[Loss, ...]
    within: tuple[Loss, ...]
    curve: tuple[tuple[int, float, float], ...]
    warnings: tuple[str, ...]
    power: tuple[tuple[float, float], ...]

    @property
    def is_gaussian(self) -> bool:
        """Whether rho is spent, and not a pure epsilon."""
        return self.budget.mechanism is Mechanism.DISCRETE_GAUSSIAN


def answer(subject: Subject, budget: Budget) -> Answers:
    """Work out what a budget buys and costs.

    Parameters
    ----------
    subject : Subject
    budget : Budget
        With the geolevels of the subject.

    Raises
    ------
    BudgetError
        If its noise cannot be drawn on the subject's spine.
    """
    asked, budget = budget, subject.spent(budget)
    ground = subject.ground(budget)
    return Answers(
        budget,
        _cells(subject, budget, ground),
        _loss("all", budget.total, budget, exact=True),
        tuple(
            _loss(name, ground.attributes.get(name, Fraction(0)), budget)
            for name in subject.product.schema.names
        ),
        tuple(_loss(name, loss, budget) for name, loss in within_rho(budget).items()),
        _curve(budget),
        tuple(_warnings(subject, asked, budget)),
        _power(budget),
    )


def _cells(subject: Subject, budget: Budget, ground: Ground) -> dict[tuple[str, str], Cell]:
    found = {}
    standard = _expected(subject, ground)
    for number, level in enumerate(subject.levels):
        multiples = [m for m, count in ground.multiples[level].items() if m and count]
        share = budget.geolevels[level]
        for query in subject.queries:
            laws = [
                budget.distribution(level, query, share * multiple)
                for multiple in sorted(multiples, reverse=True)
                if share and query in budget.query_shares(level)
            ]
            error = standard[level, query]
            found[level, query] = Cell(
                margin(laws[0]) if laws else None,
                margin(laws[-1]) if laws else None,
                float(np.sqrt(variance(laws[-1]))) if laws else None,
                error,
                _is_held(subject, number, query),
            )
    return found


def _is_held(subject: Subject, level: int, query: str) -> bool:
    declared = subject.held.get(query)
    return declared is not None and level <= subject.fixed_to(declared)


def _expected(subject: Subject, ground: Ground) -> dict[tuple[str, str], float]:
    """Return the mean standard error of every query group at every geolevel."""
    found: dict[tuple[str, str], float] = {}
    every = covariances(ground.tree, ground.information)
    for level, place in zip(subject.levels, ground.place, strict=True):
        counts = ground.tree.levels[place].geounits
        for query, rows in subject.rows.items():
            errors = np.sqrt(rows.variances(every[place]))
            weights = np.bincount(rows.of_row, minlength=len(rows))
            found[level, query] = _mean(counts, errors, weights)
    return found


def _mean(
    counts: npt.NDArray[np.int64], errors: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]
) -> float:
    return float(counts @ errors @ weights) / (int(counts.sum()) * int(weights.sum()))


def _loss(name: str, loss: Fraction, budget: Budget, *, exact: bool = False) -> Loss:
    if budget.mechanism is Mechanism.DISCRETE_LAPLACE:
        return Loss(name, loss, {})
    if exact:
        return Loss(name, loss, _epsilons(loss, budget.delta))
    rho, delta = float(loss), float(budget.delta)
    return Loss(name, loss, {formula: epsilon_quick(rho, delta, formula) for formula in FORMULAS})


@lru_cache(maxsize=1024)
def _epsilons(loss: Fraction, delta: Fraction) -> Mapping[str, float]:
    """Return the epsilons by every formula, rounded up."""
    return {formula: convert(loss, delta) for formula, convert in FORMULAS.items()}


def _curve(budget: Budget) -> tuple[tuple[int, float, float], ...]:
    if budget.mechanism is Mechanism.DISCRETE_LAPLACE:
        return ()
    rho = float(budget.total)
    return tuple(
        (k, epsilon_quick(rho, 10.0**-k), epsilon_quick(rho, 10.0**-k, "bun-steinke"))
        for k in CURVE_EXPONENTS
    )


def _power(budget: Budget) -> tuple[tuple[float, float], ...]:
    """Bound, for rates of false alarms, how often any test recognises a true claim about a record."""
    if budget.mechanism is Mechanism.DISCRETE_LAPLACE:
        return tuple((rate, pure_power_bound(budget.total, rate)) for rate in FALSE_ALARMS)
    return tuple((rate, zcdp_power_bound(budget.total, rate)) for rate in FALSE_ALARMS)


def _warnings(subject: Subject, asked: Budget, budget: Budget) -> Iterator[str]:
    if asked is not budget:
        if asked.geolevels != budget.geolevels:
            yield (
                "The estimator of the run, block-by-block, gives all budget to the leaves, whatever the "
                "shares of geolevels are. The answers are those of that."
            )
        return
    fixed = [
        (level, query)
        for number, level in enumerate(subject.levels)
        for query in subject.queries
        if _is_held(subject, number, query)
    ]
    for (level, query), share in invariant_shares(budget, fixed).items():
        if share:
            yield (
                f"{float(share):.1%} of the budget measures {query} at geolevel {level}, which is published "
                "exactly: these measurements add nothing."
            )
    for number, level in enumerate(subject.levels):
        if number and not budget.geolevels[level]:
            yield (
                f"Geolevel {level} has no budget: each parent is spread evenly over its geounits, and what "
                "is measured below cannot mend that."
            )
