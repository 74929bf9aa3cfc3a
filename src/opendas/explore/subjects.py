"""What a budget is explored on: a product and a tree of geounits, both public.

A run file gives both, and nothing of its confidential counts is read. Without one, the numbers of geounits of
published spines are used, with children distributed evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np

from opendas.budget.allocation import ONE_RECORD, Budget, Contribution
from opendas.budget.noise import attribute_rho, budget_loss, within_rho
from opendas.budget.presets import preset, preset_names
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import OpendasError
from opendas.geography.recipe import build_spine
from opendas.geography.spine import Spine
from opendas.gls.blocks import Algebra, RowClasses, build_algebra
from opendas.gls.collapsed import CollapsedTree, covariances
from opendas.gls.expected_error import ExpectedError, ExpectedRow, expected_rows, precision
from opendas.gls.information import Extended
from opendas.intervals.expected_margins import (
    MOST_CELLS,
    MOST_ROWS,
    expected_total,
    margin_algebra,
    margin_cost,
)
from opendas.measurement.loss import attribute_losses, plan_loss, uses_attribute, within_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.composition import WorstLoss
from opendas.report.views import query_words
from opendas.runs.context.run import Run
from opendas.runs.prepare import check_without_records
from opendas.runs.progress.processes import available_memory_mb
from opendas.runs.simulated.forecast import timed, why_untried
from opendas.runs.simulated.trial import DRAWS, Trial, TriedRow
from opendas.sampling.mechanisms import AnyNoise
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

_T = TypeVar("_T")

AT_ONCE: Final = 0.3
"""Seconds that the expected errors of one query group may take in every answer; others come on request."""


Pair = tuple[str, str]
"""Geolevel and query group."""


@dataclass(frozen=True, slots=True)
class OnRequest:
    """The expected errors that are worked out on request only, and what they take."""

    queries: tuple[str, ...] = ()
    seconds: float = 0.0  # of a plan, on this machine, about
    megabytes: float = 0.0  # of the largest; one is worked out at a time


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The tree as one budget measures it."""

    # Of one measured answer, where something is measured: several where geounits have different shares.
    noise: Mapping[Pair, tuple[AnyNoise, ...]]
    # Mean standard error after least squares over the tree; infinite where nothing is known, None where it is
    # not worked out.
    errors: Mapping[Pair, float | None]
    attributes: Mapping[str, Fraction]  # loss when one attribute of a record changes, where it costs most
    # Loss when a record moves within one geounit of a geolevel, where it costs most.
    within: Mapping[str, Fraction]


