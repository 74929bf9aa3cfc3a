"""The posterior of blocks beside least squares, at identical measurements.

    python experiments/posterior.py [DATA] [--seeds 10] [--plans production blocks ...] [--to FOLDER]

Rhode Island 2010, persons. Each pair of runs has the same seed, hence the same noisy answers, and the same
estimates of block groups; only blocks differ. Pairs: the production's shares, the two plans of equal rho
(``experiments/equal_rho.py``), and the production's shares without public units, so that nothing but the
noisy answers says how large a block is.

A change is the mean difference in percent of the mean error of ``informed``, with its standard error over
seeds. Negative is better. Then how many true counts of blocks lie in the 90 % credible intervals of the draws
that the release was chosen from, by size, and how wide these are. Then a synthetic block group in which one
block houses 3,000 students, where the prior expects fifty people: what the estimate is for more and more
noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from equal_rho import bias, changes
from experiment import Figures, arguments, deliver, figures_of, load, markdown, note, rhode_island

import opendas as od
from opendas.constraints.table import LevelConstraints
from opendas.measurement.family import FamilyMeasurement, QueryAnswers
from opendas.metrics.evaluate import evaluate
from opendas.readers.base import InputData
from opendas.runs.run import Run
from opendas.schema.histogram import Histogram
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
}
Found = Mapping[str, Sequence[Figures]]


def runs_of(plan: str, data: Path, folder: Path) -> dict[str, Run]:
    """Return the run of each estimator."""
    found = {}
    for name in ESTIMATORS:
        budget = f'preset = "{PLANS[plan]}"'
        run = load(rhode_island(data, budget, run=f'estimator = "{name}"'), folder)
        found[name] = run.changed(product=replace(run.product, bounds=())) if "no units" in plan else run
    return found


def zeros(truth: Histogram, estimate: Histogram) -> dict[str, float]:
    """Return the share of empty blocks that got people, and how many populated ones lost all."""
    exact, ours = truth.row_totals(), estimate.row_totals()
    populated = float(100 * np.mean(ours[exact == 0] > 0)) if (exact == 0).any() else 0.0
    return {"empty populated, %": populated, "emptied": float(((exact > 0) & (ours == 0)).sum())}


QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace", "detailed")
SIZES = ((0, 1), (1, 3), (3, 10), (10, 100), (100, 1000), (1000, 10**9))


@contextmanager
def kept() -> Iterator[list[tuple[FamilyData, npt.NDArray[np.int32]]]]:
    """Keep every family's draws for a while; only in this process."""
    found: list[tuple[FamilyData, npt.NDArray[np.int32]]] = []
    with patch.object(Posterior, "keep", lambda _, data, draws: found.append((data, draws))):
        yield found


def coverage(
    run: Run, truth: InputData, draws: Sequence[tuple[FamilyData, npt.NDArray[np.int32]]]
) -> dict[tuple[str, str], tuple[int, int, float]]:
    """Count true counts of blocks, those in the 90 % interval of their draws, and the intervals' widths.

    Cells that the block group does not have are left out: the release says that there is nobody.
    """
    found: dict[tuple[str, str], tuple[int, int, float]] = {}
    for data, tables in draws:
        leaves = np.searchsorted(truth.frame.geocodes, data.geocodes)
        exact = np.stack([truth.histogram.dense(leaf) for leaf in leaves.tolist()])
        for query in QUERIES:
            rows = run.product.workload.group(query).row_of_cell
            used, compact = np.unique(rows[data.cells], return_inverse=True)
            true = np.stack([exact[:, rows == row].sum(axis=1) for row in used], axis=1)
            sums = np.sort(tables @ np.eye(len(used), dtype=np.int32)[compact], axis=0)
            tail = int(0.05 * len(sums))
            lower, upper = sums[tail], sums[-1 - tail]
            for least, most in ((0, 10**9), *SIZES):
                here = (true >= least) & (true < most) & data.usable.any(axis=1)[:, None]
                label = "all" if (least, most) == (0, 10**9) else f"{least:,} to {most - 1:,}"
                inside = ((lower <= true) & (true <= upper))[here]
                before = found.get((query, label), (0, 0, 0.0))
                more = (len(inside), int(inside.sum()), float((upper - lower)[here].sum()))
                found[query, label] = tuple(a + b for a, b in zip(before, more, strict=True))
    return found


def compared(
    plan: str, data: Path, seeds: Sequence[int]
) -> tuple[Found, Mapping[str, list[dict[str, float]]], list[dict[tuple[str, str], tuple[int, int, float]]]]:
    """Release with each estimator and seed, and compare with the truth."""
    found: dict[str, list[Figures]] = {name: [] for name in ESTIMATORS}
    empty: dict[str, list[dict[str, float]]] = {name: [] for name in ESTIMATORS}
    covered: list[dict[tuple[str, str], tuple[int, int, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        runs = runs_of(plan, data, Path(name))
        truth = next(iter(runs.values())).read()
        for seed in seeds:
            for estimator, run in runs.items():
                with tempfile.TemporaryDirectory() as out, kept() as draws:
                    release = od.release(run, Path(out) / "out", seed=seed, workers=1)
                    fallbacks = release.certificate["runs"][0]["fallbacks"]
                    estimate = release.estimate(run.product.name)
                evaluation = evaluate(truth.histogram, estimate, truth.frame, run.product, entities=True)
                found[estimator].append(figures_of(evaluation))
                empty[estimator].append(zeros(truth.histogram, estimate))
                if estimator == "posterior":
                    covered.append(coverage(run, truth, draws))
                note(f"{plan}, {estimator}, seed {seed} done; {fallbacks} families by a fallback")
    return found, empty, covered


def covered_table(covered: Sequence[Mapping[tuple[str, str], tuple[int, int, float]]]) -> str:
    """Return coverage and mean width over seeds, by query and size of the true count."""
    sizes = ("all", *(f"{least:,} to {most - 1:,}" for least, most in SIZES))
    rows = []
    for query in QUERIES:
        cells: list[object] = [query]
        for size in sizes:
            number, inside, width = np.sum([one.get((query, size), (0, 0, 0)) for one in covered], axis=0)
            cells += [float(100 * inside / number) if number else None]
            if size == "all":
                cells += [float(width / max(1, number))]
        rows.append(cells)
    return markdown(("90 % intervals: covered, %", "all", "mean width", *sizes[1:]), rows)


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
    parser.add_argument("--plans", nargs="+", choices=list(PLANS), default=list(PLANS))
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    texts = []
    for plan in given.plans:
        found, empty, covered = compared(plan, given.data, seeds)
        rows = [
            (name, *(float(np.mean([one[key] for one in empty[name]])) for key in empty[name][0]))
            for name in empty
        ]
        texts += [
            f"## {plan}, {given.seeds} seeds: mean absolute error and its change",
            changes(found, "mean_abs_error"),
            "Mean signed error of block totals",
            bias(found),
            markdown(("Blocks", *empty["informed"][0]), rows),
            covered_table(covered),
        ]
    rows_ = [(f"{v:,.0f}", *students(v, 1), *students(v, 2)) for v in (10.0, 1e3, 1e5, 1e6, 1e7)]
    texts += [
        "## A block of 3,000 students among blocks of fifty (-1: chains that do not agree)",
        markdown(("Variance of the noise", "answer", "estimate", "answer", "estimate"), rows_),
    ]
    deliver("posterior", "\n\n".join(texts), None, given.to)


if __name__ == "__main__":
    main()
