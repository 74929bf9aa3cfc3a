"""Measurements: exact answers plus addressable noise, lazily or in full."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from support.assembled import KEY, assemble
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense
from support.noise import draw

from opendas.errors import BudgetError
from opendas.geography.spine import Shares, Spine
from opendas.measurement import noisy
from opendas.measurement.answered import AnsweredMeasurements, are_answered
from opendas.measurement.family import PartialSource
from opendas.measurement.invariants import exact_answers
from opendas.measurement.noisy import NoisyMeasurements, measured_levels
from opendas.measurement.plan import MeasurementPlan
from opendas.parts import MECHANISMS, Origin
from opendas.privacy.relations import Mechanism
from opendas.sampling import mechanisms
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.mechanisms import OWN_MECHANISMS
from opendas.sampling.noise import NoiseSource


@pytest.fixture(name="run")
def _run():
    frame = mini_frame()
    return assemble(mini_product(), frame, mini_histogram(frame))


def test_a_full_measurement_is_truth_plus_the_noise_of_its_address(run) -> None:
    measured = run.measurements()
    noise = NoiseSource(KEY)
    for number, level in enumerate(run.plan.levels):
        dense = to_dense(run.counts.aggregate(run.spine.leaf_starts(number)))
        found = measured.full(number, 0, len(dense))
        for planned, values in zip(level.queries, found, strict=True):
            table = SamplerTable.build(run.plan.distribution(number, planned))
            expected = planned.query.answers(dense)
            for unit in range(len(dense)):
                rows = np.arange(planned.query.size)
                drawn = draw(noise, table, number, unit, planned.address, rows)
                assert np.array_equal(values[unit] - expected[unit], drawn)


def test_a_lazy_answer_equals_that_coordinate_of_the_full_one(run) -> None:
    measured = run.measurements()
    rng = np.random.default_rng(0)
    for number, level in enumerate(run.spine.levels):
        full = measured.full(number, 0, len(level))
        for _ in range(20):
            support = np.flatnonzero(rng.random(run.product.schema.size) < 0.4).astype(np.int32)
            first = int(rng.integers(len(level)))
            children = int(rng.integers(1, len(level) - first + 1))
            lazy = measured.family(number, first, children, support)
            for query, values in zip(lazy.queries, full, strict=True):
                assert np.array_equal(query.values, values[first : first + children][:, query.rows])
                group = run.product.workload.group(query.name)
                assert np.array_equal(query.rows[query.compact], group.row_of_cell[support])


def sums_of_touched(run, measured, number, rng):
    """Compare sums of answers that touch some cells with those of all answers, and with 0 elsewhere."""
    level = run.spine.levels[number]
    full = measured.full(number, 0, len(level))
    first = int(rng.integers(len(level)))
    geounits = int(rng.integers(1, len(level) - first + 1))
    cells = rng.random((3, run.product.schema.size)) < 0.3
    which, group = rng.integers(0, 3, geounits), rng.integers(0, 4, geounits)
    found = measured.sums(number, first, cells, which, group)
    for planned, values, every in zip(run.plan.levels[number].queries, found, full, strict=True):
        expected = np.zeros((group.max() + 1, planned.query.size), np.int64)
        for c in range(geounits):
            asked = np.zeros(planned.query.size, bool)
            asked[planned.query.row_of_cell[cells[which[c]]]] = True
            expected[group[c]] += np.where(asked, every[first + c], 0)
        assert np.array_equal(values, expected)


@pytest.mark.parametrize("seed", range(5))
def test_sums_of_answers_that_touch_some_cells_are_those_of_the_full_measurement(run, seed) -> None:
    rng = np.random.default_rng(seed)
    assert isinstance(run.measurements(), PartialSource)
    for number in range(len(run.spine.levels)):
        sums_of_touched(run, run.measurements(), number, rng)


def used_of_many(run, measured, number, rng):
    """Compare answers of many families, read together, with those of each read alone."""
    geounits = len(run.spine.levels[number])
    cuts = np.unique([0, *rng.integers(0, geounits + 1, 4), geounits])
    chosen = np.flatnonzero(rng.random(len(cuts) - 1) < 0.7)
    families = [
        (
            int(cuts[f]),
            int(cuts[f + 1] - cuts[f]),
            np.flatnonzero(rng.random(run.product.schema.size) < rng.random()).astype(np.int32),
        )
        for f in chosen
    ]
    found = iter(measured.used(number, families))
    for first, children, support in families:
        for query in measured.family(number, first, children, support).queries:
            used = next(found)
            assert (used.level, used.first, used.children, used.query) == (
                number,
                first,
                children,
                query.name,
            )
            assert np.array_equal(used.rows, query.rows)
            assert used.values.shape == query.values.shape
            assert np.array_equal(used.values, query.values)
    assert next(found, None) is None


@pytest.mark.parametrize("pairs", [1, 40, 1 << 18])
@pytest.mark.parametrize("seed", range(5))
def test_answers_of_many_families_are_those_of_each(run, seed, pairs, monkeypatch) -> None:
    monkeypatch.setattr(noisy, "PAIRS", pairs)
    rng = np.random.default_rng(seed)
    assert run.measurements().used(1, []) == []
    for number in range(len(run.spine.levels)):
        used_of_many(run, run.measurements(), number, rng)


def test_marginals_sum_over_all_cells_and_not_over_the_support(run) -> None:
    """A support-restricted marginal with the same noise would give off-support counts by subtraction."""
    lazy = run.measurements().family(2, 0, len(run.spine.leaf), np.zeros(1, np.int32))
    total = next(query for query in lazy.queries if query.name == "total")
    planned = next(q for q in run.plan.levels[2].queries if q.query.name == "total")
    table = SamplerTable.build(run.plan.distribution(2, planned))
    noise = draw(
        NoiseSource(KEY), table, 2, np.arange(len(run.spine.leaf)), planned.address, np.zeros(1, int)
    )
    assert np.array_equal(total.values - noise, run.counts.row_totals()[:, None])


def test_the_shape_of_a_measurement_does_not_depend_on_the_data(run) -> None:
    empty = assemble(
        mini_product(invariant=False), run.frame, from_dense(np.zeros((len(run.frame), 9), np.int64))
    )
    full = run.measurements().full(2, 0, 24)
    bare = empty.measurements().full(2, 0, 24)
    assert [values.shape for values in full] == [values.shape for values in bare]


def test_geounits_with_their_own_shares_draw_with_their_own_noise(run) -> None:
    """A bypassed spine: the parent takes its only child's share, and the child is not measured."""
    shares = (None, None, Shares.of([Fraction(0)] + [Fraction(1)] * 23, np.arange(24)))
    level_shares = [level.share for level in run.plan.levels]
    with pytest.raises(BudgetError):
        Spine(run.spine.levels, run.spine.leaf_order, shares).check_paths(level_shares)
    towns = Shares.of([Fraction(2) if i == 0 else Fraction(1) for i in range(6)], np.arange(6))
    blocks = Shares.of([Fraction(0) if i < 4 else Fraction(1) for i in range(24)], np.arange(24))
    spine = Spine(run.spine.levels, run.spine.leaf_order, (None, towns, blocks))
    plan = MeasurementPlan(run.product, spine, run.plan.budget)
    levels = measured_levels(plan)
    tables = {n: run.counts.aggregate(spine.leaf_starts(n)) for n in range(3)}
    measured = NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), NoiseSource(KEY))
    assert (levels[2].budgets(0, 24) >= 0).tolist() == [False] * 4 + [True] * 20
    assert all(not values[:4].any() for values in measured.full(2, 0, 24))
    everywhere, rng = np.ones((1, 9), bool), np.random.default_rng(7)
    for number, geounits in ((2, 24), (1, 6)):
        each, together = np.arange(geounits), np.zeros(geounits, np.int64)
        some = measured.sums(number, 0, everywhere, together, each)
        whole = measured.sums(number, 0, everywhere, together, together)
        for values, total, every in zip(some, whole, measured.full(number, 0, geounits), strict=True):
            assert np.array_equal(values, every)
            assert np.array_equal(total[0], every.sum(axis=0))
        used_of_many(SimpleNamespace(spine=spine, product=run.product), measured, number, rng)
    planned = plan.levels[1].queries[0]
    wide, narrow = (plan.distribution(1, planned, Fraction(m)).sigma2 for m in (1, 2))
    assert wide == 2 * narrow
    assert measured.family(1, 0, 6, np.arange(9, dtype=np.int32)).precision.tolist() == [2, 1, 1, 1, 1, 1]


