"""Whole runs, from input to finished release: time, peak memory, and where the time goes.

    python benchmarks/whole_runs.py rhode-island PATH/ri2010.pl.zip
    python benchmarks/whole_runs.py scale --blocks 5000 50000 500000

Each run is a process of its own, started from the command line as a user would. Kernels are compiled before
the first counted run. Peak memory is the largest resident set of one process, as the kernel accounts it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN_FILE = """\
[run]
product = "pl94-{layout}"
[input]
reader = "pl94-2010"
path = "{path}"
[budget]
preset = "pr2020-{layout}"
"""


def command(*arguments: str) -> float:
    """Run opendas and return its wall time in seconds, start of the interpreter included."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "opendas", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, errors = process.communicate()
    wall = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(errors.decode())
    return wall


def one_run(run_file: Path, out: Path, workers: int | None) -> dict[str, object]:
    """Run once and collect its own account of time and memory."""
    more = [] if workers is None else ["--workers", str(workers)]
    wall = command("run", str(run_file), "--out", str(out), *more)
    product = f"pl94-{run_file.stem}"
    timing = json.loads((out / "confidential" / "timings" / f"{product}.json").read_text())
    return {"wall_s": round(wall, 2), "peak_rss_mb": timing["peak_rss_mb"], "steps": timing["steps"]}


def median_of(runs: list[dict[str, object]], key: str) -> float:
    """Return the median of a figure over runs."""
    return statistics.median(float(run[key]) for run in runs)  # type: ignore[arg-type]


def report(name: str, runs: list[dict[str, object]], blocks: int) -> dict[str, object]:
    """Print and return a row."""
    wall, peak = median_of(runs, "wall_s"), median_of(runs, "peak_rss_mb")
    steps = {
        step: statistics.median(run["steps"][step] for run in runs)  # type: ignore[index]
        for step in runs[0]["steps"]  # type: ignore[union-attr]
    }
    print(
        f"{name:28s} {wall:8.2f} s  {1e3 * wall / blocks:7.3f} ms/block  {peak:8.0f} MB  "
        + "  ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items()),
        flush=True,
    )
    return {"name": name, "blocks": blocks, "wall_s": wall, "peak_rss_mb": peak, "steps": steps, "runs": runs}


def rhode_island(path: Path, count: int, workers: int | None) -> list[dict[str, object]]:
    """Run Rhode Island 2010 from the official zip, persons and units."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for layout in ("persons", "units"):
            run_file = Path(scratch) / f"{layout}.toml"
            run_file.write_text(RUN_FILE.format(layout=layout, path=path.resolve()))
            one_run(run_file, Path(scratch) / f"warm-{layout}", workers)
            runs = [one_run(run_file, Path(scratch) / f"{layout}-{i}", workers) for i in range(count)]
            rows.append(report(f"Rhode Island {layout}", runs, 17_850))
    return rows


def scale(sizes: list[int], count: int, workers: int | None) -> list[dict[str, object]]:
    """Run made states of growing size, persons."""
    from opendas.demo import write_demo

    rows = []
    for blocks in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            persons = write_demo(Path(scratch) / "input", blocks)[0]
            if not rows:
                one_run(persons, Path(scratch) / "warm", workers)
            runs = [one_run(persons, Path(scratch) / f"out-{i}", workers) for i in range(count)]
            rows.append(report(f"made state, {blocks:,} blocks", runs, blocks))
    return rows


def main() -> None:
    """Run the benchmark asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rhode-island", "scale"])
    parser.add_argument("path", nargs="?", type=Path, help="official 2010 zip of Rhode Island")
    parser.add_argument("--blocks", nargs="+", type=int, default=[5_000, 50_000, 500_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="also write the rows to a file")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, median of {given.runs}")
    if given.what == "rhode-island":
        if given.path is None:
            parser.error("rhode-island needs the path of the official zip")
        rows = rhode_island(given.path, given.runs, given.workers)
    else:
        rows = scale(given.blocks, given.runs, given.workers)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
