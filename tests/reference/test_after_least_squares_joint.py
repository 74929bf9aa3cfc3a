"""Geolevel and query shares together: the exact variances of a plan, differences, a general optimiser."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize
from support.data import shared_data
from support.mini import mini_frame, mini_product

import opendas as od
from opendas.allocation.after_least_squares_joint import allocate_queries_after_least_squares
from opendas.budget.allocation import Budget
from opendas.errors import BudgetError, ConfigError
from opendas.geography.bypass import bypass_only_children
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.gls.expected_error import ExpectedError
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import Invariant

PRODUCT = mini_product()
SPINE = standard_spine(mini_frame(2, 3, 4))
TARGETS = {"town": {"total": 3.0, "kind": 1.0}, "*": {"detailed": 1.0}}


def exact(budget, product=PRODUCT, spine=SPINE):
    """Return the variances of a plan as `opendas plan` would use them."""
    return ExpectedError.build(MeasurementPlan(product, spine, budget))


def mean_variance(expected, geolevel, query):
    """Over all answers, alike geounits and rows taken together: a table of all would be large."""
    number = expected.position[expected.spine.index(geolevel)]
    rows = expected.rows(query)
    geounits = expected.tree.levels[number].geounits
    answers = np.bincount(rows.of_row, minlength=len(rows))
    total = geounits @ rows.variances(expected.covariances[number]) @ answers
    return total / (geounits.sum() * answers.sum())


def objective(budget, targets, product=PRODUCT, spine=SPINE):
    expected = exact(budget, product, spine)
    return sum(
        weight * mean_variance(expected, level, query)
        for level in spine.names
        for query, weight in targets.get(level, targets.get("*", {})).items()
    )


@pytest.mark.parametrize("neighbours", ["bounded", "unbounded"])
def test_rows_are_the_exact_variances_of_the_plan(neighbours):
    found = allocate_queries_after_least_squares(PRODUCT, SPINE, "0.05", TARGETS, neighbours=neighbours)
    assert found.gap < 1e-6
    expected = exact(found.budget)
    assert found.rows
    for row in found.rows:
        assert row.variance == pytest.approx(
            expected.geounits(row.geolevel, row.query).mean(), rel=1e-6, abs=1e-6
        )
    assert found.objective == pytest.approx(objective(found.budget, TARGETS), rel=1e-6)


@pytest.mark.parametrize("targets", [TARGETS, {"*": {"total": 1.0}}, {"block": {"kind * minor": 1.0}}])
def test_against_a_general_optimiser(targets):
    measured = ("total", "kind", "detailed")
    found = allocate_queries_after_least_squares(PRODUCT, SPINE, "0.05", targets, measured={"*": measured})

    def slow(shares):
        units = np.rint(np.maximum(shares, 1e-7) * 1e12).astype(np.int64).reshape(3, 3).tolist()
        whole = sum(map(sum, units))
        geolevels = {name: Fraction(sum(row), whole) for name, row in zip(SPINE.names, units, strict=True)}
        queries = {
            name: {query: Fraction(unit, sum(row)) for query, unit in zip(measured, row, strict=True)}
            for name, row in zip(SPINE.names, units, strict=True)
        }
        total = Fraction("0.05") * Fraction(whole, 10**12)
        return objective(
            Budget(Mechanism.DISCRETE_GAUSSIAN, Neighbours.BOUNDED, total, geolevels, queries), targets
        )

    best = optimize.minimize(
        slow,
        np.full(9, 1 / 9),
        method="SLSQP",
        bounds=[(1e-7, 1)] * 9,
        constraints={"type": "eq", "fun": lambda s: s.sum() - 1},
        options={"maxiter": 30, "ftol": 1e-9},
    )
    assert found.objective <= best.fun * (1 + 1e-6)
    assert found.objective >= best.fun * (1 - 2e-2)


def test_budget_is_exact_and_leaves_out_what_is_published():
    found = allocate_queries_after_least_squares(PRODUCT, SPINE, "7/3", TARGETS)
    assert sum(found.budget.geolevels.values()) == 1
    assert found.budget.total == Fraction(7, 3)
    assert "total" not in found.budget.queries["region"]
    loose = mini_product(invariant=False)
    assert (
        "total"
        in allocate_queries_after_least_squares(loose, SPINE, 1, {"*": {"total": 1}}).budget.queries["region"]
    )


def test_matrices_of_several_dimensions():
    """The crossing recodes of the census product make a block of dimension three."""
    from opendas.schema.pl94 import pl94_persons

    product = replace(pl94_persons(), invariants=())
    targets = {"*": {"hhinstlevels": 1.0, "hhgq": 1.0, "total": 0.5}}
    found = allocate_queries_after_least_squares(product, SPINE, "0.1", targets)
    assert found.gap < 1e-5
    assert found.objective == pytest.approx(objective(found.budget, targets, product), rel=1e-5)


@pytest.mark.slow
def test_rhode_island_at_the_production_total(tmp_path):
    """Targets that the production preset measures; the optimum may not be worse than the preset."""
    path = tmp_path / "run.toml"
    path.write_text(
        f'[run]\nproduct = "pl94-persons"\n[input]\nreader = "pl94-2010"\n'
        f'path = "{shared_data("pl94_2010_ri/ri2010.pl.zip")}"\n[budget]\npreset = "pr2020-persons"\n'
    )
    plan = od.load(path).plan
    targets = {"*": {"total": 1.0, "votingage": 1.0, "hispanic * cenrace": 1.0, "detailed": 1.0}}
    found = allocate_queries_after_least_squares(plan.product, plan.spine, plan.budget.total, targets)
    assert found.gap < 1e-6
    production = objective(plan.budget, targets, plan.product, plan.spine)
    assert found.objective == pytest.approx(
        objective(found.budget, targets, plan.product, plan.spine), rel=1e-5
    )
    assert found.objective < 0.2 * production


def test_one_geolevel_alone():
    """Without a tree the optimum goes by square roots of the numbers of answers."""
    frame = mini_frame(1, 1, 5)
    product = mini_product(invariant=False)
    spine = Spine(
        (replace(standard_spine(frame).leaf, parent=np.zeros(5, dtype=np.int64)),),
        np.arange(5, dtype=np.int64),
        (None,),
    )
    found = allocate_queries_after_least_squares(
        product, spine, 1, {"block": {"detailed": 1.0}}, measured={"block": ("detailed", "total")}
    )
    assert found.budget.geolevels == {"block": 1}
    assert found.objective == pytest.approx(
        objective(found.budget, {"*": {"detailed": 1.0}}, product, spine), rel=1e-6
    )
    alone = allocate_queries_after_least_squares(
        product, spine, 1, {"block": {"total": 1.0}}, measured={"block": ("detailed", "total")}
    )
    assert alone.budget.queries["block"] == {"total": 1}


def test_wrong_arguments():
    def allocate(total=1, targets=TARGETS, product=PRODUCT, spine=SPINE, **more):
        return allocate_queries_after_least_squares(product, spine, total, targets, **more)

    with pytest.raises(BudgetError, match="positive"):
        allocate(total=0)
    with pytest.raises(BudgetError, match="weights"):
        allocate(targets={"*": {"total": 0.0}})
    with pytest.raises(BudgetError, match="weights"):
        allocate(targets={"*": {"total": float("nan")}})
    with pytest.raises(BudgetError, match="not on the spine"):
        allocate(targets={"tract": {"total": 1.0}})
    with pytest.raises(ConfigError, match="neither attribute nor recode"):
        allocate(targets={"*": {"colour": 1.0}})
    with pytest.raises(BudgetError, match="do not determine"):
        allocate(measured={"*": ("total",)})
    with pytest.raises(BudgetError, match="no query group"):
        allocate(measured={})
    single = standard_spine(mini_frame(1, 2, 1))
    with pytest.raises(BudgetError, match="bypass"):
        allocate(spine=bypass_only_children(single, [Fraction(1, 3)] * 3))
    parts = replace(SPINE.levels[0], whole=np.array([0, 0]))
    divided = replace(SPINE, levels=(parts, *SPINE.levels[1:]))
    with pytest.raises(ConfigError, match="divides"):
        allocate(spine=divided)
    with pytest.raises(ConfigError, match="geolevel"):
        allocate(product=replace(PRODUCT, invariants=(Invariant("total", "county"),)))
