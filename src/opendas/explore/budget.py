"""A budget as typed, and what it buys and costs: margins, expected errors, losses, an attacker's power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from opendas.budget.allocation import Budget
from opendas.budget.noise import invariant_shares
from opendas.errors import OpendasError
from opendas.explore.fields import (
    Problems,
    Typed,
    read_choice,
    read_delta,
    read_number,
    read_shares,
    share_text,
)
from opendas.explore.subjects import Measured, Subject
from opendas.phsafe.margins import NINETY
from opendas.privacy.attacker import pure_power_bound, zcdp_power_bound
from opendas.privacy.relations import LARGEST_LOSS, Mechanism, Neighbours
from opendas.privacy.zcdp import FORMULAS
from opendas.report.views import invariant_words
from opendas.sampling.laws import MAX_FLOORS, WORD_BITS
from opendas.sampling.mechanisms import AnyNoise, StatedNoise
from opendas.sampling.sums import margin_of_sum
from opendas.schema.attributes import listed

CURVE_EXPONENTS: Final = range(1, 17)
FALSE_ALARMS: Final = (0.001, 0.01, 0.05)


def budget_fields(budget: Budget, subject: Subject) -> Typed:
    """Write a budget into fields, exactly."""
    power = len(str(budget.delta.denominator)) - 1
    delta = f"1e-{power}" if budget.delta == Fraction(1, 10**power) else share_text(budget.delta)
    found = {
        "mechanism": budget.mechanism.value,
        "neighbours": budget.neighbours.value,
        "total": share_text(budget.total),
        "delta": delta,
    }
    for i, level in enumerate(subject.levels):
        found[f"l{i}"] = share_text(budget.geolevels[level])
    for i, level in enumerate(subject.levels):
        shares = budget.queries.get(level, {})
        for j, query in enumerate(subject.queries):
            found[f"q{i}.{j}"] = share_text(shares[query]) if shares.get(query) else ""
    return found


def read_budget(
    plan: Typed, prefix: str, subject: Subject, problems: Problems
) -> tuple[Budget | None, dict[str, Fraction | None]]:
    """Understand the fields of a plan.

    - `plan`, field name -> str.
    - `prefix`: of field names in messages.
    - `problems`: what is wrong is added here, at the field where it was typed.
    - Returns: `budget`: None where something is wrong.
    - Returns: `sums` dict of group name to Fraction or None: ``{prefix}.l`` for geolevels, ``{prefix}.q0``
      and so on for query groups.
    """
    mechanism = read_choice(
        plan["mechanism"], f"{prefix}.mechanism", {item.value: item for item in Mechanism}, problems
    )
    neighbours = read_choice(
        plan["neighbours"], f"{prefix}.neighbours", {item.value: item for item in Neighbours}, problems
    )
    if neighbours is Neighbours.UNBOUNDED and subject.held:
        exact = listed(
            [f"the {invariant_words(f'{query}@{level}')}" for query, level in subject.held.items()]
        )
        problems.add(
            f"{prefix}.neighbours",
            f"With {exact} published exactly, no two data sets differ by one record added or removed: the "
            "guarantee would be empty. Choose bounded.",
        )
    total = _total(plan["total"], f"{prefix}.total", problems)
    delta = read_delta(plan["delta"], f"{prefix}.delta", problems)
    names = [f"l{i}" for i in range(len(subject.levels))]
    group = f"{prefix}.l"
    shares, whole = read_shares([plan[n] for n in names], [f"{prefix}.{n}" for n in names], group, problems)
    sums = {group: whole}
    queries: dict[str, dict[str, Fraction]] = {}
    for i, level in enumerate(subject.levels):
        group, names = f"{prefix}.q{i}", [f"q{i}.{j}" for j in range(len(subject.queries))]
        # A geolevel without budget measures nothing; its query shares may stay as they are.
        noted = problems if shares is None or shares[i] != 0 else Problems()
        found, sums[group] = read_shares(
            [plan[name] for name in names], [f"{prefix}.{name}" for name in names], group, noted
        )
        if found is not None and sum(found) == 1:
            queries[level] = {q: s for q, s in zip(subject.queries, found, strict=True) if s}
    if problems.under(prefix) or shares is None or not (mechanism and neighbours and total and delta):
        return None, sums
    levels = dict(zip(subject.levels, shares, strict=True))
    try:
        budget = Budget(mechanism, neighbours, total, levels, queries, delta, subject.contribution)
    except OpendasError as error:
        problems.add(f"{prefix}.total", str(error))
        return None, sums
    _check_noise(budget, subject, prefix, problems)
    return (None if problems.under(prefix) else budget), sums


def _total(text: str, name: str, problems: Problems) -> Fraction | None:
    total = read_number(text, name, problems)
    if total is not None and total == 0:
        problems.add(name, "The total is 0: nothing could be measured. Give a positive number.")
    if total is not None and total > LARGEST_LOSS:
        problems.add(name, f"The total is above {LARGEST_LOSS:.0e}, which protects nobody.")
    return None if name in problems.by_field else total


def _check_noise(budget: Budget, subject: Subject, prefix: str, problems: Problems) -> None:
    """Refuse noise that cannot be drawn exactly, at the share that asks for it, as a run refuses it."""
    for i, level in enumerate(subject.levels):
        for query, share in (budget.query_shares(level) if budget.geolevels[level] else {}).items():
            law = budget.distribution(level, query)
            if share and (law.parameter > 10**15 or law.tail_length(WORD_BITS) > MAX_FLOORS):
                problems.add(
                    f"{prefix}.q{i}.{subject.queries.index(query)}",
                    "Too small: the noise would be wider than exact sampling reaches. Give more, or nothing.",
                )


def margin(law: AnyNoise, summed: int = 1) -> int:
    """Return the smallest ``m`` with ``P(|X| <= m) >= 0.9``, for a sum of independent draws."""
    assert not isinstance(law, StatedNoise)  # this page refuses runs with such noise
    return margin_of_sum([law] * summed, NINETY)


@dataclass(frozen=True, slots=True)
class Cell:
    """One query group at one geolevel."""

    least: int | None  # exact 90 % margin of one measured answer, in counts; None where nothing is measured
    most: int | None  # the same of the smallest share, where geounits have different ones
    # Mean standard error after least squares over the tree; infinite where nothing is known, None where it is
    # not worked out.
    expected: float | None
    is_exact: bool  # published exactly


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, and the epsilons that it implies."""

    name: str
    loss: Fraction  # rho, or epsilon for the discrete Laplace
    # By formula, at the plan's delta, rounded up; empty for the discrete Laplace.
    epsilon: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BudgetAnswers:
    """Everything that is shown of one plan."""

    budget: Budget
    cells: Mapping[tuple[str, str], Cell]  # by geolevel and query
    whole: Loss  # the whole plan
    attributes: tuple[Loss, ...]  # one attribute of a record changes
    within: tuple[Loss, ...]  # a record moves within one geounit of the spine at a geolevel
    # By exponent and formula: epsilon at ``delta = 10**-exponent``; empty for the discrete Laplace.
    curve: Mapping[int, Mapping[str, float]]
    warnings: tuple[str, ...]
    # By false-positive rate: how often a true claim about a record is recognised at most, however it is
    # tested.
    power: tuple[tuple[float, float], ...]

    @property
    def is_gaussian(self) -> bool:
        """Whether rho is spent, and not a pure epsilon."""
        return self.budget.mechanism.is_zcdp


