"""A privacy-loss budget: its total, and the share of every query group at every geolevel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from opendas.errors import BudgetError
from opendas.privacy.exact import canonical_json, format_fraction, parse_fraction
from opendas.privacy.relations import LARGEST_LOSS, Mechanism, Neighbours, noise_distribution
from opendas.privacy.zcdp import epsilon_cks
from opendas.sampling.mechanisms import AnyNoise
from opendas.schema.declarations import ContributionBound, Distinct
from opendas.schema.product import Product


@dataclass(frozen=True, slots=True)
class Contribution:
    """Bounds how far the records of one protected unit can change the answers of a query group.

    If a unit has ``k`` records, at most ``m`` of them in one row of a group at a geolevel, their vector of
    counts has squared length at most ``k m``. Argument: ``docs/proofs/units.md``.
    """

    bound: ContributionBound | None = None  # as the run file declares it; None if a unit is one record
    leaf: str = ""  # the lowest geolevel, at which each leaf is a geounit
    # Query group -> largest number of schema cells in one of its rows.
    cells: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, bound: ContributionBound | None, product: Product, leaf: str) -> Contribution:
        """Return the contribution of a product's units; `leaf` is the lowest geolevel of the run."""
        if bound is None:
            return ONE_RECORD
        groups = {name: product.workload.group(name) for name in product.query_names}
        cells = {name: int(np.bincount(group.row_of_cell).max()) for name, group in groups.items()}
        return cls(bound, leaf, cells)

    @property
    def records(self) -> int:
        """Most records of one unit."""
        return 1 if self.bound is None else self.bound.at_most

    @property
    def distinct(self) -> Distinct | None:
        """How the records of a unit must differ."""
        return None if self.bound is None else self.bound.distinct

    def together(self, geolevel: str, query: str) -> int:
        """Return the most records of one unit in a row of a query group, in one geounit."""
        if self.distinct is None or (self.distinct is not Distinct.CELL and geolevel != self.leaf):
            return self.records
        return 1 if self.distinct is Distinct.LEAF else min(self.records, self.cells[query])

    def of_one_record(self, geolevel: str, query: str, *, gaussian: bool) -> Fraction:
        """Return the share of a unit's loss by one query group that a change of one record causes.

        One record of a unit is replaced in the input. If records may be alike, at most one counted record
        changes. If they must differ, up to two change, because the new one may displace another.
        """
        replaced = min(self.records, 1 if self.distinct is None else 2)
        if not gaussian:
            return Fraction(replaced, self.records)
        together = self.together(geolevel, query)
        return Fraction(replaced * min(replaced, together), self.records * together)

    def plain(self) -> dict[str, object]:
        """Return its part of a digest; empty if a unit is one record."""
        if self.records == 1:
            return {}
        return {"unit_records": self.records, "distinct": self.distinct and self.distinct.value}


ONE_RECORD = Contribution()
"""Contribution of a unit of one record."""


EVERY_OTHER = "*"
"""Key for every geolevel that is not named."""

DEFAULT_DELTA = Fraction(1, 10**10)
"""Default delta at which epsilon is quoted, as in the production certificates."""


def exact_shares(shares: Mapping[str, Fraction | int | str], what: str) -> dict[str, Fraction]:
    """Read shares exactly and require that they sum to exactly one.

    Returns: in the order given, without zero shares.
    """
    exact = {name: parse_fraction(share, f"{what}, {name}") for name, share in shares.items()}
    for name, share in exact.items():
        if share < 0:
            raise BudgetError(
                f"{what}: the share of {name} is {format_fraction(share)}; shares must not be negative."
            )
    total = sum(exact.values(), Fraction(0))
    if total != 1:
        excess = total - 1
        largest = max(exact, key=lambda name: exact[name], default=None)
        hint = " Give at least one share." if largest is None else ""
        if largest is not None and exact[largest] > excess:
            hint = f" For instance, give {largest} the share {format_fraction(exact[largest] - excess)}."
        raise BudgetError(
            f"{what}: the shares sum to {format_fraction(total)}, which is {format_fraction(abs(excess))} "
            f"too {'much' if excess > 0 else 'little'}; they must sum to exactly 1. "
            f"Write them as fractions with a common denominator.{hint}"
        )
    return {name: share for name, share in exact.items() if share}


