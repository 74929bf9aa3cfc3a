"""What bypassing a geounit does to every variance of a spine, and a rule that was rejected for it.

Section 3.1 and Theorem 2 of "Geographic Spines in the 2020 Census Disclosure Avoidance System". If every
level asks the same queries in the same proportions, the variance of any answer is that of the total times a
number that depends on the query alone, so totals are all that has to be looked at.

Unlike :mod:`opendas.geography.bypass`, which applies a rule that holds for all variances at once, the whole
spine is solved before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opendas.arrays import Floats, Ints
from opendas.gls.collapsed import CollapsedTree, covariances
from opendas.gls.information import Extended

__all__ = ["BypassEffect", "SharedSpine", "bypass_effect", "least_sum_of_squares"]


@dataclass(frozen=True, slots=True, eq=False)
class SharedSpine:
    """A spine with a share of the budget for every geounit.

    Parameters
    ----------
    parents : tuple of int64 (g,)
        Per level, top first: index of each geounit's parent in the level above, non-decreasing; zeros at the
        top. Every geounit above the leaves has a child.
    shares : tuple of float64 (g,)
        Per level, the part of the whole budget that each geounit has.
    pure : bool
        Whether noise is Laplace, with variance proportional to one over the square of the share (pure
        differential privacy), or Gaussian, with variance proportional to one over the share.
    """

    parents: tuple[Ints, ...]
    shares: tuple[Floats, ...]
    pure: bool

    def variances(self) -> tuple[Floats, ...]:
        """Return the variance of every total, per level float64 (g,); infinite where nothing is known.

        A measurement with the whole budget would have variance one.
        """
        classes, information = [], []
        for shares in self.shares:
            distinct, own = np.unique(shares, return_inverse=True)
            classes.append(own)
            information.append(Extended(((distinct**2 if self.pure else distinct)[:, None, None, None],)))
        tree = CollapsedTree.of(self.parents, classes)
        found = []
        for places, covariance in zip(tree.contexts, covariances(tree, information), strict=True):
            known = covariance.finite[0]
            if covariance.infinite is not None:
                known = np.where(covariance.infinite[0] > 0, np.inf, known)
            found.append(known[places, 0, 0, 0])
        return tuple(found)

    def children(self, level: int, geounit: int) -> slice:
        """Return the children of a geounit, as a slice of the level below."""
        start, stop = np.searchsorted(self.parents[level + 1], [geounit, geounit + 1])
        return slice(int(start), int(stop))

    def bypassed(self, level: int, geounit: int) -> SharedSpine:
        """Return the spine with the share of one geounit handed to each of its children.

        The geounit stays, so that its variance can be compared. Replacing it by its children, as TopDown
        does, measures the same sums with the same noise.
        """
        shares = [values.copy() for values in self.shares]
        shares[level + 1][self.children(level, geounit)] += shares[level][geounit]
        shares[level][geounit] = 0.0
        return replace(self, shares=tuple(shares))


@dataclass(frozen=True, slots=True)
class BypassEffect:
    """What bypassing one geounit does to the variances of all totals of a spine.

    Parameters
    ----------
    sum_before, sum_after : float
        Weighted sum of the variances: the expected sum of squared errors.
    max_before, max_after : float
        Largest variance.
    largest_growth : float
        Largest variance after, as a multiple of the same geounit's before.
    grown : int
        Number of geounits whose variance grew.
    """

    sum_before: float
    sum_after: float
    max_before: float
    max_after: float
    largest_growth: float
    grown: int


def _effect(before: Sequence[Floats], after: Sequence[Floats], weights: Sequence[float]) -> BypassEffect:
    growth = np.concatenate([b / a for a, b in zip(before, after, strict=True)])
    return BypassEffect(
        sum(w * float(v.sum()) for w, v in zip(weights, before, strict=True)),
        sum(w * float(v.sum()) for w, v in zip(weights, after, strict=True)),
        max(float(v.max()) for v in before),
        max(float(v.max()) for v in after),
        float(growth.max()),
        int(np.count_nonzero(growth > 1 + 1e-9)),
    )


def bypass_effect(
    spine: SharedSpine, level: int, geounit: int, weights: Sequence[float] | None = None
) -> BypassEffect:
    """Compare all variances before and after one geounit is bypassed.

    Parameters
    ----------
    spine : SharedSpine
    level, geounit : int
        A geounit above the leaves.
    weights : sequence of float, optional
        Weight of the geounits of each level in the sum; one each by default.
    """
    return _effect(
        spine.variances(),
        spine.bypassed(level, geounit).variances(),
        [1.0] * len(spine.parents) if weights is None else weights,
    )


def least_sum_of_squares(
    spine: SharedSpine, weights: Sequence[float] | None = None
) -> tuple[SharedSpine, tuple[tuple[int, int], ...]]:
    """Bypass every geounit that lowers the expected sum of squared errors: the rejected rule.

    From the leaves up, as Algorithm 3. Every candidate is judged by solving the whole spine, so this is for
    experiments: the work grows with the square of the number of geounits.

    Returns
    -------
    spine : SharedSpine
    bypassed : tuple of (level, geounit)
    """
    by_level = [1.0] * len(spine.parents) if weights is None else list(weights)
    chosen: list[tuple[int, int]] = []
    before = spine.variances()
    for level in reversed(range(len(spine.parents) - 1)):
        for geounit in range(len(spine.parents[level])):
            if spine.shares[level][geounit] > 0:
                candidate = spine.bypassed(level, geounit)
                after = candidate.variances()
                effect = _effect(before, after, by_level)
                if effect.sum_after < effect.sum_before * (1 - 1e-12):
                    spine, before = candidate, after
                    chosen.append((level, geounit))
    return spine, tuple(chosen)
