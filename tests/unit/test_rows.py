"""Orders of rows and cells, against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from support.seeds import seeds

from opendas.arrays import refines
from opendas.arrays.kernels import cells_by_row, without_gaps


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_are_numbered_in_their_order(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, rng.integers(1, 50), rng.integers(0, 30)).astype(np.int32)
    found = without_gaps(rows)
    np.testing.assert_array_equal(found, np.unique(rows, return_inverse=True)[1])
    assert found.dtype == np.int32


@pytest.mark.parametrize("seed", seeds(20))
def test_cells_are_sorted_by_their_row(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 20))
    rows = rng.integers(0, count, rng.integers(0, 30)).astype(np.int32)
    start, cells = cells_by_row(rows, count)
    np.testing.assert_array_equal(cells, np.argsort(rows, kind="stable"))
    np.testing.assert_array_equal(np.diff(start), np.bincount(rows, minlength=count))


@pytest.mark.parametrize("seed", seeds(50))
def test_a_partition_refines_another_where_each_of_its_rows_has_one_value(seed):
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 4, 6).astype(np.int32)
    coarse = rng.permutation(4)[fine] // 2 if rng.random() < 0.5 else rng.integers(0, 2, 6)
    assert refines(fine, coarse) == all(len(set(coarse[fine == row])) == 1 for row in fine)
