"""The plans that were tried, as a picture: what they gain, against the worst error and the loss within."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from opendas.report.pictures import closed, line, opened, text
from opendas.report.views import ticks, words
from opendas.tuning.improve import Improvement
from opendas.tuning.same_loss import FREE, KEPT, Judged

_STYLE = """<style>
svg { --ink: #17212b; --muted: #55616e; --rule: #d5dbe2; --line0: #a3500a; --line1: #1f4e79; --ground: #fff }
@media (prefers-color-scheme: dark) {
svg { --ink: #e6eaef; --muted: #a3afbc; --rule: #36404c; --line0: #f0a35c; --line1: #8fc1f0; --ground: #123 }
}
text { fill: var(--ink); font: 13px system-ui, sans-serif } .muted { fill: var(--muted) }
.grid { stroke: var(--rule) } polyline { fill: none; stroke: var(--muted); stroke-dasharray: 3 3 }
.line0 { fill: var(--line0); stroke: var(--line0) } .line1 { fill: var(--line1); stroke: var(--line1) }
circle.open { fill: var(--ground) } circle.ring { fill: none; stroke: var(--ink) } text.label { stroke: none }
</style>"""

_TOP, _BOTTOM, _WIDE = 66.0, 330.0, 290.0
_COLOURS = {KEPT: "line0", FREE: "line1"}


def improvement_svg(found: Improvement) -> str:
    """Draw all plans twice, with their fronts; one with a worse error is open, the chosen one has a ring."""
    heights = [0.0, *(100 * plan.aim for plan in found.found)]
    marks = ticks(min(heights), max(heights))

    def y(part: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (100 * part - marks[0]) / (marks[-1] - marks[0])

    levels = list(found.run.resolved.levels)
    inside = words(levels[-2] if len(levels) > 1 else levels[-1])
    parts = [
        opened(
            392, "Plans of the same loss: what they gain against what they cost; a CSV file has the numbers"
        ),
        Markup(_STYLE),
        text(8, 16, "change of the errors to lower, on average, against:", style="muted"),
        Markup('<circle cx="440" cy="12" r="4" class="line0"/>') + text(450, 16, KEPT),
        Markup('<circle cx="570" cy="12" r="4" class="line1"/>') + text(580, 16, FREE),
        text(8, 34, "open: an error that may not grow does; ring: the chosen plan", style="muted"),
    ]
    for left, title, across, best in (
        (
            56.0,
            "the worst error that may not grow, %",
            lambda plan: min(100 * plan.worst, 1_000.0),
            found.error_front,
        ),
        (416.0, f"epsilon within a {inside}", lambda plan: plan.within, found.loss_front),
    ):
        parts += [text(left - 8, y(mark / 100) + 4, f"{mark:+g} %", "end") for mark in marks]
        parts += [line(left, y(mark / 100), left + _WIDE, y(mark / 100), "grid") for mark in marks]
        parts += _panel(left, title, across, best, found, y)
    return str(closed(parts)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _panel(
    left: float,
    title: str,
    across: Callable[[Judged], float],
    best: Sequence[Judged],
    found: Improvement,
    y: Callable[[float], float],
) -> list[Markup]:
    values = [across(plan) for plan in found.found]
    marks = ticks(min(0.0, *values), max(values))

    def x(value: float) -> float:
        return left + _WIDE * (value - marks[0]) / (marks[-1] - marks[0])

    parts = [text(left, 54, title)]
    parts += [text(x(mark), _BOTTOM + 18, f"{mark:g}", "middle", "muted") for mark in marks]
    path = " ".join(f"{x(across(plan)):.1f},{y(plan.aim):.1f}" for plan in sorted(best, key=across))
    parts.append(Markup('<polyline points="{}"/>').format(path))
    for plan in found.found:
        shape = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="{}"/>')
        style = _COLOURS[plan.kind] + (" open" if plan.worse else "")
        parts.append(shape.format(x(across(plan)), y(plan.aim), 4, style))
        if plan is found.chosen:
            parts.append(shape.format(x(across(plan)), y(plan.aim), 7, "ring"))
    return parts
