"""Draw the pictures of report and explorer as inline SVG, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from markupsafe import Markup

from opendas.geography.summary import PERCENTS, EntitySummary, LevelSummary
from opendas.report.pyramids import Pyramid
from opendas.report.views import TotalMargin, entity_words, percent, ticks, words

POWER_LEVELS = (
    *(1e-4, 3e-4, 0.001, 0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08),
    *(0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
)
"""False-positive rates at which trade-off curves are drawn."""

WIDTH = 720
"""Width of every picture, in the units of its view box."""

_MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_ROW = 30
_HEAD = 24
_LOW, _QUARTER, _HALF, _THREE_QUARTERS, _HIGH = (PERCENTS.index(p) for p in (0, 25, 50, 75, 100))

Scale = Callable[[float], float]


def opened(height: float, label: str) -> Markup:
    """Open a picture; `label` is its text for screen readers."""
    return Markup('<svg viewBox="0 0 {} {:g}" role="img" aria-label="{}">').format(WIDTH, height, label)


def text(x: float, y: float, value: object, anchor: str = "start", style: str = "") -> Markup:
    """Write text; `anchor` is ``start``, ``middle`` or ``end``, `style` a class of the page."""
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(
        x, y, anchor, style, value
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """Draw a straight line."""
    shape = '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>'
    return Markup(shape).format(x1, y1, x2, y2, style)


def rect(x: float, y: float, width: float, height: float, style: str) -> Markup:
    """Draw a rectangle."""
    shape = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>'
    return Markup(shape).format(x, y, max(width, 0.0), height, style)


def closed(parts: Sequence[Markup]) -> Markup:
    """Join the elements of a picture and close it."""
    return Markup("").join([*parts, Markup("</svg>")])


def share_bar(shares: Mapping[str, Fraction]) -> Markup:
    """Draw the split of a budget over geolevels as one bar.

    `shares`, geolevel -> Fraction: shares that sum to 1.
    """
    parts = [opened(66, "Share of the budget at each geolevel")]
    at = 0.0
    for number, (level, share) in enumerate(shares.items()):
        width = float(share) * WIDTH
        parts.append(rect(at, 4, width - 1.5, 30, f"tint tint{number % 6}"))
        if width >= 92:
            parts.append(text(at + 7, 24, percent(share), style="on-tint"))
        if width >= max(
            92, 8 * len(words(level))
        ):  # a name beside its part would be taken for the next one's
            parts.append(text(at, 54, words(level)))
        at += width
    return closed(parts)


def pyramid_svg(pyramid: Pyramid) -> Markup:
    """Draw people by sex and five-year group, the youngest at the bottom."""
    step, top = 17, 26
    bottom = top + step * len(pyramid.groups)
    where = f"{words(pyramid.geolevel)} {pyramid.name or pyramid.geocode}"
    parts = [opened(bottom + 26, f"Released people by sex and age, {where}")]
    most = max(max(side) for side in pyramid.counts) or 1
    half, gap = WIDTH / 2 - 96.0, 26.0
    for sex, side, style, sign in zip(
        pyramid.sexes, pyramid.counts, ("tint0", "tint2"), (-1, 1), strict=True
    ):
        start = WIDTH / 2 + sign * gap
        anchor = "end" if sign < 0 else "start"
        parts.append(text(start, 14, f"{sex}: {sum(side):,}", anchor))
        for number, count in enumerate(side):
            y = bottom - step * (number + 1)
            width = half * count / most
            parts.append(rect(start - width if sign < 0 else start, y, width, step - 2, f"tint {style}"))
            parts.append(text(start + sign * (width + 6), y + 12, f"{count:,}", anchor, "muted"))
    for number, group in enumerate(pyramid.groups):
        parts.append(text(WIDTH / 2, bottom - step * (number + 1) + 12, group, "middle"))
    parts.append(text(WIDTH / 2, bottom + 18, "age in years", "middle", "muted"))
    return closed(parts)


def margin_bars(margins: Sequence[TotalMargin]) -> Markup:
    """Draw the margin of a geounit's total, one bar per geolevel; an invariant has no bar."""
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


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve."""

    name: str
    style: str  # class in the page's style sheet
    # By place, ascending; epsilon against delta has an exponent as place.
    points: Mapping[int, float] | Mapping[float, float]
    marks: Sequence[tuple[float, float]] = ()  # points to mark


def curve_svg(curves: Sequence[Curve], *, numbers: bool = False) -> Markup:
    """Draw epsilon against delta, ``10**-exponent``; with `numbers`, label each mark with its epsilon."""
    places = [(float(k), f"1e-{k}" if k % 3 == 1 else "") for k in curves[0].points]
    label = "Epsilon against delta by both conversions; a table follows"
    return lines_svg(curves, places, ("delta", "epsilon"), label, numbers=numbers)


def lines_svg(
    curves: Sequence[Curve],
    places: Sequence[tuple[float, str]],
    axes: tuple[str, str],
    label: str,
    *,
    numbers: bool = False,
) -> Markup:
    """Draw curves from 0 up; with `numbers`, label each mark with its height.

    - `places`: along the axis, from its start to its end, with their names.
    - `axes`: what is drawn along and up.
    """
    left, right, top, bottom = 44.0, WIDTH - 120.0, 14.0, 252.0
    (first, _), (last, _) = places[0], places[-1]
    heights = ticks(0.0, max(max(curve.points.values()) for curve in curves))

    def x(place: float) -> float:
        return left + (right - left) * (place - first) / (last - first)

    def y(height: float) -> float:
        return bottom - (bottom - top) * height / heights[-1]

    parts = [opened(292, label)]
    for mark in heights:
        parts.append(line(left, y(mark), right, y(mark), "grid"))
        parts.append(text(left - 8, y(mark) + 4, f"{mark:g}", "end"))
    parts += [text(x(place), bottom + 18, name, "middle") for place, name in places if name]
    parts.append(text((left + right) / 2, bottom + 37, axes[0], "middle", "muted"))
    parts.append(text(left + 6, top - 4, axes[1], "start", "muted"))
    ends = [list(curve.points.values())[-1] for curve in curves]
    for curve, end in zip(curves, ends, strict=True):
        path = " ".join(f"{x(place):.1f},{y(height):.1f}" for place, height in curve.points.items())
        parts.append(Markup('<polyline points="{}" class="{}"/>').format(path, curve.style))
        for place, height in curve.marks:
            if not first <= place <= last:
                continue
            dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" class="{} dot"/>')
            parts.append(dot.format(x(place), y(height), curve.style))
            if numbers:
                beside = y(height) + (-9 if end == max(ends) else 19)
                parts.append(text(x(place), beside, f"{height:.2f}", "middle", f"{curve.style} label"))
    at = -math.inf
    for end, curve in sorted(zip(map(y, ends), curves, strict=True), key=lambda pair: pair[0]):
        at = max(end + 4, at + 15)  # labels must not overlap
        parts.append(text(right + 8, at, curve.name, "start", f"{curve.style} label"))
    return closed(parts)


def power_svg(levels: Sequence[float], series: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the largest power of a test against its false-positive rate.

    - `levels`: False-positive rates, ascending, in (0, 1).
    - `series`: name of a bound -> power at each level; at most two.
    """
    left, right, top, bottom = 60.0, WIDTH - 150.0, 34.0, 350.0

    def x(level: float) -> float:
        return left + (right - left) * level

    def y(power: float) -> float:
        return bottom - (bottom - top) * power

    parts = [opened(396, "Right at most, against wrong; a table gives the numbers")]
    for mark in _MARKS:
        parts.append(line(left, y(mark), right, y(mark), "grid"))
        parts.append(text(left - 8, y(mark) + 4, f"{mark * 100:g} %", "end"))
        parts.append(text(x(mark), bottom + 18, f"{mark * 100:g} %", "middle"))
    parts.append(text((left + right) / 2, bottom + 38, "false-positive rate", "middle", "muted"))
    parts.append(text(left - 52, top - 18, "power, at most", "start", "muted"))
    parts.append(line(x(0.0), y(0.0), x(1.0), y(1.0), "grid"))
    parts.append(text(x(0.62), y(0.56), "without a release", "start", "muted"))
    for number, (name, powers) in enumerate(series.items()):
        points = [(0.0, 0.0), *zip(levels, powers, strict=True), (1.0, 1.0)]
        path = " ".join(f"{x(level):.1f},{y(power):.1f}" for level, power in points)
        parts.append(Markup('<polyline points="{}" class="line{}"/>').format(path, number))
        parts.append(text(right + 10, y(0.93 - 0.08 * number), name, "start", f"line{number} label"))
    return closed(parts)


