"""Exact draws a second: OpenDAS beside OpenDP's vector discrete Gaussian, in one run.

    OMP_NUM_THREADS=1 python benchmarks/noise.py [--draws N] [--repeats R] [--json FILE]

Both samplers are exact and give 64-bit integers; OpenDAS time includes laying out the addresses and AES-256.
Best of the repeats, in processor time of the one thread that runs: a busy machine disturbs it less than wall
time, and on an idle machine the two agree. The OpenDP rows need ``pip install opendp`` and are left out, with
a message, where it is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from opendas.custody.run_key import RunKey
from opendas.sampling.inverse_cdf import SamplerTable
from opendas.sampling.laws import DiscreteGaussian
from opendas.sampling.noise import NoiseSource

VARIANCES = (1, 10, 100, 1000)
#: Cells of ten query groups of a family with 14 children: small calls, where overhead shows.
FAMILY = ((3, 1), (5, 2), (10, 8), (20, 16), (50, 30), (7, 2), (9, 63), (11, 4), (200, 126), (1000, 10))
CHILDREN = 14


def best_of(repeats: int, act: Callable[[], object]) -> float:
    """Return the shortest processor time of ``act`` in seconds, after one call to warm up."""
    act()
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        act()
        best = min(best, time.thread_time() - start)
    return best


def time_ours(variance: int, draws: int, repeats: int) -> dict[str, float]:
    """Time the table and one large call of ``draw``."""
    law = DiscreteGaussian(Fraction(variance))
    start = time.thread_time()
    floors = law.tail_floors(64)
    build = time.thread_time() - start
    source, table = NoiseSource(RunKey.generate().derive("benchmark")), SamplerTable.build(law)
    cells = np.arange(draws)
    seconds = best_of(repeats, lambda: source.draw_many(1, [(table, 0, 0, cells)]))
    return {"per_second": draws / seconds, "thresholds": len(floors), "thresholds_seconds": build}


def time_family(repeats: int) -> dict[str, float]:
    """Time one call of ``draw_many`` for a small family."""
    source, units = NoiseSource(RunKey.generate().derive("benchmark")), np.arange(CHILDREN)
    requests = [
        (SamplerTable.build(DiscreteGaussian(Fraction(variance))), units, query, np.arange(cells))
        for query, (variance, cells) in enumerate(FAMILY)
    ]
    draws = CHILDREN * sum(cells for _, cells in FAMILY)
    return {"draws": draws, "seconds": best_of(100 * repeats, lambda: source.draw_many(5, requests))}


def opendp_sampler(variance: int, draws: int) -> Callable[[], object]:
    """Return a call of OpenDP's vector discrete Gaussian on int64, or raise ImportError."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement = dp.m.make_gaussian(*space, scale=float(variance) ** 0.5)
    zeros: list[int] = [0] * draws
    return lambda: measurement(zeros)


def run(draws: int, repeats: int) -> dict[str, Any]:
    """Time everything once."""
    rows: list[dict[str, Any]] = []
    peer = ""
    for variance in VARIANCES:
        row: dict[str, Any] = {"variance": variance, **time_ours(variance, draws, repeats)}
        try:
            few = 20_000
            row["opendp_per_second"] = few / best_of(3, opendp_sampler(variance, few))
            row["ratio"] = row["per_second"] / row["opendp_per_second"]
        except ImportError:
            peer = "OpenDP is not installed: its rows are left out (pip install opendp)."
        rows.append(row)
    return {
        "machine": f"{platform.machine()} {processor()}",
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in ("numpy", "numba", "cryptography", "opendp")},
        "draws": draws,
        "repeats": repeats,
        "rows": rows,
        "family": time_family(repeats),
        "message": peer,
    }


def processor() -> str:
    """Return the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), "")


def installed(name: str) -> str | None:
    """Return the version of a package, None where it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{result['machine']}, Python {result['python']}, one thread, best of {result['repeats']}")
    print(", ".join(f"{name} {number}" for name, number in result["versions"].items() if number))
    print("\nvariance   OpenDAS M/s   OpenDP M/s      ratio   thresholds (ms)")
    for row in result["rows"]:
        peer = row.get("opendp_per_second")
        theirs = f"{peer / 1e6:12.4f} {row['ratio']:10,.0f}" if peer else f"{'-':>12} {'-':>10}"
        ours = f"{row['variance']:8}   {row['per_second'] / 1e6:11.1f}"
        print(f"{ours} {theirs}   {row['thresholds_seconds'] * 1e3:15.2f}")
    family = result["family"]
    microseconds = f"{family['seconds'] * 1e6:.0f} microseconds"
    print(f"\nOne family, ten queries, {family['draws']:,} draws in one call: {microseconds}")
    if result["message"]:
        print(result["message"])


def main() -> None:
    """Read the options, run, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2_000_000, help="draws in one call (default 2,000,000)")
    parser.add_argument(
        "--repeats", type=int, default=20, help="the best of this many is reported (default 20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here as well")
    options = parser.parse_args()
    result = run(options.draws, options.repeats)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
