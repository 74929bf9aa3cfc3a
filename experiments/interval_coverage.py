"""How often intervals hold the true count.

    python experiments/interval_coverage.py [DATA] [--seeds 10] [--what made rhode-island] [--to FOLDER]

A seed fixes all noise of a run. For every geolevel, entity category and a few hundred districts drawn at
random, and every query group, the part of true counts is found that lie

* within the interval of the least-squares estimate, as it is,
* within it, cut off at what bounds, exact totals and non-negativity imply,
* within the estimate's margin of the published count, and
* within the margin of error that tables print beside the published count, where they print one.

Counts that are exact (closed categories, invariants) are left out: their intervals always hold. Rhode Island
2010 with the preset of one state, ten seeds; and a synthetic state of some hundred blocks, many seeds.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from experiment import arguments, deliver, load, markdown, note, rhode_island

import opendas as od
from opendas.demo import write_demo
from opendas.files.release_folder import ReleaseFolder
from opendas.files.release_tree import noisy_tree
from opendas.intervals.answers import LAWS, Areas, Intervals, area_intervals
from opendas.intervals.laws import EXACT, NORMAL
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.tables.cells import Table, query_table
from opendas.tables.counting import count_table
from opendas.tables.interval_tables import MeasuredProduct
from opendas.tables.tabulate import NO_MARGIN, margins

QUERIES = ("total", "votingage", "hispanic", "cenrace", "hhgq", "hispanic * cenrace", "detailed")
LEVELS = ("county", "tract", "block_group", "block")
ENTITIES = ("place", "cousub", "sldl")
DISTRICTS = 200
KINDS = ("estimate", "cut off", "count ± margin", "count ± printed margin")
LEAST = 50
"""Fewer intervals in all seeds say nothing."""

_CLOSE = 1e-7


@dataclass(slots=True)
class Tally:
    """Intervals and how many held, seed by seed."""

    number: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def add(self, held: np.ndarray) -> None:
        """Add the intervals of one seed, bool."""
        self.number.append(int(held.size))
        self.held.append(int(held.sum()))

    @property
    def total(self) -> int:
        """Intervals of all seeds."""
        return sum(self.number)

    @property
    def percent(self) -> float | None:
        """Coverage in percent."""
        return 100 * sum(self.held) / self.total if self.total >= LEAST else None

    @property
    def error(self) -> float:
        """Standard error of the coverage over seeds, in percent points."""
        if len(self.number) < 2 or not self.total:
            return 0.0
        each = [100 * held / number for held, number in zip(self.held, self.number, strict=True) if number]
        return float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else 0.0


Tallies = dict[tuple[str, str, str], Tally]
"""By geolevel, query and kind of interval; ``unusual`` counts the laws that are not normal."""


def random_districts(leaves: int, number: int, seed: int) -> Areas:
    """Draw sets of leaves: half of them scattered, half runs of neighbours, one to some thousand."""
    rng = np.random.default_rng(seed)
    which, leaf = [], []
    for area in range(number):
        size = int(np.exp(rng.uniform(0, math.log(min(leaves // 3, 5000)))))
        if area % 2:
            first = int(rng.integers(0, leaves - size))
            chosen = np.arange(first, first + size)
        else:
            chosen = np.sort(rng.choice(leaves, size, replace=False))
        which.append(np.full(len(chosen), area))
        leaf.append(chosen)
    return Areas(number, np.concatenate(which), np.concatenate(leaf), np.ones(sum(map(len, leaf))))


def score(
    tallies: Tallies,
    place: tuple[str, str],
    found: Intervals,
    truth: np.ndarray,
    counts: np.ndarray,
    printed: np.ndarray | None,
) -> None:
    """Count which intervals hold."""
    known = (found.law != LAWS.index(EXACT)) & np.isfinite(found.variance)
    error = np.abs(found.estimate - truth) - found.margin
    held = {
        "estimate": error <= _CLOSE,
        "cut off": (found.lower <= truth) & (truth <= found.upper),
        "count ± margin": np.abs(counts - truth) <= found.margin + _CLOSE,
    }
    for kind, one in held.items():
        tallies.setdefault((*place, kind), Tally()).add(one[known])
    unusual = (found.law != LAWS.index(NORMAL))[known]
    tallies.setdefault((*place, "unusual"), Tally()).add(unusual)
    if printed is not None:
        some = known & (printed != NO_MARGIN)
        if some.any():
            held_printed = np.abs(counts - truth)[some] <= printed[some]
            tallies.setdefault((*place, KINDS[3]), Tally()).add(held_printed)


def places(measured: MeasuredProduct) -> Iterator[str]:
    """Yield the geolevels and categories that there are."""
    frame = measured.tree.frame
    for name in (*LEVELS, *ENTITIES):
        if name in frame.geolevels or (name in frame.entities and (frame.entities[name] != b"").any()):
            yield name


def together(measured: MeasuredProduct, queries: Sequence[str]) -> tuple[Table, dict[str, slice]]:
    """Return the rows of several query groups as one table, and where each one's stand."""
    tables = [query_table(measured.tree.product, query) for query in queries]
    ends = np.cumsum([0, *(len(table.columns) for table in tables)])
    rows = {query: slice(int(ends[k]), int(ends[k + 1])) for k, query in enumerate(queries)}
    columns = tuple(str(k) for k in range(int(ends[-1])))
    return Table("all", columns, columns, np.concatenate([table.members for table in tables])), rows


