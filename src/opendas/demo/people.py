"""The people of the synthetic state: skewed as real populations are, and drawn in whole arrays.

Axes: ``b`` blocks, ``g`` block groups, ``c`` = 252 cells of (votingage, hispanic, cenrace).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opendas.arrays import Floats, Ints
from opendas.schema.pl94 import RACES, race_combinations

# Shares of the six races, of Hispanic origin and of minors in five kinds of neighbourhood, and how common
# each kind is. Invented, with the unevenness of a mid-sized state.
_KINDS: tuple[tuple[tuple[float, ...], float, float, float], ...] = (
    ((0.93, 0.02, 0.003, 0.025, 0.0004, 0.02), 0.04, 0.20, 0.55),
    ((0.70, 0.12, 0.006, 0.060, 0.0010, 0.11), 0.15, 0.22, 0.22),
    ((0.35, 0.15, 0.010, 0.030, 0.0010, 0.46), 0.55, 0.29, 0.13),
    ((0.25, 0.62, 0.006, 0.020, 0.0010, 0.10), 0.12, 0.27, 0.07),
    ((0.50, 0.04, 0.400, 0.010, 0.0020, 0.05), 0.10, 0.30, 0.03),
)
_SEVERAL_RACES = (1.0, 0.045, 0.06, 0.05, 0.05, 0.05)  # weight of naming 1, 2, ... races, cumulative

_GQ_SHARE = 0.018  # blocks with group quarters
_GQ_TYPES = np.array([0.03, 0.05, 0.30, 0.04, 0.16, 0.02, 0.40])
_GQ_SIZE = np.array([250.0, 14.0, 60.0, 25.0, 140.0, 180.0, 7.0])
_GQ_MINORS = np.array([0.002, 0.95, 0.0, 0.20, 0.01, 0.0, 0.10])

_CHUNK = 1 << 13


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Homes:
    """Where people live."""

    housing: Ints  # int64 (b,). Housing units.
    occupied: Ints  # int64 (b,). Housing units with someone in them.
    facilities: Ints  # int64 (b, 7). Group quarters by type.
    people: Ints  # int64 (b, 8). People in households and in group quarters by type.


def make_homes(group: Ints, rng: np.random.Generator, *, empty: float = 0.3, crowding: float = 1.0) -> Homes:
    """Draw homes and the number of people in them.

    Sizes of blocks are log-normal, denser in some block groups.

    - `group` (b,): block group of each block, from 0, not decreasing.
    - `empty`: share of blocks without housing units.
    - `crowding`: multiplies the number of housing units.
    """
    b, g = len(group), int(group[-1]) + 1
    density = rng.lognormal(2.4, 0.7, g)
    with_homes = rng.random(b) > empty
    size = np.ceil(crowding * density[group] * rng.lognormal(0.0, 0.8, b))
    housing = np.where(with_homes, size, 0.0).astype(np.int64)
    occupied = rng.binomial(housing, rng.beta(18.0, 2.2, g)[group])
    others = rng.gamma(9.0, 1.45 / 9.0, g)  # people in a household beside the first
    people = np.zeros((b, 8), dtype=np.int64)
    people[:, 0] = occupied + rng.poisson(occupied * others[group])
    facilities = np.zeros((b, 7), dtype=np.int64)
    hosts = np.flatnonzero(rng.random(b) < _GQ_SHARE)
    kind = rng.choice(7, size=len(hosts), p=_GQ_TYPES)
    facilities[hosts, kind] = 1 + rng.poisson(0.25, len(hosts))
    inside = facilities * _GQ_SIZE * rng.lognormal(-0.5, 1.0, (b, 7))
    people[:, 1:] = np.where(facilities > 0, facilities + rng.poisson(inside), 0)
    return Homes(housing, occupied, facilities, people)


def draw_people(
    homes: Homes, group: Ints, rng: np.random.Generator
) -> tuple[Ints, npt.NDArray[np.int32], Ints]:
    """Draw age, origin and race of everybody.

    Returns (int64 (e,), int32 (e,), int64 (e,)): block, cell of the persons product and count, in ascending
    order of block and cell.
    """
    races, hispanic, minors = _neighbourhoods(int(group[-1]) + 1, rng)
    found = [_draw(np.arange(len(group)), homes.people[:, 0], 0, minors[group], races, hispanic, group, rng)]
    for kind in range(1, 8):
        hosts = np.flatnonzero(homes.people[:, kind])
        young = np.full(len(hosts), _GQ_MINORS[kind - 1])
        found.append(_draw(hosts, homes.people[hosts, kind], kind, young, races, hispanic, group[hosts], rng))
    block, cell, count = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((cell, block))
    return block[order], cell[order].astype(np.int32), count[order]


def _neighbourhoods(g: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Return (race combinations by origin (g, 2, 63), share Hispanic (g,), share of minors (g,))."""
    kind = rng.choice(len(_KINDS), size=g, p=np.array([k[3] for k in _KINDS]))
    kind = np.sort(kind) if g < 8 else kind[np.argsort(rng.normal(0, 0.02, g) + np.sin(np.arange(g) / 9.0))]
    base = np.array([k[0] for k in _KINDS])[kind]
    single = rng.standard_gamma(60.0 * base + 0.02)
    single /= single.sum(axis=1, keepdims=True)
    combinations = race_combinations()
    named = np.array([[race in combination for race in RACES] for combination in combinations])
    size = named.sum(axis=1)
    weight = np.cumprod(_SEVERAL_RACES)[size - 1]
    by_origin = []
    for shift in (1.0, 8.0):  # Hispanic people name "some other race" more often
        shares = single * np.where(np.arange(len(RACES)) == len(RACES) - 1, shift, 1.0) + 1e-6
        shares /= shares.sum(axis=1, keepdims=True)
        joint = np.exp(np.log(np.sqrt(shares)) @ named.T.astype(np.float64))
        joint[:, size == 1] = shares
        joint *= weight
        by_origin.append(joint / joint.sum(axis=1, keepdims=True))
    hispanic = rng.beta(
        12 * np.array([k[1] for k in _KINDS])[kind], 12 * (1 - np.array([k[1] for k in _KINDS])[kind])
    )
    minors = rng.beta(
        40 * np.array([k[2] for k in _KINDS])[kind], 40 * (1 - np.array([k[2] for k in _KINDS])[kind])
    )
    return np.stack(by_origin, axis=1), hispanic, minors


def _draw(
    blocks: Ints,
    people: Ints,
    kind: int,
    minors: Floats,
    races: Floats,
    hispanic: Floats,
    group: Ints,
    rng: np.random.Generator,
) -> tuple[Ints, Ints, Ints]:
    """Draw the cells of people in one kind of home; `races` and `hispanic` are per block group."""
    adults = rng.binomial(people, 1.0 - minors)
    found = []
    common = np.argsort(-races.mean(axis=(0, 1)), kind="stable")  # common races first: draws end early
    for age, number in ((0, people - adults), (1, adults)):
        of_origin = rng.binomial(number, hispanic[group])
        for origin, count in ((0, number - of_origin), (1, of_origin)):
            some = np.flatnonzero(count)
            for start in range(0, len(some), _CHUNK):
                part = some[start : start + _CHUNK]
                drawn = rng.multinomial(count[part], races[group[part], origin][:, common])
                row, race = np.nonzero(drawn)
                cell = ((kind * 2 + age) * 2 + origin) * len(common) + common[race]
                found.append((blocks[part[row]], cell, drawn[row, race]))
    if not found:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, nothing
    block, cell, count = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return block, cell, count.astype(np.int64)