def answer_budget(subject: Subject, budget: Budget, *, every: bool = False) -> BudgetAnswers:
    """Work out what a budget buys and costs.

    - `budget`: with the geolevels of the subject.
    - `every`: also the errors that take long.

    Raises `BudgetError` if its noise cannot be drawn on the subject's spine.
    """
    asked, budget = budget, subject.spent(budget)
    tree = subject.measured(budget, every=every)
    pure = budget.mechanism is Mechanism.DISCRETE_LAPLACE
    bound = pure_power_bound if pure else zcdp_power_bound

    def loss(name: str, spent: Fraction) -> Loss:
        return Loss(name, spent, {} if pure else epsilons(spent, budget.delta))

    curve = {} if pure else {k: epsilons(budget.total, Fraction(1, 10**k)) for k in CURVE_EXPONENTS}
    return BudgetAnswers(
        budget,
        _cells(subject, tree),
        loss("all", budget.total),
        tuple(loss(name, tree.attributes.get(name, Fraction(0))) for name in subject.partly),
        tuple(loss(name, spent) for name, spent in tree.within.items()),
        curve,
        tuple(_warnings(subject, asked, budget)),
        tuple((rate, bound(budget.total, rate)) for rate in FALSE_ALARMS),
    )


@lru_cache(maxsize=16384)
def epsilons(rho: Fraction, delta: Fraction) -> Mapping[str, float]:
    """Return the epsilons of a rho by every formula, rounded up."""
    return {formula: convert(rho, delta) for formula, convert in FORMULAS.items()}


def _cells(subject: Subject, tree: Measured) -> dict[tuple[str, str], Cell]:
    found = {}
    for pair, error in tree.errors.items():
        margins = [margin(law) for law in tree.noise.get(pair, ())]
        least, most = min(margins, default=None), max(margins, default=None)
        found[pair] = Cell(least, most, error, subject.is_exact(*pair))
    return found


def _warnings(subject: Subject, asked: Budget, budget: Budget) -> Iterator[str]:
    if asked is not budget:
        if asked.geolevels != budget.geolevels:
            yield (
                "The estimator of the run, block-by-block, gives all budget to the leaves, whatever the "
                "shares of geolevels are. The answers are for that budget."
            )
        return
    pairs = [(level, query) for level in subject.levels for query in subject.queries]
    exact = [pair for pair in pairs if subject.is_exact(*pair)]
    for (level, query), share in invariant_shares(budget, exact).items():
        if share:
            yield (
                f"{float(share) * 100:.1f} % of the budget measures {query} at geolevel {level}, which is "
                "published exactly: these measurements add nothing."
            )
    for number, level in enumerate(subject.levels[1:], 1):
        used = subject.levels[number:] if subject.whole_tree else (level,)
        if not any(budget.geolevels[name] for name in used):
            yield (
                f"Geolevel {level} has no budget: each parent is spread evenly over its geounits, and what "
                "is measured below cannot mend that."
            )
