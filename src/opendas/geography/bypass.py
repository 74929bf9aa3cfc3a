"""Bypassing, Algorithm 3: where a parent's budget does more good at its children.

Cumings-Menon et al. (2024), section 5: Theorem 2, Observation 1 and Algorithm 3. To bypass a parent with c
children is to put c geounits in its place, each with one child and the parent's share plus that child's; the
child keeps no share. Sums along paths do not change (Theorem 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from opendas.arrays import Ints
from opendas.errors import BudgetError
from opendas.geography.spine import Shares, Spine, SpineLevel

LARGEST_FAMILY = 150
"""Largest number of siblings that the general rule may leave, as in production."""


class _Own(NamedTuple):
    """Shares of one level's geounits, as parts of the whole budget."""

    values: list[Fraction]
    which: Ints


def _own_shares(spine: Spine, level_shares: Sequence[Fraction]) -> list[_Own]:
    spine.check_paths(level_shares)
    own = []
    for number, share in enumerate(level_shares):
        multiples, which = spine.multiples(number)
        own.append(_Own([share * multiple for multiple in multiples], which))
    return own


def _moved_up(own: list[_Own], number: int, parent: Ints, child: Ints, which: Ints, place: Any) -> None:
    """Add the share of each `child` to its `parent`, in place; `which[place]` are the parents' new shares."""
    parents, children = own[number], own[number + 1]
    pair = parents.which[parent] * len(children.values) + children.which[child]
    found, index = np.unique(pair, return_inverse=True)
    pairs = [divmod(p, len(children.values)) for p in found.tolist()]
    moved = [parents.values[above] + children.values[below] for above, below in pairs]
    which[place] = len(parents.values) + index
    own[number] = _Own([*parents.values, *moved], which)
    left = children.which.copy()
    left[child] = len(children.values)
    own[number + 1] = _Own([*children.values, Fraction(0)], left)


def _finished(
    spine: Spine, levels: Sequence[SpineLevel], own: Sequence[_Own], level_shares: Sequence[Fraction]
) -> Spine:
    shares = [
        Shares.of([value / share for value in values], which) if share else None
        for (values, which), share in zip(own, level_shares, strict=True)
    ]
    found = Spine(tuple(levels), spine.leaf_order, tuple(shares))
    found.check_paths(level_shares)
    return found


def bypass_only_children(spine: Spine, level_shares: Sequence[Fraction]) -> Spine:
    """Move the share of every only child to its parent, from the leaves up.

    The rule under the Gaussian mechanism: an only child equals its parent, so what it would measure is never
    used (Observation 1 of the paper); with two children or more some variance would grow.

    Raises `BudgetError` if the shares along a path do not sum to one, before or after.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 3, for zero-concentrated differential privacy.
    """
    own = _own_shares(spine, level_shares)
    for number in reversed(range(len(spine.levels) - 1)):
        starts = spine.child_starts(number)
        alone = np.diff(starts) == 1
        if not level_shares[number] or not alone.any():
            continue
        _moved_up(own, number, np.flatnonzero(alone), starts[:-1][alone], own[number].which.copy(), alone)
    return _finished(spine, spine.levels, own, level_shares)


def bypass_general(
    spine: Spine, level_shares: Sequence[Fraction], *, top: int = 1, largest_family: int = LARGEST_FAMILY
) -> Spine:
    """Bypass every parent that Theorem 2 allows, from the leaves up.

    The rule under pure differential privacy: with c children, ``2 min(share of a child) >= (c - 1) share of
    the parent``. No expected squared error of the least-squares estimate grows.

    - `level_shares`: share of each level, top first.
    - `top`, >= 1: topmost level whose geounits may be replaced. Above it, and at roots, only an only child's
      share moves: a root stays one, and a geounit with an invariant keeps it.
    - `largest_family`: a parent is not bypassed if its own parent would then have more children.

    Notes
    -----
    Cumings-Menon et al. (2024), Algorithm 3, for pure differential privacy. Cumings-Menon et al. (2024),
    Theorem 2, is its rule.
    """
    if top < 1:
        raise BudgetError("top must be at least 1: a root cannot be replaced by its children.")
    levels = list(spine.levels)
    own = _own_shares(spine, level_shares)
    for number in reversed(range(len(levels) - 1)):
        if level_shares[number]:
            _bypass_level(levels, own, number, replace_parents=number >= top, largest_family=largest_family)
    return _finished(spine, levels, own, level_shares)


def _bypass_level(
    levels: list[SpineLevel], own: list[_Own], number: int, *, replace_parents: bool, largest_family: int
) -> None:
    """Replace the parents of one level that the rule allows; changes `levels` and `own` in place."""
    level, below = levels[number], levels[number + 1]
    starts = np.searchsorted(below.parent, np.arange(len(level) + 1)).astype(np.int64)
    fanout = np.diff(starts)
    family = np.bincount(level.parent)[level.parent] if number else np.zeros(len(level), dtype=np.int64)
    grown = np.zeros(int(level.parent.max()) + 1, dtype=np.int64)
    chosen = np.zeros(len(level), dtype=np.bool_)
    for i in np.flatnonzero(fanout <= (largest_family if replace_parents else 1)).tolist():
        c = int(fanout[i])
        share = own[number].values[own[number].which[i]]
        kinds = np.unique(own[number + 1].which[starts[i] : starts[i + 1]])
        least = min(own[number + 1].values[k] for k in kinds)
        above = int(level.parent[i])
        room = c == 1 or family[i] + grown[above] - 1 + c <= largest_family
        if share > 0 and 2 * least >= (c - 1) * share and room:
            chosen[i] = True
            grown[above] += c - 1
    if not chosen.any():
        return
    repeat = np.where(chosen, fanout, 1)
    source = np.repeat(np.arange(len(level)), repeat)
    child = (
        np.repeat(starts[:-1], repeat)
        + np.arange(len(source))
        - np.repeat(np.cumsum(repeat) - repeat, repeat)
    )
    bypassed = chosen[source]
    replaced = bypassed & (fanout[source] > 1)
    _moved_up(own, number, source[bypassed], child[bypassed], own[number].which[source], bypassed)
    width = max(level.geocodes.dtype.itemsize, below.geocodes.dtype.itemsize)
    codes = level.geocodes[source].astype(f"S{width}")
    codes[replaced] = below.geocodes[child[replaced]]
    if len(np.unique(codes)) < len(codes):  # a hierarchy whose levels share codes
        full = np.char.add(np.char.add(level.geocodes[source], b"/"), below.geocodes[child])
        codes = np.where(replaced, full, level.geocodes[source])
    levels[number] = replace(
        level,
        geocodes=codes,
        parent=level.parent[source],
        official=level.official and not bool(replaced.any()),
        whole=None if bool(replaced.any()) else level.whole,  # parts of one geounit may be apart now
    )
    parent = np.repeat(np.cumsum(repeat) - repeat, fanout)
    inside = np.repeat(chosen & (fanout > 1), fanout)
    offset = np.arange(len(below)) - np.repeat(starts[:-1], fanout)
    levels[number + 1] = replace(
        below,
        parent=parent + np.where(inside, offset, 0),
        whole=None if bool(replaced.any()) else below.whole,
    )
