"""DHC persons, from a synthetic census to a verified release: processor time and memory by size.

    python benchmarks/dhc_persons.py PATH/ri2010.pl.zip --areas 44001 44001,44005 44

Each area is a list of prefixes of geocodes. Of each, in processes from the command line: the redistricting
product, DHC persons tied to it with the production budget and spine, and `opendas verify`. Processor time is
user and system of all processes of a command; wall time says what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from whole_runs import command, one_run


def cut(made: Path, area: Path, prefixes: list[str]) -> tuple[int, int]:
    """Write the part of a synthetic census in an area; returns its people and its blocks."""
    area.mkdir()
    rows = []
    for name in ("persons.parquet", "frame.parquet"):
        table = pq.read_table(made / name)
        codes = pc.cast(table["GEOID"], "string")
        inside = pc.starts_with(codes, prefixes[0])
        for prefix in prefixes[1:]:
            inside = pc.or_(inside, pc.starts_with(codes, prefix))
        table = table.filter(inside)
        pq.write_table(table, area / name)
        rows.append(table.num_rows)
    for product in ("pl94", "dhc"):
        text = (made / f"run-{product}-persons.toml").read_text()
        if product == "dhc" and "\n[tie]" not in text:
            text += '\n[tie]\nrelease = "pl94"\n'
        (area / f"run-{product}-persons.toml").write_text(text)
    return rows[0], rows[1]


def measured(area: Path, workers: int) -> dict[str, object]:
    """Run the three commands in an area; return their processor seconds, and what the run says of itself."""
    _, before = command("run", str(area / "run-pl94-persons.toml"), "--out", str(area / "pl94"))
    figures = one_run(area / "run-dhc-persons.toml", area / "dhc", workers)
    _, check = command("verify", str(area / "dhc"))
    return {"pl94_cpu_s": round(before, 1), **figures, "verify_cpu_s": round(check, 1)}


def families(area: Path) -> list[dict[str, object]]:
    """Return families, cells times children and seconds of each geolevel, of the DHC run."""
    (path,) = (area / "dhc" / "confidential" / "timings").glob("*_families.parquet")
    table = pq.read_table(path).to_pandas()
    table["cells"] = table["cells"] * table["children"]
    groups = table.groupby("geolevel", sort=False).agg({"label": "size", "cells": "sum", "seconds": "sum"})
    return [
        {"geolevel": name, "families": int(n), "variables": int(v), "seconds": round(s, 1)}
        for name, n, v, s in groups.itertuples()
    ]


def main() -> None:
    """Run the areas asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="official 2010 zip of Rhode Island")
    parser.add_argument("--areas", nargs="+", default=["44001", "44001,44005", "44"])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        _, cpu = command("make-census", str(given.path), "--to", str(made))
        print(f"make-census: {cpu:.1f} s of processor time", flush=True)
        for number, prefixes in enumerate(given.areas):
            area = Path(scratch) / f"area{number}"
            people, blocks = cut(made, area, prefixes.split(","))
            row = measured(area, given.workers)
            print(f"{prefixes}: {people:,} people, {blocks:,} blocks: {json.dumps(row)}", flush=True)
            for family in families(area):
                print(f"  {json.dumps(family)}", flush=True)


if __name__ == "__main__":
    main()
