"""The blocks and passes of `gls` against least squares with the matrix written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from reference.dense_least_squares import Dense, leaf_indicators, query_matrix
from scipy import sparse
from scipy.sparse import linalg as splinalg
from support.data import shared_data

from opendas.budget.resolve import BudgetSpec, resolve_budget
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.gls.areas import area_covariances
from opendas.gls.blocks import Algebra, build_algebra
from opendas.gls.collapsed import CollapsedTree, downward, upward
from opendas.gls.expected_error import ExpectedError
from opendas.gls.information import Extended
from opendas.measurement.plan import MeasurementPlan
from opendas.readers import ReaderSpec, make_reader
from opendas.schema.attributes import Attribute, Recode, Schema
from opendas.schema.pl94 import pl94_persons
from opendas.schema.query_groups import Workload


def attribute(name: str, levels: int) -> Attribute:
    return Attribute(name, tuple(f"{name}{k}" for k in range(levels)))


def recode(name: str, of: Attribute, groups: list[list[int]]) -> Recode:
    return Recode(
        name, of.name, tuple((f"{name}{i}", tuple(of.levels[k] for k in g)) for i, g in enumerate(groups))
    )


A, B, C = attribute("a", 5), attribute("b", 2), attribute("c", 3)
CASES: dict[str, tuple[Schema, tuple[Recode, ...], tuple[str, ...]]] = {
    "one attribute": (Schema((A,)), (), ("total", "detailed")),
    "two attributes": (Schema((B, C)), (), ("total", "b", "c", "detailed")),
    "three attributes": (Schema((B, C, attribute("d", 2))), (), ("total", "c", "b * d", "detailed")),
    "equal recode": (
        Schema((attribute("a", 6),)),
        (recode("r", attribute("a", 6), [[0, 5], [1, 2], [3, 4]]),),
        ("total", "r", "detailed"),
    ),
    "unequal recode": (
        Schema((A, B)),
        (recode("r", A, [[0], [1, 2, 3], [4]]),),
        ("total", "r", "b", "detailed"),
    ),
    "unequal recode in a product": (
        Schema((A, B)),
        (recode("r", A, [[0, 1], [2, 3, 4]]),),
        ("r * b", "detailed"),
    ),
    "two recodes": (
        Schema((A, C)),
        (recode("r", A, [[0, 1], [2, 3, 4]]), recode("s", C, [[0], [1, 2]])),
        ("total", "r * s", "r * c", "a", "detailed"),
    ),
    "nested recodes": (
        Schema((attribute("a", 6),)),
        (
            recode("r", attribute("a", 6), [[0, 1, 2], [3, 4, 5]]),
            recode("s", attribute("a", 6), [[0], [1, 2], [3], [4, 5]]),
        ),
        ("total", "r", "s", "detailed"),
    ),
    "crossing recodes": (
        Schema((A,)),
        (recode("r", A, [[0, 1, 2], [3, 4]]), recode("s", A, [[0, 3], [1, 4], [2]])),
        ("r", "s", "detailed"),
    ),
}

TREES: dict[str, list[list[int]]] = {
    "pairs": [[0], [0, 0], [0, 0, 1, 1]],
    "uneven": [[0], [0, 0, 0], [0, 1, 1, 1, 2, 2]],
    "chains": [[0], [0], [0, 0], [0, 1], [0, 0, 1]],
    "two roots": [[0, 0], [0, 0, 1], [0, 1, 1, 2]],
    "flat": [[0, 0, 0]],
}


def make_tree(
    parents: list[list[int]], algebra: Algebra, rng: np.random.Generator, *, zero: float = 0.0, held: str = ""
) -> tuple[CollapsedTree, list[Extended], list[np.ndarray]]:
    """Two or three classes of noise a level; some measure nothing; level 1 may hold a query group exactly."""
    classes, tables = [], []
    for number, parent in enumerate(parents):
        kinds = 3
        table = rng.uniform(0.05, 3.0, (kinds, len(algebra.queries)))
        if zero:
            table[rng.random(kinds) < zero] = 0.0
        if held and number == min(1, len(parents) - 1):
            table[:, algebra.queries.index(held)] = np.inf
        classes.append(rng.integers(0, kinds, len(parent)))
        tables.append(table)
    return as_tree(parents, classes, tables, algebra)


def as_tree(
    parents: list[list[int]], classes: list[np.ndarray], tables: list[np.ndarray], algebra: Algebra
) -> tuple[CollapsedTree, list[Extended], list[np.ndarray]]:
    tree = CollapsedTree.of([np.array(parent) for parent in parents], classes)
    information = [algebra.information(table) for table in tables]
    return tree, information, [table[own] for table, own in zip(tables, classes, strict=True)]


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-9, atol=1e-10)


def compare(
    tree: CollapsedTree,
    information: list[Extended],
    weights: list[np.ndarray],
    algebra: Algebra,
    workload: Workload,
    asked: list[str],
) -> None:
    """Every geounit, and every set of leaves of a small tree, for measured and for other query groups."""
    dense = Dense(tree.parents, weights, workload.groups(algebra.queries))
    known = upward(tree, information)
    leaves = tree.sizes[-1]
    sets = [s for k in range(1, leaves + 1) for s in itertools.combinations(range(leaves), k)]
    members = (
        np.array([i for i, s in enumerate(sets) for _ in s]),
        np.array([leaf for s in sets for leaf in s]),
    )
    covariance = area_covariances(tree, known, *members, len(sets))
    for name in asked:
        query = workload.group(name)
        rows = algebra.rows(query)
        for areas, places, given in zip(dense.areas, tree.contexts, downward(tree, known), strict=True):
            found = rows.variances(given)[places][:, rows.of_row]
            agree(found, np.stack([dense.variance(area, query) for area in areas]))
        found = rows.variances(covariance)[:, rows.of_row]
        indicator = np.zeros((len(sets), leaves))
        indicator[members] = 1.0
        agree(found, np.stack([dense.variance(row, query) for row in indicator]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", TREES)
def test_variances_are_those_of_the_whole_matrix(case: str, shape: str) -> None:
    schema, recodes, queries = CASES[case]
    workload = Workload(schema, recodes)
    algebra = build_algebra(schema, recodes, workload.groups(queries))
    rng = np.random.default_rng(1)
    tree, information, weights = make_tree(TREES[shape], algebra, rng)
    every = ["total", "detailed", *schema.names, *(r.name for r in recodes)]
    compare(tree, information, weights, algebra, workload, every)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", TREES)
def test_geounits_without_budget(shape: str, seed: int) -> None:
    """Leaves below, single children and whole families that measure nothing; some answers stay unknown."""
    schema, recodes, queries = CASES["unequal recode"]
    workload = Workload(schema, recodes)
    algebra = build_algebra(schema, recodes, workload.groups(queries))
    tree, information, weights = make_tree(TREES[shape], algebra, np.random.default_rng(seed), zero=0.5)
    compare(tree, information, weights, algebra, workload, ["total", "r", "detailed"])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", TREES)
def test_geounits_that_measure_part_of_the_queries(shape: str, seed: int) -> None:
    """Blocks are then known in some directions and unknown in others."""
    schema, recodes, queries = CASES["unequal recode in a product"]
    workload = Workload(schema, recodes)
    queries = ("total", "r", "b", "r * b", "a")
    algebra = build_algebra(schema, recodes, workload.groups(queries))
    rng = np.random.default_rng(seed)
    classes, tables = [], []
    for parent in TREES[shape]:
        table = rng.uniform(0.05, 3.0, (4, len(queries))) * (rng.random((4, len(queries))) < 0.4)
        classes.append(rng.integers(0, 4, len(parent)))
        tables.append(table)
    compare(
        *as_tree(TREES[shape], classes, tables, algebra),
        algebra,
        workload,
        ["total", "r", "b", "a", "detailed"],
    )


@pytest.mark.parametrize("zero", [0.0, 0.4])
@pytest.mark.parametrize("held", ["total", "r", "b"])
@pytest.mark.parametrize("shape", TREES)
def test_answers_that_are_published_exactly(shape: str, held: str, zero: float) -> None:
    schema, recodes, queries = CASES["unequal recode"]
    workload = Workload(schema, recodes)
    algebra = build_algebra(schema, recodes, workload.groups(queries))
    tree, information, weights = make_tree(
        TREES[shape], algebra, np.random.default_rng(7), zero=zero, held=held
    )
    compare(tree, information, weights, algebra, workload, ["total", "r", "b", "detailed"])


def test_the_errors_of_least_squares_have_these_variances() -> None:
    """Noise drawn, least squares solved, many times over: the spread of a sum over leaves off the tree."""
    schema, recodes, queries = CASES["unequal recode"]
    workload = Workload(schema, recodes)
    algebra = build_algebra(schema, recodes, workload.groups(queries))
    rng = np.random.default_rng(11)
    tree, information, weights = make_tree(TREES["uneven"], algebra, rng)
    asked, deviations = [], []
    for areas, table in zip(leaf_indicators(tree.parents), weights, strict=True):
        for area, row in zip(areas, table, strict=True):
            for query, weight in zip(workload.groups(queries), row, strict=True):
                asked.append(np.kron(area, query_matrix(query)))
                deviations += [weight**-0.5] * query.size
    matrix, scale = np.vstack(asked), np.array(deviations)
    draws = 20_000
    noise = rng.normal(size=(len(scale), draws))  # already divided by its standard deviation
    errors = np.linalg.lstsq(matrix / scale[:, None], noise, rcond=None)[0]
    query = workload.group("r")
    area = np.kron(np.array([0, 1.0, 0, 1, 1, 0]), query_matrix(query))
    members = (np.zeros(3, dtype=np.int64), np.array([1, 3, 4]))
    rows = algebra.rows(query)
    covariance = area_covariances(tree, upward(tree, information), *members, 1)
    found = rows.variances(covariance)[0, rows.of_row]
    drawn = (area @ errors).var(axis=1)
    assert np.all(np.abs(drawn / found - 1) < 5 * np.sqrt(2 / draws))
    assert not np.all(np.abs(drawn / (1.1 * found) - 1) < 5 * np.sqrt(2 / draws))


def test_rhode_island_against_one_sparse_system() -> None:
    """17,850 blocks, the production budget: totals of places and legislative districts.

    The twin writes down one sparse symmetric system for the block that totals live in, with the measured sums
    as unknowns of their own.
    """
    product = pl94_persons()
    path = shared_data("pl94_2010_ri/ri2010.pl.zip")
    frame = make_reader(ReaderSpec("pl94-2010", (path,), product)).frame()[0]
    levels = {name: codes for name, codes in frame.levels.items() if name != "us"}
    frame = Frame(frame.geocodes, levels, frame.leaf, {}, frame.entities)
    spine = standard_spine(frame)
    budget = resolve_budget(BudgetSpec(preset="pr2020-persons"), spine.names, product.workload.canonical)
    expected = ExpectedError.build(MeasurementPlan(product, spine, budget), fixed=False)
    whole = expected.algebra.blocks[-1]
    assert whole.matrices.shape[1:] == (1, 3, 3)
    leaves = len(spine.leaf)
    parts = []
    for number, known in enumerate(expected.information):
        starts = spine.leaf_starts(number)
        information = known.finite[-1][0, 0]
        shape = len(starts) - 1, leaves
        gather = sparse.csr_array((np.ones(leaves), np.arange(leaves), starts), shape=shape)
        parts.append((gather, information))
    above = parts[-2::-1]  # leaves first, then from below: in this order nothing fills in
    upper = sparse.vstack([sparse.kron(gather, np.eye(3)) for gather, _ in above])
    inverse = sparse.block_diag(
        [sparse.kron(sparse.eye_array(gather.shape[0]), np.linalg.inv(m)) for gather, m in above]
    )
    own = sparse.kron(sparse.eye_array(leaves), parts[-1][1])
    system = sparse.csc_array(sparse.block_array([[own, upper.T], [upper, -inverse]]))
    options = {"SymmetricMode": True}
    solve = splinalg.splu(system, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options).solve
    rows = expected.rows("total")
    coefficients = np.sqrt(np.diag(rows.outer[-1][0, 0]))  # of one row, all in the constant
    assert np.allclose(np.outer(coefficients, coefficients), rows.outer[-1][0, 0])
    for category in ("place", "sldl"):
        codes = frame.entities[category][spine.leaf_order]
        names, covariance = expected.areas(frame.entities[category])
        found = rows.variances(covariance)[:, 0]
        for name in names[:3]:
            asked = np.zeros(upper.shape[0] + 3 * leaves)
            asked[: 3 * leaves] = np.kron(codes == name, coefficients)
            assert np.isclose(found[names == name][0], asked @ solve(asked), rtol=1e-8)
