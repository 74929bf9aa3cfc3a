"""Pictures of the explorer as inline SVG; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from opendas.explore.answers import Answers
from opendas.report.pictures import WIDTH, closed, line, opened, rect, text
from opendas.report.views import decimal, query_words, ticks, words

__all__ = ["curve_picture", "error_picture"]


def error_picture(plans: Sequence[tuple[str, Answers]], query: str) -> Markup:
    """Draw the expected standard error of a query group at every geolevel, on a logarithmic scale.

    Parameters
    ----------
    plans : sequence of (name, Answers)
        ``A``, and ``B`` where two are compared.
    query : str
    """
    levels = list(plans[0][1].budget.geolevels)
    values = [a.cells[level, query].expected for _, a in plans for level in levels]
    shown = [value for value in values if 0 < value < math.inf]
    low = math.floor(math.log10(min(shown, default=1.0)))
    high = max(math.ceil(math.log10(max(shown, default=10.0))), low + 1)
    left, right = 132.0, WIDTH - 96.0
    row = 14 + 20 * len(plans)

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    height = row * len(levels) + 34
    parts = [
        opened(height, f"Expected standard error of {query_words(query)} at each geolevel; a table follows")
    ]
    for power in range(low, high + 1):
        parts.append(line(x(10.0**power), 2, x(10.0**power), height - 28, "grid"))
        parts.append(text(x(10.0**power), height - 10, f"{10.0**power:,g}", "middle", "muted"))
    for number, level in enumerate(levels):
        top = row * number + 4
        parts.append(text(left - 10, top + row / 2 + 1, words(level), "end"))
        for place, (name, answers) in enumerate(plans):
            value = answers.cells[level, query].expected
            y = top + 3 + 20 * place
            prefix = f"{name} " if len(plans) > 1 else ""
            if value == 0 or math.isinf(value):
                parts.append(
                    text(left + 6, y + 13, prefix + ("exact" if value == 0 else "unbounded"), style="muted")
                )
                continue
            parts.append(rect(left, y, max(x(value) - left, 2), 16, f"bar bar{place}"))
            parts.append(text(max(x(value), left + 2) + 6, y + 13, prefix + decimal(value, 3)))
    return closed(parts)


def curve_picture(plans: Sequence[tuple[str, Answers]]) -> Markup:
    """Draw epsilon against delta by both named formulas, for one plan or two; empty without a curve."""
    plans = [(name, answers) for name, answers in plans if answers.curve]
    if not plans:
        return Markup("")
    left, right, top, bottom = 44.0, WIDTH - 120.0, 14.0, 252.0
    exponents = [point[0] for point in plans[0][1].curve]
    marks = ticks(0.0, max(point[2] for _, answers in plans for point in answers.curve))

    def x(exponent: float) -> float:
        return left + (right - left) * (exponent - exponents[0]) / (exponents[-1] - exponents[0])

    def y(epsilon: float) -> float:
        return bottom - (bottom - top) * epsilon / marks[-1]

    parts = [opened(292, "Epsilon against delta by both conversions; a table follows")]
    for mark in marks:
        parts.append(line(left, y(mark), right, y(mark), "grid"))
        parts.append(text(left - 8, y(mark) + 4, f"{mark:g}", "end"))
    parts += [text(x(k), bottom + 18, f"1e-{k}", "middle") for k in exponents if k % 3 == 1]
    parts.append(text((left + right) / 2, bottom + 37, "delta", "middle", "muted"))
    parts.append(text(left + 6, top - 4, "epsilon", "start", "muted"))
    ends: list[tuple[float, str, str]] = []
    for place, (name, answers) in enumerate(plans):
        for column, formula in ((2, "bun-steinke"), (1, "cks")):
            style = f"plan{place} {formula}"
            path = " ".join(f"{x(p[0]):.1f},{y(p[column]):.1f}" for p in answers.curve)
            parts.append(Markup('<polyline points="{}" class="{}"/>').format(path, style))
            label = f"{name} {formula}" if len(plans) > 1 else formula
            ends.append((y(answers.curve[-1][column]), label, style))
        exponent = -math.log10(float(answers.budget.delta))
        if exponents[0] <= exponent <= exponents[-1]:
            dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" class="dot plan{}"/>')
            parts += [dot.format(x(exponent), y(value), place) for value in answers.whole.epsilon.values()]
    at = -math.inf
    for height, label, style in sorted(ends):
        at = max(height + 4, at + 15)  # labels do not lie on each other
        parts.append(text(right + 8, at, label, "start", f"{style} label"))
    return closed(parts)
