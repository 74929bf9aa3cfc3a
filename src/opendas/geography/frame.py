"""The frame: the public list of leaves, with the public facts about each.

A frame is never made silently from records: which leaves are empty is confidential unless declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Ints
from opendas.errors import Finding, GeographyError

CENSUS_GEOLEVELS = ("us", "state", "county", "tract", "block_group", "block")
"""The official spine, top first."""

ENTITY_CATEGORIES = ("cousub", "place", "aianhh", "cd", "sldu", "sldl", "vtd", "sdelm", "sdsec", "sduni")
"""Kinds of areas off the spine that the census readers deliver."""

CENSUS_PREFIX = {"us": 0, "state": 2, "county": 5, "tract": 11, "block_group": 12, "block": 15}
"""Number of leading characters of a 15-character block geocode that name each geolevel."""

GQ_COLUMNS = tuple(f"gq{k}" for k in range(1, 8))
"""Unit columns with the number of occupied group quarters of types 1 to 7; ``hu`` holds housing units."""


@dataclass(frozen=True, slots=True)
class LevelRule:
    """How one geolevel's code is found from a leaf: by a code prefix or a column."""

    name: str  # geolevel
    prefix: int | None = None  # number of leading characters of the leaf geocode; 0 is one root for all
    column: str | None = None  # column of the frame with the code


