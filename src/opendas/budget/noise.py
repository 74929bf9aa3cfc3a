"""Compute the noise and loss of a budget by query group and geolevel, and by attribute and place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Self

from opendas.budget.allocation import Budget
from opendas.errors import BudgetError
from opendas.privacy.composition import WorstLoss
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Neighbours
from opendas.sampling.laws import DiscreteLaplace
from opendas.sampling.mechanisms import AnyNoise

UNITS_OF_SEVERAL = (
    "the exact account is of one changed record, and here all records of a protected unit may change, and "
    "their number: the formulas state its loss."
)
"""Message: some budgets have no exact account."""

_CONFIDENCE = Fraction(9, 10)


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """The noise of one query group in all geounits of a geolevel that have the same share."""

    geolevel: str
    query: str
    geounits: int
    cells: int  # rows of the query group: answers per geounit
    rho: Fraction | None  # loss in one geounit: exactly one of `rho` and `epsilon` is given
    epsilon: Fraction | None
    sigma2: float | None  # parameter of the discrete Gaussian, counts squared
    scale: float | None  # parameter of the discrete Laplace, counts
    variance: float  # exact variance, counts squared
    moe90: int  # least m such that at least 90 % of the noise lies within -m to m, in counts

    def to_dict(self) -> dict[str, object]:
        """Return plain values, as in ``opendas plan --json``."""
        exact = {"rho": self.rho, "epsilon": self.epsilon}
        return asdict(self) | {name: v if v is None else format_fraction(v) for name, v in exact.items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read a row of a certificate or of ``opendas plan --json``."""
        values = {each.name: record[each.name] for each in fields(cls)}
        for name in ("rho", "epsilon"):
            values[name] = None if values[name] is None else parse_fraction(values[name], name)
        return cls(**values)


def plan_rows(
    budget: Budget,
    level_counts: Mapping[str, int | Mapping[Fraction, int]],
    query_sizes: Mapping[str, int],
) -> tuple[NoiseRow, ...]:
    """Return a row for every distinct noise of a budget.

    - `level_counts`: geolevel -> number of geounits; on a spine with bypassed parents, geolevel -> geounit
      share -> number of geounits with this share. Geounits without a share are not measured and are omitted.
    - `query_sizes`: query group -> number of cells.
    - Returns: ordered by geolevel from the top, query group as budgeted, and descending share.

    Raises `BudgetError` if a geolevel or query of the budget has no count or size.
    """
    rows = []
    for level, level_share in budget.geolevels.items():
        if level not in level_counts:
            raise BudgetError(f"The plan needs the number of geounits at geolevel {level!r}.")
        counts = level_counts[level]
        by_share = {level_share: counts} if isinstance(counts, int) else counts
        for query in budget.queries.get(level, {}):
            if query not in query_sizes:
                raise BudgetError(f"The plan needs the number of cells of query {query!r}.")
            rows += [
                _row(budget, level, query, share, by_share[share], query_sizes[query])
                for share in sorted(by_share, reverse=True)
                if share and by_share[share]
            ]
    return tuple(rows)


def _row(budget: Budget, level: str, query: str, share: Fraction, geounits: int, cells: int) -> NoiseRow:
    noise = budget.distribution(level, query, share)
    loss = budget.share(level, query, share) * budget.total
    gaussian = budget.mechanism.is_zcdp
    return NoiseRow(
        geolevel=level,
        query=query,
        geounits=geounits,
        cells=cells,
        rho=loss if gaussian else None,
        epsilon=None if gaussian else loss,
        sigma2=None if isinstance(noise, DiscreteLaplace) else float(noise.sigma2),
        scale=float(noise.scale) if isinstance(noise, DiscreteLaplace) else None,
        variance=noise.variance,
        moe90=noise.margin(_CONFIDENCE),
    )


