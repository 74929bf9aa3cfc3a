"""Estimates from several files of measurements of one truth, each with noise of its own.

Two products measured the same people on two hierarchies, of which the blocks are common. Each gives estimates
of a count with known variances, and their noise is independent; the mean with one over the variances as
weights has the least variance of all means, one over the sum of the weights.

Axes: ``a`` areas, ``t`` sums of cells asked for, ``n`` cells of the first product, ``c`` of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opendas.arrays import Bools, Floats, Ints
from opendas.errors import FormatError
from opendas.intervals.answers import NO_NOISE, Areas, Estimated, match_geounits
from opendas.intervals.laws import Draws, NoiseSum
from opendas.intervals.noisy_tree import NoisyTree
from opendas.intervals.tree_estimates import TreeEstimates

__all__ = ["CombinedEstimates", "OtherMeasurements", "combined"]

MOST_APART = 7.0
"""Standard deviations by which two files may differ about a county's total: chance is below 1e-11."""


@dataclass(frozen=True, eq=False)
class OtherMeasurements:
    """Measurements of another product.

    Parameters
    ----------
    product : str
    estimates : TreeEstimates
    cell : int64 (c,)
        A cell of the first product that counts what each cell of this one counts.
    """

    product: str
    estimates: TreeEstimates
    cell: Ints

    @property
    def tree(self) -> NoisyTree:
        """The measurements."""
        return self.estimates.tree

    def of_areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in sets of leaves, by their positions in the frame."""
        place = self.tree.spine.place_of_leaf
        return self.estimates.areas(
            Areas(areas.number, areas.which, place[areas.leaf], areas.weight), members[:, self.cell]
        )

    def of_units(self, unit: Ints, areas: int, members: Bools) -> Estimated:
        """Return the same in areas that do not overlap, int64 (leaves,): through geounits where they are."""
        own = members[:, self.cell]
        level, geounit = match_geounits(self.tree.spine, unit, areas)
        parts = []
        for number in np.unique(level).tolist():
            chosen = np.flatnonzero(level == number)
            if number >= 0:
                parts.append((chosen, self.estimates.geounits(number, geounit[chosen], own)))
            else:
                leaf = np.flatnonzero(unit >= 0)
                every = Areas(areas, unit[leaf], leaf, np.ones(len(leaf))).take(chosen)
                parts.append((chosen, self.of_areas(every, members)))
        return _together(parts, areas, len(members))


class CombinedEstimates:
    """Estimates from a tree and others of the same truth; an ``EstimateSource``.

    Raises
    ------
    FormatError
        If leaves are not the same, or files contradict each other by more than chance.
    """

    def __init__(self, first: TreeEstimates, others: Sequence[OtherMeasurements]) -> None:
        self._first = first
        self._others = tuple(others)
        for other in self._others:
            self._compare(other)

    def geounits(self, level: int, geounits: Ints, members: Bools) -> Estimated:
        """Return sums over `members`, bool (t, n), in geounits of a geolevel of the first spine."""
        spine = self._first.tree.spine
        starts = spine.leaf_starts(level)
        place = np.full(len(starts) - 1, -1, dtype=np.int64)
        place[geounits] = np.arange(len(geounits))
        unit = np.empty(len(spine.leaf), dtype=np.int64)
        unit[spine.leaf_order] = np.repeat(place, np.diff(starts))
        found = [other.of_units(unit, len(geounits), members) for other in self._others]
        return combined([self._first.geounits(level, geounits, members), *found])

    def areas(self, areas: Areas, members: Bools) -> Estimated:
        """Return weighted sums over `members` in sets of leaves."""
        leaf = self._first.tree.spine.leaf_order[areas.leaf]
        in_frame = Areas(areas.number, areas.which, leaf, areas.weight)
        found = [other.of_areas(in_frame, members) for other in self._others]
        return combined([self._first.areas(areas, members), *found])

    def _compare(self, other: OtherMeasurements) -> None:
        """Compare leaves, and totals of counties: of two censuses, or two vintages, they differ."""
        first, frame = self._first.tree, self._first.tree.frame
        unlike = np.setxor1d(frame.geocodes, other.tree.frame.geocodes)
        if len(unlike):
            raise FormatError(
                f"{first.product.name} and {other.tree.product.name} are about other blocks: "
                f"{unlike[0].decode()} is in one of them only, and {len(unlike) - 1} others."
            )
        codes, unit = np.unique(frame.codes("county"), return_inverse=True)
        every = np.ones((1, first.product.schema.size), dtype=bool)
        mine = OtherMeasurements(first.product.name, self._first, np.arange(first.product.schema.size))
        one = mine.of_units(unit.ravel(), len(codes), every)
        two = other.of_units(unit.ravel(), len(codes), every)
        with np.errstate(invalid="ignore"):
            spread = np.sqrt(np.maximum(one.variance + two.variance, NO_NOISE))
            apart = np.nan_to_num(np.abs(one.value - two.value) / spread)[:, 0]
        worst = int(apart.argmax())
        if apart[worst] > MOST_APART:
            raise FormatError(
                f"{first.product.name} and {other.tree.product.name} differ about the people of county "
                f"{codes[worst].decode()} by {apart[worst]:.0f} standard deviations: they do not measure one "
                "truth. Keep files of two censuses, and of two vintages, apart."
            )


def combined(parts: Sequence[Estimated]) -> Estimated:
    """Return the means of independent estimates of the same counts with the least variance."""
    variance = np.stack([part.variance for part in parts])
    exact = variance <= NO_NOISE
    # Where one is exact it has all the weight, and where nothing is known none.
    weight = np.where(exact.any(axis=0), exact, 1.0 / np.maximum(variance, NO_NOISE))
    value = np.stack([np.where(w > 0, part.value, 0.0) for w, part in zip(weight, parts, strict=True)])
    total = weight.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (weight * value).sum(axis=0) / total
        spread = np.where(exact.any(axis=0), 0.0, 1.0 / total)
        share = np.nan_to_num(weight / total)
    laws: dict[NoiseSum, int] = {}
    kind = np.full(mean.shape, -1, dtype=np.int64)
    numbers = np.stack([part.kind for part in parts])
    unusual = ((numbers >= 0) & (share > 0)).any(axis=0) & (spread > 0)
    for area, column in np.argwhere(unusual).tolist():
        law = _law(parts, numbers[:, area, column], np.round(share[:, area, column], 12))
        if not law.is_normal:
            kind[area, column] = laws.setdefault(law, len(laws))
    return Estimated(mean, spread, tuple(laws), kind)


def _law(parts: Sequence[Estimated], numbers: Ints, share: Floats) -> NoiseSum:
    """Return the law of a mean, with variance 1, from the standardised laws of its parts."""
    draws: list[Draws] = []
    rest = 0.0
    for part, number, of_variance in zip(parts, numbers.tolist(), share.tolist(), strict=True):
        if number < 0:
            rest += of_variance
            continue
        law = part.kinds[number]
        rest += of_variance * law.rest
        draws += [Draws(d.law, d.weight * of_variance**0.5, d.number) for d in law.draws if of_variance > 0]
    return NoiseSum(tuple(draws), rest)


def _together(parts: Sequence[tuple[Ints, Estimated]], areas: int, columns: int) -> Estimated:
    """Put estimates of several sets of areas in the areas' order."""
    value, variance = np.full((areas, columns), np.nan), np.full((areas, columns), np.inf)
    kind = np.full((areas, columns), -1, dtype=np.int64)
    kinds: list[NoiseSum] = []
    for chosen, found in parts:
        value[chosen], variance[chosen] = found.value, found.variance
        kind[chosen] = np.where(found.kind >= 0, found.kind + len(kinds), -1)
        kinds += found.kinds
    return Estimated(value, variance, tuple(kinds), kind)
