"""Expected error of a plan, before any noise is drawn.

The variance of the least-squares estimate from all measurements of a plan depends on the plan alone, on no
data and no noise: Cumings-Menon et al. (2024), equations (3.3) and (3.4). What a TopDown release does
with the same measurements differs: docs/explanation/choosing-a-budget.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Floats, Ints
from opendas.errors import GeographyError
from opendas.geography.frame import Frame, Grouping
from opendas.geography.spine import Spine
from opendas.gls.areas import area_covariances
from opendas.gls.blocks import Algebra, RowClasses, build_algebra
from opendas.gls.collapsed import CollapsedTree, UpwardMessage, downward, upward
from opendas.gls.information import Extended
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.query_groups import QueryGroup

_NARROWEST = 1e-30
"""Variance, in squared counts, of noise that is zero in all draws anybody will ever make."""


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """Expected error of one query group in the geounits of a geolevel or the areas of an entity category."""

    kind: str  # ``"geolevel"`` or ``"entity"``
    name: str  # geolevel or entity category
    query: str
    areas: int  # number of geounits or entities
    # mean_sd, max_sd: mean and largest standard error of an answer over areas and rows, in counts; infinite
    # where an answer cannot be estimated from what is measured.
    mean_sd: float
    max_sd: float

    def to_dict(self) -> dict[str, object]:
        """Return the row for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class ExpectedError:
    """Variances of the least-squares estimate of a plan.

    Made by :meth:`build`. Variances are exact for the integer noise of the plan and in squared counts.
    """

    plan: MeasurementPlan
    algebra: Algebra
    # parents, own (g,): parent and class of noise of each geounit, per level of a tree: the spine's levels,
    # and one more above divided geounits whose total is published together.
    parents: tuple[Ints, ...]
    own: tuple[Ints, ...]
    # Per level of the tree, of each class of noise: zero where nothing is measured, infinite where the answer
    # is public.
    information: tuple[Extended, ...]
    position: tuple[int, ...]  # position in `tree` of each level of the spine
    fixed: tuple[str, ...]  # invariants that are taken as known exactly

    @classmethod
    def build(
        cls, plan: MeasurementPlan, *, fixed: bool = True, algebra: Algebra | None = None
    ) -> ExpectedError:
        """Prepare the blocks and the tree of a plan.

        - `fixed`: take the product's invariants as known exactly, where they are published, and, as sums,
          above.
        - `algebra`: blocks made before, for these query groups or more of the same product.

        Raises `ConfigError` if an invariant holds at a geolevel that the spine does not have, or the
        product's recodes cross too much.
        """
        workload = plan.product.workload
        declared = plan.product.invariant_levels(plan.spine) if fixed else {}
        held = {workload.canonical(query): level for query, level in declared.items()}
        if algebra is None:
            queries = {q.query.name: q.query for level in plan.levels for q in level.queries}
            queries |= {name: workload.group(name) for name in held}
            algebra = build_algebra(plan.product.schema, plan.product.recodes, tuple(queries.values()))
        parents, own, information, position = _tree(plan, algebra, held)
        names = tuple(f"{name}@{plan.spine.names[level]}" for name, level in held.items())
        return cls(plan, algebra, parents, own, information, position, names)

    @property
    def spine(self) -> Spine:
        """The spine of the plan."""
        return self.plan.spine

    @cached_property
    def tree(self) -> CollapsedTree:
        """The tree, equal subtrees once."""
        return CollapsedTree.of(self.parents, self.own)

    @cached_property
    def messages(self) -> tuple[UpwardMessage, ...]:
        """What subtrees say about their totals, per level of the tree."""
        return upward(self.tree, self.information)

    @cached_property
    def covariances(self) -> tuple[Extended, ...]:
        """Of the estimates from all measurements, in each context of each level of the tree."""
        return downward(self.tree, self.messages)

    def rows(self, query: str) -> RowClasses:
        """Return the rows of any query group of the product, alike rows together."""
        return self.algebra.rows(self._group(query))

    def geounits(self, geolevel: str, query: str, positions: Sequence[int] | Ints | None = None) -> Floats:
        """Return the variance of each answer in each geounit of a geolevel of the spine.

        - `query`: any that the product's attributes and recodes can express.
        - `positions`: only these geounits.
        - Returns (g, m): in squared counts; infinite where the measurements say nothing.
        """
        number = self.position[self.spine.index(geolevel)]
        rows = self.rows(query)
        chosen = self.tree.contexts[number]
        chosen = chosen if positions is None else chosen[np.asarray(positions)]
        classes, which = np.unique(chosen, return_inverse=True)
        found = rows.variances(self.covariances[number].take(classes))
        return np.asarray(found[which][:, rows.of_row])

    def leaf_set(self, leaves: Sequence[int] | npt.NDArray[np.integer], query: str) -> Floats:
        """Return the variance of each answer in an area made of leaves.

        - `leaves`: positions on the spine's leaf level: of positions in the frame,
          ``spine.place_of_leaf[...]``.
        - Returns (m,).

        Raises `GeographyError` if a leaf is not on the spine.
        """
        chosen = np.unique(np.asarray(leaves, dtype=np.int64))
        if len(chosen) and not 0 <= int(chosen[0]) <= int(chosen[-1]) < len(self.spine.leaf):
            raise GeographyError(
                f"a leaf of the area is not on the spine, whose leaves are numbered 0 to "
                f"{len(self.spine.leaf) - 1}."
            )
        rows = self.rows(query)
        found = rows.variances(self._leaf_sets(np.zeros(len(chosen), dtype=np.int64), chosen, 1))
        return np.asarray(found[0, rows.of_row])

    def areas(self, codes: Codes) -> tuple[Codes, Extended]:
        """Return areas named by a column of codes, and the covariance of each area's total.

        - `codes` (leaves,): code of the area of each leaf of the frame; empty for none.
        - Returns the names of the areas.
        - Returns the covariances, for :meth:`rows`: ``rows(query).variances(covariance)`` is float64 (areas,
          classes).
        """
        grouping = Grouping.of("", codes[self.spine.leaf_order])
        leaves = grouping.members
        return grouping.geocodes, self._leaf_sets(grouping.of_leaf[leaves], leaves, len(grouping))

    def _leaf_sets(
        self, area: npt.NDArray[np.integer], leaf: npt.NDArray[np.integer], areas: int
    ) -> Extended:
        return area_covariances(self.tree, self.messages, area, leaf, areas)

    def _group(self, query: str) -> QueryGroup:
        return self.plan.product.workload.group(query)

    def summary(self, geolevel: str, queries: Iterable[str]) -> tuple[ExpectedRow, ...]:
        """Summarise query groups over the geounits of a geolevel of the spine."""
        number = self.position[self.spine.index(geolevel)]
        counts = self.tree.levels[number].geounits
        return self._summaries("geolevel", geolevel, queries, self.covariances[number], counts)

    def area_summary(
        self, kind: str, name: str, codes: Codes, queries: Iterable[str]
    ) -> tuple[ExpectedRow, ...]:
        """Summarise query groups over areas named by a column of codes, as in :meth:`areas`."""
        areas, covariance = self.areas(codes)
        return self._summaries(kind, name, queries, covariance, np.ones(len(areas), dtype=np.int64))

    def _summaries(
        self, kind: str, name: str, queries: Iterable[str], covariance: Extended, counts: Ints
    ) -> tuple[ExpectedRow, ...]:
        found = []
        for query in queries:
            errors = self.rows(query).standard_error(covariance, counts)
            found.append(ExpectedRow(kind, name, self._group(query).name, int(counts.sum()), *errors))
        return tuple(found)


