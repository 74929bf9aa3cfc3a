"""Margins of counts in blocks, pooled over cells that came out alike, beside those of one cell's replicates.

    opendas run RUN.toml --out OUT --seed 1; opendas replicates OUT --runs 50
    python experiments/margins_pooled.py RUN.toml OUT [OUT ...]

For each query group: how many true counts lie within the margin and its mean, where either count is not 0;
and how many by the published count, of all cells with that count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from experiment import markdown

import opendas as od
from opendas.tables.cells import query_table
from opendas.tables.counting import count_table

QUERIES = ("total", "votingage", "cenrace", "hispanic * cenrace")
SHOWN = ((0, 0), (1, 3), (4, 9), (10, 1 << 40))


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path, nargs="+")
    given = parser.parse_args()
    run = od.load(given.run)
    truth = run.read().histogram
    rows: list[list[str]] = []
    for query in QUERIES:
        for pooled in (False, True):
            figures = []
            for out in given.out:
                release = od.Release(out)
                frame = release.frame()
                true = count_table(truth, query_table(run.product, query), frame.grouping(frame.leaf))
                found = release.margin(query, geolevel=frame.leaf, pooled=pooled).to_arrow()
                inside = np.isin(
                    found.column("geocode").to_numpy(zero_copy_only=False).astype(str),
                    frame.geocodes.astype(str),
                )
                count, margin = (found.column(name).to_numpy()[inside] for name in ("count", "margin"))
                off = np.abs(count - true.ravel())
                live, held = (count != 0) | (off != 0), off <= margin
                sizes = [held[(count >= low) & (count <= high)].mean() for low, high in SHOWN]
                figures.append([*(100 * x for x in (held[live].mean(), *sizes)), margin[live].mean()])
            *held_by, half = np.mean(figures, axis=0)
            kind = "pooled" if pooled else "own"
            rows.append([query, kind, *(f"{x:.1f}" for x in (held_by[0], half, *held_by[1:]))])
    print(markdown(["Query", "Margin", "holds, %", "mean", "at 0", "1 to 3", "4 to 9", "10 and more"], rows))


if __name__ == "__main__":
    main()
