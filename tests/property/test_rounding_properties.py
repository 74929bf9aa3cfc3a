"""What holds for every rounding, whatever the family."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.solvers.rounding.rounding import UNBOUNDED, round_family


@st.composite
def families(draw):
    """Children, a tree of queries, a feasible estimate with masks and bounds, and keys."""
    children = draw(st.integers(1, 6))
    n = draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grain = draw(st.sampled_from([1, 2, 4, 1000, 10**9]))
    mask = rng.random((children, n)) < draw(st.sampled_from([0.5, 1.0]))
    mask[rng.integers(children), :] = True
    x = (
        np.round(rng.exponential(draw(st.sampled_from([0.5, 3.0, 1e5])), (children, n)) * grain)
        / grain
        * mask
    )
    whole = mask.argmax(axis=0), np.arange(n)
    x[whole] += np.ceil(x.sum(axis=0)) - x.sum(axis=0)
    parent = np.rint(x.sum(axis=0)).astype(np.int64)
    maps = [np.zeros(n, np.int32)]
    for _ in range(draw(st.integers(0, 3))):
        maps.append(np.unique(maps[-1] * 2 + rng.integers(0, 2, n), return_inverse=True)[1].astype(np.int32))
    maps.append(np.arange(n, dtype=np.int32))
    cut = draw(st.integers(1, len(maps)))
    passes = (tuple(maps[:cut]), tuple(maps[cut:])) if cut < len(maps) else (tuple(maps),)
    of = maps[draw(st.integers(0, len(maps) - 1))]
    groups = np.array([of == row for row in np.unique(of)])
    sums = x @ groups.T
    lower = np.where(rng.random(sums.shape) < 0.5, np.floor(sums + 1e-6), 0).astype(np.int64)
    upper = np.where(rng.random(sums.shape) < 0.5, np.ceil(sums - 1e-6), UNBOUNDED).astype(np.int64)
    return x, parent, mask, passes, groups, lower, upper, rng.integers(0, 2**63, children).astype(np.uint64)


@given(families())
@settings(max_examples=examples(300), deadline=None)
def test_every_constraint_holds_exactly(case):
    x, parent, mask, _, groups, lower, upper, _ = case
    values = round_family(*case).values
    assert values.dtype == np.int64
    np.testing.assert_array_equal(values.sum(axis=0), parent)
    assert not values[~mask].any()
    assert (np.abs(values - x) < 1 + 1e-5).all()
    sums = values @ groups.T
    assert (sums >= lower).all()
    assert (sums <= upper).all()


@given(families(), st.randoms(use_true_random=False))
@settings(max_examples=examples(150), deadline=None)
def test_order_of_children_and_cells_does_not_matter(case, random):
    x, parent, mask, passes, groups, lower, upper, child_keys = case
    children, n = x.shape
    rows, columns = random.sample(range(children), children), random.sample(range(n), n)
    cell_keys = np.arange(n, dtype=np.uint64)
    plain = round_family(*case, cell_keys=cell_keys).values
    square = np.ix_(rows, columns)
    moved = round_family(
        x[square],
        parent[columns],
        mask[square],
        tuple(tuple(one[columns] for one in maps) for maps in passes),
        groups[:, columns],
        lower[rows],
        upper[rows],
        child_keys[rows],
        cell_keys=cell_keys[columns],
    ).values
    np.testing.assert_array_equal(moved, plain[square])


@given(families())
@settings(max_examples=examples(150), deadline=None)
def test_rounding_a_rounding_changes_nothing(case):
    values = round_family(*case).values
    again = round_family(values.astype(float), *case[1:])
    np.testing.assert_array_equal(again.values, values)
    assert set(again.objective) == {0.0}


@given(families())
@settings(max_examples=examples(150), deadline=None)
def test_noise_of_the_size_of_solver_error_changes_nothing(case):
    """Estimates in coarse fractions, disturbed by less than half a quantum, round to the same table."""
    x, mask = np.round(case[0] * 4) / 4, case[2]
    parent = np.ceil(x.sum(axis=0))
    x[mask.argmax(axis=0), np.arange(x.shape[1])] += parent - x.sum(axis=0)
    rng = np.random.default_rng(0)
    near = np.maximum(x + rng.uniform(-2e-7, 2e-7, x.shape), 0) * mask
    rest = (parent.astype(np.int64), mask, case[3], None, None, None, case[7])
    np.testing.assert_array_equal(round_family(x, *rest).values, round_family(near, *rest).values)
