"""The pictures of the experiments on allocations. Importing this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from allocation_cases import Ablation, Comparison, Task
from allocation_monte_carlo import Estimate
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#1f4e79", "#b45309", "#2f6f62", "#6b4a86", "#4a5568"
LEVEL_COLOURS = (GREY, GREEN, BLUE)
MARKERS = "osD^"

Rows = Sequence[Mapping[str, object]]


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a picture; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})


def new(rows: int, columns: int, *, width: float = 4.2, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row."""
    mpl.use("Agg")
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [ax for row in axes for ax in row]


def finish(ax: Axes, title: str, x: str, y: str, *, log: bool = False, legend: bool = True) -> None:
    """Label axes."""
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.3)
    if log:
        ax.set_yscale("log")
    if legend:
        ax.legend(fontsize=7, frameon=False)


def draw_budgets(
    ax: Axes,
    x: Sequence[float],
    budgets: Sequence[Sequence[float]],
    names: Sequence[str],
    title: str,
    label: str,
) -> None:
    """Draw what each level gets, and the total: Figures 2, 4 and 10."""
    for number, name in enumerate(names):
        ax.plot(
            x,
            [row[number] for row in budgets],
            color=LEVEL_COLOURS[number],
            marker=MARKERS[number],
            markersize=3,
            label=f"$\\epsilon_{number + 1}$ ({name})",
        )
    ax.plot(x, [sum(row) for row in budgets], color=ORANGE, linestyle="--", label="total")
    finish(ax, title, label, "$\\epsilon$")


def draw_error(
    ax: Axes,
    x: Sequence[float],
    closed: Mapping[str, Sequence[float]],
    simulated: Mapping[str, Mapping[str, Sequence[Estimate]]],
    naive: Mapping[str, Sequence[float]],
    title: str,
    y: str,
) -> None:
    """Draw uniform and optimal, without (closed form and simulation) and with hierarchy: Figures 3 and 8."""
    floor = min(min(values) for values in closed.values() if min(values) > 0) / 3
    for colour, allocation in ((ORANGE, "uniform"), (BLUE, "optimal")):
        ax.plot(x, closed[allocation], color=colour, linewidth=1, label=f"{allocation}, closed form")
        if naive:
            label = f"{allocation}, squared mean error"
            ax.plot(x, naive[allocation], color=colour, linewidth=0.8, linestyle=":", label=label)
        for marker, face, variant, side in (("o", "none", "none", -0.025), ("s", colour, "top-down", 0.025)):
            points = simulated[allocation][variant]
            shown = [k for k, point in enumerate(points) if point.value > 2 * point.error]
            ax.errorbar(
                [x[k] + side for k in shown],
                [points[k].value for k in shown],
                yerr=[2 * points[k].error for k in shown],
                color=colour,
                marker=marker,
                markerfacecolor=face,
                markersize=4,
                linewidth=0,
                elinewidth=1,
                label=f"{allocation}, {'no hierarchy' if variant == 'none' else 'with hierarchy'}",
            )
    ax.set_ylim(bottom=floor)
    finish(ax, title, "$\\epsilon$ in total", y, log=True, legend=False)


def draw_downstream(
    ax: Axes, x: Sequence[float], found: Mapping[str, Mapping[str, Sequence[Estimate]]], title: str, y: str
) -> None:
    """Draw misallocation under three weight functions: Figures 6, 9 and 11."""
    drawn = 0
    for number, name in enumerate(("log", "linear", "quadratic")):
        for colour, allocation in ((ORANGE, "uniform"), (BLUE, "optimal")):
            points = found[allocation][name]
            shown = [k for k, point in enumerate(points) if point.value > 3 * point.error]
            drawn += len(shown)
            ax.errorbar(
                [x[k] * (1 + 0.02 * (number - 1)) for k in shown],
                [points[k].value for k in shown],
                yerr=[2 * points[k].error for k in shown],
                color=colour,
                marker=MARKERS[number],
                markersize=4,
                linewidth=0.7,
                linestyle=("-", "--", ":")[number],
                label=f"{allocation}, {name}",
            )
    finish(ax, title, "$\\epsilon$ in total", y, log=drawn > 0, legend=drawn > 0)
    ax.set_xscale("log")
    if not drawn:
        ax.set_xlim(min(x), max(x))
        ax.text(
            0.5, 0.5, "nothing above three times\nits Monte Carlo error", ha="center", transform=ax.transAxes
        )


