"""Intervals for true counts from estimates and variances.

Axes: ``a`` areas (geounits, entities or sets of leaves), ``t`` sums of cells asked for, ``n`` cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from opendas.arrays import Bools, Floats, Ints
from opendas.geography.spine import Spine
from opendas.intervals.implied import UNBOUNDED, Limits, area_limits, cut, geounit_limits
from opendas.intervals.laws import CHARACTERISTIC, ENUMERATED, EXACT, NORMAL, NoiseSum, confidence_level
from opendas.intervals.noisy_tree import NoisyTree

LAWS = (EXACT, NORMAL, ENUMERATED, CHARACTERISTIC)
"""How the width of an interval was found."""

VALUES_PER_BATCH = 1 << 20

NO_NOISE = 1e-9
"""A variance below this is rounding error: the estimate is exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """Least-squares estimates of sums of cells."""

    # value, variance (a, t): the variance is infinite where the measurements say nothing.
    value: Floats
    variance: Floats
    kinds: tuple[NoiseSum, ...]  # laws of errors that are not normal, divided by their standard deviation
    kind: Ints  # (a, t): law of each error in `kinds`; -1 for the normal law

    def half_widths(self, confidence: float) -> tuple[Floats, npt.NDArray[np.int8]]:
        """Return half the width of each interval, float64 (a, t), and the number of its law in `LAWS`."""
        exact = self.variance <= NO_NOISE
        width = float(ndtri(0.5 + 0.5 * confidence)) * np.sqrt(np.maximum(self.variance, 0.0))
        law = np.full(width.shape, LAWS.index(NORMAL), dtype=np.int8)
        if self.kinds:
            found = [kind.half_width(confidence) for kind in self.kinds]
            chosen = self.kind >= 0
            spread = np.sqrt(np.maximum(self.variance[chosen], 0.0))
            width[chosen] = spread * np.array([one.value for one in found])[self.kind[chosen]]
            law[chosen] = np.array([LAWS.index(one.law) for one in found], dtype=np.int8)[self.kind[chosen]]
        width[exact] = 0.0
        law[exact] = LAWS.index(EXACT)
        return width, law


