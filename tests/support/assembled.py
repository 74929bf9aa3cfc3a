"""The parts of a run put together without files, for tests of measurement, estimation and engines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opendas.budget.allocation import Budget
from opendas.constraints.table import ConstraintTable, bound_table
from opendas.engines.work import KeyedSource, Worker
from opendas.geography.bypass import bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.gls.model import TreeModel
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.noisy import NoisyMeasurements, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.noise import NoiseSource
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.topdown.family_data import LevelRules
from opendas.topdown.informed import Informed
from opendas.topdown.model import StageRules
from opendas.topdown.posterior import Posterior

KEY = bytes(range(32))


@dataclass(frozen=True)
class Assembled:
    """A run ready to estimate."""

    product: Product
    frame: Frame
    spine: Spine
    counts: Histogram
    plan: MeasurementPlan
    constraints: ConstraintTable
    rules: tuple[LevelRules, ...]

    def worker(self, key: bytes = KEY, *, keep_used: bool = True) -> Worker:
        return Worker(self.rules, KeyedSource(measured_levels(self.plan), key), False, keep_used)

    @property
    def model(self) -> TreeModel:
        return TreeModel.of_plan(self.plan, self.constraints)

    def measurements(self, key: bytes = KEY) -> NoisyMeasurements:
        tables = {
            number: self.counts.aggregate(self.spine.leaf_starts(number))
            for number in range(len(self.spine.levels))
        }
        return NoisyMeasurements(
            measured_levels(self.plan), tables, dict.fromkeys(tables, 0), NoiseSource(key)
        )


def assemble(
    product: Product,
    frame: Frame,
    histogram: Histogram,
    *,
    rho: Fraction = Fraction(2),
    queries: dict[str, Fraction] | None = None,
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN,
    neighbours: Neighbours = Neighbours.BOUNDED,
    slack: float = 0.0,
    whole_tree: Informed | Posterior | None = None,
    shares: dict[str, Fraction] | None = None,
    bypass: bool = False,
) -> Assembled:
    """Put a run together, by default with equal shares for the geolevels; `whole_tree` fits in one pass."""
    spine = standard_spine(frame)
    names = spine.names
    if bypass:
        spine = bypass_only_children(
            spine, list((shares or dict.fromkeys(names, Fraction(1, len(names)))).values())
        )
    counts = histogram.take(spine.leaf_order)
    queries = queries or {"total": Fraction(1, 4), "kind * minor": Fraction(1, 4), "detailed": Fraction(1, 2)}
    budget = Budget(
        mechanism=mechanism,
        neighbours=neighbours,
        total=rho,
        geolevels=shares or {name: Fraction(1, len(names)) for name in names},
        queries={name: dict(queries) for name in names if shares is None or shares[name]},
        delta=Fraction(1, 10**10),
    )
    plan = MeasurementPlan(product, spine, budget)
    constraints = bound_table(product, frame, spine, declared_invariants(product, counts, spine))
    rules = []
    for number, level in enumerate(plan.levels):
        *earlier, (least_squares, groups) = (
            (fits, tuple(tuple((q, product.workload.group(q).row_of_cell) for q in one) for one in rounder))
            for fits, rounder in product.passes.for_geolevel(
                level.geolevel, level.measured, is_root=number == 0, is_leaf=number == len(names) - 1
            )
        )
        if whole_tree is not None:
            least_squares = (level.measured,) if level.measured else ()
        rules.append(
            LevelRules(
                level.geolevel,
                constraints.bound_names,
                constraints.bound_cells,
                constraints.possible,
                least_squares,
                groups,
                slack,
                earlier=tuple(StageRules(*stage) for stage in earlier),
                estimator=whole_tree,
            )
        )
    return Assembled(product, frame, spine, counts, plan, constraints, tuple(rules))


def same(one: Histogram, two: Histogram) -> bool:
    """Whether two histograms hold the same counts."""
    return (
        one.size == two.size
        and np.array_equal(one.indptr, two.indptr)
        and np.array_equal(one.cells, two.cells)
        and np.array_equal(one.counts, two.counts)
    )
