"""Redraw the figures of the allocation paper on real data, beside closed forms.

    python experiments/allocation_figures.py [DATA] [--out FOLDER] [--runs 200] [--seed 1]

Ko, Ziani & Fioretto, *Optimal Allocation of Privacy Budget on Hierarchical Data Release*. Their data, blocks
of Wyoming in an already noised file, are not at hand: Rhode Island 2010 stands in, with all its blocks and
with the populated ones only, as theirs were. States of tracts and Denver County stand in for New Mexico and
Delaware. The allocations are made from the true counts, as an optimum to compare with; a release would use
public node counts, which the tables show beside it. Prints tables; with ``--out`` writes them, the figures as
JSON, and the pictures (extra ``plots``).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from allocation_cases import (
    SKEW_BUDGETS,
    SMALL_TOTALS,
    SPLITS,
    TOTALS,
    WEIGHTS,
    Ablation,
    Comparison,
    Task,
    budget_table,
    budgets_of,
    several_tracts,
    skew,
    skew_table,
    targets,
    targets_of,
)
from allocation_trees import Tree, denver, rhode_islands, tract_state
from experiment import DATA, deliver, note


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, default=DATA, help=f"folder of the data ({DATA})")
    parser.add_argument("--out", type=Path, default=None, help="also write tables, figures and pictures here")
    parser.add_argument("--runs", type=int, default=200, help="simulated releases per point (200)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    results = compute(given.data, given.runs, given.seed)
    deliver("allocation_figures", results.text(), results.plain(), given.out)
    if given.out is not None:
        draw(given.out, results)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that is tabulated and drawn."""

    island: Tree
    others: list[Tree]
    compared: list[Comparison]
    ablations: list[Ablation]
    tasks: list[Task]
    tracts: str

    def text(self) -> str:
        """Return all tables as Markdown."""
        island = self.island
        texts = [f"## {island.name}: {island.sizes}", "### Figure 2"]
        texts.append(budget_table(island, "τ", targets_of(island), targets(island)))
        texts += ["### Figure 4", budget_table(island, "ε", TOTALS, [budgets_of(island, t) for t in TOTALS])]
        for one in self.compared:
            texts += [f"### Figures 3 and 8: {one.tree.name}, {one.tree.sizes}", one.table(), one.ratios()]
        for ablation in self.ablations:
            texts += [f"### Figure 5 and appendix C, ε 2: {ablation.tree.name}", ablation.table()]
        texts += ["### Figure 7", skew_table()]
        for job in self.tasks:
            texts += [f"### Figures 6, 9, 11: {job.title}", job.table()]
        texts += ["### Twelve tracts, each alone, ε 1", self.tracts]
        for tree in self.others:
            texts += [f"### Figure 10: {tree.name}", budget_table(tree, "τ", targets_of(tree), targets(tree))]
        return "\n\n".join(texts)

    def plain(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {
            "compared": [one.plain() for one in self.compared],
            "ablations": [one.plain() for one in self.ablations],
            "tasks": [job.plain() for job in self.tasks],
        }


def compute(data: Path, runs: int, seed: int) -> Results:
    """Compute everything."""
    with tempfile.TemporaryDirectory() as folder:
        islands = rhode_islands(data, Path(folder))
    island = islands["all"]
    others = [tract_state(data, "NV", "Nevada"), tract_state(data, "VT", "Vermont"), denver(data)]
    compared = [Comparison(islands[name], TOTALS, runs, seed) for name in ("all", "populated")]
    compared += [Comparison(tree, TOTALS, 2 * runs, seed) for tree in others]
    ablations = [Ablation(islands[name], 2.0, max(20, runs // 4), seed) for name in ("all", "populated")]
    tasks = [job for tree in (island, *others) for job in tasks_of(tree, 20 * runs, seed)]
    tracts = several_tracts(island, 1.0, 12, 10 * runs, seed)
    return Results(island, others, compared, ablations, tasks, tracts)


def tasks_of(tree: Tree, runs: int, seed: int) -> list[Task]:
    """Choose a geounit with ten children and people by chance; allocate in it alone, and with the whole tree.

    Tracts are a hundred times as large as blocks, and their budgets as much smaller.
    """
    enough = np.flatnonzero((tree.hierarchy.children(1) >= 10) & (tree.counts[1] > 0))
    parent = int(np.random.default_rng(seed).choice(enough))
    totals = SMALL_TOTALS if tree.names[2] == "block" else tuple(t / 20 for t in SMALL_TOTALS)
    return [Task(tree.below(parent), 0, totals, runs, seed), Task(tree, parent, totals, runs, seed)]


def draw(out: Path, results: Results) -> None:
    """Draw the pictures, if matplotlib is installed."""
    try:
        import allocation_plots as plots
    except ImportError:
        note("matplotlib is not installed: no pictures. pip install 'opendas[plots]'.")
        return
    island = results.island
    figure, axes = plots.new(1, 2)
    wanted, best = targets(island), [budgets_of(island, total) for total in TOTALS]
    plots.draw_budgets(axes[0], targets_of(island), wanted, island.names, "Figure 2: program (7)", "τ")
    plots.draw_budgets(axes[1], TOTALS, best, island.names, "Figure 4: program (6)", "ε in total")
    plots.save(figure, out, "figures_2_and_4")
    plots.save(plots.comparisons(results.compared[:2]), out, "figure_3")
    plots.save(plots.comparisons(results.compared[2:]), out, "figure_8")
    plots.save(plots.ablations(results.ablations, WEIGHTS), out, "figure_5")
    plots.save(plots.downstream(results.tasks[:2]), out, "figure_6")
    plots.save(plots.downstream(results.tasks[2::2]), out, "figures_9_and_11")
    curves = {regions: (skew(regions, "bias"), skew(regions, "mse")) for regions in SPLITS}
    plots.save(plots.skewness(curves, SKEW_BUDGETS), out, "figure_7")
    figure, axes = plots.new(1, len(results.others))
    for ax, tree in zip(axes, results.others, strict=True):
        plots.draw_budgets(ax, targets_of(tree), targets(tree), tree.names, tree.name, "τ")
    plots.save(figure, out, "figure_10")


if __name__ == "__main__":
    main()
