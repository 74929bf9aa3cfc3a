"""Operators as sums over places: every entry is that of the operator written out."""

from __future__ import annotations

import numpy as np
import pytest
from support.random_tree import PRODUCTS, written_out

from opendas.gls.cells import Domain
from opendas.gls.information import Extended
from opendas.gls.operators import Operators, Supported
from opendas.schema.pl94 import pl94_persons
from opendas.solvers.least_squares.paired import PairedCurvature


def domain_of(name):
    if name == "persons":
        product = pl94_persons()
        queries = [product.workload.group(query) for query in product.query_names]
        return Domain.build(product, queries, np.zeros((0, product.schema.size), bool))
    product, names = PRODUCTS[name]
    queries = [product.workload.group(query) for query in names]
    return Domain.build(product, queries, np.zeros((0, product.schema.size), bool))


def random_operators(domain, rng, count):
    stacks = []
    for kind in domain.kinds:
        size = domain.categories * kind.dimension
        rows = rng.normal(size=(count, len(kind.offsets), size, size))
        stacks.append(rows + np.swapaxes(rows, 2, 3))
    return Operators(domain, Extended(tuple(stacks)), np.array([*range(count), 0]))


@pytest.mark.parametrize("name", [*PRODUCTS, "persons"])
@pytest.mark.parametrize("seed", range(3))
def test_entries_and_products_are_those_of_the_operators(name, seed):
    rng = np.random.default_rng(seed)
    domain = domain_of(name)
    pairs = domain.pairs
    if name == "all dense":
        assert pairs is None
        return
    operators = random_operators(domain, rng, 2)
    if name == "persons":
        assert pairs.kind.max() == 1  # Hispanic origin; race is the place
    support = np.sort(rng.choice(domain.cells, min(200, max(1, domain.cells // 2)), replace=False))
    curvature = pairs.curvature(operators.stacks.finite, operators.which, support)
    blocks = curvature.blocks(np.arange(len(support)))
    for c in range(len(operators)):
        np.testing.assert_allclose(blocks[c], written_out(operators, c, support), atol=1e-10)
    x = rng.normal(size=(len(operators), len(support)))
    np.testing.assert_allclose(curvature.apply(x), Supported.build(operators, support).apply(x), atol=1e-10)
    found = operators.on_support(support)
    assert isinstance(found, PairedCurvature)
    np.testing.assert_allclose(found.diagonal(), Supported.build(operators, support).diagonal(), atol=1e-10)