def test_a_level_where_every_geounit_was_bypassed_is_read_as_not_measured(run) -> None:
    """Such a level keeps its query groups in the plan; a family there gets answers of zero and no noise."""
    towns = Shares.of([Fraction(2)], np.zeros(6, dtype=np.int64))
    blocks = Shares.of([Fraction(0)], np.zeros(24, dtype=np.int64))
    spine = Spine(run.spine.levels, run.spine.leaf_order, (None, towns, blocks))
    levels = measured_levels(MeasurementPlan(run.product, spine, run.plan.budget))
    tables = {n: run.counts.aggregate(spine.leaf_starts(n)) for n in range(3)}
    measured = NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), NoiseSource(KEY))
    assert (levels[2].budgets(0, 24) < 0).all()
    family = measured.family(2, 4, 1, np.arange(9, dtype=np.int32))
    assert not any(query.values.any() for query in family.queries)
    assert family.precision.tolist() == [1.0]


def test_the_plan_digest_depends_on_the_plan_and_not_on_estimation(run) -> None:
    frame = mini_frame()
    histogram = mini_histogram(frame)
    again = assemble(mini_product(), frame, histogram)
    assert again.plan.digest() == run.plan.digest()
    other_budget = assemble(mini_product(), frame, histogram, rho=Fraction(3))
    other_frame = assemble(mini_product(), mini_frame(blocks=5), mini_histogram(mini_frame(blocks=5)))
    without_invariant = assemble(mini_product(invariant=False), frame, histogram)
    assert other_budget.plan.digest() != run.plan.digest()
    assert other_frame.plan.digest() != run.plan.digest()
    assert without_invariant.plan.digest() == run.plan.digest()


