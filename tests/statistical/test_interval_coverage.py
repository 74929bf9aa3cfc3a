"""Intervals hold the true count as often as they say: many draws of the noise of small trees."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.mini import mini_frame, mini_histogram, mini_product
from support.noisy_trees import MadeTree

from opendas.intervals.answers import Areas, area_intervals, batches
from opendas.intervals.tree_estimates import TreeEstimates

SEEDS = range(40)
QUERIES = ("total", "kind", "kind * minor", "detailed")


def members(query: str) -> np.ndarray:
    group = mini_product().workload.group(query)
    return group.row_of_cell[None, :] == np.arange(group.size)[:, None]


def districts(leaves: int) -> Areas:
    rng = np.random.default_rng(3)
    chosen = [np.sort(rng.choice(leaves, size, replace=False)) for size in (1, 2, 3, 5, 9, 12, 17)]
    which = np.concatenate([np.full(len(leaf), area) for area, leaf in enumerate(chosen)])
    return Areas(len(chosen), which, np.concatenate(chosen), np.ones(len(which)))


@pytest.mark.parametrize(
    ("kind", "level"),
    [("gaussian", 0.9), ("gaussian", 0.5), ("laplace", 0.9), ("laplace", 0.99)],
)
def test_coverage_on_and_off_the_spine(kind: str, level: float) -> None:
    frame = mini_frame(seed=3)
    made = MadeTree(
        mini_product(),
        frame,
        mini_histogram(frame, 3),
        mechanism=f"discrete-{kind}",
        rho=Fraction(2) if kind == "gaussian" else Fraction(4),
    )
    asked = np.concatenate([members(query) for query in QUERIES])
    spread = districts(len(frame))
    true_leaf = made.truth(len(made.levels) - 1, asked)
    true_area = np.zeros((spread.number, len(asked)))
    np.add.at(true_area, spread.which, true_leaf[spread.leaf])
    held: dict[str, list[np.ndarray]] = {}

    def add(name: str, found, truth: np.ndarray) -> None:
        known = found.variance > 1e-9
        inside = np.abs(found.estimate - truth) <= found.margin + 1e-9
        held.setdefault(name, []).append(inside[known])
        # Cutting off at what is public loses no true count.
        assert np.all(((found.lower <= truth) & (truth <= found.upper)) >= inside)

    for seed in SEEDS:
        tree = made.draw(seed)
        estimates = TreeEstimates(tree)
        for number, name in enumerate(tree.spine.names):
            codes = frame.codes(name)
            _, unit = np.unique(codes, return_inverse=True)
            truth = made.truth(number, asked)
            for start, found in batches(tree, estimates, unit, len(truth), asked, level):
                add(name, found, truth[start : start + len(found.estimate)])
        add("districts", area_intervals(tree, estimates, spread, asked, level), true_area)
    for name, parts in held.items():
        each = np.array([part.mean() for part in parts])
        error = each.std(ddof=1) / np.sqrt(len(each))
        slack = 0.01 if level < 0.99 else 0.004
        assert abs(each.mean() - level) < 4 * error + slack / 2, (name, each.mean(), error)
