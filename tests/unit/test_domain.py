"""Schemas, query groups, histograms, spines and constraints against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assembled import same
from support.mini import from_dense, mini_frame, mini_histogram, mini_product, to_dense
from support.seeds import examples

from opendas.constraints.feasible import check_feasible
from opendas.constraints.table import bound_table
from opendas.errors import BudgetError, ConfigError, DataError, GeographyError, InfeasibleFamily
from opendas.geography.frame import Frame, official_codes
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Shares, Spine, SpineLevel
from opendas.measurement.invariants import declared_invariants
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Invariant
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, race_combinations
from opendas.schema.query_groups import Workload


def test_cells_are_row_major() -> None:
    schema = Schema((Attribute("a", ("x", "y", "z")), Attribute("b", ("p", "q"))))
    cells = [schema.cell({"a": a, "b": b}) for a in ("x", "y", "z") for b in ("p", "q")]
    assert cells == list(range(6))
    codes = schema.codes(np.arange(6))
    assert schema.cells(codes).tolist() == list(range(6))


@pytest.mark.parametrize(
    "groups",
    [
        (("u", ("x",)),),  # y and z are nowhere
        (("u", ("x", "y")), ("v", ("y", "z"))),  # y is twice
        (("u", ("x", "y", "z", "w")),),  # w is no level
    ],
)
def test_a_recode_that_is_no_partition_is_refused(groups: tuple) -> None:
    schema = Schema((Attribute("a", ("x", "y", "z")),))
    with pytest.raises(ConfigError):
        Workload(schema, (Recode("r", "a", groups),))


@pytest.mark.parametrize("name", ["total", "detailed", "rest", "*", "", "a*b", " a"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Attribute(name, ("x",))


def test_query_groups_equal_brute_force() -> None:
    product = mini_product()
    rng = np.random.default_rng(1)
    dense = rng.integers(0, 9, (5, product.schema.size))
    kinds = product.schema.attribute("kind").levels
    expected = {
        "total": dense.sum(axis=1, keepdims=True),
        "kind": dense.reshape(5, 3, 3).sum(axis=2),
        "age": dense.reshape(5, 3, 3).sum(axis=1),
        "minor": np.stack(
            [dense.reshape(5, 3, 3)[:, :, 0].sum(1), dense.reshape(5, 3, 3)[:, :, 1:].sum((1, 2))], 1
        ),
        "detailed": dense,
    }
    for name, answers in expected.items():
        assert np.array_equal(product.workload.group(name).answers(dense), answers), name
    both = product.workload.group("minor * kind")
    assert both.name == "kind * minor"
    assert [both.row_label(r) for r in range(2)] == [f"{kinds[0]} * minor", f"{kinds[0]} * major"]


def test_every_query_group_is_a_partition() -> None:
    product = pl94_persons()
    for name in product.query_names:
        group = product.workload.group(name)
        assert group.row_of_cell.min() == 0
        assert np.array_equal(np.unique(group.row_of_cell), np.arange(group.size)), name


def test_query_names_in_any_order_and_wrong_ones() -> None:
    workload = pl94_persons().workload
    assert workload.canonical("cenrace*hispanic") == "hispanic * cenrace"
    assert workload.canonical("cenrace * hhgq * hispanic * votingage") == "detailed"
    for wrong in ("race", "hhgq * hhinstlevels", "hispanic * hispanic"):
        with pytest.raises(ConfigError):
            workload.canonical(wrong)


def test_race_codes_are_those_of_production() -> None:
    races = race_combinations()
    assert len(races) == 63
    assert [len(r) for r in races] == [1] * 6 + [2] * 15 + [3] * 20 + [4] * 15 + [5] * 6 + [6]
    assert races[6] == ("white", "black")
    assert races[20] == ("nhpi", "sor")
    assert races[21] == ("white", "black", "aian")


entries = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 9)), max_size=40)


@pytest.mark.parametrize("seed", range(6))
def test_entries_add_up_alike_whether_they_are_sorted_or_a_table_is_filled(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(seed)
    entries = int(generator.integers(1, 400))
    rows, cells = generator.integers(0, 9, entries), generator.integers(0, 11, entries)
    counts = generator.integers(0, 3, entries) * generator.choice([1, 2**40], entries)
    found = []
    for most in (0, 1 << 22):
        monkeypatch.setattr("opendas.schema.histogram._CELLS_AN_ENTRY", 1000)
        monkeypatch.setattr("opendas.schema.histogram._MOST_CELLS", most)
        found.append(Histogram.from_entries(rows, cells, counts, shape=(9, 11)))
    for name in ("indptr", "cells", "counts"):
        one, other = (getattr(table, name) for table in found)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@given(entries)
@settings(max_examples=examples(100), deadline=None)
def test_histograms_equal_dense_sums(triples: list[tuple[int, int, int]]) -> None:
    dense = np.zeros((5, 7), dtype=np.int64)
    for row, cell, count in triples:
        dense[row, cell] += count
    rows, cells, counts = (np.array([t[k] for t in triples], dtype=np.int64) for k in range(3))
    histogram = Histogram.from_entries(rows, cells, counts, shape=(5, 7))
    assert np.array_equal(to_dense(histogram), dense)
    assert np.array_equal(histogram.row_totals(), dense.sum(axis=1))
    starts = np.array([0, 2, 2, 5])
    expected = np.stack([dense[0:2].sum(0), dense[2:2].sum(0), dense[2:5].sum(0)])
    assert np.array_equal(to_dense(histogram.aggregate(starts)), expected)
    assert np.array_equal(to_dense(histogram.slice(1, 4)), dense[1:4])
    order = np.array([4, 0, 3, 1, 2])
    assert np.array_equal(to_dense(histogram.take(order)), dense[order])
    parts = [histogram.slice(0, 2), histogram.slice(2, 2), histogram.slice(2, 5)]
    assert np.array_equal(to_dense(Histogram.concatenate(parts)), dense)
    assert same(histogram, from_dense(dense))
    assert [first for first, _ in histogram.pieces(2)] == [0, 2, 4]
    assert same(Histogram.concatenate([piece for _, piece in histogram.pieces(2)]), histogram)


def test_histograms_refuse_negative_and_huge_counts() -> None:
    with pytest.raises(DataError, match="negative"):
        Histogram.from_entries(np.array([0]), np.array([0]), np.array([-1]), shape=(1, 1))
    with pytest.raises(DataError, match="too large"):
        Histogram.from_entries(np.zeros(3), np.zeros(3), np.full(3, 2**61), shape=(1, 1))


def test_a_histogram_shows_no_counts() -> None:
    assert repr(from_dense(np.full((2, 2), 7))) == "Histogram(2 geounits x 2 cells)"


def test_census_codes_are_prefixes() -> None:
    blocks = np.array(["440070101011001", "440070101012003"], dtype="S15")
    codes = official_codes(blocks, "us")
    assert [codes[level][1].decode() for level in codes] == [
        "1",
        "44",
        "44007",
        "44007010101",
        "440070101012",
    ]


def test_the_standard_spine_has_the_frames_tree() -> None:
    frame = mini_frame()
    spine = standard_spine(frame)
    assert [len(level) for level in spine.levels] == [2, 6, 24]
    for level in (0, 1):
        starts = spine.child_starts(level)
        for i, code in enumerate(spine.levels[level].geocodes):
            children = spine.levels[level + 1].geocodes[starts[i] : starts[i + 1]]
            assert all(child.startswith(code) for child in children)
    assert spine.leaf_starts(0).tolist() == [0, 12, 24]


def test_a_geounit_in_two_parents_is_refused() -> None:
    codes = np.array([b"a1", b"b1"])
    frame = Frame(codes, {"top": np.array([b"x", b"y"]), "middle": np.array([b"m", b"m"])}, "leaf")
    with pytest.raises(GeographyError, match="one parent"):
        standard_spine(frame)


def test_a_leaf_listed_twice_is_refused() -> None:
    with pytest.raises(GeographyError, match="listed more than once"):
        Frame(np.array([b"a", b"a"]), {}, "leaf")


def test_shares_along_every_path_must_sum_to_one() -> None:
    top = SpineLevel("top", np.array([b"t"]), np.zeros(1, np.int64))
    leaf = SpineLevel("leaf", np.array([b"a", b"b"]), np.zeros(2, np.int64))
    half = (Fraction(1, 2), Fraction(1, 2))
    plain = Spine((top, leaf), np.arange(2), (None, None))
    plain.check_paths(half)
    with pytest.raises(BudgetError):
        plain.check_paths((Fraction(1, 2), Fraction(1, 2) + Fraction(1, 10**12)))
    twice = Shares.of([Fraction(2)], np.zeros(1, np.int64))
    nothing = Shares.of([Fraction(0)], np.zeros(2, np.int64))
    Spine((top, leaf), np.arange(2), (twice, nothing)).check_paths(half)
    some = Shares.of([Fraction(0), Fraction(1)], np.arange(2))
    with pytest.raises(BudgetError, match="leaf b sum to 3/2"):
        Spine((top, leaf), np.arange(2), (twice, some)).check_paths(half)


def test_shares_are_distinct_multiples() -> None:
    assert Shares.of([Fraction(1), Fraction(1)], np.array([0, 1, 0])) is None
    found = Shares.of([Fraction(2), Fraction(1), Fraction(2), Fraction(9)], np.array([0, 1, 2]))
    assert found is not None
    assert found.multiples == (Fraction(1), Fraction(2))
    assert found.which.tolist() == [1, 0, 1]
    with pytest.raises(BudgetError, match="not negative"):
        Shares((Fraction(-1),), np.zeros(1, np.int64))
    with pytest.raises(BudgetError, match="no multiple"):
        Shares((Fraction(1),), np.ones(1, np.int64))


def test_constraints_are_summed_up_the_spine() -> None:
    product, frame = mini_product(), mini_frame(seed=3)
    spine = standard_spine(frame)
    histogram = mini_histogram(frame, seed=3)
    table = bound_table(product, frame, spine, declared_invariants(product, histogram, spine))
    units = np.stack([frame.units[c] for c in ("homes", "schools", "prisons")], axis=1)
    for number, level in enumerate(table.levels):
        starts = spine.leaf_starts(number)
        sums = np.stack([units[a:b].sum(0) for a, b in itertools.pairwise(starts)])
        assert np.array_equal(level.lower, sums * [0, 1, 1])
        assert np.array_equal(level.upper, sums * 99999)
        counts = to_dense(histogram.aggregate(starts))
        kinds = counts.reshape(len(counts), 3, 3).sum(2)
        assert np.all(kinds >= level.lower)
        assert np.all(kinds <= level.upper)
    totals = histogram.aggregate(spine.leaf_starts(0)).row_totals()
    assert np.array_equal(table.levels[0].invariants[0].answers[:, 0], totals)
    assert all(not level.invariants for level in table.levels[1:])


def test_only_declared_invariants_leave_the_histogram() -> None:
    frame = mini_frame()
    spine = standard_spine(frame)
    assert declared_invariants(mini_product(invariant=False), mini_histogram(frame), spine) == {}
    found = declared_invariants(mini_product(), mini_histogram(frame), spine)
    assert list(found) == ["total"]
    assert found["total"].shape == (2, 1)


def test_part_totals_at_a_fixed_state_total_change_no_constraint() -> None:
    """Moving people between towns changes nothing that enters estimation un-noised (finding A)."""
    product, frame = mini_product(), mini_frame(seed=5)
    spine = standard_spine(frame)
    before = to_dense(mini_histogram(frame, seed=5))
    after = before.copy()
    giver = int(np.argmax(after[:12, 0]))
    taker = (giver + 6) % 12
    after[giver, 0] -= 1
    after[taker, 0] += 1
    tables = [
        bound_table(product, frame, spine, declared_invariants(product, from_dense(d), spine))
        for d in (before, after)
    ]
    for one, two in zip(tables[0].levels, tables[1].levels, strict=True):
        assert np.array_equal(one.lower, two.lower)
        assert np.array_equal(one.upper, two.upper)
        for a, b in zip(one.invariants, two.invariants, strict=True):
            assert np.array_equal(a.answers, b.answers)


def test_a_missing_unit_column_is_named() -> None:
    product, frame = mini_product(invariant=False), mini_frame()
    bare = Frame(frame.geocodes, frame.levels, frame.leaf, {"homes": frame.units["homes"]})
    with pytest.raises(DataError, match="schools"):
        bound_table(product, bare, standard_spine(bare), {})


def contradictory(**changes):
    """Return product, spine and constraints of a census whose region total is set by hand."""
    product, frame = mini_product(), mini_frame(seed=3)
    spine = standard_spine(frame)
    total = np.array(changes.get("total", [[500], [500]]))
    return product, spine, bound_table(product, frame, spine, {"total": total})


def test_constraints_that_can_hold_are_not_refused() -> None:
    check_feasible(*contradictory())


def test_a_total_below_the_lower_bounds_is_found_before_anything_is_drawn() -> None:
    with pytest.raises(InfeasibleFamily) as caught:
        check_feasible(*contradictory(total=[[500], [1]]))
    assert caught.value.family == "01"
    assert caught.value.constraints == (
        "region 01: invariant total@region = 1",
        "region 01: lower bound of kind=school by schools >= 3",
    )
    assert caught.value.conflict.smallest
    assert "at least 3 records, with room for at most 1" in str(caught.value)


def test_a_total_above_the_upper_bounds_is_found_too() -> None:
    product, spine, table = contradictory(total=[[500], [500]])
    few = [replace(level, upper=np.minimum(level.upper, 9)) for level in table.levels]
    with pytest.raises(InfeasibleFamily, match="upper bound of kind=home"):
        check_feasible(product, spine, replace(table, levels=tuple(few)))


def test_a_bound_on_impossible_cells_is_found() -> None:
    product, spine, table = contradictory()
    none = table.possible & ~table.bound_cells[1]
    with pytest.raises(InfeasibleFamily, match="school"):
        check_feasible(product, spine, replace(table, possible=none))


def test_exact_totals_below_tighten_the_bounds_above() -> None:
    """A region can hold no more people in prison than its towns' totals leave room for."""
    product = replace(mini_product(), invariants=(Invariant("total", "town"),))
    frame = mini_frame(seed=3)
    spine = standard_spine(frame)
    histogram = mini_histogram(frame, seed=3)
    invariants = declared_invariants(product, histogram, spine)
    table = bound_table(product, frame, spine, invariants)
    totals = invariants["total"][:, 0]
    starts = spine.child_starts(0)
    for region in range(2):
        most = np.zeros(3, dtype=np.int64)
        least = np.zeros(3, dtype=np.int64)
        for town in range(starts[region], starts[region + 1]):
            low, high = table.levels[1].lower[town], table.levels[1].upper[town]
            for k in range(3):
                others = [j for j in range(3) if j != k]
                most[k] += max(low[k], min(high[k], totals[town] - low[others].sum()))
                least[k] += min(high[k], max(low[k], totals[town] - high[others].sum()))
        assert np.array_equal(table.levels[0].upper[region], most)
        assert np.array_equal(table.levels[0].lower[region], least)
        assert np.all(most < 99999)
    kinds = to_dense(histogram.aggregate(spine.leaf_starts(0))).reshape(2, 3, 3).sum(2)
    assert np.all(kinds <= table.levels[0].upper)
    assert np.all(kinds >= table.levels[0].lower)
