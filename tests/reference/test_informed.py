"""The informed estimator against its slow twin: dense matrices over whole subtrees, a general solver."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import support.assembled as assembled
from reference.dense_informed import DenseTree
from reference.test_estimation_joint import divided
from support.assembled import assemble
from support.mini import mini_frame, mini_histogram, mini_product, to_dense

import opendas.engines.tasks as tasks
import opendas.engines.upward as upward
from opendas.engines.drive import estimate_spine
from opendas.privacy.relations import Mechanism
from opendas.schema.declarations import Invariant
from opendas.schema.product import Product
from opendas.topdown.informed import Informed

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
        whole_tree=Informed(),
    )
    found = informed(run)
    np.testing.assert_array_equal(to_dense(found.leaves), twin(run))
    assert not any(record.fallback for record in found.records)


@pytest.mark.parametrize("us", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_parts_that_hold_a_total_together_equal_dense_algebra(monkeypatch, seed: int, us: bool) -> None:
    frame = mini_frame(regions=3 - us, towns=3 if us else 2, seed=seed)
    monkeypatch.setattr(assembled, "standard_spine", lambda frame: divided(frame, us=us))
    run = assemble(mini_product(), frame, mini_histogram(frame, seed=seed), whole_tree=Informed())
    expected = twin(run)
    np.testing.assert_array_equal(to_dense(informed(run).leaves), expected)
    monkeypatch.setattr(tasks, "MANY_SUBTREES", 2)
    monkeypatch.setattr(tasks, "TASKS_PER_STAGE", 3)
    monkeypatch.setattr(upward, "MOST_KEPT", 0)
    np.testing.assert_array_equal(to_dense(informed(run).leaves), expected)


def exact_towns() -> Product:
    """Totals are invariant in every block, as those of housing units are in production."""
    return replace(mini_product(), invariants=(Invariant("total", "leaf"),))


@pytest.mark.parametrize("seed", range(3))
def test_exact_answers_below_the_root_equal_dense_algebra(seed: int) -> None:
    frame = mini_frame(seed=seed)
    run = assemble(exact_towns(), frame, mini_histogram(frame, seed=seed), whole_tree=Informed())
    np.testing.assert_array_equal(to_dense(informed(run).leaves), twin(run))


@pytest.mark.parametrize("unmeasured", ["region", "town", "block"])
@pytest.mark.parametrize("seed", range(2))
def test_a_geolevel_without_budget_equals_dense_algebra(seed: int, unmeasured: str) -> None:
    frame = mini_frame(seed=seed)
    shares = {name: Fraction(int(name != unmeasured), 2) for name in ("region", "town", "block")}
    run = assemble(
        mini_product(), frame, mini_histogram(frame, seed=seed), shares=shares, whole_tree=Informed()
    )
    found = to_dense(informed(run).leaves)
    np.testing.assert_array_equal(found, twin(run))


def test_margins_alone_leave_directions_unknown_and_are_estimated_all_the_same() -> None:
    """Without the detailed cells a subtree says nothing about some of their differences."""
    frame = mini_frame(seed=1)
    queries = {"total": Fraction(1, 2), "kind": Fraction(1, 4), "age": Fraction(1, 4)}
    run = assemble(
        mini_product(), frame, mini_histogram(frame, seed=1), queries=queries, whole_tree=Informed()
    )
    found = informed(run)
    tree = DenseTree(run, run.measurements())
    # The estimate is not unique: what is measured of it is.
    assert to_dense(found.leaves).sum() == run.counts.total()
    assert tree.n == 9
