"""How often the margin of a published count, from replicates, holds the true count, and how wide it is.

    python experiments/margins.py [DATA] [--seeds 2] [--runs 50] [--estimators topdown informed] [--to FOLDER]

Rhode Island 2010 with the preset of one state. A seed fixes the noise of a release; its replicates are drawn
with another. For every geolevel, category and query group the part of true counts within the margin is found,
and the mean margin beside the mean half-width of the least-squares interval; for block totals also by size
of the published count. Figures where both counts are 0 are left out: they always hold.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from experiment import arguments, deliver, load, markdown, note, rhode_island
from interval_coverage import ENTITIES, LEVELS, Tally

import opendas as od
from opendas.runs.run import Run
from opendas.schema.histogram import Histogram
from opendas.tables.cells import query_table
from opendas.tables.counting import count_table

QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace")
SIZES = (0, 1, 10, 50, 200, 1 << 40)

Figures = dict[tuple[str, str], tuple[Tally, list[float], list[float]]]
"""By place and query: what held, mean margins, and mean half-widths of intervals, seed by seed."""


def figures_of(release: od.Release, truth: Histogram, figures: Figures, level: Fraction) -> None:
    """Add the margins of one release."""
    name = release.products[0]
    frame, product = release.frame(name), release.product(name)
    for place in (*LEVELS, *ENTITIES):
        grouping = frame.grouping(place)
        for query in QUERIES:
            true = count_table(truth, query_table(product, query), grouping).ravel()
            found = release.margin(query, geolevel=place, level=level).to_arrow()
            count, margin = (found.column(column).to_numpy() for column in ("count", "margin"))
            interval = release.intervals(query, geolevel=place, level=level).to_arrow().column("margin")
            width = interval.to_numpy(zero_copy_only=False)
            live = (true != 0) | (count != 0)
            add(figures, (place, query), np.abs(count - true) <= margin, margin, width, live)
            if (place, query) == ("block", "total"):
                for low, high in itertools.pairwise(SIZES):
                    sized = (count >= low) & (count < high)
                    label = f"blocks of {low}" if high == low + 1 else f"blocks of {low} to {high - 1}"
                    label = f"blocks of {low} and more" if high == SIZES[-1] else label
                    add(figures, (label, query), np.abs(count - true) <= margin, margin, width, sized)


def add(
    figures: Figures,
    key: tuple[str, str],
    held: np.ndarray,
    margin: np.ndarray,
    width: np.ndarray,
    chosen: np.ndarray,
) -> None:
    """Add some figures of one release."""
    tally, margins, widths = figures.setdefault(key, (Tally(), [], []))
    tally.add(held[chosen])
    margins.append(float(np.mean(margin[chosen])))
    widths.append(float(np.nanmean(width[chosen])))


def rows(figures: Figures, level: Fraction) -> Iterator[list[object]]:
    """Yield the rows of the table."""
    for (place, query), (tally, margins, widths) in figures.items():
        percent = None if tally.percent is None else f"{tally.percent:.1f}"
        yield [place, query, tally.total, percent, f"{np.mean(margins):.1f}", f"{np.mean(widths):.1f}"]


def margins(run: Run, seeds: range, runs: int, level: Fraction) -> Figures:
    """Release with every seed, draw replicates, and compare with the truth."""
    truth = run.read().histogram
    figures: Figures = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            release = od.release(run, out, seed=seed, measurements="full")
            od.replicates(release, runs=runs, seed=1000 + seed)
            figures_of(release, truth, figures, level)
        note(f"seed {seed}")
    return figures


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=2)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--level", type=Fraction, default=Fraction(9, 10))
    parser.add_argument("--estimators", nargs="+", default=["topdown", "informed"])
    given = parser.parse_args()
    header = ["Place", "Query", "Figures", "Within the margin, %", "Mean margin", "Half the interval"]
    for estimator in given.estimators:
        with tempfile.TemporaryDirectory() as folder:
            run = load(rhode_island(given.data, run=f'estimator = "{estimator}"'), Path(folder))
        found = margins(run, range(1, given.seeds + 1), given.runs, given.level)
        title = f"Rhode Island 2010, {estimator}, {given.seeds} seeds, {given.runs} replicates each"
        table = list(rows(found, given.level))
        records = [dict(zip(header, row, strict=True)) for row in table]
        deliver(f"margins_{estimator}", f"{title}\n\n{markdown(header, table)}", records, given.to)


if __name__ == "__main__":
    main()
