"""The exact loss of a budget on a spine that bypasses nothing: no spine needs to be known."""

from __future__ import annotations

from collections.abc import Iterable

from opendas.budget.allocation import Budget
from opendas.privacy.grid import GRID_POINTS
from opendas.privacy.loss import IntegerNoise
from opendas.privacy.relations import Neighbours
from opendas.privacy.worst import WorstLoss

__all__ = ["budget_loss"]


def budget_loss(budget: Budget, held: Iterable[tuple[str, str]] = (), points: int = GRID_POINTS) -> WorstLoss:
    """Return the exact loss of one changed record, where every geounit has the share of its geolevel.

    Parameters
    ----------
    budget : Budget
    held : iterable of (str, str)
        Geolevel and query group whose answers are the same for the inputs compared: those that invariants
        fix, or the total of a single root.
    points : int
        Points of the grid, a power of two.

    Returns
    -------
    WorstLoss
        Of one change: two answers of every query group that is measured (one under the unbounded relation),
        each off by one. With bypassed geounits use :func:`opendas.measurement.loss.plan_loss`.

    Examples
    --------
    >>> from opendas.budget import BudgetSpec, resolve_budget
    >>> levels = ["us", "state", "county", "tract", "block_group", "block"]
    >>> us = resolve_budget(BudgetSpec(preset="us2020-persons"), levels)
    >>> round(budget_loss(us).epsilon("1e-10").upper, 3)
    16.465
    """
    same = set(held)
    rows = 2 if budget.neighbours is Neighbours.BOUNDED else 1
    change: dict[tuple[IntegerNoise, int], int] = {}
    for level, share in budget.geolevels.items():
        for query in budget.queries.get(level, {}) if share else ():
            if (level, query) not in same:
                noise = budget.distribution(level, query)
                change[noise, 1] = change.get((noise, 1), 0) + rows
    return WorstLoss([change], points)
