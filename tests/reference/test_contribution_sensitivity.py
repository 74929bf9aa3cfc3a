"""The loss of a unit of several records, by brute force over everything that a unit can hold.

On small spines all multisets of records that one unit can have counted are listed, every pair of them is
compared in every answer that is measured, by an accountant that knows no formula, and the costs are added up
in fractions. Bypassed geounits are made by exchanging shares along paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from zlib import crc32

import numpy as np
import pytest
from support import scripts
from support.each import each
from support.units import Record, Row, counted, key, may_join, unit_run

from opendas.errors import ConfigError
from opendas.geography.spine import Shares, Spine
from opendas.measurement.loss import path_kinds, plan_loss, record_loss
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.zcdp import group_loss
from opendas.sampling.laws import DiscreteGaussian
from opendas.schema.declarations import ContributionBound, Distinct

accountant = scripts.accountant()

F = Fraction
DISTINCT = (None, *Distinct)
MECHANISMS = {"discrete-gaussian": {"rho": "7/3"}, "discrete-laplace": {"epsilon": "7/3"}}
Records = tuple[Record, ...]


def planned(
    at_most: int,
    distinct: Distinct | None = None,
    *,
    bypassed: bool = False,
    laplace: bool = False,
    **run: str,
) -> MeasurementPlan:
    """Two sides of two wards, two cells: few enough to look at everything."""
    mechanism = "discrete-laplace" if laplace else "discrete-gaussian"
    section = {"unit_id": "who", "at_most": at_most}
    if distinct is not None:
        section["distinct"] = distinct.value
    plan = unit_run(
        run={"mechanism": mechanism, **run},
        budget={"rho": None, "epsilon": None, **MECHANISMS[mechanism]},
        product={"attributes": {"age": ["young", "old"], "kind": ["x", "y"]}},
        **section,
    ).plan
    if not bypassed:
        return plan
    # The first side takes what its wards had, the second gives its wards what it had.
    sides, wards = F(1, 3), F(1, 2)
    both = sides + wards
    own = (
        Shares.of([both / sides, F(0)], np.arange(2)),
        Shares.of([F(0), F(0), both / wards, both / wards], np.arange(4)),
    )
    spine = Spine(plan.spine.levels, plan.spine.leaf_order, (None, *own))
    return MeasurementPlan(plan.product, spine, plan.budget)


def as_data(plan: MeasurementPlan) -> object:
    """The plan as the accountant takes it: parents, rows and noise."""
    groups = {name: plan.product.workload.group(name) for name in plan.product.query_names}
    noise = []
    for number, level in enumerate(plan.levels):
        multiples, which = plan.spine.multiples(number)
        units = []
        for unit in range(len(plan.spine.levels[number])):
            own = multiples[int(which[unit])]
            laws = {q.query.name: plan.distribution(number, q, own) for q in level.queries} if own else {}
            units.append(
                {n: law.sigma2 if isinstance(law, DiscreteGaussian) else law.scale for n, law in laws.items()}
            )
        noise.append(units)
    return accountant.Release(
        parents=[[0], [0, 0], [0, 0, 1, 1]],
        rows=[{name: group.row_of_cell.tolist() for name, group in groups.items()}] * 3,
        noise=noise,
        cells=plan.product.schema.size,
    )


def everything(plan: MeasurementPlan, leaves: int = 4) -> list[Records]:
    """All that can be counted of one unit."""
    bound = plan.budget.contribution.bound
    assert bound is not None
    records = [(leaf, cell) for leaf in range(leaves) for cell in range(plan.product.schema.size)]
    return [
        some
        for size in range(bound.at_most + 1)
        for some in combinations_with_replacement(records, size)
        if all(may_join(some[:n], record, bound.distinct) for n, record in enumerate(some))
    ]


def worst(plan: MeasurementPlan, pairs: Iterator[tuple[Sequence[Record], Sequence[Record]]]) -> Fraction:
    """The largest loss of some pairs: rho, or epsilon."""
    data, gaussian = as_data(plan), plan.budget.mechanism.is_zcdp
    power = 2 if gaussian else 1
    largest = max(accountant.cost(data, before, after, power) for before, after in pairs)
    return largest / 2 if gaussian else largest


def neighbours(plan: MeasurementPlan) -> Iterator[tuple[Records, Records]]:
    units = everything(plan)
    if plan.budget.neighbours == "unbounded":
        return (((), unit) for unit in units)
    return combinations(units, 2)


@each("laplace", [False, True])
@each("bypassed", [False, True])
@each("relation", ["bounded", "unbounded"])
@each("distinct", DISTINCT)
def test_no_unit_costs_more_than_the_total(
    distinct: Distinct | None, relation: str, bypassed: bool, laplace: bool
) -> None:
    """And where records may be alike, that of a unit whose records are all alike costs all of it."""
    plan = planned(2, distinct, bypassed=bypassed, laplace=laplace, neighbours=relation)
    found = worst(plan, neighbours(plan))
    assert found <= plan.budget.total
    if laplace:
        return
    # Under the bounded relation the total of the single root, which is paid for, does not change.
    if distinct is None and relation == "unbounded":
        assert found == plan.budget.total


@pytest.mark.parametrize("bypassed", [False, True])
def test_three_records_of_a_unit(bypassed: bool) -> None:
    plan = planned(3, bypassed=bypassed, neighbours="unbounded")
    assert worst(plan, neighbours(plan)) == plan.budget.total


@pytest.mark.parametrize("distinct", DISTINCT)
@pytest.mark.parametrize("relation", ["bounded", "unbounded"])
def test_every_query_group_has_the_sensitivity_that_its_noise_is_made_for(
    distinct: Distinct | None, relation: str
) -> None:
    """Exactly, level by level and group by group, where as many records fit into rows as are counted."""
    at_most = 2
    plan = planned(at_most, distinct, neighbours=relation)
    parents = [[0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]]
    units = everything(plan)
    pairs = [((), unit) for unit in units] if relation == "unbounded" else list(combinations(units, 2))
    for number, level in enumerate(plan.levels):
        for asked in level.queries:
            rows = asked.query.row_of_cell.tolist()
            largest = 0
            for before, after in pairs:
                change: dict[tuple[int, int], int] = {}
                for sign, records in ((-1, before), (1, after)):
                    for leaf, cell in records:
                        place = parents[number][leaf], rows[cell]
                        change[place] = change.get(place, 0) + sign
                largest = max(largest, sum(d * d for d in change.values()))
            together = plan.budget.contribution.together(level.geolevel, asked.query.name)
            stated = plan.budget.neighbours.l2_squared * at_most * together
            assert largest <= stated
            only_one_row = number == 0 and asked.query.size == 1  # nowhere to move to
            if not (only_one_row and relation == "bounded"):
                assert largest == stated, (level.geolevel, asked.query.name)


def test_what_is_stated_of_rows() -> None:
    """A table to read: how many of three records of one unit a row can count."""
    wards = {name: {} for name in DISTINCT}  # type: ignore[var-annotated]
    for distinct in DISTINCT:
        contribution = planned(3, distinct).budget.contribution
        wards[distinct] = {
            (level, query): contribution.together(level, query)
            for level in ("side", "ward")
            for query in ("total", "age", "detailed")
        }
    assert set(wards[None].values()) == {3}
    assert wards[Distinct.LEAF] == {
        **{("side", query): 3 for query in ("total", "age", "detailed")},
        **{("ward", query): 1 for query in ("total", "age", "detailed")},
    }
    each = {"total": 3, "age": 2, "detailed": 1}
    assert wards[Distinct.CELL] == {(level, q): m for level in ("side", "ward") for q, m in each.items()}
    assert wards[Distinct.RECORD] == {
        **{("side", query): 3 for query in each},
        **{("ward", query): m for query, m in each.items()},
    }


@pytest.mark.parametrize("distinct", DISTINCT)
@pytest.mark.parametrize("at_most", [1, 2])
def test_inputs_that_differ_in_the_rows_of_one_unit_for_every_key_tried(
    at_most: int, distinct: Distinct | None
) -> None:
    """From rows to losses: whatever a unit's rows are, and whatever others have, for several keys."""
    plan = planned(at_most, distinct)
    bound = plan.budget.contribution.bound
    assert bound is not None
    records = [(leaf, cell) for leaf in (0, 1, 3) for cell in (0, 3)]
    rows_of_one = [some for size in range(4) for some in combinations_with_replacement(records, size)]
    others: list[Row] = [("other", 0, 0), ("other", 0, 0), ("other", 1, 1), ("third", 3, 3)]
    for number in range(3):
        tables = []
        for rows in rows_of_one:
            mine = [("u", leaf, cell) for leaf, cell in rows]
            found = counted(others[:2] + mine + others[2:], bound, key(number), size=4)
            tables.append(tuple(sorted(found.elements())))
        distinct_tables = sorted(set(tables))
        assert len(distinct_tables) > 5
        assert worst(plan, combinations(distinct_tables, 2)) <= plan.budget.total


