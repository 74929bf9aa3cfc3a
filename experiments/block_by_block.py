"""Block-by-block against TopDown at equal budget: appendix A of the TopDown paper.

    python experiments/block_by_block.py [DATA] [--seeds 3] [--to FOLDER]

First the illustration of A.1 in closed form, at rho 1/2: block totals measured with variance 1 and summed,
against every geolevel measured with the number of geolevels as variance: 6 in the nation, 5 in a state.

Then both algorithms in full on Rhode Island 2010, persons, at the production rho. Block-by-block cannot hold
the state total, so TopDown runs without that invariant too; and since the production shares of a block lean
on its parent, block-by-block also runs with half of the budget on totals.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiment import (
    LEVELS,
    Key,
    Mean,
    arguments,
    averaged,
    deliver,
    load,
    markdown,
    plain,
    rhode_island,
)

from opendas.budget.presets import preset
from opendas.geography.spine import Spine

NATION = 5_892_698
"""Blocks that can be inhabited, 2020: TopDown paper, Table 2."""

NO_TOTAL = 'drop_invariants = ["total"]'
BLOCK_BY_BLOCK = NO_TOTAL + '\nestimator = "block-by-block"'


def half_on_totals() -> str:
    """Return shares of a block that give half of the budget to its total, the rest as in production."""
    shares = {query: share / 2 for query, share in preset("pr2020-persons").queries["block"].items()}
    shares["total"] += Fraction(1, 2)
    return '[budget.queries]\n"*" = { ' + ", ".join(f'"{q}" = "{s}"' for q, s in shares.items()) + " }"


SETTINGS = {
    "TopDown, state total held": ("", ""),
    "TopDown": (NO_TOTAL, ""),
    "Block-by-block": (BLOCK_BY_BLOCK, ""),
    "Block-by-block, half on totals": (BLOCK_BY_BLOCK, half_on_totals()),
}
QUERIES = ("total", "votingage", "hispanic", "cenrace", "hhgq", "detailed")


def best_variances(spine: Spine, variance: float) -> list[npt.NDArray[np.float64]]:
    """Return the variance of the best linear unbiased estimate of every geounit's total, level by level.

    Every geounit is measured with `variance`. Upwards, a geounit's measurement is combined with the sum of
    its children's estimates; downwards, with what the rest of the tree says of it: parent less siblings.
    """
    below = [np.full(len(spine.leaf), variance)]
    sums: list[npt.NDArray[np.float64]] = []
    for level in range(len(spine.levels) - 2, -1, -1):
        sums.insert(0, np.add.reduceat(below[0], spine.child_starts(level)[:-1]))
        below.insert(0, 1 / (1 / variance + 1 / sums[0]))
    best = [below[0]]
    outside = [np.full(len(below[0]), np.inf)]  # what is known of a geounit without its own subtree
    for level in range(len(spine.levels) - 1):
        starts = spine.child_starts(level)
        parent = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        of_parent = 1 / (1 / variance + 1 / outside[level])
        rest = of_parent[parent] + sums[level][parent] - below[level + 1]
        outside.append(rest)
        best.append(1 / (1 / below[level + 1] + 1 / rest))
    return best


def closed_form(spine: Spine) -> str:
    """Return the illustration of A.1: variances of totals at rho 1/2."""
    levels = len(spine.levels)
    rows: list[tuple[object, ...]] = [("nation, 2020", 1, float(NATION), float(NATION), 6.0, None)]
    blocks = len(spine.leaf)
    for level, best in zip(spine.levels, best_variances(spine, float(levels)), strict=True):
        mean = blocks / len(level)
        rows.append((level.name, len(level), mean, mean, float(levels), float(best.mean())))
    heads = ("Geolevel", "Geounits", "Blocks in one", "Block-by-block", "Measured by TopDown", "Best of all")
    return markdown(heads, rows)


def comparison(found: dict[str, dict[Key, Mean]]) -> str:
    """Return mean absolute errors by geolevel, and the signed error of the total."""
    rows = []
    for level in LEVELS:
        for query in QUERIES:
            key = (level, query, "", "mean_abs_error")
            rows.append((level, query, *(figures[key] for figures in found.values())))
    for population in ("0", "1 to 9", "10 to 99", "100 to 999", "1,000+"):
        signed = ("block", "total", population, "mean_signed_error")
        rows.append(("block", f"signed, {population} people", *(f[signed] for f in found.values())))
    return markdown(("Geolevel", "Query", *found), rows)


def main() -> None:
    """Run the experiment."""
    given = arguments(__doc__, seeds=3).parse_args()
    found: dict[str, dict[Key, Mean]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (options, shares) in SETTINGS.items():
            run = load(rhode_island(given.data, run=options, more=shares), Path(folder))
            truth = run.read()
            found[name] = averaged(run, truth, range(1, given.seeds + 1))
    text = closed_form(run.spine) + "\n\n" + comparison(found)
    deliver("block_by_block", text, {name: plain(figures) for name, figures in found.items()}, given.to)


if __name__ == "__main__":
    main()
