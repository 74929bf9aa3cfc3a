"""Declarations of invariants, bounds and structural zeros.

An invariant is a statistic of the confidential data that is published exactly, by policy. Bounds and
structural zeros are public: they follow from the frame and from the definition of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MAX_PEOPLE_PER_UNIT", "Bound", "Invariant", "StructuralZero"]

MAX_PEOPLE_PER_UNIT = 99_999
"""Most people in one housing unit or facility (TopDown production; see docs/products)."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """The answers of one query group are published exactly at one geolevel.

    They then hold, as sums, at every geolevel above.

    Parameters
    ----------
    query : str
        Query group.
    geolevel : str
        Where it holds; ``"leaf"`` is the lowest geolevel of the run, whatever its name.
    """

    query: str
    geolevel: str

    @property
    def name(self) -> str:
        """Identifier, for instance ``"total@state"``."""
        return f"{self.query}@{self.geolevel}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Per leaf, ``lower * units <= answer <= upper * units`` for one row of a query group.

    Summed over leaves at every geolevel above, so that children are never infeasible.

    Parameters
    ----------
    query : str
        Query group.
    cell : str
        Label of the row.
    column : str
        Column of public unit counts in the frame.
    lower, upper : int
        Least and most records a unit; where there is no unit there is no record.
    """

    query: str
    cell: str
    column: str
    lower: int = 0
    upper: int = MAX_PEOPLE_PER_UNIT

    @property
    def name(self) -> str:
        """Identifier, for instance ``"hhgq=nursing by gq3"``."""
        return f"{self.query}={self.cell} by {self.column}"


@dataclass(frozen=True, slots=True)
class StructuralZero:
    """Cells that are impossible by definition: every combination of the listed levels.

    Parameters
    ----------
    levels : mapping of attribute name to tuple of level labels
        Attributes not named are unrestricted.
    """

    levels: Mapping[str, tuple[str, ...]]
