"""What the lowest geounits gain, and what it costs a record that moves within the geounit above: two ways.

More loss in all, or the same loss with more of it for the lowest geolevel, in such steps that both ways cost
the move the same. Errors are those of released counts, tried on synthetic records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from opendas.budget.allocation import Budget
from opendas.explore.budget import BudgetAnswers
from opendas.explore.subjects import Subject
from opendas.report.pictures import Curve, lines_svg
from opendas.report.views import decimal, ticks, words
from opendas.runs.simulated.trial import FEWEST

FACTORS: Final = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Of the loss for the lowest geolevel."""
MORE, MOVED = "more in all", "moved down"


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan near the one that is shown."""

    budget: Budget
    whole: float  # epsilon of the whole, by the tighter formula
    within: float  # the same of a move within a geounit above the lowest geolevel
    errors: Mapping[str, float]  # of the lowest geolevel, by query group: mean absolute errors, summed


def can_be_priced(subject: Subject, plans: Iterable[BudgetAnswers]) -> bool:
    """Return whether a trial speaks of the lowest geolevel, and moving within the one above costs something.

    Where what is published exactly forbids such moves, it costs nothing in any plan. With many cells a trial
    takes too long for seven of them.
    """
    if subject.many_cells or not (subject.can_be_tried and subject.geounits[subject.levels[-1]] >= FEWEST):
        return False
    above = subject.levels[-2:-1]
    return all(any(loss.loss for loss in plan.within if loss.name in above) for plan in plans)


def ways(budget: Budget, leaf: str) -> dict[str, list[Budget]]:
    """Return the plans of each way, from little to much for the lowest geolevel.

    Examples
    --------
    >>> from opendas.explore.subjects import stand_in
    >>> budget = stand_in("state-persons").start()
    >>> more, moved = ways(budget, "block").values()
    >>> all(a.total * a.geolevels["block"] == b.total * b.geolevels["block"] for a, b in zip(more, moved))
    True
    """
    own = budget.geolevels[leaf]
    found = {MORE: [replace(budget, total=budget.total * factor) for factor in FACTORS]}
    if 0 < own < 1:
        found[MOVED] = []
        for factor in (each for each in FACTORS if own * each < 1):
            rest = (1 - own * factor) / (1 - own)
            shares = {level: share * rest for level, share in budget.geolevels.items()}
            found[MOVED].append(replace(budget, geolevels=shares | {leaf: own * factor}))
    return found


def priced(subject: Subject, budget: Budget) -> dict[str, list[Priced]]:
    """Try the plans of each way; one draw of the noise each, the same."""
    above, leaf = subject.levels[-2:]
    known: list[Priced] = []  # the plan itself is in both ways
    found: dict[str, list[Priced]] = {}
    for way, budgets in ways(budget, leaf).items():
        for plan in budgets:
            one = next((each for each in known if each.budget == plan), None)
            if one is None:
                errors = {r.query: r.mean_abs_error for r in subject.tried(plan, 1) if r.geolevel == leaf}
                within = subject.measured(plan).within[above]
                one = Priced(plan, plan.epsilon(plan.total), plan.epsilon(within), errors)
                known.append(one)
            found.setdefault(way, []).append(one)
    return found


def price_view(
    subject: Subject, names: Sequence[str], found: Sequence[Mapping[str, Sequence[Priced]]]
) -> dict[str, object]:
    """Return what the page shows: the query group of the picture, the picture, and a row for each plan.

    - `names`: of the plans that are shown.
    - `found`: what :func:`priced` found of each; nothing where nothing was asked for.
    """
    if not found:
        return {}
    above, leaf = subject.levels[-2:]
    query = "detailed" if subject.is_exact(leaf, "total") else "total"
    curves, rows = [], []
    every = [(name, *way) for name, each in zip(names, found, strict=True) for way in each.items()]
    for name, way, plans in every:
        title = f"{name}: {way}" if len(names) > 1 else way
        points = {one.within: one.errors[query] for one in plans}
        style = f"plan{names.index(name)} {'moved' if way == MOVED else 'more'}"
        curves.append(Curve(title, style, points, tuple(points.items())))
        for one in plans:
            share = f"{float(one.budget.geolevels[leaf]):.2%}"
            errors = (decimal(one.errors[q], 3) if one.errors[q] else "exact" for q in subject.queries)
            cells = decimal(one.budget.total), share, f"{one.whole:.2f}", f"{one.within:.2f}", *errors
            rows.append((title, cells))
    places = [(x, f"{x:g}") for x in ticks(0.0, max(max(curve.points) for curve in curves))]
    axes = (f"epsilon within a {words(above)}", f"mean absolute error of a {words(leaf)}")
    picture = lines_svg(curves, places, axes, f"{axes[1]} against {axes[0]}; a table follows")
    return {"query": query, "picture": picture, "rows": rows}
