"""Runs at the scale of a nation: time, memory, where they go, and what follows for the whole nation.

    python benchmarks/nation.py scale                 # one state: 25,000, 250,000 and 900,000 blocks, persons
    python benchmarks/nation.py tenth                 # a tenth of a nation, several states, both products
    python benchmarks/nation.py whole                 # a whole nation, both products
    python benchmarks/nation.py workers --blocks 250000   # one worker and two, several states
    python benchmarks/nation.py workers --state           # the same on one state of 900,000 blocks
    python benchmarks/nation.py make --blocks 8130000 # the generator alone
    python benchmarks/nation.py project ROWS.json     # of rows that --json wrote

``--json FILE`` adds every finished row to FILE. ``--scratch DIR`` keeps what is made there, and takes inputs
from it that are there already. A run is a process of its own, started from the command line as a user would;
its wall time is that of the whole process, kernels being compiled before. Peak memory is sampled from /proc
five times a second: of the largest process (and of it what no file backs), and of all together, what they
have in common counted once. The start is the same command on a state of 300 blocks. Times by level are those
of the families whose children are there, summed over workers.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from opendas.demo import write_nation
from opendas.demo.land import LARGE_STATE, NATION
from opendas.runs.progress.processes import memory_mb

SCALE = (25_000, 250_000, 900_000)
START = 300
"""Blocks of a state so small that a run of it is all start and end."""

SHORT, SHORT_TIMES = 25_000, 5
"""Up to so many blocks a run takes seconds, and tenths of one matter: the median of several runs counts."""

TEXAS = 32.2
"""People a block of a state of 900,000 blocks and 29 million people."""

TENTH = 814_000
"""Blocks of which 590,000 have homes, a tenth of the nation's 5.9 million."""

TENTH_STATES = 6

WHOLE = 8_130_000
"""Blocks of a nation: 5.9 million have homes."""

UNITED_STATES = {
    "us": 1,
    "state": 88,
    "county": 3_500,
    "tract": 84_000,
    "block_group": 410_000,
    "block": 5_900_000,
}
"""Geounits of the AIAN spine of 2020, optimised block groups included."""

PAUSE = 0.2
RARELY = 5.0
"""Seconds between looks at a run's memory: looking takes time of a core that two workers would use."""


@dataclass
class Row:
    """One finished run. Times in seconds, memory and disk in MB.

    Parameters
    ----------
    name, product : str
    workers : int
    blocks, leaves, people : int
        Leaves are blocks with homes.
    geounits : dict of geolevel to int
    wall, cpu : float
    largest, anonymous, together : float
        Peak memory: largest process, largest private memory of one, all together.
    disk : float
        Peak size of the output folder.
    steps : dict of str to float
        Wall time of each step of the run.
    levels : dict of geolevel to float
        Time of the families whose children are there, summed.
    """

    name: str
    product: str
    workers: int
    blocks: int
    leaves: int
    people: int
    geounits: dict[str, int]
    wall: float
    cpu: float
    largest: float
    anonymous: float
    together: float
    disk: float
    steps: dict[str, float]
    levels: dict[str, float]


def made_nation(scratch: Path, blocks: int, states: int | None, people: float, *, one_state: bool) -> Path:
    """Make a nation, unless it is there already; return its folder. Prints the generator's speed."""
    folder = scratch / f"made-{blocks}-{states or 0}-{people:g}{'-texas' if one_state else ''}"
    told = folder / "made.json"
    if told.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    start, before = time.perf_counter(), time.process_time()
    made = write_nation(
        folder, blocks, states=states, people=people, density=LARGE_STATE if one_state else NATION
    )
    wall, cpu = time.perf_counter() - start, time.process_time() - before
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"made {made.blocks:,} blocks ({made.leaves:,} with homes), {made.people:,} people, "
        f"{made.states} states, {made.counties:,} counties, {made.tracts:,} tracts, "
        f"{made.block_groups:,} block groups: {wall:.1f} s, "
        f"{made.people / wall / 1e6:.2f} million people a second ({made.people / cpu / 1e6:.2f} of processor "
        f"time), {size:.0f} MB on disk, {peak:.0f} MB of memory",
        flush=True,
    )
    plain = {name: value for name, value in asdict(made).items() if name != "runs"}
    told.write_text(json.dumps(plain | {"wall": wall, "cpu": cpu}))
    return folder


