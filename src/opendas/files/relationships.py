"""Relationship files of the Census Bureau; apart from areas that someone drew: here blocks meet other blocks.

A row is a part that a block (or tract) of 2010 and one of 2020 have in common, with its land and its water:
``STATE_2010|COUNTY_2010|TRACT_2010|BLK_2010|...|AREALAND_INT|AREAWATER_INT`` of blocks,
``GEOID_TRACT_20|...|GEOID_TRACT_10|...|AREALAND_PART|AREAWATER_PART`` of tracts.

Axes: ``p`` rows of the file, ``s`` shares: pairs of a block of one census and an area of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from opendas.arrays import Codes, Floats, Ints
from opendas.errors import Finding, FormatError, GeographyError
from opendas.files.storage.parquet import to_bytes
from opendas.geography.frame import CENSUS_PREFIX

LEVELS: Final = ("state", "county", "tract", "block_group", "block")
"""Areas of the other census that a relationship file leads to."""

_BLOCK = (("STATE_{}", 2), ("COUNTY_{}", 3), ("TRACT_{}", 6), ("BLK_{}", 4))
_SIDES = {
    "AREALAND_INT": {2010: [(name.format(2010), width) for name, width in _BLOCK],
                     2020: [(name.format(2020), width) for name, width in _BLOCK]},
    "AREALAND_PART": {2010: [("GEOID_TRACT_10", 11)], 2020: [("GEOID_TRACT_20", 11)]},
}  # fmt: skip
"""Columns of codes of each census, with their characters, by the column of land."""

_SHOWN = 20


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """How much of each block of one census lies in each area of the other."""

    # own, area (s,): the area is empty where the other census has none.
    own: Codes
    area: Codes
    share: Floats  # (s,): above 0; those of a block sum to 1
    line: Ints  # (s,): the first line that says so


def is_relationship(columns: Mapping[str, Any]) -> bool:
    """Return whether a table has the columns of a relationship file."""
    return _land(columns) is not None


def _land(columns: Mapping[str, Any]) -> str | None:
    for land, sides in _SIDES.items():
        if {land, *(name for side in sides.values() for name, _ in side)} <= set(columns):
            return land
    return None


def shares_of(
    name: str, columns: Mapping[str, Any], lines: Ints, leaves: Codes, level: str, census: int, *, split: bool
) -> Shares:
    """Return how much of each block of the leaves' census lies in each area of the other census.

    A block's share is by land; by water where it has no land. So a part that is water alone does not split a
    block that has land.

    - `columns`, name -> Arrow text column.
    - `leaves`: ascending: all must be listed.
    - `level`: of :data:`LEVELS`.
    - `census`: 2010 or 2020, that of the leaves; 0 where it is not known: the one that lists them all.
    - `split`: blocks may count in part; otherwise one in two areas is refused.
    """
    land = _land(columns)
    assert land is not None
    codes = {year: _codes(name, columns, side, lines) for year, side in _SIDES[land].items()}
    years = [census] if census in codes else [*codes]
    lacking = {year: leaves[~np.isin(leaves, codes[year])] for year in years}
    listed = [year for year in years if len(lacking[year]) == 0]
    if len(listed) > 1:
        raise GeographyError(
            f"{name}: the blocks of the release are blocks of both censuses, and it does not say which is "
            "its own."
        )
    if not listed:
        lost = min(lacking.values(), key=len)
        raise GeographyError(
            f"{name}: it does not list {len(lost):,} blocks of the release, for instance {lost[0].decode()}: "
            "give the file of all states of the release, and of its census."
        )
    own, other = codes[listed[0]], codes[2010 if listed[0] == 2020 else 2020]
    width = CENSUS_PREFIX[level]
    if width > other.dtype.itemsize:
        raise FormatError(
            f"{name}: it relates tracts; it cannot give areas as small as a {level.replace('_', ' ')}."
        )
    here = own != b""
    pairs = np.char.add(np.char.add(own, b" "), other)
    _, first = np.unique(pairs, return_index=True)
    if len(first) < len(pairs):
        again = np.setdiff1d(np.arange(len(pairs)), first)
        raise FormatError(
            f"{name}: {len(again)} parts appear twice.",
            [Finding(name, int(lines[row]), land, "expected each part once") for row in again[:_SHOWN]],
        )
    areas = {kind: _areas(name, columns, kind, lines)[here] for kind in (land, land.replace("LAND", "WATER"))}
    own, area, lines = own[here], other[here].astype(f"S{width}"), lines[here]
    blocks, block = np.unique(own, return_inverse=True)
    size = np.ones(len(own))
    for part in reversed([*areas.values()]):  # land decides, then water, then that a part is there
        whole = np.bincount(block, part, len(blocks))
        size = np.where(whole[block] > 0, part, size)
    total = np.bincount(block, size, len(blocks))
    keys = np.char.add(np.char.add(own, b" "), area)
    _, first, pair = np.unique(keys, return_index=True, return_inverse=True)
    share: Floats = np.bincount(pair, size, len(first)) / total[block[first]]
    kept = first[share > 0]
    found = Shares(own[kept], area[kept], share[share > 0], lines[kept])
    if not split:
        _refuse_split(name, found, leaves, level)
    return found


def _refuse_split(name: str, found: Shares, leaves: Codes, level: str) -> None:
    codes, count = np.unique(found.own, return_counts=True)
    split = np.isin(found.own, codes[count > 1]) & np.isin(found.own, leaves)
    if split.any():
        raise GeographyError(
            f"{name}: {len(np.unique(found.own[split])):,} blocks of the release lie in several areas of the "
            f"other census. {name}:{level}:land counts each in all of them, in proportion to its land there: "
            "the file does not say where in a block people live.",
            [
                Finding(name, int(found.line[row]), level, f"part of {found.own[row].decode()}")
                for row in np.flatnonzero(split)[:_SHOWN]
            ],
        )


def _codes(name: str, columns: Mapping[str, Any], side: list[tuple[str, int]], lines: Ints) -> Codes:
    """Return the codes of one census, bytes (p,); empty where a part is in no block of it."""
    parts = []
    for column, width in side:
        code = to_bytes(columns[column]).astype(f"S{width + 1}")
        good = np.char.isdigit(code) & (np.char.str_len(code) == width)
        wrong = np.flatnonzero(~good & (code != b""))
        if len(wrong):
            raise FormatError(
                f"{name}: {len(wrong)} codes have the wrong form.",
                [Finding(name, int(lines[r]), column, f"expected {width} digits") for r in wrong[:_SHOWN]],
            )
        parts.append(code)
    there = np.stack([part != b"" for part in parts])
    if bool((there.any(axis=0) != there.all(axis=0)).any()):
        row = int(np.flatnonzero(there.any(axis=0) != there.all(axis=0))[0])
        raise FormatError(f"{name}, line {lines[row]}: {side[0][0]} to {side[-1][0]}: a code is missing.")
    joined = parts[0]
    for part in parts[1:]:
        joined = np.char.add(joined, part)
    return np.asarray(joined).astype(f"S{sum(width for _, width in side)}")


def _areas(name: str, columns: Mapping[str, Any], column: str, lines: Ints) -> Floats:
    """Return land or water of each part, in square metres, float64 (p,)."""
    if column not in columns:
        raise FormatError(f"{name}: no column {column}.")
    good = np.asarray(pc.fill_null(pc.match_substring_regex(columns[column], "^[0-9]{1,15}$"), False))
    if not good.all():
        wrong = np.flatnonzero(~good)[:_SHOWN]
        raise FormatError(
            f"{name}: {int((~good).sum())} areas are not numbers.",
            [
                Finding(name, int(lines[row]), column, "expected square metres, a whole number")
                for row in wrong
            ],
        )
    return np.asarray(pc.cast(columns[column], "int64"), dtype=np.float64)
