"""Geolevel and query shares together, optimal after least squares over the whole tree.

For a product with several query groups the precision of every query group at every geolevel is a variable.
Under zCDP it is ``2 rho`` (unbounded) or ``rho`` (bounded) for its part rho of the budget, and the weighted
sum of the variances of all answers after least squares is jointly convex. Values and exact derivatives come
from :mod:`opendas.gls.collapsed` on the blocks of :mod:`opendas.gls.blocks`, so that a schema of 2,016 cells
costs about as much as a dozen single counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from opendas.allocation.after_least_squares import whole_shares
from opendas.allocation.shares import least_gap, minimise_shares
from opendas.allocation.solver import checked_total
from opendas.arrays import Bools, Floats, Ints
from opendas.budget.allocation import DEFAULT_DELTA, EVERY_OTHER, Budget, shares_json
from opendas.errors import BudgetError, ConfigError
from opendas.geography.hierarchy import Hierarchy
from opendas.geography.spine import Spine
from opendas.gls.blocks import build_algebra
from opendas.gls.collapsed import CollapsedTree, Trace
from opendas.gls.information import Stacks
from opendas.privacy.exact import format_fraction
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.product import Product
from opendas.schema.query_groups import Workload

Targets = Mapping[str, Mapping[str, float]]

SOURCE = "public numbers of geounits of the spine, optimal after least squares; no count was used"

_HELD = 1e9
"""Precision of what is published exactly, as a multiple of what the whole budget would buy."""

_FLOOR = 1e-10
"""Precision of query groups of the leaves without budget, on the same scale: it keeps matrices invertible
where no target needs a direction, and changes no figure that is shown."""

_RELATIVE = 1e-10


@dataclass(frozen=True, slots=True)
class JointRow:
    """What an allocation achieves for one query group at one geolevel."""

    geolevel: str
    query: str
    answers: int  # number of answers: geounits times cells of the query group
    weight: float  # weight of the mean variance in the objective
    variance: float  # mean over geounits and answers of the variance after least squares, in squared counts
    invariant: bool  # published exactly


@dataclass(frozen=True, slots=True)
class JointAllocation:
    """Shares of geolevels and query groups."""

    budget: Budget  # exact, ready for a run
    objective: float  # weighted sum of mean variances, in squared counts
    # The objective, before shares were rounded, is at most this part of itself above the least possible.
    gap: float
    uniform_objective: float  # the same where every query group that may get budget has the same share
    rows: tuple[JointRow, ...]  # one per target
    source: str = SOURCE  # what the allocation was computed from, for plan and certificate

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of ``opendas allocate RUN.toml --after-least-squares --json``, but for its text.

        Variances are summed over answers, and weights multiply these sums, as in the answer without.
        """
        rows = []
        for row in self.rows:
            shares = self.budget.queries.get(row.geolevel, {})
            share = shares.get(row.query, Fraction(0)) * self.budget.geolevels[row.geolevel]
            total = row.variance * row.answers
            rows.append(
                {
                    "geolevel": row.geolevel,
                    "query": row.query,
                    "counts": row.answers,
                    "weight": row.weight / row.answers,
                    "share": float(share),
                    "invariant": row.invariant,
                    "variance": total,
                    "mse": total,
                    "unbounded": False,
                }
            )
        return {
            "mechanism": self.budget.mechanism.value,
            "neighbours": self.budget.neighbours.value,
            "source": self.source,
            "rho": format_fraction(self.budget.total),
            **shares_json(self.budget.geolevels, self.budget.queries),
            "objective": self.objective,
            "gap": self.gap,
            "levels": rows,
            "uniform": {"objective": self.uniform_objective},
        }


