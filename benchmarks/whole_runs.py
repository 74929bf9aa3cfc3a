"""Whole runs, from input to finished release: time, peak memory, and where the time goes.

    python benchmarks/whole_runs.py rhode-island PATH/ri2010.pl.zip
    python benchmarks/whole_runs.py scale --blocks 5000 50000 500000 --products persons units
    python benchmarks/whole_runs.py rhode-island PATH/ri2010.pl.zip --estimators topdown informed

Each run is a process of its own, started from the command line as a user would; time is that of the whole
process. Several estimators take turns, run by run, so that what else the machine does falls on all of them.
Kernels are compiled before the first counted run. Peak memory is the largest resident set of one process, as
the kernel accounts it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RUN_FILE = """\
[run]
product = "pl94-{layout}"
estimator = "{estimator}"
[input]
reader = "pl94-2010"
path = "{path}"
[budget]
preset = "pr2020-{layout}"
"""


def command(*arguments: str) -> tuple[float, float]:
    """Run opendas; return wall and processor time in seconds, start of the interpreter included."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "opendas", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, errors = process.communicate()
    wall = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(errors.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_run(run_file: Path, out: Path, workers: int | None) -> dict[str, object]:
    """Run once and collect its own account of time and memory."""
    more = [] if workers is None else ["--workers", str(workers)]
    wall, cpu = command("run", str(run_file), "--out", str(out), *more)
    (path,) = (out / "confidential" / "timings").glob("*.json")
    timing = json.loads(path.read_text())
    figures = {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_rss_mb": timing["peak_rss_mb"]}
    return {**figures, "steps": timing["steps"]}


def median_of(runs: list[dict[str, object]], key: str) -> float:
    """Return the median of a figure over runs."""
    return statistics.median(float(run[key]) for run in runs)  # type: ignore[arg-type]


def report(name: str, runs: list[dict[str, object]], blocks: int) -> dict[str, object]:
    """Print and return a row."""
    wall, cpu, peak = (median_of(runs, key) for key in ("wall_s", "cpu_s", "peak_rss_mb"))
    steps = {
        step: statistics.median(run["steps"][step] for run in runs)  # type: ignore[index]
        for step in runs[0]["steps"]  # type: ignore[union-attr]
    }
    print(
        f"{name:34s} {wall:8.2f} s  {cpu:8.2f} s cpu  {1e3 * wall / blocks:7.3f} ms/block  {peak:8.0f} MB  "
        + "  ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items()),
        flush=True,
    )
    return {
        "name": name,
        "blocks": blocks,
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_rss_mb": peak,
        "steps": steps,
        "runs": runs,
    }


def in_turn(
    files: Mapping[str, Path], scratch: Path, count: int, workers: int | None
) -> dict[str, list[dict[str, object]]]:
    """Run each file once uncounted, then all of them in turn."""
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in files}
    for i in range(-1, count):
        for name, run_file in files.items():
            found = one_run(run_file, scratch / f"{name}-{i}", workers)
            if i >= 0:
                runs[name].append(found)
    return runs


def rhode_island(
    path: Path, estimators: Sequence[str], count: int, workers: int | None
) -> list[dict[str, object]]:
    """Run Rhode Island 2010 from the official zip, persons and units."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for layout in ("persons", "units"):
            files = {}
            for estimator in estimators:
                files[f"{layout}, {estimator}"] = run_file = Path(scratch) / f"{layout}-{estimator}.toml"
                text = RUN_FILE.format(layout=layout, path=path.resolve(), estimator=estimator)
                run_file.write_text(text)
            for name, runs in in_turn(files, Path(scratch), count, workers).items():
                rows.append(report(f"Rhode Island {name}", runs, 17_850))
    return rows


def scale(
    sizes: list[int], products: Sequence[str], estimators: Sequence[str], count: int, workers: int | None
) -> list[dict[str, object]]:
    """Run synthetic states of growing size."""
    from opendas.demo import write_demo

    rows = []
    for blocks in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            made = dict(zip(("persons", "units"), write_demo(Path(scratch) / "input", blocks), strict=True))
            for product in products:
                files = {}
                for estimator in estimators:
                    name = f"{product}, {estimator}"
                    files[name] = made[product].with_name(f"{product}-{estimator}.toml")
                    text = made[product].read_text().replace("[run]", f'[run]\nestimator = "{estimator}"')
                    files[name].write_text(text)
                for name, runs in in_turn(files, Path(scratch), count, workers).items():
                    rows.append(report(f"{blocks:,} blocks, {name}", runs, blocks))
    return rows


def main() -> None:
    """Run the benchmark asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rhode-island", "scale"])
    parser.add_argument("path", nargs="?", type=Path, help="official 2010 zip of Rhode Island")
    parser.add_argument("--blocks", nargs="+", type=int, default=[5_000, 50_000, 500_000])
    parser.add_argument("--products", nargs="+", default=["persons"], choices=["persons", "units"])
    parser.add_argument("--estimators", nargs="+", default=["topdown"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write the rows to a file")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, median of {given.runs}")
    if given.what == "rhode-island":
        if given.path is None:
            parser.error("rhode-island needs the path of the official zip")
        rows = rhode_island(given.path, given.estimators, given.runs, given.workers)
    else:
        rows = scale(given.blocks, given.products, given.estimators, given.runs, given.workers)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