def test_a_selection_that_looks_at_other_units_breaks_the_bound() -> None:
    """Mutant: the key depends on all rows, so that one unit decides what is counted of another."""
    plan = planned(1)
    bound = plan.budget.contribution.bound
    assert bound is not None
    others: list[Row] = [(f"v{n}", leaf, 0) for n in range(6) for leaf in (0, 3)]

    def table(mine: Record) -> tuple[Record, ...]:
        rows = [*others, ("u", *mine)]
        return tuple(sorted(counted(rows, bound, key(crc32(repr(rows).encode())), size=4).elements()))

    found = {table((leaf, cell)) for leaf in range(4) for cell in range(4)}
    assert worst(plan, combinations(sorted(found), 2)) > plan.budget.total


@each("relation", ["bounded", "unbounded"])
@each("bypassed", [False, True])
@each("distinct", DISTINCT)
def test_one_record_of_a_unit_costs_no_more_than_is_stated(
    distinct: Distinct | None, bypassed: bool, relation: str
) -> None:
    """One row of the input replaced, the others staying, for several keys."""
    plan = planned(2, distinct, bypassed=bypassed, neighbours=relation)
    bound = plan.budget.contribution.bound
    assert bound is not None
    stated = record_loss(plan)
    assert stated == max(stated_slowly(plan, path) for path in path_kinds(plan))
    records = [(leaf, cell) for leaf in range(4) for cell in (0, 1, 3)]
    largest = F(0)
    for number in range(6):
        stay = [records[(5 * number + 7 * n) % 12] for n in range(3)]
        tables = [
            tuple(
                sorted(counted([("u", *r) for r in (*stay, record)], bound, key(number), size=4).elements())
            )
            for record in records
        ]
        largest = max(largest, worst(plan, combinations(sorted(set(tables)), 2)))
    assert 0 < largest <= stated
    if distinct is None:
        assert stated == plan.budget.total / 4 * (2 if relation == "unbounded" else 1)