def test_a_budget_for_an_undeclared_query_is_refused() -> None:
    frame = mini_frame()
    product = replace(mini_product(), query_names=("total", "detailed"))
    with pytest.raises(BudgetError, match="not a query group"):
        assemble(product, frame, mini_histogram(frame), queries={"kind": Fraction(1)})


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_our_mechanisms_keep_the_contract_of_those_of_others(run, mechanism) -> None:
    """Geounit by geounit, from words of the same addresses, they give the bytes of the fast path."""
    budget = replace(run.plan.budget, mechanism=mechanism)
    plan = MeasurementPlan(run.product, run.spine, budget)
    levels = measured_levels(plan)
    tables = {n: run.counts.aggregate(run.spine.leaf_starts(n)) for n in range(3)}
    noise, part = NoiseSource(KEY), OWN_MECHANISMS[mechanism.value]
    full = NoisyMeasurements(levels, tables, dict.fromkeys(tables, 0), noise)
    for number, level in enumerate(levels):
        geounits = len(run.spine.levels[number])
        exact = [run.product.workload.group(query.name) for query in level.queries]
        for query, group, drawn in zip(level.queries, exact, full.full(number, 0, geounits), strict=True):
            law = query.noise[0]
            loss = 1 / law.parameter / (2 if mechanism.is_zcdp else 1)
            truth = exact_answers(group, tables[number])
            for unit in range(geounits):
                words = noise.words_at(number, unit, query.address)
                assert np.array_equal(part.answer(truth[unit], loss, words), drawn[unit])
            assert part.spends(loss) == loss
            assert part.variance(loss) == law.variance
            assert part.margin(loss, Fraction(9, 10)) == law.margin(Fraction(9, 10))


def test_a_mechanism_of_another_package_is_read_as_ours_are(run, monkeypatch) -> None:
    """Families and whole levels, bypassed geounits too: what ours would draw, if it is ours that draws."""
    found = OWN_MECHANISMS["discrete-gaussian"], Origin(MECHANISMS, "twin", "p", "1")
    monkeypatch.setattr(mechanisms, "find_mechanism", lambda _: found)
    stated = Mechanism("zcdp:twin (p 1)")
    assert Mechanism(pickle.loads(pickle.dumps(stated))) == stated
    blocks = Shares.of([Fraction(0) if i < 4 else Fraction(1) for i in range(24)], np.arange(24))
    towns = Shares.of([Fraction(2) if i == 0 else Fraction(1) for i in range(6)], np.arange(6))
    spine = Spine(run.spine.levels, run.spine.leaf_order, (None, towns, blocks))
    tables = {n: run.counts.aggregate(spine.leaf_starts(n)) for n in range(3)}
    sources = []
    for mechanism in (Mechanism.DISCRETE_GAUSSIAN, stated):
        budget = replace(run.plan.budget, mechanism=mechanism)
        levels = measured_levels(MeasurementPlan(run.product, spine, budget))
        assert are_answered(levels) == (mechanism is stated)
        kind = AnsweredMeasurements if are_answered(levels) else NoisyMeasurements
        sources.append(kind(levels, tables, dict.fromkeys(tables, 0), NoiseSource(KEY)))
    ours, theirs = sources
    for number, (first, children, size) in enumerate([(0, 1, 1), (0, 6, 6), (2, 5, 24)]):
        for one, other in zip(ours.full(number, 0, size), theirs.full(number, 0, size), strict=True):
            assert np.array_equal(one, other)
        for support in (np.array([0, 4, 8], np.int32), np.arange(9, dtype=np.int32)):
            one, other = (each.family(number, first, children, support) for each in sources)
            assert np.array_equal(one.precision, other.precision)
            for left, right in zip(one.queries, other.queries, strict=True):
                assert left.variance == right.variance
                for field in ("rows", "compact", "values"):
                    assert np.array_equal(getattr(left, field), getattr(right, field))
