"""From a run file's budget to an allocation."""

from __future__ import annotations

from fractions import Fraction

import pytest

from opendas.budget.presets import preset
from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.errors import BudgetError, ConfigError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.pl94 import pl94_persons

F = Fraction
US = ("us", "state", "county", "tract", "block_group", "block")
STATE = US[1:]
CANONICAL = pl94_persons().workload.canonical


def test_a_preset_alone() -> None:
    budget = resolve_budget(BudgetSpec(preset="pr2020-persons"), STATE)
    assert budget.total == preset("pr2020-persons").rho
    assert dict(budget.geolevels) == dict(preset("pr2020-persons").geolevels)
    assert budget.neighbours is Neighbours.BOUNDED
    assert budget.delta == F(1, 10**10)


def test_parts_beside_a_preset_replace_that_part() -> None:
    base = preset("pr2020-persons")
    spec = BudgetSpec(preset="pr2020-persons", rho="1.5", delta="1e-6")
    budget = resolve_budget(spec, STATE)
    assert (budget.total, budget.delta) == (F(3, 2), F(1, 10**6))
    assert dict(budget.query_shares("tract")) == dict(base.queries["tract"])

    spec = BudgetSpec(preset="pr2020-persons", queries={"*": {"detailed": 1}})
    budget = resolve_budget(spec, STATE)
    assert all(dict(shares) == {"detailed": 1} for shares in budget.queries.values())
    assert budget.total == base.rho

    spec = BudgetSpec(preset="pr2020-persons", geolevels=dict.fromkeys(STATE, "1/5"))
    assert set(resolve_budget(spec, STATE).geolevels.values()) == {F(1, 5)}


def test_without_a_preset() -> None:
    spec = BudgetSpec(rho=1, geolevels={"ward": "0.9", "region": "0.1"}, queries={"*": {"total": "1"}})
    budget = resolve_budget(spec, ("region", "ward"))
    assert list(budget.geolevels.items()) == [("region", F(1, 10)), ("ward", F(9, 10))], "in the run's order"


def test_one_geolevel_needs_no_shares() -> None:
    budget = resolve_budget(BudgetSpec(rho="1", queries={"*": {"total": 1}}), ("office",))
    assert dict(budget.geolevels) == {"office": 1}


def test_query_names_are_brought_into_schema_order() -> None:
    queries = {"*": {"cenrace*hispanic": "1/2", "detailed": "1/2"}}
    spec = BudgetSpec(preset="pr2020-persons", queries=queries)
    budget = resolve_budget(spec, STATE, CANONICAL)
    assert list(budget.query_shares("block")) == ["hispanic * cenrace", "detailed"]
    spelled_twice = {"*": {"cenrace * hispanic": "1/2", "hispanic * cenrace": "1/2"}}
    with pytest.raises(BudgetError, match="appears twice"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", queries=spelled_twice), STATE, CANONICAL)


def test_a_preset_that_does_not_fit_names_the_one_that_does() -> None:
    with pytest.raises(BudgetError) as caught:
        resolve_budget(BudgetSpec(preset="us2020-persons"), STATE)
    message = str(caught.value)
    assert message.startswith("Preset us2020-persons has shares for us, which this run does not have.")
    assert "pr2020-persons" in message
    assert "units" not in message
    assert "normalise = true" in message
    with pytest.raises(BudgetError, match=r"us2020-units or april2021-units or april2021-low-units fits"):
        resolve_budget(BudgetSpec(preset="pr2020-units"), US)


def test_normalise_rescales_exactly() -> None:
    budget = resolve_budget(BudgetSpec(preset="us2020-persons", normalise=True), STATE)
    assert sum(budget.geolevels.values()) == 1
    assert budget.geolevels["block"] == F(165, 4099 - 104)
    assert budget.total == preset("us2020-persons").rho
    assert list(budget.geolevels) == list(STATE)


def test_normalise_invents_nothing() -> None:
    levels = ("state", "county", "tract_group", "tract", "block_group", "block")
    with pytest.raises(BudgetError, match="no share for tract_group"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", normalise=True), levels)
    wrong = BudgetSpec(rho=1, geolevels={"a": "1/2", "b": 1}, queries={"*": {"total": 1}}, normalise=True)
    with pytest.raises(BudgetError, match="too much"):
        resolve_budget(wrong, ("a", "b"))
    elsewhere = BudgetSpec(rho=1, geolevels={"a": 1, "b": 0}, queries={"*": {"total": 1}}, normalise=True)
    with pytest.raises(BudgetError, match="no geolevel of this run has a share"):
        resolve_budget(elsewhere, ("b",))


def test_own_geolevels_must_be_those_of_the_run() -> None:
    spec = BudgetSpec(rho=1, geolevels={"a": "1/2", "b": "1/2"}, queries={"*": {"total": 1}})
    with pytest.raises(BudgetError, match=r"\[budget\] geolevels has shares for b.*no share for c") as caught:
        resolve_budget(spec, ("a", "c"))
    assert "normalise" not in str(caught.value), "it would not help"
    zero = BudgetSpec(rho=1, geolevels={"a": 1, "b": 0}, queries={"*": {"total": 1}})
    assert resolve_budget(zero, ("a", "b")).geolevels["b"] == 0


def test_queries_at_a_geolevel_the_run_does_not_have() -> None:
    queries = {"us": {"total": 1}, "*": {"detailed": 1}}
    with pytest.raises(BudgetError, match=r"\[budget.queries\] names us"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", queries=queries), STATE)
    budget = resolve_budget(BudgetSpec(preset="us2020-persons", queries=queries, normalise=True), STATE)
    assert list(budget.queries) == list(STATE)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (BudgetSpec(), "neither a preset nor geolevels"),
        (BudgetSpec(rho=1, geolevels={"a": 1}), "neither a preset nor queries"),
        (BudgetSpec(geolevels={"a": 1}, queries={"*": {"total": 1}}), "has no rho"),
        (BudgetSpec(rho=1, geolevels={"*": 1}, queries={"*": {"total": 1}}), "name each geolevel"),
        (BudgetSpec(rho=0, geolevels={"a": 1}, queries={"*": {"total": 1}}), "must be positive"),
    ],
)
def test_missing_parts_are_named(spec: BudgetSpec, match: str) -> None:
    with pytest.raises(BudgetError, match=match):
        resolve_budget(spec, ("a", "b") if spec == BudgetSpec() else ("a",))


def test_each_mechanism_spends_its_own_parameter() -> None:
    laplace = Mechanism.DISCRETE_LAPLACE
    with pytest.raises(BudgetError, match=r"sets epsilon, but the mechanism discrete-gaussian spends rho"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", epsilon=4), STATE)
    with pytest.raises(BudgetError, match=r"sets rho, but the mechanism discrete-laplace spends epsilon"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", rho=1, mechanism=laplace), STATE)
    with pytest.raises(BudgetError, match="has no epsilon, and the preset pr2020-persons gives a rho"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", mechanism=laplace), STATE)
    budget = resolve_budget(BudgetSpec(preset="pr2020-persons", epsilon="4", mechanism=laplace), STATE)
    assert budget.distribution("block", "detailed").scale == 2 / (4 * budget.share("block", "detailed"))  # type: ignore[union-attr]


def test_floats_are_refused_with_their_place() -> None:
    with pytest.raises(ConfigError, match=r"rho: .*in quotes"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", rho=1.5), STATE)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\[budget.queries\] \*, total: .*in quotes"):
        resolve_budget(BudgetSpec(preset="pr2020-persons", queries={"*": {"total": 1.0}}), STATE)  # type: ignore[dict-item]
