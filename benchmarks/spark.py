"""What Spark costs beyond the local engine, at the same number of tasks at a time.

    python benchmarks/spark.py                       # 25,000 blocks, two tasks at a time, three of each
    python benchmarks/spark.py --blocks 250000 --repeats 1

A synthetic state is released in turn by the local engine with ``--workers`` processes and by a local Spark of
as many threads, in this process, with the same seed. Releases are compared. Told apart are

- the start of Spark: the session;
- the first run on it beside later ones: a small state is released, so that Python processes start, import
  what they need, and read compiled code;
- what every run on a started Spark costs, whatever its size: the same small state once more, beside the local
  engine;
- what grows with the input: all the rest.

A run of hours sees the last alone. Times are wall times and processor seconds, those of this process and of
all below it. Read the minimum, and on a machine with other work the processor seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import opendas as od
from opendas.demo import write_nation
from opendas.engines.spark.session import open_session
from opendas.runs.context.run import Run

SEED = 11
SMALL = 500
"""Blocks of a state that is as good as none."""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds of a call: on the clock, and of processors."""

    wall: float
    processor: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.processor - other.processor)

    def __str__(self) -> str:
        return f"{self.wall:6.1f} s, of processors {self.processor:6.1f}"


def least(costs: list[Cost]) -> Cost:
    """Return the least of each, which need not be of the same call."""
    return Cost(min(cost.wall for cost in costs), min(cost.processor for cost in costs))


class Meter:
    """Adds up the processor seconds of this process and of all below it, those that end included."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def __call__(self) -> float:
        """Return the seconds so far."""
        with self._lock:
            self._look()
            return sum(self._ticks.values()) / TICKS

    def _watch(self) -> None:
        while True:
            time.sleep(0.3)
            with self._lock:
                self._look()

    def _look(self) -> None:
        """Take note of every process: what one that ends has used since the last look is lost."""
        fields: dict[int, list[str]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                fields[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
        wanted = [os.getpid()]
        while wanted:
            pid = wanted.pop()
            self._ticks[pid, fields[pid][19]] = sum(map(int, fields[pid][11:13]))
            wanted += [other for other, stat in fields.items() if int(stat[1]) == pid]


processor_time = Meter()


def cost(work: Callable[[], object]) -> Cost:
    """Return what a call costs."""
    wall, processor = time.perf_counter(), processor_time()
    work()
    return Cost(time.perf_counter() - wall, processor_time() - processor)


def digest(out: Path) -> str:
    """Return the SHA-256 of a release without what bears a date."""
    found = hashlib.sha256()
    for path in sorted((out / "release").rglob("*.parquet")):
        found.update(path.relative_to(out).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def steps(out: Path, product: str) -> dict[str, float]:
    """Return the wall time of each step of a run."""
    text = (out / "confidential" / "timings" / f"{product}.json").read_text(encoding="utf-8")
    return {name: float(seconds) for name, seconds in json.loads(text)["steps"].items()}


class Releases:
    """Releases a run again and again."""

    def __init__(self, folder: Path, run: Run, workers: int) -> None:
        self._folder, self._run, self._workers = folder, run, workers
        self._digests: set[str] = set()
        self._number = 0
        self.costs: dict[str, list[Cost]] = {"local": [], "spark": []}
        self.steps: dict[str, dict[str, float]] = {}

    def __call__(self, engine: str) -> Cost:
        """Release once; all releases must be the same."""
        self._number += 1
        out = self._folder / f"{engine}-{self._number}"
        found = cost(lambda: od.release(self._run, out, seed=SEED, workers=self._workers, engine=engine))
        self.costs[engine].append(found)
        self.steps[engine] = steps(out, self._run.product.name)
        self._digests.add(digest(out))
        if len(self._digests) > 1:
            raise SystemExit("the releases differ")
        return found

    def beyond(self) -> Cost:
        """Return what Spark cost more."""
        return least(self.costs["spark"]) - least(self.costs["local"])


def main() -> None:
    """Run, compare and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=25_000)
    parser.add_argument("--product", choices=["persons", "units"], default="persons")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where states and releases are put")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        folder = Path(name)

        def state(blocks: int) -> Releases:
            place = folder / str(blocks)
            write_nation(place / "state", blocks, 2020, 1)
            run = od.load(place / "state" / f"{given.product}-standard.toml")
            return Releases(place, run, given.workers)

        small, large = state(SMALL), state(given.blocks)
        small("local")  # compiled code is read
        small.costs["local"].clear()
        opened = open_session(None, name="opendas benchmark", threads=given.workers)
        print(f"session of Spark                {cost(opened.__enter__)}", flush=True)
        try:
            first = small("spark")
            small.costs["spark"].clear()
            for _ in range(3):
                small("local")
                small("spark")
            print(f"first run on it, beside later   {first - least(small.costs['spark'])}")
            print(f"every run, {SMALL} blocks          {small.beyond()}", flush=True)
            for _ in range(given.repeats):
                for engine in ("local", "spark"):
                    print(f"  {engine:5} {large(engine)}", flush=True)
        finally:
            opened.__exit__(None, None, None)
    local, spark = least(large.costs["local"]), least(large.costs["spark"])
    rest = spark - small.beyond()
    print(f"\n{given.blocks:,} blocks, {given.product}, {given.workers} at a time, same bytes")
    print(f"local engine                    {local}")
    print(f"Spark, once it is started       {spark}")
    for words, found in (("all of it", spark), ("without what every run costs", rest)):
        print(
            f"overhead, {words}: {100 * (found.wall / local.wall - 1):.0f} % of wall time, "
            f"{100 * (found.processor / local.processor - 1):.0f} % of processor time"
        )
    for engine, named in large.steps.items():
        print(engine, {step: round(seconds, 2) for step, seconds in named.items()})


if __name__ == "__main__":
    main()
