"""The public part of least squares over a tree: noise, masks, and what is published exactly.

The mask of a leaf excludes its structural zeros and the cells that its public unit counts close. Above the
leaves, a cell is allowed where some leaf below allows it.

Axes: ``g`` geounits of a level, ``c`` classes of noise, ``q`` query groups, ``k`` dense categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Floats, Ints
from opendas.constraints.table import ConstraintTable, JointTotal
from opendas.errors import EstimationError
from opendas.geography.spine import Spine
from opendas.gls.cells import Domain
from opendas.gls.information import Extended, Stacks
from opendas.gls.operators import Operators, mask_codes
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.product import Product
from opendas.schema.query_groups import QueryGroup

Range = tuple[int, int]
"""First geounit, and the one after the last, by their numbers in the whole level."""

_RANK = 1e-12
"""An eigenvalue below this part of their sum is zero (as in :mod:`opendas.gls.information`)."""

LEAST_VARIANCE = 1e-6
"""Noise with less variance is zero but for a chance below 1e-6; the same floor as in the family problems."""


@dataclass(frozen=True, eq=False)
class ExactAnswers:
    """Exact answers of one query group at one geolevel."""

    query: int  # position in the model's query groups
    answers: Ints  # (g, m)


@dataclass(frozen=True, eq=False)
class ModelLevel:
    """One level of a tree, or consecutive geounits of it."""

    name: str
    first: int  # number of the first geounit in the whole level
    parent: Ints  # (g,): number of each geounit's parent in the whole level above; zeros at the top
    weights: Floats  # (c, q): one over the variance of each query group's noise; 0 where it is not measured
    own: Ints  # (g,): row of `weights` of each geounit
    measured: tuple[int, ...]  # query groups that are measured here, in the order in which answers come
    patterns: Bools  # (u, k): different masks: dense categories that a geounit may use
    pattern: Ints  # (g,): mask of each geounit
    # Published exactly here and at no geolevel below. What they imply above is computed.
    exact: tuple[ExactAnswers, ...] = ()
    joint: JointTotal | None = None  # a total published exactly for several geounits together

    def __len__(self) -> int:
        return len(self.parent)

    def allowed(self, start: int, stop: int) -> Bools:
        """Return the masks of geounits ``start:stop`` of the whole level, bool (g, k)."""
        return self.patterns[self.pattern[start - self.first : stop - self.first]]

    def slice(self, start: int, stop: int) -> ModelLevel:
        """Return geounits ``start:stop`` of the whole level."""
        here = slice(start - self.first, stop - self.first)
        if start < self.first or here.stop > len(self):
            raise EstimationError(
                f"geolevel {self.name!r}: geounits {start} to {stop} are not in this part of the tree."
            )
        return replace(
            self,
            first=start,
            parent=self.parent[here],
            own=self.own[here],
            pattern=self.pattern[here],
            exact=tuple(ExactAnswers(e.query, e.answers[here]) for e in self.exact),
            joint=None if self.joint is None else self.joint.slice(here.start, here.stop),
        )


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A tree with its noise, masks and exact answers. Made by :meth:`build` or :meth:`of_plan`."""

    domain: Domain
    levels: tuple[ModelLevel, ...]  # top first
    # Per level, whether subtrees say something about every allowed cell, and nothing exactly. Of the whole
    # tree, also in a part of it: what a geounit comes to does not depend on the part it is in.
    plain: tuple[bool, ...]
    plain_below: tuple[bool, ...]  # per level, the same of the children alone; False at the leaves

    @classmethod
    def build(
        cls,
        product: Product,
        spine: Spine,
        queries: Sequence[QueryGroup],
        measured: Sequence[Sequence[str]],
        weights: Sequence[tuple[Floats, Ints]],
        constraints: ConstraintTable | None = None,
    ) -> TreeModel:
        """Put a model together.

        - `product`: with its dropped invariants already removed.
        - `queries`: all that are measured somewhere; exact ones are added.
        - `measured`: per level, names of the query groups that are measured, in the order in which answers
          come.
        - `weights`, sequence of (float64 (c, q), int64 (g,)): per level, one over the variance by class, and
          each geounit's class.
        - `constraints`: masks and exact answers; without it, structural zeros only.

        Raises `ConfigError` if recodes, bounds and structural zeros couple too many cells.
        """
        groups = {query.name: query for query in queries}
        held = {} if constraints is None else _invariant_queries(product, constraints)
        for query in held.values():
            groups.setdefault(query.name, query)
        names = list(groups)
        if constraints is None:
            closed = np.zeros((len(spine.leaf), 0), dtype=bool)
            cells = np.zeros((0, product.schema.size), dtype=bool)
        else:
            closed = constraints.levels[-1].upper == 0
            some = closed.any(axis=0)
            closed, cells = closed[:, some], constraints.bound_cells[some]
        domain = Domain.build(product, tuple(groups.values()), cells)
        masks = _masks(domain, spine, closed, cells)
        levels = []
        for number, level in enumerate(spine.levels):
            table, own = weights[number]
            wide = np.zeros((len(table), len(names)))
            wide[:, : table.shape[1]] = table
            exact: tuple[ExactAnswers, ...] = ()
            joint = None
            if constraints is not None:
                here = constraints.levels[number]
                exact = tuple(
                    ExactAnswers(names.index(held[name].name), answers)
                    for name, answers in ((i.name, i.answers) for i in here.invariants)
                    if name in held and _deepest(constraints, name) == number
                )
                joint = here.joint
                if joint is not None and _deepest(constraints, joint.name) != number:
                    joint = None
            levels.append(
                ModelLevel(
                    level.name,
                    0,
                    level.parent,
                    wide,
                    np.asarray(own, dtype=np.int64),
                    tuple(names.index(name) for name in measured[number]),
                    *masks[number],
                    exact,
                    joint,
                )
            )
        return cls(domain, tuple(levels), *_plain(domain, levels))

    @classmethod
    def of_plan(cls, plan: MeasurementPlan, constraints: ConstraintTable | None = None) -> TreeModel:
        """Return the model of a plan: the variances of its integer noise, and the constraints of the run.

        `constraints`: as :func:`opendas.constraints.table.bound_table` makes them.
        """
        levels = [
            ([planned.query for planned in level.queries], *plan.variances(number))
            for number, level in enumerate(plan.levels)
        ]
        return cls.of_noise(plan.product, plan.spine, levels, constraints)

    @classmethod
    def of_noise(
        cls,
        product: Product,
        spine: Spine,
        levels: Sequence[tuple[Sequence[QueryGroup], Floats, Ints]],
        constraints: ConstraintTable | None = None,
    ) -> TreeModel:
        """Return the model of some noise.

        - `levels`: per level, the query groups that are measured, in the order in which answers come; the
          variance of each one's noise by class, float64 (c, q); and each geounit's class.
        - `product`, `constraints`: as for :meth:`build`.
        """
        queries = {query.name: query for measured, _, _ in levels for query in measured}
        names = list(queries)
        weights = []
        for measured, variances, which in levels:
            table = np.zeros((len(variances), len(names)))
            columns = [names.index(query.name) for query in measured]
            table[:, columns] = 1.0 / np.maximum(variances, LEAST_VARIANCE)
            weights.append((table, which))
        measured_names = [tuple(query.name for query in measured) for measured, _, _ in levels]
        return cls.build(product, spine, tuple(queries.values()), measured_names, weights, constraints)

    @property
    def queries(self) -> tuple[QueryGroup, ...]:
        """Query groups that are measured or exact somewhere: axis ``q``."""
        return self.domain.queries

    def child_starts(self, level: int, start: int, stop: int) -> Ints:
        """Return int64 (g + 1,): where the children of geounits ``start:stop`` of `level` begin.

        Numbers of the whole level below.
        """
        below = self.levels[level + 1]
        found = np.searchsorted(below.parent, np.arange(start, stop + 1))
        return np.asarray(found, dtype=np.int64) + below.first

    def slice(self, ranges: Mapping[int, Range]) -> TreeModel:
        """Return the model of some geounits; levels that are not named are left empty.

        Geounits keep their numbers.
        """
        levels = []
        for number, level in enumerate(self.levels):
            start, stop = ranges.get(number, (level.first, level.first))
            levels.append(level.slice(start, stop))
        return replace(self, levels=tuple(levels))

    @cached_property
    def own_information(self) -> tuple[Operators, ...]:
        """Per level, the information of each class of noise, before any mask: operators (c).

        Infinite where something is published exactly.
        """
        found = []
        for level in self.levels:
            held = self.exact_information([exact.query for exact in level.exact]) if level.exact else None
            stacks = Extended(self.domain.information(level.weights), held)
            if held is not None:
                stacks = replace(stacks, infinite=tuple(np.repeat(s, len(stacks), axis=0) for s in held))
            found.append(Operators.of(self.domain, stacks))
        return tuple(found)

    @cached_property
    def rows(self) -> tuple[npt.NDArray[np.int32], ...]:
        """Per query group, int32 (k, e): row that counts each cell."""
        return tuple(
            np.ascontiguousarray(query.row_of_cell[self.domain.cell], dtype=np.int32)
            for query in self.queries
        )

    @cached_property
    def total(self) -> int:
        """Position of the total among the query groups, where a joint total is held."""
        return next(i for i, query in enumerate(self.queries) if query.name == "total")

    def unit_weight(self, query: int) -> float:
        """Return a weight with which ``Q'Q`` is of the order of one; exact answers have none of theirs."""
        return self.queries[query].size / self.domain.cells

    def exact_information(self, queries: Sequence[int]) -> Stacks:
        """Return ``M``: one matrix for each block, positive on what some query groups see."""
        weights = np.zeros((1, len(self.queries)))
        for query in queries:
            weights[0, query] = self.unit_weight(query)
        return self.domain.information(weights)

    def sizes(self, level: int) -> tuple[int, ...]:
        """Return the number of rows of each query group that is measured at a level."""
        return tuple(self.queries[query].size for query in self.levels[level].measured)