def _log_scale(left: float, right: float, most: float) -> Scale:
    """Place values from 1 to `most` on a logarithmic axis."""
    span = math.log10(max(most, 2))
    return lambda value: left + (right - left) * math.log10(max(value, 1)) / span


def _marks(most: float) -> list[int]:
    """Return tick values of a logarithmic axis: powers of ten, and values between on a short axis."""
    powers = [10**k for k in range(int(math.log10(max(most, 2))) + 1)]
    if len(powers) > 3:
        return powers
    return [value * step for value in powers for step in (1, 2, 5) if value * step <= most]


def _axis(scale: Scale, most: float, top: float, bottom: float) -> list[Markup]:
    parts = []
    for mark in _marks(most):
        parts.append(line(scale(mark), top, scale(mark), bottom, "grid"))
        parts.append(text(scale(mark), bottom + 16, f"{mark:,}", "middle", "muted"))
    return parts


def _box(scale: Scale, values: Sequence[int], y: float, height: float, style: str) -> list[Markup]:
    """Draw a box plot: a line from least to most, a box over the middle half, a mark at the median."""
    middle = y + height / 2
    left, right, half = (scale(values[k]) for k in (_QUARTER, _THREE_QUARTERS, _HALF))
    parts = [
        line(scale(values[_LOW]), middle, scale(values[_HIGH]), middle, f"{style} whisker"),
        rect(left, y, right - left, height, style) if right > left else rect(left - 3, y, 6, height, style),
    ]
    if right - left < 4:
        return parts
    mark = min(max(half, left + 2), right - 2)
    return [*parts, line(mark, y, mark, y + height, "median")]


