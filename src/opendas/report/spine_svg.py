"""Pictures of a spine: how many geounits and children, and how far areas lie from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from opendas.geography.summary import PERCENTS, EntitySummary, LevelSummary
from opendas.report.spine_views import entity_words
from opendas.report.svg_parts import WIDTH, closed, line, opened, rect, text
from opendas.report.views import words

__all__ = ["distances_svg", "levels_svg"]

Scale = Callable[[float], float]

_ROW = 30
_HEAD = 24
_LOW, _QUARTER, _HALF, _THREE_QUARTERS, _HIGH = (PERCENTS.index(p) for p in (0, 25, 50, 75, 100))


def _log_scale(left: float, right: float, most: float) -> Scale:
    """Place values from 1 to `most` on a logarithmic axis."""
    span = math.log10(max(most, 2))
    return lambda value: left + (right - left) * math.log10(max(value, 1)) / span


def _marks(most: float) -> list[int]:
    """Return the values at which a logarithmic axis is marked: powers of ten, on a short one also between."""
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
    """Draw a distribution: a line from least to most, a box over the middle half, a mark at the median."""
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
    """Draw the number of geounits of each level, and how many children they have, on logarithmic axes."""
    most = max(level.geounits for level in levels)
    most_children = max(level.max_fanout for level in levels)
    bottom = _HEAD + _ROW * len(levels)
    sizes = _log_scale(146, 360, most)
    children = _log_scale(462, WIDTH - 20, most_children)
    parts = [opened(bottom + 26, "Geounits and children at each geolevel; a table follows")]
    parts += [text(146, 14, "geounits", style="muted"), text(462, 14, "children of one", style="muted")]
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
    """Draw the off-spine distances of each category: from the official spine, and from the one used.

    Where no distance differs, one of the two is enough.
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
