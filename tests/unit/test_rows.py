"""Row numbers without gaps, against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from support.seeds import seeds

from opendas.solvers.rows import without_gaps


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_are_numbered_in_their_order(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, rng.integers(1, 50), rng.integers(0, 30)).astype(np.int32)
    found = without_gaps(rows)
    np.testing.assert_array_equal(found, np.unique(rows, return_inverse=True)[1])
    assert found.dtype == np.int32
