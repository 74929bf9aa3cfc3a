"""The curve of epsilon against delta, drawn with the PDF library's own graphics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from reportlab.graphics.shapes import Circle, Drawing, Line, PolyLine, String
from reportlab.lib.colors import Color, HexColor

from opendas.privacy.zcdp import CurvePoint
from opendas.report.views import ticks

__all__ = ["curve_drawing"]

Anchor = Literal["start", "middle", "end"]

_INK = HexColor("#16202c")
_GRID = HexColor("#dbe2ea")
_CKS = HexColor("#1f4e79")
_SIMPLE = HexColor("#b45309")


def curve_drawing(points: Sequence[CurvePoint], delta: float, width: float, height: float = 190) -> Drawing:
    """Draw both conversions.

    Parameters
    ----------
    points : sequence of CurvePoint
        Any order.
    delta : float
        Marked on the curves where a point has it.
    width, height : float
        In points.
    """
    ordered = sorted(points, key=lambda point: point.delta, reverse=True)
    exponents = [-math.log10(float(point.delta)) for point in ordered]
    left, bottom, right, top = 40.0, 34.0, width - 12, height - 10
    marks = ticks(0.0, max(point.bun_steinke for point in ordered))

    def x(exponent: float) -> float:
        return left + (right - left) * (exponent - exponents[0]) / (exponents[-1] - exponents[0])

    def y(epsilon: float) -> float:
        return bottom + (top - bottom) * epsilon / marks[-1]

    drawing = Drawing(width, height)
    for mark in marks:
        drawing.add(Line(left, y(mark), right, y(mark), strokeColor=_GRID, strokeWidth=0.6))
        drawing.add(_label(left - 6, y(mark) - 3, f"{mark:g}", "end"))
    for exponent in exponents:
        if round(exponent) % 2 == 0:
            drawing.add(_label(x(exponent), bottom - 13, f"1e-{round(exponent)}", "middle"))
    drawing.add(_label((left + right) / 2, 6, "delta", "middle"))
    drawing.add(_label(left + 6, top - 6, "epsilon", "start"))
    series = (
        ("bun-steinke", _SIMPLE, [point.bun_steinke for point in ordered], 4),
        ("cks", _CKS, [point.cks for point in ordered], -12),
    )
    for name, colour, values, shift in series:
        path = [coordinate for e, v in zip(exponents, values, strict=True) for coordinate in (x(e), y(v))]
        drawing.add(PolyLine(path, strokeColor=colour, strokeWidth=1.6))
        drawing.add(_label(right, y(values[-1]) + shift, name, "end", colour))
        for exponent, value in zip(exponents, values, strict=True):
            if math.isclose(exponent, -math.log10(delta), abs_tol=1e-9):
                drawing.add(Circle(x(exponent), y(value), 2.6, fillColor=colour, strokeColor=None))
                drawing.add(
                    _label(
                        x(exponent), y(value) + (7 if shift > 0 else -13), f"{value:.2f}", "middle", colour
                    )
                )
    return drawing


def _label(x: float, y: float, text: str, anchor: Anchor, colour: Color = _INK) -> String:
    return String(x, y, text, textAnchor=anchor, fontName="Helvetica", fontSize=8, fillColor=colour)
