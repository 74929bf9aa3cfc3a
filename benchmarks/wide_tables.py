"""Tables of many cells that no census has: plan, run and verify them, with processor time and memory.

    python benchmarks/wide_tables.py --attributes 120,116,116 --records 200000 --leaves 500

Attributes by their numbers of levels, in records drawn by Zipf's law for each attribute; leaves lie in five
counties. The run file is what `opendas init` would write: every attribute is a query group, rho is 1.
Processor time is user and system of all processes of a command.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from whole_runs import command, one_run

COUNTIES = 5


def zipf(rng: np.random.Generator, levels: int, records: int) -> np.ndarray:
    """Draw levels, the more frequent first."""
    weight = 1.0 / np.arange(1, levels + 1)
    return rng.choice(levels, records, p=weight / weight.sum())


def write_table(folder: Path, sizes: list[int], records: int, leaves: int) -> Path:
    """Write records, product and run file; return the run file."""
    rng = np.random.default_rng(2020)
    folder.mkdir()
    labels = {f"a{k}": [f"{level:03d}" for level in range(size)] for k, size in enumerate(sizes)}
    names = np.array([f"{k % COUNTIES}{k:05d}" for k in range(leaves)])
    columns = {"ward": names[rng.integers(0, leaves, records)]}
    for name, found in labels.items():
        columns[name] = np.array(found)[zipf(rng, len(found), records)]
    pq.write_table(pa.table(columns), folder / "records.parquet")
    (folder / "leaves.csv").write_text("ward\n" + "\n".join(names) + "\n")
    product = ['[product]\nname = "wide"\nprovenance = "code-book"\n[attributes]']
    product += [f"{name} = {json.dumps(found)}" for name, found in labels.items()]
    product.append(f"[queries]\ngroups = {json.dumps(list(labels))}")
    (folder / "product.toml").write_text("\n".join(product) + "\n")
    shares = ", ".join(f'{name} = "1/{4 * len(sizes)}"' for name in labels)
    run = folder / "run.toml"
    run.write_text(f"""\
[run]
product = "product.toml"
neighbours = "bounded"
[input]
reader = "records"
path = "records.parquet"
geocode = "ward"
[geography]
levels = [{{ name = "all", prefix = 0 }}, {{ name = "county", prefix = 1 }}, {{ name = "ward", prefix = 6 }}]
frame = "leaves.csv"
provenance = "public"
[budget]
rho = "1"
geolevels = {{ all = "1/3", county = "1/3", ward = "1/3" }}
[budget.queries]
"*" = {{ total = "1/4", {shares}, detailed = "1/2" }}
""")
    return run


def main() -> None:
    """Plan, run and verify a table; or show how it is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attributes", default="120,116,116", help="levels of each")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--leaves", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    sizes = [int(size) for size in given.attributes.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        run = write_table(Path(scratch) / "table", sizes, given.records, given.leaves)
        cells = int(np.prod(sizes))
        print(f"{cells:,} cells, {given.records:,} records, {given.leaves} leaves", flush=True)
        began = time.perf_counter()
        _, plan = command("plan", str(run), "--records", str(given.records))
        print(f"plan: {plan:.1f} s of processor time, {time.perf_counter() - began:.0f} s", flush=True)
        figures = one_run(run, Path(scratch) / "out", given.workers)
        print(f"run: {json.dumps(figures)}", flush=True)
        _, verify = command("verify", str(Path(scratch) / "out"))
        print(f"verify: {verify:.1f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