def stated_slowly(plan: MeasurementPlan, path: Sequence[Fraction]) -> Fraction:
    """The formula once more: what is replaced, in the noise that is there."""
    bound = plan.budget.contribution.bound
    assert bound is not None
    replaced = min(bound.at_most, 1 if bound.distinct is None else 2)
    loss = F(0)
    for number, (level, own) in enumerate(zip(plan.levels, path, strict=True)):
        for asked in level.queries if own else ():
            law = plan.distribution(number, asked, own)
            assert isinstance(law, DiscreteGaussian)
            together = plan.budget.contribution.together(level.geolevel, asked.query.name)
            loss += F(2 * replaced * min(replaced, together)) / (2 * law.sigma2)
    return loss


@pytest.mark.parametrize("laplace", [False, True])
def test_what_two_records_of_a_household_cost_together_is_attained(laplace: bool) -> None:
    plan = planned(1, laplace=laplace, neighbours="unbounded")
    records = [(leaf, cell) for leaf in range(4) for cell in range(4)]
    pairs = combinations_with_replacement(records, 2)
    found = worst(plan, (((), two) for two in pairs))
    assert (
        found == group_loss(plan.budget.total, 2, pure=laplace) == plan.budget.total * (2 if laplace else 4)
    )


def test_households_that_move_together_cost_no_more_than_is_stated() -> None:
    """Bounded: two persons of one ward, replaced by two of another, or of the same."""
    plan = planned(1)
    homes = [((leaf, a), (leaf, b)) for leaf in range(4) for a in range(4) for b in range(4) if a <= b]
    single = [((leaf, cell),) for leaf in range(4) for cell in range(4)]
    one, two = worst(plan, combinations(single, 2)), worst(plan, combinations(homes, 2))
    assert two == group_loss(one, 2, pure=False) <= group_loss(plan.budget.total, 2, pure=False)


def test_the_exact_account_says_that_it_does_not_know_units_that_may_vanish_or_have_several_records() -> None:
    for at_most in (1, 2):
        with pytest.raises(ConfigError, match="the exact account is of one changed record"):
            plan_loss(planned(at_most))
    assert ContributionBound("who", 1) == planned(1).budget.contribution.bound
