"""What a budget is played with on: a product and a tree of geounits, both public.

A run file gives both, and nothing of its confidential counts is read. Without one, the numbers of geounits of
published spines stand in, with children dealt out evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from opendas.budget.allocation import Budget
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.constraints.table import invariant_geolevels
from opendas.errors import OpendasError
from opendas.geography.recipe import build_spine
from opendas.geography.spine import Spine
from opendas.gls.blocks import Algebra, RowClasses, build_algebra
from opendas.gls.collapsed import CollapsedTree
from opendas.gls.expected_error import ExpectedError, ExpectedRow, expected_rows
from opendas.gls.information import Extended
from opendas.measurement.loss import attribute_losses, plan_loss, told_apart
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.worst import WorstLoss
from opendas.runs.run import Run, bypassed
from opendas.schema.product import Product

__all__ = ["EXACT_POINTS", "Ground", "RunSubject", "Subject"]

Share = Mapping[Fraction, int]

EXACT_POINTS: Final = 1 << 14
"""Points of the grid that the exact curve is worked out on: about a second, and four digits."""


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """The tree under one allocation of shares to levels.

    Parameters
    ----------
    multiples : mapping of geolevel to mapping of Fraction to int
        Multiple of the level's share -> number of geounits with it; zero where a parent took the share over.
    tree : CollapsedTree
    information : tuple of Extended
        Per level of the tree.
    place : tuple of int
        Position in the tree of each geolevel.
    attributes : mapping of str to Fraction
        Loss when one attribute of a record changes, on the path where it costs most.
    """

    multiples: Mapping[str, Share]
    tree: CollapsedTree
    information: tuple[Extended, ...]
    place: tuple[int, ...]
    attributes: Mapping[str, Fraction]


class Subject:
    """A product on a tree. What does not change with the budget is kept.

    Parameters
    ----------
    key : str
        Name in links: ``run``, or that of a stand-in.
    title, about : str
        What it is, in a few words and in a sentence.
    product : Product
        With its invariants at geolevels of the tree.
    levels : tuple of str
        Geolevels, top first.
    """

    def __init__(self, key: str, title: str, about: str, product: Product, levels: Sequence[str]) -> None:
        self.key, self.title, self.about = key, title, about
        self.product, self.levels = product, tuple(levels)

    @property
    def queries(self) -> tuple[str, ...]:
        """The declared query groups."""
        return self.product.query_names

    @cached_property
    def cells(self) -> Mapping[str, int]:
        """Cells of each query group."""
        return {name: self.product.workload.group(name).size for name in self.queries}

    @cached_property
    def attributes(self) -> Mapping[str, tuple[str, ...]]:
        """Attributes that each query group tells apart."""
        return {
            name: tuple(
                attribute
                for attribute in self.product.schema.names
                if told_apart(self.product, attribute, self.product.workload.group(name))
            )
            for name in self.queries
        }

    @cached_property
    def algebra(self) -> Algebra:
        """Blocks of the cell space under every declared query group."""
        groups = tuple(self.product.workload.group(name) for name in self.queries)
        return build_algebra(self.product.schema, self.product.recodes, groups)

    @cached_property
    def rows(self) -> Mapping[str, RowClasses]:
        """The rows of every declared query group, alike rows together."""
        return {name: self.algebra.rows(self.product.workload.group(name)) for name in self.queries}

    @property
    def geounits(self) -> Mapping[str, int]:
        """Geounits of each geolevel."""
        raise NotImplementedError

    @property
    def held(self) -> Mapping[str, str]:
        """Query groups that are published exactly, and the lowest geolevel where they are."""
        raise NotImplementedError

    def fixed_to(self, geolevel: str) -> int:
        """Return the position of the lowest geolevel whose geounits are fixed by what holds at `geolevel`.

        Where the spine divides the geounits of that level, the parts are not fixed, only their sums.
        """
        raise NotImplementedError

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """For a geolevel without query groups in presets, the one whose query groups it takes."""
        return MappingProxyType({})

    def start(self) -> Budget:
        """Return the budget that is shown first."""
        raise NotImplementedError

    def ground(self, budget: Budget) -> Ground:
        """Return the tree as a budget uses it."""
        raise NotImplementedError

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself; asking it for an epsilon takes a second or more."""
        raise NotImplementedError

    def spent(self, budget: Budget) -> Budget:
        """Return a budget as it would be spent."""
        return budget

    @property
    def categories(self) -> tuple[str, ...]:
        """Kinds of areas off the spine that are known."""
        return ()

    def areas(self, budget: Budget) -> tuple[ExpectedRow, ...]:
        """Return the expected error of the total in areas off the spine; takes a second or more."""
        return ()

    def presets(self) -> tuple[str, ...]:
        """Return the presets for this product whose geolevels these are, exactly or after rescaling."""
        found = [name for name in preset_names() if preset(name).product == self.product.name]
        return tuple(name for name in found if self._preset(name) is not None)

    def preset(self, name: str) -> Budget:
        """Return a preset as the budget of this subject, missing levels dropped and the others rescaled."""
        spec = BudgetSpec(preset=name, normalise=True)
        return resolve_budget(spec, self.levels, self.product.workload.canonical, self.stand_ins)

    def _preset(self, name: str) -> Budget | None:
        try:
            return self.preset(name)
        except OpendasError:
            return None


