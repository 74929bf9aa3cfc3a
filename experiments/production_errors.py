"""Rhode Island 2010, persons, at the production budget, beside Tables 9 and 10 of the TopDown paper.

    python experiments/production_errors.py [DATA] [--seeds 5] [--to FOLDER]

Three settings of one state. The national preset, without the nation, gives every geounit the noise it had in
the nation's run; with it once the official block groups are on the spine, and once groups of blocks as small
as the nation's custom block groups, which like those cut across the official ones. The third setting is the
preset of the production run for Puerto Rico, which was made for a single state. Errors are taken over the
official geography throughout. Figures are means over seeds with their standard errors.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiment import (
    LEVELS,
    Key,
    Mean,
    arguments,
    average,
    deliver,
    figures_of,
    load,
    markdown,
    national_budget,
    paper_rows,
    plain,
    rhode_island,
    seeded_runs,
    write_table,
)

import opendas as od
from opendas.metrics.errors import BLOCK_BINS
from opendas.readers.input.spec import InputData
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

GROUP_SIZE = 5_892_698 / 409_548
"""Blocks in a custom block group of the nation, on average: certificate of the production run."""

KINDS = (
    ("all block groups", 0, 2016),
    ("fewer than 20 kinds of people", 0, 20),
    ("20 to 29 kinds", 20, 30),
    ("30 to 44 kinds", 30, 45),
    ("45 and more kinds", 45, 2016),
)
"""Classes of block groups by the number of cells of their histogram that are not zero."""


def with_groups() -> str:
    """Return a run file with the column ``group`` of the frame in place of the block group."""
    return f"""\
[run]
product = "pl94-persons"
[input]
reader = "histogram"
path = "histogram.parquet"
[geography]
frame = "frame.csv"
levels = [
    {{ name = "state", prefix = 2 }}, {{ name = "county", prefix = 5 }}, {{ name = "tract", prefix = 11 }},
    {{ name = "block_group", column = "group" }}, {{ name = "block" }},
]
[budget]
{national_budget()}
"""


def groups(geocodes: npt.NDArray[np.bytes_]) -> list[str]:
    """Divide the blocks of every tract into groups of about the nation's size.

    In the order of the last three digits of the block code: the first digit is the official block group.
    """
    tracts, tract_of_block = np.unique(geocodes.astype("S11"), return_inverse=True)
    last = np.array([code[12:] for code in geocodes.tolist()])
    order = np.lexsort((last, tract_of_block))
    sizes = np.bincount(tract_of_block)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[tract_of_block[order]]
    number = np.maximum(np.rint(sizes / GROUP_SIZE), 1)
    group = (rank * number[tract_of_block] / sizes[tract_of_block]).astype(np.int64)
    return [f"{tracts[t].decode()}g{g}" for t, g in zip(tract_of_block, group, strict=True)]


def settings(data: Path, folder: Path) -> tuple[InputData, dict[str, Run]]:
    """Return the truth, with the official geography, and the runs by name."""
    single = load(rhode_island(data), folder)
    truth = single.read()
    schema = pl94_persons().schema
    write_table(folder, truth.frame, truth.histogram, schema, {"group": groups(truth.frame.geocodes)})
    return truth, {
        "national preset": load(rhode_island(data, national_budget()), folder),
        "national preset, small groups": load(with_groups(), folder),
        "Puerto Rico preset": single,
    }


def noise_of_totals(run: Run) -> dict[str, float]:
    """Return the mean absolute noise of the measured total at each geolevel: sqrt(2 variance / pi)."""
    return {
        row.geolevel: math.sqrt(2 * row.variance / math.pi)
        for row in od.plan(run).rows
        if row.query == "total"
    }


def block_totals(truth: InputData, estimate: Histogram) -> dict[Key, float]:
    """Return errors of block totals by how many kinds of people live in the block group.

    Averaged with the nation's numbers of blocks of each size (Table 12), so that sizes play no part.
    """
    rows = [row for row in paper_rows(12) if row.key[3] == "mean_abs_error"]
    weights = np.array([row.geounits or 0 for row in rows], dtype=np.float64)
    population = truth.histogram.row_totals()
    errors = np.abs(estimate.row_totals() - population)
    sizes = BLOCK_BINS.of(population)
    kinds = kinds_in_block_group(truth)
    out = {}
    for label, low, high in KINDS:
        inside = (kinds >= low) & (kinds < high)
        blocks = np.bincount(sizes[inside], minlength=len(weights))
        sums = np.bincount(sizes[inside], errors[inside], minlength=len(weights))
        known = blocks > 0
        mean = float((weights[known] * sums[known] / blocks[known]).sum() / weights[known].sum())
        out["block", "total", label, "at the nation's sizes"] = mean
    return out


def kinds_in_block_group(truth: InputData) -> npt.NDArray[np.int64]:
    """Return, for each block, how many cells of the histogram of its block group are not zero."""
    counts = truth.histogram
    _, group = np.unique(truth.frame.codes("block_group"), return_inverse=True)
    of_entry = np.repeat(group, np.diff(counts.indptr)).astype(np.int64)
    distinct = np.unique(of_entry * counts.size + counts.cells)
    return np.bincount(distinct // counts.size, minlength=int(group.max()) + 1)[group]


def side_by_side(found: Mapping[str, Mapping[Key, Mean]]) -> str:
    """Return Tables 9 and 10 with our means beside baseline1 and baseline2."""
    rows = [
        (
            row.table,
            row.key[0],
            row.key[1],
            row.runs["baseline1"],
            row.runs["baseline2"],
            *(figures.get(row.key) for figures in found.values()),
        )
        for row in paper_rows(9, 10)
        if row.key[0] in LEVELS
    ]
    return markdown(("Table", "Geolevel", "Query", "baseline1", "baseline2", *found), rows)


def totals(noise: Mapping[str, Mapping[str, float]], found: Mapping[str, Mapping[Key, Mean]]) -> str:
    """Return what explains the errors of totals: the noise of their measurements, and diversity."""
    rows: list[tuple[object, ...]] = [
        ("noise of the measured total", level, *(by_level.get(level) for by_level in noise.values()))
        for level in LEVELS
    ]
    for label, _, _ in KINDS:
        key = ("block", "total", label, "at the nation's sizes")
        rows.append(
            (f"error of totals, sizes as in the nation, {label}", "block", *(f[key] for f in found.values()))
        )
    return markdown(("Mean absolute", "Geolevel", *noise), rows)


def main() -> None:
    """Run the experiment."""
    given = arguments(__doc__, seeds=5).parse_args()
    found: dict[str, dict[Key, Mean]] = {}
    noise = {}
    with tempfile.TemporaryDirectory() as folder:
        truth, runs = settings(given.data, Path(folder))
        for name, run in runs.items():
            results = seeded_runs(run, truth, range(1, given.seeds + 1))
            found[name] = average([figures_of(e) | block_totals(truth, h) for h, e in results])
            noise[name] = noise_of_totals(run)
    text = side_by_side(found) + "\n\n" + totals(noise, found)
    deliver("production_errors", text, {name: plain(f) for name, f in found.items()}, given.to)


if __name__ == "__main__":
    main()
