"""The cell space of whole-tree least squares and its operators, piece by piece, against matrices."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from support.each import each
from support.random_tree import PRODUCTS, DenseTree, made, random_product, written_out

from opendas.errors import EstimationError
from opendas.gls.cells import Domain
from opendas.gls.information import Extended
from opendas.gls.operators import Operators, inverse, mask_codes, numbered
from opendas.intervals.rows import Rows
from opendas.schema.pl94 import pl94_persons, pl94_units

SEEDS = range(6)


def domain_of(name: str | int) -> Domain:
    product, names = random_product(name) if isinstance(name, int) else PRODUCTS[name]
    closing = np.zeros((0, product.schema.size), dtype=bool)
    return Domain.build(product, product.workload.groups(names), closing)


def masks(domain: Domain, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((count, domain.categories)) < 0.6


@pytest.mark.parametrize("name", [*PRODUCTS, *SEEDS])
def test_coordinates_are_orthonormal(name: str | int) -> None:
    domain = domain_of(name)
    unit = domain.forward(np.eye(domain.cells)).reshape(domain.cells, -1)
    np.testing.assert_allclose(unit @ unit.T, np.eye(domain.cells), atol=1e-13)
    x = np.random.default_rng(0).normal(size=(3, domain.cells))
    np.testing.assert_allclose(domain.backward(domain.forward(x)), x, atol=1e-13)


@pytest.mark.parametrize("name", [*PRODUCTS, *SEEDS])
def test_information_is_the_weighted_sum_of_all_query_groups(name: str | int) -> None:
    domain = domain_of(name)
    weights = np.random.default_rng(1).uniform(0.1, 3.0, (2, len(domain.queries)))
    found = Operators.of(domain, Extended(domain.information(weights)))
    for i in range(2):
        matrices = [DenseTree.matrix(query) for query in domain.queries]
        expected = sum(w * m.T @ m for w, m in zip(weights[i], matrices, strict=True))
        np.testing.assert_allclose(written_out(found, i), expected, atol=1e-11)


@pytest.mark.parametrize("name", [*PRODUCTS, *SEEDS])
def test_inverses_and_variances_on_what_is_allowed(name: str | int) -> None:
    domain = domain_of(name)
    weights = np.random.default_rng(2).uniform(0.1, 3.0, (4, len(domain.queries)))
    allowed = masks(domain, 4, 3)
    operators = Operators.of(domain, Extended(domain.information(weights))).masked(allowed)
    inverses = operators.dual(allowed, plain=True)
    loose = operators.dual(allowed, plain=False)
    unknown = loose.infinite
    assert unknown is not None
    for i in range(4):
        cells = np.flatnonzero(domain.cells_of(allowed[i]))
        expected = np.zeros((domain.cells, domain.cells))
        expected[np.ix_(cells, cells)] = np.linalg.inv(written_out(operators, i, cells))
        np.testing.assert_allclose(written_out(inverses, i), expected, atol=1e-11)
        np.testing.assert_allclose(written_out(loose, i), expected, atol=1e-10)
        assert not written_out(unknown, i).any()
        for query in domain.queries:
            matrix = DenseTree.matrix(query)
            variances = np.einsum("ij,jk,ik->i", matrix, expected, matrix)
            rows = Rows.build(domain, matrix > 0)
            found = rows.quadratic(inverses)[inverses.which][:, rows.of_row]
            np.testing.assert_allclose(found[i], variances, atol=1e-11)


def test_inverses_are_symmetric_to_the_last_bit_and_need_positive_definite_matrices() -> None:
    rng = np.random.default_rng(5)
    factors = rng.normal(size=(3, 2, 8, 8))
    stack = factors @ np.swapaxes(factors, 2, 3)
    allowed = np.array([[True, False, True, True], [True] * 4, [False] * 4])
    wide = np.repeat(allowed, 2, axis=1)
    stack *= wide[:, None, :, None] & wide[:, None, None, :]
    found = inverse(stack, wide)
    assert np.array_equal(found, np.swapaxes(found, 2, 3))
    for u in range(3):
        rows = np.flatnonzero(wide[u])
        for b in range(2):
            expected = np.zeros((8, 8))
            expected[np.ix_(rows, rows)] = np.linalg.inv(stack[u, b][np.ix_(rows, rows)])
            np.testing.assert_allclose(found[u, b], expected, rtol=1e-10, atol=1e-10)
    stack[1, 1, 0, 0] = -1.0
    with pytest.raises(EstimationError, match="positive definite"):
        inverse(stack, wide)


def test_sums_of_operators_in_both_ways() -> None:
    domain = domain_of("unequal recode")
    rng = np.random.default_rng(4)
    stacks = Extended(domain.information(rng.uniform(0.1, 1.0, (3, len(domain.queries)))))
    many = Operators(domain, stacks, rng.integers(0, 3, 12))
    starts = np.array([0, 1, 5, 9, 12])
    sums, pooled = many.sum(starts), many.pooled(starts)
    for i in range(4):
        expected = sum(written_out(many, j) for j in range(starts[i], starts[i + 1]))
        np.testing.assert_allclose(written_out(sums, i), expected, atol=1e-11)
        np.testing.assert_allclose(written_out(pooled, i), expected, atol=1e-11)
    alike = Operators(domain, stacks, np.array([0, 1, 0, 1, 1, 0])).pooled(np.array([0, 2, 4, 6]))
    assert len(alike.stacks) == 1
    both = Operators.joined([many.take(slice(0, 3)), many.take(slice(7, 9))])
    for i, j in enumerate((0, 1, 2, 7, 8)):
        np.testing.assert_array_equal(written_out(both, i), written_out(many, j))
    added = many.take(slice(0, 4)) + many.take(slice(4, 8))
    np.testing.assert_allclose(written_out(added, 1), written_out(many, 1) + written_out(many, 5), atol=1e-11)
    assert len(many.take(slice(0, 1)).compact().stacks) == 1


def test_the_persons_product_comes_down_to_four_small_matrices() -> None:
    product = pl94_persons()
    queries = product.workload.groups(product.query_names)
    closing = np.stack(
        [product.workload.group(b.query).row_of_cell == product.bound_row(b) for b in product.bounds]
    )
    domain = Domain.build(product, queries, closing)
    assert domain.cell.shape == (16, 126)
    assert [kind.matrices.shape for kind in domain.kinds] == [(11, 4, 16, 16)]
    assert sorted(domain.kinds[0].copies.tolist()) == [1, 1, 62, 62]
    plain = Domain.build(
        pl94_units(), pl94_units().workload.groups(["total", "detailed"]), np.zeros((0, 2), bool)
    )
    assert plain.cell.shape == (1, 2)
    assert [kind.matrices.shape for kind in plain.kinds] == [(2, 2, 1, 1)]
    detailed = product.workload.group("detailed").row_of_cell
    rows = Rows.build(domain, detailed[None, :] == np.arange(len(detailed))[:, None])
    assert len(rows.first) == 16


@pytest.mark.parametrize("width", [0, 3, 16, 70])
def test_equal_masks_have_equal_numbers(width: int) -> None:
    allowed = np.random.default_rng(width).random((40, width)) < 0.5
    allowed[20:] = allowed[:20]
    codes = mask_codes(allowed)
    assert np.array_equal(codes[:20], codes[20:])
    assert len(np.unique(codes)) == len(np.unique(allowed, axis=0))


def test_models_travel_to_workers() -> None:
    tree = made("zeros", "uneven", 0, exact=("total", 1))
    model = tree.model.slice({1: (1, 3), 2: (1, 6)})
    copy = pickle.loads(pickle.dumps(model))
    assert copy.plain == tree.model.plain == (False, False, True)
    assert [len(level) for level in copy.levels] == [0, 2, 5]
    assert np.array_equal(copy.levels[2].allowed(1, 6), tree.model.levels[2].allowed(1, 6))


@each("most", [1, 7, 300, 10_000])
@each("count", [0, 1, 40, 3_000])
def test_numbers_are_those_of_sorting(most: int, count: int) -> None:
    codes = np.random.default_rng(most + count).integers(0, most, count)
    expected = np.unique(codes, return_index=True, return_inverse=True)
    for found, sorted_ in zip(numbered(codes, most), expected, strict=True):
        assert np.array_equal(found, sorted_.ravel())
        assert found.dtype == np.int64


@pytest.mark.parametrize("categories", [1, 8, 9, 16, 17, 64, 70])
def test_masks_are_numbered_in_their_lexical_order(categories: int) -> None:
    allowed = np.random.default_rng(categories).random((200, categories)) < 0.5
    _, expected = np.unique(allowed, axis=0, return_inverse=True)
    assert np.array_equal(mask_codes(allowed), expected.ravel())
