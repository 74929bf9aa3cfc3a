"""Rounding under a fixed partition, row by row, against rounding with every fixed row as a group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.errors import ConfigError, InfeasibleFamily
from opendas.solvers.rounding.rounding import RoundingNames, round_family


def refine(rows, rng):
    return np.unique(rows * 2 + rng.integers(0, 2, len(rows)), return_inverse=True)[1].astype(np.int32)


@st.composite
def families(draw):
    """An estimate, its parent (or none), mask, nested maps, and sums that some rounding of it has."""
    children = draw(st.integers(1, 5))
    n = draw(st.integers(1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grain = draw(st.sampled_from([1, 2, 4, 1000]))
    mask = rng.random((children, n)) < draw(st.sampled_from([0.6, 1.0]))
    mask[rng.integers(children), :] = True
    x = (
        np.round(rng.exponential(draw(st.sampled_from([0.5, 3.0, 1e4])), (children, n)) * grain)
        / grain
        * mask
    )
    parent = None
    if draw(st.booleans()):
        x[mask.argmax(axis=0), np.arange(n)] += np.ceil(x.sum(axis=0)) - x.sum(axis=0)
        parent = np.rint(x.sum(axis=0)).astype(np.int64)
    keys = rng.integers(0, 2**63, children).astype(np.uint64)
    fixed_rows = np.zeros(n, np.int32)
    for _ in range(draw(st.integers(0, 2))):
        fixed_rows = refine(fixed_rows, rng)
    maps = [refine(fixed_rows, rng)]
    for _ in range(draw(st.integers(0, 2))):
        maps.append(refine(maps[-1], rng))
    maps.append(np.arange(n, dtype=np.int32))
    cut = draw(st.integers(1, len(maps) - 1))
    passes = (tuple(maps[:cut]), tuple(maps[cut:]))
    rounded = round_family(x, parent, mask, ((fixed_rows,),), None, None, None, keys).values
    fixed = rounded @ (fixed_rows[:, None] == np.arange(fixed_rows.max() + 1))
    return x, parent, mask, passes, fixed_rows, fixed, keys


def by_groups(x, parent, mask, passes, fixed_rows, fixed, keys):
    groups = np.arange(fixed.shape[1])[:, None] == fixed_rows
    return round_family(x, parent, mask, passes, groups, fixed, fixed, keys)


def by_rows(x, parent, mask, passes, fixed_rows, fixed, keys, **more):
    return round_family(
        x, parent, mask, passes, None, None, None, keys, fixed_rows=fixed_rows, fixed=fixed, **more
    )


@given(families())
@settings(max_examples=examples(300), deadline=None)
def test_row_by_row_is_the_same_as_all_rows_at_once(case):
    x, parent, mask, _, fixed_rows, fixed, _ = case
    result, twin = by_rows(*case), by_groups(*case)
    np.testing.assert_array_equal(result.values, twin.values)
    assert result.objective == twin.objective
    for row in range(fixed.shape[1]):
        np.testing.assert_array_equal(result.values[:, fixed_rows == row].sum(axis=1), fixed[:, row])
    if parent is not None:
        np.testing.assert_array_equal(result.values.sum(axis=0), parent)
    assert not result.values[~mask].any()
    assert (np.abs(result.values - x) < 1 + 1e-5).all()


@given(families(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(150), deadline=None)
def test_sums_that_some_row_cannot_have_are_refused_by_both(case, seed):
    rng = np.random.default_rng(seed)
    fixed = case[5].copy()
    child, row = rng.integers(fixed.shape[0]), int(rng.integers(fixed.shape[1]))
    fixed[child, row] += rng.choice([-1, 1]) * (1 + len(case[4]))
    broken = (*case[:5], fixed, case[6])
    with pytest.raises(InfeasibleFamily):
        by_groups(*broken)
    with pytest.raises(InfeasibleFamily, match=rf"f1.*\n?.*the tied release, row {row}\b"):
        by_rows(*broken, names=RoundingNames("f1", fixed="the tied release"))


SMALL = {
    "x": np.array([[0.5, 1.5, 1.0], [0.5, 0.5, 2.0]]),
    "parent": np.array([1, 2, 3]),
    "mask": np.ones((2, 3), bool),
    "passes": ((np.arange(3, dtype=np.int32),),),
    "groups": None,
    "lower": None,
    "upper": None,
    "tie_keys": np.arange(2, dtype=np.uint64),
    "fixed_rows": np.array([0, 0, 1], np.int32),
    "fixed": np.array([[2, 1], [1, 2]]),
}


def test_a_root_takes_floors_and_the_largest_remainders_of_each_row():
    x = np.array([[0.9, 2.6, 0.5, 7.2, 0.3, 0.5]])
    fixed_rows = np.array([0, 0, 0, 1, 1, 1], np.int32)
    detailed = (np.arange(6, dtype=np.int32),)
    values = by_rows(
        x, None, x > 0, (detailed,), fixed_rows, np.array([[4, 8]]), np.zeros(1, np.uint64)
    ).values
    assert values.tolist() == [[1, 3, 0, 7, 0, 1]]


def test_a_sum_over_a_row_without_cells_is_refused():
    assert round_family(**{**SMALL, "fixed": np.array([[2, 1, 0], [1, 2, 0]])}).values.sum() == 6
    with pytest.raises(InfeasibleFamily, match="row 2"):
        round_family(**{**SMALL, "fixed": np.array([[2, 1, 1], [1, 2, 0]])})


def test_a_query_that_reaches_over_fixed_rows_is_refused_by_name():
    passes = ((np.array([0, 1, 1], np.int32),), (np.arange(3, dtype=np.int32),))
    names = RoundingNames("f1", (("age",), ("detailed",)), fixed="pl94")
    with pytest.raises(ConfigError, match=r"'age' spans several rows of pl94"):
        round_family(**{**SMALL, "passes": passes}, names=names)


def test_crossing_queries_within_a_fixed_row_are_refused_by_name():
    rows = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32)
    names = RoundingNames("f1", (("age", "sex"),))
    with pytest.raises(ConfigError, match=r"'age'.*'sex'"):
        by_rows(np.ones((1, 4)), None, np.ones((1, 4), bool), (rows,), np.zeros(4, np.int32), np.array([[4]]),
                np.zeros(1, np.uint64), names=names)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fixed": None}, "both"),
        ({"fixed_rows": None}, "both"),
        ({"fixed_rows": np.array([0, 0, -1], np.int32)}, "every cell"),
        ({"fixed_rows": np.array([0, 0, 2], np.int32)}, "every cell"),
        ({"fixed_rows": np.zeros(2, np.int32)}, "does not fit"),
        ({"fixed": np.array([[2, 1]])}, "does not fit"),
        ({"groups": np.ones((1, 3), bool)}, "groups and joint totals"),
        ({"parent": np.array([1, 2, 9])}, "does not add up"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        round_family(**{**SMALL, **change})
