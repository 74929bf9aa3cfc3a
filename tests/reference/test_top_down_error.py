"""Expected errors of plain TopDown against the estimator written out as matrices, family by family."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.mini import mini_frame, mini_product
from support.seeds import examples

from opendas.budget.allocation import Budget
from opendas.geography.bypass import bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.gls.expected_error import ExpectedError
from opendas.gls.expected_topdown import gain_rows, top_down_rows, top_down_variances
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import Invariant

LEVELS = ("region", "town", "block")
QUERIES = ("total", "kind", "kind * minor", "age", "detailed")


def a_plan(
    frame: Frame, mechanism: Mechanism, *, bypass: bool, invariant: str | None, split: tuple[int, int, int]
) -> MeasurementPlan:
    held = () if invariant is None else (Invariant("total", invariant),)
    product = replace(mini_product(), invariants=held)
    shares = {name: Fraction(part, sum(split)) for name, part in zip(LEVELS, split, strict=True)}
    queries = {
        "region": {"total": Fraction(1, 5), "detailed": Fraction(4, 5)},
        "town": {"total": Fraction(2, 5), "kind": Fraction(1, 5), "detailed": Fraction(2, 5)},
        "block": {"kind * minor": Fraction(1, 2), "detailed": Fraction(1, 2)},
    }
    budget = Budget(mechanism, Neighbours.BOUNDED, Fraction(1, 50), shares, queries)
    spine = standard_spine(frame)
    if bypass:
        spine = bypass_only_children(spine, list(shares.values()))
    return MeasurementPlan(product, spine, budget)


def dense(plan: MeasurementPlan, *, invariant: str | None) -> list[np.ndarray]:
    """Covariances of every geounit's cells: family by family, by linear algebra alone.

    A total that is published at a geolevel is known there and, as a sum, above.
    """
    spine, n = plan.spine, plan.product.schema.size
    workload = plan.product.workload

    def matrix(query: str) -> np.ndarray:
        group = workload.group(query)
        return np.eye(group.size)[:, group.row_of_cell]

    def own(number: int, geounit: int) -> np.ndarray | None:
        shares = spine.shares[number]
        multiple = None if shares is None else shares.multiples[shares.which[geounit]]
        if multiple == 0:
            return None
        information = np.zeros((n, n))
        for planned in plan.levels[number].queries:
            noise = plan.distribution(number, planned, *(() if multiple is None else (multiple,)))
            q = matrix(planned.query.name)
            information += q.T @ q / noise.variance
        v = np.linalg.inv(information)
        if invariant is not None and number <= LEVELS.index(invariant):
            v = v - np.outer(v.sum(axis=1), v.sum(axis=0)) / v.sum()
        return v

    found: list[np.ndarray] = []
    for number, level in enumerate(spine.levels):
        covariances = np.zeros((len(level), n, n))
        for parent in np.unique(level.parent) if number else []:
            children = np.flatnonzero(level.parent == parent)
            owns = [own(number, c) for c in children]
            if any(v is None for v in owns):
                assert len(children) == 1
                covariances[children[0]] = found[-1][parent]
                continue
            total = np.linalg.pinv(sum(owns), rcond=1e-9, hermitian=True)
            for c, v in zip(children, owns, strict=True):
                pull = v @ total
                covariances[c] = v - pull @ v + pull @ found[-1][parent] @ pull.T
        if number == 0:
            for c in range(len(level)):
                covariances[c] = own(0, c)
        found.append(covariances)
    return found


@settings(max_examples=examples(25), deadline=None)
@example(0, Mechanism.DISCRETE_LAPLACE, True, "region", (1, 1, 9))  # variances of very different sizes
@given(
    st.integers(0, 10_000),
    st.sampled_from(list(Mechanism)),
    st.booleans(),
    st.sampled_from((None, *LEVELS)),
    st.tuples(*[st.integers(1, 9)] * 3),
)
def test_variances_are_those_of_the_estimator(
    seed: int, mechanism: Mechanism, bypass: bool, invariant: str | None, split: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(seed)
    frame = mini_frame(2, 3, 4, seed)
    keep = rng.random(len(frame)) < 0.4
    keep[[0, -1]] = True
    frame = frame.take(np.flatnonzero(keep))
    plan = a_plan(frame, mechanism, bypass=bypass, invariant=invariant, split=split)
    expected = ExpectedError.build(plan)
    wanted = dense(plan, invariant=invariant)
    for query in QUERIES:
        group = plan.product.workload.group(query)
        q = np.eye(group.size)[:, group.row_of_cell]
        of_row = expected.rows(query).of_row
        for found, covariances in zip(top_down_variances(expected, query), wanted, strict=True):
            truth = np.einsum("mi,gij,mj->gm", q, covariances, q)
            # Both subtract numbers of the size of the largest variance.
            near = 1e-6 + 1e-7 * float(truth.max())
            np.testing.assert_allclose(found[:, of_row], truth, rtol=1e-6, atol=near)


def test_informed_is_never_expected_to_be_worse() -> None:
    plan = a_plan(
        mini_frame(3, 4, 5), Mechanism.DISCRETE_GAUSSIAN, bypass=False, invariant="region", split=(2, 1, 3)
    )
    rows = gain_rows(ExpectedError.build(plan), plan.product.query_names)
    assert {row.geolevel for row in rows} == set(LEVELS)
    assert all(row.informed <= row.topdown * (1 + 1e-9) for row in rows)
    assert min(row.change for row in rows if row.geolevel == "town") < -0.05
    leaves = [row.change for row in rows if row.geolevel == "block"]
    assert max(leaves) < 1e-9


def test_summaries_are_means_over_geounits_and_rows() -> None:
    plan = a_plan(
        mini_frame(2, 3, 4), Mechanism.DISCRETE_GAUSSIAN, bypass=False, invariant=None, split=(1, 1, 1)
    )
    expected = ExpectedError.build(plan)
    (row,) = top_down_rows(expected, ["kind"], ["town"])
    variances = top_down_variances(expected, "kind")[1][:, expected.rows("kind").of_row]
    assert row.mean_sd == pytest.approx(np.sqrt(variances).mean())
    assert row.max_sd == pytest.approx(np.sqrt(variances).max())
    assert row.areas == 6


def test_counts_of_units_are_known_at_every_level_that_sums_published_blocks() -> None:
    """Invariants of the lowest level hold above it, for both estimators."""
    plan = a_plan(
        mini_frame(2, 3, 4), Mechanism.DISCRETE_GAUSSIAN, bypass=False, invariant="block", split=(1, 1, 1)
    )
    totals = gain_rows(ExpectedError.build(plan), ["total"])
    assert [(row.topdown, row.informed) for row in totals] == [(0.0, 0.0)] * len(LEVELS)
