"""Rows of Tables 9 to 13 of the TopDown paper under other plans of the same rho: which get worse.

    python experiments/no_row_worse.py [DATA] [--seeds 20] [--product persons] [--to FOLDER]

Rhode Island 2010. Every plan is simulated with the seeds of the first, ``topdown`` with the production's
shares, and compared with it seed by seed: mean absolute errors, and the sizes of signed errors and of
quantiles. A row is worse, or better, where the mean difference is more than twice its standard error.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from experiment import (
    Figures,
    Key,
    arguments,
    deliver,
    figures_of,
    load,
    markdown,
    note,
    paper_rows,
    rhode_island,
)

from opendas.metrics.evaluate import evaluate
from opendas.runs.simulated.simulation import Simulation

SETTINGS = {
    "persons": {
        "TopDown, production": ("pr2020-persons", "topdown"),
        "informed, production": ("pr2020-persons", "informed"),
        "opendas2026-persons": ("opendas2026-persons", "informed"),
        "opendas2026-blocks-persons": ("opendas2026-blocks-persons", "informed"),
    },
    "units": {
        "TopDown, production": ("pr2020-units", "topdown"),
        "informed, production": ("pr2020-units", "informed"),
        "opendas2026-units": ("opendas2026-units", "informed"),
    },
}
TABLES = (9, 10, 11, 12, 13)
PEOPLE = 0.005
"""Figures closer than this are equal: the paper prints two or three decimals."""


def rows_of(product: str, figures: Figures) -> list[tuple[int, Key]]:
    """Return the rows of the tables that a run of one state has; of units, all mean absolute errors."""
    if product == "units":
        return [(9, key) for key in figures if key[3] == "mean_abs_error" and not key[2]]
    return [(row.table, row.key) for row in paper_rows(*TABLES) if row.key in figures]


def measured(data: Path, product: str, seeds: Sequence[int]) -> dict[str, list[Figures]]:
    """Simulate every setting with every seed, and compare with the truth."""
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (budget, estimator) in SETTINGS[product].items():
            text = rhode_island(data, f'preset = "{budget}"', run=f'estimator = "{estimator}"')
            run = load(text.replace('"pl94-persons"', f'"pl94-{product}"'), Path(folder))
            truth = run.read()
            simulation = Simulation.of(run.on_frame(truth.frame), truth.histogram)
            for seed in seeds:
                estimate = simulation.estimate(seed, "no-row-worse")
                compared = evaluate(truth.histogram, estimate, truth.frame, run.product)
                found.setdefault(name, []).append(figures_of(compared))
            note(f"{name} done")
    return found


def change(first: Sequence[Figures], other: Sequence[Figures], key: Key) -> tuple[float, float, float]:
    """Return the size of a figure of the first, and the mean change of it with its standard error."""
    before, after = (np.abs([figures[key] for figures in each]) for each in (first, other))
    if key[3] == "mean_signed_error":  # noise has a sign of its own in each seed: what counts is the mean
        signed = [np.array([figures[key] for figures in each]) for each in (first, other)]
        signs = [1.0 if each.mean() >= 0 else -1.0 for each in signed]
        before, after = (sign * each for sign, each in zip(signs, signed, strict=True))
    difference = after - before
    spread = difference.std(ddof=1) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return float(before.mean()), float(difference.mean()), float(spread)


def verdicts(
    product: str, found: Mapping[str, Sequence[Figures]]
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return a row for each plan and table with numbers of rows, and one for each row that is worse."""
    first, *others = found
    rows = rows_of(product, found[first][0])
    counts: list[tuple[object, ...]] = []
    worse: list[tuple[object, ...]] = []
    for other in others:
        for table in sorted({table for table, _ in rows}):
            keys = [key for number, key in rows if number == table]
            changes = [change(found[first], found[other], key) for key in keys]
            up = [delta > max(2 * spread, PEOPLE) for _, delta, spread in changes]
            down = [-delta > max(2 * spread, PEOPLE) for _, delta, spread in changes]
            counts.append((other, table, len(keys), sum(down), sum(up)))
            worse += [
                (other, table, *key, before, f"{delta:+.2f} ± {spread:.2f}")
                for key, (before, delta, spread), is_worse in zip(keys, changes, up, strict=True)
                if is_worse
            ]
    return counts, worse


def errors_of(product: str, found: Mapping[str, Sequence[Figures]]) -> str:
    """Return the mean absolute errors of Tables 9 and 10, and their changes."""
    first, *others = found
    keys = [key for table, key in rows_of(product, found[first][0]) if table in (9, 10)]
    rows = []
    for key in keys:
        changes = [change(found[first], found[other], key) for other in others]
        cells = [f"{delta:+.2f} ± {spread:.2f}" for _, delta, spread in changes]
        rows.append((key[0], key[1], changes[0][0], *cells))
    return markdown(("Geolevel", "Query", first, *others), rows)


def main() -> None:
    """Simulate, count, and print what gets worse."""
    parser = arguments(__doc__, seeds=20)
    parser.add_argument("--product", choices=tuple(SETTINGS), default="persons")
    given = parser.parse_args()
    found = measured(given.data, given.product, range(1, given.seeds + 1))
    counts, worse = verdicts(given.product, found)
    text = markdown(("Plan", "Table", "Rows", "Better", "Worse"), counts)
    head = ("Plan", "Table", "Geolevel", "Query", "Class", "Figure", "TopDown, production", "Change")
    text += "\n\n" + (markdown(head, worse) if worse else "No row is worse.")
    text += "\n\n" + errors_of(given.product, found)
    deliver(f"no_row_worse_{given.product}", text, worse, given.to)


if __name__ == "__main__":
    main()
