"""How often the 90 % credible intervals of PHSafe estimates hold the truth.

Synthetic nations of 51 states and ten population groups, with noise of the production variances, are fitted
by
both models. In one kind, groups are as large as those of states; in the other, sizes spread evenly, on a log
scale, from three households to three million: many are then smaller than the noise.
Truths are made: nothing here is confidential.
The published evaluation: 88.5 to 91.4 % for counts, 89.5 to 90.6 % for averages.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from experiment import deliver, markdown, note

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.phsafe_measurements import Key, Truth, made_truth, measurements, write_measurements

from opendas.geography.states import STATES
from opendas.phsafe.posterior.files import AVERAGES, COUNTS, Model
from opendas.phsafe.posterior.post_processing import post_process

CLASSES = (0.0, 1.0, 3.0, 10.0, math.inf)
"""Size of a true count, in standard deviations of its noise."""


@dataclass
class Tally:
    """Errors and hits of one table, model and class of size."""

    covered: list[bool] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, truth: float, noisy: float, row: Sequence[float]) -> None:
        """Add one estimate with its interval."""
        estimate, low, high = row
        self.covered.append(low <= truth <= high)
        self.raw.append(noisy - truth)
        self.model.append(estimate - truth)
        self.lengths.append(high - low)

    def figures(self) -> dict[str, float]:
        """Coverage in percent with its standard error, and root mean squared errors."""
        n, share = len(self.covered), float(np.mean(self.covered))
        return {
            "intervals": n,
            "coverage": 100 * share,
            "standard_error": 100 * math.sqrt(share * (1 - share) / n),
            "rmse_noisy": float(np.sqrt(np.mean(np.square(self.raw)))),
            "rmse_model": float(np.sqrt(np.mean(np.square(self.model)))),
            "length": float(np.median(self.lengths)),
        }


def rows_of(out: Path, table: str) -> Iterator[tuple[Key, int, Mapping[str, str]]]:
    """Yield the estimates of a table."""
    for place, region_type in (("nation", "USA"), ("state", "STATE")):
        with open(out / table / "estimates" / f"{table}_{place}_trunc_normal.csv", newline="") as file:
            for row in csv.DictReader(file, delimiter="|"):
                region = "1" if region_type == "USA" else row["GEOID"]
                yield (region_type, region, row["ITERATION_CODE"]), int(row["DATA_CELL"]), row


def true_count(truth: Truth, table: str, key: Key, cell: int) -> int:
    """Return the exact count of a cell or total."""
    declared = COUNTS[table]
    parts = declared.margins.get(cell, (cell,))
    return sum(truth.tables[table][key][declared.cells.index(part)] for part in parts)


def true_average(truth: Truth, table: str, key: Key, cell: int) -> float:
    """Return the exact average of a cell."""
    tables = truth.tables
    if table == "PH8":
        mortgage, clear, rented = tables["PH7"][key]
        owners, renters = tables["PH8_denom"][key]
        people = {1: mortgage + clear + rented, 2: mortgage + clear, 3: rented}[cell]
        return people / {1: owners + renters, 2: owners, 3: renters}[cell]
    young, old = tables["PH4" if table == "PH5" else "PH1_num"][key]
    return {1: young + old, 2: young, 3: old}[cell] / tables[f"{table}_denom"][key][0]


def tally(out: Path, truth: Truth, found: dict[tuple[str, str], Tally], model: str) -> None:
    """Compare one post-processed output with the truth."""
    for table in COUNTS:
        for key, cell, row in rows_of(out, table):
            exact = true_count(truth, table, key, cell)
            size = exact / math.sqrt(float(row["VARIANCE"]))
            label = next(f"{a:g} to {b:g}" for a, b in pairwise(CLASSES) if size < b)
            values = [float(row[name]) for name in ("PRED", "PRED_LO", "PRED_HI")]
            for name in (table, f"counts of {label} sd"):
                found[name, model].add(exact, float(row["COUNT_NOISY"]), values)
    for table in AVERAGES:
        for key, cell, row in rows_of(out, table):
            exact_average = true_average(truth, table, key, cell)
            noisy = float(row["RATIO_NOISY"])
            values = [float(row[name]) for name in ("RATIO_PRED", "RATIO_PRED_LO", "RATIO_PRED_HI")]
            noisy = noisy if math.isfinite(noisy) else exact_average
            households = float(row["COUNT_NOISY_DENOM"]) / math.sqrt(float(row["VARIANCE_DENOM"]))
            found[table, model].add(exact_average, noisy, values)
            if households > 3:
                found[f"{table}, denominator above 3 sd", model].add(exact_average, noisy, values)


def main() -> None:
    """Run both models over several synthetic nations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="synthetic nations, seeds 1 to this (5)")
    parser.add_argument("--to", type=Path, default=None, help="also write the tables to this folder")
    arguments = parser.parse_args()
    states = [state.fips for state in STATES if state.fips != "72"]
    texts, figures = [], {}
    for title, like_states in (("Groups as large as in states", True), ("Sizes spread evenly", False)):
        found: dict[tuple[str, str], Tally] = defaultdict(Tally)
        for seed in range(1, arguments.seeds + 1):
            rng = np.random.default_rng(seed)
            truth = made_truth(rng, states, like_states=like_states)
            tables = measurements(truth, rng)
            for model in Model:
                with tempfile.TemporaryDirectory() as folder:
                    write_measurements(Path(folder), tables)
                    post_process(Path(folder), model=model, workers=2)
                    tally(Path(folder), truth, found, model)
            note(f"{title}: seed {seed} done")
        texts.append(f"{title}:\n\n{report(found)}")
        figures |= {f"{title}, {name}, {model}": t.figures() for (name, model), t in found.items()}
    deliver("phsafe_coverage", "\n\n".join(texts), figures, arguments.to)


def report(found: Mapping[tuple[str, str], Tally]) -> str:
    """Return a table of coverage and errors."""
    lines = []
    for name in sorted({name for name, _ in found}, key=lambda name: (len(name) > 3, len(name), name)):
        ours, theirs = (found[name, model].figures() for model in (Model.JOINT, Model.PUBLISHED))
        errors = ours["rmse_noisy"], ours["rmse_model"], theirs["rmse_model"]
        lines.append(
            [
                name,
                f"{ours['intervals']:,}",
                *(f"{f['coverage']:.1f} ± {f['standard_error']:.1f}" for f in (ours, theirs)),
                *(f"{value:,.2f}" for value in errors),
            ]
        )
    header = ["Table", "Intervals", "Coverage % (joint)", "(published)"]
    return markdown([*header, "RMSE of the noisy value", "(joint)", "(published)"], lines)


if __name__ == "__main__":
    main()
