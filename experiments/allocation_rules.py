"""What simple allocations lose against the optimum, on the real counts of Rhode Island 2010.

    python experiments/allocation_rules.py [DATA] [--to DIR]

All by closed forms, nothing is simulated: the count-only rule, by the power of the number of nodes and by the
exact variance of the noise, and where the power fails; the joint allocation of geolevels and query groups;
budgets per node. Errors are sums of mean squared errors after clamping at zero. True counts are only
the yardstick.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from allocation_trees import Tree, rhode_islands
from experiment import arguments, deliver, load, markdown, rhode_island

from opendas.allocation import (
    Level,
    NoiseKind,
    allocate_per_node,
    allocate_total,
    clamped_moments,
    errors_at,
    power_rule,
    unknown_counts,
)
from opendas.allocation.programs_6_7 import weighted
from opendas.runs.allocate import count_pairs
from opendas.runs.context.run import Run

TOTALS = {
    "discrete-laplace": ("1/2", "2", "8", "20", "40"),
    "laplace": ("1/2", "2"),
    "discrete-gaussian": ("1/20", "1/2", "5/2", "10", "20"),
    "gaussian": ("1/2",),
}
GROUPS = ("total", "votingage", "cenrace", "hispanic * cenrace", "detailed")


def loss(levels: Sequence[Level], kind: str, budgets: Sequence[float], best: float) -> float:
    """Return the relative excess of the error at some budgets over the optimum."""
    return weighted(errors_at(levels, kind, budgets), (1.0,) * len(levels)) / best - 1


def count_only(levels: Sequence[Level]) -> list[dict[str, object]]:
    """Compare allocations by number of nodes with the optimum, over kinds of noise and totals."""
    unknown = [unknown_counts(level.name, level.counts.nodes) for level in levels]
    nodes = [level.counts.nodes for level in levels]
    rows: list[dict[str, object]] = []
    for kind, totals in TOTALS.items():
        for total in totals:
            best = allocate_total(levels, kind, total)
            row: dict[str, object] = {"mechanism": kind, "total": total}
            row["uniform"] = best.uniform_objective / best.objective - 1
            power = power_rule(nodes, kind, float(best.total)).tolist()
            row["power"] = loss(levels, kind, power, best.objective)
            exact = allocate_total(unknown, kind, total)
            row["exact"] = loss(levels, kind, exact.budgets, best.objective)
            rows.append(row)
    return rows


def per_node(tree: Tree) -> list[dict[str, object]]:
    """Return what budgets per node gain over the best budgets per level, before clamping and after."""
    rows: list[dict[str, object]] = []
    for kind, total in ((NoiseKind.LAPLACE, "2"), (NoiseKind.GAUSSIAN, "1/2")):
        found = allocate_per_node(tree.hierarchy.parents, kind, total, neighbours="unbounded")
        best = allocate_total(tree.levels, kind, total)
        clamped = sum(
            float(clamped_moments(kind, found.budgets(level), counts).mse.sum())
            for level, counts in enumerate(tree.counts)
        )
        row: dict[str, object] = {"tree": tree.name, "mechanism": kind.value, "total": total}
        row |= {"before": 1 - found.objective / found.per_level, "after": 1 - clamped / best.objective}
        rows.append(row)
    return rows


def groups_of(run: Run) -> list[Level]:
    """Return the counts of some query groups at every geolevel."""
    return [pair.level for pair in count_pairs(run) if pair.query in GROUPS]


def percent(value: object) -> str:
    """Write a relative excess: as a factor where it is large."""
    assert isinstance(value, float)
    return f"{value:.2%}" if value < 1 else f"{1 + value:,.1f} x"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Write the losses of allocations by number of nodes."""
    return markdown(
        ("mechanism", "total", "uniform", "power of nodes", "exact variance"),
        [
            (r["mechanism"], r["total"], percent(r["uniform"]), percent(r["power"]), percent(r["exact"]))
            for r in rows
        ],
    )


def main() -> None:
    """Compute and print."""
    options = arguments(__doc__, seeds=1).parse_args()
    with tempfile.TemporaryDirectory() as name:
        trees = rhode_islands(options.data, Path(name))
        groups = groups_of(load(rhode_island(options.data), Path(name)))
    figures: dict[str, object] = {}
    parts = []
    for title, levels in (
        *((f"{tree.name}: {tree.sizes}", tree.levels) for tree in trees.values()),
        (f"five geolevels and {len(GROUPS)} query groups: {', '.join(GROUPS)}", groups),
    ):
        rows = count_only(levels)
        figures[title] = rows
        parts.append(f"{title}\n\n{table(rows)}")
    nodes = [row for tree in trees.values() for row in per_node(tree)]
    figures["per node"] = nodes
    parts.append(
        "budgets per node: gain over the best budgets per level\n\n"
        + markdown(
            ("tree", "mechanism", "total", "before clamping", "after"),
            [
                (r["tree"], r["mechanism"], r["total"], percent(r["before"]), percent(r["after"]))
                for r in nodes
            ],
        )
    )
    deliver("allocation_rules", "\n\n".join(parts), figures, options.to)


if __name__ == "__main__":
    main()