def columns_of(found: Intervals, chosen: slice) -> Intervals:
    """Return some columns of intervals."""
    return Intervals(
        found.confidence,
        found.estimate[:, chosen],
        found.variance[:, chosen],
        found.lower[:, chosen],
        found.upper[:, chosen],
        found.margin[:, chosen],
        found.law[:, chosen],
    )


def one_seed(
    measured: MeasuredProduct, truth: Histogram, tallies: Tallies, level: Fraction, queries: Sequence[str]
) -> None:
    """Score every place and query of one release."""
    tree, released, microdata = measured.tree, measured.released, measured.microdata
    if released is None or microdata is None:
        raise ValueError("coverage is that of a release")
    table, columns = together(measured, queries)
    for name in places(measured):
        grouping = tree.frame.grouping(name)
        true = count_table(truth, table, grouping)
        counts = count_table(microdata, table, grouping)
        printed = margins(released, table, grouping, level)
        batches = [part for _, part in measured.batches(table, grouping, level)]
        found = Intervals.joined(batches, float(level), len(table.columns))
        for query, chosen in columns.items():
            part = columns_of(found, chosen)
            score(tallies, (name, query), part, *(x[:, chosen] for x in (true, counts, printed)))
    districts = random_districts(len(tree.frame), DISTRICTS, seed=1)
    found = area_intervals(tree, measured.estimates, districts, table.members, float(level))
    true, counts = (
        _district_counts(one, table, tree.spine.leaf_order, districts) for one in (truth, microdata)
    )
    for query, chosen in columns.items():
        part = columns_of(found, chosen)
        score(tallies, ("random district", query), part, true[:, chosen], counts[:, chosen], None)


def _district_counts(counts: Histogram, table: Table, leaf_order: np.ndarray, districts: Areas) -> np.ndarray:
    dense = np.zeros((districts.number, counts.cells.max() + 1 if len(counts.cells) else 1), dtype=np.int64)
    ordered = counts.take(leaf_order)
    for area in range(districts.number):
        leaves = districts.leaf[districts.which == area]
        part = ordered.take(leaves)
        np.add.at(dense[area], part.cells, part.counts)
    return dense @ table.members[:, : dense.shape[1]].T


def coverage(run: Run, seeds: Sequence[int], level: Fraction, queries: Sequence[str]) -> Tallies:
    """Release with every seed and count which intervals hold."""
    truth = run.read()
    tallies: Tallies = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            od.release(run, out, seed=seed, measurements="full", workers=1)
            released = ReleaseFolder(out)[run.product.name]
            measured = MeasuredProduct(noisy_tree(released), released)
            one_seed(measured, truth.histogram, tallies, level, queries)
        note(f"seed {seed}")
    return tallies


def report(tallies: Tallies, level: Fraction, title: str) -> str:
    """Return the tables of one state."""
    places = list(dict.fromkeys(place for place, _, _ in tallies))
    queries = list(dict.fromkeys(query for _, query, _ in tallies))
    parts = [title]
    for kind in KINDS:
        rows = []
        for place in places:
            row: list[object] = [place]
            for query in queries:
                tally = tallies.get((place, query, kind))
                percent = None if tally is None else tally.percent
                row.append(None if percent is None or tally is None else f"{percent:.1f} ± {tally.error:.1f}")
            rows.append(row)
        parts.append(f"**{kind}**, nominal {float(100 * level):g} %:")
        parts.append(markdown(["Place", *queries], rows))
    rows = []
    for place in places:
        found = [tallies[place, query, "unusual"] for query in queries]
        number = [sum(tally.number) // max(1, len(tally.number)) for tally in found]
        share = [100 * sum(t.held) / t.total if t.total else None for t in found]
        rows.append(
            [
                place,
                *(f"{n:,}" + ("" if not s else f" ({s:.0f} %)") for n, s in zip(number, share, strict=True)),
            ]
        )
    parts.append("Intervals a seed (in brackets: the part whose law is not the normal one):")
    parts.append(markdown(["Place", *queries], rows))
    return "\n\n".join(parts)


def figures(tallies: Tallies) -> list[dict[str, object]]:
    """Return all tallies for JSON."""
    return [
        {
            "place": place,
            "query": query,
            "kind": kind,
            "intervals": t.total,
            "percent": t.percent,
            "error": t.error,
        }
        for (place, query, kind), t in tallies.items()
    ]


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=10)
    parser.add_argument("--what", nargs="+", default=["rhode-island", "made"])
    parser.add_argument("--level", type=Fraction, default=Fraction(9, 10))
    parser.add_argument("--queries", nargs="+", default=list(QUERIES))
    parser.add_argument("--blocks", type=int, default=300, help="blocks of the synthetic state")
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    for what in given.what:
        with tempfile.TemporaryDirectory() as folder:
            if what == "made":
                persons, _ = write_demo(Path(folder), blocks=given.blocks)
                run, title = od.load(persons), f"A synthetic state, {given.blocks} blocks, {len(seeds)} seeds"
            else:
                run = load(rhode_island(given.data), Path(folder))
                title = f"Rhode Island 2010, {len(seeds)} seeds"
            tallies = coverage(run, seeds, given.level, given.queries)
        deliver(f"coverage_{what}", report(tallies, given.level, title), figures(tallies), given.to)


if __name__ == "__main__":
    main()
