"""The posterior of blocks beside least squares, at identical measurements.

    python experiments/posterior.py [DATA] [--first 1] [--seeds 10] [--plans production ...] [--to FOLDER]
        [--blocks BLOCKS.csv]

Rhode Island 2010, persons. Each pair of runs has the same seed, hence the same noisy answers, and the same
estimates of block groups; only blocks differ. Pairs: the production's shares, the two plans of equal rho
(``experiments/equal_rho.py``), and the production's shares without public units, so that nothing but the
noisy answers says how large a block is. ``made`` is the synthetic state of ``opendas demo`` with the
production's shares: its blocks are of another shape. ``earlier census`` gives the posterior a prior table
that is made for it: of a block's people a part was there ten years ago, the others are drawn from its block
group, and the block was larger or smaller. ``tracts`` are the thirteen states of 2020 with tracts as leaves
and counties above; ``Rhode Island tracts`` are those of one state, ``from 2010`` with its 2010 census by
tract as a prior table, where the code is the same. ``another state`` takes the blocks of ``--blocks``, a CSV
(see ``experiment.another_state``), without public units.

A change is the mean difference in percent of the mean error of ``informed``, with its standard error over
seeds. Negative is better. Rows of Tables 9 to 13 of the TopDown paper stand beside the paper's own. Then how
many true counts of blocks, and of half a block group's blocks together, lie in the 90 % credible intervals of
the draws that the release was chosen from, by size, by race, and where the interval is above zero, and how
wide these are.

The same by what is released, which is all that a reader sees; and errors of blocks that are sorted by the
truth, by a draw in its place, and by the release.

Then what can be gained: the error that each release expects if the truth is one of the draws, so if the prior
is right, and so is the block group; and the least that any table can expect which adds up to the block group.
And what every eighth block group gains where its own counts are the true ones.

Then a synthetic block group in which one block houses 3,000 students, where the prior expects fifty people:
what the estimate is for more and more noise.
"""

from __future__ import annotations

import csv
import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from equal_rho import bias, changes
from experiment import (
    Figures,
    another_state,
    arguments,
    average,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    paper_rows,
    rhode_island,
    write_table,
)
from tract_nation import TRACTS, read_nation, run_file

import opendas as od
from opendas.constraints.table import LevelConstraints
from opendas.demo import write_demo
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.metrics.evaluate import evaluate
from opendas.metrics.race_groups import GROUPS, blau_index, group_of_cell
from opendas.readers.input.spec import InputData
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons
from opendas.schema.query_groups import QueryGroup
from opendas.topdown.constraint_groups import Groups
from opendas.topdown.family_data import FamilyData, LevelRules
from opendas.topdown.model import Family
from opendas.topdown.posterior import Posterior, posterior_table

ESTIMATORS = ("informed", "posterior")
PLANS = {
    "production": "pr2020-persons",
    "kept": "opendas2026-persons",
    "blocks": "opendas2026-blocks-persons",
    "production, no units": "pr2020-persons",
    "made": "pr2020-persons",
    "earlier census": "pr2020-persons",
    "earlier census, others": "pr2020-persons",
    "tracts": "us2020-persons",
    "Rhode Island tracts": "us2020-persons",
    "Rhode Island tracts, from 2010": "us2020-persons",
    "another state": "pr2020-persons",
}
STAYED = {"earlier census": (0.5, 0.2), "earlier census, others": (0.0, 0.5)}
"""Part of a block's people who stayed, and the standard deviation of the logarithm of its growth."""
MADE_BLOCKS = 1500
Found = Mapping[str, Sequence[Figures]]


