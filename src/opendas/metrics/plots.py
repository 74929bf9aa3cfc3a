"""Plots of an evaluation; apart, since importing this imports matplotlib, of the extra ``plots``."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from opendas.geography.frame import ENTITY_CATEGORIES
from opendas.metrics.age_sex import Pyramid
from opendas.metrics.errors import ErrorRow
from opendas.metrics.evaluate import Evaluation

__all__ = ["draw_criterion", "draw_errors", "draw_pyramid", "draw_signed_errors", "evaluation_plots"]

_NOTICE = "CONFIDENTIAL"
_COLOURS = ("#1f4e79", "#b45309", "#2f6f62", "#6b4a86", "#9b1c1c", "#4a5568", "#3d7ab3")
_MARKERS = "osD^vPX"


def draw_errors(ax: Axes, evaluation: Evaluation) -> None:
    """Draw the mean absolute error of each query group over the geolevels, on a logarithmic scale.

    Zero, as of an invariant, cannot be drawn there and is left out.
    """
    levels = list(dict.fromkeys(row.geolevel for row in evaluation.errors))
    for number, query in enumerate(dict.fromkeys(row.query for row in evaluation.errors)):
        found = [
            (row.geolevel in ENTITY_CATEGORIES, levels.index(row.geolevel), row.errors.mean_abs_error)
            for row in evaluation.errors
            if row.query == query and row.errors.mean_abs_error
        ]
        # Geolevels of the spine are joined by a line; entity categories lie beside it.
        for off_spine in (False, True):
            ax.plot(
                [x for entity, x, _ in found if entity is off_spine],
                [y for entity, _, y in found if entity is off_spine],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4,
                linewidth=0 if off_spine else 1,
                color=_COLOURS[number % len(_COLOURS)],
                label=None if off_spine else query,
            )
    ax.set_yscale("log")
    ax.set_xticks(range(len(levels)), [level.replace("_", " ") for level in levels])
    ax.set_ylabel("mean absolute error (counts)")
    ax.legend(fontsize=7, frameon=False, ncols=2)
    ax.grid(axis="y", alpha=0.3)


def draw_signed_errors(ax: Axes, rows: list[ErrorRow]) -> None:
    """Draw the spread of the total's signed error by true population: 0.5, 2.5, 25, 50, 75, 97.5, 99.5 %."""
    labels: list[str] = []
    for row in rows:
        found = row.errors.quantiles
        if found is None:
            continue
        at = len(labels)
        ax.plot(
            [at, at], [found["0.005"], found["0.995"]], color="#9fb4c9", linewidth=1.2, solid_capstyle="butt"
        )
        ax.plot(
            [at, at], [found["0.025"], found["0.975"]], color="#3d7ab3", linewidth=3.5, solid_capstyle="butt"
        )
        ax.plot([at, at], [found["0.25"], found["0.75"]], color="#1f4e79", linewidth=9, solid_capstyle="butt")
        ax.plot(at, found["0.5"], marker="o", color="white", markersize=4, markeredgecolor="#1f4e79")
        labels.append(f"{row.population}\n({row.errors.geounits:,})")
    ax.axhline(0, color="#4a5568", linewidth=0.7)
    ax.set_xticks(range(len(labels)), labels, fontsize=8)
    ax.set_ylabel("estimate minus truth (counts)")
    ax.set_xlabel("true population (number of geounits)")


def draw_criterion(ax: Axes, evaluation: Evaluation) -> None:
    """Draw the share of areas whose largest group's share of the total holds, by true population."""
    drawn = [entry for entry in evaluation.redistricting if entry.base == "total"]
    for number, entry in enumerate(drawn):
        points = [(i, 100 * b.within / b.geounits) for i, b in enumerate(entry.bins) if b.geounits]
        ax.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3.5,
            linewidth=1,
            color=_COLOURS[number % len(_COLOURS)],
            label=entry.geolevel.replace("_", " "),
        )
    ax.axhline(95, color="#9b1c1c", linewidth=0.8, linestyle="--")
    if drawn:
        labels = [entry.population for entry in drawn[0].bins]
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        ax.legend(fontsize=7, frameon=False, ncols=2)
    ax.set_ylim(0, 102)
    ax.set_ylabel("areas within 5 percentage points (%)")
    ax.set_xlabel("true population")


def draw_pyramid(ax: Axes, pyramid: Pyramid) -> None:
    """Draw people by sex and five-year group: the release as bars, the truth as an outline."""
    places = range(len(pyramid.groups))
    for side, colour, truth, estimate in zip(
        (-1, 1), _COLOURS, pyramid.truth, pyramid.estimate, strict=False
    ):
        ax.barh(places, side * estimate, height=0.9, color=colour, alpha=0.55)
        ax.stairs(
            side * truth,
            [place - 0.5 for place in (*places, len(places))],
            orientation="horizontal",
            color="black",
            linewidth=1,
        )
    most = max(int(pyramid.truth.max()), int(pyramid.estimate.max()), 1)
    ax.set_xlim(-1.05 * most, 1.05 * most)
    ax.xaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    ax.set_yticks(places, pyramid.groups, fontsize=7)
    left, right = pyramid.sexes
    ax.set_xlabel(f"{left} (left), {right} (right), persons; bars: release, black line: truth")


def _png(figure: Figure) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=130, metadata={"Software": None})
    return target.getvalue()


def _canvas(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    ax = figure.add_subplot()
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_title(_NOTICE, loc="right", fontsize=9, color="#9b1c1c", fontweight="bold")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure, ax


def evaluation_plots(evaluation: Evaluation) -> dict[str, bytes]:
    """Draw the plots of an evaluation.

    Returns
    -------
    dict of str to bytes
        File name -> PNG, each marked confidential.
    """
    figure, ax = _canvas(f"{evaluation.product}: error of the query groups")
    draw_errors(ax, evaluation)
    plots = {"errors.png": _png(figure)}
    totals = [row for row in evaluation.by_population if row.query == "total"]
    for level in dict.fromkeys(row.geolevel for row in totals):
        rows = [row for row in totals if row.geolevel == level]
        if sum(row.errors.geounits for row in rows) < 2:
            continue
        figure, ax = _canvas(f"{evaluation.product}: error of the total, {level.replace('_', ' ')}")
        draw_signed_errors(ax, rows)
        plots[f"total_{level}.png"] = _png(figure)
    for pyramid in evaluation.pyramids:
        where = f"{pyramid.geolevel.replace('_', ' ')} {pyramid.geocode}"
        figure, ax = _canvas(f"{evaluation.product}: {where} by age and sex")
        draw_pyramid(ax, pyramid)
        plots[f"pyramid_{pyramid.geolevel}.png"] = _png(figure)
    if evaluation.redistricting:
        figure, ax = _canvas(f"{evaluation.product}: does the largest group's share hold?")
        draw_criterion(ax, evaluation)
        plots["redistricting.png"] = _png(figure)
    return plots
