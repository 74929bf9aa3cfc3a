"""OpenDAS beside inf-tda, a published top-down algorithm, on the same hierarchy, measurements and budget.

    pip install inf-tda "opendp==0.12.1"
    python experiments/inf_tda.py [DATA] [--seeds 3] [--rho 1/10 1] [--to FOLDER]

inf-tda (Boninsegna and Silvestri, arXiv 2412.09256) releases one count per path of a hierarchy: it measures
every level with the same share of the budget, holds the total, and makes children fit their parent by integer
Chebyshev steps. Two tables of Rhode Island 2010: total population by county, tract, block group, block; and
the eight race and ethnicity groups, which are the top level of inf-tda's hierarchy and an attribute of ours.
Both programs then take the same discrete Gaussian measurements. Ours are seeded, inf-tda's cannot be.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiment import (
    Key,
    Mean,
    arguments,
    average,
    deliver,
    load,
    markdown,
    note,
    plain,
    rhode_island,
    write_table,
)

import opendas as od
from opendas.geography.frame import Frame
from opendas.metrics.race_groups import GROUPS, group_of_cell
from opendas.schema.attributes import Attribute, Schema
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

INSTALL = """inf-tda is not installed: pip install inf-tda 'opendp==0.12.1'
(it calls opendp with 64-bit counts, which opendp 0.16 refuses; 0.12.1 is the version of its time)."""
DELTA = 1e-10
LEVELS = ("county", "tract", "block_group", "block")

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A table to release: counts by leaf and group.

    Parameters
    ----------
    name : str
    frame : Frame
    labels : tuple of str
        Groups; a single one for total population.
    counts : int64 (leaves, groups)
    """

    name: str
    frame: Frame
    labels: tuple[str, ...]
    counts: Counts

    @property
    def measured(self) -> tuple[str, ...]:
        """Geolevels with budget: the state too where there are groups, whose sizes are not held."""
        return (*(("state",) if len(self.labels) > 1 else ()), *LEVELS)


def tasks(data: Path, folder: Path) -> Iterator[Task]:
    """Yield the two tables."""
    truth = load(rhode_island(data), folder).read()
    counts = truth.histogram
    leaf = np.repeat(np.arange(counts.rows), np.diff(counts.indptr))
    groups = np.zeros((counts.rows, len(GROUPS)), dtype=np.int64)
    np.add.at(groups, (leaf, group_of_cell(pl94_persons().schema)[counts.cells]), counts.counts)
    yield Task("Total population", truth.frame, ("person",), groups.sum(axis=1, keepdims=True))
    yield Task("Eight groups", truth.frame, tuple(f"group{k}" for k in range(len(GROUPS))), groups)


def ours(task: Task, rho: Fraction, seed: int, folder: Path) -> tuple[Counts, float]:
    """Return the estimate of TopDown, and the seconds that measuring and estimating took."""
    schema = Schema((Attribute("group", task.labels),))
    leaves, groups = np.nonzero(task.counts)
    shape = task.counts.shape
    table = Histogram.from_entries(leaves, groups, task.counts[leaves, groups], shape=shape)
    write_table(folder, task.frame, table, schema, {})
    labels = ", ".join(f'"{label}"' for label in task.labels)
    (folder / "product.toml").write_text(
        f'[product]\nname = "groups"\nprovenance = "code-book"\n[attributes]\ngroup = [{labels}]\n'
        '[[invariants]]\nquery = "total"\ngeolevel = "state"\n',
        encoding="utf-8",
    )
    share = f"1/{len(task.measured)}"
    shares = ", ".join(f'{name} = "{share if name in task.measured else 0}"' for name in ("state", *LEVELS))
    run = load(
        f"""\
[run]
product = "product.toml"
[input]
reader = "histogram"
path = "histogram.parquet"
[geography]
frame = "frame.csv"
provenance = "public"
levels = [
    {{ name = "state", prefix = 2 }}, {{ name = "county", prefix = 5 }}, {{ name = "tract", prefix = 11 }},
    {{ name = "block_group", prefix = 12 }}, {{ name = "block" }},
]
[budget]
rho = "{rho}"
geolevels = {{ {shares} }}
queries = {{ "*" = {{ detailed = "1" }} }}
""",
        folder,
    )
    with tempfile.TemporaryDirectory() as scratch:
        release = od.release(run, Path(scratch) / "out", seed=seed, workers=1)
        estimate = release.estimate()
        timing = (Path(scratch) / "out" / "confidential" / "timings" / "groups.json").read_text("utf-8")
    found = np.zeros(shape, dtype=np.int64)
    leaf = np.repeat(np.arange(estimate.rows), np.diff(estimate.indptr))
    found[leaf, estimate.cells] = estimate.counts
    return found, float(json.loads(timing)["steps"]["estimate"])


