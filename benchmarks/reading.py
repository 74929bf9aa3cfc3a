"""Reading a large input: rows a second, and peak memory for each leaf of the frame.

    OMP_NUM_THREADS=1 python benchmarks/reading.py --blocks 500000
    OMP_NUM_THREADS=1 python benchmarks/reading.py --blocks 8130000 --kinds codes --scratch DIR

A synthetic nation is read as persons, the histogram being put on disk, from the same rows in several forms:
Parquet files by county with codes or with labels, one Parquet file in random order of rows, and CSV. Every
reading is a process of its own, which has read something small before; rows a second are those of counting,
the public frame being read besides. Memory is the peak of the resident set above what the process had before,
mapped parts of the histogram included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import csv

from opendas.demo import write_nation
from opendas.runs.context.run import load
from opendas.schema.pl94 import pl94_persons

KINDS = ("codes", "labels", "shuffled", "csv")


def rewrite(folder: Path, kind: str) -> Path:
    """Write the persons of a synthetic nation in another form; return the run file that reads them."""
    run_file = folder / f"{kind}.toml"
    text = (folder / "persons.toml").read_text()
    ending = "csv" if kind == "csv" else "parquet"
    run_file.write_text(text.replace('path = "persons"', f'path = "{kind}/*.{ending}"'))
    target = folder / kind
    if target.exists():
        return run_file
    target.mkdir()
    files = sorted((folder / "persons").rglob("*.parquet"))
    if kind == "shuffled":
        table = ds.dataset(files).to_table()
        table = table.take(np.random.default_rng(1).permutation(table.num_rows))
        pq.write_table(table, target / "persons.parquet", row_group_size=1 << 17)
        return run_file
    for number, file in enumerate(files):
        table = pq.ParquetFile(file).read()
        if kind == "csv":
            csv.write_csv(table, target / f"{number:05d}.csv")
            continue
        for attribute in pl94_persons().schema.attributes:
            place = table.column_names.index(attribute.name)
            codes = table.column(place).combine_chunks().cast(pa.int32())
            labels = pa.DictionaryArray.from_arrays(codes, list(attribute.levels))
            table = table.set_column(place, attribute.name, labels)
        pq.write_table(table, target / f"{number:05d}.parquet", store_schema=False)
    return run_file


def status(name: str) -> float:
    """Return a figure of this process's memory in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024.0 * int(line.split()[1])
    return 0.0


@contextmanager
def measured(told: dict[str, float], name: str) -> Iterator[None]:
    """Note wall and processor time, and peak memory above what there was."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before = status("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    told[f"{name}_wall"] = time.perf_counter() - wall
    told[f"{name}_cpu"] = time.process_time() - cpu
    told[f"{name}_bytes"] = status("VmHWM") - before


def read_once(run_file: Path, small: Path) -> None:
    """Read in this process, and print what was measured as JSON."""
    with tempfile.TemporaryDirectory(dir=run_file.parent) as cache:
        load(small).read(Path(cache) / "small")
        told: dict[str, float] = {}
        with measured(told, "frame"):
            load(run_file).reader.frame()
        with measured(told, "read"):
            data = load(run_file).read(Path(cache) / "large")
        frame = data.frame
        arrays = [frame.geocodes]
        for columns in (frame.levels, frame.units, frame.entities):
            arrays += columns.values()
        told |= {
            "leaves": len(frame),
            "rows": len(data.histogram.cells),
            "frame": sum(array.nbytes for array in arrays),
        }
    print(json.dumps(told))


def report(kind: str, told: dict[str, float]) -> None:
    """Print a row."""
    rows, leaves = told["rows"], told["leaves"]
    wall, cpu = (told[f"read_{clock}"] - told[f"frame_{clock}"] for clock in ("wall", "cpu"))
    print(
        f"{kind:9s} {rows:,.0f} rows, {leaves:,.0f} leaves: {rows / wall / 1e6:.2f} million rows a second "
        f"({rows / cpu / 1e6:.2f} of processor time), frame {told['frame_wall']:.1f} s "
        f"({told['frame_cpu']:.1f} s); peak {told['read_bytes'] / leaves:.0f} bytes a leaf, "
        f"{told['frame_bytes'] / leaves:.0f} while the frame is read, which has {told['frame'] / leaves:.0f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a nation and read it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=500_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=None, help="keeps and reuses what is made")
    parser.add_argument("--once", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.once:
        read_once(*given.once)
        return
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.scratch or Path(temporary)
        folder, small = scratch / f"reading-{given.blocks}", scratch / "reading-small"
        for made, blocks in ((folder, given.blocks), (small, 1_000)):
            if not (made / "persons.toml").exists():
                write_nation(made, blocks)
        for kind in given.kinds * given.repeats:
            run_file = folder / "persons.toml" if kind == "codes" else rewrite(folder, kind)
            command = [sys.executable, __file__, "--once", str(run_file), str(small / "persons.toml")]
            report(kind, json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


if __name__ == "__main__":
    main()
