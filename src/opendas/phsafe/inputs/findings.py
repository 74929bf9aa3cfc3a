"""From rows back to files and lines, and a bounded list of what is wrong with them.

A finding says where something is and what was expected, never what was found: the value is confidential.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.errors import Finding

MOST_LINES = 20
"""Lines listed of one kind of finding; the others are counted."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files that a table was read from, their lines numbered through.

    Examples
    --------
    >>> Source(("a.txt", "b.txt"), (10,)).locate(12)
    ('b.txt', 2)
    """

    names: tuple[str, ...]  # at least one
    ends: tuple[int, ...] = ()  # number of the last line of each file but the last; empty for one file

    def locate(self, line: int) -> tuple[str, int]:
        """Return file and line in it."""
        which = bisect_left(self.ends, line)
        return self.names[which], line - (self.ends[which - 1] if which else 0)

    @property
    def title(self) -> str:
        """How rules call the files together."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} to {self.names[-1]}"


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Where persons, units and places were read."""

    persons: Source
    units: Source
    places: Source


CSV_FILES = InputFiles(Source(("persons.csv",)), Source(("units.csv",)), Source(("geo.csv",)))
"""The three files of the reader ``csv``."""


def list_lines(
    source: Source,
    lines: npt.NDArray[np.integer[Any]],
    field: str | None,
    rule: str,
    more: Callable[[int], str] | None = None,
) -> list[Finding]:
    """Return one finding a line for the first lines, and one with the number of the others.

    - `lines` (n,): in any order; a line that stands twice is one.
    - `more`, callable(position in `lines`) -> str: something to append to the rule of a line that is listed.
    """
    if not len(lines):
        return []
    distinct, first = np.unique(lines, return_index=True)
    found = []
    for line, position in zip(distinct[:MOST_LINES].tolist(), first[:MOST_LINES].tolist(), strict=True):
        file, at = source.locate(line)
        found.append(Finding(file, at, field, rule if more is None else f"{rule}{more(position)}"))
    if len(distinct) > MOST_LINES:
        rest = len(distinct) - MOST_LINES
        found.append(Finding(source.title, None, field, f"{rule} ({rest} further lines)"))
    return found
