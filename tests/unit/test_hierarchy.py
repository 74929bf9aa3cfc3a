"""The shape of a hierarchy, and the cases that equation (8) leaves open."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.allocation.post_processing_8 import post_process
from opendas.errors import EstimationError, GeographyError
from opendas.geography.hierarchy import Hierarchy
from opendas.solvers.simplex import project, project_integers

TREE = Hierarchy.of([[0], [0, 0, 0], [0, 0, 1, 1]])  # the third tract has no block


def test_codes_give_the_same_shape_as_indices():
    blocks = np.array(["112", "111", "121", "211"])
    tree = Hierarchy.of_codes(blocks.astype("U1"), blocks.astype("U2"), blocks)
    assert tree.sizes == (2, 3, 4)
    assert [parent.tolist() for parent in tree.parents] == [[0, 0], [0, 0, 1], [0, 0, 1, 2]]


def test_codes_that_are_no_hierarchy():
    with pytest.raises(GeographyError, match="two geounits"):
        Hierarchy.of_codes(np.array(["1", "2"]), np.array(["a", "a"]), np.array(["x", "y"]))
    with pytest.raises(GeographyError, match="twice"):
        Hierarchy.of_codes(np.array(["1", "1"]), np.array(["x", "x"]))


@pytest.mark.parametrize("parents", [[], [[0], [1]], [[1]], [[0], [-1]], [[0], [0.5]], [[[0]]]])
def test_arrays_that_are_no_hierarchy(parents):
    with pytest.raises(GeographyError):
        Hierarchy.of(parents)


def test_counts_and_shape():
    assert len(TREE) == 3
    assert TREE.children(0).tolist() == [3]
    assert TREE.children(1).tolist() == [2, 2, 0]
    assert TREE.children(2).tolist() == [0, 0, 0, 0]
    assert [inside.tolist() for inside in TREE.inhabited()][1] == [True, True, False]
    assert [counts.tolist() for counts in TREE.totals(np.array([1, 2, 3, 4]))] == [
        [10],
        [3, 7, 0],
        [1, 2, 3, 4],
    ]


def test_a_geounit_without_leaves_counts_zero_and_its_measurement_is_not_used():
    noisy = [np.array([10]), np.array([4, 4, 100]), np.array([1, 1, 1, 1])]
    state, tracts, blocks = post_process(TREE, noisy)
    assert state.tolist() == [10]
    assert tracts.tolist() == [5, 5, 0]
    assert blocks.sum() == 10


def test_a_root_without_leaves():
    found = post_process(Hierarchy.of([[0, 0], [1]]), [np.array([5.0, 5.0]), np.array([1.0])])
    assert [counts.tolist() for counts in found] == [[0.0, 5.0], [5.0]]


def test_total_zero_gives_zeros():
    found = post_process(TREE, [np.array([-3]), np.array([4, 4, 0]), np.array([1, 1, 1, 1])])
    assert not any(counts.any() for counts in found)


def test_an_empty_tract_with_a_positive_total_shares_it_equally():
    tree = Hierarchy.of([[0], [0, 0, 0, 0]])
    assert post_process(tree, [np.array([2.0]), np.array([-1.0, -5.0, 0.0, -0.5])])[1].tolist() == [0.5] * 4
    whole = post_process(tree, [np.array([6]), np.array([-1, -5, 0, -2])])[1]
    assert sorted(whole.tolist()) == [1, 1, 2, 2]


def test_clamped_or_raw():
    """The example of the reference: clamped zeros are lifted by as much as the others."""
    tree = Hierarchy.of([[0], [0, 0, 0, 0]])
    noisy = [np.array([10.0]), np.array([3.5, -4.0, 1.0, -2.0])]
    assert post_process(tree, noisy)[1].tolist() == [4.875, 1.375, 2.375, 1.375]
    np.testing.assert_allclose(post_process(tree, noisy, clamp=False)[1], [6.0, 0.0, 3.5, 0.5])


def test_anchors():
    noisy = [np.array([10]), np.array([7, -2, 9]), np.array([5, -1, 2, 3])]
    bottom = post_process(TREE, noisy, anchor=-1)
    assert [counts.tolist() for counts in bottom] == [[10], [5, 5, 0], [5, 0, 2, 3]]
    middle = post_process(TREE, noisy, anchor=1)
    assert [counts.tolist() for counts in middle] == [[7], [7, 0, 0], [6, 1, 0, 0]]


def test_reals_rounded_and_kept():
    noisy = [np.array([10.6]), np.array([7.2, 2.1, 0.0]), np.array([4.0, 3.0, 2.5, 1.0])]
    whole = post_process(TREE, noisy, integers=True)
    assert whole[0].tolist() == [11]
    assert [counts.dtype.kind for counts in whole] == ["i", "i", "i"]
    reals = post_process(TREE, [np.rint(counts).astype(np.int64) for counts in noisy], integers=False)
    assert [counts.dtype.kind for counts in reals] == ["f", "f", "f"]


@pytest.mark.parametrize(
    ("noisy", "words"),
    [
        ([[1], [1, 2, 3]], "do not fit"),
        ([[1], [1, 2, 3], [1, 2, 3]], "do not fit"),
        ([[1.0], [1, 2, 3], [1, np.nan, 3, 4]], "not a finite number"),
        ([["1"], [1, 2, 3], [1, 2, 3, 4]], "not a finite number"),
    ],
)
def test_wrong_counts(noisy, words):
    with pytest.raises(EstimationError, match=words):
        post_process(TREE, [np.array(counts) for counts in noisy])


def test_wrong_options():
    noisy = [np.array([10]), np.array([7, -2, 9]), np.array([4, -1, 2, 3])]
    with pytest.raises(EstimationError, match="anchor"):
        post_process(TREE, noisy, anchor=3)
    with pytest.raises(EstimationError, match="tie keys"):
        post_process(TREE, noisy, tie_keys=[np.zeros(1, np.uint64)])
    with pytest.raises(EstimationError, match="too large"):
        post_process(TREE, [np.array([2.0**45]), np.zeros(3), np.zeros(4)], integers=True)


@pytest.mark.parametrize("function", [project, project_integers])
def test_wrong_arguments_of_a_projection(function):
    zero = np.zeros(2, np.int64)
    for z, family, totals in (
        (np.zeros(2), np.array([0, 1]), np.zeros(1, np.int64)),
        (np.array([np.inf, 0.0]), zero, np.zeros(1, np.int64)),
        (np.zeros(2), zero, np.array([-1])),
        (np.zeros(3), zero, np.zeros(1, np.int64)),
    ):
        with pytest.raises(ValueError, match=r"famil|finite|fit"):
            function(z, family, totals)


def test_nothing_to_project():
    empty = np.zeros(0, np.int64)
    assert len(project(np.zeros(0), empty, np.array([3.0]))) == 0
    assert len(project_integers(empty, empty, np.array([3]))) == 0
