"""Does an allocation that is optimal after least squares help a TopDown release? Rhode Island 2010, persons.

    python experiments/after_least_squares.py [DATA] [--seeds 1] [--to FOLDER]

Three allocations of the production total: the preset of the production run for Puerto Rico; the joint
allocation of program (6), which counts each measurement by itself; and the one that is optimal after least
squares over the whole tree. The last two are made from public numbers of geounits and cells, and want the
same: the mean variance of an answer, of every query group that the preset measures, at every geolevel, all
with weight one. Shown are the standard errors expected by least squares, which the last one minimises in the
mean square, and the mean absolute errors of releases, which know beside that counts are not negative: by
TopDown, which estimates a geounit without what was measured below it, and by the estimator `informed`, which
uses that too.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

from experiment import (
    LEVELS,
    Key,
    Mean,
    arguments,
    averaged,
    deliver,
    load,
    markdown,
    note,
    plain,
    rhode_island,
)

import opendas as od
from opendas.gls.expected_error import ExpectedError
from opendas.runs.allocate import RunAllocation, public_pairs
from opendas.runs.context.run import Run

ESTIMATORS = ("topdown", "informed")
QUERIES = ("total", "votingage", "hispanic", "cenrace", "hispanic * cenrace", "detailed")


def allocated(run: Run, folder: Path, name: str, allocation: RunAllocation) -> Run:
    """Return the run with another budget."""
    path = folder / f"{name}.toml"
    allocation.write(run.path, path)
    return od.load(path)


def settings(data: Path, folder: Path) -> dict[str, Run]:
    """Return the runs by name."""
    preset = load(rhode_island(data), folder)
    mean = {f"{pair.geolevel}/{pair.query}": 1.0 / pair.level.counts.nodes for pair in public_pairs(preset)}
    alone = od.allocate_run(preset, weights=mean)
    together = od.allocate_run(preset, weights=mean, after_least_squares=True)
    return {
        "preset": preset,
        "program (6)": allocated(preset, folder, "alone", alone),
        "after least squares": allocated(preset, folder, "together", together),
    }


def estimated(run: Run, estimator: str) -> Run:
    """Return the run with another estimator."""
    path = run.path.with_name(f"{run.path.stem}-{estimator}.toml")
    text = run.path.read_text(encoding="utf-8")
    path.write_text(text.replace("[run]", f'[run]\nestimator = "{estimator}"', 1), encoding="utf-8")
    return od.load(path)


def expected(run: Run) -> dict[tuple[str, str], float]:
    """Return root mean square standard errors of an answer, by geolevel and query group."""
    found = ExpectedError.build(run.plan)
    return {
        (level, query): math.sqrt(float(found.geounits(level, query).mean()))
        for level in LEVELS
        for query in QUERIES
    }


def table(
    runs: Mapping[str, Run],
    errors: Mapping[str, Mapping[tuple[str, str], float]],
    found: Mapping[tuple[str, str], Mapping[Key, Mean]],
) -> str:
    """Return shares, expected errors and errors of releases."""
    shares = [
        (name, *(f"{100 * float(run.plan.budget.geolevels[level]):.1f} %" for level in LEVELS))
        for name, run in runs.items()
    ]
    rows = [
        (
            query,
            level,
            *(errors[name][level, query] for name in runs),
            *(found[e, name][level, query, "", "mean_abs_error"] for e in ESTIMATORS for name in runs),
        )
        for query in QUERIES
        for level in LEVELS
        if (level, query) != ("state", "total")
    ]
    names = (
        *(f"expected s.e., {name}" for name in runs),
        *(f"{e}, {name}" for e in ESTIMATORS for name in runs),
    )
    return "\n\n".join((markdown(("Shares", *LEVELS), shares), markdown(("Query", "Geolevel", *names), rows)))


def main() -> None:
    """Compare."""
    given = arguments(__doc__, seeds=1).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = settings(given.data, Path(folder))
        errors = {name: expected(run) for name, run in runs.items()}
        note("allocated")
        truth = runs["preset"].read()
        seeds = range(1, given.seeds + 1)
        found = {
            (estimator, name): averaged(estimated(run, estimator), truth, seeds)
            for estimator in ESTIMATORS
            for name, run in runs.items()
        }
    figures = {" ".join(name): plain(one) for name, one in found.items()}
    deliver("after_least_squares", table(runs, errors, found), figures, given.to)


if __name__ == "__main__":
    main()