def draw_weights(
    left: Axes,
    right: Axes,
    x: Sequence[float],
    mse: Rows,
    budgets: Sequence[Sequence[float]],
    names: Sequence[str],
) -> None:
    """Draw the weight ablation: Figure 5."""
    for number, name in enumerate(names):
        left.plot(x, [row[name] for row in mse], color=LEVEL_COLOURS[number], label=f"MSE of the {name}s")
    left.plot(x, [row["total"] for row in mse], color=ORANGE, linestyle="--", label="total")
    for ax in (left, right):
        ax.axvline(1 / 3, color=ORANGE, linewidth=0.8, alpha=0.7)
    finish(left, "Error by weight of the lowest level", "$w_3$", "MSE", log=True)
    draw_budgets(right, x, budgets, names, "Allocation by weight", "$w_3$")


def draw_curves(
    ax: Axes,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    label: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool = True,
) -> None:
    """Draw named curves: Figure 7 and the comparison of post-processing."""
    colours = (BLUE, ORANGE, GREEN, PURPLE, GREY)
    for number, (name, values) in enumerate(curves.items()):
        ax.plot(x, values, color=colours[number % 5], linestyle=("-", "--", ":")[number % 3], label=name)
    finish(ax, title, label, y, log=log_y)
    if log_x:
        ax.set_xscale("log")


def comparisons(several: Sequence[Comparison]) -> Figure:
    """Draw bias^2 and variance of several trees."""
    figure, axes = new(len(several), 2)
    for row, one in enumerate(several):
        for column, (what, words) in enumerate((("bias2", "bias²"), ("variance", "variance"))):
            closed = {name: [pair[column] for pair in one.closed[name]] for name in ("uniform", "optimal")}
            naive = one.naive() if what == "bias2" else {}
            ax = axes[2 * row + column]
            draw_error(ax, one.totals, closed, one.points(what), naive, one.tree.name, words)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    return figure


def ablations(several: Sequence[Ablation], weights: Sequence[float]) -> Figure:
    """Draw errors, allocations and ways of post-processing by the weight of the lowest level."""
    figure, axes = new(len(several), 3)
    for row, one in enumerate(several):
        left, middle, right = axes[3 * row : 3 * row + 3]
        draw_weights(left, middle, weights, one.mse, one.budgets, one.tree.names)
        title = f"Post-processing, {one.tree.name.partition(', ')[2]}"
        draw_curves(right, weights, one.curves(), title, "$w_3$", "MSE of all levels")
    return figure


def downstream(tasks: Sequence[Task]) -> Figure:
    """Draw misallocation in several geounits."""
    figure, axes = new(len(tasks), 2)
    for row, job in enumerate(tasks):
        for column, (what, words) in enumerate((("bias2", "bias² (%²)"), ("variance", "variance (%²)"))):
            draw_downstream(axes[2 * row + column], job.totals, job.points(what), job.title, words)
    return figure


def skewness(
    curves: Mapping[int, tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]],
    x: Sequence[float],
) -> Figure:
    """Draw the sum of bias, and the error over that of an even split."""
    figure, axes = new(2, len(curves))
    for number, (regions, (bias, mse)) in enumerate(curves.items()):
        even = next(iter(mse.values()))
        part = {name: [a / b for a, b in zip(row, even, strict=True)] for name, row in mse.items()}
        title = f"100 people in {regions} regions"
        draw_curves(axes[number], x, bias, title, "ε", "sum of bias", log_x=True)
        below = axes[len(curves) + number]
        draw_curves(below, x, part, title, "ε", "MSE, over that of an even split", log_x=True, log_y=False)
    return figure
