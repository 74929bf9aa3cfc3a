"""Rescaling and naming are exact for every input, not only for nice ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Neighbours
from opendas.privacy.zcdp import epsilon_bun_steinke, epsilon_cks
from opendas.schema.pl94 import pl94_persons

PERSONS = pl94_persons()

LEVELS = ("a", "b", "c", "d")
exact = st.fractions(min_value=0, max_value=1, max_denominator=10**9)


def normalised(weights: list[Fraction]) -> dict[str, Fraction]:
    return {level: weight / sum(weights) for level, weight in zip(LEVELS, weights, strict=True)}


@given(
    st.lists(exact, min_size=4, max_size=4).filter(any),
    st.lists(st.sampled_from(LEVELS), min_size=1, unique=True),
)
def test_dropping_levels_rescales_exactly(weights: list[Fraction], kept: list[str]) -> None:
    shares = normalised(weights)
    if not any(shares[level] for level in kept):
        return
    spec = BudgetSpec(rho=1, geolevels=shares, queries={"*": {"total": 1}}, normalise=True)
    budget = resolve_budget(spec, kept)
    assert sum(budget.geolevels.values()) == 1
    assert list(budget.geolevels) == kept
    for one in kept:
        for other in kept:
            # Ratios stay as they were.
            assert budget.geolevels[one] * shares[other] == budget.geolevels[other] * shares[one]


@given(
    st.lists(exact, min_size=4, max_size=4).filter(any),
    st.lists(st.integers(1, 10**12), min_size=1, max_size=5),
    st.fractions(min_value="1/1000000", max_value=1000),
    st.sampled_from(list(Neighbours)),
)
def test_the_noise_of_a_budget_spends_exactly_its_total(
    weights: list[Fraction], numerators: list[int], rho: Fraction, neighbours: Neighbours
) -> None:
    queries = {f"q{k}": Fraction(n, sum(numerators)) for k, n in enumerate(numerators)}
    spec = BudgetSpec(rho=rho, geolevels=normalised(weights), queries={"*": queries}, neighbours=neighbours)
    budget = resolve_budget(spec, LEVELS)
    spent = sum(
        Fraction(neighbours.l2_squared) / (2 * budget.distribution(level, query).sigma2)  # type: ignore[union-attr]
        for level, share in budget.geolevels.items()
        if share
        for query in budget.query_shares(level)
    )
    assert spent == rho


@given(st.fractions())
def test_writing_and_reading_a_number_is_the_identity(value: Fraction) -> None:
    assert parse_fraction(format_fraction(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**6), max_value=10**6))
def test_decimals_are_read_as_they_are_written(value: object) -> None:
    assert parse_fraction(str(value)) == Fraction(value)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(PERSONS.schema.names), min_size=1, max_size=3, unique=True))
def test_a_query_has_one_canonical_name(attributes: list[str]) -> None:
    names = {PERSONS.workload.canonical(" * ".join(parts)) for parts in permutations(attributes)}
    assert names == {" * ".join(name for name in PERSONS.schema.names if name in attributes)}


@given(
    st.fractions(min_value="1/1000000000000", max_value=10**6),
    st.fractions(min_value="1/1000000000000", max_value=10**6),
    st.integers(1, 40),
)
def test_epsilon_grows_with_rho_and_falls_with_delta(one: Fraction, other: Fraction, digits: int) -> None:
    low, high = sorted((one, other))
    delta = Fraction(1, 10**digits)
    for formula in (epsilon_cks, epsilon_bun_steinke):
        assert formula(low, delta) <= formula(high, delta) * (1 + 1e-12)
        assert formula(low, delta) >= formula(low, 10 * delta - delta / 2) * (1 - 1e-12)
