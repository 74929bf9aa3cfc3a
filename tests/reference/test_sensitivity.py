"""Probe D of the privacy audit: sensitivity by brute force, on answers that the production code gave.

Two inputs measured under one key differ by exactly what their exact answers differ by: the noise of an
address is the same and cancels. So for a small plan every record is added in turn, the change of every
answer is taken from :class:`NoisyMeasurements`, and the cost of every pair of neighbours is added up in
fractions. No query matrix is written down here, and no formula for the sensitivity of a marginal is used.
The spine's parents, shares and noise come from the plan; the accountant that knows only plain data
(``brute_force_accountant.py``) must find the same worst pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product as pairs_of

import numpy as np
import pytest
from support import scripts
from support.assembled import KEY, Assembled, assemble
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense

import opendas.measurement.noisy as noisy
from opendas.geography.spine import Shares, Spine
from opendas.measurement.noisy import NoisyMeasurements, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.sampling.laws import DiscreteGaussian
from opendas.sampling.noise import NoiseSource

accountant = scripts.accountant()

F = Fraction
Coordinate = tuple[int, int, str, int]
Change = dict[Coordinate, int]
RHO = F(7, 3)


def small(
    neighbours: Neighbours = Neighbours.BOUNDED, mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN
) -> Assembled:
    """Two regions, of two towns, of two blocks; nine cells; three query groups."""
    frame = mini_frame(2, 2, 2)
    product = mini_product(invariant=False)
    histogram = mini_histogram(frame)
    return assemble(product, frame, histogram, rho=RHO, neighbours=neighbours, mechanism=mechanism)


def bypassed(run: Assembled, towns: list[Fraction], blocks: list[Fraction]) -> MeasurementPlan:
    """The same run on a spine whose geounits have shares of their own."""
    own = tuple(Shares.of(each, np.arange(len(each))) for each in (towns, blocks))
    spine = Spine(run.spine.levels, run.spine.leaf_order, (None, *own))
    return MeasurementPlan(run.product, spine, run.plan.budget)


def measure(plan: MeasurementPlan, dense: np.ndarray) -> dict[Coordinate, int]:
    """Every noisy answer of a plan, by coordinate."""
    levels = measured_levels(plan)
    counts = from_dense(dense)
    tables = {n: counts.aggregate(plan.spine.leaf_starts(n)) for n in range(len(levels))}
    source = NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), NoiseSource(KEY))
    found = {}
    for number, level in enumerate(levels):
        geounits = len(plan.spine.levels[number])
        budget = level.budgets(0, geounits) >= 0
        for query, values in zip(level.queries, source.full(number, 0, geounits), strict=True):
            for (unit, row), value in np.ndenumerate(values):
                if budget[unit]:
                    found[number, unit, query.name, row] = int(value)
                else:
                    assert value == 0, "a geounit without budget shows nothing"
    return found


def changes(plan: MeasurementPlan, dense: np.ndarray) -> dict[tuple[int, int], Change]:
    """What one more record, in each leaf and cell, changes."""
    before = measure(plan, dense)
    found = {}
    for leaf, cell in pairs_of(range(dense.shape[0]), range(dense.shape[1])):
        more = dense.copy()
        more[leaf, cell] += 1
        after = measure(plan, more)
        assert after.keys() == before.keys(), "the shape depends on the data"
        found[leaf, cell] = {key: after[key] - before[key] for key in before if after[key] != before[key]}
    return found


def noise_of(plan: MeasurementPlan) -> list[list[dict[str, Fraction]]]:
    """Parameter of the noise of every query group at every geounit, exactly."""
    found = []
    for number, level in enumerate(measured_levels(plan)):
        units: list[dict[str, Fraction]] = []
        for unit in range(len(plan.spine.levels[number])):
            which = 0 if level.which is None else int(level.which[unit])
            laws = {query.name: query.noise[which] for query in level.queries} if which >= 0 else {}
            units.append(
                {
                    name: law.sigma2 if isinstance(law, DiscreteGaussian) else law.scale
                    for name, law in laws.items()
                }
            )
        found.append(units)
    return found


def worst(plan: MeasurementPlan, dense: np.ndarray) -> Fraction:
    """Largest loss over all pairs of neighbours: rho, or epsilon for Laplace noise."""
    noise = noise_of(plan)
    gaussian = plan.budget.mechanism is Mechanism.DISCRETE_GAUSSIAN

    def cost(change: Mapping[Coordinate, int]) -> Fraction:
        power = 2 if gaussian else 1
        total = sum((abs(d) ** power / noise[k[0]][k[1]][k[2]] for k, d in change.items()), F(0))
        return total / 2 if gaussian else total

    one = changes(plan, dense)
    if plan.budget.neighbours is Neighbours.UNBOUNDED:
        return max(cost(change) for change in one.values())
    largest = F(0)
    records = sorted(one)
    # One representative of the leaf that loses the record will do for each of the leaves it can go to.
    for old, new in pairs_of(records, records):
        if old < new:
            keys = one[old].keys() | one[new].keys()
            largest = max(largest, cost({k: one[new].get(k, 0) - one[old].get(k, 0) for k in keys}))
    return largest


def plain(plan: MeasurementPlan) -> object:
    """The plan as plain data for the independent accountant, its rows found from labels."""
    schema = plan.product.schema
    groups = {name: plan.product.workload.group(name) for name in plan.product.query_names}
    rows = []
    for level in plan.levels:
        here = {}
        for planned in level.queries:
            group = groups[planned.query.name]
            labels = [group.row_label(row) for row in range(group.size)]
            here[group.name] = [
                labels.index(_label(plan, group.factors, cell)) for cell in range(schema.size)
            ]
        rows.append(here)
    return accountant.Release(
        parents=[[int(p) for p in level.parent] for level in plan.spine.levels],
        rows=rows,
        noise=noise_of(plan),
        cells=schema.size,
    )


def _label(plan: MeasurementPlan, factors: tuple[str, ...], cell: int) -> str:
    """Name the row that counts a cell, from the declaration of attributes and recodes."""
    product = plan.product
    place = np.unravel_index(cell, product.schema.shape)
    level_of = {a.name: a.levels[int(i)] for a, i in zip(product.schema.attributes, place, strict=True)}
    for recode in product.recodes:
        inside = [name for name, members in recode.groups if level_of[recode.attribute] in members]
        assert len(inside) == 1, "a recode is a partition"
        level_of[recode.name] = inside[0]
    return " * ".join(level_of[factor] for factor in factors) if factors else "total"


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_worst_pair_of_a_plan_costs_exactly_its_total(
    neighbours: Neighbours, mechanism: Mechanism
) -> None:
    run = small(neighbours, mechanism)
    assert worst(run.plan, to_dense(run.counts)) == RHO


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_accountant_of_plain_data_agrees(neighbours: Neighbours) -> None:
    run = small(neighbours)
    assert accountant.worst_rho(plain(run.plan), neighbours.value) == worst(run.plan, to_dense(run.counts))


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_bypassed_geounits_keep_the_guarantee(neighbours: Neighbours) -> None:
    """Town 0 takes over its blocks' share; town 1 leaves its own to its blocks."""
    run = small(neighbours)
    plan = bypassed(run, [F(2), F(0), F(1), F(1)], [F(0), F(0), F(2), F(2), *[F(1)] * 4])
    assert worst(plan, to_dense(run.counts)) == RHO
    assert accountant.worst_rho(plain(plan), neighbours.value) == RHO


