# mypy: allow-untyped-defs, allow-untyped-calls
"""Compiled, and apart for that: places the people of a block in its occupied units.

Axes: ``b`` blocks, ``e`` entries, ``p`` people, ``t`` households of a pool. Every block has a stream of
random words of its own, so that what one block gets depends on no other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from opendas.arrays.kernels import inner, mix

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S11 = np.uint64(11)
_UNIT = 2.0**-53

_SAME_RACE = 0.93
"""Share of people who have the race and origin of the first who was placed in their household."""

_CROWD = 4
"""More adults than this beside a drawn household are one another's roommates."""

JITTER = 2
"""Most years by which the ages of a drawn household are shifted, all together."""


class Relations(NamedTuple):
    """Codes of ``relgq`` of householders, and of those who join a household that was drawn."""

    alone: int
    householder: int
    child: int
    sibling: int
    grandchild: int
    other_relative: int
    roommate: int
    other_nonrelative: int


@inner
def _uniform(stream):
    stream[0] += _STEP
    return float(mix(stream[0]) >> _S11) * _UNIT


@njit(cache=True, nogil=True)
def _below(stream, n):
    """Draw a number from 0 to n - 1."""
    return min(n - 1, int(_uniform(stream) * n))


@njit(cache=True, nogil=True)
def _draw(stream, cumulative, low, high):
    """Draw a position from low to high - 1 by weight; the weights before position k sum to cumulative[k]."""
    target = cumulative[low] + _uniform(stream) * (cumulative[high] - cumulative[low])
    k = np.searchsorted(cumulative[low : high + 1], target, side="right") - 1 + low
    return min(max(k, low), high - 1)


@inner
def _compose(stream, need_adults, need_minors, adults, minors, cumulative, groups, chosen):
    """Draw households with so many adults and minors in all; return whether that was found.

    Households are drawn independently; then one after another is drawn again where that comes nearer. The
    last step, of two people at most, exchanges one household for one with the numbers that are missing.
    """
    units, t = len(chosen), len(adults)
    least = 0 if need_adults < units else 1
    for i in range(units):
        chosen[i] = _draw(stream, cumulative, 0, t)
        need_adults -= adults[chosen[i]]
        need_minors -= minors[chosen[i]]
    for _ in range(60 * units + 400):
        distance = abs(need_adults) + abs(need_minors)
        if distance == 0:
            return True
        i = _below(stream, units)
        a, m = adults[chosen[i]] + need_adults, minors[chosen[i]] + need_minors
        inside = least <= a < groups.shape[0] and 0 <= m < groups.shape[1]
        if inside and (distance <= 2 or units == 1) and groups[a, m, 0] < groups[a, m, 1]:
            chosen[i] = _draw(stream, cumulative, groups[a, m, 0], groups[a, m, 1])
            return True
        k = _draw(stream, cumulative, 0, t)
        a, m = adults[chosen[i]] - adults[k], minors[chosen[i]] - minors[k]
        if abs(need_adults + a) + abs(need_minors + m) < distance:
            chosen[i] = k
            need_adults += a
            need_minors += m
    return False


@inner
def _households(
    stream, left_adults, left_minors, adults, minors, cumulative, chosen, more_adults, more_minors
):
    """Draw households one by one as long as there are people; those left over join households at random.

    A household for which too few are left is one person alone: an adult while there is one (-1), then a minor
    (-2).
    """
    units, t = len(chosen), len(adults)
    for i in range(units):
        k = _draw(stream, cumulative, 0, t)
        others = units - i - 1
        a, m = left_adults - adults[k], left_minors - minors[k]
        if a >= 0 and m >= 0 and a + m >= others and adults[k] > 0:
            chosen[i], left_adults, left_minors = k, a, m
        elif left_adults > 0:
            chosen[i], left_adults = -1, left_adults - 1
        else:
            chosen[i], left_minors = -2, left_minors - 1
    for _ in range(left_adults):
        more_adults[_below(stream, units)] += 1
    for _ in range(left_minors):
        more_minors[_below(stream, units)] += 1


@inner
def _years(stream, mean, least, most):
    """Draw a number of years from `least` to `most`, exponential above `least` with about this mean."""
    years = least + int(-mean * math.log(1.0 - _uniform(stream)))
    return years if years <= most else least + _below(stream, most - least + 1)


@inner
def _joining_adult(stream, head, crowd, codes):
    """Draw relationship and age of an adult who joins a household with a householder of age `head`."""
    u = _uniform(stream)
    if not crowd:
        if u < 0.35 and head >= 36:
            return codes.child, _years(stream, 9.0, 18, min(85, head - 17))
        if u < 0.55:
            return codes.sibling, min(100, max(18, head - 8 + _below(stream, 17)))
        if u < 0.7:
            return codes.other_relative, _years(stream, 18.0, 18, 85)
    relgq = codes.roommate if _uniform(stream) < 0.6 else codes.other_nonrelative
    return relgq, _years(stream, 4.0 if crowd else 14.0, 18 + _below(stream, 5), 75)


@inner
def _joining_minor(stream, head, codes):
    """Draw relationship and age of a minor who joins a household with a householder of age `head`."""
    age = _below(stream, 18)
    if 16 <= head - age <= 45:
        return codes.child, age
    if head - age > 45:
        return codes.grandchild, age
    return (codes.sibling if _uniform(stream) < 0.6 else codes.other_relative), age


