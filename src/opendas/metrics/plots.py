"""Plots of an evaluation; apart, since importing this imports matplotlib, of the extra ``plots``.

Categories are rows, so that labels never meet. Each series has a panel of its own, so that no colour has to
be looked up. The number is beside its mark, and nothing joins marks of different categories.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from opendas.geography.frame import ENTITY_CATEGORIES
from opendas.metrics.age_sex import Pyramid
from opendas.metrics.errors import ErrorRow
from opendas.metrics.evaluate import Evaluation

INK, MUTED, DEEP, MIDDLE, PALE, ALARM = "#17212b", "#55616e", "#1f4e79", "#3d7ab3", "#9fb4c9", "#9b1c1c"
"""The colours of the report's page."""

_NOTICE = "CONFIDENTIAL"
_COLUMNS = 3
_WIDTH = 9.0
_HEAD, _ROW, _FOOT = 0.75, 0.21, 0.5
"""Inches above, of each row of, and below a panel."""


def _as_words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def panels(title: str, names: Sequence[str], rows: int) -> tuple[Figure, list[Axes]]:
    """Return a figure of small multiples, one named panel for each of `names`, with `rows` rows in each."""
    columns = min(_COLUMNS, len(names))
    lines = -(-len(names) // columns)
    height = 0.5 + lines * (_HEAD + rows * _ROW + _FOOT)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    figure.text(
        0.99, 1 - 0.08 / height, _NOTICE, ha="right", va="top", fontsize=9, color=ALARM, weight="bold"
    )
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax in grid[len(names) :]:
        ax.remove()
    for ax, name in zip(grid, names, strict=False):
        ax.set_title(name, loc="left", fontsize=9, color=INK)
        ax.tick_params(labelsize=8, colors=MUTED, length=0)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        ax.grid(axis="x", alpha=0.25)
    return figure, list(grid[: len(names)])


def _label_rows(axes: Sequence[Axes], names: Sequence[str]) -> None:
    """Name the rows of all panels, first at the top; only the first panel of a line shows the names."""
    for number, ax in enumerate(axes):
        ax.set_ylim(len(names) - 0.5, -0.5)
        shown = [_as_words(name) for name in names] if number % _COLUMNS == 0 else [""] * len(names)
        ax.set_yticks(range(len(names)), shown)


def draw_errors(axes: Sequence[Axes], evaluation: Evaluation) -> None:
    """Draw the mean absolute error of each query group, a panel each, at each geolevel, a row each.

    The scale is logarithmic and the same in all panels. An error of 0, as of an invariant, is written at the
    left; entity categories, which lie beside the spine, have open marks.
    """
    levels = list(dict.fromkeys(row.geolevel for row in evaluation.errors))
    queries = list(dict.fromkeys(row.query for row in evaluation.errors))
    drawn = [row.errors.mean_abs_error for row in evaluation.errors if row.errors.mean_abs_error]
    least, most = (min(drawn), max(drawn)) if drawn else (1.0, 1.0)
    for ax, query in zip(axes, queries, strict=True):
        ax.set_xscale("log")
        ax.set_xlim(least / 2, most * 12)
        for row in evaluation.errors:
            if row.query != query:
                continue
            at, error = levels.index(row.geolevel), row.errors.mean_abs_error
            if not error:
                ax.text(least / 1.8, at, "0", va="center", fontsize=8, color=MUTED)
                continue
            fill = "white" if row.geolevel in ENTITY_CATEGORIES else DEEP
            ax.plot(error, at, marker="o", markersize=5, color=DEEP, markerfacecolor=fill)
            ax.annotate(
                _number(error), (error, at), (6, 0), textcoords="offset points", va="center", fontsize=8
            )
    _label_rows(axes, levels)


def draw_signed_errors(axes: Sequence[Axes], rows: Sequence[Sequence[ErrorRow]]) -> None:
    """Draw the spread of the total's signed error by true population: 0.5, 2.5, 25, 50, 75, 97.5, 99.5 %.

    One panel for each sequence of rows, whose populations are the rows of the panel.
    """
    for ax, found in zip(axes, rows, strict=True):
        labels: list[str] = []
        for row in found:
            spread = row.errors.quantiles
            if spread is None:
                continue
            at = len(labels)
            for low, high, colour, width in (
                ("0.005", "0.995", PALE, 1.2),
                ("0.025", "0.975", MIDDLE, 3.5),
                ("0.25", "0.75", DEEP, 8.0),
            ):
                ax.plot(
                    [spread[low], spread[high]],
                    [at, at],
                    color=colour,
                    linewidth=width,
                    solid_capstyle="butt",
                )
            ax.plot(spread["0.5"], at, marker="o", color="white", markersize=4, markeredgecolor=DEEP)
            labels.append(f"{row.population} ({row.errors.geounits:,})")
        ax.axvline(0, color=MUTED, linewidth=0.7)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set_yticks(range(len(labels)), labels)
        ax.set_xlabel("released minus true", fontsize=8, color=MUTED)


def draw_criterion(ax: Axes, evaluation: Evaluation) -> None:
    """Draw the share of areas whose largest group's share of the total holds: per cent, in a grid.

    One column a geolevel, one row an interval of true population; where there is no area there is no mark,
    and where less than 95 % of the areas hold it is pale.
    """
    drawn = [entry for entry in evaluation.redistricting if entry.base == "total"]
    for column, entry in enumerate(drawn):
        for row, interval in enumerate(entry.bins):
            if interval.geounits:
                share = 100 * interval.within / interval.geounits
                held = share >= 95
                ax.barh(row, 0.9, left=column - 0.45, height=0.86, color=DEEP if held else PALE)
                colour = "white" if held else INK
                ax.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    _label_rows([ax], [interval.population for interval in drawn[0].bins])
    ax.set_xlim(-0.5, len(drawn) - 0.5)
    ax.set_xticks(range(len(drawn)), [_as_words(entry.geolevel).replace(" ", "\n") for entry in drawn])
    ax.xaxis.tick_top()
    ax.grid(visible=False)
    ax.spines["bottom"].set_visible(False)
    ax.set_ylabel("true population", fontsize=8, color=MUTED)


def draw_pyramid(ax: Axes, pyramid: Pyramid) -> None:
    """Draw people by sex and five-year group: the release as bars, the truth as an outline."""
    places = range(len(pyramid.groups))
    most = max(int(pyramid.truth.max()), int(pyramid.estimate.max()), 1)
    for side, colour, sex, truth, estimate in zip(
        (-1, 1), (DEEP, MIDDLE), pyramid.sexes, pyramid.truth, pyramid.estimate, strict=True
    ):
        ax.barh(places, side * estimate, height=0.9, color=colour, alpha=0.55)
        ax.stairs(
            side * truth,
            [place - 0.5 for place in (*places, len(places))],
            orientation="horizontal",
            color=INK,
            linewidth=1,
        )
        ax.text(side * most, len(places) - 0.4, sex, ha="center", va="bottom", fontsize=9, color=colour)
    ax.set_xlim(-1.15 * most, 1.15 * most)
    ax.set_ylim(-0.5, len(places) + 0.6)
    ax.xaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    ax.set_yticks(places, pyramid.groups, fontsize=7)
    ax.set_xlabel("bars: release; black line: truth", fontsize=8, color=MUTED)


def _png(figure: Figure) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=130, metadata={"Software": None})
    return target.getvalue()


