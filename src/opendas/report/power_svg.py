"""The trade-off of an attacker's two errors, drawn: how often right at most, for how often wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from opendas.report.svg_parts import WIDTH, closed, line, opened, text

__all__ = ["POWER_LEVELS", "power_svg"]

POWER_LEVELS = (
    *(
        1e-4,
        3e-4,
        0.001,
        0.002,
        0.004,
        0.007,
        0.01,
        0.015,
        0.02,
        0.03,
        0.04,
        0.05,
        0.065,
        0.08,
        0.1,
        0.125,
        0.15,
    ),
    *(0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
)
"""False-positive rates at which trade-off curves are drawn."""

_MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def power_svg(levels: Sequence[float], series: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the largest power of a test against its false-positive rate.

    Parameters
    ----------
    levels : sequence of float
        False-positive rates, ascending, in (0, 1).
    series : mapping of str to sequence of float
        Name of a bound -> power at each level. Two at most.
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
    parts.append(text((left + right) / 2, bottom + 38, "wrongly taken for true", "middle", "muted"))
    parts.append(text(left - 52, top - 18, "rightly taken for true, at most", "start", "muted"))
    parts.append(line(x(0.0), y(0.0), x(1.0), y(1.0), "grid"))
    parts.append(text(x(0.62), y(0.56), "without a release", "start", "muted"))
    for number, (name, powers) in enumerate(series.items()):
        points = [(0.0, 0.0), *zip(levels, powers, strict=True), (1.0, 1.0)]
        path = " ".join(f"{x(level):.1f},{y(power):.1f}" for level, power in points)
        parts.append(Markup('<polyline points="{}" class="line{}"/>').format(path, number))
        parts.append(text(right + 10, y(0.93 - 0.08 * number), name, "start", f"line{number} label"))
    return closed(parts)
