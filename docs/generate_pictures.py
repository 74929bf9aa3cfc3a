"""Draw the pictures of the pages of evidence from their tables: ``python docs/generate_pictures.py``.

A picture shows some columns of one table: a panel for each value of one column, a row for each of another, a
mark for each series; or one column against another, with a line for each series of rows. A test compares the
files with the tables and checks that each stands before its table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent

LIGHT = ("#17212b", "#55616e", "#d5dbe2", "#b45309", "#1f4e79", "#2f6f62")
DARK = ("#e6eaef", "#a3afbc", "#36404c", "#f0a35c", "#8fc1f0", "#7cc9b4")
"""Ink, muted ink, grid, and the series: the colours of the report's page."""

WIDTH, LEFT, ROW, HEAD, AXIS = 760, 150, 20, 30, 24
SHAPES = (
    '<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="{c}"/>',
    '<rect x="{l:.1f}" y="{t:.1f}" width="9" height="9" class="{c}"/>',
    '<path d="M{x:.1f} {t:.1f} l5 9.5 h-10 z" class="{c}"/>',
)


def style() -> str:
    """Return the style sheet, for light and dark pages."""
    names = ("text", ".muted", ".grid", ".s0", ".s1", ".s2")

    def rules(colours: tuple[str, ...]) -> str:
        return " ".join(f"{n} {{ fill: {c}; stroke: {c} }}" for n, c in zip(names, colours, strict=True))

    still = "text { font: 13px system-ui, sans-serif; stroke: none !important }"
    return f"<style>{rules(LIGHT)} @media (prefers-color-scheme: dark) {{ {rules(DARK)} }} {still}</style>"


@dataclass(frozen=True)
class Picture:
    """One picture: its table by page and start of the head row, its columns, its axis."""

    name: str
    page: str
    head: str
    panels: str | None
    rows: str
    series: tuple[str, ...]
    axis: str
    linear: bool = False


@dataclass(frozen=True)
class Curves:
    """One column of a table against another; the series is what stands before the comma in the first."""

    name: str
    page: str
    head: str
    across: str
    up: str
    series: tuple[str, ...]
    axes: tuple[str, str]


CURVES = (
    Curves(
        *("block-price", "explanation/choosing-a-budget.md", "| Plan | rho | epsilon | epsilon within"),
        *("epsilon within a block group", "block total", ("production", "geolevels kept", "same rho")),
        ("epsilon within a block group", "mean absolute error of a block's total, people"),
    ),
)


_ERROR, _TIME = "mean absolute error, people", "processor time of a family, ms"
_TOPDOWN, _PERSONS, _BLOCKS = "TopDown, production", "opendas2026-persons", "opendas2026-blocks-persons"
PICTURES = (
    Picture(
        *("production-errors", "experiments.md", "| Query | Geolevel | Paper | National preset |"),
        *("Query", "Geolevel", ("Paper", "National preset"), _ERROR),
    ),
    Picture(
        *("block-by-block", "experiments.md", "| Geolevel | Query | TopDown | Block-by-block |"),
        *("Query", "Geolevel", ("TopDown", "Block-by-block"), _ERROR),
    ),
    Picture(
        *("informed-errors", "experiments.md", "| Geolevel | Query | TopDown | Informed | Change, % | Opti"),
        *("Query", "Geolevel", ("TopDown", "Informed"), _ERROR),
    ),
    Picture(
        *("same-rho", "experiments.md", "| Geolevel | Query | TopDown, production | informed, production"),
        *("Query", "Geolevel", ("informed, production, %", f"{_PERSONS}, %", f"{_BLOCKS}, %")),
        *("change of the mean absolute error against TopDown, %", True),
    ),
    Picture(
        *("same-rho-bias", "experiments.md", "| Blocks | TopDown, production | informed, production |"),
        *(None, "Blocks", (_TOPDOWN, _PERSONS, _BLOCKS)),
        *("mean signed error of a block's total, people", True),
    ),
    Picture(
        *("least-squares-time", "benchmarks.md", "| family | OpenDAS | best general solver", None, "family"),
        *(("OpenDAS", "best, lifted", "best, in our nested form"), _TIME),
    ),
    Picture(
        *("rounding-time", "benchmarks.md", "| family | fractional cells | OpenDAS |", None, "family"),
        *(("OpenDAS", "SciPy `milp`", "OR-tools"), _TIME),
    ),
)


