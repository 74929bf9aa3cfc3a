"""What the experiments share: seeded runs, figures averaged over seeds, the paper's tables, Markdown.

Everything here compares with the input: the figures of an experiment are confidential if its input is. All
runs are seeded, so that they can be repeated, and so that their releases are stamped NOT FOR RELEASE.

A figure's key is (geolevel, query, class, metric). The class is empty for all geounits, a class of
population as in Tables 11 and 12 of the TopDown paper, or a quintile of the Blau index as in Table 13.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import opendas as od
from opendas.budget.presets import preset
from opendas.geography.frame import Frame
from opendas.metrics.evaluate import Evaluation, evaluate
from opendas.readers.input.spec import InputData
from opendas.runs.context.run import Run
from opendas.schema.attributes import Schema
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "shared" / "data"
RHODE_ISLAND = "pl94_2010_ri/ri2010.pl.zip"
LEVELS = ("state", "county", "tract", "block_group", "block")

Key = tuple[str, str, str, str]
Figures = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Mean:
    """A figure averaged over seeds, and the standard error of that average (0 with one seed)."""

    value: float
    error: float

    def __str__(self) -> str:
        """Two digits of the standard error are more than anybody reads; two decimals fit the paper."""
        return f"{self.value:,.2f}" + (f" ± {self.error:,.2f}" if self.error else "")


def arguments(description: str | None, *, seeds: int) -> argparse.ArgumentParser:
    """Return the command line that all experiments have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, default=DATA, help=f"folder of the data ({DATA})")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"seeds 1 to this ({seeds})")
    parser.add_argument("--to", type=Path, default=None, help="also write the tables to this folder")
    return parser


def national_budget(factor: Fraction = Fraction(1)) -> str:
    """Return a budget that gives every geounit below the nation the noise it had in the production run.

    The national preset without its geolevel "us", which one state cannot use: with one child, whatever is
    measured of the nation is what the state gets. `factor` multiplies rho.
    """
    production = preset("us2020-persons")
    rho = production.rho * (1 - production.geolevels["us"]) * factor
    return f'preset = "us2020-persons"\nrho = "{rho}"\nnormalise = true'


PUERTO_RICO = 'preset = "pr2020-persons"'
"""The preset of the production run for one state-like area."""


def rhode_island(data: Path, budget: str = PUERTO_RICO, *, run: str = "", more: str = "") -> str:
    """Return a run file for Rhode Island 2010, persons, with lines of ``[run]`` and more at the end."""
    return f"""\
[run]
product = "pl94-persons"
{run}
[input]
reader = "pl94-2010"
path = "{(data / RHODE_ISLAND).resolve()}"
[budget]
{budget}
{more}
"""


STATE = """\
[run]
product = "pl94-persons"
{run}
[input]
reader = "histogram"
path = "histogram.csv"
[geography]
frame = "frame.csv"
levels = [
    {{ name = "state", prefix = 2 }}, {{ name = "county", prefix = 5 }}, {{ name = "tract", prefix = 11 }},
    {{ name = "block_group", prefix = 12 }}, {{ name = "block", prefix = 15 }},
]
[budget]
{budget}
"""


GROUPS = {
    "white": (0, "white"),
    "black": (0, "black"),
    "aian": (0, "aian"),
    "asian": (0, "asian"),
    "nhpi": (0, "nhpi"),
    "other": (0, "sor"),
    "two": (0, "white+asian"),
    "hisp": (1, "sor"),
}
"""Hispanic origin and race of the groups of people that a file of blocks counts."""
EMPTY_BLOCKS = 0.03


