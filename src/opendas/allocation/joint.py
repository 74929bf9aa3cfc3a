"""Allocate over geolevels and query groups at once: one level of program (6) for each pair of them.

A query group at a geolevel is a set of released counts like any other, so that the joint allocation is the
same program with a "level" per pair. Its answer is the plan of a run: exact shares of geolevels, and exact
shares of query groups within each geolevel.

Each measurement counts by itself, as it is released and clamped.
:mod:`opendas.allocation.after_least_squares` is for errors after consistency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from opendas.allocation.histogram import Level
from opendas.allocation.noise_kinds import NoiseKind, noise_kind
from opendas.allocation.programs_6_7 import (
    Allocation,
    LevelError,
    Number,
    allocate_target,
    allocate_total,
    errors_at,
    weighted,
)
from opendas.allocation.solver import exact_split
from opendas.budget.allocation import DEFAULT_DELTA, Budget, shares_json
from opendas.errors import BudgetError, ConfigError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

_EVERY = "*"


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A query group at a geolevel."""

    geolevel: str
    query: str
    level: Level  # its released counts: one per geounit and cell of the group

    @property
    def name(self) -> str:
        """``geolevel/query``."""
        return f"{self.geolevel}/{self.query}"


@dataclass(frozen=True, slots=True, eq=False)
class QueryAllocation:
    """Shares of a budget over geolevels and query groups."""

    budget: Budget  # exact: what a run takes
    pairs: tuple[Pair, ...]
    optimum: Allocation  # the optimum in binary numbers, with one level per pair
    errors: tuple[LevelError, ...]  # error of each pair at the exact budget
    source: str  # where the counts come from that the allocation was computed from

    @property
    def objective(self) -> float:
        """Weighted sum of mean squared errors at the exact budget."""
        return weighted(self.errors, self.optimum.weights)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas allocate RUN.toml --json``, but for its text."""
        budget = self.budget
        rows = []
        for pair, error, weight in zip(self.pairs, self.errors, self.optimum.weights, strict=True):
            share = budget.queries.get(pair.geolevel, {}).get(pair.query, Fraction(0))
            share *= budget.geolevels[pair.geolevel]
            row = {"geolevel": pair.geolevel, "query": pair.query, "counts": pair.level.counts.nodes}
            row |= {"weight": weight, "share": float(share), "invariant": pair.level.fixed}
            rows.append(row | {key: value for key, value in error.to_dict().items() if key != "name"})
        return {
            "mechanism": budget.mechanism.value,
            "neighbours": budget.neighbours.value,
            "source": self.source,
            budget.mechanism.loss_name: format_fraction(budget.total),
            **shares_json(budget.geolevels, budget.queries),
            "objective": self.objective,
            "multiplier": self.optimum.multiplier,
            "levels": rows,
            "uniform": {"objective": self.optimum.uniform_objective},
        }


def pair_weights(pairs: Sequence[Pair], weights: Mapping[str, float]) -> tuple[float, ...]:
    """Weight of each pair from weights of geolevels, query groups and pairs.

    - `weights`: name -> factor. A name is a geolevel, a query group, ``geolevel/query``, or one of these with
      ``*`` for every other part (``block/*``, ``*/total``), which also distinguishes a geolevel from a query
      group of the same name. All factors that apply are multiplied.
    - Returns: 1 where nothing applies.

    Examples
    --------
    >>> from opendas.allocation import unknown_counts
    >>> pairs = [Pair(place, "total", unknown_counts("n", 1)) for place in ("state", "block")]
    >>> pair_weights(pairs, {"block": 2.0, "total": 0.5})
    (0.5, 1.0)
    """
    geolevels = {pair.geolevel for pair in pairs}
    queries = {pair.query for pair in pairs}
    found = [1.0] * len(pairs)
    for name, factor in weights.items():
        geolevel, slash, query = (part.strip() for part in name.partition("/"))
        if not slash:
            if geolevel in geolevels and geolevel in queries:
                raise BudgetError(
                    f"weights: {name!r} is a geolevel and a query group; write {name}/* or */{name}."
                )
            geolevel, query = (geolevel, _EVERY) if geolevel in geolevels else (_EVERY, geolevel)
        places = [
            k
            for k, pair in enumerate(pairs)
            if geolevel in (pair.geolevel, _EVERY) and query in (pair.query, _EVERY)
        ]
        if not places:
            raise BudgetError(
                f"weights: {name!r} is neither a geolevel nor a query group here. Geolevels are "
                f"{', '.join(dict.fromkeys(pair.geolevel for pair in pairs))}; query groups are "
                f"{', '.join(dict.fromkeys(pair.query for pair in pairs))}."
            )
        if not (math.isfinite(factor) and factor >= 0):
            raise BudgetError(f"weights: that of {name!r} is {factor:g}; a weight is a number of at least 0.")
        for k in places:
            found[k] *= factor
    return tuple(found)


def allocate_queries(
    pairs: Sequence[Pair],
    geolevels: Sequence[str],
    mechanism: str | Mechanism,
    *,
    source: str,
    total: Number | None = None,
    mse: Number | None = None,
    weights: Sequence[float] | None = None,
    neighbours: str | Neighbours = Neighbours.BOUNDED,
    delta: Fraction = DEFAULT_DELTA,
) -> QueryAllocation:
    """Allocate over geolevels and query groups, for one run.

    - `pairs`: released counts; public.
    - `geolevels`: all geolevels of the run, top first; those without a pair get no budget.
    - `mechanism`: ``discrete-gaussian`` or ``discrete-laplace``.
    - `total`, `mse`: the total budget, or a target for the weighted sum of mean squared errors: one of them.
    - `weights`: one per pair, see :func:`pair_weights`. They multiply sums over counts, so that at equal
      weights a query group of many cells counts for many.
    - `delta`: for the budget; changes nothing here.
    - Returns: shares sum to exactly 1 over geolevels, and over the query groups of each geolevel.
    """
    kind = noise_kind(mechanism)
    if not kind.is_integer:
        raise ConfigError(
            f"mechanism: the noise of a run is whole numbers; use discrete-{kind.value}, not {kind.value}."
        )
    if (total is None) == (mse is None):
        raise ConfigError("give a total budget, or a target for the mean squared error (mse), not both.")
    if not source.strip():
        raise ConfigError("source: say where the counts come from that the allocation is computed from.")
    _check_pairs(pairs, geolevels)
    levels = [Level(pair.name, pair.level.counts, pair.level.known, pair.level.fixed) for pair in pairs]
    if mse is None:
        optimum = allocate_total(levels, kind, total or 0, weights, neighbours)
        whole = parse_fraction(total, "total")
        budget = _budget(pairs, geolevels, kind, neighbours, optimum.budgets, whole, delta)
    else:
        optimum = allocate_target(levels, kind, mse, weights, neighbours)
        budget = _reaching(pairs, geolevels, kind, neighbours, optimum, parse_fraction(mse, "mse"), delta)
    return QueryAllocation(budget, tuple(pairs), optimum, _errors(pairs, kind, budget), source.strip())


def _check_pairs(pairs: Sequence[Pair], geolevels: Sequence[str]) -> None:
    names = [pair.name for pair in pairs]
    for pair in pairs:
        if names.count(pair.name) > 1:
            raise ConfigError(f"the query group {pair.query!r} appears twice at geolevel {pair.geolevel!r}.")
        if pair.geolevel not in geolevels:
            raise ConfigError(f"{pair.geolevel!r} is not a geolevel of the run: {', '.join(geolevels)}.")


def _budget(
    pairs: Sequence[Pair],
    geolevels: Sequence[str],
    kind: NoiseKind,
    neighbours: str | Neighbours,
    budgets: Sequence[float],
    total: Fraction,
    delta: Fraction,
) -> Budget:
    """Round the shares of geolevels, and those of query groups within each."""
    spent = {
        level: {
            pair.query: budget
            for pair, budget in zip(pairs, budgets, strict=True)
            if pair.geolevel == level and budget > 0
        }
        for level in geolevels
    }
    sums = [sum(row.values()) for row in spent.values()]
    queries = {
        level: dict(zip(row, exact_split(list(row.values()), Fraction(1)), strict=True))
        for level, row in spent.items()
        if row
    }
    return Budget(
        mechanism=Mechanism(kind.value),
        neighbours=Neighbours(neighbours),
        total=total,
        geolevels=dict(zip(geolevels, exact_split(sums, Fraction(1)), strict=True)),
        queries=queries,
        delta=delta,
    )


def _errors(pairs: Sequence[Pair], kind: NoiseKind, budget: Budget) -> tuple[LevelError, ...]:
    shares = [budget.queries.get(pair.geolevel, {}).get(pair.query, Fraction(0)) for pair in pairs]
    spent = [
        share * budget.geolevels[pair.geolevel] * budget.total
        for pair, share in zip(pairs, shares, strict=True)
    ]
    levels = [Level(pair.name, pair.level.counts, pair.level.known, pair.level.fixed) for pair in pairs]
    return errors_at(levels, kind, spent, budget.neighbours)


def _reaching(
    pairs: Sequence[Pair],
    geolevels: Sequence[str],
    kind: NoiseKind,
    neighbours: str | Neighbours,
    optimum: Allocation,
    target: Fraction,
    delta: Fraction,
) -> Budget:
    """Round the total up until the target is met with rounded shares."""
    total = optimum.total
    for _ in range(20):
        budget = _budget(pairs, geolevels, kind, neighbours, optimum.budgets, total, delta)
        if weighted(_errors(pairs, kind, budget), optimum.weights) <= target:
            return budget
        total *= 1 + Fraction(1, 10**6)
    raise BudgetError(f"mse: no rounded budget was found for the target {format_fraction(target)}.")
