"""What hierarchical post-processing promises for any hierarchy and any noisy counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.allocation.post_processing_8 import post_process
from opendas.geography.hierarchy import Hierarchy


@st.composite
def noisy_trees(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    parents, above = [], 1
    for number, size in enumerate(sizes):
        top = 0 if number == 0 else above - 1
        parents.append(draw(st.lists(st.integers(0, top), min_size=size, max_size=size)))
        above = size
    counts = st.integers(-20, 60)
    noisy = [np.array(draw(st.lists(counts, min_size=size, max_size=size))) for size in sizes]
    return Hierarchy.of(parents), noisy


@settings(max_examples=examples(150), deadline=None)
@given(noisy_trees(), st.integers(0, 3), st.booleans())
def test_integers_are_consistent(case, anchor, clamp):
    tree, noisy = case
    found = post_process(tree, noisy, anchor=min(anchor, len(tree) - 1), clamp=clamp)
    check(tree, found, 0)


@settings(max_examples=examples(150), deadline=None)
@given(noisy_trees(), st.integers(0, 3), st.booleans(), st.floats(0.01, 0.99))
def test_reals_are_consistent(case, anchor, clamp, part):
    tree, noisy = case
    moved = [counts + part for counts in noisy]
    check(tree, post_process(tree, moved, anchor=min(anchor, len(tree) - 1), clamp=clamp), 1e-9)
    check(tree, post_process(tree, moved, integers=True), 0)


@settings(max_examples=examples(100), deadline=None)
@given(noisy_trees(), st.randoms(use_true_random=False))
def test_the_order_of_children_does_not_matter(case, random):
    """With a key that travels with the geounit, leaves may be listed in any order."""
    tree, noisy = case
    order = list(range(tree.sizes[-1]))
    random.shuffle(order)
    keys = [np.arange(size, dtype=np.uint64) for size in tree.sizes]
    moved = Hierarchy((*tree.parents[:-1], tree.parents[-1][order]))
    plain = post_process(tree, noisy, tie_keys=keys)
    if len(tree) == 1:
        return
    shuffled = post_process(moved, [*noisy[:-1], noisy[-1][order]], tie_keys=[*keys[:-1], keys[-1][order]])
    assert shuffled[-1].tolist() == plain[-1][order].tolist()


@settings(max_examples=examples(100), deadline=None)
@given(noisy_trees())
def test_what_is_consistent_stays(case):
    tree, noisy = case
    true = tree.totals(np.maximum(noisy[-1], 0))
    inhabited = tree.inhabited()
    for found in (post_process(tree, true), post_process(tree, true, anchor=-1)):
        for counts, expected, inside in zip(found, true, inhabited, strict=True):
            assert counts.tolist() == np.where(inside, expected, 0).tolist()


@settings(max_examples=examples(100), deadline=None)
@given(noisy_trees())
def test_clamped_and_raw_agree_where_the_clamped_sum_suffices(case):
    tree, noisy = case
    if len(tree) < 2:
        return
    noisy = [np.maximum(noisy[0], 0), *noisy[1:]]
    two = Hierarchy(tree.parents[:2])
    total = np.bincount(two.parents[1], np.maximum(noisy[1], 0), minlength=two.sizes[0])
    enough = (total >= noisy[0])[two.parents[1]]
    first, raw = (post_process(two, noisy[:2], clamp=clamp, integers=False)[1] for clamp in (True, False))
    np.testing.assert_allclose(first[enough], raw[enough], atol=1e-9)


def check(tree, found, tolerance):
    inhabited = tree.inhabited()
    for level, counts in enumerate(found):
        assert (counts >= 0).all()
        assert not counts[~inhabited[level]].any()
        if level:
            summed = np.bincount(tree.parents[level], counts, minlength=tree.sizes[level - 1])
            np.testing.assert_allclose(summed, found[level - 1], atol=tolerance, rtol=1e-12)