def attribute_rho(budget: Budget, query_attributes: Mapping[str, Collection[str]]) -> Mapping[str, Fraction]:
    """Return the loss when one record changes in a single attribute and keeps its leaf.

    - `query_attributes`: query group -> attributes that it distinguishes, that is, on which it has at least
      two groups.
    - Returns: attribute -> loss, in the order of first appearance: rho, or epsilon for the discrete Laplace.

    Raises `BudgetError` if a query of the budget is not described.

    Notes
    -----
    A query group that does not distinguish two records has the same answers for both, so its loss does not
    count. The per-attribute figures of the production certificates follow this rule. Under the unbounded
    relation, whose noise covers one added record, a changed record costs twice the shares.
    """
    losses: dict[str, Fraction] = {}
    for level, shares in budget.queries.items():
        for query, share in shares.items():
            if query not in query_attributes:
                raise BudgetError(f"The attributes of query {query!r} are not known.")
            for attribute in query_attributes[query]:
                spent = budget.geolevels[level] * share * budget.total
                losses[attribute] = losses.get(attribute, Fraction(0)) + _of_a_change(budget) * spent
    return MappingProxyType(losses)


def within_rho(budget: Budget) -> Mapping[str, Fraction]:
    """Return the loss when one record moves between leaves of one geounit of the spine.

    Official geounits of the same geolevel may lie across the spine and cost more:
    :func:`opendas.measurement.official_losses.official_losses`.

    Returns: geolevel -> loss of the geolevels strictly below it: rho, or epsilon for the discrete Laplace.
    The leaf level has 0.

    Notes
    -----
    The answers at the geolevel and above do not change. The loss sums the geolevels' shares, as in the
    production certificates (twice under the unbounded relation, as for an attribute). A geounit that takes
    over the share of bypassed geounits below it spends that share itself, so its loss is at most this.
    """
    losses: dict[str, Fraction] = {}
    below = Fraction(1)
    for level, share in budget.geolevels.items():
        below -= share
        losses[level] = below * _of_a_change(budget) * budget.total
    return MappingProxyType(losses)


def _of_a_change(budget: Budget) -> Fraction:
    """Return the factor from losses of the plan's relation to that of a changed record.

    A changed record differs in two rows of a query group. Noise for one added or removed record covers one
    row, so a change to part of a record then costs twice its shares.
    """
    return Fraction(2, budget.neighbours.l2_squared)


def invariant_shares(budget: Budget, fixed: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Fraction]:
    """Return the budget spent on answers that are also published exactly.

    - `fixed`: geolevel and query group whose answers the invariants of the run fix in every geounit.
    - Returns: share of the total of each pair that has one.

    Examples
    --------
    >>> from opendas.budget.resolve import BudgetSpec, resolve_budget
    >>> levels = ["us", "state", "county", "tract", "block_group", "block"]
    >>> us = resolve_budget(BudgetSpec(preset="us2020-persons"), levels)
    >>> float(invariant_shares(us, [("state", "total")])["state", "total"])  # doctest: +ELLIPSIS
    0.323...
    """
    return MappingProxyType(
        {
            (level, query): budget.share(level, query)
            for level, query in fixed
            if query in budget.queries.get(level, {}) and budget.geolevels[level]
        }
    )


def budget_loss(budget: Budget, held: Iterable[tuple[str, str]] = ()) -> WorstLoss:
    """Return the exact loss of one changed record if every geounit has its geolevel's share.

    - `held`: geolevels and query groups whose answers agree between the compared inputs: those that
      invariants fix, or the total of a single root.
    - Returns: loss of one change: two answers of every measured query group (one under the unbounded
      relation), each off by one. With bypassed geounits use :func:`opendas.measurement.loss.plan_loss`.

    Examples
    --------
    >>> from opendas.budget.resolve import BudgetSpec, resolve_budget
    >>> levels = ["us", "state", "county", "tract", "block_group", "block"]
    >>> us = resolve_budget(BudgetSpec(preset="us2020-persons"), levels)
    >>> round(budget_loss(us).epsilon("1e-10").upper, 2)
    16.47
    """
    if budget.contribution.records > 1:
        raise BudgetError(UNITS_OF_SEVERAL)
    same = set(held)
    rows = 2 if budget.neighbours is Neighbours.BOUNDED else 1
    change: dict[tuple[AnyNoise, int], int] = {}
    for level, share in budget.geolevels.items():
        for query in budget.queries.get(level, {}) if share else ():
            if (level, query) not in same:
                noise = budget.distribution(level, query)
                change[noise, 1] = change.get((noise, 1), 0) + rows
    return WorstLoss([change])
