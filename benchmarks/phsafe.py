"""Person-household tables: time and memory of whole runs, beside the published tools.

    python benchmarks/phsafe.py --peer-python PEER/bin/python
    python benchmarks/phsafe.py --households 80000 800000 8000000

Each run is ``opendas phsafe`` in private mode with the production budgets, all tables and levels, on made
households: a process of its own, from the start of the interpreter to the certificate. Shown are the fastest
of several runs, the processor time, and peak memory as the kernel accounts it. The peer is tmlt.analytics in
an environment of its own, answering one table (``phsafe_peer.py``) in one session; its peak is that of all
of its processes together. The published program itself is quoted, not run: it is no package.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.made_phsafe import write_made

# Production stack and budgets, 199,656 persons in 80,000 households, two shared cores; measured by the
# reference that this project was given, on another day.
QUOTED_S, QUOTED_MB = 389.0, 3400.0
QUOTED_HOUSEHOLDS = 80_000


@dataclass(frozen=True)
class Run:
    """Figures of one process and its children."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def tree_memory(root: int) -> float:
    """Return the memory of a process and all below it in MB: shared pages counted once."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0
    for process in family:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def run(command: list[str], *, whole_tree: bool = False, where: str | None = None) -> tuple[Run, str]:
    """Run a command; its figures, and what it printed."""
    peak = [0.0]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where)

    def watch() -> None:
        while process.returncode is None:
            peak[0] = max(peak[0], tree_memory(process.pid))
            time.sleep(0.5)

    if whole_tree:
        threading.Thread(target=watch, daemon=True).start()
    errors: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    drain = threading.Thread(target=lambda: errors.extend(process.stderr or []))
    drain.start()
    text = process.stdout.read()
    drain.join()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit("".join(errors[-30:]))
    if whole_tree:  # the others of the tree end later, or never tell
        return Run(wall, math.nan, peak[0]), text
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, usage.ru_maxrss / 1024), text


def fastest(runs: list[Run]) -> Run:
    """Return the smallest of each figure, but for the peak the largest."""
    return Run(
        min(one.wall_s for one in runs), min(one.cpu_s for one in runs), max(one.peak_mb for one in runs)
    )


def ours(folder: Path, scratch: Path, count: int) -> Run:
    """Run OpenDAS several times on a folder of synthetic data."""
    runs = []
    for number in range(count):
        out = scratch / f"{folder.name}-out-{number}"
        words = ["phsafe", str(folder / "config.json"), str(folder), str(out)]
        runs.append(run([sys.executable, "-m", "opendas", *words])[0])
    return fastest(runs)


def shown(name: str, figures: Run, persons: int) -> str:
    """Return a row of figures."""
    cpu = "" if math.isnan(figures.cpu_s) else f"{figures.cpu_s:.2f} s cpu"
    return (
        f"{name:34s} {figures.wall_s:8.2f} s  {cpu:>14s}  {figures.peak_mb:7.0f} MB  "
        f"a person: {1e6 * figures.wall_s / persons:6.2f} us, {1024 * figures.peak_mb / persons:5.2f} kB"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--households", nargs="+", type=int, default=[80_000, 800_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer-python", type=Path, default=None, help="interpreter with tmlt.analytics")
    parser.add_argument("--peer-runs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="of synthetic data; temporary by default")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to a file")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, Python {sys.version.split()[0]}, best of {given.runs}")
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for number, households in enumerate(given.households):
            folder = Path(scratch) / f"made-{households}"
            start = time.perf_counter()
            made = write_made(folder, households, seed=1)
            making = time.perf_counter() - start
            if number == 0:
                ours(folder, Path(scratch) / "warm", 1)  # kernels are compiled before the first counted run
            figures = ours(folder, Path(scratch), given.runs)
            print(shown(f"OpenDAS, {made.persons:,} persons", figures, made.persons), flush=True)
            row = {"persons": made.persons, "households": households, "made_s": making, **asdict(figures)}
            if given.peer_python is not None and number == 0:
                script = Path(__file__).resolve().with_name("phsafe_peer.py")
                command = [str(given.peer_python), str(script), str(folder), f"{scratch}/peer.csv"]
                peers = [run(command, whole_tree=True, where=scratch) for _ in range(given.peer_runs)]
                peer = fastest([figures for figures, _ in peers])
                steps = json.loads(peers[0][1].strip().splitlines()[-1])
                print(shown("tmlt.analytics, one table", peer, made.persons))
                print(
                    f"    {peer.wall_s / figures.wall_s:.0f} times as long; "
                    f"{steps['query_s']:.1f} s of it the query"
                )
                row |= {"peer_wall_s": peer.wall_s, "peer_peak_mb": peer.peak_mb, "peer_steps": steps}
            if households == QUOTED_HOUSEHOLDS:
                print(
                    f"    published program (quoted): {QUOTED_S:.0f} s, {QUOTED_MB:.0f} MB for as many "
                    f"households: {QUOTED_S / figures.wall_s:.0f} times as long"
                )
            rows.append(row)
    if given.json is not None:
        given.json.write_text(json.dumps({"load": load, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
