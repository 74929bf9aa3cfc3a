"""Shares of a fixed loss by expected errors, and as exact fractions: floats stay apart from plans here.

Axes: ``l`` geolevels, ``q`` query groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import minimize

from opendas.arrays import Bools, Floats
from opendas.tuning.populated import Populated

UNIT = 10_000
"""Shares are multiples of one in so many."""

LEAST = Fraction(1, 1000)
"""Query groups with less than this part of a geolevel's loss get none."""

_SEED = 0.005  # what every query group gets at the beginning, so that it can grow
_MOST = 0.6  # part of a loss that floors take at most
_OTHERS = 0.05  # what errors that are no aim weigh together, beside those that are
_NONE = 1e-12  # an error that is exactly zero
_STIFF = 5.0  # how strongly a ceiling holds
_OUTER, _INNER = 5, 30  # corrections of the multipliers, and steps for each


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """What shares are to be good for, float64 (l, q) all."""

    weight: Floats  # of the logarithm of each error
    ceiling: Floats  # of the logarithm of each error; infinite where it may be worse
    correction: Floats  # logarithm: error by simulation over the expected one
    floor: Floats  # least losses; made smaller in proportion where they leave little
    # Whose precision is loss times this, to the power: 1 for the discrete Gaussian, 2 for the Laplace.
    precision: Floats
    power: int

    def over(self, errors: Floats) -> Floats:
        """Return how far the logarithms of errors stand above their ceilings; minus infinity without one."""
        return np.log(np.maximum(errors, _NONE)) + self.correction - self.ceiling

    def weigh(self, errors: Floats, multipliers: Floats) -> tuple[float, Floats]:
        """Return an augmented Lagrangian, and its derivatives by the expected errors."""
        size = np.maximum(errors, _NONE)
        pressed = np.maximum(0.0, multipliers + _STIFF * self.over(errors))
        value = (self.weight * np.log(size)).sum() + (pressed**2 - multipliers**2).sum() / (2 * _STIFF)
        return float(value), (self.weight + pressed) / size


def weights(aims: Floats, known: Bools) -> Floats:
    """Return what errors weigh, (l, q): those that are an aim (1, else 0), and a little the others known."""
    others = known * (1 - aims)
    found: Floats = aims / max(1.0, aims.sum()) + _OTHERS * others / max(1.0, others.sum())
    return found


def best_losses(
    tree: Populated, wish: Wish, start: Floats, *, moves: bool, leaf_share: float | None = None
) -> Floats:
    """Return losses (l, q) of the same sum that do best by expected errors; a local optimum.

    - `start`: losses to begin with. A geolevel without any gets none.
    - `moves`: whether geolevels may get other parts of the loss.
    - `leaf_share`: what the lowest of several geolevels gets of the loss then; None if that is free too.
    """
    levels, number = start.sum(axis=1), len(start)
    used = levels > 0
    if not moves:
        group, sums = np.arange(number), levels
    elif leaf_share is None:
        group, sums = np.zeros(number, np.int64), np.array([levels.sum()])
    else:
        group = np.arange(number) // (number - 1)
        sums = levels.sum() * np.array([1 - leaf_share, leaf_share])
    own = np.bincount(group, levels) / np.maximum(sums, _NONE)
    begin = start / np.maximum(own, _NONE)[group, None]  # each group of geolevels has its sum
    held = np.bincount(group, wish.floor.sum(axis=1))
    floor = wish.floor * np.minimum(1.0, _MOST * sums / np.maximum(held, _NONE))[group, None]
    rest = sums - np.bincount(group, floor.sum(axis=1))  # of each group, to be shared out
    more = np.maximum(begin - floor, _SEED * begin.sum(axis=1, keepdims=True))[used]
    z = np.log(np.column_stack([more.sum(axis=1), more / more.sum(axis=1, keepdims=True)])).ravel()

    def split(z: Floats) -> tuple[Floats, Floats, Floats]:
        """Return losses, what each geolevel has beyond its floors, and how its query groups share that."""
        logarithms = z.reshape(int(used.sum()), -1)
        level, shares = np.zeros(number), np.zeros_like(start)
        size = np.exp(logarithms[:, 0] - logarithms[:, 0].max())
        level[used] = (
            size * (rest / np.maximum(np.bincount(group[used], size, len(rest)), _NONE))[group[used]]
        )
        shares[used] = _softmax(logarithms[:, 1:])
        return floor + level[:, None] * shares, level, shares

    def cost(z: Floats, multipliers: Floats) -> tuple[float, Floats]:
        losses, level, shares = split(z)
        value, by_precision = tree.slopes(
            (wish.precision * losses) ** wish.power, lambda errors: wish.weigh(errors, multipliers)
        )
        slope = by_precision * wish.power * wish.precision**wish.power * losses ** (wish.power - 1)
        mean = (shares * slope).sum(axis=1)
        among = np.bincount(group, level * mean) / np.maximum(rest, _NONE)  # mean over a group
        by_level = level * (mean - among[group])
        by_share = level[:, None] * shares * (slope - mean[:, None])
        return value, np.column_stack([by_level, by_share])[used].ravel()

    multipliers = np.zeros_like(start)
    for _ in range(_OUTER):
        found = minimize(cost, z, (multipliers,), "L-BFGS-B", jac=True, options={"maxiter": _INNER})
        z = found.x
        losses = split(z)[0]
        errors = tree.errors((wish.precision * losses) ** wish.power)
        multipliers = np.maximum(0.0, multipliers + _STIFF * wish.over(errors))
    return losses


def _softmax(z: Floats) -> Floats:
    size: Floats = np.exp(z - z.max(axis=-1, keepdims=True, initial=-np.inf))
    shares: Floats = size / size.sum(axis=-1, keepdims=True)
    return shares


def exact_shares(shares: Floats, least: Fraction = Fraction(0)) -> list[Fraction]:
    """Return shares as multiples of one in :data:`UNIT` that sum to one.

    `least`: smaller ones become 0.

    Examples
    --------
    >>> [str(share) for share in exact_shares(np.array([2.0, 1.0, 0.0001]), LEAST)]
    ['6667/10000', '3333/10000', '0']
    """
    kept = np.where(shares / shares.sum() >= float(least), shares, 0.0)
    parts = kept / kept.sum() * UNIT
    whole = np.floor(parts)
    short = np.argsort(whole - parts, kind="stable")[: round(UNIT - float(whole.sum()))]
    whole[short] += 1
    return [Fraction(int(part), UNIT) for part in whole]