def evaluation_figures(evaluation: Evaluation) -> dict[str, Figure]:
    """Draw the plots of an evaluation, each marked confidential; by name."""
    name, drawn = evaluation.product, {}
    queries = list(dict.fromkeys(row.query for row in evaluation.errors))
    levels = dict.fromkeys(row.geolevel for row in evaluation.errors)
    title = f"{name}: mean absolute error of a released count (0: exact)"
    drawn["errors"], axes = panels(title, [_as_words(query) for query in queries], len(levels))
    draw_errors(axes, evaluation)

    totals = [row for row in evaluation.by_population if row.query == "total"]
    for level in dict.fromkeys(row.geolevel for row in totals):
        rows = [row for row in totals if row.geolevel == level and row.errors.quantiles is not None]
        if sum(row.errors.geounits for row in rows) < 2:
            continue
        title = f"{name}: error of the total. Line: 99 % and 95 % of geounits; bar: half of them; dot: median"
        drawn[f"total_{level}"], axes = panels(title, [f"{_as_words(level)}, by true total"], len(rows))
        draw_signed_errors(axes, [rows])

    for pyramid in evaluation.pyramids:
        where = f"{_as_words(pyramid.geolevel)} {pyramid.geocode}"
        drawn[f"pyramid_{pyramid.geolevel}"], axes = panels(name, [where], len(pyramid.groups))
        draw_pyramid(axes[0], pyramid)

    held = [entry for entry in evaluation.redistricting if entry.base == "total"]
    if held:
        title = f"{name}: areas whose largest group keeps its share within 5 percentage points (%)"
        drawn["redistricting"], axes = panels(title, [""], len(held[0].bins))
        draw_criterion(axes[0], evaluation)
    return drawn


def evaluation_plots(evaluation: Evaluation) -> dict[str, bytes]:
    """Return the plots of an evaluation: file name -> PNG, each marked confidential."""
    return {f"{name}.png": _png(figure) for name, figure in evaluation_figures(evaluation).items()}
