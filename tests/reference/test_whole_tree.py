"""Least squares over the whole tree against the same with the matrix written out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.mini import from_dense, mini_frame, mini_product
from support.random_tree import (
    PRODUCTS,
    TREES,
    DenseTree,
    Made,
    answers,
    every,
    made,
    make_product,
    random_parents,
    random_product,
    written_out,
)
from support.seeds import examples

from opendas.budget.allocation import Budget
from opendas.constraints.table import bound_table
from opendas.errors import ConfigError, EstimationError
from opendas.geography.bypass import bypass_general
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine
from opendas.gls import areas
from opendas.gls import upward as up
from opendas.gls.areas import area_estimates
from opendas.gls.cells import Domain
from opendas.gls.downward import Estimates, down_pass
from opendas.gls.expected_error import ExpectedError
from opendas.gls.information import Extended
from opendas.gls.model import TreeModel
from opendas.gls.operators import Operators
from opendas.gls.upward import placed_linear, up_statistics, up_sweep
from opendas.measurement.invariants import declared_invariants
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.attributes import Attribute
from opendas.schema.declarations import StructuralZero
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

QUERIES = ("total", "detailed")


def estimates(tree: Made) -> list[Estimates]:
    model = tree.model
    return list(down_pass(up_sweep(model, tree.full)))


def compare(tree: Made) -> None:
    """Every answer of every geounit: the same are unknown, and the others agree."""
    dense = DenseTree(tree)
    schema = tree.product.schema
    levels = estimates(tree)
    for name in (*QUERIES, *schema.names, *(recode.name for recode in tree.product.recodes)):
        query = tree.product.workload.group(name)
        for found in levels:
            means, variances = answers(found, query)
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


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(1938, False, False, 0.0, "nothing", 0)  # rows whose places have one sum
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
        stacks = b"".join(np.ascontiguousarray(row).tobytes() for row in part.covariance.expanded().finite[0])
        found[part.level] = (mean + part.mean.tobytes(), covariance + stacks)
    return found


@pytest.mark.parametrize("options", [{}, {"thin": True}, {"exact": ("total", 2)}, {"joint": 1}])
@pytest.mark.parametrize("product", ["zeros", "unequal recode"])
def test_parts_give_the_bytes_of_the_whole(
    product: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child of the root in a task of its own, and the leaves a family at a time."""
    parents = [[0], [0, 0, 0, 0], [0, 0, 1, 2, 2, 3], [0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 5]]
    tree = made(product, parents, 7, bypass=0.3, **options)
    whole = tree.model
    expected = joined(estimates(tree))
    statistics = up_sweep(whole, tree.full).statistics
    monkeypatch.setattr(up, "CHUNK", 1)
    for county in range(4):
        ranges = {1: (county, county + 1)}
        start, stop = county, county + 1
        for level in (2, 3):
            start, stop = (int(x) for x in np.searchsorted(parents[level], [start, stop]))
            ranges[level] = (start, stop)
        if "joint" in options:
            ranges.pop(1)
        for part in up_statistics(whole.slice(ranges), ranges, tree.full):
            at, here = statistics[part.level], slice(*ranges[part.level])
            for a, b in zip(part.precision.expanded().finite, at.precision.expanded().finite, strict=True):
                assert a.tobytes() == b[here].tobytes()
            if part.linear is not None and at.linear is not None:
                assert part.linear.tobytes() == at.linear[here].tobytes()
    assert joined(estimates(tree)) == expected


@pytest.mark.parametrize("options", [{}, {"thin": True}, {"exact": ("total", 2)}, {"joint": 1}])
@pytest.mark.parametrize("product", ["zeros", "unequal recode"])
def test_sums_of_what_leaves_may_use_say_as_much_as_all_answers(
    product: str, options: dict[str, Any]
) -> None:
    """Answers that touch no cell of a leaf are replaced by anything: the same bytes."""
    tree = made(product, "uneven", 7, bypass=0.3, **options)
    model = tree.model
    last = len(model.levels) - 1
    touched = [np.zeros((len(model.levels[last]), query.size), dtype=bool) for query in model.queries]
    for leaf, cells in enumerate(model.domain.cells_of(model.levels[last].allowed(0, len(touched[0])))):
        for query, rows in zip(model.queries, touched, strict=True):
            rows[leaf, query.row_of_cell[cells]] = True

    def sums(level: int, first: int, group: np.ndarray) -> list[np.ndarray]:
        assert level == last
        found = []
        measured = model.levels[last].measured
        for query, values in zip(measured, tree.full(level, first, len(group)), strict=True):
            out = np.zeros((int(group.max()) + 1, values.shape[1]), dtype=np.int64)
            rows = touched[query][first : first + len(group)]
            np.add.at(out, group, np.where(rows, values, 1_000_000))
            found.append(out)
        return found

    plain, summed = (up_statistics(model, every(model), tree.full, None, way) for way in (None, sums))
    for one, other in zip(plain[:-1], summed[:-1], strict=True):
        assert one.linear is not None
        assert other.linear is not None
        assert one.linear.tobytes() == other.linear.tobytes()


