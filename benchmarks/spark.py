"""What Spark costs beyond the local engine, at the same number of tasks at a time.

    python benchmarks/spark.py                       # 25,000 blocks, two tasks at a time, three of each
    python benchmarks/spark.py --blocks 250000 --repeats 1

A made state is released in turn by the local engine with ``--workers`` processes and by a local Spark of as
many threads, in this process, with the same seed. The start of Spark (session and a look at its executors) is
timed apart; the first run on it also starts its Python processes, so that runs on the second and later are
what a run of hours sees. Releases are compared. Read the minimum: the machine may have other work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import opendas as od
from opendas.demo import write_nation
from opendas.engines.spark.session import open_session

SEED = 11


def timed(work: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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


def main() -> None:
    """Run, compare and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=25_000)
    parser.add_argument("--product", choices=["persons", "units"], default="persons")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_nation(folder / "state", arguments.blocks, 2020, 1)
        run = od.load(folder / "state" / f"{arguments.product}-standard.toml")
        outs: dict[str, list[Path]] = {"local": [], "spark": []}
        times: dict[str, list[float]] = {"local": [], "spark": []}

        def once(engine: str) -> None:
            out = folder / f"{engine}-{len(outs[engine])}"
            outs[engine].append(out)
            times[engine].append(
                timed(lambda: od.release(run, out, seed=SEED, workers=arguments.workers, engine=engine))
            )
            print(f"{engine}: {times[engine][-1]:.1f} s", flush=True)

        once("local")  # compiled code is read
        times["local"].clear()
        start = time.perf_counter()
        with open_session(None, name="opendas benchmark", threads=arguments.workers):
            print(f"start of Spark: {time.perf_counter() - start:.1f} s", flush=True)
            once("spark")
            for _ in range(arguments.repeats):
                once("local")
                once("spark")
        if len({digest(out) for found in outs.values() for out in found}) > 1:
            raise SystemExit("the releases differ")
        local, first, spark = min(times["local"]), times["spark"][0], min(times["spark"][1:])
        print(
            f"\n{arguments.blocks:,} blocks, {arguments.product}, {arguments.workers} at a time, same bytes"
        )
        print(f"local {local:.1f} s; Spark {spark:.1f} s, the first time {first:.1f} s")
        print(f"overhead beyond the start: {100 * (spark / local - 1):.0f} %")
        for engine in ("local", "spark"):
            print(engine, steps(outs[engine][-1], run.product.name))


if __name__ == "__main__":
    main()
