"""Expected errors on a margin against dense least squares from sums that are found another way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from reference.dense_least_squares import leaf_indicators, query_matrix
from scipy import sparse
from support.assembled import assemble
from support.mini import from_dense, mini_frame

from opendas.gls.expected_error import ExpectedError, expected_rows
from opendas.intervals import expected_margins
from opendas.intervals.expected_margins import (
    expected_on_margin,
    expected_total,
    margin_cost,
    margin_megabytes,
    margin_rows,
)
from opendas.measurement.plan import MeasurementPlan
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.declarations import Invariant, StructuralZero
from opendas.schema.product import PassPlan, Product
from opendas.schema.query_groups import QueryGroup

AGES = tuple("012345")
QUERIES = ("total", "pairs * sex", "ends", "ages3", "sex", "kind * age", "detailed")
ZEROS = (StructuralZero({"kind": ("b",), "age": ("0", "1")}),)


def product(invariants: tuple[Invariant, ...], zeros: tuple[StructuralZero, ...]) -> Product:
    return Product(
        name="small",
        schema=Schema((Attribute("kind", ("a", "b")), Attribute("age", AGES), Attribute("sex", ("m", "f")))),
        recodes=(
            Recode("pairs", "age", (("high", ("4", "5")), ("low", ("0", "1")), ("middle", ("2", "3")))),
            Recode("ends", "age", (("first", ("0",)), ("rest", tuple("12345")))),
            Recode("ages3", "age", (("x", ("0", "1", "2")), ("y", ("3",)), ("z", ("4", "5")))),
        ),
        query_names=QUERIES,
        invariants=invariants,
        bounds=(),
        structural_zeros=zeros,
        protected_unit="person",
        layout="small",
        passes=PassPlan({}, {}),
    )


def plan_of(
    invariants: tuple[Invariant, ...] = (), zeros: tuple[StructuralZero, ...] = ZEROS
) -> MeasurementPlan:
    frame = mini_frame(1, 2, 3)
    found = product(invariants, zeros)
    nobody = from_dense(np.zeros((len(frame), found.schema.size), dtype=np.int64))
    shares = {name: Fraction(number, 28) for number, name in enumerate(QUERIES, start=1)}
    return assemble(found, frame, nobody, queries=shares).plan


def sums_of(query: QueryGroup, asked: QueryGroup, possible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a query group says about the rows of another, (sums, rows), and the draws of each sum.

    Rows of both that share a cell belong to one sum, possible or not.
    """
    both = query_matrix(query) @ query_matrix(asked).T
    graph = sparse.block_array([[None, sparse.csr_array(both)], [sparse.csr_array(both.T), None]])
    _, part = sparse.csgraph.connected_components(graph, directed=False)
    mine, theirs = part[: query.size], part[query.size :]
    known = query_matrix(query)[:, possible].any(axis=1)
    sums = np.unique(mine[known])
    return (theirs[None] == sums[:, None]) * 1.0, np.array([(mine[known] == one).sum() for one in sums])


@pytest.mark.parametrize("question", QUERIES)
@pytest.mark.parametrize("held", [(), ("total",), ("sex",)])
def test_variances_are_those_of_dense_least_squares_on_the_sums(question: str, held: tuple[str, ...]) -> None:
    plan = plan_of(tuple(Invariant(name, "region") for name in held))
    asked, possible = plan.product.workload.group(question), plan.product.possible
    some = query_matrix(asked)[:, possible].any(axis=1)
    areas = leaf_indicators([level.parent for level in plan.spine.levels])
    size = len(plan.spine.leaf) * int(some.sum())
    information = np.zeros((size, size))
    for number, level in enumerate(plan.levels):
        variances, which = plan.variances(number)
        for column, planned in enumerate(level.queries):
            sums, draws = sums_of(planned.query, asked, possible)
            for area, share in zip(areas[number], which, strict=True):
                row = np.kron(area, sums[:, some])
                information += row.T @ (row / (draws * variances[share, column])[:, None])
    for name in held:  # as good as exact
        sums, _ = sums_of(plan.product.workload.group(name), asked, possible)
        row = np.kron(areas[0][0], sums[:, some])
        information += 1e6 * row.T @ row
    covariance = np.linalg.inv(information)
    found = expected_on_margin(plan, question)
    for number, geolevel in enumerate(plan.spine.names):
        variances = found.geounits(geolevel, question)
        assert not variances[:, ~some].any()
        for area, row in zip(areas[number], variances[:, some], strict=True):
            summed = np.kron(area, np.eye(int(some.sum())))
            np.testing.assert_allclose(row, np.diag(summed @ covariance @ summed.T), rtol=1e-5, atol=1e-5)


def test_a_plan_of_many_cells_asks_each_query_group_on_its_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few cells the blocks use what all rows say apart: no answer is worse than on its margin."""
    plan, frame = plan_of(zeros=()), mini_frame(1, 2, 3)  # which the blocks do not know
    whole = ExpectedError.build(plan)
    assert expected_total(plan).algebra.queries == whole.algebra.queries
    blocks = {(row.name, row.query): row for row in expected_rows(whole, frame, QUERIES)}
    monkeypatch.setattr(expected_margins, "MOST_CELLS", plan.product.schema.size - 1)
    monkeypatch.setattr(expected_margins, "MOST_ROWS", 12)
    total = expected_total(plan)
    assert margin_cost(total, 12).megabytes == margin_megabytes(total, 12) > margin_megabytes(total, 2)
    rows = (*expected_rows(total, frame), *margin_rows(plan, frame, set(QUERIES) - {"detailed", "total"}))
    assert {row.query for row in rows} == set(QUERIES) - {"detailed"}
    assert len(rows) == 6 * len(plan.spine.names)
    for row in rows:
        best = blocks[row.name, row.query].mean_sd
        assert best * (1 - 1e-9) <= row.mean_sd <= 1.2 * best