def _invariant_queries(product: Product, constraints: ConstraintTable) -> dict[str, QueryGroup]:
    """Return the query group of each invariant, by the invariant's name."""
    found: dict[str, QueryGroup] = {}
    for level in constraints.levels:
        found |= {invariant.name: invariant.query for invariant in level.invariants}
        if level.joint is not None:
            found[level.joint.name] = product.workload.group("total")
    return found


def _deepest(constraints: ConstraintTable, name: str) -> int:
    """Return the last level where an invariant holds: elsewhere it is implied."""
    return max(
        number
        for number, level in enumerate(constraints.levels)
        if (level.joint is not None and level.joint.name == name)
        or any(invariant.name == name for invariant in level.invariants)
    )


def _masks(domain: Domain, spine: Spine, closed: Bools, cells: Bools) -> list[tuple[Bools, Ints]]:
    """Return per level, top first, the different masks and that of each geounit."""
    kinds = mask_codes(closed)
    _, first = np.unique(kinds, return_index=True)
    shut = closed[first].astype(np.int64) @ domain.categories_of(cells).astype(np.int64) > 0
    allowed = (domain.every & ~shut)[kinds]
    found = []
    for number in reversed(range(len(spine.levels))):
        codes = mask_codes(allowed)
        _, first = np.unique(codes, return_index=True)
        found.append((allowed[first], codes))
        if number:
            starts = spine.child_starts(number - 1)[:-1]
            allowed = np.logical_or.reduceat(allowed, starts, axis=0)
    return found[::-1]


def _plain(domain: Domain, levels: Sequence[ModelLevel]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Find at which levels matrices can be inverted as they are."""
    leaf = levels[-1]
    pairs = np.unique(leaf.own * len(leaf.patterns) + leaf.pattern)
    own, pattern = np.divmod(pairs, len(leaf.patterns))
    allowed = leaf.patterns[pattern]
    regular = True
    for stack, kind in zip(domain.information(leaf.weights[own]), domain.kinds, strict=True):
        wide = np.repeat(allowed, kind.dimension, axis=1)
        masked = stack * (wide[:, None, :, None] & wide[:, None, None, :])
        scale = np.trace(masked, axis1=2, axis2=3)[:, :, None]
        values = np.linalg.eigvalsh(masked)
        # Rows outside the mask give one zero eigenvalue each; no others may be zero.
        small = (values <= _RANK * scale).sum(axis=2)
        regular &= bool(np.all(small == (~wide).sum(axis=1)[:, None]))
    plain, below = [], []
    for number in reversed(range(len(levels))):
        below.append(regular and number < len(levels) - 1)
        level = levels[number]
        plain.append(regular and not level.exact)
        regular = plain[-1] and level.joint is None
    return tuple(plain[::-1]), tuple(below[::-1])