def areas_agree(tree: Made, seed: int) -> None:
    """Every set of leaves of a small tree, and a few weightings."""
    rng = np.random.default_rng(seed)
    model, dense = tree.model, DenseTree(tree)
    leaves = len(model.levels[-1])
    sets = [s for k in range(leaves + 1) for s in itertools.combinations(range(leaves), k)]
    weights = np.zeros((len(sets) + 4, leaves))
    for i, chosen in enumerate(sets):
        weights[i, list(chosen)] = 1.0
    weights[-4:] = rng.integers(-2, 4, (4, leaves)) * 0.5
    area, leaf = np.nonzero(weights)
    order = rng.permutation(len(area))
    area, leaf = area[order], leaf[order]
    sweep = up_sweep(model, tree.full)
    found = area_estimates(sweep, area, leaf, weights[area, leaf], len(weights))
    for name in QUERIES:
        query = tree.product.workload.group(name)
        means, variances = answers(found, query)
        for i, row in enumerate(weights):
            mean, variance = dense.estimate(row, query)
            known = np.isfinite(variance)
            assert np.array_equal(np.isfinite(variances[i]), known)
            np.testing.assert_allclose(means[i][known], mean[known], rtol=0, atol=2e-10)
            np.testing.assert_allclose(variances[i][known], variance[known], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tree", TREES)
def test_areas_and_weightings_off_the_spine(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas, "BATCH", 5)
    last = len(TREES[tree]) - 1
    areas_agree(made("zeros in the middle", tree, 1, bypass=0.4), 1)
    areas_agree(made("two attributes", tree, 2, thin=True), 2)
    areas_agree(made("unequal recode", tree, 3, exact=("total", 0), bypass=0.4), 3)
    areas_agree(made("two attributes", tree, 4, exact=("b", last), thin=True), 4)
    for level in range(last + 1):
        areas_agree(made("zeros", tree, level, joint=level), level)


def test_areas_that_cannot_be() -> None:
    tree = made("two attributes", "pairs", 0)
    model = tree.model
    sweep = up_sweep(model, tree.full)
    one, two = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with pytest.raises(EstimationError, match="0 to 3"):
        area_estimates(sweep, one, one + 4)
    with pytest.raises(EstimationError, match="twice"):
        area_estimates(sweep, two, two)
    with pytest.raises(EstimationError, match="numbered"):
        area_estimates(sweep, one + 1, one, areas=1)
    with pytest.raises(EstimationError, match="finite"):
        area_estimates(sweep, one, one, np.array([np.nan]))
    none = area_estimates(sweep, one[:0], one[:0])
    assert answers(none, tree.queries[0])[1].shape == (0, tree.queries[0].size)
    empty = area_estimates(sweep, one[:0], one[:0], areas=2)
    assert not np.any(answers(empty, tree.queries[0]))
    with pytest.raises(EstimationError, match="follow each other"):
        up_statistics(model, {0: (0, 1), 2: (0, 4)}, tree.full)
    with pytest.raises(EstimationError, match="what is known is given"):
        up_statistics(model, {0: (0, 1)}, tree.full)
    with pytest.raises(EstimationError, match="not in this part"):
        model.slice({2: (1, 2)}).slice({2: (0, 2)})


SHARES = {"region": Fraction(1, 4), "town": Fraction(1, 4), "block": Fraction(1, 2)}


def plan_of(product: Product, spine: Spine) -> MeasurementPlan:
    queries = {"*": {"total": "1/4", "detailed": "3/4"}}
    if len(product.schema.attributes) > 1:
        queries = {
            "region": {"kind": "1/4", "detailed": "3/4"},
            "*": {"kind * minor": "1/2", "detailed": "1/2"},
        }
    budget = Budget(Mechanism.DISCRETE_GAUSSIAN, Neighbours.BOUNDED, Fraction(2), SHARES, queries)
    return MeasurementPlan(product, spine, budget)


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("bypassed", [False, True])
def test_without_masks_variances_are_those_expected_of_the_plan(units: bool, bypassed: bool) -> None:
    """Another program, for variances only; totals are exact at blocks (units) or regions."""
    frame = mini_frame(regions=2, towns=3, blocks=2)
    product = pl94_units() if units else replace(mini_product(), bounds=(), structural_zeros=())
    product = replace(product, name="plain")
    spine = standard_spine(frame)
    if bypassed:
        spine = bypass_general(spine, list(SHARES.values()))
    plan = plan_of(product, spine)
    dense = np.random.default_rng(0).integers(0, 5, (len(frame), product.schema.size))
    truth = from_dense(dense)
    table = bound_table(product, frame, spine, declared_invariants(product, truth, spine))
    model = TreeModel.of_plan(plan, table)

    def full(level: int, first: int, geounits: int) -> list[np.ndarray]:
        return [np.zeros((geounits, planned.query.size), np.int64) for planned in plan.levels[level].queries]

    expected = ExpectedError.build(plan)
    sweep = up_sweep(model, full)
    for query in (product.workload.group(name) for name in product.query_names):
        for found in down_pass(sweep):
            variances = expected.geounits(
                spine.names[found.level], query.name, np.arange(found.first, found.first + len(found))
            )
            np.testing.assert_allclose(answers(found, query)[1], variances, rtol=1e-9, atol=1e-9)
        chosen = np.array([0, 1, 3, 6, 7])
        area = answers(area_estimates(sweep, np.zeros(5, dtype=np.int64), chosen), query)[1][0]
        np.testing.assert_allclose(area, expected.leaf_set(chosen, query.name), rtol=1e-9, atol=1e-9)


def test_the_shared_metric_is_the_precision_where_all_children_are_alike() -> None:
    tree = made("two attributes", [[0], [0, 0], [0, 0, 1, 1]], 0, masks=False)
    tree.weights = [(table, np.zeros_like(own)) for table, own in tree.weights]
    tree.weights[1][0][0] = tree.weights[2][0][0] * 2
    statistics = up_sweep(tree.model, tree.full).statistics
    model = tree.model
    one = Operators.of(model.domain, Extended(model.domain.information(statistics[1].weights)))
    found, exact = written_out(one, 0), written_out(statistics[1].precision, 0)
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_products_on_a_support_are_those_of_the_matrix() -> None:
    rng = np.random.default_rng(0)
    for name in PRODUCTS:
        tree = made(name, "uneven", 0)
        model = tree.model
        for level in up_sweep(model, tree.full).statistics:
            n = tree.product.schema.size
            support = np.flatnonzero(rng.random(n) < 0.7).astype(np.int32)
            on = level.precision.on_support(support)
            x = rng.normal(size=(len(level), len(support)))
            expected = np.stack([written_out(level.precision, i, support) @ x[i] for i in range(len(level))])
            np.testing.assert_allclose(on.apply(x), expected, atol=1e-12)
            matrices = [written_out(level.precision, i, support) for i in range(len(level))]
            diagonal = np.stack([np.diag(matrix) for matrix in matrices])
            np.testing.assert_allclose(on.diagonal(), diagonal, atol=1e-12)


def test_own_answers_are_summed_by_cell() -> None:
    tree = made("zeros", "pairs", 3)
    model = tree.model
    for level in range(3):
        count = len(model.levels[level])
        table, own = tree.weights[level]
        every = model.levels[level].allowed(0, count)
        placed = placed_linear(model, level, model.levels[level].own, every, tree.full(level, 0, count))
        found = model.domain.unplaced(placed)
        expected = np.zeros_like(found)
        for name, noisy in zip(tree.measured[level], tree.answers[level], strict=True):
            weight = table[own, [query.name for query in tree.queries].index(name)]
            expected += weight[:, None] * noisy[:, tree.product.workload.group(name).row_of_cell]
        allowed = model.domain.cells_of(model.levels[level].allowed(0, count))
        np.testing.assert_allclose(found, expected * allowed, atol=1e-12)


def test_matrices_too_large_for_each_geounit_are_refused() -> None:
    attributes = (
        Attribute("a", tuple("abcdefghijklmnopqrstuvwxyz")),
        Attribute("b", tuple(map(str, range(40)))),
    )
    product = make_product(attributes, (), (StructuralZero({"a": ("a",), "b": ("1",)}),))
    with pytest.raises(ConfigError, match="1040 x 1"):
        Domain.build(product, product.workload.groups(["total"]), np.zeros((0, 1040), dtype=bool))


def test_the_production_product_meets_the_normal_equations() -> None:
    """Too large for a matrix: the gradient by leaf is that of the exact total alone, and sums fit."""
    product = pl94_persons()
    parents = [[0], [0, 0], [0, 0, 1], [0, 0, 0, 1, 1, 2, 2, 2]]
    tree = made((product, product.query_names), parents, 0, exact=("total", 0), bypass=0.3)
    model = tree.model
    assert [kind.matrices.shape[1:] for kind in model.domain.kinds] == [(4, 16, 16)]
    means: list[list[np.ndarray]] = [[] for _ in parents]
    for part in estimates(tree):
        means[part.level].append(part.mean)
    gradient = np.zeros((1, product.schema.size))
    for number, level in enumerate(model.levels):
        mean = np.concatenate(means[number])
        gradient = gradient[level.parent] if number else gradient
        answers = tree.full(number, 0, len(mean))
        for query, values in zip(level.measured, answers, strict=True):
            group = model.queries[query]
            fitted = np.zeros(values.shape)
            np.add.at(fitted.T, group.row_of_cell, mean.T)
            weight = level.weights[level.own, query][:, None]
            gradient = gradient + weight * (values - fitted)[:, group.row_of_cell]
        if number:
            above = np.zeros((len(parents[number - 1]), mean.shape[1]))
            np.add.at(above, level.parent, mean)
            np.testing.assert_allclose(above, np.concatenate(means[number - 1]), atol=1e-9)
    assert np.array_equal(np.concatenate(means[-1]) != 0, tree.closed)
    inside = gradient[tree.closed]
    np.testing.assert_allclose(inside, inside.mean(), atol=1e-8)
    assert abs(inside.mean()) > 1e-3
    assert means[0][0].sum() == pytest.approx(tree.truth[0].sum(), abs=1e-8)