@njit(cache=True, nogil=True)
def _take_person(stream, entries, left, adult, grown, wanted):
    """Take a person of an age group out of a block; return the position of the entry.

    `wanted` is an entry whose race and origin are preferred, or -1.
    """
    start, stop, cell = entries
    if wanted >= 0 and _uniform(stream) < _SAME_RACE:
        for e in range(start, stop):
            if adult[e] == grown and cell[e] == cell[wanted] and left[e] > 0:
                left[e] -= 1
                return e
    total = 0
    for e in range(start, stop):
        if adult[e] == grown:
            total += left[e]
    rest = _below(stream, total)
    for e in range(start, stop):
        if adult[e] == grown:
            rest -= left[e]
            if rest < 0:
                left[e] -= 1
                return e
    return -1  # never: the households of a block have as many adults and minors as the block


@njit(cache=True, nogil=True)
def _members(stream, k, pool, joining, allowed, codes, out, at):
    """Write relationship, sex and age of the people of one household from position `at`; return their number.

    - `k`: household of the pool, -1 an adult alone, -2 a minor alone.
    - `joining`: adults and minors who join it.
    - `out`, (arrays, arrays, arrays) of length p: relgq, sex and age.
    """
    relgq, sex, age = out
    first = at
    if k >= 0:
        shift = _below(stream, 2 * JITTER + 1) - JITTER
        for p in range(pool.first[k], pool.first[k + 1]):
            years = pool.age[p] + shift
            inside = 0 <= years < allowed.shape[1] and (years >= 18) == (pool.age[p] >= 18)
            if not inside or not allowed[pool.relgq[p], years]:
                years = pool.age[p]
            relgq[at], sex[at], age[at] = pool.relgq[p], pool.sex[p], years
            at += 1
    else:
        years = _years(stream, 22.0, 18, 90) if k == -1 else 15 + _below(stream, 3)
        relgq[at], sex[at], age[at] = codes.householder, _below(stream, 2), years
        at += 1
    head = age[first]
    for j in range(joining[0] + joining[1]):
        if j < joining[0]:
            relation, years = _joining_adult(stream, head, joining[0] > _CROWD, codes)
        else:
            relation, years = _joining_minor(stream, head, codes)
        relgq[at], sex[at], age[at] = relation, _below(stream, 2), years
        at += 1
    if at - first == 1:
        relgq[first] = codes.alone
    return at - first


@njit(cache=True, nogil=True)
def place_in_households(streams, starts, cell, adult, count, units, pool, allowed, codes, out):
    """Settle the household population of every block in its occupied units.

    - `streams` (b,): where the random words of a block start.
    - `starts` (b + 1,): block ``i`` has the entries ``starts[i]:starts[i + 1]``.
    - `cell`, `count` (e,): race and origin, and how many people.
    - `adult` (e,).
    - `units` (b,): occupied units, at least one where people live and at most one for each of them.
    - `allowed` (42, 116).
    - `out`, tuple of int64 (p,) arrays: household within the block, from 1; relgq; sex; age; cell. Filled in
      the order of blocks.
    """
    household, relgq, sex, age, race = out
    left = count.copy()
    stream = np.zeros(1, dtype=np.uint64)
    base = 0
    for b in range(len(units)):
        if units[b] == 0:
            continue
        stream[0] = streams[b]
        start, stop = starts[b], starts[b + 1]
        grown, young = 0, 0
        for e in range(start, stop):
            if adult[e]:
                grown += left[e]
            else:
                young += left[e]
        chosen = np.zeros(units[b], dtype=np.int64)
        more_adults, more_minors = np.zeros_like(chosen), np.zeros_like(chosen)
        found = _compose(stream, grown, young, pool.adults, pool.minors, pool.cumulative, pool.groups, chosen)
        if not found:
            _households(
                stream, grown, young, pool.adults, pool.minors, pool.cumulative, chosen, more_adults,
                more_minors,
            )  # fmt: skip
        size, at = np.zeros_like(chosen), np.zeros_like(chosen)
        for i in range(units[b]):
            at[i] = base
            joining = (more_adults[i], more_minors[i])
            size[i] = _members(stream, chosen[i], pool, joining, allowed, codes, (relgq, sex, age), base)
            base += size[i]
        # Households with minors choose first, so that minors find adults of their race and origin.
        for with_minors in (True, False):
            for i in range(units[b]):
                minor = -1
                for p in range(at[i], at[i] + size[i]):
                    household[p] = i + 1
                    if age[p] < 18:
                        minor = p
                if (minor >= 0) != with_minors:
                    continue
                anchor = at[i] if minor < 0 else minor
                entry = _take_person(stream, (start, stop, cell), left, adult, age[anchor] >= 18, -1)
                race[anchor] = cell[entry]
                for p in range(at[i], at[i] + size[i]):
                    if p != anchor:
                        e = _take_person(stream, (start, stop, cell), left, adult, age[p] >= 18, entry)
                        race[p] = cell[e]


@njit(cache=True, nogil=True)
def place_in_quarters(streams, kind, adult, count, ages, male, out):
    """Draw sex and age of the people in group quarters, one entry after another.

    - `streams` (e,).
    - `kind` (e,): detailed type, 0 to 23.
    - `adult` (e,).
    - `count` (e,).
    - `ages` (24, 2, 117): cumulative weights of ages by type, of minors and of adults.
    - `male` (24,).
    - `out`, (int64 (p,), int64 (p,)): sex and age.
    """
    sex, age = out
    stream = np.zeros(1, dtype=np.uint64)
    p = 0
    for e in range(len(kind)):
        stream[0] = streams[e]
        for _ in range(count[e]):
            age[p] = _draw(stream, ages[kind[e], 1 if adult[e] else 0], 0, ages.shape[2] - 1)
            sex[p] = 0 if _uniform(stream) < male[kind[e]] else 1
            p += 1
