"""Budgets: sums that are exactly one, names, digests."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import pytest

from opendas.budget.allocation import Budget, exact_shares
from opendas.errors import BudgetError, ConfigError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace

F = Fraction
LEVELS = {"region": F(1, 4), "ward": F(3, 4)}
QUERIES = {"region": {"total": F(1)}, "*": {"total": F(1, 3), "detailed": F(2, 3)}}
TRILLIONTH = F(1, 10**12)


def budget(**changes: object) -> Budget:
    values: dict[str, object] = {
        "mechanism": Mechanism.DISCRETE_GAUSSIAN,
        "neighbours": Neighbours.BOUNDED,
        "total": F(2),
        "geolevels": LEVELS,
        "queries": QUERIES,
    }
    return Budget(**(values | changes))  # type: ignore[arg-type]


def test_a_star_stands_for_every_other_geolevel() -> None:
    made = budget()
    assert dict(made.query_shares("region")) == {"total": 1}
    assert dict(made.query_shares("ward")) == {"total": F(1, 3), "detailed": F(2, 3)}
    assert set(made.queries) == {"region", "ward"}


def test_noise_follows_query_share_times_geounit_share() -> None:
    made = budget()
    assert made.distribution("ward", "detailed") == DiscreteGaussian(1 / (F(2, 3) * F(3, 4) * 2))
    # A ward that took over the share of a bypassed region is measured with everything.
    assert made.distribution("ward", "detailed", F(1)) == DiscreteGaussian(1 / (F(2, 3) * 2))
    laplace = budget(mechanism=Mechanism.DISCRETE_LAPLACE, neighbours=Neighbours.UNBOUNDED)
    assert laplace.distribution("region", "total") == DiscreteLaplace(1 / (F(1, 4) * 2))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("part", ["geolevels", "region", "*"])
def test_one_part_in_a_trillion_is_caught_and_named(part: str, sign: int) -> None:
    if part == "geolevels":
        changes: dict[str, object] = {"geolevels": LEVELS | {"ward": LEVELS["ward"] + sign * TRILLIONTH}}
        where = "Geolevel shares"
    else:
        level = QUERIES[part]
        changes = {"queries": QUERIES | {part: level | {"total": level["total"] + sign * TRILLIONTH}}}
        where = f"Query shares at geolevel {'ward' if part == '*' else part}"
    with pytest.raises(BudgetError) as caught:
        budget(**changes)
    message = str(caught.value)
    assert message.startswith(where)
    assert f"1/1000000000000 too {'much' if sign > 0 else 'little'}" in message
    assert "For instance, give" in message


def test_the_hint_of_a_wrong_sum_is_a_right_sum() -> None:
    with pytest.raises(BudgetError, match=r"give b the share 5/8\.$"):
        exact_shares({"a": "3/8", "b": "3/4"}, "Shares")
    assert exact_shares({"a": "3/8", "b": "5/8"}, "Shares") == {"a": F(3, 8), "b": F(5, 8)}
    for shares, end in (({"a": "5", "b": "5"}, "common denominator."), ({}, "Give at least one share.")):
        with pytest.raises(BudgetError, match=f"{end}$"):
            exact_shares(shares, "Shares")


def test_decimals_are_exact() -> None:
    assert exact_shares(dict.fromkeys("abcdefghij", "0.1"), "Shares")["a"] == F(1, 10)
    with pytest.raises(BudgetError, match="1/10 too little"):
        exact_shares(dict.fromkeys("abcdefghi", "0.1"), "Shares")


def test_negative_and_empty_shares_are_refused() -> None:
    with pytest.raises(BudgetError, match="must not be negative"):
        exact_shares({"a": "3/2", "b": "-1/2"}, "Shares")
    with pytest.raises(BudgetError, match="at least one"):
        exact_shares({}, "Shares")
    with pytest.raises(ConfigError, match="quotes"):
        exact_shares({"a": 1.0}, "Shares")  # type: ignore[dict-item]


def test_a_share_of_zero_measures_nothing() -> None:
    made = budget(
        geolevels=LEVELS | {"block": F(0)}, queries={**QUERIES, "block": {"total": F(1), "x": F(0)}}
    )
    assert dict(made.query_shares("block")) == {"total": 1}
    with pytest.raises(BudgetError, match="share"):
        made.distribution("block", "total")
    # It may still be measured where a geounit took over the share of another.
    assert made.distribution("block", "total", F(1, 2)) == DiscreteGaussian(F(1))
    unasked = budget(
        geolevels=LEVELS | {"block": F(0)}, queries={"region": {"total": 1}, "ward": {"total": 1}}
    )
    with pytest.raises(BudgetError, match="nothing at geolevel 'block'"):
        unasked.query_shares("block")


def test_budget_without_queries_or_queries_without_budget() -> None:
    with pytest.raises(BudgetError, match="Geolevel ward has 3/4 of the budget and no queries"):
        budget(queries={"region": {"total": F(1)}})
    with pytest.raises(BudgetError, match="county, which has no geolevel share"):
        budget(queries=QUERIES | {"county": {"total": F(1)}})
    with pytest.raises(BudgetError, match="no budget at geolevel 'region'; measured there are total"):
        budget().distribution("region", "detailed")


@pytest.mark.parametrize("changes", [{"total": F(0)}, {"total": F(-1)}, {"delta": F(0)}, {"delta": F(1)}])
def test_totals_and_deltas_out_of_range(changes: dict[str, object]) -> None:
    with pytest.raises(BudgetError):
        budget(**changes)


def test_star_is_no_geolevel() -> None:
    with pytest.raises(BudgetError, match="name each"):
        budget(geolevels={"*": F(1)})


def test_nothing_inside_can_be_changed() -> None:
    made = budget()
    with pytest.raises(TypeError):
        made.geolevels["region"] = F(1)  # type: ignore[index]
    with pytest.raises(TypeError):
        made.queries["region"]["total"] = F(2)  # type: ignore[index]


def test_budgets_travel_between_processes() -> None:
    made = budget()
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made


def test_digest_covers_what_decides_the_noise_and_nothing_else() -> None:
    made = budget()
    assert len(made.digest()) == 64
    reordered = {"*": {"detailed": F(2, 3), "total": F(1, 3)}, "region": {"total": F(1)}}
    written_out = {"region": {"total": F(1)}, "ward": {"total": "1/3", "detailed": "4/6"}}
    for same in ({"queries": reordered}, {"queries": written_out}, {"delta": F(1, 10**6)}, {"total": "2.0"}):
        assert budget(**same).digest() == made.digest()
    others = [
        {"total": F(2) + TRILLIONTH},
        {"neighbours": Neighbours.UNBOUNDED},
        {"mechanism": Mechanism.DISCRETE_LAPLACE},
        {"geolevels": {"region": F(1, 2), "ward": F(1, 2)}},
        {"geolevels": dict(reversed(list(LEVELS.items())))},
        {"queries": {"*": {"total": F(1)}}},
    ]
    digests = {budget(**other).digest() for other in others} | {made.digest()}
    assert len(digests) == len(others) + 1


def test_digest_is_stable_across_versions() -> None:
    # Resuming and verifying compare digests: a change here breaks folders already written.
    assert budget().digest() == "1af5ba6da4d57aaa073f73612df0e1eafde58dff79a11412fb75fdf06aca1cdf"


def test_everything_at_the_leaf() -> None:
    made = budget().concentrated("ward")
    assert dict(made.geolevels) == {"region": 0, "ward": 1}
    assert made.distribution("ward", "detailed") == DiscreteGaussian(F(3, 4))
    with pytest.raises(BudgetError):
        budget().concentrated("block")
