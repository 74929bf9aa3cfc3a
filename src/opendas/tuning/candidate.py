"""Allocations on trial: a loss for every query group at every geolevel, or no noise at all there.

The strategies of the TopDown paper, section 8.1, say which query groups are measured and how a geolevel's
loss is shared out among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from opendas.budget.resolve import BudgetSpec
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism
from opendas.schema.product import Product

EXACT = Fraction(10_000)
"""Loss of a query group that is to have no noise: the chance of any is below exp(-4,000)."""

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """Query groups, and how a geolevel's loss is shared out among them."""

    name: str
    shares: Mapping[str, Mapping[str, Fraction]]  # by geolevel and query group; each geolevel sums to one
    one_pass: bool = False  # least squares in one pass, in place of the product's own order


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation on trial."""

    strategy: Strategy  # where it comes from
    # By geolevel, top first, and query group, zeros included. None: everything is known exactly there.
    losses: Mapping[str, Mapping[str, Fraction] | None]

    @classmethod
    def of_levels(cls, strategy: Strategy, losses: Mapping[str, Fraction | None]) -> Candidate:
        """Share out a loss per geolevel as the strategy says."""
        return cls(
            strategy,
            {
                level: None
                if loss is None
                else {name: rounded_loss(loss * part) for name, part in strategy.shares[level].items()}
                for level, loss in losses.items()
            },
        )

    @property
    def levels(self) -> dict[str, Fraction]:
        """Loss of each geolevel with noise."""
        return {
            level: sum(queries.values(), Fraction(0))
            for level, queries in self.losses.items()
            if queries is not None
        }

    @property
    def total(self) -> Fraction:
        """Loss of all geolevels with noise."""
        return sum(self.levels.values(), Fraction(0))

    @property
    def key(self) -> str:
        """Text that two candidates share only if they are alike."""
        levels = (
            f"{level} exact"
            if queries is None
            else level + " " + ",".join(f"{name}={format_fraction(loss)}" for name, loss in queries.items())
            for level, queries in self.losses.items()
        )
        return "; ".join([f"one pass {self.strategy.one_pass}", *levels])

    def scaled(self, factor: Fraction, levels: Sequence[str] | None = None) -> Candidate:
        """Return the candidate with the losses of some geolevels, or of all, times a factor."""
        return Candidate(
            self.strategy,
            {
                level: queries
                if queries is None or (levels is not None and level not in levels)
                else {name: rounded_loss(loss * factor) for name, loss in queries.items()}
                for level, queries in self.losses.items()
            },
        )

    def with_loss(self, level: str, query: str, loss: Fraction) -> Candidate:
        """Return the candidate with another loss of one query group."""
        queries = self.losses[level]
        if queries is None:
            raise ValueError(f"{level} is exact")
        return Candidate(self.strategy, {**self.losses, level: {**queries, query: rounded_loss(loss)}})

    def budget(self, mechanism: Mechanism) -> dict[str, object]:
        """Return the parts of ``[budget]``: the loss, its geolevel shares and query shares, all exact."""
        written = {
            level: dict.fromkeys(self.strategy.shares[level], EXACT) if queries is None else queries
            for level, queries in self.losses.items()
        }
        sums = {level: sum(queries.values(), Fraction(0)) for level, queries in written.items()}
        total = sum(sums.values(), Fraction(0))
        return {
            mechanism.loss_name: total,
            "geolevels": {level: loss / total for level, loss in sums.items()},
            "queries": {
                level: {name: loss / sums[level] for name, loss in queries.items() if loss}
                for level, queries in written.items()
                if sums[level]
            },
        }

    def spec(self, like: BudgetSpec) -> BudgetSpec:
        """Return the budget for a run like that of another budget."""
        parts = self.budget(like.mechanism)
        return BudgetSpec(
            **parts,  # type: ignore[arg-type]
            delta=like.delta,
            mechanism=like.mechanism,
            neighbours=like.neighbours,
        )


def rounded_loss(loss: Fraction) -> Fraction:
    """Round a loss to three significant decimal digits, so that plans can be read."""
    return Fraction(f"{float(loss):.{_DIGITS}g}") if loss else Fraction(0)


def bureau_strategies(product: Product, levels: Sequence[str]) -> tuple[Strategy, ...]:
    """Return the six candidate strategies of the TopDown paper, section 8.1, for any product.

    Two sets of query groups, by three rules of sharing out. The sets: every declared query group, as they
    follow the published tables; or a collapsed one, total, groups of a single attribute or recode, and
    detailed. The rules: in proportion to the square of the number of cells, to its inverse, or evenly. With
    the first, nearly all goes to detailed, and everything is estimated in one pass; a product with stages
    keeps them.

    The paper does not print its query groups; for the persons of the redistricting file these are ours.
    """
    collapsed = tuple(
        name
        for name in product.query_names
        if name == "detailed" or len(product.workload.group(name).factors) <= 1
    )
    found = []
    for kind, names in (("published", product.query_names), ("collapsed", collapsed)):
        sizes = {name: product.workload.group(name).size for name in names}
        for rule, power in (("square", 2), ("inverse square", -2), ("even", 0)):
            weights = {name: Fraction(size) ** power for name, size in sizes.items()}
            total = sum(weights.values(), Fraction(0))
            shares = {name: weight / total for name, weight in weights.items()}
            one_pass = power == 2 and not product.passes.earlier
            found.append(Strategy(f"{kind}, {rule}", dict.fromkeys(levels, shares), one_pass))
    return tuple(found)
