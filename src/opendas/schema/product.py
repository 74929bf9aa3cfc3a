"""A product is a declaration only: what is counted, asked and held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from opendas.arrays import Bools, Ints
from opendas.errors import ConfigError
from opendas.geography.spine import Spine
from opendas.parts import Origin
from opendas.schema.attributes import Recode, Schema
from opendas.schema.declarations import (
    Bound,
    Invariant,
    LinearConstraint,
    PriorTable,
    StructuralZero,
    Tie,
)
from opendas.schema.provenance import Discovery, Provenance
from opendas.schema.query_groups import Workload

Passes = tuple[tuple[str, ...], ...]
"""Query group names of each pass, in order."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The order of estimation, by geolevel of the children being solved.

    Beside geolevel names, ``root`` and ``leaf`` are the topmost and the lowest level of the run's spine,
    and ``"*"`` every other; a geolevel's own name comes first.
    """

    # least_squares, rounder, geolevel -> passes: the word ``rest`` stands for every measured query group that
    # no earlier pass of the geolevel names, and no later stage. Of the last stage, which rounds the cells
    # themselves.
    least_squares: Mapping[str, Passes]
    rounder: Mapping[str, Passes]
    # Stages before it, in order: least squares and rounding of coarser query groups, whose rounded answers
    # are fixed for the stages that follow. A stage without rounder passes for a geolevel is left out there.
    earlier: tuple[PassPlan, ...] = ()

    @property
    def geolevels(self) -> frozenset[str]:
        """Geolevels, and words for them, that have passes of their own in some stage."""
        stages = (self, *self.earlier)
        return frozenset(key for stage in stages for key in (*stage.least_squares, *stage.rounder))

    def for_geolevel(
        self, geolevel: str, measured: tuple[str, ...], *, is_root: bool, is_leaf: bool
    ) -> tuple[tuple[Passes, Passes], ...]:
        """Return (least-squares passes, rounder passes) of each stage at one geolevel, ``rest`` resolved.

        A query group without budget at this geolevel is skipped in the least-squares passes.
        """
        keys = (geolevel, *(("root",) if is_root else ()), *(("leaf",) if is_leaf else ()), "*")
        last = (
            _of_geolevel(self.least_squares, keys) or (("rest",),),
            _of_geolevel(self.rounder, keys) or (("total",), ("detailed",)),
        )
        before = [
            (_of_geolevel(stage.least_squares, keys) or (("rest",),), rounder)
            for stage in self.earlier
            if (rounder := _of_geolevel(stage.rounder, keys)) is not None
        ]
        stages = []
        used: set[str] = set()
        for number, (chosen, rounder) in enumerate([*before, last]):
            later = {
                name for passes, _ in [*before, last][number + 1 :] for names in passes for name in names
            }
            resolved: list[tuple[str, ...]] = []
            for names in chosen:
                group: list[str] = []
                for name in names:
                    found = [q for q in measured if q not in later] if name == "rest" else [name]
                    group += [q for q in found if q in measured and q not in used]
                    used.update(group)
                if group:
                    resolved.append(tuple(group))
            stages.append((tuple(resolved), rounder))
        unused = [q for q in measured if q not in used]
        if unused:
            raise ConfigError(
                f"[passes] least_squares at {geolevel!r}: measured query group {unused[0]!r} is in no pass; "
                'name it, or end with ["rest"].'
            )
        return tuple(stages)


def _of_geolevel(table: Mapping[str, Passes], keys: tuple[str, ...]) -> Passes | None:
    return next((table[key] for key in keys if key in table), None)


@dataclass(frozen=True, eq=False)
class Product:
    """Everything that defines a product."""

    name: str  # for instance ``pl94-persons``
    schema: Schema
    recodes: tuple[Recode, ...]
    query_names: tuple[str, ...]  # declared query groups, canonical, ``total`` and ``detailed`` included
    invariants: tuple[Invariant, ...]
    bounds: tuple[Bound, ...]
    structural_zeros: tuple[StructuralZero, ...]
    protected_unit: str  # what one record is, in words: ``person``, ``housing unit``
    # Microdata layout: ``persons``, ``units``, ``dhc-persons`` or the product's own name (generic).
    layout: str
    passes: PassPlan
    preset: str | None = None  # default budget preset by name
    budget: Mapping[str, object] | None = field(default=None)  # a product file's own ``[budget]``, as written
    # attribute -> Provenance: where the labels come from; empty where nobody has said, which a run refuses.
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    discovery: Discovery | None = None  # the act that found private labels
    tie: Tie | None = None  # to which product it may be tied; of a run, to which release it is
    prior: PriorTable | None = None  # of a run, the public table that its posterior starts from
    # A second histogram of the same protected units, which counts every one of them, while a unit may have no
    # record here: households, and the housing units and group quarters that they live in or not. A run
    # measures both, and ties this one to what it released of the companion.
    companion: Product | None = None
    # name -> (query group, weight) pairs: what a budget means where it names a workload: its share is divided
    # in proportion to the weights.
    workloads: Mapping[str, tuple[tuple[str, Fraction], ...]] = field(default_factory=dict)
    linear: tuple[LinearConstraint, ...] = ()
    parts: tuple[Origin, ...] = ()  # workloads of other packages, which made some of the recodes

    def __repr__(self) -> str:
        return f"Product({self.name}: {self.schema.size:,} cells, {len(self.query_names)} query groups)"

    def each_query(self, shares: Mapping[str, Fraction]) -> dict[str, Fraction]:
        """Return the shares of a geolevel with workloads divided among their query groups."""
        found: dict[str, Fraction] = {}
        for name, share in shares.items():
            members = self.workloads.get(name, ((name, Fraction(1)),))
            whole = sum((weight for _, weight in members), Fraction(0))
            for query, weight in members:
                if query in found:
                    raise ConfigError(
                        f"[budget.queries] gives {query!r} a share twice; the second is that of {name!r}."
                    )
                found[query] = share * weight / whole
        return found

    @property
    def tied(self) -> Tie | None:
        """The tie of a run, once it is known to which release."""
        return self.tie if self.tie is not None and self.tie.microdata else None

    @cached_property
    def workload(self) -> Workload:
        """The query groups of this product by name."""
        return Workload(self.schema, self.recodes)

    @cached_property
    def possible(self) -> Bools:
        """Bool (n,): cells that are no structural zero."""
        possible = np.ones(self.schema.size, dtype=bool)
        for zero in self.structural_zeros:
            possible &= ~self.schema.box(zero.levels)
        possible.flags.writeable = False
        return possible

    @cached_property
    def unit_columns(self) -> tuple[str, ...]:
        """Frame columns of public unit counts that constraints use, and those that come with a tie."""
        columns = [bound.column for bound in self.bounds]
        columns += [one.column for one in self.linear if one.column]
        if self.tie is not None:
            columns += [*(bound.column for bound in self.tie.bounds), *self.tie.columns.values()]
            columns += self.tie.units.values()
        return tuple(dict.fromkeys(columns))

    def bound_row(self, bound: Bound) -> int:
        """Return the row of the bound's query group."""
        group = self.workload.group(bound.query)
        for row in range(group.size):
            if group.row_label(row) == bound.cell:
                return row
        raise ConfigError(f"bound on {bound.query!r}: this query group has no row {bound.cell!r}.")

    def coefficients(self, constraint: LinearConstraint) -> Ints:
        """Return the coefficient of every cell in a linear constraint, int64 (n,)."""
        group = self.workload.group(constraint.query)
        rows = [constraint.coefficients.get(group.row_label(row), 0) for row in range(group.size)]
        return np.array(rows, dtype=np.int64)[group.row_of_cell]

    def invariant_levels(self, spine: Spine) -> dict[str, int]:
        """Return the level index at which each declared invariant is taken."""
        found = {}
        for invariant in self.invariants:
            name = spine.leaf.name if invariant.geolevel == "leaf" else invariant.geolevel
            drop = f'or set drop_invariants = ["{invariant.query}"] in [run].'
            if name not in spine.names:
                raise ConfigError(
                    f"invariant {invariant.query!r} holds at geolevel {name!r}, which this spine does not "
                    f"have ({', '.join(spine.names)}); choose a spine with it, {drop}"
                )
            level = spine.levels[spine.index(name)]
            if not level.official and level.whole is None:
                raise ConfigError(
                    f"invariant {invariant.name} holds at geolevel {name!r}, whose geounits on this spine "
                    f"are not the official ones; choose another spine, {drop}"
                )
            if level.whole is not None and self.workload.group(invariant.query).size > 1:
                raise ConfigError(
                    f"invariant {invariant.name} has several cells, and this spine divides the geounits of "
                    f"{name!r}: together, parts can hold only a total. Choose another spine, {drop}"
                )
            found[invariant.query] = spine.index(name)
        return found
