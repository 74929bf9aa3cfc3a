"""The informed estimator against its slow twin: dense matrices over whole subtrees, a general solver."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from reference.dense_informed import DenseTree
from support.assembled import assemble
from support.mini import mini_frame, mini_histogram, mini_product, to_dense

from opendas.engines.drive import estimate_spine
from opendas.privacy.relations import Mechanism

QUERIES = {
    "default": None,
    "crossing": {
        "total": Fraction(1, 4),
        "age": Fraction(1, 4),
        "kind": Fraction(1, 4),
        "detailed": Fraction(1, 4),
    },
}


def informed(run, workers: int = 1):
    return estimate_spine(
        run.spine,
        run.constraints,
        run.worker(),
        histogram=run.counts,
        estimator="informed",
        workers=workers,
        model=run.model,
    )


def twin(run) -> np.ndarray:
    return DenseTree(run, run.measurements()).release()


@pytest.mark.parametrize("queries", list(QUERIES))
@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_release_equals_that_of_dense_algebra(seed, invariant, mechanism, queries) -> None:
    frame = mini_frame(seed=seed)
    run = assemble(
        mini_product(invariant=invariant),
        frame,
        mini_histogram(frame, seed=seed),
        queries=QUERIES[queries],
        mechanism=mechanism,
        informed=True,
    )
    found = informed(run)
    np.testing.assert_array_equal(to_dense(found.leaves), twin(run))
    assert not any(record.fallback for record in found.records)