def levels_svg(levels: Sequence[LevelSummary]) -> Markup:
    """Draw the number of geounits of each level and their numbers of children, on logarithmic axes."""
    most = max(level.geounits for level in levels)
    most_children = max(level.max_fanout for level in levels)
    bottom = _HEAD + _ROW * len(levels)
    sizes = _log_scale(146, 360, most)
    children = _log_scale(462, WIDTH - 20, most_children)
    parts = [opened(bottom + 26, "Geounits and children at each geolevel; a table follows")]
    parts.append(text(146, 14, "geounits", style="muted"))
    if most_children:
        parts.append(text(462, 14, "children of one", style="muted"))
        parts += _axis(children, most_children, _HEAD - 2, bottom)
    for number, level in enumerate(levels):
        y = _HEAD + _ROW * number + 4
        parts.append(text(134, y + 16, words(level.geolevel), "end"))
        end = max(sizes(level.geounits), 149)
        parts.append(rect(146, y, end - 146, 22, "tint tint1" if level.official else "tint tint2"))
        parts.append(text(end + 8, y + 16, f"{level.geounits:,}"))
        if level.fanouts:
            parts += _box(children, level.fanouts, y + 3, 16, "after")
    return closed(parts)


def distances_svg(entities: Sequence[EntitySummary]) -> Markup:
    """Draw the off-spine distances of each category from the official spine and from the one used.

    If no distance differs, one of the two is drawn.
    """
    most = max(max(entity.distances[-1], entity.standard[-1]) for entity in entities)
    both = any(entity.distances != entity.standard for entity in entities)
    scale = _log_scale(196, WIDTH - 120, most)
    row = 44 if both else _ROW
    bottom = _HEAD + row * len(entities)
    parts = [opened(bottom + 26, "Distances of areas from the spine; a table follows")]
    parts += _axis(scale, most, _HEAD - 2, bottom)
    parts.append(text(WIDTH, 14, "mean", "end", "muted"))
    if both:
        parts += [
            rect(196, 4, 14, 10, "before"),
            text(216, 14, "before: official levels"),
            rect(378, 4, 14, 10, "after"),
            text(398, 14, "spine of this run"),
        ]
    for number, entity in enumerate(entities):
        y = _HEAD + row * number
        parts.append(text(184, y + row / 2 + 5, entity_words(entity.category), "end"))
        if both:
            parts += _box(scale, entity.standard, y + 6, 13, "before")
            parts.append(text(WIDTH, y + 17, f"{entity.standard_mean:,.1f}", "end", "muted"))
        y += row - 20
        parts += _box(scale, entity.distances, y, 13, "after")
        parts.append(text(WIDTH, y + 11, f"{entity.mean_distance:,.1f}", "end"))
    return closed(parts)
