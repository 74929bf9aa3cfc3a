"""Errors of a release by query group and geolevel, beside the noise alone or what others published.

    opendas evaluate OUT --truth RUN.toml
    python experiments/dhc_errors.py OUT [--published ERRORS.csv]

The first command compares with the truth, so that these figures are as confidential as the input. ERRORS.csv
has the columns geolevel, measure and mean_abs_error: a measure is a query group, or one of age and sex, as
`opendas evaluate` names them.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import LEVELS, markdown

Errors = dict[tuple[str, str], float]


def errors_of(evaluation: dict[str, Any]) -> Errors:
    """Return mean absolute errors by geolevel and measure, of a query group summed over its rows."""
    found = {(row["geolevel"], row["query"]): row["mean_abs_error"] for row in evaluation["rows"]}
    ages = {(row["geolevel"], row["measure"]): row["mean_abs_error"] for row in evaluation["by_age_and_sex"]}
    return {key: error for key, error in {**found, **ages}.items() if error is not None}


def noise_of(run: dict[str, Any]) -> Errors:
    """Return the mean absolute noise of a query group's answer to a geounit of the spine, over its rows.

    Taken over geounits that have a share; ``run`` is an entry of a certificate.
    """
    sums, geounits = defaultdict(float), defaultdict(int)
    for row in run["rows"]:
        if row["variance"] is not None:
            key = (row["geolevel"], row["query"])
            sums[key] += row["geounits"] * row["cells"] * math.sqrt(2 * row["variance"] / math.pi)
            geounits[key] += row["geounits"]
    return {key: sums[key] / geounits[key] for key in sums}


def table(ours: Errors, noise: Errors) -> str:
    """Return a row for each measure: the error at every geolevel, and the noise alone in brackets."""

    def cell(level: str, measure: str) -> str | None:
        if (level, measure) not in ours:
            return None
        beside = f" ({noise[level, measure]:,.1f})" if (level, measure) in noise else ""
        return f"{ours[level, measure]:,.1f}{beside}"

    levels = [level for level in LEVELS if any(level == one for one, _ in ours)]
    measures = dict.fromkeys(measure for _, measure in ours)
    return markdown(["", *levels], ([name, *(cell(level, name) for level in levels)] for name in measures))


def beside(ours: Errors, published: Path) -> str:
    """Return a row for each published figure: ours, theirs and the ratio."""

    def rows() -> Iterator[list[object]]:
        with published.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                level, measure, theirs = row["geolevel"], row["measure"], float(row["mean_abs_error"])
                if (level, measure) not in ours:
                    known = ", ".join(sorted({name for _, name in ours}))
                    sys.exit(f"{published}: no error of {measure!r} at {level!r}; measures are {known}.")
                own = ours[level, measure]
                yield [level, measure, own, theirs, own / theirs if theirs else None]

    return markdown(["geolevel", "measure", "ours", "published", "ratio"], rows())


def main() -> None:
    """Print tables of a release, or its errors beside published ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--published", type=Path)
    asked = parser.parse_args()
    certificate = json.loads((asked.out / "release/certificate.json").read_text(encoding="utf-8"))
    runs = {run["product"]: run for run in certificate["runs"]}
    every: Errors = {}
    for path in sorted((asked.out / "confidential/evaluation").glob("*/evaluation.json")):
        evaluation = json.loads(path.read_text(encoding="utf-8"))
        product, ours = evaluation["product"], errors_of(evaluation)
        if asked.published is None:
            print(f"{product}\n\n{table(ours, noise_of(runs[product]))}\n")
        every = {**ours, **every}
    if asked.published is not None:
        print(beside(every, asked.published))


if __name__ == "__main__":
    main()
