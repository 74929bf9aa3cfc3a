"""Small pictures of the report as inline SVG, without script or request; colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from markupsafe import Markup

from opendas.privacy.zcdp import CurvePoint
from opendas.report.svg_parts import WIDTH, closed, line, opened, rect, text
from opendas.report.views import TotalMargin, percent, ticks, words

__all__ = ["curve_svg", "margin_bars", "share_bar"]


def share_bar(shares: Mapping[str, Fraction]) -> Markup:
    """Draw how a budget is split over the geolevels, as one bar.

    Parameters
    ----------
    shares : mapping of geolevel to Fraction
        Summing to 1.
    """
    parts = [opened(66, "Share of the budget at each geolevel")]
    at = 0.0
    for number, (level, share) in enumerate(shares.items()):
        width = float(share) * WIDTH
        parts.append(rect(at, 4, width - 1.5, 30, f"tint tint{number % 6}"))
        if width >= 92:
            parts.append(text(at + 7, 24, percent(share), style="on-tint"))
            parts.append(text(at, 54, words(level)))
        at += width
    return closed(parts)


def margin_bars(margins: Sequence[TotalMargin]) -> Markup:
    """Draw how far a geounit's total may be off, one bar per geolevel; an invariant has none."""
    row = 30
    parts = [opened(row * len(margins) + 6, "Margin of the total at each geolevel")]
    longest = max((entry.margin or 0 for entry in margins), default=0) or 1
    for number, entry in enumerate(margins):
        y = row * number + 4
        parts.append(text(132, y + 16, entry.label, "end"))
        if entry.margin is None:
            parts.append(text(144, y + 16, "exact", style="muted"))
            continue
        width = (WIDTH - 230) * entry.margin / longest
        parts.append(rect(144, y, max(width, 2), 22, "tint tint1"))
        parts.append(text(152 + max(width, 2), y + 16, f"\u00b1{entry.margin:,}"))
    return closed(parts)


def curve_svg(points: Sequence[CurvePoint], delta: float) -> Markup:
    """Draw epsilon against delta by both named formulas, and mark one delta.

    Parameters
    ----------
    points : sequence of CurvePoint
    delta : float
        Marked where a point has it.
    """
    ordered = sorted(points, key=lambda point: point.delta, reverse=True)
    exponents = [-math.log10(float(point.delta)) for point in ordered]
    left, right, top, bottom = 44.0, WIDTH - 12.0, 14.0, 232.0
    marks = ticks(0.0, max(point.bun_steinke for point in ordered))

    def x(exponent: float) -> float:
        return left + (right - left) * (exponent - exponents[0]) / (exponents[-1] - exponents[0])

    def y(epsilon: float) -> float:
        return bottom - (bottom - top) * epsilon / marks[-1]

    parts = [opened(272, "Epsilon against delta by both conversions; a table follows")]
    for mark in marks:
        parts.append(line(left, y(mark), right, y(mark), "grid"))
        parts.append(text(left - 8, y(mark) + 4, f"{mark:g}", "end"))
    for exponent in exponents:
        if round(exponent) % 2 == 0:
            anchor = "end" if exponent == exponents[-1] else "middle"
            parts.append(text(x(exponent), bottom + 18, f"1e-{round(exponent)}", anchor))
    parts.append(text((left + right) / 2, bottom + 37, "delta", "middle", "muted"))
    parts.append(text(left + 6, top + 4, "epsilon", "start", "muted"))
    series = (
        ("bun-steinke", "line0", [point.bun_steinke for point in ordered], -9),
        ("cks", "line1", [point.cks for point in ordered], 19),
    )
    for name, style, values, shift in series:
        path = " ".join(f"{x(e):.1f},{y(v):.1f}" for e, v in zip(exponents, values, strict=True))
        parts.append(Markup('<polyline points="{}" class="{}"/>').format(path, style))
        parts.append(text(right, y(values[-1]) + shift, name, "end", f"{style} label"))
        for exponent, value in zip(exponents, values, strict=True):
            if math.isclose(exponent, -math.log10(delta), abs_tol=1e-9):
                dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" class="{} dot"/>')
                parts.append(dot.format(x(exponent), y(value), style))
                parts.append(text(x(exponent), y(value) + shift, f"{value:.2f}", "middle", f"{style} label"))
    return closed(parts)