def theirs(task: Task, rho: Fraction) -> tuple[Counts, float]:
    """Return the estimate of inf-tda, and the seconds it took."""
    import pandas as pd
    from InfTDA import inf_tda

    codes = [task.frame.codes(level).astype(str) for level in LEVELS]
    columns = [np.tile(column, len(task.labels)) for column in codes]
    if len(task.labels) > 1:
        columns.insert(0, np.repeat(np.array(task.labels), len(task.frame)))
    data = pd.Series(task.counts.T.ravel(), index=pd.MultiIndex.from_arrays(columns))
    # inf-tda takes (epsilon, delta) and turns it into rho; this is the inverse of its formula.
    epsilon = float(rho) + 2 * math.sqrt(float(rho) * math.log(1 / DELTA))
    start = time.perf_counter()
    result = inf_tda(data, (epsilon, DELTA), contribution=1)
    seconds = time.perf_counter() - start
    found = result.reindex(data.index, fill_value=0).to_numpy(dtype=np.int64)
    return found.reshape(len(task.labels), len(task.frame)).T, seconds


def errors(task: Task, estimate: Counts) -> dict[Key, float]:
    """Return mean and largest absolute error of the counts of every geolevel."""
    out: dict[Key, float] = {}
    for level in ("state", *LEVELS):
        codes, unit = np.unique(task.frame.codes(level), return_inverse=True)
        error = np.zeros((len(codes), len(task.labels)), dtype=np.int64)
        np.add.at(error, unit, estimate - task.counts)
        out[level, task.name, "", "mean"] = float(np.abs(error).mean())
        out[level, task.name, "", "largest"] = float(np.abs(error).max())
    return out


def compare(task: Task, rho: Fraction, seeds: int, folder: Path) -> dict[str, Mapping[Key, Mean]]:
    """Run both programs and average."""
    found: dict[str, list[dict[Key, float]]] = {"OpenDAS": [], "inf-tda": []}
    ours(task, rho, 0, folder)  # compiled code is loaded before anything is timed
    for seed in range(1, seeds + 1):
        for name in found:
            estimate, seconds = ours(task, rho, seed, folder) if name == "OpenDAS" else theirs(task, rho)
            note(f"{task.name}, rho {rho}, {name}, seed {seed}: {seconds:.1f} s")
            if int(estimate.sum()) != int(task.counts.sum()) or int(estimate.min()) < 0:
                raise SystemExit(f"{name} did not hold the total, or gave a negative count")
            found[name].append(errors(task, estimate) | {("", task.name, "", "seconds"): seconds})
    return {name: average(several) for name, several in found.items()}


def report(task: Task, rho: Fraction, found: Mapping[str, Mapping[Key, Mean]]) -> list[tuple[object, ...]]:
    """Return the rows of one comparison."""
    sigma = math.sqrt(len(task.measured) / rho)
    rows: list[tuple[object, ...]] = []
    for level in task.measured:
        for metric in ("mean", "largest"):
            noise = math.sqrt(2 / math.pi) * sigma if metric == "mean" else None
            key = (level, task.name, "", metric)
            rows.append((task.name, rho, level, metric, noise, *(f[key] for f in found.values())))
    key = ("", task.name, "", "seconds")
    rows.append((task.name, rho, "all", "seconds", None, *(f[key] for f in found.values())))
    return rows


def main() -> None:
    """Run the experiment."""
    parser = arguments(__doc__, seeds=3)
    parser.add_argument("--rho", nargs="+", type=Fraction, default=[Fraction(1, 10), Fraction(1)])
    given = parser.parse_args()
    try:
        import InfTDA  # noqa: F401
    except ImportError:
        sys.exit(INSTALL)
    rows: list[tuple[object, ...]] = []
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks(given.data, Path(folder)):
            for rho in given.rho:
                found = compare(task, rho, given.seeds, Path(folder))
                rows += report(task, rho, found)
                figures |= {f"{task.name}, rho {rho}, {name}": plain(f) for name, f in found.items()}
    heads = ("Table", "rho", "Geolevel", "Absolute error", "Noise alone", "OpenDAS", "inf-tda")
    deliver("inf_tda", markdown(heads, rows), figures, given.to)


if __name__ == "__main__":
    main()
