"""Plan rows: one per distinct noise, consistent with each other."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.noise import pmf

from opendas.budget.noise import NoiseRow, attribute_rho, plan_rows, within_rho
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import BudgetError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian

F = Fraction
STATE = ("state", "county", "tract", "block_group", "block")
COUNTS = {"state": 1, "county": 5, "tract": 244, "block_group": 815, "block": 17850}
SIZES = {
    **{"total": 1, "cenrace": 63, "hispanic": 2, "votingage": 2, "hhinstlevels": 3, "hhgq": 8},
    **{"hispanic * cenrace": 126, "votingage * cenrace": 126, "votingage * hispanic": 4},
    **{"votingage * hispanic * cenrace": 252, "detailed": 2016},
}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], NoiseRow]:
    budget = resolve_budget(BudgetSpec(preset="pr2020-persons"), STATE)
    return {(row.geolevel, row.query): row for row in plan_rows(budget, COUNTS, SIZES)}


def test_one_row_per_geolevel_and_measured_query(rows: dict[tuple[str, str], NoiseRow]) -> None:
    assert len(rows) == 10 + 4 * 11
    assert ("state", "total") not in rows
    assert rows["block", "detailed"].geounits == 17850
    assert rows["block", "detailed"].cells == 2016


def test_the_losses_of_all_rows_sum_to_the_total(rows: dict[tuple[str, str], NoiseRow]) -> None:
    assert sum(row.rho for row in rows.values() if row.rho is not None) == F(293764, 114921)


def test_the_row_of_the_interface(rows: dict[tuple[str, str], NoiseRow]) -> None:
    row = rows["block", "detailed"].to_dict()
    assert row["rho"] == str(F(3945, 4097) * F(165, 4099) * F(293764, 114921))
    assert row["sigma2"] == pytest.approx(10.09, abs=5e-3)
    assert row["variance"] == pytest.approx(10.09, abs=5e-3)
    assert row["moe90"] == 5
    assert row["scale"] is None
    assert row["epsilon"] is None


def test_moe_is_the_margin_of_the_integer_noise(rows: dict[tuple[str, str], NoiseRow]) -> None:
    row = rows["state", "detailed"]
    assert row.sigma2 is not None
    noise = DiscreteGaussian(F(row.sigma2))
    inside = pmf(noise, 0) + 2 * sum(pmf(noise, k) for k in range(1, row.moe90 + 1))
    assert inside >= 0.9
    assert inside - 2 * pmf(noise, row.moe90) < 0.9


def test_small_variances_differ_from_their_parameter() -> None:
    spec = BudgetSpec(rho=8, queries={"*": {"total": 1}})
    (row,) = plan_rows(resolve_budget(spec, ("office",)), {"office": 3}, {"total": 1})
    assert row.sigma2 == F(1, 8)
    assert row.variance < 0.04, "the integer noise is rarely anything but 0"


def test_one_row_per_distinct_share_on_a_spine_with_bypassed_parents() -> None:
    spec = BudgetSpec(rho=1, geolevels={"a": "1/4", "b": "1/4", "c": "1/2"}, queries={"*": {"total": 1}})
    budget = resolve_budget(spec, ("a", "b", "c"))
    counts = {"a": 1, "b": {F(1, 4): 7, F(3, 4): 2}, "c": {F(1, 2): 40, F(0): 2}}
    found = [(row.geolevel, row.geounits, row.sigma2) for row in plan_rows(budget, counts, SIZES)]
    assert found == [
        ("a", 1, 4),
        ("b", 2, pytest.approx(4 / 3)),
        ("b", 7, 4),
        ("c", 40, 2),
    ]


def test_discrete_laplace_rows_hold_scale_and_epsilon() -> None:
    spec = BudgetSpec(
        epsilon="1/2", queries={"*": {"total": 1}}, mechanism=Mechanism.DISCRETE_LAPLACE, geolevels={"a": 1}
    )
    (row,) = plan_rows(resolve_budget(spec, ("a",)), {"a": 9}, SIZES)
    assert (row.rho, row.sigma2, row.epsilon, row.scale) == (None, None, F(1, 2), F(4))
    assert row.variance == pytest.approx(2 * 16, rel=0.02)
    answer = row.to_dict()
    assert (answer["rho"], answer["epsilon"], answer["scale"]) == (None, "1/2", 4.0)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_record_that_changes_in_part_costs_twice_under_the_unbounded_relation(mechanism: Mechanism) -> None:
    """Noise made for one row of a group, where a changed record differs in two."""
    total = {mechanism.loss_name: "2"}
    found = {}
    for neighbours in Neighbours:
        spec = BudgetSpec(
            **total,  # type: ignore[arg-type]
            geolevels={"a": "1/4", "b": "3/4"},
            queries={"*": {"total": "1/3", "age": "2/3"}},
            mechanism=mechanism,
            neighbours=neighbours,
        )
        budget = resolve_budget(spec, ("a", "b"))
        found[neighbours] = (
            attribute_rho(budget, {"total": (), "age": ("age",)})["age"],
            within_rho(budget)["a"],
        )
    assert found[Neighbours.BOUNDED] == (F(4, 3), F(3, 2))
    assert found[Neighbours.UNBOUNDED] == (F(8, 3), F(3))


def test_missing_counts_sizes_and_attributes_are_named() -> None:
    budget = resolve_budget(BudgetSpec(rho=1, queries={"*": {"total": 1}}, geolevels={"a": 1}), ("a",))
    with pytest.raises(BudgetError, match="geounits at geolevel 'a'"):
        plan_rows(budget, {}, SIZES)
    with pytest.raises(BudgetError, match="cells of query 'total'"):
        plan_rows(budget, {"a": 1}, {})
    with pytest.raises(BudgetError, match="attributes of query 'total'"):
        attribute_rho(budget, {})
