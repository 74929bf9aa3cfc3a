"""``certificate.pdf``: the certificate on a few A4 pages, the same bytes for the same content."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    KeepTogether,
    PageTemplate,
    Spacer,
    TableStyle,
)

from opendas.report.facts import NoiseRow, RunFacts
from opendas.report.guarantee import STAMP_MEANING, guarantee_paragraphs
from opendas.report.pdf_parts import (
    BAND,
    CELL_HEAD,
    HEAD,
    MARGIN,
    MONO,
    NOTE,
    SMALL,
    STAMP,
    STAMP_TEXT,
    SUBHEAD,
    SUBTITLE,
    TITLE,
    WIDTH,
    box,
    breakable,
    canvas_with,
    curve_drawing,
    pairs,
    paragraph,
    table,
)
from opendas.report.spine_views import ENTITY_HEAD, LEVEL_HEAD, entity_rows, level_rows, spine_sentence
from opendas.report.views import (
    curve,
    decimal,
    file_groups,
    invariant_words,
    loss_words,
    margin_words,
    percent,
    plural,
    query_words,
    share_matrix,
    words,
)

__all__ = ["certificate_pdf"]

_LEVELS_A_TABLE = 6
_FILES_LISTED = 60
_MEASUREMENTS = {
    "full": "released in full",
    "used": "released as far as the estimate used them; the loss is that of the full measurement",
}


def _front(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> list[Flowable]:
    products = ", ".join(run.product for run in runs)
    story: list[Flowable] = [
        paragraph("Privacy certificate", TITLE),
        paragraph(f"Products: {products}. Issued {certificate['issued']}.", SUBTITLE),
    ]
    for stamp in certificate["stamps"]:
        story += [
            box([paragraph(stamp, STAMP), paragraph(STAMP_MEANING.get(stamp, ""), STAMP_TEXT)], alarm=True),
            Spacer(1, 7),
        ]
    story += [
        paragraph("What was released", HEAD),
        table(
            ("Product", "One record is", "Records", "Leaves", "Relation", "Loss of the plan"),
            [
                (
                    run.product,
                    f"a {run.protected_unit}",
                    f"{run.records:,}",
                    plural(*list(run.geounits.items())[-1]),
                    run.neighbours,
                    loss_words(run.to_dict()),
                )
                for run in runs
            ],
            [28 * mm, 25 * mm, 25 * mm, 24 * mm, 18 * mm, WIDTH - 120 * mm],
            left=2,
        ),
        paragraph("What it costs in total", HEAD),
        table(
            ("Change of the input", "Relation", "Runs", "Loss", "Exact loss"),
            [
                (
                    total["change"],
                    total["neighbours"],
                    f"{total['runs']}"
                    + (f" of {total['runs'] + total['uncovered']}" if total["uncovered"] else ""),
                    loss_words(total),
                    breakable(total["rho"] or total.get("pure_epsilon") or "unbounded", 26),
                )
                for total in certificate["totals"]
            ],
            [47 * mm, 20 * mm, 12 * mm, 47 * mm, WIDTH - 126 * mm],
            left=2,
        ),
        Spacer(1, 4),
        paragraph(certificate["scope"] + " Losses under different relations are never added.", NOTE),
        paragraph("Identity", HEAD),
        pairs([("Program", f"opendas {certificate['version']}, commit {certificate['commit']}")]),
        pairs(
            [
                ("certificate.json", digest),
                *((f"Plan, {run.product}", run.plan_digest) for run in runs),
                *((f"Spine, {run.product}", run.spine_digest) for run in runs),
            ],
            mono=True,
        ),
        paragraph("SHA-256. The plan and the spine hold public information only.", NOTE),
    ]
    return story


def _runs_counted(total: Mapping[str, Any]) -> str:
    runs, uncovered = total["runs"], total["uncovered"]
    return f"{runs} of {runs + uncovered}" if uncovered else str(runs)


def _guarantee(runs: Sequence[RunFacts]) -> list[Flowable]:
    story: list[Flowable] = [paragraph("What is guaranteed", HEAD)]
    said: set[str] = set()
    for run in runs:
        if len(runs) > 1:
            story.append(paragraph(run.product, SUBHEAD))
        stamped = tuple(f"{stamp}. " for stamp in STAMP_MEANING)
        for text in guarantee_paragraphs(run):
            if text not in said and not text.startswith(stamped):
                story.append(paragraph(text))
                said.add(text)
    return story


def _estimation(run: RunFacts) -> str:
    if not run.estimated:
        return run.estimator
    failsafe = f"{len(run.failsafe):,} families relaxed" if run.failsafe else "not used"
    solved = f"{run.families:,} families, of which {run.fallbacks:,} needed the fallback solver"
    return f"{run.estimator}; {solved}; failsafe {failsafe}"


def _held(run: RunFacts) -> list[Flowable]:
    dropped = "; ".join(invariant_words(name) for name in run.dropped_invariants) or "none"
    return [
        paragraph("What is held, and how it was estimated", SUBHEAD),
        pairs(
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
        paragraph(f"Budget of {run.product}", HEAD),
        paragraph(
            f"{run.mechanism}, {run.neighbours} neighbours, {loss_words(run.to_dict())}. Each geolevel has "
            "a share of the total, and each query group a share of its geolevel. Both sum to exactly 1."
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
        first = 44 * mm
        widths = [first, *([(WIDTH - first) / len(shown)] * len(shown))]
        shares_table = table(head, body, widths)
        shares_table.setStyle(TableStyle([("BACKGROUND", (0, 1), (-1, 2), BAND)]))
        noise = [(query_words(row.query), *(_noise_words(row.noise[i]) for i in shown)) for row in matrix]
        title = paragraph("Noise of one answer: 90 % margin, variance in parentheses", SUBHEAD)
        story += [
            KeepTogether([*opening, shares_table]),
            Spacer(1, 8),
            KeepTogether([title, table(head, noise, widths)]),
            Spacer(1, 6),
        ]
        opening = []
    return [*story, KeepTogether(_held(run))]


def _spine(run: RunFacts) -> list[Flowable]:
    """Levels of the spine, and how far areas lie from it."""
    spine = run.spine
    if spine is None:
        return []
    first = 40 * mm
    rest = WIDTH - first
    levels = table(
        LEVEL_HEAD,
        level_rows(spine.levels),
        [first, *(rest * part for part in (0.16, 0.13, 0.29, 0.23, 0.19))],
    )
    story: list[Flowable] = [
        KeepTogether([paragraph(f"Spine of {run.product}", HEAD), paragraph(spine_sentence(spine)), levels])
    ]
    if spine.entities:
        distances = table(ENTITY_HEAD, entity_rows(spine.entities), [first, *([rest / 5] * 5)])
        text = (
            "Distance: how many geounits of the spine must be added or subtracted to make up the area; 1 is "
            "on the spine. Before: from the spine of the official levels."
        )
        story.append(
            KeepTogether(
                [paragraph("Areas and the spine", SUBHEAD), distances, Spacer(1, 3), paragraph(text, NOTE)]
            )
        )
    return story


def _noise_words(rows: Sequence[NoiseRow]) -> str:
    if not rows:
        return "\u2013"
    variances = dict.fromkeys(decimal(row.variance) for row in (rows[0], rows[-1]))
    return f"{margin_words(rows)} ({' to '.join(variances)})"


def _loss_rows(losses: Mapping[str, Any]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for name, loss in losses.items():
        exact = loss["rho"] or loss.get("pure_epsilon") or "0"
        shown = exact if len(exact) <= 34 else f"about {decimal(Fraction(exact), 6)}"
        epsilons = (loss["epsilon"].get(formula) for formula in ("cks", "bun-steinke"))
        rows.append((words(name), shown, *("\u2013" if e is None else f"{e:.2f}" for e in epsilons)))
    return rows


def _partial(run: RunFacts) -> list[Flowable]:
    """Curve, and losses by attribute and within geolevels."""
    record = run.to_dict()
    head = ("", "epsilon" if run.pure else "rho", "epsilon (cks)", "epsilon (bun-steinke)")

    widths = [44 * mm, 60 * mm, 30 * mm, 36 * mm]
    story: list[Flowable] = [paragraph(f"What the loss of {run.product} means", HEAD)]
    points = curve(run)
    if points:
        text = (
            "The same rho implies one epsilon for every delta. Both conversions are upper bounds; the "
            "lower curve is the tighter one."
        )
        story += [paragraph(text), curve_drawing(points, float(run.delta), WIDTH, 165)]
    partial: tuple[tuple[str, str, Any], ...] = (
        ("One attribute of a record changes, all else equal", "Attribute", record["attributes"]),
        ("A record moves within one geounit of the spine, all else equal", "Within one", record["within"]),
    )
    for title, first, losses in partial:
        block = table((first, *head[1:]), _loss_rows(losses), widths)
        story.append(KeepTogether([paragraph(title, SUBHEAD), block]))
    story.append(paragraph(f"Epsilon at delta = {float(run.delta):g}.", NOTE))
    return [KeepTogether(story[:3]), *story[3:]] if points else story


def _files(certificate: Mapping[str, Any]) -> list[Flowable]:
    groups = file_groups(certificate["files"])
    story: list[Flowable] = [
        paragraph("Released files", HEAD),
        paragraph(
            "opendas verify recomputes every digest and fails on a file that is missing, changed or not "
            "listed. The digest of a folder is the SHA-256 of its files' lines as sha256sum prints them."
        ),
        table(
            ("Folder", "Files", "Bytes", paragraph("SHA-256 of the list", CELL_HEAD)),
            [(g.folder, f"{len(g.files):,}", f"{g.bytes:,}", paragraph(g.digest, MONO)) for g in groups],
            [WIDTH - 124 * mm, 14 * mm, 22 * mm, 88 * mm],
        ),
    ]
    listed = certificate["files"][:_FILES_LISTED]
    if listed:
        story += [
            Spacer(1, 8),
            table(
                ("File", "Bytes", paragraph("SHA-256", CELL_HEAD)),
                [
                    (paragraph(breakable(f["path"]), SMALL), f"{f['bytes']:,}", paragraph(f["sha256"], MONO))
                    for f in listed
                ],
                [WIDTH - 107 * mm, 19 * mm, 88 * mm],
            ),
        ]
    rest = len(certificate["files"]) - len(listed)
    if rest:
        story.append(paragraph(f"{rest:,} more files are listed in certificate.json.", NOTE))
    return story


def certificate_pdf(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> bytes:
    """Set the certificate.

    Parameters
    ----------
    certificate : mapping
        Content of ``certificate.json``.
    runs : sequence of RunFacts
        Its runs.
    digest : str
        SHA-256 of ``certificate.json``, printed on the first page and, in short, on every page.

    Returns
    -------
    bytes
        A PDF without date or identity of its own.
    """
    story = _front(certificate, runs, digest)
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
    )
    frame = Frame(MARGIN, 18 * mm, WIDTH, A4[1] - 36 * mm, leftPadding=0, rightPadding=0)
    document.addPageTemplates([PageTemplate(frames=[frame])])

    document.build(story, canvasmaker=canvas_with(footer, certificate["stamps"]))
    return target.getvalue()
