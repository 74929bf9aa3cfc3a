"""Forecasts beside runs: the estimate's time, memory and disk of synthetic states, as a user would run them.

OMP_NUM_THREADS=1 python benchmarks/forecast.py --blocks 8000 30000 --workers 1 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nation import folder_mb

import opendas
from opendas.demo import write_demo
from opendas.runs.progress.processes import memory_mb
from opendas.runs.simulated.forecast import forecast_run, measure_small_run

PAUSE = 0.1
"""Seconds between two looks at memory and disk."""


def run_once(run_file: Path, out: Path, workers: int) -> dict[str, float]:
    """Run once; return seconds of the estimate, memory of all processes, and MB of files."""
    words = ["run", str(run_file), "--out", str(out), "--workers", str(workers), "--seed", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "opendas", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    memory = disk = 0.0
    while process.poll() is None:
        memory = max(memory, memory_mb(process.pid) or 0.0)
        with contextlib.suppress(OSError):  # a folder was removed meanwhile
            disk = max(disk, folder_mb(out))
        time.sleep(PAUSE)
    if process.returncode != 0:
        raise SystemExit(f"{run_file.name} failed")
    (timings,) = (out / "confidential" / "timings").glob("*.json")
    left = folder_mb(out)
    seconds = json.loads(timings.read_text())["steps"]["estimate"]
    return {"seconds": seconds, "memory": memory, "files": left, "scratch": max(0.0, disk - left)}


def settings(estimator: str) -> str:
    """Return the lines of a run file that choose an estimator."""
    lines = f'[run]\nestimator = "{estimator}"\n'
    return lines + ('drop_invariants = ["total"]\n' if estimator == "block-by-block" else "")


def main() -> None:
    """Print every run beside its forecast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[8000, 30_000])
    parser.add_argument("--products", nargs="+", default=["persons", "units"])
    parser.add_argument("--estimators", nargs="+", default=["topdown", "informed"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    print("forecast / measured")
    for blocks in options.blocks:
        with tempfile.TemporaryDirectory() as scratch:
            for file in write_demo(Path(scratch) / "input", blocks, 2020):
                for estimator in options.estimators if file.stem in options.products else ():
                    chosen = file.with_name(f"{file.stem}-{estimator}.toml")
                    chosen.write_text(file.read_text().replace("[run]\n", settings(estimator), 1))
                    run = opendas.load(chosen)
                    seconds = measure_small_run(run)
                    for workers in options.workers:
                        told = forecast_run(run.plan, estimator, workers, geounit_seconds=seconds)
                        out = Path(scratch) / f"{chosen.stem}-{workers}"
                        found = run_once(chosen, out, workers)
                        print(
                            f"{file.stem:8s} {estimator:15s} {len(run.spine.leaf):9,} leaves  {workers} w"
                            f"  estimate {told.seconds or 0:8.2f} / {found['seconds']:8.2f} s"
                            f"  memory {told.memory_mb:6.0f} / {found['memory']:6.0f} MB"
                            f"  files {told.output_mb:7.1f} / {found['files']:7.1f} MB"
                            f"  scratch {told.scratch_mb:6.1f} / {found['scratch']:6.1f} MB",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
