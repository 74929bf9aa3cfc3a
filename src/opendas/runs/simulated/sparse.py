"""Whether a table is too sparse for its budget, apart from trials: found before anything is spent.

A trial on synthetic records of the run's own shape says how many of them would stand in another cell than
they should. How the true records spread over the cells is confidential and is not asked. How many there are
is the same for all neighbours where records are replaced; else the number is one that someone gives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import numpy as np

from opendas.budget.resolve import BudgetSpec
from opendas.errors import OpendasError
from opendas.privacy.exact import format_fraction
from opendas.runs.config.model import BUILT_IN_PRODUCTS
from opendas.runs.context.run import Run
from opendas.schema.attributes import Schema

Plan = TypeVar("Plan")

MANY, FEW = 0.25, 0.1
"""A plan misplaces many records where so large a share of them is in a wrong cell even in the table of all
geounits together; and few where at most so many are."""

_MORE_LOSS = (4, 16, 64)
_NO_RISK = 0.02
"""Where the noise of all cells of the top, absolute and together, is so small beside the records, no trial is
needed: rounding and what is known from below only lessen it."""


def misplaced_at_top(run: Run, records: float) -> float | None:
    """Return the share of records in a wrong cell of the topmost table, as tried; None where not known."""
    from opendas.runs.simulated.trial import Trial  # runs of the census's products load no metrics

    try:
        trial = Trial.of(run, records, at_top=True)
        return None if trial is None else trial.misplaced_at_top()
    except OpendasError:
        # Synthetic counts can meet a family without a solution where the run does not: nothing is known.
        return None


def sparse_warning(run: Run, records: float, *, with_plans: bool = True) -> str | None:
    """Return what to say of a run that would misplace many records, with plans that do not; None for others.

    Products of the census are not tried: their plans are those of production.

    - `records`: how many there are: a public number, or one that all neighbours share. Two digits of it are
      told.
    - `with_plans`: whether to look for plans that would do, which takes a trial each.
    """
    records = float(f"{records:.2g}")
    if run.product.name in BUILT_IN_PRODUCTS or records <= 0 or _is_plain(run, records):
        return None
    share = misplaced_at_top(run, records)
    if share is None or share <= MANY:
        return None
    cells = int(np.count_nonzero(run.product.possible))
    loss = f"{run.budget.mechanism.loss_name} {format_fraction(run.budget.total)}"
    found = _usable(run, records) if with_plans else "opendas plan tries other plans, and spends nothing"
    return (
        f"about {records:,.0f} records in {cells:,} cells at {loss}: {share * 100:.0f} % of them would stand "
        f"in a wrong cell even in the table of {run.spine.names[0]}, as tried on synthetic records that are "
        f"spread as Zipf's law says; {found}."
    )


def _usable(run: Run, records: float) -> str:
    """Name the least of the larger losses and the largest choice of attributes that misplace few records."""

    def with_loss(total: Fraction) -> Run:
        return run.changed(budget=_budget(run, total, run.budget.queries))

    losses = [run.budget.total * factor for factor in _MORE_LOSS]
    loss = first_that_does(losses, lambda total: _misplaces_few(with_loss(total), records))
    usable = [] if loss is None else [f"{run.budget.mechanism.loss_name} {format_fraction(loss)}"]
    names = first_that_does(
        _fewer_attributes(run), lambda kept: _misplaces_few(_with_attributes(run, kept), records)
    )
    if names is not None:
        cells = _with_attributes(run, names).product.schema.size
        usable.append(f"attributes {', '.join(names)} ({cells:,} cells)")
    if usable:
        return f"these plans misplace one in ten at most: {'; '.join(usable)}"
    return (
        f"neither {_MORE_LOSS[-1]} times the loss nor any tried choice of fewer attributes misplaces one in "
        "ten at most; coarser levels were not tried"
    )


def first_that_does(plans: Sequence[Plan], does: Callable[[Plan], bool]) -> Plan | None:
    """Return the first plan that misplaces few records, by halves; None where the last ones do not.

    Each plan has a larger loss than the one before, or a table of fewer cells for the same records and loss:
    it misplaces fewer records, but for chance in a trial. What is returned was tried. Where chance turns two
    plans round, one before it may do too.
    """
    place = bisect_left(plans, True, key=does)
    return plans[place] if place < len(plans) else None


def _is_plain(run: Run, records: float) -> bool:
    """Whether the noise at the top is small beside the records, so that nothing needs to be tried."""
    top = run.plan.levels[0]
    finest = [planned for planned in top.queries if planned.query.name == "detailed"]
    if not finest:
        return False
    noise = run.budget.distribution(top.geolevel, "detailed")
    return float(np.sqrt(noise.variance)) * finest[0].query.size <= _NO_RISK * records


def _misplaces_few(run: Run, records: float) -> bool:
    share = misplaced_at_top(run, records)
    return share is not None and share <= FEW


def _fewer_attributes(run: Run) -> list[list[str]]:
    """Return choices of fewer and fewer attributes, the largest left out first; none with other rules."""
    product = run.product
    if product.bounds or product.linear or product.passes.geolevels - {"*", "root", "leaf"}:
        return []
    kept = sorted(product.schema.attributes, key=len)
    return [
        [each.name for each in product.schema.attributes if each in kept[:number]]
        for number in range(len(kept) - 1, 0, -1)
    ]


def _budget(run: Run, total: Fraction, queries: Mapping[str, Mapping[str, Fraction]]) -> BudgetSpec:
    return run.resolved.budget.stating(total, run.budget.geolevels, queries)


def _with_attributes(run: Run, names: Sequence[str]) -> Run:
    """Return the run with some of its attributes; the shares of what they cannot ask go to their cells."""
    product = run.product
    recodes = tuple(recode for recode in product.recodes if recode.attribute in names)
    words = {"total", *names, *(recode.name for recode in recodes)}

    def can(query: str) -> bool:
        return all(factor.strip() in words for factor in query.split("*"))

    schema = Schema(tuple(product.schema.attribute(name) for name in names))
    smaller = replace(
        product,
        schema=schema,
        recodes=recodes,
        query_names=(),
        invariants=tuple(each for each in product.invariants if can(each.query)),
        structural_zeros=tuple(z for z in product.structural_zeros if set(z.levels) <= set(names)),
    )
    canonical = smaller.workload.canonical
    asked = ["total", "detailed", *(name for name in product.query_names if can(name))]
    smaller = replace(smaller, query_names=tuple(dict.fromkeys(map(canonical, asked))))
    queries: dict[str, dict[str, Fraction]] = {}
    for level, shares in run.budget.queries.items():
        merged = queries.setdefault(level, {})
        for query, share in shares.items():
            name = canonical(query if can(query) else "detailed")
            merged[name] = merged.get(name, Fraction(0)) + share
    return run.changed(product=smaller, budget=_budget(run, run.budget.total, queries))