def expected_rows(
    expected: ExpectedError,
    frame: Frame,
    queries: Sequence[str] = ("total",),
    *,
    entities: bool = True,
) -> tuple[ExpectedRow, ...]:
    """Summarise expected errors per official geolevel and per entity category.

    - `frame`: the public frame that the spine was made of: its official codes and entities.
    - `entities`: also per entity category.
    - Returns: geolevels from the top, then entity categories that have an entity. Official geounits that the
      spine divides or leaves out are summed from the leaves, as every entity is.
    """
    found: list[ExpectedRow] = []
    spine = expected.spine
    for geolevel in frame.geolevels:
        if geolevel in spine.names and spine.levels[spine.index(geolevel)].official:
            found += expected.summary(geolevel, queries)
        else:
            found += expected.area_summary("geolevel", geolevel, frame.codes(geolevel), queries)
    for category in frame.categories if entities else ():
        found += expected.area_summary("entity", category, frame.codes(category), queries)
    return tuple(found)


def _tree(
    plan: MeasurementPlan, algebra: Algebra, held: Mapping[str, int]
) -> tuple[tuple[Ints, ...], tuple[Ints, ...], tuple[Extended, ...], tuple[int, ...]]:
    tree: list[tuple[Ints, Ints, Extended]] = []
    position: list[int] = []
    for number, level in enumerate(plan.spine.levels):
        exact = np.isin(algebra.queries, [name for name, at in held.items() if at == number])
        below = [name for name, at in held.items() if at > number and plan.spine.levels[at].whole is None]
        parent = level.parent
        weights, own = _weights(plan, algebra, number)
        weights[:, np.isin(algebra.queries, below)] = (
            np.inf
        )  # sums of what is published, as TopDown keeps them
        if level.whole is not None and exact.any():
            # What is published holds for the divided geounits: they stand above their parts, unmeasured.
            starts = np.flatnonzero(np.diff(level.whole, prepend=-1))
            whole = algebra.information(np.where(exact, np.inf, 0.0)[None])
            tree.append((parent[starts], np.zeros(len(starts), dtype=np.int64), whole))
            parent = level.whole
        else:
            weights[:, exact] = np.inf
        position.append(len(tree))
        tree.append((parent, own, algebra.information(weights)))
    return *zip(*tree, strict=True), tuple(position)  # type: ignore[return-value]


def precision(variance: float) -> float:
    """Return one over a variance; where no draw will ever differ from zero, the answer is exact."""
    return 1.0 / variance if variance > _NARROWEST else np.inf


def _weights(plan: MeasurementPlan, algebra: Algebra, number: int) -> tuple[Floats, Ints]:
    """Return one over the variance per distinct share and query group, and each geounit's share."""
    variances, which = plan.variances(number)
    weights = np.zeros((len(variances), len(algebra.queries)))
    columns = [algebra.queries.index(planned.query.name) for planned in plan.levels[number].queries]
    weights[:, columns] = [[precision(variance) for variance in row] for row in variances]
    return weights, which
