"""How often the margin of a published count, from replicates, holds the true count, and how wide it is.

    python experiments/margins.py [DATA] [--what rhode-island synthetic] [--seeds 2] [--runs 50] [--to FOLDER]

Rhode Island 2010 with the preset of one state, and a synthetic state of some hundred blocks. A seed fixes the
noise of a release; its replicates are drawn with another. For every geolevel, category and query group three
intervals are compared with the true counts: the published count and its margin, the least-squares estimate
and its interval, and the one of the two that is shorter on average (`opendas margin --shortest`). For block
totals also by size of the published count. Left out are figures where both counts are 0, which always hold,
and those that are exact.
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
from opendas.demo import write_demo
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.tables.cells import query_table
from opendas.tables.counting import count_table

QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace")
SIZES = (0, 1, 10, 50, 200, 1 << 40)
BLOCKS = 600
"""Of the synthetic state."""

KINDS = ("margin", "interval", "shortest")
Figures = dict[tuple[str, str], dict[str, tuple[Tally, list[float]]]]
"""By place and query, for each kind of interval: how many held, and mean half-widths, seed by seed."""


def figures_of(release: od.Release, truth: Histogram, figures: Figures, level: Fraction) -> None:
    """Add the intervals of one release."""
    frame, product = release.frame(), release.product(release.products[0])
    for place in (*LEVELS, *ENTITIES):
        if place not in (*frame.levels, frame.leaf, *frame.entities):
            continue
        for query in QUERIES:
            found = release.margin(query, geolevel=place, level=level).to_arrow()
            count, margin = (found.column(column).to_numpy() for column in ("count", "margin"))
            ends = {"margin": (count - margin, count + margin)}
            for kind, table in (
                ("interval", release.intervals(query, geolevel=place, level=level)),
                ("shortest", release.shortest(query, geolevel=place, level=level)),
            ):
                low, high = (
                    table.to_arrow().column(end).to_numpy(zero_copy_only=False) for end in ("lower", "upper")
                )
                ends[kind] = (low.astype(float), high.astype(float))
            true = truth_of(truth, release, query, place, product)
            low, high = ends["interval"]
            live = ((true != 0) | (count != 0)) & ~(high - low <= 0)
            add(figures, (place, query), ends, true, live)
            if (place, query) == ("block", "total"):
                for low_size, high_size in itertools.pairwise(SIZES):
                    label = f"blocks of {low_size} to {high_size - 1}" if high_size > 1 else "blocks of 0"
                    label = f"blocks of {low_size} and more" if high_size == SIZES[-1] else label
                    sized = (count >= low_size) & (count < high_size) & ~(high - low <= 0)
                    add(figures, (label, query), ends, true, sized)


def truth_of(truth: Histogram, release: od.Release, query: str, place: str, product: Product) -> np.ndarray:
    """Return true counts in the rows of :meth:`opendas.Release.margin`."""
    geocodes = release.margin(query, geolevel=place).to_arrow().column("geocode").to_pylist()
    grouping, table = release.frame().grouping(place), query_table(product, query)
    counts = count_table(truth, table, grouping)
    row = {bytes(code).decode(): number for number, code in enumerate(grouping.geocodes)}
    areas = geocodes[:: counts.shape[1]]
    none = np.zeros(counts.shape[1], dtype=np.int64)
    return np.concatenate([counts[row[area]] if area in row else none for area in areas])


def add(
    figures: Figures,
    key: tuple[str, str],
    ends: dict[str, tuple[np.ndarray, np.ndarray]],
    true: np.ndarray,
    chosen: np.ndarray,
) -> None:
    """Add some figures of one release."""
    kinds = figures.setdefault(key, {kind: (Tally(), []) for kind in KINDS})
    if not chosen.any():
        return
    for kind, (low, high) in ends.items():
        tally, widths = kinds[kind]
        tally.add(((low <= true) & (true <= high))[chosen])
        widths.append(float(np.nanmean((high - low)[chosen])) / 2)


def rows(figures: Figures) -> Iterator[list[object]]:
    """Yield the rows of the table."""
    for (place, query), kinds in figures.items():
        row: list[object] = [place, query, kinds["margin"][0].total]
        for tally, widths in kinds.values():
            row.append(None if tally.percent is None else f"{tally.percent:.1f}")
            row.append(f"{np.mean(widths):.1f}" if widths else None)
        yield row


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
    parser.add_argument("--what", nargs="+", default=["rhode-island", "synthetic"])
    given = parser.parse_args()
    header = ["Place", "Query", "Figures"]
    for kind in ("Margin", "Interval", "Shortest"):
        header += [f"{kind} holds, %", "half"]
    for what in given.what:
        with tempfile.TemporaryDirectory() as folder:
            if what == "synthetic":
                run = od.load(write_demo(Path(folder) / "input", BLOCKS)[0])
            else:
                run = load(rhode_island(given.data), Path(folder))
            found = margins(run, range(1, given.seeds + 1), given.runs, given.level)
        title = f"{what}, {given.seeds} seeds, {given.runs} replicates each"
        table = list(rows(found))
        records = [
            {"place": row[0], "query": row[1], "figures": row[2], "held_and_half_widths": row[3:]}
            for row in table
        ]
        deliver(f"margins_{what}", f"{title}\n\n{markdown(header, table)}", records, given.to)


if __name__ == "__main__":
    main()
