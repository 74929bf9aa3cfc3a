"""The informed estimator beside plain TopDown, at identical measurements.

    python experiments/informed.py [DATA] [--seeds 20] [--what standard optimized tract-nation] [--to FOLDER]

A seed fixes every noisy answer, so both estimators see the same ones, and their errors are compared seed by
seed. Rhode Island 2010, persons, with the preset of one state: on the standard spine, and on the optimised
one with its default areas, there on official geography and on the spine's own. Then thirteen states of 2020
tracts as a small nation, with the national preset.

A change is the mean difference in percent of the mean error of TopDown, with the standard error of that mean
over seeds. Negative is better.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from experiment import (
    LEVELS,
    Figures,
    Key,
    Mean,
    arguments,
    average,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    plain,
    rhode_island,
    write_table,
)
from tract_nation import LEVELS as NATION_LEVELS
from tract_nation import TRACTS, read_nation, run_file

import opendas as od
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine
from opendas.metrics.evaluate import evaluate
from opendas.runs.context.run import Run
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

ESTIMATORS = ("topdown", "informed")
QUERIES = ("total", "votingage", "hispanic", "cenrace", "hhgq", "hispanic * cenrace", "detailed")
ERROR = "mean_abs_error"

Paired = Mapping[str, Sequence[Figures]]
"""Figures of each estimator, seed by seed."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a figure from TopDown to informed, in percent of the mean of TopDown."""

    percent: float
    error: float

    def __str__(self) -> str:
        """One decimal: the standard error is rarely below a tenth."""
        return f"{self.percent:+.1f} ± {self.error:.1f}"


def change(found: Paired, key: Key) -> Change | None:
    """Return the paired change of a figure; None where TopDown has no error."""
    plain_errors, ours = (np.array([figures[key] for figures in found[name]]) for name in ESTIMATORS)
    if not plain_errors.any():
        return None
    mean = float(plain_errors.mean())
    difference = ours - plain_errors
    spread = float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return Change(100 * float(difference.mean()) / mean, 100 * spread / mean)


def own_frame(spine: Spine, frame: Frame) -> Frame:
    """Return the leaves of `frame` with the geocodes of a spine's own geounits."""
    codes = {}
    for number, level in enumerate(spine.levels[:-1]):
        in_order = np.repeat(level.geocodes, np.diff(spine.leaf_starts(number)))
        codes[level.name] = np.empty_like(in_order)
        codes[level.name][spine.leaf_order] = in_order
    return Frame(frame.geocodes, codes, frame.leaf, frame.units)


def compared(
    runs: Mapping[str, Run], truth: Histogram, frames: Mapping[str, Frame], seeds: Sequence[int]
) -> dict[str, dict[str, list[Figures]]]:
    """Release with every seed and estimator, and compare with the truth on each geography."""
    found: dict[str, dict[str, list[Figures]]] = {
        geography: {name: [] for name in ESTIMATORS} for geography in frames
    }
    for seed in seeds:
        for name in ESTIMATORS:
            run = runs[name]
            with tempfile.TemporaryDirectory() as folder:
                release = od.release(run, Path(folder) / "out", seed=seed)
                fallbacks = release.certificate["runs"][0]["fallbacks"]
                estimate = release.estimate(run.product.name)
            for geography, frame in frames.items():
                found[geography][name].append(figures_of(evaluate(truth, estimate, frame, run.product)))
            note(f"{name}, seed {seed} done, {fallbacks} families by the fallback solver")
    return found


def errors(found: Paired, levels: Sequence[str]) -> str:
    """Return mean absolute errors and their change."""
    several = {name: average(figures) for name, figures in found.items()}
    rows: list[tuple[object, ...]] = []
    for level in levels:
        for query in QUERIES:
            key = (level, query, "", ERROR)
            if key in several["topdown"]:
                both = (several[name][key] for name in ESTIMATORS)
                rows.append((level, query, *both, change(found, key)))
    return markdown(("Geolevel", "Query", "TopDown", "Informed", "Change, %"), rows)


def classes(found: Paired, levels: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield geolevels with the classes of population and diversity that have a signed error."""
    for level, query, label, metric in found["topdown"][0]:
        if level in levels and query == "total" and label and metric == "mean_signed_error":
            yield level, label


def bias(found: Paired, levels: Sequence[str]) -> str:
    """Return the mean signed error of totals by class, and the paired difference."""
    rows: list[tuple[object, ...]] = []
    several = {name: average(figures) for name, figures in found.items()}
    for level, label in classes(found, levels):
        key = (level, "total", label, "mean_signed_error")
        values = [np.array([figures[key] for figures in found[name]]) for name in ESTIMATORS]
        difference = values[1] - values[0]
        spread = float(difference.std(ddof=1)) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
        rows.append(
            (
                level,
                label,
                *(several[name][key] for name in ESTIMATORS),
                Mean(float(difference.mean()), spread),
            )
        )
    return markdown(("Geolevel", "Class", "TopDown", "Informed", "Difference"), rows)


def on_rhode_island(data: Path, seeds: Sequence[int], spine: str) -> tuple[str, object]:
    """Compare on one spine of Rhode Island."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: load(
                rhode_island(data, run=f'estimator = "{name}"', more=f'[geography]\nspine = "{spine}"'),
                Path(folder),
            )
            for name in ESTIMATORS
        }
        truth = runs["topdown"].read()
    frames = {"official": truth.frame}
    if spine != "standard":
        frames["spine"] = own_frame(runs["topdown"].spine, truth.frame)
    sizes = ", ".join(f"{len(level):,} {level.name}" for level in runs["topdown"].spine.levels)
    note(f"Rhode Island, {spine} spine: {sizes}")
    found = compared(runs, truth.histogram, frames, seeds)
    parts = []
    for geography, paired in found.items():
        of = "official geography" if geography == "official" else "the spine's own geography"
        parts += [f"Rhode Island, {spine} spine, {of}, {len(seeds)} seeds", errors(paired, LEVELS)]
    parts += ["Signed error of totals", bias(found["official"], LEVELS[1:])]
    figures = {
        geography: {name: plain(average(each)) for name, each in paired.items()}
        for geography, paired in found.items()
    }
    return "\n\n".join(parts), figures


def on_tract_nation(data: Path, seeds: Sequence[int]) -> tuple[str, object]:
    """Compare on the thirteen states of tracts."""
    nation = read_nation(data / TRACTS)
    product = pl94_persons()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder, nation.frame, nation.persons, product.schema, {})
        text = run_file(product.name)
        runs = {
            estimator: load(text.replace("[input]", f'estimator = "{estimator}"\n[input]'), folder)
            for estimator in ESTIMATORS
        }
        found = compared(runs, nation.persons, {"official": nation.frame}, seeds)["official"]
    text = "\n\n".join(
        [
            f"Thirteen states of tracts, {len(seeds)} seeds",
            errors(found, NATION_LEVELS),
            "Signed error of totals",
            bias(found, NATION_LEVELS[1:]),
        ]
    )
    return text, {name: plain(average(each)) for name, each in found.items()}


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=20)
    parser.add_argument("--what", nargs="+", default=["standard", "optimized", "tract-nation"])
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    for what in given.what:
        if what == "tract-nation":
            text, figures = on_tract_nation(given.data, seeds)
        else:
            text, figures = on_rhode_island(given.data, seeds, what)
        deliver(f"informed_{what}", text, figures, given.to)


if __name__ == "__main__":
    main()