def _status(pid: int) -> dict[str, float]:
    """Return the resident memory of a process in MB, and what of it no file backs."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {"largest": "VmRSS", "anonymous": "RssAnon"}
    return {key: int(fields[name].split()[0]) / 1024 for key, name in names.items() if name in fields}


def _below(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _below(int(child))


def folder_mb(folder: Path) -> float:
    """Return what the files below a folder take."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # removed meanwhile
            continue
    return total / 2**20


def _ends(process: subprocess.Popen[bytes], pause: float) -> bool:
    try:
        process.wait(pause)
    except subprocess.TimeoutExpired:
        return False
    return True


def watched(arguments: Sequence[str | Path], out: Path, pause: float = PAUSE) -> dict[str, float]:
    """Run opendas; return wall and processor time and the peaks of memory and disk, seen at every pause."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    peaks = dict.fromkeys(("largest", "anonymous", "together", "disk"), 0.0)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "opendas", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=errors
        )
        looks = 0
        while not _ends(process, pause):
            for pid in _below(process.pid):
                for name, value in _status(pid).items():
                    peaks[name] = max(peaks[name], value)
            peaks["together"] = max(peaks["together"], memory_mb(process.pid) or 0.0)
            if looks % 10 == 0:
                peaks["disk"] = max(peaks["disk"], folder_mb(out))
            looks += 1
        wall = time.perf_counter() - start
        errors.seek(0)
        if process.returncode != 0:
            raise SystemExit(errors.read().decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu, **peaks}


def by_level(out: Path, product: str) -> dict[str, float]:
    """Return the seconds of the families whose children are at each level, summed."""
    path = out / "confidential" / "timings" / f"{product}_families.parquet"
    if not path.exists():
        return {}
    seconds = (
        pq.read_table(path, columns=["geolevel", "seconds"])
        .group_by("geolevel")
        .aggregate([("seconds", "sum")])
    )
    pairs = zip(seconds["geolevel"].to_pylist(), seconds["seconds_sum"].to_pylist(), strict=True)
    return {level: float(total) for level, total in pairs}


def geounits(out: Path, product: str) -> dict[str, int]:
    """Return the number of geounits at each level of a release."""
    table = pq.read_table(out / "release" / "measurements" / product / "spine.parquet", columns=["geolevel"])
    return {entry["values"]: entry["counts"] for entry in table["geolevel"].value_counts().to_pylist()}


def one_run(
    name: str,
    made: Path,
    run: str,
    workers: int,
    scratch: Path,
    *,
    verify: bool = True,
    pause: float = PAUSE,
) -> Row:
    """Release one product and, if wanted, verify it; print and return the row."""
    product = f"pl94-{run}"
    numbers = json.loads((made / "made.json").read_text())
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        out = Path(folder) / "out"
        words = ["run", made / f"{run}.toml", "--out", out, "--workers", str(workers), "--json"]
        found = watched(words, out, pause)
        steps = json.loads((out / "confidential" / "timings" / f"{product}.json").read_text())["steps"]
        if verify:
            checked = watched(["verify", out], out, pause)
            steps["verify"] = checked["wall"]
            found["wall"] += checked["wall"]
            found["cpu"] += checked["cpu"]
            for peak in ("largest", "anonymous", "together"):
                found[peak] = max(found[peak], checked[peak])
        counts = geounits(out, product)
        leaves = max(counts.values())
        row = Row(
            name, run, workers, numbers["blocks"], leaves, numbers["people"], counts,
            **{key: round(value, 3) for key, value in found.items()},
            steps={step: round(seconds, 3) for step, seconds in steps.items()},
            levels={level: round(seconds, 3) for level, seconds in by_level(out, product).items()},
        )  # fmt: skip
    show(row)
    return row


def show(row: Row) -> None:
    """Print a row."""
    print(
        f"{row.name}, {row.product}, {row.workers} workers: {row.leaves:,} leaves of {row.blocks:,} blocks, "
        f"{row.people:,} people\n  {row.wall:.1f} s wall, {row.cpu:.1f} s cpu, "
        f"{row.leaves / row.wall:,.0f} leaves/s, {row.blocks / row.wall:,.0f} blocks/s\n"
        f"  memory: {row.largest:.0f} MB the largest process ({row.anonymous:.0f} MB its own), "
        f"{row.together:.0f} MB all together; {row.disk:.0f} MB of disk\n  steps: "
        + ", ".join(f"{step} {seconds:.1f} s" for step, seconds in row.steps.items())
        + "\n  families: "
        + ", ".join(f"{level} {seconds:.1f} s" for level, seconds in row.levels.items()),
        flush=True,
    )


def warm(scratch: Path) -> None:
    """Compile the kernels: a run of each product that is not counted."""
    made = made_nation(scratch, 1_000, 2, 20.0, one_state=False)
    for run in ("persons", "units"):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            watched(
                ["run", made / f"{run}.toml", "--out", Path(folder) / "out", "--workers", "1"], Path(folder)
            )


def scale(scratch: Path, sizes: Sequence[int], workers: int) -> Iterator[Row]:
    """One state of growing size: throughput should stay flat beyond what every run takes."""

    def of_size(name: str, blocks: int) -> Row:
        made = made_nation(scratch, blocks, 1, TEXAS, one_state=True)
        return one_run(name, made, "persons", workers, scratch)

    found = []
    for name, blocks in [("start", START), *(("one state", blocks) for blocks in sizes)]:
        same = []
        for _ in range(SHORT_TIMES if blocks <= SHORT else 1):
            same.append(of_size(name, blocks))
            yield same[-1]
        found.append(sorted(same, key=lambda row: row.wall)[len(same) // 2])
    start, *rows = found
    whole = [row.leaves / row.wall for row in rows]
    beyond = [(row.leaves - start.leaves) / (row.wall - start.wall) for row in rows]
    print(f"start, {start.blocks:,} blocks: {start.wall:.1f} s wall, {start.cpu:.1f} s cpu")
    for row, speed, rest in zip(rows, whole, beyond, strict=True):
        print(
            f"{row.blocks:,} blocks: {speed:,.0f} leaves/s, {speed / whole[-1]:.2f} of the largest; "
            f"beyond the start {rest:,.0f} leaves/s, {rest / beyond[-1]:.2f}"
        )


def whole_pass(name: str, scratch: Path, blocks: int, states: int | None, workers: int) -> Iterator[Row]:
    """Several states, persons and units, from reading to a verified release; then the projection."""
    made = made_nation(scratch, blocks, states, 41.0, one_state=False)
    rows = []
    for run in ("persons", "units"):
        rows.append(one_run(name, made, run, workers, scratch))
        yield rows[-1]
    project(rows, UNITED_STATES, workers)


def compare_workers(scratch: Path, made: Path, repeats: int) -> Iterator[Row]:
    """One worker and two in turn; and two runs of one worker side by side: what the cores give at most."""
    walls: dict[int, list[float]] = {1: [], 2: []}
    estimating: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for workers in (1, 2):
            name = f"{workers} of 2 workers"
            row = one_run(name, made, "persons", workers, scratch, verify=False, pause=RARELY)
            walls[workers].append(row.wall)
            estimating[workers].append(row.steps.get("estimate", row.wall))
            yield row
    both = []
    for _ in range(repeats):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=scratch) as folder, ThreadPoolExecutor(2) as threads:
            outs = [Path(folder) / name for name in ("one", "two")]
            runs = [["run", made / "persons.toml", "--workers", "1", "--out", out] for out in outs]
            list(threads.map(watched, runs, outs, [RARELY] * 2))
        both.append(time.perf_counter() - start)
    whole, part = (float(np.median(times[1]) / np.median(times[2])) for times in (walls, estimating))
    most = 2 * float(np.median(walls[1]) / np.median(both))
    print(
        f"two workers against one: {whole:.2f} times the throughput of whole runs, "
        f"{part:.2f} while estimating; two runs side by side, which share nothing: {most:.2f}"
    )


def project(rows: Sequence[Row], nation: Mapping[str, int], workers: int) -> dict[str, float]:
    """Project a nation from measured runs, and print the projection with its assumptions.

    The time of a level's families is taken to grow with their children; what estimating takes beyond its
    families with the leaves, as every other step does.

    Parameters
    ----------
    rows : sequence of Row
        One run, or one run of each product; of several runs of a product the one with most leaves counts.
    nation : mapping of geolevel to int
        Geounits of the nation.
    workers : int
        Processes of the projected run; all cores are taken to be as fast as with one at work.

    Returns
    -------
    dict of str to float
        Seconds of wall time of each product, and of everything.
    """
    print(
        f"\nprojection to {', '.join(f'{count:,} {level}' for level, count in nation.items())}, "
        f"{workers} workers. Assumed:"
        "\n  - families: time in proportion to their children at each level, as measured;"
        "\n  - drawing, aggregating and files while estimating: in proportion to leaves;"
        "\n  - reading, planning, writing, verifying: in proportion to leaves; the report likewise;"
        "\n  - the same machine, a nation as the made one is, and disk and memory enough."
    )
    names = list(nation)
    result: dict[str, float] = {}
    largest = {row.product: row for row in sorted(rows, key=lambda row: row.leaves)}
    for product, row in largest.items():
        grow = nation[names[-1]] / row.leaves
        families: dict[str, float] = {}
        for level in row.levels:
            families[level] = row.levels[level] * nation[level] / row.geounits[level]
        estimate = row.steps.get("estimate", 0.0)
        beyond = max(0.0, estimate * row.workers - sum(row.levels.values()))
        steps = {step: seconds * grow for step, seconds in row.steps.items() if step != "estimate"}
        started = max(0.0, row.wall - sum(row.steps.values()))
        steps["estimate"] = (sum(families.values()) + beyond * grow) / workers
        result[product] = started + sum(steps.values())
        print(
            f"{product}: {result[product] / 60:.1f} min; from {row.leaves:,} leaves in {row.wall:.1f} s "
            f"(leaves alone: {row.wall * grow * row.workers / workers / 60:.1f} min)"
            "\n  families, processor time: "
            + ", ".join(f"{level} {seconds / 60:.2f} min" for level, seconds in families.items())
            + f", beyond them {beyond * grow / 60:.2f} min\n  wall time: start {started:.1f} s, "
            + ", ".join(f"{step} {seconds / 60:.2f} min" for step, seconds in steps.items()),
            flush=True,
        )
    result["everything"] = sum(result.values())
    print(f"everything: {result['everything'] / 60:.1f} min")
    return result


@contextmanager
def scratch_folder(given: Path | None) -> Iterator[Path]:
    """Give the folder to work in; without one a temporary folder, removed at the end."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def keep(row: Row, path: Path | None) -> None:
    """Add a row to a JSON file."""
    if path is not None:
        rows = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*rows, asdict(row)], indent=1))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a JSON file."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [Row(**entry) for entry in found]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["scale", "tenth", "whole", "workers", "make", "project"])
    parser.add_argument("rows", nargs="?", type=Path, help="project: rows that --json wrote")
    parser.add_argument("--blocks", nargs="+", type=int, default=None)
    parser.add_argument("--states", type=int, default=None)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", action="store_true", help="workers: one state, as for scale")
    parser.add_argument("--repeats", type=int, default=3, help="workers: runs of each")
    parser.add_argument("--scratch", type=Path, default=None, help="keeps and reuses what is made")
    parser.add_argument("--json", type=Path, default=None, help="also add the rows to a file")
    given = parser.parse_args(arguments)
    if given.what == "project":
        if given.rows is None:
            parser.error("project needs a file of rows")
        project(read_rows(given.rows), UNITED_STATES, given.workers)
        return
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}", flush=True)
    with scratch_folder(given.scratch) as scratch:
        if given.what == "make":
            for blocks in given.blocks or [WHOLE]:
                made_nation(scratch, blocks, given.states, 41.0, one_state=False)
            return
        warm(scratch)
        if given.what == "scale":
            rows = scale(scratch, given.blocks or SCALE, given.workers)
        elif given.what == "tenth":
            states = given.states or TENTH_STATES
            blocks = (given.blocks or [TENTH])[0]
            rows = whole_pass("a tenth of a nation", scratch, blocks, states, given.workers)
        elif given.what == "whole":
            blocks = (given.blocks or [WHOLE])[0]
            rows = whole_pass("a nation", scratch, blocks, given.states, given.workers)
        else:
            blocks = (given.blocks or [SCALE[-1] if given.state else SCALE[1]])[0]
            states, people = (1, TEXAS) if given.state else (4, 41.0)
            made = made_nation(scratch, blocks, states, people, one_state=given.state)
            rows = compare_workers(scratch, made, given.repeats)
        for row in rows:
            keep(row, given.json)


if __name__ == "__main__":
    main()