@dataclass(frozen=True, slots=True, eq=False)
class Areas:
    """Sets of leaves."""

    number: int  # of areas
    which: Ints  # (p,): area of each member
    leaf: Ints  # (p,): its leaf: position on the spine
    weight: Floats  # (p,)

    def take(self, chosen: Ints) -> Areas:
        """Return some of the areas, in ascending order of their numbers."""
        place = np.full(self.number, -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        keep = place[self.which] >= 0
        return Areas(len(chosen), place[self.which[keep]], self.leaf[keep], self.weight[keep])


class EstimateSource(Protocol):
    """Least-squares estimates of a noisy tree, with their errors."""

    def geounits(self, level: int, geounits: Ints, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in geounits of a geolevel of the spine."""
        ...

    def areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return weighted sums over `members` in sets of leaves."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Estimates of true counts, and intervals around them."""

    # Stated level: the least probability, over the noise, with which an interval holds the true count.
    confidence: float
    estimate: Floats  # (a, t): unbiased: neither whole nor non-negative
    variance: Floats  # (a, t): exact, in squared counts; infinite where the measurements say nothing
    # lower, upper (a, t): ends of the intervals, whole numbers where all weights are; cut off at what bounds,
    # exact totals and non-negativity imply. `upper` may be infinite.
    lower: Floats
    upper: Floats
    # (a, t): half the width before that: the interval of the estimate is ``estimate - margin`` to ``estimate
    # + margin``.
    margin: Floats
    law: npt.NDArray[np.int8]  # (a, t): how the margin was found, in :data:`LAWS`

    def _columns(self) -> list[npt.NDArray[Any]]:
        return [self.estimate, self.variance, self.lower, self.upper, self.margin, self.law]

    @staticmethod
    def joined(parts: list[Intervals], confidence: float, columns: int) -> Intervals:
        """Return the intervals of several runs of areas one after the other."""
        empty = np.zeros((0, columns))
        none = Intervals(confidence, empty, empty, empty, empty, empty, empty.astype(np.int8))
        columns_of = zip(*(part._columns() for part in (none, *parts)), strict=True)
        return Intervals(confidence, *map(np.concatenate, columns_of))

    def take(self, rows: Ints) -> Intervals:
        """Return the intervals of some areas."""
        return Intervals(self.confidence, *(column[rows] for column in self._columns()))


def intervals(estimated: Estimated, limits: Limits, members: Bools, confidence: float) -> Intervals:
    """Make intervals for counts.

    - `limits`: of the same areas.
    - `members` (t, n).
    - `confidence`: in (0, 1).
    """
    level = confidence_level(confidence)
    margin, law = estimated.half_widths(level)
    least, most = limits.of(members)
    with np.errstate(invalid="ignore"):
        low, high = estimated.value - margin, estimated.value + margin
    unknown = ~np.isfinite(estimated.variance)
    low[unknown], high[unknown] = -np.inf, np.inf
    lower, upper = cut(low, high, least, most)
    return Intervals(level, estimated.value, estimated.variance, lower, upper, margin, law)


def selected_intervals(ask: Callable[[float], Intervals], confidence: float) -> tuple[Intervals, Bools]:
    """Make intervals that hold for counts picked because their interval excludes zero.

    Picked counts include those whose noise happened to be large, so their ordinary intervals miss more often.
    Of m intervals R exclude zero; those are given at level 1 - (1 - confidence) R / m. Then the expected
    share of picked intervals that miss is at most 1 - confidence (a share of zero if none is picked).

    - `ask`: intervals of the same question at any level.
    - `confidence`: in (0, 1).
    - Returns: of all counts, at the level of the picked ones.
    - Returns `picked` (a, t): counts with a noisy estimate whose interval at `confidence` excludes zero.

    Notes
    -----
    Benjamini and Yekutieli (2005), False discovery rate-adjusted multiple confidence intervals, Theorem 1:
    exact for independent estimates. Those of one release depend on each other.
    """
    found = ask(confidence)
    noisy = np.isfinite(found.variance) & (found.variance > 0.0) & (found.law != LAWS.index(EXACT))
    picked: Bools = noisy & ((found.lower > 0.0) | (found.upper < 0.0))
    if not picked.any() or (picked == noisy).all():
        return found, picked
    return ask(1.0 - (1.0 - confidence) * int(picked.sum()) / int(noisy.sum())), picked


def area_intervals(
    tree: NoisyTree, estimates: EstimateSource, areas: Areas, members: Bools, confidence: float
) -> Intervals:
    """Make intervals for sets of leaves, weighted or not.

    Where a weight is neither 0 nor 1 the sum need not be a whole number, and its interval is not rounded; it
    is cut off at zero and at the weighted bounds, if no weight is negative.
    """
    if bool(np.all(areas.weight == 1.0)):
        found = area_limits(
            tree.product, tree.spine, tree.constraints, (areas.which, areas.leaf), areas.number
        )
        return intervals(estimates.areas(areas, members), found, members, confidence)
    level = confidence_level(confidence)
    # What is exact and what is unknown is told by cut-offs that weights of the order of one are meant for.
    unit = _largest_weights(areas)
    areas = dataclasses.replace(areas, weight=areas.weight / unit[areas.which, 0])
    estimated = estimates.areas(areas, members)
    margin, law = estimated.half_widths(level)
    least, most = _weighted_limits(tree, areas, members)
    unknown = ~np.isfinite(estimated.variance)
    with np.errstate(invalid="ignore"):
        lower = np.where(unknown, least, np.maximum(estimated.value - margin, least))
        upper = np.where(unknown, most, np.minimum(estimated.value + margin, most))
    nearest = np.clip(estimated.value, least, most)
    empty = lower > upper
    lower, upper = np.where(empty, nearest, lower), np.where(empty, nearest, upper)
    value, variance = unit * estimated.value, unit * unit * estimated.variance
    return Intervals(level, value, variance, unit * lower, unit * upper, unit * margin, law)


def _largest_weights(areas: Areas) -> Floats:
    """Return the power of two above the largest weight of each area, float64 (a, 1): division is exact."""
    largest = np.zeros(areas.number)
    np.maximum.at(largest, areas.which, np.abs(areas.weight))
    return np.ldexp(1.0, np.frexp(largest)[1])[:, None]


def _weighted_limits(tree: NoisyTree, areas: Areas, members: Bools) -> tuple[Floats, Floats]:
    least = np.zeros((areas.number, len(members)))
    most = np.zeros_like(least)
    leaves, place = np.unique(areas.leaf, return_inverse=True)
    place = place.ravel()
    step = max(1, VALUES_PER_BATCH // max(1, len(members)))
    order = np.argsort(place, kind="stable")
    for start in range(0, len(order), step):
        rows = order[start : start + step]
        used, at = np.unique(place[rows], return_inverse=True)
        limits = geounit_limits(
            tree.product, tree.spine, tree.constraints, len(tree.spine.levels) - 1, leaves[used]
        )
        low, high = (ends.astype(np.float64)[at.ravel()] for ends in limits.of(members))
        high[high >= UNBOUNDED] = np.inf
        weight = areas.weight[rows, None]
        positive = weight > 0
        with np.errstate(invalid="ignore"):
            first = np.where(positive, weight * low, weight * high)
            last = np.where(positive, weight * high, weight * low)
        for out, end in ((least, first), (most, last)):
            np.add.at(out, areas.which[rows], np.where(weight == 0, 0.0, end))
    return least, most


def match_geounits(spine: Spine, unit: Ints, areas: int) -> tuple[Ints, Ints]:
    """Find geounits of the spine that have the same leaves as areas.

    - `unit` (leaves,): area of each leaf of the frame; -1 for none.
    - Returns `level`, `geounit` (a,): the highest such geolevel; -1 where there is none.
    """
    level = np.full(areas, -1, dtype=np.int64)
    geounit = np.full(areas, -1, dtype=np.int64)
    for number in range(len(spine.levels)):
        found = spine.same_leaves(number, unit, areas)
        same = (level < 0) & (found >= 0)
        level[same], geounit[same] = number, found[same]
    return level, geounit


def batches(
    tree: NoisyTree, estimates: EstimateSource, unit: Ints, areas: int, members: Bools, confidence: float
) -> Iterator[tuple[int, Intervals]]:
    """Yield (first area, intervals) for areas that do not overlap, a bounded number at a time.

    - `unit` (leaves,): area of each leaf of the frame; -1 for none.
    - `members` (t, n).
    """
    level, geounit = match_geounits(tree.spine, unit, areas)
    own = unit[tree.spine.leaf_order]
    leaves = np.flatnonzero(own >= 0)
    every = Areas(areas, own[leaves], leaves, np.ones(len(leaves)))
    step = max(1, VALUES_PER_BATCH // max(1, len(members)))
    for start in range(0, areas, step):
        rows = np.arange(start, min(start + step, areas))
        parts: list[tuple[Ints, Intervals]] = []
        for number in np.unique(level[rows]).tolist():
            chosen = rows[level[rows] == number]
            if number < 0:
                found = area_intervals(tree, estimates, every.take(chosen), members, confidence)
            else:
                limits = geounit_limits(tree.product, tree.spine, tree.constraints, number, geounit[chosen])
                estimated = estimates.geounits(number, geounit[chosen], members)
                found = intervals(estimated, limits, members, confidence)
            parts.append((chosen - start, found))
        yield start, _join_intervals(parts)


def _join_intervals(parts: list[tuple[Ints, Intervals]]) -> Intervals:
    """Put the intervals of several sets of rows in the order of the rows."""
    found = [one for _, one in parts]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    joined = Intervals.joined(found, found[0].confidence, found[0].estimate.shape[1])
    return joined if len(found) == 1 else joined.take(order)
