"""Forecasts of time, memory and disk: fits their coefficients and holds them against runs.

    python benchmarks/forecast.py measure RUNS.json --blocks 2000 8000 30000 --workers 1 2
    python benchmarks/forecast.py fit RUNS.json
    python benchmarks/forecast.py check RUNS.json

``measure`` makes states up and runs them as a user would, persons and units, each estimator; it looks at the
memory of all processes and at the output folder several times a second, and adds what it found to RUNS.json.
``fit`` prints coefficients as they stand in the module: each is a least-squares fit of relative errors with
no negative coefficient. Times of one worker are taken as processor time, so that other work on the machine
does not count. ``check`` prints forecast beside measured for every run, with the module's
coefficients; give it runs of sizes that were not fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from nation import folder_mb
from scipy.optimize import nnls

import opendas
from opendas.demo import write_demo
from opendas.runs.progress.clock import STEPS, step_of_lap, step_of_stage
from opendas.runs.progress.forecast import TASK_LEAVES, Costs, Work, forecast_run, work_of
from opendas.runs.progress.log import read_log
from opendas.runs.progress.processes import memory_mb

HEIGHTS = 4
"""Heights above the leaves that have a cost of their own: leaves, their parents, these' parents, the rest."""

SHARED = ("main_leaf", "worker_mb", "answer", "answer_bytes", "full_mb")
"""Costs that are taken from the first estimator of a file."""

PAUSE = 0.1
"""Seconds between two looks at memory and disk."""


def processor_seconds() -> float:
    """Return the processor time of all ended children."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def one_run(run_file: Path, out: Path, workers: int, measurements: str) -> dict[str, Any]:
    """Run once; return seconds of the whole process and of each step, memory and disk."""
    arguments = ["run", str(run_file), "--out", str(out), "--workers", str(workers), "--seed", "1"]
    arguments += ["--measurements", measurements]
    started, before = time.perf_counter(), processor_seconds()
    process = subprocess.Popen(
        [sys.executable, "-m", "opendas", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    memory = disk = 0.0
    while process.poll() is None:
        memory = max(memory, memory_mb(process.pid) or 0.0)
        disk = max(disk, folder_mb(out))
        time.sleep(PAUSE)
    wall, cpu = time.perf_counter() - started, processor_seconds() - before
    if process.returncode != 0:
        raise SystemExit((process.stderr.read() if process.stderr else b"").decode())
    (timings,) = (out / "confidential" / "timings").glob("*.json")
    found = json.loads(timings.read_text())
    steps = dict.fromkeys(STEPS, 0.0)
    for lap, seconds in found["steps"].items():
        steps[step_of_lap(lap)] += seconds
    steps["planning"] += wall - found["seconds"]  # start and end of the program
    gathering = gathered(out)
    steps["gathering"] += gathering
    steps["estimating"] -= gathering
    left = folder_mb(out)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "steps": steps,
        "laps": found["steps"],
        "peak_rss_mb": found["peak_rss_mb"],
        "memory_mb": memory,
        "output_mb": left,
        "scratch_mb": max(0.0, disk - left),
        "families": seconds_by_level(out),
    }


def gathered(out: Path) -> float:
    """Return the seconds of the informed estimator's way up, by the log."""
    (path,) = (out / "confidential" / "logs").glob("*.jsonl")
    began: dict[str, float] = {}
    for line in read_log(path).attempt:
        if line["event"] == "stage":
            began.setdefault(step_of_stage(line["stage"]), line["mono"])
    return began["estimating"] - began["gathering"] if "gathering" in began else 0.0


def seconds_by_level(out: Path) -> dict[str, float]:
    """Return the seconds of all families by geolevel, where the run kept them."""
    totals: dict[str, float] = {}
    for path in (out / "confidential" / "timings").glob("*_families.parquet"):
        table = pq.read_table(path, columns=["geolevel", "seconds"]).to_pandas()
        totals |= table.groupby("geolevel")["seconds"].sum().to_dict()
    return totals


def measure(options: argparse.Namespace) -> None:
    """Run what was asked for, and add it to the file."""
    rows = json.loads(options.file.read_text()) if options.file.exists() else []
    for blocks in options.blocks:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for run_file in write_demo(folder / "input", blocks, options.seed):
                product = run_file.stem
                if product not in options.products:
                    continue
                for estimator in options.estimators:
                    chosen = run_file.with_name(f"{product}-{estimator}.toml")
                    text = run_file.read_text()
                    chosen.write_text(text.replace("[run]\n", f"[run]\n{settings(estimator)}\n", 1))
                    plan = opendas.load(chosen).plan
                    for workers in options.workers:
                        for repeat in range(options.repeat):
                            out = folder / f"{product}-{estimator}-{workers}-{repeat}"
                            found = one_run(chosen, out, workers, options.measurements)
                            shutil.rmtree(out)
                            work = work_of(plan, estimator, workers, full=options.measurements == "full")
                            rows.append({"product": product, **as_json(work), **found})
                            options.file.write_text(json.dumps(rows, indent=1))
                            show(rows[-1])


