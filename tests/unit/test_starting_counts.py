"""Where replicates start: what the noise of leaves hides is moved, everything that is held stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mini import to_dense, write_mini
from support.seeds import examples

import opendas as od
from opendas.constraints.table import InvariantAnswers
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.starting_counts import StartingCounts, exchanged, with_sums
from opendas.schema.histogram import Histogram


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("mini")
    write_mini(folder)
    run = od.load(folder / "run.toml")
    return Simulation.of(run, run.read().histogram)


def table_of(dense: np.ndarray) -> Histogram:
    rows, cells = np.nonzero(dense)
    return Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape)


def starting(simulation: Simulation) -> StartingCounts:
    return StartingCounts.of(simulation.counts, simulation.run.plan, simulation.constraints)


def test_records_move_within_their_parent_and_break_no_bound(simulation: Simulation) -> None:
    start, rng = starting(simulation), np.random.default_rng(1)
    published, parent = to_dense(simulation.counts), simulation.run.spine.leaf.parent
    last, moved = simulation.constraints.levels[-1], 0
    for _ in range(50):
        drawn = to_dense(start.draw(rng))
        moved += int(np.abs(drawn - published).sum())
        for geounit in range(parent.max() + 1):
            assert np.array_equal(
                drawn[parent == geounit].sum(axis=0), published[parent == geounit].sum(axis=0)
            )
        sums = drawn @ simulation.constraints.bound_cells.T
        assert np.all((last.lower <= sums) & (sums <= last.upper))
        assert not drawn[:, ~simulation.constraints.possible].any()
    assert moved > 0


def test_a_record_stays_as_likely_as_its_answer_weighs_against_the_noise(simulation: Simulation) -> None:
    start, plan = starting(simulation), simulation.run.plan
    published, parent = to_dense(simulation.counts), simulation.run.spine.leaf.parent
    bounds = simulation.constraints.bound_cells
    (detailed,) = [query for query in plan.levels[-1].queries if query.query.name == "detailed"]
    noise = plan.distribution(len(plan.levels) - 1, detailed).variance
    entries = [(leaf, cell) for leaf in range(len(published)) for cell in np.flatnonzero(published[leaf])]
    for entry, (leaf, cell) in enumerate(entries):
        family = parent == parent[leaf]
        alike = (bounds == bounds[:, [cell]]).all(axis=0)
        part = published[leaf, alike].sum() / published[family][:, alike].sum()
        expected = part * published[family, cell].sum()
        assert start.stays[entry] == pytest.approx(expected / (expected + noise))


def test_records_are_put_back_where_records_are(simulation: Simulation) -> None:
    """With every record moved and no bounds, draws have the mean that independence within a parent says."""
    free = replace(
        simulation.constraints,
        bound_cells=simulation.constraints.bound_cells[:0],
        levels=tuple(
            replace(level, lower=level.lower[:, :0], upper=level.upper[:, :0])
            for level in simulation.constraints.levels
        ),
    )
    start = StartingCounts.of(simulation.counts, simulation.run.plan, free)
    start = replace(start, stays=np.zeros_like(start.stays))
    published, parent = to_dense(simulation.counts), simulation.run.spine.leaf.parent
    expected = np.zeros(published.shape)
    for geounit in range(parent.max() + 1):
        family = published[parent == geounit]
        part = family.sum(axis=1) / max(1, family.sum())
        expected[parent == geounit] = part[:, None] * family.sum(axis=0)
    rng, draws = np.random.default_rng(2), 2000
    mean = np.mean([to_dense(start.draw(rng)) for _ in range(draws)], axis=0)
    assert np.all(np.abs(mean - expected) <= 5 * np.sqrt((expected + 0.1) / draws))


def test_where_leaves_hold_an_invariant_replicates_start_from_the_published_counts(
    simulation: Simulation,
) -> None:
    query = simulation.run.product.workload.group("total")
    totals = InvariantAnswers("total@block", query, simulation.counts.row_totals()[:, None])
    levels = simulation.constraints.levels
    held = replace(simulation.constraints, levels=(*levels[:-1], replace(levels[-1], invariants=(totals,))))
    start = StartingCounts.of(simulation.counts, simulation.run.plan, held)
    drawn = start.draw(np.random.default_rng(3))
    assert np.array_equal(to_dense(drawn), to_dense(simulation.counts))


def test_records_of_a_tied_run_change_places_and_keep_every_sum_of_a_leaf(simulation: Simulation) -> None:
    """The classes of the bounds stand for the rows of a tie: what a leaf holds of each stays."""
    run, constraints = simulation.run, simulation.constraints
    query, rng = run.product.workload.group("kind"), np.random.default_rng(2)
    tied = table_of(query.answers(to_dense(simulation.counts)))
    held = constraints.tied_to("earlier", query, tied, run.spine)
    published, parent = to_dense(simulation.counts), run.spine.leaf.parent
    moved = 0
    for _ in range(50):
        drawn = to_dense(exchanged(simulation.counts, run.plan, held, rng))
        moved += int(np.abs(drawn - published).sum())
        assert np.array_equal(query.answers(drawn), query.answers(published))
        for geounit in range(parent.max() + 1):
            inside = parent == geounit
            assert np.array_equal(drawn[inside].sum(axis=0), published[inside].sum(axis=0))
    assert moved > 0


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6))
def test_counts_get_the_sums_that_are_asked_for(seed: int) -> None:
    """Each record stays in its row, as few move as can, and none between ranges whose sums stay."""
    rng = np.random.default_rng(seed)
    leaves, n, rows = int(rng.integers(2, 7)), int(rng.integers(1, 12)), int(rng.integers(1, 4))
    row_of_cell = rng.integers(0, rows, n)
    counts = rng.poisson(0.8, (leaves, n))

    def sums(dense: np.ndarray) -> np.ndarray:
        return np.stack([dense[:, row_of_cell == row].sum(axis=1) for row in range(rows)], axis=1)

    other, half = counts.copy(), leaves // 2
    for part in (slice(0, half), slice(half, leaves)):  # any leaf of the half, for each cell
        for cell in range(n):
            inside = other[part, cell]
            inside[:] = rng.multinomial(inside.sum(), np.full(len(inside), 1.0 / max(1, len(inside))))
    before, after = sums(counts), sums(other)
    tables = [table_of(dense) for dense in (counts, before, after)]
    found = to_dense(with_sums(tables[0], row_of_cell, tables[1], tables[2], rng))
    assert np.array_equal(sums(found), after)
    assert found.min(initial=0) >= 0
    for part in (slice(0, half), slice(half, leaves)):
        assert np.array_equal(found[part].sum(axis=0), counts[part].sum(axis=0))
    assert np.abs(found - counts).sum() <= np.abs(after - before).sum()


def test_sums_of_other_records_are_refused() -> None:
    one, two = (table_of(np.array([[count], [1]])) for count in (1, 2))
    with pytest.raises(ValueError, match="other sums"):
        with_sums(one, np.zeros(1, np.int64), one, two, np.random.default_rng(0))
