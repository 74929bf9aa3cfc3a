"""Write ``certificate.pdf``: a few A4 pages, equal bytes for equal content; imported only when issued."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal
from xml.sax.saxutils import escape

from reportlab.graphics.shapes import Circle, Drawing, Line, PolyLine, String
from reportlab.lib.colors import Color, HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    KeepTogether,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)

from opendas.budget.noise import NoiseRow
from opendas.privacy.zcdp import CurvePoint
from opendas.report.facts import RunFacts
from opendas.report.guarantee import STAMP_MEANING, guarantees
from opendas.report.views import (
    ENTITY_HEAD,
    LEVEL_HEAD,
    PROTECTED_HEAD,
    curve,
    decimal,
    entity_rows,
    exact_words,
    file_groups,
    invariant_words,
    level_rows,
    loss_words,
    margin_words,
    official_head,
    official_rows,
    official_sentences,
    one,
    partial_losses,
    percent,
    plural,
    protected_rows,
    query_words,
    runs_words,
    share_matrix,
    spine_sentence,
    ticks,
    words,
)

_LEVELS_A_TABLE = 6
_FILES_LISTED = 60
_MEASUREMENTS = {
    "full": "released in full",
    "used": "released as far as the estimate used them; the loss is that of the full measurement",
}

_INK, _MUTED, _ACCENT = HexColor("#16202c"), HexColor("#5a6775"), HexColor("#1f4e79")
_RULE, _BAND = HexColor("#c9d2dc"), HexColor("#f1f5f9")
_ALARM, _ALARM_BAND = HexColor("#9b1c1c"), HexColor("#fdf1f1")
_GRID, _SIMPLE = HexColor("#dbe2ea"), HexColor("#b45309")

_MARGIN = 20 * mm
_WIDTH = A4[0] - 2 * _MARGIN
_BOLD = "Helvetica-Bold"


def _style(name: str, size: float, **changes: Any) -> ParagraphStyle:
    settings = {"fontName": "Helvetica", "fontSize": size, "leading": size * 1.4, "textColor": _INK}
    return ParagraphStyle(name, **{**settings, **changes})


_TITLE = _style("title", 25, fontName=_BOLD, leading=30, textColor=_ACCENT, spaceAfter=3)
_SUBTITLE = _style("subtitle", 11, textColor=_MUTED, spaceAfter=10)
_HEAD = _style("head", 14, fontName=_BOLD, textColor=_ACCENT, spaceBefore=14, spaceAfter=5)
_SUBHEAD = _style("subhead", 10.5, fontName=_BOLD, spaceBefore=8, spaceAfter=3)
_BODY = _style("body", 9.3, spaceAfter=5)
_NOTE = _style("note", 8, textColor=_MUTED, spaceAfter=5)
_CELL = _style("cell", 8, leading=10)
_CELL_RIGHT = _style("cell right", 8, leading=10, alignment=TA_RIGHT)
_CELL_HEAD = _style("cell head", 8, leading=10, fontName=_BOLD)
_CELL_HEAD_RIGHT = _style("cell head right", 8, leading=10, fontName=_BOLD, alignment=TA_RIGHT)
_MONO = _style("mono", 6.3, fontName="Courier", leading=10)
_SMALL = _style("small", 7.2, leading=10)
_STAMP = _style("stamp", 15, fontName=_BOLD, textColor=_ALARM, leading=19)
_STAMP_TEXT = _style("stamp text", 8.6, leading=11.6)


def _latin(value: object) -> str:
    """Replace characters that the built-in fonts cannot draw."""
    return str(value).encode("cp1252", "replace").decode("cp1252")


def _paragraph(value: object, style: ParagraphStyle = _BODY) -> Paragraph:
    """Set plain text; markup is escaped."""
    return Paragraph(escape(_latin(value)), style)


def _with_breaks(value: str, every: int = 48) -> str:
    """Insert places where a long exact number may break."""
    return " ".join(value[start : start + every] for start in range(0, len(value), every))


def _table(
    head: Sequence[object], body: Sequence[Sequence[object]], widths: Sequence[float], *, left: int = 1
) -> Table:
    """Set a table; the first `left` columns are text, the rest figures."""

    def cell(value: object, column: int, *, heading: bool) -> Flowable:
        if isinstance(value, Flowable):
            return value
        if heading:
            return _paragraph(value, _CELL_HEAD if column < left else _CELL_HEAD_RIGHT)
        return _paragraph(value, _CELL if column < left else _CELL_RIGHT)

    rows = [[cell(value, i, heading=True) for i, value in enumerate(head)]]
    rows += [[cell(value, i, heading=False) for i, value in enumerate(row)] for row in body]
    style: list[Any] = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 0), (-1, 0), 0.9, _ACCENT),
        ("LINEBELOW", (0, 1), (-1, -1), 0.3, _RULE),
        ("TOPPADDING", (0, 0), (-1, -1), 2.4),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.8),
        ("LEFTPADDING", (0, 0), (-1, -1), 3),
        ("RIGHTPADDING", (0, 0), (-1, -1), 3),
    ]
    made = Table(rows, colWidths=list(widths), repeatRows=1, hAlign="LEFT")
    made.setStyle(TableStyle(style))
    return made


def _even(first: float, columns: int) -> list[float]:
    """Return widths across the page: that of the first column, and as many even ones."""
    return [first, *([(_WIDTH - first) / columns] * columns)]


def _stamp(content: Sequence[Flowable]) -> Table:
    """Set a framed box across the page."""
    made = Table([[list(content)]], colWidths=[_WIDTH], hAlign="LEFT")
    made.setStyle(
        [
            ("BOX", (0, 0), (-1, -1), 1.6, _ALARM),
            ("BACKGROUND", (0, 0), (-1, -1), _ALARM_BAND),
            ("LEFTPADDING", (0, 0), (-1, -1), 9),
            ("RIGHTPADDING", (0, 0), (-1, -1), 9),
            ("TOPPADDING", (0, 0), (-1, -1), 6),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 8),
        ]
    )
    return made


def _pairs(entries: Sequence[tuple[str, object]], *, mono: bool = False) -> Table:
    """Set labels beside values, without rules."""
    style = _MONO if mono else _CELL
    rows = [
        [_paragraph(label, _CELL_HEAD), value if isinstance(value, Flowable) else _paragraph(value, style)]
        for label, value in entries
    ]
    made = Table(rows, colWidths=[38 * mm, _WIDTH - 38 * mm], hAlign="LEFT")
    made.setStyle(
        [
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LEFTPADDING", (0, 0), (-1, -1), 3),
            ("TOPPADDING", (0, 0), (-1, -1), 1.4),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 1.4),
        ]
    )
    return made


def _curve_drawing(points: Sequence[CurvePoint], delta: float) -> Drawing:
    """Draw epsilon against delta by both conversions, and mark the point at one delta."""
    ordered = sorted(points, key=lambda point: point.delta, reverse=True)
    exponents = [-math.log10(float(point.delta)) for point in ordered]
    left, bottom, right, top = 40.0, 34.0, _WIDTH - 12, 155.0
    marks = ticks(0.0, max(point.bun_steinke for point in ordered))
    drawing = Drawing(_WIDTH, 165)

    def x(exponent: float) -> float:
        return left + (right - left) * (exponent - exponents[0]) / (exponents[-1] - exponents[0])

    def y(epsilon: float) -> float:
        return bottom + (top - bottom) * epsilon / marks[-1]

    def label(
        at: tuple[float, float], text: str, anchor: Literal["start", "middle", "end"], colour: Color = _INK
    ) -> None:
        drawing.add(String(*at, text, textAnchor=anchor, fontName="Helvetica", fontSize=8, fillColor=colour))

    for mark in marks:
        drawing.add(Line(left, y(mark), right, y(mark), strokeColor=_GRID, strokeWidth=0.6))
        label((left - 6, y(mark) - 3), f"{mark:g}", "end")
    for exponent in exponents:
        if round(exponent) % 2 == 0:
            label((x(exponent), bottom - 13), f"1e-{round(exponent)}", "middle")
    label(((left + right) / 2, 6), "delta", "middle")
    label((left + 6, top - 6), "epsilon", "start")
    for name, colour, values, shift in (
        ("bun-steinke", _SIMPLE, [point.bun_steinke for point in ordered], 4),
        ("cks", _ACCENT, [point.cks for point in ordered], -12),
    ):
        path = [part for e, v in zip(exponents, values, strict=True) for part in (x(e), y(v))]
        drawing.add(PolyLine(path, strokeColor=colour, strokeWidth=1.6))
        label((right, y(values[-1]) + shift), name, "end", colour)
        for exponent, value in zip(exponents, values, strict=True):
            if math.isclose(exponent, -math.log10(delta), abs_tol=1e-9):
                drawing.add(Circle(x(exponent), y(value), 2.6, fillColor=colour, strokeColor=None))
                label((x(exponent), y(value) + (7 if shift > 0 else -13)), f"{value:.2f}", "middle", colour)
    return drawing


class _NumberedCanvas(Canvas):
    """A canvas with a footer, and "page n of N" once the number of pages is known."""

    footer = ""
    stamps = ""
    issued = ""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # The library reads its date from the environment, which differs when the page is laid out again.
        date = tuple(int(part) for part in self.issued.split("-"))
        document: Any = self._doc  # type: ignore[attr-defined]
        document._timeStamp = SimpleNamespace(YMDhms=(*date, 0, 0, 0), dhh=0, dmm=0)
        document.signature = hashlib.md5(self.issued.encode(), usedforsecurity=False)
        self._finished: list[dict[str, Any]] = []

    def showPage(self) -> None:
        """Keep the page for later."""
        self._finished.append(dict(self.__dict__))
        self._startPage()  # type: ignore[attr-defined]  # the documented recipe for page totals

    def save(self) -> None:
        """Write all pages with footers."""
        for state in self._finished:
            self.__dict__.update(state)
            self._foot(len(self._finished))
            super().showPage()
        super().save()

    def _foot(self, pages: int) -> None:
        self.setStrokeColor(_RULE)
        self.setLineWidth(0.5)
        self.line(_MARGIN, 14 * mm, A4[0] - _MARGIN, 14 * mm)
        self.setFillColor(_ALARM)
        self.setFont(_BOLD, 8.5)
        self.drawRightString(A4[0] - _MARGIN, A4[1] - 12 * mm, self.stamps)
        self.setFillColor(_MUTED)
        self.setFont("Helvetica", 7.5)
        self.drawString(_MARGIN, 10 * mm, self.footer)
        self.drawRightString(A4[0] - _MARGIN, 10 * mm, f"page {self.getPageNumber()} of {pages}")


def _canvas_with(footer: str, certificate: Mapping[str, Any]) -> type[_NumberedCanvas]:
    """Return the canvas class of a certificate: its footer and stamps on every page, and its date."""
    stamps = _latin("   ".join(certificate["stamps"]))
    settings = {"footer": _latin(footer), "stamps": stamps, "issued": certificate["issued"]}
    return type("CertificateCanvas", (_NumberedCanvas,), settings)


def _protected(run: RunFacts) -> str:
    unit = one(run.protected_unit)
    if run.contribution is None:
        return unit if unit == "a record" else f"{unit}, one record"
    return f"{unit}, at most {plural('record', run.contribution.at_most)}"


def _front_page(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> list[Flowable]:
    products = ", ".join(run.product for run in runs)
    story: list[Flowable] = [
        _paragraph("Privacy certificate", _TITLE),
        _paragraph(f"Products: {products}. Issued {certificate['issued']}.", _SUBTITLE),
    ]
    for stamp in certificate["stamps"]:
        story += [
            _stamp([_paragraph(stamp, _STAMP), _paragraph(STAMP_MEANING.get(stamp, ""), _STAMP_TEXT)]),
            Spacer(1, 7),
        ]
    story += [
        _paragraph("What was released", _HEAD),
        _table(
            ("Product", "Protected", "Records", "Leaves", "Relation", "Loss of the plan"),
            [
                (
                    run.product,
                    _protected(run),
                    f"{run.records:,}",
                    plural(*list(run.geounits.items())[-1]),
                    run.neighbours,
                    loss_words(run.to_dict()),
                )
                for run in runs
            ],
            [28 * mm, 25 * mm, 25 * mm, 24 * mm, 18 * mm, _WIDTH - 120 * mm],
            left=2,
        ),
        _paragraph("What it costs in total", _HEAD),
        _table(
            ("Change of the input", "Relation", "Runs", "Loss", "Exact loss"),
            [
                (
                    total["change"],
                    total["neighbours"],
                    runs_words(total),
                    loss_words(total),
                    _with_breaks(exact_words(total), 26),
                )
                for total in certificate["totals"]
            ],
            [47 * mm, 20 * mm, 12 * mm, 47 * mm, _WIDTH - 126 * mm],
            left=2,
        ),
        Spacer(1, 4),
        _paragraph(certificate["scope"] + " Losses under different relations are never added.", _NOTE),
        _paragraph("Identity", _HEAD),
        _pairs([("Program", f"opendas {certificate['version']}, commit {certificate['commit']}")]),
        _pairs(
            [
                ("certificate.json", digest),
                *((f"Plan, {run.product}", run.plan_digest) for run in runs),
                *((f"Spine, {run.product}", run.spine_digest) for run in runs),
            ],
            mono=True,
        ),
        _paragraph("SHA-256. The plan and the spine hold public information only.", _NOTE),
    ]
    return story


def _guarantee(runs: Sequence[RunFacts]) -> list[Flowable]:
    story: list[Flowable] = [_paragraph("What is guaranteed", _HEAD)]
    for run, texts in zip(runs, guarantees(runs), strict=True):
        if len(runs) > 1:
            story.append(_paragraph(run.product, _SUBHEAD))
        story += [_paragraph(text) for text in texts]
    return story


def _estimation(run: RunFacts) -> str:
    if not run.estimated:
        return run.estimator
    failsafe = f"{plural('family', len(run.failsafe))} relaxed" if run.failsafe else "not used"
    solved = f"{plural('family', run.families)}, of which {run.fallbacks:,} needed the fallback solver"
    return f"{run.estimator_words}; {solved}; failsafe {failsafe}"


def _invariants_section(run: RunFacts) -> list[Flowable]:
    dropped = "; ".join(invariant_words(name) for name in run.dropped_invariants) or "none"
    return [
        _paragraph("What is held, and how it was estimated", _SUBHEAD),
        _pairs(
            [
                ("Invariants", "; ".join(invariant_words(name) for name in run.invariants) or "none"),
                ("Invariants dropped", dropped),
                ("Public constraints", ", ".join(run.declared) or "none"),
                ("Geounits", ", ".join(plural(level, count) for level, count in run.geounits.items())),
                ("Estimation", _estimation(run)),
                ("Measurements", _MEASUREMENTS.get(run.measurements, run.measurements)),
            ]
        ),
    ]


def _budget(run: RunFacts) -> list[Flowable]:
    levels = tuple(run.geolevel_shares)
    matrix = share_matrix(run)
    story: list[Flowable] = []
    opening = [
        _paragraph(f"Budget of {run.product}", _HEAD),
        _paragraph(
            f"{run.mechanism_words}, {run.neighbours} neighbours, {loss_words(run.to_dict())}. Each geolevel "
            "has a share of the total, and each query group a share of its geolevel. Both sum to exactly 1."
            + (f" Workloads of other packages: {run.workload_words}." if run.workload_words else "")
            + (f" Where the shares come from, as the run file says: {run.source}" if run.source else "")
        ),
    ]
    for start in range(0, len(levels), _LEVELS_A_TABLE):
        shown = range(start, min(start + _LEVELS_A_TABLE, len(levels)))
        head = ("Query group", *(words(levels[i]) for i in shown))
        shares = [run.geolevel_shares[levels[i]] for i in shown]
        body: list[Sequence[object]] = [
            ("share of the geolevel", *shares),
            ("the same, rounded", *(percent(share) for share in shares)),
        ]
        body += [(query_words(row.query), *(row.shares[i] or "\u2013" for i in shown)) for row in matrix]
        widths = _even(44 * mm, len(shown))
        shares_table = _table(head, body, widths)
        shares_table.setStyle(TableStyle([("BACKGROUND", (0, 1), (-1, 2), _BAND)]))
        noise = [(query_words(row.query), *(_noise_words(row.noise[i]) for i in shown)) for row in matrix]
        title = _paragraph("Noise of one answer: 90 % margin, variance in parentheses", _SUBHEAD)
        story += [
            KeepTogether([*opening, shares_table]),
            Spacer(1, 8),
            KeepTogether([title, _table(head, noise, widths)]),
            Spacer(1, 6),
        ]
        opening = []
    return [*story, KeepTogether(_invariants_section(run))]


def _spine(run: RunFacts) -> list[Flowable]:
    """Set the levels of the spine, and the distances of areas from it."""
    spine = run.spine
    if spine is None:
        return []
    first = 40 * mm
    rest = _WIDTH - first
    levels = _table(
        LEVEL_HEAD,
        level_rows(spine.levels),
        [first, *(rest * part for part in (0.16, 0.13, 0.29, 0.23, 0.19))],
    )
    title = _paragraph(f"Spine of {run.product}", _HEAD)
    story: list[Flowable] = [KeepTogether([title, _paragraph(spine_sentence(spine)), levels])]
    if spine.entities:
        distances = _table(ENTITY_HEAD, entity_rows(spine.entities), _even(first, 5))
        text = (
            "Distance: how many geounits of the spine must be added or subtracted to make up the area; 1 is "
            "on the spine. Before: from the spine of the official levels."
        )
        title = _paragraph("Areas and the spine", _SUBHEAD)
        story.append(KeepTogether([title, distances, Spacer(1, 3), _paragraph(text, _NOTE)]))
    return story


def _noise_words(rows: Sequence[NoiseRow]) -> str:
    if not rows:
        return "\u2013"
    variances = dict.fromkeys(decimal(row.variance) for row in (rows[0], rows[-1]))
    return f"{margin_words(rows)} ({' to '.join(variances)})"


def _partial(run: RunFacts) -> list[Flowable]:
    """Set the curve, and the losses by attribute and within geolevels."""
    story: list[Flowable] = [_paragraph(f"What the loss of {run.product} means", _HEAD)]
    points = curve(run)
    if points:
        text = (
            "The same rho implies one epsilon for every delta. Both conversions are upper bounds; the "
            "lower curve is the tighter one."
        )
        drawing = _curve_drawing(points, float(run.delta))
        story = [KeepTogether([*story, _paragraph(text), drawing])]
    widths = [44 * mm, 60 * mm, 30 * mm, 36 * mm]
    for title, head, rows in partial_losses(run):
        story.append(KeepTogether([_paragraph(title, _SUBHEAD), _table(head, rows, widths[: len(head)])]))
    story += _protection(run)
    story += _official(run)
    if not run.pure:
        story.append(_paragraph(f"Epsilon at delta = {float(run.delta):g}.", _NOTE))
    return story


def _protection(run: RunFacts) -> list[Flowable]:
    """Set what remains protected given the exact facts."""
    if run.protection is None:
        return []
    widths = [26 * mm, 52 * mm, _WIDTH - 78 * mm]
    rows = [
        (kind, _paragraph(name, _CELL), _paragraph(text, _CELL))
        for kind, name, text in protected_rows(run.protection)
    ]
    return [
        _paragraph("What is protected", _SUBHEAD),
        _paragraph(run.protection.alternatives),
        _table(PROTECTED_HEAD, rows, widths),
    ]


def _official(run: RunFacts) -> list[Flowable]:
    """Set the losses within official areas."""
    if not run.within_official:
        return []
    head = official_head(run)
    table = _table(head, official_rows(run), _even(44 * mm, len(head) - 1))
    title = _paragraph("A record moves within one official area, all else equal", _SUBHEAD)
    return [KeepTogether([title, *(_paragraph(text) for text in official_sentences(run)), table])]


def _files(certificate: Mapping[str, Any]) -> list[Flowable]:
    groups = file_groups(certificate["files"])
    story: list[Flowable] = [
        _paragraph("Released files", _HEAD),
        _paragraph(
            "opendas verify recomputes every digest and fails on a file that is missing, changed or not "
            "listed. The digest of a folder is the SHA-256 of its files' lines as sha256sum prints them."
        ),
        _table(
            ("Folder", "Files", "Bytes", _paragraph("SHA-256 of the list", _CELL_HEAD)),
            [(g.folder, f"{len(g.files):,}", f"{g.bytes:,}", _paragraph(g.digest, _MONO)) for g in groups],
            [_WIDTH - 124 * mm, 14 * mm, 22 * mm, 88 * mm],
        ),
    ]
    listed = certificate["files"][:_FILES_LISTED]
    if listed:
        story += [
            Spacer(1, 8),
            _table(
                ("File", "Bytes", _paragraph("SHA-256", _CELL_HEAD)),
                [
                    (
                        _paragraph(_with_breaks(f["path"]), _SMALL),
                        f"{f['bytes']:,}",
                        _paragraph(f["sha256"], _MONO),
                    )
                    for f in listed
                ],
                [_WIDTH - 107 * mm, 19 * mm, 88 * mm],
            ),
        ]
    rest = len(certificate["files"]) - len(listed)
    if rest:
        story.append(
            _paragraph(
                f"{plural('more file', rest)} {'is' if rest == 1 else 'are'} listed in certificate.json.",
                _NOTE,
            )
        )
    return story


def certificate_pdf(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> bytes:
    """Return the certificate as a PDF.

    - `certificate`: content of ``certificate.json``.
    - `digest`: SHA-256 of ``certificate.json``, printed on the first page; every page has its first digits.
    - Returns: a PDF without creation date or document identifier.
    """
    story = _front_page(certificate, runs, digest)
    story += _guarantee(runs)
    for run in runs:
        story += _budget(run)
        story += _spine(run)
        story += _partial(run)
    story += _files(certificate)
    footer = f"Privacy certificate, {certificate['issued']}, {digest[:16]}"
    target = io.BytesIO()
    document = BaseDocTemplate(
        target,
        pagesize=A4,
        title="Privacy certificate",
        author="",
        subject=", ".join(run.product for run in runs),
        creator=f"opendas {certificate['version']}",
        invariant=1,
        pageCompression=0,  # so that the bytes do not depend on the machine's libraries
    )
    frame = Frame(_MARGIN, 18 * mm, _WIDTH, A4[1] - 36 * mm, leftPadding=0, rightPadding=0)
    document.addPageTemplates([PageTemplate(frames=[frame])])

    document.build(story, canvasmaker=_canvas_with(footer, certificate))
    return target.getvalue()
