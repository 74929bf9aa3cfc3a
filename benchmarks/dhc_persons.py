"""DHC persons, from a synthetic census to a verified release: processor time and memory by size.

    nice python benchmarks/dhc_persons.py PATH/ri2010.pl.zip --areas 44009 44003,44009 44 44x5

Each area is a list of prefixes of geocodes; ``44x5`` is five states like that, as one: their counties have
codes of their own. Of each, in processes from the command line: the redistricting
product, DHC persons tied to it with the production budget and spine, and `opendas verify`. Processor time is
user and system of all processes of a command; wall time says what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from whole_runs import command, one_run

COUNTIES = 50
"""Counties that a state may have: codes are odd. Other entities have the same codes in all copies."""


def copied(table: pa.Table, copies: int) -> pa.Table:
    """Return so many copies of a table of geocodes, the county codes of each its own."""
    tables = []
    for number in range(copies):
        moved = table
        for name in {"GEOID", "cousub"} & set(table.column_names):
            codes = pc.cast(table[name], "string")
            county = pc.cast(pc.utf8_slice_codeunits(codes, 2, 5), "int64")
            shown = pc.cast(pc.add(county, 2 * COUNTIES * number), "string")
            parts = (pc.utf8_slice_codeunits(codes, 0, 2), pc.utf8_lpad(shown, 3, "0"))
            place = moved.column_names.index(name)
            moved = moved.set_column(
                place, name, pc.binary_join_element_wise(*parts, pc.utf8_slice_codeunits(codes, 5), "")
            )
        tables.append(moved)
    return pa.concat_tables(tables)


def cut(made: Path, area: Path, prefixes: list[str], copies: int) -> tuple[int, int]:
    """Write copies of the part of a synthetic census in an area; returns their people and blocks."""
    area.mkdir()
    rows = []
    for name in ("persons.parquet", "frame.parquet"):
        table = pq.read_table(made / name)
        codes = pc.cast(table["GEOID"], "string")
        inside = pc.starts_with(codes, prefixes[0])
        for prefix in prefixes[1:]:
            inside = pc.or_(inside, pc.starts_with(codes, prefix))
        table = copied(table.filter(inside), copies)
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
    parser.add_argument("--areas", nargs="+", default=["44009", "44003,44009", "44"])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        _, cpu = command("make-census", str(given.path), "--to", str(made))
        print(f"make-census: {cpu:.1f} s of processor time", flush=True)
        for number, prefixes in enumerate(given.areas):
            area = Path(scratch) / f"area{number}"
            where, _, copies = prefixes.partition("x")
            people, blocks = cut(made, area, where.split(","), int(copies or 1))
            row = measured(area, given.workers)
            print(f"{prefixes}: {people:,} people, {blocks:,} blocks: {json.dumps(row)}", flush=True)
            for family in families(area):
                print(f"  {json.dumps(family)}", flush=True)


if __name__ == "__main__":
    main()
