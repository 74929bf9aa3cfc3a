"""Least squares over populated cells: against dense systems, and its slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest
from support.mini import mini_frame, mini_histogram, mini_product, to_dense

from opendas.arrays import Floats
from opendas.geography.partitions import standard_spine
from opendas.tuning import populated
from opendas.tuning.populated import EXACT, Populated

FRAME = mini_frame(2, 3, 4)
SPINE = standard_spine(FRAME)
PRODUCT = mini_product()
COUNTS = mini_histogram(FRAME)
QUERIES = PRODUCT.query_names
PRECISIONS = np.random.default_rng(5).uniform(0.05, 2.0, (3, len(QUERIES)))


def of(whole_tree: bool) -> Populated:
    return Populated.of(COUNTS, SPINE, PRODUCT, QUERIES, whole_tree=whole_tree)


def cells_of(level: int) -> tuple[Floats, list[np.ndarray]]:
    """Return which populated leaf cells are in each populated cell of a level, and its cells by geounit."""
    dense = to_dense(COUNTS.take(SPINE.leaf_order))
    leaf, cell = np.nonzero(dense)
    unit_of_leaf = np.repeat(np.arange(len(SPINE.levels[level])), np.diff(SPINE.leaf_starts(level)))
    held = [np.unique(cell[unit_of_leaf[leaf] == unit]) for unit in range(len(SPINE.levels[level]))]
    rows = [(unit_of_leaf[leaf] == unit) & (cell == one) for unit, found in enumerate(held) for one in found]
    return np.array(rows, dtype=float), held


def rows_of(query: str, cells: np.ndarray) -> Floats:
    row = PRODUCT.workload.group(query).row_of_cell[cells]
    return np.equal.outer(np.unique(row), row).astype(float)


def summed(covariance: Floats, level: int) -> Floats:
    """Return the mean absolute errors of a level, from the covariance of its populated cells."""
    _, held = cells_of(level)
    ends = np.cumsum([0, *map(len, held)])
    found = np.zeros(len(QUERIES))
    for unit, cells in enumerate(held):
        part = covariance[ends[unit] : ends[unit + 1], ends[unit] : ends[unit + 1]]
        for q, query in enumerate(QUERIES):
            rows = rows_of(query, cells)
            found[q] += np.sqrt(2 / np.pi * np.einsum("ri,ij,rj->r", rows, part, rows)).sum()
    return found / len(held)


def own_information(level: int) -> list[Floats]:
    _, held = cells_of(level)
    found = []
    for cells in held:
        weights = PRECISIONS[level] + EXACT * ((np.array(QUERIES) == "total") & (level == 0))
        parts = [rows_of(query, cells) for query in QUERIES]
        found.append(sum(w * rows.T @ rows for w, rows in zip(weights, parts, strict=True)))
    return found


def block_diagonal(parts: list[Floats]) -> Floats:
    size = sum(map(len, parts))
    found, at = np.zeros((size, size)), 0
    for part in parts:
        found[at : at + len(part), at : at + len(part)] = part
        at += len(part)
    return found


def test_over_the_whole_tree_it_is_one_system_of_least_squares() -> None:
    information = 0
    for level in range(3):
        below, _ = cells_of(level)
        information = information + below.T @ block_diagonal(own_information(level)) @ below
    covariance = np.linalg.inv(information)
    for level, found in enumerate(of(True).errors(PRECISIONS)):
        below, _ = cells_of(level)
        assert found == pytest.approx(summed(below @ covariance @ below.T, level), rel=1e-4, abs=1e-6)


def test_from_the_top_down_each_level_is_fitted_to_the_one_above() -> None:
    """The estimate of a level as a linear map of independent noise, written out."""
    sizes = [len(cells_of(level)[0]) for level in range(3)]
    noise = [np.linalg.cholesky(np.linalg.inv(block_diagonal(own_information(level)))) for level in range(3)]
    ends = np.cumsum([0, *sizes])
    own = [np.zeros((sizes[level], ends[-1])) for level in range(3)]
    for level in range(3):
        own[level][:, ends[level] : ends[level + 1]] = noise[level]
    estimate, errors = own[0], of(False).errors(PRECISIONS)
    for level in range(3):
        if level:
            above, here = cells_of(level - 1)[0], cells_of(level)[0]
            sums = ((above @ here.T) > 0).astype(float)
            covariance = noise[level] @ noise[level].T
            pull = covariance @ sums.T @ np.linalg.inv(sums @ covariance @ sums.T)
            estimate = own[level] + pull @ (estimate - sums @ own[level])
        assert errors[level] == pytest.approx(summed(estimate @ estimate.T, level), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("whole_tree", [True, False])
def test_slopes_are_those_of_small_differences(whole_tree: bool) -> None:
    tree = of(whole_tree)
    weights = np.random.default_rng(6).uniform(0.1, 1.0, PRECISIONS.shape)
    value, slopes = tree.slopes(
        PRECISIONS, lambda errors: (float((weights * errors**2).sum()), 2 * weights * errors)
    )
    assert value == pytest.approx((weights * tree.errors(PRECISIONS) ** 2).sum())
    for at in np.ndindex(*PRECISIONS.shape):
        step = np.zeros_like(PRECISIONS)
        step[at] = 1e-4 * PRECISIONS[at]
        up, down = ((weights * tree.errors(PRECISIONS + s) ** 2).sum() for s in (step, -step))
        assert slopes[at] == pytest.approx((up - down) / (2 * step[at]), rel=2e-3, abs=1e-5), at


def test_a_part_stands_for_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its geounits have as many children as those of the whole tree: with few leaves much the same errors."""
    frame = mini_frame(1, 6, 8)
    spine = standard_spine(frame)
    counts = mini_histogram(frame, mean=60.0)
    whole = Populated.of(counts, spine, PRODUCT, QUERIES, whole_tree=True)
    monkeypatch.setattr(populated, "LEAVES", 24)
    part = Populated.of(counts, spine, PRODUCT, QUERIES, whole_tree=True)
    assert part.number.tolist() == [1, 3, 24]
    assert part.ratio.tolist() == [1.0, 2.0, 1.0]
    flat = np.ones_like(PRECISIONS)
    assert part.errors(flat)[1:] == pytest.approx(whole.errors(flat)[1:], rel=0.35)
    monkeypatch.setattr(populated, "CELLS", 4)
    fewer = Populated.of(counts, spine, PRODUCT, QUERIES, whole_tree=True)
    assert fewer.geounits[0].rows.shape[1] <= 4
