"""A demographer: a first release, a table of tracts, and the margin of a published count."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from steps import opendas

opendas("demo", "--blocks", "600")
out = Path("demo-out/out")
opendas("verify", out)
opendas("tabulate", out, "--tables", "P1", "--geolevel", "tract", "--format", "csv", "--to", "tables")
(table,) = Path("tables").glob("*.csv")
with table.open(newline="") as file:
    rows = list(csv.DictReader(file))
people = sum(int(row["P0010001"]) for row in rows)
opendas("replicates", out, "--runs", "9")
margins = json.loads(
    opendas("margin", out, "--query", "pl94-persons:total", "--geolevel", "tract", "--json")
)["rows"]
assert len(margins) == len(rows), "a margin for every tract of the table"
print(
    f"P1 of {len(rows)} tracts, {people:,} people; margin of {margins[0]['geocode']}: {margins[0]['margin']}"
)
