"""The people of made households: shapes near those of the United States, codes that agree with each other.

Shares are invented. Columns are int64, one value a row; ``n`` persons, ``u`` units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from opendas.arrays import Floats, Ints

__all__ = ["MadePersons", "cumulative", "make_households", "make_residents"]


# Households by HHT2, 1 to 12.
_HHT2 = (0.185, 0.292, 0.025, 0.045, 0.152, 0.052, 0.062, 0.022, 0.118, 0.012, 0.020, 0.015)
# HHT by HHT2; the two of cohabiting couples by sex of the householder (male first).
_HHT: Final = {
    1: (1, 1),
    2: (1, 1),
    3: (2, 3),
    4: (5, 7),
    5: (6, 6),
    6: (3, 3),
    7: (3, 3),
    8: (7, 7),
    9: (4, 4),
    10: (2, 2),
    11: (2, 2),
    12: (5, 5),
}
_MARRIED, _COHABITING = (1, 2), (3, 4)
_WITH_MINORS, _WITH_RELATIVES, _WITH_OTHERS = (1, 3, 6, 10), (7, 11), (8, 12)
_MAY_HAVE_MORE = (1, 2, 3, 6, 7, 10, 11)
_SAME_SEX = {"married": 0.012, "cohabiting": 0.06}
# Own children below 18, 1, 2, ..., in households that have them.
_MINORS = (0.42, 0.36, 0.14, 0.05, 0.018, 0.007, 0.003, 0.001, 0.001)
_RELATIVES = (0.52, 0.24, 0.12, 0.06, 0.03, 0.015, 0.015)  # 1, 2, ... where there are any
_OTHERS = (0.72, 0.18, 0.06, 0.04)
_MORE_RELATIVES, _MORE_OTHERS, _CROWDED = 0.13, 0.03, 0.004
_CROWD = 6, 18  # relatives of a crowded household, from and to

# Relatives beyond partner and own children below 18, by share. Those by marriage need one: elsewhere they are
# "other relative".
_RELATIVE = (
    (25, 0.42),
    (26, 0.02),
    (27, 0.05),
    (28, 0.10),
    (29, 0.12),
    (30, 0.13),
    (31, 0.03),
    (32, 0.03),
    (33, 0.10),
)
_OTHER = ((34, 0.62), (35, 0.08), (36, 0.30))
_AGES: Final = {
    25: (18, 45),
    26: (18, 45),
    27: (18, 40),
    28: (15, 75),
    29: (50, 95),
    30: (0, 22),
    31: (50, 95),
    32: (19, 50),
    33: (0, 80),
    34: (18, 70),
    35: (0, 17),
    36: (5, 80),
}
_CHILD = ((25, 0.93), (26, 0.02), (27, 0.05))
_TENURE = ((1, 0.39), (2, 0.24), (3, 0.35), (4, 0.02))
# One race alone, then all combinations of several, which share what is left.
_RACES_ALONE = (0.66, 0.125, 0.011, 0.06, 0.002, 0.082)
_HISPANIC = 0.17
_SAME_RACE = 0.93
_QUARTERS_SIZE = 1, 60
_INSTITUTION = 0.45


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MadePersons:
    """Columns of persons, all int64 (n,); `unit` is the position of the unit in its piece."""

    unit: Ints
    rtype: Ints
    qage: Ints
    cenhisp: Ints
    cenrace: Ints
    relship: Ints


def make_households(rng: np.random.Generator, homes: Ints, count: int) -> tuple[dict[str, Ints], MadePersons]:
    """Make the persons of the units at `homes`, and what the units say about them."""
    n = len(homes)
    hht2 = 1 + np.searchsorted(cumulative(_HHT2), rng.random(n), side="right")
    male = rng.random(n) < 0.5
    same = rng.random(n)
    married, cohabiting = np.isin(hht2, _MARRIED), np.isin(hht2, _COHABITING)
    same_sex = np.where(married, same < _SAME_SEX["married"], same < _SAME_SEX["cohabiting"])
    cplt = np.where(married, 1 + same_sex, np.where(cohabiting, 3 + same_sex, 5))

    minors = np.where(np.isin(hht2, _WITH_MINORS), 1 + _pick(rng, _MINORS, n), 0)
    more = rng.random(n)
    some = np.isin(hht2, _WITH_RELATIVES) | (np.isin(hht2, _MAY_HAVE_MORE) & (more < _MORE_RELATIVES))
    relatives = np.where(some, 1 + _pick(rng, _RELATIVES, n), 0)
    crowd = _between(rng, *_CROWD, n)
    relatives = np.where(np.isin(hht2, _MAY_HAVE_MORE) & (more > 1 - _CROWDED), crowd, relatives)
    roomers = np.isin(hht2, _WITH_OTHERS) | (~np.isin(hht2, (5, 9)) & (rng.random(n) < _MORE_OTHERS))
    others = np.where(roomers, 1 + _pick(rng, _OTHERS, n), 0)

    couple = (married | cohabiting).astype(np.int64)
    roles = np.stack([np.ones(n, dtype=np.int64), couple, minors, relatives, others], axis=1)
    role = np.repeat(np.tile(np.arange(5), n), roles.reshape(-1))
    home = np.repeat(np.arange(n), roles.sum(axis=1))
    total = len(home)
    # 21 and 22 opposite-sex spouse and partner, 23 and 24 same-sex.
    partner = 21 + np.where(married, 0, 1) + np.where(same_sex, 2, 0)
    relship = np.select(
        [role == 0, role == 1, role == 2, role == 3],
        [20, partner[home], _code(rng, _CHILD, total), _code(rng, _RELATIVE, total)],
        _code(rng, _OTHER, total),
    )
    relship[np.isin(relship, (31, 32)) & ~married[home]] = 33
    head_age = np.clip(_between(rng, 19, 60, n) + _between(rng, 0, 34, n), 19, 94)
    head_age = np.where(minors > 0, np.minimum(head_age, 25 + head_age % 32), head_age)
    youngest, oldest = _age_limits()
    drawn = youngest[relship] + (rng.random(total) * (oldest[relship] - youngest[relship] + 1)).astype(
        np.int64
    )
    near = np.clip(head_age[home] + _between(rng, -8, 8, total), 18, 99)
    minor_age = (rng.random(total) * 18).astype(np.int64)
    qage = np.select([role == 0, role == 1, role == 2], [head_age[home], near, minor_age], drawn)

    head_race, head_hisp = _races(rng, n)
    own_race, own_hisp = _races(rng, total)
    alike = (role == 0) | (rng.random(total) < _SAME_RACE)
    related = (relship <= 23) & (relship != 22) | (relship >= 25) & (relship <= 33)
    family = np.bincount(home[related], minlength=n)

    def spread(values: Ints) -> Ints:
        column = np.zeros(count, dtype=np.int64)
        column[homes] = values
        return column

    hht = np.array([(0, 0), *_HHT.values()])[hht2, np.where(male, 0, 1)]
    units = {
        "npf": spread(np.where(family > 1, family, 0)),
        "hhspan": spread(head_hisp),
        "hhrace": spread(head_race),
        "ten": spread(_code(rng, _TENURE, n)),
        "hht": spread(hht),
        "hht2": spread(hht2),
        "cplt": spread(cplt),
    }
    persons = MadePersons(
        unit=homes[home],
        rtype=np.full(total, 3, dtype=np.int64),
        qage=qage,
        cenhisp=np.where(alike, head_hisp[home], own_hisp),
        cenrace=np.where(alike, head_race[home], own_race),
        relship=relship,
    )
    return units, persons


def make_residents(rng: np.random.Generator, quarters: Ints) -> MadePersons:
    """Make the persons of group quarters."""
    size = _between(rng, *_QUARTERS_SIZE, len(quarters))
    unit = np.repeat(quarters, size)
    institution = np.repeat(rng.random(len(quarters)) < _INSTITUTION, size)
    race, hispanic = _races(rng, len(unit))
    return MadePersons(
        unit=unit,
        rtype=np.full(len(unit), 5, dtype=np.int64),
        qage=_between(rng, 16, 95, len(unit)),
        cenhisp=hispanic,
        cenrace=race,
        relship=np.where(institution, 37, 38),
    )


def cumulative(weights: Sequence[float]) -> Floats:
    """Return the upper ends of shares proportional to weights; the last is 1."""
    ends = np.cumsum(weights)
    ends /= ends[-1]
    ends[-1] = 1.0
    return ends


def _pick(rng: np.random.Generator, weights: Sequence[float], n: int) -> Ints:
    """Draw positions among weights."""
    return np.searchsorted(cumulative(weights), rng.random(n), side="right").astype(np.int64)


def _code(rng: np.random.Generator, shares: Sequence[tuple[int, float]], n: int) -> Ints:
    """Draw codes by their shares."""
    return np.array([code for code, _ in shares])[_pick(rng, [share for _, share in shares], n)]


def _between(rng: np.random.Generator, low: int, high: int, n: int) -> Ints:
    """Draw integers of a closed range."""
    return low + (rng.random(n) * (high - low + 1)).astype(np.int64)


def _races(rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
    """Draw race codes 1 to 63 and Hispanic origin 1 or 2."""
    several = (1 - sum(_RACES_ALONE)) / 57
    race = 1 + _pick(rng, (*_RACES_ALONE, *[several] * 57), n)
    return race, 1 + (rng.random(n) < _HISPANIC)


def _age_limits() -> tuple[Ints, Ints]:
    """Return the youngest and the oldest age of each RELSHIP code."""
    youngest, oldest = np.zeros(39, dtype=np.int64), np.zeros(39, dtype=np.int64)
    for code, (low, high) in _AGES.items():
        youngest[code], oldest[code] = low, high
    return youngest, oldest
