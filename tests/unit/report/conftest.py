"""Runs to certify: the production plans on a frame of Rhode Island's size, and a small pure one."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest

from opendas.budget.allocation import Budget
from opendas.budget.noise import attribute_rho, plan_rows, within_rho
from opendas.budget.presets import preset
from opendas.measurement.official_losses import AreaLoss
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.report.facts import RunFacts
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

RHODE_ISLAND = {"state": 1, "county": 5, "tract": 241, "block_group": 812, "block": 17850}


def published(name: str) -> Budget:
    found = preset(name)
    return Budget(
        Mechanism.DISCRETE_GAUSSIAN,
        Neighbours.BOUNDED,
        found.rho,
        found.geolevels,
        found.queries,
        Fraction(1, 10**10),
    )


def run_facts(product: Product, budget: Budget, geounits: Mapping[str, int], **changes: object) -> RunFacts:
    """Facts of a run from its plan, as the orchestration makes them."""
    groups = product.workload.groups(product.query_names)
    recodes = {recode.name: recode.attribute for recode in product.recodes}
    attributes = {
        group.name: product.schema.names
        if group.name == "detailed"
        else [recodes.get(factor, factor) for factor in group.factors]
        for group in groups
    }
    rows = plan_rows(budget, geounits, {group.name: group.size for group in groups})
    losses = attribute_rho(budget, attributes)
    facts: dict[str, object] = {
        "product": product.name,
        "protected_unit": product.protected_unit,
        "mechanism": budget.mechanism.value,
        "neighbours": budget.neighbours.value,
        "loss": budget.total,
        "delta": budget.delta,
        "stamps": (),
        "estimator": "topdown",
        "invariants": tuple(invariant.name for invariant in product.invariants),
        "dropped_invariants": (),
        "declared": tuple(bound.name for bound in product.bounds),
        "records": 1_052_567,
        "geounits": dict(geounits),
        "geolevel_shares": budget.geolevels,
        "query_shares": budget.queries,
        "rows": rows,
        "attributes": {name: losses[name] for name in product.schema.names if name in losses},
        "within": within_rho(budget),
        "plan_digest": "ab" * 32,
        "spine_digest": "cd" * 32,
        "families": 1059,
        "fallbacks": 0,
    }
    return RunFacts(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def persons() -> RunFacts:
    half, most = Fraction(3, 4), Fraction(5, 2)
    return run_facts(
        pl94_persons(),
        published("pr2020-persons"),
        RHODE_ISLAND,
        stamps=("DEMONSTRATION FRAME",),
        within_official=(
            AreaLoss("county", 5, most, most, 2),
            AreaLoss("block_group", 815, most, half, 700),
            AreaLoss("place", 36, half, Fraction(0), None),
        ),
    )


@pytest.fixture(scope="session")
def units() -> RunFacts:
    return run_facts(pl94_units(), published("pr2020-units"), RHODE_ISLAND, records=463_388)


@pytest.fixture(scope="session")
def pure() -> RunFacts:
    budget = Budget(
        Mechanism.DISCRETE_LAPLACE,
        Neighbours.UNBOUNDED,
        Fraction(1, 2),
        {"county": Fraction(1, 3), "block": Fraction(2, 3)},
        {"*": {"detailed": Fraction(1)}},
    )
    official = (AreaLoss("county", 5, Fraction(2, 3), Fraction(1, 3), 0),)
    return run_facts(
        pl94_units(),
        budget,
        {"county": 5, "block": 60},
        invariants=(),
        records=100,
        within_official=official,
    )
