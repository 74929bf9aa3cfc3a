"""From a plan to standard errors: shares, invariants, divided geounits, areas, summaries."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from reference.dense_least_squares import Dense
from support.mini import mini_frame, mini_product
from support.spine_shares import multiple

from opendas.budget.allocation import Budget
from opendas.errors import ConfigError, GeographyError
from opendas.geography.bypass import bypass_general, bypass_only_children
from opendas.geography.frame import Frame
from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Spine, SpineLevel
from opendas.gls.areas import area_covariances
from opendas.gls.expected_error import ExpectedError, expected_rows
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.schema.declarations import Invariant
from opendas.schema.product import Product

SHARES = {"region": Fraction(1, 4), "town": Fraction(1, 4), "block": Fraction(1, 2)}
QUERIES = {
    "region": {"total": "1/4", "kind": "1/4", "detailed": "1/2"},
    "*": {"total": "1/4", "kind * minor": "1/4", "detailed": "1/2"},
}


def uneven_frame() -> Frame:
    """Two regions; towns of one, two and three blocks; schools as areas off the spine."""
    codes = np.array(["000000", "000100", "000101", "010000", "010001", "010002", "010100"], dtype="S6")
    area = np.array(["s1", "s1", "s2", "s2", "", "s2", ""], dtype="S2")
    return Frame(
        codes, {"region": codes.astype("S2"), "town": codes.astype("S4")}, "block", {}, {"school": area}
    )


def make_plan(
    spine: Spine,
    product: Product | None = None,
    *,
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN,
    shares: dict[str, Fraction] = SHARES,
    queries: dict[str, dict[str, str]] = QUERIES,
) -> MeasurementPlan:
    budget = Budget(mechanism, Neighbours.BOUNDED, Fraction(2), shares, queries)
    return MeasurementPlan(product or mini_product(), spine, budget)


def agrees_with_the_matrix(expected: ExpectedError) -> None:
    """Weights straight from the plan, and the matrix written out."""
    plan = expected.plan
    product, spine = plan.product, plan.spine
    weights = []
    for number, level in enumerate(spine.levels):
        table = np.zeros((len(level), len(expected.algebra.queries)))
        for i in range(len(level)):
            for planned in plan.levels[number].queries:
                if share := multiple(spine, number, i):
                    column = expected.algebra.queries.index(planned.query.name)
                    table[i, column] = 1 / plan.distribution(number, planned, share).variance
        weights.append(table)
    parents = [level.parent for level in spine.levels]
    for name in expected.fixed:
        query, _, geolevel = name.partition("@")
        weights[spine.index(geolevel)][:, expected.algebra.queries.index(query)] = np.inf
    dense = Dense(parents, weights, product.workload.groups(expected.algebra.queries))
    for number, geolevel in enumerate(spine.names):
        for name in ("total", "age", "kind * minor", "detailed"):
            query = product.workload.group(name)
            found = expected.geounits(geolevel, name)
            slow = np.stack([dense.variance(area, query) for area in dense.areas[number]])
            np.testing.assert_allclose(found, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("bypassed", ["no", "only children", "general"])
def test_a_plan_has_the_variances_of_its_matrix(mechanism: Mechanism, fixed: bool, bypassed: str) -> None:
    spine = standard_spine(uneven_frame())
    shares = list(SHARES.values())
    if bypassed == "only children":
        spine = bypass_only_children(spine, shares)
    if bypassed == "general":
        spine = bypass_general(spine, shares)
    expected = ExpectedError.build(make_plan(spine, mechanism=mechanism), fixed=fixed)
    assert expected.fixed == (("total@region",) if fixed else ())
    agrees_with_the_matrix(expected)


def test_an_invariant_has_no_error_and_helps_those_below() -> None:
    plan = make_plan(standard_spine(mini_frame()))
    held, free = (ExpectedError.build(plan, fixed=fixed) for fixed in (True, False))
    assert not held.geounits("region", "total").any()
    assert free.geounits("region", "total").min() > 0.1
    assert (held.geounits("town", "total") < free.geounits("town", "total")).all()
    assert (held.geounits("region", "kind") < free.geounits("region", "kind")).all()


def test_totals_of_all_leaves_leave_only_how_they_are_made_up() -> None:
    product = replace(mini_product(), invariants=(Invariant("total", "leaf"),))
    expected = ExpectedError.build(make_plan(standard_spine(mini_frame()), product))
    for geolevel in ("region", "town", "block"):
        assert not expected.geounits(geolevel, "total").any()
        assert expected.geounits(geolevel, "kind").min() > 0.1
    assert not expected.leaf_set([0, 5, 17], "total").any()


def test_the_general_rule_worsens_no_error_of_a_real_plan() -> None:
    """Theorem 2 with the integer noise that is drawn, over every set of leaves."""
    frame = uneven_frame()
    queries = {"*": QUERIES["*"]}
    before = standard_spine(frame)
    after = bypass_general(before, list(SHARES.values()))
    assert any(shares is not None for shares in after.shares)
    laplace = Mechanism.DISCRETE_LAPLACE
    plans = [make_plan(spine, mechanism=laplace, queries=queries) for spine in (before, after)]
    first, second = (ExpectedError.build(plan, fixed=False) for plan in plans)
    sets = np.arange(1, 1 << len(frame))
    members = np.nonzero(sets[:, None] >> np.arange(len(frame)) & 1)
    better = 0
    for query in ("total", "kind", "detailed"):
        old, new = (
            e.rows(query).variances(area_covariances(e.tree, e.messages, *members, len(sets)))
            for e in (first, second)
        )
        assert (new <= old * (1 + 1e-9)).all()
        better += int((new < old * (1 - 1e-3)).sum())
    assert better > 0


def test_the_gaussian_rule_changes_no_error_of_a_real_plan() -> None:
    """Up to what integer noise differs from the Gaussian law, far below anything that matters."""
    before = standard_spine(uneven_frame())
    after = bypass_only_children(before, list(SHARES.values()))
    assert any(shares is not None for shares in after.shares)
    queries = {"*": QUERIES["*"]}
    first, second = (ExpectedError.build(make_plan(s, queries=queries)) for s in (before, after))
    for geolevel in before.names:
        for query in ("total", "kind", "detailed"):
            old, new = first.geounits(geolevel, query), second.geounits(geolevel, query)
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-9)


def divided_spine(root: bool) -> Spine:
    """Two regions, the first in two parts; below them towns and blocks."""
    parts = SpineLevel(
        "region",
        np.array([b"0a", b"0b", b"1b"]),
        np.zeros(3, dtype=np.int64),
        official=False,
        whole=np.array([0, 0, 1]),
    )
    towns = SpineLevel("town", np.array([b"t0", b"t1", b"t2", b"t3"]), np.array([0, 1, 1, 2]), official=False)
    blocks = SpineLevel("block", np.array([b"b%d" % k for k in range(7)]), np.array([0, 0, 1, 2, 2, 3, 3]))
    levels = (parts, towns, blocks)
    if root:
        levels = (SpineLevel("nation", np.array([b"n"]), np.zeros(1, dtype=np.int64)), *levels)
    return Spine(levels, np.arange(7), (None,) * len(levels))


@pytest.mark.parametrize("root", [True, False])
def test_the_parts_of_a_geounit_share_its_published_total(root: bool) -> None:
    shares = {"nation": Fraction(0), **SHARES} if root else dict(SHARES)
    expected = ExpectedError.build(make_plan(divided_spine(root), shares=shares))
    totals = expected.geounits("region", "total")[:, 0]
    assert totals[2] == 0.0
    assert np.isclose(totals[0], totals[1])
    assert totals[0] > 0.1
    assert expected.leaf_set(range(5), "total")[0] < 1e-12
    assert np.isclose(expected.leaf_set(range(2), "total")[0], totals[0])
    # By hand: two measurements of the same number, of the first part and through the second.
    free = ExpectedError.build(make_plan(divided_spine(root), shares=shares), fixed=False)
    a, b = free.geounits("region", "total")[:2, 0]
    c = free.leaf_set(range(5), "total")[0] - a - b
    assert np.isclose(totals[0], (a * b - (c / 2) ** 2) / (a + b + c), rtol=1e-9)


def test_a_geolevel_without_budget_below_cannot_be_told_apart() -> None:
    shares = {"region": Fraction(1, 2), "town": Fraction(1, 2), "block": Fraction(0)}
    expected = ExpectedError.build(make_plan(standard_spine(uneven_frame()), shares=shares))
    variances = expected.geounits("block", "total")[:, 0]
    assert np.isinf(variances).tolist() == [False, True, True, True, True, True, False]
    assert np.isfinite(expected.leaf_set([1, 2], "total")).all()  # a whole town
    assert np.isinf(expected.leaf_set([0, 1], "total")).all()


def test_geounits_can_be_asked_one_by_one_and_as_sets_of_leaves() -> None:
    spine = standard_spine(mini_frame())
    expected = ExpectedError.build(make_plan(spine))
    for geolevel in spine.names:
        starts = spine.leaf_starts(spine.index(geolevel))
        every = expected.geounits(geolevel, "kind * minor")
        assert np.array_equal(expected.geounits(geolevel, "minor * kind", [1, 0])[0], every[1])
        for i in (0, len(starts) - 2):
            leaves = np.arange(starts[i], starts[i + 1])
            assert np.allclose(expected.leaf_set(leaves, "kind * minor"), every[i])


def test_areas_come_by_code_and_leaves_without_code_are_in_none() -> None:
    frame = uneven_frame()
    # A spine whose leaves stand in another order than the frame's.
    levels = {"region": np.where(frame.levels["region"] == b"00", b"9", b"1"), "town": frame.levels["town"]}
    spine = standard_spine(Frame(frame.geocodes, levels, "block"))
    assert not np.array_equal(spine.leaf_order, np.arange(len(frame)))
    expected = ExpectedError.build(make_plan(spine))
    names, covariance = expected.areas(frame.entities["school"])
    assert names.tolist() == [b"s1", b"s2"]
    rows = expected.rows("kind")
    found = rows.variances(covariance)[:, rows.of_row]
    place = np.argsort(spine.leaf_order)
    for name, row in zip(names, found, strict=True):
        leaves = place[frame.entities["school"] == name]
        assert np.allclose(row, expected.leaf_set(leaves, "kind"))


def test_rows_per_geolevel_and_entity_category() -> None:
    frame = uneven_frame()
    expected = ExpectedError.build(make_plan(standard_spine(frame)))
    found = expected_rows(expected, frame, ("total", "kind"))
    assert [(r.kind, r.name, r.query, r.areas) for r in found] == [
        (kind, name, query, areas)
        for kind, name, areas in (
            ("geolevel", "region", 2),
            ("geolevel", "town", 4),
            ("geolevel", "block", 7),
            ("entity", "school", 2),
        )
        for query in ("total", "kind")
    ]
    town = found[3]
    errors = np.sqrt(expected.geounits("town", "kind"))
    assert np.isclose(town.mean_sd, errors.mean())
    assert np.isclose(town.max_sd, errors.max())
    assert town.to_dict()["mean_sd"] == town.mean_sd
    assert expected_rows(expected, frame) == tuple(r for r in found if r.query == "total")


def test_a_geolevel_that_the_spine_divides_is_summed_from_its_leaves() -> None:
    spine = divided_spine(root=False)
    codes = np.array([b"b%d" % k for k in range(7)])
    town = np.array([b"x", b"x", b"y", b"y", b"y", b"z", b"z"])
    region = np.array([b"0"] * 5 + [b"1"] * 2)
    frame = Frame(codes, {"region": region, "town": town}, "block", {}, {"empty": np.full(7, b"")})
    expected = ExpectedError.build(make_plan(spine))
    region_row, town_row, block_row = expected_rows(expected, frame)
    assert (region_row.name, region_row.areas) == ("region", 2)
    assert region_row.max_sd < 1e-6
    assert town_row.areas == 3
    assert np.isclose(town_row.max_sd**2, expected.leaf_set([2, 3, 4], "total")[0])
    assert block_row.areas == 7


def test_noise_that_nobody_will_see_leaves_answers_exact() -> None:
    plan = make_plan(standard_spine(mini_frame()))
    narrow = replace(plan.budget, total=Fraction(10**15))
    expected = ExpectedError.build(MeasurementPlan(plan.product, plan.spine, narrow))
    assert expected.geounits("block", "detailed").max() == 0.0


def test_bad_requests_are_refused() -> None:
    expected = ExpectedError.build(make_plan(standard_spine(mini_frame())))
    with pytest.raises(GeographyError, match="not on the spine"):
        expected.leaf_set([0, 10_000], "total")
    with pytest.raises(GeographyError, match="no geolevel"):
        expected.geounits("county", "total")
    with pytest.raises(ConfigError, match="neither attribute nor recode"):
        expected.geounits("town", "sex")
    assert expected.leaf_set([], "kind").tolist() == [0.0, 0.0, 0.0]
    held = replace(mini_product(), invariants=(Invariant("total", "county"),))
    with pytest.raises(ConfigError, match="does not have"):
        ExpectedError.build(make_plan(standard_spine(mini_frame()), held))
