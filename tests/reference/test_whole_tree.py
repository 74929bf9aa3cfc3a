"""Least squares over the whole tree against the same with the matrix written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_tree import PRODUCTS, TREES, DenseTree, Made, made, random_parents, random_product

from opendas.whole_tree import up
from opendas.whole_tree.down import Estimates, down_pass, whole_ranges
from opendas.whole_tree.up import Below, up_pass, up_sweep

QUERIES = ("total", "detailed")


def estimates(tree: Made) -> list[Estimates]:
    model = tree.model
    return list(down_pass(up_sweep(model, whole_ranges(model), tree.full), tree.full))


def compare(tree: Made) -> None:
    """Every answer of every geounit: the same are unknown, and the others agree."""
    dense = DenseTree(tree)
    schema = tree.product.schema
    levels = estimates(tree)
    for name in (*QUERIES, *schema.names, *(recode.name for recode in tree.product.recodes)):
        query = tree.product.workload.group(name)
        for found in levels:
            means, variances = found.answers(query)
            for i in range(len(found)):
                mean, variance = dense.estimate(dense.areas[found.level][found.first + i], query)
                known = np.isfinite(variance)
                assert np.array_equal(np.isfinite(variances[i]), known)
                assert np.array_equal(np.isfinite(means[i]), known)
                np.testing.assert_allclose(means[i][known], mean[known], rtol=0, atol=1e-10)
                np.testing.assert_allclose(variances[i][known], variance[known], rtol=1e-12, atol=2e-13)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_estimates_and_variances_are_those_of_the_whole_matrix(product: str, tree: str) -> None:
    compare(made(product, tree, 1, bypass=0.4))
    compare(made(product, tree, 2, masks=False))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("product", ["zeros", "unequal recode"])
def test_totals_published_exactly_at_any_geolevel(product: str, tree: str) -> None:
    for level in range(len(TREES[tree])):
        compare(made(product, tree, level, exact=("total", level), bypass=0.3))


@pytest.mark.parametrize("tree", TREES)
def test_an_exact_query_group_with_several_cells(tree: str) -> None:
    last = len(TREES[tree]) - 1
    compare(made("zeros in the middle", tree, 3, exact=("b", last)))
    compare(made("zeros", tree, 3, exact=("r", max(0, last - 1)), thin=True))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("product", ["zeros", "two attributes"])
def test_parts_of_divided_geounits_hold_a_total_together(product: str, tree: str) -> None:
    for level in range(len(TREES[tree])):
        compare(made(product, tree, level, joint=level, bypass=0.3))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_what_is_not_measured_is_unknown_and_nothing_else_is(product: str, tree: str) -> None:
    compare(made(product, tree, 4, thin=True, bypass=0.5))
    compare(made(product, tree, 5, thin=True, exact=("total", 0)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    masks=st.booleans(),
    thin=st.booleans(),
    bypass=st.sampled_from([0.0, 0.6]),
    hold=st.sampled_from(["nothing", "exact", "joint"]),
    level=st.integers(0, 3),
)
def test_any_product_and_any_tree(
    seed: int, masks: bool, thin: bool, bypass: float, hold: str, level: int
) -> None:
    parents = random_parents(seed)
    level = min(level, len(parents) - 1)
    options: dict[str, Any] = {"masks": masks, "thin": thin, "bypass": bypass}
    if hold == "exact":
        options["exact"] = ("total", level)
    elif hold == "joint":
        options["joint"] = level
    compare(made(random_product(seed), parents, seed, **options))


def joined(parts: list[Estimates]) -> dict[int, tuple[bytes, bytes]]:
    """Bytes of all estimates and covariances of a level, whatever runs they came in."""
    found: dict[int, tuple[bytes, bytes]] = {}
    for part in sorted(parts, key=lambda p: (p.level, p.first)):
        mean, covariance = found.get(part.level, (b"", b""))
        stacks = b"".join(np.ascontiguousarray(row).tobytes() for row in part.covariance.expanded()[0])
        found[part.level] = (mean + part.mean.tobytes(), covariance + stacks)
    return found


@pytest.mark.parametrize("options", [{}, {"thin": True}, {"exact": ("total", 2)}, {"joint": 1}])
@pytest.mark.parametrize("product", ["zeros", "unequal recode"])
def test_parts_give_the_bytes_of_the_whole(
    product: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The top in one task, each child of the root in its own, leaves a family at a time."""
    parents = [[0], [0, 0, 0, 0], [0, 0, 1, 2, 2, 3], [0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 5]]
    tree = made(product, parents, 7, bypass=0.3, **options)
    whole = tree.model
    expected = joined(estimates(tree))
    statistics, _ = up_pass(whole, whole_ranges(whole), tree.full)
    monkeypatch.setattr(up, "CHUNK", 1)
    sweeps, found = [], []
    for county in range(4):
        ranges = {}
        start, stop = county, county + 1
        for level in (2, 3):
            start, stop = (int(x) for x in np.searchsorted(parents[level], [start, stop]))
            ranges[level] = (start, stop)
        model = whole.slice(ranges)
        sweeps.append(up_sweep(model, ranges, tree.full))
        for level in (2, 3):
            part, at = sweeps[-1].statistics[level], statistics[level]
            for a, b in zip(part.precision.expanded(), at.precision.expanded(), strict=True):
                assert a.tobytes() == b[slice(*ranges[level])].tobytes()
            if part.linear is not None and at.linear is not None:
                assert part.linear.tobytes() == at.linear[slice(*ranges[level])].tobytes()
    below = Below.joined([sweep.below[1] for sweep in sweeps])
    top = {0: (0, 1), 1: (0, 4)}
    counties = None
    for part in down_pass(up_sweep(whole.slice(top), top, tree.full, below), tree.full):
        found.append(part)
        counties = part
    for sweep in sweeps:
        found += down_pass(sweep, tree.full, counties)
    assert joined(found) == expected