@dataclass(frozen=True, slots=True)
class Budget:
    """A complete, validated allocation.

    - `total`, > 0: rho for the discrete Gaussian, epsilon for the discrete Laplace.
    - `geolevels`: share of each geolevel, top first. Sums to exactly 1.
    - `queries`: geolevel -> query group -> share within the geolevel; each geolevel sums to exactly 1. The
      key ``"*"`` stands for every geolevel not named; it is written out on construction.
    - `delta`, in (0, 1): delta at which epsilon is quoted. Does not change the noise.
    - `contribution`: contribution bound of one protected unit; the total is always the loss of a whole unit.

    Raises `BudgetError` if a sum is not exactly one, a geolevel with budget has no queries, or queries name a
    missing geolevel.

    Notes
    -----
    The shares of a geolevel are those of a geounit that bypasses no parent; on a spine with bypassed parents,
    pass the share of a geounit to :meth:`distribution`.
    """

    mechanism: Mechanism
    neighbours: Neighbours
    total: Fraction
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]
    delta: Fraction = DEFAULT_DELTA
    contribution: Contribution = ONE_RECORD

    def __repr__(self) -> str:
        loss = f"{self.mechanism.loss_name} {format_fraction(self.total)}"
        return f"Budget({loss}, {self.mechanism}, {self.neighbours}: {', '.join(self.geolevels)})"

    def __post_init__(self) -> None:
        mechanism = Mechanism(self.mechanism)
        total = parse_fraction(self.total, mechanism.loss_name)
        delta = parse_fraction(self.delta, "delta")
        if total <= 0:
            raise BudgetError(f"{mechanism.loss_name} is {format_fraction(total)}; it must be positive.")
        if total > LARGEST_LOSS:
            raise BudgetError(
                f"{mechanism.loss_name} is above {LARGEST_LOSS:.0e}. Even a loss of a few dozen gives "
                "almost no protection. Check the number."
            )
        if not 0 < delta < 1:
            raise BudgetError(
                f'delta is {format_fraction(delta)}; it must lie between 0 and 1, for instance "1e-10".'
            )
        if EVERY_OTHER in self.geolevels:
            raise BudgetError(
                'Geolevel shares: "*" cannot stand for geolevels here; name each with its share.'
            )
        shares = exact_shares(self.geolevels, "Geolevel shares")
        levels = {level: shares.get(level, Fraction(0)) for level in self.geolevels}
        object.__setattr__(self, "mechanism", mechanism)
        object.__setattr__(self, "neighbours", Neighbours(self.neighbours))
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "geolevels", MappingProxyType(levels))
        object.__setattr__(self, "queries", MappingProxyType(_written_out(self.queries, levels)))

    def epsilon(self, loss: Fraction) -> float:
        """Return the epsilon of a loss under the mechanism: by the formula ``cks`` where it is a rho."""
        if not self.mechanism.is_zcdp:
            return float(loss)
        return epsilon_cks(loss, self.delta) if loss else 0.0

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled; engines send budgets to other processes.
        queries = {level: dict(shares) for level, shares in self.queries.items()}
        plain = (self.mechanism, self.neighbours, self.total, dict(self.geolevels), queries, self.delta)
        return type(self), (*plain, self.contribution)

    def query_shares(self, geolevel: str) -> Mapping[str, Fraction]:
        """Shares of the query groups measured at a geolevel; they sum to exactly 1.

        Raises `BudgetError` if the budget has no such geolevel, or no queries there.
        """
        try:
            return self.queries[geolevel]
        except KeyError:
            raise BudgetError(
                f"The budget measures nothing at geolevel {geolevel!r}; it has queries at "
                f"{', '.join(self.queries)}."
            ) from None

    def distribution(self, geolevel: str, query: str, geounit_share: Fraction | None = None) -> AnyNoise:
        """Return the noise of each cell of a query group in a geounit.

        `geounit_share`: share of the geounit, if bypassed parents make it differ from its geolevel's.

        Raises `BudgetError` if the query is not measured there, or the share is not in (0, 1].
        """
        return noise_distribution(
            self.mechanism,
            self.neighbours,
            self.share(geolevel, query, geounit_share),
            self.total,
            records=self.contribution.records,
            together=self.contribution.together(geolevel, query),
        )

    def share(self, geolevel: str, query: str, geounit_share: Fraction | None = None) -> Fraction:
        """Return a query group's share of the total in a geounit; arguments as :meth:`distribution`."""
        shares = self.query_shares(geolevel)
        if query not in shares:
            raise BudgetError(
                f"Query {query!r} has no budget at geolevel {geolevel!r}; measured there are "
                f"{', '.join(shares)}."
            )
        return shares[query] * (self.geolevels[geolevel] if geounit_share is None else geounit_share)

    def concentrated(self, geolevel: str) -> Budget:
        """Return the same budget concentrated at one geolevel, as for block-by-block estimation.

        Raises `BudgetError` if the budget has no queries at the geolevel.
        """
        shares = {level: Fraction(level == geolevel) for level in self.geolevels}
        return replace(self, geolevels=shares, queries={geolevel: self.query_shares(geolevel)})

    def part(self, queries: Mapping[str, str]) -> Budget:
        """Return the budget of some query groups; parts that cover all groups sum to this budget.

        `queries`: query group -> its name in the part.

        Raises `BudgetError` if none of them has a budget.
        """
        kept = {
            level: {queries[query]: share for query, share in shares.items() if query in queries}
            for level, shares in self.queries.items()
        }
        spent = {level: sum(shares.values(), Fraction(0)) for level, shares in kept.items()}
        losses = {level: share * spent.get(level, 0) for level, share in self.geolevels.items()}
        part = sum(losses.values(), Fraction(0))
        if not part:
            raise BudgetError(f"[budget] gives nothing to {', '.join(queries) or 'its query groups'}.")
        return replace(
            self,
            total=self.total * part,
            geolevels={level: loss / part for level, loss in losses.items()},
            queries={
                level: {query: share / spent[level] for query, share in shares.items()}
                for level, shares in kept.items()
                if spent[level]
            },
        )

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 of everything that determines the noise; public, as no data enter.

        The order of queries and ``delta`` do not matter; the order of geolevels does.
        """
        plain = {
            "mechanism": self.mechanism.value,
            "neighbours": self.neighbours.value,
            "total": format_fraction(self.total),
            "geolevels": [[level, format_fraction(share)] for level, share in self.geolevels.items()],
            "queries": {
                level: {query: format_fraction(share) for query, share in shares.items()}
                for level, shares in self.queries.items()
            },
            **self.contribution.plain(),
        }
        return hashlib.sha256(canonical_json(plain)).hexdigest()


def _written_out(
    queries: Mapping[str, Mapping[str, Fraction]], levels: Mapping[str, Fraction]
) -> dict[str, Mapping[str, Fraction]]:
    """Return the shares with ``"*"`` expanded, after checking every geolevel's sum."""
    _refuse_unknown_levels((level for level in queries if level != EVERY_OTHER), levels)
    written: dict[str, Mapping[str, Fraction]] = {}
    for level, level_share in levels.items():
        shares = queries.get(level, queries.get(EVERY_OTHER))
        if shares is not None:
            written[level] = MappingProxyType(exact_shares(shares, f"Query shares at geolevel {level}"))
        elif level_share:
            raise BudgetError(
                f"Geolevel {level} has {format_fraction(level_share)} of the budget and no queries to spend "
                f'it on. Give [budget.queries] an entry {level}, or "*" for every other geolevel.'
            )
    return written


def _refuse_unknown_levels(named: Iterable[str], levels: Mapping[str, Fraction]) -> None:
    unknown = [level for level in named if level not in levels]
    if unknown:
        raise BudgetError(
            f"Query shares are given at geolevel {', '.join(unknown)}, which has no geolevel share; "
            f"the geolevels of the budget are {', '.join(levels)}."
        )


def shares_json(
    geolevels: Mapping[str, Fraction], queries: Mapping[str, Mapping[str, Fraction]]
) -> dict[str, dict[str, Any]]:
    """Return shares as answers and certificates give them: ``geolevels`` and ``queries``, exact texts."""

    def texts(shares: Mapping[str, Fraction]) -> dict[str, str]:
        return {name: format_fraction(share) for name, share in shares.items()}

    return {
        "geolevels": texts(geolevels),
        "queries": {level: texts(shares) for level, shares in queries.items()},
    }
