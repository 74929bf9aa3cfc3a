"""The geography of the synthetic state: blocks, and areas whose borders ignore those of block groups.

Axes: ``b`` blocks in ascending order of geocode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from opendas.arrays import Codes, Ints, rank_in_run

STATE = "99"
"""FIPS code of the synthetic state: no real state has it."""

_TRACTS_PER_COUNTY = 27  # in large states; small ones have fewer and smaller counties
_MOST_COUNTIES = 499  # odd numbers of three digits


@dataclass(frozen=True, slots=True)
class Density:
    """How many blocks there are to a geounit or an area."""

    group: float = 30.0  # blocks in a block group, on average
    tract: float = 3.3  # block groups in a tract, on average
    # Blocks in a stretch of land, on average, by entity category. Every stretch is a county subdivision,
    # voting district or school district; six in ten are places and one in 25 a reservation. Districts of
    # Congress and of legislatures that are not named are few, whatever the size.
    stretches: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType(
            {"cousub": 125, "place": 100, "aianhh": 60, "vtd": 55, "sduni": 330}
        )
    )
    # Standard deviation, in blocks, by which the borders of areas wander; 0 gives straight borders.
    ragged: float = 0.0
    skew: float = 0.6  # standard deviation of the logarithm of counties' sizes


LARGE_STATE = Density(
    48.0, 2.7, MappingProxyType({"cousub": 1040, "place": 300, "aianhh": 900, "vtd": 100, "sduni": 880}), 7.0
)
"""A state the size of Texas at 900,000 blocks: 250 counties, 6,900 tracts, 1,800 places. In the files of
Rhode Island an area's code changes about seven to ten times along the list of blocks, as it does here."""


NATION = Density(
    34.0,
    2.86,
    MappingProxyType(
        {
            "cousub": 226, "place": 150, "aianhh": 900, "cd": 18_700, "sldu": 4_100, "sldl": 1_650,
            "vtd": 51, "sduni": 745,
        }
    ),
    7.0,
    1.6,
)  # fmt: skip
"""A nation as large as the real one at 8.1 million blocks: 84 thousand tracts in 3.1 thousand counties, of
which the largest has 40 times the average."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Land:
    """Blocks and their areas."""

    geocodes: Codes  # bytes array (b,). 15 characters: state, county, tract, block.
    group: Ints  # int64 (b,). Number of each block's block group, from 0, not decreasing.
    # By entity category, (b,). Codes as in the official GEOID; the empty code means none.
    entities: dict[str, Codes]


def make_land(
    blocks: int, rng: np.random.Generator, density: Density | None = None, state: str = STATE
) -> Land:
    """Divide a synthetic state into counties, tracts, block groups and blocks, and into areas across them."""
    density = density or Density()
    groups = max(3, round(blocks / density.group))
    group = _divide(blocks, groups, rng, most=999)
    groups = int(group[-1]) + 1
    tract_of_group = _divide(groups, max(2, round(groups / density.tract)), rng, most=9)
    tracts = int(tract_of_group[-1]) + 1
    counties = max(2, round(tracts**0.5 / 1.5), tracts // _TRACTS_PER_COUNTY)
    county_of_tract = _divide(tracts, min(counties, _MOST_COUNTIES), rng, most=tracts, skew=density.skew)
    tract = tract_of_group[group]
    county = county_of_tract[tract]
    county_code = 2 * county + 1  # counties have odd numbers, in alphabetical order
    tract_code = 100 * (rank_in_run(county_of_tract) + 1)
    block_code = 1000 * (rank_in_run(tract_of_group)[group] + 1) + rank_in_run(group)
    number = (county_code * 1_000_000 + tract_code[tract]) * 10_000 + block_code
    geocodes = _code(number, 13, state)
    return Land(geocodes, group, _areas(county, county_code, density, rng, state))


def _divide(items: int, parts: int, rng: np.random.Generator, *, most: int, skew: float = 0.6) -> Ints:
    """Divide a row of items into consecutive parts of uneven size, none empty and none above `most`."""
    parts = min(parts, items)
    weights = rng.lognormal(0.0, skew, parts)
    ends = np.round(np.cumsum(weights) / weights.sum() * (items - parts)).astype(np.int64) + np.arange(
        1, parts + 1
    )
    sizes = np.diff(ends, prepend=0)
    pieces = -(-sizes // most)  # a part that is too large is cut again
    part = np.repeat(np.arange(parts), sizes)
    piece = rank_in_run(part) // -(-sizes // pieces)[part]
    changed = (np.diff(part) != 0) | (np.diff(piece) != 0)
    return np.concatenate([[0], np.cumsum(changed)]).astype(np.int64)


def _areas(
    county: Ints, county_code: Ints, density: Density, rng: np.random.Generator, state: str
) -> dict[str, Codes]:
    b, ragged = len(county), density.ragged

    def stretches(category: str, most: int, few: int = 0) -> Ints:
        each = density.stretches.get(category)
        parts = few if each is None else min(most, max(2, b // each))
        return _cut_at_random(b, parts, rng, ragged)

    place, reservation = stretches("place", 99_999), stretches("aianhh", 9_989)
    in_place = rng.random(int(place.max()) + 1) < 0.6
    in_reservation = rng.random(int(reservation.max()) + 1) < 0.04
    return {
        "cousub": _code(county_code * 100_000 + _spread(stretches("cousub", 99_999), 5), 8, state),
        "place": np.where(in_place[place], _code(_spread(place, 30), 5, state), b""),
        "aianhh": np.where(in_reservation[reservation], _code(reservation + 10, 4, ""), b""),
        "cd": _code(stretches("cd", 99, few=2) + 1, 2, state),
        "sldu": _code(stretches("sldu", 999, few=12) + 1, 3, state),
        "sldl": _code(stretches("sldl", 999, few=36) + 1, 3, state),
        "vtd": _code(county_code * 1_000_000 + stretches("vtd", 999_999) + 1, 9, state),
        "sduni": _code(_spread(stretches("sduni", 99_999), 30), 5, state),
    }


def _cut_at_random(items: int, parts: int, rng: np.random.Generator, ragged: float) -> Ints:
    """Cut a row of items at random places; items near a cut may fall on either side of it."""
    cuts = np.sort(rng.choice(np.arange(1, items), size=min(parts - 1, items - 1), replace=False))
    if not ragged:
        return np.searchsorted(cuts, np.arange(items), side="right").astype(np.int64)
    wandered = np.clip(np.arange(items) + rng.normal(0.0, ragged, items), 0, items - 1)
    return np.searchsorted(cuts, wandered, side="right").astype(np.int64)


def _spread(part: Ints, step: int) -> Ints:
    """Number areas from `step` in steps, smaller ones where five digits would not do."""
    count = int(part.max()) + 1
    return max(1, min(step, 99_999 // count)) * (part + 1)


def _code(number: Ints, width: int, prefix: str) -> Codes:
    """Return numbers of up to `width` digits, zero-padded, as codes of the state."""
    start = len(prefix)
    text = np.empty((len(number), start + width), dtype=np.uint8)
    text[:, :start] = np.frombuffer(prefix.encode(), dtype=np.uint8)
    rest = number
    for place in range(start + width - 1, start - 1, -1):
        rest, digit = np.divmod(rest, 10)
        text[:, place] = digit + ord("0")
    return text.view(f"S{start + width}").ravel()