class RunSubject(Subject):
    """The product and the spine of a run file, read as ``opendas plan`` reads them.

    Parameters
    ----------
    run : Run
    """

    def __init__(self, run: Run) -> None:
        resolved = run.resolved
        about = f"From the run file {run.path.name}: what opendas plan reads, and no count."
        super().__init__("run", run.path.name, about, run.product, resolved.levels)
        self.run = run

    @cached_property
    def _bare(self) -> Spine:
        """The spine before any share is moved."""
        return build_spine(self.run.frame, self.run.resolved.recipe, lambda spine: spine)

    @property
    def geounits(self) -> Mapping[str, int]:
        """Geounits of each geolevel."""
        return {level.name: len(level) for level in self._bare.levels}

    @cached_property
    def held(self) -> Mapping[str, str]:
        """Query groups that are published exactly, and the lowest geolevel where they are."""
        found = invariant_geolevels(self.product, self._bare)
        return {self.product.workload.canonical(q): self._bare.names[level] for q, level in found.items()}

    def fixed_to(self, geolevel: str) -> int:
        """Return the position of the lowest geolevel that is fixed."""
        place = self._bare.index(geolevel)
        return place - (self._bare.levels[place].whole is not None)

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """For a geolevel without query groups in presets, the one whose query groups it takes."""
        return self.run.resolved.stand_ins

    def start(self) -> Budget:
        """Return the budget of the run file."""
        return self.run.budget

    def spent(self, budget: Budget) -> Budget:
        """Return a budget as it would be spent: block-by-block gives all of it to the leaves."""
        if self.run.resolved.estimator != "block-by-block":
            return budget
        return budget.concentrated(self.levels[-1])

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Kinds of areas off the spine that the input knows."""
        return tuple(name for name, codes in self.run.frame.entities.items() if bool((codes != b"").any()))

    def areas(self, budget: Budget) -> tuple[ExpectedRow, ...]:
        """Return the expected error of the total in areas off the spine."""
        plan = MeasurementPlan(self.product, self.spine(budget), budget)
        rows = expected_rows(ExpectedError.build(plan, algebra=self.algebra), self.run.frame)
        return tuple(row for row in rows if row.kind == "entity")

    def spine(self, budget: Budget) -> Spine:
        """Return the spine that a budget is spent on: bypassing depends on the shares."""
        if self.run.resolved.recipe.bypass is None:
            return self._bare
        key = (budget.mechanism, tuple(budget.geolevels.values()))
        kept: dict[object, Spine] = self.__dict__.setdefault("_spines", {})
        if key not in kept:
            if len(kept) >= 8:
                kept.clear()
            kept[key] = bypassed(self.with_budget(budget).resolved, self._bare)
        return kept[key]

    def with_budget(self, budget: Budget) -> Run:
        """Return the run with another budget, its spine included."""
        name = budget.mechanism.loss_name
        spec = BudgetSpec(
            rho=budget.total if name == "rho" else None,
            epsilon=budget.total if name == "epsilon" else None,
            geolevels=budget.geolevels,
            queries=budget.queries,
            delta=budget.delta,
            mechanism=budget.mechanism,
            neighbours=budget.neighbours,
        )
        resolved = replace(
            self.run.resolved, budget=spec, mechanism=budget.mechanism, neighbours=budget.neighbours
        )
        return Run(self.run.path, resolved)

    def ground(self, budget: Budget) -> Ground:
        """Return the tree as a budget uses it."""
        spine = self.spine(budget)
        plan = MeasurementPlan(self.product, spine, budget)
        expected = ExpectedError.build(plan, algebra=self.algebra)
        multiples: dict[str, Share] = {}
        for level, shares in zip(spine.levels, spine.shares, strict=True):
            if shares is None:
                multiples[level.name] = {Fraction(1): len(level)}
            else:
                counts = np.bincount(shares.which, minlength=len(shares.multiples)).tolist()
                multiples[level.name] = dict(zip(shares.multiples, counts, strict=True))
        return Ground(
            multiples,
            self._tree(expected),
            expected.information,
            expected.place,
            attribute_losses(plan),
        )

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself, on the paths where it costs most."""
        return plan_loss(MeasurementPlan(self.product, self.spine(budget), budget), points=EXACT_POINTS)

    def _tree(self, expected: ExpectedError) -> CollapsedTree:
        """Return the kinds of geounits; the same ones again for the same tree."""
        key = tuple(hash(own.tobytes()) for own in expected.own)
        kept: dict[object, CollapsedTree] = self.__dict__.setdefault("_trees", {})
        if key not in kept:
            if len(kept) >= 8:
                kept.clear()
            kept[key] = expected.tree
        return kept[key]