def numbered(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Return the distinct values in order, and the number of each row's value, int64 (b,)."""
    if column.dtype.kind in "bi" and len(column) and 0 <= column.min() <= column.max() < 4 * len(column):
        there = np.zeros(int(column.max()) + 1, dtype=np.bool_)
        there[column.astype(np.int64)] = True
        return np.flatnonzero(there), (np.cumsum(there) - 1)[column.astype(np.int64)]
    if len(column) == 0:
        return column, np.zeros(0, dtype=np.int64)
    # leaves are sorted by geocode and neighbours are mostly alike: only changes are sorted, if at all
    start = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    length = np.diff(np.append(start, len(column)))
    values = column[start]
    if bool(np.all(values[1:] > values[:-1])):
        return values, np.repeat(np.arange(len(values)), length)
    values, label = np.unique(values, return_inverse=True)
    return values, np.repeat(label.astype(np.int64), length)


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Leaves by their geounit at a geolevel, or their area of an entity category."""

    geolevel: str  # geolevel or entity category
    geocodes: Codes  # (g,): ascending; those of :meth:`of` have a leaf each, of others see :meth:`with_areas`
    of_leaf: Ints  # (leaves,): geounit of each leaf, -1 where an entity category has none

    @classmethod
    def of(cls, geolevel: str, codes: Codes) -> Grouping:
        """Group leaves by a column of codes, of which the empty one is no geounit."""
        geocodes, of_leaf = numbered(codes)
        if len(geocodes) and geocodes[0] == b"":
            return cls(geolevel, geocodes[1:], of_leaf - 1)
        return cls(geolevel, geocodes, of_leaf)

    def with_areas(self, geocodes: Codes) -> Grouping:
        """Return the same leaves, with areas beside their geounits that have no leaf."""
        every = np.union1d(self.geocodes, geocodes)
        if len(every) == len(self):
            return self
        place = np.append(np.searchsorted(every, self.geocodes), -1)
        return Grouping(self.geolevel, every, place[self.of_leaf])

    def __len__(self) -> int:
        return len(self.geocodes)

    @property
    def members(self) -> Ints:
        """The leaves that some geounit has, ascending."""
        return np.flatnonzero(self.of_leaf >= 0)


@dataclass(frozen=True, eq=False)
class Frame:
    """Leaves in ascending order of geocode, and their public columns."""

    geocodes: Codes  # (leaves,): leaf geocodes, ASCII, unique and ascending
    # geolevel name -> (leaves,): official code of each leaf at every geolevel above the leaves, top first.
    levels: Mapping[str, Codes]
    leaf: str  # name of the leaf geolevel
    # column name -> array (leaves,): public unit counts, for instance housing units ``hu`` and group quarters
    # ``gq1`` to ``gq7``.
    units: Mapping[str, Ints] = field(default_factory=dict)
    # entity category -> (leaves,): codes of off-spine areas; the empty code means none.
    entities: Mapping[str, Codes] = field(default_factory=dict)
    # geolevel or category -> code -> name: readable names, where the reader has them.
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # category -> code -> status: official one-letter statuses of ``cousub`` and ``place``, where
    # the reader has them: ``A`` is an active government.
    functional_status: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Frame({len(self):,} {self.leaf})"

    def __post_init__(self) -> None:
        codes = self.geocodes
        if len(codes) == 0:
            raise GeographyError("the frame holds no leaf.")
        if not bool(np.all(codes[1:] > codes[:-1])):
            order = np.sort(codes)
            repeated = order[1:][order[1:] == order[:-1]]
            if len(repeated):
                raise GeographyError(
                    "the frame lists a leaf more than once.",
                    [
                        Finding("frame", None, "geocode", f"leaf {code.decode()} is listed more than once")
                        for code in np.unique(repeated)[:20]
                    ],
                )
            raise GeographyError("the leaves of a frame must be in ascending order of geocode.")
        for columns in (self.levels, self.units, self.entities):
            for name, values in columns.items():
                if len(values) != len(codes):
                    raise GeographyError(
                        f"frame column {name!r}: {len(values)} values for {len(codes)} leaves; give one each."
                    )

    def __len__(self) -> int:
        return len(self.geocodes)

    @property
    def geolevels(self) -> tuple[str, ...]:
        """Official geolevels, top first, the leaves last."""
        return (*self.levels, self.leaf)

    @property
    def categories(self) -> tuple[str, ...]:
        """Entity categories with at least one entity."""
        return tuple(name for name, codes in self.entities.items() if bool((codes != b"").any()))

    def codes(self, geolevel: str) -> Codes:
        """Return each leaf's code at a geolevel or entity category."""
        if geolevel == self.leaf:
            return self.geocodes
        if geolevel in self.levels:
            return self.levels[geolevel]
        if geolevel in self.entities:
            return self.entities[geolevel]
        known = ", ".join((*self.geolevels, *self.entities))
        raise GeographyError(f"no geolevel or entity category {geolevel!r}; this frame has {known}.")

    def has(self, geolevel: str) -> bool:
        """Whether it is a geolevel or an entity category of this frame."""
        return geolevel in self.geolevels or geolevel in self.entities

    def grouping(self, geolevel: str) -> Grouping:
        """Return the leaves by geounit of a geolevel or area of an entity category."""
        return Grouping.of(geolevel, self.codes(geolevel))

    def take(self, leaves: Ints) -> Frame:
        """Return the frame of leaves at ascending positions; the arrays are copies."""
        return Frame(
            self.geocodes[leaves],
            {name: codes[leaves] for name, codes in self.levels.items()},
            self.leaf,
            {name: counts[leaves] for name, counts in self.units.items()},
            {name: codes[leaves] for name, codes in self.entities.items()},
            self.names,
            self.functional_status,
        )


def official_geolevels(root: str, leaf: str) -> tuple[str, ...]:
    """Return the census geolevels from `root` down to `leaf`; none if these are no census geolevels."""
    if root not in CENSUS_PREFIX or leaf not in CENSUS_PREFIX:
        return ()
    return CENSUS_GEOLEVELS[CENSUS_GEOLEVELS.index(root) : CENSUS_GEOLEVELS.index(leaf) + 1]


def official_codes(geocodes: Codes, root: str, leaf: str = "block") -> dict[str, Codes]:
    """Return the codes of census geounits at every geolevel from `root` down to the one above `leaf`.

    The one code of level ``us`` is ``b"1"``.
    """
    codes: dict[str, Codes] = {}
    for name in official_geolevels(root, leaf)[:-1]:
        width = CENSUS_PREFIX[name]
        codes[name] = geocodes.astype(f"S{width}") if width else np.full(len(geocodes), b"1", dtype="S1")
    return codes
