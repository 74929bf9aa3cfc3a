"""Properties that estimates must have, after the Bureau's own validation of its modelled tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Check", "check_averages", "check_counts"]

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """A property that the rows of a file were checked for.

    Parameters
    ----------
    file : str
    name : str
    rows : int
        Rows looked at.
    failures : int
        Rows without the property.
    """

    file: str
    name: str
    rows: int
    failures: int

    @property
    def ok(self) -> bool:
        """Whether every row has it."""
        return self.failures == 0


def _checked(file: str, name: str, holds: Iterable[bool]) -> Check:
    found = list(holds)
    return Check(file, name, len(found), found.count(False))


def check_counts(file: str, rows: Sequence[Sequence[object]]) -> list[Check]:
    """Check the rows of a table of counts: whole numbers of zero or more, inside their intervals."""
    ends = [(row[-3], row[-2], row[-1]) for row in rows]
    return [
        _checked(
            file,
            "estimates are whole numbers, 0 or more",
            (isinstance(estimate, int) and estimate >= 0 for estimate, _, _ in ends),
        ),
        _checked(
            file,
            "intervals are in order, from 0 or more",
            (isinstance(low, int) and isinstance(high, int) and 0 <= low <= high for _, low, high in ends),
        ),
    ]


def check_averages(file: str, rows: Sequence[Sequence[object]], least: float, most: float) -> list[Check]:
    """Check the rows of a table of averages: within bounds, inside their intervals.

    The lower bound is that of the published validation: `least` where every cell has a denominator of its
    own; elsewhere it holds for cell 1, and 0 for its parts.
    """
    averages = []
    for row in rows:
        mean, low, high = (float(str(row[k])) for k in (-3 if len(row) == 14 else -5, -2, -1))
        floor = least if row[3] == 1 or len(row) == 14 else 0.0
        if not math.isnan(mean):
            averages.append((mean, low, high, floor))
    return [
        _checked(
            file,
            f"averages are within bounds, at most {most:g}",
            (floor - _TOLERANCE <= low and high <= most + _TOLERANCE for _, low, high, floor in averages),
        ),
        _checked(
            file,
            "estimates are inside their intervals",
            (low - _TOLERANCE <= mean <= high + _TOLERANCE for mean, low, high, _ in averages),
        ),
    ]
