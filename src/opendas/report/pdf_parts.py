"""Styles, tables and boxes of the certificate's PDF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal
from xml.sax.saxutils import escape

from reportlab.graphics.shapes import Circle, Drawing, Line, PolyLine, String
from reportlab.lib.colors import Color, HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, Paragraph, Table, TableStyle

from opendas.privacy.zcdp import CurvePoint
from opendas.report.views import ticks

__all__ = [
    "BAND",
    "BODY",
    "CELL_HEAD",
    "HEAD",
    "MARGIN",
    "MONO",
    "NOTE",
    "SMALL",
    "STAMP",
    "STAMP_TEXT",
    "SUBHEAD",
    "SUBTITLE",
    "TITLE",
    "WIDTH",
    "NumberedCanvas",
    "box",
    "breakable",
    "canvas_with",
    "curve_drawing",
    "pairs",
    "paragraph",
    "table",
]

# The curve of epsilon against delta, drawn with the PDF library's own graphics.


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


INK = HexColor("#16202c")
MUTED = HexColor("#5a6775")
ACCENT = HexColor("#1f4e79")
RULE = HexColor("#c9d2dc")
BAND = HexColor("#f1f5f9")
ALARM = HexColor("#9b1c1c")
ALARM_BAND = HexColor("#fdf1f1")

MARGIN = 20 * mm
WIDTH = A4[0] - 2 * MARGIN


def _style(name: str, size: float, **changes: Any) -> ParagraphStyle:
    settings = {"fontName": "Helvetica", "fontSize": size, "leading": size * 1.4, "textColor": INK}
    return ParagraphStyle(name, **{**settings, **changes})


TITLE = _style("title", 25, fontName="Helvetica-Bold", leading=30, textColor=ACCENT, spaceAfter=3)
SUBTITLE = _style("subtitle", 11, textColor=MUTED, spaceAfter=10)
HEAD = _style("head", 14, fontName="Helvetica-Bold", textColor=ACCENT, spaceBefore=14, spaceAfter=5)
SUBHEAD = _style("subhead", 10.5, fontName="Helvetica-Bold", spaceBefore=8, spaceAfter=3)
BODY = _style("body", 9.3, spaceAfter=5)
NOTE = _style("note", 8, textColor=MUTED, spaceAfter=5)
_CELL = _style("cell", 8, leading=10)
_CELL_RIGHT = _style("cell right", 8, leading=10, alignment=TA_RIGHT)
CELL_HEAD = _style("cell head", 8, leading=10, fontName="Helvetica-Bold")
_CELL_HEAD_RIGHT = _style("cell head right", 8, leading=10, fontName="Helvetica-Bold", alignment=TA_RIGHT)
MONO = _style("mono", 6.3, fontName="Courier", leading=10)
SMALL = _style("small", 7.2, leading=10)
STAMP = _style("stamp", 15, fontName="Helvetica-Bold", textColor=ALARM, leading=19)
STAMP_TEXT = _style("stamp text", 8.6, leading=11.6)


def latin(value: object) -> str:
    """Replace what the built-in fonts cannot draw."""
    return str(value).encode("cp1252", "replace").decode("cp1252")


def paragraph(value: object, style: ParagraphStyle = BODY) -> Paragraph:
    """Set plain text; markup in it is shown as it is."""
    return Paragraph(escape(latin(value)), style)


def breakable(value: str, every: int = 48) -> str:
    """Give a long exact number places to break."""
    return " ".join(value[start : start + every] for start in range(0, len(value), every))


def table(
    head: Sequence[object], body: Sequence[Sequence[object]], widths: Sequence[float], *, left: int = 1
) -> Table:
    """Set a table whose first `left` columns are text and the rest figures."""

    def cell(value: object, column: int, *, heading: bool) -> Flowable:
        if isinstance(value, Flowable):
            return value
        if heading:
            return paragraph(value, CELL_HEAD if column < left else _CELL_HEAD_RIGHT)
        return paragraph(value, _CELL if column < left else _CELL_RIGHT)

    rows = [[cell(value, i, heading=True) for i, value in enumerate(head)]]
    rows += [[cell(value, i, heading=False) for i, value in enumerate(row)] for row in body]
    style: list[Any] = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, 0), 0.9, ACCENT),
        ("LINEBELOW", (0, 1), (-1, -1), 0.3, RULE),
        ("TOPPADDING", (0, 0), (-1, -1), 2.4),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.8),
        ("LEFTPADDING", (0, 0), (-1, -1), 3),
        ("RIGHTPADDING", (0, 0), (-1, -1), 3),
    ]
    made = Table(rows, colWidths=list(widths), repeatRows=1, hAlign="LEFT")
    made.setStyle(TableStyle(style))
    return made


def box(content: Sequence[Flowable], *, alarm: bool = False) -> Table:
    """Set a framed box over the whole width."""
    made = Table([[list(content)]], colWidths=[WIDTH], hAlign="LEFT")
    edge, band = (ALARM, ALARM_BAND) if alarm else (RULE, BAND)
    made.setStyle(
        TableStyle(
            [
                ("BOX", (0, 0), (-1, -1), 1.6 if alarm else 0.6, edge),
                ("BACKGROUND", (0, 0), (-1, -1), band),
                ("LEFTPADDING", (0, 0), (-1, -1), 9),
                ("RIGHTPADDING", (0, 0), (-1, -1), 9),
                ("TOPPADDING", (0, 0), (-1, -1), 6),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 8),
            ]
        )
    )
    return made


def pairs(entries: Sequence[tuple[str, object]], *, mono: bool = False) -> Table:
    """Set labels beside values, without rules."""
    style = MONO if mono else _CELL
    rows = [
        [paragraph(label, CELL_HEAD), value if isinstance(value, Flowable) else paragraph(value, style)]
        for label, value in entries
    ]
    made = Table(rows, colWidths=[38 * mm, WIDTH - 38 * mm], hAlign="LEFT")
    made.setStyle(
        TableStyle(
            [
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("LEFTPADDING", (0, 0), (-1, -1), 3),
                ("TOPPADDING", (0, 0), (-1, -1), 1.4),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 1.4),
            ]
        )
    )
    return made


class NumberedCanvas(Canvas):
    """A canvas with a footer, and "page n of N" once the number of pages is known."""

    footer = ""
    stamps = ""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._finished: list[dict[str, Any]] = []

    def showPage(self) -> None:
        """Keep the page for later."""
        self._finished.append(dict(self.__dict__))
        self._startPage()  # type: ignore[attr-defined]  # the documented recipe for page totals

    def save(self) -> None:
        """Write all pages with their footers."""
        for state in self._finished:
            self.__dict__.update(state)
            self._foot(len(self._finished))
            super().showPage()
        super().save()

    def _foot(self, pages: int) -> None:
        self.setStrokeColor(RULE)
        self.setLineWidth(0.5)
        self.line(MARGIN, 14 * mm, A4[0] - MARGIN, 14 * mm)
        self.setFillColor(ALARM)
        self.setFont("Helvetica-Bold", 8.5)
        self.drawRightString(A4[0] - MARGIN, A4[1] - 12 * mm, self.stamps)
        self.setFillColor(MUTED)
        self.setFont("Helvetica", 7.5)
        self.drawString(MARGIN, 10 * mm, self.footer)
        self.drawRightString(A4[0] - MARGIN, 10 * mm, f"page {self.getPageNumber()} of {pages}")


def canvas_with(footer: str, stamps: Sequence[str]) -> type[NumberedCanvas]:
    """Return the canvas class that puts this footer and these stamps on every page."""
    settings = {"footer": latin(footer), "stamps": latin("   ".join(stamps))}
    return type("CertificateCanvas", (NumberedCanvas,), settings)
