"""A product and its second histogram, which share one budget: what each of them answers, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from opendas.budget.allocation import Budget
from opendas.errors import ConfigError
from opendas.explore.subjects import Measured, OnRequest, Pair, RunSubject, Subject
from opendas.gls.expected_error import ExpectedRow
from opendas.privacy.composition import WorstLoss
from opendas.runs.config.resolve import both_canonical, is_of_second
from opendas.runs.context.run import Run

_V = TypeVar("_V")


class TwoHistograms(Subject):
    """The query groups of both, by the names that the shared budget has for them.

    `run`, `companion`: of the product, and of the histogram that the same run measures first.
    """

    def __init__(self, run: Run, companion: Run) -> None:
        one, other = self.first, self.second = RunSubject(run), RunSubject(companion)
        self._canonical = both_canonical(one.product, other.product)
        # By these names: the names in the budget of each. A shared budget has none for the companion's total.
        self._mine = {name: name for name in one.queries if not is_of_second(name, other.product)}
        self._theirs = {
            self._canonical(" * ".join(other.product.workload.group(name).factors)): name
            for name in other.queries
            if name != "total"
        }
        super().__init__(
            one.key,
            one.title,
            f"{one.about} The run measures {other.product.name} out of the same budget.",
            one.product,
            one.geounits,
            {**_named(one.held, self._mine), **_named(other.held, self._theirs)},
            one.divided,
            one.stand_ins,
        )
        self.run_path, self.contribution, self.compares = one.run_path, one.contribution, one.compares
        self.categories, self.untried, self.whole_tree = one.categories, one.untried, one.whole_tree
        self.never = (*_names(one.never, self._mine), *_names(other.never, self._theirs))
        self.later = OnRequest(
            (*_names(one.later.queries, self._mine), *_names(other.later.queries, self._theirs)),
            one.later.seconds + other.later.seconds,
            max(one.later.megabytes, other.later.megabytes),
        )
        self.notes = (
            *one.notes,
            *other.notes,
            f"A {one.product.protected_unit} may have a record in both histograms. A change of one attribute "
            "costs what stands at it, a change of several records the sum; a move is of both records.",
        )
        self.not_exact = (
            "The exact epsilon is worked out for one histogram at a time: opendas account --exact "
            f"{one.title} gives both."
        )

    @property
    def queries(self) -> tuple[str, ...]:
        """The query groups of both, the companion's last."""
        return (*self._mine, *self._theirs)

    @property
    def partly(self) -> tuple[str, ...]:
        """The attributes of both."""
        return tuple(dict.fromkeys((*self.first.partly, *self.second.partly)))

    def canonical(self, query: str) -> str:
        """Return the name of a query group that a budget names."""
        return self._canonical(query)

    def start(self) -> Budget:
        """Return the budget of the run file."""
        one, other = self.first.start(), self.second.start()
        total = one.total + other.total
        losses: dict[str, dict[str, Fraction]] = {level: {} for level in self.levels}
        for part, names in ((one, self._mine), (other, self._theirs)):
            for level in self.levels:
                share = part.total * part.geolevels[level]
                own = part.query_shares(level) if share else {}
                losses[level] |= {name: share * own[q] for name, q in names.items() if q in own}
        spent = {level: sum(each.values(), Fraction(0)) for level, each in losses.items()}
        return replace(
            one,
            total=total,
            geolevels={level: loss / total for level, loss in spent.items()},
            queries={
                level: {query: loss / spent[level] for query, loss in each.items()}
                for level, each in losses.items()
                if spent[level]
            },
        )

    def measured(self, budget: Budget, *, every: bool = False) -> Measured:
        """Return the tree as both parts of a budget measure it."""
        one = self.first.measured(budget.part(self._mine), every=every)
        other = self.second.measured(budget.part(self._theirs), every=every)
        attributes = dict(one.attributes)
        for name, loss in other.attributes.items():
            attributes[name] = attributes.get(name, Fraction(0)) + loss
        return Measured(
            {**_by_pair(one.noise, self._mine), **_by_pair(other.noise, self._theirs)},
            {**_by_pair(one.errors, self._mine), **_by_pair(other.errors, self._theirs)},
            attributes,
            {level: loss + other.within[level] for level, loss in one.within.items()},
        )

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Refuse: losses of two histograms are composed by their sum."""
        raise ConfigError(self.not_exact)

    def areas(self, budget: Budget) -> tuple[ExpectedRow, ...]:
        """Return the expected error of the product's total in areas off the spine."""
        return self.first.areas(budget.part(self._mine))


def _names(found: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name, own in names.items() if own in found)


def _named(found: Mapping[str, _V], names: Mapping[str, str]) -> dict[str, _V]:
    return {name: found[own] for name, own in names.items() if own in found}


def _by_pair(found: Mapping[Pair, _V], names: Mapping[str, str]) -> dict[Pair, _V]:
    levels = dict.fromkeys(level for level, _ in found)
    return {
        (level, name): found[level, own]
        for level in levels
        for name, own in names.items()
        if (level, own) in found
    }
