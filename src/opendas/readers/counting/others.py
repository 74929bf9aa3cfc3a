"""Leaves that the frame does not list, counted in a leaf that stands for all others of their unit.

The rule is a function of each row by itself, and of the public frame: a row whose leaf the frame does not
list counts in the leaf ``OTHER:LEVEL:CODE`` of the lowest unit above it that has one, and else in the leaf
``OTHER``, where OTHER is the word that the run file gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Codes, Ints, positions_of
from opendas.errors import GeographyError
from opendas.geography.frame import LevelRule
from opendas.readers.columns.coding import distinct_texts
from opendas.readers.columns.csv_parquet import Batch


def other_leaf(other: str, level: str | None = None, code: str = "") -> str:
    """Return the leaf that stands for all others of a unit; of everything, where no unit is given."""
    return other if level is None else f"{other}:{level}:{code}"


@dataclass(frozen=True, slots=True)
class OtherLeaves:
    """Where rows belong, other leaves included."""

    other: str
    geocode: str  # column of the leaf
    levels: tuple[LevelRule, ...]  # levels above the leaf that a column tells, top first

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the records that decide."""
        return (self.geocode, *(level.column for level in self.levels if level.column is not None))

    def check(self, geocodes: Codes) -> None:
        """Refuse a frame in which not every row has a place."""
        if _positions(geocodes, [self.other])[0] < 0:
            raise GeographyError(
                f"[geography] other: the frame lists no leaf {self.other!r}. Records of leaves that the "
                "frame does not list are counted there; add it to the frame."
            )

    def places(self, batch: Batch, geocodes: Codes) -> Ints:
        """Return the position of each row's leaf among `geocodes`, (rows,); every row has one.

        `geocodes` (l,): of the frame, ascending.
        """
        index, texts = distinct_texts(batch, self.geocode)
        places = _positions(geocodes, texts)[index]
        for level in reversed(self.levels):
            if level.column is None or not (places < 0).any():
                continue
            index, texts = distinct_texts(batch, level.column)
            above = _positions(geocodes, [other_leaf(self.other, level.name, text) for text in texts])
            places = np.where(places < 0, above[index], places)
        return np.where(places < 0, _positions(geocodes, [self.other])[0], places)


def _positions(geocodes: Codes, texts: Sequence[str]) -> Ints:
    """Return the position of each text, -1 where it is not a leaf."""
    return positions_of(geocodes, np.array([text.encode() for text in texts], dtype=np.bytes_))