def settings(estimator: str) -> str:
    """Return the lines of a run file that choose an estimator."""
    lines = f'estimator = "{estimator}"'
    return lines + ('\ndrop_invariants = ["total"]' if estimator == "block-by-block" else "")


def as_json(work: Work) -> dict[str, Any]:
    """Return the fields of what a run has to do."""
    return {name: getattr(work, name) for name in Work.__slots__}


def work_from(row: Mapping[str, Any]) -> Work:
    """Return what a measured run had to do."""
    rest = {name: row[name] for name in Work.__slots__[1:] if name in row}
    return Work(tuple((name, count) for name, count in row["geounits"]), **rest)


def quiet(row: Mapping[str, Any]) -> float:
    """Return the part of a run's time that is its own: other work on a shared machine takes the rest."""
    return min(1.0, row["cpu_s"] / row["wall_s"]) if row["workers"] == 1 else 1.0


def by_height(row: Mapping[str, Any], values: Mapping[str, float]) -> np.ndarray:
    """Return values of geolevels added up by height above the leaves."""
    totals = np.zeros(HEIGHTS)
    for height, (name, _) in enumerate(reversed(row["geounits"])):
        totals[min(height, HEIGHTS - 1)] += values.get(name, 0.0)
    return totals


def fitted(columns: Sequence[Sequence[float]], found: Sequence[float]) -> np.ndarray:
    """Return non-negative coefficients with the least sum of squared relative errors."""
    y = np.maximum(np.array(found, dtype=float), 1e-6)
    matrix = np.array(columns, dtype=float).T / y[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    return np.asarray(nnls(matrix / scale, np.ones(len(y)))[0] / scale)


def fit_one(rows: Sequence[Mapping[str, Any]], main_leaf: float | None = None) -> Costs:
    """Fit the costs of one product and estimator; of one worker, but for the memory of workers.

    Memory that grows with all leaves is told from memory of a task by runs with many leaves; `main_leaf`, in
    bytes, comes from elsewhere where there are none.
    """
    alone = [row for row in rows if row["workers"] == 1 and not row["full"]]
    many = [row for row in rows if row["workers"] > 1 and not row["full"]]
    full = [row for row in rows if row["workers"] == 1 and row["full"]]
    leaves = [float(row["geounits"][-1][1]) for row in alone]
    one = [1.0] * len(alone)

    def step(name: str) -> list[float]:
        return [quiet(row) * row["steps"][name] for row in alone]

    start, planning = fitted([one, leaves], step("planning"))
    start_writing, writing = fitted([one, leaves], step("writing"))
    child, start_estimating = np.zeros(HEIGHTS), 0.0
    if any(row["families"] for row in alone):
        counts = sum(by_height(row, dict(row["geounits"])) for row in alone)
        seconds = sum(by_height(row, row["families"]) for row in alone)
        child = seconds / np.maximum(counts, 1)
        told = [float(by_height(row, dict(row["geounits"])) @ child) for row in alone]
        # A task does other things beside its families; loading compiled kernels takes the same for all runs.
        start_estimating, more = fitted([one, told], step("estimating"))
        child *= more
    else:
        counts_of = [float(sum(count for _, count in row["geounits"])) for row in alone]
        child[:] = fitted([counts_of], step("estimating"))[0]
    at_once = [min(count, float(TASK_LEAVES)) for count in leaves]
    peaks = [row["peak_rss_mb"] for row in alone]
    if main_leaf is None:
        main_mb, main_leaf, worker_leaf = fitted([one, leaves, at_once], peaks)
    else:
        main_leaf /= 2**20
        rest = [max(1.0, peak - main_leaf * count) for peak, count in zip(peaks, leaves, strict=True)]
        main_mb, worker_leaf = fitted([one, at_once], rest)
    worker_mb = 0.0
    if many:
        rest = [
            max(1.0, row["memory_mb"] - main_mb - main_leaf * size - row["workers"] * worker_leaf * part)
            for row in many
            for size in [row["geounits"][-1][1]]
            for part in [min(size, TASK_LEAVES)]
        ]
        worker_mb = fitted([[float(row["workers"]) for row in many]], rest)[0]
    output_mb, output_leaf = fitted([one, leaves], [row["output_mb"] for row in alone])
    scratch_leaf = fitted([leaves], [max(1e-3, row["scratch_mb"]) for row in alone])[0]
    answer = answer_bytes = full_mb = 0.0
    if full:
        answers = [float(row["answers"]) for row in full]
        size = [float(row["geounits"][-1][1]) for row in full]
        more = [max(1e-3, quiet(row) * row["laps"]["measurement files"]) for row in full]
        answer = fitted([[1.0] * len(full), answers], more)[1]
        more = [
            max(1e-3, row["output_mb"] - output_mb - output_leaf * count)
            for row, count in zip(full, size, strict=True)
        ]
        answer_bytes = fitted([answers], more)[0]
        full_mb = max(
            0.0, *(row["peak_rss_mb"] - main_mb - worker_leaf * row["geounits"][-1][1] for row in full)
        )
    return Costs(
        rows[0]["cells"],
        *rounded(start + start_writing + start_estimating),
        *rounded(*(1e6 * fitted([leaves], step("reading")))),
        *rounded(1e6 * planning),
        *rounded(*(1e6 * fitted([leaves], step("gathering")))),
        tuple(rounded(*(1e6 * child))),
        *rounded(1e6 * writing, 1e6 * answer, main_mb, 2**20 * main_leaf, worker_mb, 2**20 * worker_leaf),
        *rounded(output_mb, 2**20 * output_leaf, 2**20 * scratch_leaf, 2**20 * answer_bytes, full_mb),
    )


def rounded(*values: float) -> list[float]:
    """Return values with three digits."""
    return [float(f"{value:.3g}") for value in values]


def fit(options: argparse.Namespace) -> None:
    """Print the coefficients of every estimator."""
    rows = json.loads(options.file.read_text())
    known: dict[int, dict[str, float]] = {}
    for estimator in dict.fromkeys(row["estimator"] for row in rows):
        print(f'    "{estimator}": (')
        for cells in sorted({row["cells"] for row in rows}):
            chosen = [row for row in rows if (row["estimator"], row["cells"]) == (estimator, cells)]
            costs = fit_one(chosen, known.get(cells, {}).get("main_leaf"))
            # Processes and full files are the same for every estimator: the first speaks for all.
            shared = known.setdefault(cells, {name: getattr(costs, name) for name in SHARED})
            print(f"        {replace(costs, **shared)},")
        print("    ),")


def show(row: Mapping[str, Any], costs: Costs | None = None) -> float:
    """Print a run beside its forecast; return how much longer it took."""
    try:
        told = forecast_run(work_from(row), costs)
    except KeyError:
        print(f"{row['product']} {row['estimator']}: {row['wall_s']:.2f} s, not forecast", flush=True)
        return 1.0
    seconds = quiet(row) * row["wall_s"]
    ratio = seconds / told.seconds
    print(
        f"{row['product']:8s} {row['estimator']:15s} {row['geounits'][-1][1]:9,} leaves  {row['workers']} w"
        f"{' full' if row['full'] else '     '}"
        f"  time {told.seconds:8.1f} / {seconds:8.1f} s ({ratio:4.2f})"
        f"  process {told.peak_rss_mb:6.0f} / {row['peak_rss_mb']:6.0f} MB"
        f"  all {told.memory_mb:6.0f} / {row['memory_mb']:6.0f} MB"
        f"  files {told.output_mb:7.1f} / {row['output_mb']:7.1f} MB"
        f"  scratch {told.scratch_mb:6.1f} / {row['scratch_mb']:6.1f} MB",
        flush=True,
    )
    return float(ratio)


def check(options: argparse.Namespace) -> None:
    """Print every run beside its forecast."""
    rows = json.loads(options.file.read_text())
    print("forecast / measured")
    ratios = [show(row) for row in rows]
    print(f"measured time over forecast: {min(ratios):.2f} to {max(ratios):.2f}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["measure", "fit", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--blocks", type=int, nargs="+", default=[2000, 8000, 30_000])
    parser.add_argument("--products", nargs="+", default=["persons", "units"])
    parser.add_argument("--estimators", nargs="+", default=["topdown", "informed"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--measurements", choices=["used", "full"], default="used")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=2020)
    options = parser.parse_args()
    {"measure": measure, "fit": fit, "check": check}[options.what](options)


if __name__ == "__main__":
    main()