def test_what_one_record_changes_does_not_depend_on_the_others() -> None:
    run = small()
    full = changes(run.plan, to_dense(run.counts))
    empty = changes(run.plan, np.zeros((8, 9), dtype=np.int64))
    assert full == empty
    assert all(set(change.values()) == {1} for change in full.values())
    assert all(len(change) == 9 for change in full.values()), "one answer a geolevel and query group"


# Mutants: each must cost more than the plan says.


def counted_twice(patch: pytest.MonkeyPatch) -> MeasurementPlan:
    genuine = noisy.sum_rows

    def twice(*arguments: object) -> None:
        genuine(*arguments)
        genuine(*arguments)

    patch.setattr(noisy, "sum_rows", twice)
    return small().plan


def wrong_relation(patch: pytest.MonkeyPatch) -> MeasurementPlan:
    plan = small(Neighbours.UNBOUNDED).plan
    object.__setattr__(plan.budget, "neighbours", Neighbours.BOUNDED)
    unbounded = small(Neighbours.UNBOUNDED).plan
    patch.setattr(MeasurementPlan, "distribution", lambda self, *a: _distribution(unbounded, *a))
    return plan


def halved_noise(patch: pytest.MonkeyPatch) -> MeasurementPlan:
    def halve(self: MeasurementPlan, level: int, planned: object, *multiple: Fraction) -> object:
        law = _distribution(self, level, planned, *multiple)
        is_total = planned.query.name == "total" and level == 2  # type: ignore[attr-defined]
        return DiscreteGaussian(law.sigma2 / 2) if is_total else law  # type: ignore[attr-defined]

    patch.setattr(MeasurementPlan, "distribution", halve)
    return small().plan


def kept_share(patch: pytest.MonkeyPatch) -> MeasurementPlan:
    """A bypassed town hands its share down and keeps it."""
    patch.setattr(Spine, "check_paths", lambda self, shares: None)
    return bypassed(small(), [F(1)] * 4, [F(2), F(2), *[F(1)] * 6])


_distribution = MeasurementPlan.distribution


@pytest.mark.parametrize("mutant", [counted_twice, wrong_relation, halved_noise, kept_share])
def test_mutants_cost_more_than_the_plan_says(
    mutant: Callable[[pytest.MonkeyPatch], MeasurementPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = mutant(monkeypatch)
    assert worst(plan, np.zeros((8, 9), dtype=np.int64)) > RHO
