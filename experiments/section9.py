"""The experiments of section 9 of the TopDown paper on Rhode Island 2010, beside its Tables 9 to 13.

    python experiments/section9.py [DATA] [--seeds 5] [--to FOLDER]

Four settings: baseline1 and baseline2 differ in their noise only, inc_rho has a rho 10 % higher, l2_onepass
one least-squares pass at every geolevel instead of several. The paper ran each once; our figures are means
over seeds with their standard errors. The national preset, without the nation, gives every geounit the noise
it had in the nation's runs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
from experiment import (
    LEVELS,
    Key,
    Mean,
    arguments,
    averaged,
    deliver,
    load,
    markdown,
    national_budget,
    paper_rows,
    plain,
    rhode_island,
)

RUNS = ("baseline1", "baseline2", "inc_rho", "l2_onepass")
ONE_PASS = '[passes]\nleast_squares = { "*" = [["rest"]] }'
TITLES = {
    9: "Table 9: mean absolute error of total, voting age and Hispanic origin",
    10: "Table 10: mean absolute error of queries with many cells",
    11: "Table 11: errors of county totals by population",
    12: "Table 12: errors of block totals by population",
    13: "Table 13: signed error of totals by quintile of the Blau index",
}

Results = Mapping[str, Mapping[Key, Mean]]


def printed_and_ours(table: int, found: Results) -> str:
    """Return one of the paper's tables, the printed figure and ours side by side for each run."""
    rows = []
    for row in (row for row in paper_rows(table) if row.key[0] in LEVELS):
        geolevel, query, label, metric = row.key
        rows.append(
            (
                geolevel,
                label or query,
                metric,
                *(value for run in RUNS for value in (row.runs[run], found[run].get(row.key))),
            )
        )
    heads = [f"{run}, {who}" for run in RUNS for who in ("paper", "ours")]
    return f"{TITLES[table]}\n\n" + markdown(("Geolevel", "Query or class", "Metric", *heads), rows)


def effects(found: Results) -> str:
    """Return what the paper concludes from its tables, in one figure each; both baselines together."""
    rows: list[tuple[object, ...]] = []
    for level in ("tract", "block_group", "block"):
        errors = [row for row in paper_rows(9, 10) if row.key[0] == level]
        for run, what in (("inc_rho", "rho 10 % higher"), ("l2_onepass", "one pass")):
            printed = [2 * row.runs[run] / (row.runs["baseline1"] + row.runs["baseline2"]) for row in errors]
            ours = [
                2 * found[run][row.key].value / sum(found[base][row.key].value for base in RUNS[:2])
                for row in errors
            ]
            changes = (100 * (float(np.mean(ratios)) - 1) for ratios in (printed, ours))
            rows.append((f"{what}: change of errors, %", level, *changes))
    blau = {row.key: row.runs for row in paper_rows(13)}
    for level in ("tract", "block_group"):
        low, high = ((level, "total", f"Blau {q}", "mean_signed_error") for q in "15")
        for run in ("baseline1", "baseline2", "l2_onepass"):
            first, last = found[run][low], found[run][high]
            ours_slope = Mean(first.value - last.value, math.hypot(first.error, last.error))
            rows.append(
                (f"{run}: quintile 1 less quintile 5", level, blau[low][run] - blau[high][run], ours_slope)
            )
    return markdown(("Effect", "Geolevel", "Paper", "Ours"), rows)


def main() -> None:
    """Run the experiment."""
    given = arguments(__doc__, seeds=5).parse_args()
    found: dict[str, dict[Key, Mean]] = {}
    with tempfile.TemporaryDirectory() as folder:
        truth = load(rhode_island(given.data), Path(folder)).read()
        for number, name in enumerate(RUNS):
            first = 1 + number * given.seeds
            budget = national_budget(Fraction(11, 10) if name == "inc_rho" else Fraction(1))
            more = ONE_PASS if name == "l2_onepass" else ""
            run = load(rhode_island(given.data, budget, more=more), Path(folder))
            found[name] = averaged(run, truth, range(first, first + given.seeds))
    text = "\n\n".join([effects(found), *(printed_and_ours(table, found) for table in TITLES)])
    deliver("section9", text, {name: plain(figures) for name, figures in found.items()}, given.to)


if __name__ == "__main__":
    main()