def runs_of(plan: str, data: Path, folder: Path, blocks: Path | None = None) -> dict[str, Run]:
    """Return the run of each estimator; `blocks` is the file of another state."""
    found = {}
    if plan == "another state":
        if blocks is None:
            raise SystemExit("the plan 'another state' takes --blocks BLOCKS.csv")
        return {
            name: another_state(blocks, folder, f'preset = "{PLANS[plan]}"', f'estimator = "{name}"')
            for name in ESTIMATORS
        }
    made = write_demo(folder / "made", MADE_BLOCKS)[0] if plan == "made" else None
    if "tracts" in plan:
        tracts = write_tracts(plan, data, folder)
        return {
            name: load(tracts[name == "posterior"].replace("[run]", f'[run]\nestimator = "{name}"'), folder)
            for name in ESTIMATORS
        }
    for name in ESTIMATORS:
        budget, estimator = f'preset = "{PLANS[plan]}"', f'estimator = "{name}"'
        if made:
            text = made.read_text(encoding="utf-8").replace("[run]", f"[run]\n{estimator}", 1)
            found[name] = load(text, made.parent)
            continue
        run = load(rhode_island(data, budget, run=estimator), folder)
        if plan in STAYED and name == "posterior":
            write_earlier(run, folder / "earlier.csv", *STAYED[plan])
            run = load(rhode_island(data, budget, run=estimator, more=PRIOR), folder)
        found[name] = run.changed(product=replace(run.product, bounds=())) if "no units" in plan else run
    return found


PRIOR = """\
[prior]
path = "earlier.csv"
name = "an earlier census, made for this experiment"
query = "hispanic * cenrace"
"""


def write_prior(path: Path, query: QueryGroup, geocodes: Sequence[str], table: npt.NDArray[np.int64]) -> None:
    """Write counts of the rows of a query group, int64 (leaves, rows), as a prior table."""
    leaves, rows = np.nonzero(table)
    labels = [query.row_label(row).split(" * ") for row in range(query.size)]
    with path.open("w", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [
                ("geocode", *query.factors, "count"),
                *(
                    (geocodes[leaf], *labels[row], int(table[leaf, row]))
                    for leaf, row in zip(leaves, rows, strict=True)
                ),
            ]
        )


def write_earlier(run: Run, path: Path, stayed: float, growth: float) -> None:
    """Write an earlier census of blocks, made from this one."""
    truth, rng = run.read(), np.random.default_rng(2000)
    query = run.product.workload.group("hispanic * cenrace")
    table = by_rows(truth.histogram, query)
    above = truth.frame.codes("block_group")
    for code in np.unique(above):
        here = np.flatnonzero(above == code)
        people = table[here].sum(axis=0)
        kept = rng.binomial(table[here], stayed)
        sizes = np.rint(table[here].sum(axis=1) * np.exp(rng.normal(0.0, growth, len(here))))
        others = np.maximum(0, sizes - kept.sum(axis=1)).astype(np.int64)
        table[here] = kept + rng.multinomial(others, people / max(1, people.sum()))
    write_prior(path, query, truth.frame.geocodes.astype(str).tolist(), table)


def by_rows(counts: Histogram, query: QueryGroup) -> npt.NDArray[np.int64]:
    """Return the answers of a query group in every leaf."""
    found = np.zeros((counts.rows, query.size), np.int64)
    leaf = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    np.add.at(found, (leaf, query.row_of_cell[counts.cells]), counts.counts)
    return found


def write_tracts(plan: str, data: Path, folder: Path) -> tuple[str, str]:
    """Write the tracts of 2020, and what they were; return the run files without and with a prior table."""
    nation = read_nation(data / TRACTS)
    frame, persons = nation.frame, nation.persons
    text = run_file("pl94-persons")
    if plan != "tracts":
        here = np.char.startswith(frame.geocodes, b"44")
        first, stop = np.flatnonzero(here)[[0, -1]] + (0, 1)
        frame, persons = frame.take(np.arange(first, stop)), persons.slice(first, stop)
    product = pl94_persons()
    write_table(folder, frame, persons, product.schema, {})
    if "from 2010" not in plan:
        return text, text
    query = product.workload.group("hispanic * cenrace")
    before = load(rhode_island(data), folder).read()
    tract, blocks = np.unique(before.frame.geocodes.astype("S11"), return_inverse=True)
    table = np.zeros((len(tract), query.size), np.int64)
    np.add.at(table, blocks, by_rows(before.histogram, query))
    same = np.isin(tract, frame.geocodes)
    note(f"{same.sum()} of {len(frame.geocodes)} tracts have the code of one of 2010")
    write_prior(folder / "earlier.csv", query, tract[same].astype(str).tolist(), table[same])
    return text, text + PRIOR.replace("an earlier census, made for this experiment", "2010 census, by tract")


