"""Least squares over whole real spines: divided states, bypassed parents, facilities, against the matrix."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.random_land import random_frame
from support.random_tree import DenseTree, Made, answers

from opendas.budget.allocation import Budget
from opendas.constraints.table import bound_table
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.recipe import NAMED_SPINES, Recipe, build_spine
from opendas.geography.spine import Spine
from opendas.gls.areas import area_estimates
from opendas.gls.downward import down_pass
from opendas.gls.model import TreeModel
from opendas.gls.upward import up_sweep
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Bound, Invariant, StructuralZero
from opendas.schema.histogram import Histogram
from opendas.schema.product import PassPlan, Product

PRODUCT = Product(
    name="people",
    schema=Schema(
        (
            Attribute("kind", ("home", "prison", "nursing")),
            Attribute("adult", ("no", "yes")),
            Attribute("group", ("a", "b")),
        )
    ),
    recodes=(Recode("institution", "kind", (("no", ("home",)), ("yes", ("prison", "nursing")))),),
    query_names=("total", "institution", "adult * group", "detailed"),
    invariants=(Invariant("total", "state"),),
    bounds=(Bound("kind", "home", "hu"), Bound("kind", "prison", "gq1"), Bound("kind", "nursing", "gq3")),
    structural_zeros=(StructuralZero({"kind": ("nursing",), "adult": ("no",)}),),
    protected_unit="person",
    layout="people",
    passes=PassPlan({}, {}),
)
QUERIES = {"*": {"total": "1/4", "institution": "1/4", "adult * group": "1/4", "detailed": "1/4"}}
COLUMNS = ("hu", "gq1", "gq3")


def land(name: str, seed: int) -> tuple[Made, MeasurementPlan]:
    """A spine of a synthetic land of few blocks, a plan, counts that obey the bounds, and noisy answers."""
    rng = np.random.default_rng(seed)
    frame = random_frame(seed, root="us" if seed % 2 else "state", most_blocks=2)

    def finish(spine: Spine) -> Spine:
        shares = [Fraction(1, len(spine.levels))] * len(spine.levels)
        if seed % 3:
            return bypass_only_children(spine, shares)
        return bypass_general(spine, shares, top=spine.index("state") + 1)

    spine = build_spine(frame, Recipe(NAMED_SPINES[name]), finish)
    cells = PRODUCT.schema.size
    dense = np.zeros((len(frame), cells), dtype=np.int64)
    for kind, column in enumerate(COLUMNS):
        there = frame.units[column] > 0
        here = PRODUCT.possible & (PRODUCT.schema.codes(np.arange(cells))[0] == kind)
        dense[there] += rng.integers(0, 4, (int(there.sum()), cells)) * here
    rows, columns = np.nonzero(dense)
    histogram = Histogram.from_entries(rows, columns, dense[rows, columns], shape=dense.shape)
    held = declared_invariants(PRODUCT, histogram.take(spine.leaf_order), spine)
    table = bound_table(PRODUCT, frame, spine, held)
    shares = {geolevel: Fraction(1, len(spine.levels)) for geolevel in spine.names}
    budget = Budget(Mechanism.DISCRETE_GAUSSIAN, Neighbours.BOUNDED, Fraction(3), shares, QUERIES)
    plan = MeasurementPlan(PRODUCT, spine, budget)
    names = list(plan.levels[0].measured)
    truth = [dense[spine.leaf_order]]
    for number in range(len(spine.levels) - 1, 0, -1):
        truth.insert(0, np.add.reduceat(truth[0], spine.child_starts(number - 1)[:-1], axis=0))
    closed = (table.levels[-1].upper == 0).astype(int) @ table.bound_cells.astype(int) > 0
    queries = PRODUCT.workload.groups(names)
    tree = Made(
        PRODUCT,
        spine,
        queries,
        [level.measured for level in plan.levels],
        [(1.0 / variances, which) for variances, which in map(plan.variances, range(len(spine.levels)))],
        PRODUCT.possible & ~closed,
        table,
        truth,
        [[q.answers(t) + rng.integers(-3, 4, (len(t), q.size)) for q in queries] for t in truth],
    )
    return tree, plan


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["aian", "optimized"])
def test_real_spines_agree_with_the_matrix(name: str, seed: int) -> None:
    tree, plan = land(name, seed)
    dense = DenseTree(tree)
    model = TreeModel.of_plan(plan, tree.constraints)
    sweep = up_sweep(model, tree.full)
    leaves = len(tree.spine.leaf)
    rng = np.random.default_rng(seed)
    area = rng.integers(0, 4, leaves)
    districts = area_estimates(sweep, area, np.arange(leaves), areas=4)
    parts = [(part, dense.areas[part.level][part.first :]) for part in down_pass(sweep)]
    parts.append((districts, np.asarray(area == np.arange(4)[:, None], dtype=np.float64)))
    for query in (PRODUCT.workload.group(name) for name in PRODUCT.query_names):
        for part, indicators in parts:
            means, variances = answers(part, query)
            for i in range(len(part)):
                mean, variance = dense.estimate(indicators[i], query)
                np.testing.assert_allclose(means[i], mean, rtol=0, atol=1e-10)
                np.testing.assert_allclose(variances[i], variance, rtol=1e-12, atol=2e-13)


def test_the_made_lands_divide_states_and_bypass_parents() -> None:
    """What the test above is about happens in it."""
    divided = bypassed = 0
    for seed in range(8):
        tree, _ = land("aian", seed)
        joint = [number for number, level in enumerate(tree.constraints.levels) if level.joint is not None]
        divided += any(
            len(np.unique(tree.constraints.levels[n].joint.group)) < len(tree.spine.levels[n]) for n in joint
        )
        bypassed += any(shares is not None for shares in tree.spine.shares)
    assert divided
    assert bypassed
