"""The budget's noise against every neighbouring pair, and mutants that must not pass."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scripts
from support.seeds import examples

from opendas.budget.allocation import Budget
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.query_groups import Workload

F = Fraction
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE


accountant = scripts.accountant()

SCHEMA = Schema(
    (
        Attribute("home", ("house", "hall", "ward")),
        Attribute("adult", ("no", "yes")),
        Attribute("group", ("a", "b")),
    )
)
WORKLOAD = Workload(SCHEMA, (Recode("shared", "home", (("own", ("house",)), ("shared", ("hall", "ward")))),))
ROWS = {
    name: [int(row) for row in WORKLOAD.group(name).row_of_cell]
    for name in ("total", "adult", "shared", "home * group", "adult * group", "detailed")
}
CELLS = 12
LEVELS = ("nation", "county", "block")
# One nation, two counties, blocks 0 and 1 in county 0 and blocks 2 and 3 in county 1.
PARENTS = ([0], [0, 0], [0, 0, 1, 1])
QUERIES = {
    "nation": {"adult": F(1, 3), "detailed": F(2, 3)},
    "county": {"total": F(1, 2), "shared": F(1, 8), "home * group": F(1, 8), "detailed": F(1, 4)},
    "block": {"total": F(1, 5), "adult * group": F(1, 5), "detailed": F(3, 5)},
}
SHARES = ([F(1, 5)], [F(3, 10)] * 2, [F(1, 2)] * 4)
TOTAL = F(7, 3)


def budget(
    neighbours: Neighbours = Neighbours.BOUNDED,
    mechanism: Mechanism = GAUSSIAN,
    total: Fraction = TOTAL,
    queries: dict[str, dict[str, Fraction]] = QUERIES,
) -> Budget:
    levels = dict(zip(LEVELS, (shares[0] for shares in SHARES), strict=True))
    return Budget(mechanism, neighbours, total, levels, queries)


def release(
    made: Budget, shares: Sequence[Sequence[Fraction]] = SHARES, parents: Sequence[Sequence[int]] = PARENTS
) -> object:
    """Lay out the noise that the budget gives each geounit."""
    noise = []
    for level, own in zip(LEVELS, shares, strict=True):
        units: list[dict[str, Fraction]] = []
        for share in own:
            given: dict[str, Fraction] = {}
            for query in made.query_shares(level) if share else ():
                law = made.distribution(level, query, share)
                given[query] = law.sigma2 if isinstance(law, DiscreteGaussian) else law.scale
            units.append(given)
        noise.append(units)
    rows = [{query: ROWS[query] for query in made.query_shares(level)} for level in LEVELS]
    return accountant.Release(parents=parents, rows=rows, noise=noise, cells=CELLS)


def test_the_rows_come_from_a_partition() -> None:
    # The accountant is only as good as its data: detailed tells all cells apart, total none.
    assert sorted(ROWS["detailed"]) == list(range(CELLS))
    assert set(ROWS["total"]) == {0}
    assert len(set(ROWS["shared"])) == 2


@pytest.mark.parametrize("relation", list(Neighbours))
def test_the_worst_pair_costs_exactly_rho(relation: Neighbours) -> None:
    made = budget(relation)
    assert accountant.worst_rho(release(made), relation.value) == made.total


@pytest.mark.parametrize("relation", list(Neighbours))
def test_the_worst_pair_costs_exactly_epsilon(relation: Neighbours) -> None:
    made = budget(relation, LAPLACE)
    assert accountant.worst_epsilon(release(made), relation.value) == made.total


def test_a_total_at_the_root_is_paid_for_and_never_used() -> None:
    # Replacing a record does not change the total of the nation: the bound is then not attained.
    queries = QUERIES | {"nation": {"total": F(1, 2), "detailed": F(1, 2)}}
    made = budget(queries=queries)
    assert accountant.worst_rho(release(made), "bounded") == made.total * (1 - F(1, 5) * F(1, 2))
    assert (
        accountant.worst_rho(release(budget(Neighbours.UNBOUNDED, queries=queries)), "unbounded")
        == made.total
    )


def test_bypassed_geounits_keep_the_guarantee() -> None:
    # County 1 has one block, takes over its share and leaves it nothing; so do the paths of the others.
    parents = ([0], [0, 0], [0, 0, 1])
    shares = ([F(1, 5)], [F(3, 10), F(8, 10)], [F(1, 2), F(1, 2), F(0)])
    for relation in Neighbours:
        made = budget(relation)
        assert accountant.worst_rho(release(made, shares, parents), relation.value) == made.total


def mutant_counts_a_level_twice() -> object:
    # The county takes over the block's share, and the block keeps it.
    return release(budget(), ([F(1, 5)], [F(3, 10), F(8, 10)], [F(1, 2)] * 4))


def mutant_one_path_gets_more() -> object:
    return release(budget(), ([F(1, 5)], [F(3, 10)] * 2, [F(1, 2), F(1, 2), F(1, 2), F(1, 2) + F(1, 10**12)]))


def mutant_wrong_relation() -> object:
    return release(budget(Neighbours.UNBOUNDED))


def mutant_measures_a_query_twice() -> object:
    made = release(budget())
    rows = [dict(level, again=level["detailed"]) for level in made.rows]  # type: ignore[attr-defined]
    noise = [[dict(unit, again=unit["detailed"]) for unit in level] for level in made.noise]  # type: ignore[attr-defined]
    return accountant.Release(made.parents, rows, noise, CELLS)  # type: ignore[attr-defined]


def mutant_halves_one_class_of_noise() -> object:
    made = release(budget())
    block = [dict(unit, total=unit["total"] / 2) for unit in made.noise[-1]]  # type: ignore[attr-defined]
    return accountant.Release(made.parents, made.rows, [*made.noise[:-1], block], CELLS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "mutant",
    [
        mutant_counts_a_level_twice,
        mutant_one_path_gets_more,
        mutant_wrong_relation,
        mutant_measures_a_query_twice,
        mutant_halves_one_class_of_noise,
    ],
)
def test_mutants_are_caught(mutant: object) -> None:
    assert accountant.worst_rho(mutant(), "bounded") > budget().total  # type: ignore[operator]


def test_a_laplace_mutant_is_caught() -> None:
    made = release(budget(Neighbours.UNBOUNDED, LAPLACE))
    assert accountant.worst_epsilon(made, "bounded") == 2 * budget().total


shares_of_one = st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Budget, object]:
    """A random budget on a random spine whose shares sum to one along every path."""
    queries = {}
    for level in LEVELS:
        names = draw(st.lists(st.sampled_from(sorted(ROWS)), min_size=1, max_size=4, unique=True))
        weights = [draw(st.integers(1, 9)) for _ in names]
        queries[level] = {name: F(weight, sum(weights)) for name, weight in zip(names, weights, strict=True)}
    counties = draw(st.integers(1, 2))
    blocks = [draw(st.integers(1, 2)) for _ in range(counties)]
    parents = ([0], [0] * counties, [county for county in range(counties) for _ in range(blocks[county])])
    fractions = st.sampled_from([F(0), F(1, 7), F(1, 2), F(1)])
    nation = draw(fractions)
    county_shares = [(1 - nation) * draw(fractions) for _ in range(counties)]
    block_shares = [1 - nation - county_shares[county] for county in parents[2]]
    relation = draw(st.sampled_from(list(Neighbours)))
    mechanism = draw(st.sampled_from(list(Mechanism)))
    total = F(draw(st.integers(1, 50)), draw(st.integers(1, 50)))
    made = budget(relation, mechanism, total, queries)
    return made, release(made, ([nation], county_shares, block_shares), parents)


@settings(max_examples=examples(25), deadline=None)
@given(plans())
def test_no_plan_whose_paths_sum_to_one_costs_more(plan: tuple[Budget, object]) -> None:
    made, measured = plan
    worst = accountant.worst_rho if made.mechanism is GAUSSIAN else accountant.worst_epsilon
    found = worst(measured, made.neighbours.value)
    assert found <= made.total
    if made.neighbours is Neighbours.UNBOUNDED:
        assert found == made.total, "every answer counts the added record"


# A unit is vacant (cell 0) or occupied (cell 1); its place is fixed. A person who moves may empty one unit
# and fill another. docs/proofs/composition.md, section 5.
UNIT_ROWS = [{"detailed": [0, 1]}] * 3


def units_release(total: Fraction) -> object:
    queries = {level: {"detailed": F(1)} for level in LEVELS}
    made = budget(total=total, queries=queries)
    noise = [
        [{"detailed": made.distribution(level, "detailed", share).sigma2} for share in own]  # type: ignore[union-attr]
        for level, own in zip(LEVELS, SHARES, strict=True)
    ]
    return accountant.Release(parents=PARENTS, rows=UNIT_ROWS, noise=noise, cells=2)


def test_a_person_who_moves_costs_at_most_twice_the_rho_of_units() -> None:
    total = F(3, 40)
    units = units_release(total)
    opposite = [
        accountant.cost(units, [(a, 1), (b, 0)], [(a, 0), (b, 1)], 2) / 2
        for a, b in product(range(4), repeat=2)
    ]
    assert max(opposite) <= 2 * total
    # Attained but for the share of the nation, where the two flips cancel.
    assert max(opposite) == 2 * total * (1 - F(1, 5))


def test_two_flips_the_same_way_cost_four_times_as_much() -> None:
    # Why a factor of a change needs an argument: two unit records are not twice one in general.
    total = F(3, 40)
    same = accountant.cost(units_release(total), [(0, 1), (0, 1)], [(0, 0), (0, 0)], 2) / 2
    assert same == 4 * total


def test_two_households_that_change_in_any_way_cost_at_most_four_times_the_rho() -> None:
    # Each has a cell, or is no household: appearing and disappearing are changes as well.
    total = F(3, 40)
    households = units_release(total)
    states = (None, 0, 1)
    found = [
        accountant.cost(
            households,
            [(leaf, cell) for leaf, cell in ((0, before_a), (leaf_b, before_b)) if cell is not None],
            [(leaf, cell) for leaf, cell in ((0, after_a), (leaf_b, after_b)) if cell is not None],
            2,
        )
        / 2
        for leaf_b in range(4)
        for before_a, after_a, before_b, after_b in product(states, repeat=4)
    ]
    assert max(found) == 4 * total
