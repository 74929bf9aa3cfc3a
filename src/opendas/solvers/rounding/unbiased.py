# mypy: allow-untyped-defs, allow-untyped-calls
"""Rounding of totals that is right on average, for every sum of them; apart from rounding to the nearest.

Axes: ``C`` children.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.arrays import Ints
from opendas.arrays.kernels import GOLDEN, inner, mix


def round_unbiased(parts: Ints, whole: int, lower: Ints, upper: Ints, seed: int) -> Ints:
    """Round fractions to whole numbers at random, so that expectations are the fractions themselves.

    - `parts` (C,): numerators; they add up to a multiple of `whole`.
    - `whole`: their common denominator.
    - `lower`, `upper` (C,): whole numbers below and above each fraction, between which it is rounded.
    - `seed`: 64 bits. Public.
    - Returns (C,): all but at most one are `lower` or `upper`; the sum is kept, and that of neighbours
      nearly.

    Notes
    -----
    Deville and Tillé (1998), section 4, the pivotal method, with steps of any width: of two fractions one is
    raised and the other lowered until one is at a bound, with the chances that leave both means as they are;
    the other one meets the next. Arithmetic is in integers.

    Examples
    --------
    >>> round_unbiased(np.array([1, 2, 1]), 2, np.array([0, 1, 0]), np.array([1, 1, 1]), seed=7).sum()
    np.int64(2)
    """
    if parts.sum() % whole or np.any(parts < lower * whole) or np.any(parts > upper * whole):
        raise ValueError("fractions to be rounded are between their bounds and add up to whole counts")
    rounded: Ints = _round(parts.copy(), lower * whole, upper * whole, np.uint64(seed)) // whole
    return rounded


@inner
def next_word(random):
    """Return the next 64 bits of SplitMix64 (Steele, Lea and Flood, 2014); `random` is uint64 (1,).

    For choices that everybody may repeat from what is published: no noise of a release comes from it.
    """
    word = mix(random[0])
    random[0] += GOLDEN
    return word


@inner
def uniform(random):
    """Return the next number in [0, 1), from 53 bits; `random` as of :func:`next_word`."""
    return float(next_word(random) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _round(parts, lower, upper, seed):
    random = np.zeros(1, np.uint64)
    random[0] = seed
    i = 0
    for j in range(1, len(parts)):
        if parts[i] == lower[i] or parts[i] == upper[i]:
            i = j
            continue
        up = min(upper[i] - parts[i], parts[j] - lower[j])
        down = min(parts[i] - lower[i], upper[j] - parts[j])
        if up + down == 0:
            continue
        # 53 bits are enough: the bias of a chance is below 2**-52.
        chance = uniform(random)
        step = up if chance * (up + down) < down else -down
        parts[i] += step
        parts[j] -= step
        if parts[i] == lower[i] or parts[i] == upper[i]:
            i = j
    return parts
