"""Products on trees of which only the number of geounits at each level is known: there is no run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from opendas.budget.allocation import Budget, Noise
from opendas.budget.plan import attribute_rho
from opendas.explore.quick import variance
from opendas.explore.subjects import EXACT_POINTS, Ground, Subject
from opendas.gls.collapsed import CollapsedTree
from opendas.gls.expected_error import precision
from opendas.gls.information import Extended
from opendas.privacy.relations import Neighbours
from opendas.privacy.worst import WorstLoss
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

__all__ = ["STAND_INS", "StandIn", "stand_in"]


class StandIn(Subject):
    """A product on a tree of which only the number of geounits at each level is known.

    Parameters
    ----------
    counts : mapping of geolevel to int
        Top first.
    wholes : mapping of geolevel to int
        Where the spine divides the geounits of a level: how many there are undivided. What is published
        there is published of the whole.
    first : str
        Preset to start with.
    """

    def __init__(
        self,
        key: str,
        title: str,
        about: str,
        product: Product,
        counts: Mapping[str, int],
        wholes: Mapping[str, int],
        first: str,
    ) -> None:
        placed = tuple(
            replace(item, geolevel=tuple(counts)[-1] if item.geolevel == "leaf" else item.geolevel)
            for item in product.invariants
        )
        super().__init__(key, title, about, replace(product, invariants=placed), tuple(counts))
        self._counts, self._wholes, self._first = dict(counts), dict(wholes), first

    @property
    def geounits(self) -> Mapping[str, int]:
        """Geounits of each geolevel."""
        return self._counts

    @property
    def held(self) -> Mapping[str, str]:
        """Query groups that are published exactly, and the lowest geolevel where they are."""
        return {item.query: item.geolevel for item in self.product.invariants}

    def fixed_to(self, geolevel: str) -> int:
        """Return the position of the lowest geolevel that is fixed."""
        return self.levels.index(geolevel) - (geolevel in self._wholes)

    def start(self) -> Budget:
        """Return the budget that is shown first."""
        return self.preset(self._first)

    @cached_property
    def _tree(self) -> tuple[CollapsedTree, tuple[int, ...]]:
        sizes, place = [], []
        for level, count in self._counts.items():
            if level in self._wholes:
                sizes.append(self._wholes[level])
            place.append(len(sizes))
            sizes.append(count)
        return CollapsedTree.even(sizes), tuple(place)

    def ground(self, budget: Budget) -> Ground:
        """Return the tree as a budget uses it."""
        tree, place = self._tree
        information: list[Extended] = []
        for level in self.levels:
            weights = self._weights(budget, level)
            exact = np.array([self.held.get(query) == level for query in self.queries])
            if level in self._wholes:
                information.append(self.algebra.information(np.where(exact, np.inf, 0.0)[None]))
            else:
                weights[exact] = np.inf
            information.append(self.algebra.information(weights[None]))
        multiples = {level: {Fraction(1): count} for level, count in self._counts.items()}
        attributes = attribute_rho(budget, self.attributes)
        return Ground(multiples, tree, tuple(information), place, attributes)

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself: every path has the same noise."""
        changed = 2 if budget.neighbours is Neighbours.BOUNDED else 1
        answers: dict[tuple[Noise, int], int] = {}
        for level, shares in budget.queries.items():
            for query, share in shares.items():
                if share and budget.geolevels[level]:
                    key = (budget.distribution(level, query), 1)
                    answers[key] = answers.get(key, 0) + changed
        return WorstLoss([answers], EXACT_POINTS)

    def _weights(self, budget: Budget, level: str) -> npt.NDArray[np.float64]:
        weights = np.zeros(len(self.queries))
        if budget.geolevels[level]:
            for query, share in budget.query_shares(level).items():
                if share:
                    weights[self.queries.index(query)] = precision(
                        variance(budget.distribution(level, query))
                    )
        return weights


_NATION: Final = {
    "us": 1,
    "state": 88,
    "county": 3_496,
    "tract": 84_589,
    "block_group": 409_548,
    "block": 5_892_698,
}
_STATE: Final = {"state": 1, "county": 5, "tract": 241, "block_group": 812, "block": 17_850}
_ABOUT_NATION: Final = (
    "The numbers of geounits of the 2020 production spine, 50 states and DC (TopDown paper, Table 2), with "
    "children dealt out evenly."
)
_ABOUT_STATE: Final = (
    "The numbers of geounits of one small state (Rhode Island 2010, blocks with housing units or group "
    "quarters), with children dealt out evenly."
)
STAND_INS: Final[tuple[str, ...]] = ("us-persons", "us-units", "state-persons", "state-units")
"""What can be explored without a run file."""


def stand_in(key: str) -> StandIn:
    """Return a stand-in by name, one of :data:`STAND_INS`."""
    where, _, kind = key.partition("-")
    product = pl94_persons() if kind == "persons" else pl94_units()
    nation = where == "us"
    title = "United States 2020" if nation else "A small state"
    return StandIn(
        key,
        f"{title}, {'persons' if kind == 'persons' else 'housing units'}",
        _ABOUT_NATION if nation else _ABOUT_STATE,
        product,
        _NATION if nation else _STATE,
        {"state": 51} if nation else {},
        f"{'us' if nation else 'pr'}2020-{kind}",
    )
