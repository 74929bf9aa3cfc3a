"""How far the householders of DHC persons are from the occupied units: two releases that nothing ties.

    python experiments/householders.py PERSONS UNITS [MADE]

PERSONS is a release of `dhc-persons`, UNITS one of `pl94-units` or of `dhc-units` (whose households are, in
every block, the occupied units of the release it is tied to). In a census both numbers are the same. With the
folder of the synthetic census, errors of each beside it: which of the two differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from experiment import markdown

import opendas as od
from opendas.arrays import Ints
from opendas.geography.frame import Grouping
from opendas.tables.cells import query_table
from opendas.tables.counting import count_table

LEVELS = ("state", "county", "tract", "block_group", "block")
OCCUPIED = {"pl94-units": ("occupancy", ("occupied",)), "dhc-units": ("total", ("total",))}
HOUSEHOLDER = ("relgq_4_groups", ("householder",))


def counts(release: od.Release, product: str, query: str, labels: tuple[str, ...], level: str) -> Ints:
    """Return the sum of some columns of a query group in each geounit of a geolevel, int64 (g,)."""
    table = query_table(release.product(product), query)
    found = count_table(release.estimate(product), table, release.frame(product).grouping(level))
    return np.asarray(found[:, [table.labels.index(label) for label in labels]].sum(axis=1))


def true_households(made: Path, groups: Grouping, leaves: list[str]) -> Ints:
    """Return the households of each geounit of a synthetic census, int64 (g,)."""
    lived_in = pc.greater(pq.read_table(made / "units.parquet", columns=["household"])["household"], 0)
    where = pq.read_table(made / "units.parquet", columns=["GEOID"])["GEOID"].filter(lived_in)
    place = {leaf: int(group) for leaf, group in zip(leaves, groups.of_leaf, strict=True)}
    return np.bincount([place[code] for code in where.to_pylist()], minlength=len(groups.geocodes))


def row_of(level: str, heads: Ints, homes: Ints, truth: Ints | None) -> dict[str, object]:
    """Compare both numbers at one geolevel."""
    apart = np.abs(heads - homes)
    row: dict[str, object] = {
        "geolevel": level,
        "geounits": len(apart),
        "mean occupied units": round(float(homes.mean()), 1),
        "mean difference": round(float(apart.mean()), 2),
        "95 in 100 at most": int(np.quantile(apart, 0.95, method="higher")),
        "largest": int(apart.max()),
        "equal": f"{100 * float((apart == 0).mean()):.1f} %",
        "householders without unit": int(((heads > 0) & (homes == 0)).sum()),
    }
    if truth is not None:
        row["error of householders"] = round(float(np.abs(heads - truth).mean()), 2)
        row["error of units"] = round(float(np.abs(homes - truth).mean()), 2)
    return row


def main(persons: str, units: str, made: str | None = None) -> None:
    """Print the table."""
    heads_of, homes_of = od.Release(persons), od.Release(units)
    product = next(name for name in OCCUPIED if name in homes_of.products)
    frame = heads_of.frame("dhc-persons")
    if not np.array_equal(frame.geocodes, homes_of.frame(product).geocodes):
        raise SystemExit("the two releases have different blocks.")
    rows = []
    for level in LEVELS:
        heads = counts(heads_of, "dhc-persons", *HOUSEHOLDER, level)
        homes = counts(homes_of, product, *OCCUPIED[product], level)
        leaves = [code.decode() for code in frame.geocodes.tolist()]
        truth = None if made is None else true_households(Path(made), frame.grouping(level), leaves)
        rows.append(row_of(level, heads, homes, truth))
    print(markdown(list(rows[0]), [list(row.values()) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