def allocate_queries_after_least_squares(
    product: Product,
    spine: Spine,
    total: Fraction | int | str,
    targets: Targets,
    *,
    measured: Mapping[str, Sequence[str]] | None = None,
    neighbours: str | Neighbours = Neighbours.BOUNDED,
    delta: Fraction = DEFAULT_DELTA,
) -> JointAllocation:
    """Share rho over geolevels and query groups at once.

    - `product`: its invariants count as known exactly.
    - `spine`: public. Every geounit of a level has the level's share.
    - `total`, > 0: rho.
    - `targets`, geolevel -> query group -> weight of the mean variance of its answers there; ``"*"`` stands
      for every geolevel not named. Any query group of the product's attributes and recodes will do, measured
      or not.
    - `measured`, geolevel -> sequence of str: query groups that may get budget; ``"*"`` as above. By default
      all that the product declares, at every geolevel.
    - `delta`: where epsilon is quoted.

    Raises `BudgetError` if the total is not positive or out of range, a weight is negative or all are zero,
    a geolevel is not on the spine, the query groups of the leaves do not determine the targets, or geounits
    of one level have different shares (bypassed parents).

    Notes
    -----
    Noise is taken at variance ``1 / (2 rho)`` of its share, as in
    :func:`~opendas.allocation.after_least_squares.allocate_after_least_squares`. Structural zeros and
    bounds are not used, as in :class:`~opendas.gls.expected_error.ExpectedError`.
    """
    exact = checked_total(total, "rho")
    problem = _Problem.of(product, spine, exact, targets, measured, Neighbours(neighbours))
    free = np.flatnonzero(problem.may.ravel())

    def objective(shares: Floats) -> tuple[float, Floats]:
        return problem.at(shares, free)

    even = np.full(len(free), 1.0 / len(free))
    shares, value = minimise_shares(objective, even)
    gap = least_gap(value, objective(shares)[1], shares)
    rounded = whole_shares(shares)
    budget = problem.budget(dict(zip(free.tolist(), rounded, strict=True)), exact, delta)
    final = np.array([float(share) for share in rounded])
    objectives = (problem.at(final, free)[0], gap, objective(even)[0])
    return JointAllocation(budget, *objectives, problem.rows(final, free))


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Everything about the plan but its shares; axes: geolevels, query groups."""

    product: Product
    spine: Spine
    names: tuple[str, ...]
    trace: Trace
    weights: Floats
    answers: Floats
    may: Bools
    held: Bools
    precision: float
    neighbours: Neighbours

    @classmethod
    def of(
        cls,
        product: Product,
        spine: Spine,
        total: Fraction,
        targets: Targets,
        measured: Mapping[str, Sequence[str]] | None,
        neighbours: Neighbours,
    ) -> _Problem:
        if any(shares is not None for shares in spine.shares):
            raise BudgetError(
                "geounits of this spine have different shares, because parents are bypassed; an allocation "
                "after least squares is computed for spines without the step bypass."
            )
        workload = product.workload
        weighted = _by_level(targets, spine, workload)
        asked = {EVERY_OTHER: product.query_names} if measured is None else measured
        allowed = _by_level({level: dict.fromkeys(row, 1.0) for level, row in asked.items()}, spine, workload)
        invariants = product.invariant_levels(spine)
        fixed = {workload.canonical(query): level for query, level in invariants.items()}
        for query, level in fixed.items():
            if spine.levels[level].whole is not None:
                raise ConfigError(f"the invariant {query} holds for geounits that this spine divides.")
        order = dict.fromkeys(
            [*product.query_names, *(q for one in (*allowed, *weighted) for q in one), *fixed]
        )
        names = tuple(order)
        weights, may = _table(weighted, names), _table(allowed, names) > 0
        held = np.zeros(may.shape, dtype=np.bool_)
        for query, level in fixed.items():
            held[level, names.index(query)] = True
        _check(weights, may)
        groups = product.workload.groups(names)
        answers = np.outer([len(level) for level in spine.levels], [group.size for group in groups])
        tree = CollapsedTree.of_hierarchy(Hierarchy.of_spine(spine))
        trace = Trace(tree, *_blocks(product, names, weights), weights / answers)
        precision = 2.0 * float(total) / neighbours.l2_squared
        found = cls(product, spine, names, trace, weights, answers, may & ~held, held, precision, neighbours)
        found.check_leaves()
        return found

    def check_leaves(self) -> None:
        """Refuse leaves whose query groups leave something open that the blocks need."""
        leaf = (self.may[-1] | self.held[-1]).astype(np.float64)
        for matrices in self.trace.matrices:
            largest = np.abs(matrices).max(axis=(2, 3), keepdims=True)
            scaled = np.divide(matrices, largest, out=np.zeros_like(matrices), where=largest > 0)
            information = np.tensordot(leaf, scaled, axes=1)
            values = np.linalg.eigvalsh(information)
            if len(values) and values.min() < _RELATIVE * values.max():
                raise BudgetError(
                    f"the query groups measured at {self.spine.leaf.name!r} do not determine everything that "
                    "is measured above or wanted; let the detailed query group get budget there."
                )

    def precisions(self, shares: Floats, free: Ints) -> Floats:
        """Precision of every query group, (geolevels, query groups)."""
        table = np.where(self.held, _HELD * self.precision, 0.0)
        table[-1] += np.where(self.may[-1], _FLOOR * self.precision, 0.0)
        table.ravel()[free] += self.precision * shares
        return table

    def at(self, shares: Floats, free: Ints) -> tuple[float, Floats]:
        value, slope = self.trace.value_and_gradient(self.precisions(shares, free))
        return value, self.precision * slope.ravel()[free]

    def rows(self, shares: Floats, free: Ints) -> tuple[JointRow, ...]:
        means = self.trace.parts(self.precisions(shares, free)) / self.answers
        return tuple(
            JointRow(
                name,
                query,
                int(self.answers[level, q]),
                float(self.weights[level, q]),
                0.0 if self.held[level, q] else float(means[level, q]),
                bool(self.held[level, q]),
            )
            for level, name in enumerate(self.spine.names)
            for q, query in enumerate(self.names)
            if self.weights[level, q] > 0
        )

    def budget(self, shares: Mapping[int, Fraction], total: Fraction, delta: Fraction) -> Budget:
        levels: dict[str, Fraction] = {}
        queries: dict[str, dict[str, Fraction]] = {}
        for level, name in enumerate(self.spine.names):
            own = {
                query: shares.get(level * len(self.names) + q, Fraction(0))
                for q, query in enumerate(self.names)
            }
            levels[name] = sum(own.values(), Fraction(0))
            if levels[name]:
                queries[name] = {query: share / levels[name] for query, share in own.items() if share}
        return Budget(Mechanism.DISCRETE_GAUSSIAN, self.neighbours, total, levels, queries, delta)


def _by_level(
    given: Mapping[str, Mapping[str, float]], spine: Spine, workload: Workload
) -> list[dict[str, float]]:
    """Write out ``"*"``; one mapping of canonical query groups for each geolevel of the spine."""
    unknown = [level for level in given if level not in (*spine.names, EVERY_OTHER)]
    if unknown:
        raise BudgetError(f"geolevel {unknown[0]!r} is not on the spine, which has {', '.join(spine.names)}.")
    rows = [given.get(level, given.get(EVERY_OTHER, {})) for level in spine.names]
    return [{workload.canonical(query): float(weight) for query, weight in row.items()} for row in rows]


def _table(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Floats:
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64)


def _check(weights: Floats, may: Bools) -> None:
    if not np.all(np.isfinite(weights)) or np.any(weights < 0) or not weights.any():
        raise BudgetError("targets have weights that are finite, not negative and not all zero.")
    if not may.any():
        raise BudgetError("no query group may get budget.")


def _blocks(product: Product, names: Sequence[str], weights: Floats) -> tuple[Stacks, Stacks]:
    """Return matrices and what is wanted of the blocks that some target depends on."""
    groups = product.workload.groups(names)
    algebra = build_algebra(product.schema, product.recodes, groups)
    rows = [algebra.rows(group) for group in groups]
    matrices, sums = [], []
    for number, blocks in enumerate(algebra.blocks):
        wanted = np.stack(
            [
                np.tensordot(np.bincount(row.of_row, minlength=len(row)).astype(float), row.outer[number], 1)
                for row in rows
            ]
        )
        needed = np.tensordot(weights.any(axis=0).astype(float), np.abs(wanted), axes=1).any(axis=(1, 2))
        if needed.any():
            matrices.append(blocks.matrices[:, needed])
            sums.append(wanted[:, needed])
    return tuple(matrices), tuple(sums)
