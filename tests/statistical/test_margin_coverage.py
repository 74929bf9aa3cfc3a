"""Intervals on a margin of the DHC hold the true count as often as they say, in and across its geounits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.dhc_measurements import MadeCounty
from support.noisy_trees import Draw

from opendas.files.nmf.bureau_tree import BureauFile
from opendas.intervals.answers import batches
from opendas.intervals.margins import Margin, levels_told_apart
from opendas.intervals.tree_estimates import TreeEstimates
from opendas.schema.histogram import Histogram
from opendas.tables.cells import product_table

SEEDS = range(40)
MADE = MadeCounty(2, people=(400, 250, 300))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> BureauFile:
    """Levels, variances and constraints as published; the noise is drawn for each seed."""
    return BureauFile.open(MADE.write(tmp_path_factory.mktemp("made"), queries=QUERIES))


QUERIES = (
    "age_18_64_116 * relgq_4_groups",
    "age_38_groups * sex",
    "gq_constr_groups * age_10_groups",
    "popSehsdTargetsRelship",
    "relgq * age_40_groups * hispanic * cenrace * sex",
    "detailed",
)


@pytest.mark.parametrize("question", ["sex * age_38_groups", "relgq_4_groups * age_18_64_116"])
def test_coverage_at_every_geolevel(file: BureauFile, question: str) -> None:
    table = product_table(MADE.product, question)
    margin = Margin(MADE.product, levels_told_apart(MADE.product, table.class_of_cell))
    tree = file.tree(margin)
    members = np.eye(margin.product.schema.size, dtype=bool)
    leaf = [np.bincount(margin.cells[cells], minlength=len(members)) for cells in MADE.blocks]
    row, cell = np.indices((len(leaf), len(members)))
    counts = Histogram.from_entries(
        row.ravel(), cell.ravel(), np.concatenate(leaf), shape=(len(leaf), len(members))
    ).take(tree.spine.leaf_order)
    held: dict[str, list[float]] = {}
    for seed in SEEDS:
        drawn = dataclasses.replace(tree, answers=Draw(counts, tree.spine, tree.levels, seed))
        estimates = TreeEstimates(drawn)
        for name in ("county", "tract", "block"):
            codes, unit = np.unique(tree.frame.codes(name), return_inverse=True)
            truth = np.zeros((len(codes), len(members)))
            np.add.at(truth, unit.ravel(), np.stack(leaf))
            for start, found in batches(drawn, estimates, unit.ravel(), len(codes), members, 0.9):
                true = truth[start : start + len(found.estimate)]
                inside = np.abs(found.estimate - true) <= found.margin + 1e-9
                held.setdefault(name, []).append(float(inside[found.variance > 1e-9].mean()))
                assert np.all(((found.lower <= true) & (true <= found.upper)) >= inside)
    for name, parts in held.items():
        error = np.std(parts, ddof=1) / np.sqrt(len(parts))
        assert abs(np.mean(parts) - 0.9) < 4 * error + 0.005, (name, np.mean(parts), error)