class Subject:
    """A product on a tree. What does not change with the budget is kept.

    - `key`: name in links: ``run``, or that of a stand-in.
    - `title`, `about`: what it is, in a few words and in a sentence.
    - `product`: with its invariants at geolevels of the tree.
    - `geounits`, geolevel -> int: top first.
    - `held`, query group -> geolevel: what is published exactly, and the lowest geolevel where it is.
    - `divided`: geolevels whose geounits the spine divides: what is published there is known of the wholes
      only.
    - `stand_ins`, geolevel -> geolevel: for one without query groups in presets, the one whose query groups
      it takes.
    """

    categories: tuple[str, ...] = ()  # kinds of areas off the spine that are known

    can_be_tried = False  # whether a budget can be tried on synthetic records

    untried = ""  # why it cannot, where a run file could say so

    later = OnRequest()

    never: tuple[str, ...] = ()  # query groups whose expected errors are not worked out

    notes: tuple[str, ...] = ()  # what else the answers leave out

    not_exact = ""  # why the exact loss is not worked out

    run_path: Path | None = None  # of the run file

    whole_tree = False  # whether the estimator spreads a parent by all that was measured below it

    compares: str = "between any two inputs, whatever is published exactly"
    """Of which inputs the losses are."""

    contribution: Contribution = ONE_RECORD  # what one protected unit contributes; no plan changes it

    def __init__(
        self,
        key: str,
        title: str,
        about: str,
        product: Product,
        geounits: Mapping[str, int],
        held: Mapping[str, str],
        divided: frozenset[str],
        stand_ins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.key, self.title, self.about, self.product = key, title, about, product
        self.geounits, self.held, self.divided, self.stand_ins = geounits, held, divided, stand_ins
        self.levels = tuple(geounits)
        self._kept: dict[Hashable, object] = {}

    @property
    def queries(self) -> tuple[str, ...]:
        """The declared query groups."""
        return self.product.query_names

    @property
    def many_cells(self) -> bool:
        """Whether query groups have expected errors one by one, each on its margin."""
        return self.product.schema.size > MOST_CELLS

    def canonical(self, query: str) -> str:
        """Return the name of a query group that a budget names."""
        return self.product.workload.canonical(query)

    @property
    def partly(self) -> tuple[str, ...]:
        """Attributes, and whatever else a record can change in part, that losses are given of."""
        return self.product.schema.names

    @cached_property
    def attributes(self) -> Mapping[str, tuple[str, ...]]:
        """Attributes that each query group tells apart."""
        groups = {name: self.product.workload.group(name) for name in self.queries}
        names = self.product.schema.names
        return {
            query: tuple(name for name in names if uses_attribute(self.product, name, group))
            for query, group in groups.items()
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

    def is_exact(self, geolevel: str, query: str) -> bool:
        """Return whether a query group of every geounit of a geolevel is published exactly.

        Where the spine divides the geounits of a level, the parts are not fixed, only their sums.
        """
        held = self.held.get(query)
        if held is None:
            return False
        return self.levels.index(geolevel) <= self.levels.index(held) - (held in self.divided)

    def start(self) -> Budget:
        """Return the budget that is shown first."""
        raise NotImplementedError

    def measured(self, budget: Budget, *, every: bool = False) -> Measured:
        """Return the tree as a budget measures it; `every`: with the errors that are worked out later."""
        raise NotImplementedError

    def _errors(
        self,
        tree: CollapsedTree,
        information: Sequence[Extended],
        place: Sequence[int],
        every_rows: Mapping[str, RowClasses],
    ) -> dict[Pair, float | None]:
        """Return the mean error of some query groups, from the positions of geolevels in a tree."""
        every, found = covariances(tree, information), dict[Pair, float | None]()
        for level, number in zip(self.levels, place, strict=True):
            for query, rows in every_rows.items():
                geounits = tree.levels[number].geounits
                found[level, query] = rows.standard_error(every[number], geounits)[0]
        return found

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself; asking it for an epsilon takes a second or more."""
        raise NotImplementedError

    def spent(self, budget: Budget) -> Budget:
        """Return a budget as it would be spent."""
        return budget

    def areas(self, budget: Budget) -> tuple[ExpectedRow, ...]:
        """Return the expected error of the total in areas off the spine; takes a second or more."""
        return ()

    @property
    def draws(self) -> int:
        """Over how many draws of the noise errors of released counts are averaged."""
        return 1 if self.many_cells else DRAWS

    def tried(self, budget: Budget, draws: int | None = None) -> tuple[TriedRow, ...]:
        """Return mean errors of released counts, tried on synthetic records; takes some seconds."""
        return ()

    @cached_property
    def presets(self) -> Mapping[str, Budget]:
        """Presets for this product as budgets of this tree, without missing levels and rescaled."""
        found = {}
        for name in preset_names():
            if preset(name).product == self.product.name:
                spec = BudgetSpec(preset=name, normalise=True)
                try:
                    found[name] = resolve_budget(spec, self.levels, self.canonical, self.stand_ins)
                except OpendasError:
                    continue  # its geolevels are others
        return found

    def _keep(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what was made for a key before; the last few are kept."""
        if key not in self._kept:
            if len(self._kept) >= 16:
                self._kept.clear()
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[return-value]


def _noise(budget: Budget, level: str, multiples: Iterable[Fraction]) -> dict[Pair, tuple[AnyNoise, ...]]:
    """Return the noise of every query group measured at a geolevel, for multiples of its share."""
    share = budget.geolevels[level]
    return {
        (level, query): tuple(budget.distribution(level, query, share * each) for each in multiples)
        for query in (budget.query_shares(level) if share else ())
    }


_RECORDS_ALLOWED: Final = (
    " --read-records allowed the program to open the confidential records for the frame."
)


class RunSubject(Subject):
    """The product and the spine of a run file, read as ``opendas plan`` reads them."""

    compares = "between inputs that agree on what is published exactly"

    def __init__(self, run: Run) -> None:
        self.run, self.run_path = run, run.path
        recipe = run.resolved.recipe
        self._bare = spine = (
            run.spine if recipe.bypass is None else build_spine(run.frame, recipe, lambda spine: spine)
        )
        held = run.product.invariant_levels(spine)
        super().__init__(
            "run",
            run.path.name,
            f"The product, geography and budget of the run file {run.path.name}."
            + (_RECORDS_ALLOWED if run.resolved.reader.plan_from_records else ""),
            run.product,
            {level.name: len(level) for level in spine.levels},
            {run.product.workload.canonical(query): spine.names[place] for query, place in held.items()},
            frozenset(level.name for level in spine.levels if level.whole is not None),
            run.resolved.stand_ins,
        )
        self.contribution = run.budget.contribution
        official = {level.name for level in spine.levels if level.official}
        self.off_spine = tuple(name for name in run.frame.geolevels if name not in official)
        self.categories = (*self.off_spine, *run.frame.categories)
        self.can_be_tried, self.untried = timed(run.product), why_untried(run.product)
        self.whole_tree = run.fits_whole_tree
        self._alone = Lock()  # large errors are worked out one at a time
        tie = run.product.tie
        if tie is not None:
            self.notes = (
                f"Errors are by the measurements of {run.product.name} alone. Its counts of "
                f"{query_words(tie.query)}, and their sums, are those of {tie.product}: they err as there.",
            )
        if self.many_cells:
            self.later, self.never = self._planned_errors()
        try:
            check_without_records(run)
        except OpendasError as error:
            self.notes += (f"As it stands, opendas run and plan refuse {run.path.name}: {error}",)

    def start(self) -> Budget:
        """Return the budget of the run file."""
        return self.run.budget

    def spent(self, budget: Budget) -> Budget:
        """Return a budget as it would be spent: block-by-block gives all of it to the leaves."""
        if self.run.resolved.estimator != "block-by-block":
            return budget
        return budget.concentrated(self.levels[-1])

    def areas(self, budget: Budget) -> tuple[ExpectedRow, ...]:
        """Return the expected error of the total in areas off the spine."""
        plan = self._plan(budget)
        expected = (
            expected_total(plan) if self.many_cells else ExpectedError.build(plan, algebra=self.algebra)
        )
        rows = expected_rows(expected, self.run.frame)
        return tuple(row for row in rows if row.kind == "entity" or row.name in self.off_spine)

    @cached_property
    def _trial(self) -> Trial | None:
        return Trial.of(self.run)

    def tried(self, budget: Budget, draws: int | None = None) -> tuple[TriedRow, ...]:
        """Return mean errors of released counts, tried on synthetic records of the run's own frame."""
        return () if self._trial is None else self._trial.tried(budget, draws or self.draws).rows

    def spine(self, budget: Budget) -> Spine:
        """Return the spine that a budget is spent on: bypassing depends on the shares."""
        if self.run.resolved.recipe.bypass is None:
            return self._bare
        key = ("spine", budget.mechanism, tuple(budget.geolevels.values()))
        run = self.with_budget(budget)
        return self._keep(key, lambda: run.bypass(self._bare))

    def with_budget(self, budget: Budget) -> Run:
        """Return the run with another budget, its spine included."""
        spec = BudgetSpec(delta=budget.delta, mechanism=budget.mechanism, neighbours=budget.neighbours)
        spec = spec.stating(budget.total, budget.geolevels, budget.queries)
        resolved = replace(
            self.run.resolved, budget=spec, mechanism=budget.mechanism, neighbours=budget.neighbours
        )
        return Run(self.run.path, resolved)

    def measured(self, budget: Budget, *, every: bool = False) -> Measured:
        """Return the tree as a budget measures it."""
        plan = self._plan(budget)
        noise: dict[Pair, tuple[AnyNoise, ...]] = {}
        for level, shares in zip(plan.spine.levels, plan.spine.shares, strict=True):
            multiples: Iterable[Fraction] = (Fraction(1),)
            if shares is not None:  # zero where a parent took the share over
                here = np.unique(shares.which).tolist()
                multiples = [shares.multiples[number] for number in here if shares.multiples[number]]
            noise |= _noise(budget, level.name, multiples)
        errors = self._large_errors(plan, every=every) if self.many_cells else self._all_errors(plan)
        held = self._held(plan)
        return Measured(noise, errors, attribute_losses(plan, held), within_losses(plan, held))

    def _all_errors(self, plan: MeasurementPlan) -> dict[Pair, float | None]:
        """Return the errors of all query groups together."""
        return self._errors_of(ExpectedError.build(plan, algebra=self.algebra), self.rows)

    def _large_errors(self, plan: MeasurementPlan, *, every: bool) -> dict[Pair, float | None]:
        """Return those of query groups one by one, each on the margin of its rows; None for the others."""
        found: dict[Pair, float | None] = {
            (level, query): None for level in self.levels for query in self.queries
        }
        with self._alone:
            for query in self.queries:
                if query not in self.never and (every or query not in self.later.queries):
                    algebra, rows = self._margin(query)
                    expected = ExpectedError.build(plan, algebra=algebra)
                    found |= self._errors_of(expected, {query: rows})
        return found

    def _errors_of(self, expected: ExpectedError, rows: Mapping[str, RowClasses]) -> dict[Pair, float | None]:
        own = ("tree", *(hash(each.tobytes()) for each in expected.own))
        tree = self._keep(own, lambda: expected.tree)
        return self._errors(tree, expected.information, expected.position, rows)

    def _margin(self, query: str) -> tuple[Algebra, RowClasses]:
        """Return the margin of a query group, under every declared one and what is published exactly."""
        if query not in self._margins:
            workload = self.product.workload
            groups = [workload.group(name) for name in dict.fromkeys((*self.queries, *self.held))]
            algebra = margin_algebra(self.product, groups, query)
            self._margins[query] = algebra, algebra.rows(workload.group(query))
        return self._margins[query]

    @cached_property
    def _margins(self) -> dict[str, tuple[Algebra, RowClasses]]:
        return {}

    def _planned_errors(self) -> tuple[OnRequest, tuple[str, ...]]:
        """Return which errors are worked out on request, and which not: what they take says it."""
        expected, room = expected_total(self._plan(self.start())), available_memory_mb() / 2
        sizes = {name: self.product.workload.group(name).size for name in self.queries}
        costs = {name: margin_cost(expected, size) for name, size in sizes.items() if size <= MOST_ROWS}
        fit = {name: cost for name, cost in costs.items() if cost.megabytes <= room}
        later = {name: cost for name, cost in fit.items() if cost.seconds > AT_ONCE}
        return (
            OnRequest(
                tuple(later),
                sum(cost.seconds for cost in later.values()),
                max((cost.megabytes for cost in later.values()), default=0.0),
            ),
            tuple(name for name in self.queries if name not in fit),
        )

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself, over all that the exact facts leave possible."""
        plan = self._plan(budget)
        return plan_loss(plan, replace(self._held(plan), plan=plan))

    def _held(self, plan: MeasurementPlan) -> ProtectionMap:
        """Return the map on the spine of a plan, on which it depends alone."""
        return self._keep(("map", plan.spine), lambda: ProtectionMap.of(plan, self.run.frame))

    def _plan(self, budget: Budget) -> MeasurementPlan:
        return MeasurementPlan(self.product, self.spine(budget), budget)


class StandIn(Subject):
    """A product on a tree of which only the number of geounits at each level is known.

    - `counts`, geolevel -> int: top first.
    - `wholes`, geolevel -> int: where the spine divides the geounits of a level: how many there are
      undivided. What is published there is published of the whole.
    - `first`: preset to start with.
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
        leaf = tuple(counts)[-1]
        placed = tuple(
            replace(item, geolevel=leaf if item.geolevel == "leaf" else item.geolevel)
            for item in product.invariants
        )
        held = {item.query: item.geolevel for item in placed}
        product = replace(product, invariants=placed)
        super().__init__(key, title, about, product, dict(counts), held, frozenset(wholes))
        self._wholes, self._first = dict(wholes), first

    def start(self) -> Budget:
        """Return the budget that is shown first."""
        return self.presets[self._first]

    @cached_property
    def _tree(self) -> tuple[CollapsedTree, tuple[int, ...]]:
        sizes, place = [], []
        for level, count in self.geounits.items():
            if level in self._wholes:
                sizes.append(self._wholes[level])
            place.append(len(sizes))
            sizes.append(count)
        return CollapsedTree.even(sizes), tuple(place)

    def measured(self, budget: Budget, *, every: bool = False) -> Measured:
        """Return the tree as a budget measures it."""
        tree, place = self._tree
        information: list[Extended] = []
        for level in self.levels:
            weights = np.array(self._weights(budget, level))
            exact = np.array([self.held.get(query) == level for query in self.queries])
            if level in self._wholes:
                information.append(self.algebra.information(np.where(exact, np.inf, 0.0)[None]))
            else:
                weights[exact] = np.inf
            information.append(self.algebra.information(weights[None]))
        noise: dict[Pair, tuple[AnyNoise, ...]] = {}
        for level in self.levels:
            noise |= _noise(budget, level, (Fraction(1),))
        errors = self._errors(tree, information, place, self.rows)
        return Measured(noise, errors, attribute_rho(budget, self.attributes), within_rho(budget))

    def exact_loss(self, budget: Budget) -> WorstLoss:
        """Return the loss of the composed noise itself: every path has the same noise."""
        return budget_loss(budget)

    def _weights(self, budget: Budget, level: str) -> list[float]:
        weights = [0.0] * len(self.queries)
        shares: Mapping[str, Fraction] = budget.query_shares(level) if budget.geolevels[level] else {}
        for query, share in shares.items():
            if share:
                weights[self.queries.index(query)] = precision(budget.distribution(level, query).variance)
        return weights


_TREES: Final[Mapping[str, tuple[str, str, Sequence[int], Mapping[str, int]]]] = {
    "us": (
        "United States 2020",
        "The numbers of geounits of the 2020 production spine, 50 states and DC (TopDown paper, Table 2), "
        "with children distributed evenly.",
        (1, 88, 3_496, 84_589, 409_548, 5_892_698),
        {"state": 51},
    ),
    "state": (
        "A small state",
        "The numbers of geounits of one small state (Rhode Island 2010, blocks with housing units or group "
        "quarters), with children distributed evenly.",
        (1, 5, 241, 812, 17_850),
        {},
    ),
}
_LEVELS: Final = ("us", "state", "county", "tract", "block_group", "block")

STAND_INS: Final[tuple[str, ...]] = ("us-persons", "us-units", "state-persons", "state-units")
"""What can be explored without a run file."""


def stand_in(key: str) -> StandIn:
    """Return a stand-in by name, one of :data:`STAND_INS`."""
    root, _, kind = key.partition("-")
    name, about, counts, wholes = _TREES[root]
    persons = kind == "persons"
    return StandIn(
        key,
        f"{name}, {'persons' if persons else 'housing units'}",
        about,
        pl94_persons() if persons else pl94_units(),
        dict(zip(_LEVELS[-len(counts) :], counts, strict=True)),
        wholes,
        f"{'us' if root == 'us' else 'pr'}2020-{kind}",
    )
