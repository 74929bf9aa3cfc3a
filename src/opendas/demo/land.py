"""The geography of the made state: blocks, and areas whose borders ignore those of block groups.

Axes: ``b`` blocks in ascending order of geocode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["STATE", "Land", "make_land"]

Codes = npt.NDArray[np.bytes_]
Index = npt.NDArray[np.int64]

STATE = "99"
"""FIPS code of the made state: no real state has it."""

_BLOCKS_PER_GROUP = 30
_GROUPS_PER_TRACT = 3.3
_MOST_AREAS = 3000  # of one category, so that codes keep their width


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Land:
    """Blocks and their areas.

    Parameters
    ----------
    geocodes : bytes array (b,)
        15 characters: state, county, tract, block.
    group : int64 (b,)
        Number of each block's block group, from 0, not decreasing.
    entities : mapping of entity category to bytes array (b,)
        Codes as in the official GEOID; the empty code means none.
    """

    geocodes: Codes
    group: Index
    entities: dict[str, Codes]


def make_land(blocks: int, rng: np.random.Generator) -> Land:
    """Divide the made state into counties, tracts, block groups and blocks, and into areas across them."""
    groups = max(3, round(blocks / _BLOCKS_PER_GROUP))
    group = _divide(blocks, groups, rng, most=999)
    groups = int(group[-1]) + 1
    tract_of_group = _divide(groups, max(2, round(groups / _GROUPS_PER_TRACT)), rng, most=9)
    tracts = int(tract_of_group[-1]) + 1
    county_of_tract = _divide(tracts, max(2, round(tracts**0.5 / 1.5)), rng, most=tracts)
    tract = tract_of_group[group]
    county = county_of_tract[tract]
    county_code = 2 * county + 1  # counties have odd numbers, in alphabetical order
    tract_code = 100 * (_position(county_of_tract) + 1)
    block_code = 1000 * (_position(tract_of_group)[group] + 1) + _position(group)
    number = (county_code * 1_000_000 + tract_code[tract]) * 10_000 + block_code
    geocodes = _code(number, 13)
    return Land(geocodes, group, _areas(county, county_code, rng))


def _divide(items: int, parts: int, rng: np.random.Generator, *, most: int) -> Index:
    """Divide a row of items into consecutive parts of uneven size, none empty and none above `most`."""
    parts = min(parts, items)
    weights = rng.lognormal(0.0, 0.6, parts)
    ends = np.round(np.cumsum(weights) / weights.sum() * (items - parts)).astype(np.int64) + np.arange(
        1, parts + 1
    )
    sizes = np.diff(ends, prepend=0)
    pieces = -(-sizes // most)  # a part that is too large is cut again
    part = np.repeat(np.arange(parts), sizes)
    piece = _position(part) // -(-sizes // pieces)[part]
    changed = (np.diff(part) != 0) | (np.diff(piece) != 0)
    return np.concatenate([[0], np.cumsum(changed)]).astype(np.int64)


def _position(part: Index) -> Index:
    """Return the position of each item within its part; `part` does not decrease."""
    starts = np.searchsorted(part, np.arange(int(part[-1]) + 1))
    return np.arange(len(part)) - starts[part]


def _areas(county: Index, county_code: Index, rng: np.random.Generator) -> dict[str, Codes]:
    b = len(county)

    def stretches(every: int) -> Index:
        return _stretches(b, min(_MOST_AREAS, max(2, b // every)), rng)

    place, reservation = stretches(100), stretches(60)
    in_place = rng.random(int(place[-1]) + 1) < 0.6
    in_reservation = rng.random(int(reservation[-1]) + 1) < 0.04
    return {
        "cousub": _code(county_code * 100_000 + 5 * stretches(125) + 5, 8),
        "place": np.where(in_place[place], _code(30 * place + 30, 5), b""),
        "aianhh": np.where(in_reservation[reservation], _code(reservation + 10, 4, prefix=""), b""),
        "cd": _code(_stretches(b, 2, rng) + 1, 2),
        "sldu": _code(_stretches(b, 12, rng) + 1, 3),
        "sldl": _code(_stretches(b, 36, rng) + 1, 3),
        "vtd": _code(county_code * 1_000_000 + stretches(55) + 1, 9),
        "sduni": _code(30 * stretches(330) + 30, 5),
    }


def _stretches(items: int, parts: int, rng: np.random.Generator) -> Index:
    """Cut a row of items at random places."""
    cuts = np.sort(rng.choice(np.arange(1, items), size=min(parts - 1, items - 1), replace=False))
    return np.searchsorted(cuts, np.arange(items), side="right").astype(np.int64)


def _code(number: Index, width: int, prefix: str = STATE) -> Codes:
    """Return zero-padded numbers as codes of the state."""
    text = np.char.zfill(number.astype(f"U{width}"), width)
    return np.char.add(prefix, text).astype(f"S{len(prefix) + width}")
