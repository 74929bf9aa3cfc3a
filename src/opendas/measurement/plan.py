"""Build the measurement plan: the queries of every geounit and their noise.

The plan consists of schema, recodes, queries, frame, spine, shares, mechanism, neighbour relation and rho.
Its digest is bound into the noise key, so that two different plans never share noise. Estimator, passes and
constraints are not part of it, and estimating again spends nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.budget.allocation import Budget
from opendas.errors import BudgetError
from opendas.geography.spine import Spine
from opendas.sampling.laws import MAX_FLOORS, WORD_BITS
from opendas.sampling.mechanisms import AnyNoise, StatedNoise
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

FORMAT = "opendas measurement plan 1"

_HOPELESS = 10**15
"""Largest parameter passed to the distribution, whose figures are doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedQuery:
    """One query group at one geolevel."""

    query: QueryGroup
    address: int  # its number in noise addresses: its position among the product's query groups
    share: Fraction  # its share of the geounit's budget, > 0


@dataclass(frozen=True, slots=True, eq=False)
class LevelPlan:
    """The queries measured at one geolevel; empty where the geolevel has no budget."""

    geolevel: str
    share: Fraction
    queries: tuple[PlannedQuery, ...]

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of measured query groups."""
        return tuple(planned.query.name for planned in self.queries)


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementPlan:
    """Queries, shares and noise of every geounit of a spine."""

    product: Product
    spine: Spine
    budget: Budget
    levels: tuple[LevelPlan, ...] = ()

    def __repr__(self) -> str:
        return f"MeasurementPlan({self.product.name}: {self.spine!r}, {self.budget!r})"

    def __post_init__(self) -> None:
        names = self.product.query_names
        levels = []
        for geolevel in self.spine.names:
            share = self.budget.geolevels.get(geolevel, Fraction(0))
            planned: list[PlannedQuery] = []
            for name, query_share in (self.budget.query_shares(geolevel) if share else {}).items():
                canonical = self.product.workload.canonical(name)
                if canonical not in names:
                    raise BudgetError(
                        f"[budget.queries] {geolevel!r}: {name!r} is not a query group of "
                        f"{self.product.name}; it declares {', '.join(names)}."
                    )
                if any(canonical == other.query.name for other in planned):
                    raise BudgetError(
                        f"[budget.queries] {geolevel!r}: {canonical!r} appears twice, in two spellings; "
                        "both would be drawn with the same noise. Keep one."
                    )
                if query_share > 0:
                    group = self.product.workload.group(canonical)
                    planned.append(PlannedQuery(group, names.index(canonical), query_share))
            planned.sort(key=lambda q: q.address)
            levels.append(LevelPlan(geolevel, share, tuple(planned)))
        object.__setattr__(self, "levels", tuple(levels))
        self.spine.check_paths([level.share for level in levels])
        self._check_noise()

    def _check_noise(self) -> None:
        """Refuse noise that cannot be drawn exactly, before a key is created or a loss charged."""
        for number, level in enumerate(self.levels):
            shares = self.spine.shares[number]
            multiples = (Fraction(1),) if shares is None else shares.multiples
            least = min((m for m in multiples if m > 0), default=Fraction(1))
            for planned in level.queries:
                noise = self.distribution(number, planned, least)
                if isinstance(noise, StatedNoise):
                    noise.check()
                if noise.parameter > _HOPELESS or noise.tail_length(WORD_BITS) > MAX_FLOORS:
                    raise BudgetError(
                        f"the budget of {planned.query.name!r} at geolevel {level.geolevel!r} is too small: "
                        "its noise would be wider than exact sampling reaches (a variance of about "
                        "4.9e10 for discrete-gaussian, 4.4e9 for discrete-laplace). Give it a larger "
                        "share, or leave it out."
                    )

    @property
    def draws(self) -> int:
        """Number of noisy answers of the full measurement, including geounits without a share."""
        sizes = (sum(planned.query.size for planned in level.queries) for level in self.levels)
        return sum(len(level) * size for level, size in zip(self.spine.levels, sizes, strict=True))

    def distribution(self, level: int, planned: PlannedQuery, multiple: Fraction = Fraction(1)) -> AnyNoise:
        """Return the noise of a query at a geounit with `multiple` times its level's share."""
        return self.budget.distribution(
            self.levels[level].geolevel, planned.query.name, geounit_share=self.levels[level].share * multiple
        )

    def variances(self, level: int) -> tuple[Floats, Ints]:
        """Return the variance of a level's noise by budget multiple, and each geounit's multiple.

        - Returns `variances` (c, q): by distinct multiple and measured query group, in squared counts;
          infinite without budget.
        - Returns `which` (g,).
        """
        shares = self.spine.shares[level]
        multiples = (Fraction(1),) if shares is None else shares.multiples
        queries = self.levels[level].queries
        found = np.full((len(multiples), len(queries)), np.inf)
        for row, multiple in enumerate(multiples):
            if multiple > 0:
                found[row] = [self.distribution(level, planned, multiple).variance for planned in queries]
        size = len(self.spine.levels[level])
        return found, np.zeros(size, dtype=np.int64) if shares is None else shares.which

    def digest(self) -> str:
        """Return the SHA-256 of the plan in hexadecimal. It is public."""
        product = self.product
        document = {
            "format": FORMAT,
            "attributes": [[a.name, list(a.levels)] for a in product.schema.attributes],
            "recodes": [[r.name, r.attribute, [[g, list(m)] for g, m in r.groups]] for r in product.recodes],
            "queries": list(product.query_names),
            "levels": [
                [
                    level.geolevel,
                    str(level.share),
                    [[q.query.name, q.address, str(q.share)] for q in level.queries],
                ]
                for level in self.levels
            ],
            "mechanism": self.budget.mechanism.value,
            "neighbours": self.budget.neighbours.value,
            "total": str(self.budget.total),
            "spine": self.spine.digest(),
            **self.budget.contribution.plain(),
        }
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
