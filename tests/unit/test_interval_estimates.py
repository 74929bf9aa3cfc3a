"""Estimates, variances and laws of errors against dense algebra that knows the weight of every draw."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from support.dense_intervals import DenseIntervals
from support.mini import mini_frame, mini_histogram, mini_product
from support.noisy_trees import MadeTree

from opendas.geography.partitions import standard_spine
from opendas.geography.spine import Shares, Spine
from opendas.intervals.answers import Areas, area_intervals, match_geounits
from opendas.intervals.laws import Draws, NoiseSum
from opendas.intervals.tree_estimates import TreeEstimates

LEAFY = {"region": Fraction(1, 100), "town": Fraction(1, 100), "block": Fraction(98, 100)}
DETAILED = {"*": {"total": Fraction(1, 10), "detailed": Fraction(9, 10)}}
CASES = {
    "gaussian": {},
    "laplace": {"mechanism": "discrete-laplace"},
    "leaves measured best": {"shares": LEAFY, "queries": DETAILED, "rho": Fraction(20)},
    "leaves, laplace": {
        "shares": LEAFY,
        "queries": DETAILED,
        "rho": Fraction(5),
        "mechanism": "discrete-laplace",
    },
}


def made(**more) -> MadeTree:
    frame = mini_frame(seed=3)
    return MadeTree(mini_product(), frame, mini_histogram(frame, 3), **more)


def members(query: str) -> np.ndarray:
    group = mini_product().workload.group(query)
    return group.row_of_cell[None, :] == np.arange(group.size)[:, None]


def boxes() -> np.ndarray:
    """Sums of cells that are rows of no query group."""
    return np.random.default_rng(5).random((12, 9)) < 0.4


def leaves_of(tree, level: int, geounit: int) -> np.ndarray:
    starts = tree.spine.leaf_starts(level)
    weights = np.zeros(len(tree.spine.leaf))
    weights[starts[geounit] : starts[geounit + 1]] = 1.0
    return weights


@pytest.mark.parametrize("case", CASES)
def test_geounits(case: str) -> None:
    tree = made(**CASES[case]).draw(1)
    dense, estimates = DenseIntervals(tree), TreeEstimates(tree)
    for asked in (members("kind"), members("detailed"), boxes()):
        for level in range(3):
            every = np.arange(len(tree.spine.levels[level]))
            found = estimates.geounits(level, every, asked)
            for i in every:
                value, variance = dense.answer(leaves_of(tree, level, i), asked)
                assert found.value[i] == pytest.approx(value, abs=1e-9)
                assert found.variance[i] == pytest.approx(variance, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("case", ["gaussian", "laplace"])
def test_areas(case: str) -> None:
    tree = made(**CASES[case]).draw(2)
    dense, estimates = DenseIntervals(tree), TreeEstimates(tree)
    rng = np.random.default_rng(1)
    weights = (rng.random((6, 24)) < 0.4) * rng.uniform(-0.5, 2.0, (6, 24))
    weights[0] = 1.0
    which, leaf = np.nonzero(weights)
    asked = boxes()
    found = estimates.areas(Areas(6, which, leaf, weights[which, leaf]), asked)
    for area in range(6):
        value, variance = dense.answer(weights[area], asked)
        assert found.value[area] == pytest.approx(value, abs=1e-9)
        assert found.variance[area] == pytest.approx(variance, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("queries", [{"*": {"total": Fraction(1)}}, None])
def test_small_weights_hide_neither_noise_nor_that_nothing_is_known(queries) -> None:
    # A leaf of weight 1e-4 of whose cells nothing was measured had exact estimates of them.
    tree = made(queries=queries).draw(1)
    estimates, asked = TreeEstimates(tree), members("detailed")
    which, leaf = np.array([0, 0, 1]), np.array([2, 3, 7])
    weight = np.array([0.5, 0.25, 0.75])
    one = area_intervals(tree, estimates, Areas(2, which, leaf, weight), asked, 0.9)
    assert np.isinf(one.variance).any() == (queries is not None)
    for small in (2.0**-13, 2.0**-40):
        found = area_intervals(tree, estimates, Areas(2, which, leaf, small * weight), asked, 0.9)
        np.testing.assert_array_equal(found.law, one.law)
        np.testing.assert_array_equal(found.variance, small**2 * one.variance)
        for name in ("estimate", "lower", "upper", "margin"):
            np.testing.assert_array_equal(getattr(found, name), small * getattr(one, name))


def exact_law(dense: DenseIntervals, weights: np.ndarray) -> NoiseSum:
    counted: Counter = Counter()
    for weight, law in zip(weights, dense.laws, strict=True):
        if abs(weight) > 1e-9:
            counted[law, round(abs(weight), 9)] += 1
    return NoiseSum(tuple(Draws(law, weight, number) for (law, weight), number in counted.items()))


@pytest.mark.parametrize("case", CASES)
def test_coverage_of_half_widths_under_the_law_of_all_draws(case: str) -> None:
    """The law with every draw in it."""
    tree = made(**CASES[case]).draw(1)
    dense, estimates = DenseIntervals(tree), TreeEstimates(tree)
    checked = 0
    for level in (0, 1, 2):
        every = np.arange(len(tree.spine.levels[level]))
        for query in ("total", "kind * minor"):
            asked = members(query)
            found = estimates.geounits(level, every, asked)
            widths = {confidence: found.half_widths(confidence)[0] for confidence in (0.9, 0.99)}
            for i in every[:: max(1, len(every) // 2)]:
                draws = dense.draws(leaves_of(tree, level, i), asked)
                for k in range(len(asked)):
                    if found.variance[i, k] > 1e-9:
                        checked += 1
                        law = exact_law(dense, draws[k])._smooth()._inverted()
                        for confidence, width in widths.items():
                            covered = law(width[i, k] + 1e-6)
                            if case == "leaves measured best":  # steps of a law that is all but one draw
                                assert covered > confidence - 0.01
                            else:
                                assert covered == pytest.approx(confidence, abs=0.002)
    assert checked > 5


@pytest.mark.parametrize("case", ["gaussian", "leaves, laplace"])
def test_coverage_of_areas_under_the_law_of_all_draws(case: str) -> None:
    tree = made(**CASES[case]).draw(1)
    dense, estimates = DenseIntervals(tree), TreeEstimates(tree)
    rng = np.random.default_rng(2)
    for size in (1, 2, 5):
        leaf = np.sort(rng.choice(24, size, replace=False))
        weights = np.zeros(24)
        weights[leaf] = rng.uniform(0.2, 1.0, size)
        area = Areas(1, np.zeros(size, dtype=np.int64), leaf[::-1], weights[leaf[::-1]])
        for query in ("total", "kind * minor"):
            asked = members(query)
            found = estimates.areas(area, asked)
            widths = {confidence: found.half_widths(confidence)[0] for confidence in (0.9, 0.99)}
            for k, draws in enumerate(dense.draws(weights, asked)):
                if found.variance[0, k] > 1e-9:
                    law = exact_law(dense, draws)._smooth()._inverted()
                    for confidence, width in widths.items():
                        assert law(width[0, k] + 1e-6) == pytest.approx(confidence, abs=0.002)


def test_laws_that_are_not_normal_are_found() -> None:
    tree = made(**CASES["leaves, laplace"]).draw(1)
    estimates = TreeEstimates(tree)
    found = estimates.geounits(2, np.arange(24), members("detailed"))
    assert np.any(found.kind >= 0)
    assert all(abs(law.variance - 1) < 1e-9 for law in found.kinds)
    normal = TreeEstimates(made().draw(1)).geounits(0, np.arange(2), members("detailed"))
    assert np.all(normal.kind < 0)


def bypassed() -> Spine:
    """One town with one block, whose budget the town takes over."""
    spine = standard_spine(mini_frame(regions=2, towns=3, blocks=1, seed=3))
    towns, blocks = (np.zeros(6, dtype=np.int64) for _ in range(2))
    towns[2] = 1
    blocks[2] = 0
    blocks[:] = 1
    blocks[2] = 0
    return Spine(
        spine.levels,
        spine.leaf_order,
        (None, Shares((Fraction(1), Fraction(2)), towns), Shares((Fraction(0), Fraction(1)), blocks)),
    )


def test_chains_and_geounits_without_budget() -> None:
    frame = mini_frame(regions=2, towns=3, blocks=1, seed=3)
    spine = bypassed()
    tree = MadeTree(mini_product(), frame, mini_histogram(frame, 3), spine=spine).draw(4)
    dense, estimates = DenseIntervals(tree), TreeEstimates(tree)
    asked = members("detailed")
    for level in (1, 2):
        found = estimates.geounits(level, np.arange(6), asked)
        for i in range(6):
            value, variance = dense.answer(leaves_of(tree, level, i), asked)
            assert found.value[i] == pytest.approx(value, abs=1e-9)
            assert found.variance[i] == pytest.approx(variance, rel=1e-9, abs=1e-10)


def test_areas_are_matched_with_the_highest_geounit_of_the_same_leaves() -> None:
    frame = mini_frame(seed=3)
    spine = standard_spine(frame)
    unit = np.full(24, -1)
    unit[:4], unit[4:8], unit[8] = 0, 1, 1
    unit[12:], unit[9] = 2, 3
    level, geounit = match_geounits(spine, unit, 5)
    assert level.tolist() == [1, -1, 0, 2, -1]
    assert geounit.tolist()[0] == 0
    assert geounit.tolist()[2:4] == [1, 9]