def zeros(truth: Histogram, estimate: Histogram) -> dict[str, float]:
    """Return the share of empty blocks that got people, and how many populated ones lost all."""
    exact, ours = truth.row_totals(), estimate.row_totals()
    populated = float(100 * np.mean(ours[exact == 0] > 0)) if (exact == 0).any() else 0.0
    return {"empty populated, %": populated, "emptied": float(((exact > 0) & (ours == 0)).sum())}


QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace", "detailed")
SIZES = ((0, 1), (1, 3), (3, 10), (10, 100), (100, 1000), (1000, 10**9))


RACES = ("white", "black", "American Indian", "Asian", "Pacific", "some other race")
Covered = dict[tuple[str, str], tuple[int, int, float]]


@contextmanager
def kept() -> Iterator[list[tuple[FamilyData, npt.NDArray[np.int32]]]]:
    """Keep every family's draws for a while; only in this process."""
    found: list[tuple[FamilyData, npt.NDArray[np.int32]]] = []
    with patch.object(Posterior, "keep", lambda _, data, draws: found.append((data, draws))):
        yield found


def coverage(
    run: Run,
    release: Histogram,
    truth: InputData,
    draws: Sequence[tuple[FamilyData, npt.NDArray[np.int32]]],
) -> Covered:
    """Count true counts, those in the 90 % interval of their draws, and the intervals' widths.

    Of single blocks, by what they truly have and by what the release says, and of every second block of a
    block group together. Cells that the block group does not have are left out: the release says that there
    is nobody.
    """
    found: Covered = {}

    def add(query: str, label: str, inside: npt.NDArray[np.bool_], width: npt.NDArray[np.int64]) -> None:
        number, held, sum_ = found.get((query, label), (0, 0, 0.0))
        found[query, label] = number + inside.size, held + int(inside.sum()), sum_ + float(width.sum())

    for data, tables in draws:
        exact, ours = exact_counts(truth, data), exact_counts(replace(truth, histogram=release), data)
        for query in QUERIES:
            true, drawn, rows = by_query(run, query, data, exact, tables)
            released = by_query(run, query, data, ours, tables)[0]
            lower, upper = middle(drawn)
            inside, width = (lower <= true) & (true <= upper), upper - lower
            open_ = np.broadcast_to(data.usable.any(axis=1)[:, None], true.shape)
            add(query, "all", inside[open_], width[open_])
            add(query, "above zero", inside[open_ & (lower > 0)], width[open_ & (lower > 0)])
            for (least, most), (by, count) in itertools.product(
                SIZES, (("true", true), ("released", released))
            ):
                here = (count >= least) & (count < most) & open_
                add(query, f"{by}, {least:,} to {most - 1:,}", inside[here], width[here])
            if query == "cenrace":
                for race, name in enumerate(RACES):
                    here = open_ & (rows == race)[None, :]
                    add("race alone", name, inside[here], width[here])
            lower, upper = middle(drawn[:, ::2].sum(axis=1))
            sums = true[::2].sum(axis=0)
            add("sums", query, (lower <= sums) & (sums <= upper), upper - lower)
    return found


def exact_counts(truth: InputData, data: FamilyData) -> npt.NDArray[np.int64]:
    """Return the true counts of a family's children, int64 (C, n)."""
    leaves = np.searchsorted(truth.frame.geocodes, data.geocodes)
    return np.stack([truth.histogram.dense(leaf) for leaf in leaves.tolist()])