def table(page: str, head: str) -> tuple[list[str], list[list[str]], int]:
    """Return columns, rows and the line of the table on `page` that starts with `head`."""
    lines = page.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(head))
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[at:]]
    end = next((n for n, line in enumerate(lines[at:]) if not line.startswith("|")), len(split))
    return split[0], split[2:end], at


def number(cell: str) -> float | None:
    """Return the first number of a cell; None where it has none."""
    found = None if "none" in cell else re.search(r"(?<![\w.])[-+]?\d[\d,]*(\.\d+)?", cell)
    return float(found.group().replace(",", "")) if found else None


def ticks(values: Sequence[float], *, linear: bool) -> list[float]:
    """Return round numbers that enclose the values: powers of ten, or multiples of 1, 2 or 5 of one."""
    if not linear:
        positive = [value for value in values if value > 0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        return [10.0**exponent for exponent in range(low, high + 1)]
    low, high = min(0.0, *values), max(0.0, *values)
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(m * power for m in (1, 2, 5, 10) if (high - low) / (m * power) <= 5)
    return [n * step for n in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _short(mark: float) -> str:
    return f"{mark / 1000:g}k" if mark >= 10_000 else f"{mark:g}"


def draw(picture: Picture, page: str) -> str:
    """Return the picture as SVG."""
    columns, rows, _ = table(page, picture.head)
    at = {name: columns.index(name) for name in reversed(columns)}
    panels = list(dict.fromkeys(row[at[picture.panels]] for row in rows)) if picture.panels else [""]
    values = {
        (row[at[picture.panels]] if picture.panels else "", row[at[picture.rows]], name): number(
            row[at[name]]
        )
        for row in rows
        for name in picture.series
    }
    labels = list(dict.fromkeys(label for (_, label, _), value in values.items() if value is not None))
    left = max(LEFT if picture.panels else 20 + 7 * max(map(len, labels)), 90)
    marks = ticks([value for value in values.values() if value is not None], linear=picture.linear)
    across = 3 if len(panels) > 1 else 1
    wide = (WIDTH - left) / across
    tall = HEAD + ROW * len(labels) + AXIS
    height = 30 + tall * math.ceil(len(panels) / across) + 24

    def place(value: float, column: int) -> float:
        low, high, at = marks[0], marks[-1], value
        if not picture.linear:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return left + column * wide + 22 + (wide - 44) * (at - low) / (high - low)

    title = f"{picture.axis}: {', '.join(picture.series)}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">']
    parts += [f"<title>{escape(title)}</title>", style()]
    x = 8.0
    for order, name in enumerate(picture.series):
        parts.append(SHAPES[order].format(x=x + 4.5, y=16, l=x, t=11.5, c=f"s{order}"))
        parts.append(
            f'<text x="{x + 14:g}" y="20" class="s{order} key">{escape(name.replace("`", ""))}</text>'
        )
        x += 40 + 7.2 * len(name)
    for order, panel in enumerate(panels):
        line, column = divmod(order, across)
        top = 30 + line * tall
        parts.append(f'<text x="{left + column * wide + 18:.1f}" y="{top + 20}">{escape(panel)}</text>')
        for mark in marks:
            x, bottom = place(mark, column), top + HEAD + ROW * len(labels)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + HEAD}" y2="{bottom}" class="grid"/>')
            centred = f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" class="muted">'
            parts.append(f"{centred}{_short(mark)}</text>")
        for n, label in enumerate(labels):
            y = top + HEAD + ROW * n + 10
            if column == 0:
                words = escape(label.replace("_", " "))
                parts.append(f'<text x="{left}" y="{y + 4}" text-anchor="end" class="muted">{words}</text>')
            for series, name in reversed(list(enumerate(picture.series))):
                value = values.get((panel, label, name))
                if value is not None and (picture.linear or value > 0):
                    x = place(value, column)
                    parts.append(SHAPES[series].format(x=x, y=y, l=x - 4.5, t=y - 4.5, c=f"s{series}"))
                elif value == 0 and series == 0:
                    parts.append(
                        f'<text x="{left + column * wide + 9:.1f}" y="{y + 4}" class="muted">0</text>'
                    )
    parts.append(f'<text x="{left + 22}" y="{height - 8}" class="muted">{escape(picture.axis)}</text></svg>')
    return "\n".join(parts) + "\n"


def points(curves: Curves, page: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each series, from left to right."""
    columns, rows, _ = table(page, curves.head)
    across, up = columns.index(curves.across), columns.index(curves.up)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in curves.series}
    for row in rows:
        x, y = number(row[across]), number(row[up])
        assert x is not None
        assert y is not None
        found[row[0].partition(",")[0]].append((x, y))
    return {name: sorted(each) for name, each in found.items()}


def draw_curves(curves: Curves, page: str) -> str:
    """Return the picture as SVG."""
    found = points(curves, page)
    marks = [
        ticks([point[axis] for each in found.values() for point in each], linear=True) for axis in (0, 1)
    ]
    left, right, top, bottom = 60.0, WIDTH - 30.0, 50.0, 330.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = ((value - m[0]) / (m[-1] - m[0]) for value, m in zip(point, marks, strict=True))
        return left + (right - left) * x, bottom - (bottom - top) * y

    title = f"{curves.axes[1]} against {curves.axes[0]}: {', '.join(curves.series)}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 380" role="img">']
    parts += [f"<title>{escape(title)}</title>", style()]
    for mark in marks[0]:
        x, _ = place((mark, marks[1][0]))
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="grid"/>')
        centred = f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" class="muted">'
        parts.append(f"{centred}{_short(mark)}</text>")
    for mark in marks[1]:
        _, y = place((marks[0][0], mark))
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" class="muted">{_short(mark)}</text>'
        )
    key = 8.0
    for order, (name, each) in enumerate(found.items()):
        parts.append(SHAPES[order].format(x=key + 4.5, y=16, l=key, t=11.5, c=f"s{order}"))
        parts.append(f'<text x="{key + 14:g}" y="20" class="s{order} key">{escape(name)}</text>')
        key += 40 + 7.2 * len(name)
        placed = [place(point) for point in each]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{line}" class="s{order}" style="fill: none; stroke-width: 1.5"/>')
        parts += [SHAPES[order].format(x=x, y=y, l=x - 4.5, t=y - 4.5, c=f"s{order}") for x, y in placed]
    parts.append(f'<text x="{left}" y="{top - 10}" class="muted">{escape(curves.axes[1])}</text>')
    parts.append(
        f'<text x="{right}" y="372" text-anchor="end" class="muted">{escape(curves.axes[0])}</text></svg>'
    )
    return "\n".join(parts) + "\n"


def pictures() -> dict[Path, str]:
    """Return every picture by its file."""
    pages = {p.page for p in (*PICTURES, *CURVES)}
    texts = {page: (DOCS / page).read_text(encoding="utf-8") for page in pages}
    drawn = {p.name: draw(p, texts[p.page]) for p in PICTURES}
    drawn |= {c.name: draw_curves(c, texts[c.page]) for c in CURVES}
    return {DOCS / "assets" / f"{name}.svg": text for name, text in drawn.items()}


if __name__ == "__main__":
    for path, text in pictures().items():
        path.write_text(text, encoding="utf-8")