def another_state(path: Path, folder: Path, budget: str, run: str) -> Run:
    """Return the run of a state's file of blocks, persons, without bounds: it has no public units.

    Hispanic people are all of some other race, people of two races white and Asian.

    `path`: a CSV with the columns of the ALARM project's redistricting files (``GEOID`` or ``GEOID20``,
    ``pop_white`` to ``pop_two`` and ``pop_hisp``, the same from ``vap_``, perhaps ``vtd``). Of its empty
    blocks as many are kept as 3 % of the others: the frame of a census lists only blocks with units.
    """
    product = pl94_persons()
    races = next(a.levels for a in product.schema.attributes if a.name == "cenrace")
    with path.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    geocodes = [row.get("GEOID20") or row["GEOID"] for row in read]
    populated = [int(row["pop"]) > 0 for row in read]
    empty = np.flatnonzero(~np.array(populated))
    kept = np.random.default_rng(2010).permutation(empty)[: int(EMPTY_BLOCKS * sum(populated))]
    rows: list[tuple[object, ...]] = []
    for geocode, row in zip(geocodes, read, strict=True):
        for group, (hispanic, race) in GROUPS.items():
            adults, people = int(row[f"vap_{group}"]), int(row[f"pop_{group}"])
            for age, count in enumerate((people - adults, adults)):
                if count:
                    rows.append((geocode, 0, age, hispanic, races.index(race), count))
    chosen = np.sort(np.concatenate([np.flatnonzero(populated), kept]))
    precincts = ["vtd"] if "vtd" in read[0] else []
    with (folder / "frame.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [
                ("geocode", *precincts),
                *((geocodes[k], *(read[k]["county"] + read[k][name] for name in precincts)) for k in chosen),
            ]
        )
    with (folder / "histogram.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([("geocode", *product.schema.names, "count"), *rows])
    loaded = load(STATE.format(run=run, budget=budget), folder)
    return loaded.changed(product=replace(loaded.product, bounds=()))


def load(text: str, folder: Path) -> Run:
    """Load a run file given as text; relative paths start at `folder`."""
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return od.load(path)


def write_table(
    folder: Path, frame: Frame, counts: Histogram, schema: Schema, more: Mapping[str, Sequence[str]]
) -> None:
    """Write ``frame.csv``, with columns `more`, and ``histogram.parquet`` for the reader ``histogram``."""
    geocodes = frame.geocodes.astype(str)
    pyarrow.csv.write_csv(
        pa.table({"geocode": geocodes, **frame.units, **more}),
        folder / "frame.csv",
    )
    leaf = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    codes = dict(zip(schema.names, schema.codes(counts.cells), strict=True))
    pq.write_table(
        pa.table({"geocode": geocodes[leaf], **codes, "count": counts.counts}),
        folder / "histogram.parquet",
    )


def seeded_runs(
    run: Run, truth: InputData, seeds: Iterable[int], *, entities: bool = False
) -> Iterator[tuple[Histogram, Evaluation]]:
    """Release with each seed in a folder of its own; yield the estimate and how it compares with the truth.

    `truth` holds the same leaves as the run, and the geography to compare on; with `entities`, areas off the
    spine are compared too.
    """
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            release = od.release(run, Path(folder) / "out", seed=seed)
            estimate = release.estimate(run.product.name)
        note(f"seed {seed} done")
        yield estimate, evaluate(truth.histogram, estimate, truth.frame, run.product, entities=entities)


def averaged(run: Run, truth: InputData, seeds: Iterable[int]) -> dict[Key, Mean]:
    """Return every figure of a setting, averaged over seeds."""
    return average([figures_of(evaluation) for _, evaluation in seeded_runs(run, truth, seeds)])


def figures_of(evaluation: Evaluation) -> dict[Key, float]:
    """Return everything in an evaluation that Tables 9 to 13 of the paper could ask for."""
    found: dict[Key, float] = {}
    for geolevel, query, label, errors in (
        *((row.geolevel, row.query, "", row.errors) for row in evaluation.errors),
        *((row.geolevel, row.query, row.population, row.errors) for row in evaluation.by_population),
    ):
        if errors.mean_abs_error is None or errors.mean_signed_error is None or errors.quantiles is None:
            continue
        found[geolevel, query, label, "geounits"] = errors.geounits
        found[geolevel, query, label, "mean_abs_error"] = errors.mean_abs_error
        found[geolevel, query, label, "mean_signed_error"] = errors.mean_signed_error
        found |= {(geolevel, query, label, f"q{p}"): float(q) for p, q in errors.quantiles.items()}
    for row in evaluation.by_blau_quintile:
        if row.mean_signed_error is not None:
            found[row.geolevel, "total", f"Blau {row.quintile}", "mean_signed_error"] = row.mean_signed_error
    return found


def average(several: Sequence[Figures]) -> dict[Key, Mean]:
    """Average each figure over runs."""
    out = {}
    for key in several[0]:
        values = np.array([figures[key] for figures in several])
        error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        out[key] = Mean(float(values.mean()), error)
    return out


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of Tables 9 to 13 of the TopDown paper, as printed."""

    table: int
    key: Key
    geounits: int | None
    runs: Mapping[str, float]


def paper_rows(*tables: int) -> list[PaperRow]:
    """Return rows of Tables 9 to 13 of the TopDown paper."""
    text = (HERE / "paper_tables.csv").read_text(encoding="utf-8").splitlines()[1:]
    names = ("baseline1", "baseline2", "inc_rho", "l2_onepass")
    return [
        PaperRow(
            int(row["table"]),
            (row["geolevel"], row["query"], row["class"], row["metric"]),
            int(row["geounits"]) if row["geounits"] else None,
            {name: float(row[name]) for name in names},
        )
        for row in csv.DictReader(text)
        if int(row["table"]) in tables
    ]


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; numbers have two decimals, None is a dash."""

    def cell(value: object) -> str:
        if value is None:
            return "–"
        return f"{value:,.2f}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def deliver(name: str, text: str, figures: object, to: Path | None) -> None:
    """Print an experiment's tables; with `to` also write them, and the figures as JSON."""
    sys.stdout.write(text + "\n")
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        (to / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        (to / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def plain(figures: Mapping[Key, Mean]) -> list[dict[str, object]]:
    """Return averaged figures for JSON."""
    names = ("geolevel", "query", "class", "metric")
    return [
        {**dict(zip(names, key, strict=True)), "mean": mean.value, "standard_error": mean.error}
        for key, mean in figures.items()
    ]


def note(text: str) -> None:
    """Say how far an experiment is, on stderr."""
    sys.stderr.write(text + "\n")
