"""The elements that the pictures of the report are made of; all text in them is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

__all__ = ["WIDTH", "closed", "line", "opened", "rect", "text"]

WIDTH = 720
"""Width of every picture, in the units of its view box."""


def opened(height: float, label: str) -> Markup:
    """Open a picture; `label` says what it shows to who cannot see it."""
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