def by_query(
    run: Run, query: str, data: FamilyData, exact: npt.NDArray[np.int64], tables: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return counts and draws of the rows of a query group that the family has, and which rows these are."""
    rows = run.product.workload.group(query).row_of_cell
    used, compact = np.unique(rows[data.cells], return_inverse=True)
    true = np.stack([exact[:, rows == row].sum(axis=1) for row in used], axis=1)
    return true, tables @ np.eye(len(used), dtype=np.int32)[compact], used


def middle(drawn: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the ends of the middle 90 % of draws."""
    ordered, tail = np.sort(drawn, axis=0), int(0.05 * len(drawn))
    return ordered[tail], ordered[-1 - tail]


def expected(
    run: Run,
    releases: Mapping[str, Histogram],
    truth: InputData,
    draws: Sequence[tuple[FamilyData, npt.NDArray[np.int32]]],
) -> list[Sequence[object]]:
    """Return a block's mean absolute error if the truth is a draw: of releases, and the least of any table.

    That table has, for a row, the same quantile in all children, such that they add up to the parent: errors
    are convex, and going on to the next draw costs as much in each child.
    """
    sums: dict[tuple[str, str], float] = {}
    blocks = sum(len(tables[0]) for _, tables in draws)
    for data, tables in draws:
        counts = {
            name: exact_counts(replace(truth, histogram=estimate), data)
            for name, estimate in releases.items()
        }
        for query in QUERIES:
            for name, table in counts.items():
                ours, drawn, _ = by_query(run, query, data, table, tables)
                sums[name, query] = sums.get((name, query), 0.0) + float(
                    np.abs(drawn - ours).sum() / len(drawn)
                )
            for row, total in enumerate(ours.sum(axis=0)):  # both releases have the block group's
                least = least_error(drawn[:, :, row], int(total))
                sums["least", query] = sums.get(("least", query), 0.0) + least
    return [(query, *(sums[name, query] / blocks for name in (*releases, "least"))) for query in QUERIES]


def known_parents(
    run: Run,
    releases: Mapping[str, Histogram],
    truth: InputData,
    draws: Sequence[tuple[FamilyData, npt.NDArray[np.int32]]],
) -> list[Sequence[object]]:
    """Return mean absolute errors in every eighth block group: of releases, and with its true counts.

    People in cells that the released block group does not have stay outside in the last.
    """
    errors: dict[tuple[str, str], list[npt.NDArray[np.int64]]] = {}
    for data, _ in draws[::8]:
        exact = exact_counts(truth, data)
        tables = {name: exact_counts(replace(truth, histogram=ours), data) for name, ours in releases.items()}
        start = exact[:, data.cells]
        family = replace(data.family, parent=start.sum(axis=0))
        found = posterior_table(family, data.rules, data.measurement, data.groups, start)
        if found is None:
            continue
        tables["true block group"] = exact.copy()
        tables["true block group"][:, data.cells] = found[0]
        for query in QUERIES:
            rows = run.product.workload.group(query).row_of_cell
            for name, table in tables.items():
                error = np.zeros((rows.max() + 1, len(table)), np.int64)
                np.add.at(error, rows, (table - exact).T)
                errors.setdefault((name, query), []).append(np.abs(error).sum(axis=0))
    names = (*releases, "true block group")
    mean = {key: float(np.concatenate(several).mean()) for key, several in errors.items()}
    return [(query, *(mean[name, query] for name in names)) for query in QUERIES]


def sorted_blocks(
    run: Run,
    releases: Mapping[str, Histogram],
    truth: InputData,
    draws: Sequence[tuple[FamilyData, npt.NDArray[np.int32]]],
) -> list[Sequence[object]]:
    """Return mean signed errors of block totals, of blocks sorted in three ways.

    By their true people, by those of a draw that stands for the truth (what errors would be if the prior were
    right; mean over every eighth draw), and by those that the posterior's release says.
    """
    groups = group_of_cell(run.product.schema)

    def by_group(cells: npt.NDArray[np.int32], tables: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        found = np.zeros((len(GROUPS), len(tables)), np.int64)
        np.add.at(found, groups[cells], tables.T)
        return found.T

    every = np.arange(run.product.schema.size, dtype=np.int32)
    exact = np.concatenate([by_group(every, exact_counts(truth, data)) for data, _ in draws])
    ours = {
        name: np.concatenate(
            [by_group(every, exact_counts(replace(truth, histogram=release), data)) for data, _ in draws]
        )
        for name, release in releases.items()
    }
    drawn = [
        np.concatenate([by_group(data.cells, tables[k].astype(np.int64)) for data, tables in draws])
        for k in range(0, min(len(tables) for _, tables in draws), 8)
    ]

    def signed(
        counts: npt.NDArray[np.int64], true: npt.NDArray[np.int64], by: npt.NDArray[np.int64]
    ) -> list[float]:
        error, size = counts.sum(axis=1) - true.sum(axis=1), by.sum(axis=1)
        rank = np.argsort(np.argsort(blau_index(by), kind="stable"), kind="stable")
        classes = [(size >= least) & (size < most) for least, most in SIZES]
        fifth = np.maximum((5 * rank) // len(by), 1)  # the first two are those of one group, and nobody's
        classes += [fifth == k for k in range(1, 5)]
        return [float(error[here].mean()) if here.any() else math.nan for here in classes]

    columns = [
        *(signed(ours[name], exact, exact) for name in releases),
        *(np.mean([signed(ours[name], draw, draw) for draw in drawn], axis=0).tolist() for name in releases),
        signed(ours["posterior"], exact, ours["posterior"]),
    ]
    labels = [
        *(f"{least:,} to {most - 1:,}" for least, most in SIZES),
        "Blau 1 and 2",
        *(f"Blau {k}" for k in range(3, 6)),
    ]
    rows = zip(labels, *columns, strict=True)
    return [(label, *(None if math.isnan(mean) else mean for mean in means)) for label, *means in rows]


def least_error(drawn: npt.NDArray[np.int32], total: int) -> float:
    """Return the least expected absolute error of counts with a sum, from draws of them, (k, C)."""
    ordered = np.sort(drawn, axis=0)
    error = np.array([np.abs(ordered - one).sum() for one in ordered]) / len(drawn)
    return float(np.interp(total, ordered.sum(axis=1), error))


def compared(
    plan: str, data: Path, seeds: Sequence[int], blocks: Path | None
) -> tuple[Found, Mapping[str, list[dict[str, float]]], list[Covered], list[list[Sequence[object]]]]:
    """Release with each estimator and seed, and compare with the truth."""
    found: dict[str, list[Figures]] = {name: [] for name in ESTIMATORS}
    empty: dict[str, list[dict[str, float]]] = {name: [] for name in ESTIMATORS}
    covered: list[Covered] = []
    limits: list[list[Sequence[object]]] = []
    with tempfile.TemporaryDirectory() as name:
        runs = runs_of(plan, data, Path(name), blocks)
        truth = next(iter(runs.values())).read()
        for seed in seeds:
            releases: dict[str, Histogram] = {}
            for estimator, run in runs.items():
                with tempfile.TemporaryDirectory() as out, kept() as draws:
                    release = od.release(run, Path(out) / "out", seed=seed, workers=1)
                    fallbacks = release.certificate["runs"][0]["fallbacks"]
                    estimate = release.estimate(run.product.name)
                releases[estimator] = estimate
                evaluation = evaluate(truth.histogram, estimate, truth.frame, run.product, entities=True)
                found[estimator].append(figures_of(evaluation))
                empty[estimator].append(zeros(truth.histogram, estimate))
                note(f"{plan}, {estimator}, seed {seed} done; {fallbacks} families by a fallback")
            covered.append(coverage(run, releases["posterior"], truth, draws))
            limits = limits or [
                find(run, releases, truth, draws) for find in (expected, known_parents, sorted_blocks)
            ]
    return found, empty, covered, limits


def covered_table(covered: Sequence[Covered]) -> str:
    """Return coverage and mean width over seeds: by query and size, by race, and of sums."""

    def of(query: str, label: str) -> tuple[float | None, float | None]:
        number, inside, width = np.sum([one.get((query, label), (0, 0, 0)) for one in covered], axis=0)
        return (float(100 * inside / number), float(width / number)) if number else (None, None)

    sizes = [f"{least:,} to {most - 1:,}" for least, most in SIZES]
    tables = []
    for by in ("true", "released"):
        rows = [
            (
                query,
                *of(query, "all"),
                *(of(query, f"{by}, {size}")[0] for size in sizes),
                of(query, "above zero")[0],
            )
            for query in QUERIES
        ]
        head = (f"90 % intervals, by {by} count: covered, %", "all", "mean width", *sizes, "above zero")
        tables.append(markdown(head, rows))
    return "\n\n".join(
        (
            *tables,
            markdown(("Race alone", "covered, %", "mean width"), [(r, *of("race alone", r)) for r in RACES]),
            markdown(
                ("Every second block together", "covered, %", "mean width"),
                [(query, *of("sums", query)) for query in QUERIES],
            ),
        )
    )


def beside_the_paper(found: Found) -> str:
    """Return the rows of Tables 9 to 13 at blocks and tracts: the paper's, and both estimators'."""
    means = {name: average(several) for name, several in found.items()}
    rows = [
        (row.table, *row.key, row.runs["baseline1"], *(means[name][row.key] for name in ESTIMATORS))
        for row in paper_rows(9, 10, 11, 12, 13)
        if all(row.key in means[name] for name in ESTIMATORS)
    ]
    return markdown(("Table", "Geolevel", "Query", "Class", "Metric", "Paper", *ESTIMATORS), rows)


def students(variance: float, seed: int) -> tuple[int, int]:
    """Return the noisy total of a block of 3,000 people among blocks of fifty, and its estimate.

    All twenty blocks have as many units; total and detailed cells are measured.
    """
    rng = np.random.default_rng(seed)
    table = rng.multinomial(50, [0.3, 0.1, 0.6], size=20).astype(np.int64)
    table[7] = [2400, 500, 100]
    cells, support = np.zeros(3, np.int32), np.arange(3, dtype=np.int32)
    upper = np.full((20, 1), 400 * 99)
    family = Family(
        "synthetic",
        support,
        table.sum(axis=0),
        LevelConstraints(np.zeros_like(upper), upper, ()),
        np.arange(20, dtype=np.uint64),
    )
    rules = LevelRules(
        "block", ("units",), np.ones((1, 3), bool), np.ones(3, bool), (), ((("detailed", support),),)
    )
    groups = Groups.build(support, family.parent, family.constraints, rules, family.label)
    noise = np.rint(rng.normal(0, variance**0.5, (20, 4))).astype(np.int64)
    answers = FamilyMeasurement(
        (
            QueryAnswers("total", cells[:1], cells, table.sum(axis=1)[:, None] + noise[:, :1], variance),
            QueryAnswers("detailed", support, support, table + noise[:, 1:], variance),
        ),
        np.ones(20),
    )
    even = np.zeros_like(table)
    for cell, count in enumerate(table.sum(axis=0)):
        even[:, cell] = count // 20
        even[: count % 20, cell] += 1
    found = posterior_table(family, rules, answers, groups, even)
    return int(answers.queries[0].values[7, 0]), -1 if found is None else int(found[0][7].sum())


def main() -> None:
    """Compare plan by plan, then print the block of students."""
    parser = arguments(__doc__, seeds=10)
    usual = [plan for plan in PLANS if plan != "another state"]
    parser.add_argument("--plans", nargs="+", choices=list(PLANS), default=usual)
    parser.add_argument("--blocks", type=Path, help="CSV of blocks, for the plan 'another state'")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    texts = []
    for plan in given.plans:
        found, empty, covered, limits = compared(plan, given.data, seeds, given.blocks)
        rows = [
            (name, *(float(np.mean([one[key] for one in empty[name]])) for key in empty[name][0]))
            for name in empty
        ]
        texts += [
            f"## {plan}, {given.seeds} seeds: mean absolute error and its change",
            changes(found, "mean_abs_error"),
            "Mean signed error of block totals",
            bias(found, "tract" if "tracts" in plan else "block"),
            markdown(("Blocks", *empty["informed"][0]), rows),
            beside_the_paper(found),
            covered_table(covered),
            "A block's mean absolute error if the truth is a draw from the posterior",
            markdown(("Query", *ESTIMATORS, "least of any table"), limits[0]),
            "Mean absolute error in every eighth block group",
            markdown(("Query", *ESTIMATORS, "true block group"), limits[1]),
            "Mean signed error of totals, blocks sorted by the truth, by a draw in its place, by the release",
            markdown(("Blocks", *ESTIMATORS, *(f"{e}, draw" for e in ESTIMATORS), "released"), limits[2]),
        ]
    rows_ = [(f"{v:,.0f}", *students(v, 1), *students(v, 2)) for v in (10.0, 1e3, 1e5, 1e6, 1e7)]
    texts += [
        "## A block of 3,000 students among blocks of fifty (-1: chains that do not agree)",
        markdown(("Variance of the noise", "answer", "estimate", "answer", "estimate"), rows_),
    ]
    deliver("posterior", "\n\n".join(texts), None, given.to)


if __name__ == "__main__":
    main()
